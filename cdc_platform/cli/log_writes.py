"""`cdc-platform log-writes`: append the log rows of base writes from a table of them, each batch exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.next_steps import build_next_step
from cdc_platform.cli.output import json_option, warn
from cdc_platform.cli.params import TABLE_NAME, TIME
from cdc_platform.cli.render import View, show_rows, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.cli.write_rules import CDC_LOG, WritingCommand
from cdc_platform.clock import Microseconds, format_us
from cdc_platform.cql import format_table_name
from cdc_platform.errors import PlatformError

if TYPE_CHECKING:
    from cdc_platform.cdclog import AppendedBatch, InvalidWrites

_MAX_SHOWN = 20
_LAST_US = 1 << 56
"""A time of the year 4253."""


@click.command("log-writes", cls=WritingCommand, writes=(CDC_LOG,))
@click.argument("table", type=TABLE_NAME)
@click.argument("path")
@click.option("--batch", "name", metavar="NAME", help="Append all writes as one batch of this name.")
@click.option("--hour", "hour_us", type=TIME, help="Append the writes of this hour, as a batch named after it.")
@click.option("--hourly", is_flag=True, help="Append the writes of each hour, as batches named after their hours.")
@json_option
@pass_session
def log_writes(
    session: CliSession,
    table: tuple[str, str],
    path: str,
    name: str | None,
    hour_us: Microseconds | None,
    hourly: bool,
    as_json: bool,
) -> None:
    """Append the log rows of the base writes in PATH to the CDC log of TABLE (keyspace.table), in their streams.

    PATH is a Delta table, a Parquet file or a folder of Parquet files, also in an object store. Its rows are writes of
    the past: the columns of the base table, `timestamp`, and optionally `ttl` and `operation`.

    A batch is appended as a whole, exactly once: appending it again changes nothing, and another content under its name
    is refused. So is a batch with invalid writes, which are listed with their keys and the reasons. Spark is started
    for more than a million writes.

    \b
    Example:
      cdc-platform log-writes shop.carts writes.parquet --batch backfill-1
      cdc-platform log-writes shop.carts s3://bucket/writes --hour 2026-01-31T12:00:00Z
      cdc-platform log-writes shop.carts writes --hourly
    """
    if sum((name is not None, hour_us is not None, hourly)) != 1:
        raise click.UsageError("name the batch: one of --batch NAME, --hour TIME and --hourly")
    lake = session.lake()
    from cdc_platform.cdclog import InvalidWrites, append_batch, append_hour, list_hours
    from cdc_platform.spark import get_task_runner

    workers = get_task_runner()
    batches: list[AppendedBatch] = []
    try:
        if name is not None:
            batches.append(append_batch(lake, *table, path, name, workers))
        else:
            for hour in [hour_us] if hour_us is not None else list_hours(path, workers):
                batches.append(append_hour(lake, *table, path, hour, workers))
    except PlatformError as error:
        if any(batch.appended for batch in batches):
            error.exit_code = 1  # something was changed
        if batches or isinstance(error, InvalidWrites):
            _write_batches(table, batches, error, as_json)
        raise
    _write_batches(table, batches, None, as_json)


def _write_batches(
    table: tuple[str, str], batches: list[AppendedBatch], error: PlatformError | None, as_json: bool
) -> None:
    for batch in batches:
        for consumer in batch.passed:
            warn(
                f"the consumer {consumer.name} of {batch.table} has read up to {format_us(consumer.position_us)}, and "
                f"does not read the older rows of batch {batch.batch}",
                code="late-writes",
            )
    rows = [_batch_document(batch) for batch in batches]
    document: dict[str, Any] = {"table": ".".join(table), "batches": rows}
    from cdc_platform.cdclog import InvalidWrites

    invalid = error if isinstance(error, InvalidWrites) else None
    if invalid is not None:
        document |= {"invalid": dict(invalid.bad), "invalid_writes": _invalid_rows(invalid)}
    appended = any(batch.appended for batch in batches)
    steps = [build_next_step("log", format_table_name(*table), why="its newest rows")] if appended else []

    def show() -> None:
        if rows or invalid is None:
            show_rows(rows, View("batch writes log_rows appended first last", f"Batches of {document['table']}"))
        if invalid is not None:
            columns, shown = "key timestamp check reason", document["invalid_writes"][:_MAX_SHOWN]
            show_rows(shown, View(columns, "Invalid writes", essential=4))
            if sum(invalid.bad.values()) > len(shown):
                warn("more writes are invalid; --json shows more", code="more-rows")

    write_result(document, as_json=as_json, show=show, next_steps=steps)


def _batch_document(batch: AppendedBatch) -> dict[str, Any]:
    return {
        "batch": batch.batch,
        "writes": batch.writes,
        "log_rows": batch.log_rows,
        "appended": batch.appended,
        "first": None if batch.first_us is None else format_us(batch.first_us),
        "last": None if batch.last_us is None else format_us(batch.last_us),
        "passed_consumers": [consumer.name for consumer in batch.passed],
    }


def _invalid_rows(error: InvalidWrites) -> list[dict[str, Any]]:
    return [
        {
            "key": write["key"],
            "timestamp": _format_timestamp(write["timestamp_us"]),
            "check": write["check"],
            "reason": write["reason"],
        }
        for write in error.writes
    ]


def _format_timestamp(timestamp_us: int | None) -> str | None:
    """Format a timestamp, or its number if it is no time."""
    if timestamp_us is None:
        return None
    return format_us(Microseconds(timestamp_us)) if 0 <= timestamp_us < _LAST_US else str(timestamp_us)

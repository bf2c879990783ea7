"""What the tables hold for each partition of each asset: what the newest event of that partition has to say.

It reads small tables and Delta's logs, no stream. What is told of it, and how much at once, is in `reconciling`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from dagster import AssetKey

from assets.declared import key
from assets.events import Content
from assets.partitions import hour_partition
from cdc_platform.clock import from_datetime
from cdc_platform.lake import digests, provenance
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    BOOTSTRAP_EVENTS,
    CDC_LOCAL,
    CDC_TABLES,
    CONSUMED_HOURS,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_SWITCHES,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    NODES,
    REMOVED_GENERATIONS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    TABLET_LAYOUTS,
    TABLET_STREAMS,
    TABLET_TIMESTAMPS,
    TOPOLOGY_DESCRIPTIONS,
    Table,
)
from cdc_platform.log.audit.logs import logged_tables
from cdc_platform.log.log_table import log_table
from cdc_platform.timeline.parts import Contents, Names, Part

LOGS = AssetKey(["platform", "cdc_log"])
MOST_BYTES = 64 << 20
"""A log of which no commit says what it holds is not read for that beyond this size."""
OF_GENERATIONS = (
    BOOTSTRAP_EVENTS,
    TOPOLOGY_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    CDC_LOCAL,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
)
"""The tables whose assets have a partition a generation, in the order in which a join fills them."""
OF_TABLETS = (TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS)
WHOLE = (
    GENERATIONS,
    CDC_TABLES,
    GENERATION_SWITCHES,
    GENERATION_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS,
    REMOVED_GENERATIONS,
)
"""The tables whose assets have no partitions."""
WATCHED = (*OF_GENERATIONS, *OF_TABLETS, *WHOLE, CONSUMED_HOURS)


@dataclass(frozen=True)
class Held:
    """A partition of an asset, with the part of a table that it is; its digest costs something, and is asked for."""

    asset: AssetKey
    partition: str | None
    part: Part
    digest: Callable[[], int | None]

    def content(self, lake: Lake) -> Content | None:
        """What it holds; None where it holds nothing."""
        digest = self.digest()
        return None if digest is None else Content(self.part, digest, lake.path(self.part.table))


def of_generation(names: Names, contents: Contents) -> Iterator[Held]:
    """What is held of a generation, in the order in which it is made."""
    for table in OF_GENERATIONS:
        part = names.part(table)
        if part is not None:
            yield Held(key(table), names.key, part, lambda table=table: contents.of(names, table))


def of_others(lake: Lake) -> Iterator[Held]:
    """What is held in tables that are no generation's."""
    for table in WHOLE:
        yield Held(key(table), None, Part(table, {}), lambda table=table: provenance.whole(lake, table))
    for table in OF_TABLETS:
        columns = ("keyspace_name", "table_name")
        yield from _by_columns(lake, table, columns, lambda values: ".".join(map(str, values)))
    yield from _by_columns(lake, CONSUMED_HOURS, ("hour",), lambda values: hour_partition(from_datetime(values[0])))
    for schema in logged_tables(lake):
        log = log_table(schema)
        yield Held(
            LOGS,
            schema.full_name,
            Part(log, {}),
            lambda log=log: provenance.whole(lake, log, most_bytes=MOST_BYTES),
        )


def versions(lake: Lake) -> str:
    """A name for the state of everything that is held."""
    logs = [log_table(schema) for schema in logged_tables(lake)]
    return "/".join(str(lake.version(table)) for table in (*WATCHED, *logs))


def by_asset(held: Iterator[Held]) -> Mapping[AssetKey, list[Held]]:
    """What is held, by its asset."""
    ordered = sorted(held, key=lambda each: each.asset)
    return {asset: list(several) for asset, several in groupby(ordered, key=lambda each: each.asset)}


def _by_columns(
    lake: Lake, table: Table, columns: tuple[str, ...], named: Callable[[tuple[Any, ...]], str]
) -> Iterator[Held]:
    rows = lake.read(table)
    found = digests.of_rows(rows, columns, lake.digest_rule(table))
    for values in sorted(set(zip(*(rows[name].to_pylist() for name in columns), strict=True))):
        where = dict(zip(columns, values, strict=True))
        digest = found.get(digests.slice_name(columns, values))
        yield Held(key(table), named(values), Part(table, where), lambda digest=digest: digest)

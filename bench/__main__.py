"""`python -m bench [ROW ...]`: run the benchmarks, print a table, write JSON to bench/results/."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module, metadata
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench.measure import Result
from bench.session import FULL, QUICK, Bench

RESULTS = Path(__file__).parent / "results"
ROWS: dict[str, str] = {
    # This row measures memory, so it runs before rows that leave something in this process or its JVM.
    "growth": "bench.life:growth",
    "generating-alone": "bench.generating:generating_alone",
    "sensor-tick": "bench.sensor_tick:sensor_tick",
    "generate-and-write": "bench.life:generate_and_write",
    "whole-life": "bench.life:whole_life",
    "whole-life-growing": "bench.life:growing",
    "audit-alone": "bench.life:audit_alone",
    "newcomer": "bench.newcomer:newcomer",
    "small-join": "bench.small:small_join",
    "few-tasks": "bench.small:few_tasks",
    "look-ups": "bench.look_ups:look_ups",
    "look-ups-of-many": "bench.look_ups:look_ups_of_many",
    "many-generations": "bench.many:many_generations",
    "many-tables": "bench.many:many_tables",
    "metrics-of-many": "bench.many:metrics_of_many",
    "join-of-many": "bench.long_lived:join_of_many",
    "bounded": "bench.bounded:bounded",
    "soak": "bench.soak:soak",
    "sql": "bench.queries:queries",
    "idle-up": "bench.idle:idle_up",
    "dagster-join": "bench.dagster_join:dagster_join",
    "asleep": "bench.idle:asleep",
    "look-ups-stored": "bench.stored:look_ups",
    "requests": "bench.stored:requests",
    "requests-of-many": "bench.stored:requests_of_many",
    "stored-life": "bench.drivers:stored_life",
    "two-workers": "bench.drivers:two_workers",
    "base-writes": "bench.base_writes:base_writes",
    "log-volume": "bench.log:log_volume",
    "log-deletions": "bench.log:log_deletions",
    "log-window": "bench.log:log_window",
    "log-minutes": "bench.minutes:minute_log",
    "log-replay": "bench.replay:log_replay",
    "log-keep": "bench.scripts:log_keep",
    "rewrite": "bench.rewrite:rewriting",
    "rehearse": "bench.rehearsal:rehearsing",
    "simulate": "bench.simulation:histories",
    "simulate-nodes": "bench.simulation:thousand_nodes",
    "live-ingest": "bench.live:ingesting",
    "backlog": "bench.backlog:backlog",
    "backlog-source": "bench.backlog:backlog_source",
    "live-first-copy": "bench.live:first_copy",
    "live-quiet": "bench.live:quiet",
    "live-lag": "bench.live:lag",
    "kept-current": "bench.current:keeping_current",
}
"""The rows by name, in the order in which they run."""


@click.command(epilog="Example: python -m bench growth base-writes")
@click.argument("rows", nargs=-1, type=click.Choice(list(ROWS)))
@click.option("--quick", is_flag=True, help="Small sizes: shows that everything runs; its ratios mean nothing.")
def main(rows: tuple[str, ...], quick: bool) -> None:
    """Measure the platform, each row against a floor of the same run; all rows, or those named."""
    # In a file or a pipe lines have their full length.
    console = Console(width=None if sys.stdout.isatty() else 200)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="cdc-platform-bench-") as folder:
        bench = Bench(Path(folder), QUICK if quick else FULL)
        for name in rows or ROWS:
            with console.status(f"{name} ..."):
                measured = _row(name)(bench)
            results += measured
            for result in measured:
                console.print(_line(result))
    console.print(_table(results, quick))
    console.print(f"Written to {_write(results, quick)}")


def _row(name: str) -> Callable[[Bench], list[Result]]:
    module, _, function = ROWS[name].partition(":")
    return getattr(import_module(module), function)


def _line(result: Result) -> str:
    return f"{result.row}: {_value(result)} ({_target(result)}) {'ok' if result.reached else 'MISSED'}"


def _value(result: Result) -> str:
    return f"{result.value:.3g}" if result.value < 1 else f"{result.value:.2f}"


def _target(result: Result) -> str:
    return f"{'at least' if result.at_least else 'at most'} {result.target:g}"


def _table(results: list[Result], quick: bool) -> Table:
    table = Table(title="Quick run: the ratios mean nothing" if quick else None, show_lines=True)
    for name in ("row", "at", "seconds", "against", "its seconds", "ratio", "target", ""):
        table.add_column(name, justify="right" if name in ("seconds", "its seconds", "ratio") else "left")
    for result in results:
        floor_seconds = f"{result.floor_seconds:.3f}" if result.floor_seconds else ""
        outcome = "[green]ok[/]" if result.reached else "[red]missed[/]"
        table.add_row(
            result.row,
            result.at,
            f"{result.seconds:.3f}",
            result.floor,
            floor_seconds,
            _value(result),
            _target(result),
            outcome,
        )
    return table


def _write(results: list[Result], quick: bool) -> Path:
    """Write the results with the versions that were measured, as JSON without the machine's name."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}{'-quick' if quick else ''}.json"
    versions = {name: metadata.version(name) for name in ("pyspark", "delta-spark", "deltalake", "numpy", "pyarrow")}
    document = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()},
        "versions": versions,
        "quick": quick,
        "results": [asdict(result) | {"reached": result.reached} for result in results],
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    main()

"""The rows about a home with a long life: thousands of small generations are imported from files and audited."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from uuid import UUID

from deltalake import DeltaTable, write_deltalake

from bench.cluster import Size, nodes_of
from bench.measure import Result, paired
from bench.session import CLOCK, Bench
from cdc_platform.clock import MINUTE_US, Microseconds, cql_timestamp_literal, format_us, ms_from_us
from cdc_platform.delta import Lake, list_stored_tables
from cdc_platform.generations import RingLayout, TopologyDescription, generate_description
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.importing import snapshot_from_node
from cdc_platform.metastore import cdc_tables
from cdc_platform.metrics import HomeMetrics, format_metrics
from cdc_platform.ring import Ring
from cdc_platform.tables import (
    CDC_TABLE_CHANGES,
    CDC_TABLES,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    STREAMS_DESCRIPTIONS_V2,
)

_SIZE = Size(2, 8, 4)
MANY, SOME, FEW = 2_000, 20, 3
"""Generations of a home with a long life, of a quick run, and of the home that both are compared with."""
ANOTHER_RING = 2
"""Seed of an imported ring without the tokens of a node that joins."""
_TARGET = 3.0
_TARGET_OF_METRICS = 6.0
"""A scrape also reads rows of the tables, which the floor only opens."""
_TARGET_OF_TABLES = 12.0
"""Each is an object that is compared with its table's latest change; the floor has them as columns."""
_DDL = "CREATE TABLE ks.t (pk int, ck int, v text, PRIMARY KEY (pk, ck)) WITH cdc = {'enabled': 'true'};"
_PROGRAM = (sys.executable, "-m", "cdc_platform", "--clock", format_us(CLOCK.now_us()), "--home")
_TABLES = (GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2, GENERATION_TIMESTAMPS)
# They exit at once: Arrow's threads, which still free thousands of files, may abort a process that exits normally.
_READ = "import os, sys, deltalake\nfor path in sys.argv[1:]:\n    deltalake.DeltaTable(path).to_pyarrow_table()\n"
_READ += "os._exit(0)\n"
_COPY = "import os, sys, deltalake\nfor path in sys.argv[2:]:\n    table = deltalake.DeltaTable(path)\n"
_COPY += "    to = sys.argv[1] + '/' + path.rpartition('/')[2]\n    parts = table.metadata().partition_columns\n"
_COPY += "    deltalake.write_deltalake(to, table.to_pyarrow_table(), partition_by=parts)\nos._exit(0)\n"


def many_generations(bench: Bench) -> list[Result]:
    """Measure whole processes: `import` of as many generations as years leave, and their `check`."""
    count = MANY if bench.sizes.repeats > 1 else SOME
    at = f"{count:,} generations of {_SIZE.nodes * _SIZE.vnodes} ranges"
    with bench.scratch() as folder:
        exports = folder / "exports"
        export(exports, count)
        homes = iter(range(100))
        last = [""]

        def take_in() -> None:
            last[0] = str(folder / f"home{next(homes)}")
            _run([*_PROGRAM, last[0], "import", str(exports)])

        take_in()
        lake = Lake(open_home_location(last[0]).path / "lake")
        paths = [lake.path(table) for table in _TABLES]
        copies = (str(folder / f"copy{number}") for number in range(100))
        repeats = min(bench.sizes.repeats, 3)
        imports = paired(
            take_in, lambda: _run([sys.executable, "-c", _COPY, next(copies), *paths]), repeats=repeats, warm_ups=0
        )
        judged = paired(
            lambda: _run([*_PROGRAM, last[0], "check"]),
            lambda: _run([sys.executable, "-c", _READ, *paths]),
            repeats=repeats,
            warm_ups=0,
        )
    rows = (("import", imports, "reading and writing"), ("check", judged, "reading"))
    return [
        Result(
            f"many-{name}",
            at,
            pairs.seconds,
            f"{floor} the same slices by deltalake",
            pairs.floor_seconds,
            pairs.ratio,
            _TARGET,
        )
        for name, pairs, floor in rows
    ]


def many_tables(bench: Bench) -> list[Result]:
    """Register tables with a log, as an observation or an import of a schema does, and alter them: two commits."""
    count = 500 if bench.sizes.repeats > 1 else 20
    with bench.scratch() as folder:
        lakes = (Lake(folder / f"lake{number}") for number in range(100))
        copies = (folder / f"copy{number}" for number in range(100))
        registered: list[Lake] = []

        def tell() -> None:
            lake = next(lakes)
            names = [f"t{number}" for number in range(count)]
            cdc_tables.record_table_changes(
                lake, [cdc_tables.request_addition(lake, CLOCK, "ks", name, ttl_seconds=60, ddl=_DDL) for name in names]
            )
            cdc_tables.record_table_changes(
                lake, [cdc_tables.request_alteration(lake, CLOCK, "ks", name, ttl_seconds=61) for name in names]
            )
            registered[:] = [lake]

        tell()
        rows = {table: registered[0].read(table) for table in (CDC_TABLE_CHANGES, CDC_TABLES)}

        def write() -> None:
            copy = next(copies)
            for half in range(2):
                history = rows[CDC_TABLE_CHANGES].slice(half * count, count)
                write_deltalake(copy / CDC_TABLE_CHANGES.name, history, mode="append")
                write_deltalake(copy / CDC_TABLES.name, rows[CDC_TABLES], mode="overwrite")

        pairs = paired(tell, write, repeats=min(bench.sizes.repeats, 9))
    floor = "writing the same rows by the same commits by deltalake"
    return [
        Result(
            "many-tables",
            f"{count} tables with a log, told of and altered",
            pairs.seconds,
            floor,
            pairs.floor_seconds,
            pairs.ratio,
            _TARGET_OF_TABLES,
        )
    ]


def metrics_of_many(bench: Bench) -> list[Result]:
    """Measure a scrape of the metrics in a long-running process, as `up` serves it, relative to opening all tables."""
    count = MANY if bench.sizes.repeats > 1 else SOME
    with bench.scratch() as folder:
        home = imported(str(folder / "home"), count, folder / "exports")
        lake = Lake(home.path / "lake")
        metrics = HomeMetrics(home, CLOCK)
        paths = [str(lake.location / f"{keyspace}/{name}") for keyspace, name in list_stored_tables(lake)]

        def scrape() -> None:
            scraped = metrics.scrape()
            assert not scraped.problems, scraped.problems
            format_metrics(scraped)

        def open_tables() -> None:
            for path in paths:
                DeltaTable(path)

        pairs = paired(scrape, open_tables, repeats=min(bench.sizes.repeats, 9))
    return [
        Result(
            "metrics-of-many",
            f"a scrape of {count:,} generations of {_SIZE.nodes * _SIZE.vnodes} ranges",
            pairs.seconds,
            f"opening its {len(paths)} tables by deltalake",
            pairs.floor_seconds,
            pairs.ratio,
            _TARGET_OF_METRICS,
        )
    ]


def imported(name: str, count: int, folder: Path, seed: int = 1) -> HomeLocation:
    """Create a home (a folder, or an address in a store) with `count` generations, imported from files in `folder`."""
    export(folder, count, seed)
    _run([*_PROGRAM, name, "import", str(folder)])
    return open_home_location(name)


def export(folder: Path, count: int, seed: int = 1) -> None:
    """Write a ring and its generations, a minute apart, as `COPY ... TO` does."""
    folder.mkdir()
    ring = Ring.of(nodes_of(_SIZE, seed))
    nodes = [snapshot_from_node(node) for node in ring.nodes]
    (folder / "ring.json").write_text(json.dumps(nodes), encoding="utf-8")
    described, published, times = ["id,range_end,ignore_msb,num_ranges,streams"], ["time,range_end,streams"], []
    layout = RingLayout.of(ring)
    for number in range(count):
        generation = generate_description(layout, UUID(int=number + 1, version=4))
        time = cql_timestamp_literal(ms_from_us(Microseconds(CLOCK.now_us() - MINUTE_US * (count - number))))
        times.append(f"timestamps,{time},")
        for end, msb, streams in _ranges(generation):
            described.append(f"{UUID(int=number + 1, version=4)},{end},{msb},{len(generation)},{streams}")
            published.append(f"{time},{end},{streams}")
    for name, lines in (("descriptions", described), ("streams", published), ("times", ["key,time,expired", *times])):
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _ranges(generation: TopologyDescription) -> list[tuple[int, int, str]]:
    """Return for each range its end, its owner's ignore_msb, and its streams as a CQL set."""
    ranges = []
    for row in range(len(generation)):
        entry = generation.entry(row)
        streams = ", ".join(sorted(f"0x{bytes(stream).hex()}" for stream in entry.streams))
        ranges.append((entry.range_end, entry.ignore_msb, f'"{{{streams}}}"'))
    return ranges


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

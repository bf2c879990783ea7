"""The output of SELECT and SELECT JSON gives the same exports as the files of COPY.

The forms are written from the documents: cqlsh's tables with bars and 6 decimals, SELECT JSON with a column `[json]`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.files.cqlsh_forms import as_json_lines, as_json_list, as_json_table, as_printed
from support.files.export_files import (
    ID,
    LATER_MS,
    SNAPSHOT,
    TIME_MS,
    generation,
    local_csv,
    streams_csv,
    tablet_streams_csv,
    tablet_timestamps_csv,
    timestamps_csv,
    v1_descriptions_csv,
    v1_streams_csv,
    v2_csv,
)

from cdc_platform.clock import Clock, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.importing.formats.exports import parse_exports
from cdc_platform.importing.run import import_paths
from cdc_platform.tables import GENERATION_TIMESTAMPS, STREAMS_DESCRIPTIONS_V2, TABLES

LAST = "7fffffffffffffff0000000004000001"


ONE = generation()
TEXTS = {
    "v2": v2_csv({ID: ONE}),
    "streams": streams_csv({TIME_MS: ONE}),
    "timestamps": timestamps_csv({TIME_MS: LATER_MS, LATER_MS: None}),
    "v1": v1_descriptions_csv({TIME_MS: ONE}),
    "v1 streams": v1_streams_csv({TIME_MS: ONE}),
    "local": local_csv({"cdc_local": (TIME_MS, ID)}, "11111111-1111-4111-8111-111111111111"),
    "tablet times": tablet_timestamps_csv([TIME_MS]),
    "tablet streams": tablet_streams_csv([(TIME_MS, 0, LAST), (TIME_MS, 2, LAST)]),
}


def parse_all(text: str, source: str = "a") -> str:
    """Return everything that is parsed from a text."""
    exports = parse_exports([(source, text)])
    described = {id_: (rows.range_ends, rows.ignore_msbs, rows.streams) for id_, rows in exports.descriptions.items()}
    published = {time: (rows.range_ends, rows.streams) for time, rows in exports.streams.items()}
    v1 = [
        (time, item.expired_ms, item.streams, item.description and item.description.streams)
        for table in (exports.v1.descriptions, exports.v1.streams)
        for time, item in table.items()
    ]
    local = [(row.host_id, row.key, row.streams_timestamp_ms, row.uuid) for row in exports.v1.local]
    sets = {
        name: [(item.time_ms, item.current, item.closed, item.opened) for item in entries]
        for name, entries in exports.tablets.sets.items()
    }
    times = {name: list(entries) for name, entries in exports.tablets.times.items()}
    return repr((described, published, exports.timestamps, v1, local, sets, times, exports.exported_tables))


@pytest.mark.parametrize("form", [as_printed, as_json_table, as_json_lines, as_json_list])
@pytest.mark.parametrize("name", TEXTS)
def test_every_form_gives_the_same_table(name: str, form: Callable[[str], str]) -> None:
    """The columns alone identify the table, and every form has the same rows."""
    assert parse_all(form(TEXTS[name])) == parse_all(TEXTS[name])


WARNINGS = "Warnings :\nAggregation query used without partition key\n\nSchema version | mismatch detected\n"
SESSIONS: dict[str, Callable[[str], str]] = {
    "a prompt": lambda text: f"cqlsh> SELECT * FROM t;\n{text}",
    "a prompt with a user and a keyspace": lambda text: f"admin@cqlsh:ks> SELECT * FROM t;\n{text}\nadmin@cqlsh:ks> ",
    "a quoted keyspace": lambda text: f'cqlsh:"Kw"> SELECT * FROM t;\n{text}\ncqlsh:"Kw"> exit\n',
    "a statement of three lines": lambda text: f"cqlsh> SELECT *\n   ... FROM t\n   ... ;\n{text}\ncqlsh>",
    "warnings behind": lambda text: f"{text}\n{WARNINGS}",
    "warnings behind, and a prompt": lambda text: f"cqlsh> SELECT * FROM t;\n{text}\n{WARNINGS}\ncqlsh> ",
    "warnings in front, of stderr": lambda text: f"\n{WARNINGS}\n{text}",
    "line ends of Windows": lambda text: f"cqlsh> SELECT * FROM t;\n{text}\n{WARNINGS}".replace("\n", "\r\n"),
}


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("form", [as_printed, as_json_table])
@pytest.mark.parametrize("name", TEXTS)
def test_text_copied_from_a_session_gives_the_same_table(name: str, form: Callable[[str], str], session: str) -> None:
    """Prompts, typed text and warnings are no rows, and hide none."""
    assert parse_all(SESSIONS[session](form(TEXTS[name]))) == parse_all(TEXTS[name])


@pytest.mark.parametrize("between", ["", "cqlsh> SELECT * FROM t;\n", f"{WARNINGS}\n"])
def test_second_table_of_a_session_is_refused(between: str) -> None:
    """It does not count as a warning."""
    printed = as_printed(TEXTS["timestamps"])
    with pytest.raises(InputError, match="follows the table; a file holds one table"):
        parse_exports([("a", f"{printed}\n{between}{printed}")])


@pytest.mark.parametrize("prompt", ["cqlsh> DESCRIBE SCHEMA\n\n", "me@cqlsh:shop> DESC KEYSPACE shop;\n", ""])
@pytest.mark.parametrize("end", ["\ncqlsh> ", "\nWarnings :\nA warning with CREATE TABLE x (p int\n\n", ""])
def test_schema_copied_from_a_session_is_the_same(prompt: str, end: str) -> None:
    """A command of cqlsh ends with its line, not with the semicolon of the first statement."""
    schema = (
        "CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy'};\n\nCREATE TYPE shop.part (a int);\n\n"
        "CREATE TABLE shop.t (p int PRIMARY KEY, v part) WITH cdc = {'enabled': 'true'};\n"
    )
    (expected,) = parse_exports([("a", schema)]).tables
    assert expected.ddl is not None
    assert parse_exports([("a", f"{prompt}{schema}{end}")]).tables == [expected]


def test_ring_snapshot_is_distinguished_from_json_rows(lake: Lake, tmp_path: Path) -> None:
    """Both are JSON lists of objects, and their fields distinguish them."""

    tmp_path.joinpath("ring.json").write_text(json.dumps(SNAPSHOT))
    tmp_path.joinpath("rows.json").write_text(as_json_list(TEXTS["timestamps"]))
    report = import_paths(lake, Clock(us_from_ms(LATER_MS)), [tmp_path])
    assert len(report.nodes_added) == 2
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 2


@pytest.mark.parametrize("text", ["time,range_end,streams\r\n", as_printed("time,range_end,streams\r\n")])
def test_header_without_rows_is_an_empty_exported_table(lake: Lake, tmp_path: Path, text: str) -> None:
    """The table then exists without a row, which differs from an unknown table; no other table exists."""
    path = tmp_path.joinpath("streams.csv")
    path.write_text(text, newline="")
    import_paths(lake, Clock(us_from_ms(TIME_MS)), [path])
    assert [name for name, table in TABLES.items() if lake.exists(table)] == [STREAMS_DESCRIPTIONS_V2.full_name]
    assert lake.read(STREAMS_DESCRIPTIONS_V2).num_rows == 0

"""Exports of the V1 tables and of cdc_local: what is read, what stands in the lake, what the same again changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.files.export_files import (
    ID,
    LATER_MS,
    NARROW_END,
    OTHER_ID,
    TIME_MS,
    cql_time,
    generation,
    local_csv,
    streams_csv,
    timestamps_csv,
    v1_descriptions_csv,
    v1_streams_csv,
)
from support.files.export_files import NODES as MEMBERS
from support.homes.contents import contents

from cdc_platform.clock import ONE_MS, Clock, ms_from_datetime, us_from_datetime, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.generations import GenerationId
from cdc_platform.importing import ImportReport
from cdc_platform.importing.formats.exports import parse_exports
from cdc_platform.importing.run import import_paths
from cdc_platform.metastore import generations, write_nodes
from cdc_platform.tables import CDC_LOCAL, GENERATION_DESCRIPTIONS, STREAMS_DESCRIPTIONS, UNORDERED_RANGES
from cdc_platform.timeline import Timeline

HOST, OTHER_HOST = (str(node.host_id) for node in MEMBERS)
ONE, OTHER = generation(), generation(OTHER_ID)
BLOB = "0x7fb9f781956cea08c651295720000001"
TWO = "0x7fc0000000000000c298b9f168000001"

Import = Callable[..., ImportReport]


@pytest.fixture
def take_in(lake: Lake, tmp_path: Path) -> Import:
    """Import texts, each in a file of its own, into a lake that knows the ring."""
    write_nodes(lake, MEMBERS)

    def run(*texts: str, **options: Any) -> ImportReport:
        paths = [tmp_path / f"export{number}.csv" for number, _ in enumerate(texts)]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text, encoding="utf-8", newline="")
        return import_paths(lake, Clock(us_from_ms(LATER_MS)), paths, **options)

    return run


def expired(lake: Lake) -> dict[str, int | None]:
    """When (ms) the one row of each V1 table expired."""
    rows = {table.name: lake.read(table).to_pylist() for table in (GENERATION_DESCRIPTIONS, STREAMS_DESCRIPTIONS)}
    return {name: None if row["expired"] is None else ms_from_datetime(row["expired"]) for name, (row,) in rows.items()}


def test_v1_tables_are_imported_unchanged(lake: Lake, take_in: Import) -> None:
    """The description in shard order, whatever order its bytes have; the flat set as a client hands it out."""
    report = take_in(
        v1_descriptions_csv({TIME_MS: ONE, LATER_MS: OTHER}), v1_streams_csv({TIME_MS: ONE, LATER_MS: OTHER})
    )
    for time_ms, made in ((TIME_MS, ONE), (LATER_MS, OTHER)):
        assert generations.read_generation_description(lake, GenerationId(time_ms)).equals(made)
    flat = {ms_from_datetime(row["time"]): row["streams"] for row in lake.read(STREAMS_DESCRIPTIONS).to_pylist()}
    assert flat == {TIME_MS: sorted(map(bytes, ONE.streams)), LATER_MS: sorted(map(bytes, OTHER.streams))}
    told = [(each.id, each.time_ms, each.ranges, each.streams, each.unordered_ranges) for each in report.generations]
    assert told == [(None, LATER_MS, 6, 22, 0), (None, TIME_MS, 6, 22, 0)]
    assert report.warnings == []
    assert lake.read(UNORDERED_RANGES).num_rows == 0
    assert [(known.time_ms, known.format, known.published) for known in Timeline.read(lake).known] == [
        (TIME_MS, "v1", False),
        (LATER_MS, "v1", False),
    ]


def test_the_same_again_changes_nothing(lake: Lake, take_in: Import) -> None:
    """V1 tables and cdc_local, imported twice; an expiry that is told later is added to what is there."""
    files = (
        v1_descriptions_csv({TIME_MS: ONE}),
        v1_streams_csv({TIME_MS: ONE}),
        local_csv({"cdc_local": (TIME_MS, None), "rewritten": (None, None)}),
    )
    first = take_in(*files, host_id=HOST)
    assert first.rows_written == 4
    before = contents(lake)
    assert take_in(*files, host_id=HOST).rows_written == 0
    assert contents(lake) == before
    ended = {TIME_MS: LATER_MS}
    take_in(v1_descriptions_csv({TIME_MS: ONE}, ended), v1_streams_csv({TIME_MS: ONE}, ended))
    assert expired(lake) == {"cdc_generation_descriptions": LATER_MS, "cdc_streams_descriptions": LATER_MS}
    take_in(*files[:2])
    assert expired(lake) == {"cdc_generation_descriptions": LATER_MS, "cdc_streams_descriptions": LATER_MS}


def test_cdc_local_is_of_the_node_that_is_named(lake: Lake, take_in: Import) -> None:
    """By option, or by a column that ScyllaDB's table does not have; a V1 ID has no UUID; old tables no such column."""
    take_in(local_csv({"cdc_local": (TIME_MS, None)}).replace(",uuid", "").replace(",\r", "\r"), host_id=HOST)
    take_in(local_csv({"cdc_local": (LATER_MS, ID), "rewritten": (LATER_MS, None)}, OTHER_HOST))
    rows = {(row["host_id"], row["key"]): row for row in lake.read(CDC_LOCAL).to_pylist()}
    assert {place: row["uuid"] for place, row in rows.items()} == {
        (HOST, "cdc_local"): None,
        (OTHER_HOST, "cdc_local"): ID,
        (OTHER_HOST, "rewritten"): None,
    }
    assert us_from_datetime(rows[HOST, "cdc_local"]["streams_timestamp"]) == us_from_ms(TIME_MS)


def test_an_id_never_goes_back_and_a_marker_stays(lake: Lake, take_in: Import) -> None:
    """An export from before: the newer ID stays and that is told; a newer export moves it on."""
    take_in(local_csv({"cdc_local": (LATER_MS, ID), "rewritten": (None, None)}), host_id=HOST)
    before = contents(lake)
    report = take_in(local_csv({"cdc_local": (TIME_MS, None), "rewritten": (TIME_MS, None)}), host_id=HOST)
    assert contents(lake) == before
    assert any("its older ID was left out" in warning for warning in report.warnings)
    take_in(local_csv({"cdc_local": (LATER_MS + ONE_MS, OTHER_ID)}), host_id=HOST)
    assert [row["uuid"] for row in lake.read(CDC_LOCAL, filters=[("key", "=", "cdc_local")]).to_pylist()] == [OTHER_ID]


def test_issues_for_a_person_are_reported(lake: Lake, take_in: Import) -> None:
    """Streams without a description; V1 tables that disagree; a node that the ring does not have."""
    stranger = "33333333-3333-4333-8333-333333333333"
    report = take_in(
        v1_streams_csv({TIME_MS: ONE, LATER_MS: OTHER}),
        v1_descriptions_csv({LATER_MS: ONE}),
        local_csv({"rewritten": (None, None)}),
        host_id=stranger,
    )
    assert len(report.warnings) == 3
    assert "1 V1 generations without their description, the first 2026-01-31T12:00:00.384Z" in report.warnings[0]
    assert "disagree about 2026-02-01T12:00:00.000Z" in report.warnings[1]
    assert f"node {stranger} of cdc_local is not in the ring" in report.warnings[2]


def test_a_v1_description_gives_the_order_of_published_streams(lake: Lake, take_in: Import) -> None:
    """Streams that a client sorted and no V2 description explains: the V1 description of that time does, wholly."""
    published = (streams_csv({TIME_MS: ONE}), timestamps_csv({TIME_MS: None}))
    report = take_in(v1_descriptions_csv({TIME_MS: ONE}), *published)
    rows = generations.read_published_rows(lake, TIME_MS)
    found = [stream for row in rows["streams"].to_pylist() for stream in row]
    assert found == list(map(bytes, ONE.streams))
    assert NARROW_END in rows["range_end"].to_pylist()
    assert [each.unordered_ranges for each in report.generations] == [0]


@pytest.mark.parametrize(
    "cell",
    [
        f"[(-1, [{BLOB}, {TWO}], 12), (5, [{TWO}], 0)]",
        f"[(-1,[{BLOB},{TWO}],12),(5,[{TWO}],0)]",
        f"[('-1', [{BLOB}, {TWO}], 12), ('5', [{TWO}], 0)]",
        "[(-1, [(9203659449438104072, -4156495526910492671), (9205357638345293824, -4424582187408424959)], 12), "
        "(5, [(9205357638345293824, -4424582187408424959)], 0)]",
    ],
)
def test_descriptions_are_read_in_every_form(cell: str) -> None:
    """With and without spaces, tokens as text, streams as pairs of bigints: the same description."""
    text = f'time,description,expired\r\n{cql_time(TIME_MS)},"{cell}",\r\n'
    found = parse_exports([("d.csv", text)]).v1.descriptions[TIME_MS].description
    assert found is not None
    assert (found.range_ends.tolist(), found.stream_counts.tolist()) == ([-1, 5], [2, 1])
    assert found.ignore_msbs.tolist() == [12, 0]
    assert ["0x" + bytes(stream).hex() for stream in found.streams] == [BLOB, TWO, TWO]


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("", "no ranges"),
        ("[]", "no ranges"),
        (f"[(-1, [{BLOB}], 12), (5, [{TWO}", "ends before its list does: half-written export"),
        ("[(-1, [], 12)]", "is no entry"),
        (f"[(-1, [{BLOB}])]", "is no entry"),
        (f"[(-1, [{BLOB}], 12) (5, [{TWO}], 12)]", "is no entry"),
        (f"[(-1, [{BLOB}], 12), ]", "is no entry"),
        (f"[(-1, [{BLOB[:-2]}], 12)]", "is no entry"),
        (f"[(5, [{BLOB}], 12), (-1, [{TWO}], 12)]", "range ends ascend"),
        (f"[(5, [{BLOB}], 99)]", "ignore_msb 99 is out of range"),
        (f"[(9223372036854775808, [{BLOB}], 12)]", "is no token"),
        ("[(5, [0x0521d5ce4a4a8ca552f83d88a1ae55d2], 12)]", "older than the version field"),
        ("[(5, [(9223372036854775808, 1)], 12)]", "does not fit into two 64-bit integers"),
    ],
)
def test_what_is_no_description_is_refused(cell: str, says: str) -> None:
    """Each with the file, the line and what is wrong."""
    text = f'time,description,expired\r\n{cql_time(TIME_MS)},"{cell}",\r\n'
    with pytest.raises(InputError, match=r"^d\.csv, line 2: (description|range_end|streams):? ") as error:
        parse_exports([("d.csv", text)])
    assert says in str(error.value)


def test_a_contradiction_is_refused_and_nothing_is_written(lake: Lake, take_in: Import) -> None:
    """A generation never changes: another description or other streams of a time that is there, or in two files."""
    take_in(v1_descriptions_csv({TIME_MS: ONE}), v1_streams_csv({TIME_MS: ONE}))
    take_in(local_csv({"cdc_local": (TIME_MS, None)}), host_id=HOST)
    before = contents(lake)
    for files, says in (
        (
            [v1_descriptions_csv({TIME_MS: OTHER})],
            "cdc_generation_descriptions of 2026-01-31T12:00:00.384Z differs from the lake",
        ),
        (
            [v1_streams_csv({TIME_MS: OTHER})],
            "cdc_streams_descriptions of 2026-01-31T12:00:00.384Z differs from the lake",
        ),
        ([v1_streams_csv({LATER_MS: ONE}), v1_streams_csv({LATER_MS: OTHER})], "streams contradicts"),
    ):
        with pytest.raises(InputError, match=says):
            take_in(v1_descriptions_csv({LATER_MS: ONE}), *files)
    with pytest.raises(InputError, match="with no UUID, and here with 8d3f3f2e"):
        take_in(v1_descriptions_csv({LATER_MS: ONE}), local_csv({"cdc_local": (TIME_MS, ID)}), host_id=HOST)
    assert contents(lake) == before

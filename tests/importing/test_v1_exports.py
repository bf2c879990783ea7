"""Exports of the V1 tables and of cdc_local: their content, the stored rows, and the effect of a repetition."""

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
GENERATION, OTHER_GENERATION = generation(), generation(OTHER_ID)
BLOB = "0x7fb9f781956cea08c651295720000001"
TWO = "0x7fc0000000000000c298b9f168000001"

Import = Callable[..., ImportReport]


@pytest.fixture
def take_in(lake: Lake, tmp_path: Path) -> Import:
    """Import texts, each in a separate file, into a lake that knows the ring."""
    write_nodes(lake, MEMBERS)

    def run(*texts: str, **options: Any) -> ImportReport:
        paths = [tmp_path / f"export{number}.csv" for number, _ in enumerate(texts)]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text, encoding="utf-8", newline="")
        return import_paths(lake, Clock(us_from_ms(LATER_MS)), paths, **options)

    return run


def expiry_times(lake: Lake) -> dict[str, int | None]:
    """Return when (ms) the one row of each V1 table expired."""
    rows = {table.name: lake.read(table).to_pylist() for table in (GENERATION_DESCRIPTIONS, STREAMS_DESCRIPTIONS)}
    return {name: None if row["expired"] is None else ms_from_datetime(row["expired"]) for name, (row,) in rows.items()}


def test_v1_tables_are_imported_unchanged(lake: Lake, take_in: Import) -> None:
    """The description keeps its shard order; the flat set is sorted as a client returns it."""
    report = take_in(
        v1_descriptions_csv({TIME_MS: GENERATION, LATER_MS: OTHER_GENERATION}),
        v1_streams_csv({TIME_MS: GENERATION, LATER_MS: OTHER_GENERATION}),
    )
    for time_ms, described in ((TIME_MS, GENERATION), (LATER_MS, OTHER_GENERATION)):
        assert generations.read_generation_description(lake, GenerationId(time_ms)).equals(described)
    flat = {ms_from_datetime(row["time"]): row["streams"] for row in lake.read(STREAMS_DESCRIPTIONS).to_pylist()}
    assert flat == {
        TIME_MS: sorted(map(bytes, GENERATION.streams)),
        LATER_MS: sorted(map(bytes, OTHER_GENERATION.streams)),
    }
    summary = [
        (
            generation_result.id,
            generation_result.time_ms,
            generation_result.ranges,
            generation_result.streams,
            generation_result.unordered_ranges,
        )
        for generation_result in report.generations
    ]
    assert summary == [(None, LATER_MS, 6, 22, 0), (None, TIME_MS, 6, 22, 0)]
    assert report.warnings == []
    assert lake.read(UNORDERED_RANGES).num_rows == 0
    assert [(known.time_ms, known.format, known.published) for known in Timeline.read(lake).known] == [
        (TIME_MS, "v1", False),
        (LATER_MS, "v1", False),
    ]


def test_repeated_import_changes_nothing(lake: Lake, take_in: Import) -> None:
    """This holds for V1 tables and cdc_local; a later export may add an expiry."""
    files = (
        v1_descriptions_csv({TIME_MS: GENERATION}),
        v1_streams_csv({TIME_MS: GENERATION}),
        local_csv({"cdc_local": (TIME_MS, None), "rewritten": (None, None)}),
    )
    first = take_in(*files, host_id=HOST)
    assert first.rows_written == 4
    before = contents(lake)
    assert take_in(*files, host_id=HOST).rows_written == 0
    assert contents(lake) == before
    expiries = {TIME_MS: LATER_MS}
    take_in(v1_descriptions_csv({TIME_MS: GENERATION}, expiries), v1_streams_csv({TIME_MS: GENERATION}, expiries))
    assert expiry_times(lake) == {"cdc_generation_descriptions": LATER_MS, "cdc_streams_descriptions": LATER_MS}
    take_in(*files[:2])
    assert expiry_times(lake) == {"cdc_generation_descriptions": LATER_MS, "cdc_streams_descriptions": LATER_MS}


def test_cdc_local_belongs_to_the_named_node(lake: Lake, take_in: Import) -> None:
    """An option or an extra column names it; V1 IDs have no UUID, and old tables no column for it."""
    take_in(local_csv({"cdc_local": (TIME_MS, None)}).replace(",uuid", "").replace(",\r", "\r"), host_id=HOST)
    take_in(local_csv({"cdc_local": (LATER_MS, ID), "rewritten": (LATER_MS, None)}, OTHER_HOST))
    rows = {(row["host_id"], row["key"]): row for row in lake.read(CDC_LOCAL).to_pylist()}
    assert {key: row["uuid"] for key, row in rows.items()} == {
        (HOST, "cdc_local"): None,
        (OTHER_HOST, "cdc_local"): ID,
        (OTHER_HOST, "rewritten"): None,
    }
    assert us_from_datetime(rows[HOST, "cdc_local"]["streams_timestamp"]) == us_from_ms(TIME_MS)


def test_id_never_goes_back_and_a_marker_stays(lake: Lake, take_in: Import) -> None:
    """An older export leaves the newer ID and causes a warning; a newer one advances it."""
    take_in(local_csv({"cdc_local": (LATER_MS, ID), "rewritten": (None, None)}), host_id=HOST)
    before = contents(lake)
    report = take_in(local_csv({"cdc_local": (TIME_MS, None), "rewritten": (TIME_MS, None)}), host_id=HOST)
    assert contents(lake) == before
    assert any("its older ID was left out" in warning for warning in report.warnings)
    take_in(local_csv({"cdc_local": (LATER_MS + ONE_MS, OTHER_ID)}), host_id=HOST)
    assert [row["uuid"] for row in lake.read(CDC_LOCAL, filters=[("key", "=", "cdc_local")]).to_pylist()] == [OTHER_ID]


def test_issues_are_reported(lake: Lake, take_in: Import) -> None:
    """Warnings name streams without a description, V1 tables that disagree, and an unknown node."""
    unknown_host = "33333333-3333-4333-8333-333333333333"
    report = take_in(
        v1_streams_csv({TIME_MS: GENERATION, LATER_MS: OTHER_GENERATION}),
        v1_descriptions_csv({LATER_MS: GENERATION}),
        local_csv({"rewritten": (None, None)}),
        host_id=unknown_host,
    )
    assert len(report.warnings) == 3
    assert "1 V1 generations without their description, the first 2026-01-31T12:00:00.384Z" in report.warnings[0]
    assert "disagree about 2026-02-01T12:00:00.000Z" in report.warnings[1]
    assert f"node {unknown_host} of cdc_local is not in the ring" in report.warnings[2]


def test_v1_description_gives_the_order_of_published_streams(lake: Lake, take_in: Import) -> None:
    """Without a V2 description, the V1 description of that time gives the complete order of sorted streams."""
    published = (streams_csv({TIME_MS: GENERATION}), timestamps_csv({TIME_MS: None}))
    report = take_in(v1_descriptions_csv({TIME_MS: GENERATION}), *published)
    rows = generations.read_published_rows(lake, TIME_MS)
    streams = [stream for row in rows["streams"].to_pylist() for stream in row]
    assert streams == list(map(bytes, GENERATION.streams))
    assert NARROW_END in rows["range_end"].to_pylist()
    assert [generation_result.unordered_ranges for generation_result in report.generations] == [0]


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
    """Spaces, tokens as text and streams as pairs of bigints give the same description."""
    text = f'time,description,expired\r\n{cql_time(TIME_MS)},"{cell}",\r\n'
    description = parse_exports([("d.csv", text)]).v1.descriptions[TIME_MS].description
    assert description is not None
    assert (description.range_ends.tolist(), description.stream_counts.tolist()) == ([-1, 5], [2, 1])
    assert description.ignore_msbs.tolist() == [12, 0]
    assert ["0x" + bytes(stream).hex() for stream in description.streams] == [BLOB, TWO, TWO]


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
def test_invalid_description_is_refused(cell: str, says: str) -> None:
    """The message has the file, the line and the fault."""
    text = f'time,description,expired\r\n{cql_time(TIME_MS)},"{cell}",\r\n'
    with pytest.raises(InputError, match=r"^d\.csv, line 2: (description|range_end|streams):? ") as error:
        parse_exports([("d.csv", text)])
    assert says in str(error.value)


def test_contradiction_is_refused_without_a_write(lake: Lake, take_in: Import) -> None:
    """A generation never changes, so another description or other streams of a known time are refused."""
    take_in(v1_descriptions_csv({TIME_MS: GENERATION}), v1_streams_csv({TIME_MS: GENERATION}))
    take_in(local_csv({"cdc_local": (TIME_MS, None)}), host_id=HOST)
    before = contents(lake)
    for files, says in (
        (
            [v1_descriptions_csv({TIME_MS: OTHER_GENERATION})],
            "cdc_generation_descriptions of 2026-01-31T12:00:00.384Z differs from the lake",
        ),
        (
            [v1_streams_csv({TIME_MS: OTHER_GENERATION})],
            "cdc_streams_descriptions of 2026-01-31T12:00:00.384Z differs from the lake",
        ),
        ([v1_streams_csv({LATER_MS: GENERATION}), v1_streams_csv({LATER_MS: OTHER_GENERATION})], "streams contradicts"),
    ):
        with pytest.raises(InputError, match=says):
            take_in(v1_descriptions_csv({LATER_MS: GENERATION}), *files)
    with pytest.raises(InputError, match="with no UUID, and here with 8d3f3f2e"):
        take_in(v1_descriptions_csv({LATER_MS: GENERATION}), local_csv({"cdc_local": (TIME_MS, ID)}), host_id=HOST)
    assert contents(lake) == before

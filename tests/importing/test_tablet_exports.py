"""Exports of cdc_timestamps and cdc_streams: the stored rows, and the effects of equal, later and older exports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.drawing import examples
from support.files.export_files import tablet_streams_csv, tablet_timestamps_csv
from support.oracles import tablet_oracle
from support.oracles.tablet_oracle import LAST, SEED_FIRST_MS, SEED_ROWS, SEED_SECOND_MS

from cdc_platform.checks import audit_tablet_table
from cdc_platform.clock import Clock, Microseconds, Milliseconds, format_ms, ms_from_datetime, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError, StateError
from cdc_platform.importing import ImportReport
from cdc_platform.importing.formats.exports import parse_exports
from cdc_platform.importing.run import import_paths
from cdc_platform.lifecycle import tablets
from cdc_platform.metastore import cdc_tables
from cdc_platform.metastore import tablets as metastore_tablets
from cdc_platform.settings import Settings
from cdc_platform.tables import TABLES, TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS

NAME = ("ks", "t")
DAY_US = Microseconds(86_400_000_000)
THIRD_MS, FOURTH_MS = Milliseconds(SEED_SECOND_MS + 100_000), Milliseconds(SEED_SECOND_MS + 200_000)
NOW = Clock(us_from_ms(FOURTH_MS))
TIMES = [SEED_FIRST_MS, SEED_SECOND_MS]

Import = Callable[..., ImportReport]
Row = tuple[int, int, str]


@pytest.fixture
def take_in(lake: Lake, tmp_path: Path) -> Import:
    """Import texts, each in a separate file."""

    def run(*texts: str) -> ImportReport:
        paths = [tmp_path / f"export{number}.csv" for number, _ in enumerate(texts)]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text, encoding="utf-8", newline="")
        return import_paths(lake, NOW, paths)

    return run


def export(rows: Iterable[Row], table: str = "t") -> tuple[str, str]:
    """Return both files of a table with these stream rows, as a cluster writes them."""
    rows = list(rows)
    times = sorted({time for time, _, _ in rows}, reverse=True)
    return tablet_timestamps_csv(times, table), tablet_streams_csv(rows, table)


def history(*sets: tuple[int, list[str]]) -> list[Row]:
    """Return the rows of sets (time in ms, streams), as the oracle changes each into the next."""
    rows: list[Row] = []
    previous: list[bytes] = []
    for time, streams in sets:
        current = tablet_oracle.ring_order([bytes.fromhex(stream) for stream in streams])
        closed, opened = tablet_oracle.difference(previous, current)
        rows += [(time, state, id_.hex()) for state, ids in enumerate((current, closed, opened)) for id_ in ids]
        previous = current
    return rows


def stored_rows(lake: Lake) -> set[Row]:
    """Return every row of cdc_streams."""
    return {
        (ms_from_datetime(row["timestamp"]), row["stream_state"], row["stream_id"].hex())
        for row in lake.read(TABLET_STREAMS).to_pylist()
    }


def versions(lake: Lake) -> dict[str, int | None]:
    """Return the version of every table."""
    return {name: lake.version(table) for name, table in TABLES.items()}


def two_streams(random: int) -> list[str]:
    """Return two streams with these random bits, of tablets of equal size."""
    return [tablet_oracle.make(token, random).hex() for token in (-1, LAST)]


FOUR_SETS = history(*((time, two_streams(number)) for number, time in enumerate([*TIMES, THIRD_MS, FOURTH_MS])))


def as_collected(rows: Iterable[Row], *times: int) -> list[Row]:
    """Return the rows of consecutive times as a cluster shows them: the oldest set opens all and closes nothing."""
    selected = [row for row in rows if row[0] in times and (row[0] != min(times) or row[1] == 0)]
    return sorted([*selected, *((time, 2, stream) for time, _, stream in selected if time == min(times))])


def test_worked_example_is_imported(lake: Lake, take_in: Import) -> None:
    """The rows of design document 002 are stored unchanged, pass the audit, and are in the ledger."""
    report = take_in(*export(SEED_ROWS))
    assert stored_rows(lake) == set(SEED_ROWS)
    sets = [(item.timestamp_ms, len(item.current)) for item in metastore_tablets.read_stream_set_changes(lake, *NAME)]
    assert sets == [(SEED_FIRST_MS, 2), (SEED_SECOND_MS, 4)]
    findings = audit_tablet_table(lake, *NAME)
    assert len(findings) == 7
    assert all(finding.population and not finding.violations for finding in findings)
    assert [(item.time_ms, item.streams, item.closed, item.opened, item.new) for item in report.stream_sets] == [
        (SEED_SECOND_MS, 4, 2, 4, True),
        (SEED_FIRST_MS, 2, 0, 2, True),
    ]
    assert report.rows_written == 14 + 2 + 2
    assert [
        (item.kind, item.timestamp_ms, len(item.last_tokens))
        for item in metastore_tablets.read_tablet_layouts(lake, *NAME)
    ] == [
        ("created", SEED_FIRST_MS, 2),
        ("resized", SEED_SECOND_MS, 4),
    ]
    assert "the TTL of ks.t is not in an export" in report.warnings[0]


def test_repeated_import_changes_nothing(lake: Lake, take_in: Import) -> None:
    """Both files, or the timestamps alone, write no row and no version."""
    files = export(SEED_ROWS)
    take_in(*files)
    before = versions(lake)
    for texts in (files, files[:1]):
        report = take_in(*texts)
        assert report.rows_written == 0
        assert not any(stream_set.new for stream_set in report.stream_sets)
        assert versions(lake) == before


def test_later_export_adds_sets(lake: Lake, take_in: Import) -> None:
    """New sets are added with their tablets in the ledger; an older export changes nothing."""
    take_in(*export(as_collected(FOUR_SETS, SEED_FIRST_MS)))
    assert [item.new for item in take_in(*export(FOUR_SETS)).stream_sets] == [True, True, True, False]
    assert stored_rows(lake) == set(FOUR_SETS)
    before = versions(lake)
    assert take_in(*export(as_collected(FOUR_SETS, *TIMES))).rows_written == 0
    assert versions(lake) == before
    assert [item.number for item in metastore_tablets.read_tablet_layouts(lake, *NAME)] == [0, 1, 2, 3]


def test_export_after_garbage_collection_adds_sets(lake: Lake, take_in: Import) -> None:
    """Its oldest set opens all streams; the lake's rows of that set stay, and new sets are added."""
    take_in(*export(as_collected(FOUR_SETS, *TIMES)))
    report = take_in(*export(as_collected(FOUR_SETS, SEED_SECOND_MS, THIRD_MS)))
    assert [stream_set.time_ms for stream_set in report.stream_sets if stream_set.new] == [THIRD_MS]
    assert stored_rows(lake) == set(as_collected(FOUR_SETS, *TIMES, THIRD_MS))
    assert not any(finding.violations for finding in audit_tablet_table(lake, *NAME))


def test_timestamps_without_rows_are_imported_with_others(lake: Lake, take_in: Import) -> None:
    """A warning names them, before and after sets with rows; their rows may follow later."""
    known = [*TIMES, FOURTH_MS]
    rows = history(*((time, two_streams(number)) for number, time in enumerate(known)))
    times = tablet_timestamps_csv([SEED_FIRST_MS - 1, *TIMES, THIRD_MS, FOURTH_MS])
    for first in (True, False):
        report = take_in(times, tablet_streams_csv(rows))
        (warning,) = [item for item in report.warnings if "without a row of streams" in item]
        assert f"{format_ms(Milliseconds(SEED_FIRST_MS - 1))}, {format_ms(THIRD_MS)}" in warning
        assert (report.rows_written > 0) == first
    assert len(lake.read(TABLET_TIMESTAMPS)) == 5
    assert [item.timestamp_ms for item in metastore_tablets.read_stream_sets(lake, *NAME)] == known
    assert [item.timestamp_ms for item in metastore_tablets.read_tablet_layouts(lake, *NAME)] == known
    assert sum(item.violations for item in audit_tablet_table(lake, *NAME)) == 2
    with pytest.raises(InputError, match="half-written export"):
        take_in(times, tablet_streams_csv([*rows, *FOUR_SETS[12:14]]))
    whole = history(*((time, two_streams(number)) for number, time in enumerate([*TIMES, THIRD_MS, FOURTH_MS])))
    third = [row for row in whole if row[0] == THIRD_MS]
    later = take_in(times, tablet_streams_csv([row for row in rows if row[0] != FOURTH_MS] + third))
    assert [item.time_ms for item in later.stream_sets if item.new] == [THIRD_MS]
    assert [item.timestamp_ms for item in metastore_tablets.read_stream_sets(lake, *NAME)] == [
        *TIMES,
        THIRD_MS,
        FOURTH_MS,
    ]


def test_collected_sets_stay_collected(lake: Lake, take_in: Import) -> None:
    """A warning names exported sets older than the lake's oldest; the others are imported."""
    take_in(*export(as_collected(FOUR_SETS, *TIMES, THIRD_MS)))
    cdc_tables.add_cdc_table(lake, NOW, *NAME, ttl_seconds=86_400)
    over = Clock(us_from_ms(THIRD_MS) + DAY_US)
    assert tablets.collect_tablet_sets(lake, over, *NAME).removed_ms == tuple(TIMES)
    before = versions(lake)
    report = take_in(*export(as_collected(FOUR_SETS, *TIMES, THIRD_MS)))
    assert (report.rows_written, versions(lake)) == (0, before)
    assert "2 stream sets of ks.t are older than the lake's oldest" in report.warnings[0]
    report = take_in(*export(as_collected(FOUR_SETS, *TIMES)))
    assert (report.rows_written, report.stream_sets, versions(lake)) == (0, [], before)
    take_in(*export(FOUR_SETS))
    assert stored_rows(lake) == set(as_collected(FOUR_SETS, THIRD_MS, FOURTH_MS))
    assert not any(finding.violations for finding in audit_tablet_table(lake, *NAME))


def test_tablets_split_after_an_import(lake: Lake, take_in: Import) -> None:
    """A split makes the next set; an export with other sets is refused, one without new sets is not."""
    take_in(*export(SEED_ROWS))
    split = tablets.split_tablets(lake, NOW, Settings(), *NAME, 8)
    assert [len(change.closed) for change in metastore_tablets.read_stream_set_changes(lake, *NAME)] == [0, 2, 4]
    assert split.layout.number == 2
    assert take_in(*export(SEED_ROWS)).rows_written == 0
    four = [stream for time, state, stream in SEED_ROWS if (time, state) == (SEED_SECOND_MS, 0)]
    first = [stream for time, state, stream in SEED_ROWS if (time, state) == (SEED_FIRST_MS, 0)]
    assert split.layout.timestamp_ms is not None
    far = split.layout.timestamp_ms + 1
    with pytest.raises(InputError, match="in the lake that are not the exported ones"):
        take_in(*export(history((SEED_FIRST_MS, first), (SEED_SECOND_MS, four), (far, two_streams(9)))))


def test_other_history_is_refused(lake: Lake, take_in: Import) -> None:
    """Other streams at a time, a set between stored ones, or a gap after them is refused without a write."""
    take_in(*export(history((SEED_FIRST_MS, two_streams(0)), (THIRD_MS, two_streams(2)))))
    before = versions(lake)
    refused = {
        "other streams in the lake": history((SEED_FIRST_MS, two_streams(7)), (THIRD_MS, two_streams(2))),
        "not the exported ones": as_collected(FOUR_SETS, *TIMES, THIRD_MS),
        "sets between them are missing": as_collected(FOUR_SETS, FOURTH_MS),
    }
    for says, rows in refused.items():
        with pytest.raises(InputError, match=says):
            take_in(*export(rows))
    assert versions(lake) == before


def test_sets_of_a_dropped_log_stay_dropped(lake: Lake, take_in: Import) -> None:
    """An export of the dropped log is refused; one of a log created later is a new one."""
    take_in(*export(SEED_ROWS))
    tablets.drop_table_log(lake, Clock(us_from_ms(Milliseconds(SEED_SECOND_MS + 1))), *NAME)
    before = versions(lake)
    with pytest.raises(StateError, match=r"ks\.t: its log was dropped at 2025-09-09T14:44:47\.821Z"):
        take_in(*export(SEED_ROWS))
    assert versions(lake) == before
    take_in(*export(history((THIRD_MS, two_streams(1)), (FOURTH_MS, two_streams(2)))))
    assert [(layout.number, layout.kind) for layout in metastore_tablets.read_tablet_layouts(lake, *NAME)][-2:] == [
        (3, "created"),
        (4, "resized"),
    ]
    assert metastore_tablets.read_unfinished_layouts(lake) == []
    tablets.finish_tablet_changes(lake, NOW)
    assert len(metastore_tablets.read_stream_sets(lake, *NAME)) == 2


def test_unfinished_split_prevents_an_import(lake: Lake, take_in: Import) -> None:
    """A process has decided a split without completing it, so an export of other sets is refused."""
    take_in(*export(as_collected(FOUR_SETS, *TIMES)))
    tablets.decide_tablet_resize(
        lake, NOW, Settings(), *NAME, lambda _: metastore_tablets.read_stream_sets(lake, *NAME)[0].tokens[1:]
    )
    with pytest.raises(StateError, match="gets other tablets in this home from"):
        take_in(*export(FOUR_SETS))


@pytest.mark.parametrize("left", [(TABLET_LAYOUTS,), (TABLET_LAYOUTS, TABLET_TIMESTAMPS)])
def test_killed_import_is_completed(lake: Lake, take_in: Import, left: tuple[Any, ...]) -> None:
    """Streams are written first, then timestamps, then the ledger; a repetition writes the missing rows."""
    take_in(*export(SEED_ROWS))
    whole = {name: lake.read(table).to_pylist() for name, table in TABLES.items()}
    for table in left:
        lake.delete(table, [("keyspace_name", "=", "ks")])
    lake.delete(TABLET_STREAMS, [("stream_state", "=", 2)] if TABLET_TIMESTAMPS in left else [("table_name", "=", "x")])
    take_in(*export(SEED_ROWS))
    for name, rows in whole.items():
        rows_now = lake.read(TABLES[name]).to_pylist()
        assert sorted(map(str, rows_now)) == sorted(map(str, rows)), name


def test_leftover_streams_are_not_mixed_in(lake: Lake, take_in: Import) -> None:
    """A refusal names rows of an unlisted set whose streams differ from the export's."""
    take_in(*export(history((SEED_FIRST_MS, two_streams(5)))))
    lake.delete(TABLET_TIMESTAMPS, [("keyspace_name", "=", "ks")])
    lake.delete(TABLET_LAYOUTS, [("keyspace_name", "=", "ks")])
    with pytest.raises(InputError, match="left by another writer"):
        take_in(*export(history((SEED_FIRST_MS, two_streams(6)))))


def test_several_tables_and_files(lake: Lake, take_in: Import) -> None:
    """Each table has its own history; a table may be in several files, which may repeat a row."""
    times, streams = export(SEED_ROWS)
    take_in(times, tablet_streams_csv(SEED_ROWS[:9]), tablet_streams_csv(SEED_ROWS[5:]), *export(FOUR_SETS, "u"))
    assert metastore_tablets.read_tables_with_stream_sets(lake) == [NAME, ("ks", "u")]
    assert len(metastore_tablets.read_stream_sets(lake, "ks", "u")) == 4
    assert take_in(times, streams).rows_written == 0


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_row_can_be_missing_unseen(data: st.DataObject) -> None:
    """An export without one stream row of a random history is refused, or a time has no rows at all."""
    count = data.draw(st.integers(1, 4))
    tokens = st.lists(st.integers(-9, 9), max_size=3, unique=True)
    streams = [
        [tablet_oracle.make(token, data.draw(st.integers(0, 1))).hex() for token in [*data.draw(tokens), LAST]]
        for _ in range(count)
    ]
    rows = history(*((1_000 * (number + 1), stream_set) for number, stream_set in enumerate(streams)))
    times, whole = export(rows)
    exported = parse_exports([("times", times), ("streams", whole)]).tablets
    parsed_sets = exported.sets[NAME]
    assert [[stream.tobytes().hex() for stream in parsed_set.current] for parsed_set in parsed_sets] == [
        [id_.hex() for id_ in tablet_oracle.ring_order([bytes.fromhex(stream) for stream in stream_set])]
        for stream_set in streams
    ]
    index = data.draw(st.integers(0, len(rows) - 1))
    remaining = rows[:index] + rows[index + 1 :]
    files = [("times", times), ("streams", tablet_streams_csv(remaining))]
    if rows[index][0] in {time for time, _, _ in remaining}:
        with pytest.raises(InputError, match="half-written export"):
            parse_exports(files)
    elif remaining:
        bare = parse_exports(files).tablets
        assert rows[index][0] in bare.times[NAME].keys() - {parsed_set.time_ms for parsed_set in bare.sets[NAME]}

"""Exports of cdc_timestamps and cdc_streams: what stands in the lake, what the same, later and older ones change."""

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
    """Import texts, each in a file of its own."""

    def run(*texts: str) -> ImportReport:
        paths = [tmp_path / f"export{number}.csv" for number, _ in enumerate(texts)]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text, encoding="utf-8", newline="")
        return import_paths(lake, NOW, paths)

    return run


def export(rows: Iterable[Row], table: str = "t") -> tuple[str, str]:
    """Both files of a table, as a cluster with these rows of streams writes them."""
    rows = list(rows)
    times = sorted({time for time, _, _ in rows}, reverse=True)
    return tablet_timestamps_csv(times, table), tablet_streams_csv(rows, table)


def history(*sets: tuple[int, list[str]]) -> list[Row]:
    """The rows of sets (time in ms, streams), as the oracle changes each into the next."""
    rows: list[Row] = []
    previous: list[bytes] = []
    for time, streams in sets:
        current = tablet_oracle.ring_order([bytes.fromhex(stream) for stream in streams])
        closed, opened = tablet_oracle.difference(previous, current)
        rows += [(time, state, id_.hex()) for state, ids in enumerate((current, closed, opened)) for id_ in ids]
        previous = current
    return rows


def stored(lake: Lake) -> set[Row]:
    """Every row of cdc_streams."""
    return {
        (ms_from_datetime(row["timestamp"]), row["stream_state"], row["stream_id"].hex())
        for row in lake.read(TABLET_STREAMS).to_pylist()
    }


def versions(lake: Lake) -> dict[str, int | None]:
    """The version of every table."""
    return {name: lake.version(table) for name, table in TABLES.items()}


def two(random: int) -> list[str]:
    """Two streams, of tablets of one size, with these random bits."""
    return [tablet_oracle.make(token, random).hex() for token in (-1, LAST)]


FOUR_SETS = history(*((time, two(number)) for number, time in enumerate([*TIMES, THIRD_MS, FOURTH_MS])))


def cut(rows: Iterable[Row], *times: int) -> list[Row]:
    """Those of these times, which follow each other, as a cluster shows them: the oldest opens all, closes nothing."""
    kept = [row for row in rows if row[0] in times and (row[0] != min(times) or row[1] == 0)]
    return sorted([*kept, *((time, 2, stream) for time, _, stream in kept if time == min(times))])


def test_the_worked_example_is_imported(lake: Lake, take_in: Import) -> None:
    """Design document 002's rows stand in the lake as they are; they are audited, listed and in the ledger."""
    report = take_in(*export(SEED_ROWS))
    assert stored(lake) == set(SEED_ROWS)
    sets = [(each.timestamp_ms, len(each.current)) for each in metastore_tablets.read_stream_set_changes(lake, *NAME)]
    assert sets == [(SEED_FIRST_MS, 2), (SEED_SECOND_MS, 4)]
    findings = audit_tablet_table(lake, *NAME)
    assert len(findings) == 7
    assert all(finding.population and not finding.violations for finding in findings)
    assert [(each.time_ms, each.streams, each.closed, each.opened, each.new) for each in report.stream_sets] == [
        (SEED_SECOND_MS, 4, 2, 4, True),
        (SEED_FIRST_MS, 2, 0, 2, True),
    ]
    assert report.rows_written == 14 + 2 + 2
    assert [
        (each.kind, each.timestamp_ms, len(each.last_tokens))
        for each in metastore_tablets.read_tablet_layouts(lake, *NAME)
    ] == [
        ("created", SEED_FIRST_MS, 2),
        ("resized", SEED_SECOND_MS, 4),
    ]
    assert "the TTL of ks.t is not in an export" in report.warnings[0]


def test_the_same_again_changes_nothing(lake: Lake, take_in: Import) -> None:
    """Both files, or the timestamps alone: no row and no version."""
    files = export(SEED_ROWS)
    take_in(*files)
    before = versions(lake)
    for again in (files, files[:1]):
        report = take_in(*again)
        assert report.rows_written == 0
        assert not any(each.new for each in report.stream_sets)
        assert versions(lake) == before


def test_a_later_export_goes_on(lake: Lake, take_in: Import) -> None:
    """Sets that came since are added, with their tablets in the ledger; an older export changes nothing."""
    take_in(*export(cut(FOUR_SETS, SEED_FIRST_MS)))
    assert [each.new for each in take_in(*export(FOUR_SETS)).stream_sets] == [True, True, True, False]
    assert stored(lake) == set(FOUR_SETS)
    before = versions(lake)
    assert take_in(*export(cut(FOUR_SETS, *TIMES))).rows_written == 0
    assert versions(lake) == before
    assert [each.number for each in metastore_tablets.read_tablet_layouts(lake, *NAME)] == [0, 1, 2, 3]


def test_an_export_of_a_cluster_that_has_collected_goes_on(lake: Lake, take_in: Import) -> None:
    """Its oldest set opens all and closes nothing, the lake's is as it was: that one keeps its rows, new sets come."""
    take_in(*export(cut(FOUR_SETS, *TIMES)))
    report = take_in(*export(cut(FOUR_SETS, SEED_SECOND_MS, THIRD_MS)))
    assert [each.time_ms for each in report.stream_sets if each.new] == [THIRD_MS]
    assert stored(lake) == set(cut(FOUR_SETS, *TIMES, THIRD_MS))
    assert not any(finding.violations for finding in audit_tablet_table(lake, *NAME))


def test_timestamps_without_a_single_row_come_in_beside_others(lake: Lake, take_in: Import) -> None:
    """Before and after sets that have their rows: named in a warning; when the rows come they go in."""
    known = [*TIMES, FOURTH_MS]
    rows = history(*((time, two(number)) for number, time in enumerate(known)))
    times = tablet_timestamps_csv([SEED_FIRST_MS - 1, *TIMES, THIRD_MS, FOURTH_MS])
    for first in (True, False):
        report = take_in(times, tablet_streams_csv(rows))
        (warning,) = [each for each in report.warnings if "without a row of streams" in each]
        assert f"{format_ms(Milliseconds(SEED_FIRST_MS - 1))}, {format_ms(THIRD_MS)}" in warning
        assert (report.rows_written > 0) == first
    assert len(lake.read(TABLET_TIMESTAMPS)) == 5
    assert [each.timestamp_ms for each in metastore_tablets.read_stream_sets(lake, *NAME)] == known
    assert [each.timestamp_ms for each in metastore_tablets.read_tablet_layouts(lake, *NAME)] == known
    assert sum(each.violations for each in audit_tablet_table(lake, *NAME)) == 2
    with pytest.raises(InputError, match="half-written export"):
        take_in(times, tablet_streams_csv([*rows, *FOUR_SETS[12:14]]))
    whole = history(*((time, two(number)) for number, time in enumerate([*TIMES, THIRD_MS, FOURTH_MS])))
    third = [row for row in whole if row[0] == THIRD_MS]
    later = take_in(times, tablet_streams_csv([row for row in rows if row[0] != FOURTH_MS] + third))
    assert [each.time_ms for each in later.stream_sets if each.new] == [THIRD_MS]
    assert [each.timestamp_ms for each in metastore_tablets.read_stream_sets(lake, *NAME)] == [
        *TIMES,
        THIRD_MS,
        FOURTH_MS,
    ]


def test_what_was_collected_stays_collected(lake: Lake, take_in: Import) -> None:
    """An export with sets older than the lake's oldest: they are left out, named, and the rest goes on."""
    take_in(*export(cut(FOUR_SETS, *TIMES, THIRD_MS)))
    cdc_tables.add_cdc_table(lake, NOW, *NAME, ttl_seconds=86_400)
    over = Clock(us_from_ms(THIRD_MS) + DAY_US)
    assert tablets.collect_tablet_sets(lake, over, *NAME).removed_ms == tuple(TIMES)
    before = versions(lake)
    report = take_in(*export(cut(FOUR_SETS, *TIMES, THIRD_MS)))
    assert (report.rows_written, versions(lake)) == (0, before)
    assert "2 stream sets of ks.t are older than the lake's oldest" in report.warnings[0]
    report = take_in(*export(cut(FOUR_SETS, *TIMES)))
    assert (report.rows_written, report.stream_sets, versions(lake)) == (0, [], before)
    take_in(*export(FOUR_SETS))
    assert stored(lake) == set(cut(FOUR_SETS, THIRD_MS, FOURTH_MS))
    assert not any(finding.violations for finding in audit_tablet_table(lake, *NAME))


def test_tablets_go_on_from_an_import(lake: Lake, take_in: Import) -> None:
    """A split makes the next set; then an export that does not have it is refused, and one with nothing new is not."""
    take_in(*export(SEED_ROWS))
    split = tablets.split_tablets(lake, NOW, Settings(), *NAME, 8)
    assert [len(each.closed) for each in metastore_tablets.read_stream_set_changes(lake, *NAME)] == [0, 2, 4]
    assert split.layout.number == 2
    assert take_in(*export(SEED_ROWS)).rows_written == 0
    four = [stream for time, state, stream in SEED_ROWS if (time, state) == (SEED_SECOND_MS, 0)]
    first = [stream for time, state, stream in SEED_ROWS if (time, state) == (SEED_FIRST_MS, 0)]
    assert split.layout.timestamp_ms is not None
    far = split.layout.timestamp_ms + 1
    with pytest.raises(InputError, match="in the lake that are not the exported ones"):
        take_in(*export(history((SEED_FIRST_MS, first), (SEED_SECOND_MS, four), (far, two(9)))))


def test_another_history_is_refused(lake: Lake, take_in: Import) -> None:
    """Other streams at a time, a set between those that are there, and a gap after them; nothing is written."""
    take_in(*export(history((SEED_FIRST_MS, two(0)), (THIRD_MS, two(2)))))
    before = versions(lake)
    refused = {
        "other streams in the lake": history((SEED_FIRST_MS, two(7)), (THIRD_MS, two(2))),
        "not the exported ones": cut(FOUR_SETS, *TIMES, THIRD_MS),
        "sets between them are missing": cut(FOUR_SETS, FOURTH_MS),
    }
    for says, rows in refused.items():
        with pytest.raises(InputError, match=says):
            take_in(*export(rows))
    assert versions(lake) == before


def test_sets_of_a_dropped_log_stay_dropped(lake: Lake, take_in: Import) -> None:
    """The export of a log that was dropped here is refused; one of the log that was made after it is a new one."""
    take_in(*export(SEED_ROWS))
    tablets.drop_table_log(lake, Clock(us_from_ms(Milliseconds(SEED_SECOND_MS + 1))), *NAME)
    before = versions(lake)
    with pytest.raises(StateError, match=r"ks\.t: its log was dropped at 2025-09-09T14:44:47\.821Z"):
        take_in(*export(SEED_ROWS))
    assert versions(lake) == before
    take_in(*export(history((THIRD_MS, two(1)), (FOURTH_MS, two(2)))))
    assert [(each.number, each.kind) for each in metastore_tablets.read_tablet_layouts(lake, *NAME)][-2:] == [
        (3, "created"),
        (4, "resized"),
    ]
    assert metastore_tablets.read_unfinished_layouts(lake) == []
    tablets.finish_tablet_changes(lake, NOW)
    assert len(metastore_tablets.read_stream_sets(lake, *NAME)) == 2


def test_a_change_that_was_decided_here_is_not_overtaken(lake: Lake, take_in: Import) -> None:
    """A split that a process has decided and left: the export of other sets is refused."""
    take_in(*export(cut(FOUR_SETS, *TIMES)))
    tablets.decide_tablet_resize(
        lake, NOW, Settings(), *NAME, lambda _: metastore_tablets.read_stream_sets(lake, *NAME)[0].tokens[1:]
    )
    with pytest.raises(StateError, match="gets other tablets in this home from"):
        take_in(*export(FOUR_SETS))


@pytest.mark.parametrize("left", [(TABLET_LAYOUTS,), (TABLET_LAYOUTS, TABLET_TIMESTAMPS)])
def test_an_import_that_died_is_completed(lake: Lake, take_in: Import, left: tuple[Any, ...]) -> None:
    """Streams go in first, then their timestamps, then the ledger: the same again writes what is missing."""
    take_in(*export(SEED_ROWS))
    whole = {name: lake.read(table).to_pylist() for name, table in TABLES.items()}
    for table in left:
        lake.delete(table, [("keyspace_name", "=", "ks")])
    lake.delete(TABLET_STREAMS, [("stream_state", "=", 2)] if TABLET_TIMESTAMPS in left else [("table_name", "=", "x")])
    take_in(*export(SEED_ROWS))
    for name, rows in whole.items():
        found = lake.read(TABLES[name]).to_pylist()
        assert sorted(map(str, found)) == sorted(map(str, rows)), name


def test_leftover_streams_are_not_mixed_in(lake: Lake, take_in: Import) -> None:
    """Rows of a set that is not listed, with other streams than the export has, are named."""
    take_in(*export(history((SEED_FIRST_MS, two(5)))))
    lake.delete(TABLET_TIMESTAMPS, [("keyspace_name", "=", "ks")])
    lake.delete(TABLET_LAYOUTS, [("keyspace_name", "=", "ks")])
    with pytest.raises(InputError, match="left by another writer"):
        take_in(*export(history((SEED_FIRST_MS, two(6)))))


def test_several_tables_and_files(lake: Lake, take_in: Import) -> None:
    """Each table has its own history; a table may lie in several files, which may say a row twice."""
    times, streams = export(SEED_ROWS)
    take_in(times, tablet_streams_csv(SEED_ROWS[:9]), tablet_streams_csv(SEED_ROWS[5:]), *export(FOUR_SETS, "u"))
    assert metastore_tablets.read_tables_with_stream_sets(lake) == [NAME, ("ks", "u")]
    assert len(metastore_tablets.read_stream_sets(lake, "ks", "u")) == 4
    assert take_in(times, streams).rows_written == 0


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_row_can_be_missing_unseen(data: st.DataObject) -> None:
    """Any history, partial changes too, is read; with one row of streams gone it is refused, or a time is left bare."""
    count = data.draw(st.integers(1, 4))
    tokens = st.lists(st.integers(-9, 9), max_size=3, unique=True)
    streams = [
        [tablet_oracle.make(token, data.draw(st.integers(0, 1))).hex() for token in [*data.draw(tokens), LAST]]
        for _ in range(count)
    ]
    rows = history(*((1_000 * (number + 1), some) for number, some in enumerate(streams)))
    times, whole = export(rows)
    exported = parse_exports([("times", times), ("streams", whole)]).tablets
    found = exported.sets[NAME]
    assert [[stream.tobytes().hex() for stream in each.current] for each in found] == [
        [id_.hex() for id_ in tablet_oracle.ring_order([bytes.fromhex(stream) for stream in some])] for some in streams
    ]
    gone = data.draw(st.integers(0, len(rows) - 1))
    left = rows[:gone] + rows[gone + 1 :]
    files = [("times", times), ("streams", tablet_streams_csv(left))]
    if rows[gone][0] in {time for time, _, _ in left}:
        with pytest.raises(InputError, match="half-written export"):
            parse_exports(files)
    elif left:
        bare = parse_exports(files).tablets
        assert rows[gone][0] in bare.times[NAME].keys() - {each.time_ms for each in bare.sets[NAME]}

"""Importing: what is taken in stands in the lake as the cluster had it, and the same again changes nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from support.files.export_files import (
    ID,
    LATER_MS,
    NARROW_END,
    NODES,
    OTHER_ID,
    TIME_MS,
    cql_time,
    generation,
    iso_time,
    streams_csv,
    timestamps_csv,
    v2_csv,
)
from support.oracles import oracle

from cdc_platform.clock import Clock, Milliseconds, datetime_from_ms, format_ms, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.generations import TopologyDescription
from cdc_platform.importing import ImportReport, parse_join_request
from cdc_platform.importing.run import import_paths
from cdc_platform.metastore import generations, inbox, read_current_ring
from cdc_platform.ring import Node
from cdc_platform.tables import (
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    STREAMS_DESCRIPTIONS_V2,
    TABLES,
    UNORDERED_RANGES,
    Table,
)
from cdc_platform.tables import NODES as NODES_TABLE

CLOCK = Clock(us_from_ms(TIME_MS))
WIDE = tuple(replace(node, tokens=tuple(t for t in node.tokens if t != NARROW_END)) for node in NODES)
"""The nodes without the narrow range: the streams of all their ranges can be put back."""

Import = Callable[..., ImportReport]


@pytest.fixture
def take_in(lake: Lake, tmp_path: Path) -> Import:
    """Import texts, each in a file of its own; named arguments are the import's options."""

    def run(*texts: str, shards: int | None = None, ignore_msb: int | None = None) -> ImportReport:
        paths = []
        for number, text in enumerate(texts):
            path = tmp_path / f"{number}{'.json' if text.startswith('[') else '.csv'}"
            path.write_text(text, encoding="utf-8", newline="")
            paths.append(path)
        return import_paths(lake, CLOCK, paths, shards, ignore_msb)

    return run


def snapshot(nodes: tuple[Node, ...]) -> str:
    """A ring snapshot that says everything."""
    fields = ("address", "datacenter", "rack", "shard_count", "ignore_msb", "features")
    return json.dumps(
        [
            {name: getattr(node, name) for name in fields} | {"host_id": str(node.host_id), "tokens": node.tokens}
            for node in nodes
        ]
    )


def versions(lake: Lake) -> dict[str, int | None]:
    """The version of every table: what a commit would move."""
    return {name: lake.version(table) for name, table in TABLES.items()}


def published(lake: Lake, time_ms: Milliseconds) -> dict[int, list[bytes]]:
    """The streams rows of a time by range end."""
    rows = lake.read(STREAMS_DESCRIPTIONS_V2, filters=[("time", "=", datetime_from_ms(time_ms))]).to_pylist()
    return {row["range_end"]: row["streams"] for row in rows}


def in_shard_order(description: TopologyDescription) -> dict[int, list[bytes]]:
    """The streams of a generation by range end, as it was generated."""
    entries = [description.entry(row) for row in range(len(description))]
    return {entry.range_end: [stream.tobytes() for stream in entry.streams] for entry in entries}


def marked(lake: Lake, table: Table) -> set[int]:
    """The range ends of a table that are marked as of unknown order."""
    rows = lake.read(UNORDERED_RANGES, filters=[("table_name", "=", table.full_name)])
    return set(rows["range_end"].to_pylist())


def test_a_cluster_comes_in_as_it_was(lake: Lake, take_in: Import) -> None:
    """V2 rows, streams in shard order, timestamp and the generation's ID are what the cluster had."""
    description = generation(nodes=WIDE)
    take_in(v2_csv({ID: description}), streams_csv({TIME_MS: description}), timestamps_csv({TIME_MS: None}))
    assert published(lake, TIME_MS) == in_shard_order(description)
    rows = lake.read(GENERATION_DESCRIPTIONS_V2).to_pylist()
    assert {row["range_end"]: row["streams"] for row in rows} == in_shard_order(description)
    assert {row["num_ranges"] for row in rows} == {len(description)}
    assert {row["range_end"]: row["ignore_msb"] for row in rows} == dict(
        zip(description.range_ends.tolist(), description.ignore_msbs.tolist(), strict=True)
    )
    ledger = lake.read(GENERATIONS).to_pylist()
    assert [(row["generation_id"], row["time"], row["num_ranges"], row["num_streams"]) for row in ledger] == [
        (ID, datetime_from_ms(TIME_MS), len(description), len(description.streams))
    ]
    assert lake.read(GENERATION_TIMESTAMPS)["time"].to_pylist() == [datetime_from_ms(TIME_MS)]
    assert marked(lake, GENERATION_DESCRIPTIONS_V2) == marked(lake, STREAMS_DESCRIPTIONS_V2) == set()


def test_the_same_again_changes_nothing(lake: Lake, take_in: Import) -> None:
    """A second import of everything, at another time, commits to no table."""
    description = generation()
    texts = (snapshot(NODES), v2_csv({ID: description}), streams_csv({TIME_MS: description}))
    texts += (timestamps_csv({TIME_MS: None}),)
    assert take_in(*texts).rows_written > 0
    before = versions(lake)
    assert take_in(*texts).rows_written == 0
    assert versions(lake) == before


def test_streams_come_before_their_description(lake: Lake, take_in: Import) -> None:
    """A description that comes later puts the streams in order when they are imported again, and lifts the marks."""
    description = generation(nodes=WIDE)
    streams, times = streams_csv({TIME_MS: description}), timestamps_csv({TIME_MS: None})
    report = take_in(streams, times)
    assert report.generations[0].unordered_ranges == len(description)
    assert marked(lake, STREAMS_DESCRIPTIONS_V2) == set(description.range_ends.tolist())
    take_in(v2_csv({ID: description}))
    assert take_in(streams, times).generations[0].id == ID
    assert published(lake, TIME_MS) == in_shard_order(description)
    assert marked(lake, STREAMS_DESCRIPTIONS_V2) == set()


@pytest.mark.parametrize("how", ["option", "ring in the lake", "ring beside it"])
def test_streams_without_description_are_put_back_by_what_is_known(lake: Lake, take_in: Import, how: str) -> None:
    """The ignore_msb comes from the option or from the nodes that own the range ends."""
    nodes = tuple(replace(node, ignore_msb=12) for node in WIDE)
    description = generation(nodes=nodes)
    texts = [streams_csv({TIME_MS: description}), timestamps_csv({TIME_MS: None})]
    if how == "option":
        take_in(*texts, ignore_msb=12)
    elif how == "ring in the lake":
        take_in(snapshot(nodes))
        take_in(*texts)
    else:
        take_in(snapshot(nodes), *texts)
    assert published(lake, TIME_MS) == in_shard_order(description)
    assert marked(lake, STREAMS_DESCRIPTIONS_V2) == set()


def test_an_unknown_order_is_marked_and_not_guessed(lake: Lake, take_in: Import) -> None:
    """Nothing known: the rows are there in unsigned byte order, each marked with the reason."""
    description = generation()
    take_in(streams_csv({TIME_MS: description}), timestamps_csv({TIME_MS: None}))
    assert published(lake, TIME_MS) == {end: sorted(ids) for end, ids in in_shard_order(description).items()}
    assert marked(lake, STREAMS_DESCRIPTIONS_V2) == set(description.range_ends.tolist())
    rows = lake.read(UNORDERED_RANGES).to_pylist()
    assert {row["generation"] for row in rows} == {iso_time(TIME_MS)}
    assert all("ignore_msb" in row["reason"] for row in rows)


def test_streams_of_one_token_are_indistinguishable(lake: Lake, take_in: Import) -> None:
    """Where a range holds one token, which of its streams a write gets is not known: that range alone is marked."""
    description = generation()
    take_in(v2_csv({ID: description}))
    assert marked(lake, GENERATION_DESCRIPTIONS_V2) == {NARROW_END}
    rows = {row["range_end"]: row["streams"] for row in lake.read(GENERATION_DESCRIPTIONS_V2).to_pylist()}
    truth = in_shard_order(description)
    assert rows.pop(NARROW_END) == sorted(truth.pop(NARROW_END))
    assert rows == truth
    assert "all have its token" in lake.read(UNORDERED_RANGES)["reason"].to_pylist()[0]


def test_shards_that_own_nothing_leave_nothing_open_that_matters(lake: Lake, take_in: Import) -> None:
    """In a narrow range the streams that a write can get are in place; which idle shard's comes first means nothing."""
    nodes = (replace(NODES[0], tokens=(0, 100, 104)),)
    description = generation(nodes=nodes)
    take_in(v2_csv({ID: description}))
    assert marked(lake, GENERATION_DESCRIPTIONS_V2) == set()
    rows = {row["range_end"]: row["streams"] for row in lake.read(GENERATION_DESCRIPTIONS_V2).to_pylist()}
    truth = in_shard_order(description)
    for end in (100, 104):
        reached = oracle.shard_of(end, 4, 12)
        assert rows[end][reached] == truth[end][reached]
        assert sorted(rows[end]) == sorted(truth[end])


def test_streams_that_lie_elsewhere_are_marked(lake: Lake, take_in: Import) -> None:
    """Streams outside their range have no shard, and the import says so instead of refusing real data."""
    strange = (
        f'time,range_end,streams\n{cql_time(TIME_MS)},-1,"{{0x7fb9f781956cea08c651295720000001, '
        '0x7fc0000000000000c298b9f168000001}"\n'
    )
    take_in(strange, timestamps_csv({TIME_MS: None}), ignore_msb=12)
    assert marked(lake, STREAMS_DESCRIPTIONS_V2) == {-1}
    assert "do not lie" in lake.read(UNORDERED_RANGES)["reason"].to_pylist()[0]


def test_timestamps_alone_come_in_with_a_warning(lake: Lake, take_in: Import) -> None:
    """Which generations there were is worth having; that their rows are missing is said."""
    report = take_in(timestamps_csv({TIME_MS: None, LATER_MS: None}))
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 2
    assert any("2 timestamps without their streams" in warning for warning in report.warnings)


def test_timestamps_without_a_single_row_come_in_beside_others(lake: Lake, take_in: Import) -> None:
    """Before and after one that has its rows, as clusters have shown them: a warning; half of one is refused."""
    before, after = Milliseconds(TIME_MS - 1_000), Milliseconds(LATER_MS + 1_000)
    times = timestamps_csv({before: None, TIME_MS: None, LATER_MS: None, after: None})
    report = take_in(streams_csv({LATER_MS: generation(), TIME_MS: generation(OTHER_ID)}), times)
    (warning,) = [each for each in report.warnings if "without their streams rows" in each]
    assert warning.startswith(
        f"2 timestamps without their streams rows: {format_ms(before)}, {format_ms(after)}; readers"
    )
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 4
    half = streams_csv({after: generation()}, skip=frozenset({2}))
    with pytest.raises(InputError, match="half-written export, rows are missing"):
        take_in(half, times)
    assert generations.read_published_times(lake) == {TIME_MS, LATER_MS}
    take_in(streams_csv({after: generation()}))
    assert generations.read_published_times(lake) == {TIME_MS, LATER_MS, after}


def test_expired_generations_need_no_streams(lake: Lake, take_in: Import) -> None:
    """A generation that has expired may be gone, and that is no half-written export."""
    description = generation()
    report = take_in(streams_csv({LATER_MS: description}), timestamps_csv({LATER_MS: None, TIME_MS: LATER_MS}))
    assert report.warnings == []
    assert [one.expired_ms for one in report.generations] == [None, LATER_MS]


def test_a_later_expiry_is_adopted_and_never_lost(lake: Lake, take_in: Import) -> None:
    """A newer export sets it; an older one does not take it back."""
    take_in(timestamps_csv({TIME_MS: None}))
    for expired in (LATER_MS, None):
        take_in(timestamps_csv({TIME_MS: expired}))
        assert lake.read(GENERATION_TIMESTAMPS)["expired"].to_pylist() == [datetime_from_ms(LATER_MS)]


def test_a_ring_snapshot_is_the_ring(lake: Lake, take_in: Import) -> None:
    """Nodes that the snapshot does not list are gone, the others are as it says."""
    assert take_in(snapshot(NODES)).nodes_added == [str(node.host_id) for node in NODES]
    moved = replace(NODES[1], tokens=(5, 6))
    report = take_in(snapshot((moved,)))
    assert (report.nodes_removed, report.nodes_changed) == ([str(NODES[0].host_id)], [str(NODES[1].host_id)])
    assert read_current_ring(lake).nodes == (moved,)
    assert lake.read(NODES_TABLE).num_rows == 1


def test_a_folder_comes_in_with_all_of_its_files(lake: Lake, tmp_path: Path) -> None:
    """Of a folder the .json and .csv files are taken; what else lies there is named and left alone."""
    folder = tmp_path / "export"
    folder.mkdir()
    description = generation()
    (folder / "ring.json").write_text(snapshot(NODES))
    (folder / "streams.csv").write_text(streams_csv({TIME_MS: description}))
    (folder / "times.CSV").write_text(timestamps_csv({TIME_MS: None}))
    (folder / "notes.txt").write_text("taken at noon")
    (folder / ".hidden.csv").write_text("")
    report = import_paths(lake, CLOCK, [folder, folder / "ring.json"])
    assert len(report.nodes_added) == 2
    assert report.generations[0].ranges == len(description)
    assert [warning for warning in report.warnings if "notes.txt" in warning] == report.warnings


def test_two_generations_get_their_own_ids(lake: Lake, take_in: Import) -> None:
    """Which time belongs to which ID is told by their streams, whatever the order of the files."""
    one, other = generation(), generation(OTHER_ID)
    take_in(
        streams_csv({LATER_MS: other, TIME_MS: one}),
        timestamps_csv({LATER_MS: None, TIME_MS: None}),
        v2_csv({OTHER_ID: other, ID: one}),
    )
    times = {row["generation_id"]: row["time"] for row in lake.read(GENERATIONS).to_pylist()}
    assert times == {ID: datetime_from_ms(TIME_MS), OTHER_ID: datetime_from_ms(LATER_MS)}


def contradictions() -> Mapping[str, tuple[tuple[str, ...], tuple[str, ...], str]]:
    """What is in the lake, what comes after it, and what the refusal says."""
    description, other = generation(), generation(OTHER_ID)
    times = timestamps_csv({TIME_MS: None})
    changed = v2_csv({ID: description}).replace(",12,6,", ",11,6,", 1)
    return {
        "streams of another generation at this time": (
            (streams_csv({TIME_MS: description}), times),
            (streams_csv({TIME_MS: other}), times),
            "differs from the lake",
        ),
        "a description with another ignore_msb": (
            (v2_csv({ID: description}),),
            (changed,),
            "differs from the lake",
        ),
        "the same streams under another id": (
            (v2_csv({ID: description}), streams_csv({TIME_MS: description}), times),
            (streams_csv({LATER_MS: description}), timestamps_csv({LATER_MS: None})),
            "have the same streams",
        ),
    }


@pytest.mark.parametrize("case", contradictions())
def test_what_the_lake_knows_is_not_overwritten(lake: Lake, take_in: Import, case: str) -> None:
    """An export that says something else about a generation is refused, and nothing moves."""
    first, second, message = contradictions()[case]
    take_in(*first)
    before = versions(lake)
    with pytest.raises(InputError, match=message):
        take_in(*second)
    assert versions(lake) == before


def test_a_node_that_waits_to_join_is_not_locked_out(lake: Lake, take_in: Import) -> None:
    """A snapshot in which another node owns a waiting node's token is refused; one with the node itself is not."""
    joining = {"host_id": "33333333-3333-4333-8333-333333333333", "address": "127.0.0.3", "datacenter": "dc1"}
    joining |= {"rack": "r1", "tokens": [100], "shard_count": 4, "ignore_msb": 12}
    inbox.queue_join(lake, CLOCK, parse_join_request(json.dumps(joining)))
    with pytest.raises(InputError, match="waits to join"):
        take_in(snapshot(NODES))
    assert lake.read(NODES_TABLE).num_rows == 0
    assert take_in(json.dumps([joining])).nodes_added == [joining["host_id"]]


@pytest.mark.parametrize("seed", range(5))
def test_any_ring_comes_back_as_it_was_generated(lake: Lake, take_in: Import, seed: int) -> None:
    """Random rings: every stream that a write can get is in its place; idle shards' streams are in order of bytes."""
    dice = random.Random(seed)
    tokens = [dice.randrange(-(2**63) + 1, 2**63) for _ in range(24)]
    nodes = tuple(
        replace(
            NODES[0],
            host_id=UUID(int=number + 1),
            tokens=tuple(tokens[number::3]),
            shard_count=dice.choice([1, 2, 7, 16]),
            ignore_msb=dice.choice([0, 2, 12]),
        )
        for number in range(3)
    )
    description = generation(nodes=nodes)
    take_in(v2_csv({ID: description}), streams_csv({TIME_MS: description}), timestamps_csv({TIME_MS: None}))
    unknown = marked(lake, STREAMS_DESCRIPTIONS_V2)
    assert unknown == marked(lake, GENERATION_DESCRIPTIONS_V2)
    truth, found = in_shard_order(description), published(lake, TIME_MS)
    for end, streams in truth.items():
        idle = end.to_bytes(8, "big", signed=True)
        assert end in unknown or all(
            there == due for there, due in zip(found[end], streams, strict=True) if due[:8] != idle
        )
        assert sorted(found[end]) == sorted(streams)
    assert len(unknown) < len(truth)

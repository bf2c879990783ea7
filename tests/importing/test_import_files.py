"""An import stores a cluster's tables unchanged, and a repeated import changes nothing."""

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
"""The nodes without the narrow range, so the order of all their streams can be restored."""

Import = Callable[..., ImportReport]


@pytest.fixture
def take_in(lake: Lake, tmp_path: Path) -> Import:
    """Import texts, each in a separate file; named arguments are the import's options."""

    def run(*texts: str, shards: int | None = None, ignore_msb: int | None = None) -> ImportReport:
        paths = []
        for number, text in enumerate(texts):
            path = tmp_path / f"{number}{'.json' if text.startswith('[') else '.csv'}"
            path.write_text(text, encoding="utf-8", newline="")
            paths.append(path)
        return import_paths(lake, CLOCK, paths, shards, ignore_msb)

    return run


def snapshot(nodes: tuple[Node, ...]) -> str:
    """Return a ring snapshot with all fields."""
    fields = ("address", "datacenter", "rack", "shard_count", "ignore_msb", "features")
    return json.dumps(
        [
            {name: getattr(node, name) for name in fields} | {"host_id": str(node.host_id), "tokens": node.tokens}
            for node in nodes
        ]
    )


def versions(lake: Lake) -> dict[str, int | None]:
    """Return the version of every table, which a commit would change."""
    return {name: lake.version(table) for name, table in TABLES.items()}


def published(lake: Lake, time_ms: Milliseconds) -> dict[int, list[bytes]]:
    """Return the stream rows of a time by range end."""
    rows = lake.read(STREAMS_DESCRIPTIONS_V2, filters=[("time", "=", datetime_from_ms(time_ms))]).to_pylist()
    return {row["range_end"]: row["streams"] for row in rows}


def in_shard_order(description: TopologyDescription) -> dict[int, list[bytes]]:
    """Return the streams of a generation by range end, in the generated order."""
    entries = [description.entry(row) for row in range(len(description))]
    return {entry.range_end: [stream.tobytes() for stream in entry.streams] for entry in entries}


def unordered_ranges(lake: Lake, table: Table) -> set[int]:
    """Return the range ends of a table that are marked as having an unknown order."""
    rows = lake.read(UNORDERED_RANGES, filters=[("table_name", "=", table.full_name)])
    return set(rows["range_end"].to_pylist())


def test_cluster_is_imported_unchanged(lake: Lake, take_in: Import) -> None:
    """V2 rows, streams in shard order, timestamp and the generation's ID equal the cluster's."""
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
    assert (
        unordered_ranges(lake, GENERATION_DESCRIPTIONS_V2) == unordered_ranges(lake, STREAMS_DESCRIPTIONS_V2) == set()
    )


def test_repeated_import_changes_nothing(lake: Lake, take_in: Import) -> None:
    """A second import of everything, at another time, commits to no table."""
    description = generation()
    texts = (snapshot(NODES), v2_csv({ID: description}), streams_csv({TIME_MS: description}))
    texts += (timestamps_csv({TIME_MS: None}),)
    assert take_in(*texts).rows_written > 0
    before = versions(lake)
    assert take_in(*texts).rows_written == 0
    assert versions(lake) == before


def test_streams_imported_before_their_description_are_reordered(lake: Lake, take_in: Import) -> None:
    """Once the description is imported, another import of the streams orders them and removes the marks."""
    description = generation(nodes=WIDE)
    streams, times = streams_csv({TIME_MS: description}), timestamps_csv({TIME_MS: None})
    report = take_in(streams, times)
    assert report.generations[0].unordered_ranges == len(description)
    assert unordered_ranges(lake, STREAMS_DESCRIPTIONS_V2) == set(description.range_ends.tolist())
    take_in(v2_csv({ID: description}))
    assert take_in(streams, times).generations[0].id == ID
    assert published(lake, TIME_MS) == in_shard_order(description)
    assert unordered_ranges(lake, STREAMS_DESCRIPTIONS_V2) == set()


@pytest.mark.parametrize("how", ["option", "ring in the lake", "ring beside it"])
def test_streams_without_description_are_ordered_by_known_ignore_msb(lake: Lake, take_in: Import, how: str) -> None:
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
    assert unordered_ranges(lake, STREAMS_DESCRIPTIONS_V2) == set()


def test_unknown_order_is_marked(lake: Lake, take_in: Import) -> None:
    """Without any information, rows are stored in unsigned byte order, each marked with the reason."""
    description = generation()
    take_in(streams_csv({TIME_MS: description}), timestamps_csv({TIME_MS: None}))
    assert published(lake, TIME_MS) == {end: sorted(ids) for end, ids in in_shard_order(description).items()}
    assert unordered_ranges(lake, STREAMS_DESCRIPTIONS_V2) == set(description.range_ends.tolist())
    rows = lake.read(UNORDERED_RANGES).to_pylist()
    assert {row["generation"] for row in rows} == {iso_time(TIME_MS)}
    assert all("ignore_msb" in row["reason"] for row in rows)


def test_streams_of_one_token_are_indistinguishable(lake: Lake, take_in: Import) -> None:
    """A range of one token does not determine which stream a write gets; only that range is marked."""
    description = generation()
    take_in(v2_csv({ID: description}))
    assert unordered_ranges(lake, GENERATION_DESCRIPTIONS_V2) == {NARROW_END}
    rows = {row["range_end"]: row["streams"] for row in lake.read(GENERATION_DESCRIPTIONS_V2).to_pylist()}
    truth = in_shard_order(description)
    assert rows.pop(NARROW_END) == sorted(truth.pop(NARROW_END))
    assert rows == truth
    assert "all have its token" in lake.read(UNORDERED_RANGES)["reason"].to_pylist()[0]


def test_order_of_idle_shards_does_not_matter(lake: Lake, take_in: Import) -> None:
    """In a narrow range the streams that a write can get are in place; the order of idle shards has no meaning."""
    nodes = (replace(NODES[0], tokens=(0, 100, 104)),)
    description = generation(nodes=nodes)
    take_in(v2_csv({ID: description}))
    assert unordered_ranges(lake, GENERATION_DESCRIPTIONS_V2) == set()
    rows = {row["range_end"]: row["streams"] for row in lake.read(GENERATION_DESCRIPTIONS_V2).to_pylist()}
    truth = in_shard_order(description)
    for end in (100, 104):
        shard = oracle.shard_of(end, 4, 12)
        assert rows[end][shard] == truth[end][shard]
        assert sorted(rows[end]) == sorted(truth[end])


def test_streams_outside_their_range_are_marked(lake: Lake, take_in: Import) -> None:
    """They have no shard, and the import marks them, because real data has such streams."""
    rows_outside = (
        f'time,range_end,streams\n{cql_time(TIME_MS)},-1,"{{0x7fb9f781956cea08c651295720000001, '
        '0x7fc0000000000000c298b9f168000001}"\n'
    )
    take_in(rows_outside, timestamps_csv({TIME_MS: None}), ignore_msb=12)
    assert unordered_ranges(lake, STREAMS_DESCRIPTIONS_V2) == {-1}
    assert "do not lie" in lake.read(UNORDERED_RANGES)["reason"].to_pylist()[0]


def test_timestamps_alone_are_imported_with_a_warning(lake: Lake, take_in: Import) -> None:
    """The list of generations is useful; the warning says that their rows are missing."""
    report = take_in(timestamps_csv({TIME_MS: None, LATER_MS: None}))
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 2
    assert any("2 timestamps without their streams" in warning for warning in report.warnings)


def test_timestamps_without_rows_are_imported_with_others(lake: Lake, take_in: Import) -> None:
    """Clusters have shown them before and after complete ones; they are a warning, half a generation is refused."""
    before, after = Milliseconds(TIME_MS - 1_000), Milliseconds(LATER_MS + 1_000)
    times = timestamps_csv({before: None, TIME_MS: None, LATER_MS: None, after: None})
    report = take_in(streams_csv({LATER_MS: generation(), TIME_MS: generation(OTHER_ID)}), times)
    (warning,) = [line for line in report.warnings if "without their streams rows" in line]
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
    """An expired generation may be removed, so the export is complete without it."""
    description = generation()
    report = take_in(streams_csv({LATER_MS: description}), timestamps_csv({LATER_MS: None, TIME_MS: LATER_MS}))
    assert report.warnings == []
    assert [imported.expired_ms for imported in report.generations] == [None, LATER_MS]


def test_later_expiry_is_stored_and_stays(lake: Lake, take_in: Import) -> None:
    """A newer export sets it; an older one does not remove it."""
    take_in(timestamps_csv({TIME_MS: None}))
    for expired in (LATER_MS, None):
        take_in(timestamps_csv({TIME_MS: expired}))
        assert lake.read(GENERATION_TIMESTAMPS)["expired"].to_pylist() == [datetime_from_ms(LATER_MS)]


def test_ring_snapshot_replaces_the_ring(lake: Lake, take_in: Import) -> None:
    """Unlisted nodes are removed; listed nodes get their values from the snapshot."""
    assert take_in(snapshot(NODES)).nodes_added == [str(node.host_id) for node in NODES]
    moved = replace(NODES[1], tokens=(5, 6))
    report = take_in(snapshot((moved,)))
    assert (report.nodes_removed, report.nodes_changed) == ([str(NODES[0].host_id)], [str(NODES[1].host_id)])
    assert read_current_ring(lake).nodes == (moved,)
    assert lake.read(NODES_TABLE).num_rows == 1


def test_folder_is_imported_with_all_its_files(lake: Lake, tmp_path: Path) -> None:
    """The .json and .csv files of a folder are imported; a warning names other files."""
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
    """Their streams determine which time belongs to which ID, whatever the order of the files."""
    first, second = generation(), generation(OTHER_ID)
    take_in(
        streams_csv({LATER_MS: second, TIME_MS: first}),
        timestamps_csv({LATER_MS: None, TIME_MS: None}),
        v2_csv({OTHER_ID: second, ID: first}),
    )
    times = {row["generation_id"]: row["time"] for row in lake.read(GENERATIONS).to_pylist()}
    assert times == {ID: datetime_from_ms(TIME_MS), OTHER_ID: datetime_from_ms(LATER_MS)}


def contradictions() -> Mapping[str, tuple[tuple[str, ...], tuple[str, ...], str]]:
    """Return texts in the lake, texts that follow, and the message of the refusal."""
    first, second = generation(), generation(OTHER_ID)
    times = timestamps_csv({TIME_MS: None})
    changed = v2_csv({ID: first}).replace(",12,6,", ",11,6,", 1)
    return {
        "streams of another generation at this time": (
            (streams_csv({TIME_MS: first}), times),
            (streams_csv({TIME_MS: second}), times),
            "differs from the lake",
        ),
        "a description with another ignore_msb": (
            (v2_csv({ID: first}),),
            (changed,),
            "differs from the lake",
        ),
        "the same streams under another id": (
            (v2_csv({ID: first}), streams_csv({TIME_MS: first}), times),
            (streams_csv({LATER_MS: first}), timestamps_csv({LATER_MS: None})),
            "have the same streams",
        ),
    }


@pytest.mark.parametrize("case", contradictions())
def test_contradicting_export_is_refused(lake: Lake, take_in: Import, case: str) -> None:
    """An export that contradicts a stored generation is refused without a write."""
    first, second, message = contradictions()[case]
    take_in(*first)
    before = versions(lake)
    with pytest.raises(InputError, match=message):
        take_in(*second)
    assert versions(lake) == before


def test_snapshot_does_not_take_a_waiting_nodes_token(lake: Lake, take_in: Import) -> None:
    """A snapshot in which another node owns the token is refused; one with the node itself is imported."""
    joining = {"host_id": "33333333-3333-4333-8333-333333333333", "address": "127.0.0.3", "datacenter": "dc1"}
    joining |= {"rack": "r1", "tokens": [100], "shard_count": 4, "ignore_msb": 12}
    inbox.queue_join(lake, CLOCK, parse_join_request(json.dumps(joining)))
    with pytest.raises(InputError, match="waits to join"):
        take_in(snapshot(NODES))
    assert lake.read(NODES_TABLE).num_rows == 0
    assert take_in(json.dumps([joining])).nodes_added == [joining["host_id"]]


@pytest.mark.parametrize("seed", range(5))
def test_random_rings_are_imported_unchanged(lake: Lake, take_in: Import, seed: int) -> None:
    """Every stream that a write can get is in its place; streams of idle shards are in byte order."""
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
    unknown = unordered_ranges(lake, STREAMS_DESCRIPTIONS_V2)
    assert unknown == unordered_ranges(lake, GENERATION_DESCRIPTIONS_V2)
    truth, stored = in_shard_order(description), published(lake, TIME_MS)
    for end, streams in truth.items():
        idle = end.to_bytes(8, "big", signed=True)
        assert end in unknown or all(
            actual == expected for actual, expected in zip(stored[end], streams, strict=True) if expected[:8] != idle
        )
        assert sorted(stored[end]) == sorted(streams)
    assert len(unknown) < len(truth)

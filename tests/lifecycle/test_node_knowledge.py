"""Nodes whose `cdc_local` lacks the operating generation are found, and nodes of unknown state are named."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from support.command_line import Answer, run
from support.homes.timelines import FIRST_MS, HOUR_MS, SECOND_MS, THIRD_MS, home_of, uuid_of
from support.worlds.switch_lake import host, ring_of

from cdc_platform.clock import Clock, Milliseconds, datetime_from_ms, format_ms, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.metastore import CDC_LOCAL_ASPECT, ClusterChange, cluster_changes
from cdc_platform.tables import CDC_LOCAL

RING_DELAY_MS = 30_000
LATER_MS = THIRD_MS + 2 * HOUR_MS


def create_home(folder: Path, known_ms: dict[int, Milliseconds | None]) -> Path:
    """Return a home with three generations, and nodes with these in `cdc_local`; None for a node without a row."""
    home = home_of(folder, "three")
    lake = Lake(home / "lake")
    ring_of(lake, known_ms)
    rows = [
        {"host_id": host(number), "key": "cdc_local", "streams_timestamp": datetime_from_ms(ms), "uuid": uuid_of(ms)}
        for number, ms in known_ms.items()
        if ms is not None
    ]
    lake.merge(CDC_LOCAL, pa.Table.from_pylist(rows, schema=CDC_LOCAL.schema), update=True)
    return home


def status(home: Path, at_ms: int) -> Answer:
    """Return the answer of `status` at a time (ms)."""
    return run("--home", home, "--clock", format_ms(Milliseconds(at_ms)), "status", "--json")


def find_result(home: Path, at_ms: int) -> dict[str, object] | None:
    """Return the result of the invariant in `check` at a time (ms), or None."""
    answer = run("--home", home, "--clock", format_ms(Milliseconds(at_ms)), "check", "--json")
    results = [row for row in answer.rows if row["invariant"] == "nodes_know_generation"]
    return results[0] if results else None


@pytest.mark.parametrize(
    ("named", "behind", "unknown", "passed"),
    [
        ({1: THIRD_MS, 2: THIRD_MS, 3: THIRD_MS}, [], [], True),
        ({1: SECOND_MS, 2: SECOND_MS, 3: SECOND_MS}, [1, 2, 3], [], False),
        ({1: THIRD_MS, 2: SECOND_MS, 3: FIRST_MS}, [2, 3], [], False),
        ({1: THIRD_MS, 2: SECOND_MS, 3: None}, [2], [3], False),
        ({1: THIRD_MS, 2: None, 3: None}, [], [2, 3], True),
        ({1: None, 2: None, 3: None}, [], [1, 2, 3], None),
    ],
    ids=["all know", "all behind", "two behind", "behind and unknown", "two unknown", "all unknown"],
)
def test_nodes_that_are_behind_are_found(
    tmp_path: Path, named: dict[int, Milliseconds | None], behind: list[int], unknown: list[int], passed: bool | None
) -> None:
    """Two hours after the newest generation's start, `status` reports an error and `check` fails."""
    home = create_home(tmp_path, named)
    answer = status(home, LATER_MS)
    nodes_status = answer.json["generations"]["nodes"]
    assert nodes_status["informed"] == len(named) - len(behind) - len(unknown)
    assert [entry["host_id"] for entry in nodes_status["behind"]] == [host(number) for number in behind]
    assert [entry["host_id"] for entry in nodes_status["unknown"]] == [host(number) for number in unknown]
    wrong = {entry["code"] for entry in answer.json["alerts"] if entry["level"] == "error"}
    assert ("nodes-behind" in wrong) == bool(behind)
    line = find_result(home, LATER_MS)
    if passed is None:
        assert line is None  # nothing to check
        return
    assert line is not None
    assert (line["passed"], line["violations"]) == (passed, len(behind))
    assert line["checked"] == len(named) - len(unknown)
    assert all(host(number) in str(line["sample"]) for number in behind)
    if unknown and not behind:
        assert f"{len(unknown)} of 3 nodes are unknown" in str(line["sample"])


def test_a_newly_started_generation_may_be_unknown_to_nodes(tmp_path: Path) -> None:
    """A node counts as behind only after the time in which gossip reaches every node."""
    home = create_home(tmp_path, {1: SECOND_MS})
    for at_ms, count in ((THIRD_MS - 1, 0), (THIRD_MS + RING_DELAY_MS - 1, 0), (THIRD_MS + RING_DELAY_MS, 1)):
        assert len(status(home, at_ms).json["generations"]["nodes"]["behind"]) == count, at_ms


def test_an_unreachable_node_is_unknown_and_not_behind(tmp_path: Path) -> None:
    """Its stored row is from an earlier look; once the node is read again, it is behind or not."""
    home = create_home(tmp_path, {1: THIRD_MS, 2: SECOND_MS})
    lake, clock = Lake(home / "lake"), Clock(us_from_ms(Milliseconds(LATER_MS)))
    subject = f"node {host(2)}"
    cluster_changes.record_cluster_changes(
        lake, clock, lambda _: [ClusterChange(subject, CDC_LOCAL_ASPECT, "it was not up", "its cdc_local is not known")]
    )
    nodes_status = status(home, LATER_MS).json["generations"]["nodes"]
    assert (nodes_status["behind"], nodes_status["unknown"]) == ([], [{"host_id": host(2), "reason": "it was not up"}])
    cluster_changes.record_cluster_changes(
        lake, clock, lambda _: [ClusterChange(subject, CDC_LOCAL_ASPECT, None, "its cdc_local is read again")]
    )
    nodes_status = status(home, LATER_MS).json["generations"]["nodes"]
    assert (len(nodes_status["behind"]), nodes_status["unknown"]) == (1, [])

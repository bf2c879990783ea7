"""Nodes that have not learned of the generation that operates, by their `cdc_local`: found, and unknown ones named."""

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


def home_with(folder: Path, named: dict[int, Milliseconds | None]) -> Path:
    """Three generations, and nodes that name these of them in `cdc_local`; None: there is no row of the node."""
    home = home_of(folder, "three")
    lake = Lake(home / "lake")
    ring_of(lake, named)
    rows = [
        {"host_id": host(number), "key": "cdc_local", "streams_timestamp": datetime_from_ms(ms), "uuid": uuid_of(ms)}
        for number, ms in named.items()
        if ms is not None
    ]
    lake.merge(CDC_LOCAL, pa.Table.from_pylist(rows, schema=CDC_LOCAL.schema), update=True)
    return home


def status(home: Path, at_ms: int) -> Answer:
    """`status` at a time (ms)."""
    return run("--home", home, "--clock", format_ms(Milliseconds(at_ms)), "status", "--json")


def finding(home: Path, at_ms: int) -> dict[str, object] | None:
    """The invariant in `check` at a time (ms)."""
    answer = run("--home", home, "--clock", format_ms(Milliseconds(at_ms)), "check", "--json")
    found = [each for each in answer.rows if each["invariant"] == "nodes_know_generation"]
    return found[0] if found else None


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
    """Two hours after the newest generation has started: wrong in `status`, and no pass in `check`."""
    home = home_with(tmp_path, named)
    answer = status(home, LATER_MS)
    told = answer.json["generations"]["nodes"]
    assert told["informed"] == len(named) - len(behind) - len(unknown)
    assert [each["host_id"] for each in told["behind"]] == [host(number) for number in behind]
    assert [each["host_id"] for each in told["unknown"]] == [host(number) for number in unknown]
    wrong = {each["code"] for each in answer.json["alerts"] if each["level"] == "error"}
    assert ("nodes-behind" in wrong) == bool(behind)
    line = finding(home, LATER_MS)
    if passed is None:
        assert line is None  # there is nothing to judge
        return
    assert line is not None
    assert (line["passed"], line["violations"]) == (passed, len(behind))
    assert line["checked"] == len(named) - len(unknown)
    assert all(host(number) in str(line["sample"]) for number in behind)
    if unknown and not behind:
        assert f"{len(unknown)} of 3 nodes are unknown" in str(line["sample"])


def test_a_generation_that_has_just_started_may_be_unknown_to_nodes(tmp_path: Path) -> None:
    """For as long as gossip is given to reach every node."""
    home = home_with(tmp_path, {1: SECOND_MS})
    for at_ms, count in ((THIRD_MS - 1, 0), (THIRD_MS + RING_DELAY_MS - 1, 0), (THIRD_MS + RING_DELAY_MS, 1)):
        assert len(status(home, at_ms).json["generations"]["nodes"]["behind"]) == count, at_ms


def test_a_node_that_could_not_be_asked_is_unknown_and_not_behind(tmp_path: Path) -> None:
    """What its row says is of an earlier look; asked again it is behind, or not."""
    home = home_with(tmp_path, {1: THIRD_MS, 2: SECOND_MS})
    lake, clock = Lake(home / "lake"), Clock(us_from_ms(Milliseconds(LATER_MS)))
    who = f"node {host(2)}"
    cluster_changes.record_cluster_changes(
        lake, clock, lambda _: [ClusterChange(who, CDC_LOCAL_ASPECT, "it was not up", "its cdc_local is not known")]
    )
    told = status(home, LATER_MS).json["generations"]["nodes"]
    assert (told["behind"], told["unknown"]) == ([], [{"host_id": host(2), "reason": "it was not up"}])
    cluster_changes.record_cluster_changes(
        lake, clock, lambda _: [ClusterChange(who, CDC_LOCAL_ASPECT, None, "its cdc_local is read again")]
    )
    told = status(home, LATER_MS).json["generations"]["nodes"]
    assert (len(told["behind"]), told["unknown"]) == (1, [])

"""Eight real processes at one door at the same moment: what they are told and what they leave, some order explains."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.files.export_files import ID, NODES, SNAPSHOT, TIME_MS, generation, streams_csv, timestamps_csv, v2_csv
from support.homes.contents import contents
from support.homes.expiring import DAY_MS, GRACE_MS, TIMES_MS, add_table, import_generations, iso, mark
from support.nodes import node_text
from support.processes.nursery import Nursery
from support.processes.racing import EIGHT, Command, do, explained, race
from support.worlds.switch_lake import NOON, NOON_MS, TWO_PHASE, host, inserted, ring_of

from cdc_platform.clock import Clock, Microseconds, Milliseconds, format_ms
from cdc_platform.delta import Lake
from cdc_platform.home_location import open_home_location
from cdc_platform.lifecycle import switch
from cdc_platform.metastore import cdc_tables, consumers, inbox, read_current_ring, switches, tablets
from cdc_platform.ring import Ring
from cdc_platform.tables import BOOTSTRAP_EVENTS, CDC_TABLE_CHANGES, CDC_TABLES, REMOVED_GENERATIONS

A_RACE = pytest.mark.grid("races of eight processes", 4)

JOINS: dict[str, list[dict[str, Any]]] = {
    "one token": [{"host": 1 + number, "tokens": [7, 100 + number]} for number in EIGHT],
    "one host": [{"host": 1, "tokens": [100 + number]} for number in EIGHT],
    "one request": [{"host": 1, "tokens": [7]} for _ in EIGHT],
    "both": [{"host": 1 + number // 2, "tokens": [7 + number % 4]} for number in EIGHT],
}


@pytest.mark.parametrize("wanted", JOINS.values(), ids=list(JOINS))
def test_a_queued_node_can_join(nursery: Nursery, tmp_path: Path, wanted: list[dict[str, Any]]) -> None:
    """Nodes with one token, one host with other content, one request, and a mixture: those that are taken can join."""
    home = tmp_path / "home"
    for number, node in enumerate(wanted):
        text = json.loads(node_text(1)) | {"host_id": str(uuid.UUID(int=node["host"])), "tokens": node["tokens"]}
        (tmp_path / f"{number}.json").write_text(json.dumps(text), encoding="utf-8")
    commands: list[Command] = [("bootstrap", str(tmp_path / f"{number}.json")) for number in EIGHT]
    ended = race(nursery, home, commands)

    def rule(waiting: frozenset[Any], command: Command) -> tuple[frozenset[Any], bool]:
        node = wanted[commands.index(command)]
        new = (node["host"], tuple(node["tokens"]))
        taken = {token for _, tokens in waiting for token in tokens}
        free = node["host"] not in {each for each, _ in waiting} and not taken & set(node["tokens"])
        return (waiting | {new}, True) if free else (waiting, new in waiting)

    lake = Lake(home / "lake")
    events = [inbox.find_event(lake, event_id=each.event_id) for each in inbox.read_pending_events(lake)]
    after = frozenset((each.node.host_id.int, each.node.tokens) for each in events)
    assert explained(rule, frozenset(), commands, ended, after)
    assert len({each.created_at_us for each in events}) == len(events)


def test_drawn_tokens_are_owned_once(nursery: Nursery, tmp_path: Path) -> None:
    """Eight nodes whose tokens are drawn at once: all join one ring."""
    commands: list[Command] = []
    for number in EIGHT:
        node = json.loads(node_text(number + 1)) | {"num_tokens": 16}
        del node["tokens"]
        (tmp_path / f"{number}.json").write_text(json.dumps(node), encoding="utf-8")
        commands.append(("bootstrap", str(tmp_path / f"{number}.json")))
    assert [each.exit_code for each in race(nursery, tmp_path / "home", commands)] == [0] * 8
    lake = Lake(tmp_path / "home" / "lake")
    nodes = [inbox.find_event(lake, event_id=each.event_id).node for each in inbox.read_pending_events(lake)]
    assert len(Ring.of(nodes).tokens) == 8 * 16


def test_a_join_is_taken_back_once(nursery: Nursery, tmp_path: Path) -> None:
    """Eight withdrawals of one event are one; a node that is queued meanwhile is behind it or in its place."""
    home, file = tmp_path / "home", tmp_path / "node.json"
    file.write_text(node_text(1), encoding="utf-8")
    do(home, "bootstrap", str(file))
    (event,) = inbox.read_pending_events(Lake(home / "lake"))
    withdrawn, again = ("bootstrap", "--withdraw", event.event_id), ("bootstrap", str(file))
    commands: list[Command] = [*[withdrawn] * 6, *[again] * 2]
    ended = race(nursery, home, commands)

    def rule(generation: int, command: Command) -> tuple[int, bool]:
        """`generation`: how often the node was queued, negative while nobody waits."""
        if "--withdraw" in command:
            return (-1 if generation == 1 else generation), True
        return (2 if generation == -1 else generation), True

    waiting, queued = (
        inbox.read_pending_events(Lake(home / "lake")),
        Lake(home / "lake").read(BOOTSTRAP_EVENTS)["kind"].to_pylist(),
    )
    assert queued.count("withdraw") == 1
    assert explained(rule, 1, commands, ended, queued.count("join") if waiting else -1)


def test_a_ring_is_not_replaced_under_a_node_that_is_queued(nursery: Nursery, tmp_path: Path) -> None:
    """Four imports of a ring and four nodes with tokens of it, at once: nobody waits who could not join."""
    commands: list[Command] = []
    for number in range(4):
        node = json.loads(node_text(number + 1)) | {"tokens": [NODES[0].tokens[number % 2]]}
        (tmp_path / f"node{number}.json").write_text(json.dumps(node), encoding="utf-8")
        (tmp_path / f"ring{number}.json").write_text(json.dumps(SNAPSHOT[: 1 + number % 2]), encoding="utf-8")
        commands += [("bootstrap", f"{tmp_path}/node{number}.json"), ("import", f"{tmp_path}/ring{number}.json")]
    ended = race(nursery, tmp_path / "home", commands)

    def rule(state: tuple[int, frozenset[int]], command: Command) -> tuple[tuple[int, frozenset[int]], bool]:
        """`state`: nodes of the ring, and the tokens (by their place) that wait; every ring has both tokens."""
        ring, waiting = state
        number = int(command[1][-6])
        if command[0] == "import":
            return (state, False) if waiting else ((1 + number % 2, waiting), True)
        taken = ring > 0 or number % 2 in waiting
        return (state, False) if taken else ((ring, waiting | {number % 2}), True)

    lake = Lake(tmp_path / "home" / "lake")
    tokens = [inbox.find_event(lake, event_id=each.event_id).node.tokens[0] for each in inbox.read_pending_events(lake)]
    after = (len(read_current_ring(lake).nodes), frozenset(map(NODES[0].tokens.index, tokens)))
    assert explained(rule, (0, frozenset()), commands, ended, after)


def table_rule(ttl: int | None, command: Command) -> tuple[int | None, bool]:
    """What `tables` does to the TTL of a table, None where there is none."""
    wanted = int(command[-1]) if command[-2] == "--ttl" else None
    if command[1] == "add":
        return (wanted, True) if ttl is None else (ttl, ttl == wanted)
    if ttl is None:
        return None, False
    return (wanted if command[1] == "alter" else None), True


TABLE_RACES: dict[str, tuple[bool, list[Command]]] = {
    "add": (False, [("tables", "add", "ks.t", "--ttl", str(10 + number // 2)) for number in EIGHT]),
    "alter": (True, [("tables", "alter", "ks.t", "--ttl", str(20 + number)) for number in EIGHT]),
    "drop": (True, [("tables", "drop", "ks.t")] * 8),
    "all": (
        True,
        [
            *(("tables", "add", "ks.t", "--ttl", str(10 + number)) for number in range(3)),
            *(("tables", "alter", "ks.t", "--ttl", str(20 + number)) for number in range(3)),
            *[("tables", "drop", "ks.t")] * 2,
        ],
    ),
}


@A_RACE
@pytest.mark.parametrize(("is_there", "commands"), TABLE_RACES.values(), ids=list(TABLE_RACES))
def test_the_history_has_every_accepted_change_of_a_table(
    nursery: Nursery, tmp_path: Path, is_there: bool, commands: list[Command]
) -> None:
    """Every change that was taken is in the history, which grows strictly, and the table is as the last one left it."""
    home, lake = tmp_path / "home", Lake(tmp_path / "home" / "lake")
    if is_there:
        do(home, "tables", "add", "ks.t", "--ttl", "1")
    ended = race(nursery, home, commands)
    standing = {each.full_name: each.ttl_seconds for each in cdc_tables.read_cdc_tables(lake)}
    assert explained(table_rule, 1 if is_there else None, commands, ended, standing.get("ks.t"))
    said = cdc_tables.read_table_changes(lake)
    assert len({each.changed_at_us for each in said}) == len(said)
    assert (None if said[-1].what == "dropped" else said[-1].ttl_seconds) == standing.get("ks.t")
    taken = [command for command, each in zip(commands, ended, strict=True) if each.exit_code == 0]
    whats = [each.what for each in said]
    assert whats.count("altered") == sum(command[1] == "alter" for command in taken)
    assert whats.count("dropped") == sum(command[1] == "drop" for command in taken)


def tablet_rule(count: int | None, command: Command) -> tuple[int | None, bool]:
    """What a change of tablets does to their number, None where there are none."""
    kind, wanted = command[1], None if command[-2] != "--count" else int(command[-1])
    if kind == "create":
        return (wanted, True) if count is None else (count, count == wanted)
    if count is None:
        return None, False
    if kind == "drop":
        return None, True
    assert wanted is not None
    taken = wanted >= count if kind == "split" else wanted <= count
    return (wanted, True) if taken else (count, False)


TABLET_RACES: dict[str, tuple[int | None, list[Command]]] = {
    "create": (None, [("tablets", "create", "ks.t", "--count", str(2 << number % 2)) for number in EIGHT]),
    "split": (2, [("tablets", "split", "ks.t", "--count", str(2 << number % 3)) for number in EIGHT]),
    "merge": (16, [("tablets", "merge", "ks.t", "--count", str(2 << number % 3)) for number in EIGHT]),
    "drop": (4, [("tables", "drop", "ks.t")] * 8),
    "all": (
        4,
        [
            ("tablets", "create", "ks.t", "--count", "2"),
            ("tablets", "create", "ks.t", "--count", "4"),
            *(("tablets", "split", "ks.t", "--count", str(count)) for count in (8, 16)),
            *(("tablets", "merge", "ks.t", "--count", str(count)) for count in (2, 4)),
            *[("tables", "drop", "ks.t")] * 2,
        ],
    ),
}


@A_RACE
@pytest.mark.parametrize(("count", "commands"), TABLET_RACES.values(), ids=list(TABLET_RACES))
def test_changes_of_tablets(nursery: Nursery, tmp_path: Path, count: int | None, commands: list[Command]) -> None:
    """The newest set has as many streams as the last change asked for; of a table that was dropped nothing is left."""
    home, lake = tmp_path / "home", Lake(tmp_path / "home" / "lake")
    if count is not None:
        do(home, "tablets", "create", "ks.t", "--count", str(count))
    ended = race(nursery, home, commands)
    sets = tablets.read_stream_set_changes(lake, "ks", "t") if tablets.has_stream_sets(lake, "ks", "t") else []
    assert explained(tablet_rule, count, commands, ended, len(sets[-1].current) if sets else None)
    assert bool(sets) == bool(lake.read(CDC_TABLES).num_rows)
    before: list[bytes] = []
    for each in sets:
        now = [stream.tobytes() for stream in each.current]
        assert sorted(set(before) - set(now)) == sorted(stream.tobytes() for stream in each.closed)
        assert sorted(set(now) - set(before)) == sorted(stream.tobytes() for stream in each.opened)
        before = now


def test_a_consumer_is_forgotten_once(nursery: Nursery, tmp_path: Path) -> None:
    """One of eight takes it out; to the others it is not there."""
    home = open_home_location(tmp_path / "home")
    consumers.register_consumer(
        Lake(home.lake), Clock(Microseconds(1)), "audit", "ks", "t", position_us=Microseconds(0)
    )
    commands: list[Command] = [("consumers", "remove", "audit", "ks.t")] * 8
    ended = race(nursery, home.path, commands)
    after = bool(consumers.read_consumers(Lake(home.lake)))
    assert explained(lambda there, _: (False, there), True, commands, ended, after)


@A_RACE
@pytest.mark.parametrize("kinds", [("v2",), ("streams", "timestamps"), ("v2", "streams", "timestamps")])
def test_imports_that_contradict_each_other(nursery: Nursery, tmp_path: Path, kinds: tuple[str, ...]) -> None:
    """Eight exports of one generation, two and two the same: one is in the lake, whole, and the others are refused."""
    made = [generation(str(uuid.UUID(int=number))) for number in range(4)]
    texts = {
        "v2": [v2_csv({ID: each}) for each in made],
        "streams": [streams_csv({TIME_MS: each}) for each in made],
        "timestamps": [timestamps_csv({TIME_MS: None}) for _ in made],
    }
    commands: list[Command] = []
    for number in EIGHT:
        folder = tmp_path / f"export{number}"
        folder.mkdir()
        for kind in kinds:
            (folder / f"{kind}.csv").write_text(texts[kind][number // 2], encoding="utf-8", newline="")
        commands.append(("import", str(folder)))
    ended = race(nursery, tmp_path / "home", commands)
    found = contents(tmp_path / "home")
    alone = []
    for number in range(4):
        do(tmp_path / f"alone{number}", "import", str(tmp_path / f"export{2 * number}"))
        alone.append(contents(tmp_path / f"alone{number}"))

    def rule(there: int | None, command: Command) -> tuple[int | None, bool]:
        wanted = int(command[1][-1]) // 2
        return (wanted, True) if there is None else (there, there == wanted)

    assert found in alone
    assert explained(rule, None, commands, ended, alone.index(found))


def test_removals_at_once_are_one(nursery: Nursery, tmp_path: Path) -> None:
    """Eight expiries leave what one leaves, and none is refused."""
    home, now = import_generations(tmp_path), iso(TIMES_MS[2] + DAY_MS // 2)
    add_table(Lake(home / "lake"), 23 * 1800)
    mark(Lake(home / "lake"), Milliseconds(TIMES_MS[2] + DAY_MS // 2 - GRACE_MS))
    alone = tmp_path / "alone"
    shutil.copytree(home, alone)
    do(alone, "expire", clock=now)
    ended = race(nursery, home, [("expire",)] * 8, now)
    assert [each.exit_code for each in ended] == [0] * 8
    assert contents(home) == contents(alone)
    assert Lake(home / "lake").read(REMOVED_GENERATIONS).num_rows == 1


def test_maintenance_of_files_disturbs_no_reader(nursery: Nursery, tmp_path: Path) -> None:
    """Four upkeeps beside four writers: what nothing needs is gone, what was written is there, and none is refused."""
    home = tmp_path / "home"
    do(home, "tables", "add", "ks.t", "--ttl", "1")
    unneeded = [
        home / "lake" / table.keyspace / table.name / "part-0.parquet" for table in (CDC_TABLES, CDC_TABLE_CHANGES)
    ]
    for file in unneeded:
        file.write_bytes(b"PAR1")
        os.utime(file, (1e9, 1e9))
    commands: list[Command] = [
        (("home", "maintain"), ("tables", "alter", "ks.t", "--ttl", str(2 + number)))[number % 2] for number in EIGHT
    ]
    ended = race(nursery, home, commands)
    assert [each.exit_code for each in ended] == [0] * 8, ended
    assert not any(file.exists() for file in unneeded)

    def rule(ttl: int, command: Command) -> tuple[int, bool]:
        return (ttl if command[0] == "home" else int(command[-1])), True

    (table,) = cdc_tables.read_cdc_tables(Lake(home / "lake"))
    assert explained(rule, 1, commands, ended, table.ttl_seconds)
    assert len(cdc_tables.read_table_changes(Lake(home / "lake"))) == 5


@pytest.mark.parametrize("answered", [1, 3])
def test_a_switch_is_decided_once(nursery: Nursery, tmp_path: Path, answered: int) -> None:
    """Commits and aborts after the deadline: by the answers that are there, one of both, whoever comes first."""
    home = open_home_location(tmp_path / "home")
    lake = Lake(home.lake)
    ring_of(lake, (1, 2))
    id_ = inserted(lake, 3)
    hosts = [host(number) for number in (1, 2, 3)]
    switch.prepare_switch(lake, NOON, TWO_PHASE, id_, hosts[2], hosts)
    switch.acknowledge_switch(lake, NOON, TWO_PHASE, id_, hosts[:answered])
    commands: list[Command] = [("switch", "commit", id_), ("switch", "abort", id_)] * 4
    ended = race(nursery, home.path, commands, format_ms(Milliseconds(NOON_MS + 30_000)))

    def rule(phase: str, command: Command) -> tuple[str, bool]:
        due = "committed" if answered == 3 else "aborted"
        taken = command[1] == {"committed": "commit", "aborted": "abort"}[due]
        return (due, True) if taken else (phase, False)

    assert explained(rule, "preparing", commands, ended, str(switches.find_switch(lake, id_).phase))


def test_all_answers_to_a_switch_are_stored(nursery: Nursery, tmp_path: Path) -> None:
    """Eight answers of three nodes at once: each node's is there, with the one lease that it has promised."""
    home = open_home_location(tmp_path / "home")
    lake = Lake(home.lake)
    ring_of(lake, (1, 2))
    id_ = inserted(lake, 3)
    hosts = [host(number) for number in (1, 2, 3)]
    switch.prepare_switch(lake, NOON, TWO_PHASE, id_, hosts[2], hosts)
    commands: list[Command] = [("switch", "ack", id_, "--node", hosts[number % 3]) for number in EIGHT]
    ended = race(nursery, home.path, commands, format_ms(Milliseconds(NOON_MS + 1_000)))
    assert [each.exit_code for each in ended] == [0] * 8, ended
    assert dict(switches.find_switch(lake, id_).leases) == switches.read_lease_promises(lake, id_)
    assert np.unique(list(switches.read_lease_promises(lake, id_))).tolist() == hosts

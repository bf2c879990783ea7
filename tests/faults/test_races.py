"""Run eight processes at the same moment: some sequential order explains their results and the final state."""

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
    """Nodes with equal tokens, host IDs or requests are queued only if each of them can join."""
    home = tmp_path / "home"
    for number, node in enumerate(wanted):
        text = json.loads(node_text(1)) | {"host_id": str(uuid.UUID(int=node["host"])), "tokens": node["tokens"]}
        (tmp_path / f"{number}.json").write_text(json.dumps(text), encoding="utf-8")
    commands: list[Command] = [("bootstrap", str(tmp_path / f"{number}.json")) for number in EIGHT]
    results = race(nursery, home, commands)

    def rule(waiting: frozenset[Any], command: Command) -> tuple[frozenset[Any], bool]:
        node = wanted[commands.index(command)]
        new = (node["host"], tuple(node["tokens"]))
        taken_tokens = {token for _, tokens in waiting for token in tokens}
        free = node["host"] not in {host_id for host_id, _ in waiting} and not taken_tokens & set(node["tokens"])
        return (waiting | {new}, True) if free else (waiting, new in waiting)

    lake = Lake(home / "lake")
    events = [inbox.find_event(lake, event_id=pending.event_id) for pending in inbox.read_pending_events(lake)]
    after = frozenset((event.node.host_id.int, event.node.tokens) for event in events)
    assert explained(rule, frozenset(), commands, results, after)
    assert len({event.created_at_us for event in events}) == len(events)


def test_random_tokens_are_unique(nursery: Nursery, tmp_path: Path) -> None:
    """Eight nodes that draw their tokens at once all join one ring."""
    commands: list[Command] = []
    for number in EIGHT:
        node = json.loads(node_text(number + 1)) | {"num_tokens": 16}
        del node["tokens"]
        (tmp_path / f"{number}.json").write_text(json.dumps(node), encoding="utf-8")
        commands.append(("bootstrap", str(tmp_path / f"{number}.json")))
    assert [result.exit_code for result in race(nursery, tmp_path / "home", commands)] == [0] * 8
    lake = Lake(tmp_path / "home" / "lake")
    nodes = [inbox.find_event(lake, event_id=pending.event_id).node for pending in inbox.read_pending_events(lake)]
    assert len(Ring.of(nodes).tokens) == 8 * 16


def test_join_is_withdrawn_once(nursery: Nursery, tmp_path: Path) -> None:
    """Eight withdrawals of one event take effect once; a node queued meanwhile waits behind it or replaces it."""
    home, file = tmp_path / "home", tmp_path / "node.json"
    file.write_text(node_text(1), encoding="utf-8")
    do(home, "bootstrap", str(file))
    (event,) = inbox.read_pending_events(Lake(home / "lake"))
    withdrawn, again = ("bootstrap", "--withdraw", event.event_id), ("bootstrap", str(file))
    commands: list[Command] = [*[withdrawn] * 6, *[again] * 2]
    results = race(nursery, home, commands)

    def rule(generation: int, command: Command) -> tuple[int, bool]:
        """`generation`: how often the node was queued, negative while no node waits."""
        if "--withdraw" in command:
            return (-1 if generation == 1 else generation), True
        return (2 if generation == -1 else generation), True

    waiting, queued = (
        inbox.read_pending_events(Lake(home / "lake")),
        Lake(home / "lake").read(BOOTSTRAP_EVENTS)["kind"].to_pylist(),
    )
    assert queued.count("withdraw") == 1
    assert explained(rule, 1, commands, results, queued.count("join") if waiting else -1)


def test_a_ring_is_not_replaced_under_a_node_that_is_queued(nursery: Nursery, tmp_path: Path) -> None:
    """Of four ring imports and four nodes with tokens of that ring at once, no node is queued that cannot join."""
    commands: list[Command] = []
    for number in range(4):
        node = json.loads(node_text(number + 1)) | {"tokens": [NODES[0].tokens[number % 2]]}
        (tmp_path / f"node{number}.json").write_text(json.dumps(node), encoding="utf-8")
        (tmp_path / f"ring{number}.json").write_text(json.dumps(SNAPSHOT[: 1 + number % 2]), encoding="utf-8")
        commands += [("bootstrap", f"{tmp_path}/node{number}.json"), ("import", f"{tmp_path}/ring{number}.json")]
    results = race(nursery, tmp_path / "home", commands)

    def rule(state: tuple[int, frozenset[int]], command: Command) -> tuple[tuple[int, frozenset[int]], bool]:
        """`state`: the ring's number of nodes, and the indexes of the queued tokens; every ring has both tokens."""
        ring, waiting = state
        number = int(command[1][-6])
        if command[0] == "import":
            return (state, False) if waiting else ((1 + number % 2, waiting), True)
        is_taken = ring > 0 or number % 2 in waiting
        return (state, False) if is_taken else ((ring, waiting | {number % 2}), True)

    lake = Lake(tmp_path / "home" / "lake")
    tokens = [
        inbox.find_event(lake, event_id=pending.event_id).node.tokens[0] for pending in inbox.read_pending_events(lake)
    ]
    after = (len(read_current_ring(lake).nodes), frozenset(map(NODES[0].tokens.index, tokens)))
    assert explained(rule, (0, frozenset()), commands, results, after)


def table_rule(ttl: int | None, command: Command) -> tuple[int | None, bool]:
    """Return the TTL that a `tables` command leaves (None without the table), and whether the command succeeds."""
    new_ttl = int(command[-1]) if command[-2] == "--ttl" else None
    if command[1] == "add":
        return (new_ttl, True) if ttl is None else (ttl, ttl == new_ttl)
    if ttl is None:
        return None, False
    return (new_ttl if command[1] == "alter" else None), True


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
    """The history has every accepted change in strictly increasing order, and the table matches the last one."""
    home, lake = tmp_path / "home", Lake(tmp_path / "home" / "lake")
    if is_there:
        do(home, "tables", "add", "ks.t", "--ttl", "1")
    results = race(nursery, home, commands)
    ttls = {table.full_name: table.ttl_seconds for table in cdc_tables.read_cdc_tables(lake)}
    assert explained(table_rule, 1 if is_there else None, commands, results, ttls.get("ks.t"))
    changes = cdc_tables.read_table_changes(lake)
    assert len({change.changed_at_us for change in changes}) == len(changes)
    assert (None if changes[-1].what == "dropped" else changes[-1].ttl_seconds) == ttls.get("ks.t")
    accepted = [command for command, result in zip(commands, results, strict=True) if result.exit_code == 0]
    whats = [change.what for change in changes]
    assert whats.count("altered") == sum(command[1] == "alter" for command in accepted)
    assert whats.count("dropped") == sum(command[1] == "drop" for command in accepted)


def tablet_rule(count: int | None, command: Command) -> tuple[int | None, bool]:
    """Return the number of tablets that a command leaves (None without tablets), and whether the command succeeds."""
    kind, new_count = command[1], None if command[-2] != "--count" else int(command[-1])
    if kind == "create":
        return (new_count, True) if count is None else (count, count == new_count)
    if count is None:
        return None, False
    if kind == "drop":
        return None, True
    assert new_count is not None
    is_accepted = new_count >= count if kind == "split" else new_count <= count
    return (new_count, True) if is_accepted else (count, False)


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
    """The newest set has as many streams as the last change requested; a dropped table has no sets."""
    home, lake = tmp_path / "home", Lake(tmp_path / "home" / "lake")
    if count is not None:
        do(home, "tablets", "create", "ks.t", "--count", str(count))
    results = race(nursery, home, commands)
    sets = tablets.read_stream_set_changes(lake, "ks", "t") if tablets.has_stream_sets(lake, "ks", "t") else []
    assert explained(tablet_rule, count, commands, results, len(sets[-1].current) if sets else None)
    assert bool(sets) == bool(lake.read(CDC_TABLES).num_rows)
    before: list[bytes] = []
    for stream_set in sets:
        now = [stream.tobytes() for stream in stream_set.current]
        assert sorted(set(before) - set(now)) == sorted(stream.tobytes() for stream in stream_set.closed)
        assert sorted(set(now) - set(before)) == sorted(stream.tobytes() for stream in stream_set.opened)
        before = now


def test_consumer_is_removed_once(nursery: Nursery, tmp_path: Path) -> None:
    """One of eight processes removes the consumer; the others do not find it."""
    home = open_home_location(tmp_path / "home")
    consumers.register_consumer(
        Lake(home.lake), Clock(Microseconds(1)), "audit", "ks", "t", position_us=Microseconds(0)
    )
    commands: list[Command] = [("consumers", "remove", "audit", "ks.t")] * 8
    results = race(nursery, home.path, commands)
    after = bool(consumers.read_consumers(Lake(home.lake)))
    assert explained(lambda is_registered, _: (False, is_registered), True, commands, results, after)


@A_RACE
@pytest.mark.parametrize("kinds", [("v2",), ("streams", "timestamps"), ("v2", "streams", "timestamps")])
def test_imports_that_contradict_each_other(nursery: Nursery, tmp_path: Path, kinds: tuple[str, ...]) -> None:
    """Of eight exports of one generation with four contents, one content is stored whole and the others are refused."""
    generations = [generation(str(uuid.UUID(int=number))) for number in range(4)]
    texts = {
        "v2": [v2_csv({ID: streams}) for streams in generations],
        "streams": [streams_csv({TIME_MS: streams}) for streams in generations],
        "timestamps": [timestamps_csv({TIME_MS: None}) for _ in generations],
    }
    commands: list[Command] = []
    for number in EIGHT:
        folder = tmp_path / f"export{number}"
        folder.mkdir()
        for kind in kinds:
            (folder / f"{kind}.csv").write_text(texts[kind][number // 2], encoding="utf-8", newline="")
        commands.append(("import", str(folder)))
    results = race(nursery, tmp_path / "home", commands)
    stored = contents(tmp_path / "home")
    alone = []
    for number in range(4):
        do(tmp_path / f"alone{number}", "import", str(tmp_path / f"export{2 * number}"))
        alone.append(contents(tmp_path / f"alone{number}"))

    def rule(first: int | None, command: Command) -> tuple[int | None, bool]:
        content = int(command[1][-1]) // 2
        return (content, True) if first is None else (first, first == content)

    assert stored in alone
    assert explained(rule, None, commands, results, alone.index(stored))


def test_concurrent_removals_leave_one_result(nursery: Nursery, tmp_path: Path) -> None:
    """Eight concurrent expiries leave the same result as one, and all succeed."""
    home, now = import_generations(tmp_path), iso(TIMES_MS[2] + DAY_MS // 2)
    add_table(Lake(home / "lake"), 23 * 1800)
    mark(Lake(home / "lake"), Milliseconds(TIMES_MS[2] + DAY_MS // 2 - GRACE_MS))
    alone = tmp_path / "alone"
    shutil.copytree(home, alone)
    do(alone, "expire", clock=now)
    results = race(nursery, home, [("expire",)] * 8, now)
    assert [result.exit_code for result in results] == [0] * 8
    assert contents(home) == contents(alone)
    assert Lake(home / "lake").read(REMOVED_GENERATIONS).num_rows == 1


def test_maintenance_of_files_disturbs_no_reader(nursery: Nursery, tmp_path: Path) -> None:
    """Four maintenance runs beside four writers remove unneeded files, preserve all writes, and all succeed."""
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
    results = race(nursery, home, commands)
    assert [result.exit_code for result in results] == [0] * 8, results
    assert not any(file.exists() for file in unneeded)

    def rule(ttl: int, command: Command) -> tuple[int, bool]:
        return (ttl if command[0] == "home" else int(command[-1])), True

    (table,) = cdc_tables.read_cdc_tables(Lake(home / "lake"))
    assert explained(rule, 1, commands, results, table.ttl_seconds)
    assert len(cdc_tables.read_table_changes(Lake(home / "lake"))) == 5


@pytest.mark.parametrize("answered", [1, 3])
def test_switch_is_decided_once(nursery: Nursery, tmp_path: Path, answered: int) -> None:
    """After the deadline the recorded answers decide between commit and abort, whichever command runs first."""
    home = open_home_location(tmp_path / "home")
    lake = Lake(home.lake)
    ring_of(lake, (1, 2))
    id_ = inserted(lake, 3)
    hosts = [host(number) for number in (1, 2, 3)]
    switch.prepare_switch(lake, NOON, TWO_PHASE, id_, hosts[2], hosts)
    switch.acknowledge_switch(lake, NOON, TWO_PHASE, id_, hosts[:answered])
    commands: list[Command] = [("switch", "commit", id_), ("switch", "abort", id_)] * 4
    results = race(nursery, home.path, commands, format_ms(Milliseconds(NOON_MS + 30_000)))

    def rule(phase: str, command: Command) -> tuple[str, bool]:
        decision = "committed" if answered == 3 else "aborted"
        is_accepted = command[1] == {"committed": "commit", "aborted": "abort"}[decision]
        return (decision, True) if is_accepted else (phase, False)

    assert explained(rule, "preparing", commands, results, str(switches.find_switch(lake, id_).phase))


def test_all_answers_to_a_switch_are_stored(nursery: Nursery, tmp_path: Path) -> None:
    """Eight concurrent answers of three nodes are stored: one per node, with the lease that it promised."""
    home = open_home_location(tmp_path / "home")
    lake = Lake(home.lake)
    ring_of(lake, (1, 2))
    id_ = inserted(lake, 3)
    hosts = [host(number) for number in (1, 2, 3)]
    switch.prepare_switch(lake, NOON, TWO_PHASE, id_, hosts[2], hosts)
    commands: list[Command] = [("switch", "ack", id_, "--node", hosts[number % 3]) for number in EIGHT]
    results = race(nursery, home.path, commands, format_ms(Milliseconds(NOON_MS + 1_000)))
    assert [result.exit_code for result in results] == [0] * 8, results
    assert dict(switches.find_switch(lake, id_).leases) == switches.read_lease_promises(lake, id_)
    assert np.unique(list(switches.read_lease_promises(lake, id_))).tolist() == hosts

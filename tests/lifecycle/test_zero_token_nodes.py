"""Nodes without tokens: every entry point accepts them, they have no vnode or stream, and they learn of generations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import run
from support.nodes import node_fields

from cdc_platform.clock import Clock, Microseconds
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError, StateError
from cdc_platform.importing.run import import_paths
from cdc_platform.lifecycle import join_zero_token_node, repair
from cdc_platform.metastore import JoinRequest, cdc_local, inbox, read_current_ring, write_nodes
from cdc_platform.ring import Node
from cdc_platform.tables import BOOTSTRAP_EVENTS, CDC_LOCAL, GENERATIONS, NODES

NOON = Clock(stopped_at_us=Microseconds(1_700_000_000_000_000))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with one node that owns tokens."""
    lake_with_node = Lake(tmp_path / "lake")
    write_nodes(lake_with_node, [member(1, [-5, 5])])
    return lake_with_node


def join_fields(number: int, **changes: Any) -> dict[str, Any]:
    """Return the fields of a zero-token node's join file."""
    return {**node_fields(number), "tokens": []} | changes


def request(number: int, **changes: Any) -> JoinRequest:
    """Return the request of a zero-token node."""
    return JoinRequest.model_validate_json(json.dumps(join_fields(number, **changes)))


def member(number: int, tokens: list[int]) -> Node:
    """Return a node of the ring."""
    return inbox.node_from_request(request(number), tokens, "NORMAL")


@pytest.mark.parametrize("said", [{"tokens": []}, {"tokens": None, "num_tokens": 0}])
def test_a_zero_token_node_joins_at_once_without_a_generation(said: dict[str, Any], lake: Lake) -> None:
    """A repeated request changes nothing; no event is queued, and no range is added."""
    joined = join_zero_token_node(lake, request(2, **said))
    assert (joined.node.tokens, joined.node.status) == ((), "NORMAL")
    versions = [lake.version(table) for table in (NODES, CDC_LOCAL, BOOTSTRAP_EVENTS, GENERATIONS)]
    assert join_zero_token_node(lake, request(2, **said)) == joined
    assert [lake.version(table) for table in (NODES, CDC_LOCAL, BOOTSTRAP_EVENTS, GENERATIONS)] == versions
    ring = read_current_ring(lake)
    assert (len(ring.nodes), ring.tokens.tolist()) == (2, [-5, 5])
    assert (inbox.read_pending_events(lake), lake.read(GENERATIONS).num_rows) == ([], 0)


def test_the_first_node_owns_tokens(tmp_path: Path) -> None:
    """As in ScyllaDB, the first node needs tokens."""
    empty = Lake(tmp_path / "empty")
    with pytest.raises(StateError, match="the first node of a cluster owns tokens"):
        join_zero_token_node(empty, request(1))
    assert not empty.exists(NODES)


def test_a_host_joins_once(lake: Lake) -> None:
    """A node of the ring, a queued node and a node with changed fields are refused."""
    inbox.queue_join(lake, NOON, JoinRequest.model_validate_json(json.dumps(node_fields(3, tokens=[77]))))
    join_zero_token_node(lake, request(2))
    for number, changes in ((1, {}), (3, {}), (2, {"rack": "another"})):
        with pytest.raises(InputError, match="is in the ring or waits to join already"):
            join_zero_token_node(lake, request(number, **changes))


def test_a_ring_of_zero_token_nodes_alone_has_no_streams(tmp_path: Path) -> None:
    """Commands on such a ring never divide by its tokens and refuse in one line."""
    home = tmp_path / "home"
    (tmp_path / "ring.json").write_text(json.dumps([join_fields(1) | {"features": []}]))
    assert run("--home", home, "import", tmp_path / "ring.json").exit_code == 0
    with pytest.raises(StateError, match="no node is in the ring yet that owns tokens"):
        repair.check_newest_generation(Lake(home / "lake"))
    (tmp_path / "play.json").write_text(json.dumps([{"repair": {}}]))
    commands = (["status"], ["ring"], ["ring", "--colocation"], ["repair", "--dry-run"], ["check"], ["generations"])
    for command in (
        *commands,
        ["explain", "--token", "42"],
        ["rehearse", tmp_path / "play.json"],
        ["expire", "--dry-run"],
    ):
        answer = run("--home", home, *command)
        assert answer.exit_code in (0, 1, 2), (command, answer.stderr)
        assert "Traceback" not in answer.stderr


def test_a_ring_with_a_zero_token_node_survives_export_and_import(tmp_path: Path) -> None:
    """`import` reads the output of `ring --json`, and the text output counts zero-token nodes."""
    home, other = tmp_path / "home", tmp_path / "other"
    (tmp_path / "ring.json").write_text(json.dumps([{**node_fields(1), "tokens": [-5, 5]}, join_fields(2)]))
    assert run("--home", home, "import", tmp_path / "ring.json").exit_code == 0
    assert "2 nodes, 1 of them zero-token; 2 ranges" in run("--home", home, "ring").stdout
    written = run("--home", home, "ring", "--json").stdout
    (tmp_path / "again.json").write_text(written)
    assert run("--home", other, "import", tmp_path / "again.json").exit_code == 0
    assert run("--home", other, "ring", "--json").stdout == written
    assert run("--home", home, "status", "--json").json["ring"]["zero_token_nodes"] == 1
    play = [{"add": {"num_tokens": 0, "shard_count": 3}}, {"add": {"tokens": [], "shard_count": 3}}, {"wait": 60}]
    (tmp_path / "play.json").write_text(json.dumps([*play, {"add": {"num_tokens": 2, "shard_count": 3}}]))
    effects = run("--home", home, "rehearse", tmp_path / "play.json", "--json").json["steps"]
    assert [effect["nodes"] for effect in effects] == [2, 3, 4, 4, 5]
    assert [effect["generation"] is None for effect in effects[1:]] == [True, True, True, False]


@pytest.mark.long("a JVM's start")
def test_a_zero_token_node_learns_of_generations(tmp_path: Path) -> None:
    """It learns of the newest generation as it joins, and of later ones; explain, check and repair accept it."""
    home = tmp_path / "home"
    for number, tokens in ((1, [-5, 5]), (2, [-7, 7])):
        (tmp_path / "node.json").write_text(json.dumps(node_fields(number, tokens=tokens)))
        assert run("--home", home, "bootstrap", tmp_path / "node.json", "--run").exit_code == 0
        if number == 1:
            (tmp_path / "zero.json").write_text(json.dumps(join_fields(9)))
            first = run("--home", home, "bootstrap", tmp_path / "zero.json", "--json")
            assert (first.exit_code, first.json["zero_token"], first.json["status"]) == (0, True, "NORMAL")
            assert run("--home", home, "bootstrap", tmp_path / "zero.json", "--run", "--json").json == first.json
            stored = cdc_local.read_node_generation_id(Lake(home / "lake"), join_fields(9)["host_id"])
            assert stored is not None
            assert str(stored.uuid) == first.json["generation_id"]
    lake = Lake(home / "lake")
    stored = cdc_local.read_node_generation_ids(lake)
    assert stored[join_fields(9)["host_id"]] == stored[join_fields(2)["host_id"]]
    assert run("--home", home, "check").exit_code == 0
    assert not run("--home", home, "repair", "--dry-run", "--json").json["needed"]
    shares = run("--home", home, "ring", "--colocation", "latest", "--json").json
    zero = next(node for node in shares["nodes"] if node["host_id"] == join_fields(9)["host_id"])
    assert (zero["share_of_ring"], zero["vnode_colocation"], zero["shard_colocation"]) == (0, None, None)
    assert shares["shard_colocation"] == 1


def test_files_of_zero_token_nodes_are_imported(tmp_path: Path) -> None:
    """`system.topology` has their tokens as null or as an empty set."""
    lake = Lake(tmp_path / "lake")
    head = "host_id,datacenter,ignore_msb,node_state,rack,shard_count,tokens"
    rows = ["{},dc1,12,normal,r1,2,\"{{'1'}}\"", "{},dc1,12,normal,r1,2,", "{},dc1,12,normal,r1,2,{{}}"]
    hosts = [node_fields(number)["host_id"] for number in (1, 2, 3)]
    text = "\r\n".join([head, *(row.format(host) for row, host in zip(rows, hosts, strict=True))]) + "\r\n"
    (tmp_path / "topology.csv").write_text(text, newline="")
    import_paths(lake, NOON, [tmp_path / "topology.csv"])
    assert [len(node.tokens) for node in sorted(read_current_ring(lake).nodes, key=lambda node: node.host_id)] == [
        1,
        0,
        0,
    ]

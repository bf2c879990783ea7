"""Every state of a node and of the topology in every file that has one is handled or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest
from support.states import GONE, JOINING, LEAVING, NODE_STATES, OWNS, PRINTED_STATES, TRANSITIONS, UNKNOWN

from cdc_platform.clock import Clock, Microseconds
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.importing.run import import_paths
from cdc_platform.metastore import read_current_ring
from cdc_platform.ring import membership

CLOCK = Clock(Microseconds(1_700_000_000_000_000))
HOSTS = [UUID(int=number) for number in (1, 2)]
HEAD = "host_id,datacenter,ignore_msb,node_state,rack,shard_count,tokens,transition_state"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake."""
    return Lake(tmp_path / "lake")


def topology(folder: Path, state: str, *, tokens: str = "{'5', '6'}", transition: str = "") -> Path:
    """Write an export of two nodes, the second in this state."""
    rows = [f"{HOSTS[0]},dc1,12,normal,r1,2,\"{{'1', '2'}}\",{transition}"]
    rows.append(f'{HOSTS[1]},dc1,12,{state},r1,2,"{tokens}",{transition}')
    path = folder / "topology.csv"
    path.write_text("\r\n".join([HEAD, *rows]) + "\r\n", newline="")
    return path


def owners(lake: Lake) -> set[UUID]:
    """Return the hosts that own tokens in the lake."""
    return {node.host_id for node in read_current_ring(lake).nodes if node.tokens}


def test_lists_of_states_equal_the_documented_ones() -> None:
    """A state that is added to a list needs its meaning here, too."""
    assert set(NODE_STATES) == set(membership.NODE_STATES)
    assert {state.lower() for state in PRINTED_STATES} == set(membership.PRINTED_STATES)
    assert set(TRANSITIONS) == membership.RING_TRANSITIONS | membership.OTHER_TRANSITIONS
    assert not membership.RING_TRANSITIONS & membership.OTHER_TRANSITIONS


@pytest.mark.parametrize("state", NODE_STATES)
def test_meaning_of_each_node_state_in_the_topology(state: str, lake: Lake, tmp_path: Path) -> None:
    """Owners stay. A joining or leaving node needs --allow-incomplete, with which a leaving one owns its tokens."""
    file, meaning = topology(tmp_path, state), NODE_STATES[state]
    if meaning in (LEAVING, JOINING):
        with pytest.raises(InputError, match=f"node {HOSTS[1]} is {state}: the topology is changing"):
            import_paths(lake, CLOCK, [file])
        assert owners(lake) == set()
        import_paths(lake, CLOCK, [file], allow_incomplete=True)
    else:
        import_paths(lake, CLOCK, [file])
    assert owners(lake) == (set(HOSTS) if meaning in (OWNS, LEAVING) else {HOSTS[0]})


@pytest.mark.parametrize("tokens", ["{'5', '6'}", ""])
@pytest.mark.parametrize("as_is", [False, True])
def test_unknown_node_state_is_refused_by_name(tokens: str, as_is: bool, lake: Lake, tmp_path: Path) -> None:
    """With or without tokens, it is unclear whether the node is a member, and nothing is written."""
    with pytest.raises(InputError, match=f"node {HOSTS[1]}: state '{UNKNOWN}' is not known"):
        import_paths(lake, CLOCK, [topology(tmp_path, UNKNOWN, tokens=tokens)], allow_incomplete=as_is)
    assert owners(lake) == set()


@pytest.mark.parametrize("transition", TRANSITIONS)
def test_meaning_of_each_transition_in_the_topology(transition: str, lake: Lake, tmp_path: Path) -> None:
    """Tablet migrations are imported; a change of nodes or generations is refused by name."""
    file = topology(tmp_path, "normal", transition=transition)
    if TRANSITIONS[transition]:
        with pytest.raises(InputError, match=rf"the topology is changing \({transition}\)"):
            import_paths(lake, CLOCK, [file])
        assert owners(lake) == set()
        import_paths(lake, CLOCK, [file], allow_incomplete=True)
    else:
        import_paths(lake, CLOCK, [file])
    assert owners(lake) == set(HOSTS)


@pytest.mark.parametrize("as_is", [False, True])
def test_unknown_transition_is_refused_by_name(as_is: bool, lake: Lake, tmp_path: Path) -> None:
    """--allow-incomplete does not help, as the rows may be those of a transitional ring."""
    with pytest.raises(InputError, match=f"transition_state '{UNKNOWN}' is not known"):
        import_paths(lake, CLOCK, [topology(tmp_path, "normal", transition=UNKNOWN)], allow_incomplete=as_is)
    assert owners(lake) == set()


def test_states_may_have_the_spelling_of_the_documentation(lake: Lake, tmp_path: Path) -> None:
    """The documentation has underscores where tables have spaces."""
    import_paths(lake, CLOCK, [topology(tmp_path, "normal", transition="tablet_migration")])
    assert owners(lake) == set(HOSTS)


def ring_text(state: str) -> str:
    """Return the output of `nodetool ring` for two nodes, the second in this state."""
    head = "Datacenter: dc1\n==========\nAddress  Rack  Status  State  Load  Owns  Token\n"
    rows = [f"10.0.0.1  r1  Up  Normal  1 KB  ?  {token}\n" for token in (1, 2)]
    return head + f"{'6':>60}\n" + "".join([*rows, *(f"10.0.0.2  r1  Up  {state}  1 KB  ?  {n}\n" for n in (5, 6))])


def status_text(letter: str) -> str:
    """Return the output of `nodetool status` for these nodes, the second with this letter as state."""
    return (
        "Datacenter: dc1\n===============\nStatus=Up/Down\n|/ State=Normal/Leaving/Joining/Moving\n"
        "-- Address  Load  Tokens Owns Host ID  Rack\n"
        f"UN 10.0.0.1 1 KB 2 ? {HOSTS[0]} r1\nU{letter} 10.0.0.2 1 KB 2 ? {HOSTS[1]} r1\n"
    )


@pytest.mark.parametrize("state", PRINTED_STATES)
def test_meaning_of_each_state_that_nodetool_prints(state: str, lake: Lake, tmp_path: Path) -> None:
    """The state may be in the ring or in the status."""
    meaning = PRINTED_STATES[state]
    for name, text in (("ring", ring_text(state)), ("status", ring_text("Normal") + status_text(state[0]))):
        file = tmp_path / f"{name}.txt"
        file.write_text(ring_text(state) if name == "ring" else status_text(state[0]))
        files = [file] if name == "ring" else [file, tmp_path / "normal.txt"]
        (tmp_path / "normal.txt").write_text(ring_text("Normal"))
        alone = Lake(tmp_path / name)
        if meaning is OWNS:
            import_paths(alone, CLOCK, files, shards=2, ignore_msb=12)
            assert len(owners(alone)) == 2, text
            continue
        with pytest.raises(InputError, match=f"node 10.0.0.2 is {state}"):
            import_paths(alone, CLOCK, files, shards=2, ignore_msb=12)
        assert owners(alone) == set()
    if meaning is not OWNS:
        import_paths(lake, CLOCK, [tmp_path / "ring.txt"], shards=2, ignore_msb=12, allow_incomplete=True)
        addresses = {node.address for node in read_current_ring(lake).nodes}
        assert addresses == ({"10.0.0.1", "10.0.0.2"} if meaning is LEAVING else {"10.0.0.1"})


@pytest.mark.parametrize(
    ("text", "state"), [(ring_text(UNKNOWN), UNKNOWN), (status_text("Z"), "Z"), (status_text("?"), r"\?")]
)
def test_unknown_printed_state_is_refused_by_name(text: str, state: str, lake: Lake, tmp_path: Path) -> None:
    """This includes a question mark, with which nodetool prints an unknown state."""
    (tmp_path / "printed.txt").write_text(text)
    with pytest.raises(InputError, match=f"node 10.0.0.2: state '{state}' is not known"):
        import_paths(lake, CLOCK, [tmp_path / "printed.txt"], shards=2, ignore_msb=12)


@pytest.mark.parametrize("text", [ring_text("Normal"), status_text("N")])
def test_unparsable_line_is_refused(text: str, lake: Lake, tmp_path: Path) -> None:
    """An import never skips a node because its line has another form."""
    (tmp_path / "printed.txt").write_text(
        text.replace("10.0.0.2  r1  Up", "10.0.0.2  r1  Dim").replace(" 2 ? 0", " x 0")
    )
    with pytest.raises(InputError, match="is no line of nodetool"):
        import_paths(lake, CLOCK, [tmp_path / "printed.txt"], shards=2, ignore_msb=12)


@pytest.mark.parametrize("state", [*(state.upper() for state in NODE_STATES), UNKNOWN])
def test_meaning_of_each_status_in_a_ring_snapshot(state: str, lake: Lake, tmp_path: Path) -> None:
    """A rebuilding node counts as NORMAL; other states without tokens, in transition or unknown are refused."""
    nodes = [
        {"host_id": str(host), "address": f"10.0.0.{host.int}", "datacenter": "dc1", "rack": "r1", "tokens": [host.int]}
        for host in HOSTS
    ]
    (tmp_path / "ring.json").write_text(json.dumps([nodes[0], nodes[1] | {"status": state}]))
    meaning = NODE_STATES.get(state.lower())
    if meaning is OWNS:
        import_paths(lake, CLOCK, [tmp_path / "ring.json"], shards=2, ignore_msb=12)
        assert {node.status for node in read_current_ring(lake).nodes} == {"NORMAL"}
        assert owners(lake) == set(HOSTS)
        return
    message = "is not known" if meaning is None else "owns nothing" if meaning is GONE else "the ring is changing"
    with pytest.raises(InputError, match=f"{state}.*{message}"):
        import_paths(lake, CLOCK, [tmp_path / "ring.json"], shards=2, ignore_msb=12)
    assert owners(lake) == set()

"""Invalid input to `repair` and `rehearse`: checked first, one clear line, exit code 2, no change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.files.bad_input import Case, argument, assert_refused

RING = json.dumps(
    [
        {
            "host_id": "55555555-5555-4555-8555-555555555555",
            "address": "127.0.0.5",
            "datacenter": "dc1",
            "rack": "r1",
            "tokens": [5],
            "shard_count": 2,
            "ignore_msb": 12,
        }
    ]
)
ADD = {"num_tokens": 2, "shard_count": 2}
UNKNOWN = "99999999-9999-4999-8999-999999999999"


def text(name: str, says: str, content: str | bytes, *options: str) -> Case:
    """Return a case of a rehearsal file with this text."""
    return Case(f"rehearse: {name}", ("rehearse", "{dir}/steps.json", *options), says, {"steps.json": content})


def steps(name: str, says: str, *changes: object, options: tuple[str, ...] = ()) -> Case:
    """Return a case of a rehearsal of these steps."""
    return text(name, says, json.dumps(list(changes)), *options)


def add(name: str, says: str, **fields: object) -> Case:
    """Return a case of a rehearsal in which one node joins, with some fields changed or, if None, dropped."""
    node_fields = {key: value for key, value in (ADD | fields).items() if value is not None}
    return steps(name, says, {"add": node_fields})


def on_ring(name: str, says: str, content: str, *options: str) -> Case:
    """Return a case of a rehearsal that starts from a snapshot with this text."""
    files = {"steps.json": '[{"repair": {}}]', "ring.json": content}
    return Case(f"ring: {name}", ("rehearse", "{dir}/steps.json", "--ring", "{dir}/ring.json", *options), says, files)


REPAIR = [
    argument(
        "repair: two ways at once",
        "--dry-run writes nothing and --run makes a generation",
        "repair",
        "--run",
        "--dry-run",
    ),
    argument("repair: a node that is no UUID", "'10.0.0.1' is not a valid UUID", "repair", "--node", "10.0.0.1"),
    argument("repair: a node of no ring", f"host {UNKNOWN} is no node of the ring", "repair", "--node", UNKNOWN),
    argument("repair: an argument too many", "unexpected extra argument", "repair", "now"),
    argument("repair: an unknown option", "No such option", "repair", "--force"),
]
FILES = [
    text("no JSON", "is not JSON", "- add: 1"),
    text("empty", "is empty", ""),
    text("no UTF-8", "is not UTF-8", b"\xff[]"),
    text("an object", "has to be a JSON list of steps", '{"add": {}}'),
    text("no steps", "lists no steps", "[]"),
    text("a field twice", "field 'add' is given twice", '[{"add": {}, "add": {}}]'),
    Case("rehearse: no such file", ("rehearse", "{dir}/none.json"), "no such file"),
    steps("a step that is text", "step 1 has to be an object with one field", "repair"),
    steps("two changes in one step", "step 1 has to be an object with one field", {"wait": 1, "repair": {}}),
    steps(
        "an unknown change",
        "step 2: 'replace' is no change of the topology; the changes are add,",
        {"wait": 1},
        {"replace": {}},
    ),
    steps("an add that is text", "add has to be an object with the fields host_id", {"add": "10.0.0.5"}),
    steps("a wait of no time", "wait: seconds: 0 is no whole number from 1", {"wait": 0}),
    steps("a wait that is text", "seconds: '1h' is no whole number", {"wait": "1h"}),
    steps("a strictness that is a number", "repair: strict: 1 is neither true nor false", {"repair": {"strict": 1}}),
    steps("a repair with an unknown field", "field force is not known", {"repair": {"force": True}}),
    steps("a reshard to nothing", "neither shard_count nor ignore_msb", {"reshard": {"node": "127.0.0.1"}}),
    steps("a reshard of nobody", "reshard: field node is missing", {"reshard": {"shards": 1}}),
    steps("a reshard to too many shards", "no whole number from 1 to 4096", {"reshard": {"node": "a", "shards": 4097}}),
    steps("a node that is not there", "step 1: remove: 10.9.9.9 is no node of the ring", {"remove": "10.9.9.9"}),
    add("no shards", "step 1: add: field shard_count is missing", shard_count=None),
    add("shards by both names", "both shards and shard_count are given", shards=2),
    add("an unknown field", "add: field vnodes is not known", vnodes=2),
    add("no tokens", "neither tokens nor num_tokens is given", num_tokens=None),
    add("tokens in two ways", "both tokens and num_tokens are given", tokens=[1]),
    add("tokens for several nodes", "times is 2, so that tokens", tokens=[1], num_tokens=None, times=2),
    add("no repetitions", "times: 0 is no whole number from 1 to 10000", times=0),
    add("more tokens than a ring has", "no whole number from 0 to 4194304", num_tokens=4_194_305),
    add("an ignore_msb out of bounds", "ignore_msb: 32 is no whole number from 0 to 31", ignore_msb=32),
    add("a host that is no UUID", "host_id: 'five' is not a UUID", host_id="five"),
    steps("too many steps", "a rehearsal has at most 10000", *[{"add": ADD | {"times": 9_999}}] * 2),
]
OPTIONS = [
    on_ring("an object", "has to be a JSON list of nodes", "{}"),
    on_ring("sharding that nobody says", "shard_count is not in the file", RING.replace('"shard_count": 2, ', "")),
    steps("shards without a ring", "are about the nodes of --ring FILE", {"repair": {}}, options=("--shards", "4")),
    steps("a negative TTL", "-1 is not in the range", {"repair": {}}, options=("--ttl", "-1")),
    steps("a bound of nothing", "0 is not in the range", {"repair": {}}, options=("--max-bytes", "0")),
    steps(
        "a picture of another kind", "give it a name that ends in .png", {"repair": {}}, options=("--picture", "a.svg")
    ),
    steps("a picture in no folder", "is no folder", {"repair": {}}, options=("--picture", "{dir}/none/a.png")),
    argument("rehearse: nothing to play", "Missing argument 'FILE'", "rehearse"),
]
CASES = [*REPAIR, *FILES, *OPTIONS]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_bad_input_is_refused(case: Case, seeded_home: Path, tmp_path: Path) -> None:
    """One line with the error and the remedy; the home is unchanged."""
    assert_refused(case, seeded_home, tmp_path)


def test_a_repair_while_a_node_joins_is_refused(seeded_home: Path, tmp_path: Path) -> None:
    """While the seeded home's third node waits to join, a repair is refused, needed or not."""
    case = argument(
        "a node joins", "is in state JOINING; finish its join with: cdc-platform --home", "repair", "--strict"
    )
    assert_refused(case, seeded_home, tmp_path)


def test_a_missing_home_is_refused(tmp_path: Path) -> None:
    """Neither command creates a home."""
    from support.command_line import run

    (tmp_path / "steps.json").write_text('[{"repair": {}}]', encoding="utf-8")
    for command in (("repair", "--dry-run"), ("rehearse", tmp_path / "steps.json")):
        answer = run("--home", tmp_path / "none", *command)
        assert (answer.exit_code, answer.stdout) == (2, "")
        assert "does not exist" in answer.stderr
    assert not (tmp_path / "none").exists()

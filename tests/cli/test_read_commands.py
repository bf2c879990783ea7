"""The reading commands on an imported home: their JSON has the shape that scripts rely on, and no JVM starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Cli, run
from support.files.export_files import (
    ID,
    LATER_MS,
    NARROW_END,
    NODES,
    OTHER_ID,
    TIME_MS,
    generation,
    iso_time,
    streams_csv,
    timestamps_csv,
)
from support.oracles import oracle

from cdc_platform.clock import us_from_ms

BETWEEN = "2026-02-01T00:00:00Z"
AFTER = "2026-02-02T00:00:00Z"
OWNERS = {token: (node.shard_count, node.ignore_msb) for node in NODES for token in node.tokens}


def to_hex(streams: Iterable[Any]) -> list[str]:
    """Return streams in the format of the command line."""
    return [f"0x{bytes(stream).hex()}" for stream in streams]


def test_generations_are_listed_newest_first(cli: Cli) -> None:
    """Each has its ID, time, expiry, state and size, and whether it operates at the clock."""
    description = generation()
    other_fields = {"state": "published", "published": True, "nodes": None}
    other_fields |= {"num_ranges": len(description), "num_streams": len(description.streams)}
    assert cli("--clock", BETWEEN, "generations", "--json").rows == [
        {"id": OTHER_ID, "time": iso_time(LATER_MS), "expired": None, "operating": False, **other_fields},
        {"id": ID, "time": iso_time(TIME_MS), "expired": None, "operating": True, **other_fields},
    ]


@pytest.mark.parametrize(
    ("since", "ids"),
    [
        ("2020-01-01T00:00:00Z", [OTHER_ID, ID]),
        (iso_time(TIME_MS), [OTHER_ID, ID]),
        (BETWEEN, [OTHER_ID, ID]),
        (iso_time(LATER_MS), [OTHER_ID, ID]),
        (AFTER, [OTHER_ID]),
    ],
)
def test_since_lists_the_generations_that_a_reader_needs(cli: Cli, since: str, ids: list[str]) -> None:
    """The list has later generations and the one before, or the newest alone if none starts that late."""
    assert [row["id"] for row in cli("generations", "--since", since, "--json").rows] == ids


@pytest.mark.parametrize("name", [iso_time(TIME_MS), ID, ID.upper(), iso_time(TIME_MS).replace("Z", "+00:00")])
def test_streams_are_in_ring_and_shard_order(cli: Cli, name: str) -> None:
    """Every range end of a generation is listed with its streams, position 0 for shard 0."""
    description = generation()
    rows = cli("streams", name, "--json").rows
    assert [int(row["range_end"]) for row in rows] == description.range_ends.tolist()
    assert all(set(row) == {"range_end", "streams"} for row in rows)
    for number, row in enumerate(rows):
        expected = to_hex(description.entry(number).streams)
        if int(row["range_end"]) == NARROW_END:
            row["streams"], expected = sorted(row["streams"]), sorted(expected)
        assert row["streams"] == expected


def test_streams_for_people_name_every_shard(cli: Cli) -> None:
    """Each stream has one line with its range end and its shard."""
    lines = cli("streams", ID).stdout.splitlines()
    description = generation()
    assert len(lines) == 1 + len(description.streams)
    assert lines[1].split() == [str(description.range_ends[0]), "0", to_hex(description.entry(0).streams)[0]]
    shards = [line.split()[1] for line in lines[1:] if line.split()[0] == str(NARROW_END)]
    assert shards == ["?", "?", "?", "?"]


def test_the_ring_output_can_be_imported(cli: Cli, tmp_path: Path) -> None:
    """The output of `ring --json` creates an equal ring in another home."""
    written = cli("ring", "--json")
    (tmp_path / "ring.json").write_text(written.stdout)
    assert run("--home", tmp_path / "home", "import", tmp_path / "ring.json").exit_code == 0
    assert run("--home", tmp_path / "home", "ring", "--json").json == written.json
    assert [int(token) for node in written.json for token in node["tokens"]] == [t for n in NODES for t in n.tokens]


def test_explain_names_all_of_a_write(cli: Cli) -> None:
    """Token, generation, range, owner, shard and stream follow the rules, for a key of every owner."""
    entries = oracle.generation(OWNERS)
    description = generation()
    for number in range(40):
        key = number.to_bytes(4, "big")
        answer = cli("--clock", BETWEEN, "explain", "--key", f"0x{key.hex()}", "--json")
        facts = answer.json
        token = oracle.token_of(key)
        row, shard = oracle.pick(entries, token)
        assert answer.exit_code == 0
        assert int(facts["token"]) == token
        assert facts["generation"] == {"id": ID, "time": iso_time(TIME_MS)}
        assert int(facts["range_end"]) == description.range_ends[row]
        assert int(facts["range_start"]) == description.range_ends[row - 1]
        assert facts["vnode_index"] == row
        owner = next(node for node in NODES if int(facts["range_end"]) in node.tokens)
        assert facts["owner"] == str(owner.host_id)
        assert facts["shard"] == shard
        assert facts["stream_id"] == to_hex([description.entry(row).streams[shard]])[0]
        assert facts["accepted"] is True
        assert (facts["policy"], facts["at"], facts["now"]) == ("strict", iso_time_us(BETWEEN), iso_time_us(BETWEEN))


def iso_time_us(text: str) -> str:
    """Return a time in the platform's format."""
    return text.replace("Z", ".000Z")


def test_numbers_that_readers_would_round_are_text(cli: Cli) -> None:
    """Integers beyond 2^53 are text, others are numbers."""
    small = cli("--clock", BETWEEN, "explain", "--token", str(2**53), "--json").json
    large = cli("--clock", BETWEEN, "explain", "--token", str(-(2**53) - 1), "--json").json
    assert (small["token"], large["token"]) == (2**53, str(-(2**53) - 1))


def test_several_keys_are_the_components_of_one(cli: Cli) -> None:
    """A composite key is hashed as length, bytes and a zero for each component."""
    composite = b"\x00\x02\xab\xcd\x00" + b"\x00\x01\x01\x00"
    parts = cli("--clock", BETWEEN, "explain", "--key", "ABCD", "--key", "0x01", "--json").json
    assert int(parts["token"]) == oracle.token_of(composite)


@pytest.mark.parametrize(("at", "exit_code"), [("2026-02-01T12:00:04.999999Z", 0), ("2026-02-01T12:00:05Z", 1)])
def test_a_refused_write_is_exit_code_one(cli: Cli, at: str, exit_code: int) -> None:
    """After the leeway of five seconds the write is refused, but explained nevertheless."""
    answer = cli("--clock", "2026-02-01T12:00:00Z", "explain", "--token", "1", "--at", at, "--json")
    assert (answer.exit_code, answer.json["accepted"]) == (exit_code, exit_code == 0)
    assert (answer.json["verdict"] == "FUTURE") == (exit_code == 1)
    assert answer.json["generation"]["id"] == OTHER_ID
    assert answer.stderr == ""


def test_the_policy_can_be_chosen(cli: Cli) -> None:
    """Two seconds after a switch, a write to the previous generation is refused by strict alone."""
    write = ("--clock", "2026-02-01T12:00:02Z", "explain", "--token", "1", "--at", "2026-02-01T11:59:59Z", "--json")
    strict, recent = (cli(*write, "--policy", policy) for policy in ("strict", "recent-past"))
    assert (strict.exit_code, strict.json["policy"]) == (1, "strict")
    assert (recent.exit_code, recent.json["policy"]) == (0, "recent-past")
    assert recent.json["generation"]["id"] == ID


def test_a_timestamp_may_be_in_microseconds(cli: Cli) -> None:
    """USING TIMESTAMP counts µs since 1970, and so may --at."""
    micros = str(us_from_ms(TIME_MS) + 1)
    assert cli("--clock", BETWEEN, "explain", "--token", "1", "--at", micros, "--json").json["at"] == (
        iso_time(TIME_MS).replace("384Z", "384001Z")
    )


def test_before_all_generations_there_is_no_stream(cli: Cli) -> None:
    """The reason has the message that people search for, and unknown fields are null."""
    answer = cli("--clock", "2026-01-01T00:00:00Z", "explain", "--token", "1", "--json")
    assert answer.exit_code == 1
    assert "could not find any CDC stream" in answer.json["reason"]
    assert {answer.json[name] for name in ("generation", "range_end", "shard", "stream_id", "owner")} == {None}


def test_a_shard_whose_order_is_unknown_is_not_named(tmp_path: Path) -> None:
    """Without the description, explain names the range and reports that the shard is unknown."""
    home = tmp_path / "home"
    (tmp_path / "s.csv").write_text(streams_csv({TIME_MS: generation()}), newline="")
    (tmp_path / "t.csv").write_text(timestamps_csv({TIME_MS: None}), newline="")
    assert run("--home", home, "import", tmp_path / "s.csv", tmp_path / "t.csv").exit_code == 0
    answer = run("--home", home, "--clock", BETWEEN, "explain", "--token", "1000", "--json").json
    assert (answer["range_end"], answer["shard"], answer["stream_id"]) == ("4000000000000000000", None, None)
    assert "the shard cannot be named" in answer["reason"]


def test_a_write_to_a_range_of_one_token_is_not_guessed(cli: Cli) -> None:
    """All streams of that range have its token, so explain cannot tell the shard's and refuses the write."""
    explained = cli("--clock", BETWEEN, "explain", "--token", str(NARROW_END), "--json")
    answer = explained.json
    assert (answer["range_start"], answer["range_end"]) == (100, NARROW_END)
    assert (answer["shard"], answer["stream_id"]) == (None, None)
    assert "the shard cannot be named" in answer["reason"]
    assert (explained.exit_code, answer["accepted"], answer["verdict"]) == (1, False, "STREAM_UNKNOWN")


def test_diff_counts_ranges_and_streams(cli: Cli) -> None:
    """Two generations of one ring have equal ranges and no common stream; a generation shares all with itself."""
    changed = cli("diff", ID, iso_time(LATER_MS), "--json").json
    streams = len(generation().streams)
    assert changed["old"] == {"id": ID, "time": iso_time(TIME_MS), "num_ranges": 6, "num_streams": streams}
    assert changed["new"]["id"] == OTHER_ID
    assert (changed["ranges_added"], changed["ranges_removed"]) == (0, 0)
    assert (changed["streams_kept"], changed["changed_share"]) == (0, 1.0)
    same = cli("diff", ID, ID, "--json").json
    assert (same["streams_kept"], same["changed_share"]) == (streams, 0.0)


@pytest.mark.parametrize("command", [("generations",), ("ring",), ("diff", ID, OTHER_ID), ("explain", "--token", "1")])
def test_text_output_has_the_facts_of_json(cli: Cli, command: tuple[str, ...]) -> None:
    """Without --json the facts are text, and nothing is cut off without a terminal."""
    answer = cli("--clock", BETWEEN, *command)
    assert answer.exit_code == 0
    assert "…" not in answer.stdout
    assert (str(NODES[0].host_id) if command == ("ring",) else ID) in answer.stdout
    assert all(line == line.rstrip() for line in answer.stdout.splitlines())


def test_queueing_is_idempotent_and_takes_standard_input(tmp_path: Path) -> None:
    """A node from a file and from standard input is one event with one generation."""
    node = {"host_id": "55555555-5555-4555-8555-555555555555", "address": "a", "datacenter": "d", "rack": "r"}
    node |= {"num_tokens": 4, "shard_count": 2, "ignore_msb": 12}
    (tmp_path / "node.json").write_text(json.dumps(node))
    home = tmp_path / "home"
    from_file = run("--home", home, "bootstrap", tmp_path / "node.json", "--json")
    from_input = run("--home", home, "bootstrap", "-", "--json", stdin=json.dumps(node, indent=2))
    assert from_file.exit_code == 0
    assert set(from_file.json) == {"version", "event_id", "generation_id", "next"}
    assert from_input.json == from_file.json


def test_a_queued_join_can_be_withdrawn(tmp_path: Path) -> None:
    """A withdrawn node's tokens are free again."""
    node = {"host_id": "55555555-5555-4555-8555-555555555555", "address": "a", "datacenter": "d", "rack": "r"}
    node |= {"tokens": [5], "shard_count": 2, "ignore_msb": 12}
    other = node | {"host_id": "66666666-6666-4666-8666-666666666666"}
    home = tmp_path / "home"
    queued = run("--home", home, "bootstrap", "-", "--json", stdin=json.dumps(node)).json
    assert run("--home", home, "bootstrap", "-", stdin=json.dumps(other)).exit_code == 2
    assert run("--home", home, "bootstrap", "--withdraw", queued["event_id"], "--json").json["withdrawn"] is True
    assert run("--home", home, "bootstrap", "-", stdin=json.dumps(other)).exit_code == 0


def test_import_reports_what_it_imported(tmp_path: Path) -> None:
    """The JSON has nodes, generations and rows; warnings are on standard error alone."""
    (tmp_path / "t.csv").write_text(timestamps_csv({TIME_MS: LATER_MS, LATER_MS: None}), newline="")
    answer = run("--home", tmp_path / "home", "import", tmp_path / "t.csv", "--json")
    assert answer.json["nodes"] == {"added": [], "changed": [], "removed": []}
    assert [row["time"] for row in answer.json["generations"]] == [iso_time(LATER_MS), iso_time(TIME_MS)]
    assert answer.json["generations"][1]["expired"] == iso_time(LATER_MS)
    assert answer.json["rows_written"] == 2
    assert answer.stderr.startswith("warning: 1 timestamps without their streams rows")


LOOKS = {
    "ring": ["ring", "--json"],
    "generations": ["generations", "--json"],
    "streams": ["streams", ID, "--json"],
    "explain": ["explain", "--token", "1", "--json"],
    "diff": ["diff", ID, OTHER_ID],
    "bootstrap": ["bootstrap", "-", "--json"],
    "tables": ["ring"],
}


@pytest.mark.parametrize("command", LOOKS)
def test_reading_starts_no_jvm(command: str, seeded_home: Path, tmp_path: Path) -> None:
    """Neither Spark nor Dagster is loaded, and without Java the answer is unchanged."""
    home = tmp_path / "home" if command == "bootstrap" else seeded_home
    code = f"""
import sys
from cdc_platform.cli.main import program
try:
    program.main(["--home", {str(home)!r}, "--clock", {BETWEEN!r}, *{LOOKS[command]!r}])
finally:
    heavy = {{"pyspark", "py4j", "dagster", "pandera", "matplotlib"}}
    print(*sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    node = {"host_id": "55555555-5555-4555-8555-555555555555", "address": "a", "datacenter": "d", "rack": "r"}
    node |= {"num_tokens": 4, "shard_count": 2, "ignore_msb": 12}
    environment = {
        name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PATH", "SPARK_REMOTE")
    }
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        input=json.dumps(node),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr.strip()) == (0, "")
    assert result.stdout


def test_colocation_is_reported_for_every_shard(cli: Cli) -> None:
    """The home's generation on its own ring colocates all keys, and the output has every node and shard."""
    ring = cli("ring", "--json").json
    colocation = cli("--clock", AFTER, "ring", "--colocation", "--json").json
    assert colocation["generation"]["time"] == iso_time(LATER_MS)
    assert (colocation["vnode_colocation"], colocation["shard_colocation"], colocation["excess_streams"]) == (
        1.0,
        1.0,
        0,
    )
    assert [node["host_id"] for node in colocation["nodes"]] == [node["host_id"] for node in ring]
    assert [len(node["shards"]) for node in colocation["nodes"]] == [node["shard_count"] for node in ring]
    assert sum(shard["share_of_ring"] for node in colocation["nodes"] for shard in node["shards"]) == pytest.approx(1)
    assert cli("ring", "--colocation", ID[:8]).exit_code == 2
    assert "same shard  100.000%" in cli("--clock", AFTER, "ring", "--colocation", ID).stdout

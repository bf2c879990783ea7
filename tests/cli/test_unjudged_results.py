"""A generation that cannot be checked counts as failed or unknown, in every command that rates it.

Each damage is tested in each stored form of a generation, with `check GENERATION`, `ring --colocation` and `explain`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from support.command_line import run
from support.nodes import node_fields
from support.oracles import oracle

from cdc_platform.clock import Milliseconds, datetime_from_ms, format_ms
from cdc_platform.delta import Lake
from cdc_platform.generations import RingLayout, generate_description
from cdc_platform.ring import Node, Ring
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2, GENERATION_TIMESTAMPS, GENERATIONS, STREAMS_DESCRIPTIONS_V2

GENERATION = UUID(int=0xB)
TIME_MS = Milliseconds(1_700_000_600_000)
NOW = "2023-11-14T22:30:00Z"
TOKENS = [[-(2**62), 2**59, 2**61], [0, 2**58, 2**60]]
SHARDS, MSB = 3, 12

Streams = list[list[bytes]]


def remove_last_stream(streams: Streams) -> None:
    """Remove the stream of a range's last shard."""
    streams[2].pop()


def remove_first_stream(streams: Streams) -> None:
    """Remove the stream of a range's first shard."""
    streams[2].pop(0)


def exchange_ranges(streams: Streams) -> None:
    """Exchange the streams of two ranges."""
    streams[2], streams[3] = streams[3], streams[2]


def exchange_streams(streams: Streams) -> None:
    """Exchange one stream of two ranges."""
    for shard in range(SHARDS):
        if int.from_bytes(streams[2][shard][:8], "big", signed=True) != ENDS[2]:
            streams[2][shard], streams[3][shard] = streams[3][shard], streams[2][shard]
            return


def reverse_shards(streams: Streams) -> None:
    """Reverse the streams of a range, so that they are not in shard order."""
    streams[0].reverse()


ENDS = sorted(token for tokens in TOKENS for token in tokens)
DAMAGES: list[Callable[[Streams], None]] = [remove_last_stream, remove_first_stream, exchange_ranges, exchange_streams]


def create_home(folder: Path, form: str, damage: Callable[[Streams], None] | None) -> Path:
    """Return a home with a ring and one generation in this form."""
    home = folder / "home"
    fields = [{"tokens": tokens, "shard_count": SHARDS, "ignore_msb": MSB} for tokens in TOKENS]
    ring = [node_fields(number, **changes) for number, changes in enumerate(fields, start=1)]
    (folder / "ring.json").write_text(json.dumps(ring))
    assert run("--home", home, "import", folder / "ring.json").exit_code == 0
    nodes = [
        Node(UUID(str(node["host_id"])), tuple(tokens), SHARDS, MSB) for node, tokens in zip(ring, TOKENS, strict=True)
    ]
    description = generate_description(RingLayout.of(Ring.of(nodes)), GENERATION)
    streams = [[stream.tobytes() for stream in description.entry(row).streams] for row in range(len(description))]
    if damage is not None:
        damage(streams)
    created_at, lake = datetime_from_ms(TIME_MS), Lake(home / "lake")
    common_columns: dict[str, Any] = {
        "range_end": pa.array(description.range_ends),
        "streams": pa.array(streams, pa.list_(pa.binary())),
    }
    count = len(description)
    if form == "described":
        description_columns: dict[str, Any] = {
            "id": [str(GENERATION)] * count,
            "num_ranges": np.full(count, count, np.int32),
        }
        description_columns["ignore_msb"] = description.ignore_msbs.astype(np.int8)
        lake.merge(GENERATION_DESCRIPTIONS_V2, pa.table(description_columns | common_columns), update=False)
        row = {
            "generation_id": str(GENERATION),
            "time": created_at,
            "num_ranges": count,
            "num_streams": 18,
            "created_at": created_at,
        }
        lake.merge(GENERATIONS, pa.Table.from_pylist([row]), update=False)
    lake.merge(STREAMS_DESCRIPTIONS_V2, pa.table({"time": [created_at] * count, **common_columns}), update=False)
    lake.merge(GENERATION_TIMESTAMPS, pa.Table.from_pylist([{"key": "timestamps", "time": created_at}]), update=False)
    return home


def find_token(row: int, shard: int) -> int | None:
    """Return a token of a range that this shard owns, or None."""
    start, end = ENDS[row - 1], ENDS[row]
    span = (end - start) % 2**64
    for part in range(1, 400):
        token = (start + span * part // 400 + part + 2**63) % 2**64 - 2**63
        if oracle.shard_of(token, SHARDS, MSB) == shard:
            return token
    return None


def explain(home: Path, token: int) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the answer of `explain`, after an assertion that the text output agrees."""
    words = ("--home", home, "--clock", NOW, "explain", f"--token={token}")
    answer, printed = run(*words, "--json"), run(*words)
    assert printed.exit_code == answer.exit_code
    if answer.exit_code == 1:
        assert answer.json["verdict"] in printed.stdout
    return answer.exit_code, answer.json


@pytest.mark.parametrize("form", ["described", "published"])
def test_a_sound_generation_passes(form: str, tmp_path: Path) -> None:
    """All streams are checked, all keys are colocated, and every shard of every range has its stream."""
    home = create_home(tmp_path, form, None)
    name = str(GENERATION) if form == "described" else format_ms(TIME_MS)
    lines = run("--home", home, "--clock", NOW, "check", name, "--json")
    results = {line["invariant"]: line for line in lines.rows}
    assert (results["shard_colocation"]["passed"], results["shard_colocation"]["unchecked"]) == (True, 0)
    for row in range(len(ENDS)):
        for shard in range(SHARDS):
            token = find_token(row, shard)
            if token is not None:
                code, explanation = explain(home, token)
                assert (code, explanation["verdict"], explanation["shard"]) == (0, "OK", shard)
    if form == "described":
        assert lines.exit_code == 0
        shares = run("--home", home, "--clock", NOW, "ring", "--colocation", "latest", "--json")
        assert (shares.exit_code, shares.json["shard_colocation"], shares.json["misplaced_streams"]) == (0, 1.0, None)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("form", ["described", "published"])
def test_a_damaged_generation_fails_everywhere(form: str, damage: Callable[[Streams], None], tmp_path: Path) -> None:
    """Check fails, colocation is below 100 % or refused, and no accepted write lacks a stream."""
    home = create_home(tmp_path, form, damage)
    name = str(GENERATION) if form == "described" else format_ms(TIME_MS)
    answer = run("--home", home, "--clock", NOW, "check", name, "--json")
    assert answer.exit_code == 1
    assert [line for line in answer.rows if not line["passed"]]
    shares = run("--home", home, "--clock", NOW, "ring", "--colocation", "latest", "--json")
    assert shares.exit_code != 0
    refused = 0
    for row in (2, 3):
        for shard in range(SHARDS):
            token = find_token(row, shard)
            if token is None:
                continue
            code, explanation = explain(home, token)
            assert (code == 0) == explanation["accepted"] == (explanation["verdict"] == "OK")
            if explanation["stream_id"] is None:
                assert explanation["verdict"] in ("STREAM_UNKNOWN", "NOT_RETRIEVED")
            elif explanation["accepted"]:
                stream = int.from_bytes(
                    bytes.fromhex(str(explanation["stream_id"]).removeprefix("0x"))[:8], "big", signed=True
                )
                assert ENDS[row - 1] < stream <= ENDS[row]
            refused += code
    assert refused > 0


def test_exchanged_shards_are_not_colocated(tmp_path: Path) -> None:
    """In descriptions the order is the shards', so each stream is on another shard than its keys."""
    home = create_home(tmp_path, "described", reverse_shards)
    assert run("--home", home, "--clock", NOW, "check", str(GENERATION)).exit_code == 1
    shares = run("--home", home, "--clock", NOW, "ring", "--colocation", "latest", "--json")
    assert (shares.exit_code, shares.json["vnode_colocation"]) == (1, 1.0)
    assert shares.json["shard_colocation"] < 1.0
    assert "not where their row and shard put them" in shares.json["misplaced_streams"]
    assert "[colocation-in-doubt]" in shares.stderr
    token = find_token(0, 0)
    assert token is not None
    code, explanation = explain(home, token)
    assert (code, explanation["verdict"], explanation["accepted"]) == (1, "STREAM_MISPLACED", False)
    assert "is on shard 2 and not on shard 0" in explanation["reason"]


def test_an_older_generation_with_other_shards_is_unknown(tmp_path: Path) -> None:
    """After resharding, the older streams are neither violations nor a pass."""
    home = create_home(tmp_path, "published", None)
    newer_time = datetime_from_ms(Milliseconds(TIME_MS + 1000))
    ring = [
        node_fields(number, tokens=TOKENS[number - 1], shard_count=SHARDS + number - 1, ignore_msb=MSB)
        for number in (1, 2)
    ]
    (tmp_path / "ring.json").write_text(json.dumps(ring))
    assert run("--home", home, "import", tmp_path / "ring.json").exit_code == 0
    nodes = [Node(UUID(str(e["host_id"])), tuple(TOKENS[n]), SHARDS + n, MSB) for n, e in enumerate(ring)]
    description = generate_description(RingLayout.of(Ring.of(nodes)), UUID(int=0xC))
    streams = [[stream.tobytes() for stream in description.entry(row).streams] for row in range(len(description))]
    lake = Lake(home / "lake")
    rows = {"time": [newer_time] * len(description), "range_end": pa.array(description.range_ends)}
    lake.merge(
        STREAMS_DESCRIPTIONS_V2, pa.table({**rows, "streams": pa.array(streams, pa.list_(pa.binary()))}), update=False
    )
    lake.merge(GENERATION_TIMESTAMPS, pa.Table.from_pylist([{"key": "timestamps", "time": newer_time}]), update=False)
    answer = run("--home", home, "--clock", NOW, "check", format_ms(TIME_MS), "--json")
    line = next(line for line in answer.rows if line["invariant"] == "shard_colocation")
    assert (line["violations"], line["unchecked"], line["passed"], answer.exit_code) == (0, 9, False, 1)
    assert "9 streams could not be judged" in line["sample"]


@pytest.mark.parametrize("asked", [["--pk", ""], ["--pk", "''"]])
def test_an_empty_partition_key_is_refused(asked: list[str], tmp_path: Path) -> None:
    """CQL has no empty partition key, so no write could have it."""
    home = create_home(tmp_path, "described", None)
    (tmp_path / "t.cql").write_text("CREATE TABLE ks.t (p text PRIMARY KEY) WITH cdc = {'enabled': true};")
    assert run("--home", home, "--clock", NOW, "cql", "run", tmp_path / "t.cql", "--apply").exit_code == 0
    answer = run("--home", home, "--clock", NOW, "explain", *asked, "--table", "ks.t")
    assert (answer.exit_code, "the partition key of ks.t is empty" in answer.stderr) == (2, True)


@pytest.mark.parametrize("version", [0, 2, 15])
def test_ids_of_other_versions_are_damage(version: int, tmp_path: Path) -> None:
    """Import reports such IDs, check fails, and repair names them."""

    def alter_version(streams: Streams) -> None:
        first = streams[2][0]
        streams[2][0] = first[:15] + bytes([first[15] & 0xF0 | version])

    home = create_home(tmp_path, "described", alter_version)
    assert run("--home", home, "--clock", NOW, "check", str(GENERATION)).exit_code == 1
    repair = run("--home", home, "--clock", NOW, "repair", "--dry-run", "--strict", "--json").json
    assert repair["needed"]
    assert "version" in str(repair["reasons"])
    lines = ["id,range_end,ignore_msb,num_ranges,streams"]
    for row in Lake(home / "lake").read(GENERATION_DESCRIPTIONS_V2).to_pylist():
        blobs = ", ".join(f"0x{stream.hex()}" for stream in row["streams"])
        lines.append(f'{row["id"]},{row["range_end"]},{row["ignore_msb"]},{row["num_ranges"]},"{{{blobs}}}"')
    (tmp_path / "v2.csv").write_text("\r\n".join(lines) + "\r\n", newline="")
    other = run("--home", tmp_path / "other", "import", tmp_path / "v2.csv")
    assert other.exit_code == 2
    assert ("of version 0" if version == 0 else "older than the version field") in other.stderr
    imported = run("--home", tmp_path / "other", "import", tmp_path / "v2.csv", "--allow-incomplete", "--json")
    assert len(imported.json["issues"]) == 1

"""Input for a key, a time and a generation, and the locations of rows and streams after a ring change."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.command_line import Answer, run
from support.homes.timelines import FIRST_MS, SECOND_MS, THIRD_MS, home_of, uuid_of
from support.worlds.switch_lake import parse_node

from cdc_platform.clock import ONE_MS, Milliseconds, format_ms
from cdc_platform.delta import Lake
from cdc_platform.metastore import write_nodes
from cdc_platform.ring import shard_of

NOW = format_ms(THIRD_MS)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three generations and `ks.t`; tests only read the home."""
    return home_of(tmp_path_factory.mktemp("names"), "three")


def run_at_third(home: Path, *words: str | Path) -> Answer:
    """Run a command on a home when the third generation has just started."""
    return run("--home", home, "--clock", NOW, *words)


def test_a_key_may_be_typed(three: Path) -> None:
    """`--pk` parses a key by the table's column types, and has the result of its bytes."""
    typed = run_at_third(three, "explain", "--pk", "7", "--table", "ks.t", "--json")
    assert typed.exit_code == 0
    assert typed.json == run_at_third(three, "explain", "--key", "00000007", "--table", "ks.t", "--json").json


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--pk", "7"), "--pk needs --table"),
        (("--pk", "7", "--key", "00", "--table", "ks.t"), "name either --key or --pk"),
        (("--pk", "seven", "--table", "ks.t"), "--pk 'seven' for p int"),
        (("--pk", "7", "--table", "ks.unknown"), "ks.unknown"),
    ],
)
def test_an_invalid_key_is_refused(three: Path, words: tuple[str, ...], said: str) -> None:
    """One line with exit code 2."""
    answer = run_at_third(three, "explain", *words)
    assert (answer.exit_code, said in answer.stderr) == (2, True), answer.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (format_ms(THIRD_MS), ""),
        (str(THIRD_MS * 1000), "is read as"),
        (str(THIRD_MS), "is read as"),
        (str(THIRD_MS // 1000), "is read as"),
        (f"{THIRD_MS // 1000}s", "is read as"),
        (f"{THIRD_MS}ms", "is read as"),
        (f"{THIRD_MS * 1000}us", "is read as"),
    ],
)
def test_a_time_may_be_a_number(three: Path, text: str, told: str) -> None:
    """A time may be in seconds, ms or µs; standard error and the answer have the interpretation."""
    answer = run_at_third(three, "explain", "--token", "5", "--at", text, "--json")
    assert answer.json["at"] == format_ms(THIRD_MS)
    assert told in answer.stderr
    assert bool(told) == bool(answer.stderr)


@pytest.mark.parametrize("text", [str(THIRD_MS), f"{THIRD_MS // 1000}s"])
def test_every_time_parameter_accepts_a_number(three: Path, tmp_path: Path, text: str) -> None:
    """The clock, bounds of reads and reports, and generation names accept a number."""
    assert run("--home", three, "--clock", text, "status", "--json").json["now"] == format_ms(THIRD_MS)
    home = tmp_path / "home"
    shutil.copytree(three, home)
    (tmp_path / "one.cql").write_text("INSERT INTO ks.t (p, k, v) VALUES (7, 1, 1);")
    assert run_at_third(home, "cql", "run", tmp_path / "one.cql", "--apply").exit_code == 0
    consumed = run_at_third(home, "consume", "ks.t", "--name", "a", "--until", text)
    page = run_at_third(home, "report", str(FIRST_MS), text, "--html", tmp_path / "page.html")
    streams_answer = run_at_third(home, "streams", text, "--json")
    verified = run_at_third(home, "verify-interval", str(FIRST_MS), text, "--consumer", "a", "--json")
    assert (consumed.exit_code, page.exit_code, streams_answer.exit_code) == (0, 0, 0), (consumed, page, streams_answer)
    assert verified.json["until"] == format_ms(THIRD_MS)
    assert all(
        f"{text} is read as {format_ms(THIRD_MS)}" in answer.stderr
        for answer in (consumed, page, streams_answer, verified)
    )


def test_a_number_between_two_milliseconds_names_no_generation(three: Path) -> None:
    """Generations have times without µs; the message has the interpretation of the number."""
    answer = run_at_third(three, "streams", str(THIRD_MS * 1000 + 1))
    assert (answer.exit_code, "finer than milliseconds" in answer.stderr) == (2, True), answer.stderr


def test_small_numbers_are_microseconds(three: Path) -> None:
    """A small number is in µs, like CQL's USING TIMESTAMP."""
    assert (
        run_at_third(three, "explain", "--token", "5", "--at", "1000", "--json").json["at"]
        == "1970-01-01T00:00:00.001Z"
    )


@pytest.mark.parametrize(
    ("name", "time_ms"),
    [
        ("latest", THIRD_MS),
        ("operating", SECOND_MS),
        (uuid_of(FIRST_MS)[:-1], FIRST_MS),
        (format_ms(SECOND_MS)[:16], SECOND_MS),
    ],
)
def test_generations_have_short_names(three: Path, name: str, time_ms: Milliseconds) -> None:
    """Two words, and any unambiguous prefix of a UUID or a time."""
    at = format_ms(SECOND_MS)
    answer = run("--home", three, "--clock", at, "diff", name, name, "--json")
    assert answer.exit_code == 0, answer.stderr
    assert answer.json["old"]["time"] == format_ms(time_ms)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("2023-11", "3 generations begin with '2023-11'"),
        ("abcd", "0 generations begin with 'abcd'"),
        ("new", "nor the"),
    ],
)
def test_an_unknown_or_ambiguous_name_is_refused(three: Path, name: str, said: str) -> None:
    """The message has the number of matching generations."""
    answer = run_at_third(three, "diff", name, "latest")
    assert (answer.exit_code, said in answer.stderr) == (2, True), answer.stderr


def test_both_policies_are_reported(three: Path) -> None:
    """The chosen policy, by default the home's, decides, and the answer has the other policy's verdict."""
    at = format_ms(THIRD_MS - ONE_MS)
    both = run_at_third(three, "explain", "--token", "5", "--at", at, "--json")
    assert (both.exit_code, both.json["policy"], both.json["verdict"]) == (1, "strict", "PAST")
    assert both.json["other_policies"]["recent-past"]["accepted"]
    assert run_at_third(three, "explain", "--token", "5", "--at", at, "--policy", "both", "--json").json == both.json
    other = run_at_third(three, "explain", "--token", "5", "--at", at, "--policy", "recent-past", "--json")
    assert (other.exit_code, other.json["accepted"]) == (0, True)
    assert other.json["other_policies"]["strict"]["verdict"] == "PAST"
    assert "by recent-past" in run_at_third(three, "explain", "--token", "5", "--at", at).stdout


def test_the_list_has_states_and_sizes(tmp_path: Path) -> None:
    """A generation that a node names, but that cannot be read, is listed without a size."""
    rows = run_at_third(home_of(tmp_path, "named_by_node"), "generations", "--json").rows
    assert [(row["state"], row["published"]) for row in rows] == [
        ("known but not retrievable", False),
        ("published", True),
    ]
    assert rows[0]["num_ranges"] is None
    assert rows[1]["num_streams"] == 2 * rows[1]["num_ranges"]


@pytest.mark.long("120 times a command")
def test_a_changed_shard_count_separates_rows_and_streams(tmp_path: Path) -> None:
    """The answer has the current locations of the stream's token and of the row's token."""
    home = home_of(tmp_path, "plain")
    lake, node = Lake(home / "lake"), parse_node(1)
    tokens = [-(2**62) + 17 * number * 2**52 for number in range(40)]

    def answers() -> list[dict[str, object]]:
        at = format_ms(FIRST_MS)
        return [
            run("--home", home, "--clock", at, "explain", "--token", str(answer_or_token), "--json").json
            for answer_or_token in tokens
        ]

    assert {answer_or_token["colocated"] for answer_or_token in answers()} == {None}
    write_nodes(lake, [node])
    assert {answer_or_token["colocated"] for answer_or_token in answers()} == {True}
    write_nodes(lake, [replace(node, shard_count=7)])
    after_resharding = answers()
    assert False in {answer_or_token["colocated"] for answer_or_token in after_resharding}
    for token, answer_or_token in zip(tokens, after_resharding, strict=True):
        row, stream = answer_or_token["row_location"], answer_or_token["stream_location"]
        assert row == {"owner": str(node.host_id), "shard": int(shard_of(token, 7, node.ignore_msb))}
        first = int.from_bytes(bytes.fromhex(str(answer_or_token["stream_id"])[2:])[:8], "big", signed=True)
        assert stream == {"owner": str(node.host_id), "shard": int(shard_of(first, 7, node.ignore_msb))}
        assert answer_or_token["colocated"] == (row == stream)
    first_separated = tokens[[answer_or_token["colocated"] for answer_or_token in after_resharding].index(False)]
    printed = run("--home", home, "--clock", format_ms(FIRST_MS), "explain", "--token", str(first_separated)).stdout
    assert "row is on" in printed
    assert "stream is on" in printed

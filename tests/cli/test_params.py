"""What people may type for a key, a time and a generation; and where rows and streams lie when the ring has changed."""

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
    """Three generations and `ks.t`, only looked at."""
    return home_of(tmp_path_factory.mktemp("names"), "three")


def on(home: Path, *words: str | Path) -> Answer:
    """A command on a home, when the third generation has just begun."""
    return run("--home", home, "--clock", NOW, *words)


def test_a_key_may_be_typed(three: Path) -> None:
    """It is that of the table's types, as bytes would give it."""
    typed = on(three, "explain", "--pk", "7", "--table", "ks.t", "--json")
    assert typed.exit_code == 0
    assert typed.json == on(three, "explain", "--key", "00000007", "--table", "ks.t", "--json").json


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--pk", "7"), "--pk needs --table"),
        (("--pk", "7", "--key", "00", "--table", "ks.t"), "name either --key or --pk"),
        (("--pk", "seven", "--table", "ks.t"), "--pk 'seven' for p int"),
        (("--pk", "7", "--table", "ks.unknown"), "ks.unknown"),
    ],
)
def test_a_key_that_cannot_be_typed_is_refused(three: Path, words: tuple[str, ...], said: str) -> None:
    """In one line, with exit code 2."""
    answer = on(three, "explain", *words)
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
    """Of seconds, ms or µs; how it was read is told on standard error, and in the answer."""
    answer = on(three, "explain", "--token", "5", "--at", text, "--json")
    assert answer.json["at"] == format_ms(THIRD_MS)
    assert told in answer.stderr
    assert bool(told) == bool(answer.stderr)


@pytest.mark.parametrize("text", [str(THIRD_MS), f"{THIRD_MS // 1000}s"])
def test_a_number_is_a_time_wherever_one_is_asked_for(three: Path, tmp_path: Path, text: str) -> None:
    """For the clock, for what bounds a reading or a report, and for a generation's name."""
    assert run("--home", three, "--clock", text, "status", "--json").json["now"] == format_ms(THIRD_MS)
    home = tmp_path / "home"
    shutil.copytree(three, home)
    (tmp_path / "one.cql").write_text("INSERT INTO ks.t (p, k, v) VALUES (7, 1, 1);")
    assert on(home, "cql", "run", tmp_path / "one.cql", "--apply").exit_code == 0
    read = on(home, "consume", "ks.t", "--name", "a", "--until", text)
    page = on(home, "report", str(FIRST_MS), text, "--html", tmp_path / "page.html")
    shown = on(home, "streams", text, "--json")
    whole = on(home, "verify-interval", str(FIRST_MS), text, "--consumer", "a", "--json")
    assert (read.exit_code, page.exit_code, shown.exit_code) == (0, 0, 0), (read, page, shown)
    assert whole.json["until"] == format_ms(THIRD_MS)
    assert all(f"{text} is read as {format_ms(THIRD_MS)}" in each.stderr for each in (read, page, shown, whole))


def test_a_number_between_two_milliseconds_names_no_generation(three: Path) -> None:
    """Their times have no µs: one line says how it was read."""
    answer = on(three, "streams", str(THIRD_MS * 1000 + 1))
    assert (answer.exit_code, "finer than milliseconds" in answer.stderr) == (2, True), answer.stderr


def test_small_numbers_are_microseconds(three: Path) -> None:
    """As CQL's USING TIMESTAMP has them."""
    assert on(three, "explain", "--token", "5", "--at", "1000", "--json").json["at"] == "1970-01-01T00:00:00.001Z"


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
    """Two words, and the begin of a UUID or of a time, as far as one generation alone has it."""
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
def test_a_name_of_none_or_several_is_refused(three: Path, name: str, said: str) -> None:
    """And those that it could be are named."""
    answer = on(three, "diff", name, "latest")
    assert (answer.exit_code, said in answer.stderr) == (2, True), answer.stderr


def test_both_policies_are_told(three: Path) -> None:
    """The home's decides; the other stands beside it, whichever is asked for."""
    at = format_ms(THIRD_MS - ONE_MS)
    both = on(three, "explain", "--token", "5", "--at", at, "--json")
    assert (both.exit_code, both.json["policy"], both.json["verdict"]) == (1, "strict", "PAST")
    assert both.json["other_policies"]["recent-past"]["accepted"]
    assert on(three, "explain", "--token", "5", "--at", at, "--policy", "both", "--json").json == both.json
    other = on(three, "explain", "--token", "5", "--at", at, "--policy", "recent-past", "--json")
    assert (other.exit_code, other.json["accepted"]) == (0, True)
    assert other.json["other_policies"]["strict"]["verdict"] == "PAST"
    assert "by recent-past" in on(three, "explain", "--token", "5", "--at", at).stdout


def test_the_list_tells_states_and_sizes(tmp_path: Path) -> None:
    """Of a generation that a node names and nobody can read, too, which has no size."""
    rows = on(home_of(tmp_path, "named_by_node"), "generations", "--json").rows
    assert [(row["state"], row["published"]) for row in rows] == [
        ("known but not retrievable", False),
        ("published", True),
    ]
    assert rows[0]["num_ranges"] is None
    assert rows[1]["num_streams"] == 2 * rows[1]["num_ranges"]


@pytest.mark.long("120 times a command")
def test_a_changed_shard_count_tears_rows_and_streams_apart(tmp_path: Path) -> None:
    """The stream lies where its token is on the ring as it stands, the row where its own is: both are named."""
    home = home_of(tmp_path, "plain")
    lake, node = Lake(home / "lake"), parse_node(1)
    tokens = [-(2**62) + 17 * number * 2**52 for number in range(40)]

    def answers() -> list[dict[str, object]]:
        at = format_ms(FIRST_MS)
        return [run("--home", home, "--clock", at, "explain", "--token", str(each), "--json").json for each in tokens]

    assert {each["colocated"] for each in answers()} == {None}
    write_nodes(lake, [node])
    assert {each["colocated"] for each in answers()} == {True}
    write_nodes(lake, [replace(node, shard_count=7)])
    torn = answers()
    assert False in {each["colocated"] for each in torn}
    for token, each in zip(tokens, torn, strict=True):
        row, stream = each["row_location"], each["stream_location"]
        assert row == {"owner": str(node.host_id), "shard": int(shard_of(token, 7, node.ignore_msb))}
        first = int.from_bytes(bytes.fromhex(str(each["stream_id"])[2:])[:8], "big", signed=True)
        assert stream == {"owner": str(node.host_id), "shard": int(shard_of(first, 7, node.ignore_msb))}
        assert each["colocated"] == (row == stream)
    first_torn = tokens[[each["colocated"] for each in torn].index(False)]
    shown = run("--home", home, "--clock", format_ms(FIRST_MS), "explain", "--token", str(first_torn)).stdout
    assert "row is on" in shown
    assert "stream is on" in shown

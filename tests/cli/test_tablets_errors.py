"""Invalid input about tablets is checked completely first; each error gets one line and exit code 2, and no change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import run
from support.files.bad_input import Case, argument, assert_refused

LAST = 2**63 - 1
CLOCK = ("--clock", "2026-01-01T00:00:00Z")


@pytest.fixture(scope="module")
def tablet_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with four tables: four tablets, disabled CDC, vnodes, and narrow tablets."""
    folder = tmp_path_factory.mktemp("tablets")
    home = folder / "home"
    (folder / "narrow.json").write_text(json.dumps([str(-LAST), str(LAST)]), encoding="utf-8")
    for command in (
        ("tablets", "create", "ks.t", "--count", "4", "--ttl", "60"),
        ("tablets", "create", "ks.narrow", "--last-tokens", folder / "narrow.json"),
        ("tables", "add", "ks.off", "--ttl", "60"),
        ("tables", "alter", "ks.off", "--disabled"),
        ("tables", "add", "ks.vnodes", "--ttl", "60"),
    ):
        answer = run("--home", home, *CLOCK, *command)
        assert answer.exit_code == 0, answer.stderr
    return home


def invalid_command(name: str, says: str, *args: str) -> Case:
    """Return a case of a tablet command with invalid arguments."""
    return argument(name, says, "tablets", *args)


def ends_file(name: str, says: str, text: str | bytes, command: str = "create", table: str = "ks.new") -> Case:
    """Return a case of a file of tablets' last tokens with this text."""
    args = ("tablets", command, table, "--last-tokens", "{dir}/ends.json")
    return Case(f"ends: {name}", args, says, {"ends.json": text})


HEADER = "keyspace_name,table_name,timestamp,stream_state,stream_id"
AT = "ks,imported,2026-01-01 00:00:00.000+0000"
OPEN, LAST_STREAM = "0xffffffffffffffff0000000004000001", "0x7fffffffffffffff0000000004000001"
TIMES = f"keyspace_name,table_name,timestamp\r\n{AT}\r\n"
WHOLE = [f"{AT},{state},{stream}" for state in (0, 2) for stream in (OPEN, LAST_STREAM)]


def export_case(name: str, says: str, *rows: str, times: str = TIMES, header: str = HEADER) -> Case:
    """Return a case of exports of both tables with these rows of streams."""
    files = {"streams.csv": "".join(f"{row}\r\n" for row in (header, *rows)), "times.csv": times}
    return Case(f"export: {name}", ("import", "{dir}/streams.csv", "{dir}/times.csv"), says, files)


def change_rows(old: str, new: str) -> list[str]:
    """Return the rows of a whole set with one text replaced."""
    return [row.replace(old, new) for row in WHOLE]


EXPORTS = [
    export_case("a state that is none", "stream_state: invalid value '3'; it is 0 (current)", *WHOLE, f"{AT},3,{OPEN}"),
    export_case("no state", "stream_state: invalid value ''; it is 0 (current)", f"{AT},,{OPEN}"),
    export_case("no blob", "stream_id: 'x' is no blob", f"{AT},0,x"),
    export_case("a blob that is cut", "is 15 bytes; a stream ID has 16", f"{AT},0,{OPEN[:-2]}"),
    export_case("a blob that is too long", "is 17 bytes; a stream ID has 16", f"{AT},0,{OPEN}00"),
    export_case(
        "another version", "has version 2 and index 0; a tablet's has 1 and 0", *change_rows("04000001", "04000002")
    ),
    export_case(
        "another index", "has version 1 and index 1; a tablet's has 1 and 0", *change_rows("04000001", "04000011")
    ),
    export_case("no time", "timestamp: not a time: 'noon'", f"ks,imported,noon,0,{OPEN}"),
    export_case("a time that is too fine", "finer than a millisecond", f"{AT.replace('.000', '.000001')},0,{OPEN}"),
    export_case("no keyspace", "line 2: '' names no keyspace or table", f",imported,2026-01-01 00:00:00+0000,0,{OPEN}"),
    export_case("a log table", "is a CDC log", *change_rows("imported", "imported_scylla_cdc_log")),
    export_case("a row twice", "04000001, first in line 2", *WHOLE, WHOLE[0]),
    export_case("a short row", "half-written export", *WHOLE[:3], f"{AT},2"),
    export_case("a cut row", "is 4 bytes", *WHOLE[:3], f"{AT},2,0x7fffffff"),
    export_case(
        "no column of states",
        "column stream_state of cdc_streams or id of tables is missing",
        header=HEADER.replace(",stream_state", ""),
    ),
    export_case("no current streams", "no current streams (state 0): half-written export", *WHOLE[2:]),
    export_case("no last stream", "the ring ends at 9223372036854775807: half-written export", WHOLE[0], WHOLE[2]),
    export_case("two streams of a tablet", "two current streams have token -1", *WHOLE, f"{AT},0,{OPEN[:-7]}8000001"),
    export_case("a row is missing", "which are not its 2 current ones: half-written export", *WHOLE[:3]),
    export_case("a closed stream of nobody", "is closed but was not open before", *WHOLE, f"{AT},1,{OPEN}"),
    export_case(
        "streams without their time", "without their row in cdc_timestamps", *WHOLE, times=TIMES.replace("-01 ", "-02 ")
    ),
    export_case(
        "a time twice", "timestamp 2026-01-01T00:00:00.000Z, first in line 2", *WHOLE, times=f"{TIMES}{AT}\r\n"
    ),
    export_case(
        "other sets than the lake's",
        "begins at 2026-01-01T00:00:00.000Z, after the lake's newest stream set",
        *change_rows("imported", "t"),
        times=TIMES.replace("imported", "t"),
    ),
    Case(
        "export: the inner table of the base",
        ("import", "{dir}/state.csv"),
        "line 2: table_id: 'x' is no UUID",
        {"state.csv": "table_id,last_token,stream_id,timestamp\nx,1,0x,y\n"},
    ),
    Case(
        "export: the inner table of changes",
        ("import", "{dir}/history.csv"),
        "line 2: table_id: 'x' is no UUID",
        {"history.csv": "table_id,timestamp,stream_state,last_token,stream_id\nx,y,1,1,0x\n"},
    ),
]

CASES = [
    invalid_command("no table", "Missing argument 'TABLE'", "create", "--count", "2"),
    invalid_command("a table without keyspace", "'t' is no table", "create", "t", "--count", "2"),
    invalid_command("a log table", "is a CDC log", "create", "ks.t_scylla_cdc_log", "--count", "2"),
    invalid_command("neither count nor ends", "name --count or --last-tokens", "create", "ks.new"),
    invalid_command(
        "both count and ends",
        "either --count or --last-tokens",
        "create",
        "ks.new",
        "--count",
        "2",
        "--last-tokens",
        "f",
    ),
    invalid_command("a count of 0", "0 is not in the range", "create", "ks.new", "--count", "0"),
    invalid_command("a count too large", "1048577 is not in the range", "create", "ks.new", "--count", "1048577"),
    invalid_command("a count that is no number", "'two' is not a valid integer", "create", "ks.new", "--count", "two"),
    invalid_command("a negative TTL", "-1 is not in the range", "create", "ks.new", "--count", "2", "--ttl", "-1"),
    invalid_command("another TTL", "known already, with TTL 60 s", "create", "ks.t", "--count", "4", "--ttl", "61"),
    invalid_command("other tablets", "ks.t has 4 tablets already", "create", "ks.t", "--count", "8"),
    invalid_command("a table whose CDC is off", "CDC is off for ks.off", "create", "ks.off", "--count", "2"),
    invalid_command("a split of no tablets", "ks.vnodes has no tablets", "split", "ks.vnodes", "--count", "2"),
    invalid_command("a split of an unknown table", "ks.none has no tablets", "split", "ks.none", "--count", "2"),
    invalid_command("a split without a count", "Missing option '--count'", "split", "ks.t"),
    invalid_command("a split to fewer", "4 tablets cannot be split to 2", "split", "ks.t", "--count", "2"),
    invalid_command(
        "a split to an odd count", "has to be a power of two, or 4 times one", "split", "ks.t", "--count", "12345"
    ),
    invalid_command("a split of a single token", "holds a single token", "split", "ks.narrow", "--count", "4"),
    invalid_command("a merge to more", "4 tablets cannot be merged to 8", "merge", "ks.t", "--count", "8"),
    invalid_command("a merge to an odd count", "or 4 divided by one", "merge", "ks.t", "--count", "3"),
    invalid_command("a merge of an unknown table", "ks.none has no tablets", "merge", "ks.none", "--count", "2"),
    invalid_command("a resize without ends", "Missing option '--last-tokens'", "resize", "ks.t"),
    invalid_command("a look at an unknown table", "ks.none has no stream sets", "show", "ks.none"),
    invalid_command("a look at a vnode-based table", "ks.vnodes has no stream sets", "show", "ks.vnodes"),
    invalid_command("a collection of an unknown table", "ks.none has no stream sets", "gc", "ks.none"),
    invalid_command("an unknown command", "No such command 'drop'", "drop", "ks.t"),
    argument(
        "an unknown table to explain", "no CDC-enabled table ks.none", "explain", "--token", "1", "--table", "ks.none"
    ),
    argument("a table that is none to explain", "'t' is no table", "explain", "--token", "1", "--table", "t"),
    argument(
        "a policy for tablets",
        "--policy is for vnode-based tables",
        *("explain", "--token", "1", "--table", "ks.t", "--policy", "strict"),
    ),
    invalid_command("a file that is not there", "no such file", "create", "ks.new", "--last-tokens", "{dir}/none.json"),
    ends_file("an empty file", "is empty", ""),
    ends_file("no JSON", "is not JSON", "[1, 2"),
    ends_file("an object", "is no JSON list", '{"ends": [1]}'),
    ends_file("no tokens", "0 tablets", "[]"),
    ends_file("a float", "entry 0 is 1.5, which is no integer", f"[1.5, {LAST}]"),
    ends_file("a boolean", "entry 0 is True, which is no integer", f"[true, {LAST}]"),
    ends_file("text", "entry 0 is 'x', which is no integer", f'["x", {LAST}]'),
    ends_file("a token too large", "token 9223372036854775808 is out of range", f"[{LAST + 1}]"),
    ends_file("the minimum token", "token -9223372036854775808 is out of range", f"[{-LAST - 1}, {LAST}]"),
    ends_file("a token twice", "token 5 after 5", f"[5, 5, {LAST}]"),
    ends_file("tokens that fall", "token -5 after 5", f"[5, -5, {LAST}]"),
    ends_file("a ring that is not covered", "the last tablet ends at 7", "[5, 7]"),
    ends_file("no UTF-8", "is not UTF-8", b"[\xff]"),
    ends_file("a resize to no tablets", "0 tablets", "[]", "resize", "ks.t"),
    ends_file("a resize of an unknown table", "ks.none has no tablets", f"[{LAST}]", "resize", "ks.none"),
    *EXPORTS,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_about_tablets_is_refused(case: Case, tablet_home: Path, tmp_path: Path) -> None:
    """One line with the error, exit code 2, and a home with unchanged bytes."""
    assert_refused(case, tablet_home, tmp_path)


def test_standard_input_that_is_no_text_is_refused(tablet_home: Path) -> None:
    """Standard input that is not text is refused like a file."""
    answer = run("--home", tablet_home, "tablets", "create", "ks.new", "--last-tokens", "-", stdin=b"[\xff]")
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert answer.stderr == "error: standard input is no text: byte 1 is not UTF-8; save it as UTF-8 [input]\n"


def test_commands_on_a_missing_home_create_none(tmp_path: Path) -> None:
    """A mistyped --home is reported and not created."""
    for command in (("show", "ks.t"), ("gc",), ("split", "ks.t", "--count", "4"), ("create", "ks.t")):
        answer = run("--home", tmp_path / "none", "tablets", *command)
        assert answer.exit_code == 2
        assert "does not exist" in answer.stderr
    assert list(tmp_path.iterdir()) == []

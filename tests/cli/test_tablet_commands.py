"""The output of the tablet commands, on a real home; no Spark."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.command_line import Answer, run
from support.files.export_files import tablet_streams_csv, tablet_timestamps_csv
from support.oracles import oracle, tablet_oracle
from support.oracles.tablet_oracle import SEED_FIRST_MS, SEED_FOUR, SEED_ROWS, SEED_SECOND_MS

from cdc_platform.clock import Clock, parse_time_us
from cdc_platform.delta import Lake
from cdc_platform.metastore import cdc_tables, consumers, tablets
from cdc_platform.tables import TABLET_STREAMS, TABLET_TIMESTAMPS

CREATED, SPLIT, LATER = "2025-09-09T14:41:41.977Z", "2025-09-09T14:43:42.820Z", "2025-09-11T00:00:00Z"
FIRST_SET, SECOND_SET = "2025-09-09T14:41:36.977Z", "2025-09-09T14:44:47.820Z"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Design document 002's example: a table of two tablets, split to four."""
    for clock, *command in (
        (CREATED, "tablets", "create", "ks.t", "--count", "2"),
        (SPLIT, "tablets", "split", "ks.t", "--count", "4"),
    ):
        answer = at(tmp_path / "home", clock, *command)
        assert answer.exit_code == 0, answer.stderr
    return tmp_path / "home"


def at(home: Path, clock: str, *args: str | Path, stdin: str | None = None) -> Answer:
    """Run the program on this home at this time."""
    return run("--home", home, "--clock", clock, *args, stdin=stdin)


def stream_tokens(streams: list[str]) -> list[str]:
    """Return the tokens of streams, in hexadecimal."""
    return [stream[2:18] for stream in streams]


def test_the_worked_example_is_shown(home: Path) -> None:
    """Newest first, streams in ring order, with the document's states, counts and tokens."""
    newest, oldest = at(home, SPLIT, "tablets", "show", "ks.t", "--json").rows
    assert list(newest) == ["timestamp", "current", "closed", "opened"]
    assert (newest["timestamp"], oldest["timestamp"]) == (SECOND_SET, FIRST_SET)
    four = ["bfffffffffffffff", "ffffffffffffffff", "3fffffffffffffff", "7fffffffffffffff"]
    two = ["ffffffffffffffff", "7fffffffffffffff"]
    assert (stream_tokens(newest["current"]), stream_tokens(newest["closed"]), stream_tokens(newest["opened"])) == (
        four,
        two,
        four,
    )
    assert (stream_tokens(oldest["current"]), oldest["closed"], stream_tokens(oldest["opened"])) == (two, [], two)
    assert newest["closed"] == oldest["current"]
    assert (newest["opened"], oldest["opened"]) == (newest["current"], oldest["current"])


def test_the_text_output_has_the_facts_of_json(home: Path) -> None:
    """The text has every set with its counts, the operating set, and the newest streams in ring order."""
    printed = at(home, SPLIT, "tablets", "show", "ks.t").stdout
    lines = [line.split() for line in printed.splitlines()]
    assert [SECOND_SET, "4", "2", "4", "no"] in lines
    assert [FIRST_SET, "2", "0", "2", "yes"] in lines
    newest = at(home, SPLIT, "tablets", "show", "ks.t", "--json").rows[0]
    assert [line[1] for line in lines if len(line) == 2 and line[1].startswith("0x")] == newest["current"]


def test_changes_print_their_result(home: Path) -> None:
    """A merge, its repetition, and tablets from standard input."""
    merged = at(home, LATER, "tablets", "merge", "ks.t", "--count", "1", "--json").facts
    assert merged == {"table": "ks.t", "timestamp": "2025-09-11T00:01:05.000Z", "tablets": 1, "changed": True}
    assert at(home, LATER, "tablets", "merge", "ks.t", "--count", "1", "--json").facts == merged | {"changed": False}
    ends = json.dumps([-5, str(oracle.LAST)])
    resized = at(home, LATER, "tablets", "resize", "ks.t", "--last-tokens", "-", "--json", stdin=ends).json
    assert (resized["timestamp"], resized["tablets"]) == ("2025-09-11T00:01:05.001Z", 2)
    assert "changed" in at(home, LATER, "tablets", "split", "ks.t", "--count", "4").stdout


def test_explain_names_set_tablet_and_stream(home: Path) -> None:
    """For many tokens on both sides of the switch, the answer equals the oracle's."""
    sets = at(home, SPLIT, "tablets", "show", "ks.t", "--json").rows
    for at_time, operating_set in (("2025-09-09T14:44:47.819999Z", sets[1]), (SECOND_SET, sets[0])):
        streams = [bytes.fromhex(stream[2:]) for stream in operating_set["current"]]
        for token in (oracle.FIRST, -1, 0, 2**62, oracle.LAST):
            answer = at(home, at_time, "explain", "--table", "ks.t", f"--token={token}", "--json")
            facts = answer.json
            expected = tablet_oracle.stream_of(streams, token)
            assert expected is not None
            assert (answer.exit_code, facts["accepted"], facts["timestamp"]) == (0, True, operating_set["timestamp"])
            assert facts["stream_id"] == f"0x{expected.hex()}"
            assert int(facts["range_end"]) == tablet_oracle.token_of(expected)
            assert facts["tablet"] == streams.index(expected)
            previous = streams[facts["tablet"] - 1] if facts["tablet"] else None
            assert (facts["range_start"] is None) == (previous is None)
            assert previous is None or int(facts["range_start"]) == tablet_oracle.token_of(previous)


def test_explain_has_the_reason_of_a_refusal(home: Path) -> None:
    """Writes from the future and before the first set are refused with exit code 1; an old write is not."""
    words = ("explain", "--table", "KS.T", "--key", "0x00000000", "--json")
    future = at(home, SPLIT, *words, "--at", "2025-09-09T14:43:47.820001Z")
    assert (future.exit_code, future.json["verdict"]) == (1, "FUTURE")
    assert future.json["stream_id"] is not None
    early = at(home, SPLIT, *words, "--at", "2025-09-09T14:41:36.976Z")
    assert (early.exit_code, early.json["verdict"], early.json["stream_id"]) == (1, "NO_STREAM", None)
    assert "could not find any CDC stream" in early.json["reason"]
    assert f"write from {FIRST_SET} on" in early.json["reason"]
    assert at(home, LATER, *words, "--at", FIRST_SET).exit_code == 0
    assert "stream  " in at(home, LATER, *words[:-1]).stdout


def test_explain_of_a_table_with_vnodes_uses_generations(home: Path) -> None:
    """A known table without tablets uses the cluster's generations; this home has none."""
    assert at(home, SPLIT, "tables", "add", "ks.v", "--ttl", "60").exit_code == 0
    with_table = at(home, SPLIT, "explain", "--table", "ks.v", "--token", "1", "--json")
    without = at(home, SPLIT, "explain", "--token", "1", "--json")
    assert with_table == without
    assert with_table.json["verdict"] == "NO_STREAM"


def test_gc_prints_the_removed_sets(home: Path) -> None:
    """The dry run removes nothing, the run removes what it printed, and a lowered TTL causes a warning."""
    lowered = at(home, "2025-09-09T15:00:00Z", "tables", "alter", "ks.t", "--ttl", "60")
    assert lowered.exit_code == 0
    clock = "2025-09-09T15:00:01Z"
    dry = at(home, clock, "tablets", "gc", "--dry-run", "--json")
    row = {"table": "ks.t", "ttl_seconds": 60, "base": SECOND_SET, "removed": [FIRST_SET], "at_risk": [FIRST_SET]}
    row |= {"held_back": []}
    assert dry.rows == [row]
    assert "warning: ks.t: rows of 1 stream sets can be in the log still" in dry.stderr
    assert len(at(home, clock, "tablets", "show", "ks.t", "--json").rows) == 2
    assert at(home, clock, "tablets", "gc", "ks.t", "--json").rows == [row]
    (remaining,) = at(home, clock, "tablets", "show", "ks.t", "--json").rows
    assert (remaining["timestamp"], remaining["closed"], remaining["opened"]) == (SECOND_SET, [], remaining["current"])
    second = at(home, clock, "tablets", "gc", "--json")
    assert second.rows == [row | {"removed": [], "at_risk": []}]
    assert "ks.t" in at(home, clock, "tablets", "gc").stdout


def test_gc_shows_the_effect_of_another_ttl(home: Path) -> None:
    """With an hour instead of a day, the first set would go, and rows of it may exist."""
    clock = "2025-09-09T17:00:00Z"
    (now,) = at(home, clock, "tablets", "gc", "--dry-run", "--json").rows
    (lower,) = at(home, clock, "tablets", "gc", "--dry-run", "--ttl", "3600", "--json").rows
    assert (now["removed"], now["ttl_seconds"]) == ([], 86_400)
    assert (lower["removed"], lower["at_risk"], lower["ttl_seconds"]) == ([FIRST_SET], [FIRST_SET], 3600)
    assert at(home, clock, "tablets", "gc", "--ttl", "3600").exit_code == 2
    assert at(home, clock, "tablets", "gc", "--json").rows[0]["removed"] == []


def test_gc_names_the_consumer_of_a_retained_set(home: Path) -> None:
    """One line, with the dry run and with the run, which removes nothing until the consumer is removed."""
    lake, clock = Lake(home / "lake"), Clock(parse_time_us(SPLIT))
    position = "2025-09-09T14:44:00.000Z"
    consumers.register_consumer(lake, clock, "audit", "ks", "t", position_us=parse_time_us(position))
    after_ttl = "2025-09-11T00:00:00Z"
    held_back = [{"consumer": "audit", "position": position, "sets": [FIRST_SET]}]
    row = {
        "table": "ks.t",
        "ttl_seconds": 86_400,
        "base": FIRST_SET,
        "removed": [],
        "at_risk": [],
        "held_back": held_back,
    }
    line = (
        f"warning: 1 stream set is held back by consumer audit of ks.t, which has read up to {position} [held-back]\n"
    )
    for command in (("gc", "--dry-run"), ("gc",), ("gc", "ks.t")):
        answer = at(home, after_ttl, "tablets", *command, "--json")
        assert (answer.exit_code, answer.rows, answer.stderr) == (0, [row], line)
    assert at(home, after_ttl, "tablets", "gc").stderr == line
    assert len(at(home, after_ttl, "tablets", "show", "ks.t", "--json").rows) == 2
    assert at(home, after_ttl, "consumers", "remove", "audit", "ks.t").exit_code == 0
    freed = at(home, after_ttl, "tablets", "gc", "--json")
    assert (freed.rows, freed.stderr) == ([row | {"base": SECOND_SET, "removed": [FIRST_SET], "held_back": []}], "")


def test_gc_skips_tables_with_an_unknown_ttl(home: Path) -> None:
    """A dropped log loses its sets; a table with an unknown TTL is named and retained."""
    lake = Lake(home / "lake")
    rows = lake.read(TABLET_TIMESTAMPS)
    lake.merge(TABLET_TIMESTAMPS, rows.set_column(1, "table_name", [["foreign"] * rows.num_rows]), update=False)
    streams = lake.read(TABLET_STREAMS)
    lake.merge(TABLET_STREAMS, streams.set_column(1, "table_name", [["foreign"] * streams.num_rows]), update=False)
    cdc_tables.drop_cdc_table(lake, Clock(parse_time_us(LATER)), "ks", "t")
    cdc_tables.add_cdc_table(lake, Clock(parse_time_us(LATER)), "ks", "t", ttl_seconds=1)
    answer = at(home, LATER, "tablets", "gc", "--json")
    assert (answer.exit_code, answer.rows) == (0, [])
    assert "ks.foreign is left alone: its TTL is not known" in answer.stderr
    assert tablets.read_tables_with_stream_sets(lake) == [("ks", "foreign")]


def test_a_dropped_table_can_be_recreated(home: Path) -> None:
    """`tables drop` removes the sets; `create` without a count gives the earlier tablets new streams."""
    old = at(home, LATER, "tablets", "show", "ks.t", "--json").rows[0]
    assert at(home, LATER, "tables", "drop", "ks.t").exit_code == 0
    assert at(home, LATER, "tablets", "show", "ks.t").exit_code == 2
    assert at(home, LATER, "tablets", "create", "ks.t", "--json").json["tablets"] == 4
    (new,) = at(home, LATER, "tablets", "show", "ks.t", "--json").rows
    assert stream_tokens(new["current"]) == stream_tokens(old["current"])
    assert not set(new["current"]) & set(old["current"])


def test_check_covers_tablets_without_generations(home: Path) -> None:
    """No JVM starts, and every invariant of tablets is checked and passes."""
    results = at(home, LATER, "check", "--json")
    assert results.exit_code == 0
    assert [line["invariant"] for line in results.rows] == [
        "tablet_stream_format",
        "tablet_stream_at_end",
        "tablet_ring_covered",
        "tablet_sets_add_up",
        "tablet_closed_in_previous",
        "tablet_timestamp_complete",
        "tablet_streams_timed",
        "tables_follow_changes",
        "stream_sets_follow_layouts",
        "files_whole",
        "rows_as_committed",
        "commits_known",
    ]
    assert all(line["passed"] and line["checked"] for line in results.rows)


def test_a_clusters_sets_are_imported(tmp_path: Path) -> None:
    """The sets of design document 002, as exported by cqlsh, are imported, reported, shown and continued."""
    (tmp_path / "streams.csv").write_text(tablet_streams_csv(SEED_ROWS), encoding="utf-8", newline="")
    (tmp_path / "times.csv").write_text(tablet_timestamps_csv([SEED_SECOND_MS, SEED_FIRST_MS]), encoding="utf-8")
    files = (tmp_path / "streams.csv", tmp_path / "times.csv")
    answer = at(tmp_path / "home", LATER, "import", *files, "--json")
    assert answer.exit_code == 0
    assert "warning: the TTL of ks.t is not in an export" in answer.stderr
    second = {"table": "ks.t", "timestamp": SECOND_SET, "num_streams": 4, "num_closed": 2, "num_opened": 4, "new": True}
    first = {"table": "ks.t", "timestamp": FIRST_SET, "num_streams": 2, "num_closed": 0, "num_opened": 2, "new": True}
    assert (answer.json["stream_sets"], answer.json["rows_written"]) == ([second, first], 18)
    repeated = at(tmp_path / "home", LATER, "import", *files)
    assert ["ks.t", SECOND_SET, "4", "2", "4", "no"] in [line.split() for line in repeated.stdout.splitlines()]
    newest = at(tmp_path / "home", LATER, "tablets", "show", "ks.t", "--json").rows[0]
    assert newest["current"] == [f"0x{stream}" for stream in SEED_FOUR]
    assert at(tmp_path / "home", LATER, "check", "--json").exit_code == 0
    assert at(tmp_path / "home", LATER, "tables", "add", "ks.t", "--ttl", "86400").exit_code == 0
    assert at(tmp_path / "home", LATER, "import", *files).stderr == ""
    assert at(tmp_path / "home", LATER, "tablets", "gc", "--json").rows[0]["removed"] == [FIRST_SET]


def test_the_documented_example_is_correct(tmp_path: Path) -> None:
    """Every command of the page, in order, prints the page's output; `...` stands for omitted lines."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "tablets.md").read_text(encoding="utf-8")
    text = re.sub("^    ", "", page, flags=re.MULTILINE)  # blocks within steps are indented
    blocks = re.findall(r"^```console\n\$ cdc-platform (.*)\n((?:(?!```).*\n)*)```", text, flags=re.MULTILINE)
    assert len(blocks) == 5
    for command, output in blocks:
        if "tablets gc" in command:
            lake, read_us = Lake(tmp_path / "home" / "lake"), parse_time_us("2025-09-09T14:44:00Z")
            consumers.register_consumer(lake, Clock(read_us), "audit", "ks", "t", position_us=read_us)
        answer = run("--home", tmp_path / "home", *command.split())
        printed = (answer.stderr + answer.stdout).split("\n")
        expected = output.rstrip().split("\n")
        end = expected.index("...") if "..." in expected else len(expected)
        expected = [line for line in expected[:end] if line]
        assert [line for line in printed if line.strip()][: len(expected)] == expected

"""`rewrite` from the export files of an old cluster to what `streams`, `explain` and `generations` then say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.command_line import Answer, run
from support.files.export_files import (
    LATER_MS,
    NODES,
    OTHER_ID,
    SNAPSHOT,
    TIME_MS,
    generation,
    iso_time,
    local_csv,
    v1_descriptions_csv,
    v1_streams_csv,
)
from support.oracles import oracle

from cdc_platform.clock import Milliseconds, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.timeline import StreamSources

HOUR_MS = Milliseconds(3_600_000)
OLD_MS = Milliseconds(TIME_MS - 48 * HOUR_MS)
HOST, OTHER_HOST = (str(node.host_id) for node in NODES)
ONE, OTHER = generation(), generation(OTHER_ID)
NOW = iso_time(Milliseconds(TIME_MS + 25 * HOUR_MS))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home into which an old cluster was imported: three V1 generations, one too old, one without its data."""
    made = {OLD_MS: ONE, TIME_MS: OTHER, LATER_MS: ONE}
    files = {
        "ring.json": json.dumps(SNAPSHOT),
        "streams.csv": v1_streams_csv(made),
        "descriptions.csv": v1_descriptions_csv({OLD_MS: ONE, TIME_MS: OTHER}),
        "local.csv": local_csv({"cdc_local": (TIME_MS, None)}),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    home = tmp_path / "home"
    for command in (
        ("import", *(tmp_path / name for name in files), "--node", HOST),
        ("tables", "add", "ks.t", "--ttl", "86400", "--created-at", iso_time(OLD_MS)),
    ):
        done = run("--home", home, "--clock", NOW, *command)
        assert done.exit_code == 0, done.stderr
    return home


def on(home: Path, *args: str) -> Answer:
    """The program at the stopped clock."""
    return run("--home", home, "--clock", NOW, *args)


def listed(answer: Answer) -> list[tuple[str, str]]:
    """Each time with its action."""
    return [(row["time"], row["action"]) for row in answer.json["decisions"]]


def test_a_dry_run_and_the_run_say_the_same(home: Path) -> None:
    """Oldest first, each with its reason; missing data is also told on standard error, and is no failure."""
    planned = on(home, "rewrite", "--dry-run", "--json")
    assert planned.exit_code == 0
    assert listed(planned) == [
        (iso_time(OLD_MS), "skip-too-old"),
        (iso_time(TIME_MS), "rewrite"),
        (iso_time(LATER_MS), "missing-data"),
    ]
    assert all(row["reason"] for row in planned.json["decisions"])
    done = on(home, "rewrite", "--json")
    assert (done.exit_code, done.json["decisions"]) == (0, planned.json["decisions"])
    assert "cdc_generation_descriptions has no row of this time" in done.stderr
    again = on(home, "rewrite", "--json")
    assert (again.exit_code, again.json["decisions"]) == (0, [])
    assert "every node is marked as rewritten already" in again.stderr
    assert listed(on(home, "rewrite", "--force", "--json"))[1] == (iso_time(TIME_MS), "skip-present")


def test_what_was_rewritten_is_read_like_any_generation(home: Path) -> None:
    """Before: known to nodes, not to readers. After: its streams in shard order, and writes explained."""
    before = on(home, "streams", iso_time(TIME_MS), "--json")
    assert before.exit_code == 2
    assert "is not published yet" in before.stderr
    at = iso_time(TIME_MS + HOUR_MS)
    early = run("--home", home, "--clock", at, "explain", "--token", "42", "--json")
    assert on(home, "rewrite").exit_code == 0
    rows: list[dict[str, Any]] = on(home, "streams", iso_time(TIME_MS), "--json").rows
    expected = [
        ["0x" + bytes(stream).hex() for stream in OTHER.entry(row).streams] for row in range(len(OTHER.range_ends))
    ]
    assert [row["streams"] for row in rows] == expected
    explained = run("--home", home, "--clock", at, "explain", "--token", "42", "--json")
    assert explained.exit_code == early.exit_code == 0, explained.stderr
    assert explained.json == early.json
    place = next(row for row, end in enumerate(OTHER.range_ends.tolist()) if end >= 42)
    assert explained.json["stream_id"] in expected[place]


def test_one_node_at_a_time(home: Path) -> None:
    """A rolling upgrade: --node marks that node alone; the table names who is marked."""
    first = on(home, "rewrite", "--node", OTHER_HOST)
    assert first.exit_code == 0
    assert f"marked as rewritten  {OTHER_HOST}" in first.stdout
    second = on(home, "rewrite", "--json")
    assert listed(second)[1] == (iso_time(TIME_MS), "skip-present")


def test_the_steps_are_told_with_verbose(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """-v tells every step with its reason."""
    caplog.set_level("INFO", logger="cdc_platform")
    assert run("--home", home, "--clock", NOW, "-v", "rewrite").exit_code == 0
    told = [record.message for record in caplog.records if record.message.startswith("step")]
    assert [line.split(":")[0] for line in told] == ["step 3", "step 4", "step 6", "step 6", "step 6", "step 7"]


def test_settings_reach_the_rule(home: Path) -> None:
    """`use_creation_time` leaves out what was superseded before the log was created."""
    (home / "settings.toml").write_text("use_creation_time = true\nclock_margin_ms = 10000\n", encoding="utf-8")
    far = iso_time(Milliseconds(TIME_MS + 1000 * HOUR_MS))
    answer = run("--home", home, "--clock", far, "rewrite", "--dry-run", "--json")
    assert [action for _, action in listed(answer)] == ["skip-too-old", "skip-too-old", "missing-data"]
    (home / "settings.toml").write_text("dont_rewrite_streams = true\n", encoding="utf-8")
    refused = on(home, "rewrite", "--json")
    assert (refused.exit_code, refused.json["decisions"]) == (0, [])
    assert "an administrator must handle the old table" in refused.stderr


def test_a_later_import_of_the_missing_data_is_taken_up(home: Path, tmp_path: Path) -> None:
    """The description turns up after every node was marked: --force rewrites it."""
    assert on(home, "rewrite").exit_code == 0
    late = tmp_path / "late.csv"
    late.write_text(v1_descriptions_csv({LATER_MS: ONE}), encoding="utf-8", newline="")
    assert run("--home", home, "import", late).exit_code == 0
    assert listed(on(home, "rewrite", "--force", "--json"))[2] == (iso_time(LATER_MS), "rewrite")
    assert len(on(home, "streams", iso_time(LATER_MS), "--json").rows) == len(ONE)


def test_the_documented_example_is_true(tmp_path: Path) -> None:
    """What the page about the rewrite tells a reader to type gives what it shows."""
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "rewrite.md").read_text(encoding="utf-8")
    typed = [line.removeprefix("$ cdc-platform ") for line in page.splitlines() if line.startswith("$ cdc-platform ")]
    answers = []
    for line in typed:
        words = [str(root / word) if word.startswith("docs/") else word for word in line.split()]
        answers.append(run("--home", tmp_path / "home", *words))
    assert [answer.exit_code for answer in answers] == [0] * 4
    for time, action in listed(answers[-1]):
        assert f"{time}   {action}" in page
    assert answers[0].stderr[:100] in page
    assert len(answers[-1].json["decisions"]) == 3


def test_v1_and_v2_are_compared_and_written_to_alike(home: Path) -> None:
    """`diff` of two V1 generations, and the streams of writes into one: by the description of its own format."""
    found = on(home, "diff", iso_time(OLD_MS), iso_time(TIME_MS), "--json")
    assert found.exit_code == 0, found.stderr
    assert (found.json["old"]["id"], found.json["old"]["num_streams"], found.json["streams_kept"]) == (None, 22, 0)
    streams_of = StreamSources(Lake(home / "lake")).generations.finder()
    keys = [bytes([number, 0, 0, 7]) for number in range(20)]
    times = [(OLD_MS, ONE), (TIME_MS, OTHER)]
    for time_ms, made in times:
        given = streams_of(pa.array(keys, pa.binary()), pa.array([us_from_ms(time_ms) + 5] * len(keys)))
        tokens = [oracle.token_of(key) for key in keys]
        expected = [bytes(stream) for stream in made.streams_of(tokens)]
        assert given.to_pylist() == expected

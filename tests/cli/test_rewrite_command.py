"""`rewrite`, from the exports of an old cluster to the following output of `streams`, `explain` and `generations`."""

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
    """A home with an imported old cluster: three V1 generations, one too old, one without its data."""
    generations_by_time = {OLD_MS: ONE, TIME_MS: OTHER, LATER_MS: ONE}
    files = {
        "ring.json": json.dumps(SNAPSHOT),
        "streams.csv": v1_streams_csv(generations_by_time),
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
        result = run("--home", home, "--clock", NOW, *command)
        assert result.exit_code == 0, result.stderr
    return home


def run_now(home: Path, *args: str) -> Answer:
    """Run the program at the stopped clock."""
    return run("--home", home, "--clock", NOW, *args)


def list_actions(answer: Answer) -> list[tuple[str, str]]:
    """Return each time with its action."""
    return [(row["time"], row["action"]) for row in answer.json["decisions"]]


def test_a_dry_run_has_the_decisions_of_the_run(home: Path) -> None:
    """Oldest first, each with its reason; missing data also causes a warning, and is no failure."""
    planned = run_now(home, "rewrite", "--dry-run", "--json")
    assert planned.exit_code == 0
    assert list_actions(planned) == [
        (iso_time(OLD_MS), "skip-too-old"),
        (iso_time(TIME_MS), "rewrite"),
        (iso_time(LATER_MS), "missing-data"),
    ]
    assert all(row["reason"] for row in planned.json["decisions"])
    result = run_now(home, "rewrite", "--json")
    assert (result.exit_code, result.json["decisions"]) == (0, planned.json["decisions"])
    assert "cdc_generation_descriptions has no row of this time" in result.stderr
    second = run_now(home, "rewrite", "--json")
    assert (second.exit_code, second.json["decisions"]) == (0, [])
    assert "every node is marked as rewritten already" in second.stderr
    assert list_actions(run_now(home, "rewrite", "--force", "--json"))[1] == (iso_time(TIME_MS), "skip-present")


def test_a_rewritten_generation_is_read_like_any_other(home: Path) -> None:
    """Before, nodes know the generation but readers do not; afterwards its streams are in shard order."""
    before = run_now(home, "streams", iso_time(TIME_MS), "--json")
    assert before.exit_code == 2
    assert "is not published yet" in before.stderr
    at = iso_time(TIME_MS + HOUR_MS)
    explained_before = run("--home", home, "--clock", at, "explain", "--token", "42", "--json")
    assert run_now(home, "rewrite").exit_code == 0
    rows: list[dict[str, Any]] = run_now(home, "streams", iso_time(TIME_MS), "--json").rows
    expected = [
        ["0x" + bytes(stream).hex() for stream in OTHER.entry(row).streams] for row in range(len(OTHER.range_ends))
    ]
    assert [row["streams"] for row in rows] == expected
    explained = run("--home", home, "--clock", at, "explain", "--token", "42", "--json")
    assert explained.exit_code == explained_before.exit_code == 0, explained.stderr
    assert explained.json == explained_before.json
    index = next(row for row, end in enumerate(OTHER.range_ends.tolist()) if end >= 42)
    assert explained.json["stream_id"] in expected[index]


def test_one_node_at_a_time(home: Path) -> None:
    """In a rolling upgrade, --node marks one node alone, and the output lists the marked nodes."""
    first = run_now(home, "rewrite", "--node", OTHER_HOST)
    assert first.exit_code == 0
    assert f"marked as rewritten  {OTHER_HOST}" in first.stdout
    second = run_now(home, "rewrite", "--json")
    assert list_actions(second)[1] == (iso_time(TIME_MS), "skip-present")


def test_verbose_prints_the_steps(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """-v prints every step with its reason."""
    caplog.set_level("INFO", logger="cdc_platform")
    assert run("--home", home, "--clock", NOW, "-v", "rewrite").exit_code == 0
    messages = [record.message for record in caplog.records if record.message.startswith("step")]
    assert [line.split(":")[0] for line in messages] == ["step 3", "step 4", "step 6", "step 6", "step 6", "step 7"]


def test_settings_reach_the_rule(home: Path) -> None:
    """`use_creation_time` excludes generations superseded before the creation of the log."""
    (home / "settings.toml").write_text("use_creation_time = true\nclock_margin_ms = 10000\n", encoding="utf-8")
    far = iso_time(Milliseconds(TIME_MS + 1000 * HOUR_MS))
    answer = run("--home", home, "--clock", far, "rewrite", "--dry-run", "--json")
    assert [action for _, action in list_actions(answer)] == ["skip-too-old", "skip-too-old", "missing-data"]
    (home / "settings.toml").write_text("dont_rewrite_streams = true\n", encoding="utf-8")
    refused = run_now(home, "rewrite", "--json")
    assert (refused.exit_code, refused.json["decisions"]) == (0, [])
    assert "an administrator must handle the old table" in refused.stderr


def test_a_later_import_of_missing_data_is_rewritten(home: Path, tmp_path: Path) -> None:
    """If the description is imported after every node was marked, --force rewrites it."""
    assert run_now(home, "rewrite").exit_code == 0
    late = tmp_path / "late.csv"
    late.write_text(v1_descriptions_csv({LATER_MS: ONE}), encoding="utf-8", newline="")
    assert run("--home", home, "import", late).exit_code == 0
    assert list_actions(run_now(home, "rewrite", "--force", "--json"))[2] == (iso_time(LATER_MS), "rewrite")
    assert len(run_now(home, "streams", iso_time(LATER_MS), "--json").rows) == len(ONE)


def test_the_documented_example_is_correct(tmp_path: Path) -> None:
    """The commands of the page about the rewrite give the output on the page."""
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "rewrite.md").read_text(encoding="utf-8")
    command_lines = [
        line.removeprefix("$ cdc-platform ") for line in page.splitlines() if line.startswith("$ cdc-platform ")
    ]
    answers = []
    for line in command_lines:
        words = [str(root / word) if word.startswith("docs/") else word for word in line.split()]
        answers.append(run("--home", tmp_path / "home", *words))
    assert [answer.exit_code for answer in answers] == [0] * 4
    for time, action in list_actions(answers[-1]):
        assert f"{time}   {action}" in page
    assert answers[0].stderr[:100] in page
    assert len(answers[-1].json["decisions"]) == 3


def test_v1_generations_can_be_compared_and_written_to(home: Path) -> None:
    """`diff` of two V1 generations and the streams of writes use the V1 description."""
    comparison = run_now(home, "diff", iso_time(OLD_MS), iso_time(TIME_MS), "--json")
    assert comparison.exit_code == 0, comparison.stderr
    assert (comparison.json["old"]["id"], comparison.json["old"]["num_streams"], comparison.json["streams_kept"]) == (
        None,
        22,
        0,
    )
    find_streams = StreamSources(Lake(home / "lake")).generations.finder()
    keys = [bytes([number, 0, 0, 7]) for number in range(20)]
    times = [(OLD_MS, ONE), (TIME_MS, OTHER)]
    for time_ms, description in times:
        streams = find_streams(pa.array(keys, pa.binary()), pa.array([us_from_ms(time_ms) + 5] * len(keys)))
        tokens = [oracle.token_of(key) for key in keys]
        expected = [bytes(stream) for stream in description.streams_of(tokens)]
        assert streams.to_pylist() == expected

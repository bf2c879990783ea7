"""`make simulate` records each history that fails, with what is needed to run it again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import simulate_forever
from support.worlds.simulated import KINDS

from cdc_platform.simulation import judge_plan
from cdc_platform.simulation.judge import Property, Violation


def test_rounds_of_every_kind(tmp_path: Path) -> None:
    """No history fails, so nothing is recorded."""
    assert simulate_forever.main(1, tmp_path / "found.jsonl") == 0
    assert list(tmp_path.iterdir()) == []


def test_failure_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failure is one line with kind, seed, property and text."""
    judged = judge_plan(simulate_forever.plan_of(KINDS[0], 1))
    failing = Violation(Property.READ_ONCE, judged.plan.duration_us, None, "row 1 is never read")
    object.__setattr__(judged.verdict, "violations", (failing,))
    monkeypatch.setattr(simulate_forever, "judge_plan", lambda plan: judged)
    file = tmp_path / "cache" / "found.jsonl"
    assert simulate_forever.main(2, file) == 2 * len(KINDS)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [tuple(line["kind"]) for line in lines] == KINDS * 2
    assert len({line["seed"] for line in lines}) == 2
    assert {line["property"] for line in lines} == {"read-once"}

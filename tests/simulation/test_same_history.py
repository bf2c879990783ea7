"""One plan gives the same history, byte for byte, in any process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.worlds.simulated import KINDS, Kind, plan_of

from cdc_platform.simulation import judge_plan

ROOT = Path(__file__).parents[2]
DIGESTS = """
from support.worlds.simulated import KINDS, plan_of
from cdc_platform.simulation import judge_plan
for kind in KINDS:
    print(judge_plan(plan_of(kind, 7)).history.digest())
"""


@pytest.mark.processes
def test_hash_seed_does_not_affect_histories() -> None:
    """Digests of every kind's histories are equal although sets and dicts of text iterate in another order."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0].split())) > len(KINDS) // 2


@pytest.mark.parametrize("kind", [KINDS[1], KINDS[-1]], ids="-".join)
def test_other_seed_gives_another_history(kind: Kind) -> None:
    """A second run of one seed is equal, whatever ran before it."""
    first, other, repeated = (judge_plan(plan_of(kind, seed)) for seed in (3, 4, 3))
    assert first.history.digest() == repeated.history.digest() != other.history.digest()
    assert first.verdict == repeated.verdict

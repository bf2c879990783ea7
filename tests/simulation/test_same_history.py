"""The same plan gives the same history, byte for byte, in any process."""

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
def test_two_processes_with_other_hash_seeds() -> None:
    """Digests of whole histories of every kind, where sets and dicts of text iterate in another order."""
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
def test_another_seed_is_another_history(kind: Kind) -> None:
    """And a second run of one seed is no other, whatever ran before it."""
    one, other, again = (judge_plan(plan_of(kind, seed)) for seed in (3, 4, 3))
    assert one.history.digest() == again.history.digest() != other.history.digest()
    assert one.verdict == again.verdict

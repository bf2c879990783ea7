"""`make simulate`: random histories of every kind until Ctrl-C; histories that violate a property go into a file."""

from __future__ import annotations

import json
import secrets
import sys
from itertools import count
from pathlib import Path

from support.worlds.simulated import KINDS, plan_of

from cdc_platform.simulation import judge_plan

FOUND = Path(".cache") / "simulation-failures.jsonl"


def main(rounds: int | None = None, failures_file: Path = FOUND) -> int:
    """Run one history of each kind per round, with new seeds in each round; return how many failed."""
    first, failed = secrets.randbelow(10**9), 0
    for number in count() if rounds is None else range(rounds):
        for kind in KINDS:
            seed = first + number
            violations = judge_plan(plan_of(kind, seed)).verdict.violations
            if violations:
                failed += 1
                failures_file.parent.mkdir(parents=True, exist_ok=True)
                line = {"kind": kind, "seed": seed, "property": violations[0].property, "text": violations[0].text}
                with failures_file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
        if sys.stderr.isatty():
            print(f"\r{(number + 1) * len(KINDS):,} histories, {failed} failed", end="", file=sys.stderr)
    return failed


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print(f"\nwhat failed is in {FOUND}" if FOUND.exists() else "\nnothing failed", file=sys.stderr)

"""`cdc-platform check`: every invariant over one generation or all of them, with counts and samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.commands.arguments import GENERATION
from cdc_platform.commands.output import json_option, warn, write_json, write_table
from cdc_platform.commands.session import Session, pass_session

if TYPE_CHECKING:
    from cdc_platform.clock import Clock
    from cdc_platform.invariants.findings import Family, Finding
    from cdc_platform.lake.lake import Lake
    from cdc_platform.settings import Settings


@click.command()
@click.argument("generation", type=GENERATION, required=False)
@json_option
@pass_session
@click.pass_context
def check(ctx: click.Context, session: Session, generation: str | Milliseconds | None, as_json: bool) -> None:
    """Judge every invariant of GENERATION (its UUID or its time), or of all generations and the tables around them.

    The exit code is 1 when one does not hold, or when there was nothing to check.

    \b
    Example:
      cdc-platform check
      cdc-platform check 2026-01-31T12:00:00.000Z --json
    """
    lake = session.lake()
    from cdc_platform.invariants import audit_lake, inventory, judge
    from cdc_platform.invariants.tablets import audit_tablets
    from cdc_platform.lake.session import workers
    from cdc_platform.timeline import Timeline

    name = None if generation is None else generation if isinstance(generation, str) else format_ms(generation)
    if name is not None and generation is not None:
        Timeline.read(lake).assert_not_removed(generation)
        inventory.find(inventory.generations(lake), name)  # before anything is read for it
    sets = audit_tablets(lake) if name is None else []
    # A cluster whose tables are all tablet-based has no generations.
    judgements = [] if sets and not inventory.generations(lake) else judge(audit_lake(workers(), lake, name))
    if name is None:
        for family, findings in _beside(lake, session.clock, session.open_home().settings, sets):
            judgements += judge(findings, family.due(findings))
        from cdc_platform.log.gaps import told

        for line in told(lake):
            warn(line)
    if as_json:
        write_json(
            [
                {
                    "invariant": line.invariant,
                    "population": line.population,
                    "violations": line.violations,
                    "sample": line.sample,
                    "passed": line.passed,
                }
                for line in judgements
            ]
        )
    else:
        columns = ("invariant", ">checked", ">violations", "passed", "sample")
        rows = [(line.invariant, line.population, line.violations, line.passed, line.sample) for line in judgements]
        write_table(f"Invariants of {'all generations' if name is None else name}", columns, rows)
    if not all(line.passed for line in judgements):
        ctx.exit(1)


def _beside(
    lake: Lake, clock: Clock, settings: Settings, sets: list[Finding]
) -> Iterator[tuple[Family, list[Finding]]]:
    """What the audits of the tables around the generations answer, family by family; `sets` those of tablets."""
    from cdc_platform.invariants import findings as families
    from cdc_platform.invariants.switches import audit_switches
    from cdc_platform.lake.session import workers
    from cdc_platform.lifecycle.expiry.audit import audit_expiry
    from cdc_platform.lifecycle.upgrade.audit import audit_live_generations
    from cdc_platform.log.audit.hours import audit_hours
    from cdc_platform.log.audit.logs import audit_logs
    from cdc_platform.log.audit.passed import audit_passed

    yield families.FIRST_FORMAT, audit_live_generations(lake, clock, settings)
    yield families.TABLETS, sets
    yield families.SWITCHES, audit_switches(lake)
    yield families.EXPIRY, audit_expiry(lake, clock, settings)
    yield families.LOGS, audit_logs(lake, workers())
    yield families.HOURS, audit_hours(lake)
    yield families.PASSED, audit_passed(lake)

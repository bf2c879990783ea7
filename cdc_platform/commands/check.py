"""`cdc-platform check`: every invariant over one generation or all of them, with counts and samples."""

from __future__ import annotations

import click

from cdc_platform.clock import format_ms
from cdc_platform.commands.arguments import GENERATION
from cdc_platform.commands.output import json_option, write_json, write_table
from cdc_platform.commands.session import Session, pass_session


@click.command()
@click.argument("generation", type=GENERATION, required=False)
@json_option
@pass_session
@click.pass_context
def check(ctx: click.Context, session: Session, generation: str | int | None, as_json: bool) -> None:
    """Judge every invariant of GENERATION (its UUID or its time), or of all generations and the tables around them.

    The exit code is 1 when one does not hold, or when there was nothing to check.

    \b
    Example:
      cdc-platform check
      cdc-platform check 2026-01-31T12:00:00.000Z --json
    """
    lake = session.lake()
    from cdc_platform.invariants import audit_lake, inventory, judge
    from cdc_platform.invariants.switches import audit_switches
    from cdc_platform.invariants.tablets import audit_tablets
    from cdc_platform.lake.session import spark_session
    from cdc_platform.lifecycle.expiry.audit import audit_expiry
    from cdc_platform.lifecycle.upgrade.audit import audit_live_generations
    from cdc_platform.log.audit.hours import audit_hours
    from cdc_platform.log.audit.logs import audit_logs
    from cdc_platform.records import reading

    name = None if generation is None else format_ms(generation) if isinstance(generation, int) else generation
    if name is not None and generation is not None:
        reading.assert_not_removed(lake, generation)
        inventory.find(inventory.generations(lake), name)  # before a JVM is started for it
    sets = audit_tablets(lake) if name is None else []
    # A cluster whose tables are all tablet-based has no generations.
    judgements = [] if sets and not inventory.generations(lake) else judge(audit_lake(spark_session(), lake, name))
    if name is None:
        settings = session.open_home().settings
        beside = [*audit_live_generations(lake, session.clock, settings), *sets, *audit_switches(lake)]
        beside += audit_expiry(lake, session.clock, settings)
        beside += audit_logs(lake, spark_session)
        beside += audit_hours(lake)
        judgements += judge(beside, [line.invariant for line in beside])
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

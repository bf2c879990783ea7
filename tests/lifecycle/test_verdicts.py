"""How a join step uses the verdict on the earlier step: passed, failed, missing, or on other rows. No Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from support.nodes import join_request
from support.worlds.switch_lake import NOON, NOON_MS, inserted

from cdc_platform.checks import Finding
from cdc_platform.checks.inventory import read_representative_inventory
from cdc_platform.clock import us_from_datetime, us_from_ms
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.errors import AuditFailed, PlatformError, StateError
from cdc_platform.lifecycle import V2_STEPS, JoinContext, JoinStep, find_step, run_step
from cdc_platform.lifecycle.join import steps as whole
from cdc_platform.lifecycle.join import verdicts
from cdc_platform.lifecycle.join.steps import JoinSteps
from cdc_platform.metastore import inbox
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    CDC_LOCAL,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
    VERDICTS,
    Table,
)

INSERTED, INTRODUCED = find_step(V2_STEPS, GENERATION_DESCRIPTIONS_V2), find_step(V2_STEPS, CDC_LOCAL)


def introduce(lake: Lake, generation_id: str, steps: JoinSteps = V2_STEPS, *, judging: bool = False) -> int:
    """Run the step after the insert; with `judging`, from an entry point that can run checks."""
    runner = TaskRunner(refuse_spark) if judging else None
    joining = JoinContext(lake, NOON, Settings(), generation_id, runner, "the door of a test")
    return run_step(joining, steps, find_step(steps, CDC_LOCAL))


def refuse_spark() -> NoReturn:
    """Fail, as a session that these tests must not use."""
    raise AssertionError("Spark was asked for")


def with_findings(findings: Callable[[JoinContext], list[Finding]]) -> JoinSteps:
    """Return the steps with other findings for the insert's audit."""
    assert INSERTED.audit is not None
    other = replace(INSERTED, audit=replace(INSERTED.audit, findings=findings))
    return tuple(other if step is INSERTED else step for step in V2_STEPS)


def make_findings(violations: int) -> Callable[[JoinContext], list[Finding]]:
    """Return an audit that found this many violations of every invariant."""
    assert INSERTED.audit is not None
    names = INSERTED.audit.invariants
    return lambda _: [Finding(name, 4, violations, "seeded" if violations else "") for name in names]


def test_a_passed_check_counts_whichever_entry_point_stored_it(lake: Lake) -> None:
    """If a stored verdict covers the current files, no check runs again."""
    generation_id = inserted(lake, 1)
    before = lake.version(VERDICTS)
    assert introduce(lake, generation_id) == NOON_MS + 65_000
    assert lake.version(VERDICTS) == before


def test_changed_rows_need_a_new_verdict(lake: Lake) -> None:
    """After a row was removed, an entry point without Spark refuses in one line and chooses no timestamp."""
    generation_id = inserted(lake, 1)
    rows = lake.read(GENERATION_DESCRIPTIONS_V2).to_pylist()
    end = rows[0]["range_end"]
    lake.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", end)])
    with pytest.raises(StateError, match="cdc_generation_descriptions_v2 changed after its last audit; run its checks"):
        introduce(lake, generation_id)
    assert lake.read(GENERATIONS).num_rows == 0


def test_a_verdict_stands_while_the_checked_files_are_unchanged(lake: Lake) -> None:
    """After a removed row or a failed verdict, the generation must be read as a whole."""
    generation_id = inserted(lake, 1)
    [entry] = read_representative_inventory(lake)
    assert (entry.id, verdicts.generations_in_order(lake, [entry])) == (generation_id, [entry])
    good = lake.read(VERDICTS, filters=[("step", "=", INSERTED.name)])
    bad = good.set_column(good.schema.get_field_index("passed"), good.schema.field("passed"), [[False]])
    lake.merge(VERDICTS, bad, update=True)
    assert verdicts.generations_in_order(lake, [entry]) == []
    lake.merge(VERDICTS, good, update=True)
    end = lake.read(GENERATION_DESCRIPTIONS_V2).to_pylist()[0]["range_end"]
    lake.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", end)])
    assert verdicts.generations_in_order(lake, read_representative_inventory(lake)) == []


def test_a_home_without_verdicts_is_checked_now(lake: Lake) -> None:
    """In an older home, the step checks its prerequisites, stores the verdict, and continues."""
    generation_id = inserted(lake, 1)
    lake.delete(VERDICTS, [("generation_id", "=", generation_id)])
    assert introduce(lake, generation_id, with_findings(make_findings(0)), judging=True) == NOON_MS + 65_000
    [stored] = lake.read(VERDICTS).to_pylist()
    assert (stored["step"], stored["passed"], stored["said"]) == ("cdc_generation_descriptions_v2", True, None)
    assert (stored["door"], us_from_datetime(stored["judged_at"])) == ("the door of a test", us_from_ms(NOON_MS))


def test_a_failed_check_stops_every_later_run(lake: Lake) -> None:
    """A verdict of one entry point stops another one, which does not check unchanged rows again."""
    generation_id = inserted(lake, 1)
    lake.delete(VERDICTS, [("generation_id", "=", generation_id)])
    for judging, steps in ((True, with_findings(make_findings(1))), (False, V2_STEPS)):
        with pytest.raises(StateError) as refused:
            introduce(lake, generation_id, steps, judging=judging)
        assert str(refused.value) == (
            f"generation {generation_id}: cdc_generation_descriptions_v2 failed its audit by the door of a test: "
            "ring_covered_once does not hold: 1 of 4 violate it: seeded; materialise "
            "cdc_generation_descriptions_v2 again, or run the whole join again"
        )
    assert lake.read(GENERATIONS).num_rows == 0


def test_a_verdict_on_fewer_invariants_does_not_count(lake: Lake) -> None:
    """Rows that an older version passed with fewer invariants are checked again."""
    generation_id = inserted(lake, 1)
    stored = verdicts.read_last_verdict(lake, generation_id, INSERTED.name)
    assert stored is not None
    verdicts.store_verdict(lake, NOON, replace(stored, invariants=stored.invariants[:-1]))
    with pytest.raises(StateError, match="changed after its last audit"):
        introduce(lake, generation_id)


def test_rows_that_change_during_a_check_get_no_verdict(lake: Lake) -> None:
    """After a concurrent write the findings match neither state, and no verdict is stored."""
    generation_id = inserted(lake, 1)
    lake.delete(VERDICTS, [("generation_id", "=", generation_id)])

    def find_with_concurrent_write(joining: JoinContext) -> list[Finding]:
        end = lake.read(GENERATION_DESCRIPTIONS_V2, ["range_end"])["range_end"][0].as_py()
        lake.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", end)])
        return make_findings(1)(joining)

    with pytest.raises(StateError, match="failed its audit by"):
        introduce(lake, generation_id, with_findings(find_with_concurrent_write), judging=True)
    assert lake.read(VERDICTS).num_rows == 0


def test_missing_rows_are_not_checked(lake: Lake) -> None:
    """Without rows of the earlier step, the message names the step to run first."""
    generation_id = inserted(lake, 1)
    lake.delete(GENERATION_DESCRIPTIONS_V2, [("id", "=", generation_id)])
    with pytest.raises(StateError, match="has no rows in cdc_generation_descriptions_v2; materialise"):
        introduce(lake, generation_id, judging=True)


def test_a_content_name_identifies_the_files(lake: Lake) -> None:
    """Unchanged files have one name, whatever other files exist; no files have an empty name."""
    generation_id = inserted(lake, 1)
    partitions = [(GENERATION_DESCRIPTIONS_V2, [("id", "=", generation_id)])]
    name = verdicts.content_name(lake, partitions)
    assert len(name) == 32
    inserted(lake, 2)
    assert verdicts.content_name(lake, partitions) == name
    assert verdicts.content_name(lake, [(GENERATION_DESCRIPTIONS_V2, [("id", "=", "another")])]) == ""


def queue(lake: Lake) -> str:
    """Queue a node and return its generation."""
    return inbox.queue_join(lake, NOON, join_request(1)).generation_id


def run(lake: Lake, generation_id: str) -> whole.JoinResult:
    """Run a whole join through the command's function, in this process."""
    return whole.run_join(TaskRunner.alone(), lake, NOON, Settings(), generation_id)


def before_step(monkeypatch: pytest.MonkeyPatch, before: Table, work: Callable[[], object]) -> None:
    """Let another process do something directly before a run takes the step of a table."""
    run_step = whole.run_step

    def run_watched_step(joining: JoinContext, steps: JoinSteps, step: JoinStep) -> Any:
        if step.table is before:
            work()
        return run_step(joining, steps, step)

    monkeypatch.setattr(whole, "run_step", run_watched_step)


def read_stored_steps(lake: Lake) -> list[str]:
    """Return the steps with a verdict that another process finds, in order."""
    stored = Lake(lake.root).read(VERDICTS, ["step"])["step"].to_pylist()
    return [step.name for step in V2_STEPS if step.name in stored]


def test_a_run_stores_its_verdicts_before_publication_and_at_its_end(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commits store all verdicts, so another entry point that continues finds what it relies on."""
    generation_id, stored_steps = queue(lake), list[list[str]]()
    before_step(monkeypatch, CDC_LOCAL, lambda: stored_steps.append(read_stored_steps(lake)))
    before_step(monkeypatch, GENERATION_TIMESTAMPS, lambda: stored_steps.append(read_stored_steps(lake)))
    run(lake, generation_id)
    first = [TOPOLOGY_DESCRIPTIONS.name, GENERATION_DESCRIPTIONS_V2.name]
    assert stored_steps == [first, first]
    assert read_stored_steps(lake) == [*first, STREAMS_DESCRIPTIONS_V2.name, GENERATION_TIMESTAMPS.name]
    assert lake.version(VERDICTS) == 2
    final_verdict = verdicts.read_last_verdict(lake, generation_id, GENERATION_TIMESTAMPS.name)
    assert final_verdict is not None
    assert (final_verdict.passed, final_verdict.entry_point) == (True, "a program")


@pytest.mark.parametrize(
    ("table", "before"), [(TOPOLOGY_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2), (GENERATION_DESCRIPTIONS_V2, CDC_LOCAL)]
)
def test_rows_that_another_process_removes_between_two_steps_are_reported_missing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, table: Table, before: Table
) -> None:
    """A verdict covers only the rows that were checked; other rows are checked and refused."""
    generation_id = queue(lake)

    def remove_row() -> None:
        other = Lake(lake.root)
        end = other.read(table, ["range_end"])["range_end"][0].as_py()
        assert other.delete(table, [("range_end", "=", end)]) == 1

    before_step(monkeypatch, before, remove_row)
    with pytest.raises(StateError, match=f"{table.name} failed its audit by a program"):
        run(lake, generation_id)
    assert Lake(lake.root).read(GENERATIONS).num_rows == 0
    verdict = verdicts.read_last_verdict(Lake(lake.root), generation_id, table.name)
    assert verdict is not None
    assert not verdict.passed


def test_a_failing_run_stores_the_verdicts_it_has(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The passed verdict on the first step and the failed one are stored; nothing later is written."""
    generation_id, steps = queue(lake), with_findings(make_findings(1))
    monkeypatch.setattr(whole, "select_steps", lambda *_: steps)
    with pytest.raises(AuditFailed, match="ring_covered_once does not hold"):
        run(lake, generation_id)
    stored = Lake(lake.root).read(VERDICTS, ["step", "passed"]).sort_by([("step", "descending")]).to_pylist()
    assert [(row["step"], row["passed"]) for row in stored] == [
        (TOPOLOGY_DESCRIPTIONS.name, True),
        (GENERATION_DESCRIPTIONS_V2.name, False),
    ]
    assert Lake(lake.root).read(NODES).num_rows == 0


def test_the_first_failure_is_the_one_reported(lake: Lake) -> None:
    """Verdicts that cannot be stored hide no failure of the join; after a successful join they raise an error."""
    verdict = verdicts.StepVerdict(queue(lake), "a step", "content", ("an invariant",), True, "", "a test")
    lake.ensure(VERDICTS)
    shutil.rmtree(lake.path(VERDICTS))
    Path(lake.path(VERDICTS)).write_bytes(b"in the way")

    def judging(*, fails: bool) -> None:
        with verdicts.collect_verdicts(lake, NOON) as collector:
            collector.add(verdict)
            if fails:
                raise AuditFailed("first")

    with pytest.raises(AuditFailed, match="first"):
        judging(fails=True)
    with pytest.raises(PlatformError, match="verdicts"):
        judging(fails=False)

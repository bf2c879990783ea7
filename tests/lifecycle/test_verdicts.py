"""What a step makes of the verdict on the step before it: good, bad, missing, or of other rows. No Spark."""

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
    """Take the step behind the insert; `judging`: by a door that can judge."""
    hands = TaskRunner(never) if judging else None
    joining = JoinContext(lake, NOON, Settings(), generation_id, hands, "the door of a test")
    return run_step(joining, steps, find_step(steps, CDC_LOCAL))


def never() -> NoReturn:
    """A session that these tests have no use for."""
    raise AssertionError("Spark was asked for")


def answering(findings: Callable[[JoinContext], list[Finding]]) -> JoinSteps:
    """The steps, with other answers to what is asked of the insert."""
    assert INSERTED.audit is not None
    other = replace(INSERTED, audit=replace(INSERTED.audit, findings=findings))
    return tuple(other if step is INSERTED else step for step in V2_STEPS)


def answers(violations: int) -> Callable[[JoinContext], list[Finding]]:
    """An audit that has found so many violations of everything."""
    assert INSERTED.audit is not None
    names = INSERTED.audit.invariants
    return lambda _: [Finding(name, 4, violations, "seeded" if violations else "") for name in names]


def test_a_passed_check_counts_whichever_entry_point_stored_it(lake: Lake) -> None:
    """What was judged is there as it was: nothing is judged again."""
    generation_id = inserted(lake, 1)
    before = lake.version(VERDICTS)
    assert introduce(lake, generation_id) == NOON_MS + 65_000
    assert lake.version(VERDICTS) == before


def test_other_rows_need_a_verdict_of_their_own(lake: Lake) -> None:
    """A row is written anew: a door without Spark refuses in one line, and gives no timestamp."""
    generation_id = inserted(lake, 1)
    rows = lake.read(GENERATION_DESCRIPTIONS_V2).to_pylist()
    end = rows[0]["range_end"]
    lake.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", end)])
    with pytest.raises(StateError, match="cdc_generation_descriptions_v2 changed after its last audit; run its checks"):
        introduce(lake, generation_id)
    assert lake.read(GENERATIONS).num_rows == 0


def test_a_verdict_stands_while_the_checked_files_are_unchanged(lake: Lake) -> None:
    """A row that somebody else has taken away, a verdict that says no, and the generation is to be read as a whole."""
    generation_id = inserted(lake, 1)
    [held] = read_representative_inventory(lake)
    assert (held.id, verdicts.generations_in_order(lake, [held])) == (generation_id, [held])
    good = lake.read(VERDICTS, filters=[("step", "=", INSERTED.name)])
    bad = good.set_column(good.schema.get_field_index("passed"), good.schema.field("passed"), [[False]])
    lake.merge(VERDICTS, bad, update=True)
    assert verdicts.generations_in_order(lake, [held]) == []
    lake.merge(VERDICTS, good, update=True)
    end = lake.read(GENERATION_DESCRIPTIONS_V2).to_pylist()[0]["range_end"]
    lake.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", end)])
    assert verdicts.generations_in_order(lake, read_representative_inventory(lake)) == []


def test_a_home_without_verdicts_is_judged_now(lake: Lake) -> None:
    """As in a home of before: the step judges what it relies on, keeps the verdict, and goes on."""
    generation_id = inserted(lake, 1)
    lake.delete(VERDICTS, [("generation_id", "=", generation_id)])
    assert introduce(lake, generation_id, answering(answers(0)), judging=True) == NOON_MS + 65_000
    [kept] = lake.read(VERDICTS).to_pylist()
    assert (kept["step"], kept["passed"], kept["said"]) == ("cdc_generation_descriptions_v2", True, None)
    assert (kept["door"], us_from_datetime(kept["judged_at"])) == ("the door of a test", us_from_ms(NOON_MS))


def test_a_failed_check_stops_every_later_run(lake: Lake) -> None:
    """It was given by one door and stops another one, which does not judge the same rows again."""
    generation_id = inserted(lake, 1)
    lake.delete(VERDICTS, [("generation_id", "=", generation_id)])
    for judging, steps in ((True, answering(answers(1))), (False, V2_STEPS)):
        with pytest.raises(StateError) as refused:
            introduce(lake, generation_id, steps, judging=judging)
        assert str(refused.value) == (
            f"generation {generation_id}: cdc_generation_descriptions_v2 failed its audit by the door of a test: "
            "ring_covered_once does not hold: 1 of 4 violate it: seeded; materialise "
            "cdc_generation_descriptions_v2 again, or run the whole join again"
        )
    assert lake.read(GENERATIONS).num_rows == 0


def test_a_verdict_on_fewer_invariants_is_none(lake: Lake) -> None:
    """An older version asked less: what it found good is judged again."""
    generation_id = inserted(lake, 1)
    kept = verdicts.read_last_verdict(lake, generation_id, INSERTED.name)
    assert kept is not None
    verdicts.store_verdict(lake, NOON, replace(kept, invariants=kept.invariants[:-1]))
    with pytest.raises(StateError, match="changed after its last audit"):
        introduce(lake, generation_id)


def test_rows_that_change_while_they_are_judged_get_no_verdict(lake: Lake) -> None:
    """Another writer comes in between: what was found is of neither state, and nothing is kept."""
    generation_id = inserted(lake, 1)
    lake.delete(VERDICTS, [("generation_id", "=", generation_id)])

    def meanwhile(joining: JoinContext) -> list[Finding]:
        end = lake.read(GENERATION_DESCRIPTIONS_V2, ["range_end"])["range_end"][0].as_py()
        lake.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", end)])
        return answers(1)(joining)

    with pytest.raises(StateError, match="failed its audit by"):
        introduce(lake, generation_id, answering(meanwhile), judging=True)
    assert lake.read(VERDICTS).num_rows == 0


def test_what_is_not_there_is_not_judged(lake: Lake) -> None:
    """Without rows of the step before there is nothing to judge, and the line says what to make first."""
    generation_id = inserted(lake, 1)
    lake.delete(GENERATION_DESCRIPTIONS_V2, [("id", "=", generation_id)])
    with pytest.raises(StateError, match="has no rows in cdc_generation_descriptions_v2; materialise"):
        introduce(lake, generation_id, judging=True)


def test_a_name_of_content_follows_the_files(lake: Lake) -> None:
    """The same files have one name, whatever comes in beside them; no files have none."""
    generation_id = inserted(lake, 1)
    slices = [(GENERATION_DESCRIPTIONS_V2, [("id", "=", generation_id)])]
    name = verdicts.content_name(lake, slices)
    assert len(name) == 32
    inserted(lake, 2)
    assert verdicts.content_name(lake, slices) == name
    assert verdicts.content_name(lake, [(GENERATION_DESCRIPTIONS_V2, [("id", "=", "another")])]) == ""


def queued(lake: Lake) -> str:
    """The generation of a node that waits to join."""
    return inbox.queue_join(lake, NOON, join_request(1)).generation_id


def run(lake: Lake, generation_id: str) -> whole.JoinResult:
    """A whole join by the command's function, in this process."""
    return whole.run_join(TaskRunner.alone(), lake, NOON, Settings(), generation_id)


def meanwhile(monkeypatch: pytest.MonkeyPatch, before: Table, work: Callable[[], object]) -> None:
    """Let another do something right before a run takes the step of a table."""
    taking = whole.run_step

    def watched(joining: JoinContext, steps: JoinSteps, step: JoinStep) -> Any:
        if step.table is before:
            work()
        return taking(joining, steps, step)

    monkeypatch.setattr(whole, "run_step", watched)


def kept(lake: Lake) -> list[str]:
    """The steps on which another process finds a verdict, in their order."""
    found = Lake(lake.root).read(VERDICTS, ["step"])["step"].to_pylist()
    return [step.name for step in V2_STEPS if step.name in found]


def test_a_run_stores_its_verdicts_before_publication_and_at_its_end(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commits in place of one a verdict; who goes on from there by another door finds what it relies on."""
    generation_id, seen = queued(lake), list[list[str]]()
    meanwhile(monkeypatch, CDC_LOCAL, lambda: seen.append(kept(lake)))
    meanwhile(monkeypatch, GENERATION_TIMESTAMPS, lambda: seen.append(kept(lake)))
    run(lake, generation_id)
    first = [TOPOLOGY_DESCRIPTIONS.name, GENERATION_DESCRIPTIONS_V2.name]
    assert seen == [first, first]
    assert kept(lake) == [*first, STREAMS_DESCRIPTIONS_V2.name, GENERATION_TIMESTAMPS.name]
    assert lake.version(VERDICTS) == 2
    again = verdicts.read_last_verdict(lake, generation_id, GENERATION_TIMESTAMPS.name)
    assert again is not None
    assert (again.passed, again.entry_point) == (True, "a program")


@pytest.mark.parametrize(
    ("table", "before"), [(TOPOLOGY_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2), (GENERATION_DESCRIPTIONS_V2, CDC_LOCAL)]
)
def test_rows_that_another_process_removes_between_two_steps_are_reported_missing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, table: Table, before: Table
) -> None:
    """A verdict of the run itself, kept or not, is of the rows that were judged: others are judged, and refused."""
    generation_id = queued(lake)

    def taken() -> None:
        other = Lake(lake.root)
        end = other.read(table, ["range_end"])["range_end"][0].as_py()
        assert other.delete(table, [("range_end", "=", end)]) == 1

    meanwhile(monkeypatch, before, taken)
    with pytest.raises(StateError, match=f"{table.name} failed its audit by a program"):
        run(lake, generation_id)
    assert Lake(lake.root).read(GENERATIONS).num_rows == 0
    found = verdicts.read_last_verdict(Lake(lake.root), generation_id, table.name)
    assert found is not None
    assert not found.passed


def test_a_failing_run_stores_the_verdicts_it_has(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The good verdict on the first step and the bad one that ended it: nothing after it was written."""
    generation_id, steps = queued(lake), answering(answers(1))
    monkeypatch.setattr(whole, "select_steps", lambda *_: steps)
    with pytest.raises(AuditFailed, match="ring_covered_once does not hold"):
        run(lake, generation_id)
    found = Lake(lake.root).read(VERDICTS, ["step", "passed"]).sort_by([("step", "descending")]).to_pylist()
    assert [(row["step"], row["passed"]) for row in found] == [
        (TOPOLOGY_DESCRIPTIONS.name, True),
        (GENERATION_DESCRIPTIONS_V2.name, False),
    ]
    assert Lake(lake.root).read(NODES).num_rows == 0


def test_the_first_failure_is_the_one_reported(lake: Lake) -> None:
    """Verdicts that cannot be kept, behind a join that fails, hide nothing; behind one that does not they are told."""
    given = verdicts.StepVerdict(queued(lake), "a step", "content", ("an invariant",), True, "", "a test")
    lake.ensure(VERDICTS)
    shutil.rmtree(lake.path(VERDICTS))
    Path(lake.path(VERDICTS)).write_bytes(b"in the way")

    def judging(*, fails: bool) -> None:
        with verdicts.collect_verdicts(lake, NOON) as book:
            book.add(given)
            if fails:
                raise AuditFailed("first")

    with pytest.raises(AuditFailed, match="first"):
        judging(fails=True)
    with pytest.raises(PlatformError, match="verdicts"):
        judging(fails=False)

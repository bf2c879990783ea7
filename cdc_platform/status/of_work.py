"""What `status` says of what somebody began or asked: joins, switches of generations, and checks."""

from __future__ import annotations

from typing import Any

from cdc_platform.clock import Clock, format_ms, format_us, us_of
from cdc_platform.generations.switch import Switch
from cdc_platform.invariants.findings import OBSERVED_WHOLE
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.only_observed import standing
from cdc_platform.lake.tables import VERDICTS
from cdc_platform.lake.versions import versions
from cdc_platform.records import judgements, switches, tablet_sets
from cdc_platform.records.join_progress import AFTER_TIMESTAMP, Progress, progress
from cdc_platform.records.judgements import EVERYTHING
from cdc_platform.settings import Settings
from cdc_platform.status.matters import Matter
from cdc_platform.status.of_generations import observed_anew
from cdc_platform.timeline import Timeline


def joins(lake: Lake, clock: Clock, settings: Settings) -> tuple[list[dict[str, Any]], list[Matter]]:
    """The joins and repairs that are not finished, with the step that each has reached, and bad verdicts on them."""
    waiting = [each for each in progress(lake) if each.is_open]
    matters = [_matter(each, clock) for each in waiting]
    if waiting:
        bad = lake.read(VERDICTS, ["generation_id", "step", "said", "door"], [("passed", "=", False)]).to_pylist()
        open_ = {each.generation_id: each.event_id for each in waiting}
        matters += [
            Matter(
                "step-not-good",
                f"{row['step']} of generation {row['generation_id']}, as {row['door']} has found: {row['said']}",
                f"run the join again: cdc-platform bootstrap --finish {open_[row['generation_id']]}, or withdraw it: "
                f"cdc-platform bootstrap --withdraw {open_[row['generation_id']]}",
            )
            for row in bad
            if row["generation_id"] in open_
        ]
    return [facts_of(each) for each in waiting], matters


def facts_of(each: Progress) -> dict[str, Any]:
    """An event of the inbox in plain values."""
    return {
        "event_id": each.event_id,
        "kind": each.kind,
        "host_id": each.host_id,
        "generation_id": each.generation_id,
        "state": str(each.reached),
        "queued_at": format_us(each.queued_at_us),
        "time": None if each.time_ms is None else format_ms(each.time_ms),
        "since": None if each.timed_at_ms is None else format_ms(each.timed_at_ms),
        "do": each.do if each.is_next else None,
    }


def switching(lake: Lake, clock: Clock, settings: Settings) -> tuple[list[dict[str, Any]], list[Matter]]:
    """The two-phase switches of which something is left to do."""
    found = switches.unfinished(lake)
    told = [
        {
            "generation_id": each.generation_id,
            "phase": str(each.phase),
            "acknowledged": len(each.leases),
            "participants": len(each.participants),
            "deadline": format_ms(each.deadline_ms),
        }
        for each in found
    ]
    return told, [_of_switch(each, clock) for each in found]


def _observed(lake: Lake) -> list[Matter]:
    found = standing(lake)
    if found is None:
        return []
    said = f"nothing is built on this home since {format_us(found.since_us)}: it is only observed ({found.because})"
    return [Matter("only-observed", said, "import what is missing, then run: cdc-platform check")]


def checks(lake: Lake, clock: Clock, settings: Settings) -> tuple[dict[str, Any], list[Matter]]:
    """What was judged last, by whatever door, what did not hold, and which tables were written since."""
    found = judgements.kept(lake)
    failed = [each for each in found if not each.passed]
    newer = judgements.newer_tables((each for each in found if each.asked_of == EVERYTHING), versions(lake))
    oldest = min(found, key=lambda each: each.judged_at_us, default=None)
    newest = max(found, key=lambda each: each.judged_at_us, default=None)
    told = {
        "judged": len(found),
        "failed": [
            {
                "invariant": each.invariant,
                "of": each.asked_of or None,
                "said": each.said,
                "judged_at": format_us(each.judged_at_us),
                "door": each.door,
            }
            for each in failed
        ],
        "oldest": oldest and format_us(oldest.judged_at_us),
        "newest": newest and format_us(newest.judged_at_us),
        "door": newest and newest.door,
        "newer_tables": newer,
    }
    matters = [*_observed(lake), *(_failed(each) for each in failed)]
    if not any(each.asked_of == EVERYTHING for each in found):
        if Timeline.read(lake).known or tablet_sets.tables(lake):
            matters.append(Matter("never-checked", "this home was never checked as a whole", "cdc-platform check"))
    elif newer:
        names = ", ".join(newer[:3]) + (f" and {len(newer) - 3} more" if len(newer) > 3 else "")
        matters.append(Matter("check-older", f"written since the last check: {names}", "cdc-platform check"))
    return told, matters


def _failed(each: judgements.Kept) -> Matter:
    of = f" of {each.asked_of}" if each.asked_of else ""
    names_one = each.asked_of and "." not in each.asked_of
    if each.invariant == OBSERVED_WHOLE and names_one:
        again = observed_anew(each.asked_of)
    else:
        again = f"cdc-platform check {each.asked_of}" if names_one else "cdc-platform check"
    return Matter("check-failed", f"{each.invariant}{of} at {format_us(each.judged_at_us)}: {each.said}", again)


def _matter(each: Progress, clock: Clock) -> Matter:
    name = f"{each.kind} of host {each.host_id} (event {each.event_id})"
    if each.reached not in AFTER_TIMESTAMP or each.time_ms is None:
        said = f"{name} waits since {format_us(each.queued_at_us)}, {each.reached}"
        return Matter("join-waiting", said, each.do if each.is_next else None)
    began = us_of(each.time_ms) <= clock.now_us()
    said = f"{name} is not finished: {each.reached}, and its generation {'operates' if began else 'starts'} " + (
        f"since {format_ms(each.time_ms)} without being shown to clients" if began else f"at {format_ms(each.time_ms)}"
    )
    return Matter("join-stuck" if began else "join-interrupted", said, each.do)


def _of_switch(each: Switch, clock: Clock) -> Matter:
    name = f"the switch to generation {each.generation_id}"
    if each.is_decided:
        return Matter(
            "switch-open",
            f"{name} is committed, and its join has not gone on",
            "finish its join, which is in the inbox: cdc-platform bootstrap --list",
        )
    answers = f"{len(each.leases)} of {len(each.participants)} nodes have acknowledged"
    if us_of(each.deadline_ms) <= clock.now_us():
        said = f"{name} is undecided after its deadline {format_ms(each.deadline_ms)}: {answers}"
        return Matter("switch-overdue", said, f"cdc-platform switch abort {each.generation_id}")
    return Matter(
        "switch-open",
        f"{name} is being prepared until {format_ms(each.deadline_ms)}: {answers}",
        f"cdc-platform switch show {each.generation_id}",
    )

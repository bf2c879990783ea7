"""A whole join in one go: every declared step, each judged before the next one is taken."""

from __future__ import annotations

from dataclasses import dataclass

from cdc_platform.clock import Clock, Milliseconds
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import CDC_LOCAL, GENERATION_TIMESTAMPS, TOPOLOGY_DESCRIPTIONS
from cdc_platform.lake.volume import Workers
from cdc_platform.lifecycle.join import verdicts
from cdc_platform.lifecycle.join.formats import steps_of
from cdc_platform.lifecycle.join.step import Joining, insist, judged, step_of, take
from cdc_platform.records import inbox, ledger
from cdc_platform.settings import Settings


@dataclass(frozen=True)
class Joined:
    """A finished join: the generation with its timestamp (ms), and how large it is."""

    generation_id: str
    time_ms: Milliseconds
    num_ranges: int
    num_streams: int


def run_join(
    workers: Workers,
    lake: Lake,
    clock: Clock,
    settings: Settings,
    generation_id: str,
    *,
    door: str = "a program",
) -> Joined:
    """Take a waiting join from its description to its published timestamp. Started again it goes on where it was.

    `door` is noted with the verdicts: who asked.

    Raises:
        NotFound: no bootstrap event introduces this generation.
        StateError: an earlier join is unfinished.
        InputError: the node cannot join the ring as it stands.
        AuditFailed: an invariant is violated; nothing after it was written.
    """
    with lake.open_tables.looked_at_once():
        steps = steps_of(lake, generation_id)
    made = {}
    with verdicts.kept_together(lake, clock) as book:
        joining = Joining(lake, clock, settings, generation_id, workers, door, book)
        for step in steps:
            if step.audit is None:
                # It is nodes that learn of the generation: whoever goes on from here, by any door, finds the verdicts.
                book.keep()
            made[step.table] = take(joining, steps, step)
            # Looked at anew: what others have written behind the step is judged with it.
            if step.audit is not None:
                insist(joining, step, judged(joining, step))
    described = made[TOPOLOGY_DESCRIPTIONS]
    return Joined(generation_id, made[GENERATION_TIMESTAMPS], described.num_ranges, described.num_streams)


def unjudged(lake: Lake, time_ms: Milliseconds) -> inbox.BootstrapEvent | None:
    """The event of the generation of that time (ms), if it is finished but for the verdict on its last step.

    Its process died in between: every row is there, and no later step asks for the verdict. `run_join` gives it.
    None for a generation that was judged, or that no event has made.
    """
    made = next((entry.generation_id for entry in ledger.entries(lake) if entry.time_ms == time_ms), None)
    if made is None:
        return None
    last = [step for step in steps_of(lake, made) if step.audit is not None][-1]
    return inbox.event(lake, generation_id=made) if verdicts.last(lake, made, last.name) is None else None


def introduce(joining: Joining) -> int:
    """Take the one step that gives an inserted generation its timestamp (ms): what a committed switch sets in motion.

    Raises:
        StateError: what was inserted does not hold.
    """
    steps = steps_of(joining.lake, joining.generation_id)
    return take(joining, steps, step_of(steps, CDC_LOCAL))

"""Tells a hook once of each change of the clusters that a sensor looks at, however often its ticks are repeated.

How far it was told lies beside the cluster's home, on this machine. It is kept before the program is run: a process
that is killed in between leaves a change untold, and none is told twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from cdc_platform import drafts
from cdc_platform.clock import Clock
from cdc_platform.cluster import changes as telling
from cdc_platform.cluster.glance import Glance
from cdc_platform.cluster.hook import MOST_WAITING, Hook
from cdc_platform.cluster.known import KnownCluster
from cdc_platform.cluster.watching import Change, unanswered
from cdc_platform.errors import PlatformError
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.turns import turn
from cdc_platform.records import cluster_changes

_FILE, _TURN = "alerted.json", "alerts"
TICK_SECONDS = 20.0
"""After so long a tick begins no other run of the hook, none of which takes longer; the rest is told at the next."""


class _Told(BaseModel):
    """What was told: the number of the last noted change; who is in the way of a look, by which aspect, in words."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: int
    problems: tuple[tuple[str, str, str], ...] = ()


def forget(cluster: KnownCluster) -> None:
    """Nobody is told any more: who is told later is told of what comes from then on."""
    Path(cluster.home, _FILE).unlink(missing_ok=True)


def alert(
    cluster: KnownCluster,
    hook: Hook,
    clock: Clock,
    seen: Glance | PlatformError,
    say: Callable[[str], None],
    begun: float | None = None,
) -> None:
    """Tell of what was noted since it was told last, and whether the cluster can be looked at and its nodes are up.

    `seen`: what was seen of it at this tick, or why nothing was. `begun`: by `time.monotonic`, when the tick was. The
    first time only what is noted from then on is told.
    """
    begun = time.monotonic() if begun is None else begun
    hook = replace(hook, seconds=min(hook.seconds, TICK_SECONDS))
    lake = Lake(cluster.open_home().lake)
    with turn(lake, _TURN):
        for told, change in _untold(cluster, lake, clock, seen, say):
            if time.monotonic() - begun > TICK_SECONDS:
                say(f"{cluster.name}: what is left for hook {hook.program} is told at the next tick")
                return
            _keep(cluster, told)
            failure = hook.tell(change.document())
            if failure is not None:
                say(failure.line)


def _untold(
    cluster: KnownCluster, lake: Lake, clock: Clock, seen: Glance | PlatformError, say: Callable[[str], None]
) -> Iterator[tuple[_Told, Change]]:
    """The changes to tell, each with what is told once it is."""
    told = _read(cluster)
    noted = cluster_changes.noted(lake, -1 if told is None else told.number)
    if told is None:
        told = _Told(number=noted[-1].number if noted else -1)
        noted = []
        _keep(cluster, told)
    if len(noted) > MOST_WAITING:
        say(f"{cluster.name}: {len(noted) - MOST_WAITING} changes are not told, too many wait")
    for each in noted[-MOST_WAITING:]:
        if each.change.what == telling.WAS_THERE:
            continue
        told = told.model_copy(update={"number": each.number})
        yield told, Change(each.at_us, cluster.name, each.change.who, each.change.what)
    standing = {(who, aspect): line for who, aspect, line in told.problems}
    after = telling.down(seen.down) if isinstance(seen, Glance) else unanswered(standing, seen)
    for each in telling.changes(standing, after, clock.now_us()):
        standing.pop((each.who, each.aspect), None)
        if each.state is not None:
            standing[each.who, each.aspect] = each.state
        told = told.model_copy(update={"problems": tuple((*key, line) for key, line in standing.items())})
        yield told, Change(clock.now_us(), cluster.name, each.who, each.what)


def _read(cluster: KnownCluster) -> _Told | None:
    try:
        return _Told.model_validate_json(Path(cluster.home, _FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def _keep(cluster: KnownCluster, told: _Told) -> None:
    drafts.write(cluster.home / _FILE, told.model_dump_json())

"""The row about the age of a home: look-ups, ticks and joins after a soak with faults, relative to a new home."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import Any

from bench.look_ups import COMMANDS, run
from bench.measure import Pairs, Result, paired, seconds
from bench.sensor_tick import ticks
from bench.session import Bench
from cdc_platform.clock import HOUR_SECONDS, HOUR_US, Clock, Microseconds, format_us, us_from_seconds
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.lifecycle import run_join
from cdc_platform.metastore import JoinRequest, inbox

_SHARE, _QUICK_SHARE = 0.01, 0.0006
_NODES = 10
"""The nodes of the new home: the maximum of the old home's ring."""
_FIRST_NODE = 1 << 20
_TARGET = 2.0


class _Home:
    """A home in which nodes join one after another, an hour apart."""

    def __init__(self, location: HomeLocation, start_us: Microseconds) -> None:
        self.location, self.now_us, self._nodes = location, start_us, _FIRST_NODE

    def queue(self) -> str:
        """Queue the next node; return its generation."""
        from support.worlds.rehearsal import node_config

        self.now_us, self._nodes = Microseconds(self.now_us + HOUR_US), self._nodes + 1
        request = JoinRequest.model_validate(node_config(self._nodes))
        return inbox.queue_join(Lake(self.location.lake), Clock(self.now_us), request).generation_id

    def join(self, generation_id: str) -> None:
        """Run a queued join."""
        run_join(
            TaskRunner.alone(),
            Lake(self.location.lake),
            Clock(self.now_us),
            self.location.settings,
            generation_id,
            entry_point="bootstrap --finish",
        )


def soak(bench: Bench) -> list[Result]:
    """Run a share of a year, and measure both homes alternately."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from support.soak.plan import Plan
    from support.soak.year import run_soak

    share = _SHARE if bench.sizes.repeats > 1 else _QUICK_SHARE
    with bench.scratch() as folder:
        state = run_soak(folder / "soak", Plan(share, tick_hours=22, dagster_every=10))
        old, new = _old_home(folder / "soak", state), _new_home(folder / "new", state)
        at, floor = f"a home after {state['hour']:,} hours with faults", f"a new home of {_NODES} nodes"
        return [
            Result(f"soak-{name}", f"{what}, {at}", pairs.seconds, floor, pairs.floor_seconds, pairs.ratio, _TARGET)
            for name, what, pairs in (
                *(("look-ups", " ".join(words), _look_up(bench, old, new, words)) for words in COMMANDS),
                ("join", "a small join", _join(bench, old, new)),
                ("tick", "a tick of waiting_joins", _tick(bench, folder, old, new)),
            )
        ]


def _old_home(folder: Path, state: dict[str, Any]) -> _Home:
    location = open_home_location(next(home for home in (folder / "home", folder / "disk" / "home") if home.exists()))
    return _Home(location, us_from_seconds(int(state["ticked_s"])))


def _new_home(folder: Path, state: dict[str, Any]) -> _Home:
    from support.soak.soak_home import SETTINGS

    location = open_home_location(folder, create=True)
    (folder / "settings.toml").write_text(SETTINGS, encoding="utf-8")
    home = _Home(open_home_location(location.path), us_from_seconds(int(state["ticked_s"]) - _NODES * HOUR_SECONDS))
    for _ in range(_NODES):
        home.join(home.queue())
    return home


def _look_up(bench: Bench, old: _Home, new: _Home, words: tuple[str, ...]) -> Pairs:
    def command(home: _Home) -> list[str]:
        clock = format_us(Microseconds(home.now_us + HOUR_US))
        return [sys.executable, "-m", "cdc_platform", "--home", home.location.name, "--clock", clock, *words]

    return paired(lambda: run(command(old)), lambda: run(command(new)), repeats=bench.sizes.repeats)


def _join(bench: Bench, old: _Home, new: _Home) -> Pairs:
    pairs = Pairs([], [])
    for number in range(2 + 2 * bench.sizes.repeats):
        for home, into in ((new, pairs.floor), (old, pairs.subject)):
            generation_id = home.queue()
            took = seconds(lambda home=home, generation_id=generation_id: home.join(generation_id))
            if number >= 2:
                into.append(took)
    return pairs


def _tick(bench: Bench, folder: Path, old: _Home, new: _Home) -> Pairs:
    pairs = Pairs([], [])
    for home in (old, new):
        home.queue()
    for number in range(bench.sizes.repeats):
        for name, home, into in (("new", new, pairs.floor), ("old", old, pairs.subject)):
            into.append(median(ticks(home.location, folder / f"dagster-{name}-{number}", 5)))
    return pairs

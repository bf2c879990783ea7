"""Ticks that ask for runs which build on a home: none while it is only observed, or where it mirrors a live cluster.

The run itself would refuse at its first commit; so nobody has to look at runs that fail.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from dagster import SkipReason

from cdc_platform.clock import format_us
from cdc_platform.lake.mirrors import cluster_of, told
from cdc_platform.lake.only_observed import standing
from resources.home import HomeResource

_Tick = TypeVar("_Tick", bound=Callable[..., Any])


def on_whole_homes(tick: _Tick) -> _Tick:
    """The tick of a sensor or a schedule, which has a resource `home`; skipped where nothing is built on that."""

    @wraps(tick)
    def ask(*args: object, home: HomeResource, **others: object) -> object:
        cluster = cluster_of(home.lake())
        return SkipReason(told(cluster)) if cluster is not None else whole(*args, home=home, **others)

    whole = for_readers(tick)
    return cast(_Tick, ask)


def for_readers(tick: _Tick) -> _Tick:
    """As `on_whole_homes`, for runs which write what readers have done: the mirror of a live cluster takes that."""

    @wraps(tick)
    def ask(*args: object, home: HomeResource, **others: object) -> object:
        found = standing(home.lake())
        if found is not None:
            return SkipReason(
                f"this home is only observed since {format_us(found.since_us)}: nothing is built on it until "
                "cdc-platform check is clean"
            )
        return tick(*args, home=home, **others)

    return cast(_Tick, ask)

"""Pictures of expiry: how long each generation has to stay, and what is kept after more nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cdc_platform.clock import MINUTE_MS, Milliseconds, format_ms
from cdc_platform.errors import InputError
from cdc_platform.pictures.drawing import INK, MOST_ROWS, PALETTE, days, draw_dates, new_figure, png, short


@dataclass(frozen=True)
class Stay:
    """How long a generation has to stay, in ms: it starts, is superseded (None: it is not), has expired (None: never
    or not to be told) and may go; `held` says whether something keeps it now.
    """

    name: str
    time_ms: Milliseconds
    superseded_ms: Milliseconds | None
    expired_ms: Milliseconds | None
    removable_ms: Milliseconds | None
    held: bool


def plan_picture(stays: Sequence[Stay], now_ms: Milliseconds) -> bytes:
    """The purge plan: each generation while it operates, while rows of it can be in a log, and for the grace time.

    `stays` are oldest first; of many the oldest are shown, which are the next to go.

    Raises:
        InputError: there are no generations.
    """
    if not stays:
        raise InputError("a picture of the purge plan needs one generation at least")
    shown = stays[:MOST_ROWS]
    latest = max(max(each.removable_ms or Milliseconds(0), each.superseded_ms or each.time_ms) for each in shown)
    edge = max(latest, now_ms) + max(max(latest, now_ms) - shown[0].time_ms, MINUTE_MS) // 12
    figure = new_figure(6.4, min(6.0, 1.6 + 0.3 * len(shown)))
    axes = figure.add_subplot()
    for row, each in enumerate(shown):
        superseded = edge if each.superseded_ms is None else each.superseded_ms
        expired = edge if each.expired_ms is None else max(each.expired_ms, superseded)
        removable = expired if each.removable_ms is None else max(each.removable_ms, expired)
        for start, end, colour in (
            (each.time_ms, superseded, PALETTE[2]),
            (superseded, expired, PALETTE[1] if each.held else PALETTE[4]),
            (expired, removable, PALETTE[7]),
        ):
            if end > start:
                axes.barh(row, days(end) - days(start), left=days(start), height=0.6, color=colour)
    axes.axvline(days(now_ms), color=PALETTE[5], linestyle="--", linewidth=1.2)
    axes.set_yticks(range(len(shown)), [short(each.name) for each in shown])
    axes.invert_yaxis()
    draw_dates(axes)
    more = f" (oldest {len(shown)} of {len(stays)})" if len(stays) > len(shown) else ""
    axes.set_title(f"When generations can go{more}", fontsize=11, color=INK, loc="left")
    axes.set_xlabel(
        f"UTC; dashed: now, {format_ms(now_ms)}\ngreen: operates; orange: held; blue: rows may live; grey: grace",
        fontsize=8,
        color=INK,
    )
    return png(figure)


def growth_picture(nodes: Sequence[int], kept: Sequence[int], with_expiry: Sequence[int]) -> bytes:
    """Bytes kept after so many more nodes: if nothing is ever removed, and with expiry.

    Raises:
        InputError: the sequences are empty or differ in length.
    """
    if not nodes or not len(nodes) == len(kept) == len(with_expiry):
        raise InputError(f"a picture of growth needs as many numbers as nodes, and one at least: {len(nodes)}")
    most = max(*kept, *with_expiry, 1)
    power = min(int(np.log2(most)) // 10, 4)
    unit = ("bytes", "KiB", "MiB", "GiB", "TiB")[power]
    figure = new_figure(6.4, 3.2)
    axes = figure.add_subplot()
    for values, colour, label in ((kept, PALETTE[5], "nothing is removed"), (with_expiry, PALETTE[2], "with expiry")):
        axes.plot(nodes, np.asarray(values, dtype=np.float64) / 1024**power, color=colour, label=label, linewidth=1.8)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("nodes more", color=INK)
    axes.set_ylabel(unit, color=INK)
    axes.set_title("Kept in the tables of generations", fontsize=11, color=INK, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return png(figure)

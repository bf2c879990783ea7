"""The picture of a timeline: when each generation operates, which of them does now, and what readers can see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdc_platform.clock import MINUTE_MS, Milliseconds, format_ms
from cdc_platform.errors import InputError
from cdc_platform.pictures.drawing import INK, MOST_ROWS, PALETTE, days, draw_dates, new_figure, png, short


@dataclass(frozen=True)
class Bar:
    """One generation of a timeline: its name, when it starts (ms) and whether readers can see it."""

    name: str
    time_ms: Milliseconds
    published: bool


def timeline_picture(generations: Sequence[Bar], now_ms: Milliseconds) -> bytes:
    """When each generation operates, from its timestamp to the next one's; the newest is open.

    `generations` are oldest first, `now_ms` is where the dashed line stands. Only the newest ones are shown.

    Raises:
        InputError: there are no generations.
    """
    if not generations:
        raise InputError("a timeline needs one generation at least")
    shown = list(generations[-MOST_ROWS:])
    starts = [bar.time_ms for bar in shown]
    span = max(max(starts[-1], now_ms) - starts[0], MINUTE_MS)
    ends = [*starts[1:], max(starts[-1], now_ms) + span // 8]
    operating = max((row for row, start in enumerate(starts) if start <= now_ms), default=None)
    figure = new_figure(6.4, min(6.0, 1.5 + 0.3 * len(shown)))
    axes = figure.add_subplot()
    for row, (bar, start, end) in enumerate(zip(shown, starts, ends, strict=True)):
        colour = PALETTE[2] if row == operating else PALETTE[0]
        face = colour if bar.published else "none"
        axes.barh(row, days(end) - days(start), left=days(start), height=0.6, color=face, edgecolor=colour)
    axes.axvline(days(now_ms), color=PALETTE[5], linestyle="--", linewidth=1.2)
    axes.set_yticks(range(len(shown)), [short(bar.name) for bar in shown])
    axes.invert_yaxis()
    draw_dates(axes)
    axes.set_title(_timeline_title(generations, shown, operating), fontsize=10, color=INK, loc="left")
    axes.set_xlabel(f"UTC; dashed: now, {format_ms(now_ms)}; outlined: not published", fontsize=8, color=INK)
    return png(figure)


def _timeline_title(generations: Sequence[Bar], shown: Sequence[Bar], operating: int | None) -> str:
    newest = (
        f"Newest {len(shown)} of {len(generations)} generations" if len(generations) > len(shown) else "Generations"
    )
    if operating is None:
        return f"{newest}: none operates yet"
    return f"{newest}; green operates, since {format_ms(shown[operating].time_ms)}"

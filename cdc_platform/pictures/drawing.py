"""What the pictures share: colours, figures, dates, and how a figure becomes a small PNG."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from cdc_platform.clock import Milliseconds, ms_to_datetime

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BYTES = 70_000
"""A picture is smaller than this, so that as base64 in a Markdown data URI it stays below 100 KB."""

# Okabe and Ito's palette: told apart by colour-blind readers too.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
INK = "#333333"
FAINT = "#BBBBBB"
_DPI = (110, 80, 60)
MOST_ROWS = 24
"""A picture with a row a thing shows this many."""


def load() -> None:
    """Import what drawing takes, by an empty picture: for a process whose forks will draw."""
    png(new_figure(1, 1))


def draw_dates(axes: Axes) -> None:
    """Let the x axis show times, as `days` has them."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=3, maxticks=7)
    axes.xaxis.set_major_locator(locator)
    # As it comes, seconds would stand there without their minutes.
    formats = ["%Y", "%b %Y", "%b %d", "%H:%M", "%H:%M:%S", "%H:%M:%S.%f"]
    axes.xaxis.set_major_formatter(
        ConciseDateFormatter(locator, formats=formats, zero_formats=formats, show_offset=False)
    )
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="x", color=FAINT, linewidth=0.4)
    axes.set_axisbelow(True)


def days(ms: Milliseconds) -> float:
    """A time (ms) as matplotlib has it on an axis."""
    from matplotlib.dates import date2num

    return float(date2num(ms_to_datetime(ms)))


def short(name: str) -> str:
    """UUIDs by their first eight digits, as people say them; anything else up to 24 characters."""
    if len(name) == 36 and name.count("-") == 4:
        return name[:8]
    return name if len(name) <= 24 else name[:23] + "…"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, with no window behind it."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor="white")


def png(figure: Figure, *, cropped: bool = True) -> bytes:
    """The figure at the finest resolution that stays below `MOST_BYTES`.

    `cropped` to what is drawn, for which it is drawn twice: a figure whose parts all have their places needs none.
    """
    drawn = b""
    box: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.1} if cropped else {}
    for dpi in _DPI:
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=dpi, metadata={"Software": None}, **box)
        drawn = stream.getvalue()
        if len(drawn) < MOST_BYTES:
            break
    return drawn

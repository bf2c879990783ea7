"""Pictures of rings, streams and generations as PNG bytes: pure functions of arrays, the same bytes every time.

They know how to draw; what is worth drawing is left to the assets and the documentation. No window, no global state.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cdc_platform.clock import format_ms, to_datetime
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Int64s = np.ndarray

MOST_BYTES = 70_000
"""A picture is smaller than this, so that as base64 in a Markdown data URI it stays below 100 KB."""

# Okabe and Ito's palette: told apart by colour-blind readers too.
_PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
_INK = "#333333"
_FAINT = "#BBBBBB"
_DPI = (110, 80, 60)
# More slices than this are thinner than a pixel of the picture.
_MOST_SLICES = 2048
_MOST_NAMES = 16
_MOST_ROWS = 24


@dataclass(frozen=True)
class Bar:
    """One generation of a timeline: its name, when it starts (ms) and whether readers can see it."""

    name: str
    time_ms: int
    published: bool


def ring_picture(range_ends: Int64s, owners: Int64s, names: Sequence[str], *, joining: int | None = None) -> bytes:
    """The token ring, each range in the colour of its owner; clockwise, least token at the top.

    Args:
        range_ends: int64[n], ascending.
        owners: int64[n], for each range an index into `names`.
        names: one a node.
        joining: index of the node whose ranges are set off on the outside, if any.

    Raises:
        InputError: there are no ranges, or the arrays differ in length.
    """
    if len(range_ends) == 0 or len(range_ends) != len(owners):
        raise InputError(f"a ring picture needs as many owners as range ends, and one at least: {len(owners)}")
    edges, owner_of_slice = _slices(np.asarray(range_ends, dtype=np.int64), np.asarray(owners, dtype=np.int64))
    figure = _figure(6.4, 4.2)
    axes = figure.add_axes((0.02, 0.03, 0.62, 0.94), projection="polar")
    axes.set_theta_zero_location("N")  # pyright: ignore[reportAttributeAccessIssue]
    axes.set_theta_direction(-1)  # pyright: ignore[reportAttributeAccessIssue]
    axes.set_axis_off()
    axes.set_ylim(0, 1.1)
    colours = _colours(len(names))
    _draw_band(axes, edges, colours[owner_of_slice], 0.62, 0.96)
    if joining is not None:
        outside = colours[owner_of_slice].copy()
        outside[owner_of_slice != joining] = 0
        _draw_band(axes, edges, outside, 1.0, 1.08)
    axes.text(0, 0, f"{len(range_ends):,}\nranges", ha="center", va="center", color=_INK, fontsize=12)
    shares = np.bincount(owner_of_slice, weights=np.diff(edges), minlength=len(names)) / (2 * np.pi)
    _draw_owners(figure, names, colours, shares, np.bincount(owners, minlength=len(names)), joining)
    return _png(figure)


def streams_picture(counts: Int64s, names: Sequence[str]) -> bytes:
    """How many streams lie on each shard of each node, as a heat map.

    Args:
        counts: int64[nodes, shards]; negative where a node has no such shard.
        names: one a node.

    Raises:
        InputError: `counts` is empty or doesn't have a row a name.
    """
    from matplotlib.ticker import MaxNLocator

    grid = np.asarray(counts, dtype=np.int64)
    if grid.ndim != 2 or grid.size == 0 or grid.shape[0] != len(names):
        raise InputError(f"a streams picture needs one row of counts a node: {grid.shape} for {len(names)} nodes")
    shown = np.ma.masked_less(grid[:_MOST_ROWS], 0)
    rows, shards = shown.shape
    figure = _figure(6.4, min(6.0, 1.5 + 0.3 * rows))
    axes = figure.add_subplot()
    image = axes.imshow(shown, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    axes.set_yticks(range(rows), [_short(name) for name in names[:rows]])
    axes.set_xlabel("shard")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(length=0, labelsize=9)
    more = f" (first {rows} of {len(names)} nodes)" if len(names) > rows else ""
    axes.set_title(f"Streams a node and a shard{more}", fontsize=11, color=_INK, loc="left")
    if shards <= 16:
        _draw_counts(axes, shown)
    else:
        figure.colorbar(image, ax=axes, label="streams")
    return _png(figure)


def timeline_picture(generations: Sequence[Bar], now_ms: int) -> bytes:
    """When each generation operates, from its timestamp to the next one's; the newest is open.

    `generations` are oldest first, `now_ms` is where the dashed line stands. Only the newest ones are shown.

    Raises:
        InputError: there are no generations.
    """
    if not generations:
        raise InputError("a timeline needs one generation at least")
    shown = list(generations[-_MOST_ROWS:])
    starts = [bar.time_ms for bar in shown]
    span = max(max(starts[-1], now_ms) - starts[0], 60_000)
    ends = [*starts[1:], max(starts[-1], now_ms) + span // 8]
    operating = max((row for row, start in enumerate(starts) if start <= now_ms), default=None)
    figure = _figure(6.4, min(6.0, 1.5 + 0.3 * len(shown)))
    axes = figure.add_subplot()
    for row, (bar, start, end) in enumerate(zip(shown, starts, ends, strict=True)):
        colour = _PALETTE[2] if row == operating else _PALETTE[0]
        face = colour if bar.published else "none"
        axes.barh(row, _days(end) - _days(start), left=_days(start), height=0.6, color=face, edgecolor=colour)
    axes.axvline(_days(now_ms), color=_PALETTE[5], linestyle="--", linewidth=1.2)
    axes.set_yticks(range(len(shown)), [_short(bar.name) for bar in shown])
    axes.invert_yaxis()
    _draw_dates(axes)
    axes.set_title(_timeline_title(generations, shown, operating), fontsize=10, color=_INK, loc="left")
    axes.set_xlabel(f"UTC; dashed: now, {format_ms(now_ms)}; outlined: not published", fontsize=8, color=_INK)
    return _png(figure)


def _timeline_title(generations: Sequence[Bar], shown: Sequence[Bar], operating: int | None) -> str:
    newest = (
        f"Newest {len(shown)} of {len(generations)} generations" if len(generations) > len(shown) else "Generations"
    )
    if operating is None:
        return f"{newest}: none operates yet"
    return f"{newest}; green operates, since {format_ms(shown[operating].time_ms)}"


def _slices(range_ends: Int64s, owners: Int64s) -> tuple[np.ndarray, Int64s]:
    """Angles (radians, float64[k+1], 0 to 2π) that cut the ring, and the owner of each slice, int64[k]."""
    if len(range_ends) > _MOST_SLICES:
        edges = np.linspace(-(2.0**63), 2.0**63, _MOST_SLICES + 1)
        middles = ((edges[1:] + edges[:-1]) / 2).astype(np.int64)
        rows = np.searchsorted(range_ends, middles, side="left") % len(range_ends)
    else:
        edges = np.concatenate([[-(2.0**63)], range_ends.astype(np.float64), [2.0**63]])
        rows = np.arange(len(range_ends) + 1) % len(range_ends)  # beyond the last end it is the first range again
    return (edges / 2.0**63 + 1) * np.pi, owners[rows]


def _draw_band(axes: Axes, edges: np.ndarray, colours: np.ndarray, inner: float, outer: float) -> None:
    # Inside a slice the circle is followed in small steps: a mesh draws straight lines between its corners.
    steps = np.unique(np.concatenate([edges, np.linspace(0, 2 * np.pi, 721)]))
    cells = colours[np.searchsorted(edges, steps[:-1], side="right") - 1]
    axes.pcolormesh(steps, [inner, outer], cells[np.newaxis], shading="flat", antialiased=False)
    # Smooth slices would let seams show between them; so the slices are rough and their edges are drawn over.
    for radius in (inner, outer):
        axes.plot(steps, np.full(len(steps), radius), color="white", linewidth=1.5)


def _draw_owners(
    figure: Figure, names: Sequence[str], colours: np.ndarray, shares: np.ndarray, ranges: Int64s, joining: int | None
) -> None:
    from matplotlib.patches import Patch

    # The joining node is what the picture is about: it is named even where the nodes are too many to name all.
    order = sorted(range(len(names)), key=lambda i: (i != joining, i))[:_MOST_NAMES]
    entries = [
        Patch(
            color=colours[i],
            label=f"{_short(names[i])}{' (joins)' if i == joining else ''}  {shares[i]:.1%}, {ranges[i]:,}",
        )
        for i in order
    ]
    if len(names) > len(order):
        entries.append(Patch(color="none", label=f"... {len(names) - len(order)} more nodes"))
    legend = figure.legend(
        handles=entries,
        loc="center left",
        bbox_to_anchor=(0.65, 0.5),
        frameon=False,
        fontsize=8,
        title="owner, share, ranges",
    )
    legend.get_title().set_fontsize(8)


def _draw_counts(axes: Axes, counts: np.ma.MaskedArray) -> None:
    most = int(counts.max())
    for row, shard in np.ndindex(counts.shape):
        if not np.ma.is_masked(counts[row, shard]):
            colour = "white" if counts[row, shard] > most / 2 else _INK
            axes.text(shard, row, f"{counts[row, shard]:,}", ha="center", va="center", color=colour, fontsize=8)


def _draw_dates(axes: Axes) -> None:
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
    axes.grid(axis="x", color=_FAINT, linewidth=0.4)
    axes.set_axisbelow(True)


def _days(ms: int) -> float:
    from matplotlib.dates import date2num

    return float(date2num(to_datetime(ms * 1000)))


def _colours(count: int) -> np.ndarray:
    """One RGBA colour a node, float64[count, 4]; beyond the palette they go round the colour circle."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgba_array

    if count <= len(_PALETTE):
        return to_rgba_array(_PALETTE[:count])
    return colormaps["turbo"](np.linspace(0.03, 0.97, count))


def _short(name: str) -> str:
    """UUIDs by their first eight digits, as people say them; anything else up to 24 characters."""
    if len(name) == 36 and name.count("-") == 4:
        return name[:8]
    return name if len(name) <= 24 else name[:23] + "…"


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor="white")


def _png(figure: Figure) -> bytes:
    """The figure at the finest resolution that stays below `MOST_BYTES`."""
    drawn = b""
    for dpi in _DPI:
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=dpi, metadata={"Software": None}, bbox_inches="tight", pad_inches=0.1)
        drawn = stream.getvalue()
        if len(drawn) < MOST_BYTES:
            break
    return drawn

"""Plots of rings, streams, timelines, expiry and rehearsals as PNG bytes.

Functions import matplotlib on first use. A plot stays below 70 kB, so that a Markdown data URI of it stays below 100
kB. The palette is Okabe and Ito's, which colour-blind readers can distinguish.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cdc_platform.clock import MINUTE_MS, Milliseconds, datetime_from_ms, format_ms
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_IMAGE_BYTES = 70_000
"""The size limit of a plot in bytes: as base64 in a Markdown data URI it stays below 100 kB."""

# Okabe and Ito's palette, which colour-blind readers can distinguish.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
INK = "#333333"
FAINT = "#BBBBBB"
_DPI_STEPS = (110, 80, 60)
MAX_ROWS = 24
"""The most rows of a plot with one row per item."""


def preload_matplotlib() -> None:
    """Import everything that plots need, by rendering an empty one; for a process whose forks will plot."""
    render_png(new_figure(1, 1))


def _draw_dates(axes: Axes) -> None:
    """Format the x axis for times in the units of `_date_number`."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=3, maxticks=7)
    axes.xaxis.set_major_locator(locator)
    # The default formats show seconds without their minutes.
    formats = ["%Y", "%b %Y", "%b %d", "%H:%M", "%H:%M:%S", "%H:%M:%S.%f"]
    axes.xaxis.set_major_formatter(
        ConciseDateFormatter(locator, formats=formats, zero_formats=formats, show_offset=False)
    )
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="x", color=FAINT, linewidth=0.4)
    axes.set_axisbelow(True)


def _date_number(ms: Milliseconds) -> float:
    """Return a time (ms) as a matplotlib date number."""
    from matplotlib.dates import date2num

    return float(date2num(datetime_from_ms(ms)))


def _shorten_name(name: str) -> str:
    """Shorten a UUID to its first eight digits, any other name to 24 characters."""
    if len(name) == 36 and name.count("-") == 4:
        return name[:8]
    return name if len(name) <= 24 else name[:23] + "…"


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, without a window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor="white")


def render_png(figure: Figure, *, cropped: bool = True) -> bytes:
    """Render a figure at the highest resolution that stays below `MAX_IMAGE_BYTES`.

    `cropped` trims the margins, which renders the figure twice; a figure with fixed positions needs no trimming.
    """
    drawn = b""
    box: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.1} if cropped else {}
    for dpi in _DPI_STEPS:
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=dpi, metadata={"Software": None}, **box)
        drawn = stream.getvalue()
        if len(drawn) < MAX_IMAGE_BYTES:
            break
    return drawn


Int64s = np.ndarray

# More slices than this would be thinner than a pixel of the plot.
_MAX_SLICES = 2048
_MAX_NAMES = 16


def plot_ring(range_ends: Int64s, owners: Int64s, names: Sequence[str], *, joining: int | None = None) -> bytes:
    """Plot the token ring, each range in the colour of its owner; clockwise, least token at the top.

    Args:
        range_ends: int64[n], ascending.
        owners: int64[n], for each range an index into `names`.
        names: one per node.
        joining: index of the node whose ranges an outer band marks, if any.

    Raises:
        InputError: there are no ranges, or the arrays differ in length.
    """
    if len(range_ends) == 0 or len(range_ends) != len(owners):
        raise InputError(f"a ring picture needs as many owners as range ends, and one at least: {len(owners)}")
    edges, owner_of_slice = cut_ring_slices(np.asarray(range_ends, dtype=np.int64), np.asarray(owners, dtype=np.int64))
    figure = new_figure(6.4, 4.2)
    # Cartesian axes: with matplotlib's polar axes the plot takes a sixth longer.
    axes = figure.add_axes((0.02, 0.03, 0.62, 0.94), aspect="equal", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
    axes.set_axis_off()
    colours = _colours(len(names))
    _draw_band(axes, edges, colours[owner_of_slice], 0.62, 0.96)
    if joining is not None:
        outside = colours[owner_of_slice].copy()
        outside[owner_of_slice != joining] = 0
        _draw_band(axes, edges, outside, 1.0, 1.08)
    axes.text(0, 0, f"{len(range_ends):,}\nranges", ha="center", va="center", color=INK, fontsize=12)
    shares = np.bincount(owner_of_slice, weights=np.diff(edges), minlength=len(names)) / (2 * np.pi)
    _draw_owners(figure, names, colours, shares, np.bincount(owners, minlength=len(names)), joining)
    return render_png(figure, cropped=False)


def plot_streams(counts: Int64s, names: Sequence[str]) -> bytes:
    """Plot the number of streams on each shard of each node, as a heat map.

    Args:
        counts: int64[nodes, shards]; negative where a node has no such shard.
        names: one per node.

    Raises:
        InputError: `counts` is empty or does not have one row per name.
    """
    from matplotlib.ticker import MaxNLocator

    grid = np.asarray(counts, dtype=np.int64)
    if grid.ndim != 2 or grid.size == 0 or grid.shape[0] != len(names):
        raise InputError(f"a streams picture needs one row of counts a node: {grid.shape} for {len(names)} nodes")
    visible = np.ma.masked_less(grid[:MAX_ROWS], 0)
    rows, shards = visible.shape
    labels = [_shorten_name(name) for name in names[:rows]]
    width, height = 6.4, min(6.0, 1.4 + 0.3 * rows)
    figure = new_figure(width, height)
    # Margins in inches: 0.075 is the most for a character at 9 points; the colour bar's label is on the right.
    left, right = 0.3 + 0.075 * max(map(len, labels)), 0.15 if shards <= 16 else 0.6
    below, above = 0.5, 0.4
    axes = figure.add_axes((left / width, below / height, 1 - (left + right) / width, 1 - (below + above) / height))
    image = axes.imshow(visible, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    axes.set_yticks(range(rows), labels)
    axes.set_xlabel("shard")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(length=0, labelsize=9)
    more = f" (first {rows} of {len(names)} nodes)" if len(names) > rows else ""
    axes.set_title(f"Streams a node and a shard{more}", fontsize=11, color=INK, loc="left")
    if shards <= 16:
        _draw_counts(axes, visible)
    else:
        figure.colorbar(image, ax=axes, label="streams", pad=0.03, fraction=0.12)
    return render_png(figure, cropped=False)


def cut_ring_slices(range_ends: Int64s, owners: Int64s) -> tuple[np.ndarray, Int64s]:
    """Return k+1 angles (radians, float64, 0 to 2π) that cut the ring into k slices, and their owners, int64[k]."""
    if len(range_ends) > _MAX_SLICES:
        edges = np.linspace(-(2.0**63), 2.0**63, _MAX_SLICES + 1)
        middles = ((edges[1:] + edges[:-1]) / 2).astype(np.int64)
        rows = np.searchsorted(range_ends, middles, side="left") % len(range_ends)
    else:
        edges = np.concatenate([[-(2.0**63)], range_ends.astype(np.float64), [2.0**63]])
        # The first range also covers the tokens after the last end.
        rows = np.arange(len(range_ends) + 1) % len(range_ends)
    return (edges / 2.0**63 + 1) * np.pi, owners[rows]


def _draw_band(axes: Axes, edges: np.ndarray, colours: np.ndarray, inner: float, outer: float) -> None:
    # Follow the circle in small steps inside a slice: a mesh draws straight lines between its corners.
    steps = np.unique(np.concatenate([edges, np.linspace(0, 2 * np.pi, 721)]))
    cells = colours[np.searchsorted(edges, steps[:-1], side="right") - 1]
    radii = np.array([[inner], [outer]])
    axes.pcolormesh(radii * np.sin(steps), radii * np.cos(steps), cells[np.newaxis], shading="flat", antialiased=False)
    # Antialiased slices would show seams, so draw them without antialiasing and cover their edges with lines.
    for radius in (inner, outer):
        axes.plot(radius * np.sin(steps), radius * np.cos(steps), color="white", linewidth=1.5)


def _draw_owners(
    figure: Figure, names: Sequence[str], colours: np.ndarray, shares: np.ndarray, ranges: Int64s, joining: int | None
) -> None:
    from matplotlib.patches import Patch

    # The plot is about the joining node, so name it even if there are too many nodes to name all.
    order = sorted(range(len(names)), key=lambda i: (i != joining, i))[:_MAX_NAMES]
    entries = [
        Patch(
            color=colours[i],
            label=f"{_shorten_name(names[i])}{' (joins)' if i == joining else ''}  {shares[i]:.1%}, {ranges[i]:,}",
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
            colour = "white" if counts[row, shard] > most / 2 else INK
            axes.text(shard, row, f"{counts[row, shard]:,}", ha="center", va="center", color=colour, fontsize=8)


def _colours(count: int) -> np.ndarray:
    """Return one RGBA colour per node, float64[count, 4]; beyond the palette's size they come from a colour map."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgba_array

    if count <= len(PALETTE):
        return to_rgba_array(PALETTE[:count])
    return colormaps["turbo"](np.linspace(0.03, 0.97, count))


@dataclass(frozen=True)
class GenerationBar:
    """One generation of a timeline: its name, its start (ms), and whether readers can see it."""

    name: str
    time_ms: Milliseconds
    published: bool


def plot_timeline(generations: Sequence[GenerationBar], now_ms: Milliseconds) -> bytes:
    """Plot when each generation operates, from its timestamp to the next one's; the newest is open-ended.

    `generations` are oldest first; the plot shows only the newest ones. A dashed line marks `now_ms`.

    Raises:
        InputError: there are no generations.
    """
    if not generations:
        raise InputError("a timeline needs one generation at least")
    visible = list(generations[-MAX_ROWS:])
    starts = [bar.time_ms for bar in visible]
    span = max(max(starts[-1], now_ms) - starts[0], MINUTE_MS)
    ends = [*starts[1:], max(starts[-1], now_ms) + span // 8]
    operating = max((row for row, start in enumerate(starts) if start <= now_ms), default=None)
    figure = new_figure(6.4, min(6.0, 1.5 + 0.3 * len(visible)))
    axes = figure.add_subplot()
    for row, (bar, start, end) in enumerate(zip(visible, starts, ends, strict=True)):
        colour = PALETTE[2] if row == operating else PALETTE[0]
        face = colour if bar.published else "none"
        axes.barh(
            row,
            _date_number(end) - _date_number(start),
            left=_date_number(start),
            height=0.6,
            color=face,
            edgecolor=colour,
        )
    axes.axvline(_date_number(now_ms), color=PALETTE[5], linestyle="--", linewidth=1.2)
    axes.set_yticks(range(len(visible)), [_shorten_name(bar.name) for bar in visible])
    axes.invert_yaxis()
    _draw_dates(axes)
    axes.set_title(_timeline_title(generations, visible, operating), fontsize=10, color=INK, loc="left")
    axes.set_xlabel(f"UTC; dashed: now, {format_ms(now_ms)}; outlined: not published", fontsize=8, color=INK)
    return render_png(figure)


def _timeline_title(
    generations: Sequence[GenerationBar], visible: Sequence[GenerationBar], operating: int | None
) -> str:
    newest = (
        f"Newest {len(visible)} of {len(generations)} generations" if len(generations) > len(visible) else "Generations"
    )
    if operating is None:
        return f"{newest}: none operates yet"
    return f"{newest}; green operates, since {format_ms(visible[operating].time_ms)}"


@dataclass(frozen=True)
class GenerationStay:
    """How long a generation must be retained, as times in ms.

    They are its start, when it is superseded (None if it is not), when it has expired (None if never or unknown), and
    when it becomes removable. `blocked` is True if something retains it now.
    """

    name: str
    time_ms: Milliseconds
    superseded_ms: Milliseconds | None
    expired_ms: Milliseconds | None
    removable_ms: Milliseconds | None
    blocked: bool


def plot_purge_plan(stays: Sequence[GenerationStay], now_ms: Milliseconds) -> bytes:
    """Plot the purge plan: each generation while it operates, while a log may have its rows, and for the grace time.

    `stays` are oldest first; the plot shows only the oldest, which are removed next.

    Raises:
        InputError: there are no generations.
    """
    if not stays:
        raise InputError("a picture of the purge plan needs one generation at least")
    visible = stays[:MAX_ROWS]
    latest = max(max(stay.removable_ms or Milliseconds(0), stay.superseded_ms or stay.time_ms) for stay in visible)
    edge = max(latest, now_ms) + max(max(latest, now_ms) - visible[0].time_ms, MINUTE_MS) // 12
    figure = new_figure(6.4, min(6.0, 1.6 + 0.3 * len(visible)))
    axes = figure.add_subplot()
    for row, stay in enumerate(visible):
        superseded = edge if stay.superseded_ms is None else stay.superseded_ms
        expired = edge if stay.expired_ms is None else max(stay.expired_ms, superseded)
        removable = expired if stay.removable_ms is None else max(stay.removable_ms, expired)
        for start, end, colour in (
            (stay.time_ms, superseded, PALETTE[2]),
            (superseded, expired, PALETTE[1] if stay.blocked else PALETTE[4]),
            (expired, removable, PALETTE[7]),
        ):
            if end > start:
                axes.barh(
                    row, _date_number(end) - _date_number(start), left=_date_number(start), height=0.6, color=colour
                )
    axes.axvline(_date_number(now_ms), color=PALETTE[5], linestyle="--", linewidth=1.2)
    axes.set_yticks(range(len(visible)), [_shorten_name(stay.name) for stay in visible])
    axes.invert_yaxis()
    _draw_dates(axes)
    more = f" (oldest {len(visible)} of {len(stays)})" if len(stays) > len(visible) else ""
    axes.set_title(f"When generations can go{more}", fontsize=11, color=INK, loc="left")
    axes.set_xlabel(
        f"UTC; dashed: now, {format_ms(now_ms)}\ngreen: operates; orange: blocked; blue: rows may live; grey: grace",
        fontsize=8,
        color=INK,
    )
    return render_png(figure)


def plot_growth(nodes: Sequence[int], without_expiry: Sequence[int], with_expiry: Sequence[int]) -> bytes:
    """Plot stored bytes by the number of added nodes: without any removal (`without_expiry`), and with expiry.

    Raises:
        InputError: the sequences are empty or differ in length.
    """
    if not nodes or not len(nodes) == len(without_expiry) == len(with_expiry):
        raise InputError(f"a picture of growth needs as many numbers as nodes, and one at least: {len(nodes)}")
    most = max(*without_expiry, *with_expiry, 1)
    power = min(int(np.log2(most)) // 10, 4)
    unit = ("bytes", "KiB", "MiB", "GiB", "TiB")[power]
    figure = new_figure(6.4, 3.2)
    axes = figure.add_subplot()
    for values, colour, label in (
        (without_expiry, PALETTE[5], "nothing is removed"),
        (with_expiry, PALETTE[2], "with expiry"),
    ):
        axes.plot(nodes, np.asarray(values, dtype=np.float64) / 1024**power, color=colour, label=label, linewidth=1.8)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("nodes more", color=INK)
    axes.set_ylabel(unit, color=INK)
    axes.set_title("Stored in the tables of generations", fontsize=11, color=INK, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return render_png(figure)


_BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
# With more steps, bars would be thinner than a pixel.
_MAX_BARS = 400


@dataclass(frozen=True)
class RehearsalBar:
    """A step of a rehearsal as plotted: stored bytes by table, and the number of streams that it creates (0 for none).

    `shard_colocation` is None without streams. `excess` is True if streams and ring no longer fit each other.
    """

    stored_bytes: Mapping[str, int]
    streams: int
    shard_colocation: float | None
    excess: bool


def plot_rehearsal(steps: Sequence[RehearsalBar], most_bytes: int | None = None) -> bytes:
    """Plot three panels over the steps: bytes, streams, colocation; `most_bytes` is a dashed line in the first.

    Raises:
        InputError: there are no steps.
    """
    if not steps:
        raise InputError("a picture of a rehearsal needs one step at least")
    figure = new_figure(7.2, 6.0)
    sizes, streams, shards = figure.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": (3, 2, 2)})
    numbers = list(range(len(steps)))
    _draw_sizes(sizes, numbers, steps, most_bytes)
    _draw_streams(streams, numbers, steps)
    _draw_colocation(shards, numbers, steps)
    shards.set_xlabel("step, 0 is the start", fontsize=9, color=INK)
    for axes in (sizes, streams, shards):
        axes.tick_params(labelsize=8)
        axes.grid(axis="y", color=FAINT, linewidth=0.4)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return render_png(figure)


def _draw_sizes(axes: Axes, numbers: Sequence[int], steps: Sequence[RehearsalBar], most_bytes: int | None) -> None:
    largest = max([*(size for step in steps for size in step.stored_bytes.values()), most_bytes or 0])
    scale, unit = next(((scale, unit) for scale, unit in _BYTE_UNITS if largest >= scale), (1, "bytes"))
    tables = [table for table in steps[0].stored_bytes if any(step.stored_bytes[table] for step in steps)]
    for index, table in enumerate(tables):
        sizes = [step.stored_bytes[table] / scale for step in steps]
        colour, style = PALETTE[index], ("-", "--", ":")[index % 3]
        name = table.partition(".")[2]
        axes.step(numbers, sizes, where="post", color=colour, linestyle=style, linewidth=1.6, label=name)
    if most_bytes is not None:
        axes.axhline(most_bytes / scale, color=PALETTE[5], linestyle="--", linewidth=1.2, label="--max-bytes")
    axes.set_title(f"Stored in each table after the step, {unit}", fontsize=10, color=INK, loc="left")
    axes.set_ylim(bottom=0)
    if tables:
        axes.legend(fontsize=7, frameon=False, loc="upper left")


def _draw_streams(axes: Axes, numbers: Sequence[int], steps: Sequence[RehearsalBar]) -> None:
    created = [(number, step.streams) for number, step in zip(numbers, steps, strict=True) if step.streams]
    if created:
        positions, counts = zip(*created, strict=True)
        if len(created) <= _MAX_BARS:
            axes.bar(positions, counts, width=0.8, color=PALETTE[0])
        else:
            axes.plot(positions, counts, color=PALETTE[0])
    axes.set_title("Streams of the generation that the step makes", fontsize=10, color=INK, loc="left")
    axes.set_ylim(bottom=0)


def _draw_colocation(axes: Axes, numbers: Sequence[int], steps: Sequence[RehearsalBar]) -> None:
    known = [(number, step) for number, step in zip(numbers, steps, strict=True) if step.shard_colocation is not None]
    shares = [100 * (step.shard_colocation or 0) for _, step in known]
    axes.step([number for number, _ in known], shares, where="post", color=PALETTE[2], linewidth=1.6)
    excess = [(number, share) for (number, step), share in zip(known, shares, strict=True) if step.excess]
    if excess:
        axes.plot(*zip(*excess, strict=True), "o", color=PALETTE[5], markersize=4, label="excess ranges")
        axes.legend(fontsize=7, frameon=False, loc="lower left")
    low = min(shares, default=100.0)
    axes.set_ylim(max(0.0, low - max(0.05, (100 - low) * 0.2)), 100 + max(0.05, (100 - low) * 0.1))
    axes.set_title("Shard colocation of the newest generation, %", fontsize=10, color=INK, loc="left")

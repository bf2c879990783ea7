"""Pictures of rings and streams: which node owns which ranges, how many streams each of its shards has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cdc_platform.errors import InputError
from cdc_platform.pictures.drawing import INK, MOST_ROWS, PALETTE, new_figure, png, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Int64s = np.ndarray

# More slices than this are thinner than a pixel of the picture.
_MOST_SLICES = 2048
_MOST_NAMES = 16


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
    edges, owner_of_slice = slices(np.asarray(range_ends, dtype=np.int64), np.asarray(owners, dtype=np.int64))
    figure = new_figure(6.4, 4.2)
    # Plain axes: with those of matplotlib's for angles the picture takes a sixth longer.
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
    return png(figure, cropped=False)


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
    shown = np.ma.masked_less(grid[:MOST_ROWS], 0)
    rows, shards = shown.shape
    labels = [short(name) for name in names[:rows]]
    width, height = 6.4, min(6.0, 1.4 + 0.3 * rows)
    figure = new_figure(width, height)
    # Inches: a character at 9 points takes no more; the bar of colours has its words on the right.
    left, right = 0.3 + 0.075 * max(map(len, labels)), 0.15 if shards <= 16 else 0.6
    below, above = 0.5, 0.4
    axes = figure.add_axes((left / width, below / height, 1 - (left + right) / width, 1 - (below + above) / height))
    image = axes.imshow(shown, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    axes.set_yticks(range(rows), labels)
    axes.set_xlabel("shard")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(length=0, labelsize=9)
    more = f" (first {rows} of {len(names)} nodes)" if len(names) > rows else ""
    axes.set_title(f"Streams a node and a shard{more}", fontsize=11, color=INK, loc="left")
    if shards <= 16:
        _draw_counts(axes, shown)
    else:
        figure.colorbar(image, ax=axes, label="streams", pad=0.03, fraction=0.12)
    return png(figure, cropped=False)


def slices(range_ends: Int64s, owners: Int64s) -> tuple[np.ndarray, Int64s]:
    """Angles (radians, float64[k+1], 0 to 2π) that cut the ring, and whose each slice is, int64[k]; k is limited."""
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
    radii = np.array([[inner], [outer]])
    axes.pcolormesh(radii * np.sin(steps), radii * np.cos(steps), cells[np.newaxis], shading="flat", antialiased=False)
    # Smooth slices would let seams show between them; so the slices are rough and their edges are drawn over.
    for radius in (inner, outer):
        axes.plot(radius * np.sin(steps), radius * np.cos(steps), color="white", linewidth=1.5)


def _draw_owners(
    figure: Figure, names: Sequence[str], colours: np.ndarray, shares: np.ndarray, ranges: Int64s, joining: int | None
) -> None:
    from matplotlib.patches import Patch

    # The joining node is what the picture is about: it is named even where the nodes are too many to name all.
    order = sorted(range(len(names)), key=lambda i: (i != joining, i))[:_MOST_NAMES]
    entries = [
        Patch(
            color=colours[i],
            label=f"{short(names[i])}{' (joins)' if i == joining else ''}  {shares[i]:.1%}, {ranges[i]:,}",
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
    """One RGBA colour a node, float64[count, 4]; beyond the palette they go round the colour circle."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgba_array

    if count <= len(PALETTE):
        return to_rgba_array(PALETTE[:count])
    return colormaps["turbo"](np.linspace(0.03, 0.97, count))

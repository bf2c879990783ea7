"""The picture of a rehearsal: what each step keeps in the tables, the streams that it makes, what stays colocated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc_platform.errors import InputError
from cdc_platform.pictures.drawing import FAINT, INK, PALETTE, new_figure, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
# Beyond this many steps bars would be thinner than a pixel.
_MOST_BARS = 400


@dataclass(frozen=True)
class Played:
    """A step as it is drawn: bytes kept by table, streams that it makes (0: none), shard colocation (None: no streams),
    and whether streams and ring no longer fit each other.
    """

    kept: Mapping[str, int]
    streams: int
    shard_colocation: float | None
    excess: bool


def rehearsal_picture(steps: Sequence[Played], most_bytes: int | None = None) -> bytes:
    """Three panels over the steps; `most_bytes` is the dashed line in the first.

    Raises:
        InputError: there are no steps.
    """
    if not steps:
        raise InputError("a picture of a rehearsal needs one step at least")
    figure = new_figure(7.2, 6.0)
    kept, streams, shards = figure.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": (3, 2, 2)})
    numbers = list(range(len(steps)))
    _draw_kept(kept, numbers, steps, most_bytes)
    _draw_streams(streams, numbers, steps)
    _draw_colocation(shards, numbers, steps)
    shards.set_xlabel("step, 0 is the start", fontsize=9, color=INK)
    for axes in (kept, streams, shards):
        axes.tick_params(labelsize=8)
        axes.grid(axis="y", color=FAINT, linewidth=0.4)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return png(figure)


def _draw_kept(axes: Axes, numbers: Sequence[int], steps: Sequence[Played], most_bytes: int | None) -> None:
    largest = max([*(size for step in steps for size in step.kept.values()), most_bytes or 0])
    scale, unit = next(((scale, unit) for scale, unit in _UNITS if largest >= scale), (1, "bytes"))
    tables = [table for table in steps[0].kept if any(step.kept[table] for step in steps)]
    for place, table in enumerate(tables):
        sizes = [step.kept[table] / scale for step in steps]
        colour, style = PALETTE[place], ("-", "--", ":")[place % 3]
        name = table.partition(".")[2]
        axes.step(numbers, sizes, where="post", color=colour, linestyle=style, linewidth=1.6, label=name)
    if most_bytes is not None:
        axes.axhline(most_bytes / scale, color=PALETTE[5], linestyle="--", linewidth=1.2, label="--max-bytes")
    axes.set_title(f"Kept in each table after the step, {unit}", fontsize=10, color=INK, loc="left")
    axes.set_ylim(bottom=0)
    if tables:
        axes.legend(fontsize=7, frameon=False, loc="upper left")


def _draw_streams(axes: Axes, numbers: Sequence[int], steps: Sequence[Played]) -> None:
    makes = [(number, step.streams) for number, step in zip(numbers, steps, strict=True) if step.streams]
    if makes:
        places, counts = zip(*makes, strict=True)
        if len(makes) <= _MOST_BARS:
            axes.bar(places, counts, width=0.8, color=PALETTE[0])
        else:
            axes.plot(places, counts, color=PALETTE[0])
    axes.set_title("Streams of the generation that the step makes", fontsize=10, color=INK, loc="left")
    axes.set_ylim(bottom=0)


def _draw_colocation(axes: Axes, numbers: Sequence[int], steps: Sequence[Played]) -> None:
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

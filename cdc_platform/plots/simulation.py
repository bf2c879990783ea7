"""The plot of a simulated history: nodes over time, what each knows, accepts and refuses, and the violations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cdc_platform.errors import InputError
from cdc_platform.plots.plots import FAINT, INK, MAX_ROWS, PALETTE, new_figure, render_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARGIN_SECONDS = 20.0
_VIOLATION = PALETTE[5]


@dataclass(frozen=True)
class NodeTimeline:
    """A node in the picture. Times in seconds.

    `readable`: (since when, generation), the newest one that it can write to. `accepted` and `refused` are times of
    writes. `outages`: (from, until); None: it does not end.
    """

    name: str
    readable: list[tuple[float, int]] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    outages: list[tuple[float, float | None]] = field(default_factory=list)


@dataclass(frozen=True)
class SimulationMarks:
    """What concerns all nodes: the end of the history, the begins of generations, and (time, node, text) of violations.

    `noun` names what begins. A violation's node is an index, None if it is at none. Times in seconds.
    """

    end: float
    begins: Sequence[tuple[float, int]]
    violations: Sequence[tuple[float, int | None, str]]
    noun: str = "generation"


def plot_simulation(nodes: Sequence[NodeTimeline], marks: SimulationMarks) -> bytes:
    """Plot a history as PNG; of more than 24 nodes the ones that are concerned by violations or joined last.

    Raises:
        InputError: there are no nodes.
    """
    if not nodes:
        raise InputError("a picture of a history needs one node at least")
    shown = _choose_rows(nodes, marks)
    end = _last_event(nodes, marks)
    figure = new_figure(8.0, 1.4 + 0.34 * len(shown))
    axes = figure.add_subplot()
    for row, index in enumerate(shown):
        _draw_node(axes, row, nodes[index], end)
    rows = {index: row for row, index in enumerate(shown)}
    for begin, generation in marks.begins:
        if begin <= end:
            axes.axvline(begin, color=INK, linewidth=0.9, linestyle=":")
            axes.text(begin, -0.75, f"{marks.noun} {generation}", fontsize=7, color=INK, ha="center")
    _draw_violations(axes, rows, marks)
    axes.set_yticks(range(len(shown)), [nodes[index].name for index in shown], fontsize=8, color=INK)
    axes.set_ylim(len(shown) - 0.4, -1.1)
    axes.set_xlim(_first_event(nodes), end)
    axes.set_xlabel(f"seconds; bars: the newest {marks.noun} that the node can write to", fontsize=8, color=INK)
    axes.tick_params(labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    _draw_legend(axes)
    return render_png(figure)


def _choose_rows(nodes: Sequence[NodeTimeline], marks: SimulationMarks) -> list[int]:
    if len(nodes) <= MAX_ROWS:
        return list(range(len(nodes)))
    concerned = [node for _, node, _ in marks.violations if node is not None]
    wanted = list(dict.fromkeys([*concerned, *range(len(nodes) - 1, -1, -1)]))[:MAX_ROWS]
    return sorted(wanted)


def _last_event(nodes: Sequence[NodeTimeline], marks: SimulationMarks) -> float:
    """Return the time up to which there is something to see."""
    times = [time for node in nodes for time in (*node.accepted, *node.refused)]
    times += [begin for begin, _ in marks.begins]
    times += [at for at, _, _ in marks.violations]
    times += [since for node in nodes for since, _ in node.readable]
    return min(marks.end, max(times, default=marks.end) + _MARGIN_SECONDS)


def _first_event(nodes: Sequence[NodeTimeline]) -> float:
    """Return the time from which on there is something to see: a newer generation, a refusal or an outage."""
    times = [time for node in nodes for time in node.refused]
    times += [since for node in nodes for since, generation in node.readable if generation]
    times += [begin for node in nodes for begin, _ in node.outages]
    return max(0.0, min(times, default=0.0) - _MARGIN_SECONDS)


def _draw_node(axes: Axes, row: int, node: NodeTimeline, end: float) -> None:
    ends = [since for since, _ in node.readable[1:]] + [end]
    for (since, generation), until in zip(node.readable, ends, strict=False):
        bar = [(since, max(until - since, 0.0))]
        axes.broken_barh(bar, (row - 0.28, 0.56), color=PALETTE[generation % 5], alpha=0.35)
    for begin, until in node.outages:
        stop = end if until is None else until
        axes.broken_barh([(begin, stop - begin)], (row - 0.36, 0.72), facecolor="none", edgecolor=INK, hatch="////")
    axes.plot(node.accepted, [row] * len(node.accepted), "|", color=INK, markersize=5, markeredgewidth=0.7)
    axes.plot(node.refused, [row] * len(node.refused), "x", color=_VIOLATION, markersize=4, markeredgewidth=1.0)
    axes.axhline(row + 0.5, color=FAINT, linewidth=0.3)


def _draw_violations(axes: Axes, rows: dict[int, int], marks: SimulationMarks) -> None:
    for at, node, _ in marks.violations:
        if node is None or node in rows:
            row = -0.5 if node is None else rows[node]
            axes.plot([at], [row], "o", markerfacecolor="none", markeredgecolor=_VIOLATION, markersize=11, zorder=5)
    if marks.violations:
        at, _, text = marks.violations[0]
        count = len(marks.violations)
        more = f", and {count - 1} more" if count > 1 else ""
        axes.set_title(f"violation of {text} at {at:.2f} s{more}", fontsize=9, color=_VIOLATION, loc="left", pad=10)


def _draw_legend(axes: Axes) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Line2D([], [], linestyle="", marker="|", color=INK, label="accepted"),
        Line2D([], [], linestyle="", marker="x", color=_VIOLATION, label="refused"),
        Line2D([], [], linestyle="", marker="o", color=_VIOLATION, markerfacecolor="none", label="violation"),
        Patch(facecolor="none", edgecolor=INK, hatch="////", label="outage"),
    ]
    axes.legend(handles=handles, fontsize=7, frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.18))

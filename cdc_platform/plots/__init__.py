"""Plots as PNG bytes and the ring as SVG: pure functions of numbers and arrays with reproducible bytes.

Assets, commands and documentation choose what to plot. There is no window and no global state.
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "plots": (
            "GenerationBar",
            "GenerationStay",
            "RehearsalBar",
            "cut_ring_slices",
            "plot_growth",
            "plot_purge_plan",
            "plot_rehearsal",
            "plot_ring",
            "plot_streams",
            "plot_timeline",
        ),
        "ring_svg": (
            "node_colour",
            "render_ring_svg",
        ),
        "simulation": (
            "NodeTimeline",
            "SimulationMarks",
            "plot_simulation",
        ),
        "ui_files": ("UI_PREFIX_VARIABLE",),
    },
)

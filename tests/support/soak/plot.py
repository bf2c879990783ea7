"""The figures of a soak as a picture: `python -m support.soak.plot soak.json picture.svg`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

MEGABYTE = 1 << 20
PANELS = (
    (
        "Files",
        (
            ("lake_files", "lake", 1),
            ("dagster_files", "Dagster's storage", 1),
            ("other_files", "plots and other files of the home", 1),
        ),
    ),
    (
        "MiB",
        (
            ("lake_bytes", "lake", MEGABYTE),
            ("dagster_bytes", "Dagster's storage", MEGABYTE),
            ("other_bytes", "plots and other files of the home", MEGABYTE),
            ("temporary_bytes", "temporary folders", MEGABYTE),
        ),
    ),
    ("MiB", (("memory_bytes", "memory of the process", MEGABYTE),)),
    ("CPU seconds", (("tick_seconds", "one tick of every sensor and schedule", 1),)),
)


def plot_soak(soak: dict[str, Any], picture: Path) -> None:
    """Draw what was recorded over the days of a soak."""
    plt.rcParams["svg.hashsalt"] = "soak"
    figure, axes = plt.subplots(len(PANELS), 1, sharex=True, figsize=(8, 9), layout="constrained")
    days = [record["hour"] / 24 for record in soak["records"]]
    for axis, (unit, lines) in zip(axes, PANELS, strict=True):
        for name, label, scale in lines:
            axis.plot(days, [record[name] / scale for record in soak["records"]], label=label)
        axis.set_ylabel(unit)
        axis.set_ylim(bottom=0)
        axis.legend(loc="best", frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("days")
    figure.savefig(picture, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    plot_soak(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))

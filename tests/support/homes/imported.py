"""Homes with generations that were imported from exports of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from support.command_line import run
from support.files.export_files import generation, streams_csv, timestamps_csv, v2_csv

from cdc_platform.clock import Milliseconds


def home_with_generations(folder: Path, times_ms: Mapping[str, Milliseconds], **more: str) -> Path:
    """Create the home in `folder`, with generations of these IDs and times (see `export_of_generations`)."""
    home = folder / "home"
    answer = run("--home", home, "import", *export_of_generations(folder, times_ms, **more))
    assert answer.exit_code == 0, answer.stderr
    return home


def export_of_generations(folder: Path, times_ms: Mapping[str, Milliseconds], **more: str) -> list[Path]:
    """Write files from which these generations can be imported.

    `more` are the texts of other JSON files to import, by name without extension.
    """
    described = {id_: generation(id_) for id_ in times_ms}
    files = {f"{name}.json": text for name, text in more.items()} | {
        "v2.csv": v2_csv(described),
        "streams.csv": streams_csv({time_ms: described[id_] for id_, time_ms in times_ms.items()}),
        "times.csv": timestamps_csv(dict.fromkeys(times_ms.values())),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    return [folder / name for name in files]

"""A home into which two generations were imported, as exports of a cluster bring them."""

from __future__ import annotations

from pathlib import Path

from command_line import run
from export_files import ID, OTHER_ID, generation, streams_csv, timestamps_csv, v2_csv


def home_with_generations(folder: Path, first_ms: int, second_ms: int) -> Path:
    """Make the home in `folder`; the generations begin at these times and are `ID` and `OTHER_ID`."""
    one, other = generation(), generation(OTHER_ID)
    files = {
        "v2.csv": v2_csv({ID: one, OTHER_ID: other}),
        "streams.csv": streams_csv({first_ms: one, second_ms: other}),
        "times.csv": timestamps_csv({first_ms: None, second_ms: None}),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    home = folder / "home"
    answer = run("--home", home, "import", *(folder / name for name in files))
    assert answer.exit_code == 0, answer.stderr
    return home

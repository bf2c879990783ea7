"""The page of the models shows the current code of each model.

`PYTHONPATH=tests python tests/checks/test_invariant_docs.py` rewrites the models on the page.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from cdc_platform.checks import models

PAGE = Path(__file__).resolve().parents[2] / "docs" / "invariants.md"
TITLES = {
    models.StreamModel: "Streams of a generation",
    models.RangeModel: "Ranges of a generation",
    models.RingTokenModel: "Tokens of the ring",
    models.RowCountModel: "Number of rows",
    models.ComparedRangeModel: "Ranges in two tables",
    models.PublishedTimestampModel: "Published timestamps",
    models.TabletStreamModel: "Streams of tablets",
    models.TabletModel: "Tablets of a stream set",
}
_FIRST_SECTION = f"## {TITLES[models.StreamModel]}"


def sections() -> str:
    """Return the page's sections, each model under its title."""
    return "\n".join(
        f"## {title}\n\n```python\n{inspect.getsource(model).rstrip()}\n```\n" for model, title in TITLES.items()
    )


def test_the_page_shows_the_current_code_of_each_model() -> None:
    """Each section is the source of its model, and every model has a section."""
    declared = {
        model
        for model in vars(models).values()
        if isinstance(model, type) and model.__module__ == models.__name__ and not model.__name__.startswith("_")
    }
    assert declared == set(TITLES)
    text = PAGE.read_text(encoding="utf-8")
    assert text[text.index(_FIRST_SECTION) :] == sections()
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == list(TITLES.values())


if __name__ == "__main__":
    whole = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(whole.partition(_FIRST_SECTION)[0].rstrip("\n") + "\n\n" + sections(), encoding="utf-8")

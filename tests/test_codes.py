"""The codes of refusals and warnings: each has one, no two classes share one, and the page has a row for each."""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
from support.command_line import run

import cdc_platform
from cdc_platform.cli import program
from cdc_platform.errors import NotLetIn, PlatformError, UnfinishedJoin

ROOT = Path(__file__).resolve().parents[1]
OF_THE_EDGE = {"usage", "defect"}


def rows(heading: str) -> dict[str, str]:
    """Return the codes of a section of the page with the pages that they link to."""
    page = (ROOT / "docs" / "codes.md").read_text(encoding="utf-8")
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    entries = re.findall(
        r'^\| <a id="(?:warning-)?([a-z-]+)"></a>`([a-z-]+)` \|.*\[[^]]+\]\(([^)]+)\) \|$', section, re.MULTILINE
    )
    assert all(anchor == code for anchor, code, _ in entries)
    assert len({code for _, code, _ in entries}) == len(entries) > 1
    return {code: leads for _, code, leads in entries}


def refusal_classes() -> Iterator[type[PlatformError]]:
    """Yield every class of refusal of the platform, the base class first."""
    for module in pkgutil.walk_packages(cdc_platform.__path__, "cdc_platform."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    classes: list[type[PlatformError]] = [PlatformError]
    while classes:
        refusal = classes.pop()
        classes.extend(refusal.__subclasses__())
        if refusal.__module__.startswith("cdc_platform."):
            yield refusal


def test_every_refusal_class_has_its_own_code() -> None:
    """Each class declares its own code, and the page lists exactly these codes."""
    classes = list(refusal_classes())
    assert [refusal.__name__ for refusal in classes if "code" not in vars(refusal)] == []
    codes = [refusal.code for refusal in classes]
    assert len(set(codes)) == len(codes)
    assert set(rows("Refusals")) == {*codes, *OF_THE_EDGE}


def test_every_warning_has_a_documented_code() -> None:
    """Every call that writes a warning has a literal code that the page lists."""
    codes: set[str] = set()
    for path in (ROOT / "cdc_platform").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            names = [name.id for name in (call.func, *call.args[:1]) if isinstance(name, ast.Name)]
            if "warn" in names[:1] or names == ["partial", "warn"]:
                values = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
                assert [type(value) for value in values] == [ast.Constant], f"{path}:{call.lineno}"
                codes |= {str(ast.literal_eval(value)) for value in values}
    assert codes == set(rows("Warnings"))


@pytest.mark.parametrize("heading", ["Refusals", "Warnings"])
def test_every_code_links_to_an_existing_page(heading: str) -> None:
    """Every code links to an existing page and, if it names one, to an existing heading."""
    for code, leads in rows(heading).items():
        name, _, anchor = leads.partition("#")
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        titles = {
            re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.M)
        }
        assert not anchor or anchor in titles, f"{code}: {leads}"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnfinishedJoin("it waits"), "join-unfinished"),
        (NotLetIn("no credentials"), "credentials"),
        (PermissionError(13, "Permission denied", "/x"), "unavailable"),
        (ValueError("boom"), "defect"),
        (click.UsageError("no such option"), "usage"),
    ],
)
def test_a_refusal_ends_with_its_code(monkeypatch: pytest.MonkeyPatch, error: Exception, code: str) -> None:
    """A refusal ends with its code as the page describes for programs; an interrupt has none."""

    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(program, "get_command", lambda ctx, name: failing)
    matched = re.search(r"^(error|warning): .* \[([a-z-]+)\]$", run("ring").stderr.rstrip("\n"))
    assert matched is not None
    assert matched.groups() == ("error", code)

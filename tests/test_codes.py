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
    """The codes of a section of the page, each with the page that it leads to."""
    page = (ROOT / "docs" / "codes.md").read_text(encoding="utf-8")
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(
        r'^\| <a id="(?:warning-)?([a-z-]+)"></a>`([a-z-]+)` \|.*\[[^]]+\]\(([^)]+)\) \|$', section, re.MULTILINE
    )
    assert all(anchor == code for anchor, code, _ in found)
    assert len({code for _, code, _ in found}) == len(found) > 1
    return {code: leads for _, code, leads in found}


def refusals() -> Iterator[type[PlatformError]]:
    """Every class of refusal of the platform, the base first."""
    for module in pkgutil.walk_packages(cdc_platform.__path__, "cdc_platform."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    left: list[type[PlatformError]] = [PlatformError]
    while left:
        each = left.pop()
        left.extend(each.__subclasses__())
        if each.__module__.startswith("cdc_platform."):
            yield each


def test_every_class_of_refusal_has_a_code_of_its_own() -> None:
    """It is declared in the class and nowhere else, and the page has exactly these."""
    found = list(refusals())
    assert [each.__name__ for each in found if "code" not in vars(each)] == []
    codes = [each.code for each in found]
    assert len(set(codes)) == len(codes)
    assert set(rows("Refusals")) == {*codes, *OF_THE_EDGE}


def test_every_warning_has_a_code_of_the_page() -> None:
    """At each place where one is written, as a word that stands there."""
    codes: set[str] = set()
    for path in (ROOT / "cdc_platform").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            names = [each.id for each in (call.func, *call.args[:1]) if isinstance(each, ast.Name)]
            if "warn" in names[:1] or names == ["partial", "warn"]:
                given = [each.value for each in call.keywords if each.arg == "code"]
                assert [type(each) for each in given] == [ast.Constant], f"{path}:{call.lineno}"
                codes |= {str(ast.literal_eval(each)) for each in given}
    assert codes == set(rows("Warnings"))


@pytest.mark.parametrize("heading", ["Refusals", "Warnings"])
def test_every_code_leads_to_a_page_that_is_there(heading: str) -> None:
    """And to a heading of it, where one is named."""
    for code, leads in rows(heading).items():
        name, _, anchor = leads.partition("#")
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        titles = {
            re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in re.findall(r"^#+ (.+)$", text, re.M)
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
    """As the page says that programs find it; an interrupt has none."""

    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(program, "get_command", lambda ctx, name: failing)
    found = re.search(r"^(error|warning): .* \[([a-z-]+)\]$", run("ring").stderr.rstrip("\n"))
    assert found is not None
    assert found.groups() == ("error", code)

"""The site of docs/ is complete: its navigation has every page and every public package."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = (ROOT / "zensical.toml").read_text(encoding="utf-8")
PAGES = re.findall(r'"([\w/-]+\.md)"', CONFIG)


def test_every_page_is_in_the_navigation_once() -> None:
    """A page missing from the navigation is found by search alone; one listed twice confuses its reader."""
    existing = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(PAGES) == sorted(existing)


def test_every_public_package_has_its_reference() -> None:
    """Each package with public names has a page that lists them from the package's stub."""
    packages = {stub.parent.name for stub in (ROOT / "cdc_platform").glob("*/__init__.pyi")}
    assert len(packages) > 15
    assert {name.removeprefix("api/").removesuffix(".md") for name in PAGES if name.startswith("api/")} == packages
    for name in packages:
        assert f"::: cdc_platform.{name}\n" in (ROOT / "docs" / "api" / f"{name}.md").read_text(encoding="utf-8")


def test_the_site_loads_nothing_from_elsewhere() -> None:
    """The theme's own fonts would be fetched when a page is opened, so fonts come from the reader's system."""
    assert tomllib.loads(CONFIG)["project"]["theme"]["font"] is False

"""The layout of the code: packages export what others import, names are unique, imports form no cycle."""

from __future__ import annotations

import ast
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("cdc_platform", "assets", "resources")
IMPORT_NAMES = {"assets": "cdc_platform_assets", "resources": "cdc_platform_resources"}
"""The folders that are imported under another name."""
MOST_LINES = 800
"""A longer module may cover more than one topic."""


def module_name(path: Path) -> str:
    """Return the dotted name of a module of the project."""
    folder, *rest = path.relative_to(ROOT).with_suffix("").parts
    parts = (IMPORT_NAMES.get(folder, folder), *rest)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES: Mapping[str, ast.Module] = {
    module_name(path): ast.parse(path.read_text(encoding="utf-8"))
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
}
PACKAGES = sorted(path.parent.name for path in (ROOT / "cdc_platform").glob("*/__init__.py"))


def package_of(module: str) -> str | None:
    """Return the top-level package of the library that a module belongs to, or None for the modules at its root."""
    parts = module.split(".")
    return parts[1] if parts[0] == "cdc_platform" and len(parts) > 1 and parts[1] in PACKAGES else None


def imports(tree: ast.AST) -> Iterator[ast.ImportFrom]:
    """Yield every `from ... import` of a module, also those inside of functions."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))


@cache
def exported_by_stub(package: str) -> dict[str, str]:
    """Return the public names of a package and the modules that they come from, by the stub of its `__init__`."""
    stub = ROOT / "cdc_platform" / package / "__init__.pyi"
    if not stub.exists():
        return {}
    return {
        alias.name: node.module or ""
        for node in imports(ast.parse(stub.read_text(encoding="utf-8")))
        for alias in node.names
    }


@cache
def exported_at_run_time(package: str) -> dict[str, str]:
    """Return the names that a package exports at run time and their modules, by the call in its `__init__`."""
    for node in ast.walk(TREES[f"cdc_platform.{package}"]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lazy_exports":
            listed: Mapping[str, tuple[str, ...]] = ast.literal_eval(node.args[1])
            return {name: f"cdc_platform.{package}.{module}" for module, names in listed.items() for name in names}
    return {}


def private_imports(module: str, tree: ast.AST) -> Iterator[str]:
    """Yield what a module imports from another package although that package does not export it."""
    for node in imports(tree):
        package = package_of(node.module or "")
        if package is None or package == package_of(module):
            continue
        if node.module != f"cdc_platform.{package}":
            yield f"{module} imports from {node.module}"
        else:
            public = exported_by_stub(package)
            yield from (
                f"{module} imports {node.module}.{alias.name}" for alias in node.names if alias.name not in public
            )


def test_packages_import_only_what_others_export() -> None:
    """Every import from another package names that package itself and one of its public names."""
    assert [line for module, tree in TREES.items() for line in private_imports(module, tree)] == []


@pytest.mark.parametrize(
    "line",
    ["from cdc_platform.delta.lake import Lake", "from cdc_platform.delta import _Nothing"],
    ids=["a module of the package", "a name that is not public"],
)
def test_private_imports_are_found(line: str) -> None:
    """Both ways around the exports are reported, and are permitted within the package."""
    assert list(private_imports("cdc_platform.cli.check", ast.parse(line)))
    assert not list(private_imports("cdc_platform.delta.files", ast.parse(line)))


@pytest.mark.parametrize("package", PACKAGES)
def test_stub_and_init_export_the_same(package: str) -> None:
    """A type checker sees the names that exist at run time; exported modules need no entry at run time."""
    own = f"cdc_platform.{package}"
    declared, listed = exported_by_stub(package), exported_at_run_time(package)
    modules = {name for name, source in declared.items() if source == own and f"{own}.{name}" in TREES}
    assert {name: source for name, source in declared.items() if name not in modules} == listed
    assert not set(listed) & {module.split(".")[2] for module in TREES if module.startswith(f"{own}.")}


def test_every_export_is_used_by_others() -> None:
    """A name that no other package, test, benchmark or document imports is not public."""
    used = set()
    for folder in (*FOLDERS, "tests", "bench", "docs"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = TREES.get(module_name(path)) or ast.parse(path.read_text(encoding="utf-8"))
            used |= {(node.module, alias.name) for node in imports(tree) for alias in node.names}
    public = {(f"cdc_platform.{package}", name) for package in PACKAGES for name in exported_by_stub(package)}
    assert sorted(public - used) == []
    assert len(public) > 300


def test_public_classes_have_unique_names() -> None:
    """One name means one class in the whole code base."""
    modules_by_class = defaultdict(list)
    for module, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules_by_class[node.name].append(module)
    assert {name: modules for name, modules in modules_by_class.items() if len(modules) > 1} == {}
    assert len(modules_by_class) > 300


def imported_modules(module: str, tree: ast.Module) -> Iterator[str]:
    """Yield the project's modules that a module imports at import time, through the exports of their packages."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            package = package_of(node.module)
            exported = exported_at_run_time(package) if package and node.module == f"cdc_platform.{package}" else {}
            for alias in node.names:
                source = exported.get(alias.name, node.module)
                yield f"{source}.{alias.name}" if f"{source}.{alias.name}" in TREES else source


def test_imports_form_no_cycle() -> None:
    """Modules can be ordered so that each imports only earlier ones at import time."""
    graph = {
        module: {target for target in imported_modules(module, tree) if target in TREES and target != module}
        for module, tree in TREES.items()
    }
    ordered: set[str] = set()
    while ready := {module for module, needs in graph.items() if module not in ordered and needs <= ordered}:
        ordered |= ready
    assert sorted(set(graph) - ordered) == []


def test_long_modules_cause_a_warning() -> None:
    """A module above 800 lines is a warning, which asks for one topic per module and not for a shorter file."""
    for folder in (*FOLDERS, "bench"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > MOST_LINES:
                warnings.warn(f"{path.relative_to(ROOT)} has {lines} lines: does it hold one topic?", stacklevel=1)


@pytest.mark.parametrize("page", ["README.md", "docs/developing.md"])
def test_pages_list_every_package(page: str) -> None:
    """A table names each package of the library with its task."""
    rows = [line for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    named = {name.rstrip("/") for line in rows for name in line.split("`")[1::2]}
    assert set(PACKAGES) - named == set()

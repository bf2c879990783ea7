"""The project's rules that no other tool checks: the fixed top level, names, reasons, hashes, packaged data."""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cdc_platform import __version__

ROOT = Path(__file__).resolve().parent.parent
TOP_LEVEL = [
    "pyproject.toml",
    "requirements.lock",
    "workspace.yaml",
    "dagster.yaml",
    "Makefile",
    "LICENSE",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
]
FOLDERS = ["cdc_platform", "assets", "resources", "tests", "bench", "docs"]
TEXT = {".py", ".md", ".toml", ".yaml", ".json", ".lock", ".xml", ".properties", ".csv", ".cql", ""}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def files(*folders: str, suffix: str | None = None) -> list[Path]:
    """Return the project's own files below `folders`, without files of tools."""
    left_behind = {"__pycache__", "results", ".ipynb_checkpoints"}
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    return [p for p in paths if not left_behind & set(p.parts) and (suffix is None or p.suffix == suffix)]


def name_of(requirement: str) -> str:
    """Return the package that a requirement names, spelled as in the lock."""
    return re.split(r"[\[<>=! ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def all_requirements() -> list[str]:
    """Return every requirement of pyproject.toml that the lock contains: run time, development and docs."""
    extras = PROJECT["project"]["optional-dependencies"]
    return PROJECT["project"]["dependencies"] + extras["dev"] + extras["docs"]


@pytest.mark.parametrize("entry", [*TOP_LEVEL, *FOLDERS, ".ci/run"])
def test_top_level_is_fixed(entry: str) -> None:
    """The files that users and Dagster expect at the root exist."""
    assert (ROOT / entry).exists()


def test_module_names_describe_their_subject() -> None:
    """No module has a name that does not describe its subject."""
    nothing = re.compile(r"(^|_)(utils?|helpers?|manager|common|misc)(_|$)")
    assert [str(path) for path in files(*FOLDERS, suffix=".py") if nothing.search(path.stem)] == []


def test_only_delta_and_spark_know_delta_lake() -> None:
    """Other packages name none of Delta's tables, formats, logs or quoted paths."""
    delta = re.compile(r"""DeltaTable|format\(["']delta["']\)|USING delta|\bdelta\.`|_delta_log|\bunquote\(""")
    allowed = {ROOT / "cdc_platform" / name for name in ("delta", "spark")}
    above = [
        p for p in files("cdc_platform", "assets", "resources", suffix=".py") if not allowed.intersection(p.parents)
    ]
    assert len(above) > 100
    assert [str(path.relative_to(ROOT)) for path in above if delta.search(path.read_text(encoding="utf-8"))] == []
    assert [path.name for path in files("cdc_platform/delta", suffix=".py") if delta.search(path.read_text("utf-8"))]


def test_every_test_has_a_one_line_docstring() -> None:
    """Every test's docstring is one sentence on one line."""
    silent = []
    for path in files("tests", suffix=".py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                intent = (ast.get_docstring(node) or "").strip()
                if not intent or "\n" in intent:
                    silent.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert silent == []


def test_reliability_page_lists_every_grid() -> None:
    """The reliability page lists every grid of tests by the name that a run prints."""
    marked = re.compile(r"mark\.grid\(\"([^\"]+)\"")
    grids = {name for path in files("tests", suffix=".py") for name in marked.findall(path.read_text(encoding="utf-8"))}
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    listed = {name for line in re.findall(r"^\| ([^|]+) \|", page, flags=re.MULTILINE) for name in line.split(", ")}
    assert sorted(grids - listed) == []
    assert len(grids) > 20


def test_test_files_have_unique_names() -> None:
    """Test files have unique names, since two files of one name would hide each other in reports."""
    stems = [path.stem for path in files("tests", suffix=".py") if path.stem != "conftest"]
    assert sorted(stems) == sorted(set(stems))
    assert [path for path in files("tests", suffix=".py") if path.name == "__init__.py"] == []


def test_hooks_run_the_checks() -> None:
    """The commit hooks run the same commands as `make checks`."""
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nchecks: .venv")[2].partition("\n\n")[0]
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe.splitlines() if line.startswith("\t")]
    assert re.findall(r"^ +entry: (.+)$", hooks, flags=re.MULTILINE) == commands


def test_no_path_of_a_machine() -> None:
    """No file names a folder of the machine on which it was written."""
    own = [str(folder) + "/" for folder in (ROOT, Path.home()) if len(folder.parts) > 1]
    top = [ROOT / name for name in ("README.md", "Makefile", "pyproject.toml", "requirements.lock", ".ci/run")]
    named = [
        f"{path.relative_to(ROOT)}: {folder}"
        for path in [*files(*FOLDERS), *top]
        if path.suffix in TEXT
        for folder in own
        if folder in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert named == []


def test_every_dependency_has_its_reason() -> None:
    """Every dependency bound has a reason beside it, so that a later reader can lift it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    bare = [line for line in text.splitlines() if re.match(r'    "[\w\[\]-]+[<>=!~]', line) and " # " not in line]
    assert bare == []


def test_lock_holds_every_dependency_with_hashes() -> None:
    """Each requirement is locked to one version, and nothing is installed without a hash."""
    entries = re.findall(r"^([a-z0-9.-]+)==(\S+)(.*(?:\n    .*)*)", LOCK, flags=re.MULTILINE)
    assert len(entries) > 50
    assert [name for name, _, rest in entries if "--hash=sha256:" not in rest] == []
    assert {name_of(requirement) for requirement in all_requirements()} <= {name for name, _, _ in entries}


def test_the_version_is_the_same_everywhere() -> None:
    """The installed version, the program's own version and the changelog's newest entry agree."""
    newest = re.findall(r"^## \[([0-9.]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[
        0
    ]
    assert [PROJECT["project"]["version"], newest] == [__version__] * 2


def test_lock_names_no_place() -> None:
    """The lock names no registry or folder, which other users would then use."""
    assert re.findall(r"https?:|index-url|find-links|file:", LOCK) == []


def test_all_data_is_packaged() -> None:
    """Every file that a module reads from its package is installed with it."""
    globs = PROJECT["tool"]["setuptools"]["package-data"]["cdc_platform"]
    package = ROOT / "cdc_platform"
    beside = [str(path.relative_to(package)) for path in files("cdc_platform") if path.suffix != ".py"]
    assert [name for name in beside if not any(fnmatch.fnmatch(name, glob) for glob in globs)] == []
    assert "py.typed" in beside


def test_every_package_is_installed_by_its_import_name() -> None:
    """The list of packages is complete, and common names such as `assets` are not installed."""
    setuptools = PROJECT["tool"]["setuptools"]
    names = {folder: name for name, folder in setuptools["package-dir"].items()}
    folders = [path.parent.relative_to(ROOT) for path in files("cdc_platform", "assets", "resources", suffix=".py")]
    packages = {".".join((names.get(path.parts[0], path.parts[0]), *path.parts[1:])) for path in folders}
    assert sorted(setuptools["packages"]) == sorted(packages)
    common = re.compile(r"^\s*(from|import) (assets|resources)\b", flags=re.MULTILINE)
    assert [str(p) for p in files(*FOLDERS, suffix=".py") if common.search(p.read_text(encoding="utf-8"))] == []


def test_make_alone_lists_every_target() -> None:
    """`make` without a target lists every target."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^\.PHONY: (\S+)$", makefile, flags=re.MULTILINE)) - {"java"}
    listed = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {line.split()[1] for line in listed.stdout.splitlines()} == targets


def test_the_command_line_loads_nothing_heavy() -> None:
    """`--help` and shell completion import no Spark, Dagster or plotting library, so they respond at once."""
    heavy = "{'pyspark', 'dagster', 'pandas', 'matplotlib', 'pandera'}"
    code = f"import sys, cdc_platform.__main__; print(sorted({heavy} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"

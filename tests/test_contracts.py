"""The contracts with users: what scripts, stored tables and shell histories rely on stays as recorded.

For an intended change `python tests/test_contracts.py` records all contracts again, and the commit names each
difference. `test_definitions.py` covers the contract of the Dagster definitions in the same way.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import pytest
from support.command_line import paths_of, run
from support.homes.every_command import CASES, ask, home_of, path_of, write_files

import cdc_platform
from cdc_platform import failpoints
from cdc_platform.checks import INVARIANT_FAMILIES
from cdc_platform.cli import program
from cdc_platform.errors import PlatformError
from cdc_platform.reporting import STATUS_CODES
from cdc_platform.tables import TABLES

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(__file__).resolve().parent / "data" / "contracts"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DATA = re.compile(r"[0-9a-f]{32,}|\d{4}-\d\d-\d\dT[\d:.]+Z|-?\d+")
_VARIABLE = re.compile(r"\bCDC_PLATFORM_[A-Z_]+\b")


def helps() -> dict[str, list[str]]:
    """Return the help of the program and of each command, as lines of 100 columns."""
    assert isinstance(program, click.Group)
    groups = {path.rpartition(" ")[0] for path in paths_of(program)}
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("COLUMNS", "100")
        texts = {path: run(*path.split(), "--help").stdout for path in sorted(paths_of(program) | groups | {""})}
    return {path: text.splitlines() for path, text in texts.items()}


def tables() -> dict[str, Any]:
    """Return the declaration of each table: columns, keys, partitions, rules and properties."""
    return {
        table.full_name: {
            "columns": {field.name: f"{field.type}{'' if field.nullable else ' not null'}" for field in table.schema},
            "keys": list(table.keys),
            "partition_by": list(table.partition_by),
            "constraints": dict(table.constraints),
            "properties": dict(table.properties),
        }
        for table in sorted(TABLES.values(), key=lambda table: table.full_name)
    }


def names() -> dict[str, Any]:
    """Return codes with their exit codes, and the names of invariants, failpoints and environment variables."""
    for module in pkgutil.walk_packages(cdc_platform.__path__, "cdc_platform."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    classes, waiting = [], [PlatformError]
    while waiting:
        error = waiting.pop()
        waiting += error.__subclasses__()
        if error.__module__.startswith("cdc_platform."):
            classes.append(error)
    text = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("cdc_platform", "assets", "resources")
        for path in (ROOT / folder).rglob("*.py")
    )
    page = (ROOT / "docs" / "codes.md").read_text(encoding="utf-8")
    return {
        "refusals": {refusal.code: refusal.exit_code for refusal in sorted(classes, key=lambda refusal: refusal.code)},
        "warnings": sorted(
            re.findall(r"^\| <a id=\"[a-z-]+\"></a>`([a-z-]+)`", page.partition("## Warnings")[2], re.M)
        ),
        "status": dict(sorted(STATUS_CODES.items())),
        "invariants": {family.page: sorted(family.invariants) for family in INVARIANT_FAMILIES},
        "failpoints": sorted(
            value for name, value in vars(failpoints).items() if name.isupper() and isinstance(value, str)
        ),
        "environment": sorted(set(_VARIABLE.findall(text))),
    }


def shape(value: Any) -> Any:
    """Return the types of a JSON document: an object's by field, a list's merged over its entries."""
    if isinstance(value, dict):
        merged: dict[str, Any] = {}
        for name, inner in value.items():
            key = "*" if _DATA.fullmatch(name) or _UUID.fullmatch(name) else name
            merged[key] = together([merged[key], shape(inner)]) if key in merged else shape(inner)
        return merged
    if isinstance(value, list):
        return [together(list(map(shape, value)))] if value else []
    return "null" if value is None else type(value).__name__


def together(shapes: list[Any]) -> Any:
    """Return one shape for several values at the same position: `a | b` if they differ."""
    objects = [entry for entry in shapes if isinstance(entry, dict)]
    lists = [entry for entry in shapes if isinstance(entry, list)]
    merged: list[Any] = []
    if objects:
        fields = dict.fromkeys(name for entry in objects for name in entry)
        merged.append(
            {
                name if all(name in entry for entry in objects) else f"{name}?": together(
                    [entry[name] for entry in objects if name in entry]
                )
                for name in fields
            }
        )
    if lists:
        inner = [entry for entries in lists for entry in entries]
        merged.append([together(inner)] if inner else [])
    merged += sorted({entry for entry in shapes if isinstance(entry, str)})
    if len(merged) == 1:
        return merged[0]
    if all(isinstance(entry, str) for entry in merged):
        return " | ".join(sorted({part for entry in merged for part in entry.split(" | ")}))
    return {"one of": merged}


def run_cases(folder: Path) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Run each case of `homes.every_command`; return the shapes of the answers and the names in Delta's logs."""
    shapes: dict[str, Any] = {}
    stored: dict[str, set[str]] = {}
    for number, case in enumerate(CASES):
        case_folder = folder / str(number)
        case_folder.mkdir(parents=True)
        home = home_of(case, case_folder)
        write_files(case_folder / "files", home.parent)
        for line in case.behind:
            assert ask(line, case.ms, str(home), case_folder / "files").exit_code == 0, line
        if "--json" in run(*path_of(case.line).split(), "--help").stdout:
            answer = ask(f"{case.line} --json", case.ms, str(home), case_folder / "files")
            assert answer.exit_code in (0, 1), answer
            shapes[case.line] = {"exit_code": answer.exit_code, "output": shape(answer.json)}
        for log in (home / "lake").glob("*/*/_delta_log/*.json"):
            for action in map(json.loads, log.read_text(encoding="utf-8").splitlines()):
                _add_names(action, stored)
    return shapes, {kind: sorted(values) for kind, values in sorted(stored.items())}


def _add_names(action: dict[str, Any], stored: dict[str, set[str]]) -> None:
    """Add the platform's names in an action of Delta's log, which later versions must know."""
    if "txn" in action:
        stored.setdefault("transactions", set()).add(_plain(action["txn"]["appId"]))
    if "metaData" in action:
        own = {f"{name}={value}" for name, value in action["metaData"]["configuration"].items() if "cdc" in name}
        stored.setdefault("properties", set()).update(own)
    if "commitInfo" in action and "cdc_platform" in action["commitInfo"]:
        envelope = action["commitInfo"]["cdc_platform"]
        stored.setdefault("commit fields", set()).update(
            json.loads(envelope) if isinstance(envelope, str) else envelope
        )


def _plain(name: str) -> str:
    return re.sub(r"[0-9a-f]{16,}", "HASH", _UUID.sub("UUID", name))


def contracts(folder: Path) -> dict[str, Any]:
    """Return everything that is recorded, by the name of its file."""
    outputs, stored = run_cases(folder)
    return {"help": helps(), "tables": tables(), "names": names(), "outputs": outputs, "stored": stored}


RECORDED: tuple[tuple[str, Callable[[], Any]], ...] = (("help", helps), ("tables", tables), ("names", names))


def _recorded(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "current"), RECORDED, ids=[name for name, _ in RECORDED])
def test_a_declared_contract_is_as_recorded(
    name: str, current: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Help texts, table schemas, codes, exit codes, failpoints and variables match the recorded contracts."""
    monkeypatch.setenv("COLUMNS", "100")
    assert current() == _recorded(name)


@pytest.mark.long("each command runs on a home of its own")
def test_outputs_and_stored_names_are_as_recorded(tmp_path: Path) -> None:
    """The fields and types of each command's JSON, and the platform's names in Delta's logs, are as recorded."""
    outputs, stored = run_cases(tmp_path)
    assert outputs == _recorded("outputs")
    assert stored == _recorded("stored")


def test_every_command_with_json_has_a_recorded_output() -> None:
    """Every command with `--json` has a case, except those that need a live cluster."""
    assert isinstance(program, click.Group)
    with_json = {path for path in paths_of(program) if "--json" in run(*path.split(), "--help").stdout}
    live = {"observe", "ingest", "watch", "cluster test", "cluster replace", "cluster remove", "demo", "up"}
    assert with_json - live == {path_of(shlex.join(shlex.split(line))) for line in _recorded("outputs")} - live


def test_shapes_distinguish_documents() -> None:
    """Missing fields, other types and optional fields change the shape; other values do not."""
    first = shape([{"a": 1, "b": None}, {"a": 2, "b": "x"}])
    assert first == shape([{"a": 7, "b": "y"}, {"a": 9, "b": None}]) == [{"a": "int", "b": "null | str"}]
    assert shape([{"a": 1}, {"a": 1, "b": 1}]) == [{"a": "int", "b?": "int"}]
    assert shape({"a": 1}) != shape({"a": "1"})
    assert shape({"2026-01-01T00:00:00Z": 1, "2026-01-02T00:00:00Z": 2}) == {"*": "int"}


def write(folder: Path, names_: Iterable[str] = ()) -> None:
    """Record the current contracts of the program."""
    FOLDER.mkdir(exist_ok=True)
    for name, value in contracts(folder).items():
        if not names_ or name in names_:
            (FOLDER / f"{name}.json").write_text(
                json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch), sys.argv[1:])

"""Bring a home of an earlier layout forward, in place, and back as long as the migration is not done.

A migration changes whole files. It first stores the content of each file before and after the change, with a journal of
their digests, in the folder `migration` of the home. It then replaces the files, the marker of the layout last, and
removes the folder. A kill at any point leaves a state from which both directions can continue.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cdc_platform.home_location import LAYOUT_VERSION, MARKER_FILE, assert_layout_supported
from cdc_platform.settings import remove_old_settings
from cdc_platform.storage import ObjectStorePath, StoragePath, atomic

MIGRATION_FOLDER = "migration"
_JOURNAL = "journal.json"
SETTINGS_FILE = "settings.toml"


@dataclass(frozen=True)
class MigrationStep:
    """A change of one file, by its path below the home: a function from its content to the new content.

    The function returns equal bytes for content that needs no change, such as its own results.
    """

    name: str
    path: str
    change: Callable[[bytes], bytes]


@dataclass(frozen=True)
class ChangedFile:
    """A file that a migration changed or restored, and the step's name."""

    step: str
    path: str


def file_steps(prefix: str = "") -> tuple[MigrationStep, MigrationStep]:
    """Return the steps for a home's own files. `prefix` is the path of a cluster's home below it, with a slash."""
    return (
        MigrationStep("settings", f"{prefix}{SETTINGS_FILE}", remove_old_settings),
        MigrationStep("layout", f"{prefix}{MARKER_FILE}", _set_layout),
    )


def assert_can_migrate(home: StoragePath, steps: Sequence[MigrationStep]) -> None:
    """Raise an error if the marker of a home that the steps change is damaged, or a newer version wrote it.

    Raises:
        EnvironmentProblem: see above.
    """
    for step in steps:
        if step.name == "layout":
            assert_layout_supported((home / step.path).folder)


def is_migration_open(home: StoragePath) -> bool:
    """Return True if a migration of the home was begun and is not done."""
    return (home / MIGRATION_FOLDER / _JOURNAL).stat() is not None


def migrate_home(home: StoragePath, steps: Sequence[MigrationStep]) -> list[ChangedFile]:
    """Run the steps in order, after finishing an interrupted migration. Return the files that differ from before.

    The caller holds the home. A file that something else changed since the migration began is migrated as it is now,
    and one that something else removed stays removed.
    """
    folder = home / MIGRATION_FOLDER
    changed = _replace_files(home, folder, steps) if is_migration_open(home) else []
    remove_leftovers(home)
    # Something else may have added files since an interrupted migration began, such as a cluster's new home.
    if _begin(home, folder, steps):
        changed += _replace_files(home, folder, steps)
    return changed


def undo_migration(home: StoragePath) -> tuple[list[ChangedFile], list[ChangedFile]]:
    """Restore every file of an open migration. Return the restored files, and those that something else changed since.

    The latter stay as they are, also if they were removed. The marker of the layout is restored like any other file.
    """
    folder = home / MIGRATION_FOLDER
    restored, kept = [], []
    for number, entry in enumerate(_read_journal(folder)):
        path, changed = home / entry["path"], ChangedFile(entry["step"], entry["path"])
        content = _read_if_exists(path)
        digest = None if content is None else _digest(content)
        if digest == entry["after"]:
            _put(path, (folder / f"{number}.before").read())
        (restored if digest in (entry["before"], entry["after"]) else kept).append(changed)
    (folder / _JOURNAL).remove()
    remove_leftovers(home)
    return restored, kept


def _begin(home: StoragePath, folder: StoragePath, steps: Sequence[MigrationStep]) -> bool:
    """Store the contents and the journal of a migration; return False if no file needs a change."""
    entries: list[dict[str, Any]] = []
    # The markers come last, so that a home has the new layout only once everything else is migrated.
    for step in sorted(steps, key=lambda step: step.name == "layout"):
        before = _read_if_exists(home / step.path)
        if before is None or (after := step.change(before)) == before:
            continue
        _put(folder / f"{len(entries)}.before", before)
        _put(folder / f"{len(entries)}.after", after)
        entries.append({"step": step.name, "path": step.path, "before": _digest(before), "after": _digest(after)})
    if entries:
        _put(folder / _JOURNAL, json.dumps({"layout": LAYOUT_VERSION, "files": entries}).encode())
    return bool(entries)


def _replace_files(home: StoragePath, folder: StoragePath, steps: Sequence[MigrationStep]) -> list[ChangedFile]:
    """Replace the files that the journal lists, end the migration, and return them."""
    changed = []
    by_path = {step.path: step for step in steps}
    for number, entry in enumerate(_read_journal(folder)):
        path, step = home / entry["path"], by_path.get(entry["path"])
        content = _read_if_exists(path)
        if content is None:
            continue
        digest = _digest(content)
        if digest == entry["before"]:
            _put(path, (folder / f"{number}.after").read())
        elif digest != entry["after"] and step is not None:
            _put(path, step.change(content))
        changed.append(ChangedFile(entry["step"], entry["path"]))
    (folder / _JOURNAL).remove()
    remove_leftovers(home)
    return changed


def _read_if_exists(path: StoragePath) -> bytes | None:
    try:
        return path.read()
    except FileNotFoundError:
        return None


def _read_journal(folder: StoragePath) -> list[dict[str, Any]]:
    return json.loads((folder / _JOURNAL).read())["files"]


def _set_layout(marker: bytes) -> bytes:
    """Return the marker with the current layout, and its other fields unchanged."""
    fields = json.loads(marker)
    return (
        marker
        if fields["layout"] >= LAYOUT_VERSION
        else f"{json.dumps(fields | {'layout': LAYOUT_VERSION})}\n".encode()
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _put(path: StoragePath, content: bytes) -> None:
    if isinstance(path, ObjectStorePath):
        path.put(content)
        return
    assert path.local_path is not None
    path.local_path.parent.mkdir(mode=0o700, exist_ok=True)
    existing = path.local_path.stat().st_mode & 0o777 if path.local_path.exists() else atomic.OWNER_ONLY_MODE
    atomic.write_bytes_atomically(path.local_path, content, mode=existing)


def remove_leftovers(home: StoragePath) -> None:
    """Remove the stored contents of a migration without a journal: it was killed before its begin or after its end."""
    folder = home / MIGRATION_FOLDER
    for name in folder.names():
        (folder / name).remove()
    if folder.local_path is not None and folder.local_path.exists():
        atomic.sweep_drafts(folder.local_path)
        folder.local_path.rmdir()

"""`cdc-platform home`: copy a home, migrate it to the current layout and clean up its files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import click

from cdc_platform.cli.next_steps import NextStep, build_next_step
from cdc_platform.cli.output import json_option, warn, write_facts
from cdc_platform.cli.render import View, format_bytes, show_rows, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.dagster_home import INSTANCE_FILE
from cdc_platform.errors import InputError, StateError

if TYPE_CHECKING:
    from cdc_platform.home_location import HomeLocation
    from cdc_platform.home_migration import ChangedFile, MigrationStep
    from cdc_platform.scylla import ScyllaCluster
    from cdc_platform.storage import StoragePath


@dataclass(frozen=True)
class _CopiedHome:
    """A home to copy: its path below the copy (empty for the home itself), its location, and its tables' versions."""

    path: str
    source: StoragePath
    versions: dict[str, int]


@click.group()
def home() -> None:
    """Copy, maintain or migrate a home, in a folder or an object store.

    \b
    Example:
      cdc-platform home copy .cdc-platform s3://bucket/team/home
      cdc-platform home maintain --dry-run
      cdc-platform home migrate
    """


@home.command("maintain")
@click.option("--dry-run", is_flag=True, help="Count the files and delete nothing.")
@json_option
@pass_session
@click.pass_context
def maintain(ctx: click.Context, session: CliSession, dry_run: bool, as_json: bool) -> None:
    """Rewrite small files, delete unneeded ones, and trim logs and runs.

    Also writes checkpoints of tables. Small files of a log are rewritten into one file for each hour, once the hour
    is over. Files are deleted seven days after they were removed, or written without a commit. The homes of live
    clusters below this home are included. Limits of logs and runs are in settings.toml. Dagster does the same every
    day, and checks the home as well. The exit code is 1 if a table failed.

    \b
    Example:
      cdc-platform home maintain --dry-run
    """
    from cdc_platform.delta import TABLE_TASKS, MaintenanceTask, maintenance, record_maintenance
    from cdc_platform.home import list_lakes, maintain_tables, preview_tables, trim_log_files

    opened = session.open_location()
    done: list[tuple[str | None, maintenance.TableMaintenance]] = []
    for path, lake in list_lakes(opened).items():
        results = preview_tables(lake, session.clock) if dry_run else maintain_tables(lake, session.clock)
        results += [] if dry_run else maintenance.remove_leftover_probes(lake)
        done += [(path or None, result) for result in results]
        if not dry_run and not any(result.failed for result in results):
            record_maintenance(lake, session.clock, TABLE_TASKS)
    for _, result in done:
        if result.failed:
            warn(result.failed, code="not-kept-up")
    logs, runs = trim_log_files(opened, dry_run=dry_run), _trim_dagster_runs(opened, dry_run)
    if not dry_run:
        record_maintenance(session.lake(), session.clock, [MaintenanceTask.LOG_FILES, MaintenanceTask.DAGSTER_RUNS])
    documents = [{"home": path, **asdict(result)} for path, result in done]
    facts: dict[str, object] = {"tables": documents, "log_files": asdict(logs), "dagster_runs": runs}
    rows = [document for document in documents if any(document[name] for name in _MAINTAINED)]
    view = View("table rewritten checkpoint files not_rewritten home", "What is due" if dry_run else "What was done")

    def show() -> None:
        show_rows(rows, view)
        write_facts([("log files", f"{logs.files} ({format_bytes(logs.bytes)})"), ("Dagster's runs", _runs_text(runs))])

    is_due = (
        any(document[name] for document in documents for name in _WORK) or logs.files or (runs or {}).get("removed")
    )
    next_steps = [build_next_step("home", "maintain")] if dry_run and is_due else []
    write_result(facts, as_json=as_json, show=show, next_steps=next_steps)
    if any(result.failed for _, result in done):
        ctx.exit(1)


_WORK = ("rewritten", "checkpoint", "files")
"""The fields of a table's result that say what was done, or is due."""
_MAINTAINED = (*_WORK, "remaining", "not_rewritten")
"""The fields that make a table's result worth a line."""


def _trim_dagster_runs(home: HomeLocation, dry_run: bool) -> dict[str, int] | None:
    """Remove old runs from the home's Dagster storage, and return the counts; None if the home has no such storage."""
    if not (home.dagster / INSTANCE_FILE).exists():
        return None
    from dagster import DagsterInstance

    from cdc_platform_assets.dagster_history import trim_runs

    with DagsterInstance.from_config(str(home.dagster)) as instance:
        trimmed = trim_runs(instance, home.settings.dagster_retention_ms, home.dagster, dry_run=dry_run)
    return asdict(trimmed)


def _runs_text(runs: dict[str, int] | None) -> str:
    return "none here" if runs is None else f"{runs['removed']} removed, {runs['retained']} old ones stay"


@home.command("copy")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@json_option
@pass_session
def copy(session: CliSession, source: str, target: str, as_json: bool) -> None:
    """Copy the home FROM to a new one at TO, with its history.

    Copies the settings, and all tables at one set of versions. FROM and TO are folders or addresses such as
    s3://bucket/prefix. The homes of live clusters below it are copied, too. Every file is compared with its source,
    and the rows with the digests in the commits. If interrupted, run the same command again. Dagster's runs and
    cluster registrations that name variables or files of this machine stay.

    \b
    Example:
      cdc-platform home copy .cdc-platform s3://bucket/team/home
    """
    from cdc_platform.delta import Lake, lake_copy
    from cdc_platform.home_location import locate_home, open_home_location
    from cdc_platform.scylla import registry

    del session
    begun = open_home_location(source, create=False)
    target_path = locate_home(target)
    to = str(target_path)
    parts = _plan_copy(begun, target_path)
    done = lake_copy.LakeCopyResult()
    for part in parts:
        at, tell = target_path / part.path, partial(_warn_progress, part, as_json)
        done += lake_copy.copy_tables(Lake(str(part.source / "lake")), Lake(str(at / "lake")), part.versions, tell)
        lake_copy.copy_named_files(part.source, at, registry.list_extra_files(part.path, at))
    for part in reversed(parts):  # the home itself last, so that it exists once everything else does
        open_home_location(str(target_path / part.path))
    stay = registry.copy_connections(begun, to)
    registry.copy_selections(begun, to)
    for entry in registry.list_homes_left_behind(begun, [part.source for part in parts]):
        warn(f"{entry} stays on this machine: a home of its name lies in the store", code="stays-here")
    lake_copy.get_copy_note_path(to).remove()
    facts = {"from": begun.name, "to": to, "clusters": [part.path.partition("/")[2] for part in parts[1:]]}
    facts |= {"tables": done.tables, "files": done.files, "already_copied": done.found}
    next_steps = [*(_register_cluster_step(entry, to) for entry in stay), build_next_step("status", home=to)]
    write_result(facts, as_json=as_json, next_steps=next_steps)


@home.command("migrate")
@click.option("--undo", is_flag=True, help="Restore the files of a migration that was interrupted.")
@json_option
@pass_session
def migrate(session: CliSession, undo: bool, as_json: bool) -> None:
    """Upgrade a home of an earlier version in place.

    The homes of live clusters below it are upgraded, too. Removes settings that no longer exist and sets the layout. No
    table changes. If interrupted, run the same command again, or restore the home with --undo. Once it is done there is
    no way back: earlier versions refuse the home. Without a migration the home works, too. Stop `up` first.

    \b
    Example:
      cdc-platform home migrate
      cdc-platform home migrate --undo
    """
    from cdc_platform import home_migration
    from cdc_platform.home_location import LAYOUT_VERSION

    opened = session.open_location()
    changed: list[home_migration.ChangedFile] = []
    kept: list[home_migration.ChangedFile] = []
    with _hold_for_migration(opened):
        parts = _plan_migration(opened)
        if undo:
            interrupted = [part for part in parts if home_migration.is_migration_open(part.root)]
            if not interrupted:
                for part in parts:
                    home_migration.remove_leftovers(part.root)
                raise StateError(f"home {opened.name} has no interrupted migration, so nothing can be undone")
            for part in interrupted:
                restored, stay = home_migration.undo_migration(part.root)
                changed, kept = changed + part.locate(restored), kept + part.locate(stay)
        else:
            for part in parts:
                home_migration.assert_can_migrate(part.root, part.steps)
            for part in parts:
                changed += part.locate(home_migration.migrate_home(part.root, part.steps))
    for file in kept:
        warn(f"{file.path} was changed since the migration began, and stays as it is", code="kept-as-changed")
    layout = session.open_location().layout if undo else LAYOUT_VERSION
    files = [{"step": file.step, "path": file.path} for file in changed]
    view = View("step path", "Restored files" if undo else "Changed files")
    write_result(
        {"home": opened.name, "layout": layout, "undone": undo, "files": files},
        as_json=as_json,
        show=lambda: _show_migration(files, view, layout),
    )


def _show_migration(files: list[dict[str, str]], view: View, layout: int) -> None:
    show_rows(files, view)
    click.echo(f"The home has layout {layout}.")


@contextmanager
def _hold_for_migration(home: HomeLocation) -> Iterator[None]:
    """Hold a home against `up`, on this machine and, if it is in a store, on others."""
    from cdc_platform.instance_lock import lock_home_exclusively
    from cdc_platform.storage import ObjectStorePath, hold_store_lock, parse_path

    lease = parse_path(home.name) / "up.lease.json"
    held = hold_store_lock(lease, f"home {home.name} is up") if isinstance(lease, ObjectStorePath) else nullcontext()
    with lock_home_exclusively(home), held:
        yield


@dataclass(frozen=True)
class _MigratedHome:
    """A home that is migrated with a journal of its own, and its path below the home of the command, with a slash."""

    prefix: str
    root: StoragePath
    steps: list[MigrationStep]

    def locate(self, files: list[ChangedFile]) -> list[ChangedFile]:
        """Return the files with their paths below the home of the command."""
        return [replace(file, path=f"{self.prefix}{file.path}") for file in files]


def _plan_migration(home: HomeLocation) -> list[_MigratedHome]:
    """Return a home with the steps for it and for the homes of live clusters below it.

    Homes of clusters that lie on this machine although the home is in a store come before it, each by itself.
    """
    from cdc_platform.home_migration import file_steps
    from cdc_platform.scylla import registry
    from cdc_platform.storage import parse_path

    root = parse_path(home.name)
    steps: list[MigrationStep] = []
    local: list[_MigratedHome] = []
    for path, location in registry.list_cluster_homes(home).items():
        if str(location) == str(root / path):
            steps += file_steps(f"{path}/")
        else:
            local.append(_MigratedHome(f"{path}/", location, [*file_steps()]))
    return [*local, _MigratedHome("", root, [*steps, *file_steps()])]


def _plan_copy(begun: HomeLocation, to: StoragePath) -> list[_CopiedHome]:
    """Return the homes to copy, at one set of versions: those noted when the copy began, or else the current ones.

    The current ones are noted, so that an interrupted copy resumes with them.

    Raises:
        InputError: one of the two locations lies inside the other.
        StateError: the target is not empty, or has an unfinished copy of another home or version.
        ConflictError: the home is being written to all the time.
    """
    from cdc_platform.delta import Lake, lake_copy
    from cdc_platform.scylla import registry
    from cdc_platform.storage import parse_path

    if str(to) == begun.name:
        raise InputError(f"{to} is the home itself; name another place to copy it to")
    if f"{to}/".startswith(f"{begun.name}/") or begun.name.startswith(f"{to}/"):
        raise InputError(f"of {begun.name} and {to} one lies in the other; name another place to copy it to")
    note = lake_copy.get_copy_note_path(str(to))
    if note.stat() is not None:
        began = json.loads(note.read())
        if began["from"] != begun.name:
            raise StateError(
                f"{to} is a copy of {began['from']} that is not whole; finish that, or choose another place"
            )
        if "parts" not in began:
            raise StateError(f"{to} is a copy that another version has begun; remove it, and copy again")
        return [_CopiedHome(part["path"], parse_path(part["source"]), part["versions"]) for part in began["parts"]]
    if not _is_empty(to):
        raise StateError(f"{to} already exists; copy a home to a new folder or prefix")
    lake_copy.assert_can_copy_to(Lake(str(to / "lake")))
    sources = {"": parse_path(begun.name), **registry.list_cluster_homes(begun, to)}
    at = lake_copy.read_settled_versions(*(Lake(str(source / "lake")) for source in sources.values()))
    parts = [_CopiedHome(path, source, versions) for (path, source), versions in zip(sources.items(), at, strict=True)]
    documents = [{"path": part.path, "source": str(part.source), "versions": part.versions} for part in parts]
    lake_copy.put_file(note, json.dumps({"from": begun.name, "parts": documents}).encode())
    return parts


def _warn_progress(part: _CopiedHome, as_json: bool, name: str) -> None:
    if not as_json:
        warn(f"copying {name}{f' of {part.path}' if part.path else ''}", code="progress")


def _register_cluster_step(cluster: ScyllaCluster, home: str) -> NextStep:
    """Return the command that registers a cluster in the copy, for a machine with the variables and files it names."""
    from cdc_platform.scylla import registry

    names = ", ".join(name.replace("_", "-") for name in registry.get_machine_local_options(cluster.connection))
    words = registry.connection_options(cluster.connection)
    return build_next_step(
        "cluster", "add", cluster.name, *words, home=home, why=f"on a machine with what it names: {names}"
    )


def _is_empty(place: StoragePath) -> bool:
    """Return True if `place` has nothing but remains of a copy that was killed before it noted anything."""
    from cdc_platform.storage import atomic, write_check

    if place.local_path is not None:
        atomic.sweep_drafts(place.local_path)
    tried_out = write_check.get_probe_result_path(place / "lake")
    filled = any(folder.is_folder() for folder in place.folders())
    return not filled and all(place / name == tried_out for name in place.names())

"""`home migrate` migrates homes of earlier versions file by file, and can be undone until it has finished."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from dagster import DagsterInstance
from dagster._core.scheduler.instigation import InstigatorStatus
from support.command_line import Answer, run
from support.homes.packed import SERVED, add_cluster_homes, begin_migration, stopped_schedules, unpack

from cdc_platform.delta import MIRROR_MARK_FILE, Lake
from cdc_platform.home_location import LAYOUT_VERSION, open_home_location
from cdc_platform.home_migration import MIGRATION_FOLDER, MigrationStep, is_migration_open, migrate_home, undo_migration
from cdc_platform.instance_lock import lock_home_exclusively
from cdc_platform.server.code_server import initialize_dagster_storage
from cdc_platform.settings import remove_old_settings
from cdc_platform.storage import StoragePath, parse_path
from cdc_platform.tables import GENERATION_TIMESTAMPS

CLOCK = "2026-11-28T22:00:00Z"
PACKED_HOMES = [(release, home) for release in ("2026-11", "2026-11-28") for home in ("cluster", "first_format")]
PACKED_HOMES += [("2026-11-28", "logged"), (SERVED, "served")]


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """A home of version 0.2.0 that has Dagster's storage."""
    return unpack(SERVED, tmp_path) / "served"


def run_command(home: Path | str, *words: str) -> Answer:
    """Run a command on a home."""
    return run("--home", home, "--clock", CLOCK, *words)


def contents(home: Path) -> dict[str, bytes]:
    """Return every file of a home except those of its locks."""
    files = (path for path in home.rglob("*") if path.is_file())
    named = {str(path.relative_to(home)): path.read_bytes() for path in files}
    return {name: content for name, content in named.items() if name.partition("/")[0] not in ("up", "up.lock")}


@pytest.mark.files
@pytest.mark.parametrize(("release", "name"), PACKED_HOMES, ids=["-".join(entry) for entry in PACKED_HOMES])
def test_every_packed_home_is_migrated(release: str, name: str, tmp_path: Path) -> None:
    """Only the declared files change, and no table; a second migration has nothing to do."""
    home = unpack(release, tmp_path) / name
    before = contents(home)
    first = run_command(home, "home", "migrate", "--json")
    assert first.exit_code == 0, first.stderr
    changed = {file["path"] for file in first.json["files"]}
    after = contents(home)
    assert {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} == changed
    assert "platform.json" in changed <= {"platform.json", "settings.toml"}
    assert (first.json["layout"], first.json["undone"]) == (LAYOUT_VERSION, False)
    assert json.loads(after["platform.json"])["layout"] == LAYOUT_VERSION
    second = run_command(home, "home", "migrate", "--json")
    assert (second.exit_code, second.json["files"]) == (0, [])
    assert contents(home) == after


def test_a_stopped_schedule_stays_stopped_under_its_new_name(served: Path) -> None:
    """The code location carries the stop over before the daemon starts; runs, partitions and events stay."""
    assert stopped_schedules(served) == ["daily_upkeep"]
    assert run_command(served, "home", "migrate").exit_code == 0
    initialize_dagster_storage(served / "dagster")
    assert stopped_schedules(served) == ["daily_maintenance", "daily_upkeep"]
    with DagsterInstance.from_config(str(served / "dagster")) as instance:
        states = {state.name: state for state in instance.all_instigator_state()}
        assert states["daily_maintenance"].repository_selector == states["daily_upkeep"].repository_selector
        assert states["daily_maintenance"].repository_selector.location_name == "cdc_platform"
        assert len(instance.get_dynamic_partitions("generation")) == 2
        assert {run.status.value for run in instance.get_runs()} == {"SUCCESS"}
    assert Lake(served / "lake").read(GENERATION_TIMESTAMPS).num_rows == 2
    assert "generation_retry_ms" not in (served / "settings.toml").read_text(encoding="utf-8")


def test_a_restarted_schedule_is_not_stopped_again(served: Path) -> None:
    """A state under the new name is newer than one under the old name, so it stays."""
    initialize_dagster_storage(served / "dagster")
    with DagsterInstance.from_config(str(served / "dagster")) as instance:
        (state,) = [state for state in instance.all_instigator_state() if state.name == "daily_maintenance"]
        instance.update_instigator_state(state.with_status(InstigatorStatus.DECLARED_IN_CODE))
    initialize_dagster_storage(served / "dagster")
    assert stopped_schedules(served) == ["daily_upkeep"]


@pytest.fixture
def with_clusters(served: Path) -> Path:
    """That home with a mirror home that has tables, and the homes of two clusters without tables."""
    (unpack("2026-11-28", served.parent) / "logged").rename(served / "alpha")
    (served / "clusters").mkdir()
    (served / "alpha").rename(served / "clusters" / "alpha")
    (served / "clusters" / "alpha" / MIRROR_MARK_FILE).write_text('{"cluster": "alpha"}', encoding="utf-8")
    add_cluster_homes(served, ["alpha.until-20261101T000000", "beta"])
    return served


OF_CLUSTERS = [
    "clusters/alpha.until-20261101T000000/settings.toml",
    "clusters/beta/settings.toml",
    "settings.toml",
    "clusters/alpha/platform.json",
    "clusters/alpha.until-20261101T000000/platform.json",
    "clusters/beta/platform.json",
    "platform.json",
]


def test_cluster_homes_are_migrated_with_the_home_above(with_clusters: Path) -> None:
    """The command migrates mirrors and replaced clusters, too; no table changes, and a second run has nothing to do."""
    before = contents(with_clusters)
    done = run_command(with_clusters, "home", "migrate", "--json")
    assert [file["path"] for file in done.json["files"]] == OF_CLUSTERS, done.stderr
    after = contents(with_clusters)
    assert {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} == set(OF_CLUSTERS)
    assert {json.loads(after[path])["layout"] for path in OF_CLUSTERS if path.endswith(".json")} == {LAYOUT_VERSION}
    assert {after[path] for path in OF_CLUSTERS[:2]} == {b"policy = 'strict'\n"}
    assert run_command(with_clusters, "home", "migrate", "--json").json["files"] == []


@pytest.mark.parametrize("files", range(len(OF_CLUSTERS) + 1))
def test_cluster_homes_are_finished_or_undone_with_the_home_above(files: int, with_clusters: Path) -> None:
    """Wherever a migration ended, undoing restores every file byte by byte, and finishing migrates all homes."""
    before = contents(with_clusters)
    begin_migration(with_clusters, files)
    undone = run_command(with_clusters, "home", "migrate", "--undo", "--json")
    assert (undone.exit_code, undone.json["layout"]) == (0, 1), undone.stderr
    assert [file["path"] for file in undone.json["files"]] == OF_CLUSTERS
    assert contents(with_clusters) == before
    begin_migration(with_clusters, files)
    assert run_command(with_clusters, "home", "migrate").exit_code == 0
    markers = [path for path in OF_CLUSTERS if path.endswith(".json")]
    assert {json.loads((with_clusters / path).read_bytes())["layout"] for path in markers} == {LAYOUT_VERSION}


@pytest.mark.parametrize(
    ("marker", "code", "reason"),
    [
        (f'{{"layout": {LAYOUT_VERSION + 1}}}', "newer-layout", f"has layout {LAYOUT_VERSION + 1}, written by a newer"),
        ("{}", "environment", "is damaged"),
        ("no JSON", "environment", "is damaged"),
    ],
    ids=["newer", "empty", "text"],
)
def test_a_newer_or_damaged_cluster_home_is_refused(marker: str, code: str, reason: str, with_clusters: Path) -> None:
    """The error is one line that names the cluster's home, and no file of any home changes."""
    beta = with_clusters / "clusters" / "beta"
    (beta / "platform.json").write_text(marker, encoding="utf-8")
    before = contents(with_clusters)
    refused = run_command(with_clusters, "home", "migrate")
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1), refused
    assert str(beta) in refused.stderr
    assert reason in refused.stderr
    assert refused.stderr.endswith(f"[{code}]\n")
    assert contents(with_clusters) == before


@pytest.mark.parametrize("undo", [False, True], ids=["finished", "undone"])
def test_a_cluster_home_may_be_renamed_or_removed_meanwhile(undo: bool, with_clusters: Path) -> None:
    """Finishing migrates a renamed home under its new name, undoing leaves it, and a removed home stays removed."""
    begin_migration(with_clusters, 3)
    clusters = with_clusters / "clusters"
    (clusters / "beta").rename(clusters / "beta.until-20261128T000000")
    shutil.rmtree(clusters / "alpha.until-20261101T000000")
    answer = run_command(with_clusters, "home", "migrate", *(["--undo"] if undo else []), "--json")
    assert answer.exit_code == 0, answer.stderr
    layouts = [json.loads(path.read_bytes())["layout"] for path in clusters.glob("*/platform.json")]
    assert layouts == [1 if undo else LAYOUT_VERSION] * 2
    assert not (with_clusters / MIGRATION_FOLDER).exists()


class Died(BaseException):
    """Ends a migration as a kill does."""


STEPS = [MigrationStep(name, name, lambda content: content.removesuffix(b"!") + b"!") for name in ("a", "b", "c")]
"""Three files that each get an exclamation mark."""


@pytest.mark.parametrize("died_after", range(5))
@pytest.mark.parametrize("undo", [False, True], ids=["finished", "undone"])
def test_an_interrupted_migration_can_be_finished_or_undone(
    died_after: int, undo: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finish or undo a migration killed before or after any file; undoing restores every file byte by byte."""
    from cdc_platform import home_migration

    home = open_home_location(tmp_path / "home")
    root, steps = parse_path(home.name), STEPS
    for step in steps:
        (home.path / step.path).write_text(f"content of {step.name}", encoding="utf-8")
    before = contents(home.path)
    put, count = home_migration._put, 0

    def put_until_death(path: StoragePath, content: bytes) -> None:
        nonlocal count
        is_target = str(path) in {str(root / step.path) for step in steps}
        if is_target and count == died_after:
            raise Died
        count += is_target
        put(path, content)

    monkeypatch.setattr(home_migration, "_put", put_until_death)
    if died_after < len(steps):
        with pytest.raises(Died):
            migrate_home(root, steps)
        assert is_migration_open(root)
    monkeypatch.setattr(home_migration, "_put", put)
    if undo and died_after < len(steps):
        restored, skipped = undo_migration(root)
        assert ([file.path for file in restored], skipped) == (["a", "b", "c"], [])
        assert contents(home.path) == before
    migrate_home(root, steps)
    assert not is_migration_open(root)
    assert not (home.path / MIGRATION_FOLDER).exists()
    assert {name: content for name, content in contents(home.path).items() if name in "abc"} == {
        step.path: f"content of {step.name}!".encode() for step in steps
    }


def interrupt_migration(home: Path) -> None:
    """Begin a migration of a home and stop before the first file is replaced."""
    from cdc_platform import home_migration

    root = parse_path(str(home))
    home_migration._begin(root, root / MIGRATION_FOLDER, home_migration.file_steps())


def test_undo_restores_the_home_for_earlier_versions(served: Path) -> None:
    """Undoing restores the marker, too; then nothing is left to undo, and the migration can begin again."""
    before = contents(served)
    interrupt_migration(served)
    undone = run_command(served, "home", "migrate", "--undo", "--json")
    assert (undone.exit_code, undone.json["layout"], undone.json["undone"]) == (0, 1, True)
    assert contents(served) == before
    nothing = run_command(served, "home", "migrate", "--undo")
    assert nothing.exit_code == 2
    assert nothing.stderr == f"error: home {served} has no interrupted migration, so nothing can be undone [state]\n"
    assert run_command(served, "home", "migrate").exit_code == 0


def test_a_file_that_a_person_changed_meanwhile_is_not_lost(served: Path) -> None:
    """Undoing leaves a file that changed meanwhile as it is, with a warning; finishing migrates its current content."""
    settings = served / "settings.toml"
    interrupt_migration(served)
    settings.write_text("generation_retry_ms = 1\npolicy = 'recent-past'\n", encoding="utf-8")
    undone = run_command(served, "home", "migrate", "--undo")
    assert undone.exit_code == 0
    assert undone.stderr.startswith("warning: settings.toml was changed since the migration began, and stays as it is")
    interrupt_migration(served)
    settings.write_text("generation_retry_ms = 2\npolicy = 'strict'\n", encoding="utf-8")
    assert run_command(served, "home", "migrate").exit_code == 0
    assert settings.read_text(encoding="utf-8") == "policy = 'strict'\n"


def test_a_running_home_is_not_migrated(served: Path) -> None:
    """`up` holds the storage of schedules, so the migration is refused and changes nothing."""
    before = contents(served)
    with lock_home_exclusively(open_home_location(served)):
        refused = run_command(served, "home", "migrate")
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)
    assert "is already running" in refused.stderr
    assert contents(served) == before


def test_older_homes_show_their_layout_and_newer_ones_are_refused(served: Path) -> None:
    """`status` shows the layout and how to migrate; every command refuses a home of a later version in one line."""
    assert run_command(served, "status", "--json").json["layout"] == 1
    assert f"layout 1; cdc-platform --home {served} home migrate brings it to {LAYOUT_VERSION}" in " ".join(
        run_command(served, "status").stdout.split()
    )
    assert run_command(served, "home", "migrate").exit_code == 0
    assert run_command(served, "status", "--json").json["layout"] == LAYOUT_VERSION
    assert "home migrate" not in run_command(served, "status").stdout
    (served / "platform.json").write_text(json.dumps({"layout": LAYOUT_VERSION + 1}), encoding="utf-8")
    refused = run_command(served, "home", "migrate")
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)
    assert refused.stderr.endswith("[newer-layout]\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("generation_retry_ms = 5\nring_delay_ms = 7\n", "ring_delay_ms = 7\n"),
        ("# about\nring_delay_ms = 7  # seven\n  generation_retry_ms=5\n", "# about\nring_delay_ms = 7  # seven\n"),
        ("ring_delay_ms = 7\n", "ring_delay_ms = 7\n"),
        ("owners = ['generation_retry_ms = 5']\n", "owners = ['generation_retry_ms = 5']\n"),
        ("", ""),
    ],
)
def test_only_old_settings_are_removed(before: str, after: str) -> None:
    """Only the lines of old settings are removed; comments, order and spacing of the others stay."""
    assert remove_old_settings(before.encode()).decode() == after

"""Unknown facts of a log retain generations, whichever command registered the table, in any order."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Sequence
from itertools import permutations, product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.command_line import Answer, run
from support.drawing import examples
from support.files.export_files import generation, iso_time, streams_csv, timestamps_csv, v2_csv
from support.homes.expiring import DAY_MS, HOUR_MS, START_MS, at

from cdc_platform.clock import Milliseconds, cql_timestamp_literal
from cdc_platform.delta import Lake
from cdc_platform.importing.run import import_paths
from cdc_platform.lifecycle import expiry
from cdc_platform.metastore import cdc_tables
from cdc_platform.settings import Settings

TIMES_MS = tuple(Milliseconds(START_MS + DAY_MS * number) for number in range(5))
NOW_MS = Milliseconds(TIMES_MS[1] + 6 * HOUR_MS)
"""The time of registration, while the second of the five generations operates."""
FAR_MS = Milliseconds(START_MS + 40 * DAY_MS)
NOW, FAR = iso_time(NOW_MS), iso_time(FAR_MS)
UNTIL_NOW, LATER = ["keep", "keep"], ["mark", "mark", "keep"]
"""The later actions on generations: those that began before the registration, and the others."""
OLD_MS = Milliseconds(START_MS - 30 * DAY_MS)
OPTIONS = "cdc = {'enabled': 'true', 'delta': 'full', 'ttl': '3600'}"
BASE = "CREATE TABLE ks.t (a int PRIMARY KEY, b int) WITH comment = ''"
COLUMNS = 'a int, b int, PRIMARY KEY ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")'
LOG = (
    'CREATE TABLE ks.t_scylla_cdc_log ("cdc$stream_id" blob, "cdc$time" timeuuid, "cdc$batch_seq_no" int, '
    f"{COLUMNS}) WITH "
)
KEYSPACE = "CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': '3'};"


def make_id(time_ms: Milliseconds) -> uuid.UUID:
    """Return the ID of a table that is created at a time."""
    ticks = (time_ms * 10_000) + 0x01B21DD213814000
    return uuid.UUID(fields=(ticks & 0xFFFFFFFF, (ticks >> 32) & 0xFFFF, (ticks >> 48) & 0x0FFF | 0x1000, 0x80, 0, 1))


SCHEMAS = {
    "without_id": f"{KEYSPACE}\n{BASE} AND {OPTIONS};\nALTER TABLE ks.t_scylla_cdc_log WITH comment = 'x';",
    "with_id": f"{KEYSPACE}\n{BASE} AND {OPTIONS};\n{LOG} ID = {make_id(OLD_MS)};",
    "detached": f"{KEYSPACE}\n{BASE} AND {OPTIONS.replace('true', 'false')};\n{LOG} ID = {make_id(OLD_MS)};",
    "in_use": f"USE ks;\n{BASE.replace('ks.t', 't')} AND {OPTIONS};",
}


def write_files(folder: Path) -> None:
    """Write each schema to a file, and each generation to three files in a folder of its number."""
    folder.mkdir()
    for name, text in SCHEMAS.items():
        (folder / f"{name}.cql").write_text(text, encoding="utf-8")
    for number, time_ms in enumerate(TIMES_MS):
        description = generation(str(uuid.UUID(int=number + 1)))
        part = folder / str(number)
        part.mkdir()
        (part / "v2.csv").write_text(v2_csv({str(uuid.UUID(int=number + 1)): description}), newline="")
        (part / "streams.csv").write_text(streams_csv({time_ms: description}), newline="")
        (part / "times.csv").write_text(timestamps_csv({time_ms: None}), newline="")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files to import, created once."""
    folder = tmp_path_factory.mktemp("files") / "files"
    write_files(folder)
    return folder


Plan = list[tuple[object, ...]]


def plan_at_clocks(lake: Lake) -> list[Plan]:
    """Return the plan at three clocks, from the import on."""
    clocks = (NOW_MS, TIMES_MS[3], FAR_MS)
    plans = [expiry.plan_expiry(lake, at(Milliseconds(clock)), Settings()) for clock in clocks]
    return [
        [
            (
                planned_generation.time_ms,
                planned_generation.expired_ms,
                planned_generation.action.value,
                planned_generation.reasons,
                planned_generation.assumptions,
            )
            for planned_generation in plan
        ]
        for plan in plans
    ]


def apply_step(lake: Lake, files: Path, step: str) -> None:
    """Apply one step: an import of the named files, or `tables add`."""
    if step == "add":
        cdc_tables.add_cdc_table(lake, at(NOW_MS), "ks", "t", ttl_seconds=3600)
    elif step == "state":
        cdc_tables.add_cdc_table(lake, at(NOW_MS), "ks", "t", ttl_seconds=3600, created_at_ms=OLD_MS)
    else:
        import_paths(lake, at(NOW_MS), [files / name for name in step.split("+")])


GENERATIONS = [str(number) for number in range(len(TIMES_MS))]
BRINGS: list[tuple[list[str], list[str]]] = [
    (["without_id.cql"], [*UNTIL_NOW, *LATER]),
    (["in_use.cql"], [*UNTIL_NOW, *LATER]),
    (["with_id.cql"], [*UNTIL_NOW, *LATER]),
    (["detached.cql"], [*UNTIL_NOW, *LATER]),
    (["without_id.cql", "with_id.cql"], [*UNTIL_NOW, *LATER]),
    (["add", "without_id.cql"], [*UNTIL_NOW, *LATER]),
    (["add", "with_id.cql", "without_id.cql"], [*UNTIL_NOW, *LATER]),
    (["state", "without_id.cql", "add"], ["mark", "mark", *LATER]),
    (["state", "with_id.cql"], ["mark", "mark", *LATER]),
]
"""Steps that register a table, in any order, and the later actions on the generations."""


@st.composite
def orders(draw: st.DrawFn, brings: Sequence[str]) -> list[str]:
    """Draw every step once or more, in any order; adjacent imports are one command or several."""
    steps = draw(st.permutations([*brings, *GENERATIONS, *draw(st.lists(st.sampled_from(GENERATIONS), max_size=2))]))
    steps = [*steps, *draw(st.lists(st.sampled_from(brings), max_size=2))]
    commands: list[str] = []
    for step in steps:
        is_joined = commands and not {step, commands[-1]} & {"add", "state"} and draw(st.booleans())
        # A command imports each file once, and so each table.
        if is_joined and step not in commands[-1].split("+") and not (step.endswith("cql") and ".cql" in commands[-1]):
            commands[-1] += f"+{step}"
        else:
            commands.append(step)
    return commands


@pytest.fixture(scope="module")
def in_order(files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Plan]]:
    """The plans if the table is registered before the generations, oldest first; by the registering steps."""
    plans = {}
    for brings, _ in BRINGS:
        lake = Lake(tmp_path_factory.mktemp("in_order"))
        for step in [*brings, *GENERATIONS]:
            apply_step(lake, files, step)
        plans["+".join(brings)] = plan_at_clocks(lake)
    return plans


@pytest.mark.parametrize(("brings", "expected"), BRINGS, ids=lambda value: "+".join(value))
@settings(max_examples=examples(2), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.long("dozens of imports")
def test_every_order_gives_the_same_plan(
    brings: list[str],
    expected: list[str],
    data: st.DataObject,
    files: Path,
    in_order: dict[str, list[Plan]],
    tmp_path: Path,
) -> None:
    """Imports may be divided among commands, repeated, and mixed with statements about the table."""
    lake = Lake(tmp_path / uuid.uuid4().hex)
    for step in data.draw(orders(brings)):
        apply_step(lake, files, step)
    plans = plan_at_clocks(lake)
    assert plans == in_order["+".join(brings)]
    assert [action for _, _, action, *_ in plans[-1]] == expected
    assert plans[0][0][2] == expected[0]


ENTRIES = {
    "import without ID": ("import", "without_id.cql"),
    "import with ID": ("import", "with_id.cql"),
    "import of a detached log": ("import", "detached.cql"),
    "import after USE": ("import", "in_use.cql"),
    "tables add": ("tables", "add", "ks.t", "--ttl", "3600"),
    "tables add with creation alone in the past": (
        *("tables", "add", "ks.t", "--ttl", "3600", "--created-at", iso_time(OLD_MS), "--ttl-since", NOW),
    ),
    "tables add with TTL of now": ("tables", "add", "ks.t", "--ttl", "3600", "--ttl-since", NOW),
    "cql run --apply of a detached log": ("cql", "run", "detached.cql", "--apply"),
}


def run_at(home: Path, clock: str, *words: str | Path) -> Answer:
    """Run a command that succeeds."""
    answer = run("--home", home, "--clock", clock, *words)
    assert answer.exit_code == 0, answer.stderr
    return answer


def create_home(folder: Path, files: Path, entry: Sequence[str], *, generations_first: bool) -> Path:
    """Return a home in which an entry registered a table before or after all generations."""
    home = folder / "home"
    words = [files / word if word.endswith(".cql") else word for word in entry]
    # A script needs a generation, so one exists.
    run_at(home, NOW, "import", files / "4")
    generations = ("import", *(files / name for name in GENERATIONS))
    for command in (generations, words) if generations_first else (words, generations):
        run_at(home, NOW, *command)
    return home


def list_actions(home: Path) -> list[str]:
    """Return the later action on each generation, oldest first."""
    return [row["action"] for row in run_at(home, FAR, "expire", "--dry-run", "--json").rows]


@pytest.mark.parametrize(
    ("entry", "generations_first"), list(product(ENTRIES, (True, False))), ids=lambda value: str(value)
)
def test_no_registration_frees_a_generation_by_unknown_facts(
    entry: str, generations_first: bool, files: Path, tmp_path: Path
) -> None:
    """Generations stay until the advised command states the missing fact; every report names that command."""
    home = create_home(tmp_path, files, ENTRIES[entry], generations_first=generations_first)
    assert list_actions(home) == [*UNTIL_NOW, *LATER]
    plan = run_at(home, FAR, "expire", "--dry-run", "--json")
    (alert,) = [
        row_or_alert
        for row_or_alert in run_at(home, FAR, "status", "--json").json["alerts"]
        if row_or_alert["code"] == "unknown-past"
    ]
    assert alert["command"] is None  # only a person knows the times
    assert alert["advice"] in run_at(home, FAR, "expire", "--cql").stdout
    for answer in (plan, run_at(home, FAR, "expire", "--dry-run"), run_at(home, FAR, "expire", "--cql")):
        assert f"{alert['advice']} [unknown-past]" in answer.stderr
    assert all(alert["advice"] in row_or_alert["reasons"] for row_or_alert in plan.rows[:2])
    advised = alert["advice"].rpartition(": ")[2]
    assert advised.startswith(f"cdc-platform --home {home} tables alter ")
    words = shlex.split(advised.replace("TIME", iso_time(OLD_MS)))[1:]
    assert run("--clock", FAR, *words).exit_code == 0
    assert list_actions(home) == ["mark", "mark", *LATER]
    assert "unknown-past" not in run_at(home, FAR, "status", "--json").stdout


def test_expire_removes_nothing_that_an_unknown_log_may_need(files: Path, tmp_path: Path) -> None:
    """Neither `expire` nor its CQL removes a generation that began before the registration."""
    home = create_home(tmp_path, files, ENTRIES["import without ID"], generations_first=False)
    later = [iso_time(Milliseconds(FAR_MS + number * DAY_MS)) for number in range(3)]
    run_at(home, later[0], "expire")
    statements = run_at(home, later[1], "expire", "--cql").stdout
    for time_ms, is_removed in zip(TIMES_MS, (False, False, True, True, False), strict=True):
        assert (f"time = '{cql_timestamp_literal(time_ms)}'" in statements) == is_removed
    for clock in later[1:]:
        run_at(home, clock, "expire")
    times = {row["time"] for row in run_at(home, later[2], "generations", "--json").rows}
    assert {iso_time(time_ms) for time_ms in (*TIMES_MS[:2], TIMES_MS[4])} == times


def test_a_log_created_by_the_home_is_known(files: Path, tmp_path: Path) -> None:
    """The log has no rows from before its script, and the plan assumes nothing."""
    script = tmp_path / "made.cql"
    script.write_text(f"{KEYSPACE}\nCREATE TABLE ks.t (a int PRIMARY KEY) WITH {OPTIONS};", encoding="utf-8")
    home = create_home(tmp_path, files, ("cql", "run", str(script), "--apply"), generations_first=True)
    assert list_actions(home) == ["mark", "mark", *LATER]
    assert "unknown-past" not in run_at(home, FAR, "status", "--json").stdout


def test_a_disabled_log_retains_generations_that_may_have_rows(files: Path, tmp_path: Path) -> None:
    """A script and a schema with a stated creation both retain the generation until its TTL has passed."""
    script = tmp_path / "off.cql"
    statements = f"{KEYSPACE}\nCREATE TABLE ks.t (a int PRIMARY KEY) WITH {OPTIONS};\nINSERT INTO ks.t (a) VALUES (1);"
    script.write_text(f"{statements}\nALTER TABLE ks.t WITH {OPTIONS.replace('true', 'false')};", encoding="utf-8")
    by_script = create_home(tmp_path / "a", files, ("cql", "run", str(script), "--apply"), generations_first=True)
    by_schema = create_home(tmp_path / "b", files, ENTRIES["import of a detached log"], generations_first=True)
    run_at(by_schema, NOW, "tables", "alter", "ks.t", "--ttl-since", iso_time(OLD_MS))
    for home in (by_script, by_schema):
        (table,) = run_at(home, NOW, "tables", "--json").rows
        assert (table["enabled"], table["ttl_seconds"]) == (False, 3600)
        clock = iso_time(Milliseconds(TIMES_MS[2] + HOUR_MS))
        second = run_at(home, clock, "expire", "--dry-run", "--json").rows[1]
        assert (second["action"], second["blocked_by"]) == ("keep", ["ks.t"])
        assert second["expired"] == iso_time(Milliseconds(TIMES_MS[2] + HOUR_MS + 10_000))


def test_two_schemas_with_different_ttls(files: Path, tmp_path: Path) -> None:
    """Between two schemas with different TTLs, the table may have had any TTL."""
    later = tmp_path / "later.cql"
    later.write_text(SCHEMAS["with_id"].replace("3600", "60"), encoding="utf-8")
    expiries = []
    for number, (first, last) in enumerate(permutations((files / "with_id.cql", later))):
        home = create_home(tmp_path / str(number), files, ("import", str(first)), generations_first=True)
        run_at(home, iso_time(Milliseconds(TIMES_MS[3] + HOUR_MS)), "import", last)
        assert list_actions(home) == ["keep", "keep", "keep", "keep", "keep"]
        since = ("--ttl-since", iso_time(Milliseconds(TIMES_MS[2] + HOUR_MS)))
        run_at(home, FAR, "tables", "alter", "ks.t", *since)
        expiries.append([row["expired"] for row in run_at(home, FAR, "expire", "--dry-run", "--json").rows])
        assert list_actions(home) == ["keep", "keep", "mark", "mark", "keep"]
    ends = [iso_time(Milliseconds(TIMES_MS[k] + 10_000 + 1000 * ttl)) for k, ttl in ((3, 3600), (4, 60), (4, 3600))]
    assert expiries == [[None, None, ends[0], ends[1], None], [None, None, ends[0], ends[2], None]]

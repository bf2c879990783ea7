"""What is not known of a log keeps generations, whichever command brought the table here, and in whichever order."""

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
"""When the table comes here: the second of the five generations operates."""
FAR_MS = Milliseconds(START_MS + 40 * DAY_MS)
NOW, FAR = iso_time(NOW_MS), iso_time(FAR_MS)
UNTIL_NOW, LATER = ["keep", "keep"], ["mark", "mark", "keep"]
"""What becomes of generations, long after: of those that began before the table came here, and of the others."""
OLD_MS = Milliseconds(START_MS - 30 * DAY_MS)
OPTIONS = "cdc = {'enabled': 'true', 'delta': 'full', 'ttl': '3600'}"
BASE = "CREATE TABLE ks.t (a int PRIMARY KEY, b int) WITH comment = ''"
COLUMNS = 'a int, b int, PRIMARY KEY ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")'
LOG = (
    'CREATE TABLE ks.t_scylla_cdc_log ("cdc$stream_id" blob, "cdc$time" timeuuid, "cdc$batch_seq_no" int, '
    f"{COLUMNS}) WITH "
)
KEYSPACE = "CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': '3'};"


def id_of(time_ms: Milliseconds) -> uuid.UUID:
    """The ID that a table has which is made at a time."""
    ticks = (time_ms * 10_000) + 0x01B21DD213814000
    return uuid.UUID(fields=(ticks & 0xFFFFFFFF, (ticks >> 32) & 0xFFFF, (ticks >> 48) & 0x0FFF | 0x1000, 0x80, 0, 1))


SCHEMAS = {
    "without_id": f"{KEYSPACE}\n{BASE} AND {OPTIONS};\nALTER TABLE ks.t_scylla_cdc_log WITH comment = 'x';",
    "with_id": f"{KEYSPACE}\n{BASE} AND {OPTIONS};\n{LOG} ID = {id_of(OLD_MS)};",
    "detached": f"{KEYSPACE}\n{BASE} AND {OPTIONS.replace('true', 'false')};\n{LOG} ID = {id_of(OLD_MS)};",
    "in_use": f"USE ks;\n{BASE.replace('ks.t', 't')} AND {OPTIONS};",
}


def write_files(folder: Path) -> None:
    """Each schema in a file, and each generation in three, under its number."""
    folder.mkdir()
    for name, text in SCHEMAS.items():
        (folder / f"{name}.cql").write_text(text, encoding="utf-8")
    for number, time_ms in enumerate(TIMES_MS):
        made = generation(str(uuid.UUID(int=number + 1)))
        part = folder / str(number)
        part.mkdir()
        (part / "v2.csv").write_text(v2_csv({str(uuid.UUID(int=number + 1)): made}), newline="")
        (part / "streams.csv").write_text(streams_csv({time_ms: made}), newline="")
        (part / "times.csv").write_text(timestamps_csv({time_ms: None}), newline="")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files to import, made once."""
    folder = tmp_path_factory.mktemp("files") / "files"
    write_files(folder)
    return folder


Plan = list[tuple[object, ...]]


def planned(lake: Lake) -> list[Plan]:
    """The plan at some clocks, from the import on."""
    clocks = (NOW_MS, TIMES_MS[3], FAR_MS)
    plans = [expiry.plan_expiry(lake, at(Milliseconds(clock)), Settings()) for clock in clocks]
    return [
        [(each.time_ms, each.expired_ms, each.action.value, each.reasons, each.assumptions) for each in plan]
        for plan in plans
    ]


def do(lake: Lake, files: Path, step: str) -> None:
    """One step: an import of files that are named, or `tables add`."""
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
"""What brings a table here, in any order, and what becomes of the generations long after."""


@st.composite
def orders(draw: st.DrawFn, brings: Sequence[str]) -> list[str]:
    """Every step once or more, in any order; imports that follow each other are one command, or one each."""
    steps = draw(st.permutations([*brings, *GENERATIONS, *draw(st.lists(st.sampled_from(GENERATIONS), max_size=2))]))
    steps = [*steps, *draw(st.lists(st.sampled_from(brings), max_size=2))]
    found: list[str] = []
    for step in steps:
        together = found and not {step, found[-1]} & {"add", "state"} and draw(st.booleans())
        # A file comes once in a command, and so does a table.
        if together and step not in found[-1].split("+") and not (step.endswith("cql") and ".cql" in found[-1]):
            found[-1] += f"+{step}"
        else:
            found.append(step)
    return found


@pytest.fixture(scope="module")
def in_order(files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Plan]]:
    """The plans where the table comes first, and then the generations, oldest first; by what brings the table."""
    found = {}
    for brings, _ in BRINGS:
        lake = Lake(tmp_path_factory.mktemp("in_order"))
        for step in [*brings, *GENERATIONS]:
            do(lake, files, step)
        found["+".join(brings)] = planned(lake)
    return found


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
    """However imports are split over commands, repeated, and mixed with what is stated of the table."""
    lake = Lake(tmp_path / uuid.uuid4().hex)
    for step in data.draw(orders(brings)):
        do(lake, files, step)
    plans = planned(lake)
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


def on(home: Path, clock: str, *words: str | Path) -> Answer:
    """A command that succeeds."""
    answer = run("--home", home, "--clock", clock, *words)
    assert answer.exit_code == 0, answer.stderr
    return answer


def home_with(folder: Path, files: Path, entry: Sequence[str], *, generations_first: bool) -> Path:
    """A home in which a table came by an entry, before or behind all generations."""
    home = folder / "home"
    words = [files / word if word.endswith(".cql") else word for word in entry]
    # A script runs against generations, so that one of them is there.
    on(home, NOW, "import", files / "4")
    generations = ("import", *(files / name for name in GENERATIONS))
    for command in (generations, words) if generations_first else (words, generations):
        on(home, NOW, *command)
    return home


def actions(home: Path) -> list[str]:
    """What becomes of each generation long after, oldest first."""
    return [each["action"] for each in on(home, FAR, "expire", "--dry-run", "--json").rows]


@pytest.mark.parametrize(
    ("entry", "generations_first"), list(product(ENTRIES, (True, False))), ids=lambda value: str(value)
)
def test_no_way_in_frees_a_generation_by_what_is_not_known(
    entry: str, generations_first: bool, files: Path, tmp_path: Path
) -> None:
    """It stays until the advised command states the fact, and goes then; the command is named by all that tell."""
    home = home_with(tmp_path, files, ENTRIES[entry], generations_first=generations_first)
    assert actions(home) == [*UNTIL_NOW, *LATER]
    plan = on(home, FAR, "expire", "--dry-run", "--json")
    (matter,) = [each for each in on(home, FAR, "status", "--json").json["alerts"] if each["code"] == "unknown-past"]
    assert matter["command"] is None  # only a person knows the times
    assert matter["advice"] in on(home, FAR, "expire", "--cql").stdout
    for answer in (plan, on(home, FAR, "expire", "--dry-run"), on(home, FAR, "expire", "--cql")):
        assert f"{matter['advice']} [unknown-past]" in answer.stderr
    assert all(matter["advice"] in each["reasons"] for each in plan.rows[:2])
    advised = matter["advice"].rpartition(": ")[2]
    assert advised.startswith(f"cdc-platform --home {home} tables alter ")
    words = shlex.split(advised.replace("TIME", iso_time(OLD_MS)))[1:]
    assert run("--clock", FAR, *words).exit_code == 0
    assert actions(home) == ["mark", "mark", *LATER]
    assert "unknown-past" not in on(home, FAR, "status", "--json").stdout


def test_expire_removes_nothing_that_an_unknown_log_may_need(files: Path, tmp_path: Path) -> None:
    """However often it runs, here or by its statements in the cluster: what began before the table came here stays."""
    home = home_with(tmp_path, files, ENTRIES["import without ID"], generations_first=False)
    later = [iso_time(Milliseconds(FAR_MS + number * DAY_MS)) for number in range(3)]
    on(home, later[0], "expire")
    statements = on(home, later[1], "expire", "--cql").stdout
    for time_ms, goes in zip(TIMES_MS, (False, False, True, True, False), strict=True):
        assert (f"time = '{cql_timestamp_literal(time_ms)}'" in statements) == goes
    for clock in later[1:]:
        on(home, clock, "expire")
    times = {each["time"] for each in on(home, later[2], "generations", "--json").rows}
    assert {iso_time(time_ms) for time_ms in (*TIMES_MS[:2], TIMES_MS[4])} == times


def test_a_log_that_the_home_has_made_is_known(files: Path, tmp_path: Path) -> None:
    """It has no rows from before its script, and nothing is assumed of it."""
    script = tmp_path / "made.cql"
    script.write_text(f"{KEYSPACE}\nCREATE TABLE ks.t (a int PRIMARY KEY) WITH {OPTIONS};", encoding="utf-8")
    home = home_with(tmp_path, files, ("cql", "run", str(script), "--apply"), generations_first=True)
    assert actions(home) == ["mark", "mark", *LATER]
    assert "unknown-past" not in on(home, FAR, "status", "--json").stdout


def test_a_disabled_log_keeps_sets_that_may_have_rows(files: Path, tmp_path: Path) -> None:
    """The same history as a script, and as a schema with the creation stated: until its TTL has passed."""
    script = tmp_path / "off.cql"
    made = f"{KEYSPACE}\nCREATE TABLE ks.t (a int PRIMARY KEY) WITH {OPTIONS};\nINSERT INTO ks.t (a) VALUES (1);"
    script.write_text(f"{made}\nALTER TABLE ks.t WITH {OPTIONS.replace('true', 'false')};", encoding="utf-8")
    by_script = home_with(tmp_path / "a", files, ("cql", "run", str(script), "--apply"), generations_first=True)
    by_schema = home_with(tmp_path / "b", files, ENTRIES["import of a detached log"], generations_first=True)
    on(by_schema, NOW, "tables", "alter", "ks.t", "--ttl-since", iso_time(OLD_MS))
    for home in (by_script, by_schema):
        (table,) = on(home, NOW, "tables", "--json").rows
        assert (table["enabled"], table["ttl_seconds"]) == (False, 3600)
        clock = iso_time(Milliseconds(TIMES_MS[2] + HOUR_MS))
        second = on(home, clock, "expire", "--dry-run", "--json").rows[1]
        assert (second["action"], second["blocked_by"]) == ("keep", ["ks.t"])
        assert second["expired"] == iso_time(Milliseconds(TIMES_MS[2] + HOUR_MS + 10_000))


def test_all_orders_of_two_looks_at_a_ttl(files: Path, tmp_path: Path) -> None:
    """A schema with another TTL than the one before: between the two it may have been any TTL."""
    later = tmp_path / "later.cql"
    later.write_text(SCHEMAS["with_id"].replace("3600", "60"), encoding="utf-8")
    found = []
    for number, (first, last) in enumerate(permutations((files / "with_id.cql", later))):
        home = home_with(tmp_path / str(number), files, ("import", str(first)), generations_first=True)
        on(home, iso_time(Milliseconds(TIMES_MS[3] + HOUR_MS)), "import", last)
        assert actions(home) == ["keep", "keep", "keep", "keep", "keep"]
        since = ("--ttl-since", iso_time(Milliseconds(TIMES_MS[2] + HOUR_MS)))
        on(home, FAR, "tables", "alter", "ks.t", *since)
        found.append([each["expired"] for each in on(home, FAR, "expire", "--dry-run", "--json").rows])
        assert actions(home) == ["keep", "keep", "mark", "mark", "keep"]
    ends = [iso_time(Milliseconds(TIMES_MS[k] + 10_000 + 1000 * ttl)) for k, ttl in ((3, 3600), (4, 60), (4, 3600))]
    assert found == [[None, None, ends[0], ends[1], None], [None, None, ends[0], ends[2], None]]

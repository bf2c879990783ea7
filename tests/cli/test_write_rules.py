"""The mode of a home: the tables that it accepts from each source, and the commands that it therefore refuses.

Every table, every source and every command is tested in every mode. The expected answers are repeated here.
"""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from support.command_line import run
from support.files.export_files import ID
from support.homes.every_command import CASES, Asked, ask, home_of, path_of, write_files

from cdc_platform.cli import program
from cdc_platform.cli.next_steps import NextStep, replace_refused_steps
from cdc_platform.cli.write_rules import CDC_LOG, REBUILT_TABLE, WritingCommand, find_write_refusal
from cdc_platform.clock import Clock, Microseconds
from cdc_platform.delta import (
    HomeIsMirror,
    HomeIsObserved,
    HomeKind,
    HomeMode,
    Lake,
    ObservedStatus,
    WriteSource,
    get_home_mode,
    observed_home,
    read_home_mode,
    read_newest_versions,
    write_as,
)
from cdc_platform.home_location import open_home_location
from cdc_platform.storage import parse_path
from cdc_platform.tables import GENERATIONS, TABLES, Table

DERIVED, STATED, OBSERVED = WriteSource.DERIVED, WriteSource.STATED, WriteSource.OBSERVED
MODES = {
    HomeKind.OWN: HomeMode("/home"),
    HomeKind.OBSERVED: HomeMode("/home", None, lambda: ObservedStatus(Microseconds(0), 2, "a row is missing")),
    HomeKind.MIRROR: HomeMode("/home", "prod"),
}
ABOUT_THE_HOME = {"platform.judgements", "platform.only_observed", "platform.table_checks"}
ABOUT_READERS = {
    *ABOUT_THE_HOME,
    *("platform.consumers", "platform.passed_over", "platform.log_gaps", "platform.consumed_hours"),
    *("platform.stream_fingerprints", "platform.verdicts", "platform.verdict_counts"),
}
ACCEPTED = {
    (HomeKind.OWN, DERIVED): "all",
    (HomeKind.OWN, STATED): "all",
    (HomeKind.OWN, OBSERVED): "all",
    (HomeKind.OBSERVED, DERIVED): "about the home",
    (HomeKind.OBSERVED, STATED): "all",
    (HomeKind.OBSERVED, OBSERVED): "all",
    (HomeKind.MIRROR, DERIVED): "about readers",
    (HomeKind.MIRROR, STATED): "about readers",
    (HomeKind.MIRROR, OBSERVED): "all",
}
"""The tables that a home accepts from each source."""
REFUSED_BY_MIRROR = {
    *("demo", "bootstrap", "import", "rewrite", "repair", "expire", "cql run", "log-writes"),
    *("tables add", "tables declare-none", "tables alter", "tables drop"),
    *("switch ack", "switch commit", "switch abort"),
    *("tablets create", "tablets split", "tablets merge", "tablets resize", "tablets gc"),
}
STATING = {"import", "tables add", "tables declare-none", "tables alter", "tables drop"}
ABOUT_READERS_ALONE = {"consume", "consumers remove", "consumers gaps", "rebuild"}
REFUSED_BY_OBSERVED = (REFUSED_BY_MIRROR - STATING) | ABOUT_READERS_ALONE
NEVER_REFUSED = {"check"}
WRITING_PARAMETERS: dict[str, object] = {"is_applied": True, "accept": True, "ttl": 5}
"""The parameters with which some commands write that otherwise do not."""


def list_commands(group: click.Group, before: str = "") -> dict[str, click.Command]:
    """Return every command of a group that is not itself a group, by its path."""
    commands: dict[str, click.Command] = {}
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        path = f"{before} {name}".strip()
        commands |= list_commands(command, path) if isinstance(command, click.Group) else {path: command}
    return commands


def writing_commands() -> dict[str, WritingCommand]:
    """Return the commands that declare the tables that they write."""
    assert isinstance(program, click.Group)
    return {path: command for path, command in list_commands(program).items() if isinstance(command, WritingCommand)}


def get_parameters(command: click.Command, **changes: object) -> dict[str, object]:
    """Return a command's parameters, None if not given."""
    return {parameter.name or "": changes.get(parameter.name or "") for parameter in command.params}


@pytest.mark.parametrize("kind", MODES)
@pytest.mark.parametrize("source", WriteSource)
@pytest.mark.parametrize("table", [*TABLES.values(), None], ids=lambda table: table and table.full_name)
def test_each_table_is_accepted_or_refused(kind: HomeKind, source: WriteSource, table: Table | None) -> None:
    """Mode and source of the rows alone decide; an undeclared table counts as one with facts."""
    mode = MODES[kind]
    tables = {"all": None, "about the home": ABOUT_THE_HOME, "about readers": ABOUT_READERS}[ACCEPTED[kind, source]]
    is_accepted = tables is None or (table is not None and table.full_name in tables)
    assert mode.kind is kind
    assert mode.allows_write(table, source) is is_accepted
    with write_as(source):
        assert mode.allows_write(table) is is_accepted
    if is_accepted:
        mode.check_write(table, "a step", source)
        return
    with pytest.raises(HomeIsMirror if kind is HomeKind.MIRROR else HomeIsObserved, match=r"^a step: this home "):
        mode.check_write(table, "a step", source)


def test_an_inner_block_retains_permissions() -> None:
    """An import within an observation may write; after the block it may not."""
    mirror = MODES[HomeKind.MIRROR]
    with write_as(OBSERVED), write_as(STATED):
        assert mirror.allows_write(GENERATIONS)
    assert not mirror.allows_write(GENERATIONS)


def test_refusals_have_a_remedy() -> None:
    """One line has the mode, its reason, and the commands that help."""
    with pytest.raises(HomeIsObserved) as observed:
        MODES[HomeKind.OBSERVED].check_write(GENERATIONS, "expire")
    assert "(a row is missing and 1 more)" in str(observed.value)
    assert "cdc-platform --write-to-observed" in str(observed.value)
    with pytest.raises(HomeIsMirror) as mirror:
        MODES[HomeKind.MIRROR].check_write(GENERATIONS, "expire")
    assert "run: cdc-platform observe prod" in str(mirror.value)
    assert "cdc-platform home copy /home TO" in str(mirror.value)


def test_the_mode_of_a_home_is_read(tmp_path: Path) -> None:
    """The modes of a missing home, an own home, a marked home, and the home after its mark was lifted."""
    assert read_home_mode(parse_path(tmp_path / "none")).kind is HomeKind.OWN
    home = open_home_location(tmp_path / "home")
    lake = Lake(home.lake)
    assert get_home_mode(lake).kind is read_home_mode(parse_path(home.path)).kind is HomeKind.OWN
    observed_home.mark_as_observed(lake, Clock(), ["a row is missing"])
    assert get_home_mode(lake).kind is read_home_mode(parse_path(home.path)).kind is HomeKind.OBSERVED
    assert observed_home.lift_observed_mark(lake, Clock())
    assert get_home_mode(lake).kind is read_home_mode(parse_path(home.path)).kind is HomeKind.OWN


def test_commands_declare_tables_that_exist() -> None:
    """Each declared name is a full table name or stands for all logs or rebuilt tables."""
    assert {name for command in writing_commands().values() for name in command.writes} <= {
        *TABLES,
        CDC_LOG,
        REBUILT_TABLE,
    }


def test_each_writing_command_is_listed() -> None:
    """A new command needs the modes that refuse it."""
    assert writing_commands().keys() == REFUSED_BY_MIRROR | REFUSED_BY_OBSERVED | NEVER_REFUSED


@pytest.mark.parametrize("kind", MODES)
@pytest.mark.parametrize("path", sorted(REFUSED_BY_MIRROR | REFUSED_BY_OBSERVED | NEVER_REFUSED))
def test_each_command_is_refused_or_runs(kind: HomeKind, path: str) -> None:
    """The written tables and the rows' source decide; without its writing option a command runs anywhere."""
    command = writing_commands()[path]
    refused = {HomeKind.OWN: set(), HomeKind.OBSERVED: REFUSED_BY_OBSERVED, HomeKind.MIRROR: REFUSED_BY_MIRROR}[kind]
    params = get_parameters(command, **WRITING_PARAMETERS)
    source = command.get_source(params)
    if path not in refused:
        command.check_writes(MODES[kind], path, params, source)
        return
    with pytest.raises(HomeIsMirror if kind is HomeKind.MIRROR else HomeIsObserved, match=rf"^{path}: this home "):
        command.check_writes(MODES[kind], path, params, source)


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("bootstrap", {"listed": True}),
        ("rewrite", {"dry_run": True}),
        ("rewrite", {"clients": True}),
        ("repair", {"dry_run": True}),
        ("expire", {"dry_run": True}),
        ("expire", {"cql": True}),
        ("expire", {"forecast": 3}),
        ("tablets gc", {"dry_run": True}),
        ("cql run", {}),
        ("consumers gaps", {}),
        ("tables alter", {"created_at": "now"}),
        ("tables alter", {"ttl_since": 5}),
    ],
    ids=str,
)
def test_commands_that_only_read_run_anywhere(path: str, given: dict[str, object]) -> None:
    """So does an alteration that states what no observation shows."""
    command = writing_commands()[path]
    params = get_parameters(command, **given)
    for mode in MODES.values():
        command.check_writes(mode, path, params, command.get_source(params))


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that is only observed."""
    home = open_home_location(tmp_path_factory.mktemp("rules") / "home")
    observed_home.mark_as_observed(Lake(home.lake), Clock(), ["a row is missing"])
    return home.path


@pytest.mark.parametrize(
    ("words", "is_refused"),
    [
        (("expire",), True),
        (("expire", "--dry-run"), False),
        (("cql", "run", "f.cql"), False),
        (("cql", "run", "f.cql", "--apply"), True),
        (("switch", "commit", ID), True),
        (("tables", "add", "ks.t", "--ttl", "5"), False),
        (("tables",), False),
        (("no-such-command",), False),
        (("status",), False),
    ],
    ids=str,
)
def test_a_command_line_is_judged_without_running_it(observed: Path, words: tuple[str, ...], is_refused: bool) -> None:
    """The parsed options decide, even if the arguments are invalid."""
    assert isinstance(program, click.Group)
    refusal = find_write_refusal(program, ["--home", str(observed), *words])
    assert isinstance(refusal, HomeIsObserved) is is_refused


def test_judging_a_command_line_leaves_the_command_unchanged(observed: Path) -> None:
    """Click stores the help option's names from the first context, which must be the program's."""
    assert isinstance(program, click.Group)
    assert find_write_refusal(program, ["--home", str(observed), "tablets", "merge", "ks.t", "--count", "2"])
    assert run("tablets", "merge", "-h").exit_code == 0


def test_steps_that_would_be_refused_are_replaced(observed: Path) -> None:
    """One check replaces them; commands of other programs and reading commands stay."""
    line = f"cdc-platform --home {observed}"
    steps = [NextStep(f"{line} expire"), NextStep("nodetool status"), NextStep(f"{line} repair --run"), NextStep("ls")]
    with click.Context(program):
        replaced = [step.command for step in replace_refused_steps(steps)]
    assert replaced == ["cdc-platform check", "nodetool status", "ls"]


def test_the_option_permits_a_command_to_write(observed: Path) -> None:
    """The option may be before or after the command; without it nothing is written."""
    before = read_newest_versions(Lake(observed / "lake"))
    refused = run("--home", observed, "consumers", "remove", "a", "ks.t")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: consumers remove: this home is only observed since ")
    assert read_newest_versions(Lake(observed / "lake")) == before
    allowed = run("--home", observed, "--write-to-observed", "consumers", "remove", "a", "ks.t")
    assert "only observed" not in allowed.stderr


@pytest.mark.long("every command on a home of its own")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_commands_write_what_they_declare(case: Asked, tmp_path: Path) -> None:
    """A command writes no undeclared table, since the home's mode goes by the declaration."""
    home, files = home_of(case, tmp_path), tmp_path / "files"
    write_files(files, home.parent)
    for line in case.behind:
        assert ask(line, case.ms, str(home), files).exit_code == 0
    before = read_newest_versions(Lake(home / "lake"))
    ask(case.line, case.ms, str(home), files)
    after = read_newest_versions(Lake(home / "lake"))
    path = path_of(case.line)
    command = writing_commands().get(path)
    written = {name for name in after if after[name] != before.get(name)}
    if path == "home maintain":
        return  # it rewrites files of every table, and no row
    assert written & set(TABLES) <= set(command.writes if command is not None else ())

"""A file or folder named by a user is complete or absent after a kill, and one of eight writers succeeds."""

from __future__ import annotations

import ast
import os
import random
import signal
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.command_line import run
from support.drawing import KILLS, SEED
from support.nodes import node_text
from support.processes.nursery import Ended, Nursery

from cdc_platform.errors import InputError
from cdc_platform.storage import atomic

ROOT = Path(__file__).resolve().parents[2]
CLOCK = "2026-01-01T01:00:00Z"
TAKEN = ("already exists", "was created by another process in the meantime")


@dataclass(frozen=True)
class Output:
    """A command that writes a file named by the user as `{out}`; `module` is the module that writes it."""

    command: tuple[str, ...]
    module: str
    suffix: str = ""
    mode: int | None = None
    beside: Mapping[str, str] = field(default_factory=dict)


OUTPUTS = {
    "bundle": Output(("bundle", "{out}"), "cli/bundle.py", ".tar.gz", 0o600),
    "export": Output(("export", "{out}"), "importing/export.py"),
    "report --html": Output(("report", "latest", "--html", "{out}"), "cli/history.py", ".html"),
    "sql --parquet": Output(
        ("sql", "SELECT * FROM cdc_streams_descriptions_v2", "--parquet", "{out}"),
        "cli/sql.py",
        ".parquet",
    ),
    "rehearse --picture": Output(
        ("rehearse", "{beside}/steps.json", "--picture", "{out}"),
        "cli/rehearse.py",
        ".png",
        beside={"steps.json": '[{"wait": 3600}]'},
    ),
    "simulate --picture": Output(("simulate", "--seed", "1", "--picture", "{out}"), "cli/simulate.py", ".png"),
}
EVERY_OUTPUT = pytest.mark.parametrize("name", OUTPUTS)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a generation."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "node.json").write_text(node_text(1), encoding="utf-8")
    command = ("--clock", "2026-01-01T00:00:00Z", "bootstrap", folder / "node.json", "--run")
    assert run("--home", folder / "home", *command).exit_code == 0
    return folder / "home"


def command(name: str, home: Path, out: Path) -> list[str]:
    """Return the command line of an output, and write the files that it reads."""
    output = OUTPUTS[name]
    for file, text in output.beside.items():
        (home.parent / file).write_text(text, encoding="utf-8")
    words = [word.format(out=out, beside=home.parent) for word in output.command]
    return ["--home", str(home), "--clock", CLOCK, *words]


def read_contents(out: Path) -> dict[str, bytes] | None:
    """Return all content of a path, or None if the path is free."""
    if not os.path.lexists(out):
        return None
    files = sorted(path for path in out.rglob("*") if path.is_file()) if out.is_dir() else [out]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def is_refused_as_existing(ended: Ended) -> bool:
    """Return True if one line refused a command because the name exists."""
    line = ended.stderr
    return ended.exit_code == 2 and line.count("\n") == 1 and any(text in line for text in TAKEN)


@pytest.mark.grid("kills of commands that write files", 3)
@EVERY_OUTPUT
def test_killed_command_leaves_all_or_nothing(name: str, nursery: Nursery, home: Path, tmp_path: Path) -> None:
    """The kills come before each operation on a file of the folder; another run completes it without drafts."""
    if nursery.refusal:
        pytest.skip(nursery.refusal)
    suffix = OUTPUTS[name].suffix
    for folder in ("whole", "again"):
        (tmp_path / folder).mkdir()
    undisturbed_out = tmp_path / "whole" / f"out{suffix}"
    undisturbed = nursery.traced(command(name, home, undisturbed_out), undisturbed_out.parent)
    assert undisturbed.exit_code == 0, undisturbed
    expected, count = read_contents(undisturbed_out), len(undisturbed.operations)
    assert min(len(expected or ()), count) > 0, undisturbed.operations
    repeated = tmp_path / "again" / f"out{suffix}"
    assert nursery.run(*command(name, home, repeated)).exit_code == 0
    assert read_contents(repeated) == expected, "the same home and clock give the same bytes"
    numbers = list(range(count))
    if KILLS != "all":
        numbers = sorted(random.Random(SEED).sample(numbers, min(count, int(KILLS or 4))))
    for number in numbers:
        (tmp_path / str(number)).mkdir()
        out = tmp_path / str(number) / f"out{suffix}"
        killed = nursery.traced(command(name, home, out), out.parent, number)
        assert killed.exit_code == -signal.SIGKILL, killed
        contents = read_contents(out)
        assert contents in (None, expected), f"killed before operation {number} of {count}: {killed.operations[-1:]}"
        ended = nursery.run(*command(name, home, out))
        assert ended.exit_code == 0 if contents is None else is_refused_as_existing(ended), ended
        assert read_contents(out) == expected
        atomic.sweep_drafts(out.parent)  # a refused command neither creates nor removes drafts
        assert [path.name for path in out.parent.iterdir()] == [out.name]


@pytest.mark.grid("races of commands that write files", 2)
@EVERY_OUTPUT
def test_one_of_eight_concurrent_commands_succeeds(name: str, nursery: Nursery, home: Path, tmp_path: Path) -> None:
    """One line refuses each of the others, and the output is the successful command's, complete."""
    out = tmp_path / "race" / f"out{OUTPUTS[name].suffix}"
    out.parent.mkdir()
    ended = nursery.race([command(name, home, out)] * 8)
    assert [result.exit_code for result in ended].count(0) == 1, ended
    assert all(is_refused_as_existing(result) for result in ended if result.exit_code), ended
    alone = tmp_path / "alone" / out.name
    alone.parent.mkdir()
    assert nursery.run(*command(name, home, alone)).exit_code == 0
    assert read_contents(out) == read_contents(alone)
    assert [path.name for path in out.parent.iterdir()] == [out.name]


@EVERY_OUTPUT
def test_existing_path_stays(name: str, home: Path, tmp_path: Path) -> None:
    """An existing file, folder, dangling link or device and a path in the home are refused without any change."""
    suffix = OUTPUTS[name].suffix
    (tmp_path / f"file{suffix}").write_text("mine", encoding="utf-8")
    (tmp_path / f"folder{suffix}").mkdir()
    (tmp_path / f"link{suffix}").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / f"pipe{suffix}")
    before = sorted(path.name for path in tmp_path.iterdir())
    for taken in ("file", "folder", "link", "pipe"):
        refused = run(*command(name, home, tmp_path / f"{taken}{suffix}"))
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1), refused.stderr
        assert "already exists" in refused.stderr
    for path in (home / f"out{suffix}", home / "lake" / f"out{suffix}"):
        refused = run(*command(name, home, path))
        assert (refused.exit_code, "lies in the home" in refused.stderr) == (2, True), refused.stderr
    refused = run(*command(name, home, tmp_path / f"file{suffix}" / f"out{suffix}"))
    assert (refused.exit_code, "is no folder" in refused.stderr) == (2, True), refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / f"file{suffix}").read_text(encoding="utf-8") == "mine"


@EVERY_OUTPUT
def test_file_has_its_mode_and_any_name(name: str, home: Path, tmp_path: Path) -> None:
    """A name may be as long as the file system allows; a file is as private as its content."""
    suffix = OUTPUTS[name].suffix
    out = tmp_path / ("ü" * ((255 - len(suffix)) // 2) + suffix)
    done = run(*command(name, home, out))
    assert done.exit_code == 0, done.stderr
    mask = os.umask(0)
    os.umask(mask)
    if out.is_file():
        assert stat.S_IMODE(out.stat().st_mode) == (OUTPUTS[name].mode or 0o666 & ~mask)
    assert list(tmp_path.iterdir()) == [out]


def test_file_system_without_links_is_supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without links the draft is renamed if the name is free."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with atomic.new_file(tmp_path / "a") as draft:
        draft.write_text("whole", encoding="utf-8")
    with pytest.raises(InputError, match="by another process"), atomic.new_file(tmp_path / "b") as draft:
        (tmp_path / "b").write_text("theirs", encoding="utf-8")
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {"a": "whole", "b": "theirs"}


def test_an_error_names_the_users_file(tmp_path: Path) -> None:
    """Users do not know the hidden name of a draft."""
    (tmp_path / "closed").mkdir(mode=0o500)
    if os.access(tmp_path / "closed", os.W_OK):
        pytest.skip("the superuser may write everywhere")
    for new in (atomic.new_file, atomic.new_folder):
        with pytest.raises(PermissionError) as refused, new(tmp_path / "closed" / "out"):
            pass
        assert refused.value.filename == str(tmp_path / "closed" / "out")


# Which modules write files, and where. Names that a user gives are written by `atomic.new_file` and `new_folder`.
OWN_FILES = {
    "cdc_platform/storage/atomic.py": "makes the drafts",
    "cdc_platform/storage/path.py": "a place in a home",
    "cdc_platform/storage/locks.py": "lock files of the home",
    "cdc_platform/cdclog/script/run.py": "an unnamed temporary file",
    "cdc_platform/__main__.py": "the null device",
    "cdc_platform/home/maintenance.py": "logs of the home that are too long",
    "cdc_platform/json_logs.py": "logs of the home",
    "cdc_platform/cli/output.py": "the null device",
    "cdc_platform/cli/sql.py": "the null device, and a draft of new_file",
    "cdc_platform/cli/bundle.py": "a draft of new_file, in memory before",
    "cdc_platform/cli/history.py": "a draft of new_file",
    "cdc_platform/cli/rehearse.py": "a draft of new_file",
    "cdc_platform/cli/simulate.py": "a draft of new_file",
    "cdc_platform/query/change_views.py": "a file in a temporary folder",
    "cdc_platform/importing/export.py": "a draft of new_folder",
    "cdc_platform/delta/": "tables and caches of the home",
    "cdc_platform/spark/": "caches and Spark's files of the home and of temporary folders",
    "cdc_platform/server/": "what up has in the home",
    "cdc_platform/spark_server.py": "what up has in the home",
    "cdc_platform/plots/": "pictures in memory and of the home",
}
WRITERS = {"write_text", "write_bytes", "touch", "savefig", "ParquetWriter", "symlink_to", "hardlink_to", "mkfifo"}
WRITERS |= {"copyfile", "copyfileobj", "copytree", "copy2", "mkstemp", "NamedTemporaryFile", "TemporaryFile"}
MODES = set("wax+")


def writes(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the calls of a module that open a file to write, or create one."""
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in WRITERS:
            yield call.lineno, name
        elif name == "open":
            owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
            arguments = [*call.args, *(node.value for node in call.keywords)]
            texts = [node.value for node in arguments if isinstance(node, ast.Constant) and isinstance(node.value, str)]
            flags = "O_WRONLY O_RDWR O_CREAT" if owner == "os" else ""
            if any(MODES & set(text) and len(text) < 6 for text in texts) or any(
                flag in ast.unparse(call) for flag in flags.split()
            ):
                yield call.lineno, f"{owner}.open"


def test_no_other_module_writes_user_files() -> None:
    """Each module that writes files is listed; a new one needs an entry, or uses `atomic.new_file`."""
    modules: dict[str, list[tuple[int, str]]] = {}
    for folder in ("cdc_platform", "assets", "resources"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if lines := list(writes(path)):
                modules[str(path.relative_to(ROOT))] = lines
    known = {name: [prefix for prefix in OWN_FILES if name == prefix or name.startswith(prefix)] for name in modules}
    assert {name: modules[name] for name, reasons in known.items() if not reasons} == {}
    assert set(OWN_FILES) - {prefix for reasons in known.values() for prefix in reasons} == set()


def test_every_command_that_writes_a_file_is_in_the_table() -> None:
    """The modules that use `new_file` or `new_folder` are those of the cases above."""
    callers = {
        str(path.relative_to(ROOT / "cdc_platform"))
        for path in (ROOT / "cdc_platform").rglob("*.py")
        if path.name != "atomic.py"
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Attribute) and call.attr in ("new_file", "new_folder")
    }
    assert callers == {output.module for output in OUTPUTS.values()}

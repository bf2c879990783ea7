"""Every command that reads a user's file refuses oversized or deeply nested input.

It prints one line, exits with code 2 and uses bounded memory. Each command runs in its own process, whose memory the
system reports. Other tests cover the content of files of a legal size.
"""

from __future__ import annotations

import ast
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.command_line import run
from support.processes.watched import Left, watched
from support.read_logs import home_with_log

from cdc_platform.errors import InputError
from cdc_platform.home_location import open_home_location
from cdc_platform.importing.formats.strict_json import MAX_JSON_BYTES, max_export_bytes
from cdc_platform.spark.executors import SPARK_CONF_VARIABLE, read_conf_file
from cdc_platform.storage import read_user_text
from cdc_platform.storage.user_files import PIPE_SECONDS_VARIABLE

TERABYTE = 1 << 40
MOST_HELD = 512 << 20
"""Bytes that a process may hold when it reads 64 MiB and refuses them; without them it holds a third of that."""
A_DOOR = pytest.mark.grid("hostile files for every reader", 16)


@dataclass(frozen=True)
class Door:
    """A command line with `{file}` in it, the format that it reads there, and the files that it needs before."""

    command: tuple[str, ...]
    reads: str = "json"
    by_stream: bool = False
    needs: Mapping[str, str] | None = None
    needs_log: bool = False


ROOT = Path(__file__).resolve().parents[2]
OWN_FILES = {
    "storage/": "files of homes and stores",
    "delta/": "tables and caches",
    "spark/": "caches, files of the program and of a home",
    "spark_server.py": "the address of the server of `up`",
    "cql/parser.py": "the grammar",
    "home_location.py": "the home's marker",
    "reporting/page.py": "the template",
    "processes.py": "/proc, and the end of a log of the home",
    "importing/sources.py": "the first bytes of regular files in a folder",
    "importing/formats/strict_json.py": "limits of a control group",
    "server/": "files of the home",
    "scylla/metadata_fingerprint.py": "a note of the home",
    "alerts/channel.py": "the state of the home's alerts",
    "alerts/hooks.py": "a note of the home",
    "dagster_home.py": "a file of the program",
    "instance_lock.py": "locks of the home",
    "cli/bundle.py": "logs of the home",
    "cli/demo_acts.py": "files of the program",
    "cli/demo.py": "files of the program",
}
CREATE = "CREATE KEYSPACE ks; CREATE TABLE ks.t (pk int PRIMARY KEY, v text) WITH cdc = {'enabled': true};"
INSERT = f"{CREATE} INSERT INTO ks.t (pk, v) VALUES (?, ?);"
CHANGES = '[{"wait": 3600}]'
DOORS = {
    "bootstrap": Door(("bootstrap", "{file}")),
    "bootstrap -": Door(("bootstrap", "-"), by_stream=True),
    "import": Door(("import", "{file}")),
    "import, an export": Door(("import", "{file}"), "csv"),
    "import, what SELECT JSON prints": Door(("import", "{file}"), "printed"),
    "import, a schema": Door(("import", "{file}"), "schema"),
    "import, what nodetool prints": Door(("import", "{file}"), "ring"),
    "rehearse": Door(("rehearse", "{file}")),
    "rehearse --ring": Door(("rehearse", "{dir}/changes.json", "--ring", "{file}"), needs={"changes.json": CHANGES}),
    "simulate --scenario": Door(("simulate", "--scenario", "{file}"), "scenario"),
    "cql run": Door(("cql", "run", "{file}"), "cql"),
    "cql run --apply": Door(("cql", "run", "{file}", "--apply"), "cql"),
    "cql run --values": Door(("cql", "run", "{dir}/a.cql", "--values", "{file}"), "values", needs={"a.cql": INSERT}),
    "tablets create": Door(("tablets", "create", "ks.t", "--last-tokens", "{file}")),
    "tablets create -": Door(("tablets", "create", "ks.t", "--last-tokens", "-"), by_stream=True),
    "tablets resize": Door(("tablets", "resize", "ks.t", "--last-tokens", "{file}")),
    "credentials": Door(("observe", "credentials"), "toml"),
    "certificates": Door(("observe", "ca"), "pem"),
    "consumers checkpoints": Door(("consumers", "checkpoints", "{file}"), "csv"),
    "complete --base": Door(
        ("verify-interval", "2026-01-31T12:00:00Z", "2026-01-31T12:10:00Z", "--consumer", "audit", "--base", "{file}"),
        "row",
        needs_log=True,
    ),
    "report --verify": Door(("report", "--verify", "{file}"), "page"),
    "report --key": Door(
        ("report", "--verify", "{dir}/page.html", "--key", "{file}"), "key", needs={"page.html": "no page"}
    ),
    "report --sign": Door(("report", "latest", "--html", "{dir}/page.html", "--sign", "{file}"), "key"),
}


def write_sparse_file(folder: Path) -> Path:
    """Create a sparse file of a terabyte of zeros."""
    path = folder / "huge"
    path.touch(mode=0o600)
    os.truncate(path, TERABYTE)
    return path


def text_file(text: str) -> Callable[[Path], Path]:
    """Return a function that writes a file with this text."""

    def write(folder: Path) -> Path:
        path = folder / "given"
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def nested_text(form: str, levels: int) -> str:
    """Return `levels` nested levels in the format that the command reads."""
    around = {
        "json": ("", "[", "1", "]", ""),
        "values": ("[[[1, ", "[", "1", "]", "]]]"),
        "cql": (f"{CREATE} INSERT INTO ks.t (pk, v) VALUES (", "[", "1", "]", ", 'a');"),
        "csv": ("id,range_end,ignore_msb,num_ranges,streams\n", "{", "0x00", "}", ""),
        "printed": (" [json]\n------\n ", "[", "1", "]", "\n\n(1 rows)\n"),
        "schema": ("CREATE TABLE ks.t (a ", "frozen<list<", "int", ">>", ") WITH cdc = {'enabled': true};"),
        "ring": ("TokenRange: \n\tTokenRange(start_token:1, endpoints:", "[", "", "]", "\n"),
        "toml": ("user = ", "[", "1", "]", "\n"),
        "scenario": ("seeds = ", "[", "1", "]", "\n"),
        "pem": ("", "-----BEGIN CERTIFICATE-----\n", "", "-----END CERTIFICATE-----\n", ""),
        "key": ("", "-----BEGIN PRIVATE KEY-----\n", "", "-----END PRIVATE KEY-----\n", ""),
        "row": ('{"p": ', "[", "1", "]", "}\n"),
        "page": ("", "<div>", "", "</div>", ""),
    }[form]
    before, opening, middle, closing, after = around
    return f"{before}{opening * levels}{middle}{closing * levels}{after}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Create an empty home."""
    home = tmp_path / "home"
    open_home_location(home, create=True)
    return home


def prepared(home: Path, file: Path, door: Door) -> list[str]:
    """Return the command line for a file, after writing everything else that it needs."""
    folder = home.parent
    for name, text in (door.needs or {}).items():
        (folder / name).write_text(text)
    if door.needs_log:
        home_with_log(folder)
        assert run("--home", home, "consume", "ks.t", "--name", "audit").exit_code == 0
    if door.reads in ("toml", "pem"):
        option = ("--credentials-file",) if door.reads == "toml" else ("--tls", "--tls-ca")
        name = door.command[1]
        assert run("--home", home, "cluster", "add", name, "--contact", "127.0.0.1:1", *option, file).exit_code == 0
    return [part.format(file=file, dir=folder) for part in door.command]


def process(home: Path, file: Path, door: Door, **environment: str) -> Left:
    """Run a command on a file as a user does."""
    command = prepared(home, file, door)
    with file.open("rb") as stream:
        stdin = stream if door.by_stream else None
        return watched("--home", home, *command, stream=stdin, environment=environment)


def assert_refused(process_result: Left) -> None:
    """Assert one line that begins with `error:`, exit code 2 and memory within the limit."""
    assert process_result.stderr.count("\n") == 1, process_result.stderr[:2_000]
    assert process_result.stderr.startswith("error: ")
    assert len(process_result.stderr) < 700
    assert (process_result.exit_code, process_result.held < MOST_HELD) == (2, True), process_result


@A_DOOR
@pytest.mark.parametrize("name", DOORS)
def test_oversized_input_is_refused(home: Path, tmp_path: Path, name: str) -> None:
    """The command stops reading a file of a terabyte at the limit."""
    process_result = process(home, write_sparse_file(tmp_path), DOORS[name])
    assert_refused(process_result)
    assert "more than" in process_result.stderr


@A_DOOR
@pytest.mark.parametrize("name", DOORS)
def test_endless_input_is_refused(home: Path, name: str) -> None:
    """The command refuses a device that never ends and has no size to check."""
    door = DOORS[name]
    if door.command[0] == "import" and max_export_bytes() > MAX_JSON_BYTES * 4:
        pytest.skip("it would read a tenth of this machine's memory")
    if door.reads == "toml":
        pytest.skip("others can read the device, which is refused before it is opened")
    process_result = process(home, Path("/dev/zero"), door)
    assert_refused(process_result)
    assert "more than" in process_result.stderr


@A_DOOR
@pytest.mark.parametrize("name", [name for name, door in DOORS.items() if not door.by_stream])
def test_reading_a_pipe_without_writer_times_out(home: Path, tmp_path: Path, name: str) -> None:
    """No command waits for a writer forever; it reports how long it waited, or that it reads no pipes."""
    door, pipe = DOORS[name], tmp_path / "pipe"
    os.mkfifo(pipe, mode=0o600)
    process_result = watched("--home", home, *prepared(home, pipe, door), environment={PIPE_SECONDS_VARIABLE: "0.1"})
    assert_refused(process_result)
    assert ("not a regular file" if door.reads == "pem" else "has sent nothing for 0.1 s") in process_result.stderr


@pytest.mark.parametrize("held", [False, True], ids=["no writer", "a silent writer"])
def test_waiting_for_a_pipe_is_limited(tmp_path: Path, held: bool) -> None:
    """A read from a silent pipe times out, whether or not a process has opened it for writing."""
    # Spark settings are read by the same function.
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR) if held else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PIPE_SECONDS_VARIABLE, "0.1")
        patch.setenv(SPARK_CONF_VARIABLE, str(tmp_path / "pipe"))
        with pytest.raises(InputError, match=r"has sent nothing for 0\.1 s"):
            read_conf_file()
        for wrong in ("0", "-1", "nan", "soon", "1e9"):
            patch.setenv(PIPE_SECONDS_VARIABLE, wrong)
            with pytest.raises(InputError, match=PIPE_SECONDS_VARIABLE):
                read_user_text(tmp_path / "pipe")
        patch.delenv(PIPE_SECONDS_VARIABLE)
        patch.setenv(SPARK_CONF_VARIABLE, "/dev/zero")
        with pytest.raises(InputError, match="more than 1 MiB"):
            read_conf_file()
    if writer is not None:
        os.close(writer)


def test_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    """A pipe is read in pieces to its end like a file, even if its writer starts late."""
    os.mkfifo(tmp_path / "pipe")
    text = "é" * 300_000

    def write() -> None:
        with (tmp_path / "pipe").open("w", encoding="utf-8") as pipe:
            pipe.write(text)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_user_text(tmp_path / "pipe") == text
    writer.join()


def test_files_of_users_are_read_by_one_function() -> None:
    """Every module that reads a file by other means is listed with what it reads; new ones use `user_files`."""
    calls: dict[str, list[int]] = {}
    for path in sorted((ROOT / "cdc_platform").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                name, text = call.func.attr, ast.unparse(call)
                opens = name == "open" and any(mode in text for mode in ("'rb'", "'r'", "O_RDONLY"))
                if opens or name in ("read_text", "read_bytes"):
                    calls.setdefault(str(path.relative_to(ROOT / "cdc_platform")), []).append(call.lineno)
    reasons_by_file = {
        name: [prefix for prefix in OWN_FILES if name == prefix or name.startswith(prefix)] for name in calls
    }
    assert {name: calls[name] for name, reasons in reasons_by_file.items() if not reasons} == {}
    assert set(OWN_FILES) - {prefix for reasons in reasons_by_file.values() for prefix in reasons} == set()


@A_DOOR
@pytest.mark.parametrize("name", DOORS)
def test_deeply_nested_input_is_refused(home: Path, tmp_path: Path, name: str) -> None:
    """Input nested far deeper than Python's limit is refused."""
    process_result = process(home, text_file(nested_text(DOORS[name].reads, 100_000))(tmp_path), DOORS[name])
    assert_refused(process_result)
    assert DOORS[name].reads not in ("json", "values") or "nested" in process_result.stderr


@pytest.mark.parametrize("levels", [200, 970])
@pytest.mark.parametrize("name", [name for name, door in DOORS.items() if door.reads in ("json", "values", "cql")])
def test_input_just_below_the_nesting_limit_is_refused(home: Path, tmp_path: Path, name: str, levels: int) -> None:
    """Input just below Python's nesting limit is refused, because printing it would fail."""
    door, text = DOORS[name], nested_text(DOORS[name].reads, levels)
    arguments = prepared(home, text_file(text)(tmp_path), door)
    answer = run("--home", home, *arguments, stdin=text if door.by_stream else None)
    assert (answer.exit_code, answer.stderr.count("\n")) == (2, 1), answer.stderr[:2_000]
    assert door.reads == "cql" or "nested" in answer.stderr


@A_DOOR
@pytest.mark.parametrize("name", [name for name, door in DOORS.items() if door.reads in ("json", "values")])
def test_largest_legal_input_takes_bounded_memory(home: Path, tmp_path: Path, name: str) -> None:
    """Empty lists up to the size limit need the most memory; `test_sizes` has the figure for a row of exports."""
    lists = "[" + "[]," * 21_000_000 + "[]]"
    assert_refused(process(home, text_file(lists)(tmp_path), DOORS[name]))

"""The behaviour of the command line after a refusal, an interrupt, or a closed output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import run
from support.files.export_files import ID, TIME_MS, generation, streams_csv, timestamps_csv
from support.homes.timelines import DDL, FIRST_MS, THIRD_MS, home_of

from cdc_platform.clock import DAY_MS, format_ms

PROGRAM = [sys.executable, "-m", "cdc_platform"]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with three generations that tests only read."""
    return home_of(tmp_path_factory.mktemp("hands"), "three")


def test_a_refused_import_leaves_no_home(tmp_path: Path) -> None:
    """A refused import creates no home and leaves an existing home."""
    text = streams_csv({TIME_MS: generation(ID)})
    (tmp_path / "streams.csv").write_text(text[: len(text) // 2], encoding="utf-8", newline="")
    (tmp_path / "times.csv").write_text(timestamps_csv({TIME_MS: None}), encoding="utf-8", newline="")
    (tmp_path / "local.csv").write_text(f"key,streams_timestamp,uuid\ncdc_local,,{ID}\n", encoding="utf-8", newline="")
    home = tmp_path / "home"
    for name in ("streams.csv", "local.csv"):
        answer = run("--home", home, "import", tmp_path / name)
        assert answer.exit_code == 2, answer.stdout
        assert not home.exists()
    assert run("--home", home, "import", tmp_path / "times.csv").exit_code == 0
    assert run("--home", home, "import", tmp_path / "streams.csv").exit_code == 2
    assert (home / "lake").is_dir()


def test_a_refused_table_leaves_no_home(tmp_path: Path) -> None:
    """A log created in the future is refused, and no folder is created."""
    made_later = ("tables", "add", "ks.t", "--ttl", "1", "--created-at", "2026-02-01T00:00:00Z")
    answer = run("--home", tmp_path / "home", "--clock", "2026-01-31T12:00:00Z", *made_later)
    assert (answer.exit_code, (tmp_path / "home").exists()) == (2, False)


def test_a_home_can_declare_that_no_table_has_a_log(tmp_path: Path) -> None:
    """Afterwards expiry marks old generations; with a logged table the declaration is refused."""
    home = tmp_path / "home"
    times, streams = tmp_path / "times.csv", tmp_path / "streams.csv"
    later = TIME_MS + DAY_MS
    generations_by_time = {TIME_MS: generation(ID), later: generation("22222222-2222-4222-8222-222222222222")}
    times.write_text(timestamps_csv(dict.fromkeys(generations_by_time)), encoding="utf-8", newline="")
    streams.write_text(streams_csv(generations_by_time), encoding="utf-8", newline="")
    assert run("--home", home, "import", times, streams).exit_code == 0

    def planned() -> list[tuple[str, list[str]]]:
        rows = run("--home", home, "expire", "--dry-run", "--json").rows
        return [(row["action"], row["blocked_by"]) for row in rows]

    assert planned()[0] == ("keep", ["no CDC-enabled table is known"])
    assert "no-tables" in run("--home", home, "status").stdout
    assert run("--home", home, "tables", "declare-none", "--json").json["tables"] == 0
    assert run("--home", home, "tables", "declare-none").exit_code == 0
    assert [action for action, _ in planned()] == ["mark", "keep"]
    assert "no-tables" not in run("--home", home, "status").stdout
    assert run("--home", home, "tables", "add", "ks.t", "--ttl", "60").exit_code == 0
    refused = run("--home", home, "tables", "declare-none")
    assert (refused.exit_code, "ks.t has a log" in refused.stderr) == (2, True)


def test_log_reads_standard_input_and_names_what_it_read(three: Path, tmp_path: Path) -> None:
    """`-` is standard input; the message for a wrong statement names its file."""
    clock = ("--home", three, "--clock", format_ms(THIRD_MS))
    text = f"{DDL.replace('ks.t', 'ks.u')} INSERT INTO ks.u (p, k, v) VALUES (7, 1, 1);"
    answer = run(*clock, "cql", "run", "-", "--json", stdin=text)
    assert answer.exit_code == 0, answer.stderr
    assert len(answer.json["statements"]) == 2
    (tmp_path / "wrong.cql").write_text("INSERT INTO ks.nowhere (p) VALUES (1);", encoding="utf-8")
    named = run(*clock, "cql", "run", tmp_path / "wrong.cql")
    assert f"{tmp_path / 'wrong.cql'}: statement 1 (line 1)" in named.stderr
    assert (
        "standard input: statement 1"
        in run(*clock, "cql", "run", "-", stdin="INSERT INTO ks.nowhere (p) VALUES (1);").stderr
    )


def test_an_interrupt_is_one_line_and_130(three: Path) -> None:
    """Ctrl-C while the program reads its input prints one line."""
    command = [*PROGRAM, "--home", str(three), "--clock", format_ms(THIRD_MS), "-v", "cql", "run", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        _until_it_reads(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.decode()) == (130, b"", "error: interrupted\n")


def _until_it_reads(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process sleeps in a read of its standard input."""
    while True:
        assert process.poll() is None
        system_call = Path(f"/proc/{process.pid}/syscall").read_text(encoding="utf-8").split()
        if system_call[:2] == ["0", "0x0"]:
            return


@pytest.mark.parametrize(
    "command", [["generations"], ["generations", "--json"], ["streams", "latest", "--json"], ["status"]]
)
def test_a_closed_output_is_no_error(three: Path, command: list[str]) -> None:
    """The pipe is closed before any output, or standard output does not exist."""
    whole = [*PROGRAM, "--home", str(three), "--clock", format_ms(THIRD_MS), *command]
    read, write = os.pipe()
    os.close(read)
    broken_pipe = subprocess.run(whole, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (broken_pipe.returncode, broken_pipe.stderr) == (0, "")
    closed = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *whole], stderr=subprocess.PIPE, text=True, check=False)
    assert (closed.returncode, closed.stderr) == (0, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run a program as somebody else")
def test_a_read_only_home_can_be_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A user without write permission gets the owner's answers, and nothing is written."""
    home = home_of(tmp_path_factory.mktemp("foreign"), "three")
    assert run("--home", home, "ring").exit_code == 0
    for folder in (home, *home.parents):
        if folder.owner() == "root" and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    for path in home.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    # The interpreter may be readable by root alone, so every module is loaded before.
    code = (
        "import contextlib, io, os, sys\n"
        "import cdc_platform.lifecycle.tablets, cdc_platform.delta.locks\n"
        "from cdc_platform.cli.main import program\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    program.main([*sys.argv[1:5], 'tables'])\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    program.main(sys.argv[1:5] + (['status'] if sys.argv[5] == 'tables' else sys.argv[5:]))\n"
        "os.setgroups([]), os.setgid(65534), os.setuid(65534)\n"
        "program.main(sys.argv[1:])"
    )
    commands = {("generations", "--json"): 0, ("status", "--json"): 0, ("tables", "drop", "ks.t"): 2}
    for command, exit_code in commands.items():
        words = ["--home", str(home), "--clock", format_ms(THIRD_MS), *command]
        other_user = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
        assert other_user.returncode == exit_code, other_user.stderr
        if not exit_code:
            assert other_user.stdout == run(*words).stdout
        else:
            assert other_user.stderr.startswith("error: ")
            assert other_user.stderr.count("\n") == 1


def test_the_clock_decides_every_age(three: Path) -> None:
    """`status` with two stopped clocks reports the home at two ages."""
    for at_ms, operating in ((FIRST_MS, FIRST_MS), (THIRD_MS, THIRD_MS)):
        result = run("--home", three, "--clock", format_ms(at_ms), "status", "--json").json
        assert result["generations"]["operating"]["time"] == format_ms(operating)
        assert result["now"] == format_ms(at_ms)

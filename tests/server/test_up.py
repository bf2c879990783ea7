"""`cdc-platform up` with its real processes: all of them answer, on loopback only, and all of them end."""

from __future__ import annotations

import os
import re
import signal
import sys
import urllib.request
from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRunStatus
from support.processes.below import parent
from support.worlds.serving import Serving

from cdc_platform.dagster_home import prepare_dagster_home
from cdc_platform.definitions import defs
from cdc_platform.errors import EnvironmentProblem
from cdc_platform.home_location import open_home_location
from cdc_platform.server.code_server import initialize_dagster_storage

SHUTDOWN = pytest.mark.grid("shutdowns of `up`", 1)
PARTS = {
    "code": ("the Dagster code server", "dagster-code.log"),
    "daemon": ("the Dagster daemon", "dagster-daemon.log"),
    "ui": ("the Dagster UI", "dagster-ui.log"),
}
_MODULE = "cdc_platform.server"
_LISTENING = "0A"
_LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def list_listeners(pids: set[int]) -> list[tuple[str, int]]:
    """Return the addresses, in hexadecimal as in /proc, and the ports on which these processes listen."""
    sockets = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(str(entry.readlink()))
            except OSError:
                continue
    addresses = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text(encoding="utf-8").splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and f"socket:[{fields[9]}]" in sockets:
                address, _, port = fields[1].partition(":")
                addresses.append((address, int(port, 16)))
    return addresses


@pytest.mark.spark
def test_up_answers_on_loopback_only(serving: Serving) -> None:
    """The UI answers at the printed address, and no process is reachable from outside."""
    started = serving.start()
    request = urllib.request.Request(f"{started['url']}/server_info", headers=serving.header)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert b"dagster_webserver_version" in answer.read()
    assert started["home"] == str(serving.home)
    assert {path.name for path in Path(started["logs"]).iterdir()} >= {
        "dagster-ui.log",
        "dagster-daemon.log",
        "dagster-code.log",
    }
    addresses = [address for address, _ in list_listeners(set(serving.processes()))]
    assert len(addresses) >= 2
    assert set(addresses) <= _LOOPBACK


@pytest.mark.spark
def test_home_has_one_running_up(serving: Serving) -> None:
    """A second `up` for the same home is refused with one line."""
    serving.start()
    second = serving.command("up", "--port", "0")
    stderr = second.communicate(timeout=60)[1]
    assert second.returncode == 2
    # The command and Dagster's three parts; if one of them ends, all end.
    message = r"is already running \(processes \d+( \d+){3}\); stop it, or choose another home"
    assert re.fullmatch(f"error: home {serving.home} {message} \\[[a-z-]+\\]", stderr.strip())


@pytest.mark.spark
def test_taken_port_is_refused(serving: Serving, tmp_path: Path) -> None:
    """A requested port is never replaced by another one silently."""
    port = serving.start()["url"].rpartition(":")[2]
    other = Serving(tmp_path / "home").command("up", "--port", port)
    stderr = other.communicate(timeout=60)[1]
    assert other.returncode == 2
    assert stderr.strip() == f"error: port {port} of 127.0.0.1 is taken; name another with --port, or 0 for any [input]"


@SHUTDOWN
@pytest.mark.spark
def test_ctrl_c_ends_all_processes(serving: Serving) -> None:
    """Ctrl-C is no failure, and no process is left."""
    serving.start()
    assert len(serving.processes()) >= 4
    serving.ask_for_the_end()
    assert serving.end() == (0, "")
    assert serving.processes() == {}


@pytest.mark.spark
def test_each_part_is_a_named_process(serving: Serving) -> None:
    """Each part runs once, by its name, as a child of `up`; only the UI has its port."""
    port = int(serving.start()["url"].rpartition(":")[2])
    processes = serving.processes()
    parts = {pid: command.split()[2] for pid, command in processes.items() if f"-m {_MODULE}." in command}
    assert sorted(parts.values()) == [f"{_MODULE}.code_server", f"{_MODULE}.daemon", f"{_MODULE}.ui"]
    assert {parent(pid) for pid in parts} == {serving.pid}
    (ui,) = (pid for pid, name in parts.items() if name == f"{_MODULE}.ui")
    assert [pid for pid in processes if port in {number for _, number in list_listeners({pid})}] == [ui]


@SHUTDOWN
@pytest.mark.spark
@pytest.mark.parametrize("part", PARTS)
def test_dead_part_ends_all_processes(serving: Serving, part: str) -> None:
    """After a kill of one part the others end, and one line has the part's name and its log."""
    logs = serving.start()["logs"]
    victim = min(pid for pid, command in serving.processes().items() if f"{_MODULE}.{part}" in command)
    os.kill(victim, signal.SIGKILL)
    code, stderr = serving.end()
    name, log = PARTS[part]
    assert (code, stderr.strip()) == (1, f"error: {name} was killed by SIGKILL; its log is {logs}/{log} [service-died]")
    assert serving.processes() == {}


@SHUTDOWN
@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_killed_up_leaves_no_process(serving: Serving) -> None:
    """The system and the processes themselves end the rest, and the home is free."""
    serving.start()
    serving.kill()
    assert serving.end()[0] == -signal.SIGKILL
    assert serving.processes_after(60) == {}


def test_world_writable_home_is_refused(tmp_path: Path) -> None:
    """`up` runs content of a home with its user's rights."""
    home = open_home_location(tmp_path / "home")
    home.path.chmod(0o777)
    process = Serving(home.path).command("up", "--port", "0")
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert stderr.startswith(f"error: everybody on this machine can write into home {home.path}")
    assert stderr.strip().endswith(f"close it with chmod 700 {home.path} [environment]")


@pytest.mark.long("an instance of Dagster, opened three times")
def test_runs_killed_with_an_earlier_up_are_failed(tmp_path: Path) -> None:
    """A run whose process was killed together with its `up` does not stay started forever."""
    folder = prepare_dagster_home(open_home_location(tmp_path))
    with DagsterInstance.from_config(str(folder)) as instance:
        job = defs.resolve_job_def("join")
        killed = instance.create_run_for_job(job, status=DagsterRunStatus.STARTED).run_id
        succeeded = instance.create_run_for_job(job, status=DagsterRunStatus.SUCCESS).run_id
    initialize_dagster_storage(folder)
    with DagsterInstance.from_config(str(folder)) as instance:
        statuses = [run.status for run in map(instance.get_run_by_id, (killed, succeeded)) if run is not None]
    assert statuses == [DagsterRunStatus.FAILURE, DagsterRunStatus.SUCCESS]


@pytest.mark.parametrize(
    ("settings", "told"), [("nonsense: 1\n", "nonsense"), ("storage: {sqlite: {base_dir: /proc/x}}", "/proc/x")]
)
def test_unusable_dagster_is_one_line(tmp_path: Path, settings: str, told: str) -> None:
    """The line has Dagster's folder, the fault and the remedy."""
    (tmp_path / "dagster.yaml").write_text(settings, encoding="utf-8")
    with pytest.raises(EnvironmentProblem, match=f"^Dagster cannot work in {tmp_path} .*{told}") as refused:
        initialize_dagster_storage(tmp_path)
    assert "\n" not in str(refused.value)

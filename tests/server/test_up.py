"""`cdc-platform up` with its real processes: all of it answers, on loopback only, and all of it ends."""

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

AN_END = pytest.mark.grid("shutdowns of `up`", 1)
PARTS = {
    "code": ("the Dagster code server", "dagster-code.log"),
    "daemon": ("the Dagster daemon", "dagster-daemon.log"),
    "ui": ("the Dagster UI", "dagster-ui.log"),
}
_MODULE = "cdc_platform.server"
_LISTENING = "0A"
_LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def listening(pids: set[int]) -> list[tuple[str, int]]:
    """The addresses, as /proc has them in hexadecimal, and the ports that these processes listen on."""
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
def test_it_answers_on_loopback_only(serving: Serving) -> None:
    """The UI answers at the printed address, and nothing that was started can be reached from outside."""
    told = serving.start()
    request = urllib.request.Request(f"{told['url']}/server_info", headers=serving.header)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert b"dagster_webserver_version" in answer.read()
    assert told["home"] == str(serving.home)
    assert {path.name for path in Path(told["logs"]).iterdir()} >= {
        "dagster-ui.log",
        "dagster-daemon.log",
        "dagster-code.log",
    }
    addresses = [address for address, _ in listening(set(serving.processes()))]
    assert len(addresses) >= 2
    assert set(addresses) <= _LOOPBACK


@pytest.mark.spark
def test_a_home_is_up_once(serving: Serving) -> None:
    """A second one on the same home is refused, with one line."""
    serving.start()
    second = serving.command("up", "--port", "0")
    said = second.communicate(timeout=60)[1]
    assert second.returncode == 2
    # The command and Dagster's three parts: if one of them ends, all end.
    held = r"is already running \(processes \d+( \d+){3}\); stop it, or choose another home"
    assert re.fullmatch(f"error: home {serving.home} {held} \\[[a-z-]+\\]", said.strip())


@pytest.mark.spark
def test_a_taken_port_is_refused(serving: Serving, tmp_path: Path) -> None:
    """The port that a person asks for is not exchanged for another in silence."""
    port = serving.start()["url"].rpartition(":")[2]
    other = Serving(tmp_path / "home").command("up", "--port", port)
    said = other.communicate(timeout=60)[1]
    assert other.returncode == 2
    assert said.strip() == f"error: port {port} of 127.0.0.1 is taken; name another with --port, or 0 for any [input]"


@AN_END
@pytest.mark.spark
def test_ctrl_c_ends_all_of_it(serving: Serving) -> None:
    """Ctrl-C is no failure, and no process is left."""
    serving.start()
    assert len(serving.processes()) >= 4
    serving.ask_for_the_end()
    assert serving.end() == (0, "")
    assert serving.processes() == {}


@pytest.mark.spark
def test_each_part_is_a_process_that_lists_name(serving: Serving) -> None:
    """Each runs once, by its name, below `up`; only the UI has its port."""
    port = int(serving.start()["url"].rpartition(":")[2])
    every = serving.processes()
    parts = {pid: command.split()[2] for pid, command in every.items() if f"-m {_MODULE}." in command}
    assert sorted(parts.values()) == [f"{_MODULE}.code_server", f"{_MODULE}.daemon", f"{_MODULE}.ui"]
    assert {parent(pid) for pid in parts} == {serving.pid}
    (ui,) = (pid for pid, name in parts.items() if name == f"{_MODULE}.ui")
    assert [pid for pid in every if port in {each for _, each in listening({pid})}] == [ui]


@AN_END
@pytest.mark.spark
@pytest.mark.parametrize("part", PARTS)
def test_one_that_dies_ends_all_of_it(serving: Serving, part: str) -> None:
    """When one is killed the rest ends too, and one line says what died and where its log is."""
    logs = serving.start()["logs"]
    victim = min(pid for pid, command in serving.processes().items() if f"{_MODULE}.{part}" in command)
    os.kill(victim, signal.SIGKILL)
    code, said = serving.end()
    name, log = PARTS[part]
    assert (code, said.strip()) == (1, f"error: {name} was killed by SIGKILL; its log is {logs}/{log} [service-died]")
    assert serving.processes() == {}


@AN_END
@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_killed_it_leaves_nothing_behind(serving: Serving) -> None:
    """Killed outright it can end nothing itself; the system and the processes themselves do, and the home is free."""
    serving.start()
    serving.kill()
    assert serving.end()[0] == -signal.SIGKILL
    assert serving.processes_after(60) == {}


def test_a_home_that_everybody_can_write_into_is_refused(tmp_path: Path) -> None:
    """What is in a home is run in the name of whoever brings it up."""
    home = open_home_location(tmp_path / "home")
    home.path.chmod(0o777)
    tried = Serving(home.path).command("up", "--port", "0")
    said = tried.communicate(timeout=60)[1]
    assert tried.returncode == 2
    assert said.startswith(f"error: everybody on this machine can write into home {home.path}")
    assert said.strip().endswith(f"close it with chmod 700 {home.path} [environment]")


@pytest.mark.long("an instance of Dagster, opened three times")
def test_runs_that_died_with_an_earlier_one_are_failed(tmp_path: Path) -> None:
    """A run whose process was killed together with its `up` does not stand as started for good."""
    folder = prepare_dagster_home(open_home_location(tmp_path))
    with DagsterInstance.from_config(str(folder)) as instance:
        job = defs.resolve_job_def("join")
        left = instance.create_run_for_job(job, status=DagsterRunStatus.STARTED).run_id
        done = instance.create_run_for_job(job, status=DagsterRunStatus.SUCCESS).run_id
    initialize_dagster_storage(folder)
    with DagsterInstance.from_config(str(folder)) as instance:
        statuses = [run.status for run in map(instance.get_run_by_id, (left, done)) if run is not None]
    assert statuses == [DagsterRunStatus.FAILURE, DagsterRunStatus.SUCCESS]


@pytest.mark.parametrize(
    ("settings", "told"), [("nonsense: 1\n", "nonsense"), ("storage: {sqlite: {base_dir: /proc/x}}", "/proc/x")]
)
def test_a_dagster_that_cannot_work_is_one_line(tmp_path: Path, settings: str, told: str) -> None:
    """Its folder, what is wrong there, and what to do."""
    (tmp_path / "dagster.yaml").write_text(settings, encoding="utf-8")
    with pytest.raises(EnvironmentProblem, match=f"^Dagster cannot work in {tmp_path} .*{told}") as refused:
        initialize_dagster_storage(tmp_path)
    assert "\n" not in str(refused.value)

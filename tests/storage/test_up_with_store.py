"""`up` on a home in a store runs on one machine, and lets a node join that another machine queued."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from support.command_line import run
from support.nodes import node_text
from support.store.s3 import S3, SECRET
from support.waiting import await_true
from support.worlds.serving import Serving

from cdc_platform.delta import Lake
from cdc_platform.home_location import STATE_VARIABLE
from cdc_platform.json_logs import LOG_FORMAT_VARIABLE
from cdc_platform.storage import ObjectStorePath, StoragePath, parse_path
from cdc_platform.storage.leases import StoreLock
from cdc_platform.tables import GENERATION_TIMESTAMPS


@pytest.mark.spark
@pytest.mark.long("all of `up`, twice, a run that it makes, and a lease that becomes stale")
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc")
def test_one_machine_runs_a_home_in_a_store(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sensor lets a node join. If it stops for too long, another machine takes over and the first one ends."""
    address = f"{s3.bucket()}/home"
    node = tmp_path / "node.json"
    node.write_text(node_text(1, 4, 2), encoding="utf-8")
    first = Serving(address, tmp_path / "here")
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state of another"))
    second = Serving(address, tmp_path / "there")
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    monkeypatch.setenv(LOG_FORMAT_VARIABLE, "json")
    try:
        assert Path(first.start()["token_file"]).is_relative_to(tmp_path / "state")
        _, message = first.command("up", "--port", "0").communicate(timeout=120)
        assert message.startswith(f"error: home {address} is already running (processes "), message
        monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state of another"))
        refused = second.command("up", "--port", "0")
        _, message = refused.communicate(timeout=120)
        assert (refused.returncode, len(message.splitlines())) == (2, 1), message
        assert f"home {address} is up already on another machine" in message
        assert run("--home", address, "bootstrap", node).exit_code == 0
        await_true(lambda: count_published(address) == 1, 120, "a published generation")
        _assert_json_logs(Path(first.start()["logs"]))
        assert find_secret(SECRET, tmp_path, parse_path(address)) == []
        _take_over(address, first, second)
        lease = parse_path(f"{address}/up.lease.json")
        assert isinstance(lease, ObjectStorePath)
        lock = StoreLock(lease)
        assert lock.try_acquire()
        lock.release()
    finally:
        if first.processes():
            os.kill(first.pid, signal.SIGCONT)
        first.stop()
        second.stop()
    assert run("--home", address, "check", "--deep").exit_code == 0


def _take_over(address: str, first: Serving, second: Serving) -> None:
    os.kill(first.pid, signal.SIGSTOP)
    second.start()
    os.kill(first.pid, signal.SIGCONT)
    code, message = first.end()
    assert (code, len(message.splitlines())) == (1, 1), message
    assert message.startswith(f"error: home {address} is up elsewhere now (process {second.pid} on "), message
    assert message.endswith("[lease-lost]\n")
    assert first.processes_after(30) == {}
    assert second.pid in second.processes()
    second.ask_for_the_end()
    assert second.end()[0] == 0


def _assert_json_logs(folder: Path) -> None:
    """Assert that every log line is a JSON object, and that the join's lines have its run and generation."""

    def lines() -> dict[str, list[dict[str, Any]]]:
        return {
            log.name: [json.loads(line) for line in log.read_text("utf-8").splitlines()] for log in folder.iterdir()
        }

    def join_lines() -> list[dict[str, Any]]:
        return [line for line in lines()["dagster-code.log"] if line.get("job") == "join"]

    await_true(
        lambda: any(line.get("event_type") == "PIPELINE_SUCCESS" for line in join_lines()), 120, "the join's end"
    )
    assert {name for name, log_lines in lines().items() if log_lines} >= {"dagster-code.log", "dagster-daemon.log"}
    for log_lines in lines().values():
        assert all({"timestamp", "level", "event", "service"} <= line.keys() for line in log_lines)
    assert len({line["run"] for line in join_lines()}) == 1
    assert len({line["generation"] for line in join_lines()}) == 1
    assert {line["step"] for line in join_lines() if line.get("event_type") == "STEP_SUCCESS"}


def find_secret(secret: str, folder: Path, home: StoragePath) -> list[str]:
    """Return the files, objects and command lines that have a secret which only the environment should have."""
    assert isinstance(home, ObjectStorePath)
    objects, is_complete = home.page("")
    assert is_complete
    files: list[Path | ObjectStorePath] = [path for path in folder.rglob("*") if path.is_file()]
    files += [ObjectStorePath(home.root, path) for path, _ in objects]
    command_lines = [path for path in Path("/proc").glob("[0-9]*/cmdline") if path.parent.name != str(os.getpid())]
    assert len(files) > len(objects) > 0 < len(command_lines)
    return [str(file) for file in (*files, *command_lines) if secret.encode() in read_content(file)]


def read_content(file: Path | ObjectStorePath) -> bytes:
    """Return a file's content, or nothing if it no longer exists."""
    try:
        return file.read() if isinstance(file, ObjectStorePath) else file.read_bytes()
    except OSError:
        return b""


def count_published(address: str) -> int:
    """Return how many generations a new process finds."""
    return Lake(f"{address}/lake").read(GENERATION_TIMESTAMPS).num_rows

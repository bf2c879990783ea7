"""`up` on a home in a store: one machine has it, and a node that another one queues joins."""

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
def test_one_machine_has_a_home_in_a_store(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sensor lets a node join; stopped for too long, another takes it over, and the first, going on, ends."""
    address = f"{s3.bucket()}/home"
    node = tmp_path / "node.json"
    node.write_text(node_text(1, 4, 2), encoding="utf-8")
    here = Serving(address, tmp_path / "here")
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state of another"))
    there = Serving(address, tmp_path / "there")
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    monkeypatch.setenv(LOG_FORMAT_VARIABLE, "json")
    try:
        assert Path(here.start()["token_file"]).is_relative_to(tmp_path / "state")
        _, said = here.command("up", "--port", "0").communicate(timeout=120)
        assert said.startswith(f"error: home {address} is already running (processes "), said
        monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state of another"))
        refused = there.command("up", "--port", "0")
        _, said = refused.communicate(timeout=120)
        assert (refused.returncode, len(said.splitlines())) == (2, 1), said
        assert f"home {address} is up already on another machine" in said
        assert run("--home", address, "bootstrap", node).exit_code == 0
        await_true(lambda: published(address) == 1, 120, "a published generation")
        _logs_are_json(Path(here.start()["logs"]))
        assert told_of(SECRET, tmp_path, parse_path(address)) == []
        _is_taken_over(address, here, there)
        lease = parse_path(f"{address}/up.lease.json")
        assert isinstance(lease, ObjectStorePath)
        again = StoreLock(lease)
        assert again.try_acquire()
        again.release()
    finally:
        if here.processes():
            os.kill(here.pid, signal.SIGCONT)
        here.stop()
        there.stop()
    assert run("--home", address, "check", "--deep").exit_code == 0


def _is_taken_over(address: str, first: Serving, second: Serving) -> None:
    os.kill(first.pid, signal.SIGSTOP)
    second.start()
    os.kill(first.pid, signal.SIGCONT)
    code, said = first.end()
    assert (code, len(said.splitlines())) == (1, 1), said
    assert said.startswith(f"error: home {address} is up elsewhere now (process {second.pid} on "), said
    assert said.endswith("[lease-lost]\n")
    assert first.processes_after(30) == {}
    assert second.pid in second.processes()
    second.ask_for_the_end()
    assert second.end()[0] == 0


def _logs_are_json(folder: Path) -> None:
    """Every line of every service is a JSON object, and the lines of the join have its run and its generation."""

    def lines() -> dict[str, list[dict[str, Any]]]:
        return {
            log.name: [json.loads(line) for line in log.read_text("utf-8").splitlines()] for log in folder.iterdir()
        }

    def of_join() -> list[dict[str, Any]]:
        return [line for line in lines()["dagster-code.log"] if line.get("job") == "join"]

    await_true(lambda: any(line.get("event_type") == "PIPELINE_SUCCESS" for line in of_join()), 120, "the join's end")
    assert {name for name, logged in lines().items() if logged} >= {"dagster-code.log", "dagster-daemon.log"}
    for logged in lines().values():
        assert all({"timestamp", "level", "event", "service"} <= line.keys() for line in logged)
    assert len({line["run"] for line in of_join()}) == 1
    assert len({line["generation"] for line in of_join()}) == 1
    assert {line["step"] for line in of_join() if line.get("event_type") == "STEP_SUCCESS"}


def told_of(secret: str, folder: Path, home: StoragePath) -> list[str]:
    """Where a secret stands that is for the environment alone: files of a machine, objects, words of processes."""
    assert isinstance(home, ObjectStorePath)
    objects, are_all = home.page("")
    assert are_all
    files: list[Path | ObjectStorePath] = [path for path in folder.rglob("*") if path.is_file()]
    files += [ObjectStorePath(home.root, path) for path, _ in objects]
    words = [path for path in Path("/proc").glob("[0-9]*/cmdline") if path.parent.name != str(os.getpid())]
    assert len(files) > len(objects) > 0 < len(words)
    return [str(each) for each in (*files, *words) if secret.encode() in content(each)]


def content(file: Path | ObjectStorePath) -> bytes:
    """What is in it; nothing of one that is gone by now."""
    try:
        return file.read() if isinstance(file, ObjectStorePath) else file.read_bytes()
    except OSError:
        return b""


def published(address: str) -> int:
    """How many generations there are, for a process that has not yet looked."""
    return Lake(f"{address}/lake").read(GENERATION_TIMESTAMPS).num_rows

"""`make demo-live` in less time: nodes join while a table is written to and ingested, and all tables end up equal."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from support.standin import demo_live, server
from support.standin.cluster import StandIn

from cdc_platform.clock import seconds_from_ms


@pytest.mark.long("writes go on over two joins, each of which takes as long as its generation takes to start")
def test_demo_ends_with_equal_tables(
    standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ingest follows each generation; the log, the table derived from it and the replica equal the cluster's."""
    monkeypatch.setattr(demo_live, "JOIN_SECONDS", seconds_from_ms(demo_live.LEAD_MS) + 1)
    standin.world.empty()
    assert demo_live.play(standin, tmp_path / "home", time.monotonic()) == 0
    output = capsys.readouterr().out
    assert [line.rpartition(" ")[2] for line in output.splitlines() if "equal to the cluster's" in line] == ["yes"] * 3
    assert output.count("killed (SIGKILL) before its commit") == 1
    assert re.search(r"generations followed +3 of 3", output)
    assert re.search(r"lag, most +[0-9.]+ s, of which 3 s are the confidence window", output)
    assert "an Apache Cassandra that answers as ScyllaDB does" in output
    commands = [
        line.split(" --home ")[1].split()[1:] for line in output.splitlines() if line.startswith("$ cdc-platform")
    ]
    assert [command[0] for command in commands] == [
        "cluster",
        "cluster",
        "observe",
        "ingest",
        "ingest",
        "watch",
        "status",
    ]
    assert (tmp_path / "home" / "clusters" / "live" / "lake").is_dir()


def test_missing_java_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo requires Java 17 by name and stops, on a developer's machine and in CI."""
    monkeypatch.setattr(server, "launchers", lambda: iter(()))
    for ci in ("", "1"):
        monkeypatch.setenv("CI", ci)
        assert demo_live.main() == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert "needs Java 17 (Debian: apt-get install openjdk-17-jre-headless)" in line

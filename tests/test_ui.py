"""The UI's own process, over a code location of a test: what it serves, and that in read-only nothing is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_platform.serving.addresses import LOOPBACK, listening

TOKEN = "a-token-of-this-test"
LAUNCH = """mutation { launchRun(executionParams: {selector: {repositoryName: "__repository__",
  repositoryLocationName: "of_a_test", jobName: "quiet"}, runConfigData: {}}) { __typename } }"""
RUNS = "{ runsOrError { ... on Runs { results { runId } } } }"
_CODE = """\
from dagster import job, op

@op
def nothing(): ...

@job
def quiet():
    nothing()
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a UI that is read-only and stands behind a proxy at `/cdc`."""
    # Not pytest's folder, whose path may be too long for a socket.
    with tempfile.TemporaryDirectory(prefix="cdc-") as name, listening(0) as bound:
        folder = Path(name)
        (folder / "of_a_test.py").write_text(_CODE, encoding="utf-8")
        (folder / "token").write_text(TOKEN, encoding="utf-8")
        location = {"grpc_server": {"socket": str(folder / "code.sock"), "location_name": "of_a_test"}}
        workspace = folder / "workspace.yaml"
        workspace.write_text(json.dumps({"load_from": [location]}), encoding="utf-8")
        (folder / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
        environment = os.environ | {"DAGSTER_HOME": name}
        code = ["dagster", "api", "grpc", "--socket", str(folder / "code.sock"), "-f", str(folder / "of_a_test.py")]
        ui = ["cdc_platform.serving.ui", "--listening", str(bound.fileno()), "--workspace", str(workspace)]
        ui += ["--token-file", str(folder / "token"), "--read-only", "--public-url", "https://dagster.example.com/cdc"]
        running = [
            subprocess.Popen([sys.executable, "-m", *command], env=environment, pass_fds=[bound.fileno()])
            for command in (code, ui)
        ]
        yield bound.getsockname()[1]
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(60)


def ask(port: int, query: str) -> Any:
    """What the UI answers to a program; asked again until it has loaded."""
    request = urllib.request.Request(
        f"http://{LOOPBACK}:{port}/cdc/graphql",
        json.dumps({"query": query}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"},
    )
    with urllib.request.urlopen(request, timeout=200) as answer:
        return json.load(answer)["data"]


def test_read_only_changes_nothing(port: int) -> None:
    """It shows what there is, and refuses to launch a run, with the token too."""
    deadline = time.monotonic() + 200
    while (answer := ask(port, LAUNCH)["launchRun"]["__typename"]) == "RepositoryNotFoundError":
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert answer == "UnauthorizedError"
    assert ask(port, RUNS) == {"runsOrError": {"results": []}}


def test_it_is_below_the_proxys_path(port: int) -> None:
    """The page itself, with its files, and nothing beside it without the token."""
    page = urllib.request.Request(f"http://{LOOPBACK}:{port}/cdc/runs", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(page, timeout=200) as answer:
        assert b"/cdc/" in answer.read()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://{LOOPBACK}:{port}/cdc/runs", timeout=200)

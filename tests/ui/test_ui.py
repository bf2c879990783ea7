"""The UI's own process with a test's code location: its pages, and no changes in read-only mode."""

from __future__ import annotations

import getpass
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cdc_platform.dagster_home import USER_TAG
from cdc_platform.server import LOOPBACK, UiAddresses, listen_on_loopback, parse_public_url
from cdc_platform.server.ui_audit import user_finder

pytestmark = pytest.mark.long("a UI and a code server of Dagster's, which import it for seconds")
TOKEN = "a-token-of-this-test"
LAUNCH = """mutation { launchRun(executionParams: {selector: {repositoryName: "__repository__",
  repositoryLocationName: "of_a_test", jobName: "quiet"}, runConfigData: {},
  executionMetadata: {tags: [{key: "cdc_platform/user", value: "the king"}]}}) { __typename } }"""
BACKFILL = """mutation { launchPartitionBackfill(backfillParams: {assetSelection: [{path: ["parted"]}],
  partitionNames: ["a"], tags: [{key: "cdc_platform/user", value: "the king"}]}) { __typename } }"""
BACKFILL_TAGS = "{ partitionBackfillsOrError { ... on PartitionBackfills { results { tags { key value } } } } }"
TAGS = "{ runsOrError { ... on Runs { results { tags { key value } } } } }"
RUNS = "{ runsOrError { ... on Runs { results { runId } } } }"
_CODE = """\
from dagster import Definitions, StaticPartitionsDefinition, asset, job, op

@op
def nothing(): ...

@job
def quiet():
    nothing()

@asset(partitions_def=StaticPartitionsDefinition(["a"]))
def parted(): ...

defs = Definitions(assets=[parted], jobs=[quiet])
"""


@dataclass(frozen=True)
class ServedUi:
    """A UI with its dependencies: the folder with its home and Dagster's storage, and its code server."""

    port: int
    folder: Path
    code_server: subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def ui() -> Iterator[ServedUi]:
    """A read-only UI behind a proxy at `/cdc`."""
    with serve("--read-only") as served_ui:
        yield served_ui


@pytest.fixture(scope="module")
def port(ui: ServedUi) -> int:
    """The port of that UI."""
    return ui.port


@contextmanager
def serve(*options: str) -> Iterator[ServedUi]:
    """Serve a UI with these options, behind a proxy at `/cdc`, until the block exits."""
    # Not pytest's folder, whose path may be too long for a socket.
    with tempfile.TemporaryDirectory(prefix="cdc-") as name, listen_on_loopback(0) as bound:
        folder = Path(name)
        (folder / "of_a_test.py").write_text(_CODE, encoding="utf-8")
        (folder / "token").write_text(TOKEN, encoding="utf-8")
        location = {"grpc_server": {"socket": str(folder / "code.sock"), "location_name": "of_a_test"}}
        workspace = folder / "workspace.yaml"
        workspace.write_text(json.dumps({"load_from": [location]}), encoding="utf-8")
        (folder / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
        (folder / "home").mkdir()
        environment = os.environ | {"DAGSTER_HOME": name, "CDC_PLATFORM_HOME": str(folder / "home")}
        code = ["dagster", "api", "grpc", "--socket", str(folder / "code.sock"), "-f", str(folder / "of_a_test.py")]
        ui = ["cdc_platform.server.ui", "--listening", str(bound.fileno()), "--workspace", str(workspace)]
        ui += ["--token-file", str(folder / "token"), "--public-url", "https://dagster.example.com/cdc", *options]
        running = [
            subprocess.Popen([sys.executable, "-m", *code], env=environment),
            subprocess.Popen([sys.executable, "-m", *ui], env=environment, pass_fds=[bound.fileno()]),
        ]
        port = bound.getsockname()[1]
        bound.close()  # So that a dead UI refuses at once instead of being waited for.
        try:
            yield ServedUi(port, folder, running[0])
        finally:
            for process in reversed(running):
                process.terminate()
            for process in running:
                process.wait(60)


def ask(port: int, query: str, **headers: str) -> Any:
    """Return the UI's answer to a program, repeating the request until the UI has loaded."""
    request = urllib.request.Request(
        f"http://{LOOPBACK}:{port}/cdc/graphql",
        json.dumps({"query": query}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}", **headers},
    )
    with urllib.request.urlopen(request, timeout=200) as answer:
        return json.load(answer)["data"]


def launch(port: int, **headers: str) -> str:
    """Request a run with a tag that names a user, once the code location is loaded; return the result."""
    deadline = time.monotonic() + 200
    while (answer := ask(port, LAUNCH, **headers)["launchRun"]["__typename"]) == "RepositoryNotFoundError":
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return answer


def test_read_only_changes_nothing(port: int) -> None:
    """The UI shows its content and refuses to launch a run, even with the token."""
    assert launch(port) == "UnauthorizedError"
    assert ask(port, RUNS) == {"runsOrError": {"results": []}}


def test_ui_is_below_the_proxys_path(port: int) -> None:
    """This holds for the page and its files; without the token nothing is served."""
    page = urllib.request.Request(f"http://{LOOPBACK}:{port}/cdc/runs", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(page, timeout=200) as answer:
        assert b"/cdc/" in answer.read()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://{LOOPBACK}:{port}/cdc/runs", timeout=200)


def probe(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
    """Return the status and the document of a probe, which has no token."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60)
    connection.request(method, f"/cdc{path}", headers=headers)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response.status, json.loads(text) if text.startswith(b"{") else text


def test_probes_need_no_token(port: int) -> None:
    """Only reading is possible, under an accepted host name; probes name each part and no path of this machine."""
    launch(port)  # waits for the code location
    assert probe(port, "/health") == (200, {"status": "ok"})
    parts = {name: {"ready": True, "reason": None} for name in ("home", "code_location", "storage")}
    assert probe(port, "/ready") == (200, {"ready": True, "parts": parts})
    assert probe(port, "/ready", "HEAD") == (200, b"")
    assert probe(port, "/ready", Host="evil.example")[0] == 421
    for method, path in (("POST", "/ready"), ("GET", "/ready/"), ("GET", "/ready/runs"), ("GET", "/healthy")):
        assert probe(port, path, method)[0] == 401


def test_readiness_names_each_failed_part(ui: ServedUi) -> None:
    """A missing home, damaged storage and an ended code server each show, and the process still lives."""
    home, runs = ui.folder / "home", ui.folder / "history" / "runs.db"
    launch(ui.port)

    def unready() -> dict[str, str]:
        status, document = probe(ui.port, "/ready")
        reasons = {name: part["reason"] for name, part in document["parts"].items() if not part["ready"]}
        assert status == (503 if reasons else 200)
        assert document["ready"] == (not reasons)
        assert str(ui.folder) not in json.dumps(document)
        return reasons

    home.rename(ui.folder / "moved")
    assert unready() == {"home": "failed with [environment]"}
    (ui.folder / "moved").rename(home)
    (home / "platform.json").write_text('{"layout": 999}', encoding="utf-8")
    assert unready() == {"home": "failed with [newer-layout]"}
    (home / "platform.json").unlink()
    assert unready() == {}
    whole = runs.read_bytes()
    runs.write_bytes(b"x" * len(whole))
    assert set(unready()) == {"storage"}
    runs.write_bytes(whole)
    assert unready() == {}
    ui.code_server.terminate()
    ui.code_server.wait(60)
    assert set(unready()) == {"code_location"}
    home.rename(ui.folder / "moved")
    assert set(unready()) == {"home", "code_location"}
    assert probe(ui.port, "/health") == (200, {"status": "ok"})


def test_launch_is_tagged_with_the_proxys_user() -> None:
    """Runs and backfills have the header's user if they came through the proxy; no other name counts."""
    proxy = "dagster.example.com"
    with serve("--user-header", "X-Forwarded-User") as served_ui:
        port = served_ui.port
        for headers in (
            {"Host": proxy, "X-Forwarded-User": "ada@example.com"},
            {"X-Forwarded-User": "mallory"},
            {"Host": proxy, "X-User": "mallory"},
            {"Host": proxy, "X-Forwarded-User": "m" * 300},
        ):
            assert launch(port, **headers) == "LaunchRunSuccess"
            assert ask(port, BACKFILL, **headers)["launchPartitionBackfill"]["__typename"] == "LaunchBackfillSuccess"
        runs = ask(port, TAGS)["runsOrError"]["results"]
        backfills = ask(port, BACKFILL_TAGS)["partitionBackfillsOrError"]["results"]
    for launches in (runs, backfills):
        users = [tag["value"] for item in reversed(launches) for tag in item["tags"] if tag["key"] == USER_TAG]
        assert users == ["ada@example.com", *["unknown"] * 3]


def test_unverified_user_is_unknown() -> None:
    """Without the setting, or with two names, the user is unknown; without a proxy it is the UI's own user."""
    proxied = UiAddresses(3000, parse_public_url("https://dagster.example.com/cdc"))
    by_proxy = {"host": ["Dagster.example.com"], "x-user": ["ada"]}
    assert user_finder(proxied, "X-User")(by_proxy) == "ada"
    assert user_finder(proxied, "")(by_proxy) == "unknown"
    assert user_finder(proxied, "X-User")(by_proxy | {"host": ["127.0.0.1:3000"]}) == "unknown"
    assert user_finder(UiAddresses(3000), "X-User")(by_proxy | {"host": ["127.0.0.1:3000"]}) == getpass.getuser()
    assert user_finder(proxied, "X-User")(by_proxy | {"x-user": ["mallory", "ada"]}) == "unknown"
    assert user_finder(proxied, "X-User")(by_proxy | {"x-user": ["a\x1b[2J"]}) == "unknown"

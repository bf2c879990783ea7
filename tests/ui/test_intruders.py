"""Another user of the machine and pages of other sites try every server that `cdc-platform up` starts.

As a script, run by root, this file becomes the user `nobody` and tries the servers that standard input names.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
import stat
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.worlds.serving import Serving

NOBODY = "nobody"
_LISTENING = "0A"
_MUTATION = "mutation { setNuxSeen }"
# A request to a JVM's own server as Spark's parts send it to each other: length, kind (3), number, length of body.
_UNKNOWN_CALL = struct.pack(">qbqi", 21 + 9, 3, 1, 9) + b"no secret"


def ports_of(pids: set[int]) -> dict[int, str]:
    """Return the TCP ports on which these processes listen, with the address as in /proc."""
    open_files = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                open_files.add(str(entry.readlink()))
            except OSError:
                continue
    addresses = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text(encoding="utf-8").splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and f"socket:[{fields[9]}]" in open_files:
                address, _, port = fields[1].partition(":")
                addresses[int(port, 16)] = address
    return addresses


@pytest.fixture(scope="module")
def servers(serving: Serving) -> dict[str, Any]:
    """Every entry point in use, including the sockets of Python workers, which the first task creates."""
    started = serving.start()
    task = (
        "from cdc_platform.spark.session import get_spark_session\n"
        "print(get_spark_session().range(1).mapInArrow(lambda batches: batches, 'id bigint').count())"
    )
    result = subprocess.run(
        [sys.executable, "-c", task], env=os.environ | serving.spark, capture_output=True, text=True, timeout=120
    )
    assert result.stdout == "1\n", result.stderr
    processes = serving.processes()
    folder = serving.home / "up"
    sockets = [path for path in folder.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)]
    assert {path.name for path in sockets} > {"code.sock"}, "no worker's socket is there"
    connect, ui = int(started["spark"].rpartition(":")[2]), int(started["url"].rpartition(":")[2])
    return {
        "url": started["url"],
        "spark": started["spark"],
        "jvm": sorted(set(ports_of(set(processes))) - {connect, ui}),
        "sockets": [str(path) for path in sockets],
        "files": [started["token_file"], started["spark_file"], str(serving.home / "platform.json"), str(serving.home)],
        "processes": sorted(processes),
        "secrets": [serving.header["Authorization"].split()[1], serving.spark["SPARK_CONNECT_AUTHENTICATE_TOKEN"]],
    }


def is_forbidden(call: Callable[[], object]) -> bool:
    """Return True if the system denies permission."""
    try:
        call()
    except PermissionError:
        return True
    return False


def connect_to_socket(path: str) -> None:
    """Connect to a socket of the file system."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)


def ask_ui(url: str, **headers: str) -> int:
    """Return the status of a query to the UI."""
    request = urllib.request.Request(
        f"{url}/graphql",
        json.dumps({"query": "{ version }"}).encode(),
        {"Content-Type": "application/json", **headers},
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def ask_spark(remote: str, token: str | None) -> str:
    """Run Python on a Connect server as the server's owner; return the result or the refusal."""
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.session import SparkSession

    os.environ.pop("SPARK_CONNECT_AUTHENTICATE_TOKEN", None)
    try:
        session = SparkSession.builder.remote(f"{remote}/;token={token}" if token else remote).create()
        answer = str(session.range(1).mapInArrow(lambda batches: batches, "id bigint").count())
        session.stop()  # otherwise the process would look for a stopped server for ten minutes at its end
        return answer
    except PySparkException as error:
        return "UNAUTHENTICATED" if "UNAUTHENTICATED" in str(error) else repr(error)


def ask_jvm(port: int) -> str:
    """Return what a part of Spark answers to a call without a secret."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(_UNKNOWN_CALL)
        try:
            return connection.recv(1 << 16).decode("latin-1")
        except ConnectionResetError:
            return ""


def try_all(servers: dict[str, Any]) -> dict[str, Any]:
    """Return this user's result at each server."""
    return {
        "ui": [ask_ui(servers["url"]), ask_ui(servers["url"], Authorization="Bearer wrong")],
        "spark": [ask_spark(servers["spark"], token) for token in (None, "wrong")],
        "jvm": [ask_jvm(port) for port in servers["jvm"]],
        "sockets": [is_forbidden(lambda path=path: connect_to_socket(path)) for path in servers["sockets"]],
        "files": [
            is_forbidden(
                lambda path=path: list(Path(path).iterdir()) if Path(path).is_dir() else Path(path).read_bytes()
            )
            for path in servers["files"]
        ],
        "environments": [
            is_forbidden(lambda pid=pid: Path(f"/proc/{pid}/environ").read_bytes()) for pid in servers["processes"]
        ],
        "told": "".join(Path(f"/proc/{pid}/cmdline").read_text(errors="replace") for pid in servers["processes"]),
    }


@pytest.mark.spark
@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TRIED: only root can become another user; modes are looked at only")
def test_other_user_has_no_access(servers: dict[str, Any]) -> None:
    """UI, Spark Connect, other JVM ports, workers, code server, secret files, processes and commands refuse."""
    result = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        input=json.dumps(servers),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr
    answers = json.loads(result.stdout.splitlines()[-1])
    assert answers["ui"] == [401, 401]
    assert answers["spark"] == ["UNAUTHENTICATED", "UNAUTHENTICATED"]
    assert len(answers["jvm"]) == 2  # calls between the JVM's parts, and their blocks
    assert all("Sasl" in answer or "challenge" in answer for answer in answers["jvm"]), answers["jvm"]
    for kind in ("sockets", "files", "environments"):
        assert len(answers[kind]) >= 2
        assert all(answers[kind]), (kind, servers)
    assert [secret for secret in servers["secrets"] if secret in answers["told"]] == []


@pytest.mark.spark
def test_owner_has_access(servers: dict[str, Any]) -> None:
    """As a control, the same attempts succeed with the owner's secrets."""
    ui, spark = servers["secrets"]
    assert ask_ui(servers["url"], Authorization=f"Bearer {ui}") == 200
    assert ask_spark(servers["spark"], spark) == "1"
    assert not any(is_forbidden(lambda path=path: connect_to_socket(path)) for path in servers["sockets"])
    assert not any(is_forbidden(lambda path=path: Path(path).stat()) for path in servers["files"])


@pytest.mark.spark
def test_home_is_private(serving: Serving, servers: dict[str, Any]) -> None:
    """This holds for the home, its runtime files, Dagster's databases, logs, and each file with a secret."""
    modes = {path: (serving.home / path).stat().st_mode & 0o777 for path in ("", "up", "dagster", "logs", "up/spark")}
    assert modes == dict.fromkeys(modes, 0o700)
    for name in ("ui.token", "spark.env"):
        assert (serving.home / "up" / name).stat().st_mode & 0o777 == 0o600
    assert serving.home.stat().st_uid == os.geteuid()


@pytest.mark.spark
def test_ui_is_behind_the_gate(serving: Serving) -> None:
    """A browser's cookie allows no mutation by GET, by form, from a foreign page or under a foreign name."""
    started = serving.start()
    link = urllib.request.urlopen(started["link"], timeout=30)
    cookie = {"Cookie": link.headers["Set-Cookie"].partition(";")[0]}
    get_url = f"{started['url']}/graphql?query={quote(_MUTATION)}"
    own = {"Origin": started["url"]}
    body = json.dumps({"query": _MUTATION}).encode()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    attempts = [
        (get_url, None, cookie, 405),
        (get_url, None, cookie | {"Host": "evil.example"}, 421),
        (get_url, b"", cookie | own | form, 415),
        (get_url, b"", cookie | form, 403),
        (f"{started['url']}/graphql", body, cookie | {"Origin": "http://evil.example"}, 403),
        (f"{started['url']}/graphql", body, {"Origin": started["url"]}, 401),
        (f"{started['url']}/graphql", body, cookie | own | {"Content-Type": "application/json"}, 200),
    ]
    assert [status_of(url, data, headers) for url, data, headers, _ in attempts] == [status for *_, status in attempts]


def status_of(url: str, data: bytes | None, headers: dict[str, str]) -> int:
    """Return the status of one response."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def _become_nobody(servers: dict[str, Any]) -> None:
    """Become the user without rights, after loading all modules, which `nobody` may be unable to read."""
    ask_ui(servers["url"])
    ask_spark(servers["spark"], "wrong")
    user = pwd.getpwnam(NOBODY)
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


if __name__ == "__main__":
    tried = json.load(sys.stdin)
    _become_nobody(tried)
    print(json.dumps(try_all(tried)))

"""Every server that `cdc-platform up` starts, tried by another user of the machine and by pages of other sites.

Run as a script, as root, this file becomes the user `nobody` and tries what standard input names.
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
# A request to a JVM's own server as one part of Spark sends it to another: length, kind (3), number, length of body.
_UNKNOWN_CALL = struct.pack(">qbqi", 21 + 9, 3, 1, 9) + b"no secret"


def ports_of(pids: set[int]) -> dict[int, str]:
    """The TCP ports on which these processes listen, with the address as /proc has it."""
    held = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                held.add(str(entry.readlink()))
            except OSError:
                continue
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text(encoding="utf-8").splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and f"socket:[{fields[9]}]" in held:
                address, _, port = fields[1].partition(":")
                found[int(port, 16)] = address
    return found


@pytest.fixture(scope="module")
def servers(serving: Serving) -> dict[str, Any]:
    """Every way in, all of them in use: also the sockets of Python workers, which come with the first task."""
    told = serving.start()
    task = (
        "from cdc_platform.spark.session import get_spark_session\n"
        "print(get_spark_session().range(1).mapInArrow(lambda batches: batches, 'id bigint').count())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", task], env=os.environ | serving.spark, capture_output=True, text=True, timeout=120
    )
    assert ran.stdout == "1\n", ran.stderr
    processes = serving.processes()
    folder = serving.home / "up"
    sockets = [path for path in folder.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)]
    assert {path.name for path in sockets} > {"code.sock"}, "no worker's socket is there"
    connect, ui = int(told["spark"].rpartition(":")[2]), int(told["url"].rpartition(":")[2])
    return {
        "url": told["url"],
        "spark": told["spark"],
        "jvm": sorted(set(ports_of(set(processes))) - {connect, ui}),
        "sockets": [str(path) for path in sockets],
        "files": [told["token_file"], told["spark_file"], str(serving.home / "platform.json"), str(serving.home)],
        "processes": sorted(processes),
        "secrets": [serving.header["Authorization"].split()[1], serving.spark["SPARK_CONNECT_AUTHENTICATE_TOKEN"]],
    }


def is_refused(call: Callable[[], object]) -> bool:
    """Whether the system says that it is not permitted."""
    try:
        call()
    except PermissionError:
        return True
    return False


def knock(path: str) -> None:
    """Connect to a socket of the file system."""
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(path)


def ask_ui(url: str, **headers: str) -> int:
    """The status of a query to the UI."""
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
    """Run Python on a Connect server, as the server's owner: what it answers, or how it refuses."""
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.session import SparkSession

    os.environ.pop("SPARK_CONNECT_AUTHENTICATE_TOKEN", None)
    try:
        session = SparkSession.builder.remote(f"{remote}/;token={token}" if token else remote).create()
        answer = str(session.range(1).mapInArrow(lambda batches: batches, "id bigint").count())
        session.stop()  # at its process's end it would look for a server that has gone, for ten minutes
        return answer
    except PySparkException as error:
        return "UNAUTHENTICATED" if "UNAUTHENTICATED" in str(error) else repr(error)


def ask_jvm(port: int) -> str:
    """What a part of Spark answers to a call that shows no secret."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as door:
        door.sendall(_UNKNOWN_CALL)
        try:
            return door.recv(1 << 16).decode("latin-1")
        except ConnectionResetError:
            return ""


def try_all(servers: dict[str, Any]) -> dict[str, Any]:
    """What this user gets at each of them."""
    return {
        "ui": [ask_ui(servers["url"]), ask_ui(servers["url"], Authorization="Bearer wrong")],
        "spark": [ask_spark(servers["spark"], token) for token in (None, "wrong")],
        "jvm": [ask_jvm(port) for port in servers["jvm"]],
        "sockets": [is_refused(lambda path=path: knock(path)) for path in servers["sockets"]],
        "files": [
            is_refused(lambda path=path: list(Path(path).iterdir()) if Path(path).is_dir() else Path(path).read_bytes())
            for path in servers["files"]
        ],
        "environments": [
            is_refused(lambda pid=pid: Path(f"/proc/{pid}/environ").read_bytes()) for pid in servers["processes"]
        ],
        "told": "".join(Path(f"/proc/{pid}/cmdline").read_text(errors="replace") for pid in servers["processes"]),
    }


@pytest.mark.spark
@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TRIED: only root can become another user; modes are looked at only")
def test_another_user_is_let_in_nowhere(servers: dict[str, Any]) -> None:
    """UI, Spark Connect, the JVM's other ports, workers, the code server, secrets in files, processes and commands."""
    tried = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        input=json.dumps(servers),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert tried.returncode == 0, tried.stderr
    got = json.loads(tried.stdout.splitlines()[-1])
    assert got["ui"] == [401, 401]
    assert got["spark"] == ["UNAUTHENTICATED", "UNAUTHENTICATED"]
    assert len(got["jvm"]) == 2  # calls between the JVM's parts, and their blocks
    assert all("Sasl" in answer or "challenge" in answer for answer in got["jvm"]), got["jvm"]
    for kind in ("sockets", "files", "environments"):
        assert len(got[kind]) >= 2
        assert all(got[kind]), (kind, servers)
    assert [secret for secret in servers["secrets"] if secret in got["told"]] == []


@pytest.mark.spark
def test_the_owner_is_let_in_everywhere(servers: dict[str, Any]) -> None:
    """The same tries with what the owner knows: a refusal was of the person, not of a try that cannot succeed."""
    ui, spark = servers["secrets"]
    assert ask_ui(servers["url"], Authorization=f"Bearer {ui}") == 200
    assert ask_spark(servers["spark"], spark) == "1"
    assert not any(is_refused(lambda path=path: knock(path)) for path in servers["sockets"])
    assert not any(is_refused(lambda path=path: Path(path).stat()) for path in servers["files"])


@pytest.mark.spark
def test_a_home_is_its_owners_alone(serving: Serving, servers: dict[str, Any]) -> None:
    """The home, what is only there while it is up, Dagster's databases, logs, and each file with a secret in it."""
    modes = {path: (serving.home / path).stat().st_mode & 0o777 for path in ("", "up", "dagster", "logs", "up/spark")}
    assert modes == dict.fromkeys(modes, 0o700)
    for name in ("ui.token", "spark.env"):
        assert (serving.home / "up" / name).stat().st_mode & 0o777 == 0o600
    assert serving.home.stat().st_uid == os.geteuid()


@pytest.mark.spark
def test_the_ui_itself_is_behind_the_gate(serving: Serving) -> None:
    """With the cookie of a browser: no mutation by GET, by a foreign page, under a foreign name; and none by a form."""
    told = serving.start()
    link = urllib.request.urlopen(told["link"], timeout=30)
    cookie = {"Cookie": link.headers["Set-Cookie"].partition(";")[0]}
    asked = f"{told['url']}/graphql?query={quote(_MUTATION)}"
    own = {"Origin": told["url"]}
    body = json.dumps({"query": _MUTATION}).encode()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    tries = [
        (asked, None, cookie, 405),
        (asked, None, cookie | {"Host": "evil.example"}, 421),
        (asked, b"", cookie | own | form, 415),
        (asked, b"", cookie | form, 403),
        (f"{told['url']}/graphql", body, cookie | {"Origin": "http://evil.example"}, 403),
        (f"{told['url']}/graphql", body, {"Origin": told["url"]}, 401),
        (f"{told['url']}/graphql", body, cookie | own | {"Content-Type": "application/json"}, 200),
    ]
    assert [status_of(url, data, headers) for url, data, headers, _ in tries] == [status for *_, status in tries]


def status_of(url: str, data: bytes | None, headers: dict[str, str]) -> int:
    """The status of one answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def _become_nobody(servers: dict[str, Any]) -> None:
    """Become the user without rights; what the tries load is loaded before, for `nobody` may not be able to read it."""
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

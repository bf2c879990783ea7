"""The stand-in refuses and counts requests as the tests that use it assume."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cassandra import InvalidRequest, OperationTimedOut
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.policies import RoundRobinPolicy
from cassandra.query import BatchStatement
from support.standin.cluster import StandIn
from support.standin.server import java17
from support.standin.versions import VERSIONS
from support.waiting import await_true

pytestmark = pytest.mark.cassandra


@pytest.fixture
def session(standin: StandIn) -> Iterator[Session]:
    """A superuser's session through the proxy."""
    driver = Cluster(
        ["127.0.0.1"],
        port=standin.proxy.port,
        protocol_version=4,
        auth_provider=PlainTextAuthProvider("cassandra", "cassandra"),
        execution_profiles={EXEC_PROFILE_DEFAULT: ExecutionProfile(RoundRobinPolicy())},
        schema_metadata_enabled=False,
        token_metadata_enabled=False,
    )
    yield driver.connect()
    driver.shutdown()


def test_requests_of_a_closed_connection_are_not_in_flight(standin: StandIn, session: Session) -> None:
    """Requests of a connection that ends before their responses are not counted with later ones."""
    proxy, select = standin.proxy, "SELECT key FROM system.local"
    await_true(
        lambda: sum(request["open_count"] for request in session.get_pool_state().values()) == 3, 20, "connections"
    )
    proxy.faults.paused = {0, 1, 2}
    requests = [session.execute_async(select) for _ in range(3)]
    await_true(lambda: proxy.most_in_flight == 3, 20, "requests that are under way, one a node")
    for node in range(3):
        proxy.kill(node)
    standin.reset()
    for request in requests:
        with suppress(OperationTimedOut, NoHostAvailable):
            request.result()
    await_true(lambda: is_only_request(standin, session, select), 60, "an answer to who asks alone")


def get_row(session: Session, select: str) -> Any:
    """Return the single row of a result."""
    row = session.execute(select).one()
    assert row is not None
    return row


def is_only_request(standin: StandIn, session: Session, select: str) -> bool:
    """Return True if a node answers once the driver is connected again, with no other request in flight."""
    standin.proxy.most_in_flight = 0
    try:
        return session.execute(select).one() is not None and standin.proxy.most_in_flight == 1
    except NoHostAvailable:
        return False


def test_only_reads_pass_and_refusals_are_counted(standin: StandIn, session: Session) -> None:
    """An INSERT, a prepared one, a batch and a USE are refused even for a superuser; a SELECT passes."""
    insert = "INSERT INTO shop.orders (customer, item) VALUES ('a', 1)"
    batch = BatchStatement()
    batch.add(insert)
    for wrong in (insert, "USE shop", batch):
        with pytest.raises(InvalidRequest, match="SELECT and DESCRIBE alone"):
            session.execute(wrong)
    with pytest.raises(InvalidRequest, match="SELECT and DESCRIBE alone"):
        session.prepare(insert)
    assert list(session.execute("SELECT * FROM shop.orders")) == []
    assert standin.proxy.refused == [insert, "USE shop", "a batch", insert]


ELEMENTS = {"m": "m[1]", "s": "s[1]", "u": "u.a", "l": "l[0]"}
REFUSAL = "Cannot use selection function writeTime on collections"


@pytest.fixture
def collections(standin: StandIn) -> Iterator[None]:
    """A row with a map, a set, a list and a user type, none of them frozen, and an atomic cell."""
    standin.world.run("CREATE TYPE IF NOT EXISTS shop.told (a int, b text)")
    columns = "p int PRIMARY KEY, v int, m map<int, int>, s set<int>, l list<int>, u told"
    standin.world.run(f"CREATE TABLE shop.elements ({columns})")
    values = "1, 1, {1: 1}, {1}, [1], {a: 1, b: 'x'}"
    standin.world.run(f"INSERT INTO shop.elements (p, v, m, s, l, u) VALUES ({values}) USING TIMESTAMP 7 AND TTL 1000")
    standin.proxy.collections, standin.proxy.lists = set(ELEMENTS), {"l"}
    yield
    standin.world.run("DROP TABLE shop.elements")


@pytest.mark.usefixtures("collections")
@pytest.mark.parametrize("version", [name for name, selection in VERSIONS.items() if selection.is_scylla])
def test_it_tells_times_of_elements_as_its_version_does(standin: StandIn, session: Session, version: str) -> None:
    """Whole collections and elements of lists have none, others from 2026.2 on, atomic cells always."""
    standin.proxy.version = VERSIONS[version]
    reported = {"m", "s", "u"} if version in ("2026.2", "2026.3") else set[str]()
    for function in ("writetime", "TTL", "WriteTime"):
        for column, element in ELEMENTS.items():
            selections = [f"{function}({column})", f'{function}( "{column}" )']
            selections += [] if column in reported else [f"v, {function}({element})"]
            for selection in selections:
                with pytest.raises(InvalidRequest, match=REFUSAL):
                    session.execute(f"SELECT {selection} FROM shop.elements")
            if column in reported:
                assert len(get_row(session, f"SELECT v, {function}({element}) FROM shop.elements")) == 2
        assert get_row(session, f"SELECT {function}(v) FROM shop.elements")[0] > 0


@pytest.mark.usefixtures("collections")
def test_cassandra_would_tell_them(standin: StandIn, session: Session) -> None:
    """The proxy, not the server behind it, refuses them, except for elements of lists."""
    standin.proxy.collections.clear()
    standin.proxy.lists.clear()
    for column, element in ELEMENTS.items():
        session.execute(f"SELECT writetime({column}) FROM shop.elements")
        if column != "l":
            session.execute(f"SELECT writetime({element}) FROM shop.elements")


STARTS_ONE = """
import time
from pathlib import Path
from support.standin.server import CassandraServer

class Starting(CassandraServer):
    def _wait(self):
        Path(__file__).with_name("pid").write_text(str(self._process.pid))
        time.sleep(600)

def test_one(tmp_path):
    Starting(tmp_path)
"""


def is_running(pid: int) -> bool:
    """Return True if the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["TERM", "KILL"])
def test_server_ends_with_a_killed_test_run(tmp_path: Path, number: signal.Signals) -> None:
    """The server is gone after a signal such as that of `timeout`, which tears down no fixture."""
    java17()
    (tmp_path / "test_one.py").write_text(STARTS_ONE, encoding="utf-8")
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), str(root / "tests")])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path)]
    with subprocess.Popen(
        [*command, str(tmp_path / "test_one.py")], env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.DEVNULL
    ) as running:
        pid_file = tmp_path / "pid"
        pid = int(await_true(lambda: pid_file.exists() and pid_file.read_text(), 60, "to start a server"))
        assert is_running(pid)
        running.send_signal(number)
    assert running.returncode == -number
    await_true(lambda: not is_running(pid), 20, "the end of the server")

"""When the Spark server of an `up` sleeps and wakes, with the test's clock and with the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import await_true
from support.worlds.serving import Serving

from cdc_platform.clock import SECOND_MS, Milliseconds
from cdc_platform.server.idle import IdleMonitor
from cdc_platform.spark_server import ServerFile

_ASKS = (
    "from cdc_platform.spark.session import get_spark_session; print(get_spark_session().sql('SELECT 42').first()[0])"
)
_HELD = "import sys; sys.stdin.read()"
_JVM = "SparkConnectServer"


@pytest.fixture
def own_up(tmp_path: Path) -> Iterator[Serving]:
    """A separate `up` that ends with the test."""
    serving = Serving(tmp_path / "home")
    yield serving
    serving.stop()


class World:
    """A server with clients and a clock that the test sets, and its file."""

    def __init__(self, folder: Path, after_s: int = 100) -> None:
        self.file = ServerFile(folder / "spark.env")
        self.clients: int | None = 0
        self.now = 0.0
        after_ms = Milliseconds(after_s * SECOND_MS)
        self.publish()
        self.sleeping = IdleMonitor(self.file, self, after_ms, self.publish, clock=lambda: self.now)

    def publish(self) -> None:
        """Publish the server's address."""
        self.file.publish({"SPARK_REMOTE": "sc://localhost:1", "SPARK_CONNECT_AUTHENTICATE_TOKEN": "t=1"})

    def request(self) -> None:
        """Request the server as a client does; the loop hides a coarse clock of the file system."""
        before = self.file.last_request()
        while self.file.last_request() == before:
            self.file.request()

    def needed_at(self, second: float) -> bool:
        """Return True if the server is needed at that time."""
        self.now = second
        return self.sleeping.needed()


def test_server_sleeps_after_a_while_without_clients(tmp_path: Path) -> None:
    """It is needed until then; afterwards it is not, and the file has no address."""
    world = World(tmp_path)
    assert world.file.read()["SPARK_CONNECT_AUTHENTICATE_TOKEN"] == "t=1"
    assert [world.needed_at(second) for second in (0, 50, 99, 100, 101, 500)] == [True, True, True, False, False, False]
    with pytest.raises(ConnectionRefusedError):
        world.file.read()
    assert f"CDC_PLATFORM_SPARK_SERVER={world.file.path}" in world.file.path.read_text(encoding="utf-8")


def test_request_wakes_the_server_and_delays_its_sleep(tmp_path: Path) -> None:
    """A request before the sleep delays it; a request during the sleep wakes the server for as long again."""
    world = World(tmp_path)
    assert world.needed_at(90)
    world.request()
    assert [world.needed_at(second) for second in (91, 190, 191)] == [True, True, False]
    world.request()
    assert [world.needed_at(second) for second in (600, 699, 700)] == [True, True, False]


def test_open_connection_prevents_sleep(tmp_path: Path) -> None:
    """A long job sends no new request."""
    world = World(tmp_path)
    world.clients = 1
    assert all(world.needed_at(second) for second in range(0, 500, 5))
    world.clients = 0
    assert [world.needed_at(second) for second in (585, 595)] == [True, False]


def test_request_while_the_server_falls_asleep_counts(tmp_path: Path) -> None:
    """A client requests the server before it reads the address, so the address returns or the client waits."""
    world = World(tmp_path)
    withdraw = world.file.withdraw

    class Raced(ServerFile):
        def withdraw(self) -> None:
            """Withdraw the address; then a client requests the server."""
            withdraw()
            world.request()

    raced = Raced(world.file.path)
    sleeping = IdleMonitor(raced, world, Milliseconds(1), world.publish, clock=lambda: world.now)
    world.now = 1.0
    assert sleeping.needed()
    assert world.file.read()["SPARK_REMOTE"] == "sc://localhost:1"


@pytest.mark.parametrize(("after_s", "clients"), [(0, 0), (100, None)])
def test_server_without_a_count_of_clients_never_sleeps(tmp_path: Path, after_s: int, clients: int | None) -> None:
    """The setting prevents it, and so does a system that does not report connections."""
    world = World(tmp_path, after_s)
    world.clients = clients
    assert all(world.needed_at(second) for second in range(0, 1000, 50))


@pytest.mark.spark
@pytest.mark.long("an `up` of its own, whose Spark starts twice")
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody tells who is connected, and it never sleeps")
def test_spark_of_up_sleeps_and_wakes(own_up: Serving) -> None:
    """Its JVM ends without connections, and starts for a command of a shell that has read the file before."""
    own_up.home.mkdir(mode=0o700)
    (own_up.home / "settings.toml").write_text("spark_sleep_ms = 3000\n", encoding="utf-8")
    file = ServerFile(Path(own_up.start()["spark_file"]))
    variables = own_up.spark
    await_true(lambda: not jvms(own_up), 60, "the sleep of Spark")
    asleep = {line.partition("=")[0] for line in file.path.read_text(encoding="utf-8").splitlines()}
    assert asleep == {"CDC_PLATFORM_SPARK_SERVER"}
    client = subprocess.Popen(
        [sys.executable, "-c", f"{_ASKS}\n{_HELD}"],
        env=os.environ | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with client:
        assert client.stdout is not None
        assert client.stdout.readline() == "42\n"
        assert jvms(own_up)
        assert file.read()["SPARK_CONNECT_AUTHENTICATE_TOKEN"] != variables["SPARK_CONNECT_AUTHENTICATE_TOKEN"]
        assert client.communicate("", timeout=60)[0] == ""
    await_true(lambda: not jvms(own_up), 60, "the second sleep of Spark")
    own_up.ask_for_the_end()
    code, stderr = own_up.end()
    assert code == 0
    assert stderr.splitlines() == [
        "the Spark Connect server sleeps until it is needed",
        "the Spark Connect server is needed again and starts",
        "the Spark Connect server sleeps until it is needed",
    ]


def jvms(serving: Serving) -> list[int]:
    """Return the processes of the Connect server of an `up`."""
    return [pid for pid, command in serving.processes().items() if _JVM in command]

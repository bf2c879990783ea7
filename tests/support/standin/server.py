"""A real Apache Cassandra of one node on loopback, with users and permissions; killed at the end.

The module `proxy` makes it respond as ScyllaDB does.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ports import free_ports
from support.standin.jars import cassandra_jars

from cdc_platform.processes import kill_when_parent_dies

NEEDED = 17
# After each request Cassandra's threads look for another one for 10 ms, and sleep for 10 us between two polls. With a
# client that pauses, this is nine tenths of its CPU. With this timer slack the system may let them sleep longer: the
# CPU falls to a third, and a request takes a tenth of a millisecond more.
_SLACK_NS = 300_000
_PR_SET_TIMERSLACK = 29
_START_SECONDS = 240
# The JDK's internals that Cassandra uses; since Java 17 each must be opened by name.
_EXPORTS = (
    "java.base/jdk.internal.misc java.base/jdk.internal.ref java.base/java.lang.ref java.base/sun.nio.ch "
    "java.management.rmi/com.sun.jmx.remote.internal.rmi java.rmi/sun.rmi.registry java.rmi/sun.rmi.server "
    "java.sql/java.sql jdk.unsupported/sun.misc"
)
_OPENS = (
    "java.base/java.io java.base/java.lang java.base/java.lang.module java.base/java.lang.reflect java.base/java.math "
    "java.base/java.net java.base/java.nio java.base/java.util java.base/java.util.concurrent "
    "java.base/java.util.concurrent.atomic java.base/jdk.internal.loader java.base/jdk.internal.math "
    "java.base/jdk.internal.module java.base/jdk.internal.ref java.base/jdk.internal.reflect "
    "java.base/jdk.internal.util.jar java.base/sun.nio.ch jdk.management/com.sun.management.internal"
)
_MEMORY = "-Xms320m -Xmx320m -XX:MaxDirectMemorySize=128m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss512k"
_YAML = """
cluster_name: standin
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
listen_address: 127.0.0.1
rpc_address: 127.0.0.1
native_transport_port: {port}
storage_port: {storage}
ssl_storage_port: {ssl_storage}
start_native_transport: true
commitlog_sync: periodic
commitlog_sync_period: 10000ms
commitlog_disk_access_mode: legacy
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "127.0.0.1:{storage}"
data_file_directories: [data/rows]
commitlog_directory: data/commitlog
saved_caches_directory: data/caches
hints_directory: data/hints
cdc_raw_directory: data/cdc
authenticator: PasswordAuthenticator
authorizer: CassandraAuthorizer
permissions_validity: 1h
roles_validity: 1h
credentials_validity: 1h
auto_snapshot: false
materialized_views_enabled: true
read_request_timeout: 60s
range_request_timeout: 60s
write_request_timeout: 60s
memtable_heap_space: 32MiB
memtable_offheap_space: 32MiB
key_cache_size: 8MiB
file_cache_size: 32MiB
networking_cache_size: 16MiB
"""
# DEBUG on standard output, the default without a file, takes most of the start-up time.
_LOGBACK = """<configuration><appender name="A" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%d %-5level %logger - %msg%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="A"/></root></configuration>"""


def _begin() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(_SLACK_NS))
    kill_when_parent_dies()


def java17() -> str:
    """Return the launcher of a Java 17; skip the test if there is none, but fail in CI."""
    for launcher in launchers():
        try:
            answer = subprocess.run([launcher, "-version"], capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        version = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
        if version and int(version[1]) == NEEDED:
            return launcher
    why = "the CQL server of these tests needs Java 17 (Debian: apt-get install openjdk-17-jre-headless)"
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def launchers() -> Iterator[str]:
    """Return where a Java may be, JAVA_HOME first."""
    homes = [os.environ.get("JAVA_HOME", ""), *map(str, sorted(Path("/usr/lib/jvm").glob("*17*")))]
    yield from (str(Path(home, "bin", "java")) for home in homes if home)
    yield "java"


class CassandraServer:
    """The process. `port` is its CQL port; its superuser is cassandra, with the same password.

    On Linux the system ends it when the process that started it ends in any way.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, storage, ssl_storage = free_ports(3)
        (folder / "cassandra.yaml").write_text(_YAML.format(port=self.port, storage=storage, ssl_storage=ssl_storage))
        (folder / "logback.xml").write_text(_LOGBACK)
        self._process = subprocess.Popen(
            self._command(java17(), cassandra_jars()),
            cwd=folder,
            stdout=(folder / "output").open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_begin,
        )
        self._wait()

    @property
    def pid(self) -> int:
        """Return the process ID of the JVM."""
        return self._process.pid

    def stop(self) -> None:
        """Kill the process, whose data is not needed."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _command(self, java: str, jars: Path) -> list[str]:
        settings = {
            "cassandra.config": f"file://{self.folder}/cassandra.yaml",
            "cassandra.storagedir": f"{self.folder}/data",
            "cassandra-foreground": "yes",
            "cassandra.skip_wait_for_gossip_to_settle": "0",
            "cassandra.ring_delay_ms": "0",
            "cassandra.superuser_setup_delay_ms": "0",
            "cassandra.auth_bcrypt_gensalt_log2_rounds": "4",
            # Its data is temporary: nothing must be written to disk, least of all before the next statement.
            "cassandra.test.flush_local_schema_changes": "false",
            "cassandra.skip_sync": "true",
            # Every 2 ms by default: a hundredth of a core, from the first test that needs it to the last one.
            "cassandra.approximate_time_precision_ms": "20",
            "cassandra.jmx.local.port": "",
            "logback.configurationFile": f"{self.folder}/logback.xml",
            "jdk.attach.allowAttachSelf": "true",
        }
        return [
            java,
            *(f"-D{name}={value}" for name, value in settings.items() if value),
            *(flag for name in _EXPORTS.split() for flag in ("--add-exports", f"{name}=ALL-UNNAMED")),
            *(flag for name in _OPENS.split() for flag in ("--add-opens", f"{name}=ALL-UNNAMED")),
            *_MEMORY.split(),
            f"-javaagent:{jars}/jamm-0.4.0.jar",
            "-cp",
            f"{jars}/*",
            "org.apache.cassandra.service.CassandraDaemon",
        ]

    def _wait(self) -> None:
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            if self._process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        tail = (self.folder / "output").read_text()[-3000:]
        raise RuntimeError(f"Apache Cassandra did not start: {tail}")

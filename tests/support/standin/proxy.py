"""A proxy before a Cassandra that responds as the nodes of a ScyllaDB cluster do, as far as metadata is concerned.

Every node has an address on loopback. Node-local tables and tables that only ScyllaDB has are stored in keyspaces of
the stand-in; tables that a version does not have are unknown. The proxy accepts only SELECT and DESCRIBE, except from
users with write permission in a test. It counts requests and injects faults.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
import struct
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from support.standin.versions import NEWEST, Version

from cdc_platform.clock import Milliseconds

_HEAD = struct.Struct(">BBhBi")
_ERROR, _SUPPORTED, _QUERY, _RESULT, _PREPARE = 0x00, 0x06, 0x07, 0x08, 0x09
_EXECUTE, _BATCH, _AUTH_RESPONSE = 0x0A, 0x0D, 0x0F
_WRITES = ("INSERT INTO ", *(f"CREATE {kind} IF NOT EXISTS " for kind in ("KEYSPACE", "TABLE", "TYPE")))
"""Beginnings of statements that a user with write permission may send: none removes anything."""
_READS = ("SELECT ", "DESCRIBE ")
_PROTOCOL, _INVALID = 0x000A, 0x2200
OVERLOADED, READ_TIMEOUT, UNAVAILABLE = 0x1001, 0x1200, 0x1000
_TABLE = re.compile(r"\b(system(?:_schema|_distributed_everywhere|_distributed)?)\.(\w+)")
_CLAUSES = re.compile(r"\s+(?:BYPASS\s+CACHE|USING\s+TIMEOUT\s+\d+\w+)", re.IGNORECASE)
OF_A_NODE = frozenset({"local", "peers", "cdc_local"})
_ALSO_CASSANDRAS = frozenset(
    {"keyspaces", "tables", "columns", "dropped_columns", "types", "views", "indexes", "functions", "aggregates"}
)
_LOG = "_scylla_cdc_log"
_TIMES = re.compile(r'\b(?:max)?(?:writetime|ttl)\(\s*("[^"]+"|\w+)\s*([\[.]?)', re.IGNORECASE)
_GREGORIAN = 0x01B21DD213814000
_PREFIX, _SCYLLAS = "scylla", b"system_distributed"


@dataclass
class Faults:
    """Faults that a test can set at any moment. Nodes are numbers from 0."""

    down: set[int] = field(default_factory=set)
    paused: set[int] = field(default_factory=set)
    slow_seconds: float = 0.0
    errors: list[int] = field(default_factory=list)
    """Error codes for the next statements on platform data, one each."""
    error_rate: float = 0.0
    """The share of statements that are answered with an overload, always the same ones."""
    dice: random.Random = field(default_factory=lambda: random.Random(7))
    clock_offset_ms: dict[int, int] = field(default_factory=dict)
    meanwhile: dict[int, Callable[[], None]] = field(default_factory=dict)
    """Calls before the n-th statement on a log from now on (one per page) is processed, from 1."""
    pages_asked: int = 0
    at_login: list[Callable[[], None]] = field(default_factory=list)
    """Calls before the next logins are processed, one each."""


class Proxy:
    """Listeners for `nodes` nodes at 127.0.0.1, .2, .. with one port, before a Cassandra at `upstream`."""

    def __init__(
        self, upstream: int, port: int, nodes: int = 3, shards: int = 4, tls: ssl.SSLContext | None = None
    ) -> None:
        self.port = port
        self.version: Version = NEWEST
        self.shards = shards
        self.collections: set[str] = set()
        """Columns whose time ScyllaDB does not report as a whole; Cassandra does."""
        self.lists: set[str] = set()
        """Those of them that are lists, whose elements have no reported time either."""
        self.faults = Faults()
        self.writers: set[str] = set()
        """Users whose sessions may write."""
        self.prefix = _PREFIX
        """The replacement of `system` in the names of the keyspaces with ScyllaDB's tables, of the same length."""
        self.in_schema = False
        """Whether the schema shows ScyllaDB's keyspace, where some clients look up its tables."""
        self.renamed: dict[str, str] = {}
        """Names that ScyllaDB permits and Cassandra does not, by Cassandra names of the same length."""
        self.statements: list[tuple[int, str]] = []
        self.levels: list[tuple[str, int]] = []
        """Each statement of a QUERY with its consistency, as the protocol numbers it."""
        self.logins: list[tuple[str, str]] = []
        """Users and passwords of the logins."""
        self.refused: list[str] = []
        self.open: Counter[int] = Counter()
        self.most_open: Counter[int] = Counter()
        """The most connections per node at once, among those opened since `count_new_connections`."""
        self._new_connections: Counter[int] = Counter()
        self.most_in_flight = 0
        self._asked: set[tuple[int, int]] = set()
        self._upstream, self._tls = upstream, tls
        self._writers: dict[int, set[asyncio.StreamWriter]] = {node: set() for node in range(nodes)}
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(nodes, ready), daemon=True)
        self._thread.start()
        if not ready.wait(30):
            raise RuntimeError("the stand-in's proxy does not listen")

    def reset(self) -> None:
        """Clear all counts and faults."""
        self.faults, self.version = Faults(), NEWEST
        self.prefix, self.in_schema = _PREFIX, False
        self.renamed.clear()
        self.collections.clear()
        self.lists.clear()
        self.writers.clear()
        self.statements.clear()
        self.levels.clear()
        self.logins.clear()
        self.refused.clear()
        self.count_new_connections()
        self.most_in_flight = 0

    def count_new_connections(self) -> None:
        """Restart the count of `most_open`; connections that are open now are not counted, even while closing."""
        self.most_open, self._new_connections = Counter(), Counter()

    def kill(self, node: int) -> None:
        """End every connection of a node and accept none until it is removed from `faults.down`."""
        self.faults.down.add(node)
        for writer in list(self._writers[node]):
            self._loop.call_soon_threadsafe(writer.transport.abort)

    def restart(self, seconds: float) -> None:
        """End the connections of all nodes, which listen again after this many seconds."""
        for node in self._writers:
            self.kill(node)
        time.sleep(seconds)
        self.faults.down.clear()

    def stop(self) -> None:
        """Stop listening."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, nodes: int, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        for node in range(nodes):
            serve = asyncio.start_server(
                lambda reader, writer, node=node: self._connection(node, reader, writer),
                f"127.0.0.{node + 1}",
                self.port,
                ssl=self._tls,
            )
            self._loop.run_until_complete(serve)
        ready.set()
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _connection(self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if node in self.faults.down:
            writer.transport.abort()
            return
        counted = self._new_connections
        self.open[node] += 1
        counted[node] += 1
        self.most_open[node] = max(self.most_open[node], counted[node])
        self._writers[node].add(writer)
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
            await asyncio.gather(
                self._frames(node, reader, up_writer, writer), self._answers(node, up_reader, writer, up_writer)
            )
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # Connections are cancelled when the proxy stops; asyncio would print a stack for each.
            pass
        finally:
            self.open[node] -= 1
            counted[node] -= 1
            self._writers[node].discard(writer)
            writer.close()

    async def _frames(
        self, node: int, reader: asyncio.StreamReader, up: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        user = ""
        try:
            while True:
                version, flags, stream, opcode, length = _HEAD.unpack(await reader.readexactly(_HEAD.size))
                if version not in (3, 4):
                    _write(back, 0x84, 0, stream, _ERROR, _error(_PROTOCOL, "Invalid or unsupported protocol version"))
                    return
                body = await reader.readexactly(length)
                if opcode == _AUTH_RESPONSE:
                    user, password = body[4:].decode().split("\0")[1:3]
                    self.logins.append((user, password))
                    if self.faults.at_login:
                        self.faults.at_login.pop(0)()
                if opcode == _QUERY:
                    (at,) = struct.unpack_from(">i", body)
                    self.levels.append((_text(body), struct.unpack_from(">H", body, at + 4)[0]))
                answer = self._refusal(opcode, body, user)
                if answer is None and opcode in (_QUERY, _PREPARE):
                    await self._meanwhile(_text(body))
                    body, answer = self._statement(node, body)
                    self._asked.add((id(back), stream))
                    self.most_in_flight = max(self.most_in_flight, len(self._asked))
                    await self._misbehave(node)
                for stored, external in self.renamed.items():
                    body = body.replace(external.encode(), stored.encode())
                if opcode == _EXECUTE and self._is_swapped:
                    body = body.replace(_SCYLLAS, self._distributed)
                if answer is not None:
                    self._asked.discard((id(back), stream))
                    _write(back, 0x84, 0, stream, _ERROR, answer)
                else:
                    _write(up, version, flags, stream, opcode, body)
        finally:
            up.close()
            # A request without a waiting client is not in flight.
            self._asked = {request for request in self._asked if request[0] != id(back)}

    async def _answers(
        self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, up: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                version, flags, stream, opcode, length = _HEAD.unpack(await reader.readexactly(_HEAD.size))
                body = await reader.readexactly(length)
                self._asked.discard((id(writer), stream))
                await self._misbehave(node, late=False)
                body = self._supported() if opcode == _SUPPORTED else self._swapped(opcode, body)
                _write(writer, version, flags, stream, opcode, body)
        finally:
            up.close()
            writer.close()

    def _swapped(self, opcode: int, body: bytes) -> bytes:
        """Return rows with ScyllaDB's name for the keyspace under another prefix: clients look it up in the schema."""
        if opcode == _RESULT:
            for stored, external in self.renamed.items():
                body = body.replace(stored.encode(), external.encode())
        if opcode != _RESULT or not self._is_swapped:
            return body
        return _SCYLLAS.join(part.replace(_SCYLLAS, self._distributed) for part in body.split(self._distributed))

    @property
    def _is_swapped(self) -> bool:
        return self.in_schema or self.prefix != _PREFIX

    @property
    def _distributed(self) -> bytes:
        return f"{self.prefix}_distributed".encode()

    def _refusal(self, opcode: int, body: bytes, user: str) -> bytes | None:
        text = _text(body).strip() if opcode in (_QUERY, _PREPARE) else ""
        if user in self.writers and text.startswith(_WRITES):
            return None
        if opcode == _BATCH or (opcode in (_QUERY, _PREPARE) and not text.upper().startswith(_READS)):
            self.refused.append(text or "a batch")
            return _error(_INVALID, "the stand-in takes SELECT and DESCRIBE alone")
        return None

    def _statement(self, node: int, body: bytes) -> tuple[bytes, bytes | None]:
        """Return the body with its text as Cassandra understands it, or the error that this version returns."""
        text = _text(body)
        self.statements.append((node, " ".join(text.split())))
        for keyspace, table in _TABLE.findall(text):
            if not self.version.has(keyspace, table):
                return body, _error(_INVALID, f"unconfigured table {table}")
        for name, of_element in _TIMES.findall(text):
            if self._tells_no_time(name.strip('"'), of_element=bool(of_element)):
                return body, _error(_INVALID, "Cannot use selection function writeTime on collections")
        of_driver = "system.local" in text or "system.peers" in text
        if not of_driver and self.faults.errors:
            return body, _error(self.faults.errors.pop(0), "as a test told it to")
        if not of_driver and self.faults.error_rate > self.faults.dice.random():
            return body, _error(OVERLOADED, "too many requests")
        changed = _CLAUSES.sub("", _TABLE.sub(lambda name: place_of(node, name[1], name[2], self.prefix), text))
        if node in self.faults.clock_offset_ms:
            changed = changed.replace(
                "now()", f"(timeuuid){_timeuuid(Milliseconds(self.faults.clock_offset_ms[node]))}"
            )
        if self._is_swapped:
            changed = changed.replace(f"'{_SCYLLAS.decode()}'", f"'{self._distributed.decode()}'")
        encoded = changed.encode()
        return struct.pack(">i", len(encoded)) + encoded + body[4 + struct.unpack_from(">i", body)[0] :], None

    def _tells_no_time(self, name: str, *, of_element: bool) -> bool:
        """Return True if this version does not report when a column, or an element of it, was written."""
        if not of_element:
            return name in self.collections
        return not self.version.tells_elements or name in self.lists

    async def _meanwhile(self, text: str) -> None:
        if _LOG in text:
            self.faults.pages_asked += 1
            happens = self.faults.meanwhile.pop(self.faults.pages_asked, None)
            if happens is not None:
                await asyncio.to_thread(happens)

    async def _misbehave(self, node: int, *, late: bool = True) -> None:
        if late and self.faults.slow_seconds:
            await asyncio.sleep(self.faults.slow_seconds)
        faults = self.faults
        while node in faults.paused:
            if (
                faults is not self.faults
            ):  # a finished test left it waiting; its request does not belong to the next test
                raise ConnectionAbortedError
            await asyncio.sleep(0.02)

    def _supported(self) -> bytes:
        options = {"CQL_VERSION": ["3.3.1"], "COMPRESSION": []}
        if self.version.is_scylla:
            options |= {
                "SCYLLA_SHARD": ["0"],
                "SCYLLA_NR_SHARDS": [str(self.shards)],
                "SCYLLA_SHARDING_IGNORE_MSB": ["12"],
                "SCYLLA_SHARDING_ALGORITHM": ["biased-token-round-robin"],
                "SCYLLA_PARTITIONER": ["org.apache.cassandra.dht.Murmur3Partitioner"],
            }
        return struct.pack(">H", len(options)) + b"".join(
            _string(name) + struct.pack(">H", len(values)) + b"".join(map(_string, values))
            for name, values in options.items()
        )


def place_of(node: int, keyspace: str, table: str, prefix: str = _PREFIX) -> str:
    """Return where Cassandra stores `keyspace.table` of this node.

    Only the stand-in's own cluster has a `cdc_local` per node; what was written under another prefix has a single one.
    """
    if keyspace == "system" and table in OF_A_NODE and (prefix == _PREFIX or table != "cdc_local"):
        return f"node{node}.{table}"
    if keyspace == "system_schema" and table in _ALSO_CASSANDRAS:
        return f"{keyspace}.{table}"
    return f"{keyspace.replace('system', prefix)}.{table}"


def _write(writer: asyncio.StreamWriter, version: int, flags: int, stream: int, opcode: int, body: bytes) -> None:
    writer.write(_HEAD.pack(version, flags, stream, opcode, len(body)) + body)


def _text(body: bytes) -> str:
    (length,) = struct.unpack_from(">i", body)
    return body[4 : 4 + length].decode()


def _error(code: int, message: str) -> bytes:
    """Return an ERROR's body; additional fields of some codes have arbitrary values that parse."""
    more = {
        UNAVAILABLE: struct.pack(">Hii", 4, 2, 1),
        READ_TIMEOUT: struct.pack(">HiiB", 4, 1, 2, 0),
    }
    return struct.pack(">i", code) + _string(message) + more.get(code, b"")


def _string(text: str) -> bytes:
    return struct.pack(">H", len(text.encode())) + text.encode()


def _timeuuid(offset_ms: Milliseconds) -> uuid.UUID:
    ticks = time.time_ns() // 100 + offset_ms * 10_000 + _GREGORIAN
    fields = (ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 & 0x0FFF | 0x1000, 0x80, 0, 1)
    return uuid.UUID(fields=fields)

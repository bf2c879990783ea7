"""An S3 server on loopback, as its own process: moto, with a lock that makes its conditional writes exclusive.

It is one store with several endpoints, one port each:
- `plain` responds normally.
- `faulty` fails a tenth of the requests: it returns 503 or cuts the connection, before or after the store has
processed the request, or it responds late.
- `forgetful` performs the first PUT of every Delta log entry and reports failure: by 503, 500 or a cut, in turn.
- `careless` ignores conditions, as stores without conditional writes do.
- `hasty` checks that an object is absent and then writes it without a lock, as stores do that only seem to have them.
- `keyed` accepts only the tests' key; the other endpoints check none.
- `readonly` refuses every change; `down` refuses everything with 503.
- `expired` refuses expired credentials, `skewed` requests with a wrong time, `elsewhere` and `redirected` requests for
a bucket of another region.
- `first` and `second` behave like the endpoint that a test chooses, by default `plain`.
At every endpoint a test can limit the number of writes, after which the store is full (in MinIO's words), set the age
of objects, and delay one response. Started as `python -m support.store.s3_server SEED`, the server prints the ports as
JSON and ends with its standard input.
"""

from __future__ import annotations

import gc
import io
import json
import random
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.sax.saxutils import escape

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.responses import ActionResult
from moto.moto_server.werkzeug_app import create_backend_app
from moto.s3.models import s3_backends
from moto.s3.responses import S3Response
from support.store.s3 import AGES, COUNTS, FAULTS, KEY, NAMES, ROOM, SLOW, WAYS, WRITTEN
from support.store.s3_looks import looked
from werkzeug.serving import WSGIRequestHandler, make_server

from cdc_platform.runtime import tune_short_process

_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
SHARE = 10
"""One request in this many meets a fault."""


class Store:
    """The store, and the number of requests by verb that have reached it."""

    def __init__(self) -> None:
        # Without moto's dispatcher: finding each request's service takes two thirds of the response time.
        self._application = create_backend_app("s3")
        # moto checks that an object exists and writes it in two steps.
        self._writing = threading.Lock()
        self.counts: Counter[str] = Counter()
        self._written: list[str] = []
        self.ways = {"first": "plain", "second": "plain"}
        self._room: int | None = None
        self._slow: dict[str, Any] | None = None

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == COUNTS:
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self.counts).encode()]
        if environ["PATH_INFO"] == NAMES:
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(_listed["names"]).encode()]
        if environ["PATH_INFO"] == WRITTEN:
            start("200 OK", [("Content-Type", "application/json")])
            written, self._written = self._written, []
            return [json.dumps(written).encode()]
        method = environ["REQUEST_METHOD"]
        if environ["PATH_INFO"] in (ROOM, AGES, SLOW, WAYS):
            self._hear(environ["PATH_INFO"], json.load(environ["wsgi.input"]))
            start("200 OK", [("Content-Length", "0")])
            return []
        # The removal of several objects is a POST, which a full store accepts all the same.
        is_put = method in ("PUT", "POST") and "delete" not in environ["QUERY_STRING"]
        if is_put and self._is_full():
            return _no(start, "XMinioStorageFull", "507 Insufficient Storage")
        self.counts[f"LIST {method}" if "list-type" in environ["QUERY_STRING"] else method] += 1
        if method in ("PUT", "POST", "DELETE"):
            self._written.append(f"{method} {environ['PATH_INFO']}")
            with self._writing:
                answer = list(self._application(environ, start))
                seconds = self._late_by(method, environ["PATH_INFO"])
            time.sleep(seconds)
            return answer
        answer = looked(environ)
        if answer is None:
            return list(self._application(environ, start))
        status, headers, content = answer
        start(status, headers)
        return [content]

    def _hear(self, path: str, setting: Any) -> None:
        if path == ROOM:
            self._room = setting
        elif path == SLOW:
            self._slow = setting
        elif path == WAYS:
            self.ways |= setting
        else:
            _age(**setting)

    def _late_by(self, method: str, path: str) -> float:
        slow = self._slow
        is_data_file = path.endswith(".parquet") and "/_delta_log/" not in path
        if slow is None or method != "PUT" or not is_data_file or not path.startswith(slow["below"]):
            return 0
        self._slow = None
        return slow["seconds"]

    def _is_full(self) -> bool:
        with self._writing:
            if self._room:
                self._room -= 1
                return False
            return self._room == 0


def _age(bucket: str, name: str, seconds: float) -> None:
    stored = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[bucket].keys[name]
    stored.last_modified = datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=seconds)


def _serialized(self: S3Response, action_result: ActionResult) -> Any:
    """Return a moto response as status, headers and XML; lists are serialized here.

    moto's model-based serialization takes 0.15 ms per name, and the tests list homes all the time.
    """
    data = action_result.result
    if not isinstance(data, dict) or "KeyCount" not in data:
        return _by_model(self, action_result)
    _listed["names"] += data["KeyCount"]
    body = (
        f"<?xml version='1.0' encoding='utf-8'?><ListBucketResult xmlns='{_NAMESPACE}'>{_xml(data)}</ListBucketResult>"
    )
    return 200, {**self.response_headers, "Content-Type": "application/xml"}, body


_listed = Counter[str]()
_by_model = S3Response.serialized
S3Response.serialized = _serialized
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


def _xml(fields: dict[str, Any]) -> str:
    """Return fields of a response as elements; a list repeats its element for each item."""
    parts: list[str] = []
    for name, value in fields.items():
        for item in value if isinstance(value, list) else [value]:
            text = _xml(item) if isinstance(item, dict) else _text(item)
            parts.append(f"<{name}>{text}</{name}>")
    return "".join(parts)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else escape(str(value))


class Faulty:
    """The store behind a network and a service that fail sometimes."""

    def __init__(self, store: Store, seed: str) -> None:
        self._store, self._random, self._drawing = store, random.Random(seed), threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with self._drawing:
            fault = self._random.choice(_FAULTS) if self._random.randrange(SHARE) == 0 else None
            self._store.counts[FAULTS] += fault is not None
        if fault == "refuse before":
            return _refuse(start)
        if fault == "cut before":
            return _cut(environ)
        if fault is None:
            return self._store(environ, start)
        answer = list(self._store(environ, start if fault == "late" else _nowhere))
        if fault == "refuse after":
            return _refuse(start)
        if fault == "cut after":
            return _cut(environ)
        time.sleep(0.2)
        return answer


_FAULTS = ("refuse before", "refuse after", "cut before", "cut after", "late")


class Forgetful:
    """The store that first reports each commit as failed."""

    def __init__(self, store: Store) -> None:
        self._store, self._seen, self._looking = store, set[str](), threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        entry = _ENTRY.search(path) if environ["REQUEST_METHOD"] == "PUT" else None
        with self._looking:
            is_first = entry is not None and path not in self._seen
            self._seen |= {path} if is_first else set()
        if entry is None or not is_first:
            return self._store(environ, start)
        list(self._store(environ, _nowhere))
        index = int(entry[1]) % 3
        return _cut(environ) if index == 2 else _refuse(start, _REFUSALS[index])


_ENTRY = re.compile(r"/_delta_log/(\d{20})\.json$")


def hasty(store: Store) -> _Application:
    """Return the store with a gap between check and PUT in which other writers succeed."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "PUT" or environ.get("HTTP_IF_NONE_MATCH") != "*":
            return store(environ, start)
        statuses: list[str] = []
        looked = {**environ, "REQUEST_METHOD": "HEAD", "CONTENT_LENGTH": "0", "wsgi.input": io.BytesIO()}
        list(store(_without_conditions(looked), lambda status, *_: statuses.append(status)))
        if statuses[0].startswith("200"):
            return _no(start, "PreconditionFailed", "412 Precondition Failed")
        time.sleep(0.01)  # as between the parts of a store on several machines
        return store(_without_conditions(environ), start)

    return answer


def _without_conditions(environ: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in environ.items() if not name.startswith("HTTP_IF_")}


def careless(store: Store) -> _Application:
    """Return the store that ignores conditions."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        return store(_without_conditions(environ), start)

    return answer


def readonly(store: Store) -> _Application:
    """Return the store for clients that may only read."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return store(environ, start)
        return _no(start, "AccessDenied")

    return answer


def keyed(store: Store) -> _Application:
    """Return the store for clients with the tests' key alone; moto checks no key."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if f"Credential={KEY}/" in environ.get("HTTP_AUTHORIZATION", ""):
            return store(environ, start)
        return _no(start, "InvalidAccessKeyId")

    return answer


def _led(store: Store, door: str, doors: Mapping[str, _Application]) -> _Application:
    return lambda environ, start: doors[store.ways[door]](environ, start)


def expired(_environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """Respond as a store does to expired credentials."""
    return _no(start, "ExpiredToken")


def down(_environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """Respond as an overloaded service does, to every request."""
    return _refuse(start)


def skewed(_environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """Respond as S3 does to a request signed by a clock that is off by more than a quarter of an hour."""
    return _no(start, "RequestTimeTooSkewed")


def elsewhere(_environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """Respond as S3 does to a request signed for another region than the bucket's."""
    return _no(start, "AuthorizationHeaderMalformed", "400 Bad Request", "<Region>eu-central-1</Region>")


def redirected(_environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """Respond as S3 does to a request at the endpoint of another region, without an address."""
    return _no(start, "PermanentRedirect", "301 Moved Permanently")


def _no(start: Callable[..., Any], code: str, status: str = "403 Forbidden", more: str = "") -> Iterable[bytes]:
    start(status, [("Content-Type", "application/xml")])
    return [f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message>{more}</Error>".encode()]


_REFUSALS = ("503 Service Unavailable", "500 Internal Server Error")


def _refuse(start: Callable[..., Any], status: str = _REFUSALS[0]) -> Iterable[bytes]:
    start(status, [("Content-Type", "application/xml")])
    return [b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>reduce your request rate</Message></Error>"]


def _cut(environ: dict[str, Any]) -> Iterable[bytes]:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionError("cut")


def _nowhere(*_: object) -> None:
    """Accept and drop a status and headers, or parts of a response."""


class _Connection(WSGIRequestHandler):
    """Continues a connection after a response, as stores do and werkzeug's own handler does not.

    That handler cannot know where the next request begins. This one reads each request to its end before the store
    processes it.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def run_wsgi(self) -> None:
        """Answer one request; a cut ends the connection."""
        environ = self.make_environ()
        length = None if environ.get("wsgi.input_terminated") else int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        begun: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], _problem: object = None) -> Callable[[bytes], object]:
            begun.append((status, headers))
            return _nowhere

        try:
            content = b"".join(self.server.app(environ, start))
        except ConnectionError:
            self.close_connection = True
            return
        status, headers = begun[-1]
        names = {name.lower() for name, _ in headers}
        lines = [f"{self.protocol_version} {status}", *(f"{name}: {value}" for name, value in headers)]
        if "date" not in names:
            lines.append(f"Date: {self.date_time_string()}")
        if "content-length" not in names and not status.startswith(("204", "304")):
            lines.append(f"Content-Length: {len(content)}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        self.wfile.write(head if self.command == "HEAD" else head + content)

    def log(self, type: str, message: str, *args: Any) -> None:
        """Log nothing."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log nothing."""


def main() -> None:
    """Serve until standard input ends."""
    tune_short_process()
    gc.freeze()
    store = Store()
    doors: dict[str, _Application] = {
        "plain": store,
        "faulty": Faulty(store, sys.argv[1]),
        "forgetful": Forgetful(store),
        "careless": careless(store),
        "hasty": hasty(store),
        "readonly": readonly(store),
        "keyed": keyed(store),
        "down": down,
        "expired": expired,
        "skewed": skewed,
        "elsewhere": elsewhere,
        "redirected": redirected,
    }
    doors |= {name: _led(store, name, dict(doors)) for name in store.ways}
    ports = {}
    for name, door in doors.items():
        serving = make_server("127.0.0.1", 0, door, threaded=True, request_handler=_Connection)
        ports[name] = serving.server_port
        threading.Thread(target=serving.serve_forever, daemon=True).start()
    print(json.dumps(ports), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

"""An S3 server on loopback, as a process of its own: moto, with a lock that makes its conditional writes exclusive.

One store behind several doors, a port each. `plain` answers. `faulty` does something odd with a tenth of the requests:
says 503 or cuts the connection, before the store has seen the request or after it has done it, or answers late.
`forgetful` does the first PUT of every entry of Delta's log and says that it has not: by 503, 500 or a cut, by turns.
`careless` takes no notice of conditions, as stores do that have none; `hasty` looks whether an object is there and puts
it then, without a lock, as stores do that only seem to have them. `keyed` lets in who asks by the tests' key, where the
others look at none. `readonly` refuses what would change anything, `down` everything, by 503; so do `expired`, as with
credentials that ran out, `skewed`, as of requests whose time is not the store's, and `elsewhere` and `redirected`, as
of a bucket in another region. `first` and `second` do what any of them does, as they are told: `plain` until then.
Behind each of them it is full, in MinIO's words, after as many writes as it is told to have room for, its objects
are as old as it is told, and it is late with one answer if it is told so. Started as
`python -m support.store.s3_server SEED`; it prints the ports as JSON and ends with its standard input.
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
"""One request of so many is met by a fault."""


class Store:
    """The store, and how many requests of each verb have reached it."""

    def __init__(self) -> None:
        # Not by moto's dispatcher: to tell of each request which service it means takes two thirds of answering it.
        self._application = create_backend_app("s3")
        # moto looks whether an object is there, and puts it, in two steps.
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
        # To remove several objects is a POST, which a store without room takes all the same.
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

    def _hear(self, path: str, told: Any) -> None:
        if path == ROOM:
            self._room = told
        elif path == SLOW:
            self._slow = told
        elif path == WAYS:
            self.ways |= told
        else:
            _age(**told)

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
    held = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[bucket].keys[name]
    held.last_modified = datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=seconds)


def _serialized(self: S3Response, action_result: ActionResult) -> Any:
    """An answer of moto's as status, headers and XML, of which lists are written here.

    By the model of an answer it takes moto 0.15 ms for each name, and the tests' homes are listed all day.
    """
    told = action_result.result
    if not isinstance(told, dict) or "KeyCount" not in told:
        return _by_model(self, action_result)
    _listed["names"] += told["KeyCount"]
    body = (
        f"<?xml version='1.0' encoding='utf-8'?><ListBucketResult xmlns='{_NAMESPACE}'>{_xml(told)}</ListBucketResult>"
    )
    return 200, {**self.response_headers, "Content-Type": "application/xml"}, body


_listed = Counter[str]()
_by_model = S3Response.serialized
S3Response.serialized = _serialized
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


def _xml(fields: dict[str, Any]) -> str:
    """Fields of an answer as elements; a list is its element once for each item."""
    parts: list[str] = []
    for name, value in fields.items():
        for item in value if isinstance(value, list) else [value]:
            text = _xml(item) if isinstance(item, dict) else _text(item)
            parts.append(f"<{name}>{text}</{name}>")
    return "".join(parts)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else escape(str(value))


class Faulty:
    """The store, through a network and a service that fail now and then."""

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
    """The store, of whose commits nobody hears at first."""

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
        turn = int(entry[1]) % 3
        return _cut(environ) if turn == 2 else _refuse(start, _REFUSALS[turn])


_ENTRY = re.compile(r"/_delta_log/(\d{20})\.json$")


def hasty(store: Store) -> _Application:
    """The store, in which between a look and a PUT others come."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "PUT" or environ.get("HTTP_IF_NONE_MATCH") != "*":
            return store(environ, start)
        seen: list[str] = []
        looked = {**environ, "REQUEST_METHOD": "HEAD", "CONTENT_LENGTH": "0", "wsgi.input": io.BytesIO()}
        list(store(_without_conditions(looked), lambda status, *_: seen.append(status)))
        if seen[0].startswith("200"):
            return _no(start, "PreconditionFailed", "412 Precondition Failed")
        time.sleep(0.01)  # as between the parts of a store that lie on several machines
        return store(_without_conditions(environ), start)

    return answer


def _without_conditions(environ: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in environ.items() if not name.startswith("HTTP_IF_")}


def careless(store: Store) -> _Application:
    """The store, that never looks at a condition."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        return store(_without_conditions(environ), start)

    return answer


def readonly(store: Store) -> _Application:
    """The store, for one who may only look."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return store(environ, start)
        return _no(start, "AccessDenied")

    return answer


def keyed(store: Store) -> _Application:
    """The store, for who asks by the tests' key alone: moto looks at no key."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if f"Credential={KEY}/" in environ.get("HTTP_AUTHORIZATION", ""):
            return store(environ, start)
        return _no(start, "InvalidAccessKeyId")

    return answer


def _led(store: Store, door: str, doors: Mapping[str, _Application]) -> _Application:
    return lambda environ, start: doors[store.ways[door]](environ, start)


def expired(_environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """What a store says to credentials that ran out."""
    return _no(start, "ExpiredToken")


def down(_environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """What a service says that is overrun, whatever it is asked."""
    return _refuse(start)


def skewed(_environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """What S3 says to a request that was signed by a clock which is more than a quarter of an hour off."""
    return _no(start, "RequestTimeTooSkewed")


def elsewhere(_environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """What S3 says to a request that is signed for another region than the bucket's."""
    return _no(start, "AuthorizationHeaderMalformed", "400 Bad Request", "<Region>eu-central-1</Region>")


def redirected(_environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """What S3 says to a request that has come to the endpoint of another region: it names no address."""
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
    """Takes what nobody gets to see: a status and headers, or parts of an answer that are written one by one."""


class _Connection(WSGIRequestHandler):
    """Goes on with a connection after an answer, as stores do and werkzeug's own does not.

    That one cannot know where the next request begins. Here each is read to its end before the store hears of it.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def run_wsgi(self) -> None:
        """Answer one request; one that is to be cut ends the connection."""
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
        """Nobody reads it."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nobody reads it."""


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

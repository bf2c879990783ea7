"""fake-gcs-server, an emulator of Google's object store, on loopback; Go provides it, and it is optional.

Its XML API, which clients of many stores use for Google, lacks two features that a proxy here adds. A plain PUT with
its condition in a header becomes an upload of the JSON API, and a list that begins behind a name is cut. Everything
else passes unchanged; the emulator itself enforces the condition.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import urllib.request
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree as ET

from support.ports import free_ports
from support.store.program import OfGo, Program

from cdc_platform.processes import get_death_signal_setter

_CONDITION = "x-goog-if-generation-match"
_OF_A_CONNECTION = frozenset({"connection", "content-length", "host", "transfer-encoding"})


class FakeGcs(Program):
    """A running emulator with all data in memory."""

    OF_GO: ClassVar = OfGo("github.com/fsouza/fake-gcs-server", "v1.56.1")
    PROGRAM: ClassVar = OF_GO.path
    HOW_TO_HAVE_IT: ClassVar = OF_GO.how_to_have_it

    def __init__(self, folder: Path) -> None:
        (self._port,) = free_ports(1)
        here = f"127.0.0.1:{self._port}"
        where = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self._port), "-public-host", here]
        super().__init__([self.PROGRAM, "-backend", "memory", "-log-level", "error", *where], self._port)
        # The proxy is its own process, because deltalake makes some requests without releasing Python's other threads.
        self._front = subprocess.Popen(
            [sys.executable, "-m", "support.store.fake_gcs", str(self._port)],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=get_death_signal_setter(),
        )
        assert self._front.stdout is not None
        self._account = folder / "account.json"
        address = f"http://127.0.0.1:{int(self._front.stdout.readline())}"
        of_nobody = {"client_email": "", "private_key": "", "private_key_id": ""}
        self._account.write_text(json.dumps({"gcs_base_url": address, "disable_oauth": True, **of_nobody}))

    def stop(self) -> None:
        """Stop both processes."""
        self._front.terminate()
        self._front.wait(30)
        super().stop()

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a client."""
        return {"GOOGLE_SERVICE_ACCOUNT": str(self._account), "GOOGLE_ALLOW_HTTP": "true"}

    def container(self, name: str) -> str:
        """Create a bucket; return its address."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/storage/v1/b?project=tests",
            method="POST",
            headers={"Content-Type": "application/json"},
            data=json.dumps({"name": name}).encode(),
        )
        with urllib.request.urlopen(request, timeout=30):
            return f"gs://{name}"


def _behind(listed: bytes, name: str) -> bytes:
    """Remove the entries up to a name from a list."""
    root = ET.fromstring(listed)
    for item in root.findall("{*}Contents"):
        if (item.findtext("{*}Key") or "") <= name:
            root.remove(item)
    return ET.tostring(root)


def _front(port: int) -> type[BaseHTTPRequestHandler]:
    class Front(BaseHTTPRequestHandler):
        """Forwards requests to the emulator."""

        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

        def _hand_on(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            method, target, is_put = self.command, self.path, self.command == "PUT"
            if is_put:
                bucket, _, name = urlsplit(self.path).path.lstrip("/").partition("/")
                condition = self.headers.get(_CONDITION)
                only = f"&ifGenerationMatch={condition}" if condition is not None else ""
                named = quote(unquote(name), safe="")
                method, target = "POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={named}{only}"
            emulator = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            emulator.request(method, target, content, {name: self.headers[name] for name in self._names(self.headers)})
            answer = emulator.getresponse()
            content = answer.read()
            after = parse_qs(urlsplit(self.path).query).get("start-after")
            if after and answer.status == 200:
                content = _behind(content, after[0])
            self.send_response(answer.status)
            for name in self._names(answer.headers):
                self.send_header(name, answer.headers[name])
            if is_put and answer.status == 200:
                stored, content = json.loads(content), b""
                self.send_header("ETag", f'"{stored["etag"]}"')
                self.send_header("x-goog-generation", stored["generation"])
            size = answer.headers.get("content-length") if self.command == "HEAD" else None
            self.send_header("Content-Length", size or str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            emulator.close()

        def _names(self, headers: Message) -> list[str]:
            return [name for name in headers if name.lower() not in _OF_A_CONNECTION]

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _hand_on

    return Front


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), _front(int(sys.argv[1]))) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()

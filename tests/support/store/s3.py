"""The S3 server of the tests: its process, its endpoints, and the environment of a client of one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from support.drawing import SEED

COUNTS = "/counts-of-requests"
NAMES = "/names-in-lists"
WRITTEN = "/written-objects"
ROOM = "/room-for-writes"
FAULTS = "faults"
AGES = "/ages-of-objects"
SLOW = "/slow-data-file"
WAYS = "/ways-of-doors"
KEY, SECRET = "tests", "not-to-be-told-to-anybody"
_TESTS = Path(__file__).resolve().parents[2]
NO_CERTIFICATES = {"SSL_CERT_FILE": str(_TESTS / "data" / "nobody.pem"), "SSL_CERT_DIR": os.devnull}
"""For clients that see the tests' folder: they read these certificates instead of all system ones, a file each.

"""


def environment_of(url: str) -> dict[str, str]:
    """Return the environment variables of a client of a test server at this URL."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        **NO_CERTIFICATES,
    }


class S3:
    """A running server with a new bucket for each caller."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.store.s3_server", SEED],
            env=os.environ | {"PYTHONPATH": str(_TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self._ports: dict[str, int] = json.loads(self._process.stdout.readline())
        self._buckets = 0

    def stop(self) -> None:
        """Stop the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def environment(self, door: str = "plain") -> dict[str, str]:
        """Return the environment variables of a client of one endpoint."""
        return environment_of(self._url(door))

    def bucket(self) -> str:
        """Create a bucket; return its address."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        request = urllib.request.Request(f"{self._url('plain')}/{name}", method="PUT", headers=AUTHORIZED)
        with urllib.request.urlopen(request, timeout=30):
            return f"s3://{name}"

    def counts(self) -> dict[str, int]:
        """Return the number of requests by verb, with separate counts of lists and of FAULTS."""
        return self._asked(COUNTS)

    def names(self) -> int:
        """Return the number of names in all lists that the store returned."""
        return self._asked(NAMES)

    def writes(self, home: str) -> list[str]:
        """Return the requests since the last call that wrote below an address, without leases: verb and path.

        Another process may renew a lease at any time.
        """
        path = f" {home.removeprefix('s3:/')}/"
        return [line for line in self._asked(WRITTEN) if path in line and "/.lake.turns/" not in line]

    def has_room(self, writes: int | None) -> None:
        """Let the store be full after this many more writes, at every endpoint; None removes the limit."""
        self._tell(ROOM, writes)

    def is_old(self, address: str, seconds: float) -> None:
        """Make an object appear as if it had been stored this many seconds ago."""
        bucket, _, name = address.removeprefix("s3://").partition("/")
        self._tell(AGES, {"bucket": bucket, "name": name, "seconds": seconds})

    def is_slow(self, address: str, seconds: float) -> None:
        """Delay the response to the next PUT of a data file below an address, at every endpoint."""
        self._tell(SLOW, {"below": address.removeprefix("s3:/"), "seconds": seconds})

    def leads(self, door: str, like: str) -> None:
        """Let one of the endpoints `first` and `second` behave like another endpoint from now on."""
        self._tell(WAYS, {door: like})

    def _asked(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._url('plain')}{path}", timeout=30) as answer:
            return json.loads(answer.read())

    def _tell(self, path: str, setting: object) -> None:
        request = urllib.request.Request(f"{self._url('plain')}{path}", json.dumps(setting).encode(), method="PUT")
        with urllib.request.urlopen(request, timeout=30):
            return

    def _url(self, door: str) -> str:
        return f"http://127.0.0.1:{self._ports[door]}"


# moto identifies the service by this header's form; it checks no signature.
AUTHORIZED = {"Authorization": "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request"}

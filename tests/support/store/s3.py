"""The S3 server of the tests: its process, its doors, and what a process is told to go through one of them."""

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
"""For who sees the folder of the tests: each client reads the certificates, else all of the system's, a file each."""


def environment_of(url: str) -> dict[str, str]:
    """What a process has to have in its environment to reach a server of the tests there."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        **NO_CERTIFICATES,
    }


class S3:
    """A server that was started; a bucket for each who asks."""

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
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def environment(self, door: str = "plain") -> dict[str, str]:
        """What a process has to have in its environment to reach the store by a door."""
        return environment_of(self._url(door))

    def bucket(self) -> str:
        """The address of a new bucket."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        asked = urllib.request.Request(f"{self._url('plain')}/{name}", method="PUT", headers=AUTHORIZED)
        with urllib.request.urlopen(asked, timeout=30):
            return f"s3://{name}"

    def counts(self) -> dict[str, int]:
        """How many requests of each verb the store has had; those that list are told apart, and so are FAULTS."""
        return self._asked(COUNTS)

    def names(self) -> int:
        """How many names the lists had that the store has answered with."""
        return self._asked(NAMES)

    def writes(self, home: str) -> list[str]:
        """The requests since the last call that wrote below an address, leases aside: verb and path.

        Another process may renew a lease at any time.
        """
        path = f" {home.removeprefix('s3:/')}/"
        return [each for each in self._asked(WRITTEN) if path in each and "/.lake.turns/" not in each]

    def has_room(self, writes: int | None) -> None:
        """Let the store be full after so many writes more, behind every door; None lets it take all again."""
        self._tell(ROOM, writes)

    def is_old(self, address: str, seconds: float) -> None:
        """Let an object be as if it had been put so long ago."""
        bucket, _, name = address.removeprefix("s3://").partition("/")
        self._tell(AGES, {"bucket": bucket, "name": name, "seconds": seconds})

    def is_slow(self, address: str, seconds: float) -> None:
        """Let the next data file below an address be put, and that be answered so much later, behind every door."""
        self._tell(SLOW, {"below": address.removeprefix("s3:/"), "seconds": seconds})

    def leads(self, door: str, like: str) -> None:
        """Let one of the doors `first` and `second` do what another door does, from now on."""
        self._tell(WAYS, {door: like})

    def _asked(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._url('plain')}{path}", timeout=30) as answer:
            return json.loads(answer.read())

    def _tell(self, path: str, what: object) -> None:
        asked = urllib.request.Request(f"{self._url('plain')}{path}", json.dumps(what).encode(), method="PUT")
        with urllib.request.urlopen(asked, timeout=30):
            return

    def _url(self, door: str) -> str:
        return f"http://127.0.0.1:{self._ports[door]}"


# By its look moto tells which service is meant; it checks no signature.
AUTHORIZED = {"Authorization": "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request"}

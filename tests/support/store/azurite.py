"""Azurite, the emulator of Azure's blob store, as its own process on loopback; npm provides it, and it is optional.

Nothing of it needs a build.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from support.ports import free_ports
from support.standin.jars import fetched
from support.store.program import Program, found, have

from cdc_platform.spark import get_cache_folder

VERSION = "3.37.0"
_NAME = f"azurite-{VERSION}"
_PROGRAM = "node_modules/.bin/azurite-blob"
_API = "2023-11-03"
# The account of every emulator of this store, from its documentation; it gives access to nothing else.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Azurite(Program):
    """A running emulator with all data in memory."""

    PROGRAM: ClassVar = found("azurite-blob") or shutil.which(get_cache_folder() / _NAME / _PROGRAM)
    HOW_TO_HAVE_IT: ClassVar = (
        f"NOT TRIED: there is no azurite-blob; make emulators, or npm install -g azurite@{VERSION}"
    )

    def __init__(self, _folder: Path) -> None:
        (self._port,) = free_ports(1)
        quiet = ["--silent", "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
        super().__init__([self.PROGRAM, *quiet, "--blobHost", "127.0.0.1", "--blobPort", str(self._port)], self._port)

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a client."""
        return {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{self._port}"}

    def container(self, name: str) -> str:
        """Create a container; return its address."""
        at = format(datetime.now(UTC), "%a, %d %b %Y %H:%M:%S GMT")
        headers = f"x-ms-date:{at}\nx-ms-version:{_API}\n"
        signed = "PUT" + "\n" * 12 + f"{headers}/{_ACCOUNT}/{_ACCOUNT}/{name}\nrestype:container"
        mark = base64.b64encode(hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()).decode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/{_ACCOUNT}/{name}?restype=container",
            method="PUT",
            headers={
                "x-ms-date": at,
                "x-ms-version": _API,
                "Content-Length": "0",
                "Authorization": f"SharedKey {_ACCOUNT}:{mark}",
            },
        )
        with urllib.request.urlopen(request, timeout=30):
            return f"az://{name}"


def fetch() -> None:
    """Install it into the platform's cache folder, unless it is installed."""
    fetched(_NAME, _fetch)


def _fetch(draft: Path) -> None:
    """Let npm install it into the folder `jars` of a new folder, without running any package's scripts."""
    (draft / "jars").mkdir(parents=True)
    options = ["--prefix", str(draft / "jars"), "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    have("azurite", ["npm", "install", *options, f"azurite@{VERSION}"])

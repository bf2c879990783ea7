"""A CA, and certificates of a server and a client that it signed; openssl makes them when a test needs them."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    """PEM files in a folder."""

    folder: Path

    @property
    def ca(self) -> Path:
        """The CA's certificate."""
        return self.folder / "ca.pem"

    @property
    def client(self) -> tuple[Path, Path]:
        """Return the certificate and key of a client."""
        return self.folder / "client.pem", self.folder / "client.key"

    def server(self, *, wants_client: bool) -> ssl.SSLContext:
        """Return the server's TLS context; with `wants_client` it requires a certificate of the CA."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.ca))
        context.load_cert_chain(self.folder / "server.pem", self.folder / "server.key")
        context.verify_mode = ssl.CERT_REQUIRED if wants_client else ssl.CERT_NONE
        return context


def make_certificates(folder: Path) -> Certificates:
    """Create all of them, valid for one day; the server's certificate covers 127.0.0.1 to 127.0.0.3."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    _openssl("req", "-x509", *key, "-keyout", folder / "ca.key", "-out", folder / "ca.pem", "-subj", "/CN=tests")
    signed = ["-CA", folder / "ca.pem", "-CAkey", folder / "ca.key"]
    for name, subject in (("server", "IP:127.0.0.1,IP:127.0.0.2,IP:127.0.0.3"), ("client", "DNS:client")):
        files = ["-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem"]
        extension = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={subject}"]
        _openssl("req", "-x509", *key, *signed, *files, *extension)
    return Certificates(folder)


def _openssl(*args: str | Path) -> None:
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, timeout=60)

"""The seal of a report page: a SHA-256 of every byte above it and an optional Ed25519 signature.

Keys are the user's, as OpenSSL or OpenSSH store them. Without a signature the seal shows damage only: anyone who
alters a page on purpose can seal it again.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_platform.errors import InputError
from cdc_platform.storage import read_user_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_SEAL_START = '<footer class="seal" id="seal">'
_SEAL_END = "</footer>\n</body>\n</html>\n"
_MAX_KEY_BYTES = 1 << 20
_SEALED_VALUE = re.compile(r"<dd><code>([^<]*)</code></dd>")


@dataclass(frozen=True)
class SealedPage:
    """A page and its seal.

    `body` is what the seal covers, `digest` is in hex, `signature` in Base64 (empty if unsigned). `is_whole` is False
    if the seal itself was altered.
    """

    body: str
    digest: str
    signature: str
    is_whole: bool

    @property
    def holds(self) -> bool:
        """Return True if the seal is intact and matches the body."""
        return self.is_whole and self.digest == sha256(self.body.encode()).hexdigest()


def seal_page(body: str, key: Ed25519PrivateKey | None = None) -> str:
    """Return a page with its seal appended."""
    content = body.encode()
    signature = "" if key is None else base64.b64encode(key.sign(content)).decode()
    return f"{body}{_seal_html(len(content), sha256(content).hexdigest(), signature)}"


def parse_sealed_page(text: str) -> SealedPage:
    """Split a page into its body and the values of its seal."""
    body, begins, tail = text.rpartition(_SEAL_START)
    if not begins:
        return SealedPage(text, "", "", is_whole=False)
    digest, signature = [*_SEALED_VALUE.findall(tail), "", ""][:2]
    is_whole = f"{begins}{tail}" == _seal_html(len(body.encode()), digest, signature)
    return SealedPage(body, digest, signature, is_whole)


def is_signed_by(page: SealedPage, public: str) -> bool:
    """Return True if the signature was made by a key, given as its 32 bytes in Base64."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public, validate=True))
        key.verify(base64.b64decode(page.signature, validate=True), page.body.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def public_key_text(key: Ed25519PrivateKey) -> str:
    """Return the public half of a key, its 32 bytes in Base64."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def read_private_key(file: Path) -> Ed25519PrivateKey:
    """Read the private key in a file of OpenSSL (PEM) or OpenSSH.

    Raises:
        InputError: the file has no private key, the key has a passphrase, or it is not an Ed25519 key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    content = read_user_bytes(file, _MAX_KEY_BYTES)
    load = load_ssh_private_key if b"OPENSSH" in content else load_pem_private_key
    try:
        key = load(content, None)
    except TypeError:
        raise InputError(
            f"{file} has a passphrase; sign with a key that has none, in a file that only you can read"
        ) from None
    except Exception as error:  # noqa: BLE001 - the library has no class for what a file can be instead of a key
        raise InputError(f"{file} is no private key ({_one_line(error)}); make one: {_MAKE_KEY}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{file} is no Ed25519 key; make one: {_MAKE_KEY}")
    return key


def read_public_key(file: Path) -> str:
    """Read the public key in a file of OpenSSL (PEM) or OpenSSH; return its 32 bytes in Base64.

    Raises:
        InputError: the file has no public key, or it is not an Ed25519 key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_public_key

    content = read_user_bytes(file, _MAX_KEY_BYTES)
    load = load_ssh_public_key if content.startswith(b"ssh-") else load_pem_public_key
    try:
        key = load(content)
    except Exception as error:  # noqa: BLE001 - as above
        raise InputError(f"{file} is no public key ({_one_line(error)}); {_EXPORT_PUBLIC_KEY}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{file} is no Ed25519 key; {_EXPORT_PUBLIC_KEY}")
    return base64.b64encode(key.public_bytes_raw()).decode()


_MAKE_KEY = "openssl genpkey -algorithm ed25519 -out KEYFILE"
_EXPORT_PUBLIC_KEY = "the public half of a key: openssl pkey -in KEYFILE -pubout"


def _seal_html(size: int, digest: str, signature: str) -> str:
    signed = ""
    if signature:
        signed = f"<dt>Ed25519 signature of the same bytes, in Base64</dt>\n<dd><code>{signature}</code></dd>\n"
    return (
        f"{_SEAL_START}\n<h2>Seal</h2>\n<dl>\n<dt>SHA-256 of the {size} bytes of this file above the seal</dt>\n"
        f"<dd><code>{digest}</code></dd>\n{signed}</dl>\n{_SEAL_END}"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__

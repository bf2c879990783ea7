"""The seal of a page: the SHA-256 of every byte above it, and where somebody signs them, an Ed25519 signature.

Keys are the user's, as OpenSSL or OpenSSH keep them. A seal without a signature shows a page that was damaged; who
alters one on purpose can seal it anew.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_platform.errors import InputError
from cdc_platform.user_files import read_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_BEGINS = '<footer class="seal" id="seal">'
_END = "</footer>\n</body>\n</html>\n"
_MOST_KEY = 1 << 20
_SEALED = re.compile(r"<dd><code>([^<]*)</code></dd>")


@dataclass(frozen=True)
class Sealed:
    """A page and its seal: `body` is what the seal is about; `digest` in hex, the signature in Base64, empty: none."""

    body: str
    digest: str
    signature: str
    is_whole: bool

    @property
    def holds(self) -> bool:
        """Whether the seal is that of the body, and nothing else is in it."""
        return self.is_whole and self.digest == sha256(self.body.encode()).hexdigest()


def sealed(body: str, key: Ed25519PrivateKey | None = None) -> str:
    """A page with its seal at the end."""
    content = body.encode()
    signature = "" if key is None else base64.b64encode(key.sign(content)).decode()
    return f"{body}{_tail(len(content), sha256(content).hexdigest(), signature)}"


def opened(text: str) -> Sealed:
    """A page without its seal, and what the seal says."""
    body, begins, tail = text.rpartition(_BEGINS)
    if not begins:
        return Sealed(text, "", "", is_whole=False)
    digest, signature = [*_SEALED.findall(tail), "", ""][:2]
    is_whole = f"{begins}{tail}" == _tail(len(body.encode()), digest, signature)
    return Sealed(body, digest, signature, is_whole)


def is_signed_by(page: Sealed, public: str) -> bool:
    """Whether the signature is that of a key, which is its 32 bytes in Base64."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public, validate=True))
        key.verify(base64.b64decode(page.signature, validate=True), page.body.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def public_of(key: Ed25519PrivateKey) -> str:
    """The public half of a key, its 32 bytes in Base64."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def private_key(file: Path) -> Ed25519PrivateKey:
    """The private key in a file of OpenSSL (PEM) or OpenSSH.

    Raises:
        InputError: there is none, it has a passphrase, or it is of another kind than Ed25519.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    content = read_bytes(file, _MOST_KEY)
    load = load_ssh_private_key if b"OPENSSH" in content else load_pem_private_key
    try:
        key = load(content, None)
    except TypeError:
        raise InputError(
            f"{file} has a passphrase; sign with a key that has none, in a file that only you can read"
        ) from None
    except Exception as error:  # noqa: BLE001 - the library has no class for what a file can be instead of a key
        raise InputError(f"{file} is no private key ({_line(error)}); make one: {_MAKE}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{file} is no Ed25519 key; make one: {_MAKE}")
    return key


def public_key(file: Path) -> str:
    """The public key in a file of OpenSSL (PEM) or OpenSSH, its 32 bytes in Base64.

    Raises:
        InputError: there is none, or it is of another kind than Ed25519.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_public_key

    content = read_bytes(file, _MOST_KEY)
    load = load_ssh_public_key if content.startswith(b"ssh-") else load_pem_public_key
    try:
        key = load(content)
    except Exception as error:  # noqa: BLE001 - as above
        raise InputError(f"{file} is no public key ({_line(error)}); {_PUBLIC}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{file} is no Ed25519 key; {_PUBLIC}")
    return base64.b64encode(key.public_bytes_raw()).decode()


_MAKE = "openssl genpkey -algorithm ed25519 -out KEYFILE"
_PUBLIC = "the public half of a key: openssl pkey -in KEYFILE -pubout"


def _tail(size: int, digest: str, signature: str) -> str:
    signed = ""
    if signature:
        signed = f"<dt>Ed25519 signature of the same bytes, in Base64</dt>\n<dd><code>{signature}</code></dd>\n"
    return (
        f"{_BEGINS}\n<h2>Seal</h2>\n<dl>\n<dt>SHA-256 of the {size} bytes of this file above the seal</dt>\n"
        f"<dd><code>{digest}</code></dd>\n{signed}</dl>\n{_END}"
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__

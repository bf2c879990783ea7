"""Parse paths and addresses such as `s3://bucket/prefix` into storage paths."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from cdc_platform.errors import InputError
from cdc_platform.storage.object_store import ObjectStorePath, format_object_key
from cdc_platform.storage.path import LocalPath, StoragePath

_STORE_SCHEMES = ("s3", "gs", "abfss", "az")
"""The URL schemes of the supported stores."""
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", flags=re.IGNORECASE)
_MISSPELT_SCHEME = re.compile(rf"({'|'.join(_STORE_SCHEMES)}):", flags=re.IGNORECASE)
# Found by trying characters one by one: deltalake changes or rejects them, while other programs use them unchanged.
_AMBIGUOUS = re.compile(r"[\[\]\\^|?#\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}|(?<=/)\.{1,2}(?=/|$)")


def is_store_address(name: str) -> bool:
    """Return True if a name is the address of a path in a store."""
    return _ADDRESS.match(name) is not None


@lru_cache(maxsize=1 << 10)
def parse_path(name: str | Path) -> StoragePath:
    """Parse a path, or an address such as `s3://bucket/prefix`.

    Raises:
        InputError: the address has an unknown scheme, a password, or no bucket.
    """
    text = str(name)
    if not is_store_address(text):
        return LocalPath(Path(text))
    parts = urlsplit(text)
    if parts.scheme not in _STORE_SCHEMES:
        raise InputError(
            f"{parts.scheme}:// is no store that is known; it is one of {', '.join(_STORE_SCHEMES)}, or a folder"
        )
    if not parts.netloc or ":" in parts.netloc or parts.query or parts.fragment:
        raise InputError(f"{parts.scheme}:// names a place as {parts.scheme}://bucket/prefix, and nothing beside that")
    return ObjectStorePath(f"{parts.scheme}://{parts.netloc}", format_object_key(PurePosixPath(parts.path.strip("/"))))


def parse_root(name: str | Path) -> StoragePath:
    """Parse the path or address of a home or a lake as a user writes it; a local path becomes absolute.

    Raises:
        InputError: as `parse_path`, or programs read the address in different ways.
    """
    text = str(name)
    if not is_store_address(text):
        if (meant := _MISSPELT_SCHEME.match(text)) is not None:
            scheme = meant[1].lower()
            raise InputError(
                f"{text} is no address: a store is named as {scheme}://bucket/prefix, a folder of that name as ./{text}"
            )
        return LocalPath(Path(text).expanduser().absolute())
    path = parse_path(text)
    misread = sorted(set(_AMBIGUOUS.findall(text)))
    if misread:
        characters = " ".join(character if character.isprintable() else repr(character) for character in misread)
        raise InputError(
            f"{path} has {characters} in its address, which programs read in different ways; name another prefix"
        )
    return path


def format_uri(name: str) -> str:
    """Return the URI of a path: its address in a store, or its `file:` URI."""
    return str(parse_path(name)) if is_store_address(name) else Path(name).as_uri()

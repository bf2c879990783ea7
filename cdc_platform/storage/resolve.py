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
"""The stores that are known, by how their addresses begin."""
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", flags=re.IGNORECASE)
_MISSPELT_SCHEME = re.compile(rf"({'|'.join(_STORE_SCHEMES)}):", flags=re.IGNORECASE)
# Tried out one by one: of these deltalake makes another name, or none, where other programs take them as they stand.
_AMBIGUOUS = re.compile(r"[\[\]\\^|?#\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}|(?<=/)\.{1,2}(?=/|$)")


def is_store_address(name: str) -> bool:
    """Whether this names a place in a store."""
    return _ADDRESS.match(name) is not None


@lru_cache(maxsize=1 << 10)
def parse_path(name: str | Path) -> StoragePath:
    """The place of a path, or of an address as `s3://bucket/prefix`.

    Raises:
        InputError: an address of a store that is not known, with a password in it, or without a bucket.
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
    """The place of a home or of a lake as somebody names it; that of a folder does not hang on where a process runs.

    Raises:
        InputError: as `parse_path`, or an address of which not all programs make the same place.
    """
    text = str(name)
    if not is_store_address(text):
        if (meant := _MISSPELT_SCHEME.match(text)) is not None:
            scheme = meant[1].lower()
            raise InputError(
                f"{text} is no address: a store is named as {scheme}://bucket/prefix, a folder of that name as ./{text}"
            )
        return LocalPath(Path(text).expanduser().absolute())
    place = parse_path(text)
    misread = sorted(set(_AMBIGUOUS.findall(text)))
    if misread:
        told = " ".join(each if each.isprintable() else repr(each) for each in misread)
        raise InputError(
            f"{place} has {told} in its address, which programs read in different ways; name another prefix"
        )
    return place


def format_uri(name: str) -> str:
    """What a place is called everywhere: its address in a store, or its path as a `file:` one."""
    return str(parse_path(name)) if is_store_address(name) else Path(name).as_uri()

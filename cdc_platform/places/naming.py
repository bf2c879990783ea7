"""How places are named: by paths, and by addresses as `s3://bucket/prefix`."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from cdc_platform.errors import InputError
from cdc_platform.places.here import Here
from cdc_platform.places.place import Place
from cdc_platform.places.stored import Stored, plain

SCHEMES = ("s3", "gs", "abfss", "az")
"""The stores that are known, by how their addresses begin."""
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", flags=re.IGNORECASE)
_MISSPELT = re.compile(rf"({'|'.join(SCHEMES)}):", flags=re.IGNORECASE)
# Tried out one by one: of these deltalake makes another name, or none, where other programs take them as they stand.
_MISREAD = re.compile(r"[\[\]\\^|?#\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}|(?<=/)\.{1,2}(?=/|$)")


def is_address(name: str) -> bool:
    """Whether this names a place in a store."""
    return _ADDRESS.match(name) is not None


@lru_cache(maxsize=1 << 10)
def place_of(name: str | Path) -> Place:
    """The place of a path, or of an address as `s3://bucket/prefix`.

    Raises:
        InputError: an address of a store that is not known, with a password in it, or without a bucket.
    """
    text = str(name)
    if not is_address(text):
        return Here(Path(text))
    parts = urlsplit(text)
    if parts.scheme not in SCHEMES:
        raise InputError(f"{parts.scheme}:// is no store that is known; it is one of {', '.join(SCHEMES)}, or a folder")
    if not parts.netloc or ":" in parts.netloc or parts.query or parts.fragment:
        raise InputError(f"{parts.scheme}:// names a place as {parts.scheme}://bucket/prefix, and nothing beside that")
    return Stored(f"{parts.scheme}://{parts.netloc}", plain(PurePosixPath(parts.path.strip("/"))))


def root_of(name: str | Path) -> Place:
    """The place of a home or of a lake as somebody names it; that of a folder does not hang on where a process runs.

    Raises:
        InputError: as `place_of`, or an address of which not all programs make the same place.
    """
    text = str(name)
    if not is_address(text):
        if (meant := _MISSPELT.match(text)) is not None:
            scheme = meant[1].lower()
            raise InputError(
                f"{text} is no address: a store is named as {scheme}://bucket/prefix, a folder of that name as ./{text}"
            )
        return Here(Path(text).expanduser().absolute())
    place = place_of(text)
    misread = sorted(set(_MISREAD.findall(text)))
    if misread:
        told = " ".join(each if each.isprintable() else repr(each) for each in misread)
        raise InputError(
            f"{place} has {told} in its address, which programs read in different ways; name another prefix"
        )
    return place


def address_of(name: str) -> str:
    """What a place is called everywhere: its address in a store, or its path as a `file:` one."""
    return str(place_of(name)) if is_address(name) else Path(name).as_uri()

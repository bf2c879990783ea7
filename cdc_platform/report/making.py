"""A page as a file: gathered, made, sealed, written. It is kept nowhere but where it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_platform import drafts
from cdc_platform.report.page import form, page
from cdc_platform.report.record import Home, Record, gathered
from cdc_platform.report.seal import public_of, sealed
from cdc_platform.timeline.parts import Names

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def make(
    home: Home,
    names: Sequence[Names],
    file: Path,
    *,
    asked: tuple[str, str] | None = None,
    key: Ed25519PrivateKey | None = None,
) -> Record:
    """Write the page of some generations, oldest first, into a file; its record.

    Raises:
        StoreFailure: a log cannot be read.
        OSError: the file cannot be written.
    """
    record = gathered(home, names, asked) | {"form": form(), "key": None if key is None else public_of(key)}
    drafts.write(file, sealed(page(record), key))
    return record

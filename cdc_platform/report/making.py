"""A page as a text: gathered, made, sealed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cdc_platform.report.page import form, page
from cdc_platform.report.record import Home, Record, gathered
from cdc_platform.report.seal import public_of, sealed
from cdc_platform.timeline.parts import Names

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def make(
    home: Home,
    names: Sequence[Names],
    *,
    asked: tuple[str, str] | None = None,
    key: Ed25519PrivateKey | None = None,
) -> tuple[Record, str]:
    """Return the record of some generations, oldest first, and their page.

    Raises:
        StoreFailure: a log cannot be read.
    """
    record = gathered(home, names, asked) | {"form": form(), "key": None if key is None else public_of(key)}
    return record, sealed(page(record), key)

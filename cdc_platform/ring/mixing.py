"""A hash of whole numbers, for who compares many of them; none that a store or a cluster knows."""

from __future__ import annotations

import numpy as np

from cdc_platform.ring.tokens import UInt64s

ODD = np.uint64(0x9E3779B97F4A7C15)
"""An odd number without a pattern: multiples of it differ in their first bits, and no two up to 2^64 are the same."""


def mixed(numbers: UInt64s) -> UInt64s:
    """Every bit of each number (uint64[n]) spread over all of them (Stafford's finaliser); no two give the same."""
    shifted = numbers >> np.uint64(30)
    found = numbers ^ shifted
    found *= np.uint64(0xBF58476D1CE4E5B9)
    found ^= np.right_shift(found, np.uint64(27), out=shifted)
    found *= np.uint64(0x94D049BB133111EB)
    found ^= np.right_shift(found, np.uint64(31), out=shifted)
    return found

"""How many bytes the rows of a generation take as ScyllaDB serialises them: its own estimates, in bytes.

What a Delta table makes of them after compression is less; what a node holds in memory and writes to its log is this.
"""

from __future__ import annotations

# A length, then the 16 bytes of the ID.
STREAM_BYTES = 20
# How many streams the collection has.
COLLECTION_BYTES = 4
# An entry of a V1 description has three fields with a length each: a token, the streams, a byte of ignore_msb.
_V1_ENTRY_BYTES = 4 + (4 + 8) + (4 + COLLECTION_BYTES) + (4 + 1)


def rows_bytes(num_ranges: int, num_streams: int) -> int:
    """Bytes of the `streams` of a generation with a row a range: V2 descriptions, or published streams."""
    return num_ranges * COLLECTION_BYTES + num_streams * STREAM_BYTES


def cell_bytes(num_ranges: int, num_streams: int) -> int:
    """Bytes of the one cell that a V1 description is."""
    return COLLECTION_BYTES + num_ranges * _V1_ENTRY_BYTES + num_streams * STREAM_BYTES

"""Rows of the log that are older than what a copy counts on, and came into the log behind it.

What they deleted is deleted. What they wrote may have been deleted before the log told of it, and CQL tells of no
deletion: so the cluster is asked for their rows, as a copy asks for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc_platform.cluster.session import LiveCluster
from cdc_platform.cql.schema import TableSchema
from cdc_platform.ingest.replica.refresh import Place, asked_by_key, places_of
from cdc_platform.ingest.replica.snapshot_cells import SyntheticTimestamps, seen, selection
from cdc_platform.ingest.requests import in_turn
from cdc_platform.log.state.merging import merged
from cdc_platform.log.state.of_log import state_of_log
from cdc_platform.log.state.shape import STATE, Kind

_DELETIONS = (Kind.PARTITION_TOMBSTONE, Kind.RANGE_TOMBSTONE, Kind.ROW_TOMBSTONE)


@dataclass(frozen=True)
class LateChanges:
    """What late log rows come to. `changes` is to be merged (`shape.STATE`); `rows` are the log's.

    `places` were written to, and of `partitions` anything was deleted.
    """

    changes: pa.Table
    rows: int = 0
    places: frozenset[Place] = frozenset()
    partitions: frozenset[bytes] = frozenset()

    @staticmethod
    def none() -> LateChanges:
        """There are no such rows."""
        return LateChanges(STATE.empty_table())

    @staticmethod
    def read(
        live: LiveCluster, schema: TableSchema, logs: Sequence[pa.Table], orders: SyntheticTimestamps
    ) -> LateChanges:
        """What rows of the log (one table or more) come to, their rows of the base table being read as of a copy.

        Raises:
            NotGranted, Unreachable: the table could not be read.
        """
        state = merged(schema, [state_of_log(schema, pa.concat_tables(logs, promote_options="default"))])
        kinds = np.asarray(state["kind"])
        deletes = np.isin(kinds, _DELETIONS)
        gone = deletes | np.asarray(state["dead"]) | (kinds == Kind.COLLECTION_TOMBSTONE)
        written = state.filter(pa.array(~deletes))
        places = frozenset(places_of(written["partition"], written["clustering"]))
        partitions = frozenset(state["partition"].filter(pa.array(deletes)).to_pylist())
        ordered = sorted(places, key=lambda place: (place[0], place[1] or b""))
        columns = selection(schema)
        answers = in_turn(ordered, lambda place, _: asked_by_key(live, schema, place, columns))
        found = [seen(schema, pages, orders) for _, pages in answers if any(page.rows for page in pages)]
        changes = merged(schema, [state.filter(pa.array(gone)), *found])
        return LateChanges(changes, sum(each.num_rows for each in logs), places, partitions)

    def forgotten(self, state: pa.Table) -> pa.Table:
        """A state without what was seen before of rows that were read again, where its times are but an order."""
        if not self.places:
            return state
        unsure = np.flatnonzero(np.asarray(state["inexact"]))
        some = state.select(["partition", "clustering"]).take(pa.array(unsure))
        keep = np.ones(state.num_rows, bool)
        keep[unsure] = [place not in self.places for place in places_of(some["partition"], some["clustering"])]
        return state.filter(pa.array(keep))

    def touched(self, state: pa.Table) -> set[Place]:
        """The rows of a merged state of which CQL does not tell what deletions have left of them."""
        if not self.partitions:
            return set()
        unsure = state.filter(state["inexact"])
        found = set(places_of(unsure["partition"], unsure["clustering"]))
        return {place for place in found - self.places if place[0] in self.partitions}

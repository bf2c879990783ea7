"""A generation for a cluster that does not understand V2 yet: its timestamp is chosen first, for it is its key.

It knows the description within the limit on streams, and the insert in the first format; the steps after it are those
of `bootstrap` and `publish`.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from cdc_platform import failpoints
from cdc_platform.clock import Clock, Milliseconds, format_ms
from cdc_platform.errors import InputError, StateError
from cdc_platform.generations import TopologyDescription, layout_of
from cdc_platform.lake import frames
from cdc_platform.lake.arrow import flat_streams
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import GENERATION_DESCRIPTIONS, TOPOLOGY_DESCRIPTIONS
from cdc_platform.lake.volume import Workers
from cdc_platform.lifecycle.join import bootstrap
from cdc_platform.lifecycle.join.bootstrap import Described
from cdc_platform.records import generation_data, inbox, ledger
from cdc_platform.settings import Settings

log = logging.getLogger(__name__)


def describe(workers: Workers, lake: Lake, generation_id: str) -> Described:
    """Write the topology description within the limit on streams, as `bootstrap.describe`; with what to know of it."""
    described = bootstrap.describe(workers, lake, generation_id, lambda ring: layout_of(ring, v1=True))
    # Of nodes as they were when it was introduced the features are not known any more.
    introduced = ledger.introduced_id(lake, generation_id) is not None
    warning = None if introduced else bootstrap.mixed_cluster_warning(described.ring_after)
    if warning:
        log.warning("Generation %s: %s", generation_id, warning)
    return replace(described, warning=warning)


def insert_description(lake: Lake, clock: Clock, settings: Settings, generation_id: str) -> Milliseconds:
    """Choose the timestamp (ms) of a described generation and insert it as the one row of that time; answers with it.

    Started again it takes the timestamp that was chosen. The time that the insert takes is lost for telling the
    other nodes, which is why the second format has it the other way round.

    No Spark: the limit on its streams keeps a description within a few MB.

    Raises:
        StateError: the description is missing or not what was committed, an earlier join is unfinished, or another
            generation has the same time.
    """
    inbox.assert_next(lake, generation_id)
    ring = bootstrap.rings(lake, generation_id)[1]
    bootstrap.assert_described(lake, generation_id, ring.tokens)
    frames.assert_as_committed(Workers.alone(), lake, TOPOLOGY_DESCRIPTIONS, {"generation_id": generation_id})
    description = read_topology(lake, generation_id)
    time_ms = bootstrap.choose_v1_timestamp(lake, clock, settings, generation_id)
    failpoints.reached(failpoints.AFTER_V1_TIMESTAMP)
    lake.merge(GENERATION_DESCRIPTIONS, generation_data.cell_row(time_ms, description), update=False)
    cell = generation_data.read_cell(lake, time_ms)
    if cell is None or not generation_data.parse_cell(time_ms, cell).equals(description):
        raise StateError(
            f"generation {generation_id}: cdc_generation_descriptions has another generation at "
            f"{format_ms(time_ms)}; take the join back with bootstrap --withdraw, or import into another --home"
        )
    failpoints.reached(failpoints.AFTER_V1_INSERT)
    return time_ms


def read_topology(lake: Lake, generation_id: str) -> TopologyDescription:
    """The description that was generated, from `platform.topology_descriptions`.

    Raises:
        StateError: a row of it is damaged.
    """
    columns = ["range_end", "ignore_msb", "streams"]
    rows = lake.read(TOPOLOGY_DESCRIPTIONS, columns, [("generation_id", "=", generation_id)])
    rows = rows.sort_by("range_end").combine_chunks()
    try:
        counts, streams = flat_streams(rows["streams"])
        return TopologyDescription(rows["range_end"].to_numpy(), counts, rows["ignore_msb"].to_numpy(), streams)
    except InputError as error:
        raise StateError(
            f"generation {generation_id}: its topology description is damaged: {error}; materialise it again"
        ) from None

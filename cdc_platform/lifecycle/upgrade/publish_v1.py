"""Publishing a generation whose data is in the first format: the same rows, the same order of writing, no Spark.

One V1 cell is 32 MB at most for which an executor would be started longer than the work takes. What `publish` and
`rewrite` decide is theirs; both write through here.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Milliseconds, ms_to_datetime
from cdc_platform.generations import TopologyDescription
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import GENERATION_TIMESTAMPS, STREAMS_DESCRIPTIONS_V2
from cdc_platform.records import descriptions, generation_data


def publish_streams(lake: Lake, time_ms: Milliseconds, description: TopologyDescription) -> int:
    """Make the published rows of a time those of `description`; answers with the table's version. One commit.

    Any number of processes may do so at once. Rows of other ranges, which no platform leaves, are removed after it.
    """
    rows = generation_data.streams_rows(time_ms, description)
    version = lake.merge(STREAMS_DESCRIPTIONS_V2, rows, update=True).version
    strays = np.setdiff1d(descriptions.published_range_ends(lake, time_ms), description.range_ends)
    if strays.size:
        of_time = ("time", "=", ms_to_datetime(time_ms))
        lake.delete(STREAMS_DESCRIPTIONS_V2, [of_time, ("range_end", "in", strays.tolist())])
    return version


def publish_timestamp(lake: Lake, time_ms: Milliseconds) -> None:
    """Insert the timestamp, from which on readers rely on its rows."""
    row = {"key": "timestamps", "time": ms_to_datetime(time_ms), "expired": None}
    lake.merge(GENERATION_TIMESTAMPS, pa.Table.from_pylist([row], schema=GENERATION_TIMESTAMPS.schema), update=False)


def is_listed(lake: Lake, time_ms: Milliseconds) -> bool:
    """Whether the timestamp is published."""
    when = ms_to_datetime(time_ms)
    return lake.read(GENERATION_TIMESTAMPS, ["time"], [("time", "=", when)]).num_rows > 0

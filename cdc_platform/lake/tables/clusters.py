"""The table of what became other in a live cluster, in the home that it is observed into."""

from __future__ import annotations

import pyarrow as pa

from cdc_platform.lake.tables.declaration import APPEND_ONLY, TIMESTAMP, Table, column

CLUSTER_CHANGES = Table(
    "platform",
    "cluster_changes",
    pa.schema(
        [
            column("number", pa.int64(), "changes of the cluster before this one: what comes next is one row"),
            column("at", TIMESTAMP, "when it was seen"),
            column("who", pa.string(), "what it became of: node ADDRESS, table KS.T, generation TIME, cluster"),
            column("aspect", pa.string(), "what of it, empty: itself"),
            column("state", pa.string(), "how that is from then on; null: there is none any more", null=True),
            column("what", pa.string(), "the change in words"),
            column("seen_by", pa.string(), "the user who looked"),
            column("door", pa.string(), "by which door: command line, Dagster; and the command or job"),
            column("run", pa.string(), "run of Dagster; null: none", null=True),
        ]
    ),
    keys=("number",),
    comment="What became other in a live cluster from one observation to the next, append-only",
    constraints={"number_not_negative": "number >= 0"},
    properties=APPEND_ONLY,
)

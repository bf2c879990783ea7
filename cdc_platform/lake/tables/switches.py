"""The tables of two-phase switches: where each stands, and what its participants have promised."""

from __future__ import annotations

import pyarrow as pa

from cdc_platform.lake.tables.declaration import APPEND_ONLY, TIMESTAMP, Table, array_of, column

GENERATION_SWITCHES = Table(
    "platform",
    "generation_switches",
    pa.schema(
        [
            column("generation_id", pa.string(), "UUID of the generation that is switched to"),
            column("phase", pa.string(), "where the switch stands: preparing, committed, aborted"),
            column("initiator", pa.string(), "UUID of the node that began it: the joining one"),
            column("participants", array_of(pa.string()), "UUIDs of the nodes that must acknowledge, ascending"),
            column("acknowledged", array_of(pa.string()), "UUIDs of the nodes that have, ascending"),
            column("lease_ends", array_of(TIMESTAMP), "beside acknowledged: from then on they need the decision"),
            column("prepared_at", TIMESTAMP, "when it was begun"),
            column("deadline", TIMESTAMP, "from then on anybody may abort it, unless all have acknowledged"),
            column("time", TIMESTAMP, "the generation's timestamp; null until it is committed", null=True),
            column("decided_at", TIMESTAMP, "when it was committed or aborted", null=True),
            column("decided_by", pa.string(), "who committed or aborted it", null=True),
        ]
    ),
    keys=("generation_id",),
    comment="The two-phase switch of generations: every change of phase is one commit on the version it was read from",
    constraints={
        "known_phase": "phase IN ('preparing', 'committed', 'aborted')",
        "lease_for_every_answer": "cardinality(acknowledged) = cardinality(lease_ends)",
    },
)

SWITCH_PROMISES = Table(
    "platform",
    "switch_promises",
    pa.schema(
        [
            column("generation_id", pa.string(), "UUID of the generation that is switched to"),
            column("host_id", pa.string(), "UUID of the participant"),
            column("lease_end", TIMESTAMP, "it takes no write with this timestamp or later before the decision"),
            column("promised_at", TIMESTAMP, "its clock when it promised"),
        ]
    ),
    keys=("generation_id", "host_id"),
    comment="What participants of a switch have promised, kept before they acknowledge; append-only",
    properties=APPEND_ONLY,
)

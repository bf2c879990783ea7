"""The steps of a join, declared once for each format: what runs, what is judged, and what relies on whose verdict.

The command line takes them in this order; Dagster makes an asset and its checks of each. A step in either format fills
the place of the same table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cdc_platform.clock import format_ms, ms_to_datetime
from cdc_platform.invariants import (
    ACROSS_INVARIANTS,
    DESCRIPTION_INVARIANTS,
    INSERTED_INVARIANTS,
    PUBLISHED_INVARIANTS,
    TIMESTAMP_INVARIANTS,
    Finding,
    audit_across,
    audit_description,
    audit_inserted,
    audit_published,
    audit_timestamps,
    first_format,
    known_streams,
)
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    CDC_LOCAL,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
)
from cdc_platform.lifecycle.join import bootstrap, bootstrap_v1, publish, verdicts
from cdc_platform.lifecycle.join.step import Audit, Joining, Step, Steps
from cdc_platform.lifecycle.join.verdicts import Slices
from cdc_platform.records import descriptions, ledger


@dataclass(frozen=True)
class Inserted:
    """What an insert left: `rows` rows in a table of this `version`, and what there is to tell."""

    version: int | None
    rows: int
    told: dict[str, str]


def steps_of(lake: Lake, generation_id: str) -> Steps:
    """The steps of a generation's join, in the format that it has, or would get now.

    Raises:
        NotFound: no bootstrap event introduces this generation.
    """
    return V1 if bootstrap.is_v1(lake, generation_id) else V2


def _insert(joining: Joining) -> Inserted:
    version = bootstrap.insert_descriptions(joining.workers, joining.lake, joining.generation_id)
    rows = descriptions.complete_range_ends(joining.lake, joining.generation_id).size
    return Inserted(version, rows, {"format": "v2"})


def _insert_v1(joining: Joining) -> Inserted:
    lake = joining.lake
    time_ms = bootstrap_v1.insert_description(lake, joining.clock, joining.settings, joining.generation_id)
    told = {"format": "v1", "time": format_ms(time_ms), "table": GENERATION_DESCRIPTIONS.full_name}
    return Inserted(lake.version(GENERATION_DESCRIPTIONS), 1, told)


def _description(joining: Joining) -> list[Finding]:
    before, after = bootstrap.rings(joining.lake, joining.generation_id)
    lake, generation_id = joining.lake, joining.generation_id
    described = audit_description(joining.workers, lake, generation_id, before, after)
    holds = not any(finding.violations for finding in described)
    across = audit_across(joining.workers, lake, generation_id, partial(verdicts.in_order, lake), described=holds)
    # Where many others were read, the next to join is held against what is kept of them.
    known_streams.keep(lake, besides=generation_id)
    return [*described, *across]


def _described(joining: Joining) -> Slices:
    return [(TOPOLOGY_DESCRIPTIONS, [("generation_id", "=", joining.generation_id)])]


def _inserted(joining: Joining) -> Slices:
    return [(GENERATION_DESCRIPTIONS_V2, [("id", "=", joining.generation_id)])]


def _inserted_v1(joining: Joining) -> Slices:
    # The table has no partitions: whoever inserts another generation there has this one judged again, in milliseconds.
    return [(GENERATION_DESCRIPTIONS, [])]


def _published(joining: Joining) -> Slices:
    time_ms = ledger.introduced_at_ms(joining.lake, joining.generation_id)
    return [] if time_ms is None else [(STREAMS_DESCRIPTIONS_V2, [("time", "=", ms_to_datetime(time_ms))])]


_DESCRIPTION = Audit((*DESCRIPTION_INVARIANTS, *ACROSS_INVARIANTS), _description, _described)
_ADMIT = Step(
    NODES,
    run=lambda joining: bootstrap.admit(joining.lake, joining.generation_id),
    relies_on=(CDC_LOCAL,),
)
_ANNOUNCE = Step(
    GENERATION_TIMESTAMPS,
    run=lambda joining: publish.publish_timestamp(joining.lake, joining.clock, joining.generation_id),
    relies_on=(STREAMS_DESCRIPTIONS_V2, NODES),
    audit=Audit(
        TIMESTAMP_INVARIANTS,
        lambda joining: audit_timestamps(joining.lake, joining.generation_id),
        lambda joining: [(GENERATION_TIMESTAMPS, []), *_published(joining)],
        of_all=lambda lake, _: audit_timestamps(lake),
    ),
)

V2: Steps = (
    Step(
        TOPOLOGY_DESCRIPTIONS,
        run=lambda joining: bootstrap.describe(joining.workers, joining.lake, joining.generation_id),
        audit=_DESCRIPTION,
    ),
    Step(
        GENERATION_DESCRIPTIONS_V2,
        run=_insert,
        relies_on=(TOPOLOGY_DESCRIPTIONS,),
        audit=Audit(
            INSERTED_INVARIANTS,
            lambda joining: audit_inserted(joining.workers, joining.lake, joining.generation_id),
            lambda joining: [*_inserted(joining), *_described(joining)],
        ),
    ),
    Step(
        CDC_LOCAL,
        run=lambda joining: bootstrap.introduce(joining.lake, joining.clock, joining.settings, joining.generation_id),
        relies_on=(GENERATION_DESCRIPTIONS_V2,),
    ),
    _ADMIT,
    Step(
        STREAMS_DESCRIPTIONS_V2,
        run=lambda joining: publish.publish_streams(joining.workers, joining.lake, joining.generation_id),
        relies_on=(GENERATION_DESCRIPTIONS_V2, CDC_LOCAL),
        audit=Audit(
            PUBLISHED_INVARIANTS,
            lambda joining: audit_published(joining.workers, joining.lake, joining.generation_id),
            lambda joining: [*_published(joining), *_inserted(joining)],
        ),
    ),
    _ANNOUNCE,
)
"""A join in the second format: the description is inserted, and only then is the timestamp chosen."""

V1: Steps = (
    Step(
        TOPOLOGY_DESCRIPTIONS,
        run=lambda joining: bootstrap_v1.describe(joining.workers, joining.lake, joining.generation_id),
        audit=_DESCRIPTION,
    ),
    Step(
        GENERATION_DESCRIPTIONS_V2,
        run=_insert_v1,
        relies_on=(TOPOLOGY_DESCRIPTIONS,),
        audit=Audit(
            INSERTED_INVARIANTS,
            lambda joining: first_format.audit_inserted_v1(joining.lake, joining.generation_id, INSERTED_INVARIANTS),
            lambda joining: [*_inserted_v1(joining), *_described(joining)],
        ),
    ),
    Step(
        CDC_LOCAL,
        run=lambda joining: bootstrap.introduce_v1(joining.lake, joining.generation_id),
        relies_on=(GENERATION_DESCRIPTIONS_V2,),
    ),
    _ADMIT,
    Step(
        STREAMS_DESCRIPTIONS_V2,
        run=lambda joining: publish.publish_streams_v1(joining.lake, joining.generation_id),
        relies_on=(GENERATION_DESCRIPTIONS_V2, CDC_LOCAL),
        audit=Audit(
            PUBLISHED_INVARIANTS,
            lambda joining: first_format.audit_published_v1(joining.lake, joining.generation_id, PUBLISHED_INVARIANTS),
            lambda joining: [*_published(joining), *_inserted_v1(joining)],
        ),
    ),
    _ANNOUNCE,
)
"""A join in the first format: the timestamp is chosen first, for the description is inserted under it."""

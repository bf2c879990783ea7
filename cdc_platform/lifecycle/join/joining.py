"""A whole join in one go: the same steps, with the same audits between them, that the assets take one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc_platform.clock import Clock
from cdc_platform.errors import AuditFailed
from cdc_platform.invariants import Finding, audit_description, audit_inserted, audit_published, judge
from cdc_platform.lake.lake import Lake
from cdc_platform.lifecycle.join import bootstrap, bootstrap_v1, publish
from cdc_platform.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Joined:
    """A finished join: the generation with its timestamp (ms), and how large it is."""

    generation_id: str
    time_ms: int
    num_ranges: int
    num_streams: int


def run_join(spark: SparkSession, lake: Lake, clock: Clock, settings: Settings, generation_id: str) -> Joined:
    """Take a waiting join from its description to its published timestamp. Started again it goes on where it was.

    Raises:
        NotFound: no bootstrap event introduces this generation.
        StateError: an earlier join is unfinished.
        InputError: the node cannot join the ring as it stands.
        AuditFailed: an invariant is violated; nothing after it was written.
    """
    described = bootstrap.describe(spark, lake, generation_id)
    insist(
        f"topology description of {generation_id}",
        audit_description(spark, lake, generation_id, described.ring_before, described.ring_after),
    )
    if bootstrap.is_v1(lake, generation_id):
        bootstrap_v1.insert_description(lake, clock, settings, generation_id)
    else:
        bootstrap.insert_descriptions(spark, lake, generation_id)
    insist(f"V2 descriptions of {generation_id}", audit_inserted(spark, lake, generation_id))
    bootstrap.introduce(lake, clock, settings, generation_id)
    bootstrap.admit(lake, generation_id)
    publish.publish_streams(spark, lake, generation_id)
    insist(f"published streams of {generation_id}", audit_published(spark, lake, generation_id))
    time_ms = publish.publish_timestamp(lake, clock, generation_id)
    return Joined(generation_id, time_ms, described.num_ranges, described.num_streams)


def insist(what: str, findings: Sequence[Finding]) -> None:
    """Go on only if every finding is good.

    Raises:
        AuditFailed: names the first invariant that is violated, with how often and an example.
    """
    for line in judge(findings, [finding.invariant for finding in findings]):
        if not line.passed:
            raise AuditFailed(
                f"{what}: {line.invariant} is violated {line.violations} times in {line.population}: {line.sample}; "
                "nothing after it was written; look at: cdc-platform check"
            )

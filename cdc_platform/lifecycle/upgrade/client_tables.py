"""May clients go by the new streams tables: yes, not yet, or from when on.

A client may where `cdc_local` of every node has the row `rewritten`, which scylla-cdc-go and -java wait for
(scylla-cdc-java PR #21), and the new tables have every generation of which a log can have rows. One that wants nothing
old can go by them from when on they are whole: so says ScyllaDB's page about querying streams, of its upgrades.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdc_platform.clock import Clock, Milliseconds
from cdc_platform.lake.lake import Lake
from cdc_platform.lifecycle.upgrade.rewrite import RewriteDecision, decide, is_absent, unmarked_nodes
from cdc_platform.records import descriptions, no_tables
from cdc_platform.settings import Settings


@dataclass(frozen=True)
class ClientTables:
    """Whether clients may switch. `from_ms`: of rows from then on (ms) the new tables have all streams; None: of none.

    `lacking`: the V1 generations that are not in the new tables and whose rows a log can have. `unmarked`: the nodes
    without the row that clients wait for. `has_old`: whether there is an old table at all.
    """

    has_old: bool
    from_ms: Milliseconds | None
    lacking: tuple[RewriteDecision, ...]
    unmarked: tuple[str, ...]

    @property
    def may(self) -> bool:
        """Whether clients that want all that there is may switch, and those of ScyllaDB do."""
        return self.from_ms is not None and not self.lacking and not (self.has_old and self.unmarked)


def judge(lake: Lake, clock: Clock, settings: Settings) -> ClientTables:
    """Judge by times alone. Where nobody has said which tables have a log each old generation counts."""
    listed = sorted(descriptions.listed_times(lake))
    if is_absent(lake):
        return ClientTables(False, listed[0] if listed else None, (), ())
    done = ("skip-present", "skip-too-old") if no_tables.are_told(lake) else ("skip-present",)
    there = set(listed)
    lacking = tuple(
        each for each in decide(lake, clock, settings) if each.action not in done and each.time_ms not in there
    )
    whole = [each for each in listed if not lacking or each > lacking[-1].time_ms]
    return ClientTables(True, whole[0] if whole else None, lacking, tuple(unmarked_nodes(lake)))

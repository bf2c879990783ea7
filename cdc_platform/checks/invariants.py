"""The declared invariants, grouped in families that one audit checks together, and the findings of an audit.

Each invariant is declared here once; `judge` derives the checks of the pandera models from the declarations. The module
is light to import: no numpy, no Arrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


class Invariant(str):
    """An invariant: its name as a string, with its `meaning` and `family`. Spark's workers get the name only."""

    meaning: str
    family: InvariantFamily

    def __new__(cls, name: str, meaning: str, family: InvariantFamily) -> Invariant:
        """Create an invariant; only `InvariantFamily.declare` should."""
        invariant = super().__new__(cls, name)
        invariant.meaning, invariant.family = meaning, family
        return invariant

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


@dataclass(frozen=True, eq=False)
class InvariantFamily:
    """Invariants of the same objects that one audit checks together.

    `subject`: what they apply to; `method`: how they are judged; `page`: the page that explains them. `blocking`: a
    violation stops what follows. `fine_without`: why it is fine that there is nothing to judge; if empty, nothing was
    proven then. `alone`: this may apply to one of them while others are judged. `unknown_without`: why there is no
    verdict on a named hour, table or cluster with nothing to judge; if `fine_without` is empty, on the home neither.
    """

    subject: str
    method: str
    page: str
    blocking: bool
    fine_without: str = ""
    alone: bool = False
    unknown_without: str = ""
    _members: list[Invariant] = field(default_factory=list)

    def declare(self, name: str, meaning: str) -> Invariant:
        """Declare the next invariant of the family."""
        invariant = Invariant(name, meaning, self)
        self._members.append(invariant)
        return invariant

    @property
    def invariants(self) -> tuple[Invariant, ...]:
        """Return its invariants, in the order in which summaries list them."""
        return tuple(self._members)

    def due(self, findings: Sequence[Finding]) -> tuple[Invariant, ...]:
        """Return the invariants that a summary must contain: those with something to judge, or those to be proven."""
        present = {line.invariant for line in findings}
        may_be_without = self.fine_without or self.unknown_without
        if not may_be_without or (not self.alone and present & set(self._members)):
            return self.invariants
        return tuple(invariant for invariant in self._members if invariant in present)

    def not_judged(self, reason: str) -> list[Finding]:
        """Return a finding for each invariant that says why nothing was looked at, which is no verdict."""
        return [Finding(invariant, 0, 0, f"not judged: {reason}", unknown=True) for invariant in self._members]


MAX_SAMPLES = 3
"""The number of failure cases that a finding names; the others are only counted."""


GENERATION_FAMILY = InvariantFamily(
    subject="generations",
    method="in one Spark pass over the rows of every table that has a generation",
    page="docs/generations.md",
    blocking=True,
)
RING_COVERED_ONCE = GENERATION_FAMILY.declare("ring_covered_once", "The ranges cover the whole ring, each token once.")
REFINES_VNODES = GENERATION_FAMILY.declare(
    "refines_vnodes", "Every vnode of the ring, before and after the join, ends with a range's end."
)
VNODE_COLOCATION = GENERATION_FAMILY.declare(
    "vnode_colocation",
    "The token of every stream lies in the range that the stream belongs to.",
)
SHARD_COLOCATION = GENERATION_FAMILY.declare(
    "shard_colocation",
    "Stream j lies on shard j of the owner, where that shard owns anything of the range.",
)
_UNKNOWN_SHARD = (
    "the owner of their range is not known, or has another number of shards than the range has streams; import V2 "
    "descriptions, or a ring snapshot"
)
"""The reason why a stream's shard cannot be judged."""
STREAM_FORMAT = GENERATION_FAMILY.declare(
    "stream_format",
    "Every stream ID has 16 bytes, version 1, and the rank of its range end as its index.",
)
STREAMS_UNIQUE = GENERATION_FAMILY.declare("streams_unique", "No stream is in the generation twice.")
STREAMS_UNIQUE_ACROSS_GENERATIONS = GENERATION_FAMILY.declare(
    "streams_unique_across_generations", "No stream of the generation is in another generation too."
)
ROW_COUNT = GENERATION_FAMILY.declare(
    "row_count", "The generation has as many rows as the ring has tokens, or as `num_ranges` claims."
)
PUBLISHED_EQUALS_DESCRIPTION = GENERATION_FAMILY.declare(
    "published_equals_description", "The rows equal those of the step before, stream by stream."
)
TIMESTAMP_COMPLETE = GENERATION_FAMILY.declare(
    "timestamp_complete", "Every timestamp that readers see has all of its rows."
)
GENERATION_INVARIANTS = GENERATION_FAMILY.invariants

V1_FAMILY = InvariantFamily(
    subject="V1 tables and what was rewritten from them",
    method="cell by cell, without Spark",
    page="docs/rewrite.md",
    blocking=False,
    fine_without="there is nothing of it",
    alone=True,
)
LIVE_GENERATIONS_REWRITTEN = V1_FAMILY.declare(
    "live_generations_rewritten", "Every V1 generation that can still have log rows is in the V2 tables."
)
REWRITTEN_EQUALS_V1 = V1_FAMILY.declare(
    "rewritten_equals_v1", "The published rows of a V1 generation equal those of its V1 description."
)

TABLET_FAMILY = InvariantFamily(
    subject="stream sets of tablet-based tables",
    method="table by table, without Spark",
    page="docs/tablets.md",
    blocking=True,
    fine_without="there are no stream sets",
)
TABLET_STREAM_FORMAT = TABLET_FAMILY.declare(
    "tablet_stream_format", "Every stream ID of a tablet has 16 bytes, version 1 and index 0."
)
TABLET_STREAM_AT_END = TABLET_FAMILY.declare(
    "tablet_stream_at_end", "Each tablet has exactly one stream, whose token is the tablet's last token."
)
TABLET_RING_COVERED = TABLET_FAMILY.declare(
    "tablet_ring_covered", "Every stream set covers the whole ring: its last stream has the last token."
)
TABLET_SETS_ADD_UP = TABLET_FAMILY.declare(
    "tablet_sets_add_up", "Every set equals the previous set minus its closed streams plus its opened streams."
)
TABLET_CLOSED_IN_PREVIOUS = TABLET_FAMILY.declare(
    "tablet_closed_in_previous", "Every stream that a set closes was open in the previous set."
)
TABLET_TIMESTAMP_COMPLETE = TABLET_FAMILY.declare(
    "tablet_timestamp_complete", "Every timestamp that readers see has its current streams."
)
TABLET_STREAMS_TIMED = TABLET_FAMILY.declare(
    "tablet_streams_timed", "Every stream set has a timestamp that readers see, or was decided here."
)
TABLET_INVARIANTS = TABLET_FAMILY.invariants

SWITCH_FAMILY = InvariantFamily(
    subject="two-phase switches",
    method="switch by switch, without Spark",
    page="docs/switch.md",
    blocking=False,
    fine_without="nothing was checked: there is no switch",
)
SWITCH_DECIDED_ONCE = SWITCH_FAMILY.declare(
    "switch_decided_once",
    "Each switch has at most one decision, made by the rules, and at most one switch is undecided.",
)
SWITCH_TIME_AFTER_LEASES = SWITCH_FAMILY.declare(
    "switch_time_after_leases", "A committed generation starts after the lease end of every participant."
)
SWITCH_PROMISES_KEPT = SWITCH_FAMILY.declare(
    "switch_promises_kept", "Every participant answered with the lease end that it had promised."
)
SWITCH_HAS_ITS_GENERATION = SWITCH_FAMILY.declare(
    "switch_has_its_generation",
    "The ledger has the generation of every committed switch under its time, and of no other switch.",
)
SWITCH_INVARIANTS = SWITCH_FAMILY.invariants

EXPIRY_FAMILY = InvariantFamily(
    subject="generations that expire, and nodes that keep their IDs",
    method="generation by generation, without Spark",
    page="docs/expiry.md",
    blocking=False,
    fine_without="there is nothing of it",
    alone=True,
)
EXPIRED_NOT_HELD = EXPIRY_FAMILY.declare(
    "expired_not_held", "No generation that is marked as expired is needed by a table, a consumer or a node."
)
NONE_HALF_REMOVED = EXPIRY_FAMILY.declare(
    "none_half_removed", "Every generation that readers see has its streams, and nothing remains of removed ones."
)
NODE_GENERATION_NOT_REMOVED = EXPIRY_FAMILY.declare(
    "node_generation_not_removed", "No node's `cdc_local` names a removed generation."
)

NODES_KNOW_GENERATION = EXPIRY_FAMILY.declare(
    "nodes_know_generation", "Every node's `cdc_local` names the operating generation or a later one."
)

REPAIR_FAMILY = InvariantFamily(
    subject="generations that somebody names, and the newest one against the ring as it stands",
    method="by the rules of repair, without Spark",
    page="docs/repair.md",
    blocking=False,
    fine_without="there is nothing of it",
    alone=True,
)
GENERATIONS_RETRIEVABLE = REPAIR_FAMILY.declare(
    "generations_retrievable",
    "The description of every generation that a node, a ledger or a reader names is stored here.",
)
STREAMS_FIT_THE_RING = REPAIR_FAMILY.declare(
    "streams_fit_the_ring",
    "The ranges and shards of the newest generation match the ring: a repair is neither needed nor useful.",
)

OBSERVATION_FAMILY = InvariantFamily(
    subject="what the last look at a live cluster found there",
    method="by what that look noted, without Spark",
    page="docs/cluster.md",
    blocking=False,
    fine_without="no live cluster is looked at for this home",
    unknown_without="the cluster was not observed yet, or it lists no generation",
)
OBSERVED_WHOLE = OBSERVATION_FAMILY.declare(
    "observed_whole", "Everything that the cluster listed at the last observation was complete and is stored here."
)

LOG_FAMILY = InvariantFamily(
    subject="rows of CDC logs",
    method="row by row, large logs on Spark",
    page="docs/log.md",
    blocking=True,
    fine_without="there are no rows",
)
LOG_TIME_IN_BOUNDS = LOG_FAMILY.declare(
    "log_time_in_bounds", "Every row's `cdc$time` is a timeuuid of a time at which a stream set operates."
)
LOG_TIMESTAMP_IS_TIME = LOG_FAMILY.declare(
    "log_timestamp_is_time", "`cdc$timestamp`, by which readers skip files, equals the time in `cdc$time`."
)
LOG_STREAM_OPERATES = LOG_FAMILY.declare(
    "log_stream_operates", "Every row is in a stream of the generation or stream set that operates at its `cdc$time`."
)
LOG_ROW_COLOCATED = LOG_FAMILY.declare(
    "log_row_colocated", "Every row is in the stream that its base row's partition key determines."
)
LOG_BATCH_COMPLETE = LOG_FAMILY.declare(
    "log_batch_complete", "The rows of a batch are numbered from 0 without gaps or duplicates."
)
LOG_BATCH_ENDED = LOG_FAMILY.declare("log_batch_ended", "Exactly the last row of a batch has `cdc$end_of_batch` set.")
LOG_INVARIANTS = LOG_FAMILY.invariants

REBUILT_FAMILY = InvariantFamily(
    subject="tables rebuilt from CDC logs",
    method="row by row against the table that the run names, large tables on Spark",
    page="docs/log.md",
    blocking=False,
    unknown_without="the run names no table to compare with",
)
REBUILT_EQUALS_GIVEN = REBUILT_FAMILY.declare(
    "rebuilt_equals_given", "The rebuilt table has exactly the rows of the table that it is compared with."
)

STATE_FAMILY = InvariantFamily(
    subject="stored states of CDC-logged tables",
    method="state by state against its log of up to a million rows, without Spark",
    page="docs/log.md",
    blocking=False,
    fine_without="no table with a log has a stored state",
)
STATE_MATCHES_LOG = STATE_FAMILY.declare(
    "state_is_the_logs", "The stored state of a table equals the state that its log yields."
)

HOUR_FAMILY = InvariantFamily(
    subject="logs that are copied hour by hour",
    method="hour by hour against the log, without Spark",
    page="docs/reading.md",
    blocking=True,
    fine_without="no log was copied",
    unknown_without="no log was copied in this hour",
)
HOURS_MATCH_LOG = HOUR_FAMILY.declare(
    "hours_hold_the_log", "The hourly sink has exactly the rows that the log has in the hour."
)
HOURS_HOLD_ROWS_ONCE = HOUR_FAMILY.declare("hours_hold_rows_once", "No row of the hour is in the hourly sink twice.")
HOUR_INVARIANTS = HOUR_FAMILY.invariants

SKIPPED_SET_FAMILY = InvariantFamily(
    subject="generations that readers passed over because they had no streams",
    method="note by note, without Spark",
    page="docs/reading.md",
    blocking=False,
    fine_without="no reader passed any over",
)
PASSED_OVER_STAYS_EMPTY = SKIPPED_SET_FAMILY.declare(
    "passed_over_stays_empty", "No generation that a reader skipped because it had no streams has streams now."
)

INGEST_FAMILY = InvariantFamily(
    subject="logs that are brought in from live clusters",
    method="by the gaps that readers recorded, without Spark",
    page="docs/cluster.md",
    blocking=False,
    fine_without="no log was brought in from a live cluster",
    unknown_without="the log was not ingested yet",
)
LOG_GAPS_ACCEPTED = INGEST_FAMILY.declare(
    "log_gaps_accepted", "No rows of the log were lost before they were read, except in accepted gaps."
)

DERIVED_TABLE_FAMILY = InvariantFamily(
    subject="tables whose rows follow from other tables",
    method="row by row against what they follow from, without Spark",
    page="docs/tables.md",
    blocking=False,
    fine_without="there is nothing of it",
    alone=True,
)
TIMESTAMPS_FOLLOW_LEDGER = DERIVED_TABLE_FAMILY.declare(
    "timestamps_follow_ledger",
    "`cdc_generation_timestamps` lists every generation that the ledger calls published once, until it is removed.",
)
TABLES_FOLLOW_CHANGES = DERIVED_TABLE_FAMILY.declare(
    "tables_follow_changes",
    "Every CDC-enabled table matches its last recorded change, or the one before while that is in progress.",
)
STREAM_SETS_FOLLOW_LAYOUTS = DERIVED_TABLE_FAMILY.declare(
    "stream_sets_follow_layouts",
    "The stream sets in `system.cdc_timestamps` are those that the ledger of tablets decided.",
)
NODES_KEEP_LEDGER_IDS = DERIVED_TABLE_FAMILY.declare(
    "nodes_keep_ledger_ids", "The generation ID that a node stores has the UUID and the time of the ledger."
)
FINGERPRINTS_FOLLOW_STREAMS = DERIVED_TABLE_FAMILY.declare(
    "fingerprints_follow_streams", "The stored fingerprints of a generation are those of its streams."
)

STORAGE_FAMILY = InvariantFamily(
    subject="all tables that lie in the home, those of logs and their sinks as well",
    method="table by table against Delta's log, without Spark",
    page="docs/tables.md",
    blocking=False,
    fine_without="there is nothing of it",
    alone=True,
    unknown_without="the table has no rows of it",
)
FILES_WHOLE = STORAGE_FAMILY.declare(
    "files_whole", "Every data file and every log entry of a table exists and can be read completely."
)
ROWS_AS_COMMITTED = STORAGE_FAMILY.declare(
    "rows_as_committed", "Every partition of a table has the rows that its commits recorded."
)
COMMITS_KNOWN = STORAGE_FAMILY.declare(
    "commits_known", "Since its first commit with a CommitInfo, only the platform has changed a table."
)

INVARIANT_FAMILIES = (
    *(GENERATION_FAMILY, V1_FAMILY, TABLET_FAMILY, SWITCH_FAMILY, EXPIRY_FAMILY, REPAIR_FAMILY, OBSERVATION_FAMILY),
    *(
        LOG_FAMILY,
        REBUILT_FAMILY,
        STATE_FAMILY,
        HOUR_FAMILY,
        SKIPPED_SET_FAMILY,
        INGEST_FAMILY,
        DERIVED_TABLE_FAMILY,
        STORAGE_FAMILY,
    ),
)
"""All families."""
INVARIANTS_BY_NAME = {str(each): each for family in INVARIANT_FAMILIES for each in family.invariants}
"""All invariants by name."""


@dataclass(frozen=True)
class Finding:
    """One finding of a summary.

    `population`: how many items were checked; `violations`: how many of them violate the invariant; `sample`: the first
    violation as text, or why nothing was checked. `unknown`: nothing was checked, because the needed tables were never
    exported from the cluster. `unjudged`: how many more could not be checked, which is no pass.
    """

    invariant: str
    population: int
    violations: int
    sample: str = ""
    unknown: bool = False
    unjudged: int = 0


@dataclass(frozen=True)
class InvariantTally:
    """A part of a finding, from a subset of the rows. `position` orders samples: the lowest is retained.

    `more` holds the (place, sample) of further samples; the lowest are retained, `MAX_SAMPLES` in all. `unjudged`
    counts what could not be judged.
    """

    invariant: str
    population: int
    violations: int
    position: int = 0
    sample: str = ""
    more: tuple[tuple[int, str], ...] = ()
    unjudged: int = 0

    @classmethod
    def of_cases(
        cls,
        invariant: str,
        population: int,
        violations: int,
        cases: Iterable[tuple[int, str]] = (),
        unjudged: int = 0,
    ) -> InvariantTally:
        """Create a tally with the lowest of these (place, sample) as its samples."""
        first, *more = sorted(cases, key=lambda case: case[0])[:MAX_SAMPLES] or [(0, "")]
        return cls(invariant, population, violations, *first, tuple(more), unjudged)

    @property
    def cases(self) -> tuple[tuple[int, str], ...]:
        """Return the (place, sample) of all samples, in their order."""
        return ((self.position, self.sample), *self.more) if self.sample else ()

    @property
    def samples_text(self) -> str:
        """Return all samples in one line."""
        return "; ".join(sample for _, sample in self.cases)


def sum_tallies(tallies: Iterable[InvariantTally]) -> dict[str, InvariantTally]:
    """Sum the tallies of one generation's parts by invariant, retaining the samples that come first on the ring."""
    totals: dict[str, InvariantTally] = {}
    for part in tallies:
        so_far = totals.get(part.invariant)
        totals[part.invariant] = part if so_far is None else _sum_of_two(so_far, part)
    return totals


def _sum_of_two(one: InvariantTally, other: InvariantTally) -> InvariantTally:
    cases = dict.fromkeys([*one.cases, *other.cases])
    population, violations = one.population + other.population, one.violations + other.violations
    return InvariantTally.of_cases(one.invariant, population, violations, cases, one.unjudged + other.unjudged)


def finding_from_tallies(invariant: str, parts: Iterable[tuple[str, InvariantTally]], reason_unchecked: str) -> Finding:
    """Return one invariant's finding over several generations: `parts` are (the generation's name, its tally).

    `reason_unchecked` explains why nothing was checked, if so.
    """
    population = violations = unjudged = 0
    sample = in_doubt = ""
    for name, tally in parts:
        population += tally.population
        violations += tally.violations
        unjudged += tally.unjudged
        if tally.unjudged and not in_doubt:
            in_doubt = f"generation {name}: " if name else ""
            in_doubt += f"{tally.unjudged} streams could not be judged: {_UNKNOWN_SHARD}"
        if tally.violations and not sample:
            sample = f"generation {name}: {tally.samples_text}" if name else tally.samples_text
    if not population and not sample:
        sample = f"nothing was checked: {reason_unchecked}"
    return Finding(invariant, population, violations, sample or in_doubt, unjudged=unjudged)

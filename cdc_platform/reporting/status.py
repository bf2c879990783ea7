"""The status of a home in plain values: ring, generations, joins, tables, consumers, expiry and checks, with alerts.

Reads small tables and Delta's log, never a stream; no JVM. A section that cannot be read does not stop the others.
Each alert has a stable code and a section in docs/status.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from cdc_platform.cdclog import TtlLag, TtlStatus, gaps, get_ttl_status
from cdc_platform.checks import OBSERVED_WHOLE
from cdc_platform.clock import (
    ONE_US,
    Clock,
    Microseconds,
    Milliseconds,
    format_ms,
    format_us,
    seconds_from_us,
    us_from_ms,
)
from cdc_platform.cql import LOG_SUFFIX
from cdc_platform.delta import (
    REPAIR_STREAMS_COMMAND,
    Lake,
    find_first_cause,
    get_mirrored_cluster,
    get_observed_status,
    read_newest_versions,
    track_reads,
)
from cdc_platform.errors import PlatformError, to_one_line
from cdc_platform.generations import GenerationSwitch
from cdc_platform.lifecycle import ExpiryAction, NodeKnowledge, PlannedGeneration, read_node_knowledge
from cdc_platform.lifecycle import expiry as lifecycle_expiry
from cdc_platform.lifecycle import repair as lifecycle_repair
from cdc_platform.metastore import (
    STAGES_AFTER_TIMESTAMP,
    STATUS_LEFT,
    STATUS_NORMAL,
    WHOLE_HOME,
    Consumer,
    JoinProgress,
    LogGap,
    LogLoss,
    TopologyTransition,
    cdc_tables,
    check_results,
    cluster_changes,
    consumers,
    read_join_progress,
    read_nodes,
    read_omitted_items,
    switches,
    tablets,
)
from cdc_platform.settings import Settings
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2, VERDICTS, Table
from cdc_platform.timeline import Generation, GenerationState, StreamSources, Timeline

PROGRAM_PREFIX = "cdc-platform "
_PAGE = "docs/status.md"

STATUS_CODES: Mapping[str, bool] = MappingProxyType(
    {
        "table-unreadable": True,
        "nothing-operates": True,
        "no-generation": False,
        "not-retrievable": True,
        "not-exported": False,
        "not-described": False,
        "join-stuck": True,
        "join-interrupted": False,
        "join-waiting": False,
        "step-not-good": True,
        "switch-overdue": True,
        "switch-open": False,
        "repair-due": True,
        "repair-blocked": False,
        "topology-changing": False,
        "left-out": True,
        "only-observed": False,
        "check-failed": True,
        "check-older": False,
        "never-checked": False,
        "reads-removed": True,
        "nodes-behind": True,
        "nodes-unknown": False,
        "rows-dying": True,
        "rows-lost": True,
        "lag-near-ttl": False,
        "lag-half-ttl": False,
        "log-gap": False,
        "expiry-due": False,
        "unknown-past": False,
        "no-tables": False,
        "empty-home": False,
    }
)
"""Every code, and whether what it stands for is wrong; what is not wrong is to be done, or to be known."""


@dataclass(frozen=True)
class StatusAlert:
    """One finding: a sentence (`said`) and what resolves it (`do`).

    `do` is either one command, complete and safe to paste, or a sentence for a person who has to decide or to bring
    something. A command that states a fact or discards something stands only inside a sentence.
    """

    code: str
    said: str
    do: str | None = None

    @property
    def is_command(self) -> bool:
        """Whether `do` is one command that can be run as it stands."""
        return self.do is not None and self.do.startswith(PROGRAM_PREFIX)

    @property
    def wrong(self) -> bool:
        """Whether something is wrong, and not only left to do."""
        return STATUS_CODES[self.code]

    def facts(self) -> dict[str, object]:
        """It in plain values."""
        page = f"{_PAGE}#{self.code}"
        return {
            "code": self.code,
            "wrong": self.wrong,
            "said": self.said,
            "do": self.do,
            "is_command": self.is_command,
            "page": page,
        }


def read_ring_status(lake: Lake, clock: Clock, settings: Settings) -> tuple[dict[str, Any], list[StatusAlert]]:
    """The nodes of the ring, and those that are on the way in or out."""
    known = read_nodes(lake)
    normal = [node for node in known if node.status == STATUS_NORMAL]
    moving = [node for node in known if node.status not in (STATUS_NORMAL, STATUS_LEFT)]
    changing = cluster_changes.read_topology_transition(lake)
    told = {
        "nodes": len(normal),
        "zero_token_nodes": sum(not node.tokens for node in normal),
        "tokens": sum(len(node.tokens) for node in normal),
        "shards": sum(node.shard_count for node in normal),
        "not_at_rest": [{"host_id": str(node.host_id), "status": node.status} for node in moving],
        "changing": changing and {"since": format_us(changing.since_us), "transition": changing.transition},
    }
    return told, [] if changing is None else [_topology_alert(lake, changing)]


def read_generation_status(lake: Lake, clock: Clock, settings: Settings) -> tuple[dict[str, Any], list[StatusAlert]]:
    """Which generation operates, for the nodes and for clients, which come next, and which nobody can read."""
    timeline = Timeline.read(lake)
    now_us = clock.now_us()
    known = timeline.known
    operating = timeline.operating(now_us)
    later = [each for each in known if us_from_ms(each.time_ms) > now_us]
    shown = [each for each in known if each.published and us_from_ms(each.time_ms) <= now_us]
    needed = [each for each in known if each.time_ms >= (0 if operating is None else operating.time_ms)]
    unread = [each for each in needed if each.state is GenerationState.NOT_RETRIEVABLE]
    nodes = read_node_knowledge(lake, clock, settings)
    told = {
        "known": len(known),
        "removed": len(timeline.removed),
        "operating": operating and _generation_facts(operating),
        "clients_see": _generation_facts(shown[-1]) if shown else None,
        "next": [_generation_facts(each) for each in later],
        "not_retrievable": [_generation_facts(each) for each in unread],
        "nodes": nodes
        and {
            "know": len(nodes.informed),
            "behind": [{"host_id": host, "names": format_ms(ms)} for host, ms in nodes.behind.items()],
            "unknown": [{"host_id": host, "why": why} for host, why in nodes.unknown.items()],
        },
    }
    return told, [
        *([] if known else _no_generation_alerts(lake)),
        *_omission_alerts(lake),
        *_unreadable_alerts(lake, unread),
        *_undescribed_alerts(lake, operating),
        *_nothing_operates_alerts(known, operating, later),
        *_uninformed_alerts(lake, nodes),
    ]


def read_repair_status(lake: Lake, clock: Clock, settings: Settings) -> tuple[dict[str, Any] | None, list[StatusAlert]]:
    """Whether a new generation is due, by range ends alone: `repair --dry-run` reads the streams too."""
    if (
        not any(node.status == STATUS_NORMAL and node.tokens for node in read_nodes(lake))
        or not Timeline.read(lake).known
    ):
        return None, []
    found = lifecycle_repair.check_newest_generation(lake, strict=settings.repair_strict, streams=False)
    told = {
        "needed": None if found.cannot_tell else found.needed,
        "cannot_tell": found.cannot_tell,
        "reasons": [{"condition": each.condition.value, "detail": each.detail} for each in found.reasons],
        "blocked_by": list(found.blocked_by),
    }
    if found.blocked_by and found.needed:  # a join is under way, or a node: the ring is not at rest
        return told, [StatusAlert("repair-blocked", f"whether a repair is due is told when {found.blocked_by[0]}")]
    if not found.needed:
        return told, []
    said = "; ".join(f"{each.condition.value}: {each.detail}" for each in found.reasons)
    do = _cluster_repair_advice(lake) or "cdc-platform repair --run"
    return told, [StatusAlert("repair-due", f"the latest generation does not fit the ring: {said}", do)]


def _cluster_repair_advice(lake: Lake) -> str | None:
    """What mends the generations of the live cluster that a lake mirrors; None where it mirrors none."""
    cluster = get_mirrored_cluster(lake)
    return (
        None
        if cluster is None
        else f"on a node of {cluster}: {REPAIR_STREAMS_COMMAND}; then: {_observe_command(cluster)}"
    )


def _observe_command(cluster: str) -> str:
    """The command that takes in what there is of a cluster by now."""
    return f"cdc-platform observe {cluster}"


def _topology_alert(lake: Lake, changing: TopologyTransition) -> StatusAlert:
    cluster = get_mirrored_cluster(lake)
    look = "import it again" if cluster is None else _observe_command(cluster)
    said = f"{changing}: nodes are as before, and what follows from them cannot be told"
    return StatusAlert("topology-changing", said, f"wait until the topology is stable, then: {look}")


def _generation_facts(generation: Generation) -> dict[str, Any]:
    return {"id": generation.id, "time": format_ms(generation.time_ms), "state": str(generation.state)}


def _omission_alerts(lake: Lake) -> list[StatusAlert]:
    cluster = get_mirrored_cluster(lake)
    if cluster is None:
        return []
    return [
        StatusAlert(
            "left-out",
            f"not taken in since {format_us(each.since_us)}, as it is not whole in the cluster: {each.said}",
            _observe_command(cluster),
        )
        for each in read_omitted_items(lake)
    ]


def _unreadable_alerts(lake: Lake, unread: list[Generation]) -> list[StatusAlert]:
    do = _cluster_repair_advice(lake) or (
        "export its description from the cluster and import it (cdc-platform import --help), or make a new generation: "
        "cdc-platform repair --run"
    )
    return [
        StatusAlert(
            "not-retrievable",
            f"generation {each.name} ({format_ms(each.time_ms)}) is known, and its description is not here: writes "
            "that belong to it are refused",
            do,
        )
        for each in unread
    ]


def _undescribed_alerts(lake: Lake, operating: Generation | None) -> list[StatusAlert]:
    """Return the matter of an operating generation that has streams for clients and no description."""
    if operating is None or operating.state not in (GenerationState.NOT_EXPORTED, GenerationState.NOT_DESCRIBED):
        return []
    cluster = get_mirrored_cluster(lake)
    table = GENERATION_DESCRIPTIONS_V2.name
    do = _observe_command(cluster) if cluster else f"export {table} and import it (cdc-platform import --help)"
    said = f"generation {operating.name} operates, and "
    if operating.state is GenerationState.NOT_EXPORTED:
        return [StatusAlert("not-exported", f"{said}no table of descriptions was imported", do)]
    return [StatusAlert("not-described", f"{said}the imported descriptions have no row of it", do)]


def _no_generation_alerts(lake: Lake) -> list[StatusAlert]:
    """Return the matter of a ring without any generation; a cluster whose tables all use tablets needs none."""
    if tablets.read_tables_with_stream_sets(lake) or not any(node.status == STATUS_NORMAL for node in read_nodes(lake)):
        return []
    cluster = get_mirrored_cluster(lake)
    do = (
        _observe_command(cluster)
        if cluster
        else (
            "import the cluster's generations (cdc-platform import --help), or make the first one: cdc-platform "
            "repair --run"
        )
    )
    return [StatusAlert("no-generation", "the ring has nodes, and no generation is known here", do)]


def _uninformed_alerts(lake: Lake, nodes: NodeKnowledge | None) -> list[StatusAlert]:
    """Return what there is to say of nodes that have not learned of the generation that operates, or may not have."""
    found = []
    cluster = get_mirrored_cluster(lake)
    if nodes is not None and nodes.behind:
        look = (
            "import its cdc_local again (cdc-platform import --help)" if cluster is None else _observe_command(cluster)
        )
        found.append(
            StatusAlert("nodes-behind", str(nodes), f"find out from the log of each such node why; then: {look}")
        )
    if nodes is not None and nodes.unknown and cluster is not None:
        hosts = ", ".join(f"{host} ({why})" for host, why in nodes.unknown.items())
        said = f"whether these nodes know the generation that operates is not known: {hosts}"
        found.append(StatusAlert("nodes-unknown", said, _observe_command(cluster)))
    return found


def _nothing_operates_alerts(
    known: list[Generation], operating: Generation | None, later: list[Generation]
) -> list[StatusAlert]:
    if operating is not None or not known:
        return []
    said = f"no generation operates yet; the first one starts at {format_ms(later[0].time_ms)}: writes are refused"
    return [StatusAlert("nothing-operates", said, "wait until then")]


def read_join_status(lake: Lake, clock: Clock, settings: Settings) -> tuple[list[dict[str, Any]], list[StatusAlert]]:
    """The joins and repairs that are not finished, with the step that each has reached, and bad verdicts on them."""
    waiting = [each for each in read_join_progress(lake) if each.is_open]
    matters = [_join_alert(each, clock) for each in waiting]
    if waiting:
        bad = lake.read(VERDICTS, ["generation_id", "step", "said", "door"], [("passed", "=", False)]).to_pylist()
        open_ = {each.generation_id: each.event_id for each in waiting}
        matters += [
            StatusAlert(
                "step-not-good",
                f"{row['step']} of generation {row['generation_id']}, as {row['door']} has found: {row['said']}",
                f"run the join again: cdc-platform bootstrap --finish {open_[row['generation_id']]}, or withdraw it: "
                f"cdc-platform bootstrap --withdraw {open_[row['generation_id']]}",
            )
            for row in bad
            if row["generation_id"] in open_
        ]
    return [join_progress_facts(each) for each in waiting], matters


def join_progress_facts(each: JoinProgress) -> dict[str, Any]:
    """An event of the inbox in plain values."""
    return {
        "event_id": each.event_id,
        "kind": each.kind,
        "host_id": each.host_id,
        "generation_id": each.generation_id,
        "state": str(each.reached),
        "queued_at": format_us(each.queued_at_us),
        "time": None if each.time_ms is None else format_ms(each.time_ms),
        "since": None if each.timed_at_ms is None else format_ms(each.timed_at_ms),
        "do": each.do if each.is_next else None,
    }


def read_switch_status(lake: Lake, clock: Clock, settings: Settings) -> tuple[list[dict[str, Any]], list[StatusAlert]]:
    """The two-phase switches of which something is left to do."""
    found = switches.read_unfinished_switches(lake)
    told = [
        {
            "generation_id": each.generation_id,
            "phase": str(each.phase),
            "acknowledged": len(each.leases),
            "participants": len(each.participants),
            "deadline": format_ms(each.deadline_ms),
        }
        for each in found
    ]
    return told, [_switch_alert(each, clock) for each in found]


def _read_only_alerts(lake: Lake) -> list[StatusAlert]:
    found = get_observed_status(lake)
    if found is None:
        return []
    said = f"nothing is built on this home since {format_us(found.since_us)}: it is only observed ({found.because})"
    return [StatusAlert("only-observed", said, "import what is missing, then run: cdc-platform check")]


def read_check_status(lake: Lake, clock: Clock, settings: Settings) -> tuple[dict[str, Any], list[StatusAlert]]:
    """What was judged last, by whatever door, what did not hold, and which tables were written since."""
    found = check_results.read_check_results(lake)
    failed = [each for each in found if not each.passed]
    newer = check_results.tables_changed_since(
        (each for each in found if each.asked_of == WHOLE_HOME), read_newest_versions(lake)
    )
    oldest = min(found, key=lambda each: each.judged_at_us, default=None)
    newest = max(found, key=lambda each: each.judged_at_us, default=None)
    told = {
        "judged": len(found),
        "failed": [
            {
                "invariant": each.invariant,
                "of": each.asked_of or None,
                "said": each.said,
                "judged_at": format_us(each.judged_at_us),
                "door": each.door,
            }
            for each in failed
        ],
        "oldest": oldest and format_us(oldest.judged_at_us),
        "newest": newest and format_us(newest.judged_at_us),
        "door": newest and newest.door,
        "newer_tables": newer,
    }
    matters = [*_read_only_alerts(lake), *(_check_alert(each) for each in failed)]
    if not any(each.asked_of == WHOLE_HOME for each in found):
        if Timeline.read(lake).known or tablets.read_tables_with_stream_sets(lake):
            matters.append(StatusAlert("never-checked", "this home was never checked as a whole", "cdc-platform check"))
    elif newer:
        names = ", ".join(newer[:3]) + (f" and {len(newer) - 3} more" if len(newer) > 3 else "")
        matters.append(StatusAlert("check-older", f"written since the last check: {names}", "cdc-platform check"))
    return told, matters


def _check_alert(each: check_results.StoredCheckResult) -> StatusAlert:
    of = f" of {each.asked_of}" if each.asked_of else ""
    names_one = each.asked_of and "." not in each.asked_of
    if each.invariant == OBSERVED_WHOLE and names_one:
        again = _observe_command(each.asked_of)
    else:
        again = f"cdc-platform check {each.asked_of}" if names_one else "cdc-platform check"
    return StatusAlert("check-failed", f"{each.invariant}{of} at {format_us(each.judged_at_us)}: {each.said}", again)


def _join_alert(each: JoinProgress, clock: Clock) -> StatusAlert:
    name = f"{each.kind} of host {each.host_id} (event {each.event_id})"
    if each.reached not in STAGES_AFTER_TIMESTAMP or each.time_ms is None:
        said = f"{name} waits since {format_us(each.queued_at_us)}, {each.reached}"
        return StatusAlert("join-waiting", said, each.do if each.is_next else None)
    began = us_from_ms(each.time_ms) <= clock.now_us()
    said = f"{name} is not finished: {each.reached}, and its generation {'operates' if began else 'starts'} " + (
        f"since {format_ms(each.time_ms)} without being shown to clients" if began else f"at {format_ms(each.time_ms)}"
    )
    return StatusAlert("join-stuck" if began else "join-interrupted", said, each.do)


def _switch_alert(each: GenerationSwitch, clock: Clock) -> StatusAlert:
    name = f"the switch to generation {each.generation_id}"
    if each.is_decided:
        return StatusAlert(
            "switch-open",
            f"{name} is committed, and its join has not gone on",
            "finish its join, which is in the inbox: cdc-platform bootstrap --list",
        )
    answers = f"{len(each.leases)} of {len(each.participants)} nodes have acknowledged"
    if us_from_ms(each.deadline_ms) <= clock.now_us():
        said = f"{name} is undecided after its deadline {format_ms(each.deadline_ms)}: {answers}"
        return StatusAlert("switch-overdue", said, f"cdc-platform switch abort {each.generation_id}")
    return StatusAlert(
        "switch-open",
        f"{name} is being prepared until {format_ms(each.deadline_ms)}: {answers}",
        f"cdc-platform switch show {each.generation_id}",
    )


def read_table_status(lake: Lake, clock: Clock, settings: Settings) -> tuple[list[dict[str, Any]], list[StatusAlert]]:
    """The CDC-enabled tables: the TTL, what each log has in the lake, and whose streams its rows lie in."""
    sources = StreamSources(lake, settings)
    told = []
    for each in cdc_tables.read_cdc_tables(lake):
        parts = lake.slices(Table(each.keyspace_name, each.table_name + LOG_SUFFIX, pa.schema([]), (), ""))
        told.append(
            {
                "table": each.full_name,
                "enabled": each.enabled,
                "ttl_seconds": each.ttl_seconds,
                "streams": "generations"
                if sources.of(each.keyspace_name, each.table_name).in_generations
                else "tablets",
                "log_rows": sum(part.rows for part in parts),
                "log_bytes_in_lake": sum(part.bytes for part in parts),
                "kept": _replica_facts(lake, each.keyspace_name, each.table_name, clock.now_us()),
            }
        )
    recorded = gaps.read_log_gaps(lake)
    return told, [
        *_lost_row_alerts(recorded),
        *(StatusAlert("log-gap", line) for line in gaps.describe_option_gaps(lake, None, recorded)),
    ]


def _lost_row_alerts(recorded: list[LogGap]) -> Iterator[StatusAlert]:
    """Yield what readers of a live cluster missed: wrong until somebody accepts it, to be known from then on."""
    for gap in recorded:
        if gap.is_open:
            look = f"cdc-platform consumers gaps {gap.full_name}"
            yield StatusAlert(
                "rows-lost", str(gap), f"decide whether those rows are needed, and accept it if not: {look}"
            )
        elif gap.what != LogLoss.BEFORE_READING:
            yield StatusAlert("log-gap", str(gap))


def _replica_facts(lake: Lake, keyspace: str, name: str, now_us: Microseconds) -> dict[str, Any] | None:
    """The table itself, where `ingest --current` keeps it: its rows, which of them are inexact, and how old it is."""
    from cdc_platform.cdclog import AS_OF_APPLICATION, INEXACT_APPLICATION

    table = Table(keyspace, name, pa.schema([]), (), "")
    as_of = lake.transaction(table, AS_OF_APPLICATION)
    if as_of is None:
        return None
    return {
        "rows": sum(part.rows for part in lake.slices(table)),
        "inexact_rows": lake.transaction(table, INEXACT_APPLICATION) or 0,
        "as_of": format_us(Microseconds(as_of)),
        "behind_seconds": round(seconds_from_us(Microseconds(max(now_us - as_of, 0))), 3),
    }


def read_consumer_status(
    lake: Lake, clock: Clock, settings: Settings
) -> tuple[list[dict[str, Any]], list[StatusAlert]]:
    """The readers of logs: how far behind the clock each is, and whether it has to read what was removed."""
    timeline, sources = Timeline.read(lake), StreamSources(lake, settings)
    now_us, changes = clock.now_us(), cdc_tables.read_table_changes(lake)
    lost = Counter(gap.full_name for gap in gaps.read_log_gaps(lake) if gap.is_open)
    told, matters = [], []
    for each in consumers.read_consumers(lake):
        reads = None
        if sources.of(each.keyspace_name, each.table_name).in_generations:
            reads = timeline.operating(each.position_us + ONE_US)
        gone = reads is not None and reads.is_removed
        name = f"{each.keyspace_name}.{each.table_name}"
        # Rows of the lake's own log never die: the TTL counts for who reads the cluster.
        of_cluster = each.name == consumers.INGEST_CONSUMER
        behind = get_ttl_status((one for one in changes if one.full_name == name), each, now_us) if of_cluster else None
        if behind is not None:
            matters += _lag_alerts(lake, each, behind, now_us)
        told.append(
            {
                "name": each.name,
                "table": name,
                "position": format_us(each.position_us),
                "behind_seconds": round(seconds_from_us(max(now_us - each.position_us, Microseconds(0))), 3),
                "moved_at": format_us(each.updated_at_us),
                "removed": gone,
                "lag": None if behind is None else str(behind.lag),
                "ttl_seconds": None if behind is None or behind.ttl_us is None else seconds_from_us(behind.ttl_us),
                "ttl_share": None if behind is None or behind.share is None else round(behind.share, 3),
                "open_gaps": lost[name],
            }
        )
        if gone and reads is not None:
            said = f"consumer {each.full_name} stands in generation {reads.name}, which was removed with its streams"
            forget = f"cdc-platform consumers forget {each.name} {each.keyspace_name}.{each.table_name}"
            do = f"decide whether the consumer starts again after the lost rows, with: {forget}"
            matters.append(StatusAlert("reads-removed", said, do))
    return told, matters


def _lag_alerts(lake: Lake, reader: Consumer, behind: TtlStatus, now_us: Microseconds) -> list[StatusAlert]:
    """Return what is to be said of a reader of a live cluster's log that falls behind the TTL of its rows."""
    name = f"{reader.keyspace_name}.{reader.table_name}"
    seconds = seconds_from_us(Microseconds(now_us - reader.position_us))
    code = _LAG_CODES.get(behind.lag)
    if code is None or behind.ttl_us is None or behind.share is None:
        return []
    said = (
        f"the log of {name} was read up to {format_us(reader.position_us)}, {seconds:,.0f} s ago, and its rows live "
        f"for {seconds_from_us(behind.ttl_us):,.0f} s"
    )
    if behind.died_us is not None:
        said += f": rows that were written up to {format_us(behind.died_us)} may have died unread"
    cluster = get_mirrored_cluster(lake) or "NAME"
    return [StatusAlert(code, said, f"cdc-platform ingest {cluster} {name}")]


_LAG_CODES = {TtlLag.HALF: "lag-half-ttl", TtlLag.MOST: "lag-near-ttl", TtlLag.DYING: "rows-dying"}
"""What is to be said of each lag; nothing of others."""


def read_expiry_status(lake: Lake, clock: Clock, settings: Settings) -> tuple[dict[str, Any], list[StatusAlert]]:
    """What `expire` would do now, and which generation is the next that may go."""
    plan = lifecycle_expiry.plan_expiry(lake, clock, settings)
    due = [
        each
        for each in plan
        if each.action is ExpiryAction.REMOVE or (each.action is ExpiryAction.MARK and each.mark is None)
    ]
    later = [each for each in plan if each not in due and each.removable_ms is not None]
    following = min(later, key=lambda each: each.removable_ms or 0, default=None)
    told = {
        "to_mark": sum(each.action is ExpiryAction.MARK for each in due),
        "to_remove": sum(each.action is ExpiryAction.REMOVE for each in due),
        "next": following and _planned_facts(following),
    }
    assumed = lifecycle_expiry.plan_assumptions(plan)
    matters = [StatusAlert("unknown-past", f"{each.table} keeps generations: {each.said}", each.do) for each in assumed]
    if get_mirrored_cluster(lake) is not None:
        return told, matters  # what goes, and which tables there are, is the cluster's to say
    if due:
        said = f"{told['to_mark']} generations have expired and are not marked, {told['to_remove']} may be removed"
        matters.append(StatusAlert("expiry-due", said, "cdc-platform expire"))
    if plan and not cdc_tables.are_cdc_tables_known(lake):
        said = "which tables have a CDC log is unknown, so no generation expires"
        do = (
            "register each table that has a log (cdc-platform tables add --help), or state that no table has one "
            "(cdc-platform tables none --help)"
        )
        matters.append(StatusAlert("no-tables", said, do))
    return told, matters


def _planned_facts(each: PlannedGeneration) -> dict[str, Any]:
    return {
        "id": each.id,
        "time": format_ms(each.time_ms),
        "expired": _time_text(each.expired_ms),
        "removable_at": _time_text(each.removable_ms),
        "blocked_by": list(each.blocked_by),
    }


def _time_text(ms: Milliseconds | None) -> str | None:
    return None if ms is None else format_ms(ms)


StatusSection = Callable[[Lake, Clock, Settings], tuple[Any, list[StatusAlert]]]
"""What a section says in plain values, and what it has found to be seen to."""

STATUS_SECTIONS: dict[str, StatusSection] = {
    "ring": read_ring_status,
    "generations": read_generation_status,
    "repair": read_repair_status,
    "inbox": read_join_status,
    "switches": read_switch_status,
    "tables": read_table_status,
    "consumers": read_consumer_status,
    "expiry": read_expiry_status,
    "checks": read_check_status,
}


@dataclass(frozen=True)
class HomeStatus:
    """How a home stands: by section in plain values (None: it could not be read), and what there is to see to."""

    now: str
    sections: dict[str, Any]
    matters: list[StatusAlert]

    @property
    def wrong(self) -> bool:
        """Whether anything is wrong."""
        return any(each.wrong for each in self.matters)

    def facts(self) -> dict[str, Any]:
        """All of it in plain values; what is wrong comes first in `next`."""
        return {
            "now": self.now,
            "wrong": self.wrong,
            **self.sections,
            "next": [each.facts() for each in self.matters],
        }


def read_home_status(lake: Lake, clock: Clock, settings: Settings) -> HomeStatus:
    """Look at a home."""
    sections: dict[str, Any] = {}
    matters: list[StatusAlert] = []
    for name, section in STATUS_SECTIONS.items():
        with track_reads() as read:
            try:
                sections[name], found = section(lake, clock, settings)
            except Exception as error:  # whatever the rows are, the other sections are shown
                cause = find_first_cause(lake, read)
                if cause is None and not isinstance(error, (PlatformError, OSError)):
                    raise
                said = to_one_line(str(error)) if cause is None else f"{cause.complaint} ({to_one_line(str(error))})"
                sections[name], found = None, [StatusAlert("table-unreadable", f"{name}: {said}", "cdc-platform check")]
        matters += found
    known = [(sections[name] or {}).get(what) for name, what in (("ring", "nodes"), ("generations", "known"))]
    if known == [0, 0] and sections["inbox"] == []:
        said = "no node is in the ring and no generation is known"
        cluster = get_mirrored_cluster(lake)
        begin = "let a first node join (cdc-platform bootstrap --help), or import exports (cdc-platform import --help)"
        do = _observe_command(cluster) if cluster else begin
        matters = [each for each in matters if each.wrong or each.code == "only-observed"] + [
            StatusAlert("empty-home", said, do)
        ]
    return HomeStatus(format_us(clock.now_us()), sections, sorted(matters, key=lambda each: not each.wrong))

"""The status of a home as plain values: ring, generations, joins, tables, consumers, expiry, checks, and alerts.

Status reads small tables and Delta's log, never a stream, and needs no JVM. A section that cannot be read does not
stop the others. Each alert has a stable code and a section in docs/status.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

import pyarrow as pa

from cdc_platform.cdclog import IngestLag, gaps, get_ingest_lag, read_ingest_lags
from cdc_platform.checks import OBSERVED_WHOLE
from cdc_platform.clock import (
    DAY_US,
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
    TABLE_TASKS,
    Lake,
    MaintenanceTask,
    find_first_cause,
    get_home_mode,
    get_mirrored_cluster,
    get_registering_home,
    read_maintenance,
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

AlertLevel = Literal["error", "warning", "notice"]
LEVELS: tuple[AlertLevel, ...] = get_args(AlertLevel)
"""The levels of alerts, the most serious first. An error makes `status` exit with 1."""

STATUS_CODES: Mapping[str, AlertLevel] = MappingProxyType(
    {
        "table-unreadable": "error",
        "nothing-operates": "error",
        "no-generation": "notice",
        "not-retrievable": "error",
        "not-exported": "notice",
        "not-described": "notice",
        "join-stuck": "error",
        "join-interrupted": "warning",
        "join-waiting": "notice",
        "step-not-good": "error",
        "switch-overdue": "error",
        "switch-open": "notice",
        "repair-due": "error",
        "repair-blocked": "notice",
        "topology-changing": "warning",
        "left-out": "error",
        "only-observed": "warning",
        "check-failed": "error",
        "check-older": "notice",
        "maintenance-overdue": "warning",
        "never-checked": "notice",
        "reads-removed": "error",
        "nodes-behind": "error",
        "nodes-unknown": "warning",
        "rows-dying": "error",
        "rows-lost": "error",
        "lag-near-ttl": "warning",
        "lag-half-ttl": "notice",
        "log-gap": "notice",
        "expiry-due": "notice",
        "unknown-past": "notice",
        "no-tables": "notice",
        "empty-home": "notice",
    }
)
"""Every code, with the level of its alerts."""


@dataclass(frozen=True)
class StatusAlert:
    """One finding: a sentence, and what resolves it.

    `remedy` is either one command, complete and safe to paste, or advice to a person who has to decide or provide
    something. A command that states a fact or discards data appears only inside advice.
    """

    code: str
    message: str
    remedy: str | None = None

    @property
    def command(self) -> str | None:
        """Return the remedy if it is one command that can be run unchanged."""
        return self.remedy if self.remedy is not None and self.remedy.startswith(PROGRAM_PREFIX) else None

    @property
    def level(self) -> AlertLevel:
        """Return how serious the finding is."""
        return STATUS_CODES[self.code]

    def facts(self) -> dict[str, object]:
        """Return the alert as plain values."""
        return {
            "code": self.code,
            "level": self.level,
            "message": self.message,
            "command": self.command,
            "advice": self.remedy if self.command is None else None,
            "page": f"{_PAGE}#{self.code}",
        }


def read_ring_status(lake: Lake, clock: Clock, settings: Settings) -> tuple[dict[str, Any], list[StatusAlert]]:
    """Return the nodes of the ring, and the nodes that are joining or leaving."""
    known = read_nodes(lake)
    normal = [node for node in known if node.status == STATUS_NORMAL]
    moving = [node for node in known if node.status not in (STATUS_NORMAL, STATUS_LEFT)]
    changing = cluster_changes.read_topology_transition(lake)
    facts = {
        "nodes": len(normal),
        "zero_token_nodes": sum(not node.tokens for node in normal),
        "tokens": sum(len(node.tokens) for node in normal),
        "shards": sum(node.shard_count for node in normal),
        "moving": [{"host_id": str(node.host_id), "status": node.status} for node in moving],
        "changing": changing and {"since": format_us(changing.since_us), "transition": changing.transition},
    }
    return facts, [] if changing is None else [_topology_alert(lake, changing)]


def read_generation_status(lake: Lake, clock: Clock, settings: Settings) -> tuple[dict[str, Any], list[StatusAlert]]:
    """Return the generation that operates, the one that clients see, the next ones, and unreadable ones."""
    timeline = Timeline.read(lake)
    now_us = clock.now_us()
    known = timeline.known
    operating = timeline.operating(now_us)
    later = [generation for generation in known if us_from_ms(generation.time_ms) > now_us]
    visible = [generation for generation in known if generation.published and us_from_ms(generation.time_ms) <= now_us]
    needed = [
        generation for generation in known if generation.time_ms >= (0 if operating is None else operating.time_ms)
    ]
    unread = [generation for generation in needed if generation.state is GenerationState.NOT_RETRIEVABLE]
    nodes = read_node_knowledge(lake, clock, settings)
    facts = {
        "known": len(known),
        "removed": len(timeline.removed),
        "operating": operating and _generation_facts(operating),
        "visible_to_clients": _generation_facts(visible[-1]) if visible else None,
        "next": [_generation_facts(generation) for generation in later],
        "not_retrievable": [_generation_facts(generation) for generation in unread],
        "nodes": nodes
        and {
            "informed": len(nodes.informed),
            "behind": [{"host_id": host, "generation": format_ms(ms)} for host, ms in nodes.behind.items()],
            "unknown": [{"host_id": host, "reason": why} for host, why in nodes.unknown.items()],
        },
    }
    return facts, [
        *([] if known else _no_generation_alerts(lake)),
        *_omission_alerts(lake),
        *_unreadable_alerts(lake, unread),
        *_undescribed_alerts(lake, operating),
        *_nothing_operates_alerts(known, operating, later),
        *_uninformed_alerts(lake, nodes),
    ]


def read_repair_status(lake: Lake, clock: Clock, settings: Settings) -> tuple[dict[str, Any] | None, list[StatusAlert]]:
    """Return whether a new generation is due, by range ends alone; `repair --dry-run` also reads the streams."""
    if (
        not any(node.status == STATUS_NORMAL and node.tokens for node in read_nodes(lake))
        or not Timeline.read(lake).known
    ):
        return None, []
    result = lifecycle_repair.check_newest_generation(lake, strict=settings.repair_strict, streams=False)
    facts = {
        "needed": None if result.undetermined else result.needed,
        "undetermined": result.undetermined,
        "reasons": [{"condition": reason.condition.value, "detail": reason.detail} for reason in result.reasons],
        "blocked_by": list(result.blocked_by),
    }
    if result.blocked_by and result.needed:  # a join is under way, or a node: the ring is not at rest
        return facts, [StatusAlert("repair-blocked", f"a repair may be due; it waits for: {result.blocked_by[0]}")]
    if not result.needed:
        return facts, []
    reasons = "; ".join(f"{reason.condition.value}: {reason.detail}" for reason in result.reasons)
    do = _cluster_repair_advice(lake) or "cdc-platform repair --run"
    return facts, [StatusAlert("repair-due", f"the latest generation does not fit the ring: {reasons}", do)]


def _cluster_repair_advice(lake: Lake) -> str | None:
    """Return how to repair the generations of the live cluster that a lake mirrors; None if it mirrors none."""
    cluster = get_mirrored_cluster(lake)
    return (
        None
        if cluster is None
        else f"on a node of {cluster}: {REPAIR_STREAMS_COMMAND}; then: {_observe_command(cluster)}"
    )


def _observe_command(cluster: str) -> str:
    """Return the command that imports the current state of a cluster."""
    return f"cdc-platform observe {cluster}"


def _topology_alert(lake: Lake, changing: TopologyTransition) -> StatusAlert:
    cluster = get_mirrored_cluster(lake)
    look = "import it again" if cluster is None else _observe_command(cluster)
    message = f"{changing}: the nodes shown are those from before the change"
    return StatusAlert("topology-changing", message, f"wait until the topology is stable, then: {look}")


def _generation_facts(generation: Generation) -> dict[str, Any]:
    return {"id": generation.id, "time": format_ms(generation.time_ms), "state": str(generation.state)}


def _omission_alerts(lake: Lake) -> list[StatusAlert]:
    cluster = get_mirrored_cluster(lake)
    if cluster is None:
        return []
    return [
        StatusAlert(
            "left-out",
            f"skipped since {format_us(item.since_us)} because it is incomplete in the cluster: {item.message}",
            _observe_command(cluster),
        )
        for item in read_omitted_items(lake)
    ]


def _unreadable_alerts(lake: Lake, unread: list[Generation]) -> list[StatusAlert]:
    do = _cluster_repair_advice(lake) or (
        "export its description from the cluster and import it (cdc-platform import --help), or make a new generation: "
        "cdc-platform repair --run"
    )
    return [
        StatusAlert(
            "not-retrievable",
            f"generation {item.name} ({format_ms(item.time_ms)}) is known, and its description is not here: writes "
            "that belong to it are refused",
            do,
        )
        for item in unread
    ]


def _undescribed_alerts(lake: Lake, operating: Generation | None) -> list[StatusAlert]:
    """Return the alert for an operating generation that has client streams and no description."""
    if operating is None or operating.state not in (GenerationState.NOT_EXPORTED, GenerationState.NOT_DESCRIBED):
        return []
    cluster = get_mirrored_cluster(lake)
    table = GENERATION_DESCRIPTIONS_V2.name
    do = _observe_command(cluster) if cluster else f"export {table} and import it (cdc-platform import --help)"
    message = f"generation {operating.name} operates, and "
    if operating.state is GenerationState.NOT_EXPORTED:
        return [StatusAlert("not-exported", f"{message}no table of descriptions was imported", do)]
    return [StatusAlert("not-described", f"{message}the imported descriptions have no row of it", do)]


def _no_generation_alerts(lake: Lake) -> list[StatusAlert]:
    """Return the alert for a ring without any generation.

    A cluster whose tables all use tablets needs no generation.
    """
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
    """Return the alerts for nodes that do not know the operating generation, or may not know it."""
    alerts = []
    cluster = get_mirrored_cluster(lake)
    if nodes is not None and nodes.behind:
        look = (
            "import its cdc_local again (cdc-platform import --help)" if cluster is None else _observe_command(cluster)
        )
        alerts.append(
            StatusAlert("nodes-behind", str(nodes), f"find out from the log of each such node why; then: {look}")
        )
    if nodes is not None and nodes.unknown and cluster is not None:
        hosts = ", ".join(f"{host} ({why})" for host, why in nodes.unknown.items())
        message = f"whether these nodes know the generation that operates is not known: {hosts}"
        alerts.append(StatusAlert("nodes-unknown", message, _observe_command(cluster)))
    return alerts


def _nothing_operates_alerts(
    known: list[Generation], operating: Generation | None, later: list[Generation]
) -> list[StatusAlert]:
    if operating is not None or not known:
        return []
    message = f"no generation operates yet; the first one starts at {format_ms(later[0].time_ms)}: writes are refused"
    return [StatusAlert("nothing-operates", message, "wait until then")]


def read_join_status(lake: Lake, clock: Clock, settings: Settings) -> tuple[list[dict[str, Any]], list[StatusAlert]]:
    """Return the unfinished joins and repairs with the step that each has reached, and alert on failed verdicts."""
    waiting = [join for join in read_join_progress(lake) if join.is_open]
    alerts = [_join_alert(join, clock) for join in waiting]
    if waiting:
        bad = lake.read(VERDICTS, ["generation_id", "step", "said", "door"], [("passed", "=", False)]).to_pylist()
        open_ = {join.generation_id: join.event_id for join in waiting}
        alerts += [
            StatusAlert(
                "step-not-good",
                f"{row['step']} of generation {row['generation_id']}, checked by {row['door']}: {row['said']}",
                f"run the join again: cdc-platform bootstrap --finish {open_[row['generation_id']]}, or withdraw it: "
                f"cdc-platform bootstrap --withdraw {open_[row['generation_id']]}",
            )
            for row in bad
            if row["generation_id"] in open_
        ]
    return [join_progress_facts(join) for join in waiting], alerts


def join_progress_facts(each: JoinProgress) -> dict[str, Any]:
    """Return an event of the inbox as plain values."""
    return {
        "event_id": each.event_id,
        "kind": each.kind,
        "host_id": each.host_id,
        "generation_id": each.generation_id,
        "state": str(each.reached),
        "queued_at": format_us(each.queued_at_us),
        "time": None if each.time_ms is None else format_ms(each.time_ms),
        "since": None if each.timed_at_ms is None else format_ms(each.timed_at_ms),
        "command": each.do if each.is_next else None,
    }


def read_switch_status(lake: Lake, clock: Clock, settings: Settings) -> tuple[list[dict[str, Any]], list[StatusAlert]]:
    """Return the two-phase switches that are not finished."""
    unfinished = switches.read_unfinished_switches(lake)
    facts = [
        {
            "generation_id": switch.generation_id,
            "phase": str(switch.phase),
            "acknowledged": len(switch.leases),
            "participants": len(switch.participants),
            "deadline": format_ms(switch.deadline_ms),
        }
        for switch in unfinished
    ]
    return facts, [_switch_alert(switch, clock) for switch in unfinished]


def _read_only_alerts(lake: Lake) -> list[StatusAlert]:
    observed = get_home_mode(lake).observed
    if observed is None:
        return []
    message = (
        f"nothing is built on this home since {format_us(observed.since_us)}: it is only observed ({observed.reason})"
    )
    return [StatusAlert("only-observed", message, "import what is missing, then run: cdc-platform check")]


def read_check_status(lake: Lake, clock: Clock, settings: Settings) -> tuple[dict[str, Any], list[StatusAlert]]:
    """Return the last result of every check from the CLI or Dagster, the failures, and tables written since."""
    results = check_results.read_check_results(lake)
    failed = [result for result in results if not result.passed]
    newer = check_results.tables_changed_since(
        (result for result in results if result.scope == WHOLE_HOME), read_newest_versions(lake)
    )
    oldest = min(results, key=lambda each: each.judged_at_us, default=None)
    newest = max(results, key=lambda each: each.judged_at_us, default=None)
    facts = {
        "checks": len(results),
        "failed": [
            {
                "invariant": result.invariant,
                "scope": result.scope or None,
                "message": result.message,
                "checked_at": format_us(result.judged_at_us),
                "entry_point": result.entry_point,
            }
            for result in failed
        ],
        "oldest": oldest and format_us(oldest.judged_at_us),
        "newest": newest and format_us(newest.judged_at_us),
        "entry_point": newest and newest.entry_point,
        "judged_by": _group_by_entry_point(results),
        "changed_tables": newer,
    }
    alerts = [*_read_only_alerts(lake), *(_check_alert(result) for result in failed)]
    if not any(result.scope == WHOLE_HOME for result in results):
        if Timeline.read(lake).known or tablets.read_tables_with_stream_sets(lake):
            alerts.append(StatusAlert("never-checked", "this home was never checked as a whole", "cdc-platform check"))
    elif newer:
        names = ", ".join(newer[:3]) + (f" and {len(newer) - 3} more" if len(newer) > 3 else "")
        alerts.append(StatusAlert("check-older", f"written since the last check: {names}", "cdc-platform check"))
    return facts, alerts


_OVERDUE_US = 2 * DAY_US
"""A task of maintenance is overdue this long after it last succeeded: it runs once a day."""


def read_maintenance_status(
    lake: Lake, clock: Clock, settings: Settings
) -> tuple[list[dict[str, Any]], list[StatusAlert]]:
    """Return when each task of maintenance last succeeded, and whether it is overdue; unknown if it never did."""
    is_cluster_home = get_registering_home(lake.location.folder) is not None
    tasks = (*TABLE_TASKS, MaintenanceTask.CHECK) if is_cluster_home else tuple(MaintenanceTask)
    times, now_us = read_maintenance(lake), clock.now_us()
    overdue = [task for task in tasks if task in times and now_us - times[task] > _OVERDUE_US]
    facts = [
        {
            "task": str(task),
            "last": format_us(times[task]) if task in times else None,
            "overdue": task in overdue if task in times else None,
        }
        for task in tasks
    ]
    by_command: dict[str, list[MaintenanceTask]] = {}
    for task in overdue:
        command = "cdc-platform check" if task is MaintenanceTask.CHECK else "cdc-platform home maintain"
        by_command.setdefault(command, []).append(task)
    alerts = []
    for command, group in by_command.items():
        names = ", ".join(str(task).replace("_", " ") for task in group)
        oldest = format_us(min(times[task] for task in group))
        alerts.append(StatusAlert("maintenance-overdue", f"{names}: last success at {oldest}, due every day", command))
    return facts, alerts


def _group_by_entry_point(results: Sequence[check_results.StoredCheckResult]) -> list[dict[str, Any]]:
    """Return the checks that each entry point judged last, the newest entry point first."""
    groups: dict[str, list[check_results.StoredCheckResult]] = {}
    for result in sorted(results, key=lambda stored: stored.judged_at_us, reverse=True):
        groups.setdefault(result.entry_point, []).append(result)
    return [
        {
            "entry_point": entry_point,
            "newest": format_us(group[0].judged_at_us),
            "failed": sum(not result.passed for result in group),
            "checks": [
                {
                    "invariant": result.invariant,
                    "scope": result.scope or None,
                    "passed": result.passed,
                    "checked_at": format_us(result.judged_at_us),
                }
                for result in group
            ],
        }
        for entry_point, group in groups.items()
    ]


def _check_alert(each: check_results.StoredCheckResult) -> StatusAlert:
    of = f" of {each.scope}" if each.scope else ""
    names_one = each.scope and "." not in each.scope
    if each.invariant == OBSERVED_WHOLE and names_one:
        command = _observe_command(each.scope)
    else:
        command = f"cdc-platform check {each.scope}" if names_one else "cdc-platform check"
    return StatusAlert(
        "check-failed", f"{each.invariant}{of} at {format_us(each.judged_at_us)}: {each.message}", command
    )


def _join_alert(each: JoinProgress, clock: Clock) -> StatusAlert:
    name = f"{each.kind} of host {each.host_id} (event {each.event_id})"
    if each.reached not in STAGES_AFTER_TIMESTAMP or each.time_ms is None:
        message = f"{name} waits since {format_us(each.queued_at_us)}, {each.reached}"
        return StatusAlert("join-waiting", message, each.do if each.is_next else None)
    began = us_from_ms(each.time_ms) <= clock.now_us()
    message = f"{name} is not finished: {each.reached}, and its generation {'operates' if began else 'starts'} " + (
        f"since {format_ms(each.time_ms)} without being shown to clients" if began else f"at {format_ms(each.time_ms)}"
    )
    return StatusAlert("join-stuck" if began else "join-interrupted", message, each.do)


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
        message = f"{name} is undecided after its deadline {format_ms(each.deadline_ms)}: {answers}"
        return StatusAlert("switch-overdue", message, f"cdc-platform switch abort {each.generation_id}")
    return StatusAlert(
        "switch-open",
        f"{name} is being prepared until {format_ms(each.deadline_ms)}: {answers}",
        f"cdc-platform switch show {each.generation_id}",
    )


def read_table_status(lake: Lake, clock: Clock, settings: Settings) -> tuple[list[dict[str, Any]], list[StatusAlert]]:
    """Return the CDC-enabled tables with their TTL, their log in the lake, and the source of their streams."""
    sources = StreamSources(lake, settings)
    lags = {lag.full_name: str(lag.status.lag) for lag in read_ingest_lags(lake, clock.now_us())}
    facts = []
    for table in cdc_tables.read_cdc_tables(lake):
        parts = lake.partitions(Table(table.keyspace_name, table.table_name + LOG_SUFFIX, pa.schema([]), (), ""))
        facts.append(
            {
                "table": table.full_name,
                "enabled": table.enabled,
                "ttl_seconds": table.ttl_seconds,
                "streams": "generations"
                if sources.of(table.keyspace_name, table.table_name).in_generations
                else "tablets",
                "lag": lags.get(table.full_name),
                "log_rows": sum(part.rows for part in parts),
                "log_bytes_in_lake": sum(part.bytes for part in parts),
                "copy": _replica_facts(lake, table.keyspace_name, table.table_name, clock.now_us()),
            }
        )
    recorded = gaps.read_log_gaps(lake)
    return facts, [
        *_lost_row_alerts(recorded),
        *(StatusAlert("log-gap", line) for line in gaps.describe_option_gaps(lake, None, recorded)),
    ]


def _lost_row_alerts(recorded: list[LogGap]) -> Iterator[StatusAlert]:
    """Yield an alert per gap in a live cluster's log: an error until a person accepts it, then a notice."""
    for gap in recorded:
        if gap.is_open:
            look = f"cdc-platform consumers gaps {gap.full_name}"
            yield StatusAlert(
                "rows-lost", str(gap), f"decide whether those rows are needed, and accept it if not: {look}"
            )
        elif gap.what != LogLoss.BEFORE_READING:
            yield StatusAlert("log-gap", str(gap))


def _replica_facts(lake: Lake, keyspace: str, name: str, now_us: Microseconds) -> dict[str, Any] | None:
    """Return the rows, inexact rows and age of the copy that `ingest --current` maintains; None without a copy."""
    from cdc_platform.cdclog import AS_OF_APPLICATION, INEXACT_APPLICATION

    table = Table(keyspace, name, pa.schema([]), (), "")
    as_of = lake.transaction(table, AS_OF_APPLICATION)
    if as_of is None:
        return None
    return {
        "rows": sum(part.rows for part in lake.partitions(table)),
        "inexact_rows": lake.transaction(table, INEXACT_APPLICATION) or 0,
        "as_of": format_us(Microseconds(as_of)),
        "behind_seconds": round(seconds_from_us(Microseconds(max(now_us - as_of, 0))), 3),
    }


def read_consumer_status(
    lake: Lake, clock: Clock, settings: Settings
) -> tuple[list[dict[str, Any]], list[StatusAlert]]:
    """Return the lag of each log reader, and whether its position is in a removed generation."""
    timeline, sources = Timeline.read(lake), StreamSources(lake, settings)
    now_us, changes = clock.now_us(), cdc_tables.read_table_changes(lake)
    lost = Counter(gap.full_name for gap in gaps.read_log_gaps(lake) if gap.is_open)
    facts, alerts = [], []
    for consumer in consumers.read_consumers(lake):
        reads = None
        if sources.of(consumer.keyspace_name, consumer.table_name).in_generations:
            reads = timeline.operating(consumer.position_us + ONE_US)
        is_removed = reads is not None and reads.is_removed
        name = f"{consumer.keyspace_name}.{consumer.table_name}"
        # Rows of the lake's own log never expire, so the TTL matters only to a reader of the cluster.
        of_cluster = consumer.name == consumers.INGEST_CONSUMER
        own_changes = (change for change in changes if change.full_name == name)
        lag = get_ingest_lag(consumer.key[1:], own_changes, consumer, now_us) if of_cluster else None
        if lag is not None:
            alerts += _lag_alerts(lake, lag)
        behind = None if lag is None else lag.status
        facts.append(
            {
                "name": consumer.name,
                "table": name,
                "position": format_us(consumer.position_us),
                "behind_seconds": round(seconds_from_us(max(now_us - consumer.position_us, Microseconds(0))), 3),
                "moved_at": format_us(consumer.updated_at_us),
                "removed": is_removed,
                "lag": None if behind is None else str(behind.lag),
                "ttl_seconds": None if behind is None or behind.ttl_us is None else seconds_from_us(behind.ttl_us),
                "ttl_share": None if behind is None or behind.share is None else round(behind.share, 3),
                "open_gaps": lost[name],
            }
        )
        if is_removed and reads is not None:
            message = (
                f"consumer {consumer.full_name} stands in generation {reads.name}, which was removed with its streams"
            )
            forget = f"cdc-platform consumers remove {consumer.name} {consumer.keyspace_name}.{consumer.table_name}"
            do = f"decide whether the consumer starts again after the lost rows, with: {forget}"
            alerts.append(StatusAlert("reads-removed", message, do))
    return facts, alerts


def _lag_alerts(lake: Lake, lag: IngestLag) -> list[StatusAlert]:
    """Return the alert for a reader of a live cluster's log whose lag approaches the TTL of the rows."""
    code = lag.status.lag.code
    cluster = get_mirrored_cluster(lake) or "NAME"
    return [] if code is None else [StatusAlert(code, str(lag), f"cdc-platform ingest {cluster} {lag.full_name}")]


def read_expiry_status(lake: Lake, clock: Clock, settings: Settings) -> tuple[dict[str, Any], list[StatusAlert]]:
    """Return what `expire` would do now, and the next generation that becomes removable."""
    plan = lifecycle_expiry.plan_expiry(lake, clock, settings)
    due = [planned for planned in plan if _is_due(planned)]
    later = [planned for planned in plan if planned.removable_ms is not None and not _is_due(planned)]
    following = min(later, key=lambda each: each.removable_ms or 0, default=None)
    facts = {
        "to_mark": sum(planned.action is ExpiryAction.MARK for planned in due),
        "to_remove": sum(planned.action is ExpiryAction.REMOVE for planned in due),
        "next": following and _planned_facts(following),
    }
    assumed = lifecycle_expiry.plan_assumptions(plan)
    alerts = [
        StatusAlert("unknown-past", f"{assumption.table} keeps generations: {assumption.message}", assumption.remedy)
        for assumption in assumed
    ]
    if get_mirrored_cluster(lake) is not None:
        return facts, alerts  # the cluster decides what expires and which tables exist
    if due:
        message = f"{facts['to_mark']} generations have expired and are not marked, {facts['to_remove']} may be removed"
        alerts.append(StatusAlert("expiry-due", message, "cdc-platform expire"))
    if plan and not cdc_tables.are_cdc_tables_known(lake):
        message = "which tables have a CDC log is unknown, so no generation expires"
        do = (
            "register each table that has a log (cdc-platform tables add --help), or state that no table has one "
            "(cdc-platform tables declare-none --help)"
        )
        alerts.append(StatusAlert("no-tables", message, do))
    return facts, alerts


def _is_due(planned: PlannedGeneration) -> bool:
    """Return True if `expire` would mark or remove the generation now."""
    return planned.action is ExpiryAction.REMOVE or (planned.action is ExpiryAction.MARK and planned.mark is None)


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
"""Reads one section: its plain values, and its alerts."""

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
    "maintenance": read_maintenance_status,
}


@dataclass(frozen=True)
class HomeStatus:
    """The status of a home: the plain values of each section (None if it could not be read), and all alerts."""

    now: str
    sections: dict[str, Any]
    alerts: list[StatusAlert]

    def count(self, level: AlertLevel) -> int:
        """Return the number of alerts of a level."""
        return sum(alert.level == level for alert in self.alerts)

    def facts(self) -> dict[str, Any]:
        """Return the status as plain values; `alerts` lists errors first."""
        return {
            "now": self.now,
            **{f"{level}s": self.count(level) for level in LEVELS},
            "alerts": [alert.facts() for alert in self.alerts],
            **self.sections,
        }


def read_home_status(lake: Lake, clock: Clock, settings: Settings) -> HomeStatus:
    """Return the status of a home."""
    sections: dict[str, Any] = {}
    alerts: list[StatusAlert] = []
    for name, section in STATUS_SECTIONS.items():
        with track_reads() as read:
            try:
                sections[name], section_alerts = section(lake, clock, settings)
            except Exception as error:  # damaged rows may raise anything, and the other sections must still be shown
                cause = find_first_cause(lake, read)
                if cause is None and not isinstance(error, (PlatformError, OSError)):
                    raise
                message = to_one_line(str(error)) if cause is None else f"{cause.complaint} ({to_one_line(str(error))})"
                sections[name], section_alerts = (
                    None,
                    [StatusAlert("table-unreadable", f"{name}: {message}", "cdc-platform check")],
                )
        alerts += section_alerts
    known = [(sections[name] or {}).get(what) for name, what in (("ring", "nodes"), ("generations", "known"))]
    if known == [0, 0] and sections["inbox"] == []:
        message = "no node is in the ring and no generation is known"
        cluster = get_mirrored_cluster(lake)
        begin = "let a first node join (cdc-platform bootstrap --help), or import exports (cdc-platform import --help)"
        do = _observe_command(cluster) if cluster else begin
        alerts = [alert for alert in alerts if alert.level == "error" or alert.code == "only-observed"] + [
            StatusAlert("empty-home", message, do)
        ]
    return HomeStatus(format_us(clock.now_us()), sections, sorted(alerts, key=lambda alert: LEVELS.index(alert.level)))

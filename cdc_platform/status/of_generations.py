"""What `status` says of the ring and its generations, as the nodes know them and as clients are shown them."""

from __future__ import annotations

from typing import Any

from cdc_platform.clock import Clock, format_ms, format_us, us_of
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.mirrors import MEND, cluster_of
from cdc_platform.lake.tables import GENERATION_DESCRIPTIONS_V2
from cdc_platform.lifecycle.expiry.nodes import NodeKnowledge, node_knowledge
from cdc_platform.lifecycle.repair import checkup
from cdc_platform.records import cluster_changes, tablet_sets
from cdc_platform.records.cluster_changes import Changing
from cdc_platform.records.left_out import left_out
from cdc_platform.records.ring import LEFT, NORMAL, members
from cdc_platform.settings import Settings
from cdc_platform.status.matters import Matter
from cdc_platform.timeline import Generation, State, Timeline


def ring(lake: Lake, clock: Clock, settings: Settings) -> tuple[dict[str, Any], list[Matter]]:
    """The nodes of the ring, and those that are on the way in or out."""
    known = members(lake)
    normal = [node for node in known if node.status == NORMAL]
    moving = [node for node in known if node.status not in (NORMAL, LEFT)]
    changing = cluster_changes.changing(lake)
    told = {
        "nodes": len(normal),
        "zero_token_nodes": sum(not node.tokens for node in normal),
        "tokens": sum(len(node.tokens) for node in normal),
        "shards": sum(node.shard_count for node in normal),
        "not_at_rest": [{"host_id": str(node.host_id), "status": node.status} for node in moving],
        "changing": changing and {"since": format_us(changing.since_us), "transition": changing.transition},
    }
    return told, [] if changing is None else [_changing(lake, changing)]


def generations(lake: Lake, clock: Clock, settings: Settings) -> tuple[dict[str, Any], list[Matter]]:
    """Which generation operates, for the nodes and for clients, which come next, and which nobody can read."""
    timeline = Timeline.read(lake)
    now_us = clock.now_us()
    known = timeline.known
    operating = timeline.operating(now_us)
    later = [each for each in known if us_of(each.time_ms) > now_us]
    shown = [each for each in known if each.published and us_of(each.time_ms) <= now_us]
    needed = [each for each in known if each.time_ms >= (0 if operating is None else operating.time_ms)]
    unread = [each for each in needed if each.state is State.NOT_RETRIEVABLE]
    nodes = node_knowledge(lake, clock, settings)
    told = {
        "known": len(known),
        "removed": len(timeline.removed),
        "operating": operating and _told(operating),
        "clients_see": _told(shown[-1]) if shown else None,
        "next": [_told(each) for each in later],
        "not_retrievable": [_told(each) for each in unread],
        "nodes": nodes
        and {
            "know": len(nodes.informed),
            "behind": [{"host_id": host, "names": format_ms(ms)} for host, ms in nodes.behind.items()],
            "unknown": [{"host_id": host, "why": why} for host, why in nodes.unknown.items()],
        },
    }
    return told, [
        *([] if known else _no_generation(lake)),
        *_left_out(lake),
        *_unread(lake, unread),
        *_undescribed(lake, operating),
        *_nothing_operates(known, operating, later),
        *_uninformed(lake, nodes),
    ]


def repair(lake: Lake, clock: Clock, settings: Settings) -> tuple[dict[str, Any] | None, list[Matter]]:
    """Whether a new generation is due, by range ends alone: `repair --dry-run` reads the streams too."""
    if not any(node.status == NORMAL and node.tokens for node in members(lake)) or not Timeline.read(lake).known:
        return None, []
    found = checkup.check(lake, strict=settings.repair_strict, streams=False)
    told = {
        "needed": None if found.cannot_tell else found.needed,
        "cannot_tell": found.cannot_tell,
        "reasons": [{"condition": each.condition.value, "detail": each.detail} for each in found.reasons],
        "blocked_by": list(found.blocked_by),
    }
    if found.blocked_by and found.needed:  # a join is under way, or a node: the ring is not at rest
        return told, [Matter("repair-blocked", f"whether a repair is due is told when {found.blocked_by[0]}")]
    if not found.needed:
        return told, []
    said = "; ".join(f"{each.condition.value}: {each.detail}" for each in found.reasons)
    do = mended_there(lake) or "cdc-platform repair --run"
    return told, [Matter("repair-due", f"the latest generation does not fit the ring: {said}", do)]


def mended_there(lake: Lake) -> str | None:
    """What mends the generations of the live cluster that a lake mirrors; None where it mirrors none."""
    cluster = cluster_of(lake)
    return None if cluster is None else f"on a node of {cluster}: {MEND}; then: {observed_anew(cluster)}"


def observed_anew(cluster: str) -> str:
    """The command that takes in what there is of a cluster by now."""
    return f"cdc-platform observe {cluster}"


def _changing(lake: Lake, changing: Changing) -> Matter:
    cluster = cluster_of(lake)
    look = "import it again" if cluster is None else observed_anew(cluster)
    said = f"{changing}: nodes are as before, and what follows from them cannot be told"
    return Matter("topology-changing", said, f"wait until the topology is stable, then: {look}")


def _told(generation: Generation) -> dict[str, Any]:
    return {"id": generation.id, "time": format_ms(generation.time_ms), "state": str(generation.state)}


def _left_out(lake: Lake) -> list[Matter]:
    cluster = cluster_of(lake)
    if cluster is None:
        return []
    return [
        Matter(
            "left-out",
            f"not taken in since {format_us(each.since_us)}, as it is not whole in the cluster: {each.said}",
            observed_anew(cluster),
        )
        for each in left_out(lake)
    ]


def _unread(lake: Lake, unread: list[Generation]) -> list[Matter]:
    do = mended_there(lake) or (
        "export its description from the cluster and import it (cdc-platform import --help), or make a new generation: "
        "cdc-platform repair --run"
    )
    return [
        Matter(
            "not-retrievable",
            f"generation {each.name} ({format_ms(each.time_ms)}) is known, and its description is not here: writes "
            "that belong to it are refused",
            do,
        )
        for each in unread
    ]


def _undescribed(lake: Lake, operating: Generation | None) -> list[Matter]:
    """Return the matter of an operating generation that has streams for clients and no description."""
    if operating is None or operating.state not in (State.NOT_EXPORTED, State.NOT_DESCRIBED):
        return []
    cluster = cluster_of(lake)
    table = GENERATION_DESCRIPTIONS_V2.name
    do = observed_anew(cluster) if cluster else f"export {table} and import it (cdc-platform import --help)"
    said = f"generation {operating.name} operates, and "
    if operating.state is State.NOT_EXPORTED:
        return [Matter("not-exported", f"{said}no table of descriptions was imported", do)]
    return [Matter("not-described", f"{said}the imported descriptions have no row of it", do)]


def _no_generation(lake: Lake) -> list[Matter]:
    """Return the matter of a ring without any generation; a cluster whose tables all use tablets needs none."""
    if tablet_sets.tables(lake) or not any(node.status == NORMAL for node in members(lake)):
        return []
    cluster = cluster_of(lake)
    do = (
        observed_anew(cluster)
        if cluster
        else (
            "import the cluster's generations (cdc-platform import --help), or make the first one: cdc-platform "
            "repair --run"
        )
    )
    return [Matter("no-generation", "the ring has nodes, and no generation is known here", do)]


def _uninformed(lake: Lake, nodes: NodeKnowledge | None) -> list[Matter]:
    """Return what there is to say of nodes that have not learned of the generation that operates, or may not have."""
    found = []
    cluster = cluster_of(lake)
    if nodes is not None and nodes.behind:
        look = "import its cdc_local again (cdc-platform import --help)" if cluster is None else observed_anew(cluster)
        found.append(Matter("nodes-behind", str(nodes), f"find out from the log of each such node why; then: {look}"))
    if nodes is not None and nodes.unknown and cluster is not None:
        hosts = ", ".join(f"{host} ({why})" for host, why in nodes.unknown.items())
        said = f"whether these nodes know the generation that operates is not known: {hosts}"
        found.append(Matter("nodes-unknown", said, observed_anew(cluster)))
    return found


def _nothing_operates(known: list[Generation], operating: Generation | None, later: list[Generation]) -> list[Matter]:
    if operating is not None or not known:
        return []
    said = f"no generation operates yet; the first one starts at {format_ms(later[0].time_ms)}: writes are refused"
    return [Matter("nothing-operates", said, "wait until then")]

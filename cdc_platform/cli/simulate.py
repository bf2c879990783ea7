"""`cdc-platform simulate`: run random histories of generation switches, and judge each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.output import json_option
from cdc_platform.cli.params import ValidatedParam
from cdc_platform.cli.progress import show_progress
from cdc_platform.cli.render import View, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.clock import (
    DAY_US,
    HOUR_US,
    MILLISECOND_US,
    MINUTE_US,
    SECOND_US,
    Microseconds,
    ms_from_us,
    us_from_ms,
)
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    from cdc_platform.ring import Ring
    from cdc_platform.settings import Settings
    from cdc_platform.simulation import Assumptions, JudgedHistory, NodeSet, SimulationSummary, SmallestValue

_DURATION_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|h)", re.ASCII)
_UNITS_US = {"ms": MILLISECOND_US, "s": SECOND_US, "min": MINUTE_US, "h": HOUR_US}
_LONGEST_US = DAY_US
_MAX_NODES = 1_000
_MAX_SEEDS = 1_000_000


def _read_duration(text: str) -> Microseconds:
    """Return a duration such as `500ms`, `3s`, `2min` in µs. Raises InputError."""
    match = _DURATION_PATTERN.fullmatch(text)
    duration_us = round(float(match[1]) * _UNITS_US[match[2]]) if match else -1
    if not 0 <= duration_us <= _LONGEST_US:
        raise InputError(f"{text!r} is no duration of at most a day, such as 500ms, 3s or 2min")
    return Microseconds(duration_us)


class _DurationParam(ValidatedParam):
    """A duration with its unit, in µs."""

    name = "duration"

    def read(self, text: str) -> Microseconds:
        return _read_duration(text)


class _OutageParam(ValidatedParam):
    """A duration and the number of a node, `120s@2`; as (µs, number)."""

    name = "duration@node"

    def read(self, text: str) -> tuple[Microseconds, int]:
        duration, at, node = text.partition("@")
        if not at or not node.isascii() or not node.isdecimal():
            raise InputError(f"{text!r} is not a duration and the number of a node, such as 120s@2")
        return _read_duration(duration), int(node)


_TIME = _DurationParam()


def _read_scenario(ctx: click.Context, _param: click.Parameter, file: str | None) -> None:
    """Make the values of a TOML file the defaults of the other options.

    Raises:
        InputError: it is not TOML, or has a key that is no option.
    """
    if file is None:
        return
    import tomllib

    from cdc_platform.storage import read_user_text

    try:
        values = tomllib.loads(read_user_text(Path(file)))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file} is not valid TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{file} is nested too deeply; a scenario has plain values and lists of them") from None
    options = {param.name for param in ctx.command.params} - {"scenario", "as_json"}
    unknown = sorted(set(values) - options)
    if unknown:
        known = ", ".join(sorted(name for name in options if name))
        raise InputError(f"{file}: {unknown[0]} is no option of simulate; the keys are {known}")
    ctx.default_map = {**(ctx.default_map or {}), **{key: _as_text(value) for key, value in values.items()}}


def _as_text(value: object) -> object:
    """Return a TOML value as the command line would have it, so that options validate it."""
    if isinstance(value, list):
        return list(map(str, value))
    return value if isinstance(value, bool) else str(value)


@click.command()
@click.option("--scenario", metavar="FILE", expose_value=False, is_eager=True, callback=_read_scenario,
              help="TOML file with values for these options, by their names with underscores.")  # fmt: skip
@click.option("--nodes", type=click.IntRange(1, _MAX_NODES), help="Nodes at the start, not those of the home's ring.")
@click.option(
    "--shards", type=click.IntRange(1, 256), default=2, show_default=True, help="Shards of each --nodes node."
)
@click.option("--join", "joins", type=click.IntRange(0, 100), default=1, show_default=True, help="Nodes that join.")
@click.option("--repair", "repairs", type=click.IntRange(0, 100), default=0, show_default=True, help="Repairs.")
@click.option("--protocol", type=click.Choice(["gossip", "two-phase"]), help="Default: the home's setting.")
@click.option("--format", type=click.Choice(["v1", "v2"]), default="v2", show_default=True, help="Of generations.")
@click.option("--policy", type=click.Choice(["strict", "recent-past"]), help="Default: the home's setting.")
@click.option("--delay", type=_TIME, help="Before a generation starts. Default: 2 ring delays + leeway.")
@click.option("--leeway", type=_TIME, help="How far ahead writes are accepted. Default: the home's setting.")
@click.option("--lease", type=_TIME, help="Lease of a two-phase switch. Default: the home's setting.")
@click.option("--window", type=_TIME, default="30s", show_default=True, help="The reader's confidence window.")
@click.option("--reader", type=click.Choice(["platform", "client"]), default="platform", show_default=True,
              help="Whether it waits for generations that are not published yet.")  # fmt: skip
@click.option("--skew", type=_TIME, default="1s", show_default=True, help="How far any two clocks may be apart.")
@click.option("--latency", type=_TIME, default="50ms", show_default=True, help="Longest delay of a message.")
@click.option("--loss", type=click.FloatRange(0, 0.9), default=0.01, show_default=True, help="Share of lost messages.")
@click.option("--datacenters", type=click.IntRange(1, 10), default=1, show_default=True, help="Nodes alternate.")
@click.option("--distance", type=_TIME, default="0s", show_default=True, help="Added between datacenters.")
@click.option("--read-outage", "read_outage", type=_OutageParam(), multiple=True, metavar="DURATION@NODE",
              help="The node cannot read the tables from the creation of the first generation on.")  # fmt: skip
@click.option("--outages", type=click.IntRange(0, 100), default=0, show_default=True, help="Outages of nodes.")
@click.option("--partitions", type=click.IntRange(0, 100), default=0, show_default=True, help="Of the network.")
@click.option("--crashes", type=click.IntRange(0, 100), default=0, show_default=True, help="At durable steps.")
@click.option("--longest", type=_TIME, default="20s", show_default=True, help="Longest outage or partition.")
@click.option("--spacing", type=_TIME, default="60s", show_default=True, help="Least time between generations.")
@click.option("--late", type=_TIME, default="0s", show_default=True, help="How long nothing can be published.")
@click.option("--ttl", type=_TIME, default="0s", show_default=True, help="TTL of log rows; 0s: none.")
@click.option("--writes", type=click.IntRange(1, 100_000), default=100, show_default=True, help="In each history.")
@click.option("--server-timestamps", is_flag=True, help="No client chooses timestamps.")
@click.option("--seeds", type=click.IntRange(1, _MAX_SEEDS), default=200, show_default=True, help="Histories to run.")
@click.option("--find", type=click.Choice(["delay", "window", "lease", "leeway"]),
              help="Search for the smallest value without a violation.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), help="Run this one history.")
@click.option("--trace", is_flag=True, help="Print the history of --seed, shrunk if it violates a property.")
@click.option("--picture", metavar="FILE.png", help="Draw the history of --seed.")
@json_option
@click.pass_context
@pass_session
def simulate(session: CliSession, ctx: click.Context, as_json: bool, **options: Any) -> None:
    """Simulate generation switches with wrong clocks, lost messages and failing nodes.

    The nodes run the platform's own code in simulated time; a judge that shares no code with them checks every write
    and row. The same seed is the same history. Without --nodes it simulates the home's ring. Writes nothing.
    Exits with 1 if a property does not hold.

    \b
    Example:
      cdc-platform simulate --nodes 5 --join 2 --skew 3s
      cdc-platform simulate --nodes 3 --find delay
      cdc-platform simulate --nodes 4 --delay 6s --seed 3 --trace --picture history.png
    """
    from cdc_platform.simulation import SearchedSetting, draw_plan, find_smallest, judge_plan, shrink_plan, simulate

    if options["seed"] is None and (options["trace"] or options["picture"]):
        raise click.UsageError("--trace and --picture show one history: name it with --seed N")
    if options["seed"] is not None and options["find"]:
        raise click.UsageError("--find tries many histories: use --seeds N, not --seed")
    target = None if options["picture"] is None else _check_picture(session, options["picture"])
    assumptions, nodes = _read_assumptions(session, options)
    seeds = range(options["seeds"])
    if options["find"]:
        with show_progress("searching"):
            smallest = find_smallest(assumptions, SearchedSetting(options["find"]), seeds, nodes)
        document = _smallest_document(smallest)
        write_result(document, as_json=as_json)
        return
    if options["seed"] is None:
        with show_progress("simulating"):
            summary = simulate(assumptions, seeds, nodes)
        write_result(_summary_document(summary), as_json=as_json, views=_SUMMARY_VIEWS)
        ctx.exit(int(summary.broken))
    judged = judge_plan(draw_plan(assumptions, options["seed"]), nodes)
    if judged.verdict.violations and (options["trace"] or target):
        with show_progress("shrinking"):
            judged = shrink_plan(judged.plan, judged.verdict.violations[0].property, nodes)
    if target is not None:
        _write_picture(session, target, judged)
    write_result(_history_document(judged, options), as_json=as_json, views=_HISTORY_VIEWS)
    ctx.exit(int(bool(judged.verdict.violations)))


def _check_picture(session: CliSession, picture: str) -> Path:
    from cdc_platform.storage import atomic

    path = Path(picture)
    if path.suffix.lower() != ".png":
        raise InputError(f"{picture}: the picture is a PNG; give it a name that ends in .png")
    atomic.assert_path_free(path, _home_folder(session))
    return path


def _home_folder(session: CliSession) -> Path | None:
    from cdc_platform.home_location import home_exists

    return session.open_location().path if home_exists(session.home) else None


def _write_picture(session: CliSession, target: Path, judged: JudgedHistory) -> None:
    from cdc_platform.plots import plot_simulation
    from cdc_platform.simulation import get_node_timelines
    from cdc_platform.storage import atomic

    timelines, marks = get_node_timelines(judged)
    with atomic.new_file(target, home=_home_folder(session)) as draft:
        draft.write_bytes(plot_simulation(timelines, marks))


def _read_home(session: CliSession, *, ring_needed: bool) -> tuple[Settings, Ring | None]:
    """Return the home's settings and ring; the defaults and None without a home."""
    from cdc_platform.home_location import home_exists
    from cdc_platform.settings import Settings

    if not home_exists(session.home):
        if ring_needed:
            raise InputError("there is no home whose ring could be simulated; say how many nodes with --nodes N")
        return Settings(), None
    settings = session.open_location().settings
    if not ring_needed:
        return settings, None
    ring = session.open_home().ring()
    if not ring.nodes:
        raise InputError("the home's ring has no nodes; say how many nodes to simulate with --nodes N")
    return settings, ring


def _read_assumptions(session: CliSession, options: Mapping[str, Any]) -> tuple[Assumptions, NodeSet | None]:
    from cdc_platform.generations import SwitchTimes
    from cdc_platform.simulation import Assumptions, Network, Outage, OutageKind, Rules, nodes_from_ring

    settings, ring = _read_home(session, ring_needed=options["nodes"] is None)
    nodes = None if ring is None else nodes_from_ring(ring, options["joins"])
    leeway_ms = _ms(options["leeway"], settings.generation_leeway_ms)
    delay_ms = _ms(options["delay"], settings.ring_delay_ms * 2 + leeway_ms)
    rules = Rules(
        options["protocol"] or ("two-phase" if settings.two_phase_switch else "gossip"),
        options["format"],
        options["policy"] or settings.policy,
        settings.ring_delay_ms,
        delay_ms,
        leeway_ms,
        SwitchTimes(
            leeway_ms,
            _ms(options["lease"], settings.switch_lease_ms),
            settings.switch_deadline_ms,
            settings.switch_margin_ms,
        ),
        options["reader"],
        options["window"],
        options["ttl"],
        expiry_grace_us=MINUTE_US,
        expiry_skew_us=us_from_ms(settings.expiry_skew_margin_ms),
    )
    assumptions = Assumptions(
        rules,
        Network(options["latency"], options["loss"], options["datacenters"], options["distance"]),
        options["nodes"] if ring is None else len(ring.nodes),
        options["shards"],
        options["joins"],
        options["repairs"],
        options["writes"],
        options["skew"],
        options["outages"],
        options["partitions"],
        options["crashes"],
        max(options["longest"], Microseconds(1)),
        late_publication_us=options["late"],
        server_timestamps=options["server_timestamps"],
        spacing_us=options["spacing"],
    )
    fixed = tuple(
        Outage(Microseconds(0), node, OutageKind.UNREADABLE, duration_us)
        for duration_us, node in options["read_outage"]
    )
    return replace(assumptions, fixed_outages=fixed), nodes


def _ms(duration_us: Microseconds | None, default: Any) -> Any:
    return default if duration_us is None else ms_from_us(duration_us)


# What is shown.

_SUMMARY_VIEWS: Mapping[str, View | None] = {
    "properties": View("property violations seeds", "Properties"),
    "figures": View("figure median p99 worst", "Figures of the histories"),
    "refused": View("verdict writes", "Refused writes"),
}
_HISTORY_VIEWS: Mapping[str, View | None] = {
    "violations": View("at property node text", "Violations"),
    "refused": View("verdict writes", "Refused writes"),
    "trace": View("line", "History"),
}
_SHOWN_SEEDS = 5


def _summary_document(summary: SimulationSummary) -> dict[str, object]:
    from cdc_platform.simulation import Property

    return {
        "histories": summary.seeds,
        "generations": summary.generations,
        "accepted_writes": summary.writes,
        "rows_in_wrong_generation": summary.misplaced,
        "rows_apart": summary.apart,
        "rows_missed": summary.missed,
        "properties": [
            {
                "property": property.value,
                "violations": len(summary.failed.get(property, ())),
                "seeds": ", ".join(map(str, summary.failed.get(property, ())[:_SHOWN_SEEDS])) or None,
            }
            for property in Property
        ],
        "figures": _figure_rows(summary),
        "refused": [{"verdict": verdict, "writes": count} for verdict, count in sorted(summary.refused.items())],
    }


_FIGURES = {
    "refused_share": "share of writes refused",
    "outage_seconds": "longest run of refused writes, s",
    "apart_share": "share of rows apart from their base rows",
    "apart_seconds": "time with rows apart, s",
    "missed_rows": "rows missed by the reader",
    "read_lag_seconds": "reader's lag at a switch, s",
    "learn_seconds": "until the last node has learned, s",
}


def _figure_rows(summary: SimulationSummary) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, label in _FIGURES.items():
        spread = summary.spread(name)
        if spread is not None:
            values = {"median": spread.median, "p99": spread.p99, "worst": spread.worst}
            rows.append({"figure": label} | {key: round(value, 3) for key, value in values.items()})
    return rows


def _history_document(judged: JudgedHistory, options: Mapping[str, Any]) -> dict[str, object]:
    from cdc_platform.simulation import describe_history, format_offset

    plan, verdict = judged.plan, judged.verdict
    return {
        "seed": plan.seed,
        "nodes": plan.nodes,
        "operations": len(plan.operations),
        "faults": len(plan.outages) + len(plan.partitions) + len(plan.crashes),
        "accepted_writes": verdict.writes,
        "violations": [
            {
                "at": format_offset(violation.at_us).strip(),
                "property": violation.property.value,
                "node": violation.node,
                "text": violation.text,
            }
            for violation in verdict.violations
        ],
        "refused": [{"verdict": name, "writes": count} for name, count in sorted(verdict.refused.items())],
        "trace": [{"line": line} for line in describe_history(judged)] if options["trace"] else [],
        "picture": options["picture"],
    }


def _smallest_document(smallest: SmallestValue) -> dict[str, object]:
    return {
        "searched": smallest.setting.value,
        "smallest_ms": smallest.value_ms,
        "seeds_without_violation": smallest.seeds,
        "failing_ms": smallest.failing_ms,
        "failing_seed": smallest.failing_seed,
    }

"""`cdc-platform simulate`: run random histories of generation switches, and judge each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.output import json_option
from cdc_platform.cli.params import ValidatedParam
from cdc_platform.cli.progress import show_progress
from cdc_platform.cli.render import View, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.clock import Microseconds
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    from cdc_platform.ring import Ring
    from cdc_platform.settings import Settings
    from cdc_platform.simulation import Assumptions, JudgedHistory, NodeSet, SimulationSummary, SmallestValue

MAX_NODES = 1_000
MAX_JOINS = 100
_MAX_SEEDS = 1_000_000


class _DurationParam(ValidatedParam):
    """A duration with its unit, in µs."""

    name = "duration"

    def read(self, text: str) -> Microseconds:
        from cdc_platform.simulation import parse_duration

        return parse_duration(text)


class _OutageParam(ValidatedParam):
    """A duration and the number of a node, `120s@2`; as (µs, number)."""

    name = "duration@node"

    def read(self, text: str) -> tuple[Microseconds, int]:
        from cdc_platform.simulation import parse_read_outage

        return parse_read_outage(text)


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
    options = {key: option for option in ctx.command.params for key in _scenario_keys(option)}
    unknown = sorted(set(values) - set(options))
    if unknown:
        raise InputError(f"{file}: {unknown[0]} is no option of simulate; the keys are {', '.join(sorted(options))}")
    defaults = {options[key].name: _as_text(options[key], value) for key, value in values.items()}
    ctx.default_map = {**(ctx.default_map or {}), **defaults}


def _scenario_keys(option: click.Parameter) -> set[str]:
    """Return the keys of an option in a scenario: what it is called on the command line, and in the code."""
    if option.name in (None, "scenario", "as_json", "help"):
        return set()
    return {option.name, *(name.removeprefix("--").replace("-", "_") for name in option.opts)}


def _as_text(option: click.Parameter, value: object) -> object:
    """Return a TOML value as the command line would have it, so that options validate it."""
    if option.multiple:
        return list(map(str, value if isinstance(value, list) else [value]))
    return value if isinstance(value, bool) and getattr(option, "is_flag", False) else str(value)


@click.command()
@click.option("--scenario", metavar="FILE", expose_value=False, is_eager=True, callback=_read_scenario,
              help="TOML file with values for these options, by their names with underscores.")  # fmt: skip
@click.option("--nodes", type=click.IntRange(1, MAX_NODES), help="Nodes at the start, not those of the home's ring.")
@click.option(
    "--shards", type=click.IntRange(1, 256), default=2, show_default=True, help="Shards of each --nodes node."
)
@click.option("--join", "joins", type=click.IntRange(0, MAX_JOINS), help="Nodes that join. Default: 1, with tablets 0.")
@click.option("--repair", "repairs", type=click.IntRange(0, MAX_JOINS), default=0, show_default=True, help="Repairs.")
@click.option("--split", "splits", type=click.IntRange(0, 100), help="Splits of tablets. Default: 1 with tablets.")
@click.option("--merge", "merges", type=click.IntRange(0, 100), default=0, show_default=True, help="Merges of tablets.")
@click.option("--protocol", type=click.Choice(["gossip", "two-phase", "tablets"]),
              help="How nodes learn; tablets: a table with tablets. Default: the home's setting.")  # fmt: skip
@click.option("--format", type=click.Choice(["v1", "v2"]), default="v2", show_default=True, help="Of generations.")
@click.option("--policy", type=click.Choice(["strict", "recent-past"]), help="Default: the home's setting.")
@click.option("--delay", type=_TIME, help="Before a generation or stream set starts. Default: 2 ring delays + leeway.")
@click.option("--leeway", type=_TIME, help="How far ahead writes are accepted. Default: the home's setting.")
@click.option("--lease", type=_TIME, help="Lease of a two-phase switch. Default: the home's setting.")
@click.option("--window", type=_TIME, default="30s", show_default=True, help="The reader's confidence window.")
@click.option("--reader", type=click.Choice(["platform", "client"]), default="platform", show_default=True,
              help="Whether it waits for generations that are not published yet.")  # fmt: skip
@click.option("--skew", type=_TIME, default="1s", show_default=True, help="How far any two clocks may be apart.")
@click.option("--latency", type=_TIME, default="50ms", show_default=True, help="Longest delay of a message.")
@click.option("--loss", type=click.FloatRange(0, 0.9), default=0.01, show_default=True, help="Share of lost messages.")
@click.option("--datacenters", type=click.IntRange(1, 10),
              help="Nodes alternate. Default: those of the home's ring, 1 with --nodes.")  # fmt: skip
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
      cdc-platform simulate --nodes 3 --protocol tablets --split 2 --merge 1
    """
    from cdc_platform.simulation import SearchedSetting, draw_plan, find_smallest, judge_plan, shrink_plan, simulate

    if options["seed"] is None and (options["trace"] or options["picture"]):
        raise click.UsageError("--trace and --picture show one history: name it with --seed N")
    if options["seed"] is not None and options["find"]:
        raise click.UsageError("--find tries many histories: use --seeds N, not --seed")
    if options["find"] and ctx.get_parameter_source(options["find"]) is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError(f"--find {options['find']} searches for that value: leave --{options['find']} out")
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
    from cdc_platform.simulation import SimulationRequest

    request = SimulationRequest(**{option.name: options[option.name] for option in fields(SimulationRequest)})
    return request.assume(*_read_home(session, ring_needed=request.nodes is None))


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


def _summary_document(summary: SimulationSummary) -> dict[str, object]:
    return {
        **summary.counts(),
        "properties": summary.property_rows(),
        "figures": summary.figure_rows(),
        "refused": [{"verdict": verdict, "writes": count} for verdict, count in sorted(summary.refused.items())],
    }


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

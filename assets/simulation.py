"""Simulated switches in Dagster: an asset with the figures and the picture of random histories, and its job. No Spark.

It reads the ring and the settings of the home, and writes no table.
"""

import shlex
from collections.abc import Iterator
from dataclasses import fields

import pyarrow as pa
from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetSelection,
    Config,
    Definitions,
    MaterializeResult,
    MetadataValue,
    TableMetadataValue,
    define_asset_job,
    in_process_executor,
)
from pydantic import Field

from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.metastore import read_current_ring
from cdc_platform.plots import plot_simulation
from cdc_platform.ring import Ring
from cdc_platform.simulation import (
    JudgedHistory,
    Property,
    SimulationRequest,
    SimulationSummary,
    draw_plan,
    get_node_timelines,
    judge_plan,
    parse_duration,
    parse_read_outage,
    shrink_plan,
    simulate,
)
from cdc_platform.tables import NODES, Table, column
from cdc_platform_assets.failures import platform_errors_as_failures
from cdc_platform_assets.metadata import Stopwatch, build_plot_metadata, build_rows_preview
from cdc_platform_assets.specs import asset_key_from_table, lineage_edge, table_asset
from cdc_platform_resources.home import HomeResource

SIMULATE_JOB = "simulate_switches"
_MAX_SEEDS = 10_000
_LOG_EVERY = 50

SIMULATED_SWITCHES = Table(
    "platform",
    "simulated_switches",
    pa.schema(
        [
            column("property", pa.string(), "name of a property that has to hold"),
            column("violations", pa.int64(), "histories that violate it"),
            column("seeds", pa.string(), "the first seeds of those histories; null: none", null=True),
        ]
    ),
    keys=("property",),
    comment="The judgement on simulated generation switches",
)
"""Stands for the judgement, which no table stores."""


class SimulationConfig(Config):
    """What to simulate. Durations are text with a unit, such as `500ms`, `3s` or `2min`."""

    nodes: int | None = Field(default=None, description="nodes at the start; default: those of the home's ring")
    shards: int = Field(default=2, description="shards of each node, if `nodes` is given")
    joins: int | None = Field(default=None, description="nodes that join; default: 1, with tablets 0")
    repairs: int = Field(default=0, description="repairs that create a generation")
    splits: int | None = Field(default=None, description="splits of tablets; default: 1 with tablets")
    merges: int = Field(default=0, description="merges of tablets")
    protocol: str | None = Field(default=None, description="gossip, two-phase or tablets; default: the setting")
    delay: str | None = Field(default=None, description="before a generation starts; default: 2 ring delays + leeway")
    window: str = Field(default="30s", description="the reader's confidence window")
    skew: str = Field(default="1s", description="how far any two clocks may be apart")
    loss: float = Field(default=0.01, description="share of lost messages, from 0 to 0.9")
    read_outage: list[str] = Field(default=[], description="such as `120s@1`: node 1 cannot read the tables")
    outages: int = Field(default=0, description="outages of nodes in each history")
    partitions: int = Field(default=0, description="times that the network splits")
    crashes: int = Field(default=0, description="crashes at durable steps")
    longest: str = Field(default="20s", description="longest outage or partition")
    server_timestamps: bool = Field(default=False, description="no client chooses timestamps")
    seeds: int = Field(default=100, description=f"histories to run, at most {_MAX_SEEDS:,}")

    def request(self) -> SimulationRequest:
        """Return the request.

        Raises:
            InputError: a value is not of its form, or `seeds` or `loss` is out of range.
        """
        if not 1 <= self.seeds <= _MAX_SEEDS:
            raise InputError(f"seeds {self.seeds} is out of range; it has to be 1 to {_MAX_SEEDS}")
        given = {
            option.name: getattr(self, option.name)
            for option in fields(SimulationRequest)
            if hasattr(self, option.name)
        }
        for name in ("delay", "window", "skew", "longest"):
            if given[name] is not None:
                given[name] = parse_duration(given[name])
        given["read_outage"] = tuple(map(parse_read_outage, self.read_outage))
        return SimulationRequest(**given)


def _name_check(property: Property) -> str:
    return property.value.replace("-", "_")


@table_asset(
    SIMULATED_SWITCHES,
    group="generations",
    spark=False,
    stored=False,
    deps=[lineage_edge(NODES)],
    code=("cdc_platform.simulation", "cdc_platform.node", "cdc_platform.generations"),
    description="Materializing it runs random histories of generation switches on the home's ring and settings, with "
    "wrong clocks, lost messages and failing nodes, and judges each, as `cdc-platform simulate` does. Its config "
    "in the launchpad says what may happen. It writes no table. The picture is of the first history that violates a "
    "property, shrunk, or else of the first one.",
    checks=[
        AssetCheckSpec(
            _name_check(property), asset=asset_key_from_table(SIMULATED_SWITCHES), description=property.meaning
        )
        for property in Property
    ],
)
def simulated_switches(
    context: AssetExecutionContext, config: SimulationConfig, home: HomeResource
) -> Iterator[MaterializeResult]:
    """Simulate and judge."""
    watch, lake = Stopwatch(), home.lake()
    with platform_errors_as_failures():
        request = config.request()
        assumptions, nodes = request.assume(home.settings(), _read_ring(lake) if config.nodes is None else None)

        def log_progress(seed: int) -> None:
            if (seed + 1) % _LOG_EVERY == 0:
                context.log.info(f"{seed + 1} of {config.seeds} histories")

        summary = simulate(assumptions, range(config.seeds), nodes, log_progress)
        failed = [(seeds[0], property) for property, seeds in summary.failed.items() if seeds]
        shown_seed = min(failed)[0] if failed else 0
        judged = judge_plan(draw_plan(assumptions, shown_seed), nodes)
        if judged.verdict.violations:
            judged = shrink_plan(judged.plan, judged.verdict.violations[0].property, nodes)
    command = shlex.join(["cdc-platform", "simulate", *request.options()])
    yield MaterializeResult(
        metadata={
            "command": f"{command} --seeds {config.seeds}",
            **summary.counts(),
            "properties": _preview(summary.property_rows()),
            "figures": _preview(summary.figure_rows()),
            "refused": build_rows_preview(("verdict", "writes"), sorted(summary.refused.items())),
            "picture": build_plot_metadata(lake, _plot(judged), f"history of seed {shown_seed}"),
            "seconds": MetadataValue.float(watch.seconds()),
        },
        check_results=[_judge(property, summary, command) for property in Property],
    )


def _read_ring(lake: Lake) -> Ring:
    """Return the home's ring.

    Raises:
        InputError: it has no nodes.
    """
    ring = read_current_ring(lake)
    if not ring.nodes:
        raise InputError("the home's ring has no nodes; set `nodes` in the launchpad to simulate some")
    return ring


def _judge(property: Property, summary: SimulationSummary, command: str) -> AssetCheckResult:
    seeds = summary.failed.get(property, [])
    metadata: dict[str, int | str] = {"histories": summary.seeds, "violations": len(seeds)}
    if seeds:
        metadata["command"] = f"{command} --seed {seeds[0]} --trace"
    return AssetCheckResult(
        check_name=_name_check(property),
        passed=not seeds,
        severity=AssetCheckSeverity.ERROR,
        description=f"violated by seed {', '.join(map(str, seeds[:5]))}" if seeds else "holds in every history",
        metadata=metadata,
    )


def _preview(rows: list[dict[str, object]]) -> TableMetadataValue:
    return build_rows_preview([*rows[0]] if rows else [], ([*row.values()] for row in rows))


def _plot(judged: JudgedHistory) -> bytes:
    return plot_simulation(*get_node_timelines(judged))


simulate_switches = define_asset_job(
    SIMULATE_JOB,
    selection=AssetSelection.assets(simulated_switches),
    description="Runs random histories of generation switches on the home's ring, and judges each. Set in the "
    "launchpad what may happen: joins, delays, clocks, losses, outages. Writes no table.",
    executor_def=in_process_executor,
)

DEFINED = Definitions(assets=[simulated_switches], jobs=[simulate_switches])

"""Reading plans of clients: their published figures, windows counted one by one, a home's generations, the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command_line import run
from support.homes.timelines import FIRST_MS, HOUR_MS, SECOND_MS, THIRD_MS, home_of
from support.worlds.switch_lake import ring_of

from cdc_platform.cdclog import BacklogPart
from cdc_platform.cdclog.consumer.clients import CDC_CLIENTS, estimate_backlog, estimate_switch_lag, plan_client_reads
from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError

HALF_A_YEAR_S, NOW = 180 * 86_400, format_ms(Milliseconds(THIRD_MS + HOUR_MS))


def test_the_published_figures_of_a_cold_start() -> None:
    """scylla-cdc-java#1: half a year in windows of 30 s, for four nodes of 256 ranges."""
    plan = plan_client_reads(CDC_CLIENTS["java"], estimate_backlog(16_384, 1_024, HALF_A_YEAR_S, CDC_CLIENTS["java"]))
    assert (plan.windows, plan.requests) == (518_400, 530_841_600)


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=4),
    st.sampled_from(sorted(CDC_CLIENTS)),
)
def test_windows_are_those_that_one_counts(sizes: list[tuple[int, int, int]], name: str) -> None:
    """Each generation is split into windows by itself, and each window is requested once per group."""
    client, windows, requests = CDC_CLIENTS[name], 0, 0
    for seconds, ranges, shards in sizes:
        position_s = 0
        while position_s < seconds:
            position_s, windows = position_s + client.window_s, windows + 1
            requests += ranges * shards if name == "alternator" else ranges
    plan = plan_client_reads(
        client, [BacklogPart(seconds, ranges, ranges * shards) for seconds, ranges, shards in sizes]
    )
    assert (plan.windows, plan.requests) == (windows, requests)


@pytest.mark.parametrize(
    ("name", "groups", "kept"),
    [("go", 8, 8), ("rust", 8, 8), ("java", 1, 1), ("connector", 1, 1), ("alternator", 8, 8)],
)
def test_tablets_are_read_differently(name: str, groups: int, kept: int) -> None:
    """Go and Rust have a reader per tablet; Java has one task for all of a table."""
    plan = plan_client_reads(CDC_CLIENTS[name], [BacklogPart(60, 0, 8)])
    assert (plan.groups, plan.checkpoints) == (groups, kept)


def test_lags_add_up() -> None:
    """The connector: 30 s behind, windows of 30 s, 30 s to see the generation, 60 s between writes of offsets."""
    assert [estimate_switch_lag(CDC_CLIENTS[name]).most_s for name in ("java", "connector")] == [90, 150]
    rows = run("consumers", "lag", "--client", "connector", "--cycle", "10", "--flush", "10", "--json").rows
    assert [(row["client"], row["total_s"]) for row in rows] == [("connector", 80)]
    assert len(run("consumers", "lag", "--json").rows) == len(CDC_CLIENTS)


def test_a_plan_covers_the_generations_that_the_log_reaches_back_to(tmp_path: Path) -> None:
    """A TTL of a day covers all three, one of an hour the newest and the second one's end; Go begins a minute ago."""
    home = home_of(tmp_path, "three")

    def plan(*options: str) -> dict[str, int]:
        return run("--home", home, "--clock", NOW, "consumers", "plan", "ks.t", *options, "--json").json

    # 4, 8 and 12 ranges of two streams each, for an hour each: 120 windows of 30 s.
    full_plan = plan("--client", "java")
    assert (full_plan["generations"], full_plan["windows"], full_plan["requests"]) == (3, 360, 120 * (4 + 8 + 12))
    # The log is as old as its table, whatever the TTL is.
    assert plan("--client", "java", "--ttl", "0")["requests"] == full_plan["requests"]
    short_plan = plan("--client", "java", "--ttl", str(3600 + 90))
    assert (short_plan["generations"], short_plan["windows"], short_plan["requests"]) == (2, 123, 3 * 8 + 120 * 12)
    assert plan("--client", "go")["windows"] == 2
    assert plan("--client", "rust", "--window", "3600")["requests"] == 4 + 8 + 12
    assert (full_plan["checkpoints"], plan("--client", "rust")["checkpoints"]) == (24, 48)
    assert FIRST_MS < SECOND_MS


def test_a_larger_ring_has_the_streams_of_the_forecast(tmp_path: Path) -> None:
    """The plan has as many streams as `expire --forecast` predicts for the newest generation then."""
    home = tmp_path / "home"
    ring_of(Lake(home / "lake"), [1, 2])
    steps = run("--home", home, "expire", "--forecast", "10", "--json").rows
    plan = run("--home", home, "consumers", "plan", "--add-nodes", "10", "--client", "alternator", "--json").json
    assert (plan["streams"], plan["groups"]) == (steps[-1]["num_streams"], steps[-1]["num_streams"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "name one of TABLE, --streams and --add-nodes"),
        (["ks.t", "--streams", "4"], "name one of TABLE"),
        (["ks.t", "--ranges", "4"], "--ranges goes with --streams"),
        (["--streams", "4", "--ranges", "5"], "a range has a stream at least"),
        (["--streams", "4", "--ttl", "0"], "TTL 0 keeps everything"),
        (["--streams", "4", "--window", "0"], "--window"),
    ],
)
def test_invalid_plans_are_refused(options: list[str], why: str) -> None:
    """Nothing to read, two things to read, and impossible sizes are refused."""
    answer = run("consumers", "plan", *options)
    assert (answer.exit_code, why in answer.stderr) == (2, True), answer.stderr


def test_too_many_streams_in_a_query_are_reported() -> None:
    """A server accepts a hundred by default; a range of 128 shards has more."""
    answer = run("consumers", "plan", "--streams", "12800", "--ranges", "100", "--client", "go")
    assert (answer.exit_code, "a query names 128 streams" in answer.stderr) == (0, True)
    with pytest.raises(InputError):
        estimate_backlog(1, 2, 60, CDC_CLIENTS["go"])

"""`simulate`: figures, exit codes, searches, scenarios, traces and pictures, through the whole command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import run
from support.files.export_files import ID, LATER_MS, OTHER_ID, SNAPSHOT, TIME_MS
from support.homes.imported import home_with_generations

from cdc_platform.simulation import Property

SHORT = ("--nodes", "4", "--delay", "6s")
FAILING = 41
"""A seed for which that delay is too short."""


def simulate(tmp_path: Path, *options: object, exit_code: int = 0) -> dict[str, Any]:
    """Return the document of a run without a home."""
    result = run("--home", tmp_path / "none", "simulate", *map(str, options), "--json")
    assert result.exit_code == exit_code, result.stderr
    assert not (tmp_path / "none").exists()
    return json.loads(result.stdout)


def test_every_property_is_listed(tmp_path: Path) -> None:
    """Each property has its number of violations; the exit code is 0 if all hold."""
    document = simulate(tmp_path, "--nodes", "3", "--seeds", "3")
    assert [row["property"] for row in document["properties"]] == [property.value for property in Property]
    assert {row["violations"] for row in document["properties"]} == {0}
    assert document["histories"] == 3
    assert document["accepted_writes"] + sum(row["writes"] for row in document["refused"]) > 250
    assert {"median", "p99", "worst"} < set(document["figures"][0])


def test_a_violation_is_exit_code_1(tmp_path: Path) -> None:
    """The table names the seeds, and `--seed` runs one of them."""
    document = simulate(tmp_path, *SHORT, "--seeds", "42", exit_code=1)
    rows = {row["property"]: row for row in document["properties"]}
    seeds = rows["right-generation"]["seeds"].split(", ")
    assert str(FAILING) in seeds
    single = simulate(tmp_path, *SHORT, "--seed", FAILING, exit_code=1)
    assert "right-generation" in {row["property"] for row in single["violations"]}
    assert single["trace"] == []


def test_a_trace_shows_the_smallest_history(tmp_path: Path) -> None:
    """Shrinking leaves one join, at most two writes and no fault; the trace has the violation at its time."""
    document = simulate(tmp_path, *SHORT, "--seed", FAILING, "--trace", exit_code=1)
    assert (document["operations"], document["faults"]) == (1, 0)
    assert document["accepted_writes"] <= 2
    lines = [row["line"] for row in document["trace"]]
    assert any("VIOLATION of" in line for line in lines)
    assert lines == sorted(lines, key=lambda line: float(line.split()[0]))
    assert any("begins to join" in line for line in lines)


@pytest.mark.parametrize(("seed", "exit_code"), [(FAILING, 1), (1, 0)])
def test_a_picture(tmp_path: Path, seed: int, exit_code: int) -> None:
    """The picture is a PNG, with or without a violation, and never overwrites a file."""
    target = tmp_path / "history.png"
    simulate(tmp_path, *SHORT, "--seed", seed, "--picture", target, exit_code=exit_code)
    assert target.read_bytes().startswith(b"\x89PNG")
    second = run("--home", tmp_path / "none", "simulate", *SHORT, "--seed", str(seed), "--picture", target)
    assert second.exit_code == 2


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("delay", ()),
        ("window", ("--skew", "2s")),
        ("lease", ("--protocol", "two-phase", "--read-outage", "10s@1")),
        ("leeway", ("--skew", "2s")),
    ],
)
def test_the_smallest_value(tmp_path: Path, setting: str, options: tuple[str, ...]) -> None:
    """Half a second less than the found minimum fails, with the named seed."""
    base = ("--nodes", "3", *options)
    result = simulate(tmp_path, *base, "--find", setting, "--seeds", "12")
    assert result["searched"] == setting
    assert result["seeds_without_violation"] == 12
    assert result["failing_ms"] is None or result["smallest_ms"] - result["failing_ms"] == 500
    if result["failing_ms"] is not None and setting in ("delay", "window"):
        value = f"{result['failing_ms']}ms"
        simulate(tmp_path, *base, f"--{setting}", value, "--seed", result["failing_seed"], exit_code=1)


def test_a_scenario_equals_its_options(tmp_path: Path) -> None:
    """A scenario file gives the document of its options; options on the command line take precedence."""
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(
        'nodes = 4\njoin = 2\nskew = "2s"\nloss = 0.05\nread_outage = ["20s@1"]\nserver_timestamps = true\nseeds = 2\n'
    )
    options = "--nodes 4 --join 2 --skew 2s --loss 0.05 --read-outage 20s@1 --server-timestamps --seeds 2"
    assert simulate(tmp_path, "--scenario", scenario) == simulate(tmp_path, *options.split())
    assert simulate(tmp_path, "--scenario", scenario, "--seeds", 1)["histories"] == 1
    scenario.write_text('nodes = 4\njoins = 2\nread_outage = "20s@1"\nseeds = 2\n')
    assert simulate(tmp_path, "--scenario", scenario)["generations"] == 4


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nodse = 3", "nodse"),
        ("nodes = ", "not valid TOML"),
        ("nodes = true", "True"),
        ("nodes = [3]", "[3]"),
        ('skew = "soon"', "soon"),
        ("skew = 3", "'3' is no duration"),
        ('format = "v3"', "v3"),
        ('server_timestamps = "maybe"', "maybe"),
        ("[network]\nloss = 0.1", "network is no option"),
        ('scenario = "other.toml"', "scenario is no option"),
    ],
)
def test_an_invalid_scenario_is_refused(tmp_path: Path, text: str, named: str) -> None:
    """The message names the invalid part."""
    (tmp_path / "scenario.toml").write_text(text)
    result = run("--home", tmp_path / "none", "simulate", "--scenario", tmp_path / "scenario.toml")
    assert result.exit_code == 2
    assert named in result.stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("", "--nodes N"),
        ("--nodes 3 --skew 3", "no duration"),
        ("--nodes 3 --read-outage 120s", "120s@2"),
        ("--nodes 3 --read-outage 120s@9", "node 9 is not in the simulated cluster"),
        ("--nodes 3 --trace", "--seed N"),
        ("--nodes 3 --seed 1 --find delay", "--seeds N"),
        ("--nodes 3 --protocol two-phase --format v1", "needs V2"),
        ("--nodes 3 --protocol two-phase --find delay", "has no delay"),
        ("--nodes 3 --find lease", "has no lease"),
        ("--nodes 3 --protocol tablets --find lease", "tablets has no lease"),
        ("--nodes 3 --protocol tablets --join 1", "joins and repairs create no stream set"),
        ("--nodes 3 --protocol tablets --policy strict", "leave the policy out"),
        ("--nodes 3 --protocol tablets --format v1", "have one format"),
        ("--nodes 3 --split 1", "--protocol tablets"),
        ("--nodes 3 --seed 1 --picture a.jpg", ".png"),
        ("--nodes 0", "0 is not in the range"),
        ("--nodes 1001", "1001 is not in the range"),
        ("--nodes 3 --loss nan", "loss nan is out of range"),
        ("--nodes 3 --skew 24h", "skew 86400 s is out of range"),
        ("--nodes 3 --find window --window 5s", "leave --window out"),
        ("--nodes 3 --protocol two-phase --lease 0s", "not longer than the margin"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: str, named: str) -> None:
    """The options are refused before anything runs."""
    result = run("--home", tmp_path / "none", "simulate", *options.split())
    assert result.exit_code == 2
    assert named in result.stderr


def test_the_ring_and_the_settings_of_the_home(tmp_path: Path) -> None:
    """The home's nodes, policy and protocol apply unless an option differs."""
    home = home_with_generations(tmp_path, {ID: TIME_MS, OTHER_ID: LATER_MS}, ring=json.dumps(SNAPSHOT))
    (home / "settings.toml").write_text('two_phase_switch = true\npolicy = "recent-past"\n')
    result = run("--home", home, "simulate", "--seed", "1", "--trace", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["nodes"] == len(SNAPSHOT)
    assert any("is committed" in row["line"] for row in document["trace"])


def test_tablets_split_and_merge(tmp_path: Path) -> None:
    """By default there is one split; the trace has stream sets, and rows are apart until a set starts."""
    base = ("--nodes", "3", "--protocol", "tablets")
    assert simulate(tmp_path, *base, "--seeds", "2")["generations"] == 2
    document = simulate(tmp_path, *base, "--split", "2", "--merge", "1", "--seeds", "4")
    assert (document["generations"], document["rows_in_wrong_generation"]) == (12, 0)
    assert document["rows_apart"] > 0
    trace = simulate(tmp_path, *base, "--seed", "1", "--trace")["trace"]
    assert any("introduces stream set 1" in row["line"] for row in trace)
    short = simulate(tmp_path, *base, "--split", "2", "--delay", "4500ms", "--seeds", "10", exit_code=1)
    assert short["properties"][0]["violations"] > 0


def test_the_datacenters_of_the_home(tmp_path: Path) -> None:
    """The distance applies between the ring's datacenters; a number of datacenters distributes the nodes."""

    def read_worst_time(*options: object, snapshot: list[dict[str, Any]]) -> float:
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        home = home_with_generations(folder, {ID: TIME_MS, OTHER_ID: LATER_MS}, ring=json.dumps(snapshot))
        result = run("--home", home, "simulate", "--seeds", "3", "--distance", "900ms", *map(str, options), "--json")
        figures = {row["figure"]: row["worst"] for row in json.loads(result.stdout)["figures"]}
        return figures["until the last node has learned, s"]

    three_datacenters = [node | {"datacenter": f"dc{index}"} for index, node in enumerate(SNAPSHOT)]
    one_datacenter = [node | {"datacenter": "dc1"} for node in SNAPSHOT]
    assert read_worst_time(snapshot=three_datacenters) > read_worst_time(snapshot=one_datacenter)
    assert read_worst_time("--datacenters", "2", snapshot=one_datacenter) > read_worst_time(snapshot=one_datacenter)

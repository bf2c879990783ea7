"""Simulated switches in Dagster: pictures and figures of the home's ring, failed checks, refused config."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetCheckEvaluation, ExecuteInProcessResult
from support.command_line import run
from support.worlds.rehearsal import QUIET, Rehearsal, failures
from support.worlds.switch_lake import ring_of

from cdc_platform.definitions import defs
from cdc_platform.errors import InputError
from cdc_platform.settings import Settings
from cdc_platform.simulation import Property
from cdc_platform_assets.simulation import SIMULATE_JOB, SimulationConfig

OP = "platform__simulated_switches"


def materialize(rehearsal: Rehearsal, **config: object) -> ExecuteInProcessResult:
    """Run the job with this config of the launchpad."""
    return defs.resolve_job_def(SIMULATE_JOB).execute_in_process(
        run_config=QUIET | {"ops": {OP: {"config": config}}}, instance=rehearsal.instance, raise_on_error=False
    )


def metadata(result: ExecuteInProcessResult) -> dict[str, Any]:
    """Return the metadata of the materialization as plain values."""
    (event,) = result.asset_materializations_for_node(OP)
    return {name: value.value for name, value in event.metadata.items()}


def checks(result: ExecuteInProcessResult) -> dict[str, AssetCheckEvaluation]:
    """Return the results of the checks by name."""
    return {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}


def test_the_ring_of_the_home_is_simulated(rehearsal: Rehearsal, tmp_path: Path) -> None:
    """Every property is a check that passes; the picture is a file, and the command gives the same figures."""
    ring_of(rehearsal.lake, (1, 2, 3))
    result = materialize(rehearsal, joins=2, seeds=3, read_outage=["5s@1"])
    assert result.success, failures(result)
    values = metadata(result)
    assert (values["histories"], values["generations"]) == (3, 6)
    assert {name: check.passed for name, check in checks(result).items()} == {
        property.value.replace("-", "_"): True for property in Property
    }
    (picture,) = re.findall(r"`(.*\.png)`", values["picture"])
    assert Path(picture).read_bytes().startswith(b"\x89PNG")
    words = values["command"].split()
    assert words[:2] == ["cdc-platform", "simulate"]
    printed = run("--home", tmp_path / "home", *words[1:])
    assert printed.exit_code == 0, printed.stderr
    assert f"accepted writes           {values['accepted_writes']:,}" in printed.stdout


def test_a_violated_property_is_a_failed_check(rehearsal: Rehearsal, tmp_path: Path) -> None:
    """The check names the seeds and a command that shows one; the run itself succeeds."""
    result = materialize(rehearsal, nodes=4, delay="5s", seeds=12)
    assert result.success, failures(result)
    broken = {name: check for name, check in checks(result).items() if not check.passed}
    assert "right_generation" in broken
    check = broken["right_generation"]
    command = str(check.metadata["command"].value)
    assert f"violated by seed {command.split()[-2]}" in (check.description or "")
    result_of_command = run("--home", tmp_path / "home", *command.split()[1:])
    assert result_of_command.exit_code == 1
    assert "VIOLATION of" in result_of_command.stdout


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"nodes": 3, "delay": "soon"}, "'soon' is no duration"),
        ({"nodes": 3, "seeds": 0}, "seeds 0 is out of range"),
        ({"nodes": 0}, "nodes 0 is out of range"),
        ({"nodes": 3, "loss": 1.5}, "loss 1.5 is out of range"),
        ({"nodes": 3, "protocol": "carrier-pigeon"}, "none of gossip, two-phase, tablets"),
        ({"nodes": 3, "read_outage": ["5s@7"]}, "node 7 is not in the simulated cluster"),
        ({"nodes": 3, "protocol": "tablets", "joins": 1}, "joins and repairs create no stream set"),
    ],
)
def test_invalid_config_is_refused(config: dict[str, Any], named: str) -> None:
    """The error is one line that names the value."""
    with pytest.raises(InputError, match=named):
        SimulationConfig(**config).request().assume(Settings(), None)


def test_a_home_without_nodes_is_refused(rehearsal: Rehearsal) -> None:
    """The step fails with the name of the missing config, and is not retried."""
    result = materialize(rehearsal)
    assert not result.success
    (failure,) = failures(result)
    assert "set `nodes` in the launchpad" in failure

"""The code location: it loads without Java in both possible ways, and its definitions match the snapshot.

For an intended change `python tests/test_definitions.py` writes the snapshot again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetSpec, FreshnessPolicy
from dagster._core.definitions.freshness import TimeWindowFreshnessPolicy

from cdc_platform.checks import judge
from cdc_platform.checks.invariants import INVARIANTS_BY_NAME
from cdc_platform.definitions import defs
from cdc_platform.home_location import HOME_VARIABLE

ROOT = Path(__file__).resolve().parent.parent
SNAPSHOT = Path(__file__).resolve().parent / "data" / "definitions.json"
READ = {
    *("platform/generations", "platform/cdc_tables"),
    *("platform/ring_before_join", "platform/rewrite_decisions"),
}
"""The tables that are shown and that no asset creates."""
LOADERS = {
    "workspace": ["-w", str(ROOT / "workspace.yaml")],
    "module": ["-m", "cdc_platform.definitions", "-d", str(ROOT)],
}
_QUERY = """{
  repositoriesOrError { ... on PythonError { message } ... on RepositoryConnection { nodes {
    name
    jobs { name description }
    sensors { name sensorState { status } minIntervalSeconds targets { pipelineName } }
    schedules { name scheduleState { status } cronSchedule pipelineName }
    assetNodes {
      assetKey { path } groupName description kinds pools owners { ... on TeamAssetOwner { team } }
      dependencyKeys { path } partitionDefinition { name type }
      assetChecksOrError { ... on AssetChecks { checks { name blocking description } } }
    }
  } } }
}"""


def snapshot() -> dict[str, Any]:
    """Return everything that is defined, by name."""
    graph = defs.resolve_asset_graph()
    checks: dict[str, list[str]] = {}
    for check in sorted(graph.asset_check_keys, key=lambda key: (key.asset_key.path, key.name)):
        spec = graph.get_check_spec(check)
        kind = "blocks" if spec.blocking else "warns"
        checks.setdefault(check.asset_key.to_user_string(), []).append(f"{check.name} ({kind})")
    assets = {spec.key.to_user_string(): describe(spec) for spec in defs.resolve_all_asset_specs()}
    for name, asset in assets.items():
        asset["checks"] = checks.get(name, [])
    repository = defs.get_repository_def()
    return {
        "assets": dict(sorted(assets.items())),
        "jobs": {
            job.name: sorted(key.to_user_string() for key in job.asset_layer.selected_asset_keys)
            for job in sorted(repository.get_all_jobs(), key=lambda job: job.name)
            if not job.name.startswith("__")
        },
        "sensors": {
            sensor.name: {
                "jobs": [target.job_name for target in sensor.targets],
                "status": sensor.default_status.value,
            }
            for sensor in repository.sensor_defs
        },
        "schedules": {
            schedule.name: {
                "job": schedule.job_name,
                "cron": str(schedule.cron_schedule),
                "status": schedule.default_status.value,
            }
            for schedule in repository.schedule_defs
        },
        "resources": sorted(name for name in repository.get_top_level_resources() if name != "io_manager"),
    }


def describe(spec: AssetSpec) -> dict[str, Any]:
    """Return the attributes of an asset."""
    partitions = spec.partitions_def
    return {
        "group": spec.group_name,
        "owners": list(spec.owners),
        "kinds": sorted(spec.kinds),
        "freshness": None if spec.freshness_policy is None else freshness_windows(spec.freshness_policy),
        "deps": sorted(dep.asset_key.to_user_string() for dep in spec.deps),
        "partitions": getattr(partitions, "name", None),
        "columns": [column.name for column in spec.metadata["dagster/column_schema"].columns],
    }


def freshness_windows(policy: FreshnessPolicy) -> list[str]:
    """Return the times after which an asset is reported as late and as too late."""
    assert isinstance(policy, TimeWindowFreshnessPolicy)
    late = policy.warn_window
    assert late is not None
    return [str(late.to_timedelta()), str(policy.fail_window.to_timedelta())]


def connected_assets() -> dict[str, frozenset[str]]:
    """Return the assets that each asset is connected to by edges in either direction, directly or indirectly."""
    graph = defs.resolve_asset_graph()
    edges = {key: {*graph.get(key).parent_keys, *graph.get(key).child_keys} for key in graph.get_all_asset_keys()}
    components: dict[str, frozenset[str]] = {}
    for start in edges:
        component, waiting = {start}, [start]
        while waiting:
            waiting += (new := edges[waiting.pop()] - component)
            component |= new
        components[start.to_user_string()] = frozenset(key.to_user_string() for key in component)
    return components


def test_no_group_is_an_island_without_a_reason() -> None:
    """Every asset is connected to the published generations, or its description explains why no edge leads there."""
    graph, groups = connected_assets(), {}
    specs = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}
    for name, spec in specs.items():
        groups.setdefault(spec.group_name, set()).add(name)
        apart = "system_distributed/cdc_generation_timestamps" not in graph[name]
        assert not apart or "No edge leads" in (spec.description or ""), name
    for group, members in groups.items():
        others = set().union(*(graph[name] for name in members)) - members
        reasons = ["No edge leads" in (specs[name].description or "") for name in members]
        assert others or all(reasons), group


def test_lineage_has_the_expected_edges() -> None:
    """The lineage leads from V1 to V2 by the rewrite, from streams to logs, and from the ring to its generation."""
    graph = defs.resolve_asset_graph()
    parents = {
        key.to_user_string(): {parent.to_user_string() for parent in graph.get(key).parent_keys}
        for key in graph.get_all_asset_keys()
    }
    old = {f"system_distributed/{name}" for name in ("cdc_generation_descriptions", "cdc_streams_descriptions")}
    assert parents["platform/rewrite_decisions"] == old
    for name in ("cdc_streams_descriptions_v2", "cdc_generation_timestamps"):
        assert "platform/rewrite_decisions" in parents[f"system_distributed/{name}"]
    streams = {"system_distributed/cdc_streams_descriptions_v2", "system/cdc_timestamps"}
    assert parents["platform/cdc_log"] == streams | {"platform/logged_writes"}
    assert parents["platform/rebuilt_tables"] == {"platform/cdc_log"}
    assert "platform/ring_before_join" in parents["platform/topology_descriptions"]


def test_regular_assets_have_a_freshness_policy() -> None:
    """Observed clusters, ingested logs, hourly copies and audits have a freshness policy; work on demand has none."""
    rhythm = {spec.key.to_user_string() for spec in defs.resolve_all_asset_specs() if spec.freshness_policy is not None}
    assert rhythm == {f"platform/{name}" for name in ("observed_cluster", "ingested_log", "consumed_hours", "tables")}


def test_asset_checks_are_described_as_in_the_models() -> None:
    """Each check is described as in pandera's model of summaries, and none is missing."""
    of_summaries = {check.name: check.description for check in judge.summary_model(tuple(INVARIANTS_BY_NAME)).checks}
    graph = defs.resolve_asset_graph()
    described = {check.name: graph.get_check_spec(check).description for check in graph.asset_check_keys}
    assert {name: described.get(name) for name in of_summaries} == of_summaries


def test_definitions_match_the_snapshot() -> None:
    """Assets, checks, jobs, sensors, dependencies and columns match the snapshot."""
    assert snapshot() == json.loads(SNAPSHOT.read_text(encoding="utf-8"))


def test_everything_is_described_owned_and_grouped() -> None:
    """Every asset in the UI has a description, an owner, a group, and a description of each column."""
    for spec in defs.resolve_all_asset_specs():
        assert len(spec.description or "") > 40, spec.key
        assert spec.owners, spec.key
        assert spec.group_name not in (None, "default"), spec.key
        assert spec.kinds, spec.key
        assert all(column.description for column in spec.metadata["dagster/column_schema"].columns), spec.key
    graph = defs.resolve_asset_graph()
    assert all(graph.get_check_spec(check).description for check in graph.asset_check_keys)
    repository = defs.get_repository_def()
    assert all(job.description for job in repository.get_all_jobs() if not job.name.startswith("__"))
    assert all(sensor.description for sensor in repository.sensor_defs)
    assert all(schedule.description for schedule in repository.schedule_defs)


def test_every_table_has_its_own_pool_and_retries() -> None:
    """Each table has its own pool, so that no two steps write to it at once, and a retry policy for lost races."""
    pools = {}
    for asset in defs.resolve_asset_graph().assets_defs:
        if asset.keys and asset.is_executable:
            assert asset.op.pool is not None
            assert asset.op.retry_policy is not None
            pools[asset.op.pool] = asset.key.to_user_string()
    materialized = {spec.key.to_user_string() for spec in defs.resolve_all_asset_specs()} - READ
    assert pools == {name: name for name in materialized}


@pytest.mark.parametrize(
    ("settings", "owners"),
    [
        ('owners = ["team:shop", "ada@example.com"]', [["team:shop", "ada@example.com"]]),
        ("", [["team:cdc"]]),
        ("owners = 7", [["team:cdc"]]),
    ],
)
def test_owners_come_from_the_settings(settings: str, owners: list[list[str]], tmp_path: Path) -> None:
    """Every asset has the owners of the settings; the load survives unreadable settings and creates no home."""
    (tmp_path / "settings.toml").write_text(settings, encoding="utf-8")
    program = (
        "import json; from cdc_platform.definitions import defs; "
        "print(json.dumps([list(spec.owners) for spec in defs.resolve_all_asset_specs()]))"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {HOME_VARIABLE: str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    owner_lists = json.loads(process.stdout)
    assert [names for number, names in enumerate(owner_lists) if names not in owner_lists[:number]] == owners
    assert ("owners: Input should be a valid tuple" in process.stderr) == (settings == "owners = 7")
    assert [path.name for path in tmp_path.iterdir()] == ["settings.toml"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Load the code location in each way on a machine without Java; return what Dagster sees."""
    # Each has its own home: two processes that create the databases of one home at once would conflict.
    homes = {name: tmp_path_factory.mktemp("dagster") for name in LOADERS}
    for home in homes.values():
        (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    bare = {name: value for name, value in os.environ.items() if name not in {"PATH", "JAVA_HOME", HOME_VARIABLE}}
    runs = {
        name: subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from dagster_graphql.cli import main; main()",
                *arguments,
                "-t",
                _QUERY,
                "-o",
                str(homes[name] / "answer"),
            ],
            cwd=homes[name],
            env=bare | {"DAGSTER_HOME": str(homes[name]), "PATH": "/nowhere"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, arguments in LOADERS.items()
    }
    repositories = {}
    for name, run in runs.items():
        _, error = run.communicate(timeout=120)
        assert run.returncode == 0, error
        repositories[name] = json.loads((homes[name] / "answer").read_text(encoding="utf-8"))["data"][
            "repositoriesOrError"
        ]
    return repositories


@pytest.mark.long("Dagster loads the code location twice, in processes of their own")
def test_both_ways_of_loading_agree(loaded: dict[str, Any]) -> None:
    """The workspace file and the module give the same definitions, without Java."""
    assert "message" not in loaded["workspace"], loaded["workspace"]
    assert loaded["workspace"] == loaded["module"]


def test_dagster_sees_what_is_defined(loaded: dict[str, Any]) -> None:
    """Dagster's responses match the snapshot, including the active sensors and schedules."""
    (location,) = loaded["workspace"]["nodes"]
    assets = {"/".join(asset["assetKey"]["path"]): asset for asset in location["assetNodes"]}
    expected = snapshot()
    assert set(assets) == set(expected["assets"])
    for name, asset in assets.items():
        assert asset["groupName"] == expected["assets"][name]["group"]
        assert sorted("/".join(key["path"]) for key in asset["dependencyKeys"]) == expected["assets"][name]["deps"]
        assert asset["pools"] == ([] if name in READ else [name])
    assert {job["name"] for job in location["jobs"]} >= set(expected["jobs"])
    sensors = {sensor["name"]: sensor["sensorState"]["status"] for sensor in location["sensors"]}
    assert sensors == {name: sensor["status"] for name, sensor in expected["sensors"].items()}
    schedules = {schedule["name"]: schedule["scheduleState"]["status"] for schedule in location["schedules"]}
    assert schedules == {name: schedule["status"] for name, schedule in expected["schedules"].items()}


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(snapshot(), indent=2) + "\n", encoding="utf-8")

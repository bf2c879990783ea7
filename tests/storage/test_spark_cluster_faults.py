"""Faults among a cluster's workers, and between them and the store, lose no row and double none.

The cluster is that of `test_spark_cluster_with_store`; the faults are in its S3 server, in a worker's clock and in a
worker's files.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.processes.clocks import COMPILERS, clock_off_by
from support.read_logs import schema
from support.spark.twins import CLIENT, CLOCK, Twins, assert_appended, files_of, log_in_a_store
from support.store.profiles import INSTEAD_OF
from support.store.s3 import FAULTS, KEY, SECRET

from cdc_platform.cdclog import log_table
from cdc_platform.delta import Lake
from cdc_platform.spark import get_worker_archive
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2

if TYPE_CHECKING:
    from support.spark.driven import Cluster
    from support.store.s3 import S3

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.grid("failures of a Spark cluster", 1)]
WITH_HOME = ("-m", "cdc_platform", "--clock", CLOCK, "--home")
_DELAY_SECONDS = 25
"""Long enough for a second attempt, which Spark starts after some seconds, to end first."""


def test_second_attempt_of_a_join_task(cluster: Cluster, s3_process: S3, tmp_path: Path) -> None:
    """The store delays one attempt: both write their file, the commit names one, and each row exists once."""
    twins = Twins(f"{s3_process.bucket()}/join", tmp_path)
    folder = Lake(f"{twins.address}/lake").path(GENERATION_DESCRIPTIONS_V2)
    before = len(cluster.standalone.second_attempts())
    cluster.gives({}, {})
    s3_process.is_slow(folder, _DELAY_SECONDS)
    cluster.ends(cluster.start(*twins.join, at=tmp_path))
    assert len(cluster.standalone.second_attempts()) > before
    twins.assert_same()
    assert files_of(twins.address, GENERATION_DESCRIPTIONS_V2) == (2, 1)


def test_second_attempt_of_an_append_task(cluster: Cluster, s3_process: S3, tmp_path: Path) -> None:
    """This resembles the join, with a delay of one of two tasks."""
    address = log_in_a_store(f"{s3_process.bucket()}/log", tmp_path)
    table = log_table(schema(Lake(f"{address}/lake")))
    before = len(cluster.standalone.second_attempts())
    cluster.gives({}, {})
    s3_process.is_slow(Lake(f"{address}/lake").path(table), _DELAY_SECONDS)
    cluster.ends(cluster.start(CLIENT, "append", address, "2"))
    assert len(cluster.standalone.second_attempts()) > before
    assert_appended(address)
    written, named = files_of(address, table)
    assert written == named + 1


def test_failure_of_a_tenth_of_worker_requests(cluster: Cluster, s3_process: S3, tmp_path: Path) -> None:
    """A join, an append of sixty files and an audit complete despite refusals, cuts and delays."""
    twins = Twins(f"{s3_process.bucket()}/join", tmp_path / "join")
    address = log_in_a_store(f"{s3_process.bucket()}/log", tmp_path)
    cluster.gives({}, {})
    cluster.finds("faulty", "faulty")
    before = s3_process.counts().get(FAULTS, 0)
    cluster.ends(cluster.start(*twins.join, at=tmp_path / "join"))
    attempts_before = len(cluster.standalone.further_attempts())
    cluster.ends(cluster.start(CLIENT, "append", address, "60"))
    further_attempts = len(cluster.standalone.further_attempts()) - attempts_before
    cluster.ends(cluster.start("-m", "cdc_platform", "--home", twins.address, "--clock", CLOCK, "check", "--deep"))
    assert s3_process.counts()[FAULTS] > before
    twins.assert_same()
    assert_appended(address)
    written, named = files_of(address, log_table(schema(Lake(f"{address}/lake"))))
    assert named == 60
    assert named <= written <= named + further_attempts  # a retried task may have written a file that no commit names


def test_store_without_access_for_workers_is_one_line(cluster: Cluster, s3_process: S3, tmp_path: Path) -> None:
    """One line has the store and its response, for writes and reads; afterwards everything works."""
    twins = Twins(f"{s3_process.bucket()}/join", tmp_path)
    cluster.gives({}, {})
    cluster.finds("down", "down")
    message = cluster.refused(cluster.start(*twins.join, at=tmp_path))
    assert message.startswith(
        f"error: {twins.address.rpartition('/')[0]} does not respond like an object store (503 "
    ), message
    cluster.finds("plain", "plain")
    cluster.ends(cluster.start(*twins.join, at=tmp_path))
    twins.assert_same()
    cluster.finds("expired", "expired")
    check = ("-m", "cdc_platform", "--home", twins.address, "--clock", CLOCK, "check")
    message = cluster.refused(cluster.start(*check))
    assert f"{twins.address.rpartition('/')[0]} does not respond like an object store (403 " in message


def test_other_worker_completes_work_after_refusal(cluster: Cluster, s3_process: S3, tmp_path: Path) -> None:
    """One worker's credentials have expired: a join, an append and an audit succeed, and doctor names it."""
    twins = Twins(f"{s3_process.bucket()}/join", tmp_path / "join")
    address = log_in_a_store(f"{s3_process.bucket()}/log", tmp_path)
    cluster.standalone.give(s3_process.environment("expired"), {})
    bad = cluster.standalone.workers[0]

    def ran_task(command: tuple[str | Path, ...]) -> bool:
        """Run a command that must succeed, and return True if the bad worker got a task."""
        before = bad.count(" Running task ")
        cluster.ends(cluster.start(*command, at=tmp_path / "join"))
        return bad.count(" Running task ") > before

    for command in (twins.join, (CLIENT, "append", address, "60")):
        # After two failures Spark may exclude the worker.
        assert ran_task(command) or cluster.standalone.excludes_one()
    # An audit of so little is one task, which either worker may get.
    assert any(ran_task((*WITH_HOME, twins.address, "check", "--deep")) for _ in range(10))
    twins.assert_same()
    assert_appended(address)
    (failed,) = failed_checks(cluster, twins.address)
    assert failed["check"].startswith("lake on ")
    assert "403" in failed["message"]


def test_doctor_names_missing_and_outdated_packages_of_a_worker(cluster: Cluster, logged: str) -> None:
    """One of the packages sent to it is deleted and one has another version: one line with the remedy."""
    cluster.gives({}, {})
    worker = cluster.standalone.replace(cluster.standalone.workers[0])
    worker.await_executor()
    for packages in (worker.folder / "work").glob("app-*/*/environment/packages"):
        metadata = next(packages.glob("deltalake-*.dist-info")) / "METADATA"
        metadata.write_text(re.sub(r"(?m)^Version: .*$", "Version: 0.1", metadata.read_text(encoding="utf-8")))
        for package in [*packages.glob("pyarrow"), *packages.glob("pyarrow-*.dist-info")]:
            shutil.rmtree(package)
    (bad,) = failed_checks(cluster, logged)
    expected = get_worker_archive().packages
    assert bad["check"].startswith("packages on ")
    assert bad["message"] == (
        f"deltalake is 0.1, expected {expected['deltalake']}; pyarrow is missing, expected {expected['pyarrow']}"
    )
    assert "unset PYSPARK_PYTHON" in bad["remedy"]
    cluster.standalone.replace(worker)


@pytest.mark.skipif(not COMPILERS, reason="a clock that is off is made by a C compiler (cc)")
def test_doctor_names_a_worker_with_a_wrong_clock(
    cluster: Cluster, logged: str, s3_process: S3, tmp_path: Path
) -> None:
    """It is off by an hour, so S3 refuses its requests, too; both are one line each."""
    cluster.gives(clock_off_by(3600, tmp_path) | s3_process.environment("skewed"), {})
    failed = failed_checks(cluster, logged)
    assert [check["check"].partition(" on ")[0] for check in failed] == ["lake", "clock"]
    assert "RequestTimeTooSkewed" in failed[0]["message"]
    match = re.fullmatch(r"off by (\d+) s at least", failed[1]["message"])
    assert match is not None
    assert 3500 < int(match[1]) <= 3600
    assert "NTP" in failed[1]["remedy"]


def test_profile_is_resolved_on_the_worker(cluster: Cluster, logged: str, s3_process: S3, tmp_path: Path) -> None:
    """A worker without boto3 or without the files is named by doctor and by a join; with both, all works."""
    twins = Twins(f"{s3_process.bucket()}/join", tmp_path / "join")
    with_boto3, without_boto3 = copy_profile_packages(tmp_path / "with boto3"), tmp_path / "without"
    without_boto3.mkdir()
    variables = profile_environment(tmp_path)
    cluster.gives(variables | {"PYTHONPATH": str(with_boto3)}, variables | {"PYTHONPATH": str(without_boto3)})
    no_profile = "AWS_PROFILE is team, which cannot be used: The config profile (team) could not be found"
    no_boto3 = "AWS_PROFILE names a profile and boto3, which reads profiles, is not installed"
    first, second = (check["message"] for check in failed_checks(cluster, logged, 2))
    assert (no_profile in first and no_boto3 in second) or (no_profile in second and no_boto3 in first)
    message = cluster.refused(cluster.start(*twins.join, at=tmp_path / "join"))
    assert no_profile in message or no_boto3 in message
    write_profile(s3_process, variables)
    (bad,) = failed_checks(cluster, logged)
    assert no_boto3 in bad["message"]
    for package in with_boto3.iterdir():
        (without_boto3 / package.name).symlink_to(package)
    cluster.ends(cluster.start(*twins.join, at=tmp_path / "join"))
    twins.assert_same()
    cluster.ends(cluster.start("-m", "cdc_platform", "--home", logged, "doctor", "--cluster"))


def failed_checks(cluster: Cluster, home: str, count: int | None = None) -> list[dict[str, Any]]:
    """Return the failed checks of doctor on the workers."""
    output = cluster.ends(cluster.start("-m", "cdc_platform", "--home", home, "doctor", "--cluster", "--json"), 1)
    assert "\n" not in "".join(check["message"] for check in json.loads(output)["checks"])
    failed = [check for check in json.loads(output)["checks"] if not check["ok"]]
    assert count in (None, len(failed))
    return failed


def copy_profile_packages(folder: Path) -> Path:
    """Copy boto3 and its dependencies into a folder; return the folder."""
    for name in ("boto3", "botocore", "jmespath", "s3transfer", "urllib3"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        shutil.copytree(Path(spec.origin).parent, folder / name)
    return folder


def profile_environment(folder: Path) -> dict[str, str]:
    """Return a worker's variables that name a profile and its empty files, without a key."""
    files = {"AWS_CONFIG_FILE": str(folder / "config"), "AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials")}
    for file in files.values():
        Path(file).touch()
    return dict.fromkeys(INSTEAD_OF, "") | files | {"AWS_PROFILE": "team", "AWS_EC2_METADATA_DISABLED": "true"}


def write_profile(s3: S3, variables: Mapping[str, str]) -> None:
    """Write the profile into its files, with the endpoint of the store that requires the tests' key."""
    endpoint = s3.environment("keyed")
    text = f"[profile team]\nregion = {endpoint['AWS_REGION']}\nendpoint_url = {endpoint['AWS_ENDPOINT_URL']}\n"
    Path(variables["AWS_CONFIG_FILE"]).write_text(text, encoding="utf-8")
    text = f"[team]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    Path(variables["AWS_SHARED_CREDENTIALS_FILE"]).write_text(text, encoding="utf-8")

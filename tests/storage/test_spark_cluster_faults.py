"""What goes wrong among a cluster's workers and between them and the store: nothing is lost, and nothing there twice.

On the cluster of `test_cluster`; the faults are those of its S3 server, of a worker's clock and of what a worker has.
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
AT_HOME = ("-m", "cdc_platform", "--clock", CLOCK, "--home")
_LATE_SECONDS = 25
"""So long that a second attempt of the task ends before: Spark begins one after some seconds."""


def test_two_attempts_of_a_task_of_a_join(cluster: Cluster, s3_process: S3, tmp_path: Path) -> None:
    """A store answers one of them late: both have written their file, the commit names one, each row is there once."""
    twins = Twins(f"{s3_process.bucket()}/join", tmp_path)
    folder = Lake(f"{twins.address}/lake").path(GENERATION_DESCRIPTIONS_V2)
    before = len(cluster.standalone.second_attempts())
    cluster.gives({}, {})
    s3_process.is_slow(folder, _LATE_SECONDS)
    cluster.ends(cluster.start(*twins.join, at=tmp_path))
    assert len(cluster.standalone.second_attempts()) > before
    twins.assert_same()
    assert files_of(twins.address, GENERATION_DESCRIPTIONS_V2) == (2, 1)


def test_two_attempts_of_a_task_of_an_append(cluster: Cluster, s3_process: S3, tmp_path: Path) -> None:
    """As of a join, where the late task is one of two."""
    address = log_in_a_store(f"{s3_process.bucket()}/log", tmp_path)
    table = log_table(schema(Lake(f"{address}/lake")))
    before = len(cluster.standalone.second_attempts())
    cluster.gives({}, {})
    s3_process.is_slow(Lake(f"{address}/lake").path(table), _LATE_SECONDS)
    cluster.ends(cluster.start(CLIENT, "append", address, "2"))
    assert len(cluster.standalone.second_attempts()) > before
    assert_appended(address)
    written, named = files_of(address, table)
    assert written == named + 1


def test_a_tenth_of_what_workers_ask_fails(cluster: Cluster, s3_process: S3, tmp_path: Path) -> None:
    """A join, an append of sixty files and an audit, through refusals, cuts and delays: all is there, once."""
    twins = Twins(f"{s3_process.bucket()}/join", tmp_path / "join")
    address = log_in_a_store(f"{s3_process.bucket()}/log", tmp_path)
    cluster.gives({}, {})
    cluster.finds("faulty", "faulty")
    before = s3_process.counts().get(FAULTS, 0)
    cluster.ends(cluster.start(*twins.join, at=tmp_path / "join"))
    begun = len(cluster.standalone.further_attempts())
    cluster.ends(cluster.start(CLIENT, "append", address, "60"))
    again = len(cluster.standalone.further_attempts()) - begun
    cluster.ends(cluster.start("-m", "cdc_platform", "--home", twins.address, "--clock", CLOCK, "check", "--deep"))
    assert s3_process.counts()[FAULTS] > before
    twins.assert_same()
    assert_appended(address)
    written, named = files_of(address, log_table(schema(Lake(f"{address}/lake"))))
    assert named == 60
    assert named <= written <= named + again  # who is tried again may have written what no commit names


def test_a_store_that_lets_no_worker_in_is_one_line(cluster: Cluster, s3_process: S3, tmp_path: Path) -> None:
    """Down for who writes, closed to who reads: one line says which store and what it answers; later all goes on."""
    twins = Twins(f"{s3_process.bucket()}/join", tmp_path)
    cluster.gives({}, {})
    cluster.finds("down", "down")
    said = cluster.refused(cluster.start(*twins.join, at=tmp_path))
    assert said.startswith(f"error: {twins.address.rpartition('/')[0]} does not respond like an object store (503 "), (
        said
    )
    cluster.finds("plain", "plain")
    cluster.ends(cluster.start(*twins.join, at=tmp_path))
    twins.assert_same()
    cluster.finds("expired", "expired")
    check = ("-m", "cdc_platform", "--home", twins.address, "--clock", CLOCK, "check")
    said = cluster.refused(cluster.start(*check))
    assert f"{twins.address.rpartition('/')[0]} does not respond like an object store (403 " in said


def test_what_a_store_refuses_one_worker_the_other_one_does(cluster: Cluster, s3_process: S3, tmp_path: Path) -> None:
    """Credentials of one have run out: a join, an append and an audit end as if it had none to do; doctor names it."""
    twins = Twins(f"{s3_process.bucket()}/join", tmp_path / "join")
    address = log_in_a_store(f"{s3_process.bucket()}/log", tmp_path)
    cluster.standalone.give(s3_process.environment("expired"), {})
    bad = cluster.standalone.workers[0]

    def asked(command: tuple[str | Path, ...]) -> bool:
        """Whether it was given a task of a command, which ends well."""
        before = bad.count(" Running task ")
        cluster.ends(cluster.start(*command, at=tmp_path / "join"))
        return bad.count(" Running task ") > before

    for command in (twins.join, (CLIENT, "append", address, "60")):
        # Where it has failed twice, Spark may ask it for nothing more.
        assert asked(command) or cluster.standalone.excludes_one()
    # An audit of so little is one task, which either may be given.
    assert any(asked((*AT_HOME, twins.address, "check", "--deep")) for _ in range(10))
    twins.assert_same()
    assert_appended(address)
    (told,) = wrong_of_doctor(cluster, twins.address)
    assert told["check"].startswith("lake on ")
    assert "403" in told["message"]


def test_doctor_names_what_a_workers_interpreter_is_missing(cluster: Cluster, logged: str) -> None:
    """Of what it was sent one package is gone, and another one is of another version: a line, with the mend."""
    cluster.gives({}, {})
    worker = cluster.standalone.replace(cluster.standalone.workers[0])
    worker.await_executor()
    for packages in (worker.folder / "work").glob("app-*/*/environment/packages"):
        about = next(packages.glob("deltalake-*.dist-info")) / "METADATA"
        about.write_text(re.sub(r"(?m)^Version: .*$", "Version: 0.1", about.read_text(encoding="utf-8")))
        for gone in [*packages.glob("pyarrow"), *packages.glob("pyarrow-*.dist-info")]:
            shutil.rmtree(gone)
    (bad,) = wrong_of_doctor(cluster, logged)
    due = get_worker_archive().packages
    assert bad["check"].startswith("packages on ")
    assert bad["message"] == (
        f"deltalake is 0.1, expected {due['deltalake']}; pyarrow is missing, expected {due['pyarrow']}"
    )
    assert "unset PYSPARK_PYTHON" in bad["remedy"]
    cluster.standalone.replace(worker)


@pytest.mark.skipif(not COMPILERS, reason="a clock that is off is made by a C compiler (cc)")
def test_doctor_names_a_worker_whose_clock_is_off(
    cluster: Cluster, logged: str, s3_process: S3, tmp_path: Path
) -> None:
    """By an hour, so that S3 takes none of its requests either: a line each."""
    cluster.gives(clock_off_by(3600, tmp_path) | s3_process.environment("skewed"), {})
    found = wrong_of_doctor(cluster, logged)
    assert [each["check"].partition(" on ")[0] for each in found] == ["lake", "clock"]
    assert "RequestTimeTooSkewed" in found[0]["message"]
    off = re.fullmatch(r"off by (\d+) s at least", found[1]["message"])
    assert off is not None
    assert 3500 < int(off[1]) <= 3600
    assert "NTP" in found[1]["remedy"]


def test_a_profile_is_looked_up_where_a_task_runs(
    cluster: Cluster, logged: str, s3_process: S3, tmp_path: Path
) -> None:
    """By one that has boto3 and the files; one that lacks either says which, a join says it; later all goes on."""
    twins = Twins(f"{s3_process.bucket()}/join", tmp_path / "join")
    with_boto3, without = packages_of_profiles(tmp_path / "with boto3"), tmp_path / "without"
    without.mkdir()
    named = naming_a_profile(tmp_path)
    cluster.gives(named | {"PYTHONPATH": str(with_boto3)}, named | {"PYTHONPATH": str(without)})
    no_profile = "AWS_PROFILE is team, which cannot be used: The config profile (team) could not be found"
    no_boto3 = "AWS_PROFILE names a profile and boto3, which reads profiles, is not installed"
    one, other = (each["message"] for each in wrong_of_doctor(cluster, logged, 2))
    assert (no_profile in one and no_boto3 in other) or (no_profile in other and no_boto3 in one)
    said = cluster.refused(cluster.start(*twins.join, at=tmp_path / "join"))
    assert no_profile in said or no_boto3 in said
    write_profile(s3_process, named)
    (bad,) = wrong_of_doctor(cluster, logged)
    assert no_boto3 in bad["message"]
    for package in with_boto3.iterdir():
        (without / package.name).symlink_to(package)
    cluster.ends(cluster.start(*twins.join, at=tmp_path / "join"))
    twins.assert_same()
    cluster.ends(cluster.start("-m", "cdc_platform", "--home", logged, "doctor", "--cluster"))


def wrong_of_doctor(cluster: Cluster, home: str, due: int | None = None) -> list[dict[str, Any]]:
    """What doctor finds that has to be mended on the workers."""
    told = cluster.ends(cluster.start("-m", "cdc_platform", "--home", home, "doctor", "--cluster", "--json"), 1)
    assert "\n" not in "".join(each["message"] for each in json.loads(told)["checks"])
    found = [each for each in json.loads(told)["checks"] if not each["ok"]]
    assert due in (None, len(found))
    return found


def packages_of_profiles(folder: Path) -> Path:
    """A folder with boto3 and what it imports."""
    for name in ("boto3", "botocore", "jmespath", "s3transfer", "urllib3"):
        place = importlib.util.find_spec(name)
        assert place is not None
        assert place.origin is not None
        shutil.copytree(Path(place.origin).parent, folder / name)
    return folder


def naming_a_profile(folder: Path) -> dict[str, str]:
    """The variables of a worker that has a profile's name, the names of its files, which are empty, and no key."""
    files = {"AWS_CONFIG_FILE": str(folder / "config"), "AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials")}
    for file in files.values():
        Path(file).touch()
    return dict.fromkeys(INSTEAD_OF, "") | files | {"AWS_PROFILE": "team", "AWS_EC2_METADATA_DISABLED": "true"}


def write_profile(s3: S3, named: Mapping[str, str]) -> None:
    """Put that profile into its files, with the door of the store that asks for the tests' key."""
    door = s3.environment("keyed")
    told = f"[profile team]\nregion = {door['AWS_REGION']}\nendpoint_url = {door['AWS_ENDPOINT_URL']}\n"
    Path(named["AWS_CONFIG_FILE"]).write_text(told, encoding="utf-8")
    told = f"[team]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    Path(named["AWS_SHARED_CREDENTIALS_FILE"]).write_text(told, encoding="utf-8")

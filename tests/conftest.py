"""Fixtures and scheduling for all tests, and the profiles of the property tests."""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis.core
import pytest
from hypothesis import settings
from support.drawing import EXAMPLES, SEED, Drawing
from support.figures import Figures
from support.memory import InMemory
from support.nodes import join_request, node_text
from support.pace import Pace
from support.worlds import installed

from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.metastore import JoinRequest
from cdc_platform.runtime import tune_short_process

os.environ.pop("COLUMNS", None)
"""pytest-xdist sets it in its workers; without it the output is equally wide in a worker and in a single process."""

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.processes.nursery import Nursery
    from support.spark.driven import Cluster
    from support.standin.cluster import StandIn
    from support.store.s3 import S3
    from support.worlds.serving import Serving

    from cdc_platform.spark import ConnectServer

# Each run draws other examples by its seed; `make test-exhaustive` uses `--hypothesis-profile thorough`.
settings.register_profile("quick", max_examples=EXAMPLES, deadline=None, database=None)
settings.register_profile("thorough", max_examples=2000, deadline=None, database=None)
# Histories of the state machines, drawn by the seed: 75 here, 10,000 in `make test-exhaustive`.
settings.register_profile(
    "histories", max_examples=int(os.environ.get("CDC_PLATFORM_HISTORIES", "75")), deadline=None, database=None
)
hypothesis.core.global_force_seed = int(SEED)  # pyrefly: ignore[bad-assignment]
settings.load_profile("quick")


# Groups of files that run on one worker because they share a server that is slow to start. They start first, in this
# order, so that no worker is left with a long group at the end. The group with the CQL server is the longest.
LONG = {
    "cassandra": (
        "test_observe.py",
        "test_node_states_live.py",
        "test_preflight.py",
        "test_bad_clusters.py",
        "test_standin.py",
        "test_ingest.py",
        "test_retyped_columns.py",
        "test_ingest_of_tablets.py",
        "test_late_generations.py",
        "test_reading_once.py",
        "test_scans_ahead.py",
        "test_export_into_cluster.py",
        "test_every_kill_of_mirrors.py",
        "test_copied_by_cqlsh.py",
        "test_removed_generations.py",
        "test_mirror_forecasts.py",
        "test_datacenters.py",
        "test_ingest_faults.py",
        "test_ingest_gaps.py",
        "test_bad_servers.py",
        "test_ingested_values.py",
        "test_unlisted_times.py",
        "test_watch.py",
        "test_alerts.py",
        "test_cluster_assets.py",
        "test_ingest_on_spark.py",
        "test_spark_source.py",
        "test_ingest_connections.py",
        "test_demo_live.py",
        "test_replica.py",
        "test_keys_only_logs.py",
        "test_altered_tables.py",
        "test_late_changes.py",
        "test_many_tables.py",
        "test_cluster_connections.py",
        "test_read_rates.py",
        "test_ingest_from.py",
        "test_store_commands.py",
        "test_alternator.py",
    ),
    "stores": (
        "test_real_outages.py",
        "test_store_homes.py",
        "test_store_commit_faults.py",
        "test_store_clocks.py",
        "test_write_check.py",
        "test_s3_stand_in.py",
        "test_store_faults.py",
        "test_leases.py",
        "test_log_mirror.py",
        "test_store_requests.py",
        "test_store_write_refusals.py",
        "test_storage_paths.py",
        "test_cluster_homes_in_store.py",
        "test_import_mend_in_store.py",
        "test_home_copy.py",
        "test_sensors_on_two_machines.py",
        "test_file_maintenance.py",
        "test_small_files.py",
        "test_store_docs.py",
        "test_aws_profiles.py",
    ),
    "session": (
        "test_write_batches.py",
        "test_wheel.py",
        "test_demo.py",
        "test_spark_commands.py",
        "test_timeline_entry_points.py",
        "test_spark_query.py",
        "test_frames.py",
        "test_rewritten_files.py",
        "test_older_homes.py",
        "test_skipped_generations.py",
        "test_replay_on_spark.py",
        "test_worker_daemon.py",
        "test_spark_session.py",
        "test_step_audits.py",
        "test_generation_audits.py",
        "test_commit_info.py",
        "test_frame_schema.py",
        "test_partition_times.py",
        "test_join.py",
        "test_join_assets.py",
        "test_log_audit.py",
        "test_consumer.py",
        "test_log_dataframe.py",
        "test_stored_values.py",
        "test_verified_rows.py",
        "test_dataframe_streams.py",
    ),
    "cluster": (
        "test_spark_cluster_with_store.py",
        "test_spark_cluster_faults.py",
        "test_up_with_store.py",
    ),
    "up": (
        "test_browser.py",
        "test_cross_site_pages.py",
        "test_intruders.py",
        "test_killed_services.py",
        "test_up.py",
        "test_idle.py",
    ),
    "server": ("test_readme.py", "test_killed_joins.py", "test_connect_server.py", "test_forced_validation.py"),
    "processes": ("test_races.py", "test_log_races.py", "test_killed_commands.py"),
    # These mostly wait, so they must not be the last ones of a run.
    "waiting": ("test_store_emulators.py", "test_processes.py", "test_ui.py"),
    "services": ("test_services_on_postgres.py",),
    "soak": ("test_soak.py",),
}
# The groups that may use a fixture that is slow to start; any other group would start it a second time.
SHARED = {
    "spark": {"session", "cassandra"},
    "server": {"server"},
    "serving": {"up"},
    "s3_process": {"stores", "cluster", "cassandra"},
    "cluster_process": {"cluster"},
    "standin_process": {"cassandra", "cluster"},
}
MARK_BY_FIXTURE = {
    "spark": "spark",
    "server": "spark",
    "serving": "spark",
    "demonstrated": "spark",
    "standin_process": "cassandra",
    "s3_process": "processes",
    "cluster_process": "spark",
    "nursery": "processes",
    "program": "processes",
    "tmp_path": "files",
    "tmp_path_factory": "files",
}
"""The mark of each test with a fixture that starts programs, forks or writes files; `make test-fast` leaves it out."""
CREATE_SHOP_T = frozenset({"log", "table"})
"""Fixtures that create the table `shop.t` and its log in the stand-in."""
_DAGSTER_FOLDER = "assets"
_GROUP_BY_FILE = {file: group for group, files in LONG.items() for file in files}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the plugins that measure tests and sample grids; handle Ctrl-C also in a shell's background job."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # child processes would inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)
    tune_short_process()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(InMemory())
    config.pluginmanager.register(Pace())
    config.pluginmanager.register(Drawing())
    config.pluginmanager.register(Figures())


def pytest_collection_finish() -> None:
    """Freeze all objects that exist after the collection, so that the garbage collector does not scan them.

    At exit they are unfrozen, as some libraries report modules that are never collected as leaks.
    """
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the long files to the front and those without a JVM to the end; refuse fixtures outside their groups."""
    for item in items:
        for name, groups in SHARED.items():
            if name in getattr(item, "fixturenames", ()) and _GROUP_BY_FILE.get(item.path.name) not in groups:
                raise pytest.UsageError(
                    f"{item.nodeid} takes {name}: put its file into one of {sorted(groups)} in LONG"
                )
        for name, mark in MARK_BY_FIXTURE.items():
            if name in getattr(item, "fixturenames", ()) and item.get_closest_marker(mark) is None:
                item.add_marker(mark)
        if item.path.parent.name == _DAGSTER_FOLDER:
            item.add_marker("dagster")
    long = list(_GROUP_BY_FILE)
    on_spark = {item.path for item in items if any(item.iter_markers("spark"))}

    def rank(item: pytest.Item) -> tuple[int, bool]:
        name = item.path.name
        return (long.index(name) if name in long else len(long), item.path not in on_spark)

    items.sort(key=rank)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`, run each file, or all files of a group, on one worker."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return _GROUP_BY_FILE.get(Path(file).name, file)

    return ByFile(config, log)


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    """Expected results of the rules, by group."""
    return json.loads((Path(__file__).parent / "data" / "vectors.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The embedded Spark session that all tests share."""
    from cdc_platform.spark import get_spark_session

    session = get_spark_session("cdc-platform tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def on_spark(spark: SparkSession) -> TaskRunner:
    """A runner that runs every task on the Spark session, however small."""
    return TaskRunner(lambda: spark, in_process=0)


@pytest.fixture(scope="session")
def workers() -> TaskRunner:
    """A runner that runs tasks in this process and fails if one needs Spark."""

    def refuse() -> SparkSession:
        raise AssertionError("so little work needs no Spark")

    return TaskRunner(refuse)


@pytest.fixture(params=["here", pytest.param("spark", marks=pytest.mark.spark)])
def either(request: pytest.FixtureRequest) -> TaskRunner:
    """Return both runners, one after the other; their results must be equal."""
    return request.getfixturevalue("workers" if request.param == "here" else "on_spark")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake."""
    return Lake(tmp_path / "lake")


@pytest.fixture(scope="session")
def serving() -> Iterator[Serving]:
    """`cdc-platform up` on its own home, shared by all tests that only read it; it starts at the first use."""
    from support.worlds.serving import Serving

    # Every user can list this folder, so that only the home itself keeps other users out.
    with tempfile.TemporaryDirectory(prefix="cdc-up-") as folder:
        Path(folder).chmod(0o755)
        shared = Serving(Path(folder) / "home")
        yield shared
        shared.stop()


@pytest.fixture(scope="session")
def standin_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """A real CQL server behind a proxy that answers as ScyllaDB does; it starts at the first use."""
    from support.standin.cluster import StandIn

    shared = StandIn(tmp_path_factory.mktemp("standin"))
    yield shared
    shared.stop()


@pytest.fixture
def sessions_of_tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    """The sessions that tasks open in this process, closed after the test; a worker's live as long as it."""
    from cdc_platform.ingest import requests as asking

    with ExitStack() as opened:
        monkeypatch.setattr(asking, "_opened", opened)
        monkeypatch.setattr(asking, "_sessions", {})
        yield opened


@pytest.fixture
def standin(
    request: pytest.FixtureRequest,
    standin_process: StandIn,
    sessions_of_tasks: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> StandIn:
    """The CQL server reset to one generation; the environment has the password of a user that may read everything."""
    from support.standin.cluster import PASSWORD, USER
    from support.standin.world import OBSERVER

    monkeypatch.setenv(USER, OBSERVER[0])
    monkeypatch.setenv(PASSWORD, OBSERVER[1])
    recreates_table = not CREATE_SHOP_T.isdisjoint(request.fixturenames)
    standin_process.reset(kept=("shop.t", "shop.t_scylla_cdc_log") if recreates_table else ())
    return standin_process


@pytest.fixture(scope="session")
def s3_process() -> Iterator[S3]:
    """An S3 server on loopback; it starts at the first use."""
    from support.store.s3 import S3

    shared = S3()
    yield shared
    shared.stop()


@pytest.fixture
def s3(s3_process: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> S3:
    """The S3 server, set in this process's environment; the local state of homes there is in the test's folder."""
    for name, value in s3_process.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CDC_PLATFORM_STATE", str(tmp_path / "state"))
    return s3_process


@pytest.fixture(scope="session")
def cluster_process(s3_process: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Spark cluster that shares no folder with its driver; it starts at the first use."""
    from support.spark.driven import Cluster

    shared = Cluster(tmp_path_factory.mktemp("driver"), s3_process)
    yield shared
    shared.stop()


@pytest.fixture(scope="session")
def server_process() -> Iterator[ConnectServer]:
    """A Connect server that is not started yet."""
    from cdc_platform.spark import ConnectServer

    shared = ConnectServer(heavy=False)
    yield shared
    shared.stop()


@pytest.fixture
def server(server_process: ConnectServer) -> ConnectServer:
    """The Connect server after a first job, so that no process starts a JVM."""
    from support.spark.warm_server import warm

    return warm(server_process)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Real processes of the command line, forked with everything imported."""
    from support.processes.nursery import Nursery

    with Nursery() as nursery:
        yield nursery


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as a wheel."""
    return installed.build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of the wheel, installed in its own environment."""
    return installed.install(wheel, tmp_path_factory.mktemp("installed") / "env")


@pytest.fixture(scope="session")
def demonstrated(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which the installed program ran its demo with a stopped clock; its output is in the file `told`."""
    home = tmp_path_factory.mktemp("demonstrated") / "home"
    done = installed.run(
        program, home.parent, "--home", str(home), "--clock", installed.DEMO_CLOCK, "demo", timeout=280
    )
    assert done.returncode == 0, done.stderr
    (home / "told").write_text(done.stdout, encoding="utf-8")
    return home


@pytest.fixture(scope="session")
def bootstrap_text() -> Callable[..., str]:
    """Return `node_text`, which makes the bootstrap file of a node."""
    return node_text


@pytest.fixture
def joining() -> Callable[..., JoinRequest]:
    """Return `join_request`, which makes the request of a node."""
    return join_request

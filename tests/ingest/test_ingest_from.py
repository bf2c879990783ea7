"""`ingest --from` sets where a log's first ingest begins, and records the earlier rows as a gap."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import run
from support.standin.brought import FIRST_US, NOW_US, SWITCH_US, bring, lake_of, rows_in
from support.standin.live_log import LiveLog, keys_of

from cdc_platform.cdclog import FROM_CLUSTER
from cdc_platform.clock import SECOND_US, Microseconds, format_us
from cdc_platform.delta import TaskRunner
from cdc_platform.errors import InputError, NotFound
from cdc_platform.ingest import NOW, ReadPolicy, current_table
from cdc_platform.metastore import LogGap, LogLoss, consumers, log_gaps
from cdc_platform.scylla import ScyllaCluster

pytestmark = pytest.mark.cassandra


def left_out(cluster: ScyllaCluster) -> list[LogGap]:
    """Return the recorded gaps that `--from` caused."""
    return [gap for gap in log_gaps.read_recorded_gaps(lake_of(cluster)) if gap.what == LogLoss.BEFORE_START]


def test_rows_before_the_start_are_a_recorded_gap(cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner) -> None:
    """The gap is accepted, so it raises no alert; later rows arrive once; no interval with left-out rows is proved."""
    start = Microseconds(SWITCH_US - SECOND_US)
    log.write([FIRST_US + 1, start - 1, start, SWITCH_US + 1])
    messages: list[str] = []
    done = bring(cluster, workers, told=messages, start=start)
    assert (done.rows, done.has_open_gaps) == (2, False)
    assert keys_of(rows_in(cluster, log)) == keys_of(log.written[0].slice(2, 2))
    (gap,) = left_out(cluster)
    assert (gap.since_us, gap.until_us, gap.reason) == (FIRST_US, start, f"--from {format_us(start)}")
    assert any("is left out" in line for line in messages)
    assert bring(cluster, workers).rows == 0
    home = cluster.home
    assert run("--home", home, "consume", "shop.t", "--name", "audit").exit_code == 0
    for since, code in ((FIRST_US, 1), (start, 0)):
        proof = run(
            "--home", home, "verify-interval", format_us(since), format_us(SWITCH_US), "--consumer", "audit", "--json"
        )
        assert proof.exit_code == code, proof.stdout
        assert ("is left out" in proof.stdout) == bool(code)


def test_now_leaves_out_everything_before(cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner) -> None:
    """`--from now` also leaves out the confidence window; the next run reads later rows, whatever its options."""
    log.write([FIRST_US + 1, NOW_US - 1])
    policy = ReadPolicy(Microseconds(3 * SECOND_US))
    assert bring(cluster, workers, start=NOW, policy=policy).rows == 0
    (gap,) = left_out(cluster)
    assert (gap.since_us, gap.until_us, gap.reason) == (FIRST_US, NOW_US, "--from now")
    written = log.write([NOW_US, NOW_US + 1])
    assert bring(cluster, workers, NOW_US + 60 * SECOND_US, start=NOW, policy=policy).rows == 2
    assert keys_of(rows_in(cluster, log)) == keys_of(written)
    assert left_out(cluster) == [gap]


@pytest.mark.parametrize("start", [1, FIRST_US])
def test_a_start_before_the_log_leaves_out_nothing(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, start: int
) -> None:
    """The log is read from its beginning."""
    log.write([FIRST_US, SWITCH_US])
    assert bring(cluster, workers, start=start).rows == 2
    assert left_out(cluster) == []


def test_start_has_no_effect_on_an_ingested_log(cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner) -> None:
    """A message says that a start which would skip rows has no effect; `now` and earlier times need no message."""
    log.write([FIRST_US + 1, SWITCH_US + 1])
    until = Microseconds(FIRST_US + SECOND_US)
    bring(cluster, workers, until_us=until)
    messages: list[str] = []
    done = bring(cluster, workers, told=messages, start=Microseconds(SWITCH_US + 2))
    assert (done.rows, left_out(cluster)) == (1, [])
    assert [line for line in messages if "--from applies to the first ingest" in line]
    messages.clear()
    for start in (NOW, FIRST_US):
        bring(cluster, workers, told=messages, start=start)
    assert not messages


def test_start_survives_a_kill_before_the_position_is_registered(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gap is recorded first, so no restart loses rows without a record."""
    log.write([FIRST_US + 1, SWITCH_US + 1])

    class Died(BaseException):
        """Stands for a kill."""

    def die(*_: object, **__: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(consumers, "register_consumer", die)
        with pytest.raises(Died):
            bring(cluster, workers, start=SWITCH_US)
    (gap,) = left_out(cluster)
    with pytest.raises(NotFound):
        consumers.find_consumer(lake_of(cluster), FROM_CLUSTER, "shop", "t")
    assert bring(cluster, workers, start=SWITCH_US).rows == 1
    (after,) = left_out(cluster)
    assert (after.since_us, after.until_us) == (gap.since_us, gap.until_us)


def test_a_time_in_the_future_is_refused(cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner) -> None:
    """A refused start registers no consumer."""
    with pytest.raises(InputError, match="is in the future"):
        bring(cluster, workers, start=Microseconds(NOW_US + 1))
    assert consumers.read_consumers(lake_of(cluster)) == []


def test_replica_has_rows_that_the_log_leaves_out(cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner) -> None:
    """The table is copied, and its log counts from the start."""
    log.world.run(f"INSERT INTO shop.t (p, k, v) VALUES (1, 2, 3) USING TIMESTAMP {FIRST_US + 1}")
    done = bring(cluster, workers, start=NOW, current=True)
    assert done.current is not None
    assert lake_of(cluster).read(current_table(log.schema), ["p", "k", "v"]).to_pylist() == [{"p": 1, "k": 2, "v": 3}]
    assert bring(cluster, workers, NOW_US + 60 * SECOND_US, current=True).current is not None


def test_until_before_from_is_a_usage_error(tmp_path: Path) -> None:
    """The command exits with code 2 before it connects."""
    answer = run(
        "--home",
        tmp_path,
        "ingest",
        "prod",
        "shop.t",
        "--from",
        "2026-01-02T00:00:00Z",
        "--until",
        "2026-01-01T00:00:00Z",
    )
    assert answer.exit_code == 2
    assert "--until is before --from" in answer.stderr

"""The two-phase switch on the lake: the phases of a join, races, and refusals. No Spark, no JVM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.worlds.switch_lake import NOON, NOON_MS, TWO_PHASE, host, inserted, operating, ring_of

from cdc_platform.clock import Clock, Microseconds, Milliseconds, datetime_from_ms, datetime_from_us, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.generations import SwitchPhase, WriteVerdict
from cdc_platform.lifecycle import switch
from cdc_platform.lifecycle.join import bootstrap
from cdc_platform.metastore import generations, inbox, switches
from cdc_platform.settings import Settings
from cdc_platform.tables import CDC_LOCAL, GENERATION_DESCRIPTIONS_V2, GENERATION_SWITCHES, GENERATIONS, SWITCH_PROMISES
from cdc_platform.timeline import StreamSources, VnodeExplanation

HOSTS = [host(number) for number in (1, 2, 3)]
LEASE_END_MS = NOON_MS + Milliseconds(5_000) + Milliseconds(60_000)
DEADLINE_MS = NOON_MS + Milliseconds(30_000)
TIME_MS = LEASE_END_MS + Milliseconds(5_000)


def at(ms: Milliseconds) -> Clock:
    """Return a stopped clock."""
    return Clock(us_from_ms(ms))


@pytest.fixture
def generation_id(lake: Lake) -> str:
    """Two nodes in the ring, and the inserted generation of a third."""
    ring_of(lake, (1, 2))
    return inserted(lake, 3)


@pytest.fixture
def prepared(lake: Lake, generation_id: str) -> str:
    """That generation with its switch prepared."""
    switch.prepare_switch(lake, NOON, TWO_PHASE, generation_id, HOSTS[2], HOSTS)
    return generation_id


def explain(lake: Lake, at_ms: Milliseconds, now_ms: Milliseconds) -> VnodeExplanation:
    """Explain a write."""
    return StreamSources(lake).generations.explain(3, us_from_ms(at_ms), us_from_ms(now_ms))


def test_a_join_prepares_is_acknowledged_and_committed(lake: Lake, generation_id: str) -> None:
    """The timestamp is the last lease end plus the margin, in the ledger, cdc_local and the switch."""
    assert bootstrap.introduce_generation(lake, NOON, TWO_PHASE, generation_id) == TIME_MS
    [row] = lake.read(GENERATION_SWITCHES).to_pylist()
    assert (row["phase"], row["initiator"], row["decided_by"]) == ("committed", HOSTS[2], HOSTS[2])
    assert row["participants"] == row["acknowledged"] == HOSTS
    assert row["lease_ends"] == [datetime_from_ms(LEASE_END_MS)] * 3
    [ledger] = lake.read(GENERATIONS).to_pylist()
    local = {row_of_node["key"]: row_of_node for row_of_node in lake.read(CDC_LOCAL).to_pylist()}
    assert ledger["time"] == row["time"] == local["cdc_local"]["streams_timestamp"] == datetime_from_ms(TIME_MS)


def test_a_repeated_join_changes_nothing(lake: Lake, generation_id: str) -> None:
    """A commit is final, also later and after the setting was disabled."""
    bootstrap.introduce_generation(lake, NOON, TWO_PHASE, generation_id)
    versions = [lake.version(table) for table in (GENERATION_SWITCHES, SWITCH_PROMISES, GENERATIONS, CDC_LOCAL)]
    assert (
        bootstrap.introduce_generation(lake, at(Milliseconds(NOON_MS + 500_000)), Settings(), generation_id) == TIME_MS
    )
    assert versions == [lake.version(table) for table in (GENERATION_SWITCHES, SWITCH_PROMISES, GENERATIONS, CDC_LOCAL)]


def test_without_the_setting_there_is_no_switch(lake: Lake, generation_id: str) -> None:
    """Without the setting, the generation starts in 65 s, as documented, and neither table is created."""
    assert bootstrap.introduce_generation(lake, NOON, Settings(), generation_id) == NOON_MS + 65_000
    assert not lake.exists(GENERATION_SWITCHES)
    assert not lake.exists(SWITCH_PROMISES)


def test_a_prepared_switch_is_completed_with_the_setting_off(lake: Lake, prepared: str) -> None:
    """Nodes may have promised, and the documented timestamp could be before a lease end."""
    assert (
        bootstrap.introduce_generation(lake, at(Milliseconds(NOON_MS + 1_000)), Settings(), prepared) == TIME_MS + 1_000
    )


def test_consecutive_joins_get_later_times(lake: Lake, generation_id: str) -> None:
    """Also with a stopped clock; a clock set far back is refused before any promise."""
    first = bootstrap.introduce_generation(lake, NOON, TWO_PHASE, generation_id)
    bootstrap.admit_node(lake, generation_id)
    inbox_row = lake.read(GENERATIONS).to_pylist()[0] | {"published_at": datetime_from_us(Microseconds(0))}
    lake.merge(GENERATIONS, pa.Table.from_pylist([inbox_row]), update=True)
    second = inserted(lake, 4)
    with pytest.raises(StateError, match="clock is behind"):
        bootstrap.introduce_generation(lake, at(Milliseconds(NOON_MS - 80_000)), TWO_PHASE, second)
    assert len(switches.read_switches(lake)) == 1
    assert bootstrap.introduce_generation(lake, NOON, TWO_PHASE, second) == first + 1


def test_one_of_two_concurrent_joins_waits(lake: Lake, prepared: str) -> None:
    """The register accepts one undecided switch at a time."""
    other = inserted(lake, 4)
    with pytest.raises(StateError, match=f"must wait: the switch to {prepared} is undecided"):
        switch.prepare_switch(lake, NOON, TWO_PHASE, other, host(4), [*HOSTS, host(4)])
    switch.abort_switch(lake, at(DEADLINE_MS), prepared, "a test")
    prepared_switch = switch.prepare_switch(lake, at(DEADLINE_MS), TWO_PHASE, other, host(4), [*HOSTS, host(4)])
    assert prepared_switch.phase is SwitchPhase.PREPARING


def test_a_partial_generation_is_not_acknowledged(lake: Lake, prepared: str) -> None:
    """If a row is lost after the preparation, no participant promises, and the deadline aborts the switch."""
    end = lake.read(GENERATION_DESCRIPTIONS_V2)["range_end"][0].as_py()
    lake.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", end)])
    with pytest.raises(StateError, match="num_ranges claims 12 rows, 11 are there"):
        switch.acknowledge_switch(lake, NOON, TWO_PHASE, prepared, HOSTS)
    assert switches.read_lease_promises(lake, prepared) == {}
    assert switch.advance_switch(lake, at(DEADLINE_MS), TWO_PHASE, prepared, "a test").phase is SwitchPhase.ABORTED


def test_a_missing_answer_aborts_at_the_deadline_and_not_before(lake: Lake, prepared: str) -> None:
    """Until the deadline an abort is refused, and from then on an acknowledgement."""
    switch.acknowledge_switch(lake, NOON, TWO_PHASE, prepared, HOSTS[:1])
    with pytest.raises(StateError, match="from its deadline on"):
        switch.abort_switch(lake, at(Milliseconds(DEADLINE_MS - 1)), prepared, "a test")
    with pytest.raises(StateError, match="2 of 3 participants have not acknowledged"):
        switch.commit_switch(lake, NOON, TWO_PHASE, prepared, "a test")
    with pytest.raises(StateError, match="the deadline of the switch"):
        switch.acknowledge_switch(lake, at(DEADLINE_MS), TWO_PHASE, prepared, HOSTS[1:])
    aborted = switch.abort_switch(lake, at(DEADLINE_MS), prepared, "a test")
    assert (aborted.phase, aborted.time_ms) == (SwitchPhase.ABORTED, None)
    assert switch.abort_switch(lake, at(Milliseconds(DEADLINE_MS + 9)), prepared, "another") == aborted


def test_a_fully_acknowledged_switch_is_committed_however_late(lake: Lake, prepared: str) -> None:
    """If the initiator dies before the commit, any process commits at any time, with the leases' timestamp."""
    switch.acknowledge_switch(lake, NOON, TWO_PHASE, prepared, HOSTS)
    with pytest.raises(StateError, match="have acknowledged; commit it"):
        switch.abort_switch(lake, at(DEADLINE_MS), prepared, "a test")
    decided = switch.advance_switch(lake, at(Milliseconds(NOON_MS + 3_600_000)), TWO_PHASE, prepared, "a test")
    assert (decided.phase, decided.time_ms, decided.decided_by) == (SwitchPhase.COMMITTED, TIME_MS, "a test")
    with pytest.raises(StateError, match="a decision is final"):
        switch.abort_switch(lake, at(Milliseconds(NOON_MS + 3_600_000)), prepared, "a test")


def test_a_join_after_an_abort_names_the_next_command(lake: Lake, prepared: str) -> None:
    """If the join restarts after the deadline, the switch is aborted, and the event may be withdrawn."""
    late = at(DEADLINE_MS)
    event = inbox.find_event(lake, generation_id=prepared)
    for _ in range(2):
        with pytest.raises(StateError, match=r"was aborted at .* queue the node again"):
            bootstrap.introduce_generation(lake, late, TWO_PHASE, prepared)
    inbox.withdraw_event(lake, late, event.event_id)
    requeued = inserted(lake, 3, late)
    assert bootstrap.introduce_generation(lake, late, TWO_PHASE, requeued) == DEADLINE_MS + 70_000


def test_a_join_with_an_undecided_switch_is_not_withdrawn(lake: Lake, prepared: str) -> None:
    """Another process may commit the switch at any time."""
    event = inbox.find_event(lake, generation_id=prepared)
    with pytest.raises(StateError, match="is being switched to"):
        inbox.withdraw_event(lake, NOON, event.event_id)


def test_the_first_promise_is_final(lake: Lake, prepared: str) -> None:
    """A lost acknowledgement is repeated unchanged; an expired one is not repeated."""
    switch._record_promises(lake, NOON, switches.find_switch(lake, prepared), {HOSTS[0]: LEASE_END_MS})
    acknowledged = switch.acknowledge_switch(lake, at(Milliseconds(NOON_MS + 7_000)), TWO_PHASE, prepared, HOSTS[:1])
    assert acknowledged.lease_of(HOSTS[0]) == LEASE_END_MS
    switch._record_promises(lake, NOON, acknowledged, {HOSTS[1]: Milliseconds(NOON_MS + 13_000)})
    with pytest.raises(StateError, match="before the acknowledgement"):
        switch.acknowledge_switch(lake, at(Milliseconds(NOON_MS + 8_000)), TWO_PHASE, prepared, HOSTS[1:2])
    assert switches.find_switch(lake, prepared).missing == tuple(HOSTS[1:])


def test_only_participants_acknowledge(lake: Lake, prepared: str) -> None:
    """Only participants of an existing switch can acknowledge; otherwise nothing is promised."""
    with pytest.raises(NotFound, match="is no participant"):
        switch.acknowledge_switch(lake, NOON, TWO_PHASE, prepared, [host(9)])
    with pytest.raises(NotFound, match="there is no switch"):
        switch.acknowledge_switch(lake, NOON, TWO_PHASE, host(9), HOSTS)
    assert not lake.exists(SWITCH_PROMISES)


def test_a_lease_within_the_clock_margin_is_refused(lake: Lake, generation_id: str) -> None:
    """A clock that was just set back could promise a lease no longer than the margin."""
    short = Settings(two_phase_switch=True, switch_lease_ms=Milliseconds(5_000), switch_margin_ms=Milliseconds(5_000))
    with pytest.raises(InputError, match="set switch_lease_ms above switch_margin_ms"):
        bootstrap.introduce_generation(lake, NOON, short, generation_id)
    assert not lake.exists(GENERATION_SWITCHES)


def test_writes_past_the_first_lease_end_wait_for_the_decision(lake: Lake, generation_id: str) -> None:
    """UNDECIDED exactly from the first lease end on; accepted as soon as the switch is decided."""
    bootstrap.introduce_generation(lake, at(Milliseconds(NOON_MS - 600_000)), TWO_PHASE, generation_id)
    bootstrap.admit_node(lake, generation_id)
    row = lake.read(GENERATIONS).to_pylist()[0] | {"published_at": datetime_from_us(Microseconds(0))}
    lake.merge(GENERATIONS, pa.Table.from_pylist([row]), update=True)
    second = inserted(lake, 4)
    hosts = [*HOSTS, host(4)]
    switch.prepare_switch(lake, NOON, TWO_PHASE, second, host(4), hosts)
    assert explain(lake, Milliseconds(NOON_MS + 99_000), Milliseconds(NOON_MS + 95_000)).accepted  # no promise yet
    switch.acknowledge_switch(lake, NOON, TWO_PHASE, second, hosts[1:])
    refused = explain(lake, LEASE_END_MS, LEASE_END_MS)
    assert refused.verdict is WriteVerdict.UNDECIDED
    assert "a generation switch is undecided since 2023-11-14T22:13:20.000Z; " in refused.reason
    assert f"cdc-platform switch show {second}" in refused.reason
    assert explain(lake, Milliseconds(LEASE_END_MS - 1), Milliseconds(LEASE_END_MS - 1)).accepted
    switch.abort_switch(lake, at(LEASE_END_MS), second, "a test")
    assert explain(lake, LEASE_END_MS, LEASE_END_MS).accepted


def test_a_committed_generation_counts_before_it_is_in_the_ledger(lake: Lake, prepared: str) -> None:
    """The switch is the decision: a later write uses the generation even if the join was killed right then."""
    switch.advance_switch(lake, NOON, TWO_PHASE, prepared, "a test")
    answer = explain(lake, TIME_MS, TIME_MS)
    assert (answer.verdict, answer.generation and answer.generation.id) == (WriteVerdict.OK, prepared)
    assert explain(lake, Milliseconds(TIME_MS - 1), Milliseconds(TIME_MS - 1)).verdict is WriteVerdict.NO_STREAM


def test_a_decision_during_explain_is_not_missed(lake: Lake, prepared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a commit between two reads, the write waits or uses the new generation, but never none."""
    switch.acknowledge_switch(lake, NOON, TWO_PHASE, prepared, HOSTS)
    read = generations.read_ledger

    def commit_and_read(*arguments: Any) -> Any:
        monkeypatch.undo()
        switch.commit_switch(lake, NOON, TWO_PHASE, prepared, "a test")
        return read(*arguments)

    operating(lake, (1, 2), Milliseconds(NOON_MS - 600_000))
    monkeypatch.setattr(generations, "read_ledger", commit_and_read)
    assert explain(lake, TIME_MS, TIME_MS).verdict is WriteVerdict.UNDECIDED
    answer = explain(lake, TIME_MS, TIME_MS)
    assert (answer.verdict, answer.generation and answer.generation.id) == (WriteVerdict.OK, prepared)


def test_a_concurrently_written_row_is_reread(lake: Lake, prepared: str) -> None:
    """If another writer commits in between, the rule runs again, and both rows remain."""
    calls: list[int] = []

    def rule(rows: pa.Table) -> pa.Table:
        calls.append(rows.num_rows)
        if len(calls) == 1:
            switch.acknowledge_switch(lake, NOON, TWO_PHASE, prepared, HOSTS[:1])
        row = rows.to_pylist()[0]
        return pa.Table.from_pylist([row | {"generation_id": host(8), "phase": "aborted"}], schema=rows.schema)

    lake.transact(GENERATION_SWITCHES, rule)
    assert calls == [1, 1]
    assert len(switches.read_switches(lake)) == 2
    assert switches.find_switch(lake, prepared).lease_of(HOSTS[0]) == LEASE_END_MS


RACER = """
import sys
from pathlib import Path
from cdc_platform.clock import Clock
from cdc_platform.errors import StateError
from cdc_platform.delta.lake import Lake
from cdc_platform.lifecycle import switch as switching
from cdc_platform.metastore import switches
from cdc_platform.settings import Settings
lake, settings, (now_us, by) = Lake(sys.argv[1]), Settings(two_phase_switch=True), sys.argv[2:]
print("ready", flush=True)
for generation in sys.stdin:
    try:
        switching.advance_switch(lake, Clock(int(now_us)), settings, generation.strip(), by)
    except StateError:
        pass
    switch = switches.find_switch(lake, generation.strip())
    print(switch.phase, switch.time_ms, switch.decided_by, flush=True)
"""


def test_two_concurrent_deciders_read_one_decision(lake: Lake, tmp_path: Path) -> None:
    """One process is past the deadline and the other is not; they agree on one decision each time."""
    ring_of(lake, (1, 2))
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(lake.root), str(us_from_ms(Milliseconds(now))), by],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for now, by in ((DEADLINE_MS - 1, "in time"), (DEADLINE_MS, "too late"))
    ]
    winners = []
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for number in range(3, 9):
            generation_id = inserted(lake, number)
            switch.prepare_switch(lake, NOON, TWO_PHASE, generation_id, host(number), [*HOSTS[:2], host(number)])
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write(f"{generation_id}\n")
                racer.stdin.flush()
            outputs = [racer.stdout.readline() for racer in racers if racer.stdout is not None]
            final = switches.find_switch(lake, generation_id)
            expected = f"{final.phase} {final.time_ms} {final.decided_by}\n"
            assert final.is_decided
            assert set(outputs) == {expected}
            winners.append(final.decided_by)
    finally:
        for racer in racers:
            racer.communicate()
    assert set(winners) <= {"in time", "too late"}
    assert [racer.returncode for racer in racers] == [0, 0]

"""Invalid requests to the two-phase switch: each is one line with the error and the remedy, and changes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.command_line import run
from support.files.bad_input import Case, argument, assert_refused
from support.worlds.switch_lake import NOON, NOON_MS, TWO_PHASE, host, inserted, ring_of

from cdc_platform.clock import Clock, Milliseconds, format_ms, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.home_location import open_home_location
from cdc_platform.lifecycle import switch
from cdc_platform.metastore import inbox

HOSTS = [host(number) for number in (1, 2, 3)]
UNKNOWN = host(99)
IN_TIME, LATE = format_ms(Milliseconds(NOON_MS + 1_000)), format_ms(Milliseconds(NOON_MS + 30_000))
# The switch of a case: {waiting} lacks two acknowledgements, {aborted} is aborted.
CASES = [
    argument("a generation that is neither", "is neither a generation's UUID nor its time", "switch", "show", "newest"),
    argument("a generation without a switch", f"there is no switch to generation {UNKNOWN}", "switch", "show", UNKNOWN),
    argument(
        "a time without a switch",
        "there is no switch to generation 2026-01-31T12:00:00.000Z",
        *("switch", "show", "2026-01-31T12:00:00Z"),
    ),
    argument("no such step", "No such command 'prepare'", "switch", "prepare", UNKNOWN),
    argument("commit without a generation", "Missing argument 'GENERATION'", "switch", "commit"),
    argument("abort without a generation", "Missing argument 'GENERATION'", "switch", "abort"),
    argument("an answer of nobody", "Missing option '--node'", "switch", "ack", "{waiting}"),
    argument("an answer of no UUID", "'first' is not a valid UUID", "switch", "ack", "{waiting}", "--node", "first"),
    argument(
        "an answer of a stranger", f"host {UNKNOWN} is no participant", "switch", "ack", "{waiting}", "--node", UNKNOWN
    ),
    argument("an answer to nothing", "there is no switch", "switch", "ack", UNKNOWN, "--node", HOSTS[0]),
    argument(
        "an answer after the deadline",
        "the deadline of the switch to",
        *("--clock", LATE, "switch", "ack", "{waiting}", "--node", HOSTS[1]),
    ),
    argument("an answer to a decision", "too late to acknowledge", "switch", "ack", "{aborted}", "--node", HOSTS[1]),
    argument("commit without all answers", "2 of 3 participants have not", "switch", "commit", "{waiting}"),
    argument("commit of what is aborted", "a decision is final", "switch", "commit", "{aborted}"),
    argument("commit of nothing", "there is no switch", "switch", "commit", UNKNOWN),
    argument("abort before the deadline", "from its deadline on", "--clock", IN_TIME, "switch", "abort", "{waiting}"),
    argument("abort of nothing", "there is no switch", "switch", "abort", UNKNOWN),
    argument("withdrawing what is switched to", "is being switched to", "bootstrap", "--withdraw", "{event}"),
    Case(
        "a lease not longer than the margin",
        ("--clock", IN_TIME, "switch", "commit", "{waiting}"),
        "set switch_lease_ms above switch_margin_ms",
        {"settings.toml": "switch_lease_ms = 5000\nswitch_margin_ms = 5000\n"},
    ),
    Case(
        "a lease of no time",
        ("switch", "commit", "{waiting}"),
        "switch_lease_ms: Input should be greater than or equal to 1000",
        {"settings.toml": "switch_lease_ms = 10\n"},
    ),
]


@pytest.fixture(scope="module")
def switched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A home with an aborted switch and one without two acknowledgements, and the cases' names for them."""
    home = open_home_location(tmp_path_factory.mktemp("switched") / "home")
    lake = Lake(home.lake)
    ring_of(lake, (1, 2))
    aborted = inserted(lake, 4)
    switch.prepare_switch(lake, NOON, TWO_PHASE, aborted, host(4), [*HOSTS[:2], host(4)])
    switch.abort_switch(lake, Clock(us_from_ms(Milliseconds(NOON_MS + 30_000))), aborted, "a test")
    waiting = inserted(lake, 3)
    switch.prepare_switch(lake, NOON, TWO_PHASE, waiting, HOSTS[2], HOSTS)
    switch.acknowledge_switch(lake, NOON, TWO_PHASE, waiting, HOSTS[:1])
    event = inbox.find_event(lake, generation_id=waiting).event_id
    return home.path, {"{aborted}": aborted, "{waiting}": waiting, "{event}": event}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_requests_are_refused(case: Case, switched: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    """One line, exit code 2, no write."""
    home, names = switched
    if case.files:
        home = shutil.copytree(home, tmp_path / "home")
        for name, text in case.files.items():
            assert isinstance(text, str)
            (home / name).write_text(text, encoding="utf-8")
    args = tuple(names.get(arg, arg) for arg in case.args)
    assert_refused(Case(case.name, args, case.says), home, tmp_path)


def test_showing_needs_a_home(tmp_path: Path) -> None:
    """A missing home is refused and not created."""
    answer = run("--home", tmp_path / "none", "switch", "show")
    assert (answer.exit_code, "does not exist" in answer.stderr) == (2, True)
    assert not (tmp_path / "none").exists()

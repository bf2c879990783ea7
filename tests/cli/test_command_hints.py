"""Commands in messages name the given home, so that a user can paste them unchanged."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support.command_line import run
from support.homes.questions import HOME, home_for

from cdc_platform.cli.command_hints import add_home_option


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run: cdc-platform check", "run: cdc-platform --home '/a b' check"),
        (
            "cdc-platform check, then cdc-platform expire",
            "cdc-platform --home '/a b' check, then cdc-platform --home '/a b' expire",
        ),
        ("cdc-platform --home /other check", "cdc-platform --home /other check"),
        ("cdc-platform observe prod", "cdc-platform --home '/a b' observe prod"),
        ("the cdc-platform up that has ended", "the cdc-platform --home '/a b' up that has ended"),
        ("x/cdc-platform check of my-cdc-platform check", "x/cdc-platform check of my-cdc-platform check"),
        ("cdc-platform checkers, cdc-platform check-up", "cdc-platform checkers, cdc-platform check-up"),
        ("no command", "no command"),
    ],
)
def test_a_command_in_a_text_gets_the_home(text: str, expected: str) -> None:
    """Each command of the program without a home gets the option, quoted for a shell; other text is unchanged."""
    assert add_home_option(text, "/a b") == expected


def test_without_the_option_nothing_is_added() -> None:
    """A user who relies on the environment or the default home can continue to do so."""
    assert add_home_option("run: cdc-platform check", None) == "run: cdc-platform check"


def test_commands_on_clusters_run_in_the_home_that_registers_them() -> None:
    """In a cluster's mirror, `observe` names the registering home, and `check` the mirror itself."""
    mirror = "/srv/home/clusters/prod"
    assert add_home_option("cdc-platform observe prod", mirror) == "cdc-platform --home /srv/home observe prod"
    assert (
        add_home_option("cdc-platform cluster test prod", mirror) == "cdc-platform --home /srv/home cluster test prod"
    )
    assert add_home_option("cdc-platform check", mirror) == f"cdc-platform --home {mirror} check"


@pytest.mark.parametrize(
    ("home_name", "words", "code"),
    [
        ("gossiped alone", ("status",), 1),
        ("gossiped alone", ("status", "--json"), 1),
        ("gossiped alone", ("consume", "ks.nothing", "--name", "reader"), 2),
        ("gossiped alone", ("check",), 1),
        ("gossiped alone", ("repair", "--dry-run"), 1),
        ("empty cluster", ("expire", "--forecast", "3"), 0),
        ("empty cluster", ("status",), 0),
        ("empty cluster", ("observe", "nobody"), 2),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else str(part),
)
def test_every_printed_command_names_the_home(
    tmp_path: Path, home_name: str, words: tuple[str, ...], code: int
) -> None:
    """Each command in results, `next:` lines, warnings and errors includes the home."""
    home = home_for(tmp_path, home_name) / HOME
    answer = run("--home", home, *words)
    assert answer.exit_code == code, answer
    text = answer.stdout + answer.stderr
    commands = len(re.findall(r"(?<![./])cdc-platform ", text))
    assert commands == text.count(f"cdc-platform --home {shlex.quote(str(home))} ") > 0, text

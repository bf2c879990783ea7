"""The documents are true: the README's commands run as written, in order; links resolve, and lists are complete."""

from __future__ import annotations

import json
import os
import re
import subprocess
import textwrap
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pytest

from cdc_platform.checks import GENERATION_INVARIANTS, INVARIANT_FAMILIES
from cdc_platform.checks.judge import summary_model
from cdc_platform.cli import program
from cdc_platform.cli.commands import COMMANDS
from cdc_platform.importing import parse_join_request
from cdc_platform.settings import Settings
from cdc_platform.spark import ConnectServer
from cdc_platform.tables import TABLES

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read_document(name: str) -> str:
    """Return the text of a document of the project."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language, including those within list items."""
    matched = re.findall(rf"^ *```{language}\n(.*?)^ *```$", text, flags=re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for block in matched]


def checks_by_name(invariants: Sequence[str]) -> dict[str, Any]:
    """Return the checks of the summary model of these invariants, by name."""
    return {check.name: check for check in summary_model(tuple(invariants)).checks}


def commands() -> list[str]:
    """Return the commands of the README, in order; blocks marked `sh` run longer than a test may."""
    lines = [line for block in blocks(read_document("README.md"), "console") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def test_the_first_two_commands_come_first() -> None:
    """The README shows the demo and the tests before anything else."""
    typed = re.findall(r"^(?:\$ )?(make \w+)$", read_document("README.md"), flags=re.MULTILINE)
    assert typed[:2] == ["make demo", "make test"]
    readme = read_document("README.md")
    assert readme.index("make test\n") < readme.index("\n## ")


def clone(folder: Path) -> None:
    """Make a folder look like a clone with a complete installation.

    The installation must not be older than its sources, or `make` would install from this folder.
    """
    for name in (".venv", "docs", "Makefile"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("pyproject.toml", "requirements.lock"):
        (folder / name).touch()
        os.utime(folder / name, (0, 0))


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.skipif(not (ROOT / ".venv" / ".installed").exists(), reason="the README's commands need make .venv")
@pytest.mark.long("all that the README tells to type, with a process for each line")
def test_the_tour_runs_as_written(tmp_path: Path, server: ConnectServer) -> None:
    """Every command of the README works as typed, in order, from the project's root."""
    clone(tmp_path)
    env = {**os.environ, **server.environment}  # one warm Spark for all of them: the embedded one has its own tests
    env.pop("CDC_PLATFORM_HOME", None)
    printed = []
    for command in commands():
        ran = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"$ {command}\n{ran.stdout}\n{ran.stderr}"
        printed.append(ran.stdout)
    assert "What to try next" in printed[0]
    assert "exit code 1" in "".join(printed)
    assert (tmp_path / ".cdc-platform" / "platform.json").is_file()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_resolve(document: Path) -> None:
    """Every relative link and picture of a document exists."""
    links = re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8"))
    relative = [link for link in links if "://" not in link]
    assert [link for link in relative if not (document.parent / link).exists()] == []


def documented_commands(text: str) -> list[list[str]]:
    """Return the words of each command that a document shows, in blocks or in inline code."""
    lines = re.findall(r"^ *(?:\$ )?(?:\.venv/bin/)?cdc-platform (.+)$", text, flags=re.MULTILINE)
    spans = [span.removeprefix("cdc-platform ") for span in re.findall(r"`([^`\n]+)`", text)]
    lines += [span for span in spans if span.partition(" ")[0] in COMMANDS and " " in span]
    return [re.split(r"\s(?:>|#|&&)", line)[0].replace("|", " ").split() for line in lines]


def unknown_words(words: Sequence[str]) -> list[str]:
    """Return the subcommands and options in a command's words that the program does not have."""
    command: click.Command = program
    flags = {"--help": True, "--version": True}
    unknown, is_value = [], False
    for word in words:
        options = [option for option in command.params if isinstance(option, click.Option)]
        flags |= {name: option.is_flag for option in options for name in (*option.opts, *option.secondary_opts)}
        name = word.partition("=")[0].rstrip(".,")
        if is_value:
            is_value = False
        elif word.startswith("--"):
            unknown += [word] if name not in flags else []
            is_value = not flags.get(name, True) and "=" not in word
        elif isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z-]*", word):
            subcommand = command.get_command(click.Context(command), word)
            unknown += [word] if subcommand is None else []
            command = command if subcommand is None else subcommand
    return unknown


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documented_options_exist(document: Path) -> None:
    """Every option in a documented command is an option of that command or of the program."""
    documented = documented_commands(document.read_text(encoding="utf-8"))
    wrong = {" ".join(words): unknown for words in documented if (unknown := unknown_words(words))}
    assert wrong == {}


def test_documented_options_are_found() -> None:
    """The parser of documents finds commands in blocks and in text, and unknown options and subcommands."""
    block = "```console\n$ cdc-platform --home x tables add ks.t --tll 1\n```\n"
    text = block + "Use `import --mend`, `consumers forget x` or `status`."
    assert [unknown_words(words) for words in documented_commands(text)] == [["--tll"], ["--mend"], ["forget", "x"]]


def test_every_picture_is_used() -> None:
    """Every picture is shown by a document."""
    texts = "".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    assert [path.name for path in (ROOT / "docs" / "images").glob("*.png") if path.name not in texts] == []


def test_every_command_is_documented() -> None:
    """The page of the command line has a row for each command, and no others."""
    rows = re.findall(r"^\| `(\w[\w-]*)[^`]*` \|", read_document("docs/command-line.md"), flags=re.MULTILINE)
    assert set(rows) == set(COMMANDS) - {"completion"}


def test_every_invariant_is_documented() -> None:
    """Each family's page has a row per invariant in the words of the model's check; generations' in judging order."""
    for family in INVARIANT_FAMILIES:
        descriptions = {str(name): check.description for name, check in checks_by_name(family.invariants).items()}
        page = read_document(family.page)
        assert list(descriptions) == list(family.invariants)
        assert [
            name for name, description in descriptions.items() if f"\n| `{name}` | {description}" not in page
        ] == [], family.page
    rows = re.findall(r"^\| `(\w+)` \|", read_document("docs/generations.md"), flags=re.MULTILINE)
    assert [row for row in rows if row in GENERATION_INVARIANTS] == list(GENERATION_INVARIANTS)


def test_every_table_is_documented() -> None:
    """The page of the model describes exactly the existing tables."""
    rows = re.findall(r"^\| (`\w+\.\w+`(?:, `\w+\.\w+`)*) \|", read_document("docs/generations.md"), flags=re.MULTILINE)
    named = set(re.findall(r"\w+\.\w+", " ".join(rows)))
    assert named - {"KS.T_scylla_cdc_log"} == set(TABLES)


def test_documented_settings_are_the_defaults() -> None:
    """The settings file on the operator's page equals the defaults."""
    (block,) = blocks(read_document("docs/operating.md"), "toml")
    assert tomllib.loads(block) == json.loads(json.dumps(asdict(Settings())))  # TOML and JSON have lists but no tuples


def test_documented_node_can_join() -> None:
    """`bootstrap` accepts the node that the documents describe."""
    (block,) = blocks(read_document("docs/command-line.md"), "json")
    assert parse_join_request(block).num_tokens == 256
    assert parse_join_request(read_document("docs/examples/node.json")).num_tokens == 256

"""The pages of docs/questions are true: each runs its commands on a home with the problem, and shows what they say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from support.command_line import run
from support.homes.questions import PROBLEMS, home_for

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "questions"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
SKIPS = "..."
"""A line of it stands for any lines, within a line for any part of it."""


@dataclass(frozen=True)
class Shown:
    """A command as a page shows it, with what it writes and how it leaves."""

    command: list[str]
    lines: list[str]
    exit_code: int


def shown(page: Path) -> Iterator[Shown]:
    """Every command of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```console\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            told = [found for line in lines if (found := re.fullmatch(r"exit code (\d+)", line))]
            said = [line for line in lines if not re.fullmatch(r"exit code \d+", line)]
            yield Shown(shlex.split(command), said, int(told[0][1]) if told else 0)


def words(line: str) -> str:
    """A line without what depends on how wide a table is."""
    return " ".join(line.replace("─", "").split())


def pattern(lines: list[str]) -> str:
    """What the words of an output have to match, all of it."""
    parts = []
    for line in filter(None, map(words, lines)):
        if line == SKIPS:
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*".join(map(re.escape, line.split(SKIPS))) + r"\n")
    return "".join(parts)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a home by its name, made when the first page asks for it."""
    folder, made = tmp_path_factory.mktemp("questions"), {}

    def made_once(name: str) -> Path:
        if name not in made:
            made[name] = home_for(folder, name)
        return made[name]

    return made_once


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_says_what_its_commands_say(
    page: Path, place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the home that it names each command leaves with that exit code and writes the lines shown, in that order."""
    (name,) = re.findall(r"^<!-- home: (.+) -->$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    monkeypatch.chdir(place(name))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("CDC_PLATFORM_HOME", raising=False)
    commands = list(shown(page))
    assert commands, "the page runs nothing"
    for each in commands:
        program, *arguments = each.command
        assert program == "cdc-platform"
        assert [line for line in each.lines if words(line) not in ("", SKIPS)], "the page shows nothing"
        answer = run(*arguments)
        said = "\n".join(words(line) for line in (answer.stdout + answer.stderr).splitlines() if words(line)) + "\n"
        assert re.fullmatch(pattern(each.lines), said), f"$ {shlex.join(each.command)}\n{answer.stdout}{answer.stderr}"
        assert answer.exit_code == each.exit_code


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_is_found_and_ends_with_what_to_do(page: Path) -> None:
    """Its title is a question, the index links it by that title, and it explains the output and what to do."""
    text = page.read_text(encoding="utf-8")
    title, _, purpose = text.splitlines()[:3]
    assert re.fullmatch(r"# [A-Z].+\?", title)
    assert re.fullmatch(r"[A-Z].+", purpose)
    assert f"[{title.removeprefix('# ')}]({page.name})" in (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == ["Run", "What it means", "What to do"]
    run_at, means_at, do_at = (text.find(f"\n## {heading}\n") for heading in ("Run", "What it means", "What to do"))
    assert run_at < text.find("```console") < text.rfind("```") < means_at < do_at


def test_every_question_has_its_page() -> None:
    """The 28 questions that people were heard to ask of generations, each with a page of its own in the index."""
    assert len(PAGES) == 28


def test_the_index_lists_pages_that_are_there() -> None:
    """No link of the index leads nowhere, and no home was made for no page."""
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(page.name for page in PAGES)
    heads = {re.search(r"<!-- home: (.+) -->", page.read_text(encoding="utf-8")) for page in PAGES}
    assert {head[1] for head in heads if head} == set(PROBLEMS)


def test_a_line_that_is_not_said_is_found_out() -> None:
    """The comparison tells an output from one that differs in a word, lacks a line or has one more."""
    said = "one 1\ntwo 2\nthree 3\n"
    assert re.fullmatch(pattern(["one   1", "...", "three ..."]), said)
    wrong = [["one 1", "three 3"], ["one 1", "..."], ["two 2", "...", "one 1"], ["...", "four 4"], ["one", "..."]]
    assert [bool(re.fullmatch(pattern(lines), said)) for lines in wrong] == [False, True, False, False, False]
    assert all(earlier != later for earlier, later in pairwise(wrong))

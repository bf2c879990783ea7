"""Run the commands of each page in docs/questions on an example home, and compare their output with the page."""

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
"""As a whole line it matches any lines, within a line any text."""


@dataclass(frozen=True)
class DocumentedCommand:
    """A command of a page, with its output and exit code."""

    command: list[str]
    lines: list[str]
    exit_code: int


def read_commands(page: Path) -> Iterator[DocumentedCommand]:
    """Yield every command of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```console\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            exit_codes = [code for line in lines if (code := re.fullmatch(r"exit code (\d+)", line))]
            output = [line for line in lines if not re.fullmatch(r"exit code \d+", line)]
            yield DocumentedCommand(shlex.split(command), output, int(exit_codes[0][1]) if exit_codes else 0)


def words(line: str) -> str:
    """Return a line without rules and column padding."""
    return " ".join(line.replace("─", "").split())


def pattern(lines: list[str]) -> str:
    """Return the regular expression that the whole output has to match."""
    parts = []
    for line in filter(None, map(words, lines)):
        if line == SKIPS:
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*".join(map(re.escape, line.split(SKIPS))) + r"\n")
    return "".join(parts)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of an example home by name; the first page that uses it creates it."""
    folder, homes = tmp_path_factory.mktemp("questions"), {}

    def home_by_name(name: str) -> Path:
        if name not in homes:
            homes[name] = home_for(folder, name)
        return homes[name]

    return home_by_name


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_shows_the_output_of_its_commands(
    page: Path, place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the home that the page names, each command has the exit code and the lines shown, in that order."""
    (name,) = re.findall(r"^<!-- home: (.+) -->$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    monkeypatch.chdir(place(name))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("CDC_PLATFORM_HOME", raising=False)
    commands = list(read_commands(page))
    assert commands, "the page runs nothing"
    for example in commands:
        program, *arguments = example.command
        assert program == "cdc-platform"
        assert [line for line in example.lines if words(line) not in ("", SKIPS)], "the page shows nothing"
        answer = run(*arguments)
        output = "\n".join(words(line) for line in (answer.stdout + answer.stderr).splitlines() if words(line)) + "\n"
        assert re.fullmatch(pattern(example.lines), output), (
            f"$ {shlex.join(example.command)}\n{answer.stdout}{answer.stderr}"
        )
        assert answer.exit_code == example.exit_code


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
    """There are 28 questions, each with its own page."""
    assert len(PAGES) == 28


def test_the_index_lists_pages_that_are_there() -> None:
    """The index links every page once, and every example home is used by a page."""
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(page.name for page in PAGES)
    heads = {re.search(r"<!-- home: (.+) -->", page.read_text(encoding="utf-8")) for page in PAGES}
    assert {head[1] for head in heads if head} == set(PROBLEMS)


def test_a_line_that_differs_from_the_output_is_found() -> None:
    """The comparison detects a changed word, a missing line and an extra line."""
    output = "one 1\ntwo 2\nthree 3\n"
    assert re.fullmatch(pattern(["one   1", "...", "three ..."]), output)
    wrong = [["one 1", "three 3"], ["one 1", "..."], ["two 2", "...", "one 1"], ["...", "four 4"], ["one", "..."]]
    assert [bool(re.fullmatch(pattern(lines), output)) for lines in wrong] == [False, True, False, False, False]
    assert all(earlier != later for earlier, later in pairwise(wrong))

"""Every command on a home in an object store answers as on an equal home in a folder, and leaves the same rows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support.command_line import Answer, paths_of, run
from support.homes.every_command import CASES, Asked, ask, home_of, path_of, rows_of, write_files
from support.homes.expiring import iso
from support.standin.cluster import FIRST_MS as BEGUN_MS
from support.standin.cluster import StandIn, description
from support.standin.live_log import LiveLog, defined
from support.standin.world import time_uuid
from support.store.s3 import S3

from cdc_platform.cli import program
from cdc_platform.clock import MINUTE_MS, Milliseconds, us_from_ms
from cdc_platform.delta import Lake

_LIVE_DDL = "CREATE TABLE shop.u (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true', 'ttl': '0'};"
CLUSTER_COMMANDS = (
    "cluster add prod --contact {contact} --user-env CDC_TEST_USER --password-env CDC_TEST_PASSWORD",
    "cluster",
    "cluster test prod",
    "observe prod",
    "observe prod",
    "watch prod --polls 1 --json",
    "ingest prod shop.u --by streams",
    "ingest prod shop.u --by streams",
    "cluster replace prod",
    "observe prod",
    "cluster remove prod",
)
"""The commands run in this order."""
ELSEWHERE = {
    "up": ("tests/storage/test_up_with_store.py", '"up"'),
    "demo": ("tests/support/spark/demo.py", '_run(address, "demo")'),
    "completion": ("tests/cli/test_main.py", '"completion"'),
    "help": ("tests/cli/test_main.py", '"help"'),
}
"""Commands that other files test, with the text that shows it there; they start servers, or need no home."""
WIDE = "400"
"""Columns of a terminal that is wide enough for any path of a home."""


def test_every_command_is_covered() -> None:
    """A new command has a case here, or another file that tests it."""
    known = paths_of(program)
    live = {path_of(line) for line in CLUSTER_COMMANDS}
    assert {path_of(case.line) for case in CASES} | live | ELSEWHERE.keys() == known
    root = Path(__file__).resolve().parents[2]
    assert all(words in (root / file).read_text(encoding="utf-8") for file, words in ELSEWHERE.values())


@pytest.mark.grid("commands in a store", 3)
@pytest.mark.parametrize("asked", CASES, ids=str)
def test_command_answers_as_in_a_folder(asked: Asked, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code and output are equal except for drawn values; afterwards the tables have the same rows."""
    monkeypatch.setenv("COLUMNS", WIDE)
    work_folder = tmp_path / "place"
    work_folder.mkdir()
    folder = home_of(asked, work_folder)
    write_files(tmp_path / "before", folder.parent)
    for line in asked.behind:
        assert ask(line, asked.ms, str(folder), tmp_path / "before").exit_code == 0, line
    stored = f"{s3.bucket()}/home"
    copied = run("--home", folder, "home", "copy", folder, stored)
    assert copied.exit_code == 0, copied
    answers = {}
    for home, name in ((str(folder), "here"), (stored, "there")):
        write_files(tmp_path / name, folder.parent)
        answer = ask(asked.line, asked.ms, home, tmp_path / name)
        assert answer.exit_code in (0, 1), answer  # two refusals show nothing
        answers[name] = _words(answer, home, tmp_path / name)
    assert answers["there"] == answers["here"]
    assert rows_of(Lake(f"{stored}/lake")) == rows_of(Lake(folder / "lake"))


@pytest.mark.cassandra
def test_live_cluster_is_ingested_as_into_a_folder(
    s3: S3, standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Observe, watch, ingest, replace and remove give the same output, and the same rows in its home."""
    monkeypatch.setenv("COLUMNS", WIDE)
    log = LiveLog(standin.world, defined(_LIVE_DDL), {BEGUN_MS: description(time_uuid(BEGUN_MS))}).make()
    log.write([us_from_ms(BEGUN_MS) + offset for offset in range(20)])
    contact = standin.connection().contacts[0]
    answers, tables = {}, {}
    for home, name in ((str(tmp_path / "home"), "here"), (f"{s3.bucket()}/home", "there")):
        answers[name] = []
        for line in CLUSTER_COMMANDS:
            words = shlex.split(line.format(contact=contact))
            answer = run("--home", home, "--clock", iso(Milliseconds(BEGUN_MS + MINUTE_MS)), *words)
            assert answer.exit_code in (0, 1), answer
            answers[name].append((line, *_words(answer, home, tmp_path)))
            if line.startswith("ingest"):
                tables[name] = rows_of(Lake(f"{home}/clusters/prod/lake"))
    assert answers["there"] == answers["here"]
    assert tables["there"] == tables["here"]
    assert len(tables["here"]["shop.u_scylla_cdc_log"]) == len(log.written_keys())


def _words(answer: Answer, home: str, files: Path) -> tuple[int, str]:
    """Return the output of a command without values that differ between any two homes."""
    text = "\n".join(" ".join(line.split()) for line in (answer.stdout + answer.stderr).splitlines())
    for known, name in ((home, "HOME"), (str(files), "FILES")):
        text = text.replace(known, name)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
    text = re.sub(r"\.(until|since)-\w+", "", text)  # a folder is moved away; in a store the new home gets another name
    text = re.sub(r"\d[\d,]*(\.\d+)? (rows|requests)/s", "-", text)
    return answer.exit_code, re.sub(
        r"─+|\d+(\.\d+)? (s|ms|KiB|MiB|B)\b|\b\d+\.\d{1,3}(?=$| \d{4}-)", "-", text, flags=re.MULTILINE
    )

"""What is packed for whoever is asked next: everything that is told, nothing that is secret."""

from __future__ import annotations

import json
import stat
import tarfile
from pathlib import Path

import pytest
from support.command_line import run
from support.homes.timelines import FIRST_MS, home_of, uuid_of

from cdc_platform.blotting import blotted
from cdc_platform.clock import format_ms


def test_it_holds_what_is_told_of_the_home(tmp_path: Path) -> None:
    """Status, findings, versions, settings, the ends of logs; for its owner alone."""
    home = home_of(tmp_path, "named_by_node")
    (home / "logs").mkdir()
    (home / "logs" / "spark.log").write_text("begin\n" + "x" * 400_000 + "\nthe end, token=geheim\n", encoding="utf-8")
    file = tmp_path / "incident.tar.gz"
    answer = run("--home", home, "--clock", format_ms(FIRST_MS), "bundle", file, "--json")
    assert answer.exit_code == 0, answer.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with tarfile.open(file) as packed:
        files = {name: packed.extractfile(name) for name in packed.getnames()}
        texts = {name: file.read().decode() for name, file in files.items() if file is not None}
    assert set(texts) == set(files) == {f"incident/{name}" for name in answer.json["holds"]}
    status = json.loads(texts["incident/status.json"])
    assert next(each["code"] for each in status["next"]) == "not-retrievable"
    assert status["generations"]["operating"]["id"] == uuid_of(FIRST_MS)
    versions = json.loads(texts["incident/versions.json"])
    assert versions["tables"]["platform.generations"] >= 0
    assert versions["packages"]["deltalake"]
    assert json.loads(texts["incident/findings.json"]) == []
    log = texts["incident/logs/spark.log"]
    assert log.endswith("the end, token=***\n")
    assert len(log) <= 256 * 1024
    assert "geheim" not in "".join(texts.values())
    again = run("--home", home, "bundle", file)
    assert (again.exit_code, "is there already" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET /?token=abc123&x=1", "GET /?token=***&x=1"),
        ('"password": "hunter2", "user": "u"', '"password": "***", "user": "u"'),
        ("Authorization: Bearer ey.J.x done", "Authorization: Bearer *** done"),
        ("sent Bearer ey.J.x", "sent Bearer ***"),
        ("cassandra_passwd = s3cret", "cassandra_passwd = ***"),
        ("at https://u:p@host/x", "at https://***@host/x"),
        ("token 42 lies in range 7", "token 42 lies in range 7"),
        ("10 tokens, 3 shards", "10 tokens, 3 shards"),
    ],
)
def test_what_is_secret_is_blotted_out(text: str, shown: str) -> None:
    """What stands behind a word that announces it; the tokens of the ring are none."""
    assert blotted(text) == shown

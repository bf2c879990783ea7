"""A clock that no generation can start after: refused before anything is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import run

NODE = {
    "host_id": "904ce865-9c82-5920-853d-ed9a525bfa74",
    "address": "127.0.0.1",
    "datacenter": "dc",
    "rack": "r",
    "num_tokens": 4,
    "shard_count": 2,
    "ignore_msb": 12,
}


@pytest.mark.parametrize("options", [(), ("--run",)])
def test_a_refused_clock_leaves_nothing_behind(tmp_path: Path, options: tuple[str, ...]) -> None:
    """No home and no event in the inbox, with --run and without."""
    (tmp_path / "node.json").write_text(json.dumps(NODE))
    where = ("--home", tmp_path / "home", "--clock", "9999-12-31T23:59:59Z")
    answer = run(*where, "bootstrap", tmp_path / "node.json", *options)
    assert answer.exit_code == 2
    assert "set --clock back" in answer.stderr
    assert not (tmp_path / "home").exists()

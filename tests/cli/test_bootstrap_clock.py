"""A clock after which no generation can start is refused before anything is created."""

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
    """Neither a home nor an event in the inbox is created, with --run and without."""
    (tmp_path / "node.json").write_text(json.dumps(NODE))
    global_options = ("--home", tmp_path / "home", "--clock", "9999-12-31T23:59:59Z")
    answer = run(*global_options, "bootstrap", tmp_path / "node.json", *options)
    assert answer.exit_code == 2
    assert "set --clock back" in answer.stderr
    assert not (tmp_path / "home").exists()

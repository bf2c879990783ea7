"""A home with a ring, a queued join and two imported generations, and the program on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Answer, Cli, run
from support.files.export_files import ID, LATER_MS, OTHER_ID, SNAPSHOT, TIME_MS
from support.homes.imported import home_with_generations

JOINING = {
    "host_id": "33333333-3333-4333-8333-333333333333",
    "address": "127.0.0.3",
    "datacenter": "dc1",
    "rack": "r1",
    "tokens": [33, -33],
    "shard_count": 4,
    "ignore_msb": 12,
}


@pytest.fixture(scope="session")
def seeded_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two nodes, a third that waits to join, and two generations; created once and only read."""
    folder = tmp_path_factory.mktemp("seeded")
    home = home_with_generations(folder, {ID: TIME_MS, OTHER_ID: LATER_MS}, ring=json.dumps(SNAPSHOT))
    (folder / "joining.json").write_text(json.dumps(JOINING), encoding="utf-8")
    answer = run("--home", home, "bootstrap", folder / "joining.json")
    assert answer.exit_code == 0, answer.stderr
    return home


@pytest.fixture
def cli(seeded_home: Path) -> Cli:
    """The program on the seeded home."""

    def on_seeded_home(*args: str | Path, **options: Any) -> Answer:
        return run("--home", seeded_home, *args, **options)

    return on_seeded_home

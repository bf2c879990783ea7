"""The expected result in a home of a cluster: the same as one process leaves in a second home."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from support.command_line import run
from support.nodes import node_text
from support.read_logs import home_with_log, schema
from support.spark import client

from cdc_platform.cdclog import log_table
from cdc_platform.cdclog.batch_encoder import encode_log_batch
from cdc_platform.delta import Lake
from cdc_platform.delta.paths import LOG_FOLDER
from cdc_platform.storage import ObjectStorePath, parse_path
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2, TOPOLOGY_DESCRIPTIONS, Table
from cdc_platform.timeline import StreamSources

CLOCK = "2026-01-01T00:00:00Z"
NODE = "node.json"
CLIENT = Path(client.__file__)
"""The script of a client that runs no command of the platform."""


class Twins:
    """The same join in two homes: completed in a local home by this process, and queued in a home in a store.

    `join` are the arguments of a client that completes it there, in the folder of the local home.
    """

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self.join = ("-m", "cdc_platform", "--home", address, "--clock", CLOCK, "bootstrap", NODE, "--run")
        folder.mkdir(exist_ok=True)
        node, self._twin = folder / NODE, folder / "twin"
        node.write_text(node_text(1, 16, 4), encoding="utf-8")
        at = ("--home", self._twin, "--clock", CLOCK)
        for words in (
            (*at, "bootstrap", node),
            ("home", "copy", self._twin, address),
            (*at, "bootstrap", node, "--run"),
        ):
            done = run(*words)
            assert done.exit_code == 0, done

    def assert_same(self) -> None:
        """Assert that the generation is identical, to the last bit of every stream, and passes all checks."""
        remote, local = Lake(f"{self.address}/lake"), Lake(self._twin / "lake")
        for table in (TOPOLOGY_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2):
            assert rows(remote.read(table)) == rows(local.read(table)) != []
        checked = run("--home", self.address, "check", "--deep")
        assert checked.exit_code == 0, checked


def log_in_a_store(address: str, folder: Path) -> str:
    """Create a home in a store with two generations and a table whose log is empty; return its address."""
    copied = run("home", "copy", home_with_log(folder), address)
    assert copied.exit_code == 0, copied
    return address


def assert_appended(address: str) -> None:
    """Assert that one commit appended a client's rows to that log, each once."""
    lake = Lake(f"{address}/lake")
    table = log_table(schema(lake))
    expected = encode_log_batch(schema(lake), client.writes(lake), StreamSources(lake).generations.finder())
    assert rows(lake.read(table)) == rows(pa.Table.from_batches([expected]))
    assert lake.version(table) == 1  # the first is its creation


def rows(table: pa.Table) -> list[str]:
    """Return the rows of a table in a normalized order."""
    return sorted(map(repr, table.to_pylist()))


def files_of(address: str, table: Table) -> tuple[int, int]:
    """Return the number of data files below a table and the number in its newest version."""
    lake = Lake(f"{address}/lake")
    folder = parse_path(lake.path(table))
    assert isinstance(folder, ObjectStorePath)
    listed, are_all = folder.page("")
    assert are_all
    written = [path for path, _ in listed if path.endswith(".parquet") and f"/{LOG_FOLDER}/" not in path]
    return len(written), len(lake.data_files(table))

"""Kill joins, repairs and scripts before file operations and run them again; joins and repairs also on Spark."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from support.files.export_files import ID, OTHER_ID
from support.homes.imported import home_with_generations
from support.nodes import node_text
from support.processes.kills import Case, killed_and_run_again
from support.processes.nursery import Nursery
from support.read_logs import START_US, SWITCH_US

from cdc_platform.clock import DAY_US, Microseconds, format_us, ms_from_us
from cdc_platform.delta import IN_PROCESS_VARIABLE, Lake
from cdc_platform.home_location import open_home_location
from cdc_platform.metastore import write_nodes
from cdc_platform.ring import Node
from cdc_platform.spark import ConnectServer

# Each kill runs two commands on a server that other work on the machine may delay.
pytestmark = [pytest.mark.timeout(900), pytest.mark.grid("kills of joins", 1)]
BOTH = pytest.mark.parametrize("place", ["here", pytest.param("spark", marks=pytest.mark.spark)])
AT = "2026-01-01T12:00:00Z"
FIRST = """CREATE TABLE ks.t (p int PRIMARY KEY, v int) WITH cdc = {'enabled': true};
CREATE TABLE ks.gone (p int PRIMARY KEY, v int) WITH cdc = {'enabled': true};
INSERT INTO ks.t (p, v) VALUES (1, 1);
INSERT INTO ks.gone (p, v) VALUES (1, 1);"""
SECOND = """ALTER TABLE ks.t ADD w int; ALTER TABLE ks.t DROP v;
INSERT INTO ks.t (p, w) VALUES (2, 2);
DROP TABLE ks.gone;
CREATE TABLE ks.new (p int PRIMARY KEY) WITH cdc = {'enabled': true};
INSERT INTO ks.new (p) VALUES (3);"""


SOME = {"here": 2, "spark": 1}


def get_environment(place: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the environment for a command that runs locally or on Spark."""
    if place == "here":
        return {}
    server: ConnectServer = request.getfixturevalue("server")
    return server.environment | {IN_PROCESS_VARIABLE: "0"}


@BOTH
def test_a_join(nursery: Nursery, place: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A killed `bootstrap --run` of a queued node is completed by the next run."""

    def waiting(home: Path) -> None:
        (home.parent / "node.json").write_text(node_text(1), encoding="utf-8")
        command = ["--home", home, "--clock", AT, "bootstrap", home.parent / "node.json"]
        assert nursery.race([command])[0].exit_code == 0

    case = Case(waiting, ("bootstrap", "{beside}/node.json", "--run"), AT, environment=get_environment(place, request))
    assert killed_and_run_again(nursery, case, tmp_path, some=SOME[place]) > 0


def test_a_join_beside_many(nursery: Nursery, tmp_path: Path) -> None:
    """The next run also stores the fingerprints of sixteen imported generations, which later joins compare with."""

    later = format_us(Microseconds(START_US + DAY_US))

    def waiting(home: Path) -> None:
        times = {
            str(UUID(int=index, version=4)): ms_from_us(Microseconds(START_US + index * 1_000_000))
            for index in range(16)
        }
        home_with_generations(home.parent, times)
        (home.parent / "node.json").write_text(node_text(1), encoding="utf-8")
        command = ["--home", home, "--clock", later, "bootstrap", home.parent / "node.json"]
        (queued,) = nursery.race([command])
        assert queued.exit_code == 0, queued

    case = Case(waiting, ("bootstrap", "{beside}/node.json", "--run"), later, without={"files"})
    assert killed_and_run_again(nursery, case, tmp_path) > 0


@BOTH
def test_a_repair(nursery: Nursery, place: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A killed `repair --run` of a ring without a generation is completed by the next run."""

    def with_ring(home: Path) -> None:
        v2 = ("CDC_GENERATIONS_V2",)
        hosts = [Node(UUID(int=index), (index, 2**62 + index), 3, 12, "10.0.0.1", "dc1", "r1", v2) for index in (1, 2)]
        write_nodes(Lake(open_home_location(home).lake), hosts)
        assert nursery.race([["--home", home, "--clock", AT, "repair"]])[0].exit_code == 0

    # The check results record the command that ran them. It makes no difference here, because the same command runs
    # again.
    case = Case(with_ring, ("repair", "--run"), AT, environment=get_environment(place, request))
    assert killed_and_run_again(nursery, case, tmp_path, some=SOME[place]) > 0


def test_a_script(nursery: Nursery, tmp_path: Path) -> None:
    """A killed `cql run --apply` that creates, alters and drops tables with rows is completed by the next run."""

    def with_tables(home: Path) -> None:
        home_with_generations(home.parent, {ID: ms_from_us(START_US), OTHER_ID: ms_from_us(SWITCH_US)})
        for name, script in (("first", FIRST), ("second", SECOND)):
            (home.parent / f"{name}.cql").write_text(script, encoding="utf-8")
        minute = format_us(Microseconds(START_US + 60_000_000))
        command = ["--home", home, "--clock", minute, "cql", "run", home.parent / "first.cql"]
        (first,) = nursery.race([[*command, "--apply"]])
        assert first.exit_code == 0, first

    later = format_us(Microseconds(START_US + 120_000_000))
    again = "ks.t has a column w already"
    case = Case(with_tables, ("cql", "run", "{beside}/second.cql", "--apply"), later, refused=again)
    assert killed_and_run_again(nursery, case, tmp_path) > 0

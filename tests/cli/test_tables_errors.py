"""Invalid input to `tables`, `consumers` and `expire`: one clear line, exit code 2, and no change."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import run
from support.files.bad_input import Case, argument, assert_refused, listing
from support.homes.expiring import START_MS, at, import_generations

from cdc_platform.clock import Microseconds
from cdc_platform.delta import Lake
from cdc_platform.metastore import consumers

LONG = "x" * 193
CASES = [
    argument("a table without keyspace", "write it as keyspace.table", "tables", "add", "orders", "--ttl", "1"),
    argument("a table with three parts", "write it as keyspace.table", "tables", "add", "a.b.c", "--ttl", "1"),
    argument("an empty table name", "write it as keyspace.table", "tables", "add", "shop.", "--ttl", "1"),
    argument("a name that begins with a digit", "'shop.1st' is no table", "tables", "add", "shop.1st", "--ttl", "1"),
    argument("a name with a dash", "'shop.or-ders' is no table", "tables", "add", "shop.or-ders", "--ttl", "1"),
    argument("a quote that does not end", "is no table", "tables", "add", 'shop."orders', "--ttl", "1"),
    argument("a name that is too long", "is no table", "tables", "add", f"shop.{LONG}", "--ttl", "1"),
    argument("a name beyond ASCII", "letters, digits and underscores", "tables", "add", "shop.bücher", "--ttl", "1"),
    argument("a log", "is a CDC log", "tables", "add", "shop.orders_scylla_cdc_log", "--ttl", "1"),
    argument("no TTL", "Missing option '--ttl'", "tables", "add", "shop.new"),
    argument("a TTL below 0", "-1 is not in the range", "tables", "add", "shop.new", "--ttl", "-1"),
    argument("a TTL that CQL does not take", "not in the range", "tables", "add", "shop.new", "--ttl", "2147483648"),
    argument("a TTL that is no number", "'1d' is not a valid integer", "tables", "add", "shop.new", "--ttl", "1d"),
    argument(
        "a creation without zone",
        "time without a zone",
        *("tables", "add", "shop.new", "--ttl", "1", "--created-at", "2026-01-01T00:00:00"),
    ),
    argument(
        "a creation finer than a millisecond",
        "finer than a millisecond",
        *("tables", "add", "shop.new", "--ttl", "1", "--created-at", "2026-01-01T00:00:00.000001Z"),
    ),
    argument(
        "a creation to come",
        "cannot have been created at 2999-01-01T00:00:00.000Z",
        *("tables", "add", "shop.new", "--ttl", "1", "--created-at", "2999-01-01T00:00:00Z"),
    ),
    argument(
        "a creation that is no time", "not a time", "tables", "add", "shop.new", "--ttl", "1", "--created-at", "once"
    ),
    argument(
        "a TTL since a time to come",
        "its TTL cannot be in force since 2999-01-01T00:00:00.000Z",
        *("tables", "add", "shop.new", "--ttl", "1", "--ttl-since", "2999-01-01T00:00:00Z"),
    ),
    argument(
        "another creation of a table that is there",
        "was created at 2025-12-01T00:00:00",
        *("tables", "alter", "shop.orders", "--created-at", "2025-12-02T00:00:00Z"),
    ),
    argument(
        "a creation now of a table that is there",
        "was created at",
        "tables",
        "alter",
        "shop.orders",
        "--created-at",
        "now",
    ),
    argument("another TTL", "tables alter shop.orders", "tables", "add", "shop.orders", "--ttl", "61"),
    argument(
        "another creation",
        "created at 2025-12-01T00:00:00.000Z",
        *("tables", "add", "shop.orders", "--ttl", "60", "--created-at", "2025-12-02T00:00:00Z"),
    ),
    argument("a change of nothing", "say what to change", "tables", "alter", "shop.orders"),
    argument(
        "a change of an unknown table", "no CDC-enabled table shop.no", "tables", "alter", "shop.no", "--ttl", "1"
    ),
    argument("a change to a TTL below 0", "-5 is not in the range", "tables", "alter", "shop.orders", "--ttl", "-5"),
    argument("a drop of an unknown table", "no CDC-enabled table shop.no", "tables", "drop", "shop.no"),
    argument("a drop without a table", "Missing argument 'TABLE'", "tables", "drop"),
    argument("an unknown subcommand", "No such command 'rename'", "tables", "rename", "shop.orders"),
    argument("options before the subcommand", "go after drop", "tables", "--json", "drop", "shop.orders"),
    argument(
        "an unknown consumer", "no consumer nobody of shop.orders", "consumers", "remove", "nobody", "shop.orders"
    ),
    argument("a consumer of no table", "write it as keyspace.table", "consumers", "remove", "audit", "orders"),
    argument("a forecast of nothing", "0 is not in the range", "expire", "--forecast", "0"),
    argument("a forecast without end", "not in the range", "expire", "--forecast", "10001"),
    argument("a dry forecast", "leave --dry-run and --cql out", "expire", "--forecast", "1", "--dry-run"),
    argument("a pace without forecast", "--join-interval goes with --forecast", "expire", "--join-interval", "2"),
    argument("a pace of nothing", "0 is not in the range", "expire", "--forecast", "1", "--join-interval", "0"),
    argument("a forecast without a ring", "import a ring snapshot", "expire", "--forecast", "1"),
    argument("a generation to expire", "unexpected extra argument", "expire", "2026-01-01T00:00:00Z"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two generations, a table and a consumer; tests only read it."""
    home = import_generations(tmp_path_factory.mktemp("tables"), 2)
    added = run(
        *("--home", home, "tables", "add", "shop.orders", "--ttl", "60"),
        *("--created-at", "2025-12-01T00:00:00Z"),
    )
    assert added.exit_code == 0, added.stderr
    consumers.register_consumer(
        Lake(home / "lake"), at(START_MS), "audit", "shop", "orders", position_us=Microseconds(0)
    )
    return home


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_refused_in_one_line(case: Case, home: Path, tmp_path: Path) -> None:
    """The home's bytes are unchanged after any invalid input."""
    assert_refused(case, home, tmp_path)


@pytest.mark.parametrize(
    "args", [("tables",), ("tables", "--history"), ("consumers",), ("expire", "--dry-run"), ("tables", "drop", "a.b")]
)
def test_reading_commands_create_no_home(args: tuple[str, ...], tmp_path: Path) -> None:
    """A mistyped --home is reported, and nothing is created."""
    answer = run("--home", tmp_path / "typo", *args)
    assert answer.exit_code == 2
    assert "does not exist" in answer.stderr
    assert listing(tmp_path) == {}


@pytest.mark.parametrize("setting", ["expiry_grace_ms = -1", "expiry_skew_margin_ms = 3600001", "expiry_grace = 1"])
def test_invalid_settings_of_expiry_are_named(setting: str, home: Path, tmp_path: Path) -> None:
    """The message has the key, before anything is planned."""
    other_home = tmp_path / "home"
    assert run("--home", other_home, "tables", "add", "a.b", "--ttl", "1").exit_code == 0
    (other_home / "settings.toml").write_text(f"{setting}\n", encoding="utf-8")
    answer = run("--home", other_home, "expire")
    assert answer.exit_code == 2
    assert setting.split(" ")[0] in answer.stderr

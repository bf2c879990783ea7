"""External values in closed lists: known ones have their meaning, unknown ones are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.states import UNKNOWN

from cdc_platform.clock import Clock, Microseconds
from cdc_platform.cql import Catalog, apply_definition, explain_unknown_option, parse_statements
from cdc_platform.cql.ast import CreateKeyspace
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.importing.run import import_paths
from cdc_platform.metastore import cdc_tables
from cdc_platform.scylla import LoggedTable

CLOCK = Clock(Microseconds(1_700_000_000_000_000))
OPTIONS = {
    "enabled": {"true": True, "TRUE": True, "1": True, "false": False, "0": False},
    "preimage": ["false", "true", "full", "0", "1"],
    "postimage": ["false", "true"],
    "delta": ["full", "keys"],
    "ttl": ["0", "86400"],
    "enable_requested": ["true", "false"],
    "tablet_merge_blocked": ["true"],
}
"""The CDC options that ScyllaDB prints, with values of each; those of `enabled` map to the state of CDC."""


def import_schema(folder: Path, options: str) -> Lake:
    """Return a lake after the import of a schema of one table with these CDC options."""
    lake = Lake(folder / "lake")
    (folder / "schema.cql").write_text(f"CREATE TABLE ks.t (p int PRIMARY KEY) WITH cdc = {{{options}}};")
    import_paths(lake, CLOCK, [folder / "schema.cql"])
    return lake


@pytest.mark.parametrize("option", OPTIONS)
def test_known_cdc_options_are_read(option: str, tmp_path: Path) -> None:
    """Each value of each option is read by an import and from a live cluster."""
    for number, value in enumerate(OPTIONS[option]):
        (tmp_path / str(number)).mkdir()
        on = "true" if option != "enabled" else value
        lake = import_schema(
            tmp_path / str(number), f"'enabled': '{on}'" + ("" if option == "enabled" else f", '{option}': '{value}'")
        )
        expected = OPTIONS["enabled"][value] if option == "enabled" else True
        states = [table.enabled for table in cdc_tables.read_cdc_tables(lake)]
        assert states in ([expected], [] if not expected else [True])
        assert explain_unknown_option({option: value}) is None


@pytest.mark.parametrize(
    "given",
    [
        {UNKNOWN: "true"},
        {"enabled": UNKNOWN},
        {"preimage": UNKNOWN},
        {"postimage": UNKNOWN},
        {"delta": UNKNOWN},
        {"ttl": UNKNOWN},
    ],
)
def test_unknown_cdc_options_are_refused_by_name(given: dict[str, str], tmp_path: Path) -> None:
    """A schema with one is refused; a live table with one counts as logged without a TTL, which preserves most."""
    with pytest.raises(InputError, match=UNKNOWN):
        import_schema(
            tmp_path,
            "'enabled': 'true', " * ("enabled" not in given)
            + ", ".join(f"'{name}': '{value}'" for name, value in given.items()),
        )
    unknown = explain_unknown_option(given)
    assert unknown is not None
    assert UNKNOWN in unknown
    table = LoggedTable("ks", "t", given, None, "", unknown)
    assert (table.enabled, table.ttl_seconds) == (True, 0 if "ttl" in given else 86_400)


@pytest.mark.parametrize(("value", "tablets"), [("true", True), ("TRUE", True), ("false", False), (UNKNOWN, None)])
def test_tablets_are_on_or_off(value: str, tablets: bool | None) -> None:
    """Any other word is refused."""
    text = f"CREATE KEYSPACE ks WITH replication = {{'class': 'x'}} AND tablets = {{'enabled': '{value}'}};"
    (statement,) = parse_statements(text)
    assert isinstance(statement.body, CreateKeyspace)
    catalog = Catalog()
    if tablets is None:
        with pytest.raises(InputError, match=UNKNOWN):
            apply_definition(catalog, statement.body, CLOCK.now_us())
        assert catalog.keyspaces == {}
        return
    apply_definition(catalog, statement.body, CLOCK.now_us())
    assert (catalog.keyspaces["ks"].tablets is not None) == tablets

"""Invalid values of every option of the cluster commands are one line with the rule, without any effect.

No server is needed, as values are checked first. `test_bad_clusters` has the servers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.files.bad_input import Case, argument, assert_refused, listing

from cdc_platform.errors import InputError, PlatformError
from cdc_platform.home_location import open_home_location
from cdc_platform.ingest.spark_source import ScyllaCdc
from cdc_platform.scylla import Connection, registry

_INGEST = ("ingest", "prod", "shop.t")
_ALL = ("ingest", "prod", "--all")
_ADD = ("cluster", "add", "new", "--contact", "127.0.0.1:1")
_EXPORT = ("export", "--cluster", "prod")
_LONG = "n" * 49
SECONDS = [
    argument(f"{command[0]} {command[-1]} of {value or 'nothing'}", says, *command, value)
    for command, above in (
        ((*_INGEST, "--confidence"), "2147483648"),
        ((*_INGEST, "--second-pass-after"), "inf"),
        (("watch", "prod", "--interval"), "3601"),
        ((*_ADD, "--connect-timeout"), "121"),
        ((*_ADD, "--request-timeout"), "601"),
    )
    for value, says in (
        ("nan", "no number of seconds"),
        ("-1", "is not in the range"),
        ("1h", "no number of seconds"),
        ("", "no number of seconds"),
        (above, "no number of seconds" if above == "inf" else "is not in the range"),
    )
]
TIMES = [
    argument(f"until {value or 'nothing'}", says, *_INGEST, "--until", value)
    for value, says in (
        ("", "not a time"),
        ("yesterday", "not a time"),
        ("2026-13-01T00:00:00Z", "month must be in 1..12"),
        ("2026-01-01T00:00:00", "add Z for UTC"),
        ("12026-01-01T00:00:00Z", "not a time"),
        ("9" * 30, "outside the years 1 to 9999"),
    )
]
TABLES = [
    argument(f"ingest of the table {value[:20]}", "keyspace.table", "ingest", "prod", value)
    for value in (
        "nodot",
        ".t",
        "shop.",
        "a.b.c",
        '"Shop.t',
        "shöp.t",
        "shop.t; DROP TABLE shop.t",
        f"shop.{'t' * 193}",
    )
]
CONTACTS = [
    argument(f"the contact point {value!r}", says, "cluster", "add", "new", "--contact", value)
    for value, says in (
        ("127.0.0.1:-1", "no contact point"),
        ("127.0.0.1:٣", "no contact point"),
        ("127.0.0.1:9042:1", "no contact point"),
        ("[::1", "no contact point"),
        ("10.0.0.1,10.0.0.2", "no contact point"),
        ("a host", "no contact point"),
        ("cdc:hunter2@10.0.0.1:9042", "--credentials-file"),
    )
]
OTHERS = [
    argument("no table", "give TABLE, or select tables with --all", "ingest", "prod"),
    argument("a table and all of them", "give TABLE, or select tables with --all", *_INGEST, "--all"),
    argument("all but none", "--exclude goes with --all", *_INGEST, "--exclude", "shop.u"),
    argument("nothing but what is left out", "give TABLE", "ingest", "prod", "--exclude", "shop.u"),
    argument("all copied again", "--recopy takes named tables", *_ALL, "--recopy"),
    argument("a pattern without a keyspace", "'orders' is no pattern", "ingest", "prod", "--include", "orders"),
    argument("a quoted pattern", "without quotes", *_ALL, "--exclude", '"Shop".*'),
    argument("a list that is not there", "none.toml", "ingest", "prod", "--tables", "{dir}/none.toml"),
    argument("a list that is a folder", "is a folder; name a file in it", "ingest", "prod", "--tables", "{dir}"),
    argument("a start that is no time", "not a time", *_INGEST, "--from", "yesterday"),
    argument("a way that there is not", "'streams', 'ranges'", *_INGEST, "--by", "magic"),
    argument("a flag with a value", "does not take a value", *_INGEST, "--current=yes"),
    argument("ingest of a cluster above its folder", "no cluster ../prod is known", "ingest", "../prod", "shop.t"),
    argument("a cluster without a name", "no cluster '' is known", "observe", ""),
    argument("a cluster that clears the screen", r"no cluster \x1b[2J is known", "watch", "\x1b[2J"),
    argument("no looks", "is not in the range", "watch", "prod", "--polls", "0"),
    argument("looks that are no number", "integer", "watch", "prod", "--polls", "x"),
    argument("watch of two clusters", "unexpected extra argument", "watch", "prod", "other"),
    argument("watch of nobody", "no cluster other is known", "watch", "other"),
    argument("a name that is too long", "no cluster name", "cluster", "add", _LONG, "--contact", "a"),
    argument("a name that is a sign", "no cluster name", "cluster", "add", "-", "--contact", "a"),
    argument("--json before the command", "--json goes after add", "cluster", "--json", "add"),
    argument("pages beyond the driver's", "is not in the range", *_ADD, "--page-size", "100001"),
    argument("a part of a row", "integer", *_ADD, "--page-size", "1.5"),
    argument("no datacenter", "--datacenter '' is empty or not printable", *_ADD, "--datacenter", ""),
    argument("a datacenter that clears the screen", "--datacenter", *_ADD, "--datacenter", "\x1b[2J"),
    argument("no credentials file", "--credentials-file '' is empty or not printable", *_ADD, "--credentials-file", ""),
    argument("a credentials file with a NUL", "--credentials-file", *_ADD, "--credentials-file", "a\0b"),
    argument("no CA", "--tls-ca '' is empty or not printable", *_ADD, "--tls", "--tls-ca", ""),
    argument("host names without TLS", "add --tls", *_ADD, "--no-tls-hostname-check"),
    argument("a key without its certificate", "must be given together", *_ADD, "--tls", "--tls-key", "k.pem"),
    argument("a password without a user", "must be given together", *_ADD, "--password-env", "P"),
    argument("export at no rate", "is not in the range", *_EXPORT, "--rate", "0"),
    argument("export beyond the rate", "is not in the range", *_EXPORT, "--rate", "500001"),
    argument("export to no replicas", "is not in the range", *_EXPORT, "--replicas", "0"),
    argument("export to ScyllaDB's own keyspaces", "ScyllaDB's own", *_EXPORT, "--prefix", "system"),
    argument("export to a keyspace of two words", "is no valid start of a keyspace name", *_EXPORT, "--prefix", "a b"),
    argument("export to a keyspace without a name", "is no valid start of a keyspace name", *_EXPORT, "--prefix", ""),
    argument("export to a name that is too long", "at most 25", *_EXPORT, "--prefix", "p" * 26),
    argument("export to nobody", "no cluster other is known", "export", "--cluster", "other"),
    argument("export to a folder and a cluster", "into a folder", "export", "{dir}/x", "--cluster", "prod"),
]


@pytest.mark.parametrize("case", [*SECONDS, *TIMES, *TABLES, *CONTACTS, *OTHERS], ids=lambda case: case.name)
def test_invalid_value_is_one_line(case: Case, tmp_path: Path) -> None:
    """The exit code is 2; the home stays unchanged, and no secret is repeated."""
    home = tmp_path / "home"
    registry.add_cluster(open_home_location(home), "prod", Connection(contacts=("127.0.0.1:1",)))
    assert "hunter2" not in assert_refused(case, home, tmp_path)


@pytest.mark.parametrize(
    "text",
    ["include = ", "include = 'shop.*'", "tables = ['shop.*']", "include = ['orders']", "include = [1]", "\xff"],
)
def test_malformed_list_of_tables_is_one_line(text: str, tmp_path: Path) -> None:
    """The line names the file, before a connection is made."""
    home, file = tmp_path / "home", tmp_path / "list.toml"
    registry.add_cluster(open_home_location(home), "prod", Connection(contacts=("127.0.0.1:1",)))
    file.write_text(text, "latin-1")
    case = argument("a malformed list", f"table list {file}", "ingest", "prod", "--tables", str(file))
    assert_refused(case, home, tmp_path)


SPARK_OPTIONS: list[tuple[dict[str, str], str]] = [
    ({"table": "nodot"}, "keyspace.table"),
    ({"table": "shop."}, "keyspace.table"),
    ({"by": "magic"}, "it is streams or ranges"),
    ({"form": "x"}, "no option form"),
    ({"confidence": "nan"}, "a number of seconds"),
    ({"confidence": "-1"}, "a number of seconds"),
    ({"confidence": "1h"}, "a number of seconds"),
    ({"confidence": "inf"}, "a number of seconds"),
    ({"from": "yesterday"}, "not a time"),
    ({"until": "2026-01-01T00:00:00"}, "add Z for UTC"),
    ({"from": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "before from"),
    ({"cluster": "other"}, "no cluster other is known"),
    ({"gaps": "ignore"}, "gaps is 'ignore'; it is tell or refuse"),
    ({"home": "{dir}/none"}, "none"),
]


@pytest.mark.parametrize(("changes", "says"), SPARK_OPTIONS, ids=lambda value: str(value)[:40])
def test_invalid_option_of_the_data_source_is_one_line(changes: dict[str, str], says: str, tmp_path: Path) -> None:
    """Planning the query refuses it by name and value, and creates no folder."""
    home = tmp_path / "home"
    registry.add_cluster(open_home_location(home), "prod", Connection(contacts=("127.0.0.1:1",)))
    options = {name: value.replace("{dir}", str(tmp_path)) for name, value in changes.items()}
    before = listing(tmp_path)
    with pytest.raises(PlatformError) as refused:
        ScyllaCdc({"home": str(home), "cluster": "prod", "table": "shop.t"} | options).schema()
    assert says in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert listing(tmp_path) == before


@pytest.mark.parametrize("missing", ["home", "cluster", "table"])
def test_missing_option_of_the_data_source_is_named(missing: str) -> None:
    """The message lists all options."""
    options = {"home": "home", "cluster": "prod", "table": "shop.t"}
    with pytest.raises(InputError, match=f"option {missing} is missing; the options are home, cluster, table"):
        ScyllaCdc({name: value for name, value in options.items() if name != missing}).schema()

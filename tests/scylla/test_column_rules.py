"""Columns of every type can be left out or hashed in the log and in the table, with refusals of invalid rules."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_platform.errors import EnvironmentProblem, InputError
from cdc_platform.home_location import open_home_location
from cdc_platform.scylla import Connection, registry
from cdc_platform.scylla.column_rules import ColumnRules, parse_column, parse_rules, read_hash_key
from cdc_platform.scylla.raw_pages import RawPage

KEY = b"0123456789abcdef"
SCALARS = [
    *("ascii", "bigint", "blob", "boolean", "date", "decimal", "double", "duration", "float", "inet", "int"),
    *("smallint", "text", "time", "timestamp", "timeuuid", "tinyint", "uuid", "varint", "varchar"),
]
ONE_VALUE = [*SCALARS, "frozen<map<text, int>>", "frozen<set<int>>", "frozen<list<text>>", "frozen<ut>"]
ONE_VALUE += ["frozen<tuple<int, text>>", "tuple<int, text>", "vector<float, 3>"]
MULTI_CELL = ["map<text, int>", "set<int>", "list<text>", "ut", '"Ut"', "counter"]
SECRET = b"a secret"


def column(kind: str, column_kind: str = "regular") -> dict[str, Any]:
    """Return a column `v` as the schema lists it."""
    return {"column_name": "v", "kind": column_kind, "type": kind, "position": -1}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """A file with a hash key."""
    file = tmp_path / "hash.key"
    file.write_bytes(KEY + b"\n")
    file.chmod(0o600)
    return file


@pytest.mark.parametrize("kind", [*ONE_VALUE, *MULTI_CELL])
def test_a_column_of_any_type_is_left_out(kind: str) -> None:
    """Neither the definition nor a row of the log or of the table has the column."""
    rules = ColumnRules(left_out=frozenset({"v"}))
    other = column("int") | {"column_name": "w"}
    assert rules.define(("ks", "t"), [column(kind), other], dropped=False) == [other]
    names = ("p", "v", "cdc$deleted_v", "cdc$deleted_elements_v", "cdc$deleted_w", "w")
    page = RawPage(names, [pa.array([SECRET], pa.binary())] * 6, 1, b"state")
    result = rules.apply(page, None)
    assert (result.names, result.rows, result.paging_state) == (("p", "cdc$deleted_w", "w"), 1, b"state")
    assert len(result.columns) == 3


@pytest.mark.parametrize("kind", ONE_VALUE)
def test_a_column_with_one_value_of_any_type_is_hashed(kind: str) -> None:
    """It is a blob in the definition, and the HMAC-SHA-256 of its bytes in each row."""
    rules = ColumnRules(hashed=frozenset({"v"}))
    assert rules.define(("ks", "t"), [column(kind)], dropped=False) == [column("blob")]
    cells = pa.array([SECRET, None, b"", SECRET], pa.binary())
    result = rules.apply(RawPage(("v", "cdc$deleted_v"), [cells, cells], 4), KEY)
    expected = [None if cell is None else hmac.new(KEY, cell, hashlib.sha256).digest() for cell in cells.to_pylist()]
    assert result.columns[0].to_pylist() == expected
    assert result.columns[1].to_pylist() == cells.to_pylist()
    nulls = rules.apply(RawPage(("v",), [pa.nulls(2, pa.binary())], 2), KEY)
    assert nulls.columns[0].to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("rules", "columns", "message"),
    [
        (ColumnRules(frozenset({"v"})), [column("int", "partition_key")], "column v is part of the key of ks.t"),
        (ColumnRules(frozenset({"v"})), [column("int", "clustering")], "column v is part of the key of ks.t"),
        (ColumnRules(hashed=frozenset({"v"})), [column("int", "partition_key")], "column v is part of the key of ks.t"),
        (ColumnRules(frozenset({"w"})), [column("int")], "ks.t has no column w to leave out or hash; it has v"),
        *((ColumnRules(hashed=frozenset({"v"})), [column(kind)], "column v of ks.t is a ") for kind in MULTI_CELL),
    ],
)
def test_a_rule_that_cannot_apply_is_refused_by_name(rules: ColumnRules, columns: list[Any], message: str) -> None:
    """The refusal names the column before any row of the table is read."""
    with pytest.raises(InputError, match=message):
        rules.define(("ks", "t"), columns, dropped=False)


def test_a_rule_about_a_dropped_column_stays() -> None:
    """The table's definition continues without the column."""
    assert ColumnRules(frozenset({"w"})).define(("ks", "t"), [column("int")], dropped=True) == [column("int")]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("ks.t.v", ("ks", "t", "v")),
        ("KS.T.V", ("ks", "t", "v")),
        ('ks."T"."V.w"', ("ks", "T", "V.w")),
        ('ks.t."a""b"', ("ks", "t", 'a"b')),
        ("alternator_a-b.a-b.firstName", ("alternator_a-b", "a-b", "firstName")),
        ('"alternator_A.b"."A.b".firstName', ("alternator_A.b", "A.b", "firstName")),
        ('alternator_abc.abc."first.name"', ("alternator_abc", "abc", "first.name")),
    ],
)
def test_columns_are_named_as_in_cql(text: str, parts: tuple[str, str, str]) -> None:
    """Quotes preserve capitals and other characters."""
    assert parse_column(text) == parts


@pytest.mark.parametrize(
    ("left_out", "hashed", "key_file", "message"),
    [
        (("v",), (), None, "names no column"),
        (("ks.v",), (), None, "is no table"),
        (("ks.t.v", "ks.t.V"), (), None, "is named twice"),
        (("ks.t.v",), ("ks.t.v",), "f", "is named twice"),
        ((), ("ks.t.v",), None, "--hash and --hash-key-file go together"),
        (("ks.t.v",), (), "f", "--hash and --hash-key-file go together"),
    ],
)
def test_invalid_rules_are_refused(
    left_out: tuple[str, ...], hashed: tuple[str, ...], key_file: str | None, message: str
) -> None:
    """One line says what is wrong."""
    with pytest.raises(InputError, match=message):
        parse_rules(left_out, hashed, key_file)


def test_key_file_must_be_private_and_long_enough(tmp_path: Path, key_file: Path) -> None:
    """No message has the file's content."""
    assert read_hash_key(str(key_file)) == KEY
    cases = {"missing": (None, 0o600, "No such file"), "open": (KEY, 0o644, "chmod 0600"), "short": (b"k", 0o600, "16")}
    for name, (content, mode, message) in cases.items():
        file = tmp_path / name
        if content is not None:
            file.write_bytes(content)
            file.chmod(mode)
        with pytest.raises(EnvironmentProblem, match=message) as raised:
            read_hash_key(str(file))
        assert KEY.decode() not in str(raised.value)


def test_rules_of_a_home_are_those_of_its_first_observation(tmp_path: Path, key_file: Path) -> None:
    """After an observation, registering with other rules is refused; the key itself is stored nowhere."""
    home = open_home_location(str(tmp_path / "home"))
    plain = Connection(contacts=("127.0.0.1:1",))
    ruled = plain.model_copy(update={"left_out": ("ks.t.v",), "hashed": ("ks.t.w",), "hash_key_file": str(key_file)})
    added = registry.add_cluster(home, "prod", ruled)
    assert registry.add_cluster(home, "prod", ruled) == added
    assert [*registry.connection_options(added.connection)] == [
        *("--contact", "127.0.0.1:1", "--leave-out", "ks.t.v", "--hash", "ks.t.w", "--hash-key-file", str(key_file)),
    ]
    registry.remove_cluster(home, "prod")
    other = registry.add_cluster(home, "prod", plain)  # nothing was observed yet
    registry.remove_cluster(home, "prod")
    registry.add_cluster(home, "prod", ruled)
    registry.store_identity(other, registry.ClusterIdentity(cluster_name="c", host_ids=()))
    registry.remove_cluster(home, "prod")
    with pytest.raises(InputError, match="observed with other columns left out or hashed"):
        registry.add_cluster(home, "prod", plain)
    assert registry.add_cluster(home, "prod", ruled).connection == added.connection
    texts = [file.read_bytes() for file in Path(home.name).rglob("*") if file.is_file()]
    assert not any(KEY in text for text in texts)


def test_another_key_is_recognized(tmp_path: Path, key_file: Path) -> None:
    """A changed key file is refused, because it would give equal values other hashes."""
    home = open_home_location(str(tmp_path / "home"))
    connection = Connection(contacts=("127.0.0.1:1",), hashed=("ks.t.v",), hash_key_file=str(key_file))
    stored = registry.add_cluster(home, "prod", connection).connection
    page = RawPage(("v",), [pa.array([SECRET], pa.binary())], 1)
    assert stored.column_rules.apply("ks.t_scylla_cdc_log", page).columns[0].to_pylist() != [SECRET]
    assert stored.column_rules.apply("ks.other", page) is page
    key_file.write_bytes(KEY[::-1])
    read_hash_key.cache_clear()
    with pytest.raises(EnvironmentProblem, match="has another key than when the cluster was registered"):
        stored.column_rules.apply("ks.t", page)

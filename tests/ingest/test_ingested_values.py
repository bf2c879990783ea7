"""Values of every type reach the lake unchanged, including those that Python's classes cannot represent."""

from __future__ import annotations

import random
from decimal import Decimal
from ipaddress import ip_address
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from cassandra.util import Date
from deltalake import DeltaTable
from pyarrow.parquet import read_table as read_parquet
from pyarrow.parquet import write_table as write_parquet
from support.standin.cluster import FIRST_MS, StandIn, description
from support.standin.live_log import LiveLog, defined
from support.standin.live_table import LiveTable, by_key
from support.standin.world import time_uuid

from cdc_platform.cdclog import EXACT, INEXACT, log_rows_from_arrow, log_table, read_table_schema, stored_type
from cdc_platform.cdclog.values import decode_exact_value, to_canonical_values
from cdc_platform.clock import Clock, Microseconds, us_from_ms
from cdc_platform.cql import min_timeuuid
from cdc_platform.cql.temporal import Duration
from cdc_platform.delta import Lake, TaskRunner, tokens_from_keys
from cdc_platform.home import open_home
from cdc_platform.home_location import open_home_location
from cdc_platform.ingest import ReadPolicy, current_table, ingest_table
from cdc_platform.scylla import ScyllaCluster, registry

pytestmark = pytest.mark.cassandra

DIGITS = 10**400 + 7
A_UUID = UUID("9f6b4d5e-0c5a-4f59-8f0e-0d8c2d9b1a77")
DDL = """CREATE TYPE shop.ut (a int, b timestamp);
CREATE TABLE shop.t (p int PRIMARY KEY, a ascii, b bigint, c blob, d date, e decimal, f double, g float, h inet,
    i varint, j boolean, l list<timestamp>, m map<date, timestamp>, n tinyint, o smallint, q set<text>, s time,
    t timestamp, u duration, w uuid, x frozen<ut>, y frozen<tuple<date, varint>>, z text)
    WITH cdc = {'enabled': 'true', 'ttl': '0'};"""
PLAIN = {
    "a": ("'a'", "a"),
    "b": ("-9223372036854775808", -(2**63)),
    "c": ("0x00ff", b"\x00\xff"),
    "d": ("'2026-01-31'", 20484),
    "e": ("-1.50", Decimal("-1.50")),
    "f": ("0.1", 0.1),
    "g": ("0.5", 0.5),
    "h": ("'::1'", ip_address("::1")),
    "i": ("7", 7),
    "j": ("false", False),
    "l": (f"{{{min_timeuuid(Microseconds(0))}: 5}}", ((min_timeuuid(Microseconds(0)), 5),)),
    "m": ("{'1970-01-02': 5}", ((1, 5),)),
    "n": ("-128", -128),
    "o": ("32767", 32767),
    "q": ("{'', 'b'}", ("", "b")),
    "s": ("'00:00:00.000000001'", 1),
    "t": ("0", 0),
    "u": ("1mo2d3ns", Duration(1, 2, 3)),
    "w": (str(A_UUID), A_UUID),
    "x": ("{a: 1}", (1, None)),
    "y": ("('1970-01-01', 7)", (0, 7)),
    "z": ("'ż'", "ż"),
}
OUT_OF_RANGE = {
    "d": ("4294967295", 2**31 - 1),
    "e": ("1e-2147483", Decimal("1e-2147483")),
    "i": (str(DIGITS), DIGITS),
    "l": (f"{{{min_timeuuid(Microseconds(0))}: 9223372036854775807}}", ((min_timeuuid(Microseconds(0)), 2**63 - 1),)),
    "m": ("{4294967295: -9223372036854775808}", ((2**31 - 1, -(2**63)),)),
    "t": ("253402300800000", 253402300800000),
    "u": ("-2147483647mo", Duration(-2147483647, 0, 0)),
    "x": ("{b: -9223372036854775808}", (None, -(2**63))),
    "y": ("(4294967295, -7)", (2**31 - 1, -7)),
}


def test_log_has_values_of_every_type(standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner) -> None:
    """Dates and timestamps of any year arrive, and empty values become null."""
    # The driver would discard a whole page for such a date.
    world, generation = standin.world, description(time_uuid(FIRST_MS))
    world.run("CREATE TYPE IF NOT EXISTS shop.ut (a int, b timestamp)")
    log = LiveLog(world, defined(DDL), {FIRST_MS: generation}).make()
    stream = generation.streams[0].tobytes()
    for index, values in enumerate((PLAIN, OUT_OF_RANGE, {"b": ("blobAsBigint(0x)", None)})):
        names = ", ".join(f'"{name}"' for name in values)
        texts = ", ".join(text for text, _ in values.values())
        head = f"0x{stream.hex()}, {min_timeuuid(Microseconds(us_from_ms(FIRST_MS) + index))}, 0, 2, {index}"
        world.run(
            'INSERT INTO shop.t_scylla_cdc_log ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation", p, '
            f"{names}) VALUES ({head}, {texts})"
        )
    messages: list[str] = []
    done = ingest_table(cluster, Clock(), "shop", "t", workers, on_message=messages.append)
    assert (done.rows, messages) == (3, [])
    table = Lake(cluster.open_home().lake).read(log_table(log.schema, exact=True))
    rows = {row["p"]: row for row in log_rows_from_arrow(log.schema, table)}
    for index, values in enumerate((PLAIN, OUT_OF_RANGE, {"b": ("", None)})):
        assert {name: rows[index][name] for name in values} == {name: value for name, (_, value) in values.items()}
    assert isinstance(table, pa.Table)


def test_replica_has_values_of_every_type(standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner) -> None:
    """The replica has each value, or the nearest value with the exact one in another column; empty values are null."""
    world = standin.world
    world.run("CREATE TYPE IF NOT EXISTS shop.ut (a int, b timestamp)")
    log = LiveLog(world, defined(DDL), {FIRST_MS: description(time_uuid(FIRST_MS))}).make()
    standin.proxy.collections = {"l", "m", "q"}
    lists = {"5": ("[5]", (5,)), "9223372036854775807": ("[9223372036854775807]", (2**63 - 1,))}
    written = []
    for index, values in enumerate(
        (PLAIN, OUT_OF_RANGE, {"b": ("blobAsBigint(0x)", None), "t": ("blobAsTimestamp(0x)", None)})
    ):
        # For a list the log has the keys, which the table does not report.
        row = {name: lists[value[0].split()[-1][:-1]] if name == "l" else value for name, value in values.items()}
        texts = ", ".join(text for text, _ in row.values())
        world.run(f"INSERT INTO shop.t (p, {', '.join(row)}) VALUES ({index}, {texts})")
        written.append({name: value for name, (_, value) in row.items()})
    ingest_table(cluster, Clock(), "shop", "t", workers, current=True)
    table = Lake(cluster.open_home().lake).read(current_table(log.schema))
    columns = {
        column.name: to_canonical_values(stored_type(column.type), table[column.name].combine_chunks())
        for column in log.schema.columns
    }
    out_of_range = [dict(pairs or ()) for pairs in table[EXACT].to_pylist()]
    for number, index in enumerate(table["p"].to_pylist()):
        exact = {
            name: decode_exact_value(log.schema.column(name).type, text) for name, text in out_of_range[number].items()
        }
        for name, value in written[index].items():
            assert (exact[name] if name in exact else columns[name][number]) == value, name
        assert exact.keys() == ({"d", "l", "m", "t", "x", "y"} if index == 1 else set())


def test_out_of_range_keys_are_distinguished(standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner) -> None:
    """The replica has all rows whose keys are equal for readers of Delta, and static values, from copy and log."""
    world, generation = standin.world, description(time_uuid(FIRST_MS))
    ddl = """CREATE TABLE shop.t (p timestamp, q frozen<tuple<date, int>>, k date, s timestamp static, v int,
        PRIMARY KEY ((p, q), k)) WITH cdc = {'enabled': 'true', 'ttl': '0'};"""
    table = LiveTable(world, defined(ddl), {FIRST_MS: generation}, random.Random(1)).make()
    before = Clock().now_us() - 2 * 86_400_000_000
    far = 253402300800000
    for k in (2**32 - 1, 2**32 - 2):
        keys = f"{far}, ({2**32 - 1}, 1), {k}"
        world.run(f"INSERT INTO shop.t (p, q, k, s, v) VALUES ({keys}, {far + 5}, 1) USING TIMESTAMP {before}")
    ingest_table(cluster, Clock(), "shop", "t", workers, policy=ReadPolicy(Microseconds(0)), current=True)
    at = Clock().now_us()
    keys = f"{far + 1}, ({2**32 - 1}, 1), {2**32 - 1}"
    world.run(f"INSERT INTO shop.t (p, q, k, v) VALUES ({keys}, 2) USING TIMESTAMP {at}")
    partition = {"p": far + 1, "q": (Date(2**31 - 1), 1)}
    table.log(partition, at, [{"cdc$operation": 2, "k": Date(2**31 - 1), "v": 2}])
    ingest_table(cluster, Clock(), "shop", "t", workers, policy=ReadPolicy(Microseconds(0)))
    rows = Lake(cluster.open_home().lake).read(current_table(table.schema)).to_pylist()
    assert len({(row["p"], row["k"]) for row in rows}) == 1
    assert by_key(table.schema, rows) == table.rows()
    assert {(row["v"], dict(row[EXACT]).get("s")) for row in rows} == {(1, str(far + 5)), (2, None)}
    assert [row[INEXACT] for row in rows] == [False] * 3


def test_type_is_read_again_if_values_have_more_fields(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """Values with more fields than known make the ingest reread the type's definition, and no value is lost."""
    world, generation = standin.world, description(time_uuid(FIRST_MS))
    world.run("CREATE TYPE IF NOT EXISTS shop.grows (a int)")
    ddl = DDL.partition("CREATE TABLE")[2].replace("x frozen<ut>", "x frozen<grows>")
    log = LiveLog(world, defined(f"CREATE TYPE shop.grows (a int); CREATE TABLE{ddl}"), {FIRST_MS: generation}).make()
    ingest_table(cluster, Clock(us_from_ms(FIRST_MS)), "shop", "t", workers)
    world.run("ALTER TYPE shop.grows ADD b text")
    head = f"0x{generation.streams[0].tobytes().hex()}, {min_timeuuid(Microseconds(us_from_ms(FIRST_MS) + 1))}, 0, 2, 7"
    world.run(
        'INSERT INTO shop.t_scylla_cdc_log ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation", p, x) '
        f"VALUES ({head}, {{a: 1, b: 'two'}})"
    )
    messages: list[str] = []
    ingest_table(cluster, Clock(), "shop", "t", workers, on_message=messages.append)
    lake = Lake(cluster.open_home().lake)
    schema = read_table_schema(lake, "shop", "t")
    (row,) = log_rows_from_arrow(schema, lake.read(log_table(schema)))
    assert (row["x"], messages) == ((1, "two"), [])
    assert schema != log.schema


SECRETS = {
    "a": "'a secret ascii'",
    "b": "7205759403792793601",
    "c": "0x736563726574626c6f62",
    "d": "'2044-05-06'",
    "e": "12345678901234567.89",
    "f": "1.2345678901234e123",
    "g": "1.2345e30",
    "h": "'203.0.113.77'",
    "i": "98765432109876543210",
    "j": "true",
    "n": "-77",
    "o": "31234",
    "s": "'11:22:33.123456789'",
    "t": "2345678901234",
    "u": "11mo22d33ns",
    "w": str(A_UUID),
    "x": "{a: 1234567890}",
    "y": "('2044-05-07', 4711471147114711)",
    "z": "'a secret text'",
}
SECRET_COLLECTIONS = {"l": "[2345678901235]", "m": "{'2044-05-08': 2345678901236}", "q": "{'a secret element'}"}
PLAIN_FORMS = [
    *(
        b"a secret",
        b"secretblob",
        b"736563726574626c6f62",
        b"12345678901234567",
        b"98765432109876543210",
        b"203.0.113.77",
    ),
    *(
        str(A_UUID).encode(),
        A_UUID.bytes,
        A_UUID.hex.encode(),
        b"4711471147114711",
        b"2044-05-0",
        b"7205759403792793601",
    ),
    *(number.to_bytes(8, order) for number in (7205759403792793601, 2345678901234) for order in ("big", "little")),
    *(b"2345678901234", b"2345678901235", b"1234567890", (2345678901234000).to_bytes(8, "little")),
]
"""Values as texts and in the forms of protocol and Parquet, if other data cannot have them by chance."""


@pytest.mark.parametrize("rule", ["left out", "hashed", "none"])
def test_values_that_are_left_out_or_hashed_are_nowhere_in_the_home(
    rule: str, standin: StandIn, workers: TaskRunner, tmp_path: Path
) -> None:
    """No file has a plain value of any type, neither log, state, table nor export; checks find no damage."""
    world, generation = standin.world, description(time_uuid(FIRST_MS))
    world.run("CREATE TYPE IF NOT EXISTS shop.ut (a int, b timestamp)")
    log = LiveLog(world, defined(DDL), {FIRST_MS: generation}).make()
    standin.proxy.collections = {"l", "m", "q"}
    key = tmp_path / "hash.key"
    key.write_bytes(b"the key of this test")
    key.chmod(0o600)
    hashed = tuple(f"shop.t.{name}" for name in SECRETS) if rule == "hashed" else ()
    rules = {"left out": {**SECRETS, **SECRET_COLLECTIONS}, "hashed": SECRET_COLLECTIONS, "none": {}}
    left_out = tuple(f"shop.t.{name}" for name in rules[rule])
    connection = standin.connection().model_copy(
        update={"left_out": left_out, "hashed": hashed, "hash_key_file": str(key) if hashed else None}
    )
    cluster = registry.add_cluster(open_home_location(tmp_path / "home"), "prod", connection)
    names, texts = (
        ", ".join({**SECRETS, **SECRET_COLLECTIONS}),
        ", ".join([*SECRETS.values(), *SECRET_COLLECTIONS.values()]),
    )
    world.run(f"INSERT INTO shop.t (p, {names}) VALUES (5, {texts})")
    logged = texts.replace("[2345678901235]", f"{{{min_timeuuid(Microseconds(0))}: 2345678901235}}")
    token = tokens_from_keys(pa.array([log.schema.partition_bytes((5,))], pa.binary()))
    stream = generation.streams_of(token)[0].tobytes()
    at = min_timeuuid(us_from_ms(FIRST_MS))
    world.run(
        'INSERT INTO shop.t_scylla_cdc_log ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation", '
        f'"cdc$end_of_batch", p, {names}) VALUES (0x{stream.hex()}, {at}, 0, 2, true, 5, {logged})'
    )
    done = ingest_table(cluster, Clock(), "shop", "t", workers, current=True)
    assert done.rows == 1
    home = cluster.open_home()
    lake = Lake(home.lake)
    tables = [log_table(log.schema), current_table(log.schema)]
    for table in tables:
        (row,) = DeltaTable(lake.path(table)).to_pyarrow_table().to_pylist()
        assert row["p"] == 5
        stored = {name: row[name] for name in row if name in {**SECRETS, **SECRET_COLLECTIONS}}
        assert stored.keys() == {**SECRETS, **SECRET_COLLECTIONS}.keys() - rules[rule].keys()
        if rule == "hashed":
            assert all(isinstance(value, bytes) and len(value) == 32 for value in stored.values())
    with open_home(home.name, clock=Clock()) as opened:
        assert [str(result) for result in opened.check(deep=True).failed] == []
        exported = opened.sql("SELECT * FROM shop.t_scylla_cdc_log")
        changes = opened.read("shop.t$changes").to_pylist()
    assert [change["op"] for change in changes] == ["c"]
    write_parquet(exported, tmp_path / "home" / "exported.parquet", compression="none")
    forms = set()
    for file in (tmp_path / "home").rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            if file.suffix == ".parquet":
                sink = pa.BufferOutputStream()
                write_parquet(read_parquet(file), sink, compression="none", use_dictionary=False)
                content += sink.getvalue().to_pybytes()
            forms |= {form for form in PLAIN_FORMS if form in content}
            assert key.read_bytes() not in content
    # Without rules most forms are in the files, so the search works.
    assert len(forms) > 12 if rule == "none" else forms == set()

"""Values on their way from a cluster into the lake: of every type, and those that Python's classes cannot hold."""

from __future__ import annotations

from decimal import Decimal
from ipaddress import ip_address
from uuid import UUID

import pyarrow as pa
import pytest
from support.standin.cluster import FIRST_MS, StandIn, description
from support.standin.live_log import LiveLog, defined
from support.standin.world import time_uuid

from cdc_platform.clock import Clock, Microseconds, us_of
from cdc_platform.cluster.ingest.ingesting import ingest
from cdc_platform.cluster.known import KnownCluster
from cdc_platform.cql.times import Duration
from cdc_platform.cql.timeuuid import earliest
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.volume import Workers
from cdc_platform.log.ddl import schema_of
from cdc_platform.log.log_table import log_table
from cdc_platform.log.log_values import table_rows

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
    "l": (f"{{{earliest(Microseconds(0))}: 5}}", ((earliest(Microseconds(0)), 5),)),
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
FAR = {
    "d": ("4294967295", 2**31 - 1),
    "e": ("1e-2147483", Decimal("1e-2147483")),
    "i": (str(DIGITS), DIGITS),
    "l": (f"{{{earliest(Microseconds(0))}: 9223372036854775807}}", ((earliest(Microseconds(0)), 2**63 - 1),)),
    "m": ("{4294967295: -9223372036854775808}", ((2**31 - 1, -(2**63)),)),
    "t": ("253402300800000", 253402300800000),
    "u": ("-2147483647mo", Duration(-2147483647, 0, 0)),
    "x": ("{b: -9223372036854775808}", (None, -(2**63))),
    "y": ("(4294967295, -7)", (2**31 - 1, -7)),
}


def test_values_of_every_type_come_as_they_are(standin: StandIn, cluster: KnownCluster, workers: Workers) -> None:
    """Also dates and timestamps of any year, beside which the driver would have thrown the page away; and no bytes."""
    world, generation = standin.world, description(time_uuid(FIRST_MS))
    world.run("CREATE TYPE IF NOT EXISTS shop.ut (a int, b timestamp)")
    log = LiveLog(world, defined(DDL), {FIRST_MS: generation}).make()
    stream = generation.streams[0].tobytes()
    for place, values in enumerate((PLAIN, FAR, {"b": ("blobAsBigint(0x)", None)})):
        names = ", ".join(f'"{name}"' for name in values)
        texts = ", ".join(text for text, _ in values.values())
        head = f"0x{stream.hex()}, {earliest(Microseconds(us_of(FIRST_MS) + place))}, 0, 2, {place}"
        world.run(
            'INSERT INTO shop.t_scylla_cdc_log ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation", p, '
            f"{names}) VALUES ({head}, {texts})"
        )
    told: list[str] = []
    done = ingest(cluster, Clock(), "shop", "t", workers, tell=told.append)
    assert (done.rows, told) == (3, [])
    found = Lake(cluster.open_home().lake).read(log_table(log.schema, exact=True))
    rows = {row["p"]: row for row in table_rows(log.schema, found)}
    for place, values in enumerate((PLAIN, FAR, {"b": ("", None)})):
        assert {name: rows[place][name] for name in values} == {name: value for name, (_, value) in values.items()}
    assert isinstance(found, pa.Table)


def test_a_type_that_gets_a_field_is_looked_up_before_its_values_are_given_up(
    standin: StandIn, cluster: KnownCluster, workers: Workers
) -> None:
    """Its values have more fields than were known: the definition is read anew, and none of them is lost."""
    world, generation = standin.world, description(time_uuid(FIRST_MS))
    world.run("CREATE TYPE IF NOT EXISTS shop.grows (a int)")
    ddl = DDL.partition("CREATE TABLE")[2].replace("x frozen<ut>", "x frozen<grows>")
    log = LiveLog(world, defined(f"CREATE TYPE shop.grows (a int); CREATE TABLE{ddl}"), {FIRST_MS: generation}).make()
    ingest(cluster, Clock(us_of(FIRST_MS)), "shop", "t", workers)
    world.run("ALTER TYPE shop.grows ADD b text")
    head = f"0x{generation.streams[0].tobytes().hex()}, {earliest(Microseconds(us_of(FIRST_MS) + 1))}, 0, 2, 7"
    world.run(
        'INSERT INTO shop.t_scylla_cdc_log ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation", p, x) '
        f"VALUES ({head}, {{a: 1, b: 'two'}})"
    )
    told: list[str] = []
    ingest(cluster, Clock(), "shop", "t", workers, tell=told.append)
    lake = Lake(cluster.open_home().lake)
    schema = schema_of(lake, "shop", "t")
    (row,) = table_rows(schema, lake.read(log_table(schema)))
    assert (row["x"], told) == ((1, "two"), [])
    assert schema != log.schema

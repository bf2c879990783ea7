"""Statements in order: what each one writes, its time and stream, and what the next one reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from cassandra.util import min_uuid_from_time
from support.files.cql_scripts import NOW_US, Accepted, Rehearse

from cdc_platform.cdclog import ScriptResult, StatementOutcome
from cdc_platform.clock import ms_from_us
from cdc_platform.cql import get_log_columns, us_from_timeuuid
from cdc_platform.cql.types import timeuuid_sort_key
from cdc_platform.errors import WriteRefused
from cdc_platform.generations import StreamId
from cdc_platform.ring import tokens_from_keys
from cdc_platform.settings import Settings

SIMPLE = "CREATE TABLE ks.t (pk int, ck int, v int, PRIMARY KEY (pk, ck)) WITH cdc = {'enabled': true};"
LISTS = (
    "CREATE TABLE ks.t (pk int PRIMARY KEY, l list<int>, m map<text, int>, n set<int>) WITH cdc = {'enabled': true};"
)


def rows(outcomes: list[StatementOutcome], *columns: str) -> list[tuple[Any, ...]]:
    """Return these columns of all log rows, in order."""
    return [tuple(row[column] for column in columns) for outcome in outcomes for row in outcome.rows]


def times(outcomes: list[StatementOutcome]) -> list[int]:
    """Return the times (µs) of all log rows, once per batch."""
    return [
        us_from_timeuuid(time)
        for time in dict.fromkeys(row["cdc$time"] for outcome in outcomes for row in outcome.rows)
    ]


def base(result: ScriptResult, name: str = "ks.t") -> list[dict[str, Any]]:
    """Return the rows of a table at the end; assert that its log gives the same."""
    (table,) = [table for table in result.tables if table.name == name]
    assert table.replayed == table.base
    return table.base


def test_writes_are_one_microsecond_apart(accepted: Accepted):
    """Times begin at the clock's; a batch counts as one write, and a write with its own timestamp as none."""
    outcomes = accepted(
        SIMPLE
        + f"""UPDATE ks.t SET v = 1 WHERE pk = 0 AND ck = 0;
        UPDATE ks.t USING TIMESTAMP {NOW_US - 7} SET v = 2 WHERE pk = 0 AND ck = 0;
        BEGIN BATCH
            UPDATE ks.t SET v = 3 WHERE pk = 0 AND ck = 0;
            UPDATE ks.t SET v = 3 WHERE pk = 0 AND ck = 1;
        APPLY BATCH;
        SELECT * FROM ks.t;
        UPDATE ks.t SET v = 4 WHERE pk = 0 AND ck = 0;"""
    )
    assert times(outcomes) == [NOW_US, NOW_US - 7, NOW_US + 1, NOW_US + 2]


def test_the_stream_depends_on_the_key(accepted: Accepted):
    """Rows of one partition share their stream, which belongs to the range that contains the key's token."""
    outcomes = accepted(
        SIMPLE + "".join(f"INSERT INTO ks.t (pk, ck) VALUES ({pk}, {ck});" for pk in range(9) for ck in (0, 1))
    )
    by_key: dict[int, set[bytes]] = {}
    for stream, pk in rows(outcomes, "cdc$stream_id", "pk"):
        by_key.setdefault(pk, set()).add(stream)
    assert all(len(streams) == 1 for streams in by_key.values())
    assert len(set.union(*by_key.values())) > 1
    ends = [-6 * 10**18, -3 * 10**18, 100, 101, 4 * 10**18, 7 * 10**18]
    for pk, (stream,) in by_key.items():
        token = int(tokens_from_keys([pk.to_bytes(4, "big")])[0])
        index = next((position for position, end in enumerate(ends) if token <= end), 0)
        assert StreamId.from_bytes(stream).index == index


def test_a_script_is_deterministic(rehearsed: Rehearse):
    """The rows are equal byte by byte, including UUIDs of now() and uuid(); two statements never get the same UUID."""
    script = """CREATE TABLE ks.t (pk uuid, ck timeuuid, PRIMARY KEY (pk, ck)) WITH cdc = {'enabled': true};
        INSERT INTO ks.t (pk, ck) VALUES (uuid(), now()); INSERT INTO ks.t (pk, ck) VALUES (uuid(), now());"""
    first, second = rehearsed(script), rehearsed(script)
    assert [outcome.rows for outcome in first.outcomes] == [outcome.rows for outcome in second.outcomes]
    for column in ("pk", "ck", "cdc$time"):
        assert len(set(rows(first.outcomes, column))) == 2
    assert all(key.version == 4 for (key,) in rows(first.outcomes, "pk"))


def test_the_same_statement_twice_is_two_writes(accepted: Accepted):
    """With the same timestamp they have one time and two timeuuids."""
    statement = f"UPDATE ks.t USING TIMESTAMP {NOW_US} SET v = 1 WHERE pk = 0 AND ck = 0;"
    (first,), (second,) = rows(accepted(SIMPLE + statement + statement), "cdc$time")
    assert first != second
    assert us_from_timeuuid(first) == us_from_timeuuid(second)


def test_a_refused_write_changes_nothing(rehearsed: Rehearse):
    """Neither table nor log changes, for any partition of the batch; later statements do not see the write."""
    result = rehearsed(
        LISTS
        + f"""UPDATE ks.t SET l = l + [1] WHERE pk = 0;
        BEGIN BATCH
            UPDATE ks.t SET l = l + [2] WHERE pk = 0;
            UPDATE ks.t USING TIMESTAMP {NOW_US + 5_000_000} SET l = l + [3] WHERE pk = 1;
        APPLY BATCH;
        UPDATE ks.t SET l[0] = 4 WHERE pk = 0;"""
    )
    assert [outcome.accepted for outcome in result.outcomes] == [True, True, False, True]
    assert isinstance(result.outcomes[2].error, WriteRefused)
    assert result.outcomes[2].rows == []
    assert [(row["pk"], row["l"]) for row in base(result)] == [(0, [4])]


@pytest.mark.parametrize(
    ("timestamp", "accepted"),
    [(NOW_US + 4_999_998, True), (NOW_US + 4_999_999, False)],
)
def test_the_time_of_the_log_row_is_judged(rehearsed: Rehearse, timestamp: int, accepted: bool):
    """The deletion of a collection is logged one microsecond later, and that time needs a stream."""
    outcome = rehearsed(f"{LISTS} DELETE m FROM ks.t USING TIMESTAMP {timestamp} WHERE pk = 0;").outcomes[-1]
    assert outcome.accepted is accepted


def test_the_policy_of_the_home_applies(rehearsed: Rehearse):
    """Both policies refuse a write before the only generation as past, and accept every write in it."""
    before = f"{SIMPLE} INSERT INTO ks.t (pk, ck) VALUES (0, 0) USING TIMESTAMP 1577836799999999;"
    inside = before.replace("1577836799999999", "1577836800000000")
    for settings in (Settings(), Settings(policy="recent-past")):
        assert [outcome.accepted for outcome in rehearsed(before, settings=settings).outcomes] == [True, False]
        assert [outcome.accepted for outcome in rehearsed(inside, settings=settings).outcomes] == [True, True]


def test_a_table_without_cdc_has_no_rows_and_no_bounds(rehearsed: Rehearse):
    """Its writes need no stream; the log begins when CDC is enabled, and pauses while it is disabled."""
    result = rehearsed(
        """CREATE TABLE ks.t (pk int PRIMARY KEY, v int);
        INSERT INTO ks.t (pk, v) VALUES (0, 0) USING TIMESTAMP 1;
        ALTER TABLE ks.t WITH cdc = {'enabled': true};
        INSERT INTO ks.t (pk, v) VALUES (1, 1);
        ALTER TABLE ks.t WITH cdc = {'enabled': false};
        INSERT INTO ks.t (pk, v) VALUES (2, 2);"""
    )
    assert [outcome.accepted for outcome in result.outcomes] == [True] * 6
    assert rows(result.outcomes, "pk") == [(1,)]
    assert {row["pk"] for row in result.tables[0].base} == {0, 1, 2}
    assert result.tables[0].replayed is None


def test_tablets_have_their_own_streams(rehearsed: Rehearse):
    """A stream per tablet ends at its last token; times from the table's creation to the leeway are accepted."""
    result = rehearsed(
        f"""CREATE KEYSPACE tabs WITH tablets = {{'enabled': true, 'initial': 4}};
        USE tabs; CREATE TABLE t (pk int PRIMARY KEY) WITH cdc = {{'enabled': true}};
        INSERT INTO t (pk) VALUES (0);
        INSERT INTO t (pk) VALUES (0) USING TIMESTAMP {NOW_US - 5_000_001};
        INSERT INTO t (pk) VALUES (0) USING TIMESTAMP {NOW_US + 5_000_001};
        DROP TABLE t; CREATE TABLE t (pk int, x int, PRIMARY KEY (pk, x)) WITH cdc = {{'enabled': true}};"""
    )
    assert [outcome.accepted for outcome in result.outcomes] == [True, True, True, True, False, False, True, True]
    ((stream,),) = rows(result.outcomes, "cdc$stream_id")
    token = int(tokens_from_keys([bytes(4)])[0])
    last_tokens = [number * (2**64 - 1) // 4 - 2**63 for number in range(1, 5)]
    assert StreamId.from_bytes(stream).token == min(token_end for token_end in last_tokens if token_end >= token)
    assert StreamId.from_bytes(stream).index == 0


def test_definitions_return_the_columns_of_the_log(accepted: Accepted):
    """The log has keys, static and other columns, and those that ALTER adds; without CDC it has none."""
    outcomes = accepted(
        """CREATE TABLE ks.t (b text, a int, c int, "V" frozen<list<int>>, s set<int> static, PRIMARY KEY ((b, a), c))
            WITH cdc = {'enabled': true};
        ALTER TABLE ks.t ADD x tuple<int, text>; ALTER TABLE ks.t DROP s;
        ALTER TABLE ks.t WITH cdc = {'enabled': false};"""
    )
    columns = [
        {column.name: column.type.cql for column in get_log_columns(outcome.schema)}
        for outcome in outcomes
        if outcome.schema
    ]
    assert list(columns[0]) == [
        *("cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation", "cdc$ttl", "cdc$end_of_batch"),
        *("b", "a", "c", "s", "cdc$deleted_s", "cdc$deleted_elements_s", "V", "cdc$deleted_V"),
    ]
    assert columns[0]["V"] == "frozen<list<int>>"
    assert columns[1]["x"] == "frozen<tuple<int, text>>"
    assert "s" not in columns[2]
    assert outcomes[-1].schema is not None
    assert not outcomes[-1].schema.cdc.enabled


def test_added_and_dropped_columns(rehearsed: Rehearse):
    """Older rows have null in a new column; a dropped column is missing from the table and from later rows."""
    result = rehearsed(
        SIMPLE
        + """INSERT INTO ks.t (pk, ck, v) VALUES (0, 0, 0);
        ALTER TABLE ks.t ADD w list<int>; ALTER TABLE ks.t DROP v;
        INSERT INTO ks.t (pk, ck, w) VALUES (0, 1, [1]);"""
    )
    assert base(result) == [{"pk": 0, "ck": 0, "w": None}, {"pk": 0, "ck": 1, "w": [1]}]


def test_fields_added_to_a_type(rehearsed: Rehearse):
    """Older values have null in the new fields, whether frozen, nested or neither."""
    result = rehearsed(
        """CREATE TYPE ks.inner (a int); CREATE TYPE ks.outer (i frozen<inner>, b int);
        CREATE TABLE ks.t (pk int PRIMARY KEY, f frozen<outer>, n outer, s set<frozen<inner>>)
            WITH cdc = {'enabled': true};
        INSERT INTO ks.t (pk, f, n, s) VALUES (0, {i: {a: 1}, b: 2}, {i: {a: 1}}, {{a: 1}});
        ALTER TYPE ks.inner ADD z text; ALTER TYPE ks.outer ADD y int;
        UPDATE ks.t SET s = s + {{a: 2, z: 'z'}}, n.y = 3 WHERE pk = 0;"""
    )
    assert base(result) == [
        {
            "pk": 0,
            "f": {"i": {"a": 1, "z": None}, "b": 2, "y": None},
            "n": {"i": {"a": 1, "z": None}, "b": None, "y": 3},
            "s": [{"a": 1, "z": None}, {"a": 2, "z": "z"}],
        }
    ]


def test_a_dropped_table_is_forgotten(rehearsed: Rehearse):
    """A new table of its name is another table; dropping a keyspace drops all of its tables."""
    result = rehearsed(
        SIMPLE
        + """INSERT INTO ks.t (pk, ck, v) VALUES (0, 0, 0); DROP TABLE ks.t;
        CREATE TABLE ks.t (a text PRIMARY KEY) WITH cdc = {'enabled': true};
        INSERT INTO ks.t (a) VALUES ('x');
        CREATE TABLE other.t (a text PRIMARY KEY); DROP KEYSPACE other;"""
    )
    assert base(result) == [{"a": "x"}]
    assert [table.name for table in result.tables] == ["ks.t"]


def test_truncating_is_not_logged(rehearsed: Rehearse):
    """The table is empty, and its log unchanged."""
    result = rehearsed(SIMPLE + "INSERT INTO ks.t (pk, ck) VALUES (0, 0); TRUNCATE ks.t;")
    assert (len(rows(result.outcomes, "pk")), result.tables[0].base) == (1, [])


def test_names_resolve_in_the_current_keyspace(rehearsed: Rehearse):
    """USE selects the keyspace; quoted names preserve their case."""
    result = rehearsed(
        """CREATE KEYSPACE "Ks" WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1};
        USE "Ks"; CREATE TABLE "T" ("Key" int PRIMARY KEY, v int) WITH cdc = {'enabled': true};
        INSERT INTO "T" ("Key") VALUES (1); UPDATE "Ks"."T" SET V = 2 WHERE "Key" = 1;"""
    )
    assert base(result, "Ks.T") == [{"Key": 1, "v": 2}]


def test_lists_have_the_order_of_their_writes(rehearsed: Rehearse):
    """Append, prepend, change by index and by value; in a batch, with more elements than a microsecond has steps."""
    many = list(range(100, 400))
    result = rehearsed(
        LISTS
        + f"""UPDATE ks.t SET l = l + {many} WHERE pk = 0;
        UPDATE ks.t SET l = [1, 2] + l WHERE pk = 0;
        BEGIN BATCH
            UPDATE ks.t SET l = [3] + l WHERE pk = 0;
            UPDATE ks.t SET l = [4] + l WHERE pk = 0;
            UPDATE ks.t SET l = l + [5] WHERE pk = 0;
            UPDATE ks.t SET l = l + [6] WHERE pk = 0;
        APPLY BATCH;
        UPDATE ks.t SET l[1] = 33 WHERE pk = 0;
        DELETE l[0] FROM ks.t WHERE pk = 0;
        UPDATE ks.t SET l = l - {many[:-2]} WHERE pk = 0;
        UPDATE ks.t SET l[1] = null WHERE pk = 0;"""
    )
    assert base(result)[0]["l"] == [33, 2, *many[-2:], 5, 6]
    (first,) = result.outcomes[1].rows
    added: Any = first["l"]
    keys: list[UUID] = [key for key, _ in added]
    assert keys == sorted(keys, key=timeuuid_sort_key)
    assert all(us_from_timeuuid(key) == NOW_US for key in keys)


def test_prepends_of_one_batch_have_distinct_keys(rehearsed: Rehearse):
    """This holds for any number of prepends, beside appends, and at any timestamps; the last prepend comes first."""
    prepends = "".join(f"UPDATE ks.t SET l = [{n}, {n + 100}] + l WHERE pk = 0;" for n in range(40))
    others = "UPDATE ks.t SET l = l + [7] WHERE pk = 0; UPDATE ks.t SET l = l + [8] WHERE pk = 0;"
    result = rehearsed(LISTS + f"BEGIN BATCH {prepends} {others} APPLY BATCH;")
    assert base(result)[0]["l"] == [value for n in reversed(range(40)) for value in (n, n + 100)] + [7, 8]
    earlier = f"UPDATE ks.t USING TIMESTAMP {NOW_US - 1} SET l = [1] + l WHERE pk = 0;"
    later = f"UPDATE ks.t USING TIMESTAMP {NOW_US} SET l = [2] + l WHERE pk = 0;"
    for batch in (earlier + later, later + earlier):
        assert base(rehearsed(LISTS + f"BEGIN BATCH {batch} APPLY BATCH;"))[0]["l"] == [2, 1]


def test_a_prepend_has_a_timestamp_after_2010(rehearsed: Rehearse):
    """Its key mirrors the time around 2010 (cql3/lists.cc, prepender)."""
    at = 1_262_304_000_000_000
    write = "UPDATE ks.t USING TIMESTAMP {} SET l = [1] + l WHERE pk = 0;"
    for timestamp in (at, at - 1, 0):
        error = rehearsed(LISTS + write.format(timestamp)).outcomes[-1].error
        assert "List prepend custom timestamp must be greater than Jan 1 2010 00:00:00" in str(error)
    error = rehearsed(LISTS + write.format(at + 1)).outcomes[-1].error
    assert isinstance(error, WriteRefused)
    appended = write.format(at).replace("[1] + l", "l + [1]")
    assert isinstance(rehearsed(LISTS + appended).outcomes[-1].error, WriteRefused)


def test_the_two_zeros_are_two_keys(accepted: Accepted):
    """In clustering keys, partition keys, maps and sets, -0.0 precedes 0.0, however it is written."""
    outcomes = accepted(
        """CREATE TABLE ks.f (p double, k float, s set<double>, m map<float, int>, PRIMARY KEY (p, k))
            WITH cdc = {'enabled': true, 'postimage': true};
        INSERT INTO ks.f (p, k, s, m) VALUES (0.0, 0.0, {0.0, -0.0}, {-0: 1, 0: 2});
        UPDATE ks.f SET s = s - {0.0} WHERE p = 0 AND k = 0;
        UPDATE ks.f SET s = {1} WHERE p = -0.0 AND k IN (-0.0, 0.0);
        DELETE FROM ks.f WHERE p = -0.0 AND k < 0.0;"""
    )
    values = [[str(row[name]) for name in ("cdc$operation", "p", "k", "s", "m")] for row in outcomes[1].rows]
    assert values[0][1:] == ["0.0", "0.0", "[-0.0, 0.0]", "[[-0.0, 1], [0.0, 2]]"]
    assert [[str(row["s"])] for row in outcomes[2].rows] == [["None"], ["[-0.0]"]]
    keys = [(row["cdc$operation"], str(row["p"]), str(row["k"])) for row in outcomes[3].rows]
    assert keys == [(1, "-0.0", "-0.0"), (1, "-0.0", "0.0"), (9, "-0.0", "-0.0"), (9, "-0.0", "0.0")]
    assert [str(row["k"]) for row in outcomes[4].rows] == ["0.0"]


def test_a_type_cannot_contain_itself(rehearsed: Rehearse):
    """A type can contain itself neither directly nor through another type."""
    types = "CREATE TYPE ks.a (x int); CREATE TYPE ks.b (y frozen<a>);"
    for field in ("frozen<a>", "frozen<b>", "list<frozen<b>>"):
        error = rehearsed(f"{types} ALTER TYPE ks.a ADD z {field};").outcomes[-1].error
        assert "a part of itself" in str(error)


def test_a_change_without_effect_leaves_no_row(accepted: Accepted):
    """Adding no elements, removing missing values, and IN without choices leave no log row."""
    outcomes = accepted(
        LISTS
        + """UPDATE ks.t SET m = m + {}, n = n - {} WHERE pk = 0;
        UPDATE ks.t SET l = l - [1] WHERE pk = 0;
        DELETE FROM ks.t WHERE pk IN ();"""
    )
    assert rows(outcomes, "pk") == []


def test_ttls(accepted: Accepted):
    """Cells have the TTL of their statement, else the table's; 0 and null mean none; tombstones have none."""
    outcomes = accepted(
        """CREATE TABLE ks.t (pk int PRIMARY KEY, v int) WITH cdc = {'enabled': true} AND default_time_to_live = 60;
        UPDATE ks.t SET v = 1 WHERE pk = 0;
        UPDATE ks.t USING TTL 5 SET v = 1 WHERE pk = 0;
        UPDATE ks.t USING TTL 0 SET v = 1 WHERE pk = 0;
        UPDATE ks.t USING TTL null SET v = 1 WHERE pk = 0;
        UPDATE ks.t USING TTL 5 SET v = null WHERE pk = 0;
        ALTER TABLE ks.t WITH default_time_to_live = 0;
        INSERT INTO ks.t (pk, v) VALUES (0, 1);"""
    )
    assert rows(outcomes, "cdc$ttl") == [(60,), (5,), (None,), (None,), (None,), (None,)]


def test_a_written_ttl_counts_from_the_statement(rehearsed: Rehearse):
    """A value written now with an old timestamp does not expire at once."""
    result = rehearsed(
        f"{SIMPLE} UPDATE ks.t USING TIMESTAMP {NOW_US - 10**9} AND TTL 1 SET v = 1 WHERE pk = 0 AND ck = 0;"
    )
    assert base(result) == [{"pk": 0, "ck": 0, "v": 1}]


def test_an_insert_of_a_collection_with_a_ttl_is_three_rows(accepted: Accepted):
    """The rows are the marker with its TTL, the tombstone without, and the elements with it."""
    outcomes = accepted(f"{LISTS} INSERT INTO ks.t (pk, n) VALUES (0, {{1}}) USING TTL 7;")
    assert rows(outcomes, "cdc$operation", "cdc$ttl", "n", "cdc$deleted_n", "cdc$batch_seq_no", "cdc$end_of_batch") == [
        (2, 7, None, None, 0, None),
        (1, None, None, True, 1, None),
        (1, 7, [1], None, 2, True),
    ]


def test_statements_name_several_rows(accepted: Accepted):
    """IN of partitions gives one log mutation each, IN of rows only one; repeated choices count once."""
    outcomes = accepted(
        SIMPLE
        + """UPDATE ks.t SET v = 1 WHERE pk IN (0, 1, 0) AND ck IN (1, 2);
        DELETE FROM ks.t WHERE pk = 0 AND (ck) IN ((1), (2));"""
    )
    assert rows(outcomes, "pk", "ck", "cdc$operation", "cdc$batch_seq_no") == [
        (0, 1, 1, 0), (0, 2, 1, 1), (1, 1, 1, 0), (1, 2, 1, 1), (0, 1, 3, 0), (0, 2, 3, 1),
    ]  # fmt: skip
    assert len(times(outcomes)) == 3


@pytest.mark.parametrize(
    ("where", "bounds", "left"),
    [
        ("a = 1", [(5, 1, None), (7, 1, None)], [(2, 1), (2, 2), (0, 1), (0, 2)]),
        ("a > 0", [(8, 0, None)], [(0, 1), (0, 2)]),
        ("a >= 1 AND a < 2", [(6, 2, None), (7, 1, None)], [(2, 1), (2, 2), (0, 1), (0, 2)]),
        ("a = 1 AND b > 1", [(6, 1, 1)], [(2, 1), (2, 2), (1, 1), (0, 1), (0, 2)]),
        ("a = 1 AND b <= 1", [(7, 1, 1)], [(2, 1), (2, 2), (1, 2), (0, 1), (0, 2)]),
        ("(a) > (1)", [(8, 1, None)], [(1, 1), (1, 2), (0, 1), (0, 2)]),
        ("(a, b) = (1, 2)", [(3, 1, 2)], [(2, 1), (2, 2), (1, 1), (0, 1), (0, 2)]),
        ("a IN (0, 2)", [(5, 2, None), (7, 2, None), (5, 0, None), (7, 0, None)], [(1, 1), (1, 2)]),
    ],
)
def test_ranges_are_in_clustering_order(rehearsed: Rehearse, where: str, bounds: list[Any], left: list[Any]):
    """With a descending first column a lower bound of values is the end; a prefix gives both bounds."""
    inserts = "".join(f"INSERT INTO ks.t (pk, a, b) VALUES (0, {a}, {b});" for a in (0, 1, 2) for b in (1, 2))
    result = rehearsed(
        f"""CREATE TABLE ks.t (pk int, a int, b int, PRIMARY KEY (pk, a, b))
            WITH cdc = {{'enabled': true}} AND CLUSTERING ORDER BY (a DESC, b ASC);
        {inserts} DELETE FROM ks.t WHERE pk = 0 AND {where};"""
    )
    assert rows(result.outcomes[-1:], "cdc$operation", "a", "b") == bounds
    assert [(row["a"], row["b"]) for row in base(result)] == left


COMPARED = {
    "(a, b) > (0, 1) AND (a, b) <= (2, 1)": lambda a, b: (0, 1) < (a, b) <= (2, 1),
    "(a, b) >= (1, 1) AND (a) < (2)": lambda a, b: (a, b) >= (1, 1) and a < 2,
    "a >= 1 AND (a, b) < (1, 2)": lambda a, b: a >= 1 and (a, b) < (1, 2),
    "(a, b) >= (1, 2)": lambda a, b: (a, b) >= (1, 2),
    "(a, b) > (1, 2) AND (a, b) < (1, 2)": lambda _a, _b: False,
    "(a, b) > (0, 0) AND (a, b) < (2, 2)": lambda a, b: (0, 0) < (a, b) < (2, 2),
}
ORDERS = ["a ASC, b ASC", "a DESC, b DESC", "a DESC, b ASC", "a ASC, b DESC"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("where", COMPARED)
def test_several_columns_are_bounded_together(rehearsed: Rehearse, where: str, order: str):
    """Tuples are compared by their first column first, whatever the clustering order."""
    keys = [(a, b) for a in (0, 1, 2) for b in (0, 1, 2)]
    inserts = "".join(f"INSERT INTO ks.t (pk, a, b) VALUES (0, {a}, {b});" for a, b in keys)
    result = rehearsed(
        f"""CREATE TABLE ks.t (pk int, a int, b int, PRIMARY KEY (pk, a, b))
            WITH cdc = {{'enabled': true}} AND CLUSTERING ORDER BY ({order});
        {inserts} DELETE FROM ks.t WHERE pk = 0 AND {where};"""
    )
    remaining = {(row["a"], row["b"]) for row in base(result)}
    assert remaining == {(a, b) for a, b in keys if not COMPARED[where](a, b)}


def test_images_show_the_writes_of_earlier_statements(accepted: Accepted):
    """The pre-image is the row before, if it existed, the post-image the row after."""
    outcomes = accepted(
        """CREATE TABLE ks.t (pk int PRIMARY KEY, v int, w int) WITH cdc = {'enabled': true, 'preimage': true,
            'postimage': true};
        UPDATE ks.t SET v = 1, w = 1 WHERE pk = 0; UPDATE ks.t SET v = 2 WHERE pk = 0;
        DELETE v FROM ks.t WHERE pk = 0;"""
    )
    assert rows(outcomes, "cdc$operation", "v", "w", "cdc$deleted_v", "cdc$batch_seq_no") == [
        (1, 1, 1, None, 0), (9, 1, 1, None, 1),
        (0, 1, None, None, 0), (1, 2, None, None, 1), (9, 2, 1, None, 2),
        (0, 2, None, None, 0), (1, None, None, True, 1), (9, None, 1, None, 2),
    ]  # fmt: skip


def test_a_log_of_keys_has_no_values(rehearsed: Rehearse):
    """It has only keys, operations and TTLs, and cannot be replayed."""
    result = rehearsed(
        """CREATE TABLE ks.t (pk int PRIMARY KEY, v int, n set<int>) WITH cdc = {'enabled': true, 'delta': 'keys'};
        UPDATE ks.t USING TTL 9 SET v = 1, n = n + {1} WHERE pk = 0;"""
    )
    assert rows(result.outcomes, "pk", "v", "n", "cdc$operation", "cdc$ttl") == [(0, None, None, 1, 9)]
    assert result.tables[0].replayed is None


def test_a_batch_is_merged_before_it_is_logged(accepted: Accepted):
    """The later of two writes of a cell stays; with equal timestamps a deletion wins, else the larger value."""
    outcomes = accepted(
        SIMPLE
        + """BEGIN BATCH
            UPDATE ks.t SET v = 1 WHERE pk = 0 AND ck = 0;
            UPDATE ks.t SET v = 3 WHERE pk = 0 AND ck = 0;
            UPDATE ks.t SET v = 2 WHERE pk = 0 AND ck = 0;
            UPDATE ks.t SET v = 1 WHERE pk = 0 AND ck = 1;
            DELETE v FROM ks.t WHERE pk = 0 AND ck = 1;
        APPLY BATCH"""
    )
    assert rows(outcomes, "ck", "v", "cdc$deleted_v") == [(0, 3, None), (1, None, True)]


def test_two_inserts_of_a_batch_leave_one_marker(accepted: Accepted):
    """The earlier insert's cell appears as an update at its own time."""
    outcomes = accepted(
        f"""CREATE TABLE ks.t (pk int PRIMARY KEY, v int, w int) WITH cdc = {{'enabled': true}};
        BEGIN BATCH
            INSERT INTO ks.t (pk, v) VALUES (0, 1) USING TIMESTAMP {NOW_US};
            INSERT INTO ks.t (pk, w) VALUES (0, 2) USING TIMESTAMP {NOW_US + 1};
        APPLY BATCH"""
    )
    assert rows(outcomes, "v", "w", "cdc$operation") == [(1, None, 1), (None, 2, 2)]
    assert times(outcomes) == [NOW_US, NOW_US + 1]


def test_batches_write_to_several_tables(rehearsed: Rehearse):
    """Each table gets a log mutation at the same time."""
    result = rehearsed(
        SIMPLE
        + """CREATE TABLE ks.u (pk int PRIMARY KEY) WITH cdc = {'enabled': true};
        BEGIN BATCH INSERT INTO ks.t (pk, ck) VALUES (0, 0); INSERT INTO ks.u (pk) VALUES (0) APPLY BATCH"""
    )
    first, second = result.outcomes[-1].rows
    assert ("ck" in first, "ck" in second) == (True, False)
    assert times(result.outcomes) == [NOW_US, NOW_US]
    assert (len(base(result, "ks.t")), len(base(result, "ks.u"))) == (1, 1)


@pytest.mark.parametrize(
    ("expression", "kind", "value"),
    [
        ("toTimestamp(now())", "timestamp", "2020-11-26T12:00:00.000Z"),
        ("toDate(toTimestamp(now()))", "date", "2020-11-26"),
        ("currentDate()", "date", "2020-11-26"),
        ("currentTime()", "time", "12:00:00"),
        ("toUnixTimestamp(now())", "bigint", ms_from_us(NOW_US)),
        ("minTimeuuid('2020-11-26 12:00+0000')", "timeuuid", min_uuid_from_time(NOW_US / 1_000_000)),
        ("textAsBlob('é')", "blob", b"\xc3\xa9"),
        ("toTimestamp(null)", "timestamp", None),
    ],
)
def test_functions(accepted: Accepted, expression: str, kind: str, value: object):
    """Functions use the time at which the statement runs, and can be nested."""
    outcomes = accepted(
        f"""CREATE TABLE ks.t (pk int PRIMARY KEY, v {kind}) WITH cdc = {{'enabled': true}};
        INSERT INTO ks.t (pk, v) VALUES (0, {expression});"""
    )
    assert rows(outcomes, "v") == [(value,)]


def test_the_example_of_the_documentation(rehearsed: Rehearse):
    """The example runs unchanged."""
    script = Path(__file__).resolve().parents[3] / "docs" / "examples" / "statements.cql"
    result = rehearsed(script.read_text(encoding="utf-8"))
    assert [str(outcome.error) for outcome in result.outcomes if outcome.error] == []
    assert [(row["item"], row["tags"], row["notes"]) for row in base(result, "shop.carts")] == [
        (1, ["gift"], ["ring twice"]),
        (2, None, None),
    ]


def test_several_changes_of_a_collection_in_one_update(rehearsed: Rehearse):
    """They are merged as in a batch: with equal timestamps a removal wins, and of two values the larger one."""
    result = rehearsed(
        """CREATE TYPE ks.u (a int, b int);
        CREATE TABLE ks.t (pk int PRIMARY KEY, m map<text, int>, n set<int>, l list<int>, u u)
            WITH cdc = {'enabled': true};
        UPDATE ks.t SET m['a'] = 1, m['b'] = 2, m = m + {'c': 3}, m = m - {'b'}, m['a'] = 5,
            n = n + {1, 2}, n += {3}, n = n - {2}, l = l + [1], l = l + [2], l = [0] + l, u.a = 1, u.b = 2
            WHERE pk = 0;"""
    )
    assert base(result) == [{"pk": 0, "m": [["a", 5], ["c", 3]], "n": [1, 3], "l": [0, 1, 2], "u": {"a": 1, "b": 2}}]
    (row,) = result.outcomes[-1].rows
    assert (row["cdc$deleted_elements_m"], row["cdc$deleted_elements_n"]) == (["b"], [2])


@pytest.mark.parametrize(
    "sets", ["n = {1}, n = n + {2}", "n = n + {2}, n = {1}", "n = {1}, n = {2}", "u.a = 1, u.a = 2", "u = {}, u.a = 1"]
)
def test_incompatible_changes(rehearsed: Rehearse, sets: str):
    """A column set as a whole, or a field, is set only once (cql3/operation.cc)."""
    table = "CREATE TYPE ks.u (a int, b int); CREATE TABLE ks.t (pk int PRIMARY KEY, n set<int>, u u);"
    outcome = rehearsed(f"{table} UPDATE ks.t SET {sets} WHERE pk = 0;").outcomes[-1]
    assert "Multiple incompatible setting of column" in str(outcome.error)


def test_an_empty_batch_does_nothing(accepted: Accepted):
    """It is accepted and takes no timestamp from the next write."""
    outcomes = accepted(
        SIMPLE + "BEGIN BATCH APPLY BATCH; BEGIN UNLOGGED BATCH; APPLY BATCH; DELETE FROM ks.t WHERE pk = 0;"
    )
    assert [outcome.rows for outcome in outcomes[1:3]] == [[], []]
    assert times(outcomes) == [NOW_US]


def test_times_may_be_numbers(accepted: Accepted):
    """With and without quotes they mean the same (types/types.cc, timestamp_from_string, simple_date_type_impl)."""
    outcomes = accepted(
        """CREATE TABLE ks.t (pk int PRIMARY KEY, t timestamp, d date) WITH cdc = {'enabled': true};
        INSERT INTO ks.t (pk, t, d) VALUES (0, 1600000000000, 2147483649);
        INSERT INTO ks.t (pk, t, d) VALUES (0, '1600000000000', '2147483649');
        INSERT INTO ks.t (pk, t, d) VALUES (0, '2020-09-13T12:26:40Z', '1970-01-02');"""
    )
    assert len(set(rows(outcomes, "t", "d"))) == 1


def test_tables_named_like_logs(rehearsed: Rehearse):
    """They are ordinary tables unless they are a log (cdc/log.cc, is_log_for_some_table)."""
    definition = "CREATE TABLE ks.o_scylla_cdc_log (pk int PRIMARY KEY);"
    result = rehearsed(f"{definition} INSERT INTO ks.o_scylla_cdc_log (pk) VALUES (1); DROP TABLE ks.o_scylla_cdc_log;")
    assert [outcome.became for outcome in result.outcomes] == ["done"] * 3
    error = rehearsed(SIMPLE + definition.replace("ks.o", "ks.t")).outcomes[-1].error
    assert "is the name of the log of ks.t" in str(error)
    result = rehearsed(
        definition + "CREATE TABLE ks.o (pk int PRIMARY KEY); ALTER TABLE ks.o WITH cdc = {'enabled': true};"
    )
    assert "Cannot create CDC log table for table ks.o" in str(result.outcomes[-1].error)


def test_long_names(rehearsed: Rehearse):
    """Keyspaces, types and tables have names of at most 192 letters."""
    for size, became in ((192, "done"), (193, "wrong")):
        table = f"CREATE TABLE ks.{'x' * size} (pk int PRIMARY KEY) WITH cdc = {{'enabled': true}};"
        assert rehearsed(table).outcomes[-1].became == became


def test_vectors(rehearsed: Rehearse):
    """A value has as many floats as its type; another number is refused."""
    table = "CREATE TABLE ks.t (pk int PRIMARY KEY, v vector<float, 3>) WITH cdc = {'enabled': true};"
    result = rehearsed(
        table + "INSERT INTO ks.t (pk, v) VALUES (0, [1, 2.5, -3]); UPDATE ks.t SET v = null WHERE pk = 1;"
    )
    assert base(result) == [{"pk": 0, "v": [1.0, 2.5, -3.0]}]
    assert rows(result.outcomes, "v", "cdc$deleted_v") == [([1.0, 2.5, -3.0], None), (None, True)]
    table_schema = result.outcomes[0].schema
    assert table_schema is not None
    columns = {column.name: column.type.cql for column in get_log_columns(table_schema)}
    assert columns["v"] == "vector<float, 3>"
    wrong = rehearsed(table + "INSERT INTO ks.t (pk, v) VALUES (0, [1, 2]); UPDATE ks.t SET v = v + [1] WHERE pk = 1;")
    assert [outcome.became for outcome in wrong.outcomes[1:]] == ["wrong", "wrong"]
    for kind in ("vector<int, 3>", "vector<float>", "vector<float, 0>"):
        assert rehearsed(table.replace("vector<float, 3>", kind)).outcomes[0].became == "wrong"


def test_key_columns_are_renamed(rehearsed: Rehearse):
    """Table and log continue under the new names, as do older rows; columns outside the key cannot be renamed."""
    result = rehearsed(
        SIMPLE
        + """INSERT INTO ks.t (pk, ck, v) VALUES (1, 2, 3); ALTER TABLE ks.t RENAME pk TO id AND ck TO place;
        ALTER TABLE ks.t RENAME id TO "Id"; INSERT INTO ks.t ("Id", place, v) VALUES (1, 3, 4);"""
    )
    assert [outcome.became for outcome in result.outcomes] == ["done"] * 5
    assert base(result) == [{"Id": 1, "place": 2, "v": 3}, {"Id": 1, "place": 3, "v": 4}]
    assert result.outcomes[-1].rows[0]["place"] == 3
    for renames, why in {
        "v TO w": "Cannot rename non PRIMARY KEY part v",
        "pk TO ck": "it has a column of that name",
        "x TO y": "unknown column x",
        "pk TO a AND ck TO a": "names a column twice",
    }.items():
        assert why in str(rehearsed(f"{SIMPLE} ALTER TABLE ks.t RENAME {renames};").outcomes[-1].error)

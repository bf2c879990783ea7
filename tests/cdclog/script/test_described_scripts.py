"""Output of DESCRIBE, run as a script: `cql run` gets the schema that `import` reads from the same text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cdc_platform.cdclog import ScriptResult
from cdc_platform.cql import strip_comments
from cdc_platform.importing.formats.described_schema import parse_schema_text

Rehearse = Callable[..., ScriptResult]

STORED = """bloom_filter_fp_chance = 0.01
    AND caching = {'keys': 'ALL', 'rows_per_partition': 'ALL'}
    AND comment = ''
    AND compaction = {'class': 'IncrementalCompactionStrategy'}
    AND compression = {'sstable_compression': 'LZ4WithDictsCompressor'}
    AND crc_check_chance = 1
    AND default_time_to_live = 0
    AND gc_grace_seconds = 864000
    AND memtable_flush_period_in_ms = 0
    AND speculative_retry = '99.0PERCENTILE'
    AND tombstone_gc = {'mode': 'timeout', 'propagation_delay_in_seconds': '3600'}"""
CDC = "cdc = {'delta': 'full', 'enabled': 'true', 'postimage': 'false', 'preimage': 'false', 'ttl': '86400'}"
DESCRIBED = f"""
CREATE KEYSPACE ks WITH replication = {{'class': 'NetworkTopologyStrategy', 'dc1': '3'}} AND durable_writes = true
    AND tablets = {{'enabled': false}};

CREATE TYPE ks.place (
    street text,
    "Number" int
);

CREATE TABLE ks.t (
    pk int,
    "Ck" int,
    c2 text,
    s int static,
    v frozen<tuple<int, int, int>>,
    w frozen<place>,
    PRIMARY KEY (pk, "Ck", c2)
) WITH CLUSTERING ORDER BY ("Ck" DESC, c2 ASC)
    AND {STORED}
    AND {CDC};

ALTER TABLE ks.t_scylla_cdc_log WITH {STORED.replace("864000", "0")};

CREATE TABLE ks.plain (pk int PRIMARY KEY, v int) WITH {STORED};

CREATE INDEX plain_v_idx ON ks.plain(v);

CREATE MATERIALIZED VIEW ks.by_v AS
    SELECT v, pk FROM ks.plain WHERE v IS NOT null AND pk IS NOT null
    PRIMARY KEY (v, pk);
"""


def test_import_and_log_read_the_same_schema(rehearsed: Rehearse) -> None:
    """No statement is invalid, and the table with a log has the same definition in both."""
    result = rehearsed(f"{DESCRIBED}\nINSERT INTO ks.t (pk, \"Ck\", c2, v) VALUES (0, 0, 'a', (1, null, 3));")
    assert {item.became for item in result.outcomes} == {"done", "passed over"}
    (imported,) = [item for item in parse_schema_text("a", DESCRIBED).tables if item.enabled]
    (outcome,) = [item for item in result.outcomes if item.schema is not None and item.schema.cdc.enabled]
    schema = outcome.schema
    assert schema is not None
    assert imported.ddl is not None
    rerun = rehearsed(strip_comments(imported.ddl))
    (created,) = [item.schema for item in rerun.outcomes if item.schema is not None]
    assert (created.columns, created.cdc) == (schema.columns, schema.cdc)
    assert len(result.outcomes[-1].rows) == 1


@pytest.mark.parametrize(
    ("properties", "wrong"),
    [
        ("cdc = {'enabled': true}", "alter ks.t"),
        ("comment = 'x' AND cdc = {'enabled': false}", "alter ks.t"),
        ("CLUSTERING ORDER BY (pk ASC)", "alter ks.t"),
        ("default_time_to_live = -1", "default_time_to_live is a number of seconds"),
    ],
)
def test_unsupported_options_of_a_log_are_refused(rehearsed: Rehearse, properties: str, wrong: str) -> None:
    """Only the storage options of a log can be altered."""
    result = rehearsed(f"{DESCRIBED} ALTER TABLE ks.t_scylla_cdc_log WITH {properties};")
    assert result.outcomes[-1].became == "wrong"
    assert wrong in str(result.outcomes[-1].reason)


@pytest.mark.parametrize("change", ["ADD x int", "DROP pk", "RENAME pk TO p", "TTL NULL"])
def test_the_columns_of_a_log_follow_from_its_table(rehearsed: Rehearse, change: str) -> None:
    """The columns of a log change only with those of its base table."""
    result = rehearsed(f"{DESCRIBED} ALTER TABLE ks.t_scylla_cdc_log {change};")
    assert "is a CDC log" in str(result.outcomes[-1].reason)


@pytest.mark.parametrize(
    ("order", "rows"),
    [
        ("a DESC", [(2, 1), (2, 2), (1, 1), (1, 2)]),
        ("a ASC", [(1, 1), (1, 2), (2, 1), (2, 2)]),
        ("a DESC, b DESC", [(2, 2), (2, 1), (1, 2), (1, 1)]),
    ],
)
def test_the_first_clustering_columns_may_be_ordered_alone(
    rehearsed: Rehearse, order: str, rows: list[tuple[int, int]]
) -> None:
    """Columns that are not named are ascending."""
    inserts = "".join(f"INSERT INTO ks.o (pk, a, b) VALUES (0, {a}, {b});" for a in (1, 2) for b in (1, 2))
    result = rehearsed(
        f"CREATE TABLE ks.o (pk int, a int, b int, PRIMARY KEY (pk, a, b)) WITH CLUSTERING ORDER BY ({order})"
        f" AND cdc = {{'enabled': true}}; {inserts}"
    )
    assert [(row["a"], row["b"]) for row in result.tables[0].base] == rows
    assert result.tables[0].replayed == result.tables[0].base

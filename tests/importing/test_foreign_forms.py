"""One folder may have the topology, the group's descriptions, tablets' internal tables, nodetool and DESCRIBE.

The files of tests/data/exports were written by Apache Cassandra 5.0.5 (one node, 8 tokens): `nodetool ring` and
`describering`, SELECT JSON of tables with the columns of system.topology and cdc_streams_state, DESCRIBE KEYSPACE. What
only ScyllaDB has (cdc_generations_v3, CDC options, several nodes) is written from the documents.
"""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest
from support.command_line import run
from support.files.export_files import (
    ID,
    LATER_MS,
    NODES,
    SNAPSHOT,
    TIME_MS,
    blob_set,
    cql_time,
    generation,
    streams_csv,
    timestamps_csv,
    v2_csv,
)

from cdc_platform.cdclog import read_table_schema
from cdc_platform.clock import Clock, Milliseconds, ms_from_datetime, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.importing import ImportIssues
from cdc_platform.importing.formats.exports import parse_exports
from cdc_platform.importing.formats.nodetool import parse_nodetool_ring
from cdc_platform.importing.run import import_paths
from cdc_platform.lifecycle import audit_ring_fit
from cdc_platform.metastore import cdc_tables, read_current_ring
from cdc_platform.ring import tokens_from_keys
from cdc_platform.tables import (
    CDC_TABLE_CHANGES,
    CDC_TABLES,
    GENERATION_DESCRIPTIONS_V2,
    GENERATIONS,
    TABLES,
    TABLET_STREAMS,
    TABLET_TIMESTAMPS,
)
from cdc_platform.timeline import GenerationState, Timeline

DATA = Path(__file__).resolve().parents[1] / "data" / "exports"
CLOCK = Clock(us_from_ms(LATER_MS))
GENERATION = generation()
TOKENS = {
    *(-7273619601502313199, -5646619594135212352, -2249094679097878514, -401833615136122703),
    *(-355140286366041337, 5070194837302512576, 7764575538920572441, 8197552287648701488),
}
"""The tokens of the node that wrote the files."""
LOG_ID = "50554d6e-29bb-11e5-b345-feff819cdc9f"
SCHEMA = f"""CREATE KEYSPACE ks WITH replication = {{'class': 'NetworkTopologyStrategy', 'dc1': '3'}};

CREATE TABLE ks.t (pk int PRIMARY KEY, v text) WITH ID = 6926bf70-e6a7-11f1-a4aa-c5e6eb2f05df
    AND cdc = {{'enabled': 'true', 'ttl': '3600', 'preimage': 'false', 'enable_requested': 'false'}};

CREATE TABLE ks.t_scylla_cdc_log ("cdc$stream_id" blob, "cdc$time" timeuuid, PRIMARY KEY ("cdc$stream_id", "cdc$time"))
    WITH ID = {LOG_ID} AND comment = 'CDC log for ks.t';

CREATE TABLE ks.plain (pk int PRIMARY KEY) WITH cdc = {{'enabled': 'false'}};
"""
LOG_CREATED_MS = Milliseconds(1_436_832_018_805)


def v3_csv() -> str:
    """Return cdc_generations_v3 as COPY writes it, without num_ranges."""
    lines = ["key,id,range_end,ignore_msb,streams"]
    for row in range(len(GENERATION)):
        entry = GENERATION.entry(row)
        lines.append(f"cdc_generations,{ID},{entry.range_end},{entry.ignore_msb},{blob_set(entry.streams)}")
    return "\r\n".join(lines) + "\r\n"


def topology_csv() -> str:
    """Return system.topology of the tests' nodes as COPY writes it, with one that is about to join."""
    committed = f"\"{{('{cql_time(TIME_MS)}', {ID})}}\""
    lines = [
        "key,host_id,datacenter,ignore_msb,node_state,rack,shard_count,tokens,transition_state,committed_cdc_generations"
    ]
    for node in NODES:
        tokens = '"{' + ", ".join(f"'{token}'" for token in node.tokens) + '}"'
        fields = (node.host_id, node.datacenter, node.ignore_msb, "normal", node.rack, node.shard_count, tokens)
        lines.append(f"topology,{','.join(map(str, fields))},,{committed}")
    lines.append(f"topology,{ID},dc1,12,none,r1,4,,,{committed}")
    return "\r\n".join(lines) + "\r\n"


def history_csv(rows: list[tuple[int, int, int, str]]) -> str:
    """Return cdc_streams_history of (time in ms, stream_state, last token, stream in hexadecimal)."""
    lines = ["table_id,timestamp,stream_state,last_token,stream_id"]
    lines += [
        f"{LOG_ID},{cql_time(Milliseconds(time))},{state},{last},0x{stream}" for time, state, last, stream in rows
    ]
    return "\r\n".join(lines) + "\r\n"


@pytest.mark.parametrize("file", ["nodetool_ring.txt", "nodetool_describering.txt"])
def test_ring_printed_by_nodetool_is_read(file: str, lake: Lake) -> None:
    """Both texts give a real server's address, rack and tokens; the user must pass the shards."""
    report = import_paths(lake, CLOCK, [DATA / file], shards=4, ignore_msb=12)
    [node] = read_current_ring(lake).nodes
    assert set(node.tokens) == TOKENS
    assert (node.address, node.datacenter, node.rack) == ("127.0.0.1", "datacenter1", "rack1")
    assert (node.shard_count, node.ignore_msb) == (4, 12)
    assert "prints no host IDs" in report.warnings[0]
    with pytest.raises(InputError, match="say it with --shards"):
        import_paths(Lake(lake.root / "other"), CLOCK, [DATA / file])


def test_known_nodes_keep_their_ids_and_shards(lake: Lake, tmp_path: Path) -> None:
    """Values that nodetool does not print come from the known node with this address."""
    known = [SNAPSHOT[0] | {"tokens": [1, 2], "address": "127.0.0.1", "shard_count": 6, "ignore_msb": 3}]
    (tmp_path / "ring.json").write_text(json.dumps(known))
    import_paths(lake, CLOCK, [tmp_path / "ring.json"])
    report = import_paths(lake, CLOCK, [DATA / "nodetool_ring.txt"])
    [node] = read_current_ring(lake).nodes
    assert (node.host_id, node.shard_count, node.ignore_msb) == (NODES[0].host_id, 6, 3)
    assert set(node.tokens) == TOKENS
    assert (report.nodes_changed, report.warnings) == ([str(NODES[0].host_id)], [])


@pytest.mark.parametrize("file", ["nodetool_ring.txt", "nodetool_describering.txt"])
def test_truncated_printed_ring_is_refused(file: str) -> None:
    """A text without its last lines with tokens never counts as a smaller ring."""
    lines = (DATA / file).read_text().splitlines()
    with_tokens = [number for number, line in enumerate(lines) if "127.0.0.1" in line]
    for end in with_tokens[1:]:
        with pytest.raises(InputError, match="half-written export"):
            parse_nodetool_ring("r", "\n".join(lines[:end]), ImportIssues())


def test_topology_of_a_real_table_is_read(lake: Lake) -> None:
    """SELECT JSON of a table with these columns gives nodes, shards, and a committed generation without rows."""
    report = import_paths(lake, CLOCK, [DATA / "topology.jsonl"])
    [node] = read_current_ring(lake).nodes
    assert set(node.tokens) == TOKENS
    assert (node.host_id, node.shard_count, node.ignore_msb) == (UUID("7fb75dac-5725-4da4-90ef-5776312d77c4"), 4, 12)
    assert f"generation {LOG_ID} of 2026-01-31T12:00:00.384Z is committed and has no rows" in report.warnings[0]
    [known] = Timeline.read(lake).known
    assert (known.id, known.state) == (str(LOG_ID), GenerationState.NOT_EXPORTED)


def test_committed_generation_without_rows_is_an_issue_and_is_known(lake: Lake, tmp_path: Path) -> None:
    """Only --allow-incomplete imports it; a later import of its rows alone completes it."""
    header = v3_csv().split("\r\n")[0]
    (tmp_path / "t.csv").write_text(topology_csv(), newline="")
    (tmp_path / "d.csv").write_text(f"{header}\r\n", newline="")
    with pytest.raises(InputError, match=f"generation {ID} of .* is committed and has no rows"):
        import_paths(lake, CLOCK, [tmp_path])
    assert Timeline.read(lake).known == []
    report = import_paths(lake, CLOCK, [tmp_path], allow_incomplete=True)
    assert [line for line in report.issues if f"generation {ID}" in line] == report.issues
    [known] = Timeline.read(lake).known
    assert (known.id, known.time_ms, known.state) == (ID, TIME_MS, GenerationState.NOT_RETRIEVABLE)
    [finding] = audit_ring_fit(lake)
    assert (finding.violations, ID in finding.sample) == (1, True)
    (tmp_path / "d.csv").write_text(v3_csv(), newline="")
    import_paths(lake, CLOCK, [tmp_path / "d.csv"])
    [known] = Timeline.read(lake).known
    assert (known.id, known.time_ms, known.state) == (ID, TIME_MS, GenerationState.INTRODUCED)


def test_rows_imported_before_their_time_are_completed(lake: Lake, tmp_path: Path) -> None:
    """A topology imported after the description names its time, and the ledger counts its rows."""
    (tmp_path / "t.csv").write_text(topology_csv(), newline="")
    (tmp_path / "d.csv").write_text(v3_csv(), newline="")
    import_paths(lake, CLOCK, [tmp_path / "d.csv"])
    assert Timeline.read(lake).known == []
    import_paths(lake, CLOCK, [tmp_path / "t.csv"])
    [row] = lake.read(GENERATIONS).to_pylist()
    assert (row["generation_id"], row["num_ranges"], row["num_streams"]) == (
        ID,
        len(GENERATION),
        len(GENERATION.streams),
    )


def test_committed_generations_have_their_time_before_publication(lake: Lake, tmp_path: Path) -> None:
    """The group's tables alone give the ring, the description and its time."""
    (tmp_path / "t.csv").write_text(topology_csv(), newline="")
    (tmp_path / "d.csv").write_text(v3_csv(), newline="")
    import_paths(lake, CLOCK, [tmp_path])
    assert {node.host_id for node in read_current_ring(lake).nodes} == {node.host_id for node in NODES}
    [row] = lake.read(GENERATIONS).to_pylist()
    assert (row["generation_id"], ms_from_datetime(row["time"]), row["published_at"]) == (ID, TIME_MS, None)
    rows = lake.read(GENERATION_DESCRIPTIONS_V2).to_pylist()
    assert {row["num_ranges"] for row in rows} == {len(GENERATION)}
    versions = {name: lake.version(table) for name, table in TABLES.items()}
    import_paths(lake, CLOCK, [tmp_path])
    assert {name: lake.version(table) for name, table in TABLES.items()} == versions


def test_group_table_equals_the_second_format() -> None:
    """Both tables give the same rows of one generation."""
    from_group, from_v2 = (
        parse_exports([("a", text)]).descriptions[ID] for text in (v3_csv(), v2_csv({ID: GENERATION}))
    )
    assert from_group.has_same_streams(from_v2)


def test_internal_tables_of_tablets_equal_the_published_ones(lake: Lake, tmp_path: Path) -> None:
    """They give the oldest set and the set after a split; the schema names the log's table."""
    later = TIME_MS + 100_000
    first, last = "ffffffffffffffff0000000014000001", "7fffffffffffffff0000000018000001"
    old = "7fffffffffffffff0000000008000001"
    (tmp_path / "state.jsonl").write_text((DATA / "cdc_streams_state.jsonl").read_text())
    (tmp_path / "history.csv").write_text(
        history_csv([(later, 1, 2**63 - 1, old), (later, 2, -1, first), (later, 2, 2**63 - 1, last)]), newline=""
    )
    (tmp_path / "schema.cql").write_text(SCHEMA)
    import_paths(lake, CLOCK, [tmp_path])
    rows = lake.read(TABLET_STREAMS).to_pylist()
    stored = {(ms_from_datetime(row["timestamp"]), row["stream_state"], row["stream_id"].hex()) for row in rows}
    assert stored == {
        *((TIME_MS, state, old) for state in (0, 2)),
        (later, 1, old),
        *((later, state, stream) for state in (0, 2) for stream in (first, last)),
    }
    assert {row["table_name"] for row in rows} == {"t"}
    assert lake.read(TABLET_TIMESTAMPS).num_rows == 2


def test_internal_tables_need_the_name_of_their_log(lake: Lake) -> None:
    """Without a schema the streams' table is unknown, and one line says what to export."""
    with pytest.raises(InputError, match=r"has no name; import with them: COPY system_schema\.tables"):
        import_paths(lake, CLOCK, [DATA / "cdc_streams_state.jsonl"])


def test_schema_has_the_tables_with_a_log(lake: Lake, tmp_path: Path) -> None:
    """It gives TTL and creation of each log; Cassandra's `cdc = false` is no log; a repetition writes nothing."""
    (tmp_path / "schema.cql").write_text(SCHEMA)
    import_paths(lake, CLOCK, [tmp_path, DATA / "describe_keyspace.cql"])
    [row] = lake.read(CDC_TABLES).to_pylist()
    assert (row["keyspace_name"], row["table_name"], row["ttl_seconds"], row["enabled"]) == ("ks", "t", 3600, True)
    assert ms_from_datetime(row["created_at"]) == LOG_CREATED_MS
    version = lake.version(CDC_TABLES)
    assert import_paths(lake, CLOCK, [tmp_path]).rows_written == 0
    assert lake.version(CDC_TABLES) == version
    (tmp_path / "schema.cql").write_text(SCHEMA.replace("3600", "60"))
    import_paths(lake, CLOCK, [tmp_path])
    assert lake.read(CDC_TABLES)["ttl_seconds"].to_pylist() == [60]


def test_schema_of_many_tables_is_stored_in_one_commit(lake: Lake, tmp_path: Path) -> None:
    """This holds for any number of tables, and for changes to them."""
    file = tmp_path / "schema.cql"
    for ttl, version in ((60, 1), (61, 2)):
        tables = [
            f"CREATE TABLE ks.t{number} (pk int PRIMARY KEY) WITH cdc = {{'enabled': 'true', 'ttl': '{ttl}'}};"
            for number in range(50)
        ]
        file.write_text("\n".join([SCHEMA.partition("\n")[0], *tables]))
        import_paths(lake, CLOCK, [file])
        assert lake.read(CDC_TABLES)["ttl_seconds"].to_pylist() == [ttl] * 50
        assert lake.version(CDC_TABLE_CHANGES) == version


TYPED = """CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': '3'};

CREATE TYPE shop.address (street text, number int);

CREATE TABLE shop.orders (
    "Name" text,
    day date,
    at timestamp,
    "to" frozen<address>,
    total bigint,
    PRIMARY KEY (("Name", day), at)
) WITH CLUSTERING ORDER BY (at DESC) AND bloom_filter_fp_chance = 0.01
    AND caching = {'keys': 'ALL', 'rows_per_partition': 'ALL'}
    AND cdc = {'delta': 'full', 'enabled': 'true', 'postimage': 'false', 'preimage': 'full', 'ttl': '3600'}
    AND compaction = {'class': 'IncrementalCompactionStrategy'}
    AND default_time_to_live = 60 AND tombstone_gc = {'mode': 'timeout', 'propagation_delay_in_seconds': '3600'};

CREATE TABLE shop.unexpected (p int PRIMARY KEY, v frozen<nobody>) WITH cdc = {'enabled': 'true'};
"""


def test_described_table_has_its_definition(tmp_path: Path) -> None:
    """`explain` accepts key values, `status` lists the table, and storage options are ignored."""
    home, lake = tmp_path / "home", Lake(tmp_path / "home" / "lake")
    (tmp_path / "schema.cql").write_text(TYPED)
    (tmp_path / "t.csv").write_text(timestamps_csv({TIME_MS: None}), newline="")
    (tmp_path / "s.csv").write_text(streams_csv({TIME_MS: GENERATION}), newline="")
    files = [tmp_path / name for name in ("schema.cql", "t.csv", "s.csv")]
    answer = run("--home", home, "import", *files)
    assert answer.exit_code == 0
    assert "shop.unexpected: its definition is left out" in answer.stderr
    schema = read_table_schema(lake, "shop", "orders")
    assert [key.name for key in schema.partition_key] == ["Name", "day"]
    assert (schema.cdc.preimage, schema.cdc.ttl, schema.default_ttl) == ("full", 3600, 60)
    options = ("--pk", "'alice'", "--pk", "2026-01-31", "--table", "shop.orders")
    explanation = run("--home", home, "explain", *options, "--json").json
    key = bytes.fromhex("0005" + b"alice".hex() + "00" + "0004" + "80005004" + "00")
    assert int(explanation["token"]) == tokens_from_keys([key])[0]
    assert {table["table"] for table in run("--home", home, "status", "--json").json["tables"]} == {
        "shop.orders",
        "shop.unexpected",
    }
    versions = {name: lake.version(table) for name, table in TABLES.items()}
    assert run("--home", home, "import", *files).exit_code == 0
    assert {name: lake.version(table) for name, table in TABLES.items()} == versions
    (tmp_path / "schema.cql").write_text(TYPED.replace("total bigint", "total bigint, note text"))
    assert run("--home", home, "import", tmp_path / "schema.cql").exit_code == 0
    assert "note" in {column.name for column in read_table_schema(lake, "shop", "orders").columns}


def test_recorded_truncation_survives_another_description(lake: Lake, tmp_path: Path) -> None:
    """The stored definition has the truncation, which no schema has."""
    (tmp_path / "schema.cql").write_text(TYPED)
    import_paths(lake, CLOCK, [tmp_path])
    stored = cdc_tables.find_cdc_table(lake, "shop", "orders").ddl
    truncated = f"{stored}\n-- truncated: 2026-01-31T12:00:00Z"
    cdc_tables.alter_cdc_table(lake, CLOCK, "shop", "orders", ddl=truncated)
    (tmp_path / "schema.cql").write_text(TYPED.replace("3600'}\n    AND comp", "3600'}  AND comp"))
    import_paths(lake, CLOCK, [tmp_path])
    assert cdc_tables.find_cdc_table(lake, "shop", "orders").ddl == truncated


def test_log_of_unknown_age_is_older_than_every_generation(lake: Lake, tmp_path: Path) -> None:
    """A schema without internals has no creation time, and no generation may look unneeded because of that."""
    (tmp_path / "schema.cql").write_text("CREATE TABLE ks.t (pk int PRIMARY KEY) WITH cdc = {'enabled': true};")
    (tmp_path / "times.csv").write_text(timestamps_csv({TIME_MS: None}), newline="")
    import_paths(lake, CLOCK, [tmp_path])
    assert cdc_tables.find_cdc_table(lake, "ks", "t").created_at_ms is None
    assert lake.read(CDC_TABLES)["created_at"].to_pylist()[0].timestamp() == 0


def test_folder_with_all_formats(lake: Lake, tmp_path: Path) -> None:
    """Content, not the name, identifies each file; files of other formats are ignored."""
    texts = {
        "a.txt": topology_csv(),
        "b.out": SCHEMA,
        "c": (DATA / "cdc_streams_state.jsonl").read_text(),
        "notes.md": "# what we did\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, newline="")
    (tmp_path / "a.txt").rename(tmp_path / "a.csv")
    (tmp_path / "d.csv").write_text(v3_csv(), newline="")
    (tmp_path / "e.csv").write_text(streams_csv({TIME_MS: GENERATION}), newline="")
    (tmp_path / "f.csv").write_text(timestamps_csv({TIME_MS: None}), newline="")
    report = import_paths(lake, CLOCK, [tmp_path])
    assert len(report.nodes_added) == 2
    assert [item.id for item in report.generations] == [ID]
    assert [item.table for item in report.stream_sets] == ["ks.t"]
    assert lake.read(CDC_TABLES).num_rows == 1
    assert [line for line in report.warnings if "ignored" in line] == [
        f"{tmp_path / 'notes.md'}: unknown format; ignored"
    ]

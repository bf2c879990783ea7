"""Invalid input is checked completely first; each error gets one clear line and exit code 2, and changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.files.bad_input import Case, argument, assert_one_line, assert_refused, given, listing
from support.files.export_files import (
    ID,
    LATER_MS,
    NODES,
    OTHER_ID,
    TIME_MS,
    cql_time,
    generation,
    streams_csv,
    timestamps_csv,
    v2_csv,
)

from cdc_platform.cli import program
from cdc_platform.clock import Milliseconds

NEW_MS = LATER_MS + Milliseconds(86_400_000)
NODE: dict[str, Any] = {
    "host_id": "44444444-4444-4444-8444-444444444444",
    "address": "127.0.0.4",
    "datacenter": "dc1",
    "rack": "r1",
    "tokens": [44, -44],
    "shard_count": 4,
    "ignore_msb": 12,
}
MEMBER: dict[str, Any] = NODE | {"host_id": str(NODES[0].host_id)}
BLOB = "0x7fb9f781956cea08c651295720000001"
FIRST, LAST = -(2**63) + 1, 2**63 - 1
NEW_ID = "8d3f3f2e-3c61-4b0e-9a59-5a3f7c1de003"
_DROPPED = object()


def bootstrap(name: str, says: str, **changes: object) -> Case:
    """Return a case with a bootstrap file with some fields changed or dropped."""
    fields = {key: value for key, value in (NODE | changes).items() if value is not _DROPPED}
    return bootstrap_text(name, says, json.dumps(fields))


def bootstrap_text(name: str, says: str, text: str | bytes) -> Case:
    """Return a case with a bootstrap file of this text."""
    return Case(f"bootstrap: {name}", ("bootstrap", "{dir}/node.json"), says, {"node.json": text})


def snapshot(name: str, says: str, *nodes: object, options: tuple[str, ...] = ()) -> Case:
    """Return a case with a ring snapshot of these nodes."""
    files = {"ring.json": json.dumps(list(nodes))}
    return Case(f"snapshot: {name}", ("import", "{dir}/ring.json", *options), says, files)


def export(name: str, says: str, *texts: str | bytes, options: tuple[str, ...] = ()) -> Case:
    """Return a case with export files of these texts."""
    files = {f"{number}.csv": text for number, text in enumerate(texts)}
    return Case(f"export: {name}", ("import", *(f"{{dir}}/{file}" for file in files), *options), says, files)


def streams(*lines: str) -> str:
    """Return cdc_streams_descriptions_v2 with these lines."""
    return "".join(f"{line}\r\n" for line in ("time,range_end,streams", *lines))


def times(*lines: str) -> str:
    """Return cdc_generation_timestamps with these lines."""
    return "".join(f"{line}\r\n" for line in ("key,time,expired", *lines))


def v2(*lines: str) -> str:
    """Return cdc_generation_descriptions_v2 with these lines."""
    return "".join(f"{line}\r\n" for line in ("id,range_end,ignore_msb,num_ranges,streams", *lines))


NEW = generation(NEW_ID)
AT = cql_time(NEW_MS)

BOOTSTRAP = [
    bootstrap_text("no JSON", "is not JSON: Expecting ',' delimiter at line 1, column", '{"host_id": "a" "b"}'),
    bootstrap_text("cut", "is not JSON: Unterminated string", json.dumps(NODE)[:40]),
    bootstrap_text("empty", "is empty", ""),
    bootstrap_text("no UTF-8", "is not UTF-8", b'{"host_id": "\xff"}'),
    bootstrap_text("NaN", "NaN is no JSON number", '{"shard_count": NaN}'),
    bootstrap_text("a field twice", "field 'rack' is given twice", '{"rack": "a", "rack": "b"}'),
    bootstrap_text("nested without end", "is not JSON", "[" * 100_000),
    bootstrap_text("a number with too many digits", "is not JSON", '{"shard_count": ' + "9" * 5000 + "}"),
    bootstrap_text("a list", "one JSON object", json.dumps([NODE])),
    bootstrap_text("null", "one JSON object", "null"),
    *(
        bootstrap(f"no {name}", f"field {name} is missing", **{name: _DROPPED})
        for name in ("host_id", "address", "datacenter", "rack", "shard_count", "ignore_msb")
    ),
    bootstrap("an extra field", "field token is not known; the fields are host_id", token=[1]),
    bootstrap("neither tokens nor num_tokens", "neither tokens nor num_tokens", tokens=_DROPPED),
    bootstrap("both tokens and num_tokens", "both tokens and num_tokens are there", num_tokens=2),
    bootstrap("tokens that are no list", "'44' is no list", tokens="44"),
    bootstrap("a float token", "entry 1 is 1.0, which is no integer", tokens=[1, 1.0]),
    bootstrap("a boolean token", "entry 0 is true, which is no integer", tokens=[True]),
    bootstrap("a null token", "entry 0 is null, which is no integer", tokens=[None]),
    bootstrap("a token that is text", "entry 0 is 'x', which is no integer", tokens=["x"]),
    bootstrap("a token with a point", "entry 0 is '1.5', which is no integer", tokens=["1.5"]),
    bootstrap("a token in other digits", "which is no integer", tokens=["٤٤"]),
    bootstrap("a list for a token", "entry 0 is [1], which is no integer", tokens=[[1]]),
    bootstrap("a token too large", "entry 0 is 9223372036854775808, out of range", tokens=[LAST + 1]),
    bootstrap("a token too small", "entry 0 is -9223372036854775809, out of range", tokens=[FIRST - 2]),
    bootstrap("the minimum token", "the minimum before all keys", tokens=[FIRST - 1]),
    bootstrap("the minimum token as text", "the minimum before all keys", tokens=[str(FIRST - 1)]),
    bootstrap("a token twice", "token 44 occurs twice", tokens=[44, 45, 44]),
    bootstrap("a token twice, once as text", "token 44 occurs twice", tokens=[44, "44"]),
    bootstrap("a token of the ring", f"token 100 is owned by both {NODES[0].host_id} and", tokens=[44, 100]),
    bootstrap("a token of a waiting node", "token 33 is owned by both 33333333", tokens=[33]),
    bootstrap("a node of the ring", "is in the ring or waits to join already", host_id=str(NODES[0].host_id)),
    bootstrap("a waiting node", "waits to join already", host_id="33333333-3333-4333-8333-333333333333"),
    bootstrap("a negative num_tokens", "num_tokens: -1 is no whole number from 0", tokens=_DROPPED, num_tokens=-1),
    bootstrap("num_tokens that is a float", "num_tokens: 2.0 is no", tokens=_DROPPED, num_tokens=2.0),
    bootstrap("more ranges than an index holds", "from 0 to 4194304", tokens=_DROPPED, num_tokens=4_194_305),
    bootstrap("more tokens than an index holds", "at most 4194304 ranges", tokens=[0] * 4_194_305),
    bootstrap("shard_count of 0", "shard_count: 0 is no whole number from 1 to 4096", shard_count=0),
    bootstrap("a negative shard_count", "shard_count: -1 is no", shard_count=-1),
    bootstrap("a shard_count too large", "shard_count: 4097 is no", shard_count=4097),
    bootstrap("shard_count as text", "shard_count: '4' is no", shard_count="4"),
    bootstrap("a boolean shard_count", "shard_count: true is no", shard_count=True),
    bootstrap("ignore_msb of 32", "ignore_msb: 32 is no whole number from 0 to 31", ignore_msb=32),
    bootstrap("a negative ignore_msb", "ignore_msb: -1 is no", ignore_msb=-1),
    bootstrap("ignore_msb that is a float", "ignore_msb: 12.0 is no", ignore_msb=12.0),
    bootstrap("a host_id that is no UUID", "host_id: 'node-4' is not a UUID", host_id="node-4"),
    bootstrap("a host_id of zeros", "names no host", host_id="00000000-0000-0000-0000-000000000000"),
    bootstrap("an empty address", "address: '' is no name", address=""),
    bootstrap("an address that is a number", "address: 4 is no text", address=4),
    bootstrap("an address with too large a part", "'10.0.0.256' is no address", address="10.0.0.256"),
    bootstrap("half an address", "'10.0.0' is no address", address="10.0.0"),
    bootstrap("an address with a port", "'10.0.0.4:9042' is no address", address="10.0.0.4:9042"),
    bootstrap("an address with a space", "'node 4' is no address", address="node 4"),
    bootstrap("an address with an escape", r"'\x1b[2J10.0.0.4' is no name", address="\x1b[2J10.0.0.4"),
    bootstrap("a datacenter with an escape", r"datacenter: '\x1b]0;dc1\x07' is no name", datacenter="\x1b]0;dc1\x07"),
    bootstrap("a rack that is written backwards", r"rack: '\u202er1' is no name", rack="\u202er1"),
    bootstrap("a feature with an escape", r"features: '\x9b2J' is no name", features=["\x9b2J"]),
    bootstrap("a rack over two lines", "rack: 'a\\nb' is no name", rack="a\nb"),
    bootstrap("features that are text", "features: 'CDC' is no list", features="CDC"),
    bootstrap("a feature that is a number", "features: 1 is no text", features=[1]),
    Case("bootstrap: no file", ("bootstrap", "{dir}/none.json"), "no such file"),
    Case("bootstrap: a folder", ("bootstrap", "{dir}"), "is a folder"),
    argument("bootstrap without a file", "name either a FILE", "bootstrap"),
    argument("bootstrap that runs a withdrawal", "name either a FILE", "bootstrap", "--withdraw", NEW_ID, "--run"),
    argument(
        "withdraw an unknown event", f"no bootstrap event has event_id {NEW_ID}", "bootstrap", "--withdraw", NEW_ID
    ),
]

SNAPSHOTS = [
    snapshot("no nodes", "lists no nodes"),
    snapshot("an object", "node 1 is no JSON object", 4),
    snapshot("no shard_count", "say it with --shards", {k: v for k, v in MEMBER.items() if k != "shard_count"}),
    snapshot("no ignore_msb", "say it with --ignore-msb", {k: v for k, v in MEMBER.items() if k != "ignore_msb"}),
    snapshot("no tokens", "node 2: field tokens is missing", MEMBER, {k: v for k, v in NODE.items() if k != "tokens"}),
    snapshot("an address that is none", "address: 'nowhere!' is no address", MEMBER | {"address": "nowhere!"}),
    snapshot("a rack with an escape", r"rack: '\x1b[31mr1' is no name", MEMBER | {"rack": "\x1b[31mr1"}),
    snapshot("an extra field", "field load is not known", MEMBER | {"load": 1}),
    snapshot("a token with two owners", "token -44 is owned by both", MEMBER, NODE),
    snapshot("a host twice", "is on the ring twice", MEMBER, MEMBER | {"tokens": [45]}),
    snapshot("a node that left", "has status LEFT", MEMBER | {"status": "LEFT"}),
    snapshot("a ring without room for a waiting node", "waits to join and could not", MEMBER | {"tokens": [33]}),
    snapshot("shards of 0", "0 is not in the range", MEMBER, options=("--shards", "0")),
    snapshot("ignore_msb of 32", "32 is not in the range", MEMBER, options=("--ignore-msb", "32")),
    Case(
        "snapshot: two at once",
        ("import", "{dir}/1.json", "{dir}/2.json"),
        "2 ring snapshots at once",
        {"1.json": json.dumps([MEMBER]), "2.json": json.dumps([NODE])},
    ),
    Case("snapshot: a joining node", ("import", "{dir}/n.json"), "list of nodes", {"n.json": json.dumps(NODE)}),
]

RING_HEAD = "Datacenter: dc1\n==========\nAddress  Rack  Status State  Load  Owns  Token\n"
RING_ROW = "127.0.0.9  r1  Up  Normal  69.05 KiB  100.00%  "
LEAVING = f"{RING_HEAD}{'-5':>80}\n{RING_ROW}-5\n".replace("Normal", "Leaving")
SOON = "CREATE TABLE ks.t (pk int PRIMARY KEY) WITH cdc = {'ttl': 'soon'};"
RANGE = (
    "\tTokenRange(start_token:1, end_token:2, endpoints:[127.0.0.9], rpc_endpoints:[127.0.0.9], "
    "endpoint_details:[EndpointDetails(host:127.0.0.9, datacenter:dc1, rack:r1)])\n"
)


def topology(**changes: object) -> str:
    """Return an export of system.topology with one node, some of whose fields are changed."""
    row = {
        "key": "topology",
        "host_id": ID,
        "node_state": "normal",
        "tokens": "{7}",
        "shard_count": 4,
        "ignore_msb": 12,
    }
    row |= {"transition_state": "", **changes}
    return f"{','.join(row)}\n{','.join(map(str, row.values()))}\n"


PRINTED = " time | range_end | streams\n------+-----------+---\n"
EXPORTS = [
    export("empty", "is empty: half-written export", ""),
    export("no header", "is no header of", f'{AT},5,"{{{BLOB}}}"\n'),
    export("half a header", "ends in its header, without a line end", "time,range_end,streams"),
    export("another table", "is no header of", "keyspace_name,writetime\nks,t\n"),
    export(
        "an internal table without its name",
        "has no name; import with them",
        f"table_id,last_token,stream_id,timestamp\n{ID},5,0x{BLOB[2:]},{AT}\n",
    ),
    export("a node of no shards", "shard_count: '0' is no whole number", topology(shard_count=0)),
    export("a node without tokens that are numbers", "are no set of whole numbers", topology(tokens="{a}")),
    export("a key of another table", "key: invalid value 't'; it is always topology", topology(key="t")),
    export(
        "a topology that changes",
        "the topology is changing (left token ring)",
        topology(transition_state="left token ring"),
    ),
    export("a ring that is cut", "end with token -5 where they should with 7", f"{RING_HEAD}{'7':>80}\n{RING_ROW}-5\n"),
    export("a ring of unknown nodes", "say it with --shards", f"{RING_HEAD}{'-5':>80}\n{RING_ROW}-5\n"),
    export(
        "a node that leaves",
        "node 127.0.0.9 is Leaving",
        LEAVING,
    ),
    export("ranges that do not close", "the ranges do not close the ring", f"TokenRange: \n{RANGE}"),
    export("a range that is cut", "is no range of nodetool describering", f"TokenRange: \n{RANGE[:60]}\n"),
    export("a schema that is cut", "line 1", "CREATE TABLE ks.t (pk int PRIMARY KEY) WITH cdc = {'enabled': 'tr"),
    export(
        "a TTL that is none",
        "'soon' is no value of CDC option 'ttl'",
        SOON,
    ),
    export("a printed table that is cut", "has no (n rows) at its end", f"{PRINTED} {AT} | 5 | {{{BLOB}}}\n"),
    export(
        "a printed table of more rows", "(2 rows), but 1 are printed", f"{PRINTED} {AT} | 5 | {{{BLOB}}}\n(2 rows)\n"
    ),
    export("a printed row that is cut", "has 2 columns where the header names 3", f"{PRINTED} {AT} | 5\n(1 rows)\n"),
    export("two printed tables", "follows the table", f"{PRINTED}(0 rows)\n{PRINTED}(0 rows)\n"),
    export(
        "JSON rows of other columns",
        "line 2 has columns time",
        f'{{"time": "{AT}", "expired": null}}\n{{"time": "{AT}"}}',
    ),
    export("a JSON row that is cut", "line 2 is not JSON", f'{{"time": "{AT}"}}\n{{"time": "{AT}'),
    export(
        "a JSON token that is no integer",
        "range_end: '1e+20' is no integer",
        f'{{"time": "{AT}", "range_end": 1e20, "streams": ["0x00"]}}',
    ),
    export("a column is missing", "column streams of cdc_streams", f"time,range_end\n{AT},5\n"),
    export("a column twice", "names a column twice", f"time,time\n{AT},{AT}\n"),
    export("no text", "is not UTF-8", b"time,range_end,streams\n\xff\n"),
    export("an open quote", "a quote is open at its end: half-written export", streams_csv({NEW_MS: NEW})[:-4]),
    export("an open set", "ends before its set does", streams(f"{AT},5,{{{BLOB}")),
    export("a short row", "has 2 columns where the header names 3: half-written", streams(f"{AT},5")),
    export("a long row", "has 4 columns where the header names 3", streams(f"{AT},5,{{{BLOB}}},x")),
    export(
        "a cut time", "without a line end: half-written", "key,time,expired\ntimestamps,2026-01-31 12:00,2026-01-31"
    ),
    export("a cut blob", "is 15 bytes; a stream ID has 16", streams(f"{AT},5,{{{BLOB[:-2]}}}")),
    export("half a byte", "is 15.5 bytes", streams(f"{AT},5,{{{BLOB[:-1]}}}")),
    export("a blob too long", "is 17 bytes", streams(f"{AT},5,{{{BLOB}00}}")),
    export("no streams", "no streams; every range has at least one", streams(f"{AT},5,")),
    export("an empty set", "no streams; every range has at least one", streams(f"{AT},5,{{}}")),
    export("no set of blobs", "is no set of blobs", streams(f"{AT},5,{{'a'}}")),
    export("a stream twice in a set", "a stream is in the set twice", streams(f'{AT},5,"{{{BLOB}, {BLOB}}}"')),
    export("a pair too large", "does not fit into two 64-bit", streams(f'{AT},5,"{{(9223372036854775808, 1)}}"')),
    export("range_end that is a float", "range_end: '1.5' is no integer", streams(f"{AT},1.5,{{{BLOB}}}")),
    export("range_end that is empty", "range_end: '' is no integer", streams(f"{AT},,{{{BLOB}}}")),
    export("range_end of the minimum", "is no token", streams(f"{AT},{FIRST - 1},{{{BLOB}}}")),
    export("range_end too large", "is no token", streams(f"{AT},{LAST + 1},{{{BLOB}}}")),
    export("range_end twice", "range_end 5, first in line 2", streams(f"{AT},5,{{{BLOB}}}", f"{AT},5,{{{BLOB}}}")),
    export("no time", "time: not a time: 'noon'", streams(f"noon,5,{{{BLOB}}}")),
    export("a time too fine", "finer than a millisecond", times("timestamps,2026-01-31 12:00:00.384001+0000,")),
    export("a day that is none", "not a time", times("timestamps,2026-02-30 12:00:00+0000,")),
    export("a time before 1970", "is before 1970", times("timestamps,1969-01-31 12:00:00+0000,")),
    export("a time twice", "duplicate row with time", times(f"timestamps,{AT},", f"timestamps,{AT},")),
    export("another key", "key: invalid value 'stamps'; it is always timestamps", times(f"stamps,{AT},")),
    export("streams without their time", "half-written export: streams of", streams_csv({NEW_MS: NEW})),
    export(
        "streams with a row missing",
        "rows are missing",
        streams_csv({NEW_MS: NEW}, skip=frozenset([2])),
        timestamps_csv({NEW_MS: None}),
    ),
    export(
        "streams without their last row",
        "rows are missing",
        streams_csv({NEW_MS: NEW}, skip=frozenset([5])),
        timestamps_csv({NEW_MS: None}),
    ),
    export(
        "other streams at a time of the lake",
        "differs from the lake",
        streams_csv({TIME_MS: NEW}),
    ),
    export(
        "a description with a row missing",
        "has 5 rows, num_ranges claims 6",
        v2_csv({NEW_ID: NEW}, skip=frozenset([5])),
    ),
    export("a description with a row too many", "has 6 rows, num_ranges claims 5", v2_csv({NEW_ID: NEW}, num_ranges=5)),
    export("a description without rows", "num_ranges 5 and no rows", v2(f"{NEW_ID},,,5,")),
    export("num_ranges that is no number", "num_ranges: '' is no whole number", v2(f"{NEW_ID},5,12,,{{{BLOB}}}")),
    export("num_ranges of 0", "num_ranges: '0' is no whole number", v2(f"{NEW_ID},5,12,0,{{{BLOB}}}")),
    export(
        "ignore_msb of 32 in a row", "ignore_msb: '32' is no whole number from 0", v2(f"{NEW_ID},5,32,1,{{{BLOB}}}")
    ),
    export("a negative ignore_msb in a row", "ignore_msb: '-1' is no", v2(f"{NEW_ID},5,-1,1,{{{BLOB}}}")),
    export("an id that is no UUID", "id: 'x' is no UUID", v2(f"x,5,12,1,{{{BLOB}}}")),
    export(
        "a description of legacy streams",
        "older than the version field",
        v2(f"{NEW_ID},5,12,1,{{0x0521d5ce4a4a8ca552f83d88a1ae55d2}}"),
    ),
    export(
        "a description differs from the lake",
        "differs from the lake",
        v2_csv({OTHER_ID: generation(ID)}),
    ),
    export("an unknown suffix of nothing", "no such file", options=("{dir}/none.csv",)),
    export("an empty folder", "has no file of a known format", options=("{dir}",)),
    export("a cluster", "import reads files; register a live cluster with", options=("cql://127.0.0.1:9042",)),
]

ARGUMENTS = [
    argument("an unknown command", "no such command 'exlpain'", "exlpain"),
    argument("an unknown option", "No such option '--tokne'", "explain", "--tokne", "1"),
    argument("import of nothing", "Missing argument 'PATH...'", "import"),
    argument("explain of nothing", "name either --key", "explain"),
    argument("explain of a key and a token", "name either --key", "explain", "--key", "00", "--token", "1"),
    argument("a key that is not hex", "'zz' is not hexadecimal", "explain", "--key", "zz"),
    argument("a key of half a byte", "has 3 hexadecimal digits", "explain", "--key", "0x123"),
    argument("a key too long", "at most 65535", "explain", "--key", "00" * 65_536),
    argument("a token that is a float", "'1.5' is no integer", "explain", "--token", "1.5"),
    argument("a token that is the minimum", "is no key's token", "explain", "--token", str(FIRST - 1)),
    argument("a token out of range", "is no key's token", "explain", "--token", str(LAST + 1)),
    argument("explain at no time", "not a time: 'noon'", "explain", "--token", "1", "--at", "noon"),
    argument("explain without a zone", "time without a zone", "explain", "--token", "1", "--at", "2026-01-31T12:00:00"),
    argument("explain out of all years", "outside the years", "explain", "--token", "1", "--at", "9" * 18),
    argument("an unknown policy", "'lax' is not one of", "explain", "--token", "1", "--policy", "lax"),
    argument("a clock without a zone", "time without a zone", "--clock", "2026-01-31T12:00:00", "generations"),
    argument("a clock that is no time", "not a time", "--clock", "now", "generations"),
    argument("since without a zone", "time without a zone", "generations", "--since", "2026-01-31"),
    argument("streams of an unknown time", "no generation 2020-01-01T00:00:00.000Z", "streams", "2020-01-01T00:00:00Z"),
    argument("streams of a time without zone", "time without a zone", "streams", "2026-01-31T12:00:00.384"),
    argument("streams of a time too fine", "finer than a millisecond", "streams", "2026-01-31T12:00:00.000001Z"),
    argument("streams of nothing", "Missing argument 'TIME'", "streams"),
    argument("streams of an unknown id", f"no generation {NEW_ID}", "streams", NEW_ID),
    argument("diff with an unknown generation", f"no generation {NEW_ID}", "diff", ID, NEW_ID),
    argument("diff of one generation", "Missing argument 'GEN'", "diff", ID),
    argument("diff of something else", "neither a generation's UUID nor its time", "diff", "1", "2"),
    argument("check of an unknown generation", f"no generation {NEW_ID}", "check", NEW_ID),
    argument("check of an unknown time", "no generation 2020-01-01T00:00:00.000Z", "check", "2020-01-01T00:00:00Z"),
    argument("an empty query", "the query is empty", "sql", " "),
    argument("an unknown shell", "'tcsh' is not one of", "completion", "tcsh"),
    argument("an extra argument", "Got unexpected extra argument", "ring", "x"),
]

CASES = [*BOOTSTRAP, *SNAPSHOTS, *EXPORTS, *ARGUMENTS]


def test_there_are_at_least_sixty_cases() -> None:
    """The number of cases does not decrease unnoticed, and no name is duplicated."""
    assert len({case.name for case in CASES}) == len(CASES) >= 60


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_gets_one_line_and_changes_nothing(case: Case, seeded_home: Path, tmp_path: Path) -> None:
    """Exit code 2, one line on standard error, no standard output, and a home with unchanged bytes."""
    assert_refused(case, seeded_home, tmp_path)


@pytest.mark.parametrize("case", [*BOOTSTRAP[:3], SNAPSHOTS[0], EXPORTS[0], EXPORTS[-1]], ids=lambda case: case.name)
def test_an_invalid_file_creates_no_home(case: Case, tmp_path: Path) -> None:
    """Files are read before a home is created for them."""
    home = tmp_path / "new"
    result = CliRunner().invoke(program, ["--home", str(home), *given(case, tmp_path)])
    assert result.exit_code == 2
    assert not home.exists()


HOMES = {
    "is of a newer version": ('{"layout": 3}', "written by a newer version"),
    "has a marker that is no JSON": ("layout 1", "is damaged"),
    "has a marker without a layout": ("{}", "is damaged"),
}
COMMANDS = {
    "ring": ("ring",),
    "generations": ("generations",),
    "explain": ("explain", "--token", "1"),
    "streams": ("streams", "2020-01-01T00:00:00Z"),
    "diff": ("diff", ID, OTHER_ID),
    "check": ("check",),
    "sql": ("sql", "SELECT 1"),
    "bootstrap": ("bootstrap", "{dir}/node.json"),
    "import": ("import", "{dir}/times.csv"),
}
GOOD_FILES = {"node.json": json.dumps(NODE), "times.csv": timestamps_csv({NEW_MS: None})}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("state", HOMES)
def test_an_unusable_home_is_left_unchanged(state: str, command: str, tmp_path: Path) -> None:
    """Every command reads the home's marker before anything else."""
    marker, says = HOMES[state]
    home = tmp_path / "home"
    home.mkdir()
    (home / "platform.json").write_text(marker)
    case = Case(command, COMMANDS[command], says, GOOD_FILES)
    result = CliRunner().invoke(program, ["--home", str(home), *given(case, tmp_path)])
    assert result.exit_code == 2
    assert_one_line(result.stderr, says)
    assert listing(home) == {"platform.json": hashlib.sha256(marker.encode()).hexdigest()}


@pytest.mark.parametrize("command", ["bootstrap", "import"])
def test_a_home_that_cannot_be_created_is_named(command: str, tmp_path: Path) -> None:
    """If no folder can be created, the message says so and how to choose another."""
    (tmp_path / "file").write_text("")
    case = Case(command, COMMANDS[command], "choose another with --home or CDC_PLATFORM_HOME", GOOD_FILES)
    result = CliRunner().invoke(program, ["--home", str(tmp_path / "file" / "home"), *given(case, tmp_path)])
    assert result.exit_code == 2
    assert_one_line(result.stderr, case.says)


@pytest.mark.parametrize("unfit", list("[]{}%#?*\\"))
def test_a_home_with_an_unfit_path_is_refused(unfit: str, tmp_path: Path) -> None:
    """Characters that are a pattern in Spark or an escape in Delta are refused before anything is created."""
    result = CliRunner().invoke(
        program, ["--home", str(tmp_path / f"my{unfit}home"), "import", given(IMPORT, tmp_path)[1]]
    )
    assert result.exit_code == 2
    assert_one_line(result.stderr, f"has {unfit} in its path")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_home_without_permission_is_named(tmp_path: Path) -> None:
    """A home without write permission can be read; a write, or a read without permission, is refused."""
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    assert CliRunner().invoke(program, ["--home", str(home), "ring"]).exit_code == 0
    assert list(home.iterdir()) == []
    written = CliRunner().invoke(program, ["--home", str(home), "tables", "add", "ks.t", "--ttl", "1"])
    assert written.exit_code == 2
    assert_one_line(written.stderr, "is not writable")
    home.chmod(0o100)
    unread = CliRunner().invoke(program, ["--home", str(home), "ring"])
    assert unread.exit_code == 2
    assert_one_line(unread.stderr, "is not readable")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("bootstrap", "import")])
def test_reading_a_missing_home_creates_none(command: str, tmp_path: Path) -> None:
    """A mistyped home is reported as missing and not created."""
    result = CliRunner().invoke(program, ["--home", str(tmp_path / "typo"), *COMMANDS[command]])
    assert result.exit_code == 2
    assert_one_line(result.stderr, "does not exist")
    assert not (tmp_path / "typo").exists()


def test_invalid_settings_are_named(seeded_home: Path, tmp_path: Path) -> None:
    """A command that needs an invalid setting reports it."""
    home = tmp_path / "home"
    assert CliRunner().invoke(program, ["--home", str(home), "import", given(IMPORT, tmp_path)[1]]).exit_code == 0
    (home / "settings.toml").write_text("ring_delay_ms = -1\n")
    result = CliRunner().invoke(program, ["--home", str(home), "explain", "--token", "1"])
    assert result.exit_code == 2
    assert_one_line(result.stderr, "ring_delay_ms")


IMPORT = Case("import", COMMANDS["import"], "", GOOD_FILES)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"", b"[]", b"{"])
def test_standard_input_is_checked_like_a_file(text: bytes, seeded_home: Path) -> None:
    """`bootstrap -` refuses the input for a file's reasons, and calls it standard input."""
    before = listing(seeded_home)
    result = CliRunner().invoke(program, ["--home", str(seeded_home), "bootstrap", "-"], input=text)
    assert result.exit_code == 2
    assert_one_line(result.stderr, "standard input")
    assert listing(seeded_home) == before


@pytest.mark.parametrize("case", [BOOTSTRAP[0], SNAPSHOTS[6], EXPORTS[9], ARGUMENTS[0]], ids=lambda case: case.name)
def test_a_separate_process_prints_the_same_line(case: Case, seeded_home: Path, tmp_path: Path) -> None:
    """In a separate process, the exit code and the one line on standard error are the process's."""
    before = listing(seeded_home)
    command = [sys.executable, "-m", "cdc_platform", "--home", str(seeded_home), *given(case, tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert_one_line(result.stderr, case.says)
    assert listing(seeded_home) == before

"""Invalid input about V1 tables and their rewrite: each is refused in one line, and the home is unchanged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.files.bad_input import Case, argument, assert_refused
from support.files.export_files import (
    ID,
    LATER_MS,
    NODES,
    OTHER_ID,
    TIME_MS,
    cql_time,
    generation,
    local_csv,
    v1_descriptions_csv,
    v1_streams_csv,
)

from cdc_platform.clock import Milliseconds

NEW_MS = LATER_MS + Milliseconds(86_400_000)
AT = cql_time(NEW_MS)
BLOB = "0x7fb9f781956cea08c651295720000001"
TWO = "0x7fc0000000000000c298b9f168000001"
HOST, OTHER_HOST = (str(node.host_id) for node in NODES)
NEW, OTHER = generation("8d3f3f2e-3c61-4b0e-9a59-5a3f7c1de003"), generation(OTHER_ID)


def export(name: str, says: str, *texts: str, options: tuple[str, ...] = ()) -> Case:
    """Return a case of export files with these texts."""
    files = {f"{number}.csv": text for number, text in enumerate(texts)}
    return Case(f"export: {name}", ("import", *(f"{{dir}}/{file}" for file in files), *options), says, files)


def description_case(name: str, says: str, cell: str) -> Case:
    """Return a case of cdc_generation_descriptions with this one cell."""
    return export(f"description, {name}", says, f'time,description,expired\r\n{AT},"{cell}",\r\n')


def local_case(name: str, says: str, *lines: str, options: tuple[str, ...] = ("--node", HOST)) -> Case:
    """Return a case of cdc_local with these lines."""
    text = "".join(f"{line}\r\n" for line in ("key,streams_timestamp,uuid", *lines))
    return export(f"cdc_local, {name}", says, text, options=options)


REQUESTS = [
    argument("a node that is no UUID", "not a valid UUID", "rewrite", "--node", "node1"),
    argument(
        "a node that nobody knows",
        "no node 99999999-9999-4999-8999-999999999999 is known",
        *("rewrite", "--node", "99999999-9999-4999-8999-999999999999"),
    ),
    argument("one known and one unknown node", "is known", "rewrite", "--node", HOST, "--node", ID),
    argument("a word more", "unexpected extra argument", "rewrite", "everything"),
    argument("an option that there is not", "No such option", "rewrite", "--farce"),
    argument("import --node that is no UUID", "not a valid UUID", "import", "x.csv", "--node", "10.0.0.1"),
]
DESCRIPTIONS = [
    description_case("none", "no ranges", ""),
    description_case("cut", "half-written export", f"[(5, [{BLOB}, {TWO[:20]}"),
    description_case("a range without streams", "is no entry", "[(5, [], 12)]"),
    description_case("a tuple of two", "is no entry", f"[(5, [{BLOB}])]"),
    description_case("a short stream ID", "is no entry", f"[(5, [{BLOB[:-2]}], 12)]"),
    description_case("ranges that fall", "range ends ascend, each once", f"[(5, [{BLOB}], 12), (-5, [{TWO}], 12)]"),
    description_case("a range end twice", "range ends ascend, each once", f"[(5, [{BLOB}], 12), (5, [{TWO}], 12)]"),
    description_case("no token", "is no token", f"[(-9223372036854775808, [{BLOB}], 12)]"),
    description_case("too many ignored bits", "ignore_msb 32 is out of range", f"[(5, [{BLOB}], 32)]"),
    description_case(
        "a stream of old", "older than the version field", "[(5, [0x0521d5ce4a4a8ca552f83d88a1ae55d2], 12)]"
    ),
    export(
        "description, a time twice",
        ".000Z, first in line 2",
        v1_descriptions_csv({NEW_MS: NEW}) + v1_descriptions_csv({NEW_MS: NEW}).partition("\n")[2],
    ),
    export(
        "description, two files differ",
        "description contradicts",
        *(v1_descriptions_csv({NEW_MS: description}) for description in (NEW, OTHER)),
    ),
    export(
        "description, a time in microseconds",
        "finer than a millisecond",
        f"time,description\r\n{AT[:-5]}123+0000,x\r\n",
    ),
]
STREAMS = [
    export("flat streams, none", "no streams", f"time,expired,streams\r\n{AT},,{{}}\r\n"),
    export("flat streams, cut", "half-written export", v1_streams_csv({NEW_MS: NEW})[:-40]),
    export(
        "flat streams, one twice",
        "a stream is in the set twice",
        f'time,expired,streams\r\n{AT},,"{{{BLOB}, {BLOB}}}"\r\n',
    ),
    export("flat streams, expiry that is no time", "expired", f"time,expired,streams\r\n{AT},soon,{{{BLOB}}}\r\n"),
]
LOCAL = [
    local_case("of nobody", "name it with --node HOST_ID", f"cdc_local,{AT},", options=()),
    local_case("an unknown key", "it is cdc_local or rewritten", f"cdc_future,{AT},"),
    local_case("no UUID", "uuid: 'abc' is no UUID", f"cdc_local,{AT},abc"),
    local_case("a UUID without a time", "without streams_timestamp", f"cdc_local,,{ID}"),
    local_case("no time", "streams_timestamp: not a time", "cdc_local,yesterday,"),
    local_case("a key twice", "duplicate row with key cdc_local", f"cdc_local,{AT},", f"cdc_local,{AT},{ID}"),
    export(
        "cdc_local, two nodes under one name",
        "key cdc_local is also in",
        *(local_csv({"cdc_local": (time, None)}) for time in (TIME_MS, LATER_MS)),
        options=("--node", HOST),
    ),
    export("cdc_local, an empty host", "host_id: '' is no UUID", "key,streams_timestamp,host_id\r\nrewritten,,\r\n"),
    export(
        "--node without cdc_local",
        "such exports are not among the files",
        v1_descriptions_csv({NEW_MS: NEW}),
        options=("--node", HOST),
    ),
    export(
        "--node where the file says",
        "such exports name their nodes",
        local_csv({"rewritten": (None, None)}, OTHER_HOST),
        options=("--node", HOST),
    ),
]
CASES = [*REQUESTS, *DESCRIPTIONS, *STREAMS, *LOCAL]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_bad_input_is_refused(case: Case, seeded_home: Path, tmp_path: Path) -> None:
    """Exit code 2, one line with the error and the remedy, no standard output, and no write."""
    assert_refused(case, seeded_home, tmp_path)


SETTINGS = [
    ('use_creation_time = "yes"', "use_creation_time"),
    ("clock_margin_ms = -1", "clock_margin_ms"),
    ("rewrite_attempts = 0", "rewrite_attempts"),
    ("rewrite_retry_ms = 1.5", "rewrite_retry_ms"),
    ("dont_rewrite_streams = 1", "dont_rewrite_streams"),
]


@pytest.mark.parametrize(("line", "says"), SETTINGS)
def test_bad_settings_are_refused(line: str, says: str, seeded_home: Path, tmp_path: Path) -> None:
    """A setting of the rewrite that is out of bounds or of another type is refused."""
    home = tmp_path / "home"
    shutil.copytree(seeded_home, home)
    (home / "settings.toml").write_text(line + "\n", encoding="utf-8")
    assert_refused(argument(f"settings: {line}", says, "rewrite", "--node", HOST), home, tmp_path)


def test_a_home_without_a_ring_names_the_remedy(tmp_path: Path) -> None:
    """Without a ring and a named node, the message says how to name one."""
    from cdc_platform.home_location import open_home_location

    home = tmp_path / "home"
    open_home_location(home)
    assert_refused(argument("no ring", "or name one with --node HOST_ID", "rewrite"), home, tmp_path)

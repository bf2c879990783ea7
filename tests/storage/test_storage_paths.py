"""Places: a folder and a store answer the same, and of several who put one object at once one does."""

from __future__ import annotations

import ast
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command_line import run
from support.nodes import node_text
from support.store.s3 import S3, SECRET

from cdc_platform import storage
from cdc_platform.delta import Lake
from cdc_platform.errors import EnvironmentProblem, InputError, PlatformError, Unavailable
from cdc_platform.storage import (
    ObjectStorePath,
    StoragePath,
    is_store_address,
    map_in_threads,
    object_store,
    parse_path,
)
from cdc_platform.tables import NODES


@pytest.fixture(params=["folder", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StoragePath:
    """An empty folder of either kind."""
    if request.param == "folder":
        return parse_path(tmp_path)
    s3: S3 = request.getfixturevalue("s3")
    return parse_path(f"{s3.bucket()}/some/where")


def put(place: StoragePath, content: bytes, tmp_path: Path) -> None:
    """Give a file this content."""
    draft = tmp_path / "draft"
    draft.write_bytes(content)
    place.receive(draft)


def test_a_file_is_seen_read_and_removed(place: StoragePath, tmp_path: Path) -> None:
    """What is not there is not seen; another file in its place has another mark."""
    file = place / "a/b.txt"
    assert (file.name, file.folder.name, str(file)) == ("b.txt", "a", f"{place}/a/b.txt")
    assert file.stat() is None
    with pytest.raises(FileNotFoundError):
        file.read()
    put(file, b"one", tmp_path)
    first = file.stat()
    assert first is not None
    assert (first.bytes, file.read()) == (3, b"one")
    put(file, b"two!", tmp_path)
    second = file.stat()
    assert second is not None
    assert (second.bytes, second.mark != first.mark) == (4, True)
    file.remove()
    file.remove()
    assert file.stat() is None


def test_folders_and_files_are_listed_by_name(place: StoragePath, tmp_path: Path) -> None:
    """What lies deeper is no file of the folder; a folder that is not there has nothing in it."""
    for path in ("t/b", "t/a", "t/sub/c", "t/sub2/d"):
        put_below(place, path, tmp_path)
    table = place / "t"
    assert table.names() == ["a", "b"]
    assert [name for name, _ in table.files()] == ["a", "b"]
    assert [name for name, seen in table.files(after="a") if seen.bytes == 1] == ["b"]
    assert [str(each) for each in table.folders()] == [f"{table}/sub", f"{table}/sub2"]
    assert (table.is_folder(), (place / "nothing").is_folder()) == (True, False)
    assert ((place / "nothing").folders(), (place / "nothing").names(), (place / "nothing").files()) == ([], [], [])


def test_a_bucket_is_a_folder(s3: S3, tmp_path: Path) -> None:
    """Its name is its address alone; what lies in it is listed, and what lies deeper is not."""
    bucket = parse_path(s3.bucket())
    assert (bucket.names(), bucket.folders(), bucket.is_folder()) == ([], [], False)
    for path in ("a", "t/b"):
        put(bucket / path, b"x", tmp_path)
    assert str(bucket / "t") == f"{bucket}/t"
    assert (bucket.names(), [str(each) for each in bucket.folders()]) == (["a"], [f"{bucket}/t"])
    assert ((bucket / "t").folder, parse_path(f"{bucket}/")) == (bucket, bucket)


def test_a_bucket_is_looked_for_by_one_list(s3: S3) -> None:
    """However much lies in it; one that is not there is said not to be."""
    bucket = parse_path(s3.bucket())
    assert isinstance(bucket, ObjectStorePath)
    places = [bucket / str(number) for number in range(1001)]
    assert all(map_in_threads(lambda place: place.create(b""), places, 8))
    before = s3.counts()["LIST GET"]
    assert (bucket.has_bucket(), bucket.is_folder()) == (True, True)
    assert s3.counts()["LIST GET"] - before == 2
    nowhere = parse_path("s3://no-such-bucket")
    assert isinstance(nowhere, ObjectStorePath)
    with pytest.raises(Unavailable, match=r"^s3://no-such-bucket does not exist "):
        nowhere.has_bucket()


def put_below(place: StoragePath, path: str, tmp_path: Path) -> None:
    """A file of one byte, in folders of its own."""
    if place.local_path is not None:
        (place.local_path / path).parent.mkdir(parents=True, exist_ok=True)
    put(place / path, b"x", tmp_path)


@pytest.mark.parametrize("rows", [10, 900_000])
def test_parquet_is_read_in_parts(place: StoragePath, tmp_path: Path, rows: int) -> None:
    """A small file at once, a large one by what is asked of it."""
    column = pa.array([f"{number * 7919 % 1_000_003:032x}" for number in range(rows)])
    pq.write_table(pa.table({"a": column, "b": pa.array(range(rows))}), tmp_path / "draft", compression="none")
    (place / "f.parquet").receive(tmp_path / "draft")
    with pq.ParquetFile((place / "f.parquet").source()) as file:
        assert file.read(columns=["b"])["b"].to_pylist() == list(range(rows))


def test_one_of_several_makes_an_object(s3: S3) -> None:
    """Eight at once put each of ten objects; one is told that it did, and its content stands."""
    folder, together = parse_path(f"{s3.bucket()}/race"), threading.Barrier(8)

    def make(writer: int) -> list[bool]:
        done = []
        for number in range(10):
            together.wait()
            done.append(stored(folder, str(number)).create(f"{writer}".encode()) is not None)
        return done

    with ThreadPoolExecutor(8) as writers:
        told = list(writers.map(make, range(8)))
    for number in range(10):
        (winner,) = [writer for writer in range(8) if told[writer][number]]
        assert stored(folder, str(number)).read() == f"{winner}".encode()


def test_one_of_several_replaces_an_object(s3: S3) -> None:
    """By the mark of what it has seen; who comes later has seen another one."""
    place = stored(parse_path(s3.bucket()), "a")
    mark = place.create(b"0")
    assert mark is not None
    told = [place.replace(f"{writer}".encode(), mark) for writer in (1, 2)]
    assert (told[0] is not None, told[1], place.read()) == (True, None, b"1")
    assert place.create(b"again") is None
    place.remove()
    assert place.replace(b"3", mark) is None


def stored(folder: StoragePath, name: str) -> ObjectStorePath:
    """An object of a store."""
    place = folder / name
    assert isinstance(place, ObjectStorePath)
    return place


@pytest.mark.parametrize("name", ["ftp://h/p", "s3://", "s3://user:pass@bucket/p", "s3://b/p?x=1", "s3a://b/p"])
def test_addresses_that_name_no_place_are_refused(name: str) -> None:
    """One line, without what may be a password."""
    assert is_store_address(name)
    with pytest.raises(InputError, match=r"is no store that is known|names a place as") as told:
        parse_path(name)
    assert "pass@" not in str(told.value)


@pytest.mark.parametrize(
    ("prefix", "told"),
    [
        *((f"a{some}b/c", some) for some in ("[", "]", "\\", "^", "|", "%20", "%c3", "%2F")),
        *(("[1]/c", "[ ]"), ("a/../c", ".."), ("./c", "."), ("a/..", ".."), ("..", "..")),
        *(("a\tb", r"'\t'"), ("a\nb", r"'\n'"), ("a\x7fb", r"'\x7f'")),
    ],
)
def test_prefixes_that_programs_read_otherwise_are_refused(s3: S3, tmp_path: Path, prefix: str, told: str) -> None:
    """One line with what is in it and what to do, by a home and by a lake; nothing is written under another name."""
    bucket = s3.bucket()
    (tmp_path / "node1.json").write_text(node_text(1, 4, 2), encoding="utf-8")
    done = run("--home", f"{bucket}/{prefix}", "bootstrap", tmp_path / "node1.json", "--run")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done
    assert f" has {told} in its address, which programs read in different ways; name another prefix" in done.stderr
    with pytest.raises(InputError, match="in its address"):
        Lake(f"{bucket}/{prefix}/lake")
    assert not parse_path(bucket).is_folder()


@pytest.mark.grid("odd prefixes", 3)
@pytest.mark.parametrize("prefix", ["a b/ü", "1+1=2/~c*", "100%/5%x", "a//b/", "{x}/(y)", "日本/é'!$&,:;@"])
def test_odd_prefixes_are_used_unchanged(s3: S3, tmp_path: Path, prefix: str) -> None:
    """A join and every byte of it: all of it lies below that name, as the store tells it."""
    bucket = s3.bucket()
    (tmp_path / "node1.json").write_text(node_text(1, 4, 2), encoding="utf-8")
    for words in (("bootstrap", tmp_path / "node1.json", "--run"), ("check", "--deep")):
        done = run("--home", f"{bucket}/{prefix}", *words)
        assert (done.exit_code, done.stderr) == (0, ""), (words, done)
    first, *rest = [part for part in prefix.split("/") if part]
    assert [each.name for each in parse_path(bucket).folders()] == [first]
    assert "platform.json" in parse_path("/".join([bucket, first, *rest])).names()


def test_a_scheme_in_capitals_is_the_same_one(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the same home; with one slash it is refused, and no folder is made here."""
    monkeypatch.chdir(tmp_path)
    bucket = s3.bucket()
    (tmp_path / "node1.json").write_text(node_text(1, 4, 2), encoding="utf-8")
    capitals = bucket.replace("s3", "S3")
    joined = run("--home", f"{capitals}/h", "bootstrap", "node1.json", "--run")
    assert joined.exit_code == 0, joined
    assert (
        run("--home", f"{bucket}/h", "generations", "--json").rows
        == run("--home", f"{capitals}/h", "generations", "--json").rows
    )
    assert (str(parse_path(capitals)), str(Lake(f"{capitals}/h/lake").location)) == (bucket, f"{bucket}/h/lake")
    for name in ("s3:/b/x", "S3:b/x", "abfss:/b"):
        refused = run("--home", name, "bootstrap", "node1.json")
        assert (refused.exit_code, f"{name} is no address: a store is named as " in refused.stderr) == (2, True), (
            refused
        )
        assert run("home", "copy", f"{bucket}/h", name).exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node1.json", "state"]


@pytest.mark.parametrize("door", ["expired", "nowhere"])
def test_a_store_that_does_not_answer_is_one_line(s3: S3, monkeypatch: pytest.MonkeyPatch, door: str) -> None:
    """What it said, what to look at, and no secret; a server that is not there is no different."""
    bucket = s3.bucket()
    address = "http://127.0.0.1:1" if door == "nowhere" else s3.environment(door)["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    # Another bucket's name: connections are kept by name.
    with pytest.raises(PlatformError, match="does not respond like an object store") as told:
        (parse_path(f"{bucket}-{door}") / "a").read()
    assert "\n" not in str(told.value)
    assert SECRET not in str(told.value)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURITE_BLOB_STORAGE_URL"])
@pytest.mark.parametrize(
    "value", ["http://user:sekret@127.0.0.1:1", "user:sekret@nowhere", "http://127.0.0.1:1/?t=sekret"]
)
def test_an_endpoint_reveals_no_secret(
    s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str
) -> None:
    """By whichever door: it is refused before anything is asked, and is no damage of what lies there."""
    address = f"{s3.bucket()}/h"
    (tmp_path / "node1.json").write_text(node_text(1, 4, 2), encoding="utf-8")
    monkeypatch.setenv(name, value)
    told = []
    for words in (
        ("--home", address, "generations"),
        ("--home", address, "bootstrap", tmp_path / "node1.json", "--run"),
        ("--home", address, "check", "--deep"),
        ("home", "copy", address, tmp_path / "copy"),
        ("home", "copy", tmp_path, f"{address}2"),
    ):
        done = run(*words)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1), (words, done)
        told.append(done.stderr)
    for ask in (
        lambda: parse_path(address).names(),
        lambda: Lake(address).read(NODES),
        lambda: Lake(address).merge(NODES, NODES.schema.empty_table(), update=False),
    ):
        with pytest.raises(EnvironmentProblem) as refused:
            ask()
        told.append(str(refused.value))
    assert [line for line in told if f"{name} contains a user, a password or a query" not in line] == []
    assert [line for line in told if "sekret" in line or "damaged" in line] == []


@pytest.mark.parametrize("value", ["nowhere", "", "http://[bad", "127.0.0.1:9000"])
def test_an_endpoint_that_is_no_address_is_reported_as_such(
    s3: S3, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """And not as a home that is damaged."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", value)
    done = run("--home", f"{s3.bucket()}/h", "generations")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done
    assert f"AWS_ENDPOINT_URL is {value!r}; it is an address, as https://host:port, or not set" in done.stderr


def test_an_endpoint_without_tls_is_reported_as_such(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the variable by which it may be asked."""
    bucket = s3.bucket()
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    done = run("--home", f"{bucket}/h", "generations")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done
    assert f"{bucket} is not contacted without TLS; name an https:// endpoint" in done.stderr
    assert "AWS_ALLOW_HTTP=true" in done.stderr


def test_passwords_of_addresses_are_in_no_message() -> None:
    """Of foreign messages, as of a proxy; a container of Azure's is no user."""
    told = object_store.unexpected_response_error(
        "proxy http://me:sekret@proxy:3128/ for abfss://box@account/x: refused", "s3://b"
    )
    assert "(proxy http://***@proxy:3128/ for abfss://box@account/x: refused)" in str(told)


def test_parts_of_the_library_are_imported_behind_the_whole() -> None:
    """Two threads that begin with different ones at once meet half of it, or a deadlock that Python breaks off."""
    found = {}
    for path in sorted(Path(storage.__file__).parents[1].rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                inside = [each for each in ast.walk(function) if isinstance(each, ast.ImportFrom | ast.Call)]
                parts = [each.lineno for each in inside if imports_a_part(each)]
                loads = [each.lineno for each in inside if "_load_obstore" in names_of(each)]
                found |= {(path.name, function.name): min(loads, default=10**6) < min(parts)} if parts else {}
    assert len(found) >= 4
    assert [where for where, is_behind in found.items() if not is_behind] == []


def imports_a_part(node: ast.AST) -> bool:
    """Whether it imports a part of the library of stores."""
    return isinstance(node, ast.ImportFrom) and (node.module or "").startswith("obstore.")


def names_of(node: ast.AST) -> list[str]:
    """What a call is one of."""
    called = node.func if isinstance(node, ast.Call) else None
    return [name for name in (getattr(called, "id", None), getattr(called, "attr", None)) if name]

"""Paths in a folder and in a store behave equally; if several writers put one object at once, one succeeds."""

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


def put(path: StoragePath, content: bytes, tmp_path: Path) -> None:
    """Write a file with this content."""
    draft = tmp_path / "draft"
    draft.write_bytes(content)
    path.receive(draft)


def test_file_is_found_read_and_removed(place: StoragePath, tmp_path: Path) -> None:
    """A missing file is not found; a replaced file has another mark."""
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
    """A folder's files exclude deeper ones; a missing folder is empty."""
    for path in ("t/b", "t/a", "t/sub/c", "t/sub2/d"):
        put_below(place, path, tmp_path)
    table = place / "t"
    assert table.names() == ["a", "b"]
    assert [name for name, _ in table.files()] == ["a", "b"]
    assert [name for name, status in table.files(after="a") if status.bytes == 1] == ["b"]
    assert [str(folder) for folder in table.folders()] == [f"{table}/sub", f"{table}/sub2"]
    assert (table.is_folder(), (place / "nothing").is_folder()) == (True, False)
    assert ((place / "nothing").folders(), (place / "nothing").names(), (place / "nothing").files()) == ([], [], [])


def test_bucket_is_a_folder(s3: S3, tmp_path: Path) -> None:
    """Its address has only its name; its own objects are listed, deeper ones are not."""
    bucket = parse_path(s3.bucket())
    assert (bucket.names(), bucket.folders(), bucket.is_folder()) == ([], [], False)
    for path in ("a", "t/b"):
        put(bucket / path, b"x", tmp_path)
    assert str(bucket / "t") == f"{bucket}/t"
    assert (bucket.names(), [str(folder) for folder in bucket.folders()]) == (["a"], [f"{bucket}/t"])
    assert ((bucket / "t").folder, parse_path(f"{bucket}/")) == (bucket, bucket)


def test_bucket_is_checked_by_one_list_request(s3: S3) -> None:
    """The number of its objects does not matter; a missing bucket is an error."""
    bucket = parse_path(s3.bucket())
    assert isinstance(bucket, ObjectStorePath)
    paths = [bucket / str(number) for number in range(1001)]
    assert all(map_in_threads(lambda path: path.create(b""), paths, 8))
    before = s3.counts()["LIST GET"]
    assert (bucket.has_bucket(), bucket.is_folder()) == (True, True)
    assert s3.counts()["LIST GET"] - before == 2
    missing = parse_path("s3://no-such-bucket")
    assert isinstance(missing, ObjectStorePath)
    with pytest.raises(Unavailable, match=r"^s3://no-such-bucket does not exist "):
        missing.has_bucket()


def put_below(folder: StoragePath, path: str, tmp_path: Path) -> None:
    """Write a file of one byte, with its folders."""
    if folder.local_path is not None:
        (folder.local_path / path).parent.mkdir(parents=True, exist_ok=True)
    put(folder / path, b"x", tmp_path)


@pytest.mark.parametrize("rows", [10, 900_000])
def test_parquet_is_read_in_parts(place: StoragePath, tmp_path: Path, rows: int) -> None:
    """A small file is read as a whole, a large one by the requested parts."""
    column = pa.array([f"{number * 7919 % 1_000_003:032x}" for number in range(rows)])
    pq.write_table(pa.table({"a": column, "b": pa.array(range(rows))}), tmp_path / "draft", compression="none")
    (place / "f.parquet").receive(tmp_path / "draft")
    with pq.ParquetFile((place / "f.parquet").source()) as file:
        assert file.read(columns=["b"])["b"].to_pylist() == list(range(rows))


def test_one_of_several_writers_creates_an_object(s3: S3) -> None:
    """Eight writers put each of ten objects at once; exactly one succeeds, and its content stays."""
    folder, barrier = parse_path(f"{s3.bucket()}/race"), threading.Barrier(8)

    def create_objects(writer: int) -> list[bool]:
        done = []
        for number in range(10):
            barrier.wait()
            done.append(get_object(folder, str(number)).create(f"{writer}".encode()) is not None)
        return done

    with ThreadPoolExecutor(8) as writers:
        results = list(writers.map(create_objects, range(8)))
    for number in range(10):
        (winner,) = [writer for writer in range(8) if results[writer][number]]
        assert get_object(folder, str(number)).read() == f"{winner}".encode()


def test_one_of_several_writers_replaces_an_object(s3: S3) -> None:
    """A writer passes the mark that it has read; a later one has an outdated mark."""
    path = get_object(parse_path(s3.bucket()), "a")
    mark = path.create(b"0")
    assert mark is not None
    results = [path.replace(f"{writer}".encode(), mark) for writer in (1, 2)]
    assert (results[0] is not None, results[1], path.read()) == (True, None, b"1")
    assert path.create(b"again") is None
    path.remove()
    assert path.replace(b"3", mark) is None


def get_object(folder: StoragePath, name: str) -> ObjectStorePath:
    """Return an object of a store."""
    path = folder / name
    assert isinstance(path, ObjectStorePath)
    return path


@pytest.mark.parametrize("name", ["ftp://h/p", "s3://", "s3://user:pass@bucket/p", "s3://b/p?x=1", "s3a://b/p"])
def test_invalid_addresses_are_refused(name: str) -> None:
    """The refusal is one line, without text that may be a password."""
    assert is_store_address(name)
    with pytest.raises(InputError, match=r"is no store that is known|names a place as") as refusal:
        parse_path(name)
    assert "pass@" not in str(refusal.value)


@pytest.mark.parametrize(
    ("prefix", "told"),
    [
        *((f"a{some}b/c", some) for some in ("[", "]", "\\", "^", "|", "%20", "%c3", "%2F")),
        *(("[1]/c", "[ ]"), ("a/../c", ".."), ("./c", "."), ("a/..", ".."), ("..", "..")),
        *(("a\tb", r"'\t'"), ("a\nb", r"'\n'"), ("a\x7fb", r"'\x7f'")),
    ],
)
def test_ambiguous_prefixes_are_refused(s3: S3, tmp_path: Path, prefix: str, told: str) -> None:
    """Home and lake refuse the prefix in one line, and write nothing under another name."""
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
    """After a join and a deep check, the store lists all of it below that name."""
    bucket = s3.bucket()
    (tmp_path / "node1.json").write_text(node_text(1, 4, 2), encoding="utf-8")
    for words in (("bootstrap", tmp_path / "node1.json", "--run"), ("check", "--deep")):
        done = run("--home", f"{bucket}/{prefix}", *words)
        assert (done.exit_code, done.stderr) == (0, ""), (words, done)
    first, *rest = [part for part in prefix.split("/") if part]
    assert [folder.name for folder in parse_path(bucket).folders()] == [first]
    assert "platform.json" in parse_path("/".join([bucket, first, *rest])).names()


def test_scheme_is_case_insensitive(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capitals name the same home; a scheme with one slash is refused and creates no folder."""
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
def test_unresponsive_store_is_one_line(s3: S3, monkeypatch: pytest.MonkeyPatch, door: str) -> None:
    """The line has the response and a remedy, and no secret; a missing server has an equal line."""
    bucket = s3.bucket()
    address = "http://127.0.0.1:1" if door == "nowhere" else s3.environment(door)["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    # Use another bucket name, because connections are cached by name.
    with pytest.raises(PlatformError, match="does not respond like an object store") as refusal:
        (parse_path(f"{bucket}-{door}") / "a").read()
    assert "\n" not in str(refusal.value)
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURITE_BLOB_STORAGE_URL"])
@pytest.mark.parametrize(
    "value", ["http://user:sekret@127.0.0.1:1", "user:sekret@nowhere", "http://127.0.0.1:1/?t=sekret"]
)
def test_endpoint_with_a_secret_is_refused_without_it(
    s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str
) -> None:
    """Every command and method refuses it before a request, and reports no damage."""
    address = f"{s3.bucket()}/h"
    (tmp_path / "node1.json").write_text(node_text(1, 4, 2), encoding="utf-8")
    monkeypatch.setenv(name, value)
    messages = []
    for words in (
        ("--home", address, "generations"),
        ("--home", address, "bootstrap", tmp_path / "node1.json", "--run"),
        ("--home", address, "check", "--deep"),
        ("home", "copy", address, tmp_path / "copy"),
        ("home", "copy", tmp_path, f"{address}2"),
    ):
        done = run(*words)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1), (words, done)
        messages.append(done.stderr)
    for request in (
        lambda: parse_path(address).names(),
        lambda: Lake(address).read(NODES),
        lambda: Lake(address).merge(NODES, NODES.schema.empty_table(), update=False),
    ):
        with pytest.raises(EnvironmentProblem) as refused:
            request()
        messages.append(str(refused.value))
    assert [line for line in messages if f"{name} contains a user, a password or a query" not in line] == []
    assert [line for line in messages if "sekret" in line or "damaged" in line] == []


@pytest.mark.parametrize("value", ["nowhere", "", "http://[bad", "127.0.0.1:9000"])
def test_invalid_endpoint_is_reported(s3: S3, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """The message does not report a damaged home."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", value)
    done = run("--home", f"{s3.bucket()}/h", "generations")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done
    assert f"AWS_ENDPOINT_URL is {value!r}; it is an address, as https://host:port, or not set" in done.stderr


def test_endpoint_without_tls_is_reported(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the variable that allows it."""
    bucket = s3.bucket()
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    done = run("--home", f"{bucket}/h", "generations")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done
    assert f"{bucket} is not contacted without TLS; name an https:// endpoint" in done.stderr
    assert "AWS_ALLOW_HTTP=true" in done.stderr


def test_passwords_of_addresses_are_in_no_message() -> None:
    """Passwords in messages of others, such as a proxy, are masked; an Azure container is no user."""
    refusal = object_store.unexpected_response_error(
        "proxy http://me:sekret@proxy:3128/ for abfss://box@account/x: refused", "s3://b"
    )
    assert "(proxy http://***@proxy:3128/ for abfss://box@account/x: refused)" in str(refusal)


def test_submodules_are_imported_after_the_library() -> None:
    """Threads that import different submodules first would meet a partial module or a deadlock."""
    functions = {}
    for path in sorted(Path(storage.__file__).parents[1].rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                nodes = [node for node in ast.walk(function) if isinstance(node, ast.ImportFrom | ast.Call)]
                parts = [node.lineno for node in nodes if imports_submodule(node)]
                loads = [node.lineno for node in nodes if "_load_obstore" in called_names(node)]
                functions |= {(path.name, function.name): min(loads, default=10**6) < min(parts)} if parts else {}
    assert len(functions) >= 4
    assert [function_name for function_name, is_after in functions.items() if not is_after] == []


def imports_submodule(node: ast.AST) -> bool:
    """Return True if the node imports a submodule of the store library."""
    return isinstance(node, ast.ImportFrom) and (node.module or "").startswith("obstore.")


def called_names(node: ast.AST) -> list[str]:
    """Return the name and the attribute that a call calls."""
    called = node.func if isinstance(node, ast.Call) else None
    return [name for name in (getattr(called, "id", None), getattr(called, "attr", None)) if name]

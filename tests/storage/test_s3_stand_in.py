"""What the tests' S3 server answers by its short way is what moto answers; a parameter that it ignores leads past."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

import pytest
from support.store.s3 import AUTHORIZED, S3

_NAME = "a/1/zoë%20 &.json"
_OTHERS = {"server", "date", "x-amzn-requestid", "access-control-allow-origin", "connection"}
"""What Flask and the server say of themselves."""
Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture(scope="module")
def bucket(s3_process: S3) -> str:
    """The name of a bucket with a few objects."""
    name = s3_process.bucket().removeprefix("s3://")
    for key in (_NAME, "a/2/empty", "a/3/last", "b"):
        put = ask(s3_process, "PUT", f"/{name}/{quote(key)}", body=b"" if key.endswith("empty") else b"0123456789")
        assert put[0] == 200
    return name


def ask(s3: S3, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
    """The answer to a request: its status, headers and body."""
    there = http.client.HTTPConnection(urlsplit(s3.environment()["AWS_ENDPOINT_URL"]).netloc, timeout=30)
    there.request(method, target, body=body, headers={**AUTHORIZED, **(headers or {})})
    answer = there.getresponse()
    told = {name.lower(): value for name, value in answer.getheaders()}
    content = answer.read()
    there.close()
    return answer.status, {name: value for name, value in told.items() if name not in _OTHERS}, content


def assert_same(s3: S3, method: str, target: str, headers: Mapping[str, str] | None = None) -> Answer:
    """Hold that both ways give the same, but for what is drawn for each answer; it is given back."""
    short = ask(s3, method, target, headers=headers)
    whole = ask(s3, method, f"{target}{'&' if '?' in target else '?'}x=1", headers=headers)
    drawn = rb"<(RequestId|NextContinuationToken)>[^<]*<"
    assert short[:2] == whole[:2] or b"NextContinuationToken" in whole[2]
    assert re.sub(drawn, b"<", short[2]) == re.sub(drawn, b"<", whole[2])
    return short


@pytest.mark.parametrize("headers", [{}, {"range": "bytes=2-5"}, {"range": "bytes=-3"}, {"range": "bytes=7-"}])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("name", [_NAME, "a/2/empty"])
def test_an_object(s3_process: S3, bucket: str, method: str, name: str, headers: dict[str, str]) -> None:
    """Whole, in part and its head, by a name of odd letters too."""
    status, _, body = assert_same(s3_process, method, f"/{bucket}/{quote(name)}", headers)
    if name == _NAME:
        assert status == (206 if headers else 200)
        assert len(body) < 10 if headers or method == "HEAD" else body == b"0123456789"


@pytest.mark.parametrize("condition", ["if-match", "if-none-match"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_an_object_on_a_condition(s3_process: S3, bucket: str, method: str, condition: str) -> None:
    """That its tag is, or is not, the one that is named, whether that is so or not."""
    target = f"/{bucket}/{quote(_NAME)}"
    tag = ask(s3_process, "HEAD", target)[1]["etag"]
    found = set()
    for named in (tag, '"another"'):
        found.add(assert_same(s3_process, method, target, {condition: named})[0])
    assert found == ({200, 412} if condition == "if-match" else {200, 304})


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_is_not_there(s3_process: S3, bucket: str, method: str) -> None:
    """An object, and a bucket."""
    for target in (f"/{bucket}/nothing", "/no-such-bucket/nothing"):
        assert assert_same(s3_process, method, target)[0] == 404


@pytest.mark.parametrize(
    ("query", "listed"),
    [
        ("", 4),
        ("&prefix=a%2F", 3),
        ("&prefix=a%2F&delimiter=%2F", 0),
        ("&prefix=a%2F&max-keys=2", 2),
        ("&prefix=a%2F&start-after=a%2F2%2F", 2),
        ("&prefix=nothing", 0),
    ],
)
def test_a_list(s3_process: S3, bucket: str, query: str, listed: int) -> None:
    """Of all, below a prefix, by folders, from a name on, of a few."""
    status, _, body = assert_same(s3_process, "GET", f"/{bucket}?list-type=2{query}")
    assert (status, body.count(b"<Contents>")) == (200, listed)


def test_a_list_that_goes_on(s3_process: S3, bucket: str) -> None:
    """From where the one before ended."""
    names, token = list[bytes](), ""
    for _ in range(2):
        _, _, body = assert_same(s3_process, "GET", f"/{bucket}?list-type=2&max-keys=2{token}")
        names += re.findall(rb"<Key>([^<]*)</Key>", body)
        (token,) = re.findall(rb"<NextContinuationToken>([^<]*)<", body) or [b""]
        token = f"&continuation-token={quote(token.decode(), safe='')}" if token else ""
    assert (len(names), len(set(names)), token) == (4, 4, "")

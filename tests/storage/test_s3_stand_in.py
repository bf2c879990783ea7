"""The fast path of the tests' S3 server answers as moto does; a parameter that moto ignores avoids that path."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

import pytest
from support.store.s3 import AUTHORIZED, S3

_NAME = "a/1/zoë%20 &.json"
_SERVER_HEADERS = {"server", "date", "x-amzn-requestid", "access-control-allow-origin", "connection"}
"""Headers with which Flask and the server describe themselves."""
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
    """Return the response to a request: its status, headers and body."""
    connection = http.client.HTTPConnection(urlsplit(s3.environment()["AWS_ENDPOINT_URL"]).netloc, timeout=30)
    connection.request(method, target, body=body, headers={**AUTHORIZED, **(headers or {})})
    answer = connection.getresponse()
    response_headers = {name.lower(): value for name, value in answer.getheaders()}
    content = answer.read()
    connection.close()
    return (
        answer.status,
        {name: value for name, value in response_headers.items() if name not in _SERVER_HEADERS},
        content,
    )


def assert_same(s3: S3, method: str, target: str, headers: Mapping[str, str] | None = None) -> Answer:
    """Assert that both paths give equal responses, except for drawn values; return the response."""
    fast = ask(s3, method, target, headers=headers)
    slow = ask(s3, method, f"{target}{'&' if '?' in target else '?'}x=1", headers=headers)
    random_values = rb"<(RequestId|NextContinuationToken)>[^<]*<"
    assert fast[:2] == slow[:2] or b"NextContinuationToken" in slow[2]
    assert re.sub(random_values, b"<", fast[2]) == re.sub(random_values, b"<", slow[2])
    return fast


@pytest.mark.parametrize("headers", [{}, {"range": "bytes=2-5"}, {"range": "bytes=-3"}, {"range": "bytes=7-"}])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("name", [_NAME, "a/2/empty"])
def test_object(s3_process: S3, bucket: str, method: str, name: str, headers: dict[str, str]) -> None:
    """Complete, partial and head requests are equal, also for a name with odd characters."""
    status, _, body = assert_same(s3_process, method, f"/{bucket}/{quote(name)}", headers)
    if name == _NAME:
        assert status == (206 if headers else 200)
        assert len(body) < 10 if headers or method == "HEAD" else body == b"0123456789"


@pytest.mark.parametrize("condition", ["if-match", "if-none-match"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_conditional_request(s3_process: S3, bucket: str, method: str, condition: str) -> None:
    """The condition names the object's tag or another one, and requires or excludes it."""
    target = f"/{bucket}/{quote(_NAME)}"
    tag = ask(s3_process, "HEAD", target)[1]["etag"]
    statuses = set()
    for tag_in_condition in (tag, '"another"'):
        statuses.add(assert_same(s3_process, method, target, {condition: tag_in_condition})[0])
    assert statuses == ({200, 412} if condition == "if-match" else {200, 304})


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_missing_object_or_bucket(s3_process: S3, bucket: str, method: str) -> None:
    """A missing object and a missing bucket give equal errors."""
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
def test_list(s3_process: S3, bucket: str, query: str, listed: int) -> None:
    """The lists are of all objects, below a prefix, by folders, after a name, and limited."""
    status, _, body = assert_same(s3_process, "GET", f"/{bucket}?list-type=2{query}")
    assert (status, body.count(b"<Contents>")) == (200, listed)


def test_continued_list(s3_process: S3, bucket: str) -> None:
    """The second list continues after the first."""
    names, token = list[bytes](), ""
    for _ in range(2):
        _, _, body = assert_same(s3_process, "GET", f"/{bucket}?list-type=2&max-keys=2{token}")
        names += re.findall(rb"<Key>([^<]*)</Key>", body)
        (token,) = re.findall(rb"<NextContinuationToken>([^<]*)<", body) or [b""]
        token = f"&continuation-token={quote(token.decode(), safe='')}" if token else ""
    assert (len(names), len(set(names)), token) == (4, 4, "")

"""Answer reads of moto's store by moto's own methods directly, without its request handling.

Flask and moto's own parsing take three quarters of the time of a response, and tests mostly make these requests: get
an object, check that it exists, list. All other requests, and refusals, take the normal path.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.exceptions import S3ClientError
from moto.s3.responses import S3Response
from werkzeug.datastructures import EnvironHeaders

_OF_A_LIST = frozenset({"list-type", "prefix", "delimiter", "start-after", "continuation-token", "max-keys"})
Answer = tuple[str, list[tuple[str, str]], bytes]
"""A status, headers and a body."""


def looked(environ: dict[str, Any]) -> Answer | None:
    """Return moto's response to a read; None for other requests and for refusals."""
    bucket, _, name = environ["PATH_INFO"].encode("latin-1").decode().removeprefix("/").partition("/")
    query = parse_qs(environ["QUERY_STRING"], keep_blank_values=True)
    is_list = not name and query.get("list-type") == ["2"] and _OF_A_LIST.issuperset(query)
    # Anonymous clients may see less; moto decides that on the normal path.
    if "HTTP_AUTHORIZATION" not in environ or not (is_list or (name and not query)):
        return None
    look = _Look(environ, bucket, name, query)
    try:
        return look.listed() if is_list else look.object()
    except S3ClientError:
        return None


class _Look(S3Response):
    """A request with moto's methods to answer it."""

    def __init__(self, environ: dict[str, Any], bucket: str, name: str, query: dict[str, Any]) -> None:
        super().__init__()
        self.current_account, self.region = DEFAULT_ACCOUNT_ID, self.default_region
        self.request: Any = self
        self.bucket_name, self._name = bucket, name
        self.method, self.headers = environ["REQUEST_METHOD"], EnvironHeaders(environ)
        self.uri, self.querystring, self.body = "", query, None
        self.data, self.uri_match, self.response_headers = {}, {}, {}

    def parse_key_name(self) -> str:
        """Return the object's name."""
        return self._name

    def _get_querystring(self, request: Any, full_url: str) -> dict[str, Any]:
        return self.querystring

    def listed(self) -> Answer | None:
        """Return a list, which has no HEAD."""
        return self._answer(*self.list_objects_v2()) if self.method == "GET" else None

    def object(self) -> Answer | None:
        """Return an object or its head, whole or in part."""
        if self.method == "HEAD":
            status, headers, body = self.head_object(self.bucket_name, self.querystring, self._name, self.headers)
        else:
            status, headers, body = self.get_object()
        if status == HTTPStatus.OK and self.headers.get("range"):
            status, headers, body = self._handle_range_header(self, headers, body)
        return self._answer(status, headers, body) if status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT) else None

    def _answer(self, status: int, headers: dict[str, Any], body: str | bytes) -> Answer:
        content = body.encode() if isinstance(body, str) else body
        lower_headers = {name.lower(): str(value) for name, value in headers.items()}
        if self.method != "HEAD":
            lower_headers["content-length"] = str(len(content))
        return f"{status} {HTTPStatus(status).phrase}", list(lower_headers.items()), content

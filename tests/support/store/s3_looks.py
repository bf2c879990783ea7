"""Looks at moto's store, answered by moto's own methods without what lies on the way to them.

Of what it takes moto to answer, three quarters are Flask's and its own reading of the request, and what the tests ask
is mostly this: an object, whether it is there, a list. Whatever else is asked, or is refused, goes the whole way.
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
    """What moto answers to a look; None where the request is another one, or the answer a refusal."""
    bucket, _, name = environ["PATH_INFO"].encode("latin-1").decode().removeprefix("/").partition("/")
    query = parse_qs(environ["QUERY_STRING"], keep_blank_values=True)
    is_list = not name and query.get("list-type") == ["2"] and _OF_A_LIST.issuperset(query)
    # Who does not say who he is may see less; moto judges that on the whole way.
    if "HTTP_AUTHORIZATION" not in environ or not (is_list or (name and not query)):
        return None
    look = _Look(environ, bucket, name, query)
    try:
        return look.listed() if is_list else look.object()
    except S3ClientError:
        return None


class _Look(S3Response):
    """What moto's methods find of a request."""

    def __init__(self, environ: dict[str, Any], bucket: str, name: str, query: dict[str, Any]) -> None:
        super().__init__()
        self.current_account, self.region = DEFAULT_ACCOUNT_ID, self.default_region
        self.request: Any = self
        self.bucket_name, self._name = bucket, name
        self.method, self.headers = environ["REQUEST_METHOD"], EnvironHeaders(environ)
        self.uri, self.querystring, self.body = "", query, None
        self.data, self.uri_match, self.response_headers = {}, {}, {}

    def parse_key_name(self) -> str:
        """The object's name."""
        return self._name

    def _get_querystring(self, request: Any, full_url: str) -> dict[str, Any]:
        return self.querystring

    def listed(self) -> Answer | None:
        """A list, which has no head of its own."""
        return self._answer(*self.list_objects_v2()) if self.method == "GET" else None

    def object(self) -> Answer | None:
        """An object or its head, whole or in part."""
        if self.method == "HEAD":
            status, headers, body = self.head_object(self.bucket_name, self.querystring, self._name, self.headers)
        else:
            status, headers, body = self.get_object()
        if status == HTTPStatus.OK and self.headers.get("range"):
            status, headers, body = self._handle_range_header(self, headers, body)
        return self._answer(status, headers, body) if status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT) else None

    def _answer(self, status: int, headers: dict[str, Any], body: str | bytes) -> Answer:
        content = body.encode() if isinstance(body, str) else body
        told = {name.lower(): str(value) for name, value in headers.items()}
        if self.method != "HEAD":
            told["content-length"] = str(len(content))
        return f"{status} {HTTPStatus(status).phrase}", list(told.items()), content

"""What an object store says when it does not do what it is asked, and which error of the platform that is."""

from __future__ import annotations

import re

from cdc_platform.blotting import without_passwords
from cdc_platform.errors import NotLetIn, Unavailable, is_full_store, no_space, one_line

# deltalake draws a tree of causes, in colours.
_DRAWN = re.compile(r"\x1b\[[0-9;]*m|↳")
_STATUS = re.compile(r"status code:? (\d{3} [A-Z][A-Za-z ]*)")
# What a store may say another time: of a file that is not there, or shorter than it was, it tells no such thing.
_PASSING = re.compile(r"40[1378]|429|5\d\d")
_SKEWED = "RequestTimeTooSkewed"
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound")
# The same, of a bucket whose region is another one: of a redirect, and of a signature for that region.
_ELSEWHERE = re.compile(r"incorrectly configured region|PermanentRedirect|AuthorizationHeaderMalformed")
_REGION = re.compile(r"expecting '([a-z0-9-]+)'|<Region>([a-z0-9-]+)</Region>")
# What obstore says of an address without TLS that it has not been told to use.
_WITHOUT_TLS = re.compile(r" http://\S+ in \S+ - HTTP error: builder error")
# Who has no credentials asks the machine's own service for some, at this address.
_NOT_LET_IN = re.compile(
    r"status code:? 40[13]\b|credential|ExpiredToken|InvalidAccessKeyId|//169\.254\.169\.254/", flags=re.IGNORECASE
)


def unavailable(text: str, place: str = "the store") -> Unavailable | None:
    """What is told of an answer: what was asked is in it, what it was asked with is not.

    None where it is none, or one about a file, which may be damaged.
    """
    text = in_one_line(text)
    if is_full_store(text):
        return no_space(place)
    if _SKEWED in text:
        return NotLetIn(f"{place} says that this machine's clock is wrong ({_SKEWED}); set it by NTP, and run it again")
    if _NO_BUCKET.search(text):
        return Unavailable(f"{place} does not exist (404 Not Found); make the bucket, or name another one")
    if _ELSEWHERE.search(text):
        region = _REGION.search(text)
        where = f", {region[1] or region[2]}" if region else ""
        return Unavailable(f"{place} lies in another region{where}; set AWS_REGION to that of the bucket")
    status = _STATUS.search(text)
    if (status is not None and _PASSING.match(status[1])) or _NOT_LET_IN.search(text):
        return unanswered(text, place)
    return None


def unanswered(text: str, place: str) -> Unavailable:
    """What is told of an answer that says nothing else: its status, or its first words."""
    text = in_one_line(text)
    if _WITHOUT_TLS.search(text):
        return Unavailable(
            f"{place} is not asked without TLS; name an endpoint of https://, or, where nobody listens in, as on "
            "loopback, set AWS_ALLOW_HTTP=true"
        )
    status = _STATUS.search(text)
    said = status[1].strip() if status else text[:200]
    kind = NotLetIn if _NOT_LET_IN.search(text) else Unavailable
    return kind(
        f"{place} does not answer as a store does ({said}); check that the bucket is there, the endpoint and the "
        "credentials in the environment, and run it again"
    )


def in_one_line(text: str) -> str:
    """A foreign message without decoration, backtraces, line breaks and passwords of addresses."""
    return without_passwords(one_line(_DRAWN.sub("", text)))

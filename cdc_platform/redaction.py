"""Redact secrets from texts and JSON documents that leave the machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

REDACTED = "***"
# Before a container of Azure's (abfss://container@account) there is no colon.
_PASSWORD = r"(?<=://)[^/\s@:]*:[^/\s@]*(?=@)"
_PASSWORDS = re.compile(_PASSWORD)
_SECRET_WORD = (
    r"(?:token|passw(?:or)?d|passphrase|\bpwd|secret|cookie|authorization|credential|signature"
    r"|(?:api|access|account|private|shared)[_-]?key(?:[_-]?id)?)"
)
_QUOTED = r"\"(?:[^\"\\\n]|\\.)*+\"|'(?:[^'\\\n]|\\.)*+'"
# What is behind such a word, as a setting or an option; the user in a URL; a private key; long runs of what only tokens
# are made of.
_SECRETS = re.compile(
    rf"(?is)(?P<word>{_SECRET_WORD}\w*[\"']?\s*[=:]\s*(?:bearer\s+|basic\s+)?)(?:(?P<quoted>{_QUOTED})|(?P<open>[\"'])[^\n]+|[^\s\"'&,;]+)"
    rf"|(?P<option>(?<![\w-])--?[\w-]*{_SECRET_WORD}[\w-]*\s+)(?:{_QUOTED}|[^\s\"']+)"
    rf"|{_PASSWORD}|(?<=://)[^/\s@]+(?=@)|(?P<bearer>\bbearer\s+)\S+"
    r"|(?P<key>-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
_END_OF_KEY = re.compile(r"-----(?P<which>BEGIN|END) [A-Z ]*PRIVATE KEY-----")
_SECRET_NAME = re.compile(rf"(?i){_SECRET_WORD}")
_NUMBER = re.compile(r"-?\d+")
_MIN_SUBSTRING_LENGTH = 8
"""Characters of a secret that is found within words too; a shorter one would be found in many."""


def redact_secrets(text: str) -> str:
    """A text of any kind without secrets, and without users of addresses."""
    first = _END_OF_KEY.search(text)
    if first is not None and first["which"] == "END":  # the text begins within a key
        text = f"{REDACTED}{text[first.end() :]}"
    return _SECRETS.sub(_replacement, text)


def redact_url_passwords(text: str) -> str:
    """A message without the users and passwords of addresses: of rows and names, which it tells, all is left."""
    return _PASSWORDS.sub(REDACTED, text)


class Redactor:
    """Blots secrets out of texts and documents: those that are announced, and some that are known by their values."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {form for secret in secrets if secret.strip() for form in _spellings(secret)}
        patterns = [_pattern(secret) for secret in sorted(known, key=len, reverse=True)]
        self._known = re.compile("|".join(patterns)) if patterns else None

    def text(self, text: str) -> str:
        """Return a text without them."""
        return redact_secrets(text if self._known is None else self._known.sub(REDACTED, text))

    def document(self, document: Any) -> Any:
        """Return plain values, as JSON has them, without secrets: what a field is called announces one as well."""
        if isinstance(document, dict):
            return {
                self.text(name): REDACTED if _is_secret_field(name, value) else self.document(value)
                for name, value in document.items()
            }
        if isinstance(document, list):
            return [self.document(value) for value in document]
        return self.text(document) if isinstance(document, str) else document


def is_secret_name(name: str) -> bool:
    """Whether what a variable or a field is called announces a secret."""
    return bool(_SECRET_NAME.search(name))


def _is_secret_field(name: str, value: object) -> bool:
    """Whether a field holds a secret; a number, as a token of the ring, is none."""
    return isinstance(value, str) and bool(value) and is_secret_name(name) and not _NUMBER.fullmatch(value)


def _replacement(found: re.Match[str]) -> str:
    before = found["word"] or found["option"] or found["bearer"] or ""
    mark = found["quoted"][0] if found["quoted"] else ""
    return f"{before}{found['open'] or mark}{REDACTED}{mark}"


def _spellings(secret: str) -> set[str]:
    """A secret as texts may have it: as it is, without blanks around, in JSON, in an address."""
    forms = {secret, secret.strip(), json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    return forms | {quote(secret, safe=""), quote(secret)}


def _pattern(secret: str) -> str:
    return re.escape(secret) if len(secret) >= _MIN_SUBSTRING_LENGTH else rf"(?<!\w){re.escape(secret)}(?!\w)"

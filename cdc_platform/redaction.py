"""Redact secrets from texts and JSON documents that leave the machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

REDACTED = "***"
# A container of Azure (abfss://container@account) has no colon before it.
_PASSWORD = r"(?<=://)[^/\s@:]*:[^/\s@]*(?=@)"
_PASSWORDS = re.compile(_PASSWORD)
_SECRET_WORD = (
    r"(?:token|passw(?:or)?d|passphrase|\bpwd|secret|cookie|authorization|credential|signature"
    r"|(?:api|access|account|private|shared)[_-]?key(?:[_-]?id)?)"
)
_QUOTED = r"\"(?:[^\"\\\n]|\\.)*+\"|'(?:[^'\\\n]|\\.)*+'"
# Covers the value after such a word, as a setting or an option; the user in a URL; a private key; and bearer tokens.
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
"""The shortest secret, in characters, that is also redacted within words. A shorter one would match in too many."""


def redact_secrets(text: str) -> str:
    """Return a text without secrets, and without the users in addresses."""
    first = _END_OF_KEY.search(text)
    if first is not None and first["which"] == "END":  # the text begins within a key
        text = f"{REDACTED}{text[first.end() :]}"
    return _SECRETS.sub(_replacement, text)


def redact_url_passwords(text: str) -> str:
    """Return a message without the users and passwords in addresses. Rows and names in it stay."""
    return _PASSWORDS.sub(REDACTED, text)


class Redactor:
    """Redacts secrets in texts and documents: those that a name announces, and the given ones by their values."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {form for secret in secrets if secret.strip() for form in _spellings(secret)}
        patterns = [_pattern(secret) for secret in sorted(known, key=len, reverse=True)]
        self._known = re.compile("|".join(patterns)) if patterns else None

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        return redact_secrets(text if self._known is None else self._known.sub(REDACTED, text))

    def document(self, document: Any) -> Any:
        """Return a JSON document without secrets. The name of a field can also mark its value as a secret."""
        if isinstance(document, dict):
            return {
                self.text(name): REDACTED if _is_secret_field(name, value) else self.document(value)
                for name, value in document.items()
            }
        if isinstance(document, list):
            return [self.document(value) for value in document]
        return self.text(document) if isinstance(document, str) else document


def is_secret_name(name: str) -> bool:
    """Return True if the name of a variable or field indicates a secret."""
    return bool(_SECRET_NAME.search(name))


def _is_secret_field(name: str, value: object) -> bool:
    """Return True if a field holds a secret. A number, such as a token of the ring, is not a secret."""
    return isinstance(value, str) and bool(value) and is_secret_name(name) and not _NUMBER.fullmatch(value)


def _replacement(found: re.Match[str]) -> str:
    before = found["word"] or found["option"] or found["bearer"] or ""
    mark = found["quoted"][0] if found["quoted"] else ""
    return f"{before}{found['open'] or mark}{REDACTED}{mark}"


def _spellings(secret: str) -> set[str]:
    """Return the forms in which a text may contain a secret: as it is, stripped, in JSON and URL-encoded."""
    forms = {secret, secret.strip(), json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    return forms | {quote(secret, safe=""), quote(secret)}


def _pattern(secret: str) -> str:
    return re.escape(secret) if len(secret) >= _MIN_SUBSTRING_LENGTH else rf"(?<!\w){re.escape(secret)}(?!\w)"

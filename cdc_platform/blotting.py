"""What is blotted out of texts that others get to see: what stands behind a word that announces a secret."""

from __future__ import annotations

import re

# Before a container of Azure's (abfss://container@account) there is no colon.
_PASSWORD = r"(?<=://)[^/\s@:]*:[^/\s@]*(?=@)"
_PASSWORDS = re.compile(_PASSWORD)
# What is behind such a word, the user in a URL, and long runs of what only tokens are made of.
_SECRETS = re.compile(
    r"(?i)((?:token|passw(?:or)?d|passphrase|secret|cookie|authorization|api[_-]?key)\w*[\"']?\s*[=:]\s*(?:bearer\s+)?[\"']?)"
    rf"[^\s\"'&,;]+|{_PASSWORD}|(?<=://)[^/\s@]+(?=@)|(\bbearer\s+)\S+"
)
_BLOT = "***"


def blotted(text: str) -> str:
    """A text of any kind without secrets, and without users of addresses."""
    return _SECRETS.sub(lambda found: f"{found[1] or found[2] or ''}{_BLOT}", text)


def without_passwords(text: str) -> str:
    """A message without the users and passwords of addresses: of rows and names, which it tells, all is left."""
    return _PASSWORDS.sub(_BLOT, text)

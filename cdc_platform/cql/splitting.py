"""Where the statements of a script begin and end, before anything of them is understood.

Semicolons inside of texts, quoted names, comments and batches end none; cqlsh's own commands end with their line. It
takes linear time whatever the text is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from cdc_platform.cql.kinds import LINES

_PART = re.compile(
    r"""(?P<blank>\s+|--[^\n\r]*|//[^\n\r]*|/\*.*?\*/)
       |(?P<open>/\*.*)
       |(?P<quoted>'[^']*'?|"[^"]*"?|\$\$(?:.*?\$\$|.*\Z))
       |(?P<end>;)
       |(?P<word>\w+)
       |(?P<other>[^\s\w;'"$/-]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_SIMPLE = re.compile(
    r"""\s*+(?P<statement>(?:INSERT|UPDATE|DELETE)\b
        (?>[^;'"$/-]++|'[^']*+'|"[^"]*+"|-(?!-)|/(?![/*])|\$(?!\$))*+;)""",
    re.VERBOSE | re.IGNORECASE,
)
"""A write without comments: most statements of most scripts, found by one match."""
_REST_OF_LINE = re.compile(r"""(?:'[^'\n\r]*+'|"[^"\n\r]*+"|[^;\n\r])*+;?""")


class Piece(NamedTuple):
    """One statement of a script: where it begins, its text from there on, and with the semicolon if it has one.

    `line` and `column`, from 1, are those of its first character.
    """

    start: int
    text: str
    line: int
    column: int


def pieces(text: str) -> Iterator[Piece]:
    """The statements of a script in order; what is between them, and empty ones, is left out."""
    line, line_start, counted = 1, 0, 0
    for start, end in _spans(text):
        line += text.count("\n", counted, start)
        line_start = max(line_start, text.rfind("\n", counted, start) + 1)
        counted = start
        yield Piece(start, text[start:end], line, start - line_start + 1)


def _spans(text: str) -> Iterator[tuple[int, int]]:
    at, start = 0, None
    words: list[str] = []
    while at < len(text):
        simple = _SIMPLE.match(text, at) if start is None else None
        if simple is not None:
            at = simple.end()
            yield simple.span("statement")
            continue
        match = _PART.match(text, at)
        assert match is not None
        kind, at = match.lastgroup, match.end()
        if kind == "blank":
            continue
        if start is None:
            if kind == "end":
                continue
            start, words = match.start(), []
        if kind == "word":
            word = match[0].upper()
            if not words and word in LINES:
                rest = _REST_OF_LINE.match(text, at)
                assert rest is not None
                at = rest.end()
                yield start, at
                start = None
                continue
            _note(words, word)
        elif kind == "end" and words[-1:] != ["..."]:
            yield start, at
            start = None
    if start is not None:
        yield start, len(text)


def _note(words: list[str], word: str) -> None:
    """Keep of the words of a statement what tells whether it is inside of a batch: then the last one is `...`."""
    if words[-1:] == ["..."]:
        if word == "BATCH" and words[-2] == "APPLY":
            words[:] = ["APPLIED"]
        else:
            words[-2] = word
    elif word == "BATCH" and words[:1] == ["BEGIN"] and len(words) < 3:
        words[:] = ["BEGIN", "BATCH", "..."]
    elif len(words) < 3:
        words.append(word)

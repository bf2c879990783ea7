"""Whether a page is what it was, and whether the home still is, or was, what the page says: a line for each question.

What cannot be told is said to be unknown; that is no yes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from cdc_platform.clock import Clock, parse_time_us
from cdc_platform.errors import InputError, NotFound, PlatformError
from cdc_platform.lake import provenance
from cdc_platform.lake.chain import Answer, Chain, compared
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import TABLES, Table
from cdc_platform.report.page import form, page, record_of
from cdc_platform.report.record import Home, Record, gathered
from cdc_platform.report.seal import Sealed, is_signed_by, opened
from cdc_platform.report.writes import told_of, writes_of
from cdc_platform.settings import Settings
from cdc_platform.timeline.keys import Keys
from cdc_platform.timeline.parts import Names, names_of

_LASTING = ("id", "time", "event", "ring", "change")
"""What is told of a generation that nothing which comes later changes."""


@dataclass(frozen=True)
class Line:
    """A question that was asked of a page, the answer, and what was found."""

    asked: str
    answer: Answer
    said: str


def verified(lake: Lake, settings: Settings, text: str, key: str | None = None) -> list[Line]:
    """Hold a page against its seal, against a public key (Base64), and against the home that it tells of.

    Raises:
        InputError: it is no page.
        StoreFailure: a log cannot be read.
    """
    sealed = opened(text)
    record = record_of(sealed.body)
    try:
        trusted = key is not None and is_signed_by(sealed, key)
        about_page = [
            _seal(sealed),
            *_signature(sealed, record, key),
            *_form(sealed, record, trusted=trusted),
        ]
        return [*about_page, *_home(lake, settings, record)]
    except InputError:
        raise
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, ArithmeticError, TemplateError) as error:
        raise InputError(f"its record is not one of a page ({type(error).__name__}: {error}); it was altered") from None


def _seal(sealed: Sealed) -> Line:
    if sealed.holds:
        return Line("seal", Answer.HOLDS, "no byte of the page was altered since it was sealed")
    said = (
        "the page was altered: its SHA-256 is not that of the seal"
        if sealed.is_whole
        else "the seal itself was altered"
    )
    return Line("seal", Answer.DIFFERS, said)


def _signature(sealed: Sealed, record: Record, key: str | None) -> Iterator[Line]:
    named = record["key"]
    if not sealed.signature and not named:
        if key is not None:
            yield Line("signature", Answer.DIFFERS, "the page is not signed")
        return
    if key is not None and is_signed_by(sealed, key):
        yield Line("signature", Answer.HOLDS, "it is that of the key")
    elif key is not None:
        yield Line(
            "signature", Answer.DIFFERS, f"it is not that of the key; the page names the key {named or 'of nobody'}"
        )
    elif is_signed_by(sealed, named or ""):
        yield Line("signature", Answer.HOLDS, f"it is that of the key that the page names, {named}; --key says whose")
    else:
        yield Line("signature", Answer.DIFFERS, "it is not that of the key that the page names")


def _form(sealed: Sealed, record: Record, *, trusted: bool) -> Iterator[Line]:
    """Whether what is to be seen is what its record says: the page is made again of it."""
    if record["form"] != form():
        if not trusted:
            said = f"cdc-platform {record['program']} made it in another form: nobody looked at more than its record"
            yield Line("page", Answer.UNKNOWN, said)
        return
    same = page(record) == sealed.body
    said = "it is what its record says, byte for byte" if same else "what is to be seen is not what its record says"
    yield Line("page", Answer.HOLDS if same else Answer.DIFFERS, said)


def _home(lake: Lake, settings: Settings, record: Record) -> Iterator[Line]:
    last: dict[str, int] = {}
    for said in record["tables"]:
        kept = Chain(int(said["first"]), int(said["last"]), {int(version): link for version, link in said["links"]})
        if not 0 <= kept.first <= kept.last or kept.last not in kept.links:
            raise InputError(f"its record has no chain of {said['table']}; it was altered")
        last[said["table"]] = kept.last
        found = compared(lake, _table(said["table"]), kept)
        yield Line(f"commits of {said['table']}", found.answer, found.said)
    home = Home(lake, Clock(parse_time_us(record["made_at"])), settings)
    keys = Keys.read(lake)
    for told in record["generations"]:
        yield from _generation(home, keys, told, last)


def _generation(home: Home, keys: Keys, told: Mapping[str, Any], last: Mapping[str, int]) -> Iterator[Line]:
    about = f"generation {told['key']}"
    try:
        names = names_of(home.lake, keys, keys.generation(told["key"]) if told["id"] is None else told["id"])
    except PlatformError as error:
        yield Line(about, Answer.UNKNOWN if isinstance(error, NotFound) else Answer.DIFFERS, str(error))
        return
    lines = [_rows(home.lake, names, part, last) for part in told["parts"]]
    yield from lines
    yield _history(home.lake, names, told, last)
    now = json.loads(json.dumps(gathered(home, [names])["generations"][0]))
    other = [name for name in _LASTING if now[name] != told[name]]
    if other:
        gone = any(line.answer is not Answer.HOLDS for line in lines)
        said = f"{', '.join(other)}: cannot be told again as it stands on the page"
        yield Line(about, Answer.UNKNOWN if gone else Answer.DIFFERS, said)
        return
    yield _judged(about, now, told, all(line.answer is Answer.HOLDS for line in lines))


def _judged(about: str, now: Mapping[str, Any], told: Mapping[str, Any], same_rows: bool) -> Line:
    """What was judged, judged again; of other rows it may well be judged otherwise."""
    results = [[(line["invariant"], line["passed"]) for line in each["invariants"]] for each in (now, told)]
    if results[0] == results[1]:
        return Line(about, Answer.HOLDS, "ring, change and invariants come out the same again")
    answer = Answer.DIFFERS if same_rows else Answer.NEWER
    other = [name for name, passed in results[1] if (name, passed) not in results[0]] or ["none that the page has"]
    return Line(about, answer, f"judged again, other invariants hold: {', '.join(other)}")


def _rows(lake: Lake, names: Names, said: Mapping[str, Any], last: Mapping[str, int]) -> Line:
    """Whether a generation's rows in a table are what they were; if not, whether a later commit has made them so."""
    about = f"rows of {names.key} in {said['table']}"
    part = next((each for each in names.parts() if each.table.full_name == said["table"]), None)
    held = None if part is None else provenance.held(lake, part.table, part.where)
    digest = None if held is None else f"{held:032x}"
    if digest == said["digest"]:
        return Line(about, Answer.HOLDS, "their digest is the same" if digest else "there are none, as then")
    change = None if part is None else next(provenance.changes(lake, part.table, part.where), None)
    if change is None or change.commit.version <= last.get(said["table"], -1):
        return Line(about, Answer.DIFFERS, "they are not what they were, and no commit since has changed them")
    version, by = change.commit.version, change.commit.envelope
    if by is None:
        said_by = f"version {version} has changed them, which {change.commit.engine} made and not the platform"
        return Line(about, Answer.DIFFERS, said_by)
    return Line(about, Answer.NEWER, f"version {version} has changed them since, by {by.user}")


def _history(lake: Lake, names: Names, told: Mapping[str, Any], last: Mapping[str, int]) -> Line:
    """Whether the writes on the page are those that the logs tell of, up to the versions that the page knew."""
    about = f"history of {names.key}"
    now = [line for line in writes_of(lake, names) if line["version"] <= last.get(line["table"], -1)]
    left_out = [line for line in now if line not in told["writes"]]
    if left_out:
        return Line(about, Answer.DIFFERS, f"{_named(left_out[0])} is otherwise on the page, or left out")
    rest = [line for line in told["writes"] if line not in now]
    unknown = None
    for line in rest:
        commit = next((each for each in lake.envelopes(_table(line["table"])) if each.version == line["version"]), None)
        if commit is None:
            unknown = unknown or line
        elif told_of(_table(line["table"]), commit, None, 0) | _of_rows(line) != line:
            return Line(about, Answer.DIFFERS, f"{_named(line)} is not the commit that the page tells of")
    if unknown is not None:
        return Line(about, Answer.UNKNOWN, f"{_named(unknown)} is in the log no more")
    return Line(about, Answer.HOLDS, f"its {len(told['writes'])} writes are as they stand on the page")


def _of_rows(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: line[name] for name in ("rows", "what", "digest")}


def _named(line: Mapping[str, Any]) -> str:
    return f"version {line['version']} of {line['table']}"


def _table(name: str) -> Table:
    if name not in TABLES:
        raise InputError(f"its record tells of a table {name!r}, which generations do not have; it was altered")
    return TABLES[name]

"""Verification of a report page against its seal, a public key and the home, one result per check.

A check that cannot be decided is reported as unknown, which does not count as success.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from cdc_platform.clock import Clock, parse_time_us
from cdc_platform.delta import ChainStatus, HashChain, Lake, compare_hash_chain, provenance
from cdc_platform.errors import InputError, NotFound, PlatformError
from cdc_platform.reporting.page import parse_record, render_page, template_digest
from cdc_platform.reporting.record import (
    ReportRecord,
    ReportSource,
    commit_facts,
    gather_record,
    read_generation_writes,
)
from cdc_platform.reporting.seal import SealedPage, is_signed_by, parse_sealed_page
from cdc_platform.settings import Settings
from cdc_platform.tables import TABLES, Table
from cdc_platform.timeline import GenerationKeys, GenerationNames, get_generation_names

_LASTING_FIELDS = ("id", "time", "event", "ring", "change")
"""The fields of a generation that no later change of the home affects."""


@dataclass(frozen=True)
class PageCheck:
    """One check of a page: its name, its result, and the detail."""

    check: str
    result: ChainStatus
    detail: str


def verify_page(lake: Lake, settings: Settings, text: str, key: str | None = None) -> list[PageCheck]:
    """Check a page against its seal, against a public key (Base64), and against the home that it describes.

    Raises:
        InputError: the text is not a report page.
        StoreFailure: a log cannot be read.
    """
    sealed = parse_sealed_page(text)
    record = parse_record(sealed.body)
    try:
        trusted = key is not None and is_signed_by(sealed, key)
        about_page = [
            _check_seal(sealed),
            *_check_signature(sealed, record, key),
            *_check_template(sealed, record, trusted=trusted),
        ]
        return [*about_page, *_check_home(lake, settings, record)]
    except InputError:
        raise
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, ArithmeticError, TemplateError) as error:
        raise InputError(f"its record is not one of a page ({type(error).__name__}: {error}); it was altered") from None


def _check_seal(sealed: SealedPage) -> PageCheck:
    if sealed.holds:
        return PageCheck("seal", ChainStatus.HOLDS, "no byte of the page was altered since it was sealed")
    message = (
        "the page was altered: its SHA-256 is not that of the seal"
        if sealed.is_whole
        else "the seal itself was altered"
    )
    return PageCheck("seal", ChainStatus.DIFFERS, message)


def _check_signature(sealed: SealedPage, record: ReportRecord, key: str | None) -> Iterator[PageCheck]:
    named = record["key"]
    if not sealed.signature and not named:
        if key is not None:
            yield PageCheck("signature", ChainStatus.DIFFERS, "the page is not signed")
        return
    if key is not None and is_signed_by(sealed, key):
        yield PageCheck("signature", ChainStatus.HOLDS, "it is that of the key")
    elif key is not None:
        yield PageCheck(
            "signature",
            ChainStatus.DIFFERS,
            f"it is not that of the key; the page names the key {named or 'none'}",
        )
    elif is_signed_by(sealed, named or ""):
        yield PageCheck(
            "signature", ChainStatus.HOLDS, f"it is that of the key that the page names, {named}; --key says whose"
        )
    else:
        yield PageCheck("signature", ChainStatus.DIFFERS, "it is not that of the key that the page names")


def _check_template(sealed: SealedPage, record: ReportRecord, *, trusted: bool) -> Iterator[PageCheck]:
    """Render the page again from its record and compare: the visible page must match the record."""
    if record["form"] != template_digest():
        if not trusted:
            message = f"cdc-platform {record['program']} rendered it with another template: only its record was checked"
            yield PageCheck("page", ChainStatus.UNKNOWN, message)
        return
    same = render_page(record) == sealed.body
    message = "it matches its record, byte for byte" if same else "it does not match its record"
    yield PageCheck("page", ChainStatus.HOLDS if same else ChainStatus.DIFFERS, message)


def _check_home(lake: Lake, settings: Settings, record: ReportRecord) -> Iterator[PageCheck]:
    last: dict[str, int] = {}
    for table_record in record["tables"]:
        chain = HashChain(
            int(table_record["first"]),
            int(table_record["last"]),
            {int(version): link for version, link in table_record["links"]},
        )
        if not 0 <= chain.first <= chain.last or chain.last not in chain.links:
            raise InputError(f"its record has no chain of {table_record['table']}; it was altered")
        last[table_record["table"]] = chain.last
        comparison = compare_hash_chain(lake, _find_table(table_record["table"]), chain)
        yield PageCheck(f"commits of {table_record['table']}", comparison.answer, comparison.message)
    home = ReportSource(lake, Clock(parse_time_us(record["made_at"])), settings)
    keys = GenerationKeys.read(lake)
    for generation in record["generations"]:
        yield from _check_generation(home, keys, generation, last)


def _check_generation(
    home: ReportSource, keys: GenerationKeys, recorded: Mapping[str, Any], last: Mapping[str, int]
) -> Iterator[PageCheck]:
    about = f"generation {recorded['key']}"
    try:
        names = get_generation_names(
            home.lake, keys, keys.generation(recorded["key"]) if recorded["id"] is None else recorded["id"]
        )
    except PlatformError as error:
        yield PageCheck(about, ChainStatus.UNKNOWN if isinstance(error, NotFound) else ChainStatus.DIFFERS, str(error))
        return
    lines = [_check_rows(home.lake, names, part, last) for part in recorded["parts"]]
    yield from lines
    yield _check_history(home.lake, names, recorded, last)
    now = json.loads(json.dumps(gather_record(home, [names])["generations"][0]))
    other = [name for name in _LASTING_FIELDS if now[name] != recorded[name]]
    if other:
        gone = any(line.result is not ChainStatus.HOLDS for line in lines)
        message = f"{', '.join(other)}: cannot be reproduced as it is on the page"
        yield PageCheck(about, ChainStatus.UNKNOWN if gone else ChainStatus.DIFFERS, message)
        return
    yield _check_results(about, now, recorded, all(line.result is ChainStatus.HOLDS for line in lines))


def _check_results(about: str, now: Mapping[str, Any], recorded: Mapping[str, Any], same_rows: bool) -> PageCheck:
    """Compare the invariants now with those on the page; if rows have changed, they may well differ."""
    results = [
        [(line["invariant"], line["passed"]) for line in generation["invariants"]] for generation in (now, recorded)
    ]
    if results[0] == results[1]:
        return PageCheck(about, ChainStatus.HOLDS, "ring, change and invariants are reproduced")
    answer = ChainStatus.DIFFERS if same_rows else ChainStatus.NEWER
    other = [name for name, passed in results[1] if (name, passed) not in results[0]] or ["none that the page has"]
    return PageCheck(about, answer, f"other invariants hold now: {', '.join(other)}")


def _check_rows(
    lake: Lake, names: GenerationNames, part_record: Mapping[str, Any], last: Mapping[str, int]
) -> PageCheck:
    """Check that a generation's rows in a table are unchanged; if not, whether a later commit changed them."""
    about = f"rows of {names.key} in {part_record['table']}"
    part = next((candidate for candidate in names.parts() if candidate.table.full_name == part_record["table"]), None)
    digest_value = None if part is None else provenance.get_part_digest(lake, part.table, part.where)
    digest = None if digest_value is None else f"{digest_value:032x}"
    if digest == part_record["digest"]:
        return PageCheck(about, ChainStatus.HOLDS, "their digest is the same" if digest else "there are none, as then")
    change = None if part is None else next(provenance.iter_changes(lake, part.table, part.where), None)
    if change is None or change.commit.version <= last.get(part_record["table"], -1):
        return PageCheck(about, ChainStatus.DIFFERS, "they have changed without a later commit")
    version, by = change.commit.version, change.commit.info
    if by is None:
        message = f"version {version} has changed them, which {change.commit.engine} made and not the platform"
        return PageCheck(about, ChainStatus.DIFFERS, message)
    return PageCheck(about, ChainStatus.NEWER, f"version {version} changed them since, by {by.user}")


def _check_history(
    lake: Lake, names: GenerationNames, recorded: Mapping[str, Any], last: Mapping[str, int]
) -> PageCheck:
    """Check that the page's writes are those in the logs, up to the versions that the page knew."""
    about = f"history of {names.key}"
    now = [line for line in read_generation_writes(lake, names) if line["version"] <= last.get(line["table"], -1)]
    missing = [line for line in now if line not in recorded["writes"]]
    if missing:
        return PageCheck(
            about, ChainStatus.DIFFERS, f"{_version_text(missing[0])} differs on the page, or is missing there"
        )
    remaining = [line for line in recorded["writes"] if line not in now]
    unknown = None
    for line in remaining:
        commit = next(
            (
                candidate
                for candidate in lake.commits(_find_table(line["table"]))
                if candidate.version == line["version"]
            ),
            None,
        )
        if commit is None:
            unknown = unknown or line
        elif commit_facts(_find_table(line["table"]), commit, None, 0) | _row_facts(line) != line:
            return PageCheck(about, ChainStatus.DIFFERS, f"{_version_text(line)} is not the commit on the page")
    if unknown is not None:
        return PageCheck(about, ChainStatus.UNKNOWN, f"{_version_text(unknown)} is no longer in the log")
    return PageCheck(about, ChainStatus.HOLDS, f"its {len(recorded['writes'])} writes are as they stand on the page")


def _row_facts(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: line[name] for name in ("rows", "what", "digest")}


def _version_text(line: Mapping[str, Any]) -> str:
    return f"version {line['version']} of {line['table']}"


def _find_table(name: str) -> Table:
    if name not in TABLES:
        raise InputError(f"its record names a table {name!r}, which generations do not have; it was altered")
    return TABLES[name]

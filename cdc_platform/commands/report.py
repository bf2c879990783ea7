"""`cdc-platform report`: what is known of a generation as a page for an auditor, and whether such a page holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdc_platform import drafts
from cdc_platform.clock import format_us
from cdc_platform.commands.arguments import TIME
from cdc_platform.commands.history import named_once
from cdc_platform.commands.next_steps import following, write_result
from cdc_platform.commands.output import json_option, write_facts, write_json, write_table
from cdc_platform.commands.session import Session, pass_session
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    from cdc_platform.report.record import Home
    from cdc_platform.timeline.parts import Names

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("generation", metavar="[GENERATION | FROM TO]", nargs=-1)
@click.option("--html", "file", type=_FILE, help="Write the page into this file, which must not be there yet.")
@click.option("--sign", "key_file", type=_FILE, help="Sign it with the Ed25519 key in this file (OpenSSL or OpenSSH).")
@click.option("--verify", "page", type=_FILE, help="Hold this page against its seal and against the home.")
@click.option("--key", "public_file", type=_FILE, help="With --verify: the public key that has to have signed it.")
@json_option
@pass_session
@click.pass_context
def report(
    ctx: click.Context,
    session: Session,
    generation: tuple[str, ...],
    file: Path | None,
    key_file: Path | None,
    page: Path | None,
    public_file: Path | None,
    as_json: bool,
) -> None:
    """Write a page for an auditor, about GENERATION or all that operate between the times FROM and TO.

    It is one file that opens anywhere: ring, timeline, which writes were accepted until when, every invariant, who
    wrote what in which commit, and digests by which --verify can tell later whether page or history was changed.

    --verify answers a line a question: holds, newer (it was so, the home has gone on), unknown (what it takes to tell
    is gone) or differs. The exit code is 1 where anything differs or is unknown.

    \b
    Example:
      cdc-platform report latest --html generation.html
      cdc-platform report 2026-01-01T00:00:00Z 2026-02-01T00:00:00Z --html january.html --sign auditor.pem
      cdc-platform report --verify january.html --key auditor.pub
    """
    if page is not None:
        if generation or file is not None or key_file is not None:
            raise click.UsageError("--verify FILE stands alone, or with --key")
        ctx.exit(_verify(session, page, public_file, as_json))
    if file is None or not 1 <= len(generation) <= 2 or public_file is not None:
        raise click.UsageError("write GENERATION, or FROM and TO, and --html FILE; or --verify FILE")
    _make(session, generation, file, key_file, as_json)


def _make(session: Session, asked: tuple[str, ...], file: Path, key_file: Path | None, as_json: bool) -> None:
    from cdc_platform.report.making import make
    from cdc_platform.report.record import Home
    from cdc_platform.report.seal import private_key

    key = None if key_file is None else private_key(key_file)
    opened = session.open_home()
    with drafts.new_file(file, home=opened.path) as draft:
        home = Home(session.lake(), session.clock, opened.settings)
        names, times = _asked(session, home, asked)
        record, page = make(home, names, asked=times, key=key)
        size = draft.write_bytes(page.encode())
    broken = [line["invariant"] for each in record["generations"] for line in each["invariants"] if not line["passed"]]
    told: dict[str, Any] = {
        "file": str(file),
        "bytes": size,
        "generations": [each["key"] for each in record["generations"]],
        "broken": list(dict.fromkeys(broken)),
        "key": record["key"],
    }
    left = [following("report", "--verify", file, why="whether it still holds, at any time")]
    facts = [(name, value) for name, value in told.items() if value]
    write_result(told, lambda: write_facts(facts), left, as_json=as_json)


def _asked(session: Session, home: Home, asked: tuple[str, ...]) -> tuple[list[Names], tuple[str, str] | None]:
    from cdc_platform.report.record import between
    from cdc_platform.timeline.keys import Keys
    from cdc_platform.timeline.parts import names_of

    if len(asked) == 2:
        begin, end = TIME.read(asked[0]), TIME.read(asked[1])
        return between(home, begin, end), (format_us(begin), format_us(end))
    keys = Keys.read(home.lake)
    return [names_of(home.lake, keys, named_once(session, keys, asked[0]))], None


def _verify(session: Session, page: Path, public_file: Path | None, as_json: bool) -> int:
    """Print what was found; the exit code."""
    from cdc_platform.lake.chain import Answer
    from cdc_platform.report.seal import public_key
    from cdc_platform.report.verified import verified
    from cdc_platform.user_files import read_bytes

    key = None if public_file is None else public_key(public_file)
    try:
        text = read_bytes(page).decode()
    except UnicodeDecodeError:
        raise InputError(f"{page} is no page of cdc-platform report: it is no text") from None
    home = session.open_home()
    try:
        lines = verified(session.lake(), home.settings, text, key)
    except InputError as error:
        raise InputError(f"{page}: {error}") from None
    if as_json:
        write_json([{"asked": line.asked, "answer": str(line.answer), "said": line.said} for line in lines])
    else:
        write_table(
            str(page), ("asked", "answer", "found"), [(line.asked, str(line.answer), line.said) for line in lines]
        )
    return int(any(line.answer in (Answer.DIFFERS, Answer.UNKNOWN) for line in lines))

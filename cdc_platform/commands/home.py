"""`cdc-platform home`: homes as a whole; one from a place to another."""

from __future__ import annotations

import json

import click

from cdc_platform.commands.next_steps import following, write_result
from cdc_platform.commands.output import json_option, warn, write_facts
from cdc_platform.commands.session import Session, pass_session
from cdc_platform.errors import InputError, StateError


@click.group()
def home() -> None:
    """Homes as a whole, in folders and in object stores.

    \b
    Example:
      cdc-platform home copy .cdc-platform s3://bucket/team/home
    """


@home.command("copy")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@json_option
@pass_session
def copy(session: Session, source: str, target: str, as_json: bool) -> None:
    """Copy the home FROM to a new one at TO: settings, and all tables at one set of versions with their history.

    Each is a folder or an address as s3://bucket/prefix. What lies there in the end is compared with the digests that
    the commits carry. Interrupted, the same command goes on, with the versions that it began with. Dagster's runs and
    what else is of one machine alone stays where it is.

    \b
    Example:
      cdc-platform home copy .cdc-platform s3://bucket/team/home
    """
    from cdc_platform.home import is_there, location, open_home
    from cdc_platform.lake import copying
    from cdc_platform.lake.lake import Lake

    del session
    begun = open_home(source, create=False)
    to = str(location(target))
    if to == begun.name:
        raise InputError(f"{to} is the home itself; name another place to copy it to")
    lake, there, note = Lake(begun.lake), Lake(f"{to}/lake"), copying.note_of(to)
    if note.seen() is not None:
        began = json.loads(note.read())
        if began["from"] != begun.name:
            raise StateError(
                f"{to} is a copy of {began['from']} that is not whole; finish that, or choose another place"
            )
        at = began["versions"]
    else:
        if is_there(to) and not _is_empty(to):
            raise StateError(f"{to} is there already; a home is copied to a place where nothing is")
        copying.assert_fit(there)
        at = copying.settled_versions(lake)
        copying.put(note, json.dumps({"from": begun.name, "versions": at}).encode())

    def tell(name: str) -> None:
        if not as_json:
            warn(f"copying {name}", code="progress")

    copied = copying.copy(lake, there, at, tell)
    copying.put_settings(begun.name, to)
    open_home(to)
    note.remove()
    facts = {"from": begun.name, "to": to, "tables": copied.tables, "files": copied.files, "found": copied.found}
    write_result(facts, lambda: write_facts(facts.items()), [following("status", home=to)], as_json=as_json)


def _is_empty(name: str) -> bool:
    from cdc_platform.places import place_of

    place = place_of(name)
    return not place.names() and not place.folders()

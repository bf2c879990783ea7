"""`cdc-platform home`: homes as a whole; one from a place to another, and the upkeep of its files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from cdc_platform.commands.next_steps import Next, following, write_result
from cdc_platform.commands.output import json_option, warn, write_facts, write_table
from cdc_platform.commands.session import Session, pass_session
from cdc_platform.errors import InputError, StateError

if TYPE_CHECKING:
    from cdc_platform.cluster.known import KnownCluster
    from cdc_platform.home import Home
    from cdc_platform.places import Place


@dataclass(frozen=True)
class _Part:
    """A home that is copied: its path below the copy (none of the home itself), where it is, its tables' versions."""

    path: str
    source: Place
    versions: dict[str, int]


@click.group()
def home() -> None:
    """Homes as a whole, in folders and in object stores.

    \b
    Example:
      cdc-platform home copy .cdc-platform s3://bucket/team/home
      cdc-platform home upkeep --dry-run
    """


@home.command("upkeep")
@click.option("--dry-run", is_flag=True, help="Say how many files would go; nothing is written.")
@json_option
@pass_session
@click.pass_context
def upkeep(ctx: click.Context, session: Session, dry_run: bool, as_json: bool) -> None:
    """Delete the files of all tables that nothing needs any more, seven days after they were of use, or were written.

    Those that a commit has removed, or put together with others, and those that no commit names, which writers leave
    who are killed or lose a race. The homes of live clusters below it are kept up as well. Dagster does the same every
    day. The exit code is 1 where a table could not be kept up.

    \b
    Example:
      cdc-platform home upkeep --dry-run
    """
    from cdc_platform.cluster import carried
    from cdc_platform.lake import housekeeping
    from cdc_platform.lake.lake import Lake
    from cdc_platform.places import place_of

    opened = session.open_home()
    work = housekeeping.unneeded if dry_run else housekeeping.clear
    below = {"": place_of(opened.name), **carried.homes(opened)}
    done = [(path or None, each) for path, place in below.items() for each in work(Lake(str(place / "lake")))]
    for _, each in done:
        if each.failed:
            warn(each.failed, code="not-kept-up")
    told = [{"home": path, **asdict(each)} for path, each in done]
    rows = [(path, each.table, each.files) for path, each in done if each.files]
    title = "Files that would go" if dry_run else "Files that went"
    left = [following("home", "upkeep")] if dry_run and rows else []
    write_result(told, lambda: write_table(title, ("home", "table", ">files"), rows), left, as_json=as_json)
    if any(each.failed for _, each in done):
        ctx.exit(1)


@home.command("copy")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@json_option
@pass_session
def copy(session: Session, source: str, target: str, as_json: bool) -> None:
    """Copy the home FROM to a new one at TO: settings, and all tables at one set of versions with their history.

    Each is a folder or an address as s3://bucket/prefix. The homes of live clusters below it go along. Every file is
    compared with what it was copied of, and the rows with the digests that the commits carry. Interrupted, the same
    command goes on, with the versions that it began with. Dagster's runs and what else is of one machine alone stays
    where it is, as does the way to a cluster that names variables or files.

    \b
    Example:
      cdc-platform home copy .cdc-platform s3://bucket/team/home
    """
    from cdc_platform.cluster import carried
    from cdc_platform.home import location, open_home
    from cdc_platform.lake import copying
    from cdc_platform.lake.lake import Lake

    del session
    begun = open_home(source, create=False)
    place = location(target)
    to = str(place)
    parts = _parts(begun, place)
    done = copying.Copied()
    for part in parts:
        at, tell = place / part.path, partial(_tell, part, as_json)
        done += copying.copy(Lake(str(part.source / "lake")), Lake(str(at / "lake")), part.versions, tell)
        copying.put_beside(part.source, at, carried.files_beside(part.path, at))
    for part in reversed(parts):  # the home itself is there when all is
        open_home(str(place / part.path))
    stay = carried.bring_ways(begun, to)
    for each in carried.left(begun, [part.source for part in parts]):
        warn(f"{each} stays on this machine: a home of its name lies in the store", code="stays-here")
    copying.note_of(to).remove()
    facts = {"from": begun.name, "to": to, "clusters": [part.path.partition("/")[2] for part in parts[1:]]}
    facts |= {"tables": done.tables, "files": done.files, "found": done.found}
    left = [*(_told_again(each, to) for each in stay), following("status", home=to)]
    write_result(facts, lambda: write_facts(facts.items()), left, as_json=as_json)


def _parts(begun: Home, to: Place) -> list[_Part]:
    """What is copied, at one set of versions: as it was noted when the copy began, or as it is now, which is noted.

    Raises:
        InputError: one of the places lies in the other.
        StateError: something lies there already.
        ConflictError: the home is written to all the time.
    """
    from cdc_platform.cluster import carried
    from cdc_platform.lake import copying
    from cdc_platform.lake.lake import Lake
    from cdc_platform.places import place_of

    if str(to) == begun.name:
        raise InputError(f"{to} is the home itself; name another place to copy it to")
    if f"{to}/".startswith(f"{begun.name}/") or begun.name.startswith(f"{to}/"):
        raise InputError(f"of {begun.name} and {to} one lies in the other; name another place to copy it to")
    note = copying.note_of(str(to))
    if note.seen() is not None:
        began = json.loads(note.read())
        if began["from"] != begun.name:
            raise StateError(
                f"{to} is a copy of {began['from']} that is not whole; finish that, or choose another place"
            )
        if "parts" not in began:
            raise StateError(f"{to} is a copy that another version has begun; remove what lies there, and begin anew")
        return [_Part(each["path"], place_of(each["source"]), each["versions"]) for each in began["parts"]]
    if not _is_empty(to):
        raise StateError(f"{to} is there already; a home is copied to a place where nothing is")
    copying.assert_fit(Lake(str(to / "lake")))
    sources = {"": place_of(begun.name), **carried.homes(begun, to)}
    at = copying.settled_versions(*(Lake(str(source / "lake")) for source in sources.values()))
    parts = [_Part(path, source, its) for (path, source), its in zip(sources.items(), at, strict=True)]
    told = [{"path": each.path, "source": str(each.source), "versions": each.versions} for each in parts]
    copying.put(note, json.dumps({"from": begun.name, "parts": told}).encode())
    return parts


def _tell(part: _Part, as_json: bool, name: str) -> None:
    if not as_json:
        warn(f"copying {name}{f' of {part.path}' if part.path else ''}", code="progress")


def _told_again(cluster: KnownCluster, home: str) -> Next:
    """What tells the copy of the way to a cluster, on a machine that has the variables and files which it names."""
    from cdc_platform.cluster import carried

    names = ", ".join(name.replace("_", "-") for name in carried.of_this_machine(cluster.connection))
    words = carried.words(cluster.connection)
    return following("cluster", "add", cluster.name, *words, home=home, why=f"on a machine with what it names: {names}")


def _is_empty(place: Place) -> bool:
    """Whether nothing lies in a place but what a copy that was killed before it noted anything may have left."""
    from cdc_platform import drafts
    from cdc_platform.lake import contract

    if place.here is not None:
        drafts.sweep(place.here)
    tried_out = contract.note_of(place / "lake")
    filled = any(folder.is_folder() for folder in place.folders())
    return not filled and all(place / name == tried_out for name in place.names())

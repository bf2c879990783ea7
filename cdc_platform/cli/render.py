"""Render the result of a command: as one JSON document, or on a screen as facts and tables.

Both readers get the same document. JSON has its exact values. A screen has labels for field names, human units, and
those columns of a table that fit. `LABELS` and the formats below are the only place that knows how a field is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.command_hints import add_home_option, get_home_option
from cdc_platform.cli.layout import format_table_lines, get_page_width
from cdc_platform.cli.next_steps import NextStep, replace_refused_steps
from cdc_platform.cli.output import (
    DOCUMENT_VERSION,
    escape_unprintable,
    format_cell,
    write_facts,
    write_json_document,
)
from cdc_platform.clock import DAY_SECONDS, HOUR_SECONDS

if TYPE_CHECKING:
    from cdc_platform.preflight import PreflightResult

LABELS: Mapping[str, str] = {
    "shard_count": "shards",
    "ttl_seconds": "TTL",
    "bytes_in_lake": "in the lake",
    "bytes_in_lake_with_expiry": "in the lake with expiry",
    "bytes_in_scylladb": "in ScyllaDB",
    "share_of_ring": "ring share",
    "changed_share": "ring share with other streams",
}
"""Labels of field names. Other names are shown with spaces for underscores, without `num_` and units."""

_PLAIN_INTEGERS = frozenset(
    {"token", "last_token", "range_start", "range_end", "version", "restored_version", "vnode_index", "shard", "line"}
)
"""Integers that are names or positions, shown without separators."""
_SHARES = frozenset({"share_of_ring", "changed_share", "vnode_colocation", "shard_colocation", "colocation"})
"""Fractions from 0 to 1, shown in percent."""
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MINUTE_SECONDS = 60
_SECOND_UNITS = (("d", DAY_SECONDS), ("h", HOUR_SECONDS), ("min", _MINUTE_SECONDS), ("s", 1))


@dataclass(frozen=True)
class View:
    """How a screen shows one list of a document: a title, and the fields of its rows.

    The most important column comes first. A narrow screen drops columns from the end. If the first `essential` columns
    do not fit, it shows each row as a block of lines, with all columns.
    """

    columns: str
    title: str = ""
    essential: int = 1


def write_result(
    document: Mapping[str, Any],
    *,
    as_json: bool,
    views: Mapping[str, View | None] | None = None,
    show: Callable[[], object] | None = None,
    next_steps: Iterable[NextStep] = (),
) -> None:
    """Write the document of a command, and the steps to take next.

    `views` says how a screen shows the lists of the document; None hides a field. `show` replaces all of that.
    """
    steps = replace_refused_steps(next_steps)
    if as_json:
        commands = [{"command": step.command, "why": step.why or None} for step in steps]
        write_json_document({"version": DOCUMENT_VERSION, **document, "next": commands})
        return
    if show is None:
        show_document(document, views or {})
    else:
        show()
    for step in steps:
        click.echo(f"next: {escape_unprintable(str(step))}")


def write_preflight_results(
    results: Sequence[PreflightResult], *, as_json: bool, next_steps: Iterable[NextStep] = ()
) -> None:
    """Write each preflight check (at least one) with a tick or a cross, and its remedy if there is one."""
    checks = [asdict(entry) for entry in results]

    def show() -> None:
        width = max(len(entry.check) for entry in results)
        for entry in results:
            show_mark(entry.ok, f"{entry.check:<{width}}  {entry.message}")
            if entry.remedy:
                remedy = add_home_option(entry.remedy, get_home_option())
                click.echo(f"  {'':<{width}}  {click.style('remedy:', bold=True)} {escape_unprintable(remedy)}")

    write_result({"checks": checks}, as_json=as_json, show=show, next_steps=next_steps)


def show_mark(ok: bool, text: str) -> None:
    """Print a line with a green tick or a red cross."""
    mark = click.style("✓", fg="green") if ok else click.style("✗", fg="red")
    click.echo(f"{mark} {escape_unprintable(text)}")


def show_document(document: Mapping[str, Any], views: Mapping[str, View | None]) -> None:
    """Print a document for people: plain fields as facts, lists of objects as tables."""
    facts: list[tuple[str, object]] = []
    for name, value in document.items():
        view = views.get(name, View(""))
        if view is None:
            continue
        if name in views or _is_list_of_rows(value):
            write_facts(facts)
            facts = []
            show_rows(value, view)
        else:
            facts += _list_facts(name, value)
    write_facts(facts)


def show_rows(rows: Sequence[Mapping[str, Any]], view: View) -> None:
    """Print objects as a table: the columns of the view, or all of them without a choice."""
    if not rows:
        click.echo(f"{click.style(escape_unprintable(view.title or 'rows'), bold=True)}: none")
        return
    names = view.columns.split() or list(dict.fromkeys(name for row in rows for name in row))
    headings = [
        f">{get_label(name)}" if any(_is_number(row[name]) for row in rows) else get_label(name) for name in names
    ]
    cells = [[format_field(name, row[name]) for name in names] for row in rows]
    if view.title:
        click.echo(click.style(escape_unprintable(view.title), bold=True))
    for line in format_table_lines(headings, cells, get_page_width(), essential=view.essential):
        click.echo(line)


def get_label(name: str) -> str:
    """Return the label of a field."""
    return LABELS.get(name) or name.removeprefix("num_").removesuffix("_seconds").removesuffix("_s").replace("_", " ")


def format_field(name: str, value: object) -> str:
    """Return the value of a field as a screen shows it."""
    if isinstance(value, Mapping):
        return (
            "  ".join(_format_inner_field(inner, entry) for inner, entry in value.items() if entry is not None) or "-"
        )
    if isinstance(value, (list, tuple)):
        entries = [format_field(name, entry) for entry in value]
        return ("; " if any(" " in entry for entry in entries) else ", ").join(entries) or "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return format_cell(value)
    if name in _SHARES:
        return format_percent(value)
    if "bytes" in name:
        return format_bytes(value)
    if name == "ttl_seconds" and value == 0:
        return "never expires"
    if name.endswith(("_seconds", "_s")):
        return format_seconds(value)
    return format_cell(value) if name in _PLAIN_INTEGERS or isinstance(value, float) else f"{value:,}"


def format_bytes(count: float) -> str:
    """Return a number of bytes with three digits and a binary unit, for example 1.21 GiB."""
    unit = 0
    while count >= 1024 and unit < len(_BYTE_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {_BYTE_UNITS[unit]}" if count >= 100 or unit == 0 else f"{count:.3g} {_BYTE_UNITS[unit]}"


def format_seconds(seconds: float) -> str:
    """Return a duration in its two largest units, for example 1 d 12 h."""
    if seconds < _MINUTE_SECONDS:
        return f"{seconds:.3g} s"
    parts, remaining = [], round(seconds)
    for unit, size in _SECOND_UNITS:
        count, remaining = divmod(remaining, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(part for part in parts[:2] if part)


def format_percent(share: float | None) -> str:
    """Return a fraction in percent."""
    return "-" if share is None else f"{100 * share:.3f}%"


def _is_list_of_rows(value: object) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], Mapping)


def _format_inner_field(name: str, value: object) -> str:
    return f"{format_field(name, value)} {get_label(name)}" if _is_number(value) else format_field(name, value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _list_facts(name: str, value: object) -> list[tuple[str, object]]:
    if isinstance(value, Mapping) and not {"id", "time"} <= value.keys():
        return [(f"{get_label(name)} {get_label(inner)}", format_field(inner, entry)) for inner, entry in value.items()]
    return [(get_label(name), format_field(name, value))]

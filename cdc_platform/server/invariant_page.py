"""The page of an invariant for the UI: its rule, how it is judged, and what to do about a violation.

The declaration of the invariant is the only source, so an installation without the documentation has the pages, too.
"""

from __future__ import annotations

from html import escape

from cdc_platform.checks import Invariant, invariants

_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:44em;margin:2em auto;padding:0 1em}dt{font-weight:bold;margin-top:1em}"
)


def render_invariant_page(name: str) -> str | None:
    """Return the HTML page of the invariant with this name; None if there is none."""
    invariant = invariants.INVARIANTS_BY_NAME.get(name)
    if invariant is None:
        return None
    facts = "".join(f"<dt>{escape(term)}</dt><dd>{_code(text)}</dd>" for term, text in _list_facts(invariant))
    return (
        f"<!DOCTYPE html><html lang=en><meta charset=utf-8><title>{escape(name)}</title><style>{_STYLE}</style>"
        f"<h1>{escape(name)}</h1><p>{_code(invariant.meaning)}</p><dl>{facts}</dl></html>\n"
    )


def _list_facts(invariant: Invariant) -> list[tuple[str, str]]:
    family = invariant.family
    blocks = "The run fails, and nothing that depends on the checked rows is written."
    warns = "The run succeeds, and its tag `cdc_platform/violated` names the invariant."
    return [
        ("Applies to", f"{_capitalized(family.subject)}."),
        ("Judged", f"{_capitalized(family.method)}."),
        ("If it is violated in a run", blocks if family.blocking else warns),
        ("If there is nothing to judge", _describe_empty(invariant)),
        ("See what violates it, and what helps", "`cdc-platform check`"),
        ("Invariants of the same family", ", ".join(f"`{other}`" for other in family.invariants)),
        ("Documentation", f"`{family.page}`"),
    ]


def _describe_empty(invariant: Invariant) -> str:
    family = invariant.family
    home = f"It passes: {family.fine_without}." if family.fine_without else ""
    if not family.unknown_without:
        return home or "It fails."
    no_verdict = f"has no verdict, which is a warning: {family.unknown_without}."
    return f"{home} A single partition {no_verdict}" if home else f"It {no_verdict}"


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _code(text: str) -> str:
    """Escape a text; what is between backticks becomes code."""
    parts = [escape(part) for part in text.split("`")]
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))

"""The HTML page of a record: one file with pictures, style and the record itself as JSON.

Everything on it comes from the record, escaped by the template, so the same record gives the same page byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cdc_platform.clock import format_us, parse_time_us
from cdc_platform.errors import InputError
from cdc_platform.plots import node_colour, render_ring_svg
from cdc_platform.reporting.record import CIRCLE_PARTS, ReportRecord, ReportSource, gather_record
from cdc_platform.reporting.seal import public_key_text, seal_page
from cdc_platform.timeline import GenerationNames

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

GENERATOR = "cdc-platform report"
"""By this in its head a page is known for one."""
_TEMPLATE_FILES = ("page.py", "page.html.j2", "page.css", "../plots/ring_svg.py")
_RECORD_SCRIPT = re.compile(r'<script type="application/json" id="record">(.*?)</script>', re.DOTALL)
_STEPS: Mapping[str, tuple[str, str]] = {
    "platform.bootstrap_events": ("The event was queued", "The event was taken from the inbox"),
    "platform.topology_descriptions": ("The description was made from the ring", "The description was removed"),
    "platform.verdicts": ("The result of an audit was stored", "A result was withdrawn"),
    "platform.generation_switches": ("The two-phase switch went on", "The switch was removed"),
    "system_distributed_everywhere.cdc_generation_descriptions_v2": (
        "The description was inserted for all nodes",
        "The inserted description was removed",
    ),
    "system_distributed.cdc_generation_descriptions": (
        "The description was inserted, in the first format",
        "The description of the first format was removed",
    ),
    "platform.generations": ("The ledger took it down", "The ledger let it go"),
    "system.cdc_local": ("Its node keeps its ID", "Its node keeps a later ID"),
    "platform.nodes": ("Its node's row in the ring was written", "Its node's row in the ring was removed"),
    "system_distributed.cdc_streams_descriptions": ("Streams were published, in the first format", "Streams removed"),
    "system_distributed.cdc_streams_descriptions_v2": ("Streams were published", "Published streams were removed"),
    "system_distributed.cdc_generation_timestamps": (
        "The timestamp was published: from here on readers see it",
        "The timestamp was taken back from readers",
    ),
    "platform.removed_generations": ("Its removal was noted", "The note of its removal went"),
}


def render_page(record: ReportRecord) -> str:
    """The page, without its seal."""
    shown = {
        "record": record,
        "generator": GENERATOR,
        "css": Markup(_read_template_file("page.css")),
        "title": _title(record),
        "verdict": _overall_result(record),
        "timeline": _timeline_bars(record),
        "generations": [_generation_values(each) for each in record["generations"]],
        "embedded": Markup(_record_json(record)),
    }
    return _environment().get_template("page.html.j2").render(shown)


def parse_record(page_text: str) -> ReportRecord:
    """The record that a page was made of.

    Raises:
        InputError: it is no page of this program.
    """
    found = _RECORD_SCRIPT.findall(page_text)
    if f'content="{GENERATOR}' not in page_text or len(found) != 1:
        raise InputError(f"it is no page of {GENERATOR}: there is no record in it")
    try:
        return json.loads(found[0])
    except (ValueError, RecursionError) as error:
        raise InputError(f"it is no page of {GENERATOR} any more: its record is no JSON ({error})") from None


@cache
def template_digest() -> str:
    """The digest of what pages are made with: the same record in another form is another page."""
    return sha256("\0".join(_read_template_file(name) for name in _TEMPLATE_FILES).encode()).hexdigest()[:16]


def _record_json(record: ReportRecord) -> str:
    """The record as JSON that no HTML can end."""
    text = json.dumps(record, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("cdc_platform.reporting", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "when": _time_text,
        "count": lambda number: f"{number:,}",
        "share": lambda part: f"{100 * part:.1f} %",
        "code": _code_html,
    }
    made.filters |= filters
    return made


@cache
def _read_template_file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _time_text(time: str | None) -> str:
    """A time for people: to the second, or to the millisecond."""
    if time is None:
        return "-"
    day, _, clock = time.removesuffix("Z").partition("T")
    whole, _, fine = clock.partition(".")
    return f"{day} {whole}{f'.{fine[:3]}' if fine[:3].strip('0') else ''} UTC"


def _code_html(text: str) -> Markup:
    """A text in which names stand between backticks, as the docs have them."""
    parts = [
        Markup("<code>{}</code>" if place % 2 else "{}").format(part) for place, part in enumerate(text.split("`"))
    ]
    return Markup("").join(parts)


def _title(record: ReportRecord) -> str:
    if record["asked"]:
        return f"Generations from {_time_text(record['asked'][0])} to {_time_text(record['asked'][1])}"
    return f"Generation {record['generations'][0]['key']}"


def _overall_result(record: ReportRecord) -> dict[str, Any]:
    """Whether everything that was judged for this page holds."""
    lines = [line for each in record["generations"] for line in each["invariants"]] + record["stored"]
    broken = [line for line in lines if not line["passed"]]
    if not any(each["invariants"] for each in record["generations"]):
        text = "There is nothing to check"
        return {"good": not broken, "summary": text if not broken else f"{len(broken)} checks failed"}
    if broken:
        some = ", ".join(dict.fromkeys(line["invariant"] for line in broken))
        return {"good": False, "summary": f"{len(broken)} of {len(lines)} checks failed: {some}"}
    return {"good": True, "summary": f"All {len(lines)} checks passed"}


def _timeline_bars(record: ReportRecord) -> dict[str, Any]:
    """The timeline: for each generation where its bar begins and how long it is, in parts of a hundred."""
    lines = record["timeline"]
    if not lines:
        return {}
    starts = [parse_time_us(line["time"]) for line in lines]
    now = parse_time_us(record["made_at"])
    last = max(*starts, now)
    span = max(last - starts[0], 1) * 108 // 100 + 1
    bars = []
    for line, start in zip(lines, starts, strict=True):
        end = starts[0] + span if line["until"] is None else min(parse_time_us(line["until"]), starts[0] + span)
        left = 100 * (start - starts[0]) / span
        bars.append(
            {
                **line,
                "left": f"{left:.3f}",
                "width": f"{max(100 * (end - start) / span, 0.4):.3f}",
                "ahead": start > now,
            }
        )
    return {
        "bars": bars,
        "now": f"{100 * (now - starts[0]) / span:.3f}" if now >= starts[0] else None,
        "from": format_us(starts[0]),
        "to": format_us(last),
    }


def _generation_values(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template values of a generation: its record, pictures and sentences."""
    ring = facts["ring"]
    return {
        **facts,
        "story": _summary_text(facts),
        "circles": [_circle_values(ring, when) for when in ("before", "after") if ring and ring[when]],
        "colours": [node_colour(number) for number in range(len(ring.get("nodes", ())))],
        "steps": [{**line, "step": _step_text(line)} for line in facts["writes"]],
        "totals": _totals(ring),
    }


def _circle_values(ring: Mapping[str, Any], when: str) -> dict[str, Any]:
    joins = next((number for number, node in enumerate(ring["nodes"]) if node["joins"]), None)
    there = [node for node in ring["nodes"] if node[when]]
    words = (
        f"{sum(node[when]['ranges'] for node in there):,}",
        "ranges",
        f"{len(there):,} {'node' if len(there) == 1 else 'nodes'}",
    )
    drawn = render_ring_svg(ring[when], CIRCLE_PARTS, set_off=joins if when == "after" else None, words=words)
    return {"when": when, "svg": Markup(drawn)}


def _totals(ring: Mapping[str, Any]) -> dict[str, int]:
    """Nodes, ranges and streams of the ring after; all 0 where it is not known."""
    nodes = [node["after"] for node in ring.get("nodes", ()) if node["after"]]
    return {
        "nodes": len(nodes),
        "ranges": sum(node["ranges"] for node in nodes),
        "streams": sum(node["ranges"] * node["shards"] for node in nodes),
    }


def _summary_text(facts: Mapping[str, Any]) -> str:
    """The generation in two or three sentences."""
    event, sentences = facts["event"], []
    if event is None:
        sentences.append("Imported: no event in the inbox of this home made it.")
    elif event["kind"] == "join":
        sentences.append(f"Made for node {event['address'] or event['host_id']}, which joined the ring.")
    else:
        sentences.append("Made to repair the streams of the ring; no node joined.")
    if facts["time"] is None:
        return " ".join([*sentences, f"It has no timestamp yet; its state: {facts['state']}."])
    until = (
        f" until {_time_text(facts['until'])}, when the next one started" if facts["until"] else "; it is the last one"
    )
    sentences.append(f"Writes belong to it from {_time_text(facts['time'])}{until}.")
    removed = facts["expiry"].get("removed")
    if removed:
        sentences.append(f"It was removed at {_time_text(removed)}, when no log could hold rows of it any more.")
    elif not facts["published"]:
        sentences.append("It is not published to readers.")
    return " ".join(sentences)


def _step_text(line: Mapping[str, Any]) -> str:
    written, removed = _STEPS.get(line["table"], ("Rows were written", "Rows were removed"))
    return removed if line["what"] == "removed" else written


def make_page(
    home: ReportSource,
    names: Sequence[GenerationNames],
    *,
    asked: tuple[str, str] | None = None,
    key: Ed25519PrivateKey | None = None,
) -> tuple[ReportRecord, str]:
    """Return the record of some generations, oldest first, and their page.

    Raises:
        StoreFailure: a log cannot be read.
    """
    record = gather_record(home, names, asked) | {
        "form": template_digest(),
        "key": None if key is None else public_key_text(key),
    }
    return record, seal_page(render_page(record), key)

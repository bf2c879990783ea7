"""The token ring as SVG for an HTML page. Needs no matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from cdc_platform.plots.plots import PALETTE

_SIZE = 200
_INNER, _OUTER, _RIM = 56.0, 88.0, 97.0


def render_ring_svg(
    segments: Sequence[tuple[int, int]], parts: int, *, set_off: int | None, words: Sequence[str]
) -> str:
    """A ring whose slices begin at these parts of it, clockwise from the top, each with the number of its owner.

    The slices of the owner `set_off` stand out over the rim; `words` are the lines in the middle, plain text.
    """
    ends = [start for start, _ in segments[1:]] + [parts]
    bands: dict[int, list[str]] = {}
    rim: list[str] = []
    for (start, owner), end in zip(segments, ends, strict=True):
        bands.setdefault(owner, []).append(_sector(start / parts, end / parts, _INNER, _OUTER))
        if owner == set_off:
            rim.append(_sector(start / parts, end / parts, _OUTER + 3, _RIM))
    drawn = [f'<path fill="{node_colour(owner)}" d="{"".join(paths)}"/>' for owner, paths in sorted(bands.items())]
    if set_off is not None and rim:
        drawn.append(f'<path fill="{node_colour(set_off)}" d="{"".join(rim)}"/>')
    middle = _SIZE / 2 - 8 * (len(words) - 1)
    for number, line in enumerate(words):
        size = 17 if number == 0 else 11
        drawn.append(
            f'<text x="{_SIZE // 2}" y="{middle + 16 * number:g}" font-size="{size}" text-anchor="middle" '
            f'dominant-baseline="central" fill="currentColor">{escape(line)}</text>'
        )
    return (
        f'<svg viewBox="0 0 {_SIZE} {_SIZE}" role="img" aria-label="{escape(", ".join(words))}">{"".join(drawn)}</svg>'
    )


def node_colour(number: int) -> str:
    """The colour of a node: those of the palette, then round the colour circle by the golden angle."""
    if number < len(PALETTE):
        return PALETTE[number]
    return f"hsl({number * 137.508 % 360:.0f} {45 + 15 * (number % 3)}% {40 + 12 * (number % 2)}%)"


def _sector(start: float, end: float, inner: float, outer: float) -> str:
    """The path of a part (0 to 1, clockwise from the top) of a band; a whole band is drawn as two halves."""
    if end - start >= 1:
        return _sector(0, 0.5, inner, outer) + _sector(0.5, 0.99999, inner, outer)
    large = int(end - start > 0.5)
    (x1, y1), (x2, y2) = _point(start, outer), _point(end, outer)
    (x3, y3), (x4, y4) = _point(end, inner), _point(start, inner)
    return (
        f"M{x1:.2f} {y1:.2f}A{outer:g} {outer:g} 0 {large} 1 {x2:.2f} {y2:.2f}"
        f"L{x3:.2f} {y3:.2f}A{inner:g} {inner:g} 0 {large} 0 {x4:.2f} {y4:.2f}Z"
    )


def _point(part: float, radius: float) -> tuple[float, float]:
    angle = 2 * math.pi * part
    return _SIZE / 2 + radius * math.sin(angle), _SIZE / 2 - radius * math.cos(angle)

"""Which writes belong to a generation, and from when until when coordinators took them: the rule, with its times."""

from __future__ import annotations

from cdc_platform.clock import ONE_US, Microseconds, format_ms, format_us, seconds_of_us, us_of
from cdc_platform.settings import Settings
from cdc_platform.timeline import Generation


def accepted(
    settings: Settings, first_us: Microseconds, own: Generation, after: Generation | None
) -> list[dict[str, str]]:
    """What is asked, the answer and why, a line each. The first of all generations starts at `first_us` (µs)."""
    leeway, start = us_of(settings.generation_leeway_ms), us_of(own.time_ms)
    first, last = taken(settings, first_us, own, after)
    seconds = f"{seconds_of_us(leeway):g} s"
    none_yet = settings.policy == "strict" and first == first_us
    lines = [
        {
            "what": "Write timestamps that belong to it",
            "answer": format_us(start) + (" and later" if after is None else f" to before {format_ms(after.time_ms)}"),
            "why": "A generation operates from its timestamp to just before the next one's.",
        },
        {
            "what": "Taken from, by a coordinator's clock",
            "answer": format_us(first),
            "why": f"A write may be ahead of the clock by less than the leeway, {seconds}"
            + ("; but before it no generation operates." if none_yet else "."),
        },
    ]
    refused = "Refused from, by a coordinator's clock"
    if last is None:
        why = "No generation is known to follow it: its writes are taken until one does."
        return [*lines, {"what": refused, "answer": "not yet", "why": why}]
    why = "Policy strict: once the next generation operates, no write goes to an earlier one."
    if settings.policy != "strict":
        why = f"Policy recent-past: writes to an earlier generation are taken while younger than {seconds}."
    return [*lines, {"what": refused, "answer": format_us(last), "why": why}]


def taken(
    settings: Settings, first_us: Microseconds, own: Generation, after: Generation | None
) -> tuple[Microseconds, Microseconds | None]:
    """When a coordinator's clock (µs) takes the first write of a generation, and from when on none; None: not known."""
    leeway, start = us_of(settings.generation_leeway_ms), us_of(own.time_ms)
    end = None if after is None else us_of(after.time_ms)
    if settings.policy == "recent-past":
        return start - leeway, None if end is None else max(end, end - ONE_US + leeway)
    # The documents' rule takes no write before some generation operates, whatever its timestamp.
    return max(start - leeway + ONE_US, first_us), end

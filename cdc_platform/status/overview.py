"""Everything that `status` says of a home, gathered section by section; one that cannot be read keeps no other back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cdc_platform.clock import Clock, format_us
from cdc_platform.errors import PlatformError, one_line
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.mirrors import cluster_of
from cdc_platform.lake.reads import recording_reads
from cdc_platform.lake.verification import first_cause
from cdc_platform.settings import Settings
from cdc_platform.status import of_generations, of_reading, of_work
from cdc_platform.status.matters import Matter
from cdc_platform.status.of_generations import observed_anew

Section = Callable[[Lake, Clock, Settings], tuple[Any, list[Matter]]]
"""What a section says in plain values, and what it has found to be seen to."""

SECTIONS: dict[str, Section] = {
    "ring": of_generations.ring,
    "generations": of_generations.generations,
    "repair": of_generations.repair,
    "inbox": of_work.joins,
    "switches": of_work.switching,
    "tables": of_reading.tables,
    "consumers": of_reading.readers,
    "expiry": of_reading.expiry,
    "checks": of_work.checks,
}


@dataclass(frozen=True)
class Overview:
    """How a home stands: by section in plain values (None: it could not be read), and what there is to see to."""

    now: str
    sections: dict[str, Any]
    matters: list[Matter]

    @property
    def wrong(self) -> bool:
        """Whether anything is wrong."""
        return any(each.wrong for each in self.matters)

    def facts(self) -> dict[str, Any]:
        """All of it in plain values; what is wrong comes first in `next`."""
        return {
            "now": self.now,
            "wrong": self.wrong,
            **self.sections,
            "next": [each.facts() for each in self.matters],
        }


def overview(lake: Lake, clock: Clock, settings: Settings) -> Overview:
    """Look at a home."""
    sections: dict[str, Any] = {}
    matters: list[Matter] = []
    for name, section in SECTIONS.items():
        with recording_reads() as read:
            try:
                sections[name], found = section(lake, clock, settings)
            except Exception as error:  # whatever the rows are, the other sections are shown
                cause = first_cause(lake, read)
                if cause is None and not isinstance(error, (PlatformError, OSError)):
                    raise
                said = one_line(str(error)) if cause is None else f"{cause.complaint} ({one_line(str(error))})"
                sections[name], found = None, [Matter("table-unreadable", f"{name}: {said}", "cdc-platform check")]
        matters += found
    known = [(sections[name] or {}).get(what) for name, what in (("ring", "nodes"), ("generations", "known"))]
    if known == [0, 0] and sections["inbox"] == []:
        said = "no node is in the ring and no generation is known"
        cluster = cluster_of(lake)
        begin = "let a first node join (cdc-platform bootstrap --help), or import exports (cdc-platform import --help)"
        do = observed_anew(cluster) if cluster else begin
        matters = [each for each in matters if each.wrong or each.code == "only-observed"] + [
            Matter("empty-home", said, do)
        ]
    return Overview(format_us(clock.now_us()), sections, sorted(matters, key=lambda each: not each.wrong))

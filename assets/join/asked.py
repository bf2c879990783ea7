"""Which generation a partition of a join is, which of its rows a step fills, and which a run of several makes again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from assets.events import Content
from cdc_platform.clock import format_ms
from cdc_platform.errors import NotFound, PlatformError
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.records import ledger
from cdc_platform.timeline.keys import Keys
from cdc_platform.timeline.parts import content, names_of


def joined_generation(lake: Lake, partition: str) -> str:
    """The UUID of the generation that a join makes under this name.

    Raises:
        NotFound: no join makes it; it was imported, say.
    """
    found = Keys.read(lake).generation(partition)
    if isinstance(found, str):
        return found
    raise NotFound(
        f"generation {format_ms(found)} was not made by a join here, so that no step can make it again; look at it "
        "with: cdc-platform history GENERATION"
    )


def content_of(lake: Lake, partition: str, table: Table) -> Content:
    """What a step has left in its place for a generation.

    Raises:
        NotFound: the generation can have no rows there before it has its timestamp.
    """
    keys = Keys.read(lake)
    names = names_of(lake, keys, keys.generation(partition))
    part = names.part(table)
    if part is None:
        raise NotFound(f"generation {partition} has nothing in {table.full_name} yet; run the steps before it first")
    return Content(part, content(lake, names, table) or 0, lake.path(part.table))


def finished(lake: Lake, partitions: Sequence[str], tell: Callable[[str], None]) -> Iterator[str]:
    """Of the generations of a run for several those that were joined to their end; of each other it is told why not."""
    for partition in partitions:
        try:
            generation_id = joined_generation(lake, partition)
            done = ledger.published_at_ms(lake, generation_id) is not None
            if done:
                ledger.introduced_id(lake, generation_id)
        except PlatformError as error:
            tell(f"{partition} is left as it is: {error}")
            continue
        if done:
            yield partition
        else:
            tell(f"{partition} is left to the sensor waiting_joins: it waits in the inbox, and joins take turns")

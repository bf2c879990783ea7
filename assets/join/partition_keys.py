"""Map partition keys of joins to generations and to the content of their steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cdc_platform.clock import format_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import NotFound, PlatformError
from cdc_platform.metastore import generations
from cdc_platform.tables import Table
from cdc_platform.timeline import GenerationKeys, get_generation_names, read_generation_digest
from cdc_platform_assets.data_versions import PartitionContent


def get_joined_generation_id(lake: Lake, partition: str) -> str:
    """Return the UUID of the generation that a join makes under this partition key.

    Raises:
        NotFound: no join makes it, for example because it was imported.
    """
    key = GenerationKeys.read(lake).generation(partition)
    if isinstance(key, str):
        return key
    raise NotFound(
        f"generation {format_ms(key)} was not made by a join here, so that no step can make it again; look at it "
        "with: cdc-platform history GENERATION"
    )


def read_step_content(lake: Lake, partition: str, table: Table) -> PartitionContent:
    """Return the rows that a step wrote to a table for a generation.

    Raises:
        NotFound: the generation can have no rows in the table before it has its timestamp.
    """
    keys = GenerationKeys.read(lake)
    names = get_generation_names(lake, keys, keys.generation(partition))
    part = names.part(table)
    if part is None:
        raise NotFound(f"generation {partition} has nothing in {table.full_name} yet; run the steps before it first")
    return PartitionContent(part, read_generation_digest(lake, names, table) or 0, lake.path(part.table))


def filter_finished_joins(lake: Lake, partitions: Sequence[str], on_skip: Callable[[str], None]) -> Iterator[str]:
    """Yield those partitions whose join is finished; pass the reason for each skipped one to `on_skip`."""
    for partition in partitions:
        try:
            generation_id = get_joined_generation_id(lake, partition)
            done = generations.read_published_at_ms(lake, generation_id) is not None
            if done:
                generations.read_generation_id(lake, generation_id)
        except PlatformError as error:
            on_skip(f"Skipped {partition}: {error}")
            continue
        if done:
            yield partition
        else:
            on_skip(f"Skipped {partition}: queued; joins run one at a time (sensor waiting_joins)")

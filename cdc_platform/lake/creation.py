"""How a Delta table comes to be: complete and at once, whoever else makes it; and how it gets columns that it lacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import deltalake
import pyarrow as pa
from deltalake import DeltaTable

from cdc_platform import drafts
from cdc_platform.errors import StateError
from cdc_platform.lake import commits, digests, envelope
from cdc_platform.lake.tables import Table


def create(table: Table, target: Path) -> None:
    """Make the table complete in a folder beside its place, and move it there: a half-made one is never seen.

    deltalake's own `mode="ignore"` lets two creators both commit, and the constraints are commits after it.
    """
    draft = drafts.make_folder(target.parent, table.name)
    try:
        made = DeltaTable.create(
            draft,
            pa.schema(table.schema),
            partition_by=list(table.partition_by),
            name=table.full_name,
            description=table.comment,
            configuration={**table.properties, digests.PROPERTY: digests.NEWEST.value},
            raise_if_key_not_exists=False,
            commit_properties=commits.properties_of(envelope.sealed({} if table.partition_by else {"": 0})),
        )
        for name, rule in table.constraints.items():
            made.alter.add_constraint({name: rule}, commit_properties=commits.properties_of(envelope.sealed()))
        _move(draft, target)
    finally:
        drafts.discard(draft)


def widen(opened: DeltaTable, table: Table) -> Table:
    """Give an opened table the columns that it lacks; answers with the table as it stands then.

    Raises:
        StateError: a column is there with another type.
    """
    declared = {column.name: column for column in deltalake.Schema.from_arrow(pa.schema(table.schema)).fields}
    stored = {column.name: column for column in opened.schema().fields}
    kinds = pa.schema(opened.schema())
    for name in declared.keys() & stored.keys():
        if declared[name].type != stored[name].type:
            raise StateError(
                f"{table.full_name}.{name} holds {kinds.field(name).type} where {table.schema.field(name).type}"
                " is to go in; a column was dropped and made anew: move the table away, or write under another"
                " name"
            )
    missing = [declared[name] for name in declared if name not in stored]
    if missing:
        commits.make(opened, lambda properties: opened.alter.add_columns(missing, commit_properties=properties))
    fields = [
        table.schema.field(name) if name in declared else kinds.field(name)
        for name in [*stored, *(column.name for column in missing)]
    ]
    return replace(table, schema=pa.schema(fields))


def _move(draft: Path, target: Path) -> None:
    """Put a new table in place. Renaming onto a folder that holds anything fails: then another process was first."""
    try:
        draft.rename(target)
    except OSError:
        if not DeltaTable.is_deltatable(str(target)):
            raise StateError(f"{target} is in the way of a table and is none itself; move it elsewhere") from None

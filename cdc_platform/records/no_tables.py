"""Whether anybody has said which tables have a CDC log: that there is none is an answer, too.

It is kept as a history of tables that is there and says nothing of any.
"""

from __future__ import annotations

from cdc_platform.errors import InputError
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import CDC_TABLE_CHANGES
from cdc_platform.lake.turns import TABLES, in_turn
from cdc_platform.records.cdc_tables import cdc_tables


def are_told(lake: Lake) -> bool:
    """Whether it is known which tables have a log: some were told of, or it was said that there is none."""
    return lake.exists(CDC_TABLE_CHANGES) or bool(cdc_tables(lake))


@in_turn(TABLES)
def tell_none(lake: Lake) -> None:
    """Say that no table has a log; a table that is told of later has one all the same.

    Raises:
        InputError: a table has one.
    """
    there = cdc_tables(lake)
    if there:
        raise InputError(
            f"{there[0].full_name} has a log; say that it is gone with: cdc-platform tables drop {there[0].full_name}"
        )
    lake.ensure(CDC_TABLE_CHANGES)

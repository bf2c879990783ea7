"""Read-only SQL over the tables: with DuckDB in this process, or on Spark for volume.

Each engine runs one statement, and only after a check of its parse tree has shown that it is a query.
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "names": ("TimeTravel",),
        "result": ("QueryResult",),
        "tables": ("read_table",),
    },
)

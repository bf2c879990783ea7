"""Read-only SQL over the tables: in the process with DuckDB, or on Spark for volume.

Each engine runs one statement whose parse tree was checked to be a query.
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "names": ("TimeTravel",),
        "result": ("QueryResult",),
    },
)

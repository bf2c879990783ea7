"""What Dagster's parts and runs are forked with: all that one of them imports, as far as two do or runs would wait.

Nothing of it may start a thread or keep a file open.
"""

from __future__ import annotations

from importlib import import_module

from cdc_platform.invariants import models
from cdc_platform.lease import leaving_alone
from cdc_platform.pictures import drawing

_MODULES = (
    "cdc_platform.definitions",
    "dagster._grpc.impl",
    "structlog.dev",
    "upath.implementations.local",
    # Of the servers, each of which would have a copy of what these have in common.
    "alembic.config",
    "alembic.script",
    "cdc_platform.serving.clicks",
    "cdc_platform.serving.databases",
    "cdc_platform.serving.page_server",
    "dagster._cli.api",
    "dagster._daemon.cli",
    "dagster_webserver.app",
    "sqlalchemy.dialects.sqlite",
)

with leaving_alone():
    for name in _MODULES:
        import_module(name)
    # What is imported by who judges for the first time, or draws: half a second, in each run of a join. Few runs want
    # Spark, and last long: its client, which is 15 MB, they import themselves, in a tenth of a second.
    models.load()
    drawing.load()

"""What the process has imported that runs are forked from. Nothing of it may start a thread or keep a file open."""

from __future__ import annotations

from importlib import import_module

from cdc_platform.invariants import models
from cdc_platform.lease import leaving_alone
from cdc_platform.pictures import drawing

with leaving_alone():
    for name in ("cdc_platform.definitions", "dagster._grpc.impl", "structlog.dev"):
        import_module(name)
    # What is imported by who judges for the first time, or draws: half a second, in each run of a join. Few runs want
    # Spark, and last long: its client, which is 15 MB, they import themselves, in a tenth of a second.
    models.load()
    drawing.load()

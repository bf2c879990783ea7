"""What the process has imported that runs are forked from. Nothing of it may start a thread or keep a file open."""

from __future__ import annotations

from importlib import import_module

from cdc_platform.invariants import models
from cdc_platform.lease import leaving_alone

with leaving_alone():
    for name in ("cdc_platform.definitions", "dagster._grpc.impl", "pyspark.sql.connect.session"):
        import_module(name)
    # What pandera needs to judge it imports as it judges for the first time: a quarter of a second, in each run.
    # matplotlib would save as much in those that draw, and takes 28 MB, which an idle `up` has not.
    models.load()

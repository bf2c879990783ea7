"""Modules that Dagster's services and runs inherit from their parent process.

Importing this module loads all of them. None may start a thread or keep a file open.
"""

from __future__ import annotations

from contextlib import suppress

from cdc_platform.checks import judge
from cdc_platform.instance_lock import binding_disabled
from cdc_platform.plots import plots
from cdc_platform.runtime import gc_paused_for_imports
from cdc_platform.server.console_commands import console_command

with binding_disabled(), gc_paused_for_imports(), suppress(Exception):
    console_command("dagster")

    import cdc_platform.definitions  # noqa: F401

    # A run imports these for its first check and its first plot, which takes half a second in each run of a join. Few
    # runs need Spark, and those are long: they import its client themselves, which takes 15 MB and a tenth of a second.
    judge.preload_models()
    plots.preload_matplotlib()

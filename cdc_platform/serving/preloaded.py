"""What the process has imported that runs are forked from: all that a run would wait for.

Nothing of it may start a thread or keep a file open. Code that does not load is left to the code server, which shows
the error in the UI.
"""

from __future__ import annotations

from contextlib import suppress

from cdc_platform.interpreter import importing
from cdc_platform.invariants import models
from cdc_platform.lease import leaving_alone
from cdc_platform.pictures import drawing
from cdc_platform.serving.console_commands import console_command

with leaving_alone(), importing(), suppress(Exception):
    console_command("dagster")

    import cdc_platform.definitions  # noqa: F401

    # What a run imports when it judges for the first time, or draws: half a second, in each run of a join. Few runs
    # need Spark, and those take long: they import its client themselves, which is 15 MB, in a tenth of a second.
    models.load()
    drawing.load()

"""Dagster's daemon, as `python -m cdc_platform.serving.daemon` with the options of `dagster-daemon`.

The workspace file comes last: its code server is waited for.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cdc_platform.lease import bind
from cdc_platform.serving.addresses import await_code_server
from cdc_platform.serving.console_commands import console_command

bind()

if __name__ == "__main__":
    command = console_command("dagster-daemon")
    await_code_server(Path(sys.argv[-1]))
    command()

"""Dagster's daemon: `python -m cdc_platform.server.daemon` with the options of `dagster-daemon`.

The workspace file is the last argument. The process waits for the code server that the file names.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cdc_platform.instance_lock import bind_to_up
from cdc_platform.json_logs import configure_json_logs
from cdc_platform.server.addresses import await_code_server
from cdc_platform.server.console_commands import console_command

bind_to_up()

if __name__ == "__main__":
    configure_json_logs()
    command = console_command("dagster-daemon")
    await_code_server(Path(sys.argv[-1]))
    command()

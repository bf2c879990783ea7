"""Dagster's daemon, as `python -m cdc_platform.serving.daemon` with the options of `dagster-daemon`.

The workspace file comes last: its code server is waited for.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cdc_platform.interpreter import importing
from cdc_platform.lease import bind
from cdc_platform.serving import databases
from cdc_platform.serving.addresses import await_code_server
from cdc_platform.serving.resting import watch_seldom

bind()

if __name__ == "__main__":
    with importing():
        from dagster._daemon.cli import main

    await_code_server(Path(sys.argv[-1]))
    databases.keep_open()
    watch_seldom()
    main()

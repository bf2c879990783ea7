"""The code server of a location with the empty job, otherwise the platform's own: its runs start the same way."""

from __future__ import annotations

from cdc_platform.instance_lock import bind_to_up
from cdc_platform.processes import kill_when_parent_dies
from cdc_platform.server import code_server

if __name__ == "__mp_main__":
    bind_to_up()
    kill_when_parent_dies()

if __name__ == "__main__":
    code_server.serve_code_location()

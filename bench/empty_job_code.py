"""The code server of a location that has the empty job, otherwise the platform's own: its runs begin as there."""

from __future__ import annotations

from cdc_platform.lease import bind
from cdc_platform.serving import code
from cdc_platform.supervisor import end_with_parent

if __name__ == "__mp_main__":
    bind()
    end_with_parent()

if __name__ == "__main__":
    code.serve()

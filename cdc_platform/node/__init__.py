"""What one node does with generations: learning, reading, retrying, promising during a switch, and restarting.

A node knows no lake, no clock and no thread: its creator passes them in (`interfaces`). A simulation can therefore
run a whole cluster deterministically, in one thread and in simulated time.
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "coordinator": (
            "Coordinator",
            "RetryLoop",
        ),
        "participant": ("LeasePromise",),
        "switch_member": ("SwitchMember",),
    },
)

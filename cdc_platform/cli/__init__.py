"""The command line: one module per command or family of commands, loaded on use so that lookups stay fast.

Nothing is imported here. `main` is the program, `output` writes results, `params` parses arguments.
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "main": ("program",),
    },
)

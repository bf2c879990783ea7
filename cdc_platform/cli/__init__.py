"""Command line: one module per command or family of commands, loaded on first use so that lookups stay fast.

This file imports no command. `main` is the program, `output` writes results, `params` parses arguments.
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "main": ("program",),
    },
)

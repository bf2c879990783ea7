"""Griffe extension of the docs site: what a package's stub re-exports is its public API.

Stubs re-export names by redundant aliases (`from a import X as X`), which type checkers honour and Griffe ignores.
"""

from __future__ import annotations

from typing import Any

from griffe import Alias, Extension, Module


class PublicNames(Extension):
    """Export the aliases of each package."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Set the exports of all subpackages of a package that was just loaded."""
        for module in pkg.modules.values():
            if module.is_init_module:
                own = [name for name, member in module.members.items() if isinstance(member, Alias)]
                module.exports = [name for name in own if module.imports.get(name, "").startswith(pkg.path)]

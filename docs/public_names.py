"""Griffe extension of the docs site: the public API of a package is what its stub re-exports.

Stubs re-export names by redundant aliases (`from a import X as X`), which type checkers honour and Griffe ignores.
"""

from __future__ import annotations

from typing import Any

from griffe import Alias, Extension, Function, Module


class PublicNames(Extension):
    """Export the aliases of each package, and hide special methods."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        """Hide a special method: its meaning is Python's."""
        if func.name.startswith("__"):
            func.public = False

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Set the exports of all subpackages of a package that was just loaded."""
        for module in pkg.modules.values():
            if module.is_init_module:
                names = [name for name, member in module.members.items() if isinstance(member, Alias)]
                module.exports = [name for name in names if module.imports.get(name, "").startswith(pkg.path)]

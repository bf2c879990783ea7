"""Griffe extension of the docs site: the public API of a package is what its stub re-exports.

Stubs re-export names by redundant aliases (`from a import X as X`), which type checkers honour and Griffe ignores.
"""

from __future__ import annotations

from typing import Any

from griffe import Alias, Class, Extension, Module


class PublicNames(Extension):
    """Export the aliases of each package, and hide special methods."""

    def on_class(self, *, cls: Class, **_: Any) -> None:
        """Hide special methods, whose meaning is Python's."""
        for name in [name for name in cls.members if name.startswith("__") and name != "__init__"]:
            del cls.members[name]

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Set the exports of all subpackages of a package that was just loaded."""
        for module in pkg.modules.values():
            if module.is_init_module:
                names = [name for name, member in module.members.items() if isinstance(member, Alias)]
                module.exports = [name for name in names if module.imports.get(name, "").startswith(pkg.path)]

"""Lazy public names of packages: `__init__` lists them, and each module loads on the first use of its names.

A light command therefore never loads pyarrow, Spark or Dagster through a package that it imports one name from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(package: str, names_by_module: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that exports names of its modules.

    `names_by_module` lists the public names of each module, by the module's path below the package. A public name may
    itself be a module of a subpackage. The stub beside the `__init__` declares the same names for type checkers.
    """
    module_by_name = {name: f"{package}.{module}" for module, names in names_by_module.items() for name in names}

    def __getattr__(name: str) -> Any:
        if name not in module_by_name:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(module_by_name[name])
        value = getattr(module, name) if hasattr(module, name) else import_module(f"{module.__name__}.{name}")
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__

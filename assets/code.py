"""What computes an asset, as a version: a hash of the modules' code, in which words and layout count for nothing."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

OF_JOINS = ("cdc_platform.ring", "cdc_platform.generations", "cdc_platform.lifecycle.join")
"""What computes a generation and its rows."""


@cache
def code_version(*modules: str) -> str:
    """The version of what these modules and packages compute, the same wherever they lie and however they are laid out.

    Comments, docstrings and blank lines change nothing; a changed statement does.
    """
    found = hashlib.sha256()
    for module in modules:
        for file in _files(module):
            found.update(f"{module}/{file.name}\n{_code(file)}\n".encode())
    return found.hexdigest()[:16]


def _files(module: str) -> list[Path]:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"{module} is no module with a file")
    origin = Path(spec.origin)
    return sorted(origin.parent.rglob("*.py")) if spec.submodule_search_locations else [origin]


@cache
def _code(file: Path) -> str:
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and _is_words(
            node.body
        ):
            del node.body[0]
    return ast.dump(tree)


def _is_words(body: list[ast.stmt]) -> bool:
    first = body[0] if body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)

"""Plugin modules that are found by file name, and the constants in their source.

Constants are read without importing the module: a report needs a method's label, but not torch,
which the method imports. A package's `__path__` lists the folders to search; append a folder to it
to add plugins.
"""

import ast
import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


@cache
def find_modules(folders: tuple[str, ...]) -> Mapping[str, Path]:
    """Return the source file of every module in these folders, by name, in alphabetical order."""
    found = {
        module.name: Path(folder, f"{module.name}.py")
        for folder in folders
        for module in pkgutil.iter_modules([folder])
        if not module.ispkg
    }
    return dict(sorted(found.items()))


@cache
def read_constants(path: Path) -> Mapping[str, Any]:
    """Return the module-level names of a source file that are assigned a literal."""
    constants: dict[str, Any] = {}
    for node in _parse(path).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                constants[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:  # not a literal
                continue
    return constants


@cache
def read_annotations(path: Path, class_name: str, marker: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the literal keywords of `marker(...)` in a class's annotations, by attribute."""
    found: dict[str, Mapping[str, Any]] = {}
    for node in _parse(path).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    for call in ast.walk(field.annotation):
                        if isinstance(call, ast.Call) and ast.unparse(call.func) == marker:
                            found[field.target.id] = {
                                str(word.arg): ast.literal_eval(word.value)
                                for word in call.keywords
                            }
    return found


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))

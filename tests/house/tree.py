"""Figures of the source tree, read without running it: lines, widest classes, ``Any``, circles of imports.

tree = Tree(ROOT)
tree.lines('kilonova')              # 30812
tree.widest_classes(5)              # [(41, 'kilonova/pci/ledger.py', 'PciLedger'), …]
tree.share_of_any()                 # 0.19
tree.writers_of_states()            # ['kilonova/db/queries/instances.py:_move']
tree.circles()                      # [['kilonova/a.py', 'kilonova/b.py']]
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

# What is bound by a call, not by a caller.
_OWN = ('self', 'cls')
PACKAGE = 'kilonova'
STATES = ('vm_state', 'task_state')


class Tree:
    """A checkout. Paths are relative to it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def files(self, directory: str) -> list[str]:
        """The Python files below a directory, in order."""
        return sorted(str(path.relative_to(self._root)) for path in (self._root / directory).rglob('*.py'))

    def lines(self, directory: str) -> int:
        """Lines of all files below a directory, empty ones and comments too."""
        return sum((self._root / path).read_text(encoding='utf-8').count('\n') for path in self.files(directory))

    def widest_classes(self, count: int) -> list[tuple[int, str, str]]:
        """The classes with the most methods of their own: (methods, file, name)."""
        found = [
            (sum(isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) for item in node.body), path, node.name)
            for path in self.files(PACKAGE)
            for node in ast.walk(self._parsed(path))
            if isinstance(node, ast.ClassDef)
        ]
        return sorted(found, reverse=True)[:count]

    def parameters(self) -> tuple[int, int]:
        """How many parameters the functions have, and how many of them are ``Any`` or have no type."""
        kinds = [
            parameter.annotation is None
            or (isinstance(parameter.annotation, ast.Name) and parameter.annotation.id == 'Any')
            for path in self.files(PACKAGE)
            for node in ast.walk(self._parsed(path))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            for parameter in _parameters(node)
        ]
        return len(kinds), sum(kinds)

    def writers_of_states(self) -> list[str]:
        """Functions that make a column of a server's state: in a dict, or among the values of a statement. Not what a
        statement is to find (``expect``), nor the payloads of notifications."""
        return [
            f'{path}:{node.name}'
            for path in self.files(PACKAGE)
            if '/notifications/' not in path
            for node in ast.walk(self._parsed(path))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _makes_states(node)
        ]

    def imports(self, path: str) -> set[str]:
        """Files of the package that a file imports, anywhere in it, and for its types too."""
        found: set[str] = set()
        for node in ast.walk(self._parsed(path)):
            if isinstance(node, ast.Import):
                found.update(file for name in node.names if (file := self._file_of(name.name)))
            elif isinstance(node, ast.ImportFrom) and node.module:
                base = node.module
                found.update(
                    file for name in node.names if (file := self._file_of(f'{base}.{name.name}') or self._file_of(base))
                )
        return found - {path}

    def circles(self) -> list[list[str]]:
        """Files that import each other, directly or through others: each group whole, the largest first."""
        graph = {path: self.imports(path) for path in self.files(PACKAGE)}
        below = {path: reached(graph, path) for path in graph}
        groups = {tuple(sorted({path, *(other for other in below[path] if path in below[other])})) for path in graph}
        return sorted((list(group) for group in groups if len(group) > 1), key=len, reverse=True)

    @functools.cache  # noqa: B019 - a tree lives as long as the program
    def _parsed(self, path: str) -> ast.Module:
        return ast.parse((self._root / path).read_text(encoding='utf-8'))

    def _file_of(self, module: str) -> str | None:
        if module.partition('.')[0] != PACKAGE:
            return None
        base = module.replace('.', '/')
        return next((path for path in (f'{base}.py', f'{base}/__init__.py') if (self._root / path).is_file()), None)


def _makes_states(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    found = set(_own_nodes(function))
    for node in list(found):
        if isinstance(node, ast.keyword) and node.arg == 'expect':
            found -= set(ast.walk(node))
        elif isinstance(node, ast.Dict):
            for key, wanted in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == 'expect':
                    found -= set(ast.walk(wanted))
    for node in found:
        keys: list[ast.expr | None] = []
        if isinstance(node, ast.Dict):
            keys = node.keys
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            keys = [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == 'values':
            keys = [ast.Constant(keyword.arg) for keyword in node.keywords]
        if any(isinstance(key, ast.Constant) and key.value in STATES for key in keys):
            return True
    return False


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Without functions inside, which are looked at on their own."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
            yield from _own_nodes(node)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.arg]:
    arguments = node.args
    for parameter in (
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ):
        if parameter is not None and parameter.arg not in _OWN:
            yield parameter


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """All that a node points to, directly or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found

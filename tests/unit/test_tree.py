"""What ``make house`` found and what shall not come back: circles of imports, classes that are too wide, ``Any``."""

from __future__ import annotations

import ast
import collections
from pathlib import Path

import pytest

from tests.house.tree import Tree

# Methods of a class, and the share of parameters that are Any or have no type.
WIDEST, ANY = 25, 0.03


@pytest.fixture(scope='module')
def tree() -> Tree:
    return Tree(Path(__file__).parents[2])


def test_files_do_not_import_in_circles(tree: Tree) -> None:
    """Imports inside functions and those for types count."""
    assert tree.circles() == []


def test_classes_can_be_read_in_one_go(tree: Tree) -> None:
    assert [name for methods, _, name in tree.widest_classes(10) if methods > WIDEST] == []


def test_parameters_have_types(tree: Tree) -> None:
    parameters, without = tree.parameters()
    assert without <= ANY * parameters


# Tables whose noun has a versioned object have its name, and databases may have the same tables.
TABLES = 'kilonova/db/models'


def test_a_class_name_has_one_meaning() -> None:
    """A traceback or a log line names a class without its module."""
    root = Path(__file__).parents[2]
    places = collections.defaultdict(set)
    for path in sorted((root / 'kilonova').rglob('*.py')):
        module = str(path.relative_to(root))
        folder = TABLES if module.startswith(TABLES) else 'kilonova/objects' if 'kilonova/objects' in module else module
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].add(folder)
    both = {TABLES, 'kilonova/objects'}
    assert {name: found for name, found in places.items() if len(found) > 1 and found != both} == {}


def _by_key(node: ast.AST) -> list[ast.AST]:
    """Return the expressions whose keys this node reads or writes: ``x[…]``, ``x.get(…)``, ``… in x``, ``{**x}``."""
    match node:
        case ast.Subscript(value=found) | ast.Call(func=ast.Attribute(value=found, attr='get')):
            return [found]
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[found]):
            return [found]
        case ast.Dict(keys=keys, values=values):
            return [value for key, value in zip(keys, values, strict=True) if key is None]
    return []


def test_arguments_of_operations_are_read_as_attributes() -> None:
    """A flow or use case reads ``work.arguments(RebootArguments).reboot_type``, so that mypy checks the name."""
    root = Path(__file__).parents[2]
    found = [
        f'{path.relative_to(root)}:{node.lineno}'
        for folder in ('api', 'conductor')
        for path in sorted((root / 'kilonova' / folder).rglob('*.py'))
        for node in ast.walk(ast.parse(path.read_text()))
        if any(isinstance(one, ast.Attribute) and one.attr == 'args' for one in _by_key(node))
    ]
    assert found == []


def test_fields_of_serialized_objects_are_read_in_one_module() -> None:
    """``db/envelopes.py`` has the functions for it."""
    root = Path(__file__).parents[2]
    found = [
        str(path.relative_to(root))
        for path in sorted((root / 'kilonova').rglob('*.py'))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value == 'nova_object.data'
    ]
    assert found == ['kilonova/db/envelopes.py']

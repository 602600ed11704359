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

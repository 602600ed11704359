"""The guard of docs/contributor/seed-map.md, the page that says which test shows which ability of Nova.

The page names the tests; the tests do not name its rows. Every row is there and names test functions that exist, or
says that nothing shows it. `faults(table, files, rows)` returns what is wrong. The page is checked with it, and it is
tested with made-up tables.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TABLE = (TESTS.parent / 'docs' / 'contributor' / 'seed-map.md').read_text(encoding='utf-8')
# The last row of each section that must be in the table.
LAST = {0: 28, 1: 42, 2: 24, 3: 28, 4: 14}
ROWS = [f'{section}.{number}' for section, last in LAST.items() for number in range(1, last + 1)]
NAMED_TEST = re.compile(r'`([\w/]+\.py)::(\w+)`')
# What a docstring or comment of a test must not say: it means nothing to someone who has not read the page.
ROW_NUMBER = re.compile(r'\brows? \d\.\d+|\bseed[ -]map\b', re.IGNORECASE)
# Numbers of reviews and lists that are not in the repository: a docstring or comment says the condition and the result.
TAG = re.compile(
    r'\b(?:finding|found|item|review|issue|row)s?\s+\d+\.\d|\bfindings?\s+\d|\b(?:Item|Review|Issue)s?\s+\d',
    re.IGNORECASE,
)

# How the last cell of a row begins, if it isn't empty.
KINDS = ('in part: ', 'otherwise: ', 'not: ')


@dataclass(frozen=True)
class Row:
    """A line of the table. ``tests`` are (file, function) pairs, ``left`` is what no test shows."""

    number: str
    shown: str
    tests: list[tuple[str, str]]
    left: str


def table_rows(table: str) -> list[Row]:
    """Return the lines that begin with the number of a row."""
    found = []
    for line in table.splitlines():
        if re.match(r'\| \d\.\d+ \|', line):
            number, shown, tests, left = (cell.strip() for cell in line.strip()[1:-1].split(' | '))
            found.append(Row(number, shown, NAMED_TEST.findall(tests), left))
    return found


def functions_of(text: str) -> set[str]:
    """Return the names of the file's test functions that have a statement besides a docstring or ``pass``."""
    return {
        node.name
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith('test_')
        and not all(
            isinstance(one, ast.Pass) or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
            for one in node.body
        )
    }


def faults(table: str, files: Mapping[str, str], wanted: Sequence[str]) -> list[str]:
    """Return what is wrong with a table that should have all rows of ``wanted``.

    ``files`` is a dict from a path below tests to the text of the file.
    """
    rows = table_rows(table)
    numbers = [row.number for row in rows]
    found = [f'{number}: no such row' for number in wanted if number not in numbers]
    found += [f'{number}: more than one row' for number, count in Counter(numbers).items() if count > 1]
    named = {test for row in rows for test in row.tests}
    found += [
        f'{path}::{name}: named outside of a row'
        for path, name in NAMED_TEST.findall(table)
        if (path, name) not in named
    ]
    tests = {path: functions_of(files[path]) for path, _ in named if path in files}
    for row in rows:
        found += [f'{row.number}: {fault}' for fault in _faults_of(row, tests)]
    return found


def _faults_of(row: Row, tests: Mapping[str, set[str]]) -> list[str]:
    found = []
    if row.left and not row.left.startswith(KINDS):
        found.append('the last column begins otherwise')
    if row.left.startswith('not: '):
        return found + ['says that nothing shows it, and yet something'] * bool(row.shown or row.tests)
    if not row.shown:
        found.append('does not say what is shown')
    if not row.tests:
        found.append('no test')
    found += [f'no test {path}::{name}' for path, name in row.tests if name not in tests.get(path, ())]
    return found


def test_the_table_is_whole_and_true():
    """Every row of the page names test functions that exist, or says that nothing shows it."""
    named = {path for path, _ in NAMED_TEST.findall(TABLE)}
    files = {path: (TESTS / path).read_text(encoding='utf-8') for path in named if (TESTS / path).is_file()}
    assert faults(TABLE, files, ROWS) == []


# What follows tests the guard itself, with a table and a file that are made up.
ONE = '`unit/test_a.py::test_one`'
FILE = '''
def boot():
    assert True
def test_one():
    assert True
def test_empty():
    """A server boots."""
    pass
def test_outer():
    def test_inner():
        assert True
'''


@pytest.mark.parametrize(
    ('line', 'fault'),
    [
        (f'| 1.1 | x | {ONE} |  |', None),
        (f'| 1.1 | x | {ONE} | in part: y needs z |', None),
        ('| 1.1 |  |  | not: comes with z |', None),
        # A file, or a command, is no test.
        ('| 1.1 | x |  |  |', 'no test'),
        ('| 1.1 | x | `unit/test_a.py` |  |', 'no test'),
        ('| 1.1 | x | with the real CLI: `make demo` | otherwise: by hand |', 'no test'),
        (f'| 1.1 | x | {ONE}, `unit/test_a.py::test_gone` |  |', 'no test unit/test_a.py::test_gone'),
        ('| 1.1 | x | `unit/test_a.py::test_gone` |  |', 'no test unit/test_a.py::test_gone'),
        ('| 1.1 | x | `unit/test_gone.py::test_one` |  |', 'no test unit/test_gone.py::test_one'),
        ('| 1.1 | x | `unit/test_a.py::boot` |  |', 'no test unit/test_a.py::boot'),
        ('| 1.1 | x | `unit/test_a.py::test_inner` |  |', 'no test unit/test_a.py::test_inner'),
        ('| 1.1 | x | `unit/test_a.py::test_empty` |  |', 'no test unit/test_a.py::test_empty'),
        # What isn't shown is said in one of three ways.
        (f'| 1.1 | x | {ONE} | mostly |', 'the last column begins otherwise'),
        (f'| 1.1 |  | {ONE} |  |', 'does not say what is shown'),
        ('| 1.1 |  |  |  |', 'does not say what is shown'),
        (f'| 1.1 |  | {ONE} | not: comes with z |', 'says that nothing shows it, and yet something'),
        ('| 1.1 | x |  | not: comes with z |', 'says that nothing shows it, and yet something'),
        ('', 'no such row'),
        (f'| 1.1 | x | {ONE} |  |\n| 1.1 | x | {ONE} |  |', 'more than one row'),
    ],
)
def test_the_guard_refuses(line, fault):
    """Rows without a test of their own passed once: each of these tables but the first three is refused."""
    told = faults(
        f'| row | what is shown | where | what is not |\n|---|---|---|---|\n{line}\n', {'unit/test_a.py': FILE}, ['1.1']
    )
    assert (f'1.1: {fault}' in told) if fault else told == []


def test_the_guard_refuses_tests_that_are_named_in_no_row():
    """As when a line of the table isn't read as one."""
    table = f'| 1.1 | x | {ONE} |  |\n| 1.2| x | `unit/test_a.py::test_outer` |  |\n'
    assert faults(table, {'unit/test_a.py': FILE}, []) == ['unit/test_a.py::test_outer: named outside of a row']


def test_each_row_needs_its_tests():
    """The real table, its tests taken away: the guard names every row that doesn't say that nothing shows it."""
    shown = {row.number for row in table_rows(TABLE) if row.shown}
    assert {fault for fault in faults(NAMED_TEST.sub('', TABLE), {}, []) if fault.endswith('no test')} == {
        f'{number}: no test' for number in shown
    }
    assert len(shown) > 100


def spoken(text: str) -> Iterator[tuple[int, str]]:
    """Yield each comment and docstring of a Python file with the number of its first line."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = ast.get_docstring(node)
            if words is not None:
                yield node.body[0].lineno, words


def test_no_test_names_a_row():
    """No docstring, comment or name of a test has the number of a row of the page.

    No docstring or comment of tests, tools or the package has the number of a review's finding or of a list's item.
    """
    named = re.compile(r'_rows?_\d')
    found = [
        f'{path.relative_to(TESTS)}:{number}'
        for path in sorted(TESTS.rglob('*.py'))
        if path != Path(__file__) and 'documents' not in path.name
        for number, line in enumerate(path.read_text(encoding='utf-8').splitlines(), 1)
        if ROW_NUMBER.search(line) or named.search(line)
    ]
    assert found == []
    tagged = [
        f'{path.relative_to(TESTS.parent)}:{number}'
        for folder in ('tests', 'tools', 'kilonova')
        for path in sorted((TESTS.parent / folder).rglob('*.py'))
        # Most files have no such words, so they need not be parsed.
        if TAG.search(text := path.read_text(encoding='utf-8'))
        for number, words in spoken(text)
        if TAG.search(words)
    ]
    assert tagged == []

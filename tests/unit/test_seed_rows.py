"""Row 0.15 of the seed map; and the guard of its table in the documentation.

Every row is there, names test functions that exist and name the row in their own docstrings, or says that nothing shows
it. `faults(table, files, rows)` tells what is wrong; the table is tested with it, and it with tables made up.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import oslo_messaging as messaging
import pytest

from kilonova import objects
from kilonova.cmd import options
from kilonova.conductor.manager import ComputeTaskEndpoint
from kilonova.context import RequestContext
from kilonova.objects.base import Serializer
from kilonova.rpc.compute import Compute
from kilonova.rpc.conductor import ComputeTask
from kilonova.rpc.interface import Client
from kilonova.rpc.transport import OsloTransport, _endpoint

TESTS = Path(__file__).parents[1]
TABLE = (TESTS.parent / 'docs' / 'contributor' / 'seed-map.md').read_text(encoding='utf-8')
# The last row of each seed that must be in the table.
LAST = {0: 28, 1: 42, 2: 24, 3: 28, 4: 14}
ROWS = [f'{seed}.{number}' for seed, last in LAST.items() for number in range(1, last + 1)]
NAMED_TEST = re.compile(r'`([\w/]+\.py)::(\w+)`')


@pytest.fixture
def bus():
    """A transport without a broker, and the messages that it was given: (target, message)."""
    conf = options.new()
    conf([], project='kilonova', default_config_files=[], default_config_dirs=[])
    transport = OsloTransport(conf, 'fake:///', Serializer())
    sent: list[tuple[Any, dict[str, Any]]] = []
    transport._transport._driver.send = lambda target, ctxt, message, **_: sent.append((target, message))
    yield transport, sent
    transport.close()


def test_a_compute_task_on_the_bus(bus):
    """Row 0.15: topic, exchange, namespace, version and method, and objects as envelopes."""
    transport, sent = bus
    instance = objects.Instance(uuid='3b7d22a7-6d1f-4ccb-8a6f-3b0d1e4a0c11', memory_mb=65536)
    Client(ComputeTask, transport).migrate_server(RequestContext(overwrite=False), operation='o')
    Client(Compute, transport).external_instance_event(
        RequestContext(overwrite=False), instances=[instance], events=[], server='gpu1'
    )
    (target, message), (host, event) = sent
    assert (target.topic, target.server, target.fanout) == ('conductor', None, None)
    assert transport._transport._driver._default_exchange == 'nova'
    assert (message['namespace'], message['method'], message['version']) == ('compute_task', 'migrate_server', '1.28')
    assert message['args'] == {'operation': 'o'}
    assert (host.topic, host.server, event['method']) == ('compute', 'gpu1', 'external_instance_event')
    (envelope,) = event['args']['instances']
    assert (envelope['nova_object.name'], envelope['nova_object.namespace']) == ('Instance', 'nova')
    assert envelope['nova_object.data']['memory_mb'] == 65536


def test_nobody_can_ask_for_a_fanout(bus):
    """Row 0.15: a call to all would get one of many answers; the derived clients don't even take the word."""
    transport, sent = bus
    with pytest.raises(TypeError, match='fanout'):
        Client(ComputeTask, transport).run_operation(RequestContext(overwrite=False), operation='o', fanout=True)
    assert sent == []


@pytest.mark.parametrize(('version', 'accepted'), [('1.30', True), ('1.28', True), ('1.31', False), ('2.0', False)])
def test_a_server_takes_messages_up_to_its_version(version, accepted):
    """Row 0.15: newer messages are refused by name of their version."""
    woken: list[str] = []
    runner: Any = SimpleNamespace(wake=lambda database, uuids, urgent: woken.extend(uuids))
    tasks = ComputeTaskEndpoint(runner, SimpleNamespace(main=lambda: None))
    dispatcher = messaging.rpc.dispatcher.RPCDispatcher([_endpoint(ComputeTask, tasks)], messaging.NoOpSerializer())
    incoming = SimpleNamespace(
        ctxt={},
        client_timeout=None,
        message={
            'namespace': 'compute_task',
            'method': 'run_operation',
            'version': version,
            'args': {'operation': 'o'},
        },
    )
    if accepted:
        dispatcher.dispatch(incoming)
    else:
        with pytest.raises(messaging.UnsupportedVersion, match=re.escape(version)):
            dispatcher.dispatch(incoming)
    assert woken == ['o'] * accepted


# --- the table -------------------------------------------------------------------------------------------------------
# How the last cell of a row begins, if it isn't empty.
KINDS = ('in part: ', 'otherwise: ', 'not: ')


@dataclass(frozen=True)
class Row:
    """A line of the table: ``tests`` are (file, function), ``left`` is what isn't shown."""

    number: str
    shown: str
    tests: list[tuple[str, str]]
    left: str


def table_rows(table: str) -> list[Row]:
    """The lines that begin with a row's number."""
    found = []
    for line in table.splitlines():
        if re.match(r'\| \d\.\d+ \|', line):
            number, shown, tests, left = (cell.strip() for cell in line.strip()[1:-1].split(' | '))
            found.append(Row(number, shown, NAMED_TEST.findall(tests), left))
    return found


def rows_named(text: str) -> set[str]:
    """Rows of 'Rows 0.6, 0.12 and 1.3', 'seed map 1.5'. A range names none: nobody could tell which of its rows the
    test shows."""
    found = set()
    number = r'\d\.\d+(?!\d|(?:–|-| to )\d)'
    for listed in re.findall(
        rf'\b(?:rows?|seed[ -]map) ({number}(?:(?:, and |, | and ){number})*)', text, re.IGNORECASE
    ):
        found |= set(re.findall(r'\d\.\d+', listed))
    return found


def rows_of_tests(text: str) -> dict[str, set[str]]:
    """Test function → the rows that its own docstring tells of. What the file's docstring says shows nothing: whichever
    test of it was meant may be gone. Neither does a function without a statement."""
    return {
        node.name: rows_named(ast.get_docstring(node) or '')
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith('test_')
        and not all(
            isinstance(one, ast.Pass) or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
            for one in node.body
        )
    }


def faults(table: str, files: Mapping[str, str], wanted: Sequence[str]) -> list[str]:
    """What is wrong with a table that should have all rows of ``wanted``; ``files``: path below tests → text."""
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
    tests = {path: rows_of_tests(files[path]) for path, _ in named if path in files}
    for row in rows:
        found += [f'{row.number}: {fault}' for fault in _faults_of(row, tests)]
    return found


def _faults_of(row: Row, tests: Mapping[str, Mapping[str, set[str]]]) -> list[str]:
    found = []
    if row.left and not row.left.startswith(KINDS):
        found.append('the last column begins otherwise')
    if row.left.startswith('not: '):
        return found + ['says that nothing shows it, and yet something'] * bool(row.shown or row.tests)
    if not row.shown:
        found.append('does not say what is shown')
    if not row.tests:
        found.append('no test')
    for path, name in row.tests:
        if name not in tests.get(path, {}):
            found.append(f'no test {path}::{name}')
        elif row.number not in tests[path][name]:
            found.append(f'not in the docstring of {path}::{name}')
    return found


def test_the_table_is_whole_and_true():
    """Every row has a test function whose own docstring names the row, or says that nothing shows it."""
    named = {path for path, _ in NAMED_TEST.findall(TABLE)}
    files = {path: (TESTS / path).read_text(encoding='utf-8') for path in named if (TESTS / path).is_file()}
    assert faults(TABLE, files, ROWS) == []


# What follows tests the guard itself, with a table and a file that are made up.
FILE = '''"""Rows 1.1, 1.2, 1.4."""
def boot():
    """Row 1.4."""
    assert True
def test_one():
    """Boots; row 1.1."""
    assert True
def test_silent():
    assert True
def test_range():
    """Rows 1.1–1.9 of the seed map."""
    assert True
def test_empty():
    """Row 1.1."""
    pass
def test_outer():
    """Row 1.2."""
    def test_inner():
        """Row 1.1."""
        assert True
'''
ONE = '`unit/test_a.py::test_one`'


@pytest.mark.parametrize(
    ('line', 'fault'),
    [
        (f'| 1.1 | x | {ONE} |  |', None),
        (f'| 1.1 | x | {ONE} | in part: y needs z |', None),
        ('| 1.1 |  |  | not: comes with z |', None),
        # Neither the file's docstring, nor a range, nor a fixture's stands for a test.
        ('| 1.1 | x |  |  |', 'no test'),
        ('| 1.1 | x | `unit/test_a.py` |  |', 'no test'),
        ('| 1.1 | x | with the real CLI: `make demo` | otherwise: by hand |', 'no test'),
        ('| 1.1 | x | `unit/test_a.py::test_silent` |  |', 'not in the docstring of unit/test_a.py::test_silent'),
        ('| 1.1 | x | `unit/test_a.py::test_range` |  |', 'not in the docstring of unit/test_a.py::test_range'),
        ('| 1.1 | x | `unit/test_a.py::test_outer` |  |', 'not in the docstring of unit/test_a.py::test_outer'),
        (
            f'| 1.1 | x | {ONE}, `unit/test_a.py::test_silent` |  |',
            'not in the docstring of unit/test_a.py::test_silent',
        ),
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


def test_rows_are_read_from_words():
    """A list names its rows, a range none."""
    assert rows_named('Rows 0.6, 0.12 and 1.3 of the seed map: 0.9 from 2.17 on.') == {'0.6', '0.12', '1.3'}
    assert rows_named('Told once (seed map 2.2). Seed-map 1.5: yes; row 1.10') == {'2.2', '1.5', '1.10'}
    assert rows_named('Rows 0.6–0.8; seed rows 2.2 to 2.4, rows 1.10-1.12') == set()
    assert rows_named('No row, and 2.1 is a version.') == set()

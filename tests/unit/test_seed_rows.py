"""Row 0.15 of the seed map; and its table in the documentation: every row is there, each test that it names exists and
names the row in its own docstring, and what isn't shown is said."""
from __future__ import annotations

import ast
import re
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
from kilonova.rpc.conductor import ComputeTask
from kilonova.rpc.interface import Client
from kilonova.rpc.transport import OsloTransport, _endpoint

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / 'docs' / 'reference' / 'seed-map.md').read_text(encoding='utf-8')
# The last row of each seed that must be in the table.
LAST = {0: 28, 1: 42, 2: 6, 3: 28}
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
    flavor = objects.Flavor(id=1, name='tmp2', flavorid='tmp2', vcpus=16, memory_mb=65536)
    Client(ComputeTask, transport).migrate_server(
        RequestContext(overwrite=False), instance=None, scheduler_hint={}, live=False, rebuild=False, flavor=flavor,
        block_migration=None, disk_over_commit=None, operation='o')
    ((target, message),) = sent
    assert (target.topic, target.server, target.fanout) == ('conductor', None, None)
    assert transport._transport._driver._default_exchange == 'nova'
    assert (message['namespace'], message['method'], message['version']) == ('compute_task', 'migrate_server', '1.27')
    envelope = message['args']['flavor']
    assert (envelope['nova_object.name'], envelope['nova_object.namespace']) == ('Flavor', 'nova')
    assert envelope['nova_object.data']['vcpus'] == 16
    assert message['args']['operation'] == 'o'


def test_nobody_can_ask_for_a_fanout(bus):
    """Row 0.15: a call to all would get one of many answers; the derived clients don't even take the word."""
    transport, sent = bus
    with pytest.raises(TypeError, match='fanout'):
        Client(ComputeTask, transport).run_operation(RequestContext(overwrite=False), operation='o', fanout=True)
    assert sent == []


@pytest.mark.parametrize(('version', 'accepted'), [('1.27', True), ('1.4', True), ('1.28', False), ('2.0', False)])
def test_a_server_takes_messages_up_to_its_version(version, accepted):
    """Row 0.15: newer messages are refused by name of their version."""
    woken: list[str] = []
    runner: Any = SimpleNamespace(wake=lambda database, uuids, urgent: woken.extend(uuids))
    tasks = ComputeTaskEndpoint(runner, SimpleNamespace(main=lambda: None))
    dispatcher = messaging.rpc.dispatcher.RPCDispatcher([_endpoint(ComputeTask, tasks)], messaging.NoOpSerializer())
    incoming = SimpleNamespace(ctxt={}, client_timeout=None, message={
        'namespace': 'compute_task', 'method': 'run_operation', 'version': version, 'args': {'operation': 'o'}})
    if accepted:
        dispatcher.dispatch(incoming)
    else:
        with pytest.raises(messaging.UnsupportedVersion, match=re.escape(version)):
            dispatcher.dispatch(incoming)
    assert woken == ['o'] * accepted


# --- the table -------------------------------------------------------------------------------------------------------
def table_rows() -> dict[str, list[str]]:
    """Row number → the other cells of its line."""
    found = {}
    for line in TABLE.splitlines():
        if re.match(r'\| \d\.\d+ \|', line):
            number, *cells = (cell.strip() for cell in line.strip().strip('|').split(' | '))
            assert number not in found, number
            found[number] = cells
    return found


# How the last cell of a row begins, if it isn't empty.
KINDS = ('in part: ', 'otherwise: ', 'not: ')


def test_the_table_has_every_row():
    assert [number for number in ROWS if number not in table_rows()] == []


def test_a_row_names_tests_or_says_that_it_is_not_shown():
    """What is said to be shown, whole, in part or in another form, names a test; else the row says why not."""
    rows = table_rows()
    assert [number for number, (_, _, left) in rows.items() if left and not left.startswith(KINDS)] == []
    assert [number for number, (_, tests, left) in rows.items()
            if bool(NAMED_TEST.findall(tests)) == left.startswith('not: ')] == []
    assert [number for number, (shown, _, left) in rows.items() if bool(shown) == left.startswith('not: ')] == []


def rows_named(text: str) -> set[str]:
    """Rows of 'Rows 0.6–0.10, 0.12', 'seed map 1.5, 3.27', 'seed rows 2.2 to 2.4'."""
    found = set()
    for listed in re.findall(r'\b(?:rows?|seed[ -]map) ((?:\d\.\d+|[–,]| to | and | )+)', text, re.IGNORECASE):
        for seed, first, last in re.findall(r'(\d)\.(\d+)(?:(?:–| to )(?:\d\.)?(\d+))?', listed):
            found |= {f'{seed}.{number}' for number in range(int(first), int(last or first) + 1)}
    return found


def test_rows_are_read_from_words():
    assert rows_named('Rows 0.6–0.8, 0.12 and 1.3 of the seed map: 0.9 from 2.17 on.') == {
        '0.6', '0.7', '0.8', '0.12', '1.3'}
    assert rows_named('Told once (seed rows 2.2 to 2.4). Seed-map 1.5: yes') == {'2.2', '2.3', '2.4', '1.5'}
    assert rows_named('No row, and 2.1 is a version.') == set()


def rows_of_tests(text: str) -> dict[str, set[str]]:
    """Test function → the rows that its own docstring tells of. What the file's docstring says shows nothing: whichever
    test of it was meant may be gone."""
    return {node.name: rows_named(ast.get_docstring(node) or '') for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef) and node.name.startswith('test_')}


def test_a_row_is_named_by_the_test_itself():
    """Neither the file's docstring nor a fixture's, nor a function that is no test, stands for a test."""
    assert rows_of_tests('''"""Rows 1.1 to 1.3."""
def boot():
    """Row 1.4."""
def test_one():
    """Boots; row 1.5."""
def test_two_row_1_6():
    pass
''') == {'test_one': {'1.5'}, 'test_two_row_1_6': set()}


def test_the_table_names_tests_that_exist_and_name_the_row():
    named = [(number, path, name) for number, (_, tests, _) in table_rows().items()
             for path, name in NAMED_TEST.findall(tests)]
    assert len(named) > 200 and len(named) == len(NAMED_TEST.findall(TABLE))
    rows = {path: rows_of_tests((ROOT / 'tests' / path).read_text(encoding='utf-8'))
            for path in {path for _, path, _ in named}}
    assert [f'{path}::{name}' for _, path, name in named if name not in rows[path]] == []
    assert [f'{number}: {path}::{name}' for number, path, name in named if number not in rows[path][name]] == []

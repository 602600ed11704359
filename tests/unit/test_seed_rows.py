"""Row 0.15 of the seed map; and its table in the documentation: every row is there, each test that it names exists."""
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
ROWS = [f'0.{number}' for number in range(1, 29)] + [f'1.{number}' for number in range(33, 43)]


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


def test_the_table_has_every_row():
    rows = table_rows()
    assert [number for number in ROWS if number not in rows] == []
    # Each row is shown by a test, or says what is not shown and why.
    assert [number for number, (_, tests, left) in rows.items() if not tests and not left] == []


def test_the_table_names_tests_that_exist():
    named = re.findall(r'`([\w/]+\.py)::(\w+)`', TABLE)
    assert len(named) > 100
    tests: dict[str, set[str]] = {}
    for path, _ in named:
        if path not in tests:
            tree = ast.parse((ROOT / 'tests' / path).read_text(encoding='utf-8'))
            tests[path] = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert [f'{path}::{name}' for path, name in named if name not in tests[path]] == []

"""The messages on the bus: topic, exchange, namespace, version, method, and objects as envelopes."""

from __future__ import annotations

import re
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
    """A cast has topic, exchange, namespace, version and method of Nova, and its objects are envelopes."""
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
    """A derived client does not accept `fanout`: a call to all servers would get one of many answers."""
    transport, sent = bus
    with pytest.raises(TypeError, match='fanout'):
        Client(ComputeTask, transport).run_operation(RequestContext(overwrite=False), operation='o', fanout=True)
    assert sent == []


@pytest.mark.parametrize(('version', 'accepted'), [('1.30', True), ('1.28', True), ('1.31', False), ('2.0', False)])
def test_a_server_takes_messages_up_to_its_version(version, accepted):
    """A server refuses a message of a newer version with UnsupportedVersion, which names the version."""
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

"""What the bus carries (seed-map row 0.15): an extra queue hears what the API tells the conductor."""
from __future__ import annotations

import json
import time
from typing import Any

from kombu import Connection, Exchange, Queue

from tests.integration.site import Site


def captured(connection: Connection, queue: Queue, within: float = 20.0) -> list[dict[str, Any]]:
    """The messages until the first with namespace compute_task, without oslo.messaging's envelope."""
    messages: list[dict[str, Any]] = []
    deadline = time.monotonic() + within
    bound = queue(connection.default_channel)
    while time.monotonic() < deadline:
        message = bound.get(no_ack=True)
        if message is None:
            time.sleep(0.05)
            continue
        envelope = message.payload
        assert envelope['oslo.version'] == '2.0'
        messages.append(json.loads(envelope['oslo.message']))
        if messages[-1].get('namespace') == 'compute_task':
            return messages
    raise AssertionError(f'no message of compute_task among {[message["method"] for message in messages]}')


def test_a_create_on_the_bus_row_0_15(site: Site) -> None:
    """Method, version, namespace compute_task, arguments in nova_object envelopes, the request's context."""
    flavor = site.flavor('bus-gpu', gpus=1)
    url = f'amqp://kilonova:{site.cloud.secrets["rabbitmq"]}@127.0.0.1:{site.cloud.ports["rabbitmq"]}//'
    exchange = Exchange('nova', type='topic', durable=False, passive=True)
    queue = Queue('listener', exchange, routing_key='conductor', durable=False, auto_delete=True)
    with Connection(url) as connection:
        queue(connection.default_channel).declare()
        reply = site.ask_create('bus', flavor)
        message = captured(connection, queue)[-1]
        queue(connection.default_channel).delete()
    server = reply.data['server']['id']
    assert message['method'] == 'schedule_and_build_instances'
    assert message['namespace'] == 'compute_task'
    assert message['version'].split('.')[0] == '1'
    assert '_msg_id' not in message, 'a cast waits for no reply'
    assert message['_context_request_id'] == reply.headers['x-openstack-request-id']
    (build,) = envelopes(message['args']['build_requests'])
    assert build['nova_object.name'] == 'BuildRequest'
    assert build['nova_object.namespace'] == 'nova'
    assert build['nova_object.version'].startswith('1.')
    assert build['nova_object.data']['instance_uuid'] == server
    (spec,) = envelopes(message['args']['request_specs'])
    requests = spec['nova_object.data']['pci_requests']['nova_object.data']['requests']
    assert [request['nova_object.data']['alias_name'] for request in requests] == ['QuadroM4000-video']
    site.settle([server])


def envelopes(argument: Any) -> list[dict[str, Any]]:
    """A list of objects, as a bare list or as a list object."""
    return argument['nova_object.data']['objects'] if isinstance(argument, dict) else argument

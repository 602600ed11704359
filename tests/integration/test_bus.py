"""What the bus carries: extra queues hear what the API tells the conductor, and what
other programs are told."""

from __future__ import annotations

import json
import time
from typing import Any

from kombu import Connection, Exchange, Queue

from tests.integration.site import Site

TELLING = '[oslo_messaging_notifications]\ndriver = messagingv2\n[notifications]\nnotification_format = both\n'


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


def test_a_create_on_the_bus(site: Site) -> None:
    """Method, version, namespace compute_task, the operation's uuid, the request's context."""
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
    assert list(message['args']) == ['operations'] and len(message['args']['operations']) == 1
    site.settle([server])


def heard(connection: Connection, queue: Queue, last: str, within: float = 30.0) -> list[dict[str, Any]]:
    """Notifications until the one of event type ``last``."""
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + within
    bound = queue(connection.default_channel)
    while time.monotonic() < deadline:
        message = bound.get(no_ack=True)
        if message is None:
            time.sleep(0.05)
            continue
        found.append(json.loads(message.payload['oslo.message']))
        if found[-1]['event_type'] == last:
            return found
    raise AssertionError(f'no {last} among {[one["event_type"] for one in found]}')


def test_notifications_on_the_bus(site: Site) -> None:
    """Notifications of both forms arrive, each on its own topic: those of the scheduler's select and of the build
    on the host."""
    daemons = ('scheduler', 'compute-gpu1')
    flavor = site.flavor('bus-told')
    url = f'amqp://kilonova:{site.cloud.secrets["rabbitmq"]}@127.0.0.1:{site.cloud.ports["rabbitmq"]}//'
    exchange = Exchange('nova', type='topic', durable=False, passive=True)
    queues = [
        Queue(f'hears-{topic}', exchange, routing_key=f'{topic}.info', durable=False, auto_delete=True)
        for topic in ('notifications', 'versioned_notifications')
    ]
    site.configure(TELLING)
    try:
        for name in daemons:
            site.restart(name)
        with Connection(url) as connection:
            for queue in queues:
                queue(connection.default_channel).declare()
            server = site.create('told', flavor, user='admin', host='gpu1')
            old = heard(connection, queues[0], 'compute.instance.create.end')
            new = heard(connection, queues[1], 'instance.create.end')
            for queue in queues:
                queue(connection.default_channel).delete()
        site.settle([server])
    finally:
        site.configure('')
        for name in daemons:
            site.restart(name)
    told = [message for message in new if server in json.dumps(message['payload'])]
    scheduler = next(one['publisher_id'] for one in told if one['event_type'].startswith('scheduler'))
    assert scheduler.startswith('nova-scheduler:')
    assert [message['event_type'] for message in told] == [
        'scheduler.select_destinations.start',
        'scheduler.select_destinations.end',
        'instance.create.start',
        'instance.create.end',
    ]
    end = told[-1]
    assert (end['publisher_id'], end['priority']) == ('nova-compute:gpu1', 'INFO')
    assert end['payload']['nova_object.name'] == 'InstanceCreatePayload'
    assert end['payload']['nova_object.data']['state'] == 'active'
    assert '_context_auth_token' not in end or not end['_context_auth_token']
    assert [message['event_type'] for message in old if message['payload'].get('instance_id') == server] == [
        'compute.instance.create.start',
        'compute.instance.create.end',
    ]

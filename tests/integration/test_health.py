"""/health of the daemons, and what a compute does while it can't report (seed rows 2.2 to 2.4)."""
from __future__ import annotations

import json
import time
from typing import Any

from kombu import Connection, Exchange, Queue

from tests.integration.site import Site
from tools.cloud import http

PATIENCE = 60.0
DAEMONS = ('api', 'conductor', 'scheduler', 'compute-gpu1', 'compute-gpu2')


def health(site: Site, name: str) -> dict[str, Any]:
    """What a daemon says of itself; its code agrees with it."""
    reply = http.send('GET', f'http://127.0.0.1:{site.cloud.ports[f"health-{name}"]}/health', timeout=30)
    assert reply.status == (200 if reply.data['healthy'] else 503)
    assert [account for account, password in site.cloud.secrets.items() if password.encode() in reply.body] == []
    found: dict[str, Any] = reply.data
    return found


def await_unreachable(site: Site, name: str, wanted: list[str]) -> None:
    """Wait until a daemon says that it can't reach exactly these."""
    deadline = time.monotonic() + PATIENCE
    while (report := health(site, name))['unreachable'] != wanted:
        assert time.monotonic() < deadline, report
        time.sleep(0.2)


def next_heartbeat(site: Site) -> dict[str, Any]:
    """The next message of a compute that reports."""
    url = f'amqp://kilonova:{site.cloud.secrets["rabbitmq"]}@127.0.0.1:{site.cloud.ports["rabbitmq"]}//'
    exchange = Exchange('nova', type='topic', durable=False, passive=True)
    queue = Queue('heartbeats', exchange, routing_key='conductor', durable=False, auto_delete=True)
    deadline = time.monotonic() + PATIENCE
    with Connection(url) as connection:
        bound = queue(connection.default_channel)
        bound.declare()
        while time.monotonic() < deadline:
            message = bound.get(no_ack=True)
            if message is None:
                time.sleep(0.05)
                continue
            body: dict[str, Any] = json.loads(message.payload['oslo.message'])
            if body['method'] == 'object_action' and body['args']['objinst']['nova_object.name'] == 'Service':
                return body
    raise AssertionError('no heartbeat')


def test_health_and_heartbeats_rows_2_2_to_2_4(site: Site) -> None:
    """All is well; then Placement and the conductor are away; then they are back. Nobody is restarted for it.
    Rows 2.2, 2.4."""
    assert {name: health(site, name)['unreachable'] for name in DAEMONS} == {name: [] for name in DAEMONS}
    compute = health(site, 'compute-gpu1')
    assert (compute['service'], compute['host'], compute['state']) == ('nova-compute', 'gpu1', 'serving')
    assert set(compute['checks']) == {'broker', 'rpc', 'conductor', 'placement', 'libvirt'}

    message = next_heartbeat(site)
    assert message['version'] == '3.0' and 'namespace' not in {key for key in message if message[key]}
    arguments = message['args']
    instance = arguments.pop('objinst')
    assert arguments == {'objmethod': 'save', 'args': [], 'kwargs': {}}
    assert (instance['nova_object.namespace'], instance['nova_object.version'], instance['nova_object.changes']) == (
        'nova', '1.22', ['report_count'])
    assert set(instance['nova_object.data']) == {
        'id', 'uuid', 'host', 'binary', 'topic', 'report_count', 'disabled', 'disabled_reason', 'last_seen_up',
        'forced_down', 'version', 'created_at', 'updated_at', 'deleted_at', 'deleted'}

    size = site.log_size('compute-gpu1')
    site.stop('placement')
    site.stop('conductor')
    await_unreachable(site, 'scheduler', ['placement'])
    await_unreachable(site, 'compute-gpu1', ['conductor', 'placement'])
    await_unreachable(site, 'api', ['conductor', 'placement'])
    deadline = time.monotonic() + PATIENCE
    while 'Lost connection to nova-conductor for reporting service status.' not in site.log_after('compute-gpu1', size):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    # service_down_time is 10 s here.
    while row_of(site)['state'] != 'down':
        assert time.monotonic() < deadline
        time.sleep(0.2)
    site.start('placement')
    site.start('conductor')
    for name in DAEMONS:
        await_unreachable(site, name, [])
    while 'Recovered from being unable to report status.' not in site.log_after('compute-gpu1', size):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert row_of(site)['state'] == 'up'


def row_of(site: Site) -> dict[str, str]:
    """How the API shows the compute of gpu1."""
    (row,) = site.call('GET', '/os-services?host=gpu1', user='admin')['services']
    found: dict[str, str] = row
    return found

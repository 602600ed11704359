"""/health of the daemons, and what a compute does while it can't report."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
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


@contextlib.contextmanager
def conductors_messages(site: Site) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """A function that gives the calls of a Service object that were sent to conductors since the last time."""
    url = f'amqp://kilonova:{site.cloud.secrets["rabbitmq"]}@127.0.0.1:{site.cloud.ports["rabbitmq"]}//'
    exchange = Exchange('nova', type='topic', durable=False, passive=True)
    queue = Queue('heartbeats', exchange, routing_key='conductor', durable=False, auto_delete=True)
    with Connection(url) as connection:
        bound = queue(connection.default_channel)
        bound.declare()

        def take() -> list[dict[str, Any]]:
            found = []
            while (message := bound.get(no_ack=True)) is not None:
                body = json.loads(message.payload['oslo.message'])
                if body['method'] == 'object_action' and body['args']['objinst']['nova_object.name'] == 'Service':
                    found.append(body)
            return found

        yield take


def await_reports(site: Site, count: int) -> None:
    """Until that many reports of gpu1 were written."""
    seen = {row_of(site)['updated_at']}
    deadline = time.monotonic() + PATIENCE
    while len(seen) <= count:
        assert time.monotonic() < deadline
        time.sleep(0.2)
        seen.add(row_of(site)['updated_at'])


def test_reports_after_the_first_are_taken_together(site: Site) -> None:
    """The first report of a compute is an RPC call with Nova's message. The following ones are short messages,
    which conductors write together."""
    with conductors_messages(site) as take:
        site.restart('compute-gpu1')
        message = next(body for body in take() if 'report_count' in body['args']['objinst']['nova_object.changes'])
        assert message['version'] == '3.0' and 'namespace' not in {key for key in message if message[key]}
        arguments = message['args']
        instance = arguments.pop('objinst')
        assert arguments == {'objmethod': 'save', 'args': [], 'kwargs': {}}
        assert (
            instance['nova_object.namespace'],
            instance['nova_object.version'],
            instance['nova_object.changes'],
        ) == ('nova', '1.22', ['report_count'])
        assert set(instance['nova_object.data']) == {
            'id',
            'uuid',
            'host',
            'binary',
            'topic',
            'report_count',
            'disabled',
            'disabled_reason',
            'last_seen_up',
            'forced_down',
            'version',
            'created_at',
            'updated_at',
            'deleted_at',
            'deleted',
        }
        await_reports(site, 2)
        take()
        await_reports(site, 3)
        assert take() == []


def test_who_is_away_is_told_and_the_host_counts_as_down(site: Site) -> None:
    """Placement and the conductor are stopped and come back. /health and the log say who does not answer, the host
    counts as down meanwhile, and no daemon has to be restarted."""
    assert {name: health(site, name)['unreachable'] for name in DAEMONS} == {name: [] for name in DAEMONS}
    compute = health(site, 'compute-gpu1')
    assert (compute['service'], compute['host'], compute['state']) == ('nova-compute', 'gpu1', 'serving')
    assert set(compute['checks']) == {'broker', 'rpc', 'conductor', 'placement', 'libvirt'}

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

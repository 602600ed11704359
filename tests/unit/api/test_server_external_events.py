"""Events that other services tell."""

from __future__ import annotations

import pytest

from kilonova.db.queries import migrations
from tests.fixtures.neutron import FakeNeutron

PATH = '/os-server-external-events'
NOBODY = '11111111-2222-3333-4444-555555555555'


def tell(site, *events, **kwargs):
    response = site.request('POST', PATH, {'events': list(events)}, **kwargs)
    return response.status_int, response.json['events']


def test_each_event_has_its_code(site, statements):
    """Each event of a request gets its own code; an event that cannot be handled gets 400, 404 or 422."""
    server, second, homeless, waiting = site.server(), site.server(site.cell2), site.server(host=None), site.create()
    site.compute.calls.clear()
    statements.clear()
    power = {'name': 'power-update', 'tag': 'POWER_ON'}
    code, told = tell(
        site,
        {**power, 'server_uuid': server},
        {**power, 'server_uuid': NOBODY},
        {**power, 'server_uuid': homeless},
        {**power, 'server_uuid': waiting},
        {'name': 'power-update', 'server_uuid': server, 'tag': 'SIDEWAYS'},
        {'name': 'network-changed', 'server_uuid': server},
        {'name': 'network-changed', 'server_uuid': NOBODY},
        {'name': 'network-vif-plugged', 'server_uuid': second, 'tag': 'port', 'status': 'failed'},
        *(
            {'name': name, 'server_uuid': server, **({'tag': 'x'} if tag else {})}
            for tag in (True, False)
            for name in ('volume-extended', 'volume-reimaged', 'accelerator-request-bound')
        ),
    )
    assert code == 207
    assert [(event['code'], event['status']) for event in told] == [
        (200, 'completed'),
        *((number, 'failed') for number in (404, 422, 422, 400, 422, 404, 422, *[422] * 3, *[400] * 3)),
    ]
    assert told[0] == {**power, 'server_uuid': server, 'status': 'completed', 'code': 200}
    assert len([1 for _, statement in statements if statement != 'COMMIT']) == 3
    assert site.compute.calls == []


@pytest.mark.parametrize(
    ('name', 'since'),
    [
        ('network-vif-unplugged', 1),
        ('volume-extended', 51),
        ('power-update', 76),
        ('accelerator-request-bound', 82),
        ('volume-reimaged', 93),
    ],
)
def test_names_of_each_version(site, name, since):
    event = {'name': name, 'server_uuid': site.server(), 'tag': 'POWER_ON'}
    assert tell(site, event, version=f'2.{since}')[0] == (200 if name == 'power-update' else 207)
    if since > 1:
        code, message = site.fault('POST', PATH, {'events': [event]}, version=f'2.{since - 1}')
        assert code == 400
        assert message.startswith(f'Invalid input for field/attribute name. Value: {name}. ')


@pytest.mark.parametrize(
    'body',
    [
        {'events': []},
        {'events': [{'name': 'network-changed'}]},
        {},
        {'events': [{'name': 'network-changed', 'server_uuid': 'x'}]},
        {'events': [{'name': 'network-changed', 'server_uuid': NOBODY, 'status': 'odd'}]},
        {'events': [{'name': 'network-changed', 'server_uuid': NOBODY, 'tag': 'x' * 256}]},
    ],
)
def test_bad_events(site, body):
    assert site.fault('POST', PATH, body)[0] == 400


def test_services_and_administrators_may(site):
    event = {'events': [{'name': 'network-changed', 'server_uuid': site.server()}]}
    assert site.fault('POST', PATH, event, user='bob') == (
        403,
        "Policy doesn't allow os_compute_api:os-server-external-events:create to be performed.",
    )


@pytest.mark.parametrize(
    ('vm_state', 'tag', 'kind', 'task'),
    [('active', 'POWER_OFF', 'stop', 'powering-off'), ('stopped', 'POWER_ON', 'start', 'powering-on')],
)
def test_power_updates_start_and_stop(site, vm_state, tag, kind, task):
    """Whoever locked it: its power has changed already."""
    server = site.server(vm_state=vm_state, locked=True)
    site.conductor.calls.clear()
    event = {'name': 'power-update', 'server_uuid': server, 'tag': tag}
    assert tell(site, event, event)[0] == 200
    (row,) = site.rows(server)
    assert (row['kind'], site.row(server)['task_state']) == (kind, task)
    assert site.conductor.calls == [('run_operation', {'operation': row['uuid']})]
    (told,) = site.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']
    assert told['action'] == kind
    assert site.compute.calls == []


@pytest.mark.parametrize(
    ('values', 'tag'),
    [
        ({'vm_state': 'active'}, 'POWER_ON'),
        ({'vm_state': 'stopped'}, 'POWER_OFF'),
        ({'vm_state': 'error'}, 'POWER_OFF'),
        ({'vm_state': 'active', 'task_state': 'resize_prep'}, 'POWER_OFF'),
    ],
)
def test_power_updates_that_change_nothing(site, values, tag):
    server = site.server(**values)
    assert tell(site, {'name': 'power-update', 'server_uuid': server, 'tag': tag})[0] == 200
    assert site.rows(server) == []


def test_plugged_and_unplugged_ports_are_told_to_the_host(make_site):
    """With a network service; each host gets one message. A server without a host waits for nothing."""
    site = make_site(neutron=FakeNeutron())
    server, second, homeless = site.server(), site.server(), site.server(host=None)
    site.compute.calls.clear()
    plugged = {'name': 'network-vif-plugged', 'status': 'completed', 'tag': 'port1'}
    failed = {'name': 'network-vif-unplugged', 'status': 'failed', 'tag': 'port2'}
    code, told = tell(
        site,
        {**plugged, 'server_uuid': server},
        {**plugged, 'server_uuid': homeless},
        {**plugged, 'server_uuid': NOBODY},
        {**failed, 'server_uuid': second},
        {'name': 'network-vif-plugged', 'server_uuid': server},
        {'name': 'network-changed', 'server_uuid': server},
        {'name': 'network-vif-deleted', 'server_uuid': server, 'tag': 'port1'},
    )
    assert (code, [event['code'] for event in told]) == (207, [200, 422, 404, 200, 400, 422, 422])
    ((method, sent),) = site.compute.calls
    assert (method, sent['server'], [each.uuid for each in sent['instances']]) == (
        'external_instance_event',
        'h1',
        [server, second],
    )
    assert [(event.instance_uuid, event.name, event.status, event.tag) for event in sent['events']] == [
        (server, 'network-vif-plugged', 'completed', 'port1'),
        (second, 'network-vif-unplugged', 'failed', 'port2'),
    ]


def test_both_hosts_of_a_move_are_told(make_site):
    """A guest waits where its server isn't yet, or is no more: evacuated, reverted. Moves that ended are no reason."""
    site = make_site(neutron=FakeNeutron())
    server, other = site.server(), site.server()
    for number, (of, status) in enumerate(((server, 'accepted'), (other, 'done'), (other, 'reverted'))):
        with site.cell1.write() as conn:
            migrations.create(
                conn,
                {
                    'uuid': f'{number:08d}-2222-3333-4444-555555555555',
                    'instance_uuid': of,
                    'status': status,
                    'migration_type': 'evacuation',
                    'source_compute': 'h1',
                    'dest_compute': f'h{number + 2}',
                },
            )
    site.compute.calls.clear()
    assert (
        tell(site, *({'name': 'network-vif-plugged', 'server_uuid': uuid, 'tag': 'port'} for uuid in (server, other)))[
            0
        ]
        == 200
    )
    assert [(sent['server'], [event.instance_uuid for event in sent['events']]) for _, sent in site.compute.calls] == [
        ('h1', [server, other]),
        ('h2', [server]),
    ]

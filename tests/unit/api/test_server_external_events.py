"""Events that other services tell (rest-api.md §2.11)."""
from __future__ import annotations

import pytest

PATH = '/os-server-external-events'
NOBODY = '11111111-2222-3333-4444-555555555555'


def tell(site, *events, **kwargs):
    response = site.request('POST', PATH, {'events': list(events)}, **kwargs)
    return response.status_int, response.json['events']


def test_events_go_to_their_hosts_one_cast_each(site, statements):
    first, second = site.server(), site.server(site.cell2)
    third = site.server(host='h2')
    site.compute.calls.clear()
    statements.clear()
    code, told = tell(
        site, {'name': 'network-changed', 'server_uuid': first},
        {'name': 'network-vif-plugged', 'server_uuid': second, 'tag': 'port', 'status': 'failed'},
        {'name': 'volume-extended', 'server_uuid': first, 'tag': 'volume', 'status': 'in-progress'},
        {'name': 'network-vif-deleted', 'server_uuid': third, 'tag': 'port'})
    assert code == 200 and [event['code'] for event in told] == [200] * 4
    assert told[0] == {'name': 'network-changed', 'server_uuid': first, 'status': 'completed', 'code': 200}
    assert told[1]['status'] == 'failed'
    assert len([1 for _, statement in statements if statement != 'COMMIT']) == 3
    casts = {call['server']: call for name, call in site.compute.calls if name == 'external_instance_event'}
    assert set(casts) == {'h1', 'h2'} and len(site.compute.calls) == 2
    assert {instance.uuid for instance in casts['h1']['instances']} == {first, second}
    assert [(event.instance_uuid, event.name, event.status, event.tag) for event in casts['h1']['events']] == [
        (first, 'network-changed', 'completed', None), (second, 'network-vif-plugged', 'failed', 'port'),
        (first, 'volume-extended', 'in-progress', 'volume')]
    assert casts['h1']['events'][1].key == 'network-vif-plugged-port'


def test_each_event_has_its_code(site):
    server, homeless, waiting = site.server(), site.server(host=None), site.create()
    code, told = tell(
        site, {'name': 'network-changed', 'server_uuid': server}, {'name': 'network-changed', 'server_uuid': NOBODY},
        {'name': 'network-changed', 'server_uuid': homeless}, {'name': 'network-changed', 'server_uuid': waiting},
        {'name': 'volume-extended', 'server_uuid': server}, {'name': 'volume-reimaged', 'server_uuid': server},
        {'name': 'power-update', 'server_uuid': server, 'tag': 'SIDEWAYS'})
    assert code == 207
    assert [(event['code'], event['status']) for event in told] == [
        (200, 'completed'), (404, 'failed'), (422, 'failed'), (422, 'failed'), (400, 'failed'), (400, 'failed'),
        (400, 'failed')]
    assert [name for name, _ in site.compute.calls] == ['external_instance_event']


@pytest.mark.parametrize(('name', 'since'), [
    ('network-vif-unplugged', 1), ('volume-extended', 51), ('power-update', 76), ('accelerator-request-bound', 82),
    ('volume-reimaged', 93)])
def test_names_of_each_version(site, name, since):
    event = {'name': name, 'server_uuid': site.server(), 'tag': 'POWER_ON'}
    assert tell(site, event, version=f'2.{since}')[0] == 200
    if since > 1:
        code, message = site.fault('POST', PATH, {'events': [event]}, version=f'2.{since - 1}')
        assert code == 400
        assert message.startswith(f'Invalid input for field/attribute name. Value: {name}. ')


@pytest.mark.parametrize('body', [
    {'events': []}, {'events': [{'name': 'network-changed'}]}, {},
    {'events': [{'name': 'network-changed', 'server_uuid': 'x'}]},
    {'events': [{'name': 'network-changed', 'server_uuid': NOBODY, 'status': 'odd'}]},
    {'events': [{'name': 'network-changed', 'server_uuid': NOBODY, 'tag': 'x' * 256}]}])
def test_bad_events(site, body):
    assert site.fault('POST', PATH, body)[0] == 400


def test_services_and_administrators_may(site):
    event = {'events': [{'name': 'network-changed', 'server_uuid': site.server()}]}
    assert site.fault('POST', PATH, event, user='bob') == (
        403, "Policy doesn't allow os_compute_api:os-server-external-events:create to be performed.")


@pytest.mark.parametrize(('vm_state', 'tag', 'kind', 'task'), [
    ('active', 'POWER_OFF', 'stop', 'powering-off'), ('stopped', 'POWER_ON', 'start', 'powering-on')])
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


@pytest.mark.parametrize(('values', 'tag'), [
    ({'vm_state': 'active'}, 'POWER_ON'), ({'vm_state': 'stopped'}, 'POWER_OFF'),
    ({'vm_state': 'error'}, 'POWER_OFF'), ({'vm_state': 'active', 'task_state': 'resize_prep'}, 'POWER_OFF')])
def test_power_updates_that_change_nothing(site, values, tag):
    server = site.server(**values)
    assert tell(site, {'name': 'power-update', 'server_uuid': server, 'tag': tag})[0] == 200
    assert site.rows(server) == []

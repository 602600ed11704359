"""evacuate: servers of a dead host are built on another one, and the host that comes back clears away its part."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.pci.request import Aliases, PciRequestAliasNotDefined
from kilonova.states import PowerState
from kilonova.virt.libvirt.guests import LibvirtGuests
from kilonova.virt.parts.guests import GuestFailed
from tests.fixtures.cloud import IMAGE_ID, Cloud
from tests.flows.cases import force_down, lose_host

GPUS = {
    'gpu1': ['0000:08:00.0', '0000:09:00.0'],
    'gpu2': ['0000:88:00.0', '0000:89:00.0'],
    'gpu3': ['0000:a8:00.0', '0000:a9:00.0'],
}
RELEASE = ('release',)


@pytest.fixture
def small(make_cloud, monkeypatch) -> Cloud:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    return make_cloud(GPUS)


def evacuate(cloud: Cloud, server: str, expect: int = 200, version: str | None = None, **body: Any) -> Any:
    """The answer; only what waits for a dead host is left."""
    more = {} if version is None else {'version': version}
    response = cloud.request('POST', f'/servers/{server}/action', {'evacuate': body}, **more)
    assert response.status_int == expect, response.text
    cloud.settle(kinds_left=RELEASE)
    return response


def text(response: Any) -> str:
    return next(iter(response.json.values()))['message']


def lost(cloud: Cloud, gpus: int = 0, **more: Any) -> tuple[str, str]:
    """A server and its host, which is dead and forced down."""
    server = cloud.boot(cloud.flavor(gpus=gpus), **more)
    host = cloud.host_of(server)
    lose_host(cloud, host)
    return server, host


def migration_of(cloud: Cloud, server: str) -> dict[str, Any]:
    (row,) = cloud.ok('GET', f'/os-migrations?instance_uuid={server}')['migrations']
    return row


def come_back(cloud: Cloud, host: str) -> None:
    cloud.start_compute(host)
    assert migration_status(cloud, host) <= {'completed', 'error'}
    force_down(cloud, host, False)
    cloud.settle()


def migration_status(cloud: Cloud, host: str) -> set[str]:
    return {row['status'] for row in cloud.ok('GET', f'/os-migrations?source_compute={host}')['migrations']}


@pytest.mark.parametrize('gpus', [0, 2])
def test_a_server_of_a_dead_host_is_built_elsewhere_and_its_host_cleans_up(small, gpus):
    server, source = lost(small, gpus)
    held = small.owned(server)
    evacuate(small, server)
    dest = small.host_of(server)
    assert dest not in (None, source) and small.status(server) == 'SHUTOFF', small.story(server)
    assert migration_of(small, server)['status'] == 'done'
    assert ('release', source) in [(row['kind'], row['host']) for row in small.rows()], 'the audit must list it'
    assert len(small.hostdevs(server)) == gpus and len(set(small.owned(server)) - set(held)) == gpus
    assert (small.directory / source / 'instances' / server).exists()
    # Nobody makes it come back before it has cleaned up.
    service = small.ok('GET', f'/os-services?host={source}&binary=nova-compute')['services'][0]
    assert small.request('PUT', f'/os-services/{service["id"]}', {'forced_down': False}).status_int == 400
    come_back(small, source)
    assert not (small.directory / source / 'instances' / server).exists()
    assert small.owned(server) == [f'{dest} {address}' for address in small.hostdevs(server)]
    small.assert_clean()
    small.action(server, 'os-start')
    assert small.status(server) == 'ACTIVE'
    small.assert_clean()


@pytest.mark.parametrize(
    ('version', 'stopped', 'state'),
    [('2.95', False, 'SHUTOFF'), ('2.94', False, 'ACTIVE'), ('2.94', True, 'SHUTOFF'), ('2.13', False, 'ACTIVE')],
)
def test_versions_say_whether_it_runs(small, monkeypatch, version, stopped, state):
    given, spawn = [], LibvirtGuests.spawn

    def noting(*args, **kwargs):
        given.append(kwargs['admin_password'])
        spawn(*args, **kwargs)

    monkeypatch.setattr(LibvirtGuests, 'spawn', noting)
    server = small.boot(small.flavor(gpus=1))
    source = small.host_of(server)
    if stopped:
        small.action(server, 'os-stop')
    lose_host(small, source)
    body = {'onSharedStorage': False} if version == '2.13' else {}
    response = evacuate(small, server, version=version, adminPass='seekr3t', **body)
    assert given[-1] == 'seekr3t'
    assert small.status(server) == state, small.story(server)
    wanted = PowerState.RUNNING if state == 'ACTIVE' else PowerState.SHUTDOWN
    assert small.show(server)['OS-EXT-STS:power_state'] == wanted
    assert (response.json == {'adminPass': 'seekr3t'}) if version == '2.13' else not response.body
    come_back(small, source)
    small.assert_clean()


def test_a_host_that_may_still_run_it_is_refused(small):
    server = small.boot(small.flavor())
    host = small.host_of(server)
    assert text(evacuate(small, server, 400)) == f'Compute service of {host} is still in use.'
    small.crash_compute(host)
    silence(small, host)
    assert 'force the service down' in text(evacuate(small, server, 409))
    force_down(small, host, True)
    assert text(evacuate(small, server, 400, host=host)) == "The target host can't be the same one."
    assert evacuate(small, server, 404, host='nowhere').status_int == 404
    evacuate(small, server)
    assert small.host_of(server) != host


def silence(cloud: Cloud, host: str) -> None:
    """Its last report is long ago."""
    with cloud.cell.write() as conn:
        conn.exec_driver_sql(f"UPDATE services SET last_seen_up = '2020-01-01 00:00:00' WHERE host = '{host}'")


def test_a_named_host_is_the_schedulers_unless_forced(small):
    server, source = lost(small, gpus=2)
    other = next(host for host in GPUS if host != source)
    full = small.boot(small.flavor(gpus=2), host=other)
    assert small.host_of(full) == other
    evacuate(small, server, host=other)
    assert small.host_of(server) == source and small.status(server) == 'ACTIVE', small.story(server)
    assert migration_of(small, server)['status'] == 'error'
    third = next(host for host in GPUS if host not in (source, other))
    evacuate(small, server, version='2.67', host=third, force=True)
    assert small.host_of(server) == third
    assert evacuate(small, full, 400, version='2.68', host=third, force=True)
    come_back(small, source)
    small.assert_clean()


@pytest.mark.parametrize(
    ('version', 'body', 'goes'),
    [('2.28', {}, True), ('2.67', {'force': True}, True), ('2.67', {'force': False}, False), ('2.95', {}, False)],
)
def test_a_forced_host_takes_it_whatever_filters_say(make_cloud, monkeypatch, version, body, goes):
    """Where another one of its user's servers is, from which it shall be apart; a third host is free. Until 2.28 each
    named host is forced."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    cloud = make_cloud(GPUS, filter_scheduler__enabled_filters=['ComputeFilter', 'DifferentHostFilter'])
    flavor = cloud.flavor()
    peer = cloud.boot(flavor)
    server = cloud.ok(
        'POST',
        '/servers',
        {
            'server': {'name': 'apart', 'flavorRef': flavor, 'imageRef': IMAGE_ID, 'networks': 'none'},
            'os:scheduler_hints': {'different_host': [peer]},
        },
    )['server']['id']
    cloud.settle()
    source, named = cloud.host_of(server), cloud.host_of(peer)
    assert source != named
    lose_host(cloud, source)
    evacuate(cloud, server, version=version, host=named, **body)
    assert cloud.host_of(server) == (named if goes else source), cloud.story(server)
    assert (migration_of(cloud, server)['status'] == 'error') is not goes
    come_back(cloud, source)
    cloud.assert_clean()


def test_a_host_that_is_disabled_takes_what_is_forced_on_it(small):
    """One that is down takes nothing, disabled or not."""
    server, source = lost(small, gpus=1)
    disabled, down = (host for host in GPUS if host != source)
    for host in (disabled, down):
        (service,) = small.ok('GET', f'/os-services?host={host}&binary=nova-compute')['services']
        small.ok('PUT', f'/os-services/{service["id"]}', {'status': 'disabled'})
    lose_host(small, down)
    for version, body in (('2.67', {'force': False}), ('2.68', {}), ('2.95', {})):
        evacuate(small, server, version=version, host=disabled, **body)
        assert small.host_of(server) == source and '1 host considered: 1 disabled.' in str(small.story(server)[0])
    for version, body in (('2.28', {}), ('2.67', {'force': True})):
        evacuate(small, server, version=version, host=down, **body)
        assert small.host_of(server) == source and '1 host considered: 1 down.' in str(small.story(server)[0])
    evacuate(small, server, version='2.67', host=disabled, force=True)
    assert small.host_of(server) == disabled and small.status(server) == 'ACTIVE', small.story(server)
    come_back(small, source)
    come_back(small, down)
    small.assert_clean()


@pytest.mark.parametrize('gpus', [0, 1])
@pytest.mark.parametrize(
    ('version', 'body'),
    [('2.13', {'onSharedStorage': False}), ('2.28', {}), ('2.29', {'force': True}), ('2.67', {'force': True})],
)
def test_each_way_to_force_reaches_a_disabled_host(small, gpus, version, body):
    """A forced evacuation reaches a disabled host, at each API version that can force."""
    server, source = lost(small, gpus=gpus)
    disabled = next(host for host in GPUS if host != source)
    (service,) = small.ok('GET', f'/os-services?host={disabled}&binary=nova-compute')['services']
    small.ok('PUT', f'/os-services/{service["id"]}', {'status': 'disabled', 'disabled_reason': 'spare'})
    evacuate(small, server, version=version, host=disabled, **body)
    assert small.host_of(server) == disabled and small.status(server) == 'ACTIVE', small.story(server)
    come_back(small, source)
    small.assert_clean()


@pytest.mark.parametrize('refusing', [1, 2])
def test_a_host_that_refuses_gives_way_to_the_next_and_the_last_leaves_it_as_it_was(small, monkeypatch, refusing):
    server, source = lost(small, gpus=1)
    before, held = small.placement.allocations()[server], small.owned(server)
    left = [refusing]
    for compute in small.computes.values():
        guests = compute.host.driver.guests

        def spawn(*args: Any, real: Any = guests.spawn, **kwargs: Any) -> None:
            if left[0]:
                left[0] -= 1
                raise GuestFailed(act='start', uuid=server, reason='injected')
            real(*args, **kwargs)

        monkeypatch.setattr(guests, 'spawn', spawn)
    evacuate(small, server)
    if refusing == 1:
        assert small.host_of(server) not in (source, None)
        come_back(small, source)
    else:
        assert small.host_of(server) == source and small.status(server) == 'ACTIVE', small.story(server)
        assert small.placement.allocations()[server] == before and small.owned(server) == held
        assert migration_of(small, server)['status'] == 'error' and small.rows() == []
        small.start_compute(source)
        force_down(small, source, False)
    small.assert_clean()


def test_a_deleted_server_is_cleaned_up_too(small):
    server, source = lost(small, gpus=1)
    evacuate(small, server)
    small.request('DELETE', f'/servers/{server}')
    small.settle(kinds_left=RELEASE)
    assert small.status(server) == 'GONE' and small.owned(server)
    come_back(small, source)
    assert not small.owned(server)
    small.assert_clean()


@pytest.mark.parametrize(
    ('version', 'body', 'message'),
    [
        ('2.13', {'onSharedStorage': True}, None),
        ('2.94', {}, None),
        ('2.13', {'onSharedStorage': False}, 'Invalid state of instance files on shared storage'),
    ],
)
def test_disks_on_shared_storage_are_taken_over(make_cloud, monkeypatch, version, body, message):
    """Before 2.14 the user says whether they are; from then on Kilonova sees it."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    cloud = make_cloud(GPUS, one_storage=True)
    server, source = lost(cloud, gpus=1)
    mark = cloud.instances_of(source) / server / 'mark'
    mark.write_text('its user wrote this')
    evacuate(cloud, server, version=version, **body)
    assert mark.read_text() == 'its user wrote this'
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    if message is None:
        assert cloud.host_of(server) != source and migration_of(cloud, server)['status'] == 'done'
        come_back(cloud, source)
    else:
        assert cloud.host_of(server) == source and message in str(cloud.story(server))
        assert migration_of(cloud, server)['status'] == 'error'
        cloud.start_compute(source)
        force_down(cloud, source, False)
        cloud.settle()
    assert mark.read_text() == 'its user wrote this', 'the host that came back removed what is not its own'
    assert (mark.parent / 'owner').read_text() == cloud.host_of(server)
    cloud.assert_clean()


def test_disks_that_are_not_shared_as_the_user_said_end_it(small):
    server, source = lost(small)
    evacuate(small, server, version='2.13', onSharedStorage=True)
    assert small.host_of(server) == source and small.status(server) == 'ACTIVE', small.story(server)
    assert 'Invalid state of instance files on shared storage' in str(small.story(server))
    assert migration_of(small, server)['status'] == 'error'


def test_its_action_names_each_step(small):
    server, source = lost(small)
    evacuate(small, server)
    (action,) = [
        row
        for row in small.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']
        if row['action'] == 'evacuate'
    ]
    shown = small.ok('GET', f'/servers/{server}/os-instance-actions/{action["request_id"]}')['instanceAction']
    found = {event['event']: event['result'] for event in shown['events']}
    assert found == {'rebuild_server': 'Success', 'compute_rebuild_instance': 'Success'}
    assert small.host_of(server) != source


def test_servers_of_a_renamed_alias_are_moved_found_1_13(small: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cold migration and an evacuation ask for the devices that the create asked for."""
    server = small.boot(small.flavor(gpus=1))

    def unknown(aliases: Any, name: str) -> None:
        raise PciRequestAliasNotDefined(alias=name)

    monkeypatch.setattr(Aliases, '__getitem__', unknown)
    small.action(server, 'migrate')
    small.action(server, 'confirmResize')
    host = small.host_of(server)
    lose_host(small, host)
    evacuate(small, server, version='2.14')
    assert small.status(server) == 'ACTIVE' and small.host_of(server) != host
    assert len(small.hostdevs(server)) == 1
    come_back(small, host)
    small.assert_clean()

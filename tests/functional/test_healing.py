"""What servers held before it was reported gets into their Placement allocations (healing)."""

from __future__ import annotations

import json
import logging
import uuid

import pytest

ONE, TWO, THREE = '0000:08:00.0', '0000:09:00.0', '0000:0a:00.0'
SILENT = {'pci__report_in_placement': False, 'filter_scheduler__pci_in_placement': False}
REPORTING = {'pci__report_in_placement': True, 'filter_scheduler__pci_in_placement': True}
STRANGER = str(uuid.UUID(int=7))


def restart(cloud, *hosts, **more):
    """The computes stop and come back."""
    for host in hosts or cloud.gpus:
        cloud.crash_compute(host)
        cloud.start_compute(host, **more)


def switch_on(cloud):
    """The second step: API and scheduler ask Placement for devices."""
    cloud.conf.set_override('pci_in_placement', True, 'filter_scheduler')


def allocated(cloud, consumer):
    """The devices of a consumer's allocations, by address."""
    return sorted(name.split('_')[1].lower() for name in cloud.placement.allocations().get(consumer, {}) if '_' in name)


def others(cloud, consumer):
    """A consumer's allocations without devices."""
    return {name: amounts for name, amounts in cloud.placement.allocations()[consumer].items() if '_' not in name}


def writes(cloud):
    return [request for request in cloud.placement.requests if request[0] != 'GET']


def asked(cloud, act):
    """What ``act`` asks of Placement."""
    cloud.placement.requests.clear()
    act()
    return list(cloud.placement.requests)


def warnings(caplog):
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == 'kilonova.compute.node' and record.levelno >= logging.WARNING
    ]


def lose(cloud, server):
    """Take the devices from a server's allocations; what it had on their providers."""
    client = cloud.placement.client
    there = client.get_allocations(server)
    devices = {row['uuid'] for row in client.list_providers() if '_' in row['name']}
    client.claim(
        server,
        {rp: given for rp, given in there['allocations'].items() if rp not in devices},
        project_id=there['project_id'],
        user_id=there['user_id'],
        generation=there['consumer_generation'],
    )
    return {rp: given for rp, given in there['allocations'].items() if rp in devices}


@pytest.fixture
def silent(make_cloud):
    """Two hosts with three devices each that aren't reported."""
    return make_cloud({'gpu1': [ONE, TWO, THREE], 'gpu2': ['0000:85:00.0', '0000:86:00.0', '0000:87:00.0']}, **SILENT)


def test_servers_that_were_there_before_reporting(silent):
    cloud = silent
    servers = [cloud.boot(cloud.flavor(gpus=gpus)) for gpus in (3, 2, 1, 0)]
    before = {server: others(cloud, server) for server in servers}
    assert [allocated(cloud, server) for server in servers] == [[], [], [], []]
    cloud.assert_clean()
    restart(cloud, **REPORTING)
    for server in servers:
        assert allocated(cloud, server) == cloud.hostdevs(server)
        assert others(cloud, server) == before[server]
    cloud.assert_clean()
    switch_on(cloud)
    assert cloud.status(cloud.boot(cloud.flavor(gpus=1))) == 'ERROR'
    cloud.request('DELETE', f'/servers/{servers[2]}')
    cloud.settle()
    assert cloud.status(cloud.boot(cloud.flavor(gpus=1))) == 'ACTIVE'
    cloud.assert_clean()


def test_a_second_start_writes_nothing_and_further_looks_ask_nothing(silent):
    cloud = silent
    server = cloud.boot(cloud.flavor(gpus=2), availability_zone='nova:gpu1')
    restart(cloud, **REPORTING)
    before = cloud.placement.allocations()
    cloud.placement.requests.clear()
    restart(cloud, **REPORTING)
    assert writes(cloud) == []
    assert cloud.placement.requests.count(('GET', f'/allocations/{server}')) == 1
    assert cloud.placement.allocations() == before
    update = cloud.computes['gpu1'].node.update
    idle = asked(cloud, update)
    assert not [path for _, path in idle if '/allocations' in path]
    switch_on(cloud)
    more = cloud.boot(cloud.flavor(gpus=1), availability_zone='nova:gpu1')
    assert allocated(cloud, more) == cloud.hostdevs(more)
    cloud.messages.clear()
    assert asked(cloud, update) == idle
    assert 'object_class_action_versions' in [method for _, _, _, method in cloud.messages]
    cloud.messages.clear()
    assert asked(cloud, update) == idle
    assert cloud.messages == []


def test_servers_that_boot_between_the_two_steps(silent):
    """Reported, but not asked for yet: the next look finds what the scheduler didn't allocate."""
    cloud = silent
    restart(cloud, **REPORTING)
    server = cloud.boot(cloud.flavor(gpus=2), availability_zone='nova:gpu1')
    assert allocated(cloud, server) == []
    cloud.computes['gpu1'].node.update()
    assert allocated(cloud, server) == cloud.hostdevs(server)
    cloud.assert_clean()


@pytest.mark.parametrize('finish', ['confirmResize', 'revertResize'])
def test_a_server_in_a_move_waits(silent, finish):
    cloud = silent
    server = cloud.boot(cloud.flavor(gpus=1))
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=2)})
    assert cloud.status(server) == 'VERIFY_RESIZE'
    before = cloud.placement.allocations()
    restart(cloud, **REPORTING)
    assert cloud.placement.allocations() == before
    for host in cloud.gpus:
        paths = [path for _, path in asked(cloud, cloud.computes[host].node.update)]
        assert paths and not [path for path in paths if '/allocations' in path]
    cloud.action(server, finish)
    assert cloud.status(server) == 'ACTIVE'
    for host in cloud.gpus:
        cloud.computes[host].node.update()
    assert allocated(cloud, server) == cloud.hostdevs(server)
    assert len(allocated(cloud, server)) == (2 if finish == 'confirmResize' else 1)
    cloud.assert_clean()


def test_a_device_that_somebody_else_has_in_placement_is_left_alone(cloud, caplog):
    server = cloud.boot(cloud.flavor(gpus=1), availability_zone='nova:gpu1')
    (address,) = cloud.hostdevs(server)
    taken = lose(cloud, server)
    cloud.placement.client.claim(STRANGER, taken, project_id='p', user_id='u')
    before = cloud.placement.allocations()
    restart(cloud, 'gpu1')
    assert cloud.status(server) == 'ACTIVE' and cloud.placement.allocations() == before
    (told,) = warnings(caplog)
    assert server in told and address in told
    cloud.computes['gpu1'].node.update()
    assert cloud.placement.allocations() == before and len(warnings(caplog)) == 1
    cloud.placement.client.delete_allocations(STRANGER)
    cloud.computes['gpu1'].node.update()
    assert allocated(cloud, server) == [address]
    cloud.assert_clean()


@pytest.mark.parametrize('where', ['nowhere', 'on another host'])
def test_a_server_that_placement_has_elsewhere_is_left_alone(cloud, caplog, where):
    server = cloud.boot(cloud.flavor(gpus=1), availability_zone='nova:gpu1')
    client = cloud.placement.client
    client.delete_allocations(server)
    if where == 'on another host':
        client.claim(
            server, {cloud.computes['gpu2'].node.record.uuid: {'resources': {'VCPU': 1}}}, project_id='p', user_id='u'
        )
    before = cloud.placement.allocations()
    cloud.placement.requests.clear()
    restart(cloud, 'gpu1')
    assert writes(cloud) == [] and cloud.placement.allocations() == before
    (told,) = warnings(caplog)
    assert server in told and cloud.hostdevs(server)[0] in told


def test_an_allocation_that_changes_meanwhile_waits_for_the_next_look(silent):
    cloud = silent
    server = cloud.boot(cloud.flavor(gpus=1), availability_zone='nova:gpu1')
    placement = cloud.placement
    root = cloud.computes['gpu1'].node.record.uuid

    def before(method, path):
        if (method, path) == ('PUT', f'/allocations/{server}'):
            placement.before = None
            there = placement.client.get_allocations(server)
            there['allocations'][root]['resources']['VCPU'] = 2
            placement.client.claim(
                server,
                there['allocations'],
                project_id=there['project_id'],
                user_id=there['user_id'],
                generation=there['consumer_generation'],
            )

    placement.before = before
    restart(cloud, 'gpu1', **REPORTING)
    assert placement.before is None and allocated(cloud, server) == []
    cloud.computes['gpu1'].node.update()
    assert allocated(cloud, server) == cloud.hostdevs(server)
    assert others(cloud, server)['gpu1']['VCPU'] == 2


def test_a_placement_that_is_silent_doesnt_stop_the_start(silent, caplog):
    cloud = silent
    server = cloud.boot(cloud.flavor(gpus=1), availability_zone='nova:gpu1')

    def before(method, path):
        if path.startswith('/allocations/'):
            raise cloud.placement.broken()

    cloud.placement.before = before
    restart(cloud, 'gpu1', **REPORTING)
    cloud.placement.before = None
    assert cloud.status(server) == 'ACTIVE' and allocated(cloud, server) == []
    (told,) = warnings(caplog)
    assert server in told and cloud.hostdevs(server)[0] in told
    cloud.computes['gpu1'].node.update()
    assert allocated(cloud, server) == cloud.hostdevs(server)


def test_a_one_time_use_device_stays_reserved(make_cloud):
    """Its provider has no room by then: reserved is total from the first report on."""
    name = {'vendor_id': '10de', 'product_id': '13f1'}
    cloud = make_cloud({'gpu1': [ONE, TWO]}, **SILENT)
    server = cloud.boot(cloud.flavor(gpus=2))
    cloud.specs['gpu1'] = [
        json.dumps({**name, 'address': ONE, 'one_time_use': 'true'}),
        json.dumps({**name, 'address': TWO}),
    ]
    restart(cloud, **REPORTING)
    assert allocated(cloud, server) == [ONE, TWO]
    client = cloud.placement.client
    assert {
        row['name']: [each['reserved'] for each in client.get_inventory(row['uuid'])[0].values()]
        for row in client.list_providers()
        if '_' in row['name']
    } == {f'gpu1_{ONE.upper()}': [1], f'gpu1_{TWO.upper()}': [0]}
    cloud.assert_clean()


@pytest.mark.parametrize('resource_class', ['PGPU', 'CUSTOM_RENAMED'])
def test_a_class_that_is_renamed_while_a_server_holds_the_device(make_cloud, resource_class):
    """The server's allocation has the device once, under its new class; the device is free when the server goes."""
    cloud = make_cloud({'gpu1': [ONE, TWO]})
    server = cloud.boot(cloud.flavor(gpus=1))
    (held,) = cloud.hostdevs(server)
    before = others(cloud, server)
    cloud.specs['gpu1'] = [json.dumps({'vendor_id': '10de', 'product_id': '13f1', 'resource_class': resource_class})]
    restart(cloud)
    assert cloud.placement.allocations()[server] == {**before, f'gpu1_{held.upper()}': {resource_class: 1}}
    cloud.assert_clean()
    cloud.computes['gpu1'].node.update()
    providers = cloud.placement.client.list_providers(name=f'gpu1_{held.upper()}')
    assert list(cloud.placement.client.get_inventory(providers[0]['uuid'])[0]) == [resource_class]
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    cloud.assert_empty()

"""Resize is right in every direction."""

from __future__ import annotations

import json

import pytest

from kilonova.conductor.work import Work
from kilonova.db.queries import instances

ONE_HOST = {'gpu1': ['0000:08:00.0', '0000:88:00.0', '0000:89:00.0']}


def resize(cloud, server, flavor, **kwargs):
    return cloud.action(server, 'resize', {'flavorRef': flavor}, **kwargs)


def test_one_to_two_confirm(cloud):
    """After a resize from one GPU to two the domain has two hostdevs and the new vCPUs and memory. Confirm frees
    the source."""
    server = cloud.boot(cloud.flavor(gpus=1, vcpus=8, ram=32768, disk=16))
    source = cloud.host_of(server)
    resize(cloud, server, cloud.flavor(gpus=2, vcpus=16, ram=65536, disk=16))
    shown = cloud.show(server)
    assert shown['status'] == 'VERIFY_RESIZE'
    dest = shown['OS-EXT-SRV-ATTR:host']
    assert dest != source
    assert len(cloud.hostdevs(server)) == 2
    assert '>16</vcpu>' in cloud.xml(server) and f'>{64 * 1024 * 1024}<' in cloud.xml(server)
    cloud.assert_clean()
    cloud.action(server, 'confirmResize')
    assert cloud.status(server) == 'ACTIVE'
    assert [name.split()[0] for name in cloud.owned(server)] == [dest, dest]
    assert [name.split()[1] for name in cloud.owned(server)] == cloud.hostdevs(server)
    assert not (cloud.directory / source / 'instances' / server).exists()
    cloud.assert_clean()


def test_revert_gives_the_original_device_on_the_original_host(cloud):
    """A reverted resize has the original device on the original host."""
    server = cloud.boot(cloud.flavor(gpus=1))
    before = (cloud.host_of(server), cloud.hostdevs(server), cloud.owned(server))
    resize(cloud, server, cloud.flavor(gpus=2))
    cloud.action(server, 'revertResize')
    assert cloud.status(server) == 'ACTIVE'
    assert (cloud.host_of(server), cloud.hostdevs(server), cloud.owned(server)) == before
    cloud.assert_clean()


def test_what_is_there_while_verify_resize(cloud):
    """In VERIFY_RESIZE the server owns one device of the source and two of the destination, and Placement has
    allocations for both hosts."""
    server = cloud.boot(cloud.flavor(gpus=1))
    source = cloud.host_of(server)
    resize(cloud, server, cloud.flavor(gpus=2))
    hosts = sorted(name.split()[0] for name in cloud.owned(server))
    assert hosts.count(source) == 1 and len(hosts) == 3
    assert {cloud.devices()[name][0] for name in cloud.owned(server)} == {'allocated'}
    with cloud.cell.read() as conn:
        row = instances.get(conn, server)
    assert row['extra_migration_context'] is not None
    flavors = json.loads(row['extra_flavor'])
    assert flavors['old'] is not None and flavors['new'] is not None
    (migration,) = cloud.ok('GET', '/os-migrations')['migrations']
    allocations = cloud.placement.allocations()
    assert len([name for name in allocations[server] if '_' in name]) == 2
    assert len([name for name in allocations[migration['uuid']] if '_' in name]) == 1


@pytest.mark.parametrize('finish', ['confirmResize', 'revertResize'])
def test_same_host(make_cloud, finish):
    """A resize on the same host takes free devices in addition to those that the server holds."""
    cloud = make_cloud(ONE_HOST, allow_resize_to_same_host=True)
    server = cloud.boot(cloud.flavor(gpus=1))
    old = cloud.hostdevs(server)
    resize(cloud, server, cloud.flavor(gpus=2))
    assert cloud.status(server) == 'VERIFY_RESIZE'
    new = cloud.hostdevs(server)
    assert len(new) == 2 and not set(old) & set(new)
    assert len(cloud.owned(server)) == 3
    cloud.assert_clean()
    cloud.action(server, finish)
    assert cloud.status(server) == 'ACTIVE'
    assert cloud.hostdevs(server) == (new if finish == 'confirmResize' else old)
    assert len(cloud.owned(server)) == (2 if finish == 'confirmResize' else 1)
    cloud.assert_clean()


def test_same_host_without_free_devices_beside_the_held_ones(make_cloud):
    """A resize from one GPU to two on a host with two GPUs fails and leaves the server as it was."""
    cloud = make_cloud({'gpu1': ONE_HOST['gpu1'][:2]}, allow_resize_to_same_host=True)
    server = cloud.boot(cloud.flavor(gpus=1))
    before = (cloud.hostdevs(server), cloud.owned(server), cloud.placement.allocations())
    resize(cloud, server, cloud.flavor(gpus=2))
    shown = cloud.show(server)
    assert (shown['status'], shown['OS-EXT-STS:task_state']) == ('ACTIVE', None)
    assert (cloud.hostdevs(server), cloud.owned(server), cloud.placement.allocations()) == before
    actions = cloud.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']
    assert actions[0]['action'] == 'resize' and actions[0]['message'].startswith('Error: No valid host was found.')
    mine = cloud.ok('GET', f'/servers/{server}/os-instance-actions', user='bob')['instanceActions'][0]['message']
    assert mine.startswith('Error: No valid host was found.') and 'gpu1' not in mine, 'finding 7.7'
    action = cloud.ok('GET', f'/servers/{server}/os-instance-actions/{actions[0]["request_id"]}')['instanceAction']
    assert any('No valid host was found.' in (event['details'] or '') for event in action['events'])
    cloud.assert_clean()


def test_another_alias(make_cloud):
    """A resize to a flavor with another alias takes a device of that alias."""
    other = json.dumps({'name': 'h100', 'vendor_id': '10de', 'product_id': '2331', 'device_type': 'type-PCI'})
    from tests.fixtures.hosts import pci_device

    spec = [json.dumps({'vendor_id': '10de', 'product_id': product}) for product in ('13f1', '2331')]
    from tests.fixtures.cloud import ALIAS

    cloud = make_cloud(
        {'gpu1': ['0000:08:00.0'], 'gpu2': ['0000:88:00.0']},
        devices={'gpu2': [pci_device('0000:90:00.0', product='2331')]},
        specs={'gpu1': spec, 'gpu2': spec},
        pci__alias=[ALIAS, other],
    )
    server = cloud.boot(cloud.flavor(gpus=1), availability_zone='nova:gpu1')
    resize(cloud, server, cloud.flavor(gpus=1, alias='h100'))
    assert cloud.status(server) == 'VERIFY_RESIZE'
    assert cloud.hostdevs(server) == ['0000:90:00.0']
    cloud.action(server, 'confirmResize')
    assert cloud.owned(server) == ['gpu2 0000:90:00.0']
    cloud.assert_clean()


def test_the_old_fault_comes_back_when_the_new_flavors_requests_are_left_out(cloud, monkeypatch):
    """With the PCI requests of the old flavor a resized server gets the new vCPUs and keeps one hostdev. This is
    the fault of Nova that Kilonova was written to remove, and it shows that the new requests matter."""
    server = cloud.boot(cloud.flavor(gpus=1, vcpus=8))
    with cloud.cell.read() as conn:
        old = json.loads(instances.get(conn, server)['extra_pci_requests'])
    right = Work.request_spec

    def as_in_the_seed(work, stored=None):
        spec = right(work, stored)
        if stored is None and spec.pci_requests is not None:
            for request in spec.pci_requests.requests:
                request.count = old[0]['count']
        return spec

    monkeypatch.setattr(Work, 'request_spec', as_in_the_seed)
    resize(cloud, server, cloud.flavor(gpus=2, vcpus=16))
    assert '>16</vcpu>' in cloud.xml(server)
    assert len(cloud.hostdevs(server)) == 1


def test_the_claim_follows_placements_device(make_cloud):
    """If two of three devices are reserved in Placement, a resize from 0 to 1 takes the third."""
    cloud = make_cloud({'gpu1': [], 'gpu2': ONE_HOST['gpu1']})
    server = cloud.boot(cloud.flavor(), availability_zone='nova:gpu1')
    client = cloud.placement.client
    (root,) = client.list_providers(name='gpu2')
    free = None
    for provider in client.list_providers(in_tree=root['uuid']):
        if provider['name'] == 'gpu2_0000:88:00.0':
            free = provider['uuid']
        elif '_' in provider['name']:
            inventory, generation = client.get_inventory(provider['uuid'])
            for values in inventory.values():
                values['reserved'] = 1
            client.set_inventory(provider['uuid'], generation, inventory)
    resize(cloud, server, cloud.flavor(gpus=1))
    assert cloud.hostdevs(server) == ['0000:88:00.0']
    held = cloud.placement.allocations()[server]
    assert [name for name in held if '_' in name] == ['gpu2_0000:88:00.0'] and free is not None
    cloud.action(server, 'confirmResize')
    assert cloud.owned(server) == ['gpu2 0000:88:00.0']
    cloud.assert_clean()


def test_delete_while_verify_resize(cloud):
    """A delete in VERIFY_RESIZE frees everything on both hosts at once."""
    server = cloud.boot(cloud.flavor(gpus=1))
    resize(cloud, server, cloud.flavor(gpus=2))
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    cloud.assert_empty()


def test_delete_right_after_confirm_frees_at_once(cloud):
    """A delete directly after a confirm frees everything at once, without waiting for an audit."""
    server = cloud.boot(cloud.flavor(gpus=1))
    resize(cloud, server, cloud.flavor(gpus=2))
    cloud.action(server, 'confirmResize')
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    cloud.assert_empty()


def test_cold_migrate(cloud):
    server = cloud.boot(cloud.flavor(gpus=1))
    source = cloud.host_of(server)
    cloud.action(server, 'migrate')
    assert cloud.status(server) == 'VERIFY_RESIZE' and cloud.host_of(server) != source
    assert len(cloud.hostdevs(server)) == 1
    cloud.action(server, 'confirmResize')
    cloud.assert_clean()


def test_the_steps_of_a_resize_in_order(cloud):
    """A resize sends Nova's RPC methods in Nova's order: migrate_server, select_destinations, prep_resize,
    resize_instance, finish_resize."""
    server = cloud.boot(cloud.flavor(gpus=1))
    source = cloud.host_of(server)
    cloud.messages.clear()
    resize(cloud, server, cloud.flavor(gpus=2))
    dest = cloud.host_of(server)
    downward = [
        (topic, host, method)
        for _, topic, host, method in cloud.messages
        if (topic != 'conductor' or method == 'migrate_server')
    ]
    assert downward == [
        ('conductor', None, 'migrate_server'),
        ('scheduler', None, 'select_destinations'),
        ('compute', dest, 'prep_resize'),
        ('compute', source, 'resize_instance'),
        ('compute', dest, 'finish_resize'),
    ]


def test_the_flavor_columns_follow(cloud):
    """vCPUs, memory and both disk sizes of the server's row are those of the new flavor, and those of the old
    flavor after a revert."""
    small, large = (
        cloud.ok(
            'POST',
            '/flavors',
            {
                'flavor': {
                    'name': f'e{size}',
                    'vcpus': 2 * size,
                    'ram': 1024 * size,
                    'disk': 1 + size,
                    'OS-FLV-EXT-DATA:ephemeral': size,
                }
            },
        )['flavor']['id']
        for size in (1, 2)
    )
    columns = ('vcpus', 'memory_mb', 'root_gb', 'ephemeral_gb')

    def row_of(server):
        with cloud.cell.read() as conn:
            row = instances.get(conn, server)
        return tuple(row[name] for name in columns)

    server = cloud.boot(small)
    assert row_of(server) == (2, 1024, 2, 1)
    resize(cloud, server, large)
    assert row_of(server) == (4, 2048, 3, 2)
    cloud.action(server, 'revertResize')
    assert row_of(server) == (2, 1024, 2, 1)


def test_a_smaller_disk_is_refused_and_nothing_changes(cloud):
    """A resize to a flavor with a smaller disk fails, and the server is ACTIVE with the same host, devices and
    allocations."""
    server = cloud.boot(cloud.flavor(gpus=1, disk=3))
    before = (cloud.host_of(server), cloud.hostdevs(server), cloud.placement.allocations())
    resize(cloud, server, cloud.flavor(gpus=2, disk=2))
    shown = cloud.show(server)
    assert (shown['status'], shown['OS-EXT-STS:power_state']) == ('ACTIVE', 1)
    assert (cloud.host_of(server), cloud.hostdevs(server), cloud.placement.allocations()) == before
    cloud.assert_clean()


def test_a_destination_that_refuses_sends_the_move_to_the_next(make_cloud):
    """When the first destination refuses with "Claim pci failed", the alternate takes the server."""
    cloud = make_cloud(
        {'gpu1': ['0000:08:00.0'], 'gpu2': ['0000:85:00.0', '0000:86:00.0'], 'gpu3': ['0000:85:00.0', '0000:86:00.0']}
    )
    server = cloud.boot(cloud.flavor(gpus=1), availability_zone='nova:gpu1')
    refused = []

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'claim_instance' and not refused:
            refused.append(args['claim'])
            from kilonova.errors import ClaimConflict

            raise ClaimConflict(devices='injected')
        return deliver()

    cloud.on_message = on_message
    resize(cloud, server, cloud.flavor(gpus=2))
    assert cloud.status(server) == 'VERIFY_RESIZE' and refused
    assert len(cloud.hostdevs(server)) == 2
    cloud.assert_clean()

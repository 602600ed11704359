"""Key pairs, quotas and usage through the whole cloud."""

from __future__ import annotations

import json
import subprocess
import threading

import pytest
import sqlalchemy as sa

from kilonova.api.services import quota
from kilonova.db.models.cell import ComputeNode, Instance
from kilonova.db.queries import flavor_usage, quotas
from kilonova.virt.libvirt.guests import LibvirtGuests
from tests.fixtures.cloud import IMAGE_ID, PROJECT

KEY = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@home'
QUOTAS = f'/os-quota-sets/{PROJECT}'


def meta_data(cloud, server):
    """What the guest reads on its config drive."""
    drive = cloud.directory / cloud.host_of(server) / 'instances' / server / 'disk.config'
    read = subprocess.run(
        ['isoinfo', '-J', '-x', '/openstack/latest/meta_data.json', '-i', str(drive)], check=True, capture_output=True
    )
    return json.loads(read.stdout)


def in_use(cloud, *names):
    detail = cloud.ok('GET', f'{QUOTAS}/detail')['quota_set']
    return [detail[name]['in_use'] for name in names]


def test_a_server_has_its_users_key_and_is_accounted_for(cloud):
    """The public key reaches the guest and stays there when the key pair is deleted. The usage of the project
    covers the time from boot to delete."""
    cloud.ok('POST', '/os-keypairs', {'keypair': {'name': 'k', 'public_key': KEY}}, user='bob')
    server = cloud.boot(cloud.flavor('small', vcpus=2, ram=256), user='bob', key_name='k', config_drive=True)
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    meta = meta_data(cloud, server)
    assert meta['public_keys'] == {'k': KEY}
    assert meta['keys'] == [{'name': 'k', 'type': 'ssh', 'data': KEY}]
    assert cloud.request('DELETE', '/os-keypairs/k', user='bob').status_int == 204
    assert cloud.show(server)['key_name'] == 'k'
    assert in_use(cloud, 'instances', 'cores', 'ram') == [1, 2, 256]
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor('large', vcpus=4, ram=512)})
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    assert meta_data(cloud, server)['public_keys'] == {'k': KEY}
    assert in_use(cloud, 'instances', 'cores', 'ram') == [1, 4, 512]
    cloud.action(server, 'revertResize')
    assert in_use(cloud, 'instances', 'cores', 'ram') == [1, 2, 256]
    path = '/os-simple-tenant-usage?detailed=1&start=2026-01-01T00:00:00'
    ((running,),) = [usage['server_usages'] for usage in cloud.ok('GET', path)['tenant_usages']]
    assert (running['instance_id'], running['flavor'], running['vcpus'], running['state']) == (
        server,
        'small',
        2,
        'active',
    )
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    assert in_use(cloud, 'instances', 'cores', 'ram') == [0, 0, 0]
    ((gone,),) = [usage['server_usages'] for usage in cloud.ok('GET', path)['tenant_usages']]
    assert (gone['instance_id'], gone['state']) == (server, 'terminated') and gone['ended_at'] is not None
    log = cloud.ok('GET', '/os-instance_usage_audit_log')['instance_usage_audit_logs']
    assert (log['hosts_not_run'], log['overall_status']) == (['gpu1', 'gpu2'], '0 of 2 hosts done. 0 errors.')
    cloud.assert_empty()


def test_creates_that_race_for_the_last_of_a_quota(make_cloud):
    """Of creates that race for the rest of a quota no more than the limit are built. Those that are refused leave
    nothing, and the others work."""
    cloud = make_cloud(quota__instances=3)
    flavor, answers = cloud.flavor(gpus=1), []
    start = threading.Barrier(6)

    def one():
        start.wait()
        answers.append(
            cloud.request(
                'POST',
                '/servers',
                {'server': {'name': 's', 'flavorRef': flavor, 'imageRef': IMAGE_ID, 'networks': 'none'}},
                user='bob',
            )
        )

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cloud.settle()
    made = [answer.json['server']['id'] for answer in answers if answer.status_int == 202]
    assert 1 <= len(made) <= 3 and {answer.status_int for answer in answers} == {202, 403}
    assert [cloud.status(server) for server in made] == ['ACTIVE'] * len(made)
    assert len(cloud.ok('GET', '/servers', user='bob')['servers']) == len(made)
    assert in_use(cloud, 'instances') == [len(made)]
    cloud.assert_clean()
    for server in made:
        cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    cloud.assert_empty()


@pytest.mark.parametrize('when', ['built', 'being built'])
def test_a_surplus_that_a_conductor_took_leaves_nothing(make_cloud, monkeypatch, when):
    """A create that the second count of the quota refuses leaves nothing, even if a conductor has taken its
    operation in the meantime."""
    cloud = make_cloud(quota__instances=1)
    flavor, inner, slow = cloud.flavor(gpus=1), quota.recheck, []

    def recheck(backend, allowed, *args):
        if not slow:
            slow.append(True)
            cloud.create(flavor, user='bob')
            if when == 'built':
                cloud.settle()
            else:
                cloud.conductors[0].runner.sweep()
        return inner(backend, allowed, *args)

    monkeypatch.setattr(quota, 'recheck', recheck)
    monkeypatch.setattr(quota, 'usage', counted_after(quota.usage, slow))
    response = cloud.request(
        'POST',
        '/servers',
        {'server': {'name': 'late', 'flavorRef': flavor, 'imageRef': IMAGE_ID, 'networks': 'none'}},
        user='bob',
    )
    cloud.settle()
    left = cloud.ok('GET', '/servers', user='bob')['servers']
    assert response.status_int == 403 and [server['name'] for server in left] == ['s']
    assert cloud.status(left[0]['id']) == 'ACTIVE'
    cloud.assert_clean()
    cloud.request('DELETE', f'/servers/{left[0]["id"]}')
    cloud.settle()
    cloud.assert_empty()


def counted_after(usage, slow):
    """The rival's own counts see nothing: as if it had counted before the first one wrote."""
    calls = []

    def count(*args):
        calls.append(args)
        found = usage(*args)
        if slow and len(calls) in (2, 3):
            for part in found:
                part.update(dict.fromkeys(part, 0))
        return found

    return count


def test_what_a_servers_image_says_of_amounts_is_known_wherever_the_server_stands(make_cloud, monkeypatch):
    """Before a cell has it, in its cell, of a silent cell, and while it is restored."""
    cloud = make_cloud()
    record, inner, waiting = cloud.images.get, quota.recheck, []
    monkeypatch.setattr(
        cloud.images, 'get', lambda *args: {**record(*args), 'hw_cpu_policy': 'shared', 'hw_mem_encryption': 'false'}
    )

    def recheck(*args, **kwargs):
        with cloud.databases.api().read() as connection:
            waiting.extend(row for _, row in flavor_usage.waiting(connection, PROJECT))
        return inner(*args, **kwargs)

    monkeypatch.setattr(quota, 'recheck', recheck)
    server = cloud.boot(cloud.flavor(vcpus=2))
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    cell = next(database for database in cloud.cells.enabled() if database.name == cloud.cell_of(cloud.host_of(server)))
    with cell.read() as connection:
        in_cell = flavor_usage.in_cell(connection, PROJECT)
    with cloud.databases.api().read() as connection:
        of_silent = flavor_usage.of_silent(connection, [cell.cell.id], PROJECT)
    for found in (waiting, in_cell, of_silent):
        (row,) = found
        image = row.flavor['image']
        assert (row.number, row.flavor['vcpus'], image['hw_cpu_policy']) == (1, 2, 'shared')
        assert image['hw_mem_encryption'].lower() in ('false', '0')
    # Soft-deleted it doesn't count; wanted back it does, for creates as well.
    for task_state, count in ((None, 0), ('restoring', 1)):
        with cell.write() as connection:
            connection.execute(
                sa.update(Instance).where(Instance.uuid == server).values(vm_state='soft-delete', task_state=task_state)
            )
            assert len(flavor_usage.in_cell(connection, PROJECT)) == count
            assert quotas.usage(connection, PROJECT).shared['instances'] == count
    with cell.write() as connection:
        connection.execute(
            sa.update(Instance).where(Instance.uuid == server).values(vm_state='active', task_state=None)
        )
    cloud.assert_clean()


def test_a_host_tells_what_it_has_under_way(cloud, monkeypatch):
    """With the claim of a build, and with its end."""

    def told():
        with cloud.databases.main().read() as connection:
            rows = connection.execute(sa.select(ComputeNode.host, ComputeNode.current_workload, ComputeNode.stats))
            return {host: (count, json.loads(stats)['io_workload']) for host, count, stats in rows}

    seen, spawn = [], LibvirtGuests.spawn

    def watched(self, *args, **kwargs):
        seen.append(told())
        return spawn(self, *args, **kwargs)

    monkeypatch.setattr(LibvirtGuests, 'spawn', watched)
    assert set(told().values()) == {(0, '0')}
    host = cloud.host_of(cloud.boot(cloud.flavor(vcpus=1)))
    assert seen[0][host] == (1, '1')
    assert set(told().values()) == {(0, '0')}

"""A host that was copied from a Nova and still runs nova-compute: its servers are shown, and left alone."""

from __future__ import annotations

import datetime

import pytest

from kilonova.cmd.daemon import caps
from kilonova.db.models.cell import Service
from kilonova.db.queries import adoption
from tests.functional.test_evacuate import lose_host

# Requests for a server that runs, each with its body. All are refused with 409.
REQUESTS = {
    'os-stop': None,
    'reboot': {'type': 'HARD'},
    'pause': None,
    'suspend': None,
    'shelve': None,
    'migrate': None,
    'createBackup': {'name': 'b', 'backup_type': 'daily', 'rotation': 1},
    'createImage': {'name': 'i'},
    'rescue': {},
    'evacuate': {},
    'os-migrateLive': {'host': None, 'block_migration': 'auto'},
    'os-resetState': {'state': 'error'},
    'forceDelete': None,
    'os-getConsoleOutput': {},
}
LONG_AGO = datetime.datetime(2026, 1, 1)


@pytest.fixture
def half(make_cloud):
    """A cloud with a server on each of two hosts, of which gpu1 is Nova's still."""
    cloud = make_cloud({name: [f'0000:{bus:02x}:00.0' for bus in (8, 9)] for name in ('gpu1', 'gpu2')})
    cloud.servers = {
        host: cloud.boot(cloud.flavor(gpus=1), availability_zone=f'nova:{host}') for host in ('gpu1', 'gpu2')
    }
    lose_host(cloud, 'gpu1')
    with cloud.cell.write() as conn:
        table = Service.__table__
        conn.execute(
            table.update()
            .where(table.c.host == 'gpu1')
            .values(version=adoption.NOT_ADOPTED, forced_down=False, last_seen_up=None, created_at=LONG_AGO)
        )
    for database in cloud.cells.databases():
        database.all_adopted = None
    return cloud


def text(response) -> str:
    return next(iter(response.json.values()))['message']


@pytest.mark.parametrize('name', sorted(REQUESTS))
def test_each_request_for_a_server_of_nova_is_refused(half, name):
    server = half.servers['gpu1']
    before = half.show(server)
    response = half.request('POST', f'/servers/{server}/action', {name: REQUESTS[name]})
    assert response.status_int == 409
    assert text(response).endswith('its host gpu1 has not been adopted from Nova yet.')
    assert half.show(server) == before
    assert half.rows() == []


@pytest.mark.parametrize('path', ['', '/os-volume_attachments', '/topology', '/os-interface', '/os-instance-actions'])
def test_a_server_of_nova_is_shown(half, path):
    assert half.request('GET', f'/servers/{half.servers["gpu1"]}{path}').status_int == 200


def test_a_delete_is_refused(half):
    server = half.servers['gpu1']
    response = half.request('DELETE', f'/servers/{server}')
    assert response.status_int == 409 and 'has not been adopted from Nova yet' in text(response)
    assert half.status(server) == 'ACTIVE'


def test_servers_of_other_hosts_are_served_and_new_ones_go_there(half):
    half.action(half.servers['gpu2'], 'os-stop', None)
    assert half.status(half.servers['gpu2']) == 'SHUTOFF'
    assert half.host_of(half.boot(half.flavor(gpus=1))) == 'gpu2'
    assert [one['status'] for one in half.ok('GET', '/servers/detail')['servers']].count('ACTIVE') == 2


def test_the_host_is_adopted_when_its_compute_starts(half):
    half.start_compute('gpu1')
    half.action(half.servers['gpu1'], 'os-stop', None)
    assert half.status(half.servers['gpu1']) == 'SHUTOFF'


def test_controllers_start_and_name_the_hosts(half, caplog):
    caps.refuse_old_computes(half.conf, half.cells)
    assert '1 hosts have not been adopted from Nova yet, requests for their servers are refused: gpu1' in caplog.text
    assert [one.all_adopted for one in half.cells.databases()][1:] == [False]
    half.start_compute('gpu1')
    caps.refuse_old_computes(half.conf, half.cells)
    assert [one.all_adopted for one in half.cells.databases()][1:] == [True]

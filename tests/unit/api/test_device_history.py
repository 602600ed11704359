"""GET /kilonova/v1/os-device-history and /metrics: who held devices, and how many there are."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from kilonova.db.models.cell import DeviceHistory
from kilonova.db.queries import compute_nodes, pci_devices
from kilonova.errors import Unanswered
from tests.unit.db.rows import device, node

OWN = '/kilonova/v1'
START = dt.datetime(2026, 5, 1, 12)
SERVERS = [f'aaaaaaaa-0000-4000-8000-00000000000{number}' for number in range(3)]
GPU, VGPU = 'dddddddd-0000-4000-8000-00000000000d', 'eeeeeeee-0000-4000-8000-00000000000e'


@pytest.fixture
def told(site: Any) -> Any:
    """Five holdings: 0, 1 and 2 of a GPU of h1 (cell1), 3 and 4 of a vGPU of h2 (cell2)."""
    for cell, host, uuid, dev_type, numbers in (
        (site.cell1, 'h1', GPU, 'type-PCI', (0, 1, 2)),
        (site.cell2, 'h2', VGPU, 'mdev', (3, 4)),
    ):
        with cell.write() as conn:
            made = compute_nodes.get_or_create(conn, node(host))
            conn.execute(
                DeviceHistory.__table__.insert(),
                [
                    {
                        'device_uuid': uuid,
                        'compute_node_id': made['id'],
                        'address': f'0000:8{number}:00.0',
                        'dev_type': dev_type,
                        'vendor_id': '10de',
                        'product_id': '2330',
                        'instance_uuid': SERVERS[number % 3],
                        'project_id': f'p{number % 2}',
                        'began_at': START + dt.timedelta(hours=number) if number else None,
                        'ended_at': START + dt.timedelta(hours=number, minutes=30),
                    }
                    for number in numbers
                ],
            )
    return site


def listed(site: Any, query: str = '') -> list[int]:
    """The numbers of the holdings that a list shows."""
    return [int(row['address'][6]) for row in site.ok('GET', f'/os-device-history{query}', mount=OWN)['device_history']]


def test_an_entry(told: Any) -> None:
    body = told.ok('GET', '/os-device-history', mount=OWN)
    assert set(body) == {'device_history', 'silent_cells'} and body['silent_cells'] == []
    assert body['device_history'][2] == {
        'id': f'{GPU}.1',
        'device_id': GPU,
        'host': 'h1',
        'address': '0000:80:00.0',
        'kind': 'pci',
        'vendor_id': '10de',
        'product_id': '2330',
        'server_id': SERVERS[0],
        'project_id': 'p0',
        'began_at': None,
        'ended_at': '2026-05-01T12:30:00Z',
    }
    assert body['device_history'][0]['began_at'] == '2026-05-01T14:00:00Z'
    assert {row['kind'] for row in body['device_history']} == {'pci', 'mdev'}


@pytest.mark.parametrize(
    ('query', 'found'),
    [
        ('', [2, 1, 0, 4, 3]),
        ('?host=h1', [2, 1, 0]),
        ('?host=h9', []),
        (f'?device_id={VGPU}', [4, 3]),
        (f'?server={SERVERS[0]}', [0, 3]),
        ('?project_id=p1', [1, 3]),
        (f'?project_id=p1&server={SERVERS[0]}', [3]),
        ('?limit=0', []),
    ],
)
def test_filters(told: Any, query: str, found: list[int]) -> None:
    assert listed(told, query) == found


@pytest.mark.parametrize(
    ('query', 'named'),
    [
        ('host=a%20b', 'host'),
        ('server=5', 'server'),
        ('device_id=5', 'device_id'),
        ('project_id=%27', 'project_id'),
        ('limit=-1', 'limit'),
        ('marker=7', 'marker'),
        (f'marker={GPU}', 'marker'),
        (f'marker={GPU}.12345678901', 'marker'),
        ('kind=pci', 'kind'),
        ('host=a&host=b', 'host'),
    ],
)
def test_a_bad_filter_is_refused_by_name(site: Any, query: str, named: str) -> None:
    code, message = site.fault('GET', f'/os-device-history?{query}', mount=OWN)
    assert code == 400 and named in message


def test_pages_over_two_cells(told: Any) -> None:
    seen, path = [], '/os-device-history?limit=2'
    for _ in range(3):
        body = told.ok('GET', path, mount=OWN)
        seen.append([int(row['address'][6]) for row in body['device_history']])
        path = (body.get('device_history_links') or [{'href': ''}])[0]['href'].partition(OWN)[2]
    assert seen == [[2, 1], [0, 4], [3]] and path == ''
    assert told.fault('GET', f'/os-device-history?marker={GPU}.9', mount=OWN) == (400, f'marker [{GPU}.9] not found')
    assert listed(told, f'?marker={VGPU}.2') == [3], 'ids of one cell are also those of another'


def test_a_cell_that_does_not_answer_is_named(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        name, cell = 'cell2', told.cell2.cell

        def read(self) -> None:
            raise Unanswered(who='cell2', reason='gone')

    monkeypatch.setattr(type(told.cells), 'databases', lambda self: [told.cell0, told.cell1, Silent()])
    assert told.ok('GET', '/os-device-history', mount=OWN)['silent_cells'] == ['cell2'] and listed(told) == [2, 1, 0]
    assert told.fault('GET', f'/os-device-history?marker={VGPU}.1', mount=OWN)[0] == 503
    assert 'kilonova_cell_up{cell="cell2"} 0\n' in told.request('GET', '/metrics', mount=OWN).text


@pytest.mark.parametrize(
    ('path', 'rule'), [('/os-device-history', 'device-history:index'), ('/metrics', 'metrics:show')]
)
def test_administrators_with_a_token_only(site: Any, path: str, rule: str) -> None:
    assert site.fault('GET', path, mount=OWN, headers={'X-Auth-Token': ''})[0] == 401
    assert site.fault('GET', path, mount=OWN, user='bob', project='p7') == (
        403,
        f"Policy doesn't allow kilonova:{rule} to be performed.",
    )


def test_metrics(site: Any) -> None:
    held = site.server(create={'name': 'train'}, project='p7')
    with site.cell1.write() as conn:
        made = compute_nodes.get_or_create(conn, node('h1'))
        pci_devices.save(
            conn,
            made['id'],
            created=[
                device('0000:81:00.0', status='allocated', instance_uuid=held),
                device('0000:82:00.0', status='allocated', instance_uuid=SERVERS[0]),
                device('0000:83:00.0', status='unavailable', extra_info=json.dumps({'disabled': 'ECC', 'dirty': 'no'})),
                device('0000:84:00.0', extra_info=json.dumps({'capabilities': '"disabled"'})),
                device(VGPU, dev_type='mdev'),
            ],
        )
    response = site.request('GET', '/metrics', mount=OWN)
    assert response.content_type == 'text/plain' and response.headers['Content-Type'].endswith('charset=utf-8')
    assert [line for line in response.text.splitlines() if not line.startswith('#')] == [
        'kilonova_devices{host="h1",kind="mdev",status="available"} 1',
        'kilonova_devices{host="h1",kind="pci",status="allocated"} 2',
        'kilonova_devices{host="h1",kind="pci",status="available"} 1',
        'kilonova_devices{host="h1",kind="pci",status="unavailable"} 1',
        'kilonova_devices_barred{host="h1",kind="pci",reason="dirty"} 1',
        'kilonova_devices_barred{host="h1",kind="pci",reason="disabled"} 1',
        'kilonova_device_allocations{project_id="p7",kind="pci"} 1',
        'kilonova_cell_up{cell="cell1"} 1',
        'kilonova_cell_up{cell="cell2"} 1',
    ]
    assert site.fault('GET', '/metrics?host=h1', mount=OWN)[0] == 400

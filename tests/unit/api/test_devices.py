"""GET /kilonova/v1/os-devices: devices of all cells with their owners, for administrators."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kilonova.api import versions
from kilonova.api.routes import OWN_ROUTES
from kilonova.db import engine
from kilonova.db.queries import compute_nodes, pci_devices
from kilonova.errors import Unanswered
from tests.unit.db.rows import device, node

OWN = '/kilonova/v1'
PROVIDER = 'cccccccc-0000-4000-8000-00000000000c'
VGPU = 'dddddddd-0000-4000-8000-00000000000d'


def uuid_of(number: int) -> str:
    return f'{number:08d}-1111-4111-8111-111111111111'


@pytest.fixture
def server(site: Any) -> str:
    """h1 (cell1) has a GPU that a server holds and a free VF, h2 (cell2) a PF and a vGPU; their server."""
    held = site.server(create={'name': 'train'}, project='p7')
    rows = {
        'h1': [
            device(
                '0000:81:00.0',
                uuid=uuid_of(1),
                status='allocated',
                instance_uuid=held,
                request_id='aaaaaaaa-0000-4000-8000-00000000000a',
                numa_node=1,
                extra_info=json.dumps(
                    {
                        'rp_uuid': PROVIDER,
                        'managed': 'true',
                        'capabilities': '{}',
                        'disabled': 'ECC errors',
                        'reserved_before': '0',
                    }
                ),
            ),
            device('0000:82:00.1', uuid=uuid_of(2), dev_type='type-VF', parent_addr='0000:82:00.0'),
        ],
        'h2': [
            device('0000:83:00.0', uuid=uuid_of(3), dev_type='type-PF', status='unavailable'),
            device(
                VGPU,
                uuid=uuid_of(4),
                dev_type='mdev',
                parent_addr='0000:84:00.0',
                extra_info=json.dumps({'mdev_type': 'nvidia-35', 'mdev_class': 'VGPU'}),
            ),
        ],
    }
    for cell, (host, found) in zip((site.cell1, site.cell2), rows.items(), strict=True):
        with cell.write() as conn:
            made = compute_nodes.get_or_create(conn, node(host, hypervisor_hostname=f'{host}.example'))
            pci_devices.save(conn, made['id'], created=found)
    return held


def listed(site: Any, query: str = '') -> list[int]:
    """The numbers of the devices that a list shows."""
    return [int(row['id'][:8]) for row in site.ok('GET', f'/os-devices{query}', mount=OWN)['devices']]


# --- what is shown ---------------------------------------------------------------------------------------------------
def test_a_device_with_its_owner(site: Any, server: str) -> None:
    shown = site.ok('GET', f'/os-devices/{uuid_of(1)}', mount=OWN)['device']
    created = shown.pop('created_at')
    assert shown == {
        'id': uuid_of(1),
        'host': 'h1',
        'node': 'h1.example',
        'address': '0000:81:00.0',
        'parent_address': None,
        'kind': 'pci',
        'vendor_id': '10de',
        'product_id': '13f1',
        'numa_node': 1,
        'status': 'allocated',
        'server_id': server,
        'server_name': 'train',
        'project_id': 'p7',
        'request_id': 'aaaaaaaa-0000-4000-8000-00000000000a',
        'resource_provider': PROVIDER,
        'mdev_type': None,
        'mdev_class': None,
        'held_since': None,
        'group': None,
        'group_head': None,
        'tags': {'managed': 'true'},
        'barred': {'disabled': 'ECC errors'},
        'updated_at': None,
        'links': [{'rel': 'self', 'href': f'http://localhost/kilonova/v1/os-devices/{uuid_of(1)}'}],
    }
    assert len(created) == len('2026-11-21T10:00:00Z') and created.endswith('Z')
    (first, *_) = site.ok('GET', '/os-devices', mount=OWN)['devices']
    assert first == {**shown, 'created_at': created}


def test_kinds_and_parents(site: Any, server: str) -> None:
    body = site.ok('GET', '/os-devices', mount=OWN)
    assert set(body) == {'devices', 'silent_cells'} and body['silent_cells'] == []
    assert [
        (
            row['host'],
            row['kind'],
            row['parent_address'],
            row['mdev_type'],
            row['mdev_class'],
            row['status'],
            row['server_id'],
        )
        for row in body['devices'][1:]
    ] == [
        ('h1', 'vf', '0000:82:00.0', None, None, 'available', None),
        ('h2', 'pf', None, None, None, 'unavailable', None),
        ('h2', 'mdev', '0000:84:00.0', 'nvidia-35', 'VGPU', 'available', None),
    ]


def test_an_owner_that_is_deleted_has_neither_name_nor_project(site: Any, server: str) -> None:
    with site.cell1.write() as conn:
        conn.exec_driver_sql('UPDATE instances SET deleted = id WHERE uuid = :uuid', {'uuid': server})
    shown = site.ok('GET', f'/os-devices/{uuid_of(1)}', mount=OWN)['device']
    assert (shown['server_id'], shown['server_name'], shown['project_id']) == (server, None, None)


# --- filters and pages -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('query', 'found'),
    [
        ('', [1, 2, 3, 4]),
        ('?host=h1', [1, 2]),
        ('?host=h9', []),
        ('?server=$server', [1]),
        ('?project_id=p7', [1]),
        ('?project_id=p1', []),
        ('?kind=pci', [1]),
        ('?kind=pf', [3]),
        ('?kind=vf', [2]),
        ('?kind=vdpa', []),
        ('?kind=mdev', [4]),
        ('?status=available', [2, 4]),
        ('?status=available&host=h2&kind=mdev', [4]),
        ('?limit=0', []),
    ],
)
def test_filters(site: Any, server: str, query: str, found: list[int]) -> None:
    assert listed(site, query.replace('$server', server)) == found


@pytest.mark.parametrize(
    ('query', 'named'),
    [
        ('host=a%20b', 'host'),
        ('host=', 'host'),
        (f'host={"a" * 256}', 'host'),
        ('server=5', 'server'),
        ('project_id=%27', 'project_id'),
        ('kind=gpu', 'kind'),
        ('kind=type-PCI', 'kind'),
        ('status=dead', 'status'),
        ('limit=-1', 'limit'),
        ('limit=x', 'limit'),
        ('marker=7', 'marker'),
        ('kind=pf&kind=vf', 'kind'),
        ('address=0000:81:00.0', 'address'),
    ],
)
def test_a_bad_filter_is_refused_by_name(site: Any, query: str, named: str) -> None:
    code, message = site.fault('GET', f'/os-devices?{query}', mount=OWN)
    assert code == 400 and named in message


def test_pages_over_two_cells(make_site: Any) -> None:
    site = make_site(api__compute_link_prefix='https://cloud.example/compute')
    for number, cell in enumerate((site.cell1, site.cell2)):
        with cell.write() as conn:
            made = compute_nodes.get_or_create(conn, node(f'h{number}'))
            pci_devices.save(
                conn,
                made['id'],
                created=[device(f'0000:8{each}:00.0', uuid=uuid_of(3 * number + each)) for each in range(3)],
            )
    seen, path = [], '/os-devices?limit=2&status=available'
    for _ in range(3):
        body = site.ok('GET', path, mount=OWN)
        seen.append([int(row['id'][:8]) for row in body['devices']])
        (link,) = body['devices_links']
        assert link['rel'] == 'next'
        path = link['href'].removeprefix(f'https://cloud.example/compute{OWN}')
        assert path == f'/os-devices?limit=2&status=available&marker={uuid_of(seen[-1][-1])}'
    assert seen == [[0, 1], [2, 3], [4, 5]]
    assert 'devices_links' not in site.ok('GET', path, mount=OWN)
    assert site.fault('GET', f'/os-devices?marker={uuid_of(9)}', mount=OWN) == (400, f'marker [{uuid_of(9)}] not found')


def test_a_limit_above_the_configured_one(make_site: Any) -> None:
    site = make_site(api__max_limit=1)
    with site.cell1.write() as conn:
        made = compute_nodes.get_or_create(conn, node('h1'))
        pci_devices.save(conn, made['id'], created=[device('0000:81:00.0'), device('0000:82:00.0')])
    body = site.ok('GET', '/os-devices?limit=5', mount=OWN)
    assert len(body['devices']) == 1 and body['devices_links']


def test_a_cell_costs_one_statement(site: Any, server: str) -> None:
    seen: list[str] = []
    stop = engine.listen(lambda name, statement, many: seen.append(name) if 'pci_devices' in statement else None)
    assert listed(site) == [1, 2, 3, 4]
    stop()
    assert seen == ['cell1', 'cell2']


# --- what isn't there, or doesn't answer -----------------------------------------------------------------------------
@pytest.mark.parametrize('unknown', [uuid_of(9), 'nosuch', '0000:81:00.0', 'a' * 5000])
def test_an_unknown_device(site: Any, server: str, unknown: str) -> None:
    assert site.fault('GET', f'/os-devices/{unknown}', mount=OWN) == (404, f'Device {unknown} could not be found.')


def test_a_cell_that_does_not_answer_is_named(site: Any, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        name, cell = 'cell2', site.cell2.cell

        def read(self) -> None:
            raise Unanswered(who='cell2', reason='gone')

    monkeypatch.setattr(type(site.cells), 'databases', lambda self: [site.cell0, site.cell1, Silent()])
    body = site.ok('GET', '/os-devices', mount=OWN)
    assert body['silent_cells'] == ['cell2'] and [row['id'] for row in body['devices']] == [uuid_of(1), uuid_of(2)]
    assert listed(site, f'?marker={uuid_of(1)}') == [2]
    assert site.ok('GET', f'/os-devices/{uuid_of(2)}', mount=OWN)['device']['host'] == 'h1'
    for path in (f'/os-devices/{uuid_of(3)}', f'/os-devices?marker={uuid_of(3)}'):
        code, message = site.fault('GET', path, mount=OWN)
        assert code == 503 and 'cell2' in message


# --- the front door --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('path', ['', '/'])
def test_the_version_document_needs_no_token(site: Any, path: str) -> None:
    response = site.request('GET', path, mount=OWN, headers={'X-Auth-Token': ''})
    assert response.status_int == 200 and response.json == {
        'version': {
            'id': 'v1',
            'status': 'CURRENT',
            'links': [{'rel': 'self', 'href': 'http://localhost/kilonova/v1/'}],
        }
    }
    assert versions.HEADER not in response.headers


@pytest.mark.parametrize('path', ['/os-devices', f'/os-devices/{uuid_of(1)}'])
def test_administrators_with_a_token_only(site: Any, server: str, path: str) -> None:
    rule = f'kilonova:devices:{"index" if path == "/os-devices" else "show"}'
    assert site.fault('GET', path, mount=OWN, headers={'X-Auth-Token': ''})[0] == 401
    assert site.fault('GET', path, mount=OWN, user='bob', project='p7') == (
        403,
        f"Policy doesn't allow {rule} to be performed.",
    )
    assert site.request('GET', path, mount=OWN).status_int == 200


@pytest.mark.parametrize('version', [None, '2.1', '2.9999', 'abc'])
def test_microversions_are_ignored(site: Any, server: str, version: str | None) -> None:
    response = site.request('GET', '/os-devices', mount=OWN, version=version)
    assert response.status_int == 200 and len(response.json['devices']) == 4
    assert not {versions.HEADER, versions.LEGACY_HEADER} & set(response.headers)
    assert response.headers['x-openstack-request-id'] == response.headers['x-compute-request-id']


@pytest.mark.parametrize('path', ['/os-devices', f'/os-devices/{uuid_of(1)}'])
@pytest.mark.parametrize('method', ['HEAD', 'POST', 'PUT', 'DELETE', 'PATCH'])
def test_other_methods(site: Any, server: str, path: str, method: str) -> None:
    response = site.request(method, path, mount=OWN, raw=b'{}')
    assert (response.status_int, response.headers['Allow']) == (405, 'GET')
    if method != 'HEAD':
        assert response.json == {'badMethod': {'code': 405, 'message': f'{method} is not allowed here, only GET'}}


@pytest.mark.parametrize('path', ['/servers', '/p1/os-devices', '/os-devices/a/b', '/v1/os-devices'])
def test_unknown_paths(site: Any, path: str) -> None:
    assert site.fault('GET', path, mount=OWN) == (404, 'The resource could not be found.')


def test_the_fields_prefixes_have_no_devices(site: Any) -> None:
    assert site.request('GET', '/os-devices').status_int == 404
    assert site.request('GET', '/os-devices', mount='/v2').status_int == 404


def test_rows_need_an_administrator() -> None:
    assert {route.policy for route in OWN_ROUTES} == {
        'kilonova:devices:index',
        'kilonova:devices:show',
        'kilonova:device-history:index',
        'kilonova:metrics:show',
    }

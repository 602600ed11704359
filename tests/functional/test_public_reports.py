"""Reports that users of other clouds made in public, tried here: docs/reference/regressions.md lists them all."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from kilonova.db import engine
from kilonova.db.models import api as api_models
from kilonova.db.models import cell as cell_models
from kilonova.db.queries import archive
from kilonova.errors import Unanswered
from tests.fixtures.cloud import OTHER_IMAGE_ID, Cloud
from tests.fixtures.hosts import pci_device, sriov_gpu
from tests.flows.cases import force_down, lose_host

# Bytes that a TEXT of MariaDB and MySQL holds; SQLite and PostgreSQL know no such bound.
TEXT = 65535


def too_long(database: engine.Database, metadata: sa.MetaData) -> dict[str, int]:
    """Return the columns that hold more than they would on MariaDB, 'table.column', each with its bytes."""
    found: dict[str, int] = {}
    with database.read() as conn:
        for table in metadata.tables.values():
            texts = [column for column in table.columns if column.type.compile(mysql.dialect()) == 'TEXT']
            for row in conn.execute(sa.select(*texts)) if texts else ():
                for column, value in zip(texts, row, strict=True):
                    if (size := len((value or '').encode())) > TEXT:
                        found[f'{table.name}.{column.name}'] = size
    return found


def check_columns(cloud: Cloud) -> None:
    assert too_long(cloud.databases.api(), api_models.Base.metadata) == {}
    assert too_long(cloud.cell, cell_models.Base.metadata) == {}


@pytest.mark.database
@pytest.mark.parametrize('end', ['confirmResize', 'revertResize'])
def test_a_resize_of_a_server_with_many_devices(make_cloud: Callable[..., Cloud], end: str) -> None:
    """LP 1738094 and oVirt 1131: a text of a few devices or CPUs fits its column, that of many does not. A move keeps
    the devices of both sides: with 64 of them MariaDB refused the claim."""
    buses = range(0x10, 0x10 + 64)
    cloud = make_cloud({host: [f'0000:{bus:02x}:00.0' for bus in buses] for host in ('gpu1', 'gpu2')})
    server = cloud.boot(cloud.flavor(gpus=64))
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=64, ram=1024)})
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    check_columns(cloud)
    cloud.action(server, end)
    assert cloud.status(server) == 'ACTIVE' and len(cloud.hostdevs(server)) == 64
    cloud.assert_clean()


@pytest.mark.database
def test_a_flavor_with_as_many_extra_specs_as_are_accepted(make_cloud: Callable[..., Cloud]) -> None:
    """The same: a server keeps the specs of its flavor, during a resize those of both."""
    cloud = make_cloud({'gpu1': [], 'gpu2': []})
    specs = {f'acme:{number:04}': 'x' * 255 for number in range(300)}
    server = cloud.boot(cloud.flavor(**specs))
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(ram=1024, **specs)})
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    check_columns(cloud)
    cloud.action(server, 'confirmResize')
    assert cloud.status(server) == 'ACTIVE'
    cloud.assert_clean()


STATES = {
    'locked': 'lock',
    'paused': 'pause',
    'suspended': 'suspend',
    'rescued': 'rescue',
    'shelved': 'shelve',
    'error': None,
    'resized': None,
}


@pytest.mark.parametrize('state', STATES)
def test_a_tool_evacuates_a_server_of_each_state(
    make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """LP 1693728: tools for instance HA (Masakari) lock a server, or reset it to ERROR where its state can't be
    evacuated, and ask once. It runs on another host then, and no host keeps a device of it."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    cloud = make_cloud(
        {f'gpu{number}': [f'0000:{number}8:00.0', f'0000:{number}9:00.0'] for number in (1, 2, 3)},
        shelved_offload_time=-1,
    )
    server = cloud.boot(cloud.flavor(gpus=1))
    if state == 'resized':
        cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=1, ram=1024)})
    elif STATES[state]:
        cloud.action(server, STATES[state])
    host = cloud.host_of(server)
    lose_host(cloud, host)
    if state != 'locked':
        cloud.ok('POST', f'/servers/{server}/action', {'os-resetState': {'state': 'error'}})
        cloud.settle(kinds_left=('release',))
    cloud.ok('POST', f'/servers/{server}/action', {'evacuate': {}}, version='2.53')
    cloud.settle(kinds_left=('release',))
    assert cloud.status(server) == 'ACTIVE' and cloud.host_of(server) not in (host, None), cloud.story(server)
    cloud.start_compute(host)
    force_down(cloud, host, False)
    cloud.settle()
    cloud.assert_clean()
    assert cloud.owned(server) == [f'{cloud.host_of(server)} {address}' for address in cloud.hostdevs(server)]
    cloud.ok('DELETE', f'/servers/{server}')
    cloud.settle()
    cloud.assert_empty()


def test_a_card_is_carved_while_a_server_holds_it_whole(make_cloud: Callable[..., Cloud]) -> None:
    """LP 1892361: SR-IOV is switched on for the cards of a host, of which a server holds one as a whole. Nobody gets
    the virtual functions below that one until it is given back; those of the others are given out."""
    product, cards = {'vendor_id': '10de', 'product_id': '2330'}, ('0000:41:00.0', '0000:42:00.0')
    cloud = make_cloud(
        {'gpu1': []},
        devices={'gpu1': [pci_device(card, product='2330') for card in cards]},
        specs={'gpu1': [json.dumps(product)]},
        pci__alias=[
            json.dumps({**product, 'name': name, 'device_type': kind})
            for name, kind in (('whole', 'type-PCI'), ('part', 'type-VF'))
        ],
    )
    holder = cloud.boot(cloud.flavor(gpus=1, alias='whole'))
    (held,) = cloud.hostdevs(holder)
    (other,) = {*cards} - {held}
    cloud.computes.pop('gpu1').stop()
    (cloud.directory / 'gpu1.xml').unlink()
    parts = {card: [f'{card[:-1]}{function}' for function in '45'] for card in (held, other)}
    cloud.node_devices['gpu1'] = [text for card in parts for text in sriov_gpu(card, parts[card])]
    cloud.specs['gpu1'] = [
        json.dumps({**product, 'address': {'bus': card[5:7], 'function': '[4-5]'}}) for card in cards
    ]
    cloud.start_compute('gpu1')
    flavor = cloud.flavor(gpus=1, alias='part')
    servers = [cloud.boot(flavor) for _ in range(3)]
    assert [cloud.status(server) for server in servers] == ['ACTIVE', 'ACTIVE', 'ERROR']
    assert sorted(address for server in servers[:2] for address in cloud.hostdevs(server)) == parts[other]
    cloud.action(holder, 'reboot', {'type': 'HARD'})
    assert cloud.status(holder) == 'ACTIVE' and cloud.hostdevs(holder) == [held]
    cloud.assert_clean()
    cloud.ok('DELETE', f'/servers/{holder}')
    cloud.settle()
    cloud.computes['gpu1'].node.update()
    assert [cloud.status(cloud.boot(flavor)) for _ in range(3)] == ['ACTIVE', 'ACTIVE', 'ERROR']
    cloud.assert_clean()


@pytest.mark.parametrize('purged', [False, True])
def test_deleted_rows_are_archived_while_a_host_has_still_to_give_back(
    make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch, purged: bool
) -> None:
    """LP 1899541: archiving took along rows of devices that a deleted server had still. Here its host is down; back,
    it gives them back, and another server gets them."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    cloud = make_cloud({'gpu1': ['0000:08:00.0', '0000:09:00.0']})
    server = cloud.boot(cloud.flavor(gpus=2))
    lose_host(cloud, 'gpu1')
    cloud.ok('DELETE', f'/servers/{server}')
    cloud.settle(kinds_left=('release',))
    moved = archive.archive(cloud.databases.api(), cloud.cell, max_rows=1000)
    assert moved['instances'] == 1
    if purged:
        archive.purge(cloud.cell)
    assert sorted(cloud.devices()) == ['gpu1 0000:08:00.0', 'gpu1 0000:09:00.0']
    cloud.start_compute('gpu1')
    force_down(cloud, 'gpu1', False)
    cloud.settle()
    cloud.assert_empty()
    assert cloud.status(cloud.boot(cloud.flavor(gpus=2))) == 'ACTIVE'
    cloud.assert_clean()


@pytest.mark.parametrize('act', ['migrate', 'resize', 'evacuate', 'unshelve', 'rebuild', 'revertResize'])
def test_what_is_done_with_a_server_whose_flavor_is_gone(
    make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """LP 1570748: Horizon changes a flavor by a new one under its name. A server keeps the flavor that it has."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    cloud = make_cloud({'gpu1': ['0000:08:00.0'], 'gpu2': ['0000:88:00.0']}, shelved_offload_time=0)
    flavor, larger = cloud.flavor('gpu', gpus=1), cloud.flavor(gpus=1, ram=1024)
    server = cloud.boot(flavor)
    if act == 'unshelve':
        cloud.action(server, 'shelve')
    if act == 'revertResize':
        cloud.action(server, 'resize', {'flavorRef': larger})
        cloud.ok('DELETE', f'/flavors/{larger}')
    if act == 'evacuate':
        lose_host(cloud, cloud.host_of(server))
    cloud.ok('DELETE', f'/flavors/{flavor}')
    cloud.flavor('gpu', ram=256)
    body = {'resize': {'flavorRef': larger}, 'rebuild': {'imageRef': OTHER_IMAGE_ID}, 'evacuate': {}}.get(act)
    cloud.ok('POST', f'/servers/{server}/action', {act: body}, version='2.53')
    cloud.settle(kinds_left=('release',))
    if act in ('migrate', 'resize'):
        cloud.action(server, 'confirmResize')
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    shown = cloud.show(server)['flavor']
    assert (shown['original_name'] == 'gpu', shown['ram']) == ((True, 512) if act != 'resize' else (False, 1024))
    assert len(cloud.hostdevs(server)) == 1
    if act != 'evacuate':
        cloud.assert_clean()


def test_a_host_that_died_a_moment_ago_is_disabled_without_waiting_for_it(cloud: Cloud) -> None:
    """ClusterLabs fence-agents 303: tools for instance HA disable the service of a host before they say that it is
    down. The answer comes while the host has still to hear of it; servers go elsewhere."""
    heard, answered, waited = threading.Event(), threading.Event(), []

    def on_message(kind: str, topic: str, host: str | None, method: str, args: Any, deliver: Callable[[], Any]) -> Any:
        if method == 'set_host_enabled':
            waited.append(answered.wait(5))
            heard.set()
            raise Unanswered(who=host, reason='it is dead')
        return deliver()

    cloud.on_message = on_message
    (service,) = cloud.ok('GET', '/os-services?host=gpu1&binary=nova-compute')['services']
    cloud.ok('PUT', f'/os-services/{service["id"]}', {'status': 'disabled'})
    answered.set()
    assert heard.wait(10) and waited == [True]
    assert cloud.host_of(cloud.boot(cloud.flavor(gpus=1))) == 'gpu2'
    cloud.on_message = None

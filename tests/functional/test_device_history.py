"""Who held which device from when to when, whatever was done with the server."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
import sqlalchemy as sa

from kilonova.db.models.cell import DeviceHistory
from tests.fixtures.cloud import PROJECT, Cloud

TWO = {'gpu1': ['0000:08:00.0'], 'gpu2': ['0000:85:00.0']}


def told(cloud: Cloud, query: str = '') -> list[tuple[str, str, str]]:
    """(host, address, server) of each entry, the newest first."""
    entries = cloud.ok('GET', f'/os-device-history{query}', mount='/kilonova/v1')['device_history']
    assert all(entry['began_at'] and entry['began_at'] <= entry['ended_at'] for entry in entries)
    assert {entry['project_id'] for entry in entries} <= {PROJECT}
    return [(entry['host'], entry['address'], entry['server_id']) for entry in entries]


def since(cloud: Cloud) -> dict[str, bool]:
    """Whether each device says since when it is held."""
    return {
        one['address']: one['held_since'] is not None
        for one in cloud.ok('GET', '/os-devices', mount='/kilonova/v1')['devices']
    }


@pytest.mark.parametrize('end', ['confirmResize', 'revertResize'])
def test_a_resize(make_cloud: Any, end: str) -> None:
    """Both ends of a move are told when each gives its device back, once."""
    cloud = make_cloud(TWO)
    server = cloud.boot(cloud.flavor(gpus=1))
    source, (first,) = cloud.host_of(server), cloud.hostdevs(server)
    assert since(cloud) == {'0000:08:00.0': first == '0000:08:00.0', '0000:85:00.0': first == '0000:85:00.0'}
    for action in ('os-stop', 'os-start'):
        cloud.action(server, action)
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=1, ram=1024)})
    destination, (second,) = cloud.host_of(server), cloud.hostdevs(server)
    assert told(cloud) == [] and all(since(cloud).values())
    cloud.action(server, end)
    left = (source, first, server) if end == 'confirmResize' else (destination, second, server)
    assert told(cloud) == [left]
    cloud.ok('DELETE', f'/servers/{server}')
    cloud.settle()
    other = {(source, first, server), (destination, second, server)} - {left}
    assert told(cloud) == [*other, left] == told(cloud, f'?server={server}')
    assert told(cloud, f'?host={source}') == [(source, first, server)]
    assert not any(since(cloud).values())


def test_a_boot_that_is_refused_after_its_claim(make_cloud: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It held the device for a moment."""
    cloud = make_cloud({'gpu1': ['0000:08:00.0']})
    guests = cloud.computes['gpu1'].host.driver.guests

    def spawn(*args: Any, **kwargs: Any) -> None:
        raise OSError('no room')

    monkeypatch.setattr(guests, 'spawn', spawn)
    server = cloud.boot(cloud.flavor(gpus=1))
    assert cloud.status(server) == 'ERROR' and told(cloud) == [('gpu1', '0000:08:00.0', server)]


def test_what_is_old_goes(make_cloud: Any) -> None:
    """Of each cell, by the option."""
    cloud = make_cloud({'gpu1': ['0000:08:00.0']}, devices__history_days=30)
    for _ in range(2):
        cloud.ok('DELETE', f'/servers/{cloud.boot(cloud.flavor(gpus=1))}')
        cloud.settle()
    (_, old) = told(cloud)
    table = DeviceHistory.__table__
    expiry = cloud.conductors[0].expiry
    assert expiry.purge_history() == 0 and len(told(cloud)) == 2
    with cloud.cell.write() as conn:
        now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
        for server, days in ((old[2], 30.1), (told(cloud)[0][2], 29.9)):
            conn.execute(
                table.update()
                .where(table.c.instance_uuid == server)
                .values(began_at=now - dt.timedelta(days=days), ended_at=now - dt.timedelta(days=days))
            )
    assert expiry.purge_history() == 1
    with cloud.cell.read() as conn:
        assert conn.execute(sa.select(sa.func.count()).select_from(table)).scalar() == 1
    assert old not in told(cloud)

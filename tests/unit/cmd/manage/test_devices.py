"""kilonova-manage device: what is held by whom, and what is held by nobody any more."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from kilonova.db import engine
from kilonova.db.models.cell import Instance, Operation, PciDevice
from kilonova.db.queries import device_owners

DEVICES, SERVERS = PciDevice.__table__, Instance.__table__
S1 = 'aaaaaaaa-0000-4000-8000-00000000000a'
HELD, FREE = '0000:81:00.0', '0000:82:00.0'


@pytest.fixture
def cell(cloud: Any, node: str, parse: Any) -> Any:
    """The cell's database, where a server S1 holds one of two devices."""
    databases = engine.configure(parse())
    with databases.main().write() as connection:
        connection.execute(SERVERS.insert().values(uuid=S1, display_name='train', host='gpu1', vm_state='active'))
        connection.execute(DEVICES.update().where(DEVICES.c.address == HELD).values(instance_uuid=S1))
    yield databases.main()
    databases.dispose()


def change(cell: Any, statement: Any) -> None:
    with cell.write() as connection:
        connection.execute(statement)


def held(cell: Any) -> tuple[str, str | None]:
    with cell.read() as connection:
        row = connection.execute(
            sa.select(DEVICES.c.status, DEVICES.c.instance_uuid).where(DEVICES.c.address == HELD)
        ).one()
        return row.status, row.instance_uuid


def listed(cloud: Any, *arguments: str) -> list[str]:
    code, lines = cloud('device', 'list', '--format', 'json', *arguments)
    assert code == 0
    return [row['address'] for row in json.loads('\n'.join(lines))]


# -- list -------------------------------------------------------------------------------------------------------------
def test_devices_of_a_host_free_ones_and_a_servers(cloud: Any, cell: Any) -> None:
    """`device list` selects devices by host, by server (id or whole name), and those that are free."""
    assert listed(cloud) == listed(cloud, '--host', 'gpu1') == [HELD, FREE]
    assert listed(cloud, '--host', 'gpu2') == []
    assert listed(cloud, '--free') == [FREE]
    assert listed(cloud, '--server', S1) == listed(cloud, '--server', 'train') == [HELD]
    assert listed(cloud, '--server', 'trai') == []
    assert listed(cloud, '--server', S1, '--free') == []


def test_a_server_is_listed_with_its_name(cloud: Any, cell: Any) -> None:
    rows = json.loads('\n'.join(cloud('device', 'list', '--format', 'json')[1]))
    assert [(row['instance_uuid'], row['server_name']) for row in rows] == [(S1, 'train'), (None, None)]
    assert any('train' in line for line in cloud('device', 'list')[1])


# -- show, history, metrics -------------------------------------------------------------------------------------------
def test_one_device(cloud: Any, cell: Any) -> None:
    code, lines = cloud('device', 'show', 'gpu1', HELD, '--format', 'json')
    fields = json.loads('\n'.join(lines))
    assert code == 0
    assert (fields['host'], fields['address'], fields['server_name'], fields['kind']) == ('gpu1', HELD, 'train', 'pci')
    code, lines = cloud('device', 'show', 'gpu1', HELD)
    assert code == 0
    assert ['server_name', 'train'] in [[word.strip() for word in line.strip('|').split('|')] for line in lines]
    assert cloud('device', 'show', 'gpu1', '0000:99:00.0') == (2, ['gpu1 has no device 0000:99:00.0'])


def test_who_held_a_device(cloud: Any, cell: Any) -> None:
    assert cloud('device', 'history', '--format', 'json') == (0, ['[]'])
    change(cell, SERVERS.update().values(deleted=SERVERS.c.id, project_id='p7'))
    assert cloud('device', 'release', 'gpu1', HELD)[0] == 0
    for more in ((), ('--host', 'gpu1'), ('--address', HELD.upper()), ('--server', S1), ('--project', 'p7')):
        (entry,) = json.loads('\n'.join(cloud('device', 'history', '--format', 'json', *more)[1]))
        assert (entry['host'], entry['address'], entry['server_id'], entry['project_id']) == ('gpu1', HELD, S1, 'p7')
        assert entry['ended_at']
    for more in (('--host', 'gpu2'), ('--address', FREE), ('--server', 'nobody'), ('--project', 'p8')):
        assert cloud('device', 'history', '--format', 'json', *more) == (0, ['[]'])
    assert any(HELD in line and S1 in line for line in cloud('device', 'history')[1])


@pytest.mark.parametrize('limit', ['0', '-1', '10001', 'x', '1.5'])
def test_a_bad_limit(cloud: Any, cell: Any, limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cloud('device', 'history', '--limit', limit)
    assert f"'{limit}' is not a number from 1 to 10000" in capsys.readouterr().err


def test_metrics_for_a_text_file(cloud: Any, cell: Any) -> None:
    code, lines = cloud('device', 'metrics')
    assert code == 0 and lines[0].startswith('# HELP kilonova_devices ')
    assert 'kilonova_devices{host="gpu1",kind="pci",status="available"} 1' in lines


# -- check and release ------------------------------------------------------------------------------------------------
def soft_deleted() -> Any:
    return SERVERS.update().values(deleted=SERVERS.c.id)


@pytest.mark.parametrize(
    ('happen', 'owner', 'why'),
    [
        (soft_deleted, S1, f'allocated by {S1}, which is not a server of this cell'),
        (
            lambda: DEVICES.update().where(DEVICES.c.address == HELD).values(instance_uuid=None, status='claimed'),
            None,
            'claimed without a server',
        ),
    ],
)
def test_a_device_without_an_owner_is_found_and_given_back(
    cloud: Any, cell: Any, happen: Callable[[], Any], owner: str | None, why: str
) -> None:
    """`device check` names a device without an owner, and `device release` makes it available again."""
    assert cloud('device', 'check') == (0, ['2 devices, each held by a server or free'])
    change(cell, happen())
    assert cloud('device', 'check') == (
        1,
        [f'gpu1 {HELD} is {why}', "Run 'kilonova-manage device release HOST ADDRESS' to release a device"],
    )
    code, lines = cloud('device', 'release', 'gpu1', HELD)
    assert (code, held(cell)) == (0, ('available', None))
    (line,) = lines
    assert line.startswith(f'gpu1 {HELD} is available again. Restart kilonova-compute on gpu1')
    assert cloud('device', 'check')[0] == 0
    assert cloud('device', 'release', 'gpu1', HELD) == (1, [f'gpu1 {HELD} is available: nothing was changed'])


def test_a_device_that_a_server_holds_is_not_given_back(cloud: Any, cell: Any) -> None:
    assert cloud('device', 'release', 'gpu1', HELD) == (
        1,
        [f"gpu1 {HELD} is held by server {S1} (train): nothing was changed. 'openstack server delete' frees it"],
    )
    assert held(cell) == ('allocated', S1)


def test_a_device_that_an_operation_works_on_is_not_given_back(cloud: Any, cell: Any) -> None:
    """A pending release outlives its server."""
    change(cell, soft_deleted())
    change(
        cell,
        Operation.__table__.insert().values(
            uuid='o' * 36, kind='release', instance_uuid=S1, slot='o' * 36, args='{}', context='{}'
        ),
    )
    assert cloud('device', 'check')[0] == 0
    assert cloud('device', 'release', 'gpu1', HELD) == (
        1,
        [
            (
                f'gpu1 {HELD} is held by server {S1}, for which operation {"o" * 36} (release) is running: nothing '
                'was changed'
            )
        ],
    )
    assert held(cell) == ('allocated', S1)


def test_what_changes_after_the_look_is_not_given_back(cell: Any) -> None:
    """Between the look and the write somebody may restore the server, or an operation may begin."""
    with cell.read() as connection:
        number = connection.execute(sa.select(DEVICES.c.id).where(DEVICES.c.address == HELD)).scalar_one()

    def release(owner: str | None) -> bool:
        with cell.write() as connection:
            return device_owners.release(connection, number, owner)

    assert not release(S1) and not release(None) and not release('u2')
    change(cell, soft_deleted())
    change(
        cell,
        Operation.__table__.insert().values(
            uuid='o' * 36, kind='release', instance_uuid=S1, slot='o' * 36, args='{}', context='{}'
        ),
    )
    assert not release(S1)
    change(cell, Operation.__table__.delete())
    assert release(S1)
    assert not release(S1) and not release(None)


def test_no_such_device(cloud: Any, cell: Any) -> None:
    assert cloud('device', 'release', 'gpu1', '0000:99:00.0') == (2, ['gpu1 has no device 0000:99:00.0'])
    assert cloud('device', 'release', 'gpu2', HELD) == (2, [f'gpu2 has no device {HELD}'])

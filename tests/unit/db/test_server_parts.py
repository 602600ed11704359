"""Metadata, tags and locks of servers: two writers at once lose nothing, none writes to a server that is gone."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from kilonova.db.models import cell as models
from kilonova.db.queries import instances, metadata, servers, tags
from kilonova.errors import InstanceInvalidState, InstanceIsLocked, InstanceNotFound
from tests.fixtures.servers import put_server, set_state

UUID, NOBODY = '7d7f5ee0-7c0f-4a55-8ac9-000000000001', '7d7f5ee0-7c0f-4a55-8ac9-000000000002'
ACTION = {'action': 'lock', 'request_id': 'req-1', 'user_id': 'u', 'project_id': 'p'}


@pytest.fixture
def here(cell):
    """A cell with one server."""
    with cell.write() as conn:
        put_server(
            conn, {'uuid': UUID, 'vm_state': 'active', 'task_state': None, 'host': 'gpu1'}, {}, {}, {'a': '1'}, ['t']
        )
    return cell


def at_once(act, values):
    threads = [threading.Thread(target=act, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_keys_that_differ_in_case_are_two(here):
    metadata.change(here, UUID, lambda pairs: {**pairs, 'A': '2'}, method='m')
    assert metadata.change(here, UUID, lambda pairs: {**pairs, 'a': '3'}, method='m') == {'a': '3', 'A': '2'}
    tags.add(here, UUID, 'T', 50)
    assert not tags.add(here, UUID, 'T', 50)
    with here.read() as conn:
        assert metadata.get(conn, UUID) == {'a': '3', 'A': '2'} and tags.words(conn, UUID) == ['T', 't']
        assert conn.execute(sa.select(sa.func.count()).select_from(metadata.table)).scalar() == 2
    tags.replace(here, UUID, ['t', 'x', 'x'])
    assert tags.remove(here, UUID, 't') and not tags.remove(here, UUID, 'T')
    tags.clear(here, UUID)
    with here.read() as conn:
        assert tags.words(conn, UUID) == []


def test_writers_at_once_lose_nothing(here):
    """Nothing in the database keeps a key from standing twice, or a server from having too many tags: the server's row
    that each holds does."""
    at_once(
        lambda number: metadata.change(here, UUID, lambda pairs: {**pairs, 'k': number, number: 'v'}, method='m'),
        [str(number) for number in range(6)],
    )
    refused = []

    def add(word):
        try:
            tags.add(here, UUID, word, 3)
        except tags.TooManyTags:
            refused.append(word)

    at_once(add, [f'w{number}' for number in range(6)])
    with here.read() as conn:
        assert {*metadata.get(conn, UUID)} == {'a', 'k', *map(str, range(6))}
        assert conn.execute(sa.select(sa.func.count()).select_from(metadata.table)).scalar() == 8
        assert len(tags.words(conn, UUID)) == 3 and len(refused) == 4


def test_states_in_which_nothing_may_change(here):
    def keep(pairs):
        return pairs

    acts = {
        'x metadata': lambda uuid: metadata.change(here, uuid, keep, method='x metadata'),
        'update tags': lambda uuid: tags.replace(here, uuid, []),
        'delete tags': lambda uuid: tags.clear(here, uuid),
        'update tag': lambda uuid: tags.add(here, uuid, 'n', 50),
        'delete tag': lambda uuid: tags.remove(here, uuid, 't'),
    }
    with here.write() as conn:
        set_state(conn, UUID, vm_state='error')
    for method, act in acts.items():
        with pytest.raises(InstanceInvalidState) as caught:
            act(UUID)
        assert str(caught.value) == f"Cannot '{method}' instance {UUID} while it is in vm_state error"
        if method == 'delete tag':
            # What isn't there is not taken away, whoever's it were.
            assert act(NOBODY) is False
            continue
        with pytest.raises(InstanceNotFound):
            act(NOBODY)
    with here.read() as conn:
        assert tags.words(conn, UUID) == ['t']


def locked(database):
    with database.read() as conn:
        row = conn.execute(sa.select(models.Instance.locked, models.Instance.locked_by)).one()
        return bool(row.locked), row.locked_by, servers.facts(conn, [UUID], with_reason=True)[UUID]['locked_reason']


def test_locks(here):
    assert instances.lock(here, UUID, locked_by='owner', reason='r', again=False, action=ACTION, host='api1')
    assert locked(here) == (True, 'owner', 'r')
    assert not instances.lock(here, UUID, locked_by='owner', reason='s', again=False, action=ACTION, host='api1')
    assert instances.lock(here, UUID, locked_by='admin', reason=None, again=True, action=ACTION, host='api1')
    assert locked(here) == (True, 'admin', None)
    with pytest.raises(InstanceIsLocked):
        instances.unlock(here, UUID, locked_by='owner', action=ACTION, host='api1')
    instances.unlock(here, UUID, locked_by='admin', action=ACTION, host='api1')
    assert locked(here) == (False, None, None)
    instances.unlock(here, UUID, locked_by=None, action=ACTION, host='api1')
    for act in (
        lambda: instances.lock(here, NOBODY, locked_by='owner', reason=None, again=False, action=ACTION, host='h'),
        lambda: instances.unlock(here, NOBODY, locked_by=None, action=ACTION, host='h'),
    ):
        with pytest.raises(InstanceNotFound):
            act()
    with here.read() as conn:
        events = conn.execute(sa.select(models.InstanceActionEvent.event, models.InstanceActionEvent.host)).all()
    assert [tuple(event) for event in events] == [
        ('api_lock', 'api1'),
        ('api_lock', 'api1'),
        ('api_unlock', 'api1'),
        ('api_unlock', 'api1'),
    ]

"""A COMMIT whose answer is lost: the accepting transactions are tried again and must accept once, not twice."""

from __future__ import annotations

import contextlib

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from kilonova.db import engine
from kilonova.db.models.api import BuildRequest, InstanceMapping
from kilonova.db.models.cell import Instance, InstanceAction
from kilonova.db.queries import operations

UUID = '11111111-1111-1111-1111-111111111111'
ACTION = {'action': 'stop', 'request_id': 'req-1', 'user_id': 'u', 'project_id': 'p'}


def lost() -> exc.DBAPIError:
    return exc.OperationalError(
        'COMMIT', None, Exception('Lost connection to server during query'), connection_invalidated=True
    )


@pytest.fixture
def lose(monkeypatch):
    """The next ``times`` transactions of a database are committed, but nobody hears of it; a list of the attempts."""

    def lose(database, times=1, *, before=False):
        write, attempts = database.write, []

        @contextlib.contextmanager
        def lossy():
            attempts.append(engine.repeated())
            with write() as connection:
                yield connection
                if before and len(attempts) <= times:
                    raise lost()
            if len(attempts) <= times:
                raise lost()

        monkeypatch.setattr(database, 'write', lossy)
        return attempts

    return lose


def op(uuid, kind='stop', **more):
    return operations.OperationRow(uuid=uuid, kind=kind, instance_uuid=UUID, request_id='req-1', **more)


@pytest.fixture
def server(cell):
    with cell.write() as connection:
        connection.execute(sa.insert(Instance.__table__).values(uuid=UUID, vm_state='active', project_id='p'))


def read(database, *columns):
    with database.read() as connection:
        return [tuple(row) for row in connection.execute(sa.select(*columns))]


ROWS = operations.operations.c.uuid, operations.operations.c.slot
ACCEPTED = {
    'a stop': lambda cell: operations.accept(
        cell, instance_uuid=UUID, event='stop.start', operation=op('o'), action=ACTION
    ),
    'a delete': lambda cell: operations.accept_delete(
        cell, instance_uuid=UUID, operation=op('o', 'delete'), action=ACTION | {'action': 'delete'}
    ),
    'a soft delete': lambda cell: operations.accept_soft_delete(
        cell, instance_uuid=UUID, operation=op('o', 'soft_delete'), action=ACTION | {'action': 'delete'}
    ),
}


@pytest.mark.parametrize('before', [False, True], ids=['committed', 'not committed'])
@pytest.mark.parametrize('what', ACCEPTED)
def test_it_is_accepted_once(cell, server, lose, what, before):
    attempts = lose(cell, 2, before=before)
    assert ACCEPTED[what](cell) in (None, 'o')
    assert attempts == [False, True, True]
    assert read(cell, *ROWS) == [('o', 'run')]
    assert len(read(cell, InstanceAction.__table__.c.id)) == 1
    assert not engine.repeated()


def test_another_request_is_still_refused(cell, server, lose):
    """What stands there is not ours: a lost answer to nothing."""
    ACCEPTED['a stop'](cell)
    lose(cell, before=True)
    with pytest.raises(engine.errors.Conflict, match='stop'):
        operations.accept(
            cell, instance_uuid=UUID, event='stop.start', operation=op('o2'), action=ACTION | {'request_id': 'req-2'}
        )
    assert read(cell, *ROWS) == [('o', 'run')]


def test_a_create_is_accepted_once(api, lose):
    attempts = lose(api)
    operations.accept_create(
        api,
        specs=[(UUID, '{}')],
        requests=[{'instance_uuid': UUID, 'project_id': 'p', 'instance': '{}'}],
        mappings=[{'instance_uuid': UUID, 'project_id': 'p', 'user_id': 'u'}],
        operations=[op('o', 'boot')],
    )
    assert attempts == [False, True]
    assert read(api, *ROWS) == [('o', 'run')]
    assert len(read(api, BuildRequest.__table__.c.id)) == 1
    lose(api)
    assert operations.delete_build_request(api, UUID), 'it was there'
    assert read(api, InstanceMapping.__table__.c.queued_for_delete) == [(True,)]
    assert not operations.delete_build_request(api, UUID)


def test_a_reset_is_written_once(cell, server, lose):
    lose(cell)
    assert (
        operations.reset_state(
            cell,
            instance_uuid=UUID,
            event='reset.error',
            operation=op('o', 'confirm'),
            action=ACTION | {'action': 'resetState'},
        )
        is None
    )
    assert len(read(cell, InstanceAction.__table__.c.id)) == 1
    assert read(cell, Instance.__table__.c.vm_state) == [('error',)]


def test_a_deadlock_says_nothing_about_a_commit(cell, monkeypatch):
    """It is the server's word that nothing was written, so nothing is looked up."""
    deadlock = exc.OperationalError('UPDATE', None, Exception(1213, 'Deadlock found'))
    seen = []

    @engine.retried
    def act():
        seen.append(engine.repeated())
        if len(seen) < 3:
            raise deadlock if len(seen) == 1 else lost()

    act()
    assert seen == [False, False, True]

"""Changes of states are told when they are committed, and only then; nobody who listens costs nothing."""

from __future__ import annotations

import pytest

from kilonova.db import engine
from kilonova.db.queries import instances, state_changes
from tests.fixtures.servers import put_server

UUID = 'c03c0bf9-f46e-4e4f-93f1-817568567ee2'


@pytest.fixture
def told():
    found: list[state_changes.Change] = []
    state_changes.watch(found.append)
    yield found
    state_changes.watch(None)


@pytest.fixture
def server(cell):
    """A server that is ACTIVE and idle."""
    with cell.write() as conn:
        put_server(conn, {'uuid': UUID, 'vm_state': 'active', 'task_state': None})
    return UUID


def test_what_is_committed_is_told(cell, server, told):
    with cell.write() as conn:
        assert instances.transition(conn, server, 'stop.start')
        assert told == []
    assert [(change.uuid, change.before, change.after, change.created) for change in told] == [
        (UUID, ('active', None), ('active', 'powering-off'), False)
    ]
    assert told[0].database is cell


def test_what_is_rolled_back_is_not(cell, server, told):
    def fail():
        with cell.write() as conn:
            instances.transition(conn, server, 'stop.start')
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with cell.write() as conn:
        assert not instances.transition(conn, server, 'stop.done')
    assert told == []


def test_a_new_server_and_a_deleted_one(cell, told):
    with cell.write() as conn:
        instances.create(conn, 'build.start', {'uuid': UUID}, {}, {}, {})
    with cell.write() as conn:
        instances.mark_deleted(conn, UUID)
    assert [(change.before, change.after, change.created) for change in told] == [
        ((None, None), ('building', 'scheduling'), True),
        (('building', 'scheduling'), ('deleted', None), False),
    ]


def test_a_state_that_stays_is_no_change(cell, server, told):
    with cell.write() as conn:
        instances.transition(conn, server, 'reset.active')
    assert told == []


def test_without_a_listener_a_change_is_one_statement(cell, server):
    statements: list[str] = []
    stop = engine.listen(lambda database, statement, many: statements.append(statement.split()[0]))
    try:
        with cell.write() as conn:
            instances.transition(conn, server, 'stop.start')
    finally:
        stop()
    assert statements == ['UPDATE', 'COMMIT']

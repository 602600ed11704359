"""What has its time: found by its age, accepted as its user's request would be, and how often it is looked for."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from kilonova.conductor import expiry
from kilonova.conductor.expiry import EXPIRES, Expiry
from kilonova.db.queries import console_tokens, instances, migrations, operations
from tests.unit.conductor.site import MIGRATION, SERVER, Site

OPTIONS = {
    'periodic_enable': True,
    'reclaim_instance_interval': 100,
    'resize_confirm_window': 100,
    'rescue_timeout': 100,
    'shelved_offload_time': 100,
    'shelved_poll_interval': 7,
    'instance_build_timeout': 100,
    'heal_instance_info_cache_interval': -1,
}
# What is deleted of each cell, and of Cyborg, whatever the options say.
CELLS = {expiry.TOKENS: 60.0, expiry.HISTORY: 60.0, expiry.ACCELERATORS: expiry.HOUR}


def made(site: Site, **options: Any) -> Expiry:
    conf: Any = SimpleNamespace(devices=SimpleNamespace(history_days=365), **{**OPTIONS, **options})
    return Expiry(site.env, conf)


def ago(seconds: float) -> datetime.datetime:
    return instances.utcnow() - datetime.timedelta(seconds=seconds)


def soft_deleted(site: Site, age: float) -> None:
    site.put('soft-delete')
    with site.cell.write() as conn:
        conn.execute(instances.instances.update().values(deleted_at=ago(age)))


def unconfirmed(site: Site, age: float) -> None:
    site.put_moved('resized')
    with site.cell.write() as conn:
        conn.execute(migrations.migrations.update().values(updated_at=ago(age)))


def rescued(site: Site, age: float) -> None:
    site.put('rescued')
    with site.cell.write() as conn:
        instances.start_action(conn, SERVER, {'action': 'rescue', 'request_id': 'r', 'user_id': 'u', 'project_id': 'p'})
        conn.execute(instances.actions.update().values(start_time=ago(age)))


def shelved(site: Site, age: float) -> None:
    site.put('shelved', system_metadata={'shelved_at': ago(age).isoformat()})


# task: (before, kind, states afterwards, action, the row's args)
CASES: dict[str, tuple[Callable[[Site, float], None], str, tuple[str, str | None], str, dict[str, Any]]] = {
    'reclaim_queued_deletes': (soft_deleted, 'delete', ('soft-delete', 'deleting'), 'delete', {}),
    'poll_unconfirmed_resizes': (
        unconfirmed,
        'confirm',
        ('resized', None),
        'confirmResize',
        {'migration_uuid': MIGRATION},
    ),
    'poll_rescued_instances': (rescued, 'unrescue', ('rescued', 'unrescuing'), 'unrescue', {}),
    'poll_shelved_instances': (shelved, 'shelve_offload', ('shelved', 'shelving_offloading'), 'shelveOffload', {}),
}


def actions(site: Site) -> list[tuple[Any, ...]]:
    table = instances.actions
    with site.cell.read() as conn:
        return [
            tuple(row)
            for row in conn.execute(
                sa.select(table.c.action, table.c.request_id, table.c.user_id, table.c.project_id).where(
                    table.c.action != 'rescue'
                )
            )
        ]


@pytest.mark.parametrize('name', CASES)
def test_what_is_over_is_accepted_once(site: Site, name: str) -> None:
    before, kind, states, action, args = CASES[name]
    before(site, 101)
    found = made(site)
    assert found.run(name) == 1
    (row,) = site.rows()
    assert (row.kind, row.args, site.state()) == (kind, args, states)
    assert site.woken == [([row.uuid], True)]
    assert actions(site) == [(action, row.request_id, None, None)] and row.request_id.startswith('req-')
    if name == 'poll_unconfirmed_resizes':
        assert site.migration()['status'] == 'confirming'
    assert found.run(name) == 0 and len(site.rows()) == 1


@pytest.mark.parametrize('name', CASES)
def test_what_is_not_over_is_left(site: Site, name: str) -> None:
    CASES[name][0](site, 90)
    assert made(site).run(name) == 0 and site.rows() == [] and site.woken == []


@pytest.mark.parametrize('name', CASES)
def test_what_another_request_was_quicker_at_is_left(site: Site, name: str) -> None:
    """Between the look and the acceptance."""
    CASES[name][0](site, 101)
    expires = next(one for one in EXPIRES if one.name == name)
    asked: list[Any] = []

    def find(conn: Any, seconds: float, limit: int) -> Any:
        asked.append((seconds, limit))
        return due

    with site.cell.read() as conn:
        due = expires.find(conn, 100, expiry.BATCH)
    with site.cell.write() as conn:
        instances.transition(conn, SERVER, 'delete.start')
    assert due and made(site).look(expiry.Expires(name, expires.option, find, expires.accept)) == 0
    assert set(asked) == {(100, expiry.BATCH)}
    assert site.rows() == [] and site.woken == []


def test_one_that_is_left_holds_up_no_other(site: Site) -> None:
    soft_deleted(site, 101)
    gone = [expiry.Due('gone'), expiry.Due(SERVER)]
    expires = EXPIRES[0]
    assert made(site).look(expiry.Expires(expires.name, expires.option, lambda *args: gone, expires.accept)) == 1
    assert len(site.woken) == 1


def boot(site: Site, db: Any, age: float) -> str:
    row = operations.OperationRow.new(site.ctxt, 'boot', SERVER)
    with db.write() as conn:
        operations.insert(conn, [row])
        conn.execute(operations.operations.update().values(created_at=ago(age)))
    return row.uuid


@pytest.mark.parametrize('where', ['api', 'cell'])
def test_a_build_that_takes_too_long_is_cancelled(site: Site, where: str) -> None:
    """Wherever its row is; with what its fault will say."""
    db = getattr(site, where)
    uuid = boot(site, db, 101)
    found = made(site)
    assert found.run('check_instance_build_time') == 1
    with db.read() as conn:
        row = operations.get(conn, uuid)
    assert row is not None and row.cancelled
    assert row.error == {
        'class': 'BuildTimedOut',
        'message': 'Instance build timed out. Set to error state.',
        'code': 500,
        'details': None,
    }
    assert site.cancelled == [uuid] and site.woken == []
    assert found.run('check_instance_build_time') == 0


def test_a_build_that_ended_meanwhile(site: Site) -> None:
    uuid = boot(site, site.api, 90)
    assert made(site).run('check_instance_build_time') == 0
    expiry.end_build(site.env, site.api, expiry.Due(SERVER, 'gone'))
    assert site.cancelled == [] and uuid


def test_a_silent_database_holds_up_no_other(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    boot(site, site.cell, 101)
    monkeypatch.setattr(site.api, 'read', lambda: 1 / 0)
    assert made(site).run('check_instance_build_time') == 1


# --- spacing ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('options', 'spacing'),
    [
        (
            {},
            {
                'reclaim_queued_deletes': 60.0,
                'poll_unconfirmed_resizes': 60.0,
                'poll_rescued_instances': 60.0,
                'poll_shelved_instances': 7,
                'check_instance_build_time': 60.0,
                **CELLS,
            },
        ),
        (
            dict.fromkeys(list(OPTIONS)[1:], 5),
            {
                'reclaim_queued_deletes': 5,
                'poll_unconfirmed_resizes': 5,
                'poll_rescued_instances': 5,
                'poll_shelved_instances': 5,
                'check_instance_build_time': 5,
                expiry.HEALING: 5,
                **CELLS,
            },
        ),
        (dict.fromkeys(list(OPTIONS)[1:], 0), {expiry.HEALING: 60, **CELLS}),
        ({**OPTIONS, 'periodic_enable': False}, {}),
    ],
)
def test_how_often_is_looked(site: Site, options: dict[str, Any], spacing: dict[str, float]) -> None:
    """As long as something lasts, a minute at most; what never expires isn't looked for."""
    found = made(site, **options)
    found.start()
    found.stop()
    assert found.timers.spacing == spacing
    assert sorted(one['name'] for one in found.timers.told()) == sorted(
        [*(one.name for one in EXPIRES), expiry.HEALING, *CELLS]
    )
    found.timers.join(20)
    assert not any(thread.is_alive() for thread in found.timers._threads)


def test_a_timer_looks(site: Site) -> None:
    looked: list[str] = []
    found = made(site)
    found.look = lambda expires: looked.append(expires.name)  # type: ignore[method-assign,assignment,func-returns-value]
    found.purge_tokens = lambda: looked.append('tokens')  # type: ignore[method-assign,assignment,func-returns-value]
    tasks: list[Any] = []
    found.timers.every = lambda seconds, task, name, **kwargs: tasks.append(task)  # type: ignore[method-assign]
    found.start()
    for task in tasks:
        task()
    assert looked == [*(one.name for one in EXPIRES), 'tokens']


def test_tokens_that_open_nothing_go(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    purged: list[Any] = []

    def purge(db: Any) -> int:
        purged.append(db)
        if db is site.cell0:
            raise ZeroDivisionError
        return 3

    monkeypatch.setattr(console_tokens, 'purge', purge)
    assert made(site).purge_tokens() == 3 and purged == [site.cell0, site.cell]

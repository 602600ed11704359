"""Cancels: who works on a cancelled row is stopped, and what waits behind nothing goes on."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.conductor.cancels import Cancels
from kilonova.db.queries import instances, operations
from tests.unit.conductor.site import SERVER, Site, uuid

HOSTS = {'select': [{'host': 'gpu2'}, {'host': 'gpu3'}]}


@pytest.fixture
def cancels(site: Site) -> Cancels:
    return Cancels(site.env)


def add(db: Any, site: Site, kind: str, **values: Any) -> str:
    row = operations.OperationRow.new(site.ctxt, kind, values.pop('server', SERVER))
    for name, value in values.items():
        setattr(row, name, value)
    with db.write() as conn:
        operations.insert(conn, [row])
    return row.uuid


@pytest.mark.parametrize(('attempt', 'hosts'), [(1, ['gpu1', 'gpu2']), (2, ['gpu1', 'gpu3']), (3, ['gpu1'])])
def test_hosts_of_what_runs_are_told_to_stop(site: Site, cancels: Cancels, attempt: int, hosts: list[str]) -> None:
    """That of the server, and that of the attempt."""
    site.put('active', 'deleting')
    running = add(site.cell, site, 'resize', outputs=HOSTS, attempt=attempt, cancelled=True)
    waiting = add(site.cell, site, 'delete', slot=operations.WAIT)
    cancels.before(site.cell, waiting)
    assert [(sent.server, sent.method, sent.args) for sent in site.sent] == [
        (host, 'cancel', {'key_prefix': f'{running}/'}) for host in hosts
    ]
    assert site.woken == [([running], True)]


def test_a_server_without_a_host(site: Site, cancels: Cancels) -> None:
    site.put('building', 'deleting', host=None, node=None)
    running = add(site.cell, site, 'boot', cancelled=True)
    waiting = add(site.cell, site, 'delete', slot=operations.WAIT)
    cancels.before(site.cell, waiting)
    assert site.sent == [] and site.woken == [([running], True)]


def test_what_runs_beside_is_left_alone(site: Site, cancels: Cancels) -> None:
    """Pending releases."""
    site.put('active', 'deleting')
    running = add(site.cell, site, 'stop', cancelled=True)
    add(site.cell, site, 'release', slot='beside')
    cancels.before(site.cell, add(site.cell, site, 'delete', slot=operations.WAIT))
    assert [sent.args['key_prefix'] for sent in site.sent] == [f'{running}/']


def test_what_waits_behind_nothing_goes_on(site: Site, cancels: Cancels) -> None:
    site.put('active', 'deleting')
    waiting = add(site.cell, site, 'delete', slot=operations.WAIT)
    cancels.before(site.cell, waiting)
    assert site.woken == [([waiting], True)] and site.sent == []
    assert [row.slot for row in site.rows()] == [operations.RUN]


def test_what_does_not_wait_is_left_alone(site: Site, cancels: Cancels) -> None:
    site.put('active', 'deleting')
    cancels.before(site.cell, add(site.cell, site, 'delete'))
    assert site.woken == [] and site.sent == []


def test_a_row_that_is_in_another_database_is_woken_there(
    site: Site, cancels: Cancels, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[Any] = []
    monkeypatch.setattr(site, 'wake', lambda db, uuids, urgent=False: woken.append((db, uuids, urgent)))
    row = add(site.api, site, 'boot')
    cancels.before(site.cell, row)
    assert woken == [(site.api, [row], True)]
    cancels.before(site.api, row)
    assert len(woken) == 1


def test_a_row_that_is_nowhere(site: Site, cancels: Cancels) -> None:
    cancels.before(site.cell, uuid('nowhere'))
    cancels.again(site.cell, uuid('nowhere'))
    assert site.woken == [] and site.sent == []


def test_a_silent_database_ends_nothing(site: Site, cancels: Cancels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, 'get', lambda conn, uuid: 1 / 0)
    cancels.before(site.cell, 'x')
    assert site.woken == []


def test_a_cancel_is_sent_again(site: Site, cancels: Cancels) -> None:
    site.put('active', 'deleting')
    row = add(site.cell, site, 'resize', outputs=HOSTS, cancelled=True)
    cancels.again(site.cell, row)
    assert site.asked() == ['gpu1 cancel', 'gpu2 cancel'] and site.woken == [([row], True)]


def test_a_boot_of_the_api_database(site: Site, cancels: Cancels) -> None:
    """No server is there yet."""
    row = add(site.api, site, 'boot', cancelled=True)
    cancels.again(site.api, row)
    assert site.sent == [] and site.woken == [([row], True)]


def test_a_server_that_is_gone(site: Site, cancels: Cancels) -> None:
    site.put('active', 'deleting')
    row = add(site.cell, site, 'stop', cancelled=True)
    with site.cell.write() as conn:
        instances.mark_deleted(conn, SERVER)
    cancels.again(site.cell, row)
    assert site.sent == [] and site.woken == [([row], True)]

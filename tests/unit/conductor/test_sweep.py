"""The sweep: rows that no conductor works on, rows that wait, and owners that are dead."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.conductor import process
from kilonova.conductor import sweep as sweeps
from kilonova.conductor.cancels import Cancels
from kilonova.conductor.sweep import Sweep
from kilonova.db.queries import operation_leases, operations
from tests.unit.conductor.site import Site


class Heard(Cancels):
    def __init__(self) -> None:
        self.stopped: list[tuple[str, str]] = []

    def before(self, db: Any, uuid: str) -> None:
        self.stopped.append(('before', uuid))

    def again(self, db: Any, uuid: str) -> None:
        self.stopped.append(('again', uuid))


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def sweep(site: Site, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    asked: list[str] = []

    def holds(uuid: str) -> bool:
        asked.append(uuid)
        assert len(asked) < 100, 'it goes on for ever'
        return uuid in site.cancelled

    monkeypatch.setattr(site, 'holds', holds)
    return Sweep(site.env, heard, 'ctl1')


def add(site: Site, kind: str = 'stop', db: Any = None, **values: Any) -> str:
    row = operations.OperationRow.new(site.ctxt, kind, values.pop('server', values.get('slot') or kind))
    for name, value in values.items():
        setattr(row, name, value)
    with (db or site.cell).write() as conn:
        operations.insert(conn, [row])
    return row.uuid


def woken(site: Site) -> list[tuple[str, bool]]:
    found = [(uuids[0], urgent) for uuids, urgent in site.woken]
    site.woken.clear()
    return found


def test_what_no_conductor_works_on_is_woken(site: Site, sweep: Sweep) -> None:
    """The oldest first; what goes before others does so here, too."""
    operation_leases.begin_lease(site.cell, 'living', 'another', 60)
    cases = [
        (None, 'stop', False),
        ('dead', 'delete', False),
        (site.env.leases.owner_in(site.cell), 'stop', True),
        ('living', 'stop', False),
    ]
    rows = [
        add(site, owner=owner, server=str(number), kind=kind, failed=failed)
        for number, (owner, kind, failed) in enumerate(cases)
    ]
    assert sweep.of(site.cell, -60) == 3
    assert woken(site) == [(rows[0], False), (rows[1], True), (rows[2], True)]


def test_what_this_runner_has_is_left_alone(site: Site, sweep: Sweep) -> None:
    row = add(site)
    site.cancelled.append(row)
    assert sweep.of(site.cell, -60) == 0 and woken(site) == []


def test_young_rows_are_left_to_their_own_cast(site: Site, sweep: Sweep) -> None:
    add(site)
    assert sweep.of(site.cell, 60) == 0 and woken(site) == []


def test_what_is_held_hides_nothing(site: Site, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than a batch, most of which this runner has: the others behind them are found."""
    monkeypatch.setattr(sweeps, 'SWEEP_BATCH', 2)
    rows = [add(site, server=str(number)) for number in range(7)]
    site.cancelled.extend(rows[:5])
    assert sweep.of(site.cell, -60) == 2
    assert [row for row, _ in woken(site)] == rows[5:]
    site.cancelled.clear()
    assert sweep.of(site.cell, -60) == 2
    assert [row for row, _ in woken(site)] == rows[:2]


def test_what_waits_and_what_was_cancelled(site: Site, sweep: Sweep, heard: Heard) -> None:
    waiting = add(site, 'delete', slot=operations.WAIT)
    stopped = add(site, owner=site.env.leases.owner_in(site.cell), cancelled=True)
    site.cancelled.append(stopped)
    assert sweep.of(site.cell, -60) == 0
    assert heard.stopped == [('before', waiting), ('again', stopped)]


def test_what_stays_there_hides_nothing(
    site: Site, sweep: Sweep, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next sweep goes on behind it, and begins again at the end."""
    monkeypatch.setattr(sweeps, 'SWEEP_BATCH', 2)
    rows = [add(site, 'delete', slot=operations.WAIT, server=str(number)) for number in range(3)]
    for _ in range(3):
        sweep.of(site.cell, -60)
    assert [row for _, row in heard.stopped] == [*rows, *rows[:2]]


def test_an_owner_that_is_dead_needs_no_time(site: Site, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this machine, where one can see it."""
    operation_leases.begin_lease(site.cell, 'killed', 'the killed one', 60)
    operation_leases.begin_lease(site.cell, 'other', 'the other one', 60)
    row, kept = add(site, owner='killed'), add(site, owner='other', server='2')
    asked: list[tuple[str | None, str]] = []

    def is_dead(text: str | None, host: str) -> bool:
        asked.append((text, host))
        return text == 'the killed one'

    monkeypatch.setattr(process, 'is_dead', is_dead)
    assert sweep.of(site.cell, -60) == 1
    assert [one for one, _ in woken(site)] == [row] and kept
    assert sorted(set(asked)) == [('the killed one', 'ctl1'), ('the other one', 'ctl1')]
    with site.cell.read() as conn:
        assert 'killed' not in [owner for owner, _ in operation_leases.living(conn)]


def test_its_own_lease_is_not_dropped(site: Site, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, 'is_dead', lambda text, host: True)
    sweep.of(site.cell, -60)
    with site.cell.read() as conn:
        assert [owner for owner, _ in operation_leases.living(conn)] == [site.env.leases.owner_in(site.cell)]


def test_a_silent_database_ends_no_sweep(site: Site, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_leases, 'living', lambda conn: 1 / 0)
    add(site)
    assert sweep.of(site.cell, -60) == 0


@pytest.mark.parametrize(('kind', 'place', 'found'), [('boot', 'cell', 0), ('stop', 'cell', 1), ('boot', 'api', 1)])
def test_a_boot_with_a_twin(site: Site, sweep: Sweep, kind: str, place: str, found: int) -> None:
    """The row of the api database counts."""
    row = add(site, kind)
    with site.cell.read() as conn:
        twin = operations.get(conn, row)
    with site.api.write() as conn:
        operations.insert(conn, [twin])  # type: ignore[list-item]
    assert sweep.of(site.cell if place == 'cell' else site.api, -60) == found


def test_a_twin_can_not_be_looked_for(site: Site, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    add(site, 'boot')
    add(site)
    monkeypatch.setattr(site.api, 'read', lambda: 1 / 0)
    assert sweep.of(site.cell, -60) == 0 and woken(site) == []

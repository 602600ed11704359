"""Leases: taken, renewed, lost, given back; in each database for itself."""

from __future__ import annotations

import time

import pytest

from kilonova.conductor.leases import Leases
from kilonova.db import engine
from kilonova.db.queries import operation_leases, operations
from kilonova.errors import LeaseLost
from tests.unit.conductor.site import Site


def living(db: engine.Database) -> dict[str, tuple[str, float]]:
    """{owner: (its process, seconds that its lease lasts)}."""
    table = operation_leases.leases
    with db.read() as conn:
        now = engine.now(conn)
        return {row.owner: (row.host, row.expires - now) for row in conn.execute(operations.sa.select(table))}


@pytest.fixture
def lost() -> list[str]:
    return []


@pytest.fixture
def leases(site: Site, lost: list[str]) -> Leases:
    with site.cell.write() as conn:
        conn.execute(operation_leases.leases.delete())
    return Leases('this process', 40, lost.append)


def test_an_owner_in_each_database(site: Site, leases: Leases) -> None:
    assert leases.owner_in(site.cell) == leases.owner_in(site.cell) != leases.owner_in(site.api)
    # The owner is known before the lease is taken.
    assert living(site.cell) == {}


def test_a_lease_lasts_so_long(site: Site, leases: Leases) -> None:
    leases.renew(site.cell)
    ((owner, (process, seconds)),) = living(site.cell).items()
    assert (owner, process) == (leases.owner_in(site.cell), 'this process') and 30 < seconds <= 40
    with site.cell.write() as conn:
        conn.execute(operation_leases.leases.update().values(expires=engine.now(conn) + 5))
    leases.renew(site.cell)
    ((again, (_, seconds)),) = living(site.cell).items()
    assert again == owner and 30 < seconds <= 40


def test_a_check_takes_the_first_lease(site: Site, leases: Leases) -> None:
    leases.check(site.cell, leases.owner_in(site.cell))
    assert list(living(site.cell)) == [leases.owner_in(site.cell)]


def test_a_check_costs_nothing_while_the_lease_is_young(site: Site, leases: Leases) -> None:
    leases.renew(site.cell)
    statements: list[str] = []
    stop = engine.listen(lambda database, statement, many: statements.append(statement))
    try:
        leases.check(site.cell, leases.owner_in(site.cell))
    finally:
        stop()
    assert statements == []


@pytest.mark.parametrize(('age', 'renewed'), [(25, False), (27, True)])
def test_from_two_thirds_on_it_is_renewed_first(site: Site, leases: Leases, age: float, renewed: bool) -> None:
    leases.renew(site.cell)
    lease = leases._of(site.cell)
    assert lease.renewed is not None
    lease.renewed -= age
    before = lease.renewed
    leases.check(site.cell, lease.owner)
    assert (lease.renewed != before) is renewed
    assert lease.renewed <= time.monotonic()


def test_another_owner_starts_nothing(site: Site, leases: Leases) -> None:
    leases.renew(site.cell)
    with pytest.raises(LeaseLost, match='of owner another'):
        leases.check(site.cell, 'another')


def test_a_lease_that_can_not_be_renewed(site: Site, leases: Leases, lost: list[str]) -> None:
    """Its database doesn't answer: no step is begun. Once it answers it goes on, if the lease stands."""
    leases.renew(site.cell)
    lease = leases._of(site.cell)
    lease.renewed = time.monotonic() - 27
    database, lease.db = lease.db, None  # type: ignore[assignment]
    with pytest.raises(LeaseLost, match=lease.owner):
        leases.check(site.cell, lease.owner)
    lease.db = database
    leases.check(site.cell, lease.owner)
    assert lost == []


def test_one_that_ran_out_makes_another_owner(site: Site, leases: Leases, lost: list[str]) -> None:
    leases.renew(site.cell)
    before = leases.owner_in(site.cell)
    with site.cell.write() as conn:
        conn.execute(operation_leases.leases.update().values(expires=engine.now(conn) - 1))
    leases.renew(site.cell)
    after = leases.owner_in(site.cell)
    assert lost == [before] and after != before
    owner, (_, seconds) = next((owner, row) for owner, row in living(site.cell).items() if owner == after)
    assert owner == after and seconds > 30
    leases.renew(site.cell)
    assert leases.owner_in(site.cell) == after and lost == [before]


def test_a_renewal_never_raises(site: Site, leases: Leases) -> None:
    lease = leases._of(site.cell)
    with site.cell.write() as conn:
        conn.exec_driver_sql('ALTER TABLE leases RENAME TO away')
    leases.renew(site.cell)
    assert lease.renewed is None


def test_all_are_given_back(site: Site, leases: Leases) -> None:
    """With their rows; a database that is silent holds up no other."""
    site.put('active', 'powering-off')
    for db in (site.api, site.cell):
        leases.renew(db)
    site.accept('stop', owner=leases.owner_in(site.cell))
    with site.api.write() as conn:
        conn.exec_driver_sql('ALTER TABLE leases RENAME TO away')
    leases.drop()
    row = site.kept()
    assert living(site.cell) == {} and row is not None and row.owner is None

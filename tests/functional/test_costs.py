"""Costs are counted, not timed: Placement requests, messages, SQL statements and transactions of each operation.

Units (the design's): a message is one published cast or call; statements are those of all four daemons with warm
caches, operation rows included; BEGIN, COMMIT, PRAGMA don't count, an executemany is one. What the leases, heartbeats
and sweeps of idle daemons send isn't part of an operation and is off here.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kilonova.conductor.runner import Runner
from kilonova.db import engine
from kilonova.db.queries import instances
from kilonova.objects.base import KilonovaObject
from tests.fixtures.servers import put_server


@dataclass
class Costs:
    placement: list = field(default_factory=list)
    messages: list = field(default_factory=list)
    statements: list = field(default_factory=list)
    transactions: int = 0

    def __str__(self) -> str:
        return (
            f'{len(self.placement)} Placement requests, {len(self.messages)} messages, '
            f'{len(self.statements)} statements, {self.transactions} transactions'
        )


@pytest.fixture
def counted(make_cloud, monkeypatch):
    """A cloud whose daemons do nothing of their own, and ``measure(act)``."""
    for what in ('_look_after_databases', '_listen_forever'):
        monkeypatch.setattr(Runner, what, lambda self: None)
    # On a slow machine ``settle`` has it look for rows that wait.
    monkeypatch.setattr(Runner, 'sweep', lambda self: 0)
    cloud = make_cloud(
        {
            'gpu1': ['0000:08:00.0', '0000:09:00.0', '0000:0a:00.0', '0000:0b:00.0'],
            'gpu2': ['0000:85:00.0', '0000:86:00.0', '0000:87:00.0', '0000:88:00.0'],
        },
        conductor__lease_time=3600,
        periodic_enable=False,
        report_interval=3600,
        service_down_time=36000,
    )

    def measure(act: Callable[[], None]) -> Costs:
        costs = Costs()

        def listener(database: str, statement: str, many: bool) -> None:
            if statement == 'COMMIT':
                costs.transactions += 1
            elif not statement.startswith('UPDATE leases SET expires'):
                # A slow machine may renew leases late, whoever works meanwhile.
                costs.statements.append(f'{database}: {" ".join(statement.split())[:160]}')

        rows = cloud.rows
        cloud.placement.requests.clear()
        cloud.messages.clear()
        stop = engine.listen(listener)
        try:
            act()
            # Waiting must not count: look at the runner, not at the rows.
            cloud.rows = list
            cloud.settle()
            # Why a host was chosen is written a second later.
            cloud.scheduler._decisions.flush()
        finally:
            stop()
            cloud.rows = rows
        costs.placement, costs.messages = list(cloud.placement.requests), list(cloud.messages)
        return costs

    cloud.measure = measure
    return cloud


def told(name: str, costs: Costs) -> str:
    return '\n'.join([f'{name}: {costs}', *map(str, costs.placement), *map(str, costs.messages), *costs.statements])


def test_boot_and_delete(counted, capsys):
    """Boot ≤ 2, ≤ 5, ≤ 36; delete ≤ 1, ≤ 4, ≤ 21, one of which is for the history of its device; the same with
    seven more servers in the cloud."""
    flavor = counted.flavor(gpus=1)
    warm = counted.boot(flavor)
    counted.request('DELETE', f'/servers/{warm}')
    counted.settle()
    found = []
    for _ in range(2):
        servers: list[str] = []
        boot = counted.measure(lambda servers=servers: servers.append(counted.create(flavor)['server']['id']))
        assert counted.status(servers[0]) == 'ACTIVE'
        delete = counted.measure(lambda servers=servers: counted.request('DELETE', f'/servers/{servers[0]}'))
        assert counted.status(servers[0]) == 'GONE'
        found.append((boot, delete))
        if len(found) == 1:
            for _ in range(7):
                counted.boot(flavor)
    with capsys.disabled():
        print(f'\nboot of a one-GPU server: {found[0][0]}\ndelete: {found[0][1]}')
    (boot, delete), (later_boot, later_delete) = found
    assert len(boot.placement) <= 2 and len(boot.messages) <= 5 and len(boot.statements) <= 36, told('boot', boot)
    assert len(delete.placement) <= 1 and len(delete.messages) <= 4 and len(delete.statements) <= 21, told(
        'delete', delete
    )
    # How many statements the scheduler needs to read what changed depends on when it last looked.
    assert (len(later_boot.placement), len(later_boot.messages)) == (len(boot.placement), len(boot.messages)), told(
        'boot', later_boot
    )
    assert len(later_boot.statements) <= 36, told('boot', later_boot)
    assert (len(later_delete.placement), len(later_delete.messages), len(later_delete.statements)) == (
        len(delete.placement),
        len(delete.messages),
        len(delete.statements),
    ), told('delete', later_delete)


def test_resize_with_confirm(counted, capsys):
    """At most 4 Placement requests."""
    small, large = counted.flavor(gpus=1), counted.flavor(gpus=2)
    server = counted.boot(small)
    counted.action(server, 'resize', {'flavorRef': large})
    counted.action(server, 'revertResize')
    resize = counted.measure(
        lambda: counted.request('POST', f'/servers/{server}/action', {'resize': {'flavorRef': large}})
    )
    assert counted.status(server) == 'VERIFY_RESIZE'
    confirm = counted.measure(lambda: counted.request('POST', f'/servers/{server}/action', {'confirmResize': None}))
    assert counted.status(server) == 'ACTIVE'
    with capsys.disabled():
        print(f'\nresize: {resize}\nconfirm: {confirm}')
    assert len(resize.placement) + len(confirm.placement) <= 4, told('resize', resize) + told('confirm', confirm)


def copy(cloud, server, numbers):
    """Further rows like that of a server that booted."""
    with cloud.cell.read() as conn:
        values, extra = instances.split(instances.get(conn, server))
        kept = instances.get_system_metadata(conn, server)
    del values['id']
    with cloud.cell.write() as conn:
        for number in numbers:
            put_server(conn, {**values, 'uuid': str(uuid.UUID(int=number))}, extra, kept, {'key': 'value'})


def test_the_lists_have_a_fixed_number_of_statements(counted, capsys):
    """2 statements and at most 5 a cell, whatever the length."""
    flavor, paths = counted.flavor(), ('/servers/detail', '/servers')
    counted.create(flavor, min_count=5, max_count=5)
    counted.settle()
    server = counted.ok('GET', '/servers')['servers'][0]['id']

    def listed(path: str) -> tuple[int, list[str]]:
        # The fewest of three: a thread of this cloud, or of an earlier one, may write something meanwhile.
        found: list = []
        costs = [counted.measure(lambda: found.append(counted.ok('GET', path)['servers'])) for _ in range(3)]
        return len(found[-1]), min((one.statements for one in costs), key=len)

    few, many = {}, {}
    for results, more in ((few, range(5, 10)), (many, range(10, 100))):
        copy(counted, server, more)
        for path in paths:
            results[path] = listed(path)
    cells = len(counted.cells.databases())
    for path in paths:
        with capsys.disabled():
            print(
                f'\nGET {path}: {len(few[path][1])} statements for {few[path][0]} servers, {len(many[path][1])} for '
                f'{many[path][0]}'
            )
        assert (few[path][0], many[path][0]) == (10, 100)
        assert len(few[path][1]) == len(many[path][1]) <= 2 + 5 * cells, '\n'.join(many[path][1])


def test_a_list_of_a_thousand_makes_no_object(counted, monkeypatch):
    """Rows go from the database to the body as they are: no versioned object, and no statement more than for one."""
    server = counted.boot(counted.flavor())
    copy(counted, server, range(999))
    made: list[str] = []
    init, me = KilonovaObject.__init__, threading.get_ident()

    def counting(self, *args, **kwargs):
        if threading.get_ident() == me:
            made.append(type(self).__name__)
        init(self, *args, **kwargs)

    monkeypatch.setattr(KilonovaObject, '__init__', counting)
    for path in ('/servers', '/servers/detail', '/servers/detail?limit=1'):
        statements: list[str] = []

        def listener(database: str, statement: str, many: bool, statements=statements) -> None:
            # What else goes on (sweeps, leases) isn't the request's.
            if threading.get_ident() == me and statement != 'COMMIT':
                statements.append(f'{database}: {statement}')

        stop = engine.listen(listener)
        try:
            found = counted.ok('GET', path)['servers']
        finally:
            stop()
        assert len(found) == (1 if 'limit' in path else 1000)
        assert len(statements) <= 2 + 5 * len(counted.cells.databases()), '\n'.join(statements)
        assert made == []

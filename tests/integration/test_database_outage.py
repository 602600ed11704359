"""A database server, with all databases of the cloud in it, ends in the middle of twenty boots: for twenty seconds, and
by kill -9. MariaDB and PostgreSQL."""

from __future__ import annotations

import datetime as dt
import functools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import pytest

from tests.integration import database_servers
from tests.integration.database_servers import Server
from tests.integration.site import Site, under_way

pytestmark = pytest.mark.database

AWAY = 20.0
NAMES = {'api_database': 'kilonova_api', 'database': 'kilonova'}
# Seconds in which it answers again, and in which all has ended, after the server's return.
BACK_WITHIN, ENDED_WITHIN = 30.0, 120.0
Outage = Callable[[Server, Site, str], None]


@pytest.fixture(scope='module')
def moving_site(running_site: Site) -> Iterator[Site]:
    """The shared cloud, empty, for fixtures that move it to other databases; afterwards on its own again."""
    running_site.configure('')
    running_site.up()
    running_site.clean()
    yield running_site
    running_site.configure('')
    running_site.forget()
    running_site.up()


@pytest.fixture(scope='module')
def database(request: pytest.FixtureRequest, moving_site: Site) -> Iterator[Server]:
    """The server that has all databases of the cloud's daemons."""
    site = moving_site
    with getattr(database_servers, request.param)() as server:
        for name in (*NAMES.values(), 'kilonova_cell0'):
            server.create(name)
        site.configure(''.join(f'[{group}]\nconnection = {server.url(name)}\n' for group, name in NAMES.items()))
        (site.layout.data('kilonova') / 'mapped').unlink(missing_ok=True)
        site.forget()
        site.up()
        yield server
        # What a failed test left; no other database knows of it.
        site.clean()


class Load:
    """Creates and lists from one client until the block ends; what was answered how often."""

    def __init__(self, site: Site, flavor: str) -> None:
        self._site, self._flavor = site, flavor
        self._ending, self._pool = threading.Event(), ThreadPoolExecutor(1)
        self.accepted: list[str] = []
        self.answers: Counter[int] = Counter()

    def __enter__(self) -> Self:
        self._asking = self._pool.submit(self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ending.set()
        self._pool.shutdown()
        if kind is None:
            self._asking.result()

    def _ask(self) -> None:
        while not self._ending.wait(0.5):
            began = time.monotonic()
            reply = self._site.ask_create('outage-more', self._flavor)
            self.answers[reply.status] += 1
            if reply.status == 202:
                self.accepted.append(reply.data['server']['id'])
            self.answers[self._site.send('GET', '/servers/detail').status] += 1
            assert time.monotonic() - began < 15, 'a database that is not there is told at once'

    def await_accepted(self) -> None:
        """Wait until a create is accepted from now on."""
        before, deadline = len(self.accepted), time.monotonic() + BACK_WITHIN
        while len(self.accepted) == before:
            assert not self._asking.done() and time.monotonic() < deadline, self.answers
            time.sleep(0.05)


def launched(row: dict[str, Any]) -> dt.datetime:
    """When a server's guest was there."""
    return dt.datetime.fromisoformat(row['OS-SRV-USG:launched_at']).replace(tzinfo=dt.UTC)


def await_ends(site: Site) -> dict[str, dict[str, Any]]:
    """Wait until nothing is under way in the cloud; all its servers."""
    deadline = time.monotonic() + ENDED_WITHIN
    while any(map(under_way, (shown := site.servers()).values())):
        assert time.monotonic() < deadline, f'not ended after {ENDED_WITHIN:.0f} s:\n{site.tell(shown)}'
        time.sleep(0.2)
    return shown


def strike(site: Site, what: str, outage: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    """Twenty boots and two deletes are under way, and requests go on all the time, when ``outage(server)`` ends the
    database server and brings it back; the server that it gets is one that stays. Whatever was accepted ends, no daemon
    had to be restarted, and nothing is left over."""
    gpu, plain = site.flavor('outage-gpu', gpus=1), site.flavor('outage-plain')
    stays, *doomed = site.boot(3, plain)
    before = site.pids()

    def begin(item: int | str) -> str:
        if isinstance(item, int):
            return site.create(f'outage-{item}', plain if item % 3 else gpu)
        assert site.send('DELETE', f'/servers/{item}', user='admin').status == 204
        return item

    with Load(site, plain) as load:
        boots = site.at_once(begin, [*doomed, *range(20)])[2:]
        struck = dt.datetime.now(dt.UTC)
        outage(stays)
        began = time.monotonic()
        load.await_accepted()
        back = time.monotonic() - began
    shown = await_ends(site)
    ended = time.monotonic() - began
    done = sum(launched(shown[name]) < struck for name in boots if shown[name]['OS-SRV-USG:launched_at'])
    with capsys.disabled():
        print(
            f'\nDATABASE {what} when {done} of {len(boots)} boots were done: answered {dict(load.answers)}; after '
            f'its return accepts in {back:.1f} s, all ended in {ended:.1f} s as '
            f'{dict(Counter(row["status"] for row in shown.values()))}'
        )
        for row in shown.values():
            if 'fault' in row:
                print(f'  {row["status"]}: {row["fault"]["message"]}')
    assert done < len(boots)
    assert load.answers[202] and set(load.answers) <= {200, 202, 503}, load.answers
    for row in shown.values():
        if row['status'] == 'ERROR':
            assert len(row['fault']['message']) > 10 and 'Traceback' not in row['fault']['message']
    assert Counter(row['status'] for row in shown.values())['ACTIVE'] > len(shown) / 2
    assert site.pids() == before
    assert shown[load.accepted[-1]]['status'] == 'ACTIVE', 'what came after its return boots as ever'
    known = {*boots, *load.accepted, stays}
    # One create was with the database server when that ended: it may have been written, and the answer to that lost.
    assert known <= set(shown) and len(shown) <= len(known) + 1, site.tell(shown)
    site.audit()
    site.clean()
    site.assert_nothing_held()


def away(database: Server, site: Site, server: str) -> None:
    """For twenty seconds. What can't be asked says so at once."""
    database.stop()
    # Deleted while nobody can know of it: told so.
    assert site.send('DELETE', f'/servers/{server}', user='admin').status == 503
    time.sleep(AWAY)
    database.start()


def killed(database: Server, _site: Site, _server: str) -> None:
    """And started again at once."""
    database.kill()
    database.start()


# Each outage on one kind of server; make test-databases: on both.
OUTAGES = [('mariadb', away), ('postgresql', killed)]
if os.environ.get('KILONOVA_ALL_OUTAGES'):
    OUTAGES = [('mariadb', away), ('mariadb', killed), ('postgresql', away), ('postgresql', killed)]


@pytest.mark.parametrize(
    ('database', 'outage'),
    OUTAGES,
    indirect=['database'],
    ids=[f'{dialect}-{outage.__name__}' for dialect, outage in OUTAGES],
)
def test_it_ends_in_the_middle_of_twenty_boots(
    moving_site: Site, database: Server, outage: Outage, capsys: pytest.CaptureFixture[str]
) -> None:
    strike(
        moving_site, f'{database.dialect} {outage.__name__}', functools.partial(outage, database, moving_site), capsys
    )

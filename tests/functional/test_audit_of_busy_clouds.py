"""The audit of a cloud in which much happens, or some of which is away: whom it asks, and what it calls wrong."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from kilonova.conductor.audit import compare as audit
from kilonova.context import get_admin_context
from kilonova.db.models.cell import Instance, Service
from kilonova.errors import Unanswered

SERVICES, SERVERS = Service.__table__, Instance.__table__
DOWN_TIME = 60.0


def look(cloud: Any, between: Any = lambda: None, **how: Any) -> tuple[audit.AuditReport, int]:
    """(report, how often it paused); ``between``: what happens in a pause."""
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        between()

    report = audit.Audit(
        cloud.databases,
        cloud.cells,
        cloud.placement.reader,
        how.pop('compute', cloud.compute_client),
        get_admin_context(),
        pause=pause,
        **how,
    ).run()
    return report, len(pauses)


# -- whom it asks -----------------------------------------------------------------------------------------------------
def test_hosts_are_asked_at_the_same_time(cloud: Any) -> None:
    """The audit asks all hosts at the same time: each host's answer waits until the others were asked."""
    met, alone = threading.Barrier(len(cloud.gpus)), []

    def on_message(kind: str, topic: str, host: str, method: str, args: Any, deliver: Any) -> Any:
        if method == 'describe_host':
            try:
                met.wait(20)
            except threading.BrokenBarrierError:
                alone.append(host)
        return deliver()

    cloud.on_message = on_message
    report, _ = look(cloud)
    assert (alone, report.exit_code) == ([], 0)


def test_hosts_that_are_known_to_be_down_are_not_asked(cloud: Any) -> None:
    """The audit does not ask a host whose service is down, which would cost the time-out of a call, and reports it."""
    asked = []

    def on_message(kind: str, topic: str, host: str, method: str, args: Any, deliver: Any) -> Any:
        if method == 'describe_host':
            asked.append(host)
        return deliver()

    cloud.on_message = on_message
    first, *others = cloud.gpus
    with cloud.cell.write() as connection:
        connection.execute(SERVICES.update().where(SERVICES.c.host == first).values(forced_down=True))
    report, _ = look(cloud, down_time=DOWN_TIME)
    assert sorted(asked) == others
    assert report.silent == [f'{first}: its nova-compute service is down, so it was not asked']
    assert report.exit_code == 2


def test_without_a_broker_the_rest_is_compared(cloud: Any) -> None:
    server = cloud.boot(cloud.flavor(vcpus=1, ram=512))
    with cloud.cell.write() as connection:
        connection.execute(SERVERS.update().where(SERVERS.c.uuid == server).values(vcpus=9))
    report, _ = look(cloud, compute=None)
    assert report.disagreements == [f'database: server {server} has vcpus 9, its flavor says vcpus 1']


def test_a_host_that_does_not_answer_stops_no_other(cloud: Any) -> None:
    first, *others = cloud.gpus
    heard = []

    def on_message(kind: str, topic: str, host: str, method: str, args: Any, deliver: Any) -> Any:
        if method == 'describe_host' and host == first:
            raise Unanswered(who=f'compute {host}', reason='describe_host: timed out')
        heard.append(host)
        return deliver()

    cloud.on_message = on_message
    report, _ = look(cloud)
    assert report.silent == [f'{first}: compute {first} does not answer: describe_host: timed out']
    assert [host for host in heard if host in cloud.gpus] == others


# -- what it calls wrong ----------------------------------------------------------------------------------------------
def touch(cloud: Any, server: str) -> None:
    """Something happened to the server, and is over."""
    with cloud.cell.write() as connection:
        later = connection.execute(sa.select(SERVERS.c.updated_at).where(SERVERS.c.uuid == server)).scalar_one()
        connection.execute(
            SERVERS.update().where(SERVERS.c.uuid == server).values(updated_at=later.replace(year=later.year + 1))
        )


@pytest.fixture
def off(cloud: Any) -> str:
    """An active server whose guest isn't running, whenever its host is asked."""
    server = cloud.boot(cloud.flavor(vcpus=1, ram=512))

    def on_message(kind: str, topic: str, host: str, method: str, args: Any, deliver: Any) -> Any:
        answer = deliver()
        for domain in answer['domains'] if method == 'describe_host' else ():
            domain['state'] = 4
        return answer

    cloud.on_message = on_message
    return server


def test_a_server_that_is_the_same_in_both_looks_and_was_changed_between_them(cloud: Any, off: str) -> None:
    """The audit reports no disagreement for a server that was changed between its looks, though each look saw the guest
    off."""
    report, pauses = look(cloud, between=lambda: touch(cloud, off))
    assert (report.disagreements, report.exit_code) == ([], 0)
    assert pauses == audit.LOOKS - 1
    host = cloud.host_of(off)
    assert report.in_flight == [
        f'changed during each check: libvirt: server {off} is active, its guest on {host} is not running'
    ]


def test_one_that_was_changed_once_is_looked_at_again(cloud: Any, off: str) -> None:
    left = [off]
    report, pauses = look(cloud, between=lambda: touch(cloud, left.pop()) if left else None)
    assert report.disagreements == [
        f'libvirt: server {off} is active, its guest on {cloud.host_of(off)} is not running'
    ]
    assert (report.in_flight, report.exit_code, pauses) == ([], 1, 2)


# -- how long it waits ------------------------------------------------------------------------------------------------
@pytest.fixture
def hanging(cloud: Any) -> Any:
    """Hosts of this set take a question and never answer; the lists of who was asked how often, and who answered."""
    hosts, asked, answered, ended = set(cloud.gpus), [], [], threading.Event()

    def on_message(kind: str, topic: str, host: str, method: str, args: Any, deliver: Any) -> Any:
        if method != 'describe_host':
            return deliver()
        asked.append(host)
        if host in hosts:
            ended.wait(60)
        answered.append(host)
        return deliver()

    cloud.on_message = on_message
    yield hosts, asked, answered
    ended.set()


def test_each_host_has_a_bound_of_its_own(cloud: Any, hanging: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that hangs is one line of the audit; it is not asked in the next look, and other hosts are asked
    meanwhile."""
    server = cloud.boot(cloud.flavor(vcpus=1, ram=512))
    with cloud.cell.write() as connection:
        connection.execute(SERVERS.update().where(SERVERS.c.uuid == server).values(vcpus=9))
    hosts, asked, answered = hanging
    hosts.discard('gpu2')
    monkeypatch.setattr(audit, 'AT_ONCE', 1)
    monkeypatch.setattr(audit, 'PATIENCE', 3.0)
    report, pauses = look(cloud)
    assert answered == ['gpu2', 'gpu2']
    assert report.silent == ['gpu1: it did not answer in time (30 s for a host, 120 s for all)']
    assert report.exit_code == 2
    assert (sorted(asked), pauses) == (['gpu1', 'gpu2', 'gpu2'], 1)
    assert report.disagreements == [f'database: server {server} has vcpus 9, its flavor says vcpus 1']


def test_all_hosts_together_have_a_bound(cloud: Any, hanging: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit ends within its limit for all hosts and names each host that it had no time to ask."""
    _, asked, answered = hanging
    monkeypatch.setattr(audit, 'AT_ONCE', 1)
    monkeypatch.setattr(audit, 'PATIENCE_WITH_ALL', 5.0)
    report, _ = look(cloud)
    assert answered == []
    first, second = report.silent
    assert first == f'{asked[0]}: it did not answer in time ({audit.IN_TIME})' and len(asked) == 1
    assert second.endswith(f': the time limit was reached before it was asked ({audit.IN_TIME})')
    assert report.exit_code == 2

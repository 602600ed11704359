"""The connection to libvirt: lost, hung, late; and what it tells by itself. The library's classes play the daemon."""

# ruff: noqa: N802 - libvirt's names
from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import libvirt
import pytest

from kilonova import errors
from kilonova.states import PowerState
from kilonova.virt.libvirt import connection as connection_module
from kilonova.virt.libvirt.connection import Connection as Libvirt
from kilonova.virt.parts.host import DriverMisconfigured, HypervisorUnavailable
from tests.unit.virt import builders
from tests.unit.virt.builders import Listener

UUID = '6f1f2a52-8f3c-4a8e-9d5c-000000000001'


def error(code: int, domain: int, text: str = 'gone') -> libvirt.libvirtError:
    made = libvirt.libvirtError(text)
    made.err = (code, domain, text, 2, '', None, None, -1, -1)
    return made


def lost() -> libvirt.libvirtError:
    return error(libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_FROM_RPC)


class Domain(libvirt.virDomain):
    def __init__(self, connection: Connection) -> None:
        self._conn = connection

    def __del__(self) -> None:
        """Nothing of the library's is here."""

    def UUIDString(self) -> str:
        return UUID

    def name(self) -> str:
        return 'one'

    def state(self) -> list[int]:
        return [self._conn.answer('state'), 0]

    def isActive(self) -> int:
        return self._conn.answer('state') != libvirt.VIR_DOMAIN_SHUTOFF

    def create(self) -> int:
        return self._conn.answer('create')

    def createWithFlags(self, flags: int) -> int:
        return self._conn.answer('create paused' if flags == libvirt.VIR_DOMAIN_START_PAUSED else 'create otherwise')


class Connection(libvirt.virConnect):
    """``answers``: what a method returns, raises or does; one that isn't there returns 1."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.asked, self.alive = answers, [], True

    def __del__(self) -> None:
        """Nothing of the library's is here."""

    def answer(self, method: str) -> Any:
        self.asked.append(method)
        found = self.answers.get(method, 1)
        found = found() if callable(found) else found
        if isinstance(found, Exception):
            raise found
        return found

    def isAlive(self) -> int:
        return self.alive

    def getType(self) -> str:
        self.answer('getType')
        return 'QEMU'

    def getLibVersion(self) -> int:
        return self.answer('getLibVersion')

    def getCapabilities(self) -> str:
        self.answer('getCapabilities')
        return '<capabilities/>'

    def lookupByUUIDString(self, uuid: str) -> Domain:
        self.answer('lookupByUUIDString')
        return Domain(self)

    def setKeepAlive(self, interval: int, count: int) -> int:
        self.keepalive = interval, count
        return 0

    def registerCloseCallback(self, callback: Any, opaque: Any) -> int:
        self.end = lambda reason: callback(self, reason, opaque)
        return 0

    def domainEventRegisterAny(self, domain: Any, kind: int, callback: Any, opaque: Any) -> int:
        assert (domain, kind) == (None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE)
        return 0


def until(met: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What ``libvirt.open`` gives, in order: a connection, or an error that it raises, or a call that gives one."""
    following: list[Any] = []

    def open_(uri: str) -> Any:
        found = following.pop(0) if following else error(libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_FROM_RPC, 'refused')
        found = found() if callable(found) and not isinstance(found, libvirt.virConnect) else found
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(libvirt, 'open', open_)
    monkeypatch.setattr(connection_module, 'PATIENCE', 0.0)
    monkeypatch.setattr(connection_module, 'RETRY', 0.01)
    return following


@pytest.fixture
def host(daemon: list[Any]) -> Libvirt:
    return Libvirt('qemu:///system', 'gpu1')


# -- lost --------------------------------------------------------------------------------------------------------------
def test_a_call_is_made_again_on_a_new_connection(host: Libvirt, daemon: list[Any]) -> None:
    """A call that fails because libvirtd was restarted is made again on a new connection."""
    old, new = Connection(getLibVersion=lost), Connection(getLibVersion=9)
    daemon += [old, new]
    assert host.libvirt_version() == 9
    assert (old.asked, new.asked) == (['getLibVersion'], ['getLibVersion'])
    assert new.keepalive == (5, connection_module.KEEPALIVES)


def test_it_is_made_again_once(host: Libvirt, daemon: list[Any]) -> None:
    daemon += [Connection(getLibVersion=lost), Connection(getLibVersion=lost), Connection()]
    with pytest.raises(HypervisorUnavailable, match='on host gpu1: gone'):
        host.libvirt_version()
    assert len(daemon) == 1


def test_a_dead_connection_is_asked_nothing(host: Libvirt, daemon: list[Any]) -> None:
    old, new = Connection(), Connection()
    daemon += [old, new]
    host.connect()
    old.alive = False
    assert host.libvirt_version() == 1
    assert (old.asked, new.asked) == ([], ['getLibVersion'])


def test_a_late_failure_of_an_old_connection_leaves_the_new_one(host: Libvirt, daemon: list[Any]) -> None:
    """A call that notices late that its connection is lost does not close the connection that replaced it."""
    new = Connection()

    def replaced() -> Exception:
        assert host.kind() == 'QEMU'
        return lost()

    daemon += [Connection(getLibVersion=replaced), new]
    with pytest.raises(HypervisorUnavailable):
        host.do(lambda connection: connection.getLibVersion(), again=False)
    assert host.kind() == 'QEMU' and new.asked == ['getType'] * 2


def test_calls_at_the_same_time_have_a_connection_each(host: Libvirt, daemon: list[Any]) -> None:
    """Calls at the same time use a connection each.

    If several calls wait on one connection that keepalive gives up, libvirt wakes only one of them.
    """
    first, second = Connection(getLibVersion=lambda: len(host.kind())), Connection()
    daemon += [first, second]
    for _ in range(3):
        assert host.libvirt_version() == 4
    assert (first.asked, second.asked) == (['getLibVersion'] * 3, ['getType'] * 3)


def test_what_libvirt_refuses_is_no_loss(host: Libvirt, daemon: list[Any]) -> None:
    refused = error(libvirt.VIR_ERR_OPERATION_FAILED, libvirt.VIR_FROM_QEMU)
    internal = error(libvirt.VIR_ERR_INTERNAL_ERROR, libvirt.VIR_FROM_QEMU)
    connection = Connection()
    daemon += [connection]
    for raised in (refused, internal):
        connection.answers['getLibVersion'] = raised
        with pytest.raises(libvirt.libvirtError):
            host.libvirt_version()
    assert host.kind() == 'QEMU' and connection.asked == ['getLibVersion'] * 2 + ['getType']


def test_a_guest_is_looked_up_anew(host: Libvirt, daemon: list[Any]) -> None:
    old, new = Connection(state=lost), Connection(state=libvirt.VIR_DOMAIN_PAUSED)
    daemon += [old, new]
    guest = host.find(UUID)
    assert guest is not None and guest.power_state() == PowerState.PAUSED
    assert guest.power_state() == PowerState.PAUSED
    assert (old.asked, new.asked) == (['lookupByUUIDString', 'state'], ['lookupByUUIDString', 'state', 'state'])


@pytest.mark.parametrize(('state', 'created'), [(libvirt.VIR_DOMAIN_RUNNING, 0), (libvirt.VIR_DOMAIN_SHUTOFF, 1)])
@pytest.mark.parametrize(('paused', 'call'), [(False, 'create'), (True, 'create paused')])
def test_a_guest_is_started_once(
    host: Libvirt, daemon: list[Any], state: int, created: int, paused: bool, call: str
) -> None:
    """The connection was lost while it was started: whether it runs is looked at first. One that starts paused never
    runs before."""
    old, new = Connection(**{call: lost}), Connection(state=state)
    daemon += [old, new]
    guest = host.find(UUID)
    assert guest is not None
    guest.start(paused=paused)
    assert [made for made in new.asked if made.startswith('create')] == [call] * created


def test_a_restart_is_waited_for(host: Libvirt, daemon: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, 'PATIENCE', 60.0)
    daemon += [Connection(getLibVersion=lost), lost(), lost(), Connection(getLibVersion=9)]
    assert host.libvirt_version() == 9


def test_the_test_driver_has_one_connection_that_is_never_lost(daemon: list[Any]) -> None:
    host = Libvirt('test:///x', 'gpu1')
    connection = Connection(getLibVersion=lost)
    daemon += [connection, Connection()]
    for _ in range(2):
        with pytest.raises(libvirt.libvirtError):
            host.libvirt_version()
    connection.answers['getLibVersion'] = lambda: len(host.kind())
    assert host.libvirt_version() == 4 and len(daemon) == 1


def test_no_daemon_is_waited_for_but_a_wrong_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HypervisorUnavailable, match=r'on host gpu1: .*No such file'):
        Libvirt(f'qemu+unix:///system?socket={tmp_path}/none', 'gpu1').connect()
    with pytest.raises(DriverMisconfigured, match='cannot connect to libvirt at test:///'):
        Libvirt(f'test://{tmp_path}/none.xml', 'gpu1').connect()


# -- hung --------------------------------------------------------------------------------------------------------------
def test_a_daemon_that_does_not_answer_costs_one_thread(
    host: Libvirt, daemon: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A libvirtd that does not answer costs one thread, and the connection is used if it opens late."""
    answers, connection = threading.Event(), Connection()
    daemon += [lambda: answers.wait(60) and connection, Connection()]
    monkeypatch.setattr(connection_module, 'OPEN_WAIT', 0.05)
    for _ in range(3):
        with pytest.raises(HypervisorUnavailable, match='has not answered'):
            host.libvirt_version()
    assert len(daemon) == 1
    answers.set()
    until(lambda: host._opening is not None and host._opening.done)
    assert host.libvirt_version() == 1 and connection.asked == ['getLibVersion']


def test_calls_that_hang_leave_threads_for_others(
    host: Libvirt, daemon: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further calls are refused while 16 calls hang, which leaves native threads for heartbeats.

    eventlet has 20 native threads for all purposes.
    """
    answers = threading.Event()
    daemon += [Connection(getLibVersion=lambda: answers.wait(60) and 9) for _ in range(connection_module.CALLS)]
    monkeypatch.setattr(connection_module, 'TURN_WAIT', 0.05)
    callers = [threading.Thread(target=host.libvirt_version) for _ in range(connection_module.CALLS)]
    for caller in callers:
        caller.start()
    until(lambda: host._turns._value == 0)
    with pytest.raises(HypervisorUnavailable, match='16 calls to libvirt are in progress'):
        host.libvirt_version()
    answers.set()
    for caller in callers:
        caller.join()
    assert host.libvirt_version() == 9 and daemon == [] and connection_module.CALLS < 20


# -- calls that hang while keepalive is answered -----------------------------------------------------------------------
@pytest.fixture
def watched(daemon: list[Any], monkeypatch: pytest.MonkeyPatch) -> Libvirt:
    """A host whose libvirt is asked each 50 ms, and has 50 ms to answer."""
    monkeypatch.setattr(connection_module, 'HUNG_AFTER', 0.05)
    return Libvirt('qemu:///system', 'gpu1', 1)


def test_a_daemon_whose_calls_hang_is_lost_until_it_answers(watched: Libvirt, daemon: list[Any]) -> None:
    answers = threading.Event()
    listener, telling = connected(watched, daemon)
    telling.answers['getCapabilities'] = lambda: answers.wait(60)
    until(lambda: listener.heard)
    assert listener.heard == ['libvirt has not answered getCapabilities for 0.05 s, though it answers keepalives']
    with pytest.raises(HypervisorUnavailable, match='gpu1: libvirt has not answered getCapabilities'):
        watched.libvirt_version()
    assert telling.asked == ['getCapabilities'], 'a daemon that hangs is asked once'
    answers.set()
    until(lambda: listener.heard[1:] == ['back'])
    assert watched.libvirt_version() == 1


def test_a_daemon_that_hangs_and_is_restarted_is_back_once(watched: Libvirt, daemon: list[Any]) -> None:
    answers = threading.Event()
    listener, telling = connected(watched, daemon)
    telling.answers['getCapabilities'] = lambda: answers.wait(60) and lost()
    until(lambda: listener.heard)
    daemon += [Connection()]
    telling.alive = False
    telling.end(libvirt.VIR_CONNECT_CLOSE_REASON_EOF)
    answers.set()
    until(lambda: 'back' in listener.heard)
    assert watched.libvirt_version() == 1
    until(lambda: watched._telling is not None and 'getCapabilities' in watched._telling.asked)
    assert listener.heard.count('back') == 1


def test_a_long_call_is_no_hang(watched: Libvirt, daemon: list[Any]) -> None:
    """A save or a migration takes as long as it takes: another call is answered meanwhile."""
    answers = threading.Event()
    listener, telling = connected(watched, daemon)
    daemon += [Connection()]
    caller = threading.Thread(target=watched.do, args=(lambda connection: answers.wait(60),))
    caller.start()
    until(lambda: telling.asked.count('getCapabilities') >= 4)
    assert listener.heard == [] and watched.libvirt_version() == 1
    answers.set()
    caller.join()


def test_an_error_is_an_answer(watched: Libvirt, daemon: list[Any]) -> None:
    listener, telling = connected(watched, daemon)
    telling.answers['getCapabilities'] = error(libvirt.VIR_ERR_NO_SUPPORT, libvirt.VIR_FROM_NONE)
    until(lambda: telling.asked.count('getCapabilities') >= 3)
    assert listener.heard == []


def test_a_daemon_that_is_silent_is_no_hang(daemon: list[Any]) -> None:
    """Keepalive closes the connection to it after one interval more than KEEPALIVES, and gives another reason."""
    assert Libvirt('qemu:///system', 'gpu1', 2)._watchdog._limit > 2 * (connection_module.KEEPALIVES + 1)


# -- told --------------------------------------------------------------------------------------------------------------
def connected(host: Libvirt, daemon: list[Any]) -> tuple[Listener, Connection]:
    """Who listens, and the connection that tells."""
    listener, telling = Listener(), Connection()
    daemon += [Connection(), telling]
    host.listen(listener)
    host.connect()
    return listener, telling


def test_a_loss_that_lasts_is_told_and_its_end(host: Libvirt, daemon: list[Any]) -> None:
    """A lost connection is reported, opened again without a call, and its return is reported."""
    listener, old = connected(host, daemon)
    old.end(libvirt.VIR_CONNECT_CLOSE_REASON_EOF)
    until(lambda: listener.heard)
    daemon += [Connection()]
    until(lambda: len(listener.heard) == 2)
    assert listener.heard == ['Connection to libvirt lost: 1', 'back']


def test_a_daemon_that_hangs_is_told_of_before_its_answer(
    host: Libvirt, daemon: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    listener, old = connected(host, daemon)
    daemon += [lambda: answers.wait(60) and Connection()]
    old.end(libvirt.VIR_CONNECT_CLOSE_REASON_KEEPALIVE)
    until(lambda: listener.heard == ['Connection to libvirt lost: 2'])
    answers.set()
    until(lambda: listener.heard[1:] == ['back'])


def test_a_loss_that_is_over_at_once_is_not_told(
    host: Libvirt, daemon: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only that guests may have changed unheard."""
    monkeypatch.setattr(connection_module, 'PATIENCE', 60.0)
    with caplog.at_level(logging.INFO):
        listener, old = connected(host, daemon)
        daemon += [lost(), Connection()]
        old.end(libvirt.VIR_CONNECT_CLOSE_REASON_EOF)
        until(lambda: listener.heard)
    assert listener.heard == ['back']
    assert 'The connection to libvirt was lost (close reason 1)' in caplog.text
    assert 'Connected to libvirt again' in caplog.text


def test_the_end_of_an_old_connection_is_nothing_new(host: Libvirt, daemon: list[Any]) -> None:
    listener, old = connected(host, daemon)
    daemon += [Connection(), Connection()]
    old.end(libvirt.VIR_CONNECT_CLOSE_REASON_EOF)
    until(lambda: 'back' in listener.heard)
    heard = list(listener.heard)
    host.closed(old, libvirt.VIR_CONNECT_CLOSE_REASON_EOF)
    assert len(daemon) == 1 and listener.heard == heard


def test_a_connection_that_is_lost_before_it_is_known_is_opened_again(host: Libvirt, daemon: list[Any]) -> None:
    listener, old = connected(host, daemon)
    dead, new = Connection(), Connection()
    dead.alive = False
    daemon += [dead, new]
    old.end(libvirt.VIR_CONNECT_CLOSE_REASON_EOF)
    until(lambda: listener.heard.count('back') == 2)
    assert host._telling is new


def test_guests_that_change_are_told(libvirt_rig: Any) -> None:
    """Each change of a guest is reported once, with the events of libvirt's test driver."""
    listener = Listener()
    hypervisor = Libvirt(libvirt_rig.here.host._libvirt.uri, 'gpu1')
    hypervisor.listen(listener)
    hypervisor.connect()
    domain = hypervisor.do(
        lambda connection: connection.defineXML(
            f'<domain type="test"><name>one</name><uuid>{UUID}</uuid><memory>1024</memory><os><type>hvm</type></os>'
            '</domain>'
        )
    )
    for count, act in enumerate((domain.create, domain.suspend, domain.resume, domain.destroy), 1):
        act()
        until(lambda count=count: len(listener.heard) >= count)
    domain.undefine()
    time.sleep(0.1)
    assert listener.heard == [UUID] * 4


# -- undos -------------------------------------------------------------------------------------------------------------
def away(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise HypervisorUnavailable(host='gpu1', reason='away')

    monkeypatch.setattr(rig.here.host._libvirt, '_take', fail)


def test_what_was_never_made_is_undone_without_a_hypervisor(libvirt_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The undo of a guest that was never made needs no hypervisor, so that the next host can be tried at once."""
    instance = builders.new_instance()
    away(libvirt_rig, monkeypatch)
    with pytest.raises(HypervisorUnavailable):
        libvirt_rig.here.guests.spawn(instance, builders.image_meta())
    libvirt_rig.here.guests.destroy(instance)
    libvirt_rig.here.moves.cleanup_move_dest(instance, False)


def test_what_was_made_is_not_undone_without_a_hypervisor(libvirt_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = builders.new_instance()
    libvirt_rig.here.guests.spawn(instance, builders.image_meta())
    away(libvirt_rig, monkeypatch)
    with pytest.raises(errors.Unavailable):
        libvirt_rig.here.guests.destroy(instance)
    assert libvirt_rig.file('gpu1', instance.uuid, 'disk').exists()

"""After a power cut whatever a host needs comes back in any order: its servers run again when all is there.

``tests/simulation/power_cut.py`` has every order; here is what users and operators see of one.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from kilonova import errors
from kilonova.virt.parts.host import HypervisorUnavailable
from tests.fixtures.cloud import IMAGE_ID, Cloud, Crash
from tests.functional.test_accelerators import CARDS, Accelerated, silence

KIND = 'resume_on_host_boot'


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)


@pytest.fixture
def accelerated(make_cloud: Callable[..., Cloud]) -> Accelerated:
    return Accelerated(make_cloud)


class Late:
    """A server of one GPU on a host that booted, and that can't start guests until ``back``."""

    def __init__(self, cloud: Cloud, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.cloud, self.tries = cloud, 0
        self.error = error or OSError(5, 'Input/output error')
        self.server = cloud.boot(cloud.flavor(gpus=1))
        self.host, self.devices = cloud.host_of(self.server), cloud.hostdevs(self.server)
        self.late = True
        from kilonova.virt.libvirt import power

        start, late = power.LibvirtPower.power_on, self

        def power_on(part: Any, *args: Any, **kwargs: Any) -> None:
            late.tries += 1
            if late.late:
                raise late.error
            start(part, *args, **kwargs)

        monkeypatch.setattr(power.LibvirtPower, 'power_on', power_on)

    def cut(self, **options: Any) -> None:
        """Cut the power of the host, and start it again."""
        self.cloud.crash_compute(self.host)
        self.cloud.start_compute(self.host, **options)

    def await_tries(self, more: int) -> None:
        wanted, end = self.tries + more, time.monotonic() + 30
        while self.tries < wanted:
            assert time.monotonic() < end, self.cloud.rows()
            for conductor in self.cloud.conductors:
                conductor.runner.sweep()
            time.sleep(0.02)

    def state(self) -> tuple[str, int]:
        shown = self.cloud.show(self.server)
        return shown['status'], shown['OS-EXT-STS:power_state']

    def told(self) -> str:
        """The message of the action, as its user reads it."""
        found = self.cloud.ok('GET', f'/servers/{self.server}/os-instance-actions', user='demo')['instanceActions']
        return str(next(one for one in found if one['action'] == KIND)['message'])

    def assert_runs(self) -> None:
        self.cloud.settle()
        assert (self.state(), self.cloud.hostdevs(self.server)) == (('ACTIVE', 1), self.devices)
        self.cloud.assert_clean()


@pytest.fixture
def late(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Late:
    return Late(cloud, monkeypatch)


# --- accelerators ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('how', ['host boot', 'os-start', 'reboot', 'rebuild', 'rescue'])
def test_a_server_is_not_started_with_fewer_accelerators_than_its_profile_asks_for(
    accelerated: Accelerated, how: str
) -> None:
    """A server with fewer accelerators than its device profile asks for is not started, and an event says so."""
    cloud = accelerated.cloud
    server = accelerated.boot('two')
    assert len(accelerated.of(server)) == 2
    body: dict[str, Any] = {'reboot': {'type': 'HARD'}, 'rebuild': {'imageRef': IMAGE_ID}}
    if how == 'os-start':
        cloud.action(server, 'os-stop')
    _, second = accelerated.of(server)
    del accelerated.cyborg.requests[second['uuid']]
    if how == 'host boot':
        host = cloud.host_of(server)
        cloud.crash_compute(host)
        cloud.start_compute(host)
    else:
        cloud.request('POST', f'/servers/{server}/action', {how: body.get(how)})
        cloud.settle()
    assert 'two asks for 2 accelerators, but the number of its accelerator requests in Cyborg is 1' in str(
        cloud.story(server)
    )
    if how in ('host boot', 'os-start'):
        assert cloud.show(server)['OS-EXT-STS:power_state'] == 4


def test_a_profile_that_is_gone_keeps_no_server_off(accelerated: Accelerated) -> None:
    """Nobody can say any more how many it asks for; a burst of starts asks once."""
    cloud, cyborg = accelerated.cloud, accelerated.cyborg
    server = accelerated.boot('two')
    del cyborg.profiles['two']
    for manager in cloud.computes.values():
        manager.host.accelerators._profiles.clear()
    for _ in range(2):
        cloud.action(server, 'os-stop')
        cloud.action(server, 'os-start')
    assert (cloud.status(server), len(cloud.hostdevs(server))) == ('ACTIVE', 2)
    assert [path for method, path in cyborg.asked if 'device_profiles' in path and method == 'GET'] == [
        '/device_profiles?name=two'
    ] * 3


def test_a_server_runs_again_when_cyborg_comes_later_than_its_host(accelerated: Accelerated) -> None:
    """A server runs again when Cyborg answers only after its host has started."""
    cloud = accelerated.cloud
    server = accelerated.boot()
    host = cloud.host_of(server)
    cloud.crash_compute(host)
    speak = silence(accelerated, 'GET')
    cloud.start_compute(host)
    assert cloud.status(server) == 'ACTIVE'
    assert 'accelerator service' in str(cloud.story(server))
    speak()
    cloud.settle()
    assert (cloud.status(server), cloud.hostdevs(server)) == ('ACTIVE', [CARDS[0]])
    assert cloud.show(server)['OS-EXT-STS:power_state'] == 1
    cloud.assert_clean()


# --- what is late ----------------------------------------------------------------------------------------------------
def test_storage_that_comes_later(late: Late) -> None:
    """A server whose storage comes later than its host starts with the same devices as before.

    Until then its action shows users and operators the reason of the wait.
    """
    cloud = late.cloud
    late.cut()
    assert late.state() == ('ACTIVE', 4)
    assert late.told() == 'Waiting: OSError on the compute host'
    (row,) = cloud.rows()
    assert (row['kind'], row['host'], json.loads(row['outputs'])['reason']) == (
        KIND,
        late.host,
        'OSError on the compute host',
    )
    late.error = errors.KilonovaError(f'{late.host} at 192.0.2.9 has no room')
    late.await_tries(2)
    cloud.computes[late.host].guests.sync()
    assert late.state() == ('ACTIVE', 4)
    # Its action has the newest reason, without what users aren't told of hosts.
    assert late.told() == 'Waiting: <host> at <host> has no room'
    late.late = False
    late.assert_runs()
    assert late.told() == 'None'
    (event,) = [events for name, _, events in cloud.story(late.server) if name == KIND]
    assert [(name, result) for name, result, _, _ in event] == [('compute_resume_on_host_boot', 'Success')]
    assert 'failed tries' in event[0][2] and 'has no room' in event[0][2]


def test_a_card_that_comes_later(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose PCI device is missing when its host starts is started once the device is there."""
    late = Late(cloud, monkeypatch)
    late.late = False
    missing = list(late.devices)
    from kilonova.virt.libvirt.devices import hostdevs

    monkeypatch.setattr(hostdevs.LibvirtDevices, 'missing_devices', lambda part, devices: list(missing), raising=True)
    late.cut()
    assert (late.state(), late.tries) == (('ACTIVE', 4), 0)
    assert 'are no longer on its host' in late.told()
    missing.clear()
    late.assert_runs()


def test_a_hypervisor_that_comes_later(late: Late, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server shows that it waits for its hypervisor while the compute service has not started yet, and runs
    afterwards."""
    cloud = late.cloud
    late.late = False
    monkeypatch.setattr('kilonova.compute.manager.HYPERVISOR_LATE', 0.0)
    from kilonova.virt.libvirt import host

    there, init = threading.Event(), host.LibvirtHost.init_host

    def init_host(part: Any) -> None:
        if not there.is_set():
            raise HypervisorUnavailable(host=late.host, reason='no socket')
        init(part)

    monkeypatch.setattr(host.LibvirtHost, 'init_host', init_host)
    cloud.crash_compute(late.host)
    starting = threading.Thread(target=cloud.start_compute, args=(late.host,))
    starting.start()
    end = time.monotonic() + 30
    while not cloud.rows():
        assert time.monotonic() < end
        time.sleep(0.02)
    assert late.told() == 'Waiting: Connection to the hypervisor is broken on host <host>: no socket'
    # Nobody knows whether it runs.
    assert late.state() == ('ACTIVE', 1)
    there.set()
    starting.join(30)
    late.assert_runs()


def test_placement_that_comes_later(late: Late) -> None:
    """Guests run before Placement is told of their host."""
    cloud = late.cloud
    late.late = False
    cloud.crash_compute(late.host)
    silent = threading.Event()
    placement = cloud.placement.client
    sync = placement.sync_compute

    def sync_compute(*args: Any, **kwargs: Any) -> Any:
        if not silent.is_set():
            raise errors.Unanswered(who='Placement', reason='no route')
        return sync(*args, **kwargs)

    placement.sync_compute = sync_compute
    starting = threading.Thread(target=cloud.start_compute, args=(late.host,))
    starting.start()
    try:
        end = time.monotonic() + 30
        while not late.tries:
            assert time.monotonic() < end
            time.sleep(0.02)
        assert starting.is_alive()
    finally:
        silent.set()
        starting.join(30)
        del placement.sync_compute
    late.assert_runs()
    assert cloud.rows() == []


def test_a_conductor_that_comes_later(late: Late) -> None:
    """What the compute has to say waits for it."""
    cloud = late.cloud
    cloud.crash_compute(late.host)
    cloud.crash_conductor()
    starting = threading.Thread(target=cloud.start_compute, args=(late.host,))
    starting.start()
    time.sleep(0.3)
    assert starting.is_alive() and late.tries == 0
    cloud.start_conductor()
    starting.join(30)
    assert late.told() == 'Waiting: OSError on the compute host'
    late.late = False
    late.assert_runs()


def test_servers_that_take_long_to_fail_do_not_keep_their_host_from_starting(
    late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are left to conductors without a try."""
    cloud = late.cloud
    flavor = cloud.flavor()
    others = [cloud.boot(flavor, availability_zone=f'nova:{late.host}') for _ in range(2)]
    monkeypatch.setattr('kilonova.compute.guests.PATIENCE', 0.0)
    late.cut()
    assert late.tries == 0
    assert late.told() == 'Waiting: Not tried yet: other servers of its host took too long to fail'
    late.late = False
    late.assert_runs()
    assert {cloud.status(server) for server in others} == {'ACTIVE'}


# --- how it ends -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('name', 'body', 'state'),
    [('os-stop', None, ('SHUTOFF', 4)), ('reboot', {'type': 'HARD'}, ('ACTIVE', 1)), ('forceDelete', None, None)],
)
def test_what_the_user_says_wins(late: Late, name: str, body: Any, state: tuple[str, int] | None) -> None:
    cloud = late.cloud
    late.cut()
    late.await_tries(1)
    late.late = name != 'reboot'
    response = cloud.request('POST', f'/servers/{late.server}/action', {name: body})
    assert response.status_int == 202
    cloud.settle()
    if state is None:
        assert cloud.status(late.server) == 'GONE'
        cloud.assert_empty()
        return
    assert late.state() == state and cloud.rows() == []
    cloud.assert_clean()


def test_a_server_that_moves_is_not_started_where_it_was(late: Late, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row ends, and its action says so."""
    cloud = late.cloud
    late.cut()
    late.late = False
    monkeypatch.setattr('kilonova.conductor.flows.host_boot._needless', lambda server, host: 'Not started: it moved.')
    cloud.settle()
    assert late.told() == 'None' and 'it moved' in str(cloud.story(late.server))


def test_a_second_power_cut(late: Late) -> None:
    """Nothing is lost: one action, one row, and its time begins anew."""
    cloud = late.cloud
    late.cut()
    (row,) = cloud.rows()
    late.cut()
    (again,) = cloud.rows()
    assert (again['uuid'], late.told()) == (row['uuid'], 'Waiting: OSError on the compute host')
    assert again['created_at'] > row['created_at']
    late.late = False
    late.assert_runs()
    assert [name for name, _, _ in cloud.story(late.server)] == [KIND, 'create']


def test_it_ends_when_its_time_is_over(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> None:
    """Never silently: SHUTOFF, a fault, and the reason in the action. The next start is the user's."""
    late = Late(make_cloud(conductor__host_boot_resume_timeout=0), monkeypatch)
    cloud = late.cloud
    late.cut()
    cloud.settle()
    assert late.state() == ('SHUTOFF', 4)
    assert late.told() == (
        'Error: The server was not started again after its host went down: OSError on the compute host'
    )
    with cloud.cell.read() as conn:
        from kilonova.db.models import cell as models

        (fault,) = conn.execute(models.InstanceFault.__table__.select()).mappings()
    assert 'The server was not started again after its host went down' in fault['message']
    late.late = False
    cloud.action(late.server, 'os-start')
    late.assert_runs()


def test_what_no_later_try_can_change_ends_at_once(late: Late) -> None:
    late.error = errors.Invalid('hw_machine_type nonsense is none of this host')
    late.cut()
    late.cloud.settle()
    assert late.state() == ('SHUTOFF', 4)
    assert late.told().startswith(
        'Error: The server was not started again after its host went down: hw_machine_type nonsense'
    )


def test_a_host_that_went_down_again_uses_up_no_time(late: Late, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row waits for the host."""
    cloud = late.cloud
    late.cut()
    cloud.crash_compute(late.host)
    monkeypatch.setattr(cloud.conductors[0].env.conf.conductor, 'host_boot_resume_timeout', 0, raising=False)
    monkeypatch.setattr(cloud.conductors[0].env.liveness, 'known_down', lambda db, host: True)
    end = time.monotonic() + 30
    while 'is down' not in late.told():
        assert time.monotonic() < end, late.told()
        cloud.conductors[0].runner.sweep()
        time.sleep(0.02)
    assert late.state()[0] == 'ACTIVE'
    monkeypatch.undo()
    cloud.start_compute(late.host)
    late.assert_runs()


# --- in the middle of something ---------------------------------------------------------------------------------------
# What is asked for, from which state, and what it comes to when the power is cut before the host did it.
ACTIVE, OFF = ('ACTIVE', 1), ('SHUTOFF', 4)
INTERRUPTED: dict[str, tuple[str, Any, tuple[str, ...], tuple[str, int]]] = {
    'suspend': ('suspend', None, (), ACTIVE),
    'pause': ('pause', None, (), ACTIVE),
    'a crash dump': ('trigger_crash_dump', None, (), ACTIVE),
    'a password': ('changePassword', {'adminPass': 'new'}, (), ACTIVE),
    'a snapshot': ('createImage', {'name': 'snap'}, (), ACTIVE),
    'a soft reboot': ('reboot', {'type': 'SOFT'}, (), ACTIVE),
    'a hard reboot': ('reboot', {'type': 'HARD'}, (), ACTIVE),
    'start': ('os-start', None, ('os-stop',), ACTIVE),
    'stop': ('os-stop', None, (), OFF),
    'rescue': ('rescue', None, (), ('RESCUE', 1)),
    'unrescue': ('unrescue', None, ('rescue',), ACTIVE),
    'shelve': ('shelve', None, (), ('SHELVED_OFFLOADED', 4)),
    # Memory that was there before is lost with the power, whatever was asked for.
    'unpause': ('unpause', None, ('pause',), OFF),
    # That of a suspended guest is a file; libvirt's test driver loses it with its process.
    'resume': ('resume', None, ('suspend',), OFF),
}


@pytest.mark.parametrize('name', INTERRUPTED)
def test_the_power_is_cut_in_the_middle(cloud: Cloud, name: str) -> None:
    """It ends as it was asked for, or it failed, says so, and the server runs as before."""
    verb, body, before, end = INTERRUPTED[name]
    cloud.images.offered[IMAGE_ID]['hw_qemu_guest_agent'] = 'yes'
    server = cloud.boot(cloud.flavor(gpus=1))
    for one in before:
        cloud.action(server, one)
    host, devices = cloud.host_of(server), cloud.hostdevs(server)
    cut = threading.Event()

    def on_message(kind: str, topic: str, to: str, method: str, args: Any, deliver: Callable[[], Any]) -> Any:
        if topic == 'conductor' and method in ('check_key', 'save_instance') and not cut.is_set():
            cut.set()
            raise Crash
        if topic == 'compute' and kind != 'cast':
            try:
                return deliver()
            except Crash:
                cloud.crash_compute(host)
                raise errors.Unanswered(who=host, reason='crashed') from None
        return deliver()

    cloud.on_message = on_message
    assert cloud.request('POST', f'/servers/{server}/action', {verb: body}).status_int < 300
    limit = time.monotonic() + 20
    while not cut.is_set() or host in cloud.computes:
        assert time.monotonic() < limit
        time.sleep(0.02)
    cloud.start_compute(host)
    cloud.settle()
    cloud.on_message = None
    for compute in cloud.computes.values():
        # What its timers do when the operation is over.
        compute.guests.sync()
        compute.guests.look_again()
    shown = cloud.show(server)
    assert (shown['status'], shown['OS-EXT-STS:power_state']) == end, cloud.story(server)
    if end[0] in ('ACTIVE', 'RESCUE'):
        assert cloud.hostdevs(server) == devices or before
    cloud.assert_clean()

"""Random failures of calls to the driver, libvirt, disks, ports, volumes and devices.

Each failure must end as the fault of the host, of the request or of a device, which decides how many hosts are tried.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import libvirt
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from kilonova import errors
from kilonova.errors import Cause
from kilonova.virt.command import CommandFailed
from kilonova.virt.hardware.tuning import InvalidTuning
from kilonova.virt.libvirt.devices.hostdevs import LibvirtDevices
from kilonova.virt.libvirt.devices.mdev import LibvirtMdevs
from kilonova.virt.libvirt.devices.vif.plugs import Plugs
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.guests import LibvirtGuests
from kilonova.virt.libvirt.migration.live_migration import LibvirtLiveMigrations
from kilonova.virt.libvirt.moves import LibvirtMoves
from kilonova.virt.libvirt.storage.server import ServerDisks
from kilonova.virt.libvirt.storage.volume_connections import HostVolumes
from kilonova.virt.parts.guests import GuestFailed, InterfaceFailed, NotOnThisHost, UnsupportedHardware
from kilonova.virt.parts.host import HypervisorUnavailable, MdevUnavailable
from kilonova.virt.parts.volumes import VolumeFailed, VolumeUnsupported
from tests.fixtures.cloud import Cloud
from tests.flows.cases import bring_back, lose_host

GPUS = {'gpu1': ['0000:08:00.0'], 'gpu2': ['0000:88:00.0'], 'gpu3': ['0000:a8:00.0']}
# By operation: the message that a host gets for it, and what may fail there before anything of the server was touched.
_START: tuple[tuple[type, str], ...] = (
    (HostVolumes, 'connected'),
    (ServerDisks, 'plan'),
    (LibvirtMdevs, 'ensure'),
    (ServerDisks, 'create'),
    (Plugs, 'renew'),
    (Guest, 'call_once'),
    (LibvirtGuests, 'spawn'),
    (LibvirtDevices, 'missing_devices'),
    (LibvirtGuests, 'get_info'),
)
_MOVE: tuple[tuple[type, str], ...] = (
    (LibvirtMoves, 'prepare_move'),
    (LibvirtGuests, 'check'),
    (LibvirtDevices, 'missing_devices'),
)
POINTS: dict[str, tuple[str, tuple[tuple[type, str], ...]]] = {
    'boot': ('build_and_run_instance', _START),
    'unshelve': ('unshelve_instance', _START),
    'evacuate': ('evacuate_instance', (*_START, (LibvirtGuests, 'check'), (LibvirtMoves, 'take_over'))),
    'resize': ('prep_resize', _MOVE),
    'migrate': ('prep_resize', _MOVE),
    'live': (
        'check_can_live_migrate_destination',
        ((LibvirtLiveMigrations, 'offer'), (LibvirtLiveMigrations, 'place'), (LibvirtLiveMigrations, 'prepare')),
    ),
}


def _libvirt(text: str, code: int = libvirt.VIR_ERR_INTERNAL_ERROR) -> libvirt.libvirtError:
    made = libvirt.libvirtError(text)
    made.err = (code, libvirt.VIR_FROM_QEMU, text, 2, '', None, None, -1, -1)
    return made


# Whose fault: errors, and of each a word that the server's action must have.
ERRORS: dict[Cause, tuple[tuple[Callable[[], Exception], str], ...]] = {
    Cause.REQUEST: (
        (lambda: errors.ImageUnacceptable(image_id='i', reason='damaged'), 'damaged'),
        (lambda: errors.ImageNotFound(image_id='lost'), 'lost'),
        (lambda: errors.Invalid('no such thing'), 'thing'),
        (lambda: errors.Forbidden('not yours'), 'not yours'),
        (lambda: UnsupportedHardware(model='x', virt='v'), "'x'"),
        (lambda: InvalidTuning(name='quota:cpu_period', value='1', reason='r'), 'quota:cpu_period'),
        (lambda: GuestFailed(act='start', uuid='u', reason='never', cause=Cause.REQUEST), 'never'),
    ),
    Cause.HOST: (
        (lambda: OSError(28, 'No space left on device'), 'OSError'),
        (lambda: RuntimeError('a bug'), 'RuntimeError'),
        (lambda: errors.KilonovaError('odd'), 'odd'),
        (lambda: HypervisorUnavailable(host='h', reason='mute'), 'mute'),
        (lambda: errors.NoRoom(what='a disk', need=2, free=1), 'disk space'),
        (lambda: CommandFailed(command='qemu-img', reason='broken'), 'broken'),
        (lambda: InterfaceFailed(port='p', host='h', reason='no switch'), 'no switch'),
        (lambda: VolumeFailed(host='h', act='connect', volume='v', reason='no path'), 'no path'),
        (lambda: VolumeUnsupported(volume='v', host='h', reason='not here'), 'not here'),
        (lambda: NotOnThisHost(name='vcpus', value=3, reason='too many'), 'too many'),
        (lambda: GuestFailed(act='start', uuid='u', reason='qemu died'), 'qemu died'),
    ),
    Cause.DEVICE: (
        (lambda: errors.DevicesFailed(addresses=['0000:08:00.0'], reason='is cold'), 'is cold'),
        (lambda: errors.DevicesMissing(addresses='0000:08:00.0', uuid='u'), '0000:08:00.0'),
        (lambda: MdevUnavailable(uuid='m', type='t', parent='p', reason='none left'), 'none left'),
    ),
}
# What libvirt may say when a guest is started, {} the address of its device.
STARTS: dict[Cause, str] = {
    Cause.REQUEST: 'internal error: bps/iops/max values must be within [0, 1000000000000000]',
    Cause.HOST: 'internal error: process exited while connecting to monitor: Cannot allocate memory',
    Cause.DEVICE: 'internal error: vfio {}: group 14 is not viable',
}


@pytest.fixture(scope='module')
def crowd(tmp_path_factory: pytest.TempPathFactory, cloud_templates: Any) -> Iterator[Cloud]:
    made = Cloud(tmp_path_factory.mktemp('causes'), cloud_templates, GPUS)
    yield made
    made.stop()


@contextlib.contextmanager
def failing(point: tuple[type, str], fails: Callable[[Any], Exception], everywhere: bool) -> Iterator[list[str]]:
    """Let a call fail on the first host that makes it, or on each. The hosts on which it did."""
    owner, name = point
    real, hosts = getattr(owner, name), list[str]()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        host = _host(self)
        if owner is Guest and not str(args[0]).startswith('create'):
            return real(self, *args, **kwargs)
        if everywhere or hosts in ([], [host]):
            hosts[:] = [*hosts, *({host} - set(hosts))]
            raise fails(self)
        return real(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, call)
        yield hosts


def _host(part: Any) -> str:
    for path in ('_libvirt.name', '_conf.host', '_host.name', '_path'):
        found: Any = part
        for step in path.split('.'):
            found = getattr(found, step, None)
        if found is not None:
            return str(found)
    raise AssertionError(f'whose is {part}?')


def begin(cloud: Cloud, operation: str) -> str:
    """A server to which the operation can be done; '' for a boot."""
    if operation == 'boot':
        return ''
    # Such a device stays with its host while its guest runs.
    server = cloud.boot(cloud.flavor(gpus=0 if operation == 'live' else 1))
    if operation == 'unshelve':
        cloud.action(server, 'shelve')
    assert cloud.status(server) == ('SHELVED_OFFLOADED' if operation == 'unshelve' else 'ACTIVE'), cloud.story(server)
    return server


def act(cloud: Cloud, operation: str, server: str) -> str:
    if operation == 'boot':
        return cloud.boot(cloud.flavor(gpus=1))
    if operation == 'evacuate':
        lose_host(cloud, cloud.host_of(server))
        # From 2.95 on the server would be stopped there.
        cloud.ok('POST', f'/servers/{server}/action', {'evacuate': {}}, version='2.90')
        # What the dead host is to give back waits for it.
        cloud.settle(kinds_left=('release',))
        return server
    body = {
        'resize': ('resize', {'flavorRef': cloud.flavor(gpus=1, ram=1024)}),
        'migrate': ('migrate', None),
        'unshelve': ('unshelve', None),
        'live': ('os-migrateLive', {'host': None, 'block_migration': 'auto'}),
    }
    cloud.action(server, *body[operation], version='2.90')
    return server


ENDS = {
    'boot': ('ACTIVE', 'ERROR'),
    'unshelve': ('ACTIVE', 'SHELVED_OFFLOADED'),
    'resize': ('VERIFY_RESIZE', 'ACTIVE'),
    'migrate': ('VERIFY_RESIZE', 'ACTIVE'),
    'live': ('ACTIVE', 'ACTIVE'),
    'evacuate': ('ACTIVE', 'ACTIVE'),
}


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@given(st.sampled_from(sorted(POINTS)), st.sampled_from(list(Cause)), st.booleans(), st.data())
@example('boot', Cause.REQUEST, True, None)
@example('boot', Cause.DEVICE, False, None)
@example('boot', Cause.DEVICE, True, None)
@example('resize', Cause.HOST, True, None)
@example('evacuate', Cause.HOST, True, None)
@example('evacuate', Cause.DEVICE, False, None)
def test_whose_fault_it_is_decides_how_many_hosts_are_tried(
    crowd: Cloud, operation: str, cause: Cause, everywhere: bool, data: Any
) -> None:
    """A fault of the request itself is tried on one host and counts against none; others are tried on other hosts.

    Whatever fails leaves nothing behind. A failed device is not offered before it was checked.
    """
    message, points = POINTS[operation]
    started = next((one for one in points if one[0] is Guest), points[0])
    point = started if data is None else data.draw(st.sampled_from(points))
    make, word = ERRORS[cause][0] if data is None else data.draw(st.sampled_from(ERRORS[cause]))
    if point[0] is Guest:
        word = STARTS[cause].rpartition(' ')[2]

    def fails(part: Any) -> Exception:
        if point[0] is not Guest:
            return make()
        return _libvirt(STARTS[cause].format(GPUS[_host(part)][0]))

    for left in crowd.ok('GET', '/servers?all_tenants=1')['servers']:
        delete(crowd, left['id'])
    look(crowd)
    server, counted = begin(crowd, operation), builds(crowd)
    lost = crowd.host_of(server) if operation == 'evacuate' else None
    crowd.messages.clear()
    with failing(point, fails, everywhere) as hosts:
        server = act(crowd, operation, server)
        tried = {one[2] for one in crowd.messages if one[3] == message}
    note = f'{operation}, {point}, {make()!r}, {hosts}: {crowd.story(server)}'
    possible = 3 if operation in ('boot', 'unshelve') else 2
    well, badly = ENDS[operation]
    assert hosts, note
    if cause is Cause.REQUEST:
        assert (len(tried), crowd.status(server)) == (1, badly), note
        assert builds(crowd).items() <= counted.items(), note
    else:
        assert len(tried) == (possible if everywhere else 2), note
        assert crowd.status(server) == (badly if everywhere else well), note
    assert word in str(crowd.story(server)), note
    if lost is not None:
        # A server whose evacuation failed is still the lost host's.
        assert (crowd.host_of(server) == lost) == (everywhere or cause is Cause.REQUEST), note
        bring_back(crowd, lost)
    crowd.assert_clean()
    delete(crowd, server)
    resting = {name for name, (status, _) in crowd.devices().items() if status == 'unavailable'}
    assert cause is Cause.DEVICE or not resting, note
    if cause is Cause.DEVICE and point[0] is Guest:
        assert resting == {f'{host} {GPUS[host][0]}' for host in hosts}, note
    if resting:
        check_rest(crowd, resting)
    crowd.assert_empty()


def delete(cloud: Cloud, server: str) -> None:
    cloud.ok('DELETE', f'/servers/{server}')
    cloud.settle()


def check_rest(cloud: Cloud, resting: set[str]) -> None:
    """No server gets a device that failed, and no host is asked for it, until it was looked at."""
    cloud.messages.clear()
    others = [cloud.boot(cloud.flavor(gpus=1)) for _ in GPUS]
    given = {device for one in others if cloud.status(one) == 'ACTIVE' for device in cloud.owned(one)}
    assert given == {f'{host} {address}' for host, (address,) in GPUS.items()} - resting
    assert len([one for one in cloud.messages if one[3] == 'build_and_run_instance']) == len(given)
    for one in others:
        delete(cloud, one)
    look(cloud)
    assert {status for status, _ in cloud.devices().values()} == {'available'}


def look(cloud: Cloud) -> None:
    """The time of all devices that failed is over: hosts look at them, and find them well."""
    for compute in cloud.computes.values():
        compute.rest.clock = lambda: time.time() + 10**9
        compute.rest.look()
        compute.rest.clock = time.time


def builds(cloud: Cloud) -> dict[str, int]:
    """The failed builds that each host counts."""
    return {host: compute.host.tracker.failed_builds for host, compute in cloud.computes.items()}

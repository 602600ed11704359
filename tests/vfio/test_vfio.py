"""Real vfio-pci on the nested machine (``make test-vfio``), with the guests' own list of devices as the witness."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from uuid import UUID

import libvirt
import pytest

from tests.integration.site import SETTLED_WITHIN
from tests.vfio.passthrough import COMPUTE, Passthrough
from tools.vfio import vgpu
from tools.vfio.machine import CARD, CARDS, NVME, VIRTUAL

ONE, TWO = ('one', 'pci_passthrough:alias=card:1'), ('two', 'pci_passthrough:alias=card:2')
VF, VGPU = ('vf', 'pci_passthrough:alias=vf:1'), ('vgpu', 'resources:VGPU=1')


def test_resized_from_one_device_to_two_and_back(cloud: Passthrough) -> None:
    """By the openstack command: one device; two after the resize; the one of before after revert; two, confirmed, and
    the first is free again."""
    server = cloud.boot('story', cloud.flavor(*ONE))
    cloud.sees(server, [CARD], boots=1)
    before = cloud.held(server)
    assert len(before) == 1 and set(before) <= set(CARDS)
    assert cloud.nested.driver_of(before[0]) == 'vfio-pci'

    cloud.openstack('server', 'resize', '--flavor', cloud.flavor(*TWO), '--wait', server)
    cloud.sees(server, [CARD, CARD], boots=2)
    two = cloud.held(server)
    assert len(two) == 2 and not set(two) & set(before) and set(two) <= set(CARDS)

    cloud.openstack('server', 'resize', 'revert', server)
    cloud.guests.ends(server, 'ACTIVE')
    cloud.sees(server, [CARD], boots=2)
    assert cloud.held(server) == before == cloud.devices_of(server)
    assert [cloud.nested.driver_of(address) for address in two] == ['', '']

    cloud.openstack('server', 'resize', '--flavor', 'two', '--wait', server)
    cloud.sees(server, [CARD, CARD], boots=3)
    cloud.openstack('server', 'resize', 'confirm', server)
    cloud.guests.ends(server, 'ACTIVE')
    two = cloud.held(server)
    assert len(two) == 2 and cloud.devices_of(server) == two
    assert cloud.nested.driver_of(before[0]) == ''
    # And smaller: two are given up for one.
    cloud.openstack('server', 'resize', '--flavor', 'one', '--wait', server)
    cloud.openstack('server', 'resize', 'confirm', server)
    cloud.guests.ends(server, 'ACTIVE')
    cloud.sees(server, [CARD], boots=4)
    assert len(cloud.held(server)) == 1


def test_a_vgpu(cloud: Passthrough) -> None:
    """A mediated device is made by the host's libvirt when a guest first needs it, and stays for the next one."""
    server = cloud.boot('vgpu', cloud.flavor(*VGPU))
    cloud.sees(server, [vgpu.SEEN], boots=1)
    held = cloud.held(server)
    assert [str(UUID(uuid)) for uuid in held] == held == cloud.devices_of(server) and len(held) == 1
    assert cloud.nested.run('ls /sys/bus/mdev/devices').split() == held
    cloud.openstack('server', 'delete', '--wait', server)
    assert cloud.nested.run('ls /sys/bus/mdev/devices').split() == held
    again = cloud.boot('vgpu-again', 'vgpu')
    cloud.sees(again, [vgpu.SEEN], boots=1)
    assert cloud.held(again) == held


def test_a_virtual_function(cloud: Passthrough) -> None:
    server = cloud.boot('vf', cloud.flavor(*VF))
    cloud.sees(server, [NVME], boots=1)
    held = cloud.held(server)
    assert len(held) == 1 and set(held) <= set(VIRTUAL) and held == cloud.devices_of(server)
    assert cloud.nested.driver_of(held[0]) == 'vfio-pci'


def test_the_host_reboots(cloud: Passthrough) -> None:
    """Servers with devices of each kind, one of them stopped: they are as before, with the same devices."""
    servers = {
        cloud.boot(f'reboot-{name}', cloud.flavor(name, asked)): seen
        for name, asked, seen in ((*TWO, [CARD, CARD]), (*VF, [NVME]), (*VGPU, [vgpu.SEEN]))
    }
    for server, seen in servers.items():
        cloud.sees(server, seen, boots=1)
    stopped = cloud.boot('reboot-stopped', cloud.flavor(*ONE))
    cloud.sees(stopped, [CARD], boots=1)
    cloud.openstack('server', 'stop', stopped)
    cloud.guests.ends(stopped, 'SHUTOFF')
    before = {server: cloud.held(server) for server in servers}
    owned = {server: cloud.devices_of(server) for server in (*servers, stopped)}
    cloud.site.kill(COMPUTE)
    cloud.nested.power_off()
    cloud.up()
    for server, seen in servers.items():
        cloud.guests.ends(server, 'ACTIVE')
        cloud.sees(server, seen, boots=2)
    assert {server: cloud.held(server) for server in servers} == before
    assert {server: cloud.devices_of(server) for server in (*servers, stopped)} == owned
    assert cloud.guests.ends(stopped, 'SHUTOFF')['OS-EXT-STS:power_state'] == 4
    cloud.openstack('server', 'start', stopped)
    cloud.guests.ends(stopped, 'ACTIVE')
    cloud.sees(stopped, [CARD], boots=2)
    assert cloud.held(stopped) == owned[stopped]


def test_the_host_reboots_without_its_vfs(cloud: Passthrough) -> None:
    """Nothing on the host made them again: the server is off and says why it can't start, its VF stays its own; when
    there are VFs again it starts with that one."""
    server = cloud.boot('lost-vf', cloud.flavor(*VF))
    cloud.sees(server, [NVME], boots=1)
    before = cloud.held(server)
    cloud.site.kill(COMPUTE)
    cloud.nested.power_off()
    cloud.nested.start(vfs=0)
    cloud.up()
    cloud.guests.ends(server, 'SHUTOFF')
    assert cloud.devices_of(server) == before
    cloud.openstack('server', 'start', server)
    cloud.guests.ends(server, 'SHUTOFF')
    assert f'PCI device(s) {before[0]}' in cloud.site.last_message(server)
    cloud.nested.make_vfs()
    cloud.openstack('server', 'start', server)
    cloud.guests.ends(server, 'ACTIVE')
    cloud.sees(server, [NVME], boots=2)
    assert cloud.held(server) == before == cloud.devices_of(server)
    # The compute looks at its devices once a minute.
    cloud.guests.until(lambda: {row['address'] for row in cloud.site.devices()} >= set(VIRTUAL), 'both VFs again')


def test_suspended_and_resumed(cloud: Passthrough) -> None:
    """Memory of a guest that has devices can't be saved: it gives them up while it runs, the host's kernel has them
    meanwhile, and the guest finds the same ones again afterwards, as new. It did not boot in between."""
    server = cloud.boot('suspended', cloud.flavor(*TWO))
    cloud.sees(server, [CARD, CARD], boots=1)
    before = cloud.held(server)
    cloud.openstack('server', 'suspend', server)
    cloud.guests.ends(server, 'SUSPENDED')
    assert [cloud.nested.driver_of(address) for address in before] == ['', '']
    assert cloud.devices_of(server) == before
    cloud.openstack('server', 'resume', server)
    cloud.guests.ends(server, 'ACTIVE')
    cloud.sees_now(server, [CARD, CARD])
    # Its console begins anew where its memory was read.
    assert cloud.held(server) == before and 'GUEST-UP' not in cloud.guests.console(server)


def test_a_device_that_another_domain_has(cloud: Passthrough) -> None:
    """Not Kilonova's, on the same host: the server is an error that names the device, and holds none."""
    with contextlib.closing(libvirt.open(cloud.nested.uri)) as connection:
        other = connection.createXML(
            FOREIGN.format(devices=''.join(map(hostdev, CARDS))), libvirt.VIR_DOMAIN_START_PAUSED
        )
        server = cloud.site.create(
            'refused', cloud.flavor(*ONE), user='admin', imageRef=cloud.guests.image('guest-direct')
        )
        shown = cloud.site.settle([server])[server]
        other.destroy()
    assert shown['status'] == 'ERROR' and cloud.devices_of(server) == [], shown
    assert 'PCI device 0000:' in shown['fault']['message']
    assert 'is in use by driver QEMU, domain foreign' in shown['fault']['details']


FOREIGN = """<domain type='kvm'><name>foreign</name><memory unit='MiB'>32</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc'>hvm</type></os><devices><memballoon model='none'/>{devices}</devices></domain>"""


def hostdev(address: str) -> str:
    domain, bus, rest = address.split(':')
    slot, _, function = rest.partition('.')
    return (
        f"<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0x{domain}' bus='0x{bus}' "
        f"slot='0x{slot}' function='0x{function}'/></source></hostdev>"
    )


# -- a compute that dies -----------------------------------------------------------------------------------------------
def bound(connection: libvirt.virConnect) -> int:
    """How many cards are with vfio-pci."""
    return sum(
        '<name>vfio-pci</name>'
        in connection.nodeDeviceLookupByName('pci_' + address.replace(':', '_').replace('.', '_')).XMLDesc()
        for address in CARDS
    )


def running(connection: libvirt.virConnect) -> int:
    """How many guests are there, however new."""
    return len(connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE))


def made(connection: libvirt.virConnect) -> int:
    """How many vGPUs there are that work."""
    return sum(
        device.isActive() for device in connection.listAllDevices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV)
    )


def kill_when(cloud: Passthrough, begin: Callable[[], None], count: Callable[[libvirt.virConnect], int]) -> None:
    """Kill the compute as soon as one more is counted than before ``begin``; start it again."""
    with contextlib.closing(libvirt.open(cloud.nested.uri)) as connection:
        before = count(connection)
        begin()
        deadline = time.monotonic() + SETTLED_WITHIN
        while count(connection) <= before:
            assert time.monotonic() < deadline, f'never one more {count.__name__}'
        cloud.site.kill(COMPUTE)
    cloud.site.start(COMPUTE)


@pytest.mark.parametrize(
    ('wanted', 'seen', 'moment'), [(TWO, [CARD, CARD], bound), (TWO, [CARD, CARD], running), (VGPU, [vgpu.SEEN], made)]
)
def test_a_compute_dies_while_it_gives_devices(
    cloud: Passthrough, wanted: tuple[str, str], seen: list[str], moment: Callable[[libvirt.virConnect], int]
) -> None:
    """At its return the server runs with its devices, or is an error that says why and has none."""
    flavor = cloud.flavor(*wanted)
    cloud.nested.run('for one in /sys/bus/mdev/devices/*; do [ ! -e $one ] || echo 1 > $one/remove; done')
    servers: list[str] = []
    kill_when(
        cloud,
        lambda: servers.append(
            cloud.site.create('killed', flavor, user='admin', imageRef=cloud.guests.image('guest-direct'))
        ),
        moment,
    )
    (server,) = servers
    shown = cloud.site.settle([server])[server]
    print(f'killed when {moment.__name__}: {shown["status"]} {shown.get("fault", "")}')
    cloud.site.audit()
    owned = cloud.devices_of(server)
    if shown['status'] == 'ACTIVE':
        cloud.sees(server, seen, boots=1)
        assert cloud.held(server) == owned and len(owned) == len(seen)
    else:
        assert shown['status'] == 'ERROR' and shown['fault']['message']
        assert owned == [] and cloud.domains() == []
    cloud.site.clean()
    assert [cloud.nested.driver_of(address) for address in CARDS] == [''] * len(CARDS)


def test_a_compute_dies_while_a_resize_binds_devices(cloud: Passthrough) -> None:
    """The server has its one card or the two new ones; what it has not is free."""
    server = cloud.boot('killed-resize', cloud.flavor(*ONE))
    cloud.sees(server, [CARD], boots=1)
    flavor, before = cloud.flavor(*TWO), cloud.devices_of(server)
    # Its own card is given up first.
    cloud.site.act(server, 'resize', {'flavorRef': flavor})
    with contextlib.closing(libvirt.open(cloud.nested.uri)) as connection:
        cloud.guests.until(lambda: bound(connection) == 0, 'the card given up', pause=0.05)
    kill_when(cloud, lambda: None, bound)
    shown = cloud.site.settle([server])[server]
    print(f'killed when bound: {shown["status"]} {shown.get("fault", "")}')
    cloud.site.audit()
    if shown['status'] == 'VERIFY_RESIZE':
        cloud.sees(server, [CARD, CARD], boots=2)
        assert len(cloud.held(server)) == 2 and set(cloud.held(server)) < set(cloud.devices_of(server))
        cloud.openstack('server', 'resize', 'revert', server)
        cloud.guests.ends(server, 'ACTIVE')
    assert cloud.guests.ends(server, 'ACTIVE')['flavor']['original_name'] == 'one'
    cloud.sees(server, [CARD], boots=2)
    assert cloud.held(server) == before == cloud.devices_of(server)
    assert [address for address in CARDS if cloud.nested.driver_of(address)] == before

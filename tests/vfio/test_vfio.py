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
    servers = {cloud.boot(f'reboot-{name}', cloud.flavor(name, asked)): seen for name, asked, seen in (
        (*TWO, [CARD, CARD]), (*VF, [NVME]), (*VGPU, [vgpu.SEEN]))}
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


def is_bound(connection: libvirt.virConnect) -> bool:
    """Whether a card is with vfio-pci."""
    return any('<name>vfio-pci</name>' in connection.nodeDeviceLookupByName(
        'pci_' + address.replace(':', '_').replace('.', '_')).XMLDesc() for address in CARDS)


def runs(connection: libvirt.virConnect) -> bool:
    """Whether a guest is there, however new."""
    return bool(connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE))


@pytest.mark.parametrize('moment', [is_bound, runs])
def test_a_compute_dies_while_devices_are_bound(cloud: Passthrough, moment: Callable[[libvirt.virConnect], bool]
                                                ) -> None:
    """At its return the server runs with its devices, or is an error that says why and has none."""
    flavor = cloud.flavor(*TWO)
    with contextlib.closing(libvirt.open(cloud.nested.uri)) as connection:
        server = cloud.site.create('killed', flavor, user='admin', imageRef=cloud.guests.image('guest-direct'))
        deadline = time.monotonic() + SETTLED_WITHIN
        while not moment(connection):
            assert time.monotonic() < deadline, 'no device was bound'
        cloud.site.kill(COMPUTE)
    cloud.site.start(COMPUTE)
    shown = cloud.site.settle([server])[server]
    print(f'killed when {moment.__name__}: {shown["status"]} {shown.get("fault", "")}')
    cloud.site.audit()
    owned = cloud.devices_of(server)
    if shown['status'] == 'ACTIVE':
        cloud.sees(server, [CARD, CARD], boots=1)
        assert cloud.held(server) == owned and len(owned) == 2
    else:
        assert shown['status'] == 'ERROR' and shown['fault']['message']
        assert owned == [] and cloud.domains() == []
    cloud.site.clean()
    assert [cloud.nested.driver_of(address) for address in CARDS] == [''] * len(CARDS)

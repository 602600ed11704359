"""No server starts on a host, or reverts to it, if a device that it holds was removed from that host.

libvirt's test driver can't unplug a device, so its answers about the machine's devices leave it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kilonova.virt.libvirt.devices import pci
from tests.fixtures.cloud import Cloud

ONE = {'gpu1': ['0000:08:00.0']}


@contextmanager
def unplugged(cloud: Cloud, host: str, address: str) -> Iterator[None]:
    """The machine has it no more; its compute looks at once."""
    manager = cloud.computes[host]
    libvirt, name = manager.host.driver.host._libvirt, pci.node_name(address)
    list_all, has = libvirt.node_devices, libvirt.has_node_device
    libvirt.node_devices = lambda: [text for text in list_all() if f'<name>{name}</name>' not in text]
    libvirt.has_node_device = lambda wanted: wanted != name and has(wanted)
    manager.node.update()
    try:
        yield
    finally:
        libvirt.node_devices, libvirt.has_node_device = list_all, has
        manager.node.update()


def fault_of(cloud: Cloud, server: str) -> str:
    """What the newest event of a server says to administrators."""
    return str(cloud.story(server)[0][2])


@pytest.mark.parametrize(
    ('action', 'body', 'before'), [('os-start', None, 'SHUTOFF'), ('reboot', {'type': 'HARD'}, 'ACTIVE')]
)
def test_a_server_does_not_start_without_its_device(make_cloud, action, body, before):
    """The fault and the event name the address; with the device back it starts."""
    cloud = make_cloud(ONE)
    server = cloud.boot(cloud.flavor(gpus=1))
    if before == 'SHUTOFF':
        cloud.action(server, 'os-stop')
    with unplugged(cloud, 'gpu1', '0000:08:00.0'):
        cloud.action(server, action, body)
        assert cloud.status(server) == before
        assert '0000:08:00.0' in fault_of(cloud, server)
        assert any('gpu1 no longer has device 0000:08:00.0' in line for line in cloud.audit().disagreements)
    cloud.action(server, action, body)
    assert cloud.status(server) == 'ACTIVE' and cloud.hostdevs(server) == ['0000:08:00.0']
    cloud.assert_clean()


def test_a_revert_is_refused_while_the_source_lacks_a_device(cloud):
    """The server runs on where it is, waits as before, and goes back when the device is there again."""
    server = cloud.boot(cloud.flavor(gpus=2))
    source, held = cloud.host_of(server), cloud.hostdevs(server)
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=1, ram=1024)})
    destination = cloud.host_of(server)
    assert cloud.status(server) == 'VERIFY_RESIZE' and destination != source
    before = cloud.xml(server)
    with unplugged(cloud, source, held[1]):
        cloud.action(server, 'revertResize')
        assert (cloud.status(server), cloud.host_of(server)) == ('VERIFY_RESIZE', destination)
        assert cloud.xml(server) == before and held[1] in fault_of(cloud, server)
        assert [line for line in cloud.audit().disagreements if 'no longer has device' not in line] == []
    cloud.action(server, 'revertResize')
    assert (cloud.status(server), cloud.host_of(server), cloud.hostdevs(server)) == ('ACTIVE', source, held)
    cloud.assert_clean()


def test_a_resize_takes_the_next_host_when_a_device_left_the_first(cloud):
    """It left after it was claimed."""
    server = cloud.boot(cloud.flavor(gpus=1))
    gone = []

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'finish_resize' and not gone:
            (address,) = [name.split()[1] for name in cloud.owned(server) if name.startswith(f'{host} ')]
            libvirt = cloud.computes[host].host.driver.host._libvirt
            gone.append((host, address))
            libvirt.has_node_device = lambda name: name != pci.node_name(address)
            try:
                return deliver()
            finally:
                del libvirt.has_node_device
        return deliver()

    cloud.on_message = on_message
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=1, ram=1024)})
    cloud.on_message = None
    assert gone
    assert cloud.status(server) in ('ACTIVE', 'VERIFY_RESIZE')
    assert all(address != gone[0][1] or cloud.host_of(server) != gone[0][0] for address in cloud.hostdevs(server))
    cloud.assert_clean()


def test_a_device_that_is_gone_is_offered_to_nobody_when_its_server_ends(make_cloud):
    """Its row doesn't say available, not for a moment, and goes at the next look; back, it is offered again."""
    cloud = make_cloud(ONE)
    flavor = cloud.flavor(gpus=1)
    server = cloud.boot(flavor)
    with unplugged(cloud, 'gpu1', '0000:08:00.0'):
        cloud.request('DELETE', f'/servers/{server}')
        cloud.settle()
        assert cloud.devices() == {'gpu1 0000:08:00.0': ('removed', None)}
        assert cloud.show(cloud.boot(flavor))['fault']['message'].endswith('(best: 0 free).')
        cloud.assert_clean()
        cloud.computes['gpu1'].node.update()
        assert cloud.devices() == {}
        cloud.assert_clean()
    assert cloud.devices() == {'gpu1 0000:08:00.0': ('available', None)}
    assert cloud.status(cloud.boot(flavor)) == 'ACTIVE'
    cloud.assert_clean()


def test_a_device_that_comes_back_before_the_next_look(make_cloud):
    cloud = make_cloud(ONE)
    flavor = cloud.flavor(gpus=1)
    server = cloud.boot(flavor)
    with unplugged(cloud, 'gpu1', '0000:08:00.0'):
        cloud.request('DELETE', f'/servers/{server}')
        cloud.settle()
    assert cloud.devices() == {'gpu1 0000:08:00.0': ('available', None)}
    assert cloud.status(cloud.boot(flavor)) == 'ACTIVE'
    cloud.assert_clean()

"""Servers that are real QEMU guests on two machines with a libvirtd each (``make test-qemu``): what they were given and
what became of them, in their own words."""
from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator

import pytest

from tests.integration.real_guests import HOSTS, RealGuests, fact
from tests.integration.site import Site
from tools.cloud import http

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason='machines of namespaces, libvirtd and QEMU need root')


@pytest.fixture(scope='module')
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGuests]:
    site = Site(tmp_path_factory.mktemp('real'), guests='qemu')
    try:
        # A guest ends on its power button or never.
        site.configure('[DEFAULT]\nshutdown_timeout = 120\n')
        site.up()
        yield RealGuests(site)
    finally:
        site.end()


@pytest.fixture
def guests(cloud: RealGuests) -> Iterator[RealGuests]:
    """Without any server, all daemons up; afterwards nothing is left and the audit finds nothing."""
    cloud.site.up()
    cloud.clean()
    yield cloud
    cloud.site.up()
    cloud.site.audit()
    cloud.clean()


def test_the_hosts_are_two_machines(guests: RealGuests) -> None:
    """Nothing is shared: not ids, addresses, disks, processes; each has its libvirtd, and they reach each other."""
    seen = {host: [guests.machine(host).run('cat', path).strip() for path in
                   ('/etc/machine-id', '/proc/sys/kernel/random/boot_id')] for host in HOSTS}
    assert not set(seen['gpu1']) & set(seen['gpu2'])
    for host, other in (HOSTS, HOSTS[::-1]):
        machine, peer = guests.machine(host), guests.machine(other)
        assert machine.run('hostname').strip() == host
        assert machine.run('ls', '-A', str(guests.site.layout.var / 'hosts')).split() == [host]
        assert machine.run('ls', '-A', str(guests.site.layout.data('kilonova').parent)) == ''
        assert len(machine.run('pgrep', '-x', 'libvirtd').split()) == 1
        assert machine.run('ssh', peer.address, 'hostname').strip() == other
        # libvirtd is open to the machines' network, and to no other address.
        listening = {line.split()[3] for line in machine.run('ss', '-Hltn').splitlines()}
        assert f'{machine.address}:16509' in listening and not any(
            address.startswith(('0.0.0.0', '[::]', '*')) for address in listening)


@pytest.mark.parametrize('image', ['guest', 'guest-direct'])
def test_a_guest_has_what_was_asked_for(guests: RealGuests, image: str) -> None:
    """From its own boot loader, and from kernel_id, ramdisk_id and os_command_line."""
    wanted = {'config_drive': True, 'metadata': {'purpose': 'witness'},
              'user_data': base64.b64encode(b'#!/bin/echo from the user\n').decode()}
    server = guests.boot('gpu1', guests.flavor('large', vcpus=2, ram=160, disk=2), image, **wanted)
    said = guests.console(server)
    assert fact(said, 'CPUS') == '2'
    assert 110 << 10 < int(fact(said, 'MEM').split()[0]) < 160 << 10
    assert f'GUEST-DISK vda sectors={2 << 21}\n' in said
    assert server in fact(said, 'DMI')
    assert 'openstack/latest/meta_data.json' in fact(said, 'CONFIGDRIVE')
    metadata = json.loads(fact(said, 'METADATA'))
    assert (metadata['uuid'], metadata['meta']) == (server, {'purpose': 'witness'})
    assert fact(said, 'USERDATA') == '#!/bin/echo from the user'
    assert ('direct=1' in fact(said, 'UP kernel=\\S+')) == (image == 'guest-direct')
    assert guests.emulators('gpu1') == 1 and guests.emulators('gpu2') == 0
    assert 'GUEST-TROUBLE' not in said


def test_power(guests: RealGuests) -> None:
    """Stop, start, soft and hard reboot: the disk counts the boots, the power button is heard where it is pressed."""
    server = guests.boot('gpu2', guests.flavor('small'))
    mark = guests.mark(server)
    guests.act(server, 'SHUTOFF', 'os-stop')
    assert guests.emulators('gpu2') == 0
    assert 'GUEST-POWERBUTTON' in guests.console(server)
    guests.act(server, 'ACTIVE', 'os-start')
    guests.boots(server, 2)
    guests.act(server, 'ACTIVE', 'reboot', {'type': 'SOFT'})
    guests.boots(server, 3)
    guests.act(server, 'ACTIVE', 'reboot', {'type': 'HARD'})
    said = guests.boots(server, 4)
    assert fact(said, 'MARK') == mark


def test_resize_and_cold_migrate_between_the_machines(guests: RealGuests) -> None:
    """The disk goes along with what the guest wrote; revert gives it back as it was when it went."""
    server = guests.boot('gpu1', guests.flavor('small'))
    mark = guests.mark(server)
    larger = {'flavorRef': guests.flavor('large', vcpus=2, ram=160, disk=2)}
    guests.act(server, 'VERIFY_RESIZE', 'resize', larger)
    assert guests.host(server) == 'gpu2'
    said = guests.boots(server, 2)
    assert (fact(said, 'MARK'), fact(guests.console(server), 'CPUS')) == (mark, '2')
    assert f'GUEST-DISK vda sectors={2 << 21}\n' in guests.console(server)
    guests.act(server, 'ACTIVE', 'revertResize')
    assert guests.host(server) == 'gpu1'
    said = guests.boots(server, 2)
    assert (fact(said, 'MARK'), fact(guests.console(server), 'CPUS')) == (mark, '1')
    guests.site.audit()
    guests.act(server, 'VERIFY_RESIZE', 'migrate')
    guests.boots(server, 3)
    guests.act(server, 'ACTIVE', 'confirmResize')
    assert guests.host(server) == 'gpu2' and guests.mark(server) == mark
    assert guests.site.directories('gpu1') == [] and guests.site.directories('gpu2') == [server]
    assert (guests.emulators('gpu1'), guests.emulators('gpu2')) == (0, 1)


def test_a_snapshot_boots_where_its_guest_left_off(guests: RealGuests) -> None:
    """On the other machine, beside the guest that it was made of."""
    server = guests.boot('gpu1', guests.flavor('small'))
    mark = guests.mark(server)
    guests.act(server, 'ACTIVE', 'createImage', {'name': 'left-off'})
    image = guests.until(lambda: [row['id'] for row in http.call(
        'GET', f'{guests.site.url("glance")}/v2/images?name=left-off', token=guests.site.token('admin')).data['images']
        if row['status'] == 'active'], 'the image is there')[0]
    copy = guests.boot('gpu2', guests.flavor('small'), imageRef=image)
    assert fact(guests.boots(copy, 2), 'MARK') == mark
    # Its own counts on.
    guests.ticks_beyond(server, guests.tick(server))
    assert guests.console(server).count('GUEST-BOOTS') == 1

"""Servers that are real QEMU guests on two machines with a libvirtd each (``make test-qemu``): what they were given and
what became of them, in their own words."""
from __future__ import annotations

import base64
import json
import os
import shutil
import time
from collections.abc import Iterator

import pytest

from tests.integration.real_guests import HOSTS, RealGuests, fact
from tests.integration.site import Site
from tests.integration.test_remote_consoles import Rfb, address, opened, said
from tools.cloud.layout import DEFAULT_HOSTS

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason='machines of namespaces, libvirtd and QEMU need root')


@pytest.fixture(scope='module')
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGuests]:
    directory = tmp_path_factory.mktemp('real')
    shutil.copytree(DEFAULT_HOSTS, directory / 'hosts')
    with (directory / 'hosts' / 'gpu1.conf').open('a') as conf:
        # A guest with a serial console on a port of its host can't be migrated live.
        conf.write('[serial_console]\nenabled = false\n')
    site = Site(directory, guests='qemu', hosts=directory / 'hosts')
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
    if cloud.site.servers():
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


def test_a_snapshot_and_a_backup_boot_where_their_guest_left_off(guests: RealGuests) -> None:
    """On both machines, beside the guest that they were made of. Of three backups the older one goes."""
    flavor = guests.flavor('small')
    server = guests.boot('gpu1', flavor)
    mark = guests.mark(server)
    guests.act(server, 'ACTIVE', 'createImage', {'name': 'left-off'})
    for name in ('first', 'second', 'third'):
        guests.act(server, 'ACTIVE', 'createBackup', {'name': name, 'backup_type': 'daily', 'rotation': 2})
    assert [len(guests.images_named(name)) for name in ('left-off', 'first', 'second', 'third')] == [1, 0, 1, 1]
    copies = [guests.start_boot(host, flavor, imageRef=guests.images_named(name)[0])
              for host, name in (('gpu2', 'left-off'), ('gpu1', 'third'))]
    for copy in copies:
        guests.ends(copy, 'ACTIVE')
        assert fact(guests.boots(copy, 2), 'MARK') == mark
    # Its own counts on.
    guests.ticks_beyond(server, guests.tick(server))
    assert guests.console(server).count('GUEST-BOOTS') == 1


def test_a_guest_counts_on_after_a_live_migration(guests: RealGuests) -> None:
    """On the other machine, with no boot between; its disk came along, as its next boot says."""
    server = guests.boot('gpu1', guests.flavor('small'))
    mark = guests.mark(server)
    before = guests.ticks_beyond(server, 2)
    guests.migrate_live(server, 'gpu2')
    guests.ends(server, 'ACTIVE')
    assert guests.host(server) == 'gpu2' and [guests.emulators(host) for host in HOSTS] == [0, 1]
    guests.ticks_beyond(server, before + 2)
    assert 'GUEST-UP' not in guests.console(server)
    counted = guests.ticks(server)
    assert counted[0] > before and counted == list(range(counted[0], counted[-1] + 1))
    assert guests.site.directories('gpu1') == [] and guests.site.directories('gpu2') == [server]
    guests.act(server, 'ACTIVE', 'reboot', {'type': 'HARD'})
    assert fact(guests.boots(server, 2), 'MARK') == mark


# -- operations beside those of power and place -----------------------------------------------------------------------
def test_a_paused_guest_stands_still(guests: RealGuests) -> None:
    """And goes on at the same count; so does one that was suspended, whose memory was on the disk meanwhile."""
    server = guests.boot('gpu1', guests.flavor('small'))
    guests.ticks_beyond(server, 2)
    guests.act(server, 'PAUSED', 'pause')
    still = guests.tick(server)
    time.sleep(5)
    assert guests.tick(server) == still and guests.emulators('gpu1') == 1
    guests.act(server, 'ACTIVE', 'unpause')
    guests.ticks_beyond(server, still)
    guests.act(server, 'SUSPENDED', 'suspend')
    assert guests.emulators('gpu1') == 0
    still = guests.tick(server)
    guests.site.audit()
    guests.act(server, 'ACTIVE', 'resume')
    guests.ticks_beyond(server, still + 2)
    # Its console begins anew with the process, and is no boot's; a line may have been cut in two by the end.
    assert 'GUEST-UP' not in guests.console(server)
    counted = guests.ticks(server)
    assert counted[0] in (still + 1, still + 2) and counted == list(range(counted[0], counted[-1] + 1))


def test_consoles_are_carried_out_of_the_machines(guests: RealGuests) -> None:
    """Proxies have a machine of their own: what they listen on answers here, and the guests answer them."""
    server = guests.boot('gpu2', guests.flavor('console', ram=128))
    heard = b''
    with opened(address(guests.site, server, 'serial', 'serial')) as client:
        for message in said(client):
            assert isinstance(message, bytes)
            heard += message
            if b'GUEST-TICK' in heard:
                break
    with opened(address(guests.site, server, 'vnc', 'novnc')) as client:
        screen = Rfb(client)
        assert screen.width > 0 and screen.pixels()


def test_a_crash_dump_is_an_nmi(guests: RealGuests) -> None:
    """The guest's kernel panics, and its command line says that it boots again then."""
    server = guests.boot('gpu2', guests.flavor('small'))
    guests.site.act(server, 'trigger_crash_dump')
    guests.say(server, 'Kernel panic - not syncing: NMI')
    guests.boots(server, 2)
    guests.ends(server, 'ACTIVE')


def test_rebuild_gives_a_new_disk(guests: RealGuests) -> None:
    """From the same image, and from another that starts by its own kernel; a running and a stopped server."""
    server = guests.boot('gpu1', guests.flavor('small'), metadata={'a': 'b'})
    mark = guests.mark(server)
    guests.act(server, 'ACTIVE', 'rebuild', {'imageRef': guests.image('guest')})
    guests.until(lambda: 'GUEST-READY' in guests.console(server) and guests.mark(server) != mark, 'a new disk')
    assert fact(guests.console(server), 'BOOTS') == '1'
    second = guests.mark(server)
    guests.act(server, 'SHUTOFF', 'os-stop')
    guests.act(server, 'SHUTOFF', 'rebuild', {'imageRef': guests.image('guest-direct')})
    guests.act(server, 'ACTIVE', 'os-start')
    guests.until(lambda: 'direct=1' in guests.console(server) and guests.mark(server) != second, 'the other image')
    assert fact(guests.console(server), 'BOOTS') == '1' and guests.host(server) == 'gpu1'


def test_rescued_and_its_own_again(guests: RealGuests) -> None:
    """The rescue system, which the server's image gives, sees the server's disk beside its own, with the mark in it."""
    server = guests.boot('gpu1', guests.flavor('small'))
    mark = guests.mark(server)
    guests.act(server, 'RESCUE', 'rescue')
    guests.say(server, 'GUEST-HAS vdb')
    said = guests.say(server, 'GUEST-READY')
    assert fact(said, 'HAS vdb') == f'{mark} 1'
    assert fact(said, 'BOOTS') == '1' and fact(said, 'MARK') != mark
    guests.act(server, 'ACTIVE', 'unrescue')
    said = guests.boots(server, 2)
    assert fact(said, 'MARK') == mark and 'GUEST-HAS' not in said and 'GUEST-DISK vdb' not in guests.console(server)


def test_shelved_and_back_on_the_other_machine(guests: RealGuests) -> None:
    """Nothing of it is on a host meanwhile; its disk comes back with what the guest wrote."""
    server = guests.boot('gpu1', guests.flavor('small'))
    mark = guests.mark(server)
    guests.act(server, 'SHELVED_OFFLOADED', 'shelve')
    assert sum(map(guests.emulators, HOSTS)) == 0
    assert guests.site.directories('gpu1') == guests.site.directories('gpu2') == []
    guests.site.audit()
    guests.unshelve(server, 'gpu2')
    guests.ends(server, 'ACTIVE')
    assert guests.host(server) == 'gpu2'
    assert fact(guests.boots(server, 2), 'MARK') == mark


# -- machines, libvirtds and computes that end -------------------------------------------------------------------------
def test_guests_outlive_libvirtd_and_compute(guests: RealGuests) -> None:
    """Both are killed; the guest counts on, and is theirs again when they are back."""
    server = guests.boot('gpu2', guests.flavor('small'))
    guests.site.kill('compute-gpu2')
    guests.site.kill('libvirtd-gpu2')
    guests.site.start('libvirtd-gpu2')
    guests.site.start('compute-gpu2')
    guests.ticks_beyond(server, guests.tick(server))
    assert guests.console(server).count('GUEST-BOOTS') == 1
    guests.act(server, 'ACTIVE', 'reboot', {'type': 'HARD'})
    guests.boots(server, 2)


def test_two_machines_restart(guests: RealGuests) -> None:
    """A power cut of both: servers are as before, those that were off stay off."""
    flavor = guests.flavor('small')
    running = {host: guests.start_boot(host, flavor) for host in HOSTS}
    stopped = guests.boot('gpu1', flavor, 'guest-direct')
    for server in running.values():
        guests.ends(server, 'ACTIVE')
        guests.say(server, 'GUEST-READY')
    guests.act(stopped, 'SHUTOFF', 'os-stop')
    marks = {server: guests.mark(server) for server in running.values()}
    for host in HOSTS:
        guests.site.kill(f'machine-{host}')
    guests.until(lambda: all(guests.machine(host).pid() is None for host in HOSTS), 'both machines off')
    for host in HOSTS:
        guests.site.start(f'machine-{host}')
    for host, server in running.items():
        assert fact(guests.boots(server, 2), 'MARK') == marks[server]
        guests.ends(server, 'ACTIVE')
        assert guests.host(server) == host
    guests.ends(stopped, 'SHUTOFF')
    assert (guests.emulators('gpu1'), guests.emulators('gpu2')) == (1, 1)
    guests.act(stopped, 'ACTIVE', 'os-start')
    guests.boots(stopped, 2)

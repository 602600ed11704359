"""Servers that are real QEMU guests on two machines with a libvirtd each (``make test-qemu``): what they were given and
what became of them, in their own words."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.browser import Browser, text
from tests.integration.real_guests import FULL, HOSTS, RealGuests, fact
from tests.integration.site import SETTLED_WITHIN
from tests.integration.test_remote_consoles import address, opened, said

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason='machines of namespaces, libvirtd and QEMU need root')


def test_the_hosts_are_two_machines(guests: RealGuests) -> None:
    """Nothing is shared: not ids, addresses, disks, processes; each has its libvirtd, and they reach each other."""
    seen = {
        host: [
            guests.machine(host).run('cat', path).strip()
            for path in ('/etc/machine-id', '/proc/sys/kernel/random/boot_id')
        ]
        for host in HOSTS
    }
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
            address.startswith(('0.0.0.0', '[::]', '*')) for address in listening
        )


def test_guests_have_what_was_asked_for(guests: RealGuests) -> None:
    """From their own boot loader, and from kernel_id, ramdisk_id and os_command_line. A config drive is what its host
    makes, and says where the disk with a tag is."""
    flavor = guests.flavor('large', vcpus=2, ram=160, disk=2)
    wanted = {
        'config_drive': True,
        'metadata': {'purpose': 'witness'},
        'user_data': base64.b64encode(b'#!/bin/echo from the user\n').decode(),
    }
    before = [guests.emulators(host) for host in HOSTS]
    root = {'source_type': 'image', 'destination_type': 'local', 'boot_index': 0, 'tag': 'system'}
    servers = {
        image: guests.start_boot(
            host, flavor, image, block_device_mapping_v2=[{**root, 'uuid': guests.image(image)}], **wanted
        )
        for host, image in zip(HOSTS, ('guest', 'guest-direct'), strict=True)
    }
    for image, server in servers.items():
        guests.ends(server, 'ACTIVE')
        said = guests.say(server, 'GUEST-READY')
        assert fact(said, 'CPUS') == '2'
        assert 110 << 10 < int(fact(said, 'MEM').split()[0]) < 160 << 10
        assert f'GUEST-DISK vda sectors={2 << 21}\n' in said
        assert server in fact(said, 'DMI')
        drive, _, found = fact(said, 'CONFIGDRIVE').partition(': ')
        assert drive == ('sr0 iso9660' if image == 'guest' else 'vdb vfat')
        assert 'openstack/latest/meta_data.json' in found
        metadata = json.loads(fact(said, 'METADATA'))
        assert (metadata['uuid'], metadata['meta']) == (server, {'purpose': 'witness'})
        (disk,) = metadata['devices']
        assert (disk['bus'], disk['path'], disk['tags']) == ('pci', '/dev/vda', ['system'])
        # The first of its disks on the PCI bus.
        assert disk['address'] == re.findall(r'GUEST-PCI (\S+) \S+ class 0x010000', said)[0]
        assert fact(said, 'USERDATA') == '#!/bin/echo from the user'
        assert ('direct=1' in fact(said, 'UP kernel=\\S+')) == (image == 'guest-direct')
        assert 'GUEST-TROUBLE' not in said
    assert [guests.emulators(host) for host in HOSTS] == [count + 1 for count in before]


def test_power(guests: RealGuests) -> None:
    """Stop, start, soft and hard reboot: the disk counts the boots, the power button is heard where it is pressed."""
    one = guests.take()
    guests.act(one.server, 'SHUTOFF', 'os-stop')
    assert sum(map(guests.emulators, HOSTS)) == 0
    assert 'GUEST-POWERBUTTON' in guests.console(one.server)
    guests.act(one.server, 'ACTIVE', 'os-start')
    guests.booted(one)
    guests.act(one.server, 'ACTIVE', 'reboot', {'type': 'SOFT'})
    guests.booted(one)
    guests.act(one.server, 'ACTIVE', 'reboot', {'type': 'HARD'})
    guests.booted(one)


def test_resize_and_cold_migrate_between_the_machines(guests: RealGuests) -> None:
    """The disk goes along with what the guest wrote; revert gives it back as it was when it went."""
    one = guests.take()
    source, other = guests.host(one.server), guests.other(one.server)
    larger = {'flavorRef': guests.flavor('large', vcpus=2, ram=160, disk=2)}
    guests.act(one.server, 'VERIFY_RESIZE', 'resize', larger)
    assert guests.host(one.server) == other
    guests.booted(one)
    said = guests.console(one.server)
    assert fact(said, 'CPUS') == '2' and f'GUEST-DISK vda sectors={2 << 21}\n' in said
    guests.act(one.server, 'ACTIVE', 'revertResize')
    assert guests.host(one.server) == source
    one.boots -= 1
    guests.booted(one)
    assert fact(guests.console(one.server), 'CPUS') == '1'
    guests.site.audit()
    guests.act(one.server, 'VERIFY_RESIZE', 'migrate')
    guests.booted(one)
    guests.act(one.server, 'ACTIVE', 'confirmResize')
    assert guests.host(one.server) == other
    assert guests.site.directories(source) == [] and guests.site.directories(other) == [one.server]
    assert (guests.emulators(source), guests.emulators(other)) == (0, 1)


def test_a_snapshot_and_a_backup_boot_where_their_guest_left_off(guests: RealGuests) -> None:
    """On both machines, beside the guest that they were made of. Of three backups the older one goes."""
    one = guests.take()
    begun = guests.console(one.server).count('GUEST-UP')
    guests.act(one.server, 'ACTIVE', 'createImage', {'name': 'left-off'})
    for name in ('first', 'second', 'third'):
        guests.act(one.server, 'ACTIVE', 'createBackup', {'name': name, 'backup_type': 'daily', 'rotation': 2})
    # What is too old goes by an operation of its own, soon after the backup has ended.
    guests.until(lambda: not guests.images_named('first'), 'the oldest backup is gone')
    assert [len(guests.images_named(name)) for name in ('left-off', 'first', 'second', 'third')] == [1, 0, 1, 1]
    copies = [
        guests.start_boot(host, guests.flavor('small'), imageRef=guests.images_named(name)[0])
        for host, name in (('gpu2', 'left-off'), ('gpu1', 'third'))
    ]
    for copy in copies:
        guests.ends(copy, 'ACTIVE')
        assert fact(guests.boots(copy, one.boots + 1), 'MARK') == one.mark
    # Its own counts on.
    guests.ticks_beyond(one.server, guests.tick(one.server))
    assert guests.console(one.server).count('GUEST-UP') == begun


def test_a_guest_counts_on_after_a_live_migration(guests: RealGuests) -> None:
    """On the other machine, with no boot between; its disk came along, as its next boot says."""
    one = guests.take(serial=False)
    source, other = guests.host(one.server), guests.other(one.server)
    before = guests.ticks_beyond(one.server, 2)
    guests.migrate_live(one.server, other)
    guests.ends(one.server, 'ACTIVE')
    assert guests.host(one.server) == other and (guests.emulators(source), guests.emulators(other)) == (0, 1)
    guests.ticks_beyond(one.server, before + 2)
    assert 'GUEST-UP' not in guests.console(one.server)
    counted = guests.ticks(one.server)
    assert counted[0] > before and counted == list(range(counted[0], counted[-1] + 1))
    assert guests.site.directories(source) == [] and guests.site.directories(other) == [one.server]
    guests.act(one.server, 'ACTIVE', 'reboot', {'type': 'HARD'})
    guests.booted(one)


# -- operations beside those of power and place -----------------------------------------------------------------------
def test_a_paused_guest_stands_still(guests: RealGuests) -> None:
    """And goes on at the same count; so does one that was suspended, whose memory was on the disk meanwhile."""
    one = guests.take()
    server = one.server
    guests.ticks_beyond(server, 2)
    guests.act(server, 'PAUSED', 'pause')
    still = guests.tick(server)
    time.sleep(3)
    assert guests.tick(server) == still and sum(map(guests.emulators, HOSTS)) == 1
    guests.act(server, 'ACTIVE', 'unpause')
    guests.ticks_beyond(server, still)
    guests.act(server, 'SUSPENDED', 'suspend')
    assert sum(map(guests.emulators, HOSTS)) == 0
    still = guests.tick(server)
    guests.site.audit()
    guests.act(server, 'ACTIVE', 'resume')
    guests.ticks_beyond(server, still + 2)
    # Its console begins anew with the process, and is no boot's; a line may have been cut in two by the end.
    assert 'GUEST-UP' not in guests.console(server)
    counted = guests.ticks(server)
    assert counted[0] in (still + 1, still + 2) and counted == list(range(counted[0], counted[-1] + 1))


def test_consoles_are_carried_out_of_the_machines(guests: RealGuests, tmp_path: Path) -> None:
    """Proxies have a machine of their own: what they listen on answers here, and the guests answer them. A browser
    shows the guest's own words at the address that the openstack command gives."""
    one, site = guests.take(serial=True), guests.site
    heard = b''
    with opened(address(site, one.server, 'serial', 'serial')) as client:
        for message in said(client):
            assert isinstance(message, bytes)
            heard += message
            if b'GUEST-TICK' in heard:
                break
    environment = {'OS_CLIENT_CONFIG_FILE': str(site.layout.clouds), 'HOME': str(tmp_path), 'PATH': os.environ['PATH']}
    url = subprocess.run(
        [
            site.layout.bin('openstack'),
            '--os-cloud',
            'kilonova-admin',
            'console',
            'url',
            'show',
            '--novnc',
            one.server,
            '-f',
            'value',
            '-c',
            'url',
        ],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    ).stdout
    lines: list[str] = []
    with Browser(tmp_path) as browser:
        browser.open(url.strip())

        def shows() -> bool:
            picture = browser.picture('canvas')
            if picture is not None:
                (tmp_path / 'screen.png').write_bytes(picture.png)
                lines[:] = text(picture)
            return f'GUEST-MARK {one.mark}' in lines and 'GUEST-READY' in lines

        try:
            guests.until(shows, "the guest's words on the screen")
        except AssertionError as error:
            raise AssertionError('\n'.join([str(error), *lines])) from None


def test_a_crash_dump_is_an_nmi(guests: RealGuests) -> None:
    """The guest's kernel panics, and its command line says that it boots again then."""
    one = guests.take()
    guests.site.act(one.server, 'trigger_crash_dump')
    guests.say(one.server, 'Kernel panic - not syncing: NMI')
    guests.booted(one)
    guests.ends(one.server, 'ACTIVE')


def test_rebuild_gives_a_new_disk(guests: RealGuests) -> None:
    """From another image that starts by its own kernel, and of a stopped server from the first one."""
    one = guests.take()
    host = guests.host(one.server)
    guests.act(one.server, 'ACTIVE', 'rebuild', {'imageRef': guests.image('guest-direct')})
    assert 'direct=1' in guests.renewed(one) and one.boots == 1
    guests.act(one.server, 'SHUTOFF', 'os-stop')
    guests.act(one.server, 'SHUTOFF', 'rebuild', {'imageRef': guests.image('guest')})
    guests.act(one.server, 'ACTIVE', 'os-start')
    assert 'direct=1' not in guests.renewed(one) and one.boots == 1 and guests.host(one.server) == host


def test_rescued_and_its_own_again(guests: RealGuests) -> None:
    """The rescue system, which the server's image gives, sees the server's disk beside its own, with the mark in it."""
    one = guests.take()
    guests.act(one.server, 'RESCUE', 'rescue')
    guests.say(one.server, 'GUEST-HAS vdb')
    said = guests.say(one.server, 'GUEST-READY')
    assert fact(said, 'HAS vdb') == f'{one.mark} {one.boots}'
    assert fact(said, 'BOOTS') == '1' and fact(said, 'MARK') != one.mark
    guests.act(one.server, 'ACTIVE', 'unrescue')
    said = guests.booted(one)
    assert 'GUEST-HAS' not in said and 'GUEST-DISK vdb' not in guests.console(one.server)


def test_shelved_and_back_on_the_other_machine(guests: RealGuests) -> None:
    """Nothing of it is on a host meanwhile; its disk comes back with what the guest wrote."""
    one = guests.take()
    other = guests.other(one.server)
    guests.act(one.server, 'SHELVED_OFFLOADED', 'shelve')
    assert sum(map(guests.emulators, HOSTS)) == 0
    assert guests.site.directories('gpu1') == guests.site.directories('gpu2') == []
    guests.site.audit()
    guests.unshelve(one.server, other)
    guests.ends(one.server, 'ACTIVE')
    assert guests.host(one.server) == other
    guests.booted(one)


# -- machines, libvirtds and computes that end -------------------------------------------------------------------------
def test_guests_outlive_libvirtd_and_compute(guests: RealGuests) -> None:
    """Both are killed; the guest counts on, and is theirs again when they are back."""
    one = guests.take()
    host, begun = guests.host(one.server), guests.console(one.server).count('GUEST-UP')
    guests.site.kill(f'compute-{host}')
    guests.site.kill(f'libvirtd-{host}')
    guests.site.start(f'libvirtd-{host}')
    guests.site.start(f'compute-{host}')
    guests.ticks_beyond(one.server, guests.tick(one.server))
    assert guests.console(one.server).count('GUEST-UP') == begun
    guests.act(one.server, 'ACTIVE', 'reboot', {'type': 'HARD'})
    guests.booted(one)


def standing(guests: RealGuests) -> tuple[object, ...]:
    """What servers there are, where and in which state; the guests of each machine."""
    keys = ('status', 'OS-EXT-STS:task_state', 'OS-EXT-STS:power_state', 'OS-EXT-SRV-ATTR:host')
    return (
        {server: [row[key] for key in keys] for server, row in guests.site.servers().items()},
        [guests.emulators(host) for host in HOSTS],
    )


def test_two_machines_restart(guests: RealGuests) -> None:
    """A power cut of both: servers are as before within a minute of the hosts' return, those that were off stay off."""
    one = guests.take()
    flavor, other = guests.flavor('small'), guests.other(one.server)
    more = [guests.start_boot(host, flavor) for host in (HOSTS * 9 if FULL else ()) + (other,)]
    stopped = guests.boot(other, flavor, 'guest-direct')
    for server in more:
        guests.ends(server, 'ACTIVE')
        guests.say(server, 'GUEST-READY')
    guests.act(stopped, 'SHUTOFF', 'os-stop')
    marks = {server: guests.mark(server) for server in more}
    before = standing(guests)
    guests.cut_power(*HOSTS)
    guests.site.up()
    deadline = time.monotonic() + SETTLED_WITHIN
    while (now := standing(guests)) != before:
        assert time.monotonic() < deadline, (before, now)
        time.sleep(0.5)
    guests.booted(one)
    for server in more:
        assert fact(guests.boots(server, 2), 'MARK') == marks[server]
    guests.act(stopped, 'ACTIVE', 'os-start')
    guests.boots(stopped, 2)

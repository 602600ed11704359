"""Resize, revert and confirm between two machines, with real ssh, rsync and qemu-img.

The machines share nothing but the network, or their storage as well.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.machines import Machines
from tests.integration.site import Site
from tools.cloud import demo

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason='machines of namespaces need root')
# What the guest wrote: enough for several seconds at SLOW MiB a second.
MARKED, SLOW = 28, 4


@pytest.fixture(scope='module')
def machines(running_site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    running_site.configure('')
    running_site.up()
    try:
        with Machines(running_site, tmp_path_factory.mktemp('machines')) as made:
            for host in ('gpu1', 'gpu2'):
                made.start(host, bandwidth=SLOW)
            running_site.clean()
            yield made
    finally:
        running_site.up()


@pytest.fixture
def site(running_site: Site, machines: Machines) -> Site:
    for host in ('gpu1', 'gpu2'):
        machines.restore(host, bandwidth=SLOW)
    running_site.clean()
    return running_site


def qemu_io(site: Site, host: str, server: str, command: str, size: int = MARKED) -> str:
    path = site.layout.instances(host) / server / 'disk'
    return subprocess.run(
        ['qemu-io', '-f', 'qcow2', '-c', f'{command} -P 0x5a 8M {size}M', str(path)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def boot(site: Site, size: int = MARKED) -> str:
    """A server on gpu1 with a GPU and a marker in its disk."""
    (server,) = site.boot(1, site.flavor('machine-one', gpus=1), user='admin', host='gpu1')
    qemu_io(site, 'gpu1', server, 'write', size)
    return server


def resize(site: Site, server: str) -> None:
    site.act(server, 'resize', {'flavorRef': site.flavor('machine-two', gpus=2, vcpus=2, ram=1024, disk=2)})


def host_of(site: Site, server: str) -> str:
    return site.servers()[server]['OS-EXT-SRV-ATTR:host']


def marked(site: Site, server: str) -> bool:
    """The marker is in the disk, on the host where the server is, and its GPUs in the guest."""
    host = host_of(site, server)
    owned = sorted(row['address'] for row in site.devices() if row['instance_uuid'] == server and row['host'] == host)
    assert sorted(site.hostdevs(host, server)) == owned
    return 'verification failed' not in qemu_io(site, host, server, 'read')


def left(site: Site, host: str) -> list[str]:
    """What a host has of servers."""
    parts = [path.name for path in (site.layout.instances(host) / '_base').glob('*-*-*-*-*')]
    return site.directories(host) + parts


def test_there_and_back_again(site: Site, machines: Machines) -> None:
    """A server is resized to the other machine and reverted, then resized again and confirmed. The marker that was
    written to its disk is still there."""
    server = boot(site)
    before = site.hostdevs('gpu1', server)
    resize(site, server)
    site.await_status([server], 'VERIFY_RESIZE')
    assert host_of(site, server) == 'gpu2' and marked(site, server)
    assert len(site.hostdevs('gpu2', server)) == 2
    assert left(site, 'gpu1') == [f'{server}_resize'] and left(site, 'gpu2') == [server]
    site.audit()
    site.act(server, 'revertResize')
    site.await_status([server], 'ACTIVE')
    assert host_of(site, server) == 'gpu1' and marked(site, server) and site.hostdevs('gpu1', server) == before
    assert left(site, 'gpu1') == [server] and left(site, 'gpu2') == []
    resize(site, server)
    site.await_status([server], 'VERIFY_RESIZE')
    site.act(server, 'confirmResize')
    site.await_status([server], 'ACTIVE')
    assert host_of(site, server) == 'gpu2' and marked(site, server)
    assert left(site, 'gpu1') == [] and left(site, 'gpu2') == [server]
    site.audit()


def test_progress_is_in_the_record_of_the_migration(site: Site, machines: Machines) -> None:
    """What the conductor's database has of it, while the disk is on its way and afterwards."""
    # Longer on its way than four notes are apart, wherever a look takes long.
    server = boot(site, 3 * MARKED)
    resize(site, server)
    began = time.monotonic()
    seen: list[tuple[int, int]] = []
    looks: list[tuple[float, int, int]] = []

    def look() -> bool:
        row = site.last_migration(server)
        if row.get('disk_total'):
            seen.append((row['disk_processed'], row['disk_total']))
            looks.append((round(time.monotonic() - began, 1), *seen[-1]))
        return site.servers()[server]['status'] == 'VERIFY_RESIZE'

    wait_for(look)
    assert any(0 < done < total and total >= 3 * MARKED << 20 for done, total in seen), looks
    assert seen == sorted(seen)


def test_machines_that_cannot_reach_each_other(site: Site, machines: Machines) -> None:
    """Found out before the guest stops; the fault says which two."""
    server = boot(site)
    guest = site.layout.instances('gpu1') / server / 'libvirt.xml'
    was = guest.stat().st_mtime_ns
    machines.stop_ssh('gpu2')
    try:
        resize(site, server)
        shown = site.settle([server])[server]
    finally:
        machines.start_ssh('gpu2')
    assert (shown['status'], shown['OS-EXT-SRV-ATTR:host']) == ('ACTIVE', 'gpu1')
    assert guest.stat().st_mtime_ns == was
    said = site.last_message(server)
    assert 'from gpu1 to gpu2: ssh 10.77.0.2 failed' in said and 'Connection refused' in said
    assert left(site, 'gpu2') == [] and marked(site, server)
    site.audit()


def carrying(site: Site, server: str) -> None:
    """Returns when the disk is on its way."""
    wait_for(
        lambda: any(
            path.stat().st_blocks > 8 << 11
            for path in (site.layout.instances('gpu2') / f'{server}_incoming').glob('disk')
        )
    )


def wait_for(look: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_cut_in_the_middle(site: Site, machines: Machines) -> None:
    """The transport is killed: what came stays, the rest follows."""
    server = boot(site)
    resize(site, server)
    carrying(site, server)
    machines.cut_ssh('gpu1')
    site.await_status([server], 'VERIFY_RESIZE')
    assert 'trying again in' in site.log('compute-gpu1')
    assert marked(site, server) and left(site, 'gpu2') == [server]
    site.act(server, 'confirmResize')
    site.await_status([server], 'ACTIVE')
    site.audit()


@pytest.mark.parametrize('host', ['gpu1', 'gpu2'])
def test_a_compute_is_killed_in_the_middle(site: Site, machines: Machines, host: str) -> None:
    """It ends within a minute of the restart, with or without the move, and nothing is left."""
    server = boot(site)
    resize(site, server)
    carrying(site, server)
    machines.kill(host)
    machines.start(host, bandwidth=0)
    shown = site.settle([server])[server]
    assert shown['status'] in ('VERIFY_RESIZE', 'ACTIVE'), site.tell({server: shown})
    assert marked(site, server)
    site.audit()
    if shown['status'] == 'VERIFY_RESIZE':
        site.act(server, 'confirmResize')
        site.await_status([server], 'ACTIVE')
    here = host_of(site, server)
    assert left(site, here) == [server] and left(site, 'gpu1' if here == 'gpu2' else 'gpu2') == []


def test_by_rsync(site: Site, machines: Machines) -> None:
    machines.kill('gpu1')
    machines.start('gpu1', transport='rsync')
    server = boot(site)
    resize(site, server)
    site.await_status([server], 'VERIFY_RESIZE')
    assert host_of(site, server) == 'gpu2' and marked(site, server)
    site.act(server, 'revertResize')
    site.await_status([server], 'ACTIVE')
    assert marked(site, server) and left(site, 'gpu2') == []
    site.audit()


# -- one storage -------------------------------------------------------------------------------------------------------
@pytest.fixture
def storage(site: Site, machines: Machines) -> Iterator[Path]:
    """Both computes have their servers there."""

    def use(**settings: object) -> None:
        for host in ('gpu1', 'gpu2'):
            machines.kill(host)
            machines.start(host, **settings)

    use(shared=True)
    yield machines.storage
    site.clean()
    use(bandwidth=SLOW)


def of(storage: Path, server: str) -> list[str]:
    """The server's directories."""
    return sorted(path.name.removeprefix(server) for path in storage.iterdir() if path.name.startswith(server))


def holds(storage: Path, server: str, pattern: int = 0x5A) -> bool:
    done = subprocess.run(
        ['qemu-io', '-f', 'qcow2', '-c', f'read -P {pattern} 8M 1M', str(storage / server / 'disk')],
        check=True,
        capture_output=True,
        text=True,
    )
    return 'verification failed' not in done.stdout


def written(storage: Path, server: str, pattern: int = 0x5A) -> None:
    """By its guest."""
    done = subprocess.run(
        ['qemu-io', '-f', 'qcow2', '-c', f'write -P {pattern} 8M 1M', str(storage / server / 'disk')],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout, done.stderr, of(storage, server))


def test_one_storage(site: Site, machines: Machines, storage: Path) -> None:
    """Nothing is copied there and back again; revert gives the disk as it was, confirm keeps what the guest wrote; a
    source that dies before or after its part, and deletes at both ends."""
    machines.stop_ssh('gpu2')
    try:
        small, big = site.flavor('machine-one', gpus=1), site.flavor('machine-two', gpus=2, vcpus=2, ram=1024, disk=2)
        server, other = site.boot(2, small, user='admin', host='gpu1')
        written(storage, server)
        inode = (storage / server / 'disk').stat().st_ino

        def there() -> None:
            resize(site, server)
            site.await_status([server], 'VERIFY_RESIZE')
            assert host_of(site, server) == 'gpu2' and of(storage, server) == ['', '_resize']
            assert holds(storage, server) and (storage / f'{server}_resize' / 'disk').stat().st_ino == inode
            devices = demo.read_guest((storage / server / 'libvirt.xml').read_text()).devices
            assert sorted(devices) == sorted(
                row['address'] for row in site.devices() if row['instance_uuid'] == server and row['host'] == 'gpu2'
            )
            assert len(devices) == 2
            written(storage, server, 0x77)
            site.audit()

        # 1. Revert.
        there()
        site.act(server, 'revertResize')
        site.await_status([server], 'ACTIVE')
        assert host_of(site, server) == 'gpu1' and of(storage, server) == [''] and holds(storage, server)
        assert (storage / server / 'disk').stat().st_ino == inode
        # 2. Confirm, while the source is dead: its part is pending.
        there()
        machines.kill('gpu1')
        site.call('PUT', f'/os-services/{service(site, "gpu1")}', {'forced_down': True}, user='admin')
        site.act(server, 'confirmResize')
        site.await_status([server], 'ACTIVE')
        assert of(storage, server) == ['', '_resize'] and holds(storage, server, 0x77)
        site.call('PUT', f'/os-services/{service(site, "gpu1")}', {'forced_down': False}, user='admin')
        machines.start('gpu1', shared=True)
        wait_for(lambda: of(storage, server) == [''])
        assert holds(storage, server, 0x77)
        # 3. The source is killed at an order: with or without the move, the server is whole.
        site.act(other, 'resize', {'flavorRef': big})
        wait_for(lambda: of(storage, other) != [''] or site.servers()[other]['status'] != 'RESIZE')
        machines.kill('gpu1')
        machines.start('gpu1', shared=True)
        shown = site.settle([other])[other]
        assert shown['status'] in ('VERIFY_RESIZE', 'ACTIVE'), site.tell({other: shown})
        written(storage, other)
        site.audit()
        # 4. Deletes.
        site.clean()
        assert of(storage, server) == of(storage, other) == []
        site.assert_nothing_held()
    finally:
        machines.start_ssh('gpu2')


def service(site: Site, host: str) -> str:
    rows = site.call('GET', f'/os-services?host={host}&binary=nova-compute', user='admin')['services']
    identifier: str = rows[0]['id']
    return identifier


def test_they_are_two_machines(machines: Machines, site: Site) -> None:
    """Nothing is shared: not the disks, not the address, not the processes."""
    for host, other in (('gpu1', 'gpu2'), ('gpu2', 'gpu1')):
        assert machines.run(host, 'ls', '-A', str(site.layout.host(other).parent)).split() == [host]
        assert machines.run(host, 'cat', '/etc/machine-id') != machines.run(other, 'cat', '/etc/machine-id')
        assert machines.run(host, 'hostname').strip() == host
        assert machines.run(host, 'pgrep', '-f', 'tools.cloud.machine').split() == ['1']
        # By ssh nothing of the real root's home is run, which may wait for a lock or print a word of its own.
        assert machines.run(other, 'ssh', machines.address(host), 'echo $0 $HOME').split() == ['sh', '/run/root']

"""Disks on their way to another machine, with a stand-in for ssh and its server (see RemoteRig): what goes, what goes
on after a cut, what is left. The real commands between two machines: tests/integration/test_two_machines.py."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from kilonova import errors
from kilonova.states import PowerState
from kilonova.virt.libvirt.storage import ssh
from kilonova.virt.libvirt.storage.move import DiskMover
from tests.unit.virt.builders import GPU, GPU2, devices, has_marker, image_meta, new_flavor, new_instance

BLOCK = 1 << 20
CTXT = None


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, 'BLOCK', BLOCK)
    monkeypatch.setattr(ssh, 'PIECE', BLOCK >> 2)


def spawn(rig: Any, **values: Any) -> Any:
    instance = new_instance(**values)
    rig.here.guests.spawn(instance, image_meta(), pci_devices=devices(GPU))
    rig.write('gpu1', instance.uuid)
    return instance


def carry(rig: Any, instance: Any, **kwargs: Any) -> dict[str, Any]:
    offer = rig.there.moves.prepare_move()
    return rig.here.moves.migrate_disk_and_power_off(instance, offer, new_flavor(root_gb=2), **kwargs)


def files_of(rig: Any, host: str) -> list[str]:
    root = rig.file(host)
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob('*')
        if path.is_file() and not path.name.startswith('.') and 'locks' not in path.parts
    )


def contents(rig: Any, host: str, uuid: str, name: str) -> dict[int, bytes]:
    """What a guest would read of a disk, as ``blocks``."""
    raw = rig.path / f'raw-{host}'
    path = rig.file(host, uuid, name)
    subprocess.run(['qemu-img', 'convert', '-f', 'qcow2', '-O', 'raw', str(path), str(raw)], check=True)
    return blocks(raw)


def blocks(path: Path) -> dict[int, bytes]:
    """{offset: bytes} of a file, without blocks of zeros; holes are not read."""
    found, at = {}, 0
    with path.open('rb') as file:
        while True:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA) // BLOCK * BLOCK
            except OSError:
                # No data behind this offset.
                return found
            file.seek(at)
            block = file.read(BLOCK)
            if block.strip(b'\0'):
                found[at] = block
            at += BLOCK


@pytest.mark.parametrize('kind', ['ssh', 'rsync'])
def test_disks_get_there_with_their_holes(remote_rig: Any, kind: str) -> None:
    rig = remote_rig
    rig.here = rig.driver('gpu1', libvirt={'remote_filesystem_transport': kind, 'images_type': 'raw'})
    instance = new_instance(flavor=new_flavor(root_gb=1))
    rig.here.guests.spawn(instance, image_meta())
    disk = rig.file('gpu1', instance.uuid, 'disk')
    with disk.open('r+b') as stream:
        for place in (3 * BLOCK + 17, 900 * BLOCK):
            stream.seek(place)
            stream.write(b'what the guest wrote')
    was = blocks(disk)
    carry(rig, instance)
    arrived = rig.file('gpu2', instance.uuid, 'disk')
    assert blocks(arrived) == was and len(was) == 2 and arrived.stat().st_size == 1 << 30
    assert arrived.stat().st_blocks * 512 < 8 * BLOCK
    assert arrived.stat().st_mode & 0o777 == 0o600
    assert len(rig.log('dd of=')) == (0 if kind == 'rsync' else 3)  # two of the disk, disk.info
    assert bool(rig.log('rsync --server')) is (kind == 'rsync')


def test_what_was_cut_goes_on_behind_the_last_whole_block(remote_rig: Any) -> None:
    rig = remote_rig
    source, target = rig.path / 'source', rig.path / 'target'
    source.write_bytes(os.urandom(5 * BLOCK + 100))
    place = ssh.Remote(rig.there.moves.prepare_move(), 'server', 'gpu1', ssh.FileTransport())
    sent = []
    rig.cut(BLOCK // 2)
    place._send(str(source), str(target), sent.append)
    assert target.read_bytes() == source.read_bytes()
    assert [line.rpartition(' ')[2] for line in rig.log('dd of=')] == [str(n * BLOCK) for n in (0, 0, 1, 2, 3, 4, 5)]
    assert sum(sent) == source.stat().st_size
    # A third of it is there: blocks that are whole stay.
    with target.open('r+b') as stream:
        stream.truncate(2 * BLOCK + 5)
    (rig.bin / 'log').unlink()
    place._send(str(source), str(target), sent.append)
    assert target.read_bytes() == source.read_bytes()
    assert [line.rpartition(' ')[2] for line in rig.log('dd of=')] == [str(n * BLOCK) for n in (2, 3, 4, 5)]


@pytest.mark.parametrize('kind', ['ssh', 'rsync'])
def test_a_base_is_carried_once_and_compared(remote_rig: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = remote_rig
    rig.here = rig.driver('gpu1', libvirt={'remote_filesystem_transport': kind})
    first, second, third = spawn(rig), spawn(rig, id=2), spawn(rig, id=3)
    base = next(name for name in files_of(rig, 'gpu1') if name.startswith('_base/'))
    carry(rig, first)
    assert rig.file('gpu2', base).read_bytes() == rig.file('gpu1', base).read_bytes()
    assert len(rig.log('sha256sum')) == 1 and has_marker(rig.file('gpu2', first.uuid, 'disk'))
    carry(rig, second)
    assert len(rig.log('sha256sum')) == 1
    # It comes with other content: not taken, and the guest is where it was.
    rig.file('gpu2', base).unlink()
    monkeypatch.setattr(ssh, '_sum', lambda *args: 'another')
    with pytest.raises(errors.ResizeError, match='arrived with a different checksum'):
        carry(rig, third)
    assert not [name for name in files_of(rig, 'gpu2') if name.startswith('_base/')]


def test_a_base_that_can_be_fetched_is_not_carried(remote_rig: Any) -> None:
    rig = remote_rig
    instance = spawn(rig)
    rig.there.disks.fetch_base(instance, image_meta())
    carry(rig, instance)
    assert rig.images.fetched == 2 and rig.log('sha256sum') == []
    assert has_marker(rig.file('gpu2', instance.uuid, 'disk'))


@pytest.mark.parametrize('remote', [True, False])
def test_ephemeral_disks_keep_what_was_on_them(request: pytest.FixtureRequest, remote: bool) -> None:
    """Each host formats the empty disk for itself, with another identity: an overlay of one doesn't fit the other's."""
    rig = request.getfixturevalue('remote_rig' if remote else 'libvirt_rig')
    instance = new_instance(flavor=new_flavor(root_gb=1, ephemeral_gb=1))
    rig.here.guests.spawn(instance, image_meta())
    other = new_instance(id=2, flavor=new_flavor(root_gb=1, ephemeral_gb=1))
    rig.there.guests.spawn(other, image_meta())
    was = contents(rig, 'gpu1', instance.uuid, 'disk.eph0')
    assert was != contents(rig, 'gpu2', other.uuid, 'disk.eph0')
    offer = rig.there.moves.prepare_move()
    rig.here.moves.migrate_disk_and_power_off(instance, offer, new_flavor(root_gb=2, ephemeral_gb=1))
    assert contents(rig, 'gpu2', instance.uuid, 'disk.eph0') == was


def test_progress_counts_what_there_is_and_ends_the_carrying(remote_rig: Any) -> None:
    rig = remote_rig
    instance = spawn(rig)
    # As much as takes more than one look.
    subprocess.run(
        ['qemu-io', '-f', 'qcow2', '-c', 'write -P 7 2M 8M', str(rig.file('gpu1', instance.uuid, 'disk'))],
        check=True,
        capture_output=True,
    )
    told: list[tuple[int, int]] = []
    dest = rig.there.moves.prepare_move()
    rig.here.moves.migrate_disk_and_power_off(
        instance, dest, new_flavor(root_gb=2), progress=lambda *done: told.append(done)
    )
    assert len({total for _, total in told}) == 1 and told[0][0] < told[-1][0] <= told[-1][1]

    second = spawn(rig, id=2)
    dest = rig.there.moves.prepare_move()

    def stop(done: int, total: int) -> None:
        if done:
            raise errors.Cancelled(key='the operation')

    with pytest.raises(errors.Cancelled):
        rig.here.moves.migrate_disk_and_power_off(second, dest, new_flavor(root_gb=2), progress=stop)
    assert [name for name in files_of(rig, 'gpu2') if second.uuid in name]
    rig.here.moves.discard_copy(second, dest)
    rig.here.moves.finish_revert_migration(second, image_meta(), devices(GPU), True)
    assert not [name for name in files_of(rig, 'gpu2') if second.uuid in name]
    assert rig.here.guests.get_info(second) == PowerState.RUNNING and rig.kept('gpu1', second.uuid)
    # What another move brought stays.
    assert [name for name in files_of(rig, 'gpu2') if name.startswith(f'{instance.uuid}/')]


def test_answers_that_are_lost(remote_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each script did its work, and is sent again: the copy and its base are there once, whole."""
    rig = remote_rig
    instance = spawn(rig)
    run, lost = ssh.Remote._once, set()

    def once(self: Any, script: str, *args: str, **bound: float) -> str:
        answer = run(self, script, *args, **bound)
        if script not in (*lost, ssh._CHECK):
            lost.add(script)
            raise ssh.Cut(command='ssh', reason='the answer is lost')
        return answer

    monkeypatch.setattr(ssh.Remote, '_once', once)
    info = carry(rig, instance)
    assert {ssh._END, ssh._MOVE, ssh._BEGIN, ssh._SUM} <= lost
    instance.flavor = new_flavor(root_gb=2)
    rig.there.moves.finish_migration(instance, image_meta(), devices(GPU2), True, info)
    assert rig.kept('gpu2', instance.uuid)
    assert not [name for name in files_of(rig, 'gpu2') if '_del' in name or '_incoming' in name]


@pytest.mark.parametrize('by', ['source', 'destination'])
def test_half_a_base_goes_with_its_move(remote_rig: Any, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = remote_rig
    instance = spawn(rig)
    dest = rig.there.moves.prepare_move()
    run = ssh.Remote._once

    def once(self: Any, script: str, *args: str, **bound: float) -> str:
        if script == ssh._SUM:
            raise KeyboardInterrupt
        return run(self, script, *args, **bound)

    monkeypatch.setattr(ssh.Remote, '_once', once)
    with pytest.raises(KeyboardInterrupt):
        rig.here.moves.migrate_disk_and_power_off(instance, dest, new_flavor(root_gb=2))
    assert [name for name in files_of(rig, 'gpu2') if name.startswith('_base/')]
    if by == 'source':
        rig.here.moves.discard_copy(instance, dest)
    else:
        rig.there.moves.cleanup_move_dest(instance, same_host=False)
    assert files_of(rig, 'gpu2') == []


def test_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 MiB at 4 MiB a second: the last byte is due after 2.5 s, whatever the pieces are."""
    clock = [100.0]
    monkeypatch.setattr(ssh.time, 'monotonic', lambda: clock[0])
    monkeypatch.setattr(ssh.time, 'sleep', lambda seconds: clock.__setitem__(0, clock[0] + max(0.0, seconds)))
    pace = ssh._Pace(4 << 20)
    for _ in range(40):
        pace.wait(BLOCK // 4)
    assert clock[0] == pytest.approx(102.5)
    ssh._Pace(0).wait(1 << 40)
    assert clock[0] == pytest.approx(102.5)


def refuses(rig: Any, text: str, **offered: Any) -> None:
    """A destination that offers this; the guest runs on."""
    instance = spawn(rig)
    with pytest.raises(errors.DisksUnmovable, match=text):
        rig.here.moves.migrate_disk_and_power_off(
            instance, {**rig.there.moves.prepare_move(), **offered}, new_flavor(root_gb=2)
        )
    assert rig.here.guests.get_info(instance) == PowerState.RUNNING


@pytest.mark.parametrize('address', ['', '-oProxyCommand=reboot', 'a b', '$(reboot)', 'x' * 300, None])
def test_an_address_is_an_address(remote_rig: Any, address: str | None) -> None:
    """It comes from another host, and becomes an argument of ssh."""
    refuses(remote_rig, 'is not an address', address=address)


def test_an_address_that_leads_elsewhere_is_found_out(remote_rig: Any) -> None:
    refuses(
        remote_rig,
        'from gpu1 to gpu2: the machine at ::1 does not have the storage id of the destination',
        storage_id='of another host',
        address='::1',
    )


def test_a_destination_whose_shell_hangs_is_given_up(remote_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (remote_rig.bin / 'ssh').write_text('#!/bin/sh\nexec sleep 30\n')
    monkeypatch.setattr(ssh, '_CHECKED_WITHIN', 0.5)
    began = time.monotonic()
    refuses(remote_rig, 'from gpu1 to gpu2: .*no answer within 0.5 s')
    assert time.monotonic() < began + 20


def test_the_destination_says_its_address(remote_rig: Any) -> None:
    offer = DiskMover(
        'gpu2', '10.0.0.2', str(remote_rig.path), '/base', ssh.FileTransport(), remote_rig.there.disks.pool
    ).offer()
    assert (offer['host'], offer['address']) == ('gpu2', '10.0.0.2')


def test_a_resize_and_back_again(remote_rig: Any) -> None:
    """Devices, marker and directories, after the revert too."""
    rig = remote_rig
    instance = spawn(rig)
    old = instance.flavor
    info = carry(rig, instance)
    instance.flavor = new_flavor(root_gb=2)
    rig.there.moves.finish_migration(instance, image_meta(), devices(GPU2), True, info)
    assert rig.kept('gpu2', instance.uuid) and rig.there.guests.get_info(instance) == PowerState.RUNNING
    rig.there.moves.cleanup_move_dest(instance, same_host=False)
    instance.flavor = old
    rig.here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True)
    assert rig.kept('gpu1', instance.uuid)
    assert not [name for name in files_of(rig, 'gpu2') if not name.startswith('_base/')]

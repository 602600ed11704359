"""What libvirt's driver does with volumes besides the contract: where they are connected, and what is undone."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import libvirt
import pytest

from kilonova.virt.libvirt import volumes
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.parts.guests import GuestFailed, UnsupportedHardware
from kilonova.virt.parts.host import HypervisorUnavailable
from kilonova.virt.parts.volumes import VolumeCounters, VolumeFailed, VolumeUnsupported
from tests.unit.virt.builders import (
    KEY,
    VOLUME,
    VOLUME2,
    image_meta,
    new_flavor,
    new_instance,
    new_locked_volume,
    new_volume,
)
from tests.unit.virt.conftest import LibvirtRig

LOCAL = {'driver_volume_type': 'local', 'device_path': '/dev/loop0'}


class Bricks:
    """Stands for os-brick: ``done`` is what was asked of it, ``size`` bytes that the host sees of any volume;
    ``refuses``: it lets go of nothing."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.size: int | None = None
        self.refuses = False

    def connect(self, volume: Any) -> str:
        self.done.append(('connect', volume.volume_id))
        return volume.connection.get('path') or f'/dev/of-{volume.volume_id[:2]}'

    def disconnect(self, volume: Any, path: str | None, force: bool = False) -> None:
        self.done.append(('disconnect', volume.volume_id, path, force))
        if self.refuses:
            raise VolumeFailed(act='disconnect', volume=volume.volume_id, host='gpu1', reason='busy')

    def lock(self, volume: Any, path: str, passphrase: str) -> None:
        self.done.append(('lock', volume.volume_id, path, passphrase))

    def header(self, volume: Any, path: str) -> int:
        self.done.append(('header', volume.volume_id, path))
        return 4096

    def extend(self, volume: Any) -> int | None:
        self.done.append(('extend', volume.volume_id))
        return self.size


def give(host: Any) -> Bricks:
    """A host's os-brick."""
    bricks = Bricks()
    host.volumes._volumes._bricks = bricks
    return bricks


@pytest.fixture
def rig(libvirt_rig: LibvirtRig) -> LibvirtRig:
    return libvirt_rig


def spawn(rig: LibvirtRig, *volumes: Any, **values: Any) -> Any:
    instance = new_instance(volumes=list(volumes), device_metadata=None, **values)
    rig.here.guests.spawn(instance, image_meta())
    return instance


def sources(rig: LibvirtRig, instance: Any) -> list[str | None]:
    xml = rig.here.guests._libvirt.find(instance.uuid).xml()  # type: ignore[union-attr]
    return [disk.get('dev') for disk in ElementTree.fromstring(xml).iterfind("devices/disk[@type='block']/source")]


def test_a_block_device_is_connected_before_and_let_go_after(rig: LibvirtRig) -> None:
    """With the path that it had, whether the service has been restarted meanwhile or not."""
    bricks, volume = give(rig.here), new_volume(connection=LOCAL)
    instance = spawn(rig, volume)
    assert sources(rig, instance) == ['/dev/of-5d'] and bricks.done == [('connect', VOLUME)]
    rig.here.guests.destroy(instance)
    assert bricks.done[1:] == [('disconnect', VOLUME, '/dev/of-5d', True)]
    instance = spawn(rig, volume)
    # As after a restart.
    rig.here.volumes._volumes._paths.clear()
    rig.here.volumes._volumes._users.clear()
    bricks.done.clear()
    rig.here.volumes.detach(instance, volume, lambda: None)
    assert bricks.done == [('disconnect', VOLUME, '/dev/of-5d', False)]


def test_a_volume_that_stays_ends_a_move_but_no_delete(rig: LibvirtRig) -> None:
    bricks, instance = give(rig.here), spawn(rig, new_volume(connection=LOCAL))
    bricks.refuses = True
    with pytest.raises(VolumeFailed, match='busy'):
        rig.here.moves.migrate_disk_and_power_off(instance, rig.there.moves.prepare_move(), instance.flavor)
    with pytest.raises(VolumeFailed, match='busy'):
        rig.here.volumes.disconnect(instance, instance.volumes[0])
    rig.here.guests.destroy(instance)
    assert rig.here.guests.describe() == [] and rig.here.disks.list_directories() == []


def test_a_volume_of_two_guests_stays_connected_for_the_other(rig: LibvirtRig) -> None:
    """Also one that was there before the service was started."""
    bricks, volume = give(rig.here), new_volume(connection=LOCAL, multiattach=True)
    one, two = spawn(rig, volume, id=1), spawn(rig, volume, id=2)
    rig.here.volumes._volumes._users.clear()
    bricks.done.clear()
    rig.here.power.power_off(one)
    rig.here.volumes.detach(one, volume, lambda: None)
    assert bricks.done == []
    # The other is about to be built, and has no domain that tells of it.
    rig.here.volumes._volumes.connect(one, volume)
    rig.here.guests.destroy(two)
    assert bricks.done == [('connect', VOLUME)]
    rig.here.volumes.disconnect(one, volume)
    assert bricks.done[1:] == [('disconnect', VOLUME, '/dev/of-5d', False)]


@pytest.mark.parametrize(
    'error',
    [
        GuestFailed(act='attach a volume to', uuid='u', reason='No more PCI slots'),
        UnsupportedHardware(model='xen', virt='kvm'),
    ],
)
def test_an_attach_that_fails_leaves_nothing(
    rig: LibvirtRig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    bricks, instance = give(rig.here), spawn(rig)

    def refuse(*args: Any) -> None:
        raise error

    monkeypatch.setattr(rig.here.volumes._hotplug, 'plug', refuse)
    with pytest.raises(type(error)):
        rig.here.volumes.attach(instance, image_meta(), new_volume(connection=LOCAL))
    assert rig.volumes_at_start('gpu1', instance.uuid) == [] and rig.connected('gpu1') == {}
    assert bricks.done == [('connect', VOLUME), ('disconnect', VOLUME, '/dev/of-5d', False)]


def test_an_attach_of_which_nobody_knows_leaves_all(rig: LibvirtRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guest may write to it already."""
    bricks, instance = give(rig.here), spawn(rig)

    def lost(*args: Any) -> None:
        raise HypervisorUnavailable(host='gpu1', reason='gone')

    monkeypatch.setattr(rig.here.volumes._hotplug, 'plug', lost)
    with pytest.raises(HypervisorUnavailable):
        rig.here.volumes.attach(instance, image_meta(), new_volume(connection=LOCAL))
    assert bricks.done == [('connect', VOLUME)] and rig.volumes_at_start('gpu1', instance.uuid) == [VOLUME]


def test_a_volume_gets_another_name_where_a_disk_has_its(rig: LibvirtRig) -> None:
    instance = spawn(rig, new_volume())
    rig.here.volumes.attach(instance, image_meta(), new_volume(volume_id=VOLUME2))
    xml = rig.here.guests._libvirt.find(instance.uuid).call(  # type: ignore[union-attr]
        'XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE
    )
    targets = [target.get('dev') for target in ElementTree.fromstring(xml).iterfind('devices/disk/target')]
    assert targets == ['vda', 'vdb', 'vdc']


@pytest.mark.parametrize(
    ('connection', 'size', 'grown'),
    [
        (new_volume().connection, None, 3 << 30),
        (LOCAL, 3 << 30, 3 << 30),
        (LOCAL, None, 3 << 30),
        (LOCAL, 2 << 30, None),
    ],
)
def test_a_guest_sees_as_much_as_its_host(
    rig: LibvirtRig, monkeypatch: pytest.MonkeyPatch, connection: Any, size: int | None, grown: int | None
) -> None:
    bricks, instance = give(rig.here), spawn(rig, new_volume(connection=connection))
    bricks.size, seen = size, []
    monkeypatch.setattr(volumes, 'grow', lambda guest, target, size: seen.append((target, size)))
    bigger = replace(instance.volumes[0], size=3)
    if grown is None:
        with pytest.raises(VolumeFailed, match=f'extend volume {VOLUME}: its device has {size} bytes'):
            rig.here.volumes.extend(instance, bigger)
    else:
        rig.here.volumes.extend(instance, bigger)
    assert seen == ([('vdb', grown)] if grown else [])
    # A guest that is off sees it at its start.
    rig.here.power.power_off(instance)
    rig.here.volumes.extend(instance, bigger)
    assert len(seen) == bool(grown)


def test_a_guest_that_refuses_to_see_more() -> None:
    def refuse(act: Any) -> None:
        error = libvirt.libvirtError('no')
        error.err = (code, 0, 'no such disk', 2, '', '', '', 0, 0)
        raise error

    domain = SimpleNamespace(UUIDString=lambda: 'u', name=lambda: 'n')
    guest = Guest(SimpleNamespace(do=refuse, is_test=True), domain)  # type: ignore[arg-type]
    code = libvirt.VIR_ERR_NO_SUPPORT
    volumes.grow(guest, 'vdb', 1)
    code = libvirt.VIR_ERR_INVALID_ARG
    with pytest.raises(GuestFailed, match='could not grow disk vdb of guest u'):
        volumes.grow(guest, 'vdb', 1)


def test_where_volumes_with_tags_are_is_noted(rig: LibvirtRig) -> None:
    instance = spawn(rig, new_volume(tag='database'))

    def noted() -> list[tuple[str, str | None, list[str]]]:
        return [(device.path, device.serial, device.tags) for device in instance.device_metadata.devices]

    assert noted() == [('/dev/vdb', VOLUME, ['database'])]
    second = new_volume(volume_id=VOLUME2, device='/dev/vdc', tag='logs')
    rig.here.power.power_off(instance)
    rig.here.volumes.attach(instance, image_meta(), second)
    assert noted() == [('/dev/vdb', VOLUME, ['database']), ('/dev/vdc', VOLUME2, ['logs'])]
    rig.here.volumes.detach(instance, instance.volumes[0], lambda: None)
    assert noted() == []


def test_nothing_of_a_server_but_its_own_disks_is_carried_or_copied(rig: LibvirtRig, tmp_path: Any) -> None:
    """A snapshot, a move and a live migration with a volume that is a file."""
    volume = new_volume(connection={'driver_volume_type': 'nfs', 'export': 'filer:/v', 'name': 'v'})
    give(rig.here)
    give(rig.there)
    instance = spawn(rig, volume)
    rig.here.snapshots.snapshot(instance, 'snap', lambda: None, lambda: None)
    assert list(rig.images.sent) == ['snap']
    assert [one['name'] for one in rig.here.live_migrations.describe(instance)['disks']] == ['disk']
    assert rig.here.guests.get_instance_diagnostics(instance).num_disks == 2
    disk_info = rig.here.moves.migrate_disk_and_power_off(instance, rig.there.moves.prepare_move(), instance.flavor)
    assert disk_info['disks'] == ['disk']


def test_a_guest_that_moves_while_it_runs_finds_its_block_device_under_another_path(rig: LibvirtRig) -> None:
    """Each host lets go of its own."""
    here, there, volume = give(rig.here), give(rig.there), new_volume(connection=LOCAL)
    instance = spawn(rig, volume)
    elsewhere = {**LOCAL, 'path': '/dev/dm-9'}
    instance.volumes = [
        replace(volume, known_at={'gpu2': {'connector': {}, 'connection': elsewhere, 'attachment_id': 'another'}})
    ]
    live = rig.here.live_migrations.describe(instance)
    offer: Any = {
        **rig.there.live_migrations.offer(instance, live, None, True),
        'place': rig.there.live_migrations.place(instance, image_meta()),
    }
    offer['volumes'] = rig.there.live_migrations.prepare(instance, live, offer)
    rig.here.live_migrations.migrate(instance, offer, lambda progress: None)
    rig.there.live_migrations.receive(instance)
    arrived = rig.there.guests._libvirt.find(instance.uuid)
    assert "dev='/dev/dm-9'" in arrived.xml() and '/dev/of-5d' not in arrived.xml()  # type: ignore[union-attr]
    instance.volumes = [
        replace(volume, host='gpu2', connection=elsewhere, known_at={'gpu1': {'connector': {}, 'connection': LOCAL}})
    ]
    rig.here.live_migrations.leave(instance, offer)
    assert here.done == [('connect', VOLUME), ('disconnect', VOLUME, '/dev/of-5d', False)]
    rig.there.guests.destroy(instance)
    assert there.done == [('connect', VOLUME), ('disconnect', VOLUME, '/dev/dm-9', True)]


def test_a_volume_that_the_destination_can_not_have_is_refused_before_anything_is_made(rig: LibvirtRig) -> None:
    volume = new_volume()
    instance = spawn(rig, volume)
    connection = {**volume.connection, 'encrypted': True}
    instance.volumes = [
        replace(volume, known_at={'gpu2': {'connector': {}, 'connection': connection, 'attachment_id': 'another'}})
    ]
    live = rig.here.live_migrations.describe(instance)
    offer = rig.there.live_migrations.offer(instance, live, None, True)
    with pytest.raises(VolumeUnsupported, match='it is encrypted, and the volume service returned no key ID'):
        rig.there.live_migrations.prepare(instance, live, offer)
    assert rig.there.disks.list_directories() == []


class Kept:
    """Stands for libvirt's secrets: ``now`` are those that there are."""

    def __init__(self) -> None:
        self.now: list[str] = []

    def keep(self, volume: Any) -> str | None:
        if volume.encryption is None:
            return None
        self.now = sorted({*self.now, volume.volume_id})
        return KEY

    def forget(self, volume_id: str) -> None:
        self.now = [one for one in self.now if one != volume_id]


def keep(host: Any) -> Kept:
    host.volumes._volumes._secrets = kept = Kept()
    return kept


def test_a_secret_is_there_as_long_as_its_volume_is(rig: LibvirtRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a delete, a detach, a move, a live migration that is given up, and an attach that fails."""
    here, there, volume, plain = keep(rig.here), keep(rig.there), new_locked_volume(), new_volume(volume_id=VOLUME2)
    rig.here.guests.destroy(spawn(rig, volume, plain))
    assert here.now == []
    instance = spawn(rig, plain)
    rig.here.volumes.attach(instance, image_meta(), volume)
    assert here.now == [VOLUME]
    rig.here.volumes.detach(instance, volume, lambda: None)
    assert here.now == []
    rig.here.volumes.attach(instance, image_meta(), volume)
    coming = {'connector': {}, 'connection': volume.connection, 'attachment_id': 'another'}
    instance.volumes = [replace(volume, known_at={'gpu2': coming})]
    live = rig.here.live_migrations.describe(instance)
    rig.there.live_migrations.prepare(instance, live, rig.there.live_migrations.offer(instance, live, None, True))
    assert here.now == there.now == [VOLUME]
    rig.there.moves.cleanup_move_dest(instance, same_host=False)
    assert (here.now, there.now) == ([VOLUME], [])
    disk_info = rig.here.moves.migrate_disk_and_power_off(instance, rig.there.moves.prepare_move(), instance.flavor)
    assert here.now == []
    instance.volumes = [replace(volume, host='gpu2')]
    rig.there.moves.finish_migration(instance, image_meta(), [], True, disk_info)
    assert there.now == [VOLUME]

    def refuse(*args: Any) -> None:
        raise GuestFailed(act='attach a volume to', uuid='u', reason='No more PCI slots')

    other = spawn(rig)
    monkeypatch.setattr(rig.here.volumes._hotplug, 'plug', refuse)
    with pytest.raises(GuestFailed):
        rig.here.volumes.attach(other, image_meta(), volume)
    assert here.now == []


def test_an_encrypted_block_device(rig: LibvirtRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets its header before the guest does; what the guest sees of it is behind that. Where it can't be had,
    nothing can be read on the host."""
    kept, bricks, volume, seen = keep(rig.here), give(rig.here), new_locked_volume(connection=LOCAL), []
    instance = spawn(rig, volume)
    assert bricks.done == [('connect', VOLUME), ('lock', VOLUME, '/dev/of-5d', KEY)]
    monkeypatch.setattr(volumes, 'grow', lambda guest, target, size: seen.append((target, size)))
    bricks.size = 3 << 30
    rig.here.volumes.extend(instance, replace(volume, size=3))
    assert seen == [('vdb', (3 << 30) - 4096)] and bricks.done[-1] == ('header', VOLUME, '/dev/of-5d')
    rig.here.guests.destroy(instance)

    def refuse(volume: Any, path: str, passphrase: str) -> None:
        raise VolumeUnsupported(volume=VOLUME, host='gpu1', reason='cryptsetup: not found')

    monkeypatch.setattr(bricks, 'lock', refuse)
    with pytest.raises(VolumeUnsupported, match='cryptsetup: not found'):
        spawn(rig, volume)
    assert kept.now == []


def test_the_guests_first_disk_is_the_volume_that_it_boots_from(rig: LibvirtRig) -> None:
    """Whatever its bus, and whatever else there is; only a rescue system comes before it."""
    root = new_volume(volume_id=VOLUME2, device='/dev/sda', bus='scsi', boot_index=0)
    instance = spawn(
        rig, new_volume(), root, image_ref='', config_drive='True', flavor=new_flavor(ephemeral_gb=1, swap=8)
    )

    def disks() -> list[tuple[str, str | None]]:
        """Name and order of boot of each; <os> names no disk to boot from."""
        domain = ElementTree.fromstring(rig.here.guests._libvirt.find(instance.uuid).xml())  # type: ignore[union-attr]
        assert domain.findall('os/boot') == []
        found = [
            (disk.find('target').get('dev', ''), disk.find('boot'))  # type: ignore[union-attr]
            for disk in domain.iterfind('devices/disk')
        ]
        return sorted((name, boot.get('order') if boot is not None else None) for name, boot in found)

    own = [('hda', None), ('vda', None), ('vdb', None), ('vdc', None)]
    assert disks() == sorted([('sda', '1'), *own])
    assert rig.images.fetched == 0
    rig.here.rescues.rescue(instance, image_meta(), image_meta(properties={'hw_rescue_bus': 'virtio'}), [])
    assert disks() == sorted([('sda', None), ('vdd', '1'), *own])
    with pytest.raises(VolumeUnsupported, match='it is attached to host gpu2'):
        spawn(rig, replace(root, host='gpu2'), image_ref='')


def test_which_counter_is_which(rig: LibvirtRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """libvirt counts requests and bytes of reads, then of writes, then errors; -1: it doesn't count that."""
    instance, asked = spawn(rig, new_volume(), new_volume(volume_id=VOLUME2, device='/dev/vdc')), []
    counted: dict[str, Any] = {'vdb': (1, 512, -1, 1024, -1), 'vdc': None}

    def measured(self: Guest, method: str, target: str) -> Any:
        asked.append((method, target))
        return counted[target]

    monkeypatch.setattr(Guest, 'measured', measured)
    assert rig.here.volumes.usage(instance) == {
        VOLUME: VolumeCounters(reads=1, read_bytes=512, writes=0, write_bytes=1024)
    }
    assert asked == [('blockStats', 'vdb'), ('blockStats', 'vdc')]

    def gone(self: Guest) -> str:
        raise libvirt.libvirtError('no domain')

    monkeypatch.setattr(Guest, 'xml', gone)
    with pytest.raises(GuestFailed, match='no domain'):
        rig.here.volumes.usage(instance)

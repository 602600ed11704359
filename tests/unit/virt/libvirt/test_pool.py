"""Servers whose disks are in a pool of Ceph: what is asked of rbd, and what guests see."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from kilonova import errors
from kilonova.objects import BlockDeviceMapping
from kilonova.virt import command
from kilonova.virt.libvirt.driver import LibvirtDriver
from kilonova.virt.libvirt.storage.rbd.pool import RbdPool
from kilonova.virt.parts.disks import FlavorDiskSmallerThanImage
from kilonova.virt.parts.host import DriverMisconfigured
from kilonova.virt.parts.live_migrations import PlacedOffer
from tests.integration.libvirtd import make_image
from tests.unit.virt.builders import Images, image_meta, new_conf, new_flavor, new_instance
from tests.unit.virt.ceph import FSID, OPTIONS, SECRET, Cluster, Image
from tests.unit.virt.conftest import PoolRig

GIB = 1 << 30


class RawImages(Images):
    """One raw image, in Ceph."""

    url = f'rbd://{FSID}/images/image-1/snap'

    def get(self, image_id: str) -> dict[str, Any]:
        return {**super().get(image_id), 'direct_url': self.url}


@pytest.fixture
def rig(tmp_path: Path, image_file: Path, monkeypatch: pytest.MonkeyPatch) -> PoolRig:
    return PoolRig(tmp_path, RawImages(image_file), monkeypatch)


def store(rig: PoolRig, size: int = 64 << 20) -> dict[str, Any]:
    """The image is in the cluster; its record."""
    data = bytearray(2 << 20)
    rig.cluster.images['images/image-1'] = Image(size, data, snaps={'snap': (size, data)})
    return image_meta(disk_format='raw')


def spawn(rig: PoolRig, image: dict[str, Any] | None = None, **values: Any) -> Any:
    instance = new_instance(**values)
    rig.here.guests.spawn(instance, image or image_meta())
    return instance


def disks(host: Any, uuid: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(host.guests._libvirt.find(uuid).xml()).findall('devices/disk')


def of(one: ElementTree.Element, path: str) -> dict[str, str]:
    found = one.find(path)
    return {} if found is None else found.attrib


def name(one: ElementTree.Element) -> str:
    """What a disk is to its server."""
    return of(one, 'source')['name'].partition('_')[2]


def test_all_disks_are_images_of_the_pool(rig: PoolRig) -> None:
    """Libvirt has where they are and who may read them; the directory has none of them."""
    instance = spawn(rig, flavor=new_flavor(root_gb=3, ephemeral_gb=1, swap=64), config_drive='True')
    names = ['disk', 'disk.config', 'disk.eph0', 'disk.swap']
    assert rig.cluster.of(instance.uuid) == names
    sizes = {name: rig.cluster.images[f'vms/{instance.uuid}_{name}'].size for name in names}
    assert (sizes['disk'], sizes['disk.eph0'], sizes['disk.swap']) == (3 * GIB, GIB, 64 << 20)
    assert not set(names) & {path.name for path in rig.file('gpu1', instance.uuid).iterdir()}
    found = disks(rig.here, instance.uuid)
    assert [(one.get('type'), one.get('device'), name(one)) for one in found] == [
        ('network', 'disk', 'disk'),
        ('network', 'disk', 'disk.eph0'),
        ('network', 'disk', 'disk.swap'),
        ('network', 'cdrom', 'disk.config'),
    ]
    for one in found:
        assert [(host.get('name'), host.get('port')) for host in one.iterfind('source/host')] == [
            ('192.0.2.1', '6789'),
            ('2001:db8::2', '3300'),
        ]
        assert of(one, 'auth') == {'username': 'nova'} and of(one, 'source')['protocol'] == 'rbd'
        assert of(one, 'auth/secret') == {'type': 'ceph', 'uuid': SECRET} and of(one, 'driver')['type'] == 'raw'
    rig.here.guests.destroy(instance)
    assert rig.cluster.images == {} and rig.here.disks.list_directories() == []


def test_an_image_of_the_same_cluster_is_cloned(rig: PoolRig) -> None:
    instance = spawn(rig, store(rig))
    found = rig.cluster.images[f'vms/{instance.uuid}_disk']
    assert (found.parent, found.size, rig.images.fetched) == ('images/image-1@snap', GIB, 0)
    small = new_instance(id=2, flavor=new_flavor(root_gb=1))
    with pytest.raises(FlavorDiskSmallerThanImage):
        rig.here.guests.spawn(small, store(rig, 2 * GIB))
    assert rig.cluster.of(small.uuid) == []


@pytest.mark.parametrize(
    'url',
    [
        f'rbd://{FSID}/images/other/snap',
        f'rbd://{SECRET}/images/image-1/snap',
        f'rbd://{FSID}/nowhere/image-1/snap',
        f'rbd://{FSID}/images/-c/snap',
        'file:///var/lib/glance/image-1',
    ],
)
def test_any_other_image_is_copied(rig: PoolRig, url: str, tmp_path: Path) -> None:
    """One of another cluster, that is out of reach, another image, which may be somebody else's, or in no cluster at
    all."""
    rig.images.url = url
    rig.images.path = tmp_path / 'raw'
    make_image(rig.images.path)
    record = store(rig)
    rig.cluster.images['images/other'] = rig.cluster.images['images/image-1']
    instance = spawn(rig, record)
    assert rig.cluster.images[f'vms/{instance.uuid}_disk'].parent is None and rig.images.fetched == 1


def test_a_disk_that_somebody_has_open_is_removed_later(rig: PoolRig) -> None:
    """The guest of a host that has just died. What goes on for longer is asked again by whoever deletes."""
    instance = spawn(rig)
    image = rig.cluster.images[f'vms/{instance.uuid}_disk']
    image.opened, image.snaps['kilonova_move'] = 12, (0, bytearray())
    rig.here.guests.destroy(instance)
    assert rig.cluster.images == {}
    instance = spawn(rig)
    rig.cluster.images[f'vms/{instance.uuid}_disk'].opened = 14
    with pytest.raises(errors.Unanswered, match=rf'^Ceph cannot delete vms/{instance.uuid}_disk now, because'):
        rig.here.guests.destroy(instance)
    assert rig.here.disks.list_directories() == [instance.uuid], 'whoever comes again finds what is left'
    rig.here.guests.destroy(instance)
    assert rig.cluster.images == {}


def test_silence_is_told_and_nothing_is_lost(rig: PoolRig) -> None:
    instance = spawn(rig)
    rig.cluster.silent = True
    with pytest.raises(errors.Unanswered, match=r"Ceph does not answer: rbd .*couldn't connect"):
        rig.here.guests.destroy(instance)
    with pytest.raises(errors.Unanswered):
        rig.here.guests.spawn(new_instance(), image_meta())
    # What it said last counts.
    assert rig.here.host.get_available_resource()['local_gb'] == 128
    rig.cluster.silent = False
    rig.here.guests.destroy(instance)
    assert rig.cluster.images == {}


def test_a_move_keeps_the_disks_where_they_are(rig: PoolRig) -> None:
    """Revert brings back what they were, with their sizes; swap is as the flavor has it, at both ends."""
    flavor, larger = new_flavor(swap=64), new_flavor(root_gb=2, swap=32, ephemeral_gb=1)
    instance = spawn(rig, flavor=flavor)
    root, swap = (f'vms/{instance.uuid}_disk{name}' for name in ('', '.swap'))
    rig.cluster.write(root)
    dest = json.loads(json.dumps(rig.there.moves.prepare_move()))
    info = rig.here.moves.migrate_disk_and_power_off(instance, dest, larger)
    instance.flavor = larger
    rig.there.moves.finish_migration(instance, image_meta(), [], True, info)
    images = rig.cluster.images
    assert (images[root].size, images[swap].size, rig.cluster.host(root)) == (2 * GIB, 32 << 20, 'gpu2')
    rig.cluster.write(root, 0x11)
    assert rig.cluster.of(instance.uuid) == ['disk', 'disk.eph0', 'disk.swap']
    there = rig.file('gpu2', instance.uuid)
    shutil.copytree(there, rig.path / 'there')
    rig.there.moves.cleanup_move_dest(instance, same_host=False)
    assert rig.cluster.of(instance.uuid) == ['disk'], 'what was made there for the new flavor goes'
    instance.flavor = flavor
    rig.here.moves.finish_revert_migration(instance, image_meta(), [], True)
    assert (images[root].size, images[swap].size, rig.cluster.host(root)) == (GIB, 64 << 20, 'gpu1')
    assert rig.cluster.has(root) and images[root].snaps == {}
    # A destination that was away hears of it late: nothing here is its own.
    shutil.copytree(rig.path / 'there', there)
    rig.there.moves.cleanup_move_dest(instance, same_host=False)
    assert rig.cluster.of(instance.uuid) == ['disk', 'disk.swap'] and not there.exists()
    # Once more, to its end: the snapshot goes, and so does the disk that a flavor hasn't.
    info = rig.here.moves.migrate_disk_and_power_off(instance, rig.there.moves.prepare_move(), new_flavor())
    instance.flavor = new_flavor()
    rig.there.moves.finish_migration(instance, image_meta(), [], True, info)
    assert list(images[root].snaps) == [f'kilonova_{info["move"]}'] and swap not in images
    rig.here.moves.confirm_migration(instance, same_host=False)
    assert images[root].snaps == {} and rig.cluster.has(root)


@pytest.mark.parametrize('first', ['here', 'there'])
def test_a_server_that_is_deleted_in_the_middle_of_a_move_leaves_nothing(rig: PoolRig, first: str) -> None:
    """Both hosts are told, in any order; neither fails for what the other removed."""
    instance = spawn(rig, flavor=new_flavor(swap=64))
    info = rig.here.moves.migrate_disk_and_power_off(instance, rig.there.moves.prepare_move(), instance.flavor)
    rig.there.moves.finish_migration(instance, image_meta(), [], True, info)
    for host in (rig.here, rig.there) if first == 'here' else (rig.there, rig.here):
        host.guests.destroy(instance)
    assert rig.cluster.images == {}
    assert rig.here.disks.list_directories() == rig.there.disks.list_directories() == []


def test_a_host_without_the_pool_gets_no_such_disks(rig: PoolRig) -> None:
    instance = spawn(rig)
    other = {**rig.there.moves.prepare_move(), 'pool': f'{SECRET}/vms'}
    with pytest.raises(errors.DisksUnmovable, match='disks are in Ceph pool vms, which the destination does not use'):
        rig.here.moves.check_move(instance, other, new_flavor())
    rig.cluster.images[f'vms/{instance.uuid}_disk'].size = 2 * GIB
    with pytest.raises(errors.ResizeError, match='Unable to resize disk down'):
        rig.here.moves.check_move(instance, rig.there.moves.prepare_move(), new_flavor())
    guest = rig.here.live_migrations.describe(instance)
    for told, block, reason in (
        ({**guest, 'pool': f'{SECRET}/vms'}, None, 'which host gpu2 does not use'),
        (guest, True, 'Block migration can not be used with shared storage'),
    ):
        with pytest.raises(errors.MigrationPreCheckError, match=reason):
            rig.there.live_migrations.offer(instance, told, block, False)


def test_a_guest_that_runs_takes_its_disks_along(rig: PoolRig) -> None:
    """Neither what undoes its coming nor its leaving removes them; a delete at either end while it is on its way
    neither, but at the source."""
    instance = spawn(rig, config_drive='True')
    before = dict(rig.cluster.images)
    guest = rig.here.live_migrations.describe(instance)
    for block in (False, None):
        offer = rig.there.live_migrations.offer(instance, guest, block, False)
    rig.there.live_migrations.prepare(instance, guest, offer)
    rig.there.moves.cleanup_move_dest(instance, same_host=False)
    rig.there.live_migrations.prepare(instance, guest, offer)
    rig.there.guests.destroy(instance)
    assert rig.cluster.images == before
    rig.there.live_migrations.prepare(instance, guest, offer)
    placed: PlacedOffer = {**offer, 'place': rig.there.live_migrations.place(instance, image_meta())}
    rig.here.live_migrations.migrate(instance, placed, lambda progress: None)
    rig.here.live_migrations.leave(instance, offer)
    rig.there.live_migrations.receive(instance)
    assert rig.cluster.images == before and rig.cluster.host(f'vms/{instance.uuid}_disk.config') == 'gpu2'
    assert len(disks(rig.there, instance.uuid)) == 2 and rig.here.disks.list_directories() == []


def test_a_dead_hosts_disks_are_taken_over_with_what_was_asked_of_them(rig: PoolRig) -> None:
    instance = new_instance(flavor=new_flavor(ephemeral_gb=4), device_metadata=None)
    asked = [
        BlockDeviceMapping(
            source_type='blank',
            destination_type='local',
            guest_format='ext3',
            volume_size=2,
            disk_bus='scsi',
            device_type='disk',
            tag='data',
        )
    ]
    rig.here.guests.spawn(instance, image_meta(), block_devices=asked)
    assert [one.tags for one in instance.device_metadata.devices] == [['data']]
    assert not rig.there.moves.take_over(instance, 'gpu3')
    assert rig.there.moves.take_over(instance, 'gpu1')
    (wish,) = rig.there.disks.directory(instance.uuid).asked().values()
    assert (wish.size, wish.file_system, wish.bus, wish.tag) == (2, 'ext3', 'scsi', 'data')
    rig.there.power.power_on(instance, image_meta(), [])
    assert [of(one, 'target')['bus'] for one in disks(rig.there, instance.uuid)] == ['virtio', 'scsi']
    assert rig.there.moves.hand_back(instance, 'gpu1')
    assert not rig.file('gpu2', instance.uuid).exists() and rig.cluster.host(f'vms/{instance.uuid}_disk.eph0') == 'gpu1'


def test_hosts_that_share_their_directories_too_move_the_rest_in_them(rig: PoolRig) -> None:
    here, there = (rig.driver(host, instances_path=str(rig.path / 'both')) for host in ('gpu1', 'gpu2'))
    instance = new_instance(flavor=new_flavor(ephemeral_gb=1))
    here.guests.spawn(instance, image_meta())
    rig.write('gpu1', instance.uuid)
    info = here.moves.migrate_disk_and_power_off(instance, there.moves.prepare_move(), instance.flavor)
    there.moves.finish_migration(instance, image_meta(), [], True, info)
    here.moves.confirm_migration(instance, same_host=False)
    here.guests.destroy(instance)
    assert [name(one) for one in disks(there, instance.uuid)] == ['disk', 'disk.eph0']
    assert rig.kept('gpu2', instance.uuid)
    there.guests.destroy(instance)
    assert rig.cluster.images == {} and list((rig.path / 'both').glob('*-*')) == []


def test_a_rescue_system_is_in_the_pool_while_it_is_needed(rig: PoolRig) -> None:
    instance = spawn(rig, config_drive='True')
    rig.here.rescues.rescue(instance, image_meta(), image_meta(id='image-2'), [])
    assert rig.cluster.of(instance.uuid) == ['disk', 'disk.config', 'disk.config.rescue', 'disk.rescue']
    assert [name(one) for one in disks(rig.here, instance.uuid)] == ['disk.rescue', 'disk', 'disk.config.rescue']
    rig.here.power.power_on(instance, image_meta(), [])
    assert rig.cluster.of(instance.uuid) == ['disk', 'disk.config']


def test_an_image_is_made_of_the_disk_as_it_is_at_once(rig: PoolRig) -> None:
    """What another try left in the pool is older, and goes."""
    instance = spawn(rig)
    root = rig.cluster.images[f'vms/{instance.uuid}_disk']
    root.snaps['kilonova_image-3'] = 0, bytearray()
    rig.write('gpu1', instance.uuid)
    rig.here.snapshots.snapshot(instance, 'image-3', lambda: None, lambda: None)
    assert root.snaps == {} and b'\x5a' * 65536 in rig.images.sent['image-3']
    assert rig.images.sent['image-3'].startswith(b'QFI')
    root.snaps['kilonova_image-4'] = 0, bytearray()
    rig.here.snapshots.forget_snapshot(instance, 'image-4')
    assert root.snaps == {}


def test_a_rebuild_makes_disks_anew(rig: PoolRig) -> None:
    instance = spawn(rig, flavor=new_flavor(ephemeral_gb=1), config_drive='True')
    for name in ('disk', 'disk.eph0'):
        rig.cluster.write(f'vms/{instance.uuid}_{name}')
    rig.here.guests.rebuild(instance, image_meta(), pci_devices=[], power_on=True, preserve_ephemeral=True)
    assert [rig.cluster.has(f'vms/{instance.uuid}_{name}') for name in ('disk', 'disk.eph0')] == [False, True]
    instance.config_drive = ''
    rig.here.guests.rebuild(instance, image_meta(), pci_devices=[], power_on=True)
    assert not rig.cluster.has(f'vms/{instance.uuid}_disk.eph0')
    assert rig.cluster.of(instance.uuid) == ['disk', 'disk.eph0']


def test_a_server_keeps_its_kind_of_disks_until_it_is_rebuilt(rig: PoolRig) -> None:
    files = rig.driver('gpu1', libvirt={'images_type': 'qcow2'})
    instance = new_instance(flavor=new_flavor(swap=4))
    files.guests.spawn(instance, image_meta())
    host = rig.driver('gpu1')
    host.power.power_on(instance, image_meta(), [])
    assert rig.cluster.of(instance.uuid) == [] and disks(host, instance.uuid)[0].get('type') == 'file'
    host.guests.rebuild(instance, image_meta(), pci_devices=[], power_on=True)
    assert rig.cluster.of(instance.uuid) == ['disk', 'disk.swap']
    assert not rig.file('gpu1', instance.uuid, 'disk').exists()
    files.guests.rebuild(instance, image_meta(), pci_devices=[], power_on=True)
    assert rig.cluster.of(instance.uuid) == [] and rig.file('gpu1', instance.uuid, 'disk.swap').exists()


def test_the_pool_is_the_hosts_disk(rig: PoolRig) -> None:
    found = rig.here.host.get_available_resource()
    assert (found['local_gb'], found['local_gb_used'], found['disk_available_least']) == (128, 28, 100)
    assert rig.here.host.inventory()['DISK_GB']['total'] == 128


@pytest.mark.parametrize(
    ('options', 'reason'),
    [
        ({'rbd_user': ''}, 'needs both rbd_user and rbd_secret_uuid'),
        ({'rbd_secret_uuid': ''}, 'needs both rbd_user and rbd_secret_uuid'),
        ({'images_rbd_pool': 'a/b'}, r"images_rbd_pool is 'a/b'; accepted"),
        ({'images_rbd_ceph_conf': '/a:b'}, r"images_rbd_ceph_conf is '/a:b'; accepted"),
        ({'images_rbd_pool': 'none'}, r'images_rbd_pool none cannot be used: rbd info .*error opening pool'),
        ({'images_rbd_pool': 'secret'}, r'secret cannot be used: rbd info (?!.*unable).*Permission denied'),
        ({'images_rbd_pool': 'images'}, r'images_rbd_pool images cannot be used: ceph df failed: its output does not'),
        ({'images_rbd_glance_store_name': 'ceph'}, 'images_rbd_glance_store_name is set; this is not supported'),
        ({'preallocate_images': 'space'}, "preallocate_images is 'space'; this is not supported"),
        ({'force_raw_images': False}, 'force_raw_images is off; this is not supported'),
    ],
)
def test_what_can_not_be_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], reason: str, images: Images
) -> None:
    Cluster(monkeypatch)
    of_libvirt = {name: value for name, value in options.items() if name.startswith(('rbd_', 'images_'))}
    conf = new_conf(
        tmp_path,
        libvirt={**OPTIONS, **of_libvirt},
        **{name: value for name, value in options.items() if name not in of_libvirt},
    )
    with pytest.raises(DriverMisconfigured, match=reason):
        LibvirtDriver(conf, images).host.init_host()


def test_programs_end_by_themselves(tmp_path: Path) -> None:
    """rbd itself: a monitor that isn't there."""
    (tmp_path / 'ceph.conf').write_text('[global]\nmon_host = 127.0.0.1:1\nauth_client_required = none\n')
    pool = RbdPool(
        new_conf(
            tmp_path, libvirt={**OPTIONS, 'images_rbd_ceph_conf': str(tmp_path / 'ceph.conf'), 'rbd_connect_timeout': 1}
        )
    )
    with pytest.raises(errors.Unanswered if shutil.which('rbd') else command.CommandFailed, match='rbd'):
        pool.size('any')

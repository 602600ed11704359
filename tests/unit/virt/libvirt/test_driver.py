"""What the libvirt driver does besides the contract, on libvirt's test driver."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import libvirt
import pytest

from kilonova import errors
from kilonova.states import PowerState
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.driver import LibvirtDriver
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.host import LibvirtHost
from kilonova.virt.libvirt.storage import files
from kilonova.virt.parts.disks import FlavorDiskSmallerThanImage
from kilonova.virt.parts.guests import GuestFailed, InterfaceUnsupported, UnsupportedHardware
from kilonova.virt.parts.host import DriverMisconfigured
from tests.unit.virt import builders
from tests.unit.virt.builders import GPU, GPU2, devices, image_meta, new_flavor, new_instance, new_vif
from tests.unit.virt.conftest import qemu_size


@pytest.fixture
def rig(libvirt_rig: Any) -> Any:
    return libvirt_rig


def spawn(rig: Any, *addresses: str, meta: dict[str, Any] | None = None, **values: Any) -> Any:
    instance = new_instance(**values)
    rig.here.guests.spawn(instance, meta or image_meta(), pci_devices=devices(*addresses))
    return instance


def shown(rig: Any, instance: Any, host: str = 'gpu1') -> ElementTree.Element:
    return ElementTree.fromstring(rig.file(host, instance.uuid, 'libvirt.xml').read_text())


def test_host_from_a_node_file(rig: Any) -> None:
    resource = rig.here.host.get_available_resource()
    assert (resource['vcpus'], resource['memory_mb'], resource['hypervisor_type']) == (64, 262144, 'TEST')
    cells = json.loads(resource['numa_topology'])['nova_object.data']['cells']
    assert [len(cell['nova_object.data']['cpuset']) for cell in cells] == [32, 32]
    assert [
        (device['address'], device['numa_node'], device['product_id']) for device in resource['pci_passthrough_devices']
    ] == [(GPU, 0, '13f1'), (GPU2, 1, '13f1')]
    assert 'COMPUTE_ARCH_X86_64' in rig.here.host.traits()


def test_ports_that_can_not_be_plugged_are_refused_before_anything_is_made(rig: Any) -> None:
    with pytest.raises(InterfaceUnsupported, match='bound as vhostuser'):
        spawn(rig, vifs=[new_vif(type='vhostuser')])
    assert rig.here.disks.list_directories() == [] and rig.images.fetched == 0
    instance = spawn(rig)
    instance.vifs = [new_vif(type='vhostuser')]
    with pytest.raises(InterfaceUnsupported):
        rig.here.power.reboot(instance, 'HARD', image_meta())
    assert rig.here.guests.get_info(instance) == PowerState.RUNNING


def test_interfaces_are_measured(rig: Any) -> None:
    instance = spawn(rig, vifs=[new_vif()])
    found = rig.here.guests.get_instance_diagnostics(instance)
    assert (found.num_nics, found.nic_details[0].mac_address) == (1, 'fa:16:3e:00:00:01')
    assert 'tap1eeb6c43-4f_rx' in rig.here.guests.get_diagnostics(instance)


def test_the_xml_that_libvirt_holds_is_shown(rig: Any) -> None:
    instance = spawn(rig, GPU, GPU2)
    domain = shown(rig, instance)
    assert domain.get('id'), 'the running domain, not only its definition'
    assert domain.findtext('uuid') == instance.uuid
    assert (domain.findtext('vcpu'), domain.findtext('memory')) == ('8', str(32768 * 1024))
    assert [
        hostdev.find('source/address').get('bus')
        for hostdev in domain.findall('devices/hostdev')  # type: ignore[union-attr]
    ] == ['0x08', '0x88']
    assert domain.find('devices/disk/source').get('file') == str(  # type: ignore[union-attr]
        rig.file('gpu1', instance.uuid, 'disk')
    )
    mode = stat.S_IMODE(rig.file('gpu1', instance.uuid, 'libvirt.xml').stat().st_mode)
    assert mode == 0o600


def test_whose_server_it_is_can_be_read_from_the_domain(rig: Any) -> None:
    instance = spawn(rig, flavor=new_flavor(extra_specs={'pci_passthrough:alias': 'gpu:1'}))
    nova = '{http://openstack.org/xmlns/libvirt/nova/1.1}'
    kept = shown(rig, instance).find(f'metadata/{nova}instance')
    assert kept is not None and kept.find(f'{nova}owner/{nova}project').get('uuid') == 'demo'  # type: ignore[union-attr]
    assert kept.find(f'{nova}flavor/{nova}extraSpecs/{nova}extraSpec').text == 'gpu:1'  # type: ignore[union-attr]


def test_the_xml_follows_the_domain(rig: Any) -> None:
    instance = spawn(rig, GPU)
    rig.here.power.power_off(instance)
    assert shown(rig, instance).get('id') is None
    rig.here.guests.destroy(instance, destroy_disks=False)
    assert not rig.file('gpu1', instance.uuid, 'libvirt.xml').exists()


def test_a_restarted_host_shows_no_stale_xml_and_starts_guests_with_their_devices(rig: Any) -> None:
    instance = spawn(rig, GPU)
    rig.here = rig.driver('gpu1')
    assert rig.here.guests.list_instance_uuids() == []
    assert not rig.file('gpu1', instance.uuid, 'libvirt.xml').exists()
    assert rig.here.guests.get_info(instance) == PowerState.SHUTDOWN
    rig.here.power.power_on(instance, image_meta(), devices(GPU))
    assert rig.here.guests.describe()[0]['hostdevs'] == [GPU]


def test_a_start_finishes_the_deletions_of_before(rig: Any) -> None:
    instance = new_instance()
    rig.file('gpu1', f'{instance.uuid}_del').mkdir()
    rig.driver('gpu1')
    assert rig.here.disks.list_directories() == []


def test_no_xml_stays_where_the_disks_came_from(rig: Any) -> None:
    instance = spawn(rig, GPU)
    rig.here.moves.migrate_disk_and_power_off(instance, rig.there.moves.prepare_move(), new_flavor(root_gb=2))
    assert not rig.file('gpu1', f'{instance.uuid}_resize', 'libvirt.xml').exists()
    assert not rig.file('gpu2', instance.uuid, 'libvirt.xml').exists()


def test_a_boot_has_one_hostdev_and_a_bigger_flavor_two(rig: Any) -> None:
    """A boot with one GPU has one hostdev, with two GPUs two different ones. Their XML has nothing but their
    addresses."""
    for number, addresses in enumerate([(GPU,), (GPU, GPU2)]):
        hostdevs = shown(rig, spawn(rig, *addresses, id=number + 1)).findall('devices/hostdev')
        assert [hostdev.get('managed') for hostdev in hostdevs] == ['yes'] * len(addresses)
        assert len({ElementTree.tostring(hostdev) for hostdev in hostdevs}) == len(addresses)


def test_resize_grows_the_disk_and_revert_has_the_old_size(rig: Any) -> None:
    """A resize gives the guest the new vCPUs, memory, hostdevs and disk size. A revert starts the guest with the
    old disk."""
    instance = spawn(rig, GPU)
    old, new = instance.flavor, new_flavor(vcpus=16, memory_mb=65536, root_gb=3)
    disk_info = rig.here.moves.migrate_disk_and_power_off(instance, rig.there.moves.prepare_move(), new)
    instance.flavor = new
    rig.there.moves.finish_migration(instance, image_meta(), devices(GPU, GPU2), True, disk_info)
    domain = shown(rig, instance, 'gpu2')
    assert (domain.findtext('vcpu'), domain.findtext('memory')) == ('16', str(65536 * 1024))
    assert len(domain.findall('devices/hostdev')) == 2
    assert qemu_size(rig.file('gpu2', instance.uuid, 'disk')) == 3 << 30
    instance.flavor = old
    rig.there.moves.cleanup_move_dest(instance, same_host=False)
    rig.here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True)
    assert qemu_size(rig.file('gpu1', instance.uuid, 'disk')) == 1 << 30


def test_the_image_travels_once_and_disks_read_from_their_own_host(rig: Any) -> None:
    for _server in range(2):
        instance = spawn(rig, id=_server + 1)
        rig.here.moves.migrate_disk_and_power_off(instance, rig.there.moves.prepare_move(), new_flavor(root_gb=2))
        backing = os.path.dirname(rig.there.disks.directory(instance.uuid).disks()['disk'].backing)
        assert backing == str(rig.file('gpu2', '_base'))
    assert len(list(rig.file('gpu2', '_base').iterdir())) == 1
    assert rig.images.fetched == 1


def test_a_sparse_disk_stays_small_on_its_way(rig: Any) -> None:
    instance = spawn(rig, flavor=new_flavor(root_gb=16))
    rig.write('gpu1', instance.uuid)
    rig.here.moves.migrate_disk_and_power_off(instance, rig.there.moves.prepare_move(), new_flavor(root_gb=32))
    assert rig.file('gpu2', instance.uuid, 'disk').stat().st_blocks * 512 < 2 << 20


def test_finish_without_disks_is_refused(rig: Any) -> None:
    with pytest.raises(GuestFailed, match='have not arrived'):
        rig.there.moves.finish_migration(new_instance(), image_meta(), [], True, {'move': 'm-1', 'disks': []})


def test_equal_ids_of_a_machine_are_not_enough(rig: Any) -> None:
    """Containers of one image share machine id and boot id, not what is under the same path: ssh it is."""
    instance = spawn(rig)
    dest = {
        **rig.there.moves.prepare_move(),
        'storage_id': 'what the other container has there',
        'address': '127.0.0.9',
    }
    with pytest.raises(errors.DisksUnmovable, match=r'from gpu1 to gpu2: ssh 127\.0\.0\.9 failed'):
        rig.here.moves.migrate_disk_and_power_off(instance, dest, new_flavor(root_gb=2))
    assert rig.here.guests.get_info(instance) == PowerState.RUNNING


def test_shrinking_below_what_the_image_made_is_refused(rig: Any) -> None:
    """A flavor without root_gb takes the image's size."""
    instance = spawn(rig, flavor=new_flavor(root_gb=0))
    path = rig.file('gpu1', instance.uuid, 'disk')
    assert qemu_size(path) == 64 << 20
    builders.subprocess.run(['qemu-img', 'resize', '-q', str(path), '3G'], check=True)
    with pytest.raises(errors.ResizeError, match=r'Unable to resize disk down\.'):
        rig.here.moves.check_move(instance, rig.there.moves.prepare_move(), new_flavor(root_gb=2))


def test_a_destination_without_room_is_refused(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = spawn(rig)
    rig.write('gpu1', instance.uuid)
    own = files.used(str(rig.file('gpu1', instance.uuid, 'disk')))
    base = files.used(rig.here.disks.directory(instance.uuid).disks()['disk'].backing)
    # With what the disk reads from, unless that is there already.
    for needed in (own + base, own):
        with monkeypatch.context() as full:
            full.setattr('shutil.disk_usage', lambda path: SimpleNamespace(total=1 << 40, used=1 << 40, free=1000))
            with pytest.raises(errors.DisksUnmovable, match=f'disks need {needed} bytes, but only 1000 bytes are free'):
                rig.here.moves.check_move(instance, rig.there.moves.prepare_move(), new_flavor(root_gb=2))
        rig.there.disks.fetch(instance, image_meta())


def test_a_leftover_of_another_move_is_not_the_server(rig: Any) -> None:
    instance = spawn(rig)
    rig.write('gpu1', instance.uuid)
    leftover = rig.file('gpu1', f'{instance.uuid}_resize')
    leftover.mkdir()
    (leftover / 'move.json').write_text('{"move": "long ago"}')
    # Undo of a move that never began: the server is not replaced by the leftover.
    rig.here.moves.cleanup_move_dest(instance, same_host=True)
    rig.here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True)
    assert rig.kept('gpu1', instance.uuid)
    # A move that does begin: the leftover goes.
    offer = rig.here.moves.prepare_move()
    disk_info = rig.here.moves.migrate_disk_and_power_off(instance, offer, new_flavor(root_gb=2))
    instance.flavor = new_flavor(root_gb=2)
    rig.here.moves.finish_migration(instance, image_meta(), devices(GPU), True, disk_info)
    assert rig.kept('gpu1', instance.uuid)


def test_devices_for_guests_that_cannot_have_any_stop_the_build_before_its_disks(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices for a guest that can have none stop the build before an image is fetched or a disk is made."""
    object.__setattr__(rig.here.host.settings, 'virt_type', 'lxc')
    instance = new_instance()
    with pytest.raises(errors.PciDeviceUnsupportedHypervisor):
        rig.here.guests.spawn(instance, image_meta(), pci_devices=devices(GPU))
    assert rig.here.disks.list_directories() == [] and rig.images.fetched == 0


def test_an_unsupported_bus_stops_the_build_before_its_disks(rig: Any) -> None:
    with pytest.raises(UnsupportedHardware, match='floppy'):
        spawn(rig, meta=image_meta(properties={'hw_disk_bus': 'floppy'}))
    assert rig.images.fetched == 0


def test_libvirts_errors_stay_inside(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Guest) -> str:
        raise libvirt.libvirtError('no')

    instance = spawn(rig)
    monkeypatch.setattr(Guest, 'xml', fail)
    with pytest.raises(GuestFailed):
        rig.here.power.power_off(instance)


def test_xml_that_libvirt_refuses(rig: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(GuestFailed, match='could not define guest'):
        spawn(rig, flavor=new_flavor(vcpus=0))
    assert 'Error defining a guest with XML: <domain' in caplog.text


def test_a_renamed_guest_is_replaced(rig: Any) -> None:
    instance = spawn(rig)
    instance.id = 77
    rig.here.power.reboot(instance, 'HARD', image_meta(), [])
    assert [domain['name'] for domain in rig.here.guests.describe()] == ['instance-0000004d']


def test_soft_reboot_of_a_guest_that_does_not_go_becomes_hard(
    rig: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level('INFO')
    instance = spawn(rig)
    monkeypatch.setattr(Guest, '_ask_to_go', lambda self: None)
    rig.here.power._soft_wait = 0
    rig.here.power.reboot(instance, 'SOFT', image_meta(), [])
    assert 'Failed to soft reboot instance.' in caplog.text
    assert 'Instance rebooted successfully.' in caplog.text
    assert rig.here.guests.get_info(instance) == PowerState.RUNNING


def test_a_guest_that_does_not_go_is_asked_again_and_then_cut(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    now = [0.0]
    monkeypatch.setattr(Guest, '_ask_to_go', lambda self: asked.append(now[0]))
    monkeypatch.setattr(
        'kilonova.virt.libvirt.guest.time',
        SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)),
    )
    instance = spawn(rig)
    rig.here.power.power_off(instance, timeout=25, retry_interval=10)
    assert len(asked) == 3 and asked[0] == 0.0 and now[0] == pytest.approx(25)
    assert rig.here.guests.get_info(instance) == PowerState.SHUTDOWN


def test_the_log_tells_the_story(rig: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Builds, reboots and deletes log Nova's lines, the guest's XML among them."""
    caplog.set_level('DEBUG')
    instance = spawn(rig, GPU)
    rig.here.power.power_off(instance, timeout=5)
    rig.here.power.reboot(instance, 'SOFT', image_meta(), devices(GPU))
    rig.here.power.reboot(instance, 'SOFT', image_meta(), devices(GPU))
    rig.here.guests.destroy(instance)
    told = [record.getMessage() for record in caplog.records if getattr(record, 'instance_uuid', '') == instance.uuid]
    story = [
        'Start _get_guest_xml',
        'End _get_guest_xml xml=<domain',
        'Guest created on hypervisor',
        'Instance spawned successfully.',
        'Instance shutdown successfully after',
        'Instance rebooted successfully.',
        'Instance soft rebooted successfully.',
        'Instance destroyed successfully.',
        'Deleting instance files',
        'Deletion of',
    ]
    remaining = iter(told)
    missing = [line for line in story if not any(text.startswith(line) for text in remaining)]
    assert missing == []


def test_a_libvirt_without_node_devices_has_none_to_give(
    rig: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Unsupported(libvirt.libvirtError):
        def get_error_code(self) -> int:
            return libvirt.VIR_ERR_NO_SUPPORT

    def refuse(act: Any) -> Any:
        raise Unsupported('listAllDevices')

    monkeypatch.setattr(rig.here.host._libvirt, 'do', refuse)
    assert rig.here.host._libvirt.node_devices() == []
    assert 'does not support listing the devices of the host' in caplog.text


def test_a_base_that_was_cleared_away_is_fetched_again(rig: Any) -> None:
    instance = spawn(rig, flavor=new_flavor(swap=1))
    rig.here.power.power_off(instance)
    for path in rig.file('gpu1', '_base').iterdir():
        path.unlink()
    rig.here.power.power_on(instance, image_meta(), [])
    assert rig.images.fetched == 2 and len(list(rig.file('gpu1', '_base').iterdir())) == 2


def test_a_server_without_its_disk_says_so(rig: Any) -> None:
    with pytest.raises(GuestFailed, match='root disk is not on this host'):
        rig.here.power.power_on(new_instance(), image_meta(), [])


@pytest.mark.parametrize('images_type', ['ploop', 'lvm'])
def test_kinds_of_disks_that_are_not_served(tmp_path: Path, images_type: str) -> None:
    with pytest.raises(DriverMisconfigured, match=images_type):
        LibvirtDriver(builders.new_conf(tmp_path, libvirt={'images_type': images_type}))


def test_a_host_that_cannot_be_reached(tmp_path: Path) -> None:
    conf = builders.new_conf(tmp_path, libvirt={'connection_uri': f'test://{tmp_path}/missing.xml'})
    with pytest.raises(DriverMisconfigured, match='cannot connect to libvirt at test:///'):
        LibvirtDriver(conf).host.init_host()


def test_a_misconfigured_host_does_not_start(tmp_path: Path) -> None:
    uri = builders.write_node(tmp_path / 'n.xml')
    with pytest.raises(DriverMisconfigured, match='virt_type lxc'):
        LibvirtDriver(builders.new_conf(tmp_path, libvirt={'connection_uri': uri, 'virt_type': 'lxc'})).host.init_host()


@pytest.mark.parametrize(
    ('versions', 'text'),
    [
        ((9009000, 9000000), 'live_migratable, for which libvirt 9009000 is too old, 10000000'),
        ((10000000, 8002001), 'live_migratable, for which QEMU 8002001 is too old, 8002002'),
        ((10000000, 8002002), None),
    ],
)
def test_live_migratable_devices_need_a_host_that_can_move_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: tuple[int, int], text: str | None
) -> None:
    def start(says: str) -> None:
        conf = builders.new_conf(
            tmp_path,
            libvirt={'connection_uri': builders.write_node(tmp_path / 'n.xml')},
            pci={'device_spec': [json.dumps({'vendor_id': '10de', 'live_migratable': says})]},
        )
        LibvirtDriver(conf).host.init_host()

    start('true')
    # The library plays a host of versions that it hasn't.
    made = Connection.__init__

    def real(self: Connection, *args: Any) -> None:
        made(self, *args)
        self.is_test = False

    monkeypatch.setattr(Connection, '__init__', real)
    monkeypatch.setattr(Connection, 'libvirt_version', lambda self: versions[0])
    monkeypatch.setattr(Connection, 'version', lambda self: versions[1])
    monkeypatch.setattr(LibvirtHost, 'settings', SimpleNamespace(cpu_models=()))
    monkeypatch.setattr(LibvirtHost, 'offer', None)
    start('false')
    if text is None:
        start('true')
        return
    with pytest.raises(DriverMisconfigured, match=re.escape(text)):
        start('true')


@pytest.mark.parametrize('act', ['on', 'reboot'])
def test_a_fresh_start_is_not_one_from_saved_memory(rig: Any, monkeypatch: pytest.MonkeyPatch, act: str) -> None:
    """libvirt would take the old guest's memory for the new domain."""
    instance = spawn(rig, GPU)
    rig.here.power.suspend(instance, lambda: None)
    saved, start = [], Guest.start

    def watched(guest: Guest, *, paused: bool = False) -> None:
        saved.append(guest.is_saved())
        start(guest, paused=paused)

    monkeypatch.setattr(Guest, 'start', watched)
    if act == 'on':
        rig.here.power.power_on(instance, image_meta(), devices(GPU))
    else:
        rig.here.power.reboot(instance, 'HARD', image_meta(), devices(GPU))
    assert saved == [False] and rig.here.guests.get_info(instance) == PowerState.RUNNING


def test_a_rescue_that_can_not_be_leaves_the_guest_running(rig: Any) -> None:
    """It is refused before the guest is stopped."""
    instance = spawn(rig, GPU)
    images = rig.here.rescues._files._images

    def stopped(*args: Any) -> None:
        raise AssertionError('the guest was stopped')

    rig.here.power.power_off = stopped
    with pytest.raises(UnsupportedHardware):
        rig.here.rescues.rescue(
            instance, image_meta(), image_meta(id='image-2', properties={'hw_rescue_bus': 'lxc'}), devices(GPU)
        )
    images.path, kept = builders.make_image(rig.path / 'large.qcow2', size='2G'), images.path
    with pytest.raises(FlavorDiskSmallerThanImage):
        rig.here.rescues.rescue(instance, image_meta(), image_meta(id='image-3'), devices(GPU))
    images.path = kept
    assert rig.here.guests.get_info(instance) == PowerState.RUNNING
    assert not [path for path in rig.file('gpu1', instance.uuid).iterdir() if 'rescue' in path.name]


def test_what_a_rescue_starts(rig: Any) -> None:
    """[libvirt]rescue_kernel_id before the image's own kernel, that before the server's."""
    started = []
    for host_has, image_has, wanted in (
        (None, None, 'own-kernel'),
        (None, 'image-kernel', 'image-kernel'),
        ('host-kernel', 'image-kernel', 'host-kernel'),
    ):
        here = rig.driver('gpu1', libvirt={'rescue_kernel_id': host_has})
        instance = new_instance(kernel_id='own-kernel')
        here.guests.spawn(instance, image_meta(), pci_devices=())
        here.rescues._files._cache.kernel = lambda image_id, download: started.append(image_id) or str(rig.images.path)
        properties = {'kernel_id': image_has} if image_has else {}
        here.rescues.rescue(instance, image_meta(), image_meta(id='image-2', properties=properties), ())
        assert started.pop(0) == wanted
        assert shown(rig, instance).findtext('os/kernel', '').endswith('/kernel.rescue')
        started.clear()


@pytest.mark.parametrize(('format_', 'seen'), [('iso9660', 'cdrom'), ('vfat', 'disk')])
def test_a_rescue_systems_config_drive_is_of_the_hosts_format(rig: Any, format_: str, seen: str) -> None:
    here, instance = rig.driver('gpu1', config_drive_format=format_), new_instance(config_drive='True')
    here.guests.spawn(instance, image_meta(), pci_devices=())
    here.rescues.rescue(instance, image_meta(), image_meta(id='image-2'), ())
    devices = {
        os.path.basename(one.find('source').get('file')): one.get('device')
        for one in shown(rig, instance).iterfind('devices/disk')
    }
    assert devices == {'disk.rescue': 'disk', 'disk': 'disk', 'disk.config.rescue': seen}


def test_a_rescue_systems_kernel_is_given_what_its_own_image_says(rig: Any) -> None:
    """Not what the server's image says; at the next start too."""
    own = image_meta(properties={'os_command_line': 'console=own'})
    for properties, wanted in (
        ({'kernel_id': 'k', 'os_command_line': 'console=rescue'}, 'console=rescue'),
        ({'kernel_id': 'k'}, 'root=/dev/vda console=tty0 console=ttyS0 console=hvc0'),
    ):
        instance = new_instance()
        rig.here.guests.spawn(instance, own, pci_devices=())
        rig.here.rescues._files._cache.kernel = lambda image_id, download: str(rig.images.path)
        rig.here.rescues.rescue(instance, own, image_meta(id='image-2', properties=properties), ())
        assert shown(rig, instance).findtext('os/cmdline') == wanted
        rig.here.rescues.restart(instance, own, ())
        assert shown(rig, instance).findtext('os/cmdline') == wanted
        rig.here.guests.destroy(instance)

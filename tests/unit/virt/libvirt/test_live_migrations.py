"""What live migrations ask of libvirt and of the other host, where its test driver has no answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import libvirt
import pytest

from kilonova import errors
from kilonova.objects import Flavor
from kilonova.states import PowerState, VmState
from kilonova.virt.hardware import constraints, numa
from kilonova.virt.hardware.offer import Offer
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.migration import live_migration, migration_job
from kilonova.virt.libvirt.storage.requested_disks import RequestedDisk
from kilonova.virt.parts.live_migrations import LivePlace, PlacedOffer
from tests.unit.virt.builders import MDEV2, image_meta, new_instance
from tests.unit.virt.conftest import LibvirtRig, SharedRig

DOMAIN = """<domain type='qemu'>
<vcpu placement='static' cpuset='0-3'>2</vcpu>
<cputune><shares>512</shares><vcpupin vcpu='0' cpuset='0'/></cputune>
<numatune><memory mode='strict' nodeset='0'/></numatune>
<cpu><topology sockets='1' cores='1' threads='2'/><numa><cell id='0' cpus='0-1' memory='1' unit='KiB'/></numa></cpu>
<devices>
  <disk type='file' device='disk'><source file='/a/instances/u/disk'/><backingStore/><target dev='vda'/></disk>
  <serial type='file'><source path='/a/instances/u/console.log'/></serial>
  <graphics type='vnc' port='5901' autoport='yes' listen='192.0.2.1'><listen type='address' address='192.0.2.1'/>
  </graphics>
  <graphics type='spice' listen='192.0.2.1'><listen type='address' address='192.0.2.1'/></graphics>
  <graphics type='egl-headless'/>
</devices></domain>"""


NOWHERE: LivePlace = {'cpuset': None, 'cputune': None, 'numatune': None}


def carried(place: LivePlace = NOWHERE, **listen: str) -> ElementTree.Element:
    """The domain as the destination gets it."""
    offer: PlacedOffer = {'block': True, 'uri': 'there', 'data_uri': 'there', 'listen': listen, 'place': place}
    return ElementTree.fromstring(migration_job.rewritten(DOMAIN, '/a/instances/u', '/b/u', offer))


def test_screens_listen_where_the_destination_says() -> None:
    domain = carried(vnc='192.0.2.2', spice='192.0.2.3')
    found = {
        one.get('type'): (one.get('listen'), [each.get('address') for each in one.findall('listen')])
        for one in domain.iterfind('devices/graphics')
    }
    assert found == {
        'vnc': ('192.0.2.2', ['192.0.2.2']),
        'spice': ('192.0.2.3', ['192.0.2.3']),
        'egl-headless': (None, []),
    }
    sources = [one.get('file') or one.get('path') for one in domain.iter('source')]
    assert sources == ['/b/u/disk', '/b/u/console.log'] and domain.find('devices/disk/backingStore') is None


def test_cpus_and_memory_are_where_the_destination_says() -> None:
    """What the guest sees of them stays, whatever the threads of cores are there."""
    tunes = {
        'cputune': '<cputune><vcpupin vcpu="0" cpuset="8"/></cputune>',
        'numatune': '<numatune><memory mode="strict" nodeset="1"/></numatune>',
    }
    domain, before = carried({'cpuset': '4-5', **tunes}), ElementTree.fromstring(DOMAIN)  # type: ignore[typeddict-item]
    for name, text in tunes.items():
        assert [ElementTree.tostring(one, encoding='unicode').replace(' />', '/>') for one in domain.findall(name)] == [
            text
        ]
    vcpu, bare = domain.find('vcpu'), carried()
    assert vcpu is not None and (vcpu.attrib, vcpu.text) == ({'placement': 'static', 'cpuset': '4-5'}, '2')
    assert [bare.find(path) for path in ('vcpu[@cpuset]', 'cputune', 'numatune')] == [None] * 3
    for each in (domain, bare):
        assert ElementTree.tostring(each.find('cpu')) == ElementTree.tostring(before.find('cpu'))  # type: ignore[arg-type]


HOSTDEVS = """<domain type='kvm'><devices>
  <hostdev mode='subsystem' type='pci' managed='no'>
    <source><address domain='0x0000' bus='0x3b' slot='0x00' function='0x4'/></source>
    <address type='pci' domain='0x0000' bus='0x05' slot='0x00' function='0x0'/></hostdev>
  <hostdev mode='subsystem' type='mdev' model='vfio-pci'>
    <source><address uuid='4b20d080-1b54-4048-85b3-a6a62d165c01'/></source>
    <address type='pci' domain='0x0000' bus='0x06' slot='0x00' function='0x0'/></hostdev>
</devices></domain>"""


def test_devices_become_those_of_the_destination() -> None:
    """Where the guest sees them stays. One that has no counterpart isn't left out."""
    offer: PlacedOffer = {
        'listen': {},
        'place': NOWHERE,
        'hostdevs': {  # type: ignore[typeddict-item]
            '0000:3b:00.4': '0001:5e:1f.7',
            '4b20d080-1b54-4048-85b3-a6a62d165c01': MDEV2,
        },
    }
    domain = ElementTree.fromstring(migration_job.rewritten(HOSTDEVS, '/a/u', '/b/u', offer))
    assert [one.attrib for one in domain.iterfind('devices/hostdev/source/address')] == [
        {'domain': '0x0001', 'bus': '0x5e', 'slot': '0x1f', 'function': '0x7'},
        {'uuid': MDEV2},
    ]
    assert [one.get('bus') for one in domain.iterfind('devices/hostdev/address')] == ['0x05', '0x06']
    del offer['hostdevs']['0000:3b:00.4']
    with pytest.raises(errors.MigrationError, match=r'no device to replace 0000:3b:00\.4'):
        migration_job.rewritten(HOSTDEVS, '/a/u', '/b/u', offer)


VOLUMES = """<domain type='kvm'><devices>
  <disk type='file' device='disk'><source file='/a/u/disk'/><target dev='vda'/></disk>
  <disk type='block' device='disk'><driver name='qemu' type='raw' cache='none'/><source dev='/dev/sdq' index='3'/>
    <target dev='vdb' bus='virtio'/><serial>one</serial><alias name='ua-one'/><address type='pci' slot='0x07'/></disk>
  <disk type='network' device='disk'><auth username='here'><secret type='ceph' uuid='a'/></auth>
    <source protocol='rbd' name='pool/two'><host name='192.0.2.1'/></source>
    <target dev='vdc' bus='virtio'/><serial>two</serial></disk>
  <disk type='network' device='disk'><source protocol='rbd' name='pool/three'/><target dev='vdd'/>
    <serial>three</serial></disk>
</devices></domain>"""


def test_volumes_are_found_where_the_destination_has_them() -> None:
    """What the guest sees of them stays. They aren't copied. One that isn't connected there isn't left out."""
    rbd = in_ceph('two', 'there')
    offer: PlacedOffer = {
        'listen': {},
        'place': NOWHERE,
        'volumes': {  # type: ignore[typeddict-item]
            'one': '<disk type="block"><source dev="/dev/dm-9"/></disk>',
            'two': rbd,
            'three': '<disk type="file"><source file="/mnt/three"/></disk>',
        },
    }
    before, after = (
        ElementTree.fromstring(text) for text in (VOLUMES, migration_job.rewritten(VOLUMES, '/a/u', '/b/u', offer))
    )
    assert [
        (
            one.get('type'),
            [source.attrib for source in one.findall('source')],
            [auth.attrib for auth in one.findall('auth')],
        )
        for one in after.iterfind('devices/disk')
    ] == [
        ('file', [{'file': '/b/u/disk'}], []),
        ('block', [{'dev': '/dev/dm-9'}], []),
        ('network', [{'protocol': 'rbd', 'name': 'pool/two'}], [{'username': 'there'}]),
        ('file', [{'file': '/mnt/three'}], []),
    ]
    for path in ('driver', 'target', 'serial', 'alias', 'address'):
        seen = [[(one.attrib, one.text) for one in tree.iterfind(f'devices/disk/{path}')] for tree in (before, after)]
        assert seen[0] == seen[1]
    assert migration_job.copied_disks(VOLUMES, '/a/u') == ['vda']
    del offer['volumes']['two']
    with pytest.raises(errors.MigrationError, match='has not connected volume two'):
        migration_job.rewritten(VOLUMES, '/a/u', '/b/u', offer)


def in_ceph(name: str, user: str) -> str:
    return (
        f'<disk type="network"><auth username="{user}"><secret type="ceph" uuid="b"/></auth>'
        f'<source protocol="rbd" name="pool/{name}"><host name="192.0.2.2"/></source></disk>'
    )


@pytest.mark.parametrize('own', [True, False])
def test_a_guest_with_no_disks_of_its_own_copies_none(libvirt_rig: LibvirtRig, own: bool) -> None:
    """libvirt would copy all of them: those that the list names, and without one all."""
    live, instance = libvirt_rig.here.live_migrations, new_instance()
    offer = {
        'block': True,
        'data_uri': 'd',
        'uri': 'u',
        'host': 'gpu2',
        'listen': {},
        'place': NOWHERE,
        'instances_path': '/b',
        'volumes': {'one': '<disk type="block"><source dev="/dev/dm-9"/></disk>'},
    }
    path = live._disks.directory(instance.uuid).path if own else '/elsewhere'
    text = f"""<domain type='kvm'><devices>
      <disk type='file' device='disk'><source file='{path}/disk'/><target dev='vda'/></disk>
      <disk type='block' device='disk'><source dev='/dev/sdq'/><target dev='vdb'/><serial>one</serial></disk>
    </devices></domain>"""
    guest = SimpleNamespace(
        uuid=instance.uuid,
        power_state=lambda: PowerState.RUNNING,
        call=lambda name, *args: text if name == 'XMLDesc' else [1, 1],
    )
    way = live._way(guest, instance, offer)
    assert bool(way.flags & libvirt.VIR_MIGRATE_NON_SHARED_DISK) == own
    assert way.parameters.get(libvirt.VIR_MIGRATE_PARAM_MIGRATE_DISKS) == (['vda'] if own else None)


@pytest.mark.parametrize(
    ('versions', 'text'),
    [
        ((8005009, 8001000), 'libvirt 8005009 of the source is too old to migrate mediated devices, 8006000 is needed'),
        ((8006000, 8000099), 'QEMU 8000099 of the source'),
        ((8006000, 8001000), None),
    ],
)
def test_mediated_devices_need_hosts_that_can_move_them(
    libvirt_rig: LibvirtRig, monkeypatch: pytest.MonkeyPatch, versions: tuple[int, int], text: str | None
) -> None:
    host = libvirt_rig.driver('gpu2').host
    host.check_moves_mdevs('source')
    monkeypatch.setattr(Connection, 'libvirt_version', lambda self: versions[0])
    monkeypatch.setattr(Connection, 'version', lambda self: versions[1])
    monkeypatch.setattr(host._libvirt, 'is_test', False)
    if text is None:
        host.check_moves_mdevs('source')
        return
    with pytest.raises(errors.MigrationPreCheckError, match=text):
        host.check_moves_mdevs('source')


def test_a_guest_that_can_not_be_at_its_place_is_refused(libvirt_rig: LibvirtRig) -> None:
    """All its CPUs have realtime priority, and the emulator's threads would run on shared ones, of which there are
    none."""
    specs = {'hw:cpu_policy': 'dedicated', 'hw:cpu_realtime': 'yes', 'hw:emulator_threads_policy': 'share'}
    flavor = Flavor(vcpus=2, memory_mb=512, extra_specs=specs)
    host = numa.topology_of(numa.spread(1, 1, 4, 1, 4096), Offer(shared=frozenset(), dedicated=frozenset(range(4))))
    wanted = constraints.of(flavor)
    assert host is not None and wanted is not None
    instance = new_instance(flavor=flavor, numa_topology=numa.fit(host, wanted))
    sharing = libvirt_rig.driver('gpu2', compute={'cpu_shared_set': '4-5', 'cpu_dedicated_set': '0-3'})
    assert '<emulatorpin cpuset="4-5"' in (sharing.live_migrations.place(instance, image_meta())['cputune'] or '')
    with pytest.raises(errors.MigrationPreCheckError, match='cpu_shared_set'):
        libvirt_rig.there.live_migrations.place(instance, image_meta())


def test_the_destination_says_where_its_screens_listen(libvirt_rig: LibvirtRig) -> None:
    rig = libvirt_rig
    there = rig.driver('gpu2', vnc={'server_listen': '192.0.2.2'}, spice={'server_listen': '192.0.2.3'})
    instance = new_instance()
    rig.here.guests.spawn(instance, image_meta())
    offer = there.live_migrations.offer(instance, rig.here.live_migrations.describe(instance), None, True)
    assert offer['listen'] == {'vnc': '192.0.2.2', 'spice': '192.0.2.3'}


def test_serial_consoles_on_ports_stay_with_their_host(libvirt_rig: LibvirtRig) -> None:
    here = libvirt_rig.driver('gpu1', serial_console={'enabled': True})
    instance = new_instance()
    here.guests.spawn(instance, image_meta())
    with pytest.raises(errors.MigrationError, match=r'serial consoles on TCP ports of its host'):
        here.live_migrations.describe(instance)


def test_without_its_disks_only_where_both_hosts_use_them(libvirt_rig: LibvirtRig, shared_rig: SharedRig) -> None:
    instance = new_instance()
    libvirt_rig.here.guests.spawn(instance, image_meta())
    guest = libvirt_rig.here.live_migrations.describe(instance)
    with pytest.raises(errors.MigrationPreCheckError, match='is not on shared storage'):
        libvirt_rig.there.live_migrations.offer(instance, guest, False, True)
    other = new_instance()
    shared_rig.here.guests.spawn(other, image_meta())
    guest = shared_rig.here.live_migrations.describe(other)
    with pytest.raises(errors.MigrationPreCheckError, match='is not on local storage'):
        shared_rig.there.live_migrations.offer(other, guest, True, True)
    with pytest.raises(errors.MigrationPreCheckError, match='its path is /elsewhere on the source'):
        shared_rig.there.live_migrations.offer(other, {**guest, 'instances_path': '/elsewhere'}, None, True)


@pytest.mark.parametrize(('drive', 'copied'), [('iso9660', False), ('vfat', True)])
def test_a_config_drive_that_is_a_disk_goes_as_one(libvirt_rig: LibvirtRig, drive: str, copied: bool) -> None:
    """QEMU carries it; a CD goes as a file before."""
    here, instance = libvirt_rig.driver('gpu1', config_drive_format=drive), new_instance(config_drive='True')
    here.guests.spawn(instance, image_meta())
    guest = here.live_migrations.describe(instance)
    assert {one['name']: one['copied'] for one in guest['disks']} == {'disk': True, 'disk.config': copied}
    xml = here.guests._libvirt.find(instance.uuid).xml()  # type: ignore[union-attr]
    path = here.disks.directory(instance.uuid).path
    assert migration_job.copied_disks(xml, path) == ['vda', *(['vdb'] if copied else [])]
    libvirt_rig.there.live_migrations.prepare(
        instance, guest, libvirt_rig.there.live_migrations.offer(instance, guest, None, True)
    )
    assert libvirt_rig.there.disks.directory(instance.uuid).asked().get('disk.config') == (
        RequestedDisk(device='disk') if copied else None
    )


@pytest.mark.parametrize(('over_commit', 'fits'), [(True, True), (False, False)])
def test_holes_need_room_unless_disks_may_be_over_committed(
    libvirt_rig: LibvirtRig, over_commit: bool, fits: bool
) -> None:
    instance = new_instance()
    libvirt_rig.here.guests.spawn(instance, image_meta())
    guest = libvirt_rig.here.live_migrations.describe(instance)
    guest['disks'][0]['size'] = 1 << 60
    if fits:
        assert libvirt_rig.there.live_migrations.offer(instance, guest, None, over_commit)['block']
        return
    with pytest.raises(errors.MigrationPreCheckError, match='is too large'):
        libvirt_rig.there.live_migrations.offer(instance, guest, None, over_commit)


def test_a_cpu_that_guests_can_not_have_there_is_refused(
    libvirt_rig: LibvirtRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance, asked = new_instance(), []
    libvirt_rig.here.guests.spawn(instance, image_meta())
    guest = libvirt_rig.here.live_migrations.describe(instance)
    guest['cpu'] = '<cpu><model>none</model></cpu>'

    def lacks_cpu(connection: object, *wanted: object) -> str:
        asked.append(wanted)
        return 'missing features: avx512f'

    monkeypatch.setattr(live_migration.migration_job, 'lacks_cpu', lacks_cpu)
    with pytest.raises(errors.MigrationPreCheckError, match=r'Unacceptable CPU info: .* gpu2: missing features: avx'):
        libvirt_rig.there.live_migrations.offer(instance, guest, None, True)
    assert asked == [(guest['cpu'], guest['arch'], guest['machine'], guest['virt_type'])]


class Going:
    """A guest whose migration libvirt is at, until it is over; ``held``: it stands still."""

    uuid = 'u'

    def __init__(self) -> None:
        self.under_way, self.held, self.resumed = True, False, False

    def call(self, name: str, *args: Any) -> Any:
        if name == 'jobStats':
            return {
                'type': libvirt.VIR_DOMAIN_JOB_UNBOUNDED if self.under_way else libvirt.VIR_DOMAIN_JOB_NONE,
                'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT,
            }
        assert name == 'state'
        return (
            (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER)
            if self.held
            else (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED)
        )

    def power_state(self) -> PowerState:
        return PowerState.PAUSED if self.held else PowerState.RUNNING

    def hold(self) -> None:
        self.held = True

    def go_on(self) -> None:
        self.held, self.resumed = False, True


@pytest.mark.parametrize(('vm_state', 'resumed'), [(VmState.ACTIVE, True), (VmState.PAUSED, False)])
def test_a_guest_that_is_forced_stands_still_and_goes_on_where_it_stays(
    libvirt_rig: LibvirtRig, monkeypatch: pytest.MonkeyPatch, vm_state: str, resumed: bool
) -> None:
    """One of a server that is paused was held by its user."""
    live, guest = libvirt_rig.here.live_migrations, Going()
    instance: Any = SimpleNamespace(uuid='u', vm_state=vm_state)
    monkeypatch.setattr(live, '_libvirt', SimpleNamespace(find=lambda uuid: guest, is_test=False))
    live.force_complete(instance)
    assert guest.held
    guest.under_way = False
    with pytest.raises(errors.MigrationError, match='the guest is not being migrated'):
        live.force_complete(instance)
    live.go_on(instance)
    assert (guest.resumed, guest.held) == (resumed, not resumed)

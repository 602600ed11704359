"""What every driver promises (kilonova.virt.parts), shown on each."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from kilonova import errors, objects
from kilonova.pci import device as pci_device
from kilonova.states import PowerState
from kilonova.virt import disk_names
from kilonova.virt.libvirt.storage import disk
from kilonova.virt.parts.guests import GuestFailed, UnsupportedHardware
from kilonova.virt.parts.volume_snapshots import Merge
from kilonova.virt.parts.volumes import VolumeUnsupported
from tests.fixtures.carved import CarvedSys
from tests.unit.virt.builders import (
    GPU,
    GPU2,
    GPU3,
    MDEV,
    MDEV2,
    PORT,
    PORT2,
    VGPU,
    VGPU_PARENT,
    VOLUME,
    VOLUME2,
    device,
    devices,
    image_meta,
    mediated,
    new_flavor,
    new_instance,
    new_locked_volume,
    new_vif,
    new_volume,
)
from tests.unit.virt.conftest import LibvirtRig

# Also where disks are in Ceph.
with_pool = pytest.mark.parametrize('rig', ['fake', 'libvirt', 'remote', 'shared', 'pool'], indirect=True)


def spawn(rig: Any, **values: Any) -> Any:
    instance = new_instance(**values)
    rig.here.guests.spawn(instance, image_meta(), pci_devices=devices(GPU))
    return instance


def domains(host: Any) -> dict[str, tuple[int, list[str]]]:
    return {domain['uuid']: (domain['state'], domain['hostdevs']) for domain in host.guests.describe()}


def move(
    rig: Any,
    instance: Any,
    flavor: Any,
    target: Any,
    addresses: tuple[str, ...] = (GPU2, GPU3),
    power_on: bool = True,
    times: int = 1,
) -> None:
    """A resize's two driver calls, each made ``times`` times as after a crash before the answer."""
    dest = json.loads(json.dumps(target.moves.prepare_move()))
    for _again in range(times):
        disk_info = rig.here.moves.migrate_disk_and_power_off(instance, dest, flavor)
    disk_info = json.loads(json.dumps(disk_info))
    instance.flavor = flavor
    for _again in range(times):
        target.moves.finish_migration(instance, image_meta(), devices(*addresses), power_on, disk_info)


def test_resource_has_the_keys_of_a_compute_node(rig: Any) -> None:
    resource = rig.here.host.get_available_resource()
    assert {
        'supported_instances',
        'vcpus',
        'memory_mb',
        'local_gb',
        'vcpus_used',
        'memory_mb_used',
        'local_gb_used',
        'hypervisor_type',
        'hypervisor_version',
        'hypervisor_hostname',
        'uuid',
        'cpu_info',
        'disk_available_least',
        'numa_topology',
        'stats',
        'pci_passthrough_devices',
    } == set(resource)
    assert resource['hypervisor_hostname'] == 'gpu1'
    again, other = rig.here.host.get_available_resource(), rig.there.host.get_available_resource()
    assert resource['uuid'] == again['uuid'] != other['uuid']
    assert ['x86_64', 'kvm', 'hvm'] in resource['supported_instances']
    assert json.loads(resource['cpu_info'])['arch'] == 'x86_64'


def test_inventory_and_traits(rig: Any) -> None:
    inventory = rig.here.host.inventory({'VCPU': {'allocation_ratio': 7.0}})
    assert inventory['VCPU'] == {
        'total': 64,
        'reserved': 0,
        'min_unit': 1,
        'max_unit': 64,
        'step_size': 1,
        'allocation_ratio': 7.0,
    }
    assert inventory['MEMORY_MB']['total'] == 262144 and inventory['MEMORY_MB']['reserved'] == 512
    assert {'COMPUTE_NODE', 'OWNER_NOVA', 'COMPUTE_IMAGE_TYPE_QCOW2'} <= rig.here.host.traits()


def test_uptime_is_what_clients_take_apart(rig: Any) -> None:
    """openstack hypervisor show splits it into host_time, uptime, users and load_average."""
    assert re.match(r'\s(.+)\sup\s+(.+),\s+(.+)\susers?,\s+load average:\s(.+)$', rig.here.host.uptime() or '')


def test_spawn_starts_a_guest_with_its_devices(rig: Any) -> None:
    instance = spawn(rig)
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])}
    assert rig.here.guests.describe()[0]['name'] == 'instance-00000001'
    assert rig.here.guests.list_instance_uuids() == [instance.uuid]
    assert rig.here.disks.list_directories() == [instance.uuid]
    assert rig.here.guests.get_info(instance) == PowerState.RUNNING


def test_spawn_again_replaces_the_guest(rig: Any) -> None:
    instance = spawn(rig)
    rig.here.guests.spawn(instance, image_meta(), pci_devices=devices(GPU2))
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU2])}


def test_what_no_host_takes_is_refused_before_anything_is_made(rig: Any) -> None:
    """An extra spec that no host accepts is refused before anything is made."""
    rig.here.guests.check(new_instance(flavor=new_flavor(extra_specs={'quota:cpu_shares': '512'})), image_meta())
    instance = new_instance(flavor=new_flavor(extra_specs={'quota:cpu_period': '1'}))
    for act in (rig.here.guests.check, rig.here.guests.spawn):
        with pytest.raises(errors.Invalid, match="'1' of 'quota:cpu_period': it must be from 1000 to 1000000"):
            act(instance, image_meta())
    assert domains(rig.here) == {} and rig.here.disks.list_directories() == []


def test_looking_at_a_guest(rig: Any) -> None:
    instance = spawn(rig)
    assert rig.here.guests.get_console_output(instance) == ''
    flat = rig.here.guests.get_diagnostics(instance)
    assert flat['memory'] == 32768 * 1024 and all(isinstance(value, int) for value in flat.values())
    found = rig.here.guests.get_instance_diagnostics(instance)
    assert (found.state, found.num_cpus, found.memory_details.maximum) == ('running', 8, 32768)
    assert len(found.cpu_details) == 8 and len(found.disk_details) == found.num_disks == 1
    assert found.obj_to_primitive()
    rig.here.guests.destroy(instance)
    assert rig.here.guests.get_console_output(instance) == ''
    for method in (rig.here.guests.get_diagnostics, rig.here.guests.get_instance_diagnostics):
        with pytest.raises(errors.KilonovaError):
            method(instance)


@pytest.mark.parametrize('times', [1, 2])
@pytest.mark.parametrize('power_on', [True, False])
def test_rebuild_makes_the_disk_anew_with_the_devices_given(rig: Any, power_on: bool, times: int) -> None:
    instance = spawn(rig)
    rig.write('gpu1', instance.uuid)
    rig.here.guests.prepare_rebuild(instance, image_meta(), devices(GPU))
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])}
    assert rig.kept('gpu1', instance.uuid)
    for _again in range(times):
        rig.here.guests.rebuild(instance, image_meta(), pci_devices=devices(GPU), power_on=power_on)
        state = PowerState.RUNNING if power_on else PowerState.SHUTDOWN
        assert domains(rig.here) == {instance.uuid: (state, [GPU])}
        assert not rig.kept('gpu1', instance.uuid)
    assert rig.here.disks.list_directories() == [instance.uuid]


def test_destroy_leaves_nothing_and_may_be_repeated(rig: Any) -> None:
    instance = spawn(rig)
    for _again in range(2):
        rig.here.guests.destroy(instance)
        assert rig.here.guests.describe() == []
        assert rig.here.disks.list_directories() == []


def test_destroy_can_keep_the_disks(rig: Any) -> None:
    instance = spawn(rig)
    rig.here.guests.destroy(instance, destroy_disks=False)
    assert rig.here.guests.describe() == []
    assert rig.here.disks.list_directories() == [instance.uuid]


def test_a_missing_domain_is_a_guest_that_is_off(rig: Any) -> None:
    instance = new_instance()
    rig.here.power.power_off(instance, timeout=1)
    assert rig.here.guests.get_info(instance) == PowerState.SHUTDOWN


@pytest.mark.parametrize('timeout', [0, 1])
def test_off_and_on_again_with_the_same_disk(rig: Any, timeout: int) -> None:
    instance = spawn(rig)
    rig.write('gpu1', instance.uuid)
    for _again in range(2):
        rig.here.power.power_off(instance, timeout=timeout, retry_interval=1)
        assert domains(rig.here) == {instance.uuid: (PowerState.SHUTDOWN, [GPU])}
    for _again in range(2):
        rig.here.power.power_on(instance, image_meta(), devices(GPU))
        assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])}
    assert rig.kept('gpu1', instance.uuid)


def test_power_on_builds_the_domain_from_the_devices_given(rig: Any) -> None:
    instance = spawn(rig)
    rig.here.power.power_off(instance)
    rig.here.power.power_on(instance, image_meta(), devices(GPU2, GPU3))
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU2, GPU3])}


@pytest.mark.parametrize('kind', ['SOFT', 'HARD'])
def test_reboot_keeps_the_disk_and_takes_the_devices_given(rig: Any, kind: str) -> None:
    instance = spawn(rig)
    rig.write('gpu1', instance.uuid)
    rig.here.power.reboot(instance, kind, image_meta(), devices(GPU2))
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU2])}
    assert rig.kept('gpu1', instance.uuid)


@pytest.mark.parametrize('kind', ['SOFT', 'HARD'])
def test_reboot_starts_a_guest_that_is_off(rig: Any, kind: str) -> None:
    instance = spawn(rig)
    rig.here.power.power_off(instance)
    rig.here.power.reboot(instance, kind, image_meta(), devices(GPU))
    assert rig.here.guests.get_info(instance) == PowerState.RUNNING


@pytest.mark.parametrize('times', [1, 2])
def test_pause_and_unpause(rig: Any, times: int) -> None:
    instance = spawn(rig)
    for _again in range(times):
        rig.here.power.pause(instance)
        assert domains(rig.here) == {instance.uuid: (PowerState.PAUSED, [GPU])}
    for _again in range(times):
        rig.here.power.unpause(instance)
        assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])}


@pytest.mark.parametrize('times', [1, 2])
def test_suspend_and_resume(rig: Any, times: int) -> None:
    """What a suspended guest is made from has its devices."""
    instance = spawn(rig)
    for _again in range(times):
        rig.here.power.suspend(instance, lambda: None)
        assert domains(rig.here) == {instance.uuid: (PowerState.SUSPENDED, [GPU])}
        assert rig.here.guests.get_info(instance) == PowerState.SUSPENDED
    for _again in range(times):
        rig.here.power.resume(instance, devices(GPU), lambda: None)
        assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])}


@pytest.mark.parametrize('act', ['pause', 'unpause', 'suspend', 'resume', 'trigger_crash_dump'])
def test_a_guest_that_is_off_or_gone_is_not_paused_suspended_or_interrupted(rig: Any, act: str) -> None:
    instance = spawn(rig)
    given = {'suspend': (lambda: None,), 'resume': (devices(GPU), lambda: None)}.get(act, ())
    rig.here.power.power_off(instance)
    for gone in (False, True):
        if gone:
            rig.here.guests.destroy(instance)
        with pytest.raises(GuestFailed):
            getattr(rig.here.power, act)(instance, *given)
        assert rig.here.guests.get_info(instance) == PowerState.SHUTDOWN


@pytest.mark.parametrize('act', ['off', 'on', 'reboot'])
def test_memory_that_was_saved_is_forgotten_by_a_stop_a_start_and_a_reboot(rig: Any, act: str) -> None:
    """The next start begins anew."""
    instance = spawn(rig)
    rig.here.power.suspend(instance, lambda: None)
    if act == 'on':
        rig.here.power.power_on(instance, image_meta(), devices(GPU2))
    elif act == 'reboot':
        rig.here.power.reboot(instance, 'HARD', image_meta(), devices(GPU2))
    rig.here.power.power_off(instance)
    assert rig.here.guests.get_info(instance) == PowerState.SHUTDOWN
    with pytest.raises(GuestFailed):
        rig.here.power.resume(instance, devices(GPU), lambda: None)


def test_a_crash_dump_leaves_the_guest_running(rig: Any) -> None:
    instance = spawn(rig)
    rig.here.power.trigger_crash_dump(instance)
    rig.here.power.pause(instance)
    rig.here.power.trigger_crash_dump(instance)
    assert rig.here.guests.get_info(instance) == PowerState.PAUSED


def test_a_password_is_set_in_a_guest_that_runs_alone(rig: Any) -> None:
    instance = spawn(rig)
    for _again in range(2):
        rig.here.guests.set_admin_password(instance, 'root', 'secret-word')
    rig.here.power.pause(instance)
    for state in ('paused', 'off', 'gone'):
        if state == 'off':
            rig.here.power.power_off(instance)
        elif state == 'gone':
            rig.here.guests.destroy(instance)
        with pytest.raises(errors.AdminPasswordNotSet, match='does not run') as caught:
            rig.here.guests.set_admin_password(instance, 'root', 'secret-word')
        assert 'secret-word' not in str(caught.value)


def test_a_suspended_guest_can_be_destroyed(rig: Any) -> None:
    instance = spawn(rig)
    rig.here.power.suspend(instance, lambda: None)
    rig.here.guests.destroy(instance)
    assert rig.here.guests.describe() == []


@pytest.mark.parametrize('times', [1, 2])
@pytest.mark.parametrize('is_on', [True, False])
def test_rescue_and_back(rig: Any, is_on: bool, times: int) -> None:
    """Its own disk is kept, and started from again."""
    instance = spawn(rig)
    rig.write('gpu1', instance.uuid)
    if not is_on:
        rig.here.power.power_off(instance)
    for _again in range(times):
        rig.here.rescues.rescue(
            instance,
            image_meta(),
            image_meta(id='image-2'),
            devices(GPU2),
            admin_password='x',
            timeout=1,
            retry_interval=1,
        )
        assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU2])}
    rig.here.power.power_off(instance)
    for _again in range(times):
        rig.here.rescues.restart(instance, image_meta(), devices(GPU))
        assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])}
    for _again in range(times):
        rig.here.power.power_on(instance, image_meta(), devices(GPU))
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])} and rig.kept('gpu1', instance.uuid)
    with pytest.raises(GuestFailed) as refused:
        rig.here.rescues.restart(instance, image_meta(), devices(GPU))
    assert refused.value.cause is errors.Cause.REQUEST, 'trying again would change nothing'
    rig.here.guests.destroy(instance)
    assert rig.here.disks.list_directories() == []


@with_pool
@pytest.mark.parametrize('times', [1, 2])
def test_resize_carries_the_disk_and_confirm_leaves_one(rig: Any, times: int) -> None:
    instance = spawn(rig)
    rig.write('gpu1', instance.uuid)
    move(rig, instance, new_flavor(vcpus=16, root_gb=2), rig.there, times=times)
    assert domains(rig.there) == {instance.uuid: (PowerState.RUNNING, [GPU2, GPU3])}
    assert rig.here.guests.describe() == []
    assert rig.here.disks.list_directories() == [f'{instance.uuid}_resize']
    assert rig.kept('gpu2', instance.uuid)
    for _again in range(times):
        rig.here.moves.confirm_migration(instance, same_host=False)
    assert rig.here.disks.list_directories() == []
    assert rig.kept('gpu2', instance.uuid)


@with_pool
@pytest.mark.parametrize('times', [1, 2])
def test_disks_of_a_dead_host_are_taken_over_where_both_hosts_have_them(rig: Any, times: int) -> None:
    instance = spawn(rig)
    rig.write('gpu1', instance.uuid)
    taken = {rig.there.moves.take_over(instance, 'gpu1') for _again in range(times)}
    assert taken == {hasattr(rig, 'one_storage')}
    if True not in taken:
        assert rig.there.disks.list_directories() == []
        return
    rig.there.power.power_on(instance, image_meta(), devices(GPU2))
    # What the dead host does when it is back.
    rig.here.guests.destroy(instance)
    assert domains(rig.there) == {instance.uuid: (PowerState.RUNNING, [GPU2])} and rig.kept('gpu2', instance.uuid)
    assert (rig.here.disks.list_directories(), rig.there.disks.list_directories()) == ([], [instance.uuid])


@with_pool
@pytest.mark.parametrize('times', [1, 2])
def test_disks_that_were_taken_over_are_handed_back(rig: Any, times: int) -> None:
    instance = spawn(rig)
    rig.write('gpu1', instance.uuid)
    assert not rig.there.moves.hand_back(instance, 'gpu1'), 'they were never taken over'
    if rig.there.moves.take_over(instance, 'gpu1'):
        rig.there.power.power_on(instance, image_meta(), devices(GPU2))
        assert rig.there.moves.hand_back(instance, 'gpu1')
    for _again in range(times):
        assert not rig.there.moves.hand_back(instance, 'gpu1')
    assert domains(rig.there) == {} and rig.kept('gpu1', instance.uuid)
    assert (rig.here.disks.list_directories(), rig.there.disks.list_directories()) == ([instance.uuid], [])


@pytest.mark.parametrize('times', [1, 2])
def test_define_leaves_a_guest_off_with_the_devices_given(rig: Any, times: int) -> None:
    instance = spawn(rig)
    rig.here.power.power_off(instance)
    for _again in range(times):
        rig.here.power.define(instance, image_meta(), devices(GPU2))
        assert domains(rig.here) == {instance.uuid: (PowerState.SHUTDOWN, [GPU2])}


def test_spawn_can_leave_the_guest_off(rig: Any) -> None:
    instance = new_instance()
    rig.here.guests.spawn(instance, image_meta(), pci_devices=devices(GPU), power_on=False)
    assert domains(rig.here) == {instance.uuid: (PowerState.SHUTDOWN, [GPU])}
    rig.here.power.power_on(instance, image_meta(), devices(GPU))
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])}


def test_a_guest_has_the_servers_ports_in_their_order_whenever_it_is_built(rig: Any) -> None:
    ports = [PORT2, PORT]
    instance = spawn(rig, vifs=[new_vif(id=PORT2, mac='fa:16:3e:00:00:02'), new_vif()])
    old = instance.flavor
    assert rig.ports('gpu1', instance.uuid) == ports
    rig.here.power.power_off(instance)
    rig.here.rescues.rescue(instance, image_meta(), None, devices(GPU))
    assert rig.ports('gpu1', instance.uuid) == ports
    rig.here.rescues.restart(instance, image_meta(), devices(GPU))
    assert rig.ports('gpu1', instance.uuid) == ports
    rig.here.power.reboot(instance, 'HARD', image_meta(), devices(GPU))
    assert rig.ports('gpu1', instance.uuid) == ports
    rig.here.guests.rebuild(instance, image_meta(), pci_devices=devices(GPU), power_on=True)
    assert rig.ports('gpu1', instance.uuid) == ports
    move(rig, instance, new_flavor(root_gb=2), rig.there)
    assert rig.ports('gpu2', instance.uuid) == ports
    rig.there.moves.cleanup_move_dest(instance, same_host=False)
    instance.flavor = old
    rig.here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True)
    assert rig.ports('gpu1', instance.uuid) == ports
    # A port less, or more, is there when the guest is built the next time.
    instance.vifs = instance.vifs[1:]
    rig.here.power.define(instance, image_meta(), devices(GPU))
    assert rig.ports('gpu1', instance.uuid) == [PORT]


@pytest.mark.parametrize('power_on', [True, False])
@pytest.mark.parametrize('times', [1, 2])
def test_a_guest_gets_an_interface_and_gives_it_up(rig: Any, power_on: bool, times: int) -> None:
    """It comes behind the others. libvirt's test driver gives nothing to a guest that runs: what it is made from then
    is looked at."""
    first, second = new_vif(), new_vif(id=PORT2, mac='fa:16:3e:00:00:02')
    instance = spawn(rig, vifs=[first])
    if not power_on:
        rig.here.power.power_off(instance)
    for act, ports in (
        (lambda vif: rig.here.guests.attach_interface(instance, image_meta(), vif), [PORT, PORT2]),
        (lambda vif: rig.here.guests.detach_interface(instance, vif, lambda: None), [PORT]),
    ):
        for _again in range(times):
            act(second)
            assert rig.here.guests.get_info(instance) == (PowerState.RUNNING if power_on else PowerState.SHUTDOWN)
        assert rig.ports_at_start('gpu1', instance.uuid) == ports
    rig.here.guests.detach_interface(instance, first, lambda: None)
    assert rig.ports_at_start('gpu1', instance.uuid) == []
    rig.here.guests.attach_interface(instance, image_meta(), second)
    assert rig.ports_at_start('gpu1', instance.uuid) == [PORT2]


def test_a_guest_that_is_not_there_has_no_interface_to_get_or_give(rig: Any) -> None:
    instance = new_instance()
    rig.here.guests.attach_interface(instance, image_meta(), new_vif())
    rig.here.guests.detach_interface(instance, new_vif(), lambda: None)
    assert rig.here.guests.describe() == []


def test_where_the_guest_finds_what_has_tags_is_noted_whenever_it_changes(rig: Any) -> None:
    """Whoever makes the domain, or changes what is in it, notes it; where nothing has a tag nobody does."""
    front, back = new_vif(tag='front'), new_vif(id=PORT2, mac='fa:16:3e:00:00:02', tag='back')
    data, plain = new_volume(tag='data'), new_vif(id='8c1f3c11-8a01-4a51-b2c3-0c9be2f1d4aa', mac='fa:16:3e:00:00:03')
    instance = spawn(rig, vifs=[plain, front], volumes=[data], device_metadata=None)

    def noted() -> list[str]:
        known, instance.device_metadata = instance.device_metadata, None
        return sorted(f'{getattr(one, "mac", None) or one.serial} {one.tags[0]}' for one in known.devices)

    first, disk = f'{front.mac} front', f'{VOLUME} data'
    assert noted() == sorted([first, disk])
    rig.here.power.power_off(instance)
    for _again in range(2):
        rig.here.guests.attach_interface(instance, image_meta(), back)
        assert noted() == sorted([first, f'{back.mac} back', disk])
    for _again in range(2):
        rig.here.guests.detach_interface(instance, back, lambda: None)
        assert noted() == sorted([first, disk])
    rig.here.guests.attach_interface(instance, image_meta(), new_vif(id=PORT2, mac='fa:16:3e:00:00:02'))
    rig.here.guests.detach_interface(instance, new_vif(id=PORT2, mac='fa:16:3e:00:00:02'), lambda: None)
    rig.here.volumes.detach(instance, data, lambda: None)
    assert noted() == [first]
    instance.volumes, old = [], instance.flavor
    rig.here.rescues.rescue(instance, image_meta(), None, devices(GPU))
    assert noted() == [first]
    rig.here.rescues.restart(instance, image_meta(), devices(GPU))
    assert noted() == [first]
    rig.here.power.reboot(instance, 'HARD', image_meta(), devices(GPU))
    assert noted() == [first]
    rig.here.guests.rebuild(instance, image_meta(), pci_devices=devices(GPU), power_on=True)
    assert noted() == [first]
    move(rig, instance, new_flavor(root_gb=2), rig.there)
    assert noted() == [first]
    rig.there.moves.cleanup_move_dest(instance, same_host=False)
    instance.flavor = old
    rig.here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True)
    assert noted() == [first]
    # What had a tag went while nobody looked.
    instance.vifs, instance.device_metadata = [plain], objects.InstanceDeviceMetadata(devices=[])
    rig.here.power.power_on(instance, image_meta(), devices(GPU))
    assert noted() == []
    rig.here.power.power_on(instance, image_meta(), devices(GPU))
    assert instance.device_metadata is None


class Plugged:
    """What is called when a guest's interfaces are plugged; ``states``: the guest's, as another thread sees them then.
    ``fails``: how often it raises."""

    def __init__(self, host: Any, instance: Any, fails: int = 0) -> None:
        self.host, self.instance, self.fails = host, instance, fails
        self.states: list[int] = []

    def __call__(self) -> None:
        looker = threading.Thread(target=self._look, daemon=True)
        looker.start()
        looker.join(5)
        if self.fails:
            self.fails -= 1
            raise errors.KilonovaError('no port became active')

    def _look(self) -> None:
        self.states.append(self.host.guests.get_info(self.instance))


def test_a_spawned_guest_runs_when_its_interfaces_are_plugged(rig: Any) -> None:
    instance = new_instance()
    plugged = Plugged(rig.here, instance)
    rig.here.guests.spawn(instance, image_meta(), pci_devices=devices(GPU), plugged=plugged)
    assert plugged.states == [PowerState.PAUSED]
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])}


def test_a_guest_that_stays_off_plugs_nothing(rig: Any) -> None:
    instance = new_instance()
    plugged = Plugged(rig.here, instance)
    rig.here.guests.spawn(instance, image_meta(), power_on=False, plugged=plugged)
    assert plugged.states == [] and domains(rig.here) == {instance.uuid: (PowerState.SHUTDOWN, [])}


@pytest.mark.parametrize('again', [True, False])
def test_a_guest_whose_interfaces_are_never_plugged_is_left_for_destroy(rig: Any, again: bool) -> None:
    instance = new_instance()
    plugged = Plugged(rig.here, instance, fails=1)
    with pytest.raises(errors.KilonovaError, match='no port became active'):
        rig.here.guests.spawn(instance, image_meta(), pci_devices=devices(GPU), plugged=plugged)
    assert domains(rig.here) == {instance.uuid: (PowerState.PAUSED, [GPU])}
    if again:
        rig.here.guests.spawn(instance, image_meta(), pci_devices=devices(GPU), plugged=plugged)
        assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])}
    rig.here.guests.destroy(instance)
    assert domains(rig.here) == {} and rig.here.disks.list_directories() == []


@pytest.mark.parametrize('fails', [0, 1])
def test_a_guest_that_moved_or_came_back_runs_when_its_interfaces_are_plugged(rig: Any, fails: int) -> None:
    """``fails``: after which the call is made again."""
    instance = spawn(rig)
    dest, old = rig.there.moves.prepare_move(), instance.flavor
    disk_info = rig.here.moves.migrate_disk_and_power_off(instance, dest, new_flavor(root_gb=2))

    def finish(plugged: Plugged) -> None:
        rig.there.moves.finish_migration(instance, image_meta(), devices(GPU2), True, disk_info, plugged)

    def revert(plugged: Plugged) -> None:
        rig.here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True, plugged)

    for host, flavor, act in ((rig.there, new_flavor(root_gb=2), finish), (rig.here, old, revert)):
        instance.flavor, plugged = flavor, Plugged(host, instance, fails)
        for _failing in range(fails):
            with pytest.raises(errors.KilonovaError, match='no port became active'):
                act(plugged)
        act(plugged)
        assert plugged.states == [PowerState.PAUSED] * (fails + 1)
        assert host.guests.get_info(instance) == PowerState.RUNNING
        if host is rig.there:
            host.moves.cleanup_move_dest(instance, same_host=False)


@with_pool
@pytest.mark.parametrize('times', [1, 2])
def test_revert_brings_the_disk_back_as_it_was(rig: Any, times: int) -> None:
    instance = spawn(rig)
    old = instance.flavor
    move(rig, instance, new_flavor(root_gb=2), rig.there)
    rig.write('gpu2', instance.uuid)
    for _again in range(times):
        rig.there.moves.cleanup_move_dest(instance, same_host=False)
    assert rig.there.guests.describe() == [] and rig.there.disks.list_directories() == []
    instance.flavor = old
    for _again in range(times):
        rig.here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True)
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])}
    assert rig.here.disks.list_directories() == [instance.uuid]
    assert not rig.kept('gpu1', instance.uuid)


@with_pool
@pytest.mark.parametrize('times', [1, 2])
@pytest.mark.parametrize('confirm', [True, False])
def test_resize_on_the_same_host(rig: Any, confirm: bool, times: int) -> None:
    instance = spawn(rig)
    old = instance.flavor
    rig.write('gpu1', instance.uuid)
    move(rig, instance, new_flavor(root_gb=2), rig.here, times=times)
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU2, GPU3])}
    assert rig.here.disks.list_directories() == [instance.uuid, f'{instance.uuid}_resize']
    for _again in range(times):
        if confirm:
            rig.here.moves.confirm_migration(instance, same_host=True)
        else:
            rig.here.moves.cleanup_move_dest(instance, same_host=True)
            instance.flavor = old
            rig.here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True)
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU2, GPU3] if confirm else [GPU])}
    assert rig.here.disks.list_directories() == [instance.uuid]
    assert rig.kept('gpu1', instance.uuid)


def test_a_confirmed_same_host_resize_can_be_followed_by_another_that_never_begins(rig: Any) -> None:
    instance = spawn(rig)
    rig.write('gpu1', instance.uuid)
    move(rig, instance, new_flavor(root_gb=2), rig.here)
    rig.here.moves.confirm_migration(instance, same_host=True)
    rig.here.moves.cleanup_move_dest(instance, same_host=True)
    rig.here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True)
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU2, GPU3])}
    assert rig.kept('gpu1', instance.uuid)


def test_a_stopped_server_stays_off_when_it_moves_and_comes_back(rig: Any) -> None:
    instance = spawn(rig)
    rig.here.power.power_off(instance)
    move(rig, instance, new_flavor(root_gb=2), rig.there, power_on=False)
    assert domains(rig.there) == {instance.uuid: (PowerState.SHUTDOWN, [GPU2, GPU3])}
    rig.there.moves.cleanup_move_dest(instance, same_host=False)
    rig.here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), False)
    assert domains(rig.here) == {instance.uuid: (PowerState.SHUTDOWN, [GPU])}


@pytest.mark.parametrize('smaller', [{'root_gb': 0}, {'root_gb': 1, 'ephemeral_gb': 0}])
def test_disks_never_shrink(rig: Any, smaller: dict[str, int]) -> None:
    instance = spawn(rig, flavor=new_flavor(root_gb=1, ephemeral_gb=1))
    dest, flavor = rig.there.moves.prepare_move(), new_flavor(**smaller)
    for refuse in (rig.here.moves.check_move, rig.here.moves.migrate_disk_and_power_off):
        with pytest.raises(errors.ResizeError, match=r'Unable to resize disk down\.'):
            refuse(instance, dest, flavor)
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])}
    assert rig.here.disks.list_directories() == [instance.uuid] and rig.there.disks.list_directories() == []


def test_another_machine_is_refused_before_anything_moves(rig: Any) -> None:
    instance = spawn(rig)
    with pytest.raises(errors.DisksUnmovable, match=r'from gpu1 to gpu2: .*(No route to host|different machines)'):
        rig.here.moves.migrate_disk_and_power_off(instance, rig.elsewhere(), new_flavor(root_gb=2))
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])}
    assert rig.here.disks.list_directories() == [instance.uuid]


@pytest.mark.parametrize('same_host', [True, False])
def test_undos_of_a_move_that_never_ran_touch_nothing(rig: Any, same_host: bool) -> None:
    instance = spawn(rig)
    rig.write('gpu1', instance.uuid)
    (rig.here if same_host else rig.there).moves.cleanup_move_dest(instance, same_host=same_host)
    rig.here.moves.finish_revert_migration(instance, image_meta(), devices(GPU2), True)
    # Still the domain of before: nobody rebooted it.
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])}
    assert rig.kept('gpu1', instance.uuid)


def test_undo_of_a_move_whose_destination_never_began(rig: Any) -> None:
    instance = spawn(rig)
    rig.write('gpu1', instance.uuid)
    rig.here.moves.migrate_disk_and_power_off(instance, rig.there.moves.prepare_move(), new_flavor(root_gb=2))
    rig.there.moves.cleanup_move_dest(instance, same_host=False)
    rig.here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True)
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])}
    assert rig.there.disks.list_directories() == [] and rig.here.disks.list_directories() == [instance.uuid]
    assert rig.kept('gpu1', instance.uuid)


def test_there_and_back_again_by_two_confirmed_moves(rig: Any) -> None:
    instance = spawn(rig)
    rig.write('gpu1', instance.uuid)
    move(rig, instance, new_flavor(root_gb=2), rig.there)
    rig.here.moves.confirm_migration(instance, same_host=False)
    rig.here, rig.there = rig.there, rig.here
    move(rig, instance, new_flavor(root_gb=3), rig.there, addresses=(GPU,))
    rig.here.moves.confirm_migration(instance, same_host=False)
    assert rig.here.guests.describe() == [] and rig.here.disks.list_directories() == []
    assert domains(rig.there) == {instance.uuid: (PowerState.RUNNING, [GPU])}
    assert rig.kept('gpu1', instance.uuid)


def test_deleting_a_server_in_the_middle_of_a_same_host_move_leaves_nothing(rig: Any) -> None:
    instance = spawn(rig)
    move(rig, instance, new_flavor(root_gb=2), rig.here)
    rig.here.guests.destroy(instance)
    assert rig.here.guests.describe() == [] and rig.here.disks.list_directories() == []


def snapshot(rig: Any, instance: Any, check: Any = lambda: None) -> list[int]:
    """Make image ``snap``; power states at the moment when the copy is made."""
    states: list[int] = []
    rig.here.snapshots.snapshot(instance, 'snap', check, lambda: states.append(rig.here.guests.get_info(instance)))
    return states


def test_snapshot_sends_the_disk_and_the_guest_runs_on(rig: Any) -> None:
    instance = spawn(rig)
    assert snapshot(rig, instance) == [PowerState.RUNNING]
    assert list(rig.images.sent) == ['snap']
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])}
    sent = rig.images.sent['snap']
    assert snapshot(rig, instance) == [] and rig.images.sent == {'snap': sent}


def test_snapshot_of_a_guest_that_is_off(rig: Any) -> None:
    instance = spawn(rig)
    rig.here.power.power_off(instance)
    assert snapshot(rig, instance) == [PowerState.SHUTDOWN]
    assert rig.here.guests.get_info(instance) == PowerState.SHUTDOWN


def test_snapshot_that_was_not_sent_is_sent_by_the_next_call(rig: Any) -> None:
    instance = spawn(rig)
    rig.images.refuses = [errors.Unanswered(who='images', reason='silent')]
    with pytest.raises(errors.Unanswered):
        snapshot(rig, instance)
    rig.write('gpu1', instance.uuid)
    assert snapshot(rig, instance) == [PowerState.RUNNING]
    assert list(rig.images.sent) == ['snap']


def test_forgotten_snapshots_leave_nothing(rig: Any) -> None:
    instance = spawn(rig)
    rig.here.snapshots.forget_snapshot(instance, 'snap')
    rig.images.refuses = [errors.Unanswered(who='images', reason='silent')]
    with pytest.raises(errors.Unanswered):
        snapshot(rig, instance)
    for _again in range(2):
        rig.here.snapshots.forget_snapshot(instance, 'snap')
    assert rig.here.guests.get_info(instance) == PowerState.RUNNING
    assert rig.here.disks.list_directories() == [instance.uuid]


def test_snapshot_ends_when_it_is_told_to(rig: Any) -> None:
    instance = spawn(rig)

    def stop() -> None:
        raise errors.Cancelled(key='x')

    with pytest.raises(errors.Cancelled):
        snapshot(rig, instance, stop)
    assert rig.here.guests.get_info(instance) == PowerState.RUNNING
    assert rig.images.sent == {}


def test_the_image_cache_is_cleaned_of_what_nobody_uses(rig: Any) -> None:
    """Nothing is old here; a guest goes on whatever is removed."""
    instance = spawn(rig)
    assert rig.here.disks.clean_image_cache(None) == [] and rig.here.disks.clean_image_cache(0) == []
    rig.here.power.reboot(instance, 'HARD', image_meta(), devices(GPU))
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])}


# -- volumes ----------------------------------------------------------------------------------------------------------
with_volumes = pytest.mark.parametrize('rig', ['fake', 'libvirt'], indirect=True)


@with_volumes
def test_what_the_volume_service_is_told_of_a_host(rig: Any) -> None:
    found = json.loads(json.dumps(rig.here.volumes.connector()))
    assert found['host'] == 'gpu1' and found['ip'] == '192.0.2.7'


@with_volumes
def test_volumes_get_the_names_that_are_free(rig: Any) -> None:
    nameless = [
        new_volume(device=None),
        new_volume(volume_id=VOLUME2, device='/dev/vdc'),
        new_volume(volume_id=MDEV, device=None),
        new_volume(volume_id=MDEV2, device=None, bus='scsi'),
    ]
    instance = new_instance(volumes=nameless)
    for _before, _after in ((1, 0), (0, 1)):
        assert rig.here.volumes.names(instance, image_meta()) == ['/dev/vdb', '/dev/vdd', '/dev/sda']
        rig.here.guests.spawn(instance, image_meta())
    assert rig.here.volumes.names(instance, image_meta(properties={'hw_disk_bus': 'scsi'})) == [
        '/dev/sdb',
        '/dev/sdd',
        '/dev/sde',
    ], 'one has no such name, and gets another'
    assert rig.here.volumes.names(
        new_instance(flavor=new_flavor(ephemeral_gb=1, swap=8), volumes=nameless[:1]), image_meta()
    ) == ['/dev/vdd']


@with_volumes
def test_volumes_that_find_no_name_are_refused(rig: Any) -> None:
    many = [new_volume(volume_id=f'{number}', device=None) for number in range(26)]
    for bus, most in (('virtio', 25), ('ide', 3)):
        image = image_meta(properties={'hw_disk_bus': bus})
        assert len(rig.here.volumes.names(new_instance(volumes=many[:most]), image)) == most
        with pytest.raises(disk_names.TooManyDiskDevices, match=rf'\({most + 1}\) of bus {bus}'):
            rig.here.volumes.names(new_instance(volumes=many[: most + 1]), image)
    with pytest.raises(UnsupportedHardware, match='floppy'):
        rig.here.volumes.names(new_instance(volumes=[new_volume(device=None, bus='floppy')]), image_meta())


@with_volumes
def test_a_guest_has_the_servers_volumes_in_their_order_whenever_it_is_built(rig: Any) -> None:
    wanted = [VOLUME2, VOLUME]

    def attached(host: str) -> list[Any]:
        return [
            new_volume(volume_id=VOLUME2, host=host),
            new_locked_volume(device='/dev/vdc', host=host),
            new_volume(volume_id=MDEV, device=None, host=None, connection={}),
        ]

    instance = spawn(rig, volumes=attached('gpu1'))
    old, connected = instance.flavor, {VOLUME: {instance.uuid}, VOLUME2: {instance.uuid}}
    assert rig.volumes('gpu1', instance.uuid) == wanted and rig.connected('gpu1') == connected
    rig.here.power.power_off(instance)
    rig.here.rescues.rescue(instance, image_meta(), None, devices(GPU))
    assert rig.volumes('gpu1', instance.uuid) == wanted
    rig.here.rescues.restart(instance, image_meta(), devices(GPU))
    assert rig.volumes('gpu1', instance.uuid) == wanted
    rig.here.power.reboot(instance, 'HARD', image_meta(), devices(GPU))
    assert rig.volumes('gpu1', instance.uuid) == wanted
    rig.here.guests.rebuild(instance, image_meta(), pci_devices=devices(GPU), power_on=True)
    assert rig.volumes('gpu1', instance.uuid) == wanted and rig.connected('gpu1') == connected
    rig.here.power.power_off(instance)
    rig.here.power.power_on(instance, image_meta(), devices(GPU))
    dest, flavor = rig.there.moves.prepare_move(), new_flavor(root_gb=2)
    disk_info = rig.here.moves.migrate_disk_and_power_off(instance, dest, flavor)
    assert rig.connected('gpu1') == {}
    instance.flavor, instance.volumes = flavor, attached('gpu2')
    rig.there.moves.finish_migration(instance, image_meta(), devices(GPU2), True, disk_info)
    assert rig.volumes('gpu2', instance.uuid) == wanted and rig.connected('gpu2') == connected
    rig.there.moves.cleanup_move_dest(instance, same_host=False)
    assert rig.connected('gpu2') == {}
    instance.flavor, instance.volumes = old, attached('gpu1')
    rig.here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True)
    assert rig.volumes('gpu1', instance.uuid) == wanted and rig.connected('gpu1') == connected
    instance.volumes = instance.volumes[1:]
    rig.here.power.define(instance, image_meta(), devices(GPU))
    assert rig.volumes('gpu1', instance.uuid) == [VOLUME]
    for _again in range(2):
        rig.here.guests.destroy(instance)
    assert rig.connected('gpu1') == {VOLUME2: {instance.uuid}}


@with_volumes
def test_a_guest_boots_from_a_volume(rig: Any) -> None:
    """No root disk is made, fetched, carried or grown for it; the volume is the guest's first disk."""

    def attached(host: str, device: str | None = '/dev/vda') -> list[Any]:
        return [
            new_volume(host=host, device=device and '/dev/vdb'),
            new_volume(volume_id=VOLUME2, host=host, device=device, boot_index=0),
        ]

    values = {'image_ref': '', 'flavor': new_flavor(root_gb=4)}
    instance = new_instance(volumes=attached('gpu1', None), **values)
    assert rig.here.volumes.names(instance, image_meta()) == ['/dev/vdb', '/dev/vda']
    instance.volumes, image = attached('gpu1'), image_meta(id=None)
    rig.here.guests.spawn(instance, image, pci_devices=devices(GPU))
    assert rig.here.volumes.names(replaced(instance, volumes=[*instance.volumes, new_volume(device=None)]), image) == [
        '/dev/vdc'
    ]
    rig.here.disks.fetch_base(instance, image)
    rig.here.power.power_off(instance)
    rig.here.power.power_on(instance, image, devices(GPU))
    rig.here.power.reboot(instance, 'HARD', image, devices(GPU))
    wanted = [VOLUME, VOLUME2]
    assert sorted(rig.volumes('gpu1', instance.uuid)) == sorted(wanted)
    rescue = image_meta(id='rescue', properties={'hw_rescue_bus': 'virtio'})
    rig.here.rescues.rescue(instance, image, rescue, devices(GPU))
    rig.here.rescues.restart(instance, image, devices(GPU))
    assert sorted(rig.volumes('gpu1', instance.uuid)) == sorted(wanted)
    rig.here.power.power_off(instance)
    rig.here.power.power_on(instance, image, devices(GPU))
    dest, old, flavor = rig.there.moves.prepare_move(), instance.flavor, new_flavor(root_gb=0)
    rig.here.moves.check_move(instance, dest, flavor)
    disk_info = rig.here.moves.migrate_disk_and_power_off(instance, dest, flavor)
    instance.flavor, instance.volumes = flavor, attached('gpu2')
    rig.there.moves.finish_migration(instance, image, devices(GPU2), True, disk_info)
    assert sorted(rig.volumes('gpu2', instance.uuid)) == sorted(wanted)
    rig.there.moves.cleanup_move_dest(instance, same_host=False)
    instance.flavor, instance.volumes = old, attached('gpu1')
    rig.here.moves.finish_revert_migration(instance, image, devices(GPU), True)
    assert sorted(rig.volumes('gpu1', instance.uuid)) == sorted(wanted)
    rig.here.guests.destroy(instance)
    assert rig.connected('gpu1') == rig.connected('gpu2') == {} and rig.here.disks.list_directories() == []


def replaced(instance: Any, **values: Any) -> Any:
    return new_instance(**{**vars(instance), **values})


@with_volumes
@pytest.mark.parametrize(
    ('values', 'reason'),
    [
        ({'host': 'gpu3'}, 'it is attached to host gpu3'),
        (
            {
                'connection': {
                    **new_locked_volume().connection,
                    'encryption': {**(new_locked_volume().encryption or {}), 'provider': 'plain'},
                }
            },
            "its encryption has the provider 'plain'; accepted: luks",
        ),
    ],
)
def test_a_volume_that_a_host_can_not_have_is_refused_before_anything_is_made(
    rig: Any, values: dict[str, Any], reason: str
) -> None:
    text, wrong = f'Volume {VOLUME2} cannot be attached on host gpu1: {reason}', new_volume(volume_id=VOLUME2, **values)
    instance = new_instance(volumes=[new_volume(), wrong])
    with pytest.raises(errors.HostRejected, match=text):
        rig.here.guests.spawn(instance, image_meta())
    assert rig.here.guests.describe() == [] and rig.here.disks.list_directories() == [] and rig.connected('gpu1') == {}
    instance = spawn(rig)
    with pytest.raises(VolumeUnsupported, match=text):
        rig.here.volumes.attach(instance, image_meta(), wrong)
    instance.volumes = [wrong]
    for refuse in (
        lambda: rig.here.power.reboot(instance, 'HARD', image_meta(), devices(GPU)),
        lambda: rig.here.guests.prepare_rebuild(instance, image_meta(), devices(GPU)),
        lambda: rig.here.rescues.rescue(instance, image_meta(), None, devices(GPU)),
    ):
        with pytest.raises(VolumeUnsupported, match=text):
            refuse()
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [GPU])} and rig.connected('gpu1') == {}


@with_volumes
def test_a_move_with_a_volume_that_a_host_can_not_have_begins_nothing_there(rig: Any) -> None:
    instance = spawn(rig, volumes=[new_volume()])
    disk_info = rig.here.moves.migrate_disk_and_power_off(instance, rig.there.moves.prepare_move(), instance.flavor)
    with pytest.raises(VolumeUnsupported, match='it is attached to host gpu1'):
        rig.there.moves.finish_migration(instance, image_meta(), devices(GPU2), True, disk_info)
    assert rig.there.guests.describe() == []
    instance.volumes = [new_volume(host='gpu2')]
    with pytest.raises(VolumeUnsupported, match='it is attached to host gpu2'):
        rig.here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True)
    assert rig.here.guests.describe() == [] and rig.here.disks.list_directories() == [f'{instance.uuid}_resize']


@with_volumes
@pytest.mark.parametrize('power_on', [True, False])
@pytest.mark.parametrize('times', [1, 2])
def test_a_guest_gets_a_volume_and_gives_it_up(rig: Any, power_on: bool, times: int) -> None:
    """It comes behind the others. libvirt's test driver gives nothing to a guest that runs: what it is made from then
    is looked at."""
    first, second = new_volume(), new_volume(volume_id=VOLUME2, device='/dev/vdc')
    instance = spawn(rig, volumes=[first])
    if not power_on:
        rig.here.power.power_off(instance)
    volumes = rig.here.volumes
    for act, ids in (
        (lambda one: volumes.attach(instance, image_meta(), one), [VOLUME, VOLUME2]),
        (lambda one: volumes.detach(instance, one, lambda: None), [VOLUME]),
    ):
        for _again in range(times):
            act(second)
            assert rig.here.guests.get_info(instance) == (PowerState.RUNNING if power_on else PowerState.SHUTDOWN)
        assert rig.volumes_at_start('gpu1', instance.uuid) == list(rig.connected('gpu1')) == ids
    for _again in range(times):
        volumes.detach(instance, first, lambda: None)
        volumes.disconnect(instance, first)
    assert rig.volumes_at_start('gpu1', instance.uuid) == [] and rig.connected('gpu1') == {}


@with_volumes
@pytest.mark.parametrize('power_on', [True, False])
def test_a_guest_goes_along_with_its_volume(rig: Any, power_on: bool) -> None:
    """It knows what takes the place of one by the same id, and goes on with that. One that is off stays as it is."""
    volume, volumes = new_volume(), rig.here.volumes
    new = new_volume(volume_id=VOLUME2, size=2, connection={**volume.connection, 'name': 'volumes/other'})
    instance = spawn(rig, volumes=[volume])
    if not power_on:
        rig.here.power.power_off(instance)
        with pytest.raises(GuestFailed, match='the guest is off, or does not have this volume'):
            volumes.copy(instance, image_meta(), volume, new, lambda: None)
        assert not volumes.swap(instance, image_meta(), volume, new)
        volumes.end_copy(instance, volume, new)
        assert rig.connected('gpu1') == {VOLUME: {instance.uuid}}
        return
    wrong = dataclasses.replace(new, host='gpu2')
    with pytest.raises(VolumeUnsupported, match='attached to host gpu2'):
        volumes.copy(instance, image_meta(), volume, wrong, lambda: None)
    for end in (volumes.end_copy, lambda *each: volumes.swap(instance, image_meta(), *each[1:])):
        volumes.copy(instance, image_meta(), volume, new, lambda: None)
        assert rig.connected('gpu1') == {VOLUME: {instance.uuid}, VOLUME2: {instance.uuid}}
        for _again in range(2):
            assert end(instance, volume, new) in (None, True)
            assert rig.connected('gpu1') == {VOLUME: {instance.uuid}}
    assert rig.volumes_at_start('gpu1', instance.uuid) == [VOLUME]
    instance.volumes = [dataclasses.replace(new, volume_id=VOLUME)]
    volumes.detach(instance, instance.volumes[0], lambda: None)
    assert rig.volumes_at_start('gpu1', instance.uuid) == [] and rig.connected('gpu1') == {}


@with_volumes
@pytest.mark.parametrize('power_on', [True, False])
def test_a_guest_goes_on_in_another_file(rig: Any, power_on: bool, tmp_path: Path) -> None:
    """And in the one before, when nobody wants that any more. libvirt's test driver merges no files under a guest."""
    share, volumes = tmp_path / 'share', rig.here.volume_snapshots
    share.mkdir()
    rig.mount(share)
    first, second, third = (
        new_volume(connection={'driver_volume_type': 'nfs', 'name': name, 'format': format_})
        for name, format_ in (('v', 'raw'), ('v.1', 'qcow2'), ('v.2', 'qcow2'))
    )
    (share / 'v').write_bytes(bytes(512))
    for below, above in ((first, second), (second, third)):
        disk.create_layer(str(share / above.file[0]), disk.BaseFile(*below.file, 512), 512)
    instance = spawn(rig, volumes=[first])
    if not power_on:
        rig.here.power.power_off(instance)
    for _again in range(2):
        volumes.withdraw(instance, image_meta(), first, second, lambda: None)
        assert not volumes.has(instance, second)
        for _again in range(2):
            volumes.take(instance, image_meta(), first, second)
            assert volumes.has(instance, second) and not volumes.has(instance, first)
    volumes.take(instance, image_meta(), second, third)
    instance.volumes = [third]
    rig.here.power.power_off(instance)
    for merge in (Merge('v.1', 'v'), Merge(None, None)):
        assert not volumes.end_merge(instance, third, merge)
        for _again in range(2):
            volumes.merge(instance, third, merge, lambda: None)
            assert volumes.end_merge(instance, third, merge) and volumes.has(instance, third)
    with pytest.raises(GuestFailed, match=r'does not use the file v\.1, only v\.2'):
        volumes.merge(instance, third, Merge('v.2', 'v.1'), lambda: None)
    wrong = dataclasses.replace(third, host='gpu2')
    with pytest.raises(VolumeUnsupported, match='attached to host gpu2'):
        volumes.take(instance, image_meta(), first, wrong)
    # Whoever undoes a merge waits for no file or guest that is gone.
    assert not volumes.end_merge(instance, wrong, Merge('v.1', 'v'))
    (share / third.file[0]).rename(share / 'away')
    assert not volumes.end_merge(instance, third, Merge('v.1', 'v'))
    (share / 'away').rename(share / third.file[0])
    assert volumes.end_merge(instance, third, Merge(None, None))
    rig.here.guests.destroy(instance)
    assert not volumes.end_merge(instance, third, Merge(None, None))


@with_volumes
def test_what_a_guest_does_with_its_volumes_is_counted_while_it_runs(rig: Any) -> None:
    """Of those that it has; its own disks aren't among them."""
    absent = new_volume(volume_id=MDEV, device='/dev/vdd')
    instance = spawn(rig, volumes=[new_volume(), new_volume(volume_id=VOLUME2, device='/dev/vdc')])
    instance.volumes = [absent, *instance.volumes]
    for act in (rig.here.power.pause, rig.here.power.unpause):
        act(instance)
        found = rig.here.volumes.usage(instance)
        assert sorted(found) == sorted([VOLUME, VOLUME2])
        counters = [one for each in found.values() for one in dataclasses.astuple(each)]
        assert all(isinstance(one, int) and one >= 0 for one in counters)
    instance.volumes = instance.volumes[1:2]
    assert list(rig.here.volumes.usage(instance)) == [VOLUME]
    rig.here.power.power_off(instance)
    assert rig.here.volumes.usage(instance) == {}
    rig.here.guests.destroy(instance)
    assert rig.here.volumes.usage(instance) == {}


@with_volumes
def test_a_guest_that_is_not_there_has_no_volume_to_get_or_give(rig: Any) -> None:
    instance, volume = new_instance(), new_volume()
    rig.here.volumes.attach(instance, image_meta(), volume)
    assert rig.here.guests.describe() == [] and rig.connected('gpu1') == {}
    rig.here.volumes.detach(instance, volume, lambda: None)
    rig.here.volumes.extend(instance, volume)
    rig.here.volumes.disconnect(instance, new_volume(host=None, connection={}))
    assert rig.here.guests.describe() == []


@with_volumes
def test_a_volume_of_two_servers_stays_connected_until_the_last_gives_it_up(rig: Any) -> None:
    volume = new_volume(multiattach=True)
    one, two = (spawn(rig, volumes=[volume], id=number) for number in (1, 2))
    rig.here.volumes.detach(one, volume, lambda: None)
    assert rig.connected('gpu1') == {VOLUME: {two.uuid}} and rig.volumes_at_start('gpu1', two.uuid) == [VOLUME]
    rig.here.guests.destroy(two)
    assert rig.connected('gpu1') == {}


@with_volumes
def test_a_host_that_was_given_up_lets_go_of_what_it_had(rig: Any) -> None:
    """Its server was evacuated, and the volume is attached to another host by now."""
    volume = new_volume()
    instance = spawn(rig, volumes=[volume])
    assert rig.connected('gpu1') == {VOLUME: {instance.uuid}}
    gone = dataclasses.replace(
        volume, host='gpu2', known_at={'gpu1': {'connector': {}, 'connection': volume.connection}}
    )
    instance.volumes = [gone]
    rig.here.guests.destroy(instance)
    assert rig.connected('gpu1') == {} and rig.here.guests.describe() == []


# -- mediated devices -------------------------------------------------------------------------------------------------
with_vgpus = pytest.mark.parametrize('rig', ['fake', 'libvirt'], indirect=True)


@with_vgpus
def test_mediated_devices_are_listed_and_given_to_guests(rig: Any) -> None:
    rig.have_vgpus()
    *functions, mdev = rig.here.host.get_available_resource()['pci_passthrough_devices']
    assert {**mdev, 'dev_id': ''} == {
        'dev_id': '',
        'address': MDEV,
        'dev_type': pci_device.MDEV,
        'parent_addr': VGPU_PARENT,
        'mdev_type': VGPU,
        'vendor_id': '10de',
        'product_id': '13f2',
        'numa_node': 1,
        'label': 'label_10de_13f2',
        'capabilities': {},
    }
    (parent,) = (function for function in functions if 'mdev_types' in function)
    assert parent['address'] == VGPU_PARENT and parent['mdev_types'][VGPU]['api'] == 'vfio-pci'
    instance = new_instance()
    rig.here.guests.spawn(instance, image_meta(), pci_devices=[mediated(MDEV), device(GPU)])
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, sorted([MDEV, GPU]))}


@with_vgpus
@pytest.mark.parametrize(
    ('wanted', 'reason'),
    [
        (mediated(MDEV2), ''),
        (mediated(MDEV, VGPU_PARENT, 'nvidia-36'), f'is of type {VGPU} on '),
        (mediated(MDEV, '0000:85:00.0'), f'is of type {VGPU} on '),
    ],
)
def test_mediated_devices_that_can_not_be_had(rig: Any, wanted: Any, reason: str) -> None:
    """Another host may have them; here nothing is changed."""
    rig.have_vgpus()
    instance = new_instance()
    rig.here.guests.spawn(instance, image_meta(), pci_devices=[mediated(MDEV)])
    text = (
        f'mdev-capable resource is not available: mediated device {wanted.address} of type '
        f'{wanted.extra_info["mdev_type"]} on card {wanted.parent_addr} cannot be used: .*{reason}'
    )
    for refuse in (
        lambda: rig.here.power.reboot(instance, 'HARD', image_meta(), [wanted]),
        lambda: rig.here.guests.prepare_rebuild(instance, image_meta(), [wanted]),
        lambda: rig.here.rescues.rescue(instance, image_meta(), None, [wanted]),
    ):
        with pytest.raises(errors.HostRejected, match=text):
            refuse()
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [MDEV])}


@with_vgpus
def test_missing_devices(rig: Any) -> None:
    rig.have_vgpus()
    there = [device(GPU), mediated(MDEV), mediated(MDEV2)]
    assert rig.here.devices.missing_devices(there) == []
    gone = [device(GPU3), mediated(MDEV2, VGPU_PARENT, 'nvidia-99'), mediated(MDEV2, GPU), mediated(MDEV2, GPU3)]
    assert rig.here.devices.missing_devices([*there, *gone]) == [GPU3, MDEV2, MDEV2, MDEV2]
    # What exists is there, whatever its parent offers.
    assert rig.here.devices.missing_devices([mediated(MDEV, VGPU_PARENT, 'nvidia-99')]) == []


PF, VF1, VF2 = '0000:3b:00.0', '0000:3b:00.4', '0000:3b:00.5'


@with_vgpus
def test_what_no_other_guest_may_have_beside_a_device(rig: Any) -> None:
    """A card and its parts bar each other, two parts of one card don't."""
    rig.have_functions()
    wanted = [device(GPU), device(PF), device(VF1), device(VGPU_PARENT), mediated(MDEV), mediated(MDEV2)]
    assert {address: sorted(related) for address, related in rig.here.devices.related(wanted).items()} == {
        GPU: [GPU],
        PF: [PF, VF1, VF2],
        VF1: [PF, VF1],
        VGPU_PARENT: [VGPU_PARENT, MDEV],
        MDEV: [VGPU_PARENT, MDEV],
        MDEV2: [VGPU_PARENT, MDEV2],
    }
    assert rig.here.devices.related([]) == {}
    assert VF1 in rig.here.devices.related([device(VF1)])[VF1]


@with_vgpus
def test_which_domains_have_a_device(rig: Any) -> None:
    """Those that are off, too; of each only what was asked for."""
    rig.have_functions()
    runs, off = new_instance(), new_instance(id=2)
    rig.here.guests.spawn(runs, image_meta(), pci_devices=devices(GPU, VF1))
    rig.here.guests.spawn(off, image_meta(), pci_devices=devices(PF), power_on=False)

    def holding(*addresses: str) -> dict[str, tuple[int, list[str]]]:
        return {
            domain['uuid']: (domain['state'], domain['hostdevs'])
            for domain in rig.here.guests.holding(frozenset(addresses))
        }

    assert holding(VF1, VF2, PF) == {runs.uuid: (PowerState.RUNNING, [VF1]), off.uuid: (PowerState.SHUTDOWN, [PF])}
    assert holding(VF2) == holding() == {}
    assert [domain['name'] for domain in rig.here.guests.holding({GPU})] == ['instance-00000001']


@with_vgpus
def test_devices_that_are_there_and_can_not_be_used(rig: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    rig.have_functions()
    sys = CarvedSys(monkeypatch, tmp_path)
    sys.carve(VF1, 1519)
    sys.carve(VF2, 0)
    if not isinstance(rig, LibvirtRig):
        rig.here.pci_devices[-1]['vgpu_type'] = 0
    plain, known, other, none = (
        device(VF1),
        device(VF1, vgpu_type='1519'),
        device(VF1, vgpu_type='1520'),
        device(VF2, vgpu_type='1519'),
    )
    assert rig.here.devices.unusable([device(GPU), plain, known, mediated(MDEV)]) == {}
    assert rig.here.devices.unusable([device(GPU), other, none]) == {
        VF1: 'its nvidia/current_vgpu_type is 1519, not 1520',
        VF2: 'its nvidia/current_vgpu_type is 0: it has no vGPU type',
    }


def test_functions_that_fell_off_the_bus(libvirt_rig: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Their configuration space reads as all ones; that of a virtual function begins so always."""
    sys, asked = CarvedSys(monkeypatch, tmp_path), libvirt_rig.here.devices.unusable
    sys.fall_off(GPU)
    sys.fall_off(VGPU_PARENT)
    assert asked([device(GPU), mediated(MDEV), device(VF1)]) == {
        GPU: f'{GPU} does not answer any more: it has fallen off the bus',
        MDEV: f'{VGPU_PARENT} does not answer any more: it has fallen off the bus',
    }
    sys.fall_off(GPU, gone=False)
    assert asked([device(GPU)]) == {}


@with_vgpus
def test_the_ids_of_functions(rig: Any) -> None:
    rig.have_vgpus()
    assert rig.here.devices.ids_of([VGPU_PARENT, GPU3, VGPU_PARENT]) == {VGPU_PARENT: ('10de', '13f2')}


# -- live migration ---------------------------------------------------------------------------------------------------
def live(rig: Any, **values: Any) -> tuple[Any, Any, Any]:
    """A guest, and what both sides say of its way to the other host."""
    instance = new_instance(**values)
    rig.here.guests.spawn(instance, image_meta())
    rig.write('gpu1', instance.uuid)
    guest = json.loads(json.dumps(rig.here.live_migrations.describe(instance)))
    offer = json.loads(
        json.dumps(
            {
                **rig.there.live_migrations.offer(instance, guest, None, True),
                'place': rig.there.live_migrations.place(instance, image_meta()),
            }
        )
    )
    return instance, guest, offer


def test_a_guest_goes_to_another_host_while_it_runs(rig: Any) -> None:
    told: list[Any] = []
    instance, guest, offer = live(rig)
    if offer.get('boot_id') == 'of another machine':
        # Libvirt's test driver has no guest that could leave the machine: it says so before anything is done.
        rig.there.live_migrations.prepare(instance, guest, offer)
        with pytest.raises(errors.DisksUnmovable):
            rig.here.live_migrations.migrate(instance, offer, told.append)
        assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [])} and told == []
        return
    for _again in range(2):
        rig.there.live_migrations.prepare(instance, guest, offer)
        assert not rig.there.live_migrations.has_arrived(instance)
    for _again in range(2):
        rig.here.live_migrations.migrate(instance, offer, told.append)
        assert not rig.here.live_migrations.abort(instance)
        assert rig.there.live_migrations.has_arrived(instance)
    for _again in range(2):
        rig.there.live_migrations.receive(instance)
        assert domains(rig.there) == {instance.uuid: (PowerState.RUNNING, [])}
    for _again in range(2):
        rig.here.live_migrations.leave(instance, offer)
        assert rig.here.guests.describe() == [] and rig.here.disks.list_directories() == []
    assert rig.kept('gpu2', instance.uuid)
    assert told[-1]['disk_total'] == told[-1]['disk_processed']
    assert bool(told[-1]['disk_total']) == offer['block'] and told[-1]['disk_remaining'] == 0
    # It is at home there: what undoes a move takes nothing of it.
    rig.there.power.power_off(instance)
    rig.there.power.power_on(instance, image_meta())
    assert domains(rig.there) == {instance.uuid: (PowerState.RUNNING, [])} and rig.kept('gpu2', instance.uuid)


@pytest.mark.parametrize('rig', ['fake', 'libvirt'], indirect=True)
@pytest.mark.parametrize('arrives', [True, False])
def test_a_guest_goes_to_another_host_with_its_volumes(rig: Any, arrives: bool) -> None:
    """Connected at both hosts meanwhile, and where it is in the end."""
    volume = new_volume()
    instance = new_instance(volumes=[volume], device_metadata=None)
    rig.here.guests.spawn(instance, image_meta())
    guest = json.loads(json.dumps(rig.here.live_migrations.describe(instance)))
    assert guest['volumes'] == [VOLUME]
    offer = {
        **rig.there.live_migrations.offer(instance, guest, None, True),
        'place': rig.there.live_migrations.place(instance, image_meta()),
    }
    with pytest.raises(errors.MigrationError, match=f'the destination has not connected volume {VOLUME}'):
        rig.here.live_migrations.migrate(
            instance,
            {**offer, 'volumes': rig.there.live_migrations.prepare(instance, guest, offer)},
            lambda progress: None,
        )
    there = {'connector': {}, 'connection': volume.connection, 'attachment_id': 'another'}
    instance.volumes = [dataclasses.replace(volume, known_at={'gpu2': there})]
    for _again in range(2):
        offer['volumes'] = json.loads(json.dumps(rig.there.live_migrations.prepare(instance, guest, offer)))
        assert rig.connected('gpu1') == rig.connected('gpu2') == {VOLUME: {instance.uuid}}
    if not arrives:
        for _again in range(2):
            rig.there.moves.cleanup_move_dest(instance, same_host=False)
            assert (rig.connected('gpu1'), rig.connected('gpu2')) == ({VOLUME: {instance.uuid}}, {})
        return
    rig.here.live_migrations.migrate(instance, offer, lambda progress: None)
    rig.there.live_migrations.receive(instance)
    instance.volumes = [
        dataclasses.replace(volume, host='gpu2', known_at={'gpu1': {'connector': {}, 'connection': volume.connection}})
    ]
    for _again in range(2):
        rig.here.live_migrations.leave(instance, offer)
        assert (rig.connected('gpu1'), rig.connected('gpu2')) == ({}, {VOLUME: {instance.uuid}})
    assert rig.volumes_at_start('gpu2', instance.uuid) == [VOLUME]


def test_a_live_migration_that_is_ended_leaves_the_guest_where_it_was(rig: Any) -> None:
    instance, guest, offer = live(rig)
    rig.there.live_migrations.prepare(instance, guest, offer)
    if offer.get('boot_id') == 'of another machine':
        return

    def stop(progress: Any) -> None:
        raise errors.MigrationError(reason='enough')

    with pytest.raises(errors.MigrationError, match='enough'):
        rig.here.live_migrations.migrate(instance, offer, stop)
    for _again in range(2):
        assert rig.here.live_migrations.abort(instance)
        assert not rig.there.live_migrations.has_arrived(instance)
        rig.there.moves.cleanup_move_dest(instance, same_host=False)
        rig.here.live_migrations.go_on(instance)
    assert rig.there.guests.describe() == [] and rig.there.disks.list_directories() == []
    assert domains(rig.here) == {instance.uuid: (PowerState.RUNNING, [])} and rig.kept('gpu1', instance.uuid)


def test_a_guest_that_is_forced_to_go_runs_on_there(rig: Any) -> None:
    instance, guest, offer = live(rig)
    rig.there.live_migrations.prepare(instance, guest, offer)
    with pytest.raises(errors.MigrationError, match='the guest is not being migrated'):
        rig.here.live_migrations.force_complete(instance)
    if offer.get('boot_id') == 'of another machine':
        return
    forced: list[Any] = []

    def told(progress: Any) -> None:
        forced.append(rig.here.live_migrations.force_complete(instance))

    rig.here.live_migrations.migrate(instance, offer, told)
    rig.there.live_migrations.receive(instance)
    assert forced and domains(rig.there) == {instance.uuid: (PowerState.RUNNING, [])}
    with pytest.raises(errors.MigrationError):
        rig.here.live_migrations.force_complete(instance)


def test_a_guest_that_is_off_is_not_migrated_live(rig: Any) -> None:
    instance, guest, offer = live(rig)
    rig.there.live_migrations.prepare(instance, guest, offer)
    rig.here.power.power_off(instance)
    with pytest.raises(errors.KilonovaError):
        rig.here.live_migrations.describe(instance)
    with pytest.raises(errors.KilonovaError):
        rig.here.live_migrations.migrate(instance, offer, lambda progress: None)
    assert not rig.here.live_migrations.abort(instance) and not rig.there.live_migrations.has_arrived(instance)


def test_a_guest_that_came_and_is_off_keeps_its_disks_there(rig: Any) -> None:
    instance, guest, offer = live(rig)
    if offer.get('boot_id') == 'of another machine':
        return
    rig.there.live_migrations.prepare(instance, guest, offer)
    rig.here.live_migrations.migrate(instance, offer, lambda progress: None)
    rig.there.live_migrations.receive(instance)
    rig.there.guests.destroy(instance, destroy_disks=False)
    rig.there.live_migrations.receive(instance)
    rig.there.moves.cleanup_move_dest(instance, same_host=False)
    assert rig.kept('gpu2', instance.uuid) and rig.there.guests.get_info(instance) == PowerState.SHUTDOWN


def test_a_guest_that_does_not_fit_is_refused_before_anything_is_done(rig: Any) -> None:
    instance, guest, offer = live(rig)
    wrongs = [{**guest, 'virt_type': 'other'}]
    if offer['block']:
        wrongs.append({**guest, 'disks': [{**guest['disks'][0], 'size': 1 << 60, 'used': 1 << 60}]})
    with pytest.raises(errors.MigrationPreCheckError):
        rig.there.live_migrations.offer(instance, guest, not offer['block'], True)
    for wrong in wrongs:
        with pytest.raises(errors.MigrationPreCheckError):
            rig.there.live_migrations.offer(instance, wrong, None, False)
    assert rig.there.guests.describe() == []

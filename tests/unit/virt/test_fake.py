"""What the fake has besides the contract: failures on demand and a shape of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kilonova import errors
from kilonova.pci.ports import request_of
from kilonova.virt.fake import FakeDriver
from kilonova.virt.fakes.state import FakeMachine
from kilonova.virt.parts.host import MdevUnavailable
from kilonova.virt.parts.volumes import VolumeCounters
from tests.unit.virt.builders import (
    GPU,
    MDEV,
    MDEV2,
    VGPU,
    VGPU_PARENT,
    VOLUME,
    device,
    devices,
    image_meta,
    mediated,
    new_conf,
    new_instance,
    new_vif,
    new_volume,
)


@pytest.fixture
def fake(tmp_path: Path) -> FakeDriver:
    return FakeDriver(new_conf(tmp_path), machine=FakeMachine())


def test_failing_before_the_work(fake: FakeDriver) -> None:
    instance = new_instance()
    fake.fail('spawn', OSError('boom'))
    with pytest.raises(OSError, match='boom'):
        fake.guests.spawn(instance, image_meta())
    assert fake.guests.describe() == []
    fake.guests.spawn(instance, image_meta())
    assert len(fake.guests.describe()) == 1


def test_failing_after_the_work(fake: FakeDriver) -> None:
    instance = new_instance()
    fake.fail('spawn', OSError('boom'), after=True)
    with pytest.raises(OSError, match='boom'):
        fake.guests.spawn(instance, image_meta(), pci_devices=devices(GPU))
    assert fake.guests.describe()[0]['hostdevs'] == [GPU]


def test_a_function_whose_port_is_gone_is_not_given(fake: FakeDriver) -> None:
    request = request_of('gone', 'direct', 'physnet1', None)
    function = device('0000:81:00.2')
    function.request_id = request.request_id
    fake.guests.spawn(new_instance(pci_requests=[request]), image_meta(), pci_devices=[*devices(GPU), function])
    assert fake.guests.describe()[0]['hostdevs'] == [GPU]


def test_calls_are_noted(fake: FakeDriver) -> None:
    instance = new_instance()
    fake.guests.destroy(instance)
    fake.host.get_available_resource()
    assert fake.calls == [('destroy', instance.uuid), ('get_available_resource', None)]


def test_devices_are_the_tests_own(fake: FakeDriver) -> None:
    fake.pci_devices.append({'address': GPU})
    assert fake.host.get_available_resource()['pci_passthrough_devices'] == [{'address': GPU}]


def test_mediated_devices_are_made_until_none_is_available(fake: FakeDriver) -> None:
    fake.pci_devices.append({'address': VGPU_PARENT, 'mdev_types': {VGPU: {'available': 1, 'api': 'vfio-pci'}}})

    def available() -> int:
        found: int = fake.host.get_available_resource()['pci_passthrough_devices'][0]['mdev_types'][VGPU]['available']
        return found

    instance = new_instance()
    fake.guests.spawn(instance, image_meta(), pci_devices=[mediated(MDEV)])
    assert fake.mdevs == {MDEV: (VGPU_PARENT, VGPU)} and available() == 0
    with pytest.raises(MdevUnavailable, match='none is available'):
        fake.guests.spawn(new_instance(), image_meta(), pci_devices=[mediated(MDEV2)])
    # It stays when its guest goes, and comes back with a guest that goes on.
    fake.power.suspend(instance, lambda: None)
    del fake.mdevs[MDEV]
    assert available() == 1
    fake.power.resume(instance, [mediated(MDEV)], lambda: None)
    fake.guests.destroy(instance)
    assert fake.mdevs == {MDEV: (VGPU_PARENT, VGPU)}


def test_volumes_grow_and_stay_where_a_detach_is_ended(fake: FakeDriver) -> None:
    instance, volume = new_instance(volumes=[new_volume()]), new_volume(size=3)
    fake.guests.spawn(instance, image_meta())

    def stop() -> None:
        raise errors.Cancelled(key='x')

    with pytest.raises(errors.Cancelled):
        fake.volumes.detach(instance, volume, stop)
    assert fake.domains[instance.uuid].volumes == {volume.volume_id: 1}
    fake.volumes.extend(instance, volume)
    assert fake.domains[instance.uuid].volumes == {volume.volume_id: 3} and list(fake.connected) == [volume.volume_id]


def test_a_guest_counts_anew_from_each_start(fake: FakeDriver) -> None:
    instance = new_instance(volumes=[new_volume()])
    fake.guests.spawn(instance, image_meta())
    counters = VolumeCounters(1, 2, 3, 4)
    fake.domains[instance.uuid].used[VOLUME] = counters
    assert fake.volumes.usage(instance) == {VOLUME: counters}
    fake.power.power_off(instance)
    fake.power.power_on(instance, image_meta())
    assert fake.volumes.usage(instance) == {VOLUME: VolumeCounters()}
    fake.domains[instance.uuid].used[VOLUME] = counters
    fake.volumes.detach(instance, instance.volumes[0], lambda: None)
    fake.volumes.attach(instance, image_meta(), instance.volumes[0])
    assert fake.volumes.usage(instance) == {VOLUME: VolumeCounters()}
    # On the host that it migrates to it is another process.
    fake.domains[instance.uuid].used[VOLUME] = counters
    fake.live_migrations.migrate(instance, {'host': 'gpu2', 'move': 'm', 'volumes': {VOLUME: ''}}, lambda told: None)
    assert fake.machine.arrived['gpu2'][instance.uuid].used == {}


@pytest.mark.parametrize(('vnic_type', 'own'), [('direct', [GPU]), ('macvtap', []), ('vdpa', [])])
def test_the_device_behind_a_port_is_none_of_the_guest_s_own(fake: FakeDriver, vnic_type: str, own: list[str]) -> None:
    """Where something of the host's leads to it: in the domain that is made with the port, and in one that gets it."""
    guests, vif = fake.guests, new_vif(vnic_type=vnic_type, profile={'pci_slot': GPU})
    for vifs in ([vif], []):
        instance = new_instance(vifs=vifs)
        guests.spawn(instance, image_meta(), pci_devices=devices(GPU) if vifs else [])
        guests.attach_interface(instance, image_meta(), vif, devices(GPU))
        assert [domain['hostdevs'] for domain in guests.describe()] == [own]
        guests.destroy(instance)

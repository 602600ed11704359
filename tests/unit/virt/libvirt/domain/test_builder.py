"""The whole domain: order of elements, and what nobody asked for."""

from __future__ import annotations

from kilonova.virt.libvirt.devices.pci import PciFunction
from kilonova.virt.libvirt.domain.builder import CONFIGURATORS
from kilonova.virt.libvirt.domain.guest import GuestDisk
from tests.unit.virt.builders import new_vif
from tests.unit.virt.libvirt.domain.conftest import Configure


def test_elements_stand_in_the_fields_order(configure: Configure) -> None:
    """The elements of the domain XML are in Nova's order."""
    domain = configure(
        *CONFIGURATORS,
        disks=(GuestDisk('/i/disk', 'qcow2'),),
        hostdevs=(PciFunction('0000:08:00.0'),),
        console_log='/i/console.log',
        instance={'vifs': [new_vif()]},
    )
    assert [element.tag for element in domain] == [
        'uuid',
        'name',
        'memory',
        'vcpu',
        'metadata',
        'sysinfo',
        'os',
        'features',
        'clock',
        'cpu',
        'devices',
    ]
    devices = domain.find('devices')
    assert devices is not None
    assert [device.tag for device in devices] == [
        'disk',
        'interface',
        'serial',
        'rng',
        'controller',
        'hostdev',
        'memballoon',
    ]


def test_without_configurators_there_is_only_who_it_is(configure: Configure) -> None:
    domain = configure()
    assert (domain.get('type'), domain.findtext('uuid'), domain.findtext('name')) == ('kvm', 'u-1', 'instance-00000001')
    assert [element.tag for element in domain] == ['uuid', 'name', 'memory', 'vcpu', 'devices']


def test_each_subject_has_one_configurator() -> None:
    names = [type(configurator).__name__ for configurator in CONFIGURATORS]
    assert len(names) == len(set(names)) == 23


def test_what_nobody_asked_for_is_not_there(configure: Configure) -> None:
    domain = configure(*CONFIGURATORS, disks=(GuestDisk('/i/disk', 'qcow2'),))
    for path in ('cputune', 'numatune', 'memoryBacking', 'cpu/numa', 'os/bootmenu', 'os/kernel', 'devices/disk/iotune'):
        assert domain.find(path) is None, path
    devices = domain.find('devices')
    assert devices is not None
    assert [device.tag for device in devices] == ['disk', 'rng', 'controller', 'memballoon']
    for virt_type in ('lxc', 'parallels'):
        others = configure(*CONFIGURATORS, settings={'virt_type': virt_type}).find('devices')
        assert others is not None and len(others) == 0

"""The machine: what it starts from, features, clock, and whose it is."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.virt.libvirt.domain.board import (
    ClockConfigurator,
    FeaturesConfigurator,
    MetadataConfigurator,
    OsConfigurator,
    SysinfoConfigurator,
)
from kilonova.virt.libvirt.domain.guest import GuestDisk
from kilonova.virt.parts.guests import NotOnThisHost, UnsupportedHardware
from tests.unit.virt.libvirt.domain.conftest import Configure, text

UEFI, Q35 = {'hw_firmware_type': 'uefi'}, {'hw_firmware_type': 'uefi', 'hw_machine_type': 'q35'}
PLAIN = '<firmware><feature enabled="no" name="secure-boot"/></firmware>'
SECURE = (
    '<firmware><feature enabled="yes" name="secure-boot"/><feature enabled="yes" name="enrolled-keys"/>'
    '</firmware><loader secure="yes"/>'
)
PIT_RTC = '<timer name="pit" tickpolicy="delay"/><timer name="rtc" tickpolicy="catchup"/>'
NO_HPET = '<timer name="hpet" present="no"/>'
NS = {'nova': 'http://openstack.org/xmlns/libvirt/nova/1.1'}


@pytest.mark.parametrize(
    ('settings', 'properties', 'arch', 'machine'),
    [
        ({}, {}, 'x86_64', 'pc'),
        ({'machines': {'x86_64': 'q35'}}, {}, 'x86_64', 'q35'),
        ({'machines': {'x86_64': 'q35'}}, {'hw_machine_type': 'pc-i440fx-7.2'}, 'x86_64', 'pc-i440fx-7.2'),
        ({'arch': 'armv7l'}, {}, 'armv7l', 'virt'),
    ],
)
def test_machine(
    configure: Configure, settings: dict[str, Any], properties: dict[str, str], arch: str, machine: str
) -> None:
    domain = configure(OsConfigurator(), settings=settings, properties=properties)
    assert text(domain.find('os')) == (
        f'<os><type arch="{arch}" machine="{machine}">hvm</type><boot dev="hd"/><smbios mode="sysinfo"/></os>'
    )


@pytest.mark.parametrize('asked', [{'extra_specs': {'hw:boot_menu': 'true'}}, {'properties': {'hw_boot_menu': True}}])
def test_boot_menu(configure: Configure, asked: dict[str, Any]) -> None:
    assert text(configure(OsConfigurator(), **asked).find('os/bootmenu')) == '<bootmenu enable="yes"/>'


@pytest.mark.parametrize(
    ('asked', 'firmware'),
    [
        ({'properties': {'hw_firmware_type': 'bios'}}, None),
        ({'properties': UEFI}, PLAIN),
        ({'settings': {'arch': 'aarch64'}}, PLAIN),
        ({'properties': {**Q35, 'os_secure_boot': 'required'}}, SECURE),
        ({'properties': Q35, 'extra_specs': {'os:secure_boot': 'required'}}, SECURE),
        ({'properties': {**Q35, 'os_secure_boot': 'optional'}}, SECURE),
        ({'properties': {**UEFI, 'os_secure_boot': 'optional'}}, PLAIN),
        ({'properties': {**Q35, 'os_secure_boot': 'optional'}, 'settings': {'has_secure_boot': False}}, PLAIN),
    ],
)
def test_firmware(configure: Configure, asked: dict[str, Any], firmware: str | None) -> None:
    """The guest gets the firmware that its image, flavor or architecture asks for."""
    domain = configure(OsConfigurator(), **asked)
    found = domain.find('os')
    assert found is not None
    assert found.get('firmware') == (None if firmware is None else 'efi')
    parts = ''.join(text(part) for part in found if part.tag in ('firmware', 'loader'))
    assert parts == (firmware or '')
    assert (domain.find("features/smm[@state='on']") is not None) is (firmware == SECURE)


@pytest.mark.parametrize(
    ('properties', 'settings', 'said'),
    [
        (UEFI, {'has_uefi': False}, "'uefi' of 'hw_firmware_type'"),
        ({**UEFI, 'os_secure_boot': 'required'}, {}, "'required' of 'os:secure_boot' .* machine type pc"),
        ({**Q35, 'os_secure_boot': 'required'}, {'has_secure_boot': False}, "'required' of 'os:secure_boot'"),
    ],
)
def test_firmware_that_the_host_does_not_have(
    configure: Configure, properties: dict[str, str], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(NotOnThisHost, match=said):
        configure(OsConfigurator(), properties=properties, settings=settings)


def test_secure_boot_of_an_image_that_names_another_board(configure: Configure) -> None:
    with pytest.raises(UnsupportedHardware, match='secure boot on machine type pc'):
        configure(OsConfigurator(), properties={**UEFI, 'os_secure_boot': 'required', 'hw_machine_type': 'pc'})


MACHINES = {'pc': 255, 'pc-i440fx-7.2': 255, 'q35': 288, 'virt': None}


@pytest.mark.parametrize(
    ('machine', 'vcpus', 'said'),
    [
        (
            'pc-q35-99.0',
            1,
            (
                "'pc-q35-99.0' of 'hw_machine_type' is not supported by this host: "
                'the QEMU of the host supports pc, q35, virt'
            ),
        ),
        ('pc', 256, "'256' of 'vcpus' is not supported by this host: machine type pc has at most 255"),
        (None, 256, "'256' of 'vcpus' is not supported by this host: machine type pc has at most 255"),
        ('pc', 255, None),
        ('q35', 256, None),
        ('virt', 512, None),
        ('pc-i440fx-7.2', 1, None),
    ],
)
def test_machine_types_that_the_hosts_qemu_has(
    configure: Configure, machine: str | None, vcpus: int, said: str | None
) -> None:
    """A machine type that the host's QEMU lacks, or with too many vCPUs for it, is refused by name."""
    asked = {
        'settings': {'machine_types': MACHINES},
        'flavor': {'vcpus': vcpus},
        'properties': {} if machine is None else {'hw_machine_type': machine},
    }
    if said is None:
        assert configure(OsConfigurator(), **asked).find('os/type') is not None
        return
    with pytest.raises(NotOnThisHost, match=f'^{said}$'):
        configure(OsConfigurator(), **asked)


@pytest.mark.parametrize(
    ('properties', 'command_line'),
    [
        ({}, 'root=/dev/vda console=tty0 console=ttyS0 console=hvc0'),
        ({'hw_disk_bus': 'scsi'}, 'root=/dev/sda console=tty0 console=ttyS0 console=hvc0'),
        ({'os_command_line': 'root=/dev/vda ro quiet'}, 'root=/dev/vda ro quiet'),
    ],
)
def test_a_kernel_of_its_own(configure: Configure, properties: dict[str, str], command_line: str) -> None:
    """A guest whose image names a kernel boots from it, with its ramdisk and a command line."""
    asked = {'properties': properties, 'disks': (GuestDisk('/i/disk', 'qcow2'),)}
    domain = configure(OsConfigurator(), kernel='/i/kernel', ramdisk='/i/ramdisk', **asked)
    assert [(part.tag, part.text) for part in domain.findall('os/*')][1:4] == [
        ('kernel', '/i/kernel'),
        ('initrd', '/i/ramdisk'),
        ('cmdline', command_line),
    ]
    assert configure(OsConfigurator(), kernel='/i/kernel', **asked).find('os/initrd') is None
    assert configure(OsConfigurator(), **asked).find('os/cmdline') is None


@pytest.mark.parametrize(
    ('asked', 'features'),
    [
        ({}, ['acpi', 'apic', 'vmcoreinfo']),
        ({'settings': {'arch': 'aarch64'}}, ['acpi', 'vmcoreinfo']),
        ({'settings': {'virt_type': 'lxc'}}, []),
        ({'settings': {'arch': 's390x'}}, []),
        ({'extra_specs': {'hw:hide_hypervisor_id': 'true'}}, ['acpi', 'apic', 'vmcoreinfo', 'kvm']),
        ({'extra_specs': {'hide_hypervisor_id': 'true'}}, ['acpi', 'apic', 'vmcoreinfo', 'kvm']),
        ({'extra_specs': {'hw:viommu_model': 'auto'}}, ['acpi', 'apic', 'vmcoreinfo', 'ioapic']),
        ({'extra_specs': {'hw:viommu_model': 'virtio'}}, ['acpi', 'apic', 'vmcoreinfo']),
        ({'extra_specs': {'hw:viommu_model': 'auto'}, 'settings': {'arch': 'aarch64'}}, ['acpi', 'vmcoreinfo']),
        ({'properties': {'img_hide_hypervisor_id': 'yes'}}, ['acpi', 'apic', 'vmcoreinfo', 'kvm']),
        ({'properties': {'os_type': 'windows'}}, ['acpi', 'apic', 'vmcoreinfo', 'hyperv']),
        # QEMU without KVM refuses to start with any feature of Hyper-V.
        ({'properties': {'os_type': 'windows'}, 'settings': {'virt_type': 'qemu'}}, ['acpi', 'apic', 'vmcoreinfo']),
        ({'extra_specs': {'hw:pmu': 'False'}}, ['acpi', 'apic', 'vmcoreinfo', 'pmu']),
    ],
)
def test_features(configure: Configure, asked: dict[str, Any], features: list[str]) -> None:
    found = configure(FeaturesConfigurator(), **asked).find('features')
    assert [feature.tag for feature in (found if found is not None else [])] == features


def test_pmu_off(configure: Configure) -> None:
    domain = configure(FeaturesConfigurator(), properties={'hw_pmu': 'false'})
    assert text(domain.find('features/pmu')) == '<pmu state="off"/>'


@pytest.mark.parametrize('hidden', [True, False])
def test_windows(configure: Configure, hidden: bool) -> None:
    domain = configure(
        FeaturesConfigurator(), properties={'os_type': 'windows'}, extra_specs={'hw:hide_hypervisor_id': str(hidden)}
    )
    hyperv = domain.find('features/hyperv')
    assert hyperv is not None
    assert text(hyperv.find('spinlocks')) == '<spinlocks state="on" retries="8191"/>'
    assert (hyperv.find('vendor_id') is not None) is hidden


@pytest.mark.parametrize(
    ('asked', 'clock'),
    [
        ({}, f'<clock offset="utc">{PIT_RTC}<timer name="hpet" present="no"/></clock>'),
        (
            {'properties': {'hw_time_hpet': True}},
            f'<clock offset="utc">{PIT_RTC}<timer name="hpet" present="yes"/></clock>',
        ),
        ({'settings': {'arch': 'aarch64'}}, f'<clock offset="utc">{PIT_RTC}</clock>'),
        ({'settings': {'virt_type': 'qemu'}}, '<clock offset="utc"/>'),
        (
            {'properties': {'os_type': 'windows'}},
            f'<clock offset="localtime">{PIT_RTC}{NO_HPET}<timer name="hypervclock" present="yes"/></clock>',
        ),
    ],
)
def test_clock(configure: Configure, asked: dict[str, Any], clock: str) -> None:
    assert text(configure(ClockConfigurator(), **asked).find('clock')) == clock


@pytest.mark.parametrize(('source', 'number'), [('unique', 'u-1'), ('board', 'board'), (None, None)])
def test_who_made_it(configure: Configure, source: str | None, number: str | None) -> None:
    domain = configure(SysinfoConfigurator(), settings={'serial_number': source})
    entries = {entry.get('name'): entry.text for entry in domain.findall('sysinfo/system/entry')}
    assert entries.pop('serial', None) == number
    assert entries == {
        'manufacturer': 'OpenStack Foundation',
        'product': 'OpenStack Nova',
        'uuid': 'u-1',
        'family': 'Virtual Machine',
    }


def test_only_for_qemu(configure: Configure) -> None:
    assert configure(SysinfoConfigurator(), settings={'virt_type': 'lxc'}).find('sysinfo') is None


def test_server_flavor_and_owner(configure: Configure) -> None:
    domain = configure(
        MetadataConfigurator(),
        extra_specs={'b': '2', 'a': '1'},
        properties={'hw_machine_type': 'q35'},
        settings={'version': '1.0'},
    )
    found = domain.find('metadata/nova:instance', NS)
    assert found is not None
    assert found.findtext('nova:name', namespaces=NS) == 'One'
    flavor = found.find('nova:flavor', NS)
    assert flavor is not None and flavor.get('name') == 'tmp1'
    assert [
        flavor.findtext(f'nova:{name}', namespaces=NS) for name in ('memory', 'disk', 'swap', 'ephemeral', 'vcpus')
    ] == ['32768', '1', '0', '0', '8']
    assert [(spec.get('name'), spec.text) for spec in flavor.findall('nova:extraSpecs/nova:extraSpec', NS)] == [
        ('a', '1'),
        ('b', '2'),
    ]
    assert [
        (item.get('name'), item.text) for item in found.findall('nova:image/nova:properties/nova:property', NS)
    ] == [('hw_machine_type', 'q35')]
    for path, attribute, value in (
        ('nova:owner/nova:user', 'uuid', 'ann'),
        ('nova:owner/nova:project', 'uuid', 'demo'),
        ('nova:root', 'uuid', 'image-1'),
        ('nova:package', 'version', '1.0'),
    ):
        element = found.find(path, NS)
        assert element is not None and element.get(attribute) == value


def test_no_image(configure: Configure) -> None:
    found = configure(MetadataConfigurator(), instance={'image_ref': ''}).find('metadata/nova:instance', NS)
    assert found is not None and found.find('nova:root', NS) is None and found.find('nova:package', NS) is None

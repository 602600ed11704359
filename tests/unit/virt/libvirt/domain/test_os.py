from __future__ import annotations

from typing import Any

import pytest

from kilonova.virt.driver import UnsupportedHardware
from kilonova.virt.libvirt.domain.guest import GuestDisk
from kilonova.virt.libvirt.domain.os import OsConfigurator
from tests.unit.virt.libvirt.domain.conftest import Configure, text


@pytest.mark.parametrize(('settings', 'properties', 'arch', 'machine'), [
    ({}, {}, 'x86_64', 'pc'), ({'machines': {'x86_64': 'q35'}}, {}, 'x86_64', 'q35'),
    ({'machines': {'x86_64': 'q35'}}, {'hw_machine_type': 'pc-i440fx-7.2'}, 'x86_64', 'pc-i440fx-7.2'),
    ({'arch': 'armv7l'}, {}, 'armv7l', 'virt')])
def test_machine(configure: Configure, settings: dict[str, Any], properties: dict[str, str], arch: str,
                 machine: str) -> None:
    domain = configure(OsConfigurator(), settings=settings, properties=properties)
    assert text(domain.find('os')) == (f'<os><type arch="{arch}" machine="{machine}">hvm</type><boot dev="hd"/>'
                                       '<smbios mode="sysinfo"/></os>')


@pytest.mark.parametrize('asked', [{'extra_specs': {'hw:boot_menu': 'true'}}, {'properties': {'hw_boot_menu': True}}])
def test_boot_menu(configure: Configure, asked: dict[str, Any]) -> None:
    assert text(configure(OsConfigurator(), **asked).find('os/bootmenu')) == '<bootmenu enable="yes"/>'


UEFI, Q35 = {'hw_firmware_type': 'uefi'}, {'hw_firmware_type': 'uefi', 'hw_machine_type': 'q35'}
PLAIN = '<firmware><feature enabled="no" name="secure-boot"/></firmware>'
SECURE = ('<firmware><feature enabled="yes" name="secure-boot"/><feature enabled="yes" name="enrolled-keys"/>'
          '</firmware><loader secure="yes"/>')


@pytest.mark.parametrize(('asked', 'firmware'), [
    ({'properties': {'hw_firmware_type': 'bios'}}, None),
    ({'properties': UEFI}, PLAIN), ({'settings': {'arch': 'aarch64'}}, PLAIN),
    ({'properties': {**Q35, 'os_secure_boot': 'required'}}, SECURE),
    ({'properties': Q35, 'extra_specs': {'os:secure_boot': 'required'}}, SECURE),
    ({'properties': {**Q35, 'os_secure_boot': 'optional'}}, SECURE),
    ({'properties': {**UEFI, 'os_secure_boot': 'optional'}}, PLAIN),
    ({'properties': {**Q35, 'os_secure_boot': 'optional'}, 'settings': {'has_secure_boot': False}}, PLAIN)])
def test_firmware(configure: Configure, asked: dict[str, Any], firmware: str | None) -> None:
    """Finding 3.6: an image with hw_firmware_type=uefi booted by BIOS."""
    domain = configure(OsConfigurator(), **asked)
    found = domain.find('os')
    assert found is not None
    assert found.get('firmware') == (None if firmware is None else 'efi')
    parts = ''.join(text(part) for part in found if part.tag in ('firmware', 'loader'))
    assert parts == (firmware or '')
    assert (domain.find("features/smm[@state='on']") is not None) is (firmware == SECURE)


@pytest.mark.parametrize(('properties', 'settings', 'said'), [
    (UEFI, {'has_uefi': False}, 'firmware uefi'), ({**UEFI, 'os_secure_boot': 'required'}, {}, 'machine type pc'),
    ({**Q35, 'os_secure_boot': 'required'}, {'has_secure_boot': False}, 'secure boot')])
def test_firmware_that_the_host_does_not_have(configure: Configure, properties: dict[str, str],
                                              settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedHardware, match=said):
        configure(OsConfigurator(), properties=properties, settings=settings)


@pytest.mark.parametrize(('properties', 'command_line'), [
    ({}, 'root=/dev/vda console=tty0 console=ttyS0 console=hvc0'),
    ({'hw_disk_bus': 'scsi'}, 'root=/dev/sda console=tty0 console=ttyS0 console=hvc0'),
    ({'os_command_line': 'root=/dev/vda ro quiet'}, 'root=/dev/vda ro quiet')])
def test_a_kernel_of_its_own(configure: Configure, properties: dict[str, str], command_line: str) -> None:
    """Finding 3.6."""
    asked = {'properties': properties, 'disks': (GuestDisk('/i/disk', 'qcow2'),)}
    domain = configure(OsConfigurator(), kernel='/i/kernel', ramdisk='/i/ramdisk', **asked)
    assert [(part.tag, part.text) for part in domain.findall('os/*')][1:4] == [
        ('kernel', '/i/kernel'), ('initrd', '/i/ramdisk'), ('cmdline', command_line)]
    assert configure(OsConfigurator(), kernel='/i/kernel', **asked).find('os/initrd') is None
    assert configure(OsConfigurator(), **asked).find('os/cmdline') is None

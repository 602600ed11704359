from __future__ import annotations

from typing import Any

import pytest

from kilonova.virt.libvirt.domain.controller import ControllerConfigurator
from kilonova.virt.libvirt.domain.guest import GuestDisk
from tests.unit.virt.libvirt.domain.conftest import Configure

USB, USED, ROOT, PORT = ('usb', 'none'), ('usb', None), ('pci', 'pcie-root'), ('pci', 'pcie-root-port')


@pytest.mark.parametrize(('settings', 'controllers'), [
    ({}, [USB]), ({'pcie_ports': 2}, [USB]),
    ({'pcie_ports': 2, 'machines': {'x86_64': 'q35'}}, [USB, ROOT, PORT, PORT]),
    ({'pcie_ports': 0, 'machines': {'x86_64': 'q35'}}, [USB]),
    ({'pcie_ports': 1, 'arch': 'aarch64'}, [ROOT, PORT])])
def test_controllers(configure: Configure, settings: dict[str, Any], controllers: list[tuple[str, str]]) -> None:
    domain = configure(ControllerConfigurator(), settings=settings)
    assert [(found.get('type'), found.get('model')) for found in domain.findall('devices/controller')] == controllers


@pytest.mark.parametrize('properties', [{'hw_disk_bus': 'usb'}, {'hw_cdrom_bus': 'usb'}, {}])
def test_disks_on_usb_have_a_controller(configure: Configure, properties: dict[str, str]) -> None:
    """Finding 4.1: "USB is disabled for this domain, but USB devices are present"."""
    disks = (GuestDisk('/disk', 'qcow2'), GuestDisk('/cd', 'raw', 'cdrom'))
    domain = configure(ControllerConfigurator(), disks=disks, properties=properties)
    assert [(found.get('type'), found.get('model')) for found in domain.findall('devices/controller')] == [
        USED if properties else USB]

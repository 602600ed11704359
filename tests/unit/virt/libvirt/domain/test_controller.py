from __future__ import annotations

from typing import Any

import pytest

from kilonova.virt.libvirt.domain.controller import ControllerConfigurator
from tests.unit.virt.libvirt.domain.conftest import Configure

USB, ROOT, PORT = ('usb', 'none'), ('pci', 'pcie-root'), ('pci', 'pcie-root-port')


@pytest.mark.parametrize(('settings', 'controllers'), [
    ({}, [USB]), ({'pcie_ports': 2}, [USB]),
    ({'pcie_ports': 2, 'machines': {'x86_64': 'q35'}}, [USB, ROOT, PORT, PORT]),
    ({'pcie_ports': 0, 'machines': {'x86_64': 'q35'}}, [USB]),
    ({'pcie_ports': 1, 'arch': 'aarch64'}, [ROOT, PORT])])
def test_controllers(configure: Configure, settings: dict[str, Any], controllers: list[tuple[str, str]]) -> None:
    domain = configure(ControllerConfigurator(), settings=settings)
    assert [(found.get('type'), found.get('model')) for found in domain.findall('devices/controller')] == controllers

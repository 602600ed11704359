from __future__ import annotations

from typing import Any

import pytest

from kilonova.virt.libvirt.domain.os import OsConfigurator
from tests.unit.virt.libvirt.domain.conftest import Configure, text


@pytest.mark.parametrize(('settings', 'properties', 'arch', 'machine'), [
    ({}, {}, 'x86_64', 'pc'), ({'machines': {'x86_64': 'q35'}}, {}, 'x86_64', 'q35'),
    ({'machines': {'x86_64': 'q35'}}, {'hw_machine_type': 'pc-i440fx-7.2'}, 'x86_64', 'pc-i440fx-7.2'),
    ({'arch': 'aarch64'}, {}, 'aarch64', 'virt')])
def test_machine(configure: Configure, settings: dict[str, Any], properties: dict[str, str], arch: str,
                 machine: str) -> None:
    domain = configure(OsConfigurator(), settings=settings, properties=properties)
    assert text(domain.find('os')) == (f'<os><type arch="{arch}" machine="{machine}">hvm</type><boot dev="hd"/>'
                                       '<smbios mode="sysinfo"/></os>')


@pytest.mark.parametrize('asked', [{'extra_specs': {'hw:boot_menu': 'true'}}, {'properties': {'hw_boot_menu': True}}])
def test_boot_menu(configure: Configure, asked: dict[str, Any]) -> None:
    assert text(configure(OsConfigurator(), **asked).find('os/bootmenu')) == '<bootmenu enable="yes"/>'

from __future__ import annotations

import pytest

from kilonova import errors
from kilonova.virt.libvirt.devices.pci import HostDevice
from kilonova.virt.libvirt.domain.hostdev import HostdevConfigurator
from tests.unit.virt.libvirt.domain.conftest import Configure, text

VIDEO = ('<hostdev mode="subsystem" type="pci" managed="yes"><source>'
         '<address domain="0x0000" bus="0x08" slot="0x00" function="0x0"/></source></hostdev>')


def test_nothing_but_the_address(configure: Configure) -> None:
    """Row 0.4."""
    domain = configure(HostdevConfigurator(), hostdevs=(HostDevice('0000:08:00.0'),))
    assert text(domain.find('devices')) == f'<devices>{VIDEO}</devices>'


def test_several_in_the_order_given(configure: Configure) -> None:
    domain = configure(HostdevConfigurator(), hostdevs=(HostDevice('0000:88:1f.7', managed=False),
                                                        HostDevice('0000:08:00.0')))
    first, second = domain.findall('devices/hostdev')
    assert text(second) == VIDEO
    assert first.get('managed') == 'no'
    assert '<address domain="0x0000" bus="0x88" slot="0x1f" function="0x7"/>' in text(first)


def test_no_devices(configure: Configure) -> None:
    assert text(configure(HostdevConfigurator(), settings={'virt_type': 'lxc'}).find('devices')) == '<devices/>'


@pytest.mark.parametrize('virt_type', ['lxc', 'parallels'])
def test_guests_that_cannot_have_any(configure: Configure, virt_type: str) -> None:
    """Seed-map 0.20."""
    with pytest.raises(errors.PciDeviceUnsupportedHypervisor, match=virt_type):
        configure(HostdevConfigurator(), settings={'virt_type': virt_type}, hostdevs=(HostDevice('0000:08:00.0'),))


@pytest.mark.parametrize('virt_type', ['kvm', 'qemu'])
def test_guests_that_can(configure: Configure, virt_type: str) -> None:
    domain = configure(HostdevConfigurator(), settings={'virt_type': virt_type, 'domain_type': 'test'},
                       hostdevs=(HostDevice('0000:08:00.0'),))
    assert len(domain.findall('devices/hostdev')) == 1

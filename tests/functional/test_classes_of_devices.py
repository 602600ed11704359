"""A flavor that names a device's resource class itself is refused, as only a PCI alias claims a device.

Placement would hold a device that neither the server's rows, nor the guest, nor the quota count.
"""

from __future__ import annotations

import pytest

from tests.fixtures.cloud import Cloud

DEVICE = 'CUSTOM_PCI_10DE_13F1'


@pytest.mark.parametrize('group', ['', '1', '_GPU'])
def test_it_gets_no_device(cloud: Cloud, group: str) -> None:
    """Nothing is held, and the fault says how to ask."""
    server = cloud.boot(cloud.flavor(**{f'resources{group}:{DEVICE}': '1'}))
    assert cloud.status(server) == 'ERROR'
    assert f'resources{group}:{DEVICE}' in cloud.show(server)['fault']['message']
    assert 'pci_passthrough:alias' in cloud.show(server)['fault']['message']
    assert {status for status, _ in cloud.devices().values()} == {'available'}
    cloud.assert_clean()


def test_beside_an_alias(cloud: Cloud) -> None:
    """What an alias asks for is given as ever."""
    assert cloud.status(cloud.boot(cloud.flavor(gpus=2))) == 'ACTIVE'
    cloud.assert_clean()

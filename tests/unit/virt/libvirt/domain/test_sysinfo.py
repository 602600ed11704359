from __future__ import annotations

import pytest

from kilonova.virt.libvirt.domain.sysinfo import SysinfoConfigurator
from tests.unit.virt.libvirt.domain.conftest import Configure


@pytest.mark.parametrize(('source', 'number'), [('unique', 'u-1'), ('board', 'board'), (None, None)])
def test_who_made_it(configure: Configure, source: str | None, number: str | None) -> None:
    domain = configure(SysinfoConfigurator(), settings={'serial_number': source})
    entries = {entry.get('name'): entry.text for entry in domain.findall('sysinfo/system/entry')}
    assert entries.pop('serial', None) == number
    assert entries == {'manufacturer': 'OpenStack Foundation', 'product': 'OpenStack Nova', 'uuid': 'u-1',
                       'family': 'Virtual Machine'}


def test_only_for_qemu(configure: Configure) -> None:
    assert configure(SysinfoConfigurator(), settings={'virt_type': 'lxc'}).find('sysinfo') is None

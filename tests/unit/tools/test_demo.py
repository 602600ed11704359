"""The demo's readers of what the cloud wrote."""
from __future__ import annotations

import pytest

from tools.cloud import control, demo
from tools.cloud.process import Record
from tools.cloud.services import Service

DOMAIN = """
<domain type='qemu'>
  <memory unit='KiB'>67108864</memory>
  <vcpu placement='static'>16</vcpu>
  <devices>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source><address domain='0x0000' bus='0x88' slot='0x00' function='0x0'/></source>
      <address type='pci' domain='0x0000' bus='0x05' slot='0x00' function='0x0'/>
    </hostdev>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source><address domain='0' bus='8' slot='0' function='0'/></source>
    </hostdev>
    <hostdev mode='subsystem' type='usb'><source><vendor id='0x1'/></source></hostdev>
  </devices>
</domain>
"""


def test_guest_is_read_from_the_domain():
    assert demo.read_guest(DOMAIN) == demo.Guest(16, 65536, ('0000:08:00.0', '0000:88:00.0'))


def test_memory_units():
    assert demo.read_guest("<domain><memory unit='GiB'>32</memory><vcpu>8</vcpu></domain>").memory == 32768


@pytest.mark.parametrize('shown', [
    {'pci_passthrough:alias': 'QuadroM4000-video:2'},
    "pci_passthrough:alias='QuadroM4000-video:2'",
])
def test_flavor_properties_of_old_and_new_clients(shown):
    assert demo.properties(shown) == {'pci_passthrough:alias': 'QuadroM4000-video:2'}


def row(binary: str, host: str, *, state: str = 'up', at: str | None = '2026-01-01T00:00:10.000000') -> dict[str, str]:
    return {'binary': binary, 'host': host, 'state': state, 'updated_at': at}


# 2026-01-01T00:00:09Z, one second before the rows above.
STARTED = 1767225609.0


@pytest.mark.parametrize(('rows', 'missing'), [
    ([row('nova-compute', 'gpu1')], []),
    ([row('nova-compute', 'gpu2')], ['compute-gpu1']),
    ([row('nova-compute', 'gpu1', state='down')], ['compute-gpu1']),
    ([row('nova-compute', 'gpu1', at=None)], ['compute-gpu1']),
    ([row('nova-compute', 'gpu1', at='2026-01-01T00:00:08.000000')], ['compute-gpu1']),
    ([], ['compute-gpu1']),
])
def test_a_daemon_counts_as_up_once_it_reported_after_its_start(monkeypatch, rows, missing):
    service = Service('compute-gpu1', ('x',), reports=('nova-compute', 'gpu1'))
    monkeypatch.setattr(control.process, 'running', lambda layout, name: Record(1, 's', 'd', STARTED))

    class Cloud:
        layout = None

    assert control.silent(Cloud, [service], rows) == missing

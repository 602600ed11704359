"""What libvirt counts of a guest, and the guest's console log."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from kilonova import errors
from kilonova.states import PowerState
from kilonova.virt.libvirt import diagnostics
from kilonova.virt.libvirt.storage.instance import CONSOLE, CONSOLE_LIMIT, InstanceDirectory

XML = """<domain><devices>
 <disk type="file" device="disk"><target dev="vda"/></disk><disk type="file" device="cdrom"><target dev="hda"/></disk>
 <disk type="file" device="disk"><target dev="vdb"/></disk>
 <interface type="ethernet"><mac address="fa:16:3e:00:00:01"/><target dev="tap1"/></interface>
 <interface type="hostdev"><mac address="fa:16:3e:00:00:02"/></interface>
</devices></domain>"""


class Guest:
    """A guest of a hypervisor that counts everything but vdb; ``without`` names what it doesn't count besides."""

    def __init__(self, *without: str, **values: Any) -> None:
        self.values = {
            'info': [1, 1048576, 524288, 2, 900],
            'vcpus': ([(0, 1, 500, 0), (1, 1, 400, 3)], []),
            'blockStats': (1, 2, 3, 4, 5),
            'interfaceStats': (1, 2, 3, 4, 5, 6, 7, 8),
            'memoryStats': {'actual': 524288, 'rss': 100},
            **values,
            **dict.fromkeys(without),
        }

    def power_state(self) -> PowerState:
        return PowerState.RUNNING

    def xml(self) -> str:
        return XML

    def measured(self, method: str, *args: Any) -> Any:
        return None if args == ('vdb',) else self.values[method]


class Instance:
    config_drive = 'True'
    launched_at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2)


def test_flat() -> None:
    assert diagnostics.flat(diagnostics.measure(Guest())) == {
        'cpu0_time': 500,
        'cpu1_time': 400,
        'memory': 1048576,
        'memory-actual': 524288,
        'memory-rss': 100,
        'vda_read_req': 1,
        'vda_read': 2,
        'vda_write_req': 3,
        'vda_write': 4,
        'vda_errors': 5,
        'tap1_rx': 1,
        'tap1_rx_packets': 2,
        'tap1_rx_errors': 3,
        'tap1_rx_drop': 4,
        'tap1_tx': 5,
        'tap1_tx_packets': 6,
        'tap1_tx_errors': 7,
        'tap1_tx_drop': 8,
    }
    assert (
        set(diagnostics.flat(diagnostics.measure(Guest('vcpus', 'memoryStats', 'blockStats'))))
        & {'cpu0_time', 'memory-rss', 'vda_read'}
        == set()
    )


def test_standard() -> None:
    found = diagnostics.standard(diagnostics.measure(Guest()), Instance(), 'kvm')
    assert (found.state, found.driver, found.hypervisor, found.hypervisor_os, found.config_drive) == (
        'running',
        'libvirt',
        'kvm',
        'linux',
        True,
    )
    assert 2 * 86400 <= found.uptime < 3 * 86400
    assert (found.num_cpus, found.num_nics, found.num_disks) == (2, 1, 2)
    assert (found.memory_details.maximum, found.memory_details.used) == (1024, 512)
    assert [(cpu.id, cpu.time, cpu.utilisation) for cpu in found.cpu_details] == [(0, 500, None), (1, 400, None)]
    nic, (vda, vdb) = found.nic_details[0], found.disk_details
    assert (nic.mac_address, nic.rx_octets, nic.rx_errors, nic.tx_octets, nic.tx_drop, nic.rx_rate) == (
        'fa:16:3e:00:00:01',
        1,
        3,
        5,
        8,
        None,
    )
    assert (vda.read_requests, vda.read_bytes, vda.write_requests, vda.write_bytes, vda.errors_count) == (1, 2, 3, 4, 5)
    assert vdb.read_bytes is None


def test_what_the_balloon_says_is_used() -> None:
    guest = Guest(memoryStats={'available': 1024 * 300, 'unused': 1024 * 100})
    assert diagnostics.standard(diagnostics.measure(guest), Instance(), 'kvm').memory_details.used == 200


def test_what_is_not_counted_is_none() -> None:
    found = diagnostics.standard(diagnostics.measure(Guest('vcpus')), object(), 'qemu')
    assert [cpu.time for cpu in found.cpu_details] == [None, None] and found.uptime is None


@pytest.fixture
def directory(tmp_path: Path) -> InstanceDirectory:
    made = InstanceDirectory(str(tmp_path), 'u')
    made.create()
    return made


def test_the_end_of_the_console_log(directory: InstanceDirectory) -> None:
    assert directory.console() == ''
    path = Path(directory.file(CONSOLE))
    path.write_bytes(b'Hello \xff\n')
    assert directory.console() == 'Hello \ufffd\n'
    path.write_bytes(b'x' * CONSOLE_LIMIT + b'end')
    assert len(directory.console()) == CONSOLE_LIMIT and directory.console().endswith('xend')


def test_a_console_log_that_cannot_be_read(directory: InstanceDirectory) -> None:
    Path(directory.file(CONSOLE)).mkdir()
    with pytest.raises(errors.ConsoleNotAvailable):
        directory.console()

"""Free devices of all hosts, by what requests can name."""

from __future__ import annotations

import threading

from kilonova import objects
from kilonova.scheduler.hosts.devices import FreeDevices
from kilonova.scheduler.hosts.reservations import Reservations


def test_devices_that_are_only_for_ports_hide_no_others_and_are_counted_for_ports_alone() -> None:
    """Count the devices of all pools, whichever of them comes first in the host's row."""
    stored = objects.PciDevicePoolList(
        objects=[
            objects.PciDevicePool(vendor_id='15b3', product_id='1018', numa_node=0, count=count, tags=tags)
            for count, tags in (
                (1, {'physical_network': 'net1'}),
                (2, {}),
                (4, {'remote_managed': 'true'}),
                (8, {'label': 'a'}),
            )
        ]
    )
    devices = FreeDevices(2, Reservations(threading.RLock(), lambda reservation, sign: None))
    assert devices.write(1, {'pci_stats': stored.to_json(), 'numa_topology': None}) == 15
    vendor = {'vendor_id': '15b3'}
    assert devices.free([vendor]).tolist() == [0, 10]
    assert devices.free([{**vendor, 'physical_network': 'net1'}]).tolist() == [0, 1]
    assert devices.free([{**vendor, 'remote_managed': 'true'}]).tolist() == [0, 4]
    assert devices.free([{'vendor_id': '10de'}]).tolist() == [0, 0]

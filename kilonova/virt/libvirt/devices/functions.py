"""Functions of network devices that are ports of a server (SR-IOV): which of its devices they are.

    given, of_ports = split(instance, pci_devices)     # what the guest gets as devices, and what its cards are
"""
from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree

from kilonova import objects
from kilonova.objects.vif import MACVTAP, PHYSICAL, Vif
from kilonova.pci.ports import requests_of_ports
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.devices import hostdevs, pci
from kilonova.virt.libvirt.devices.pci import PciFunction

Devices = list[objects.PciDevice]


def split(instance: objects.Instance, pci_devices: Iterable[objects.PciDevice]) -> tuple[Devices, Devices]:
    """The devices that the guest gets as such, and those that the server holds for its ports. Physical functions are
    both. One whose port is gone is of no use to the guest, which doesn't get it."""
    requests = requests_of_ports(getattr(instance, 'pci_requests', None))
    ids, devices = {request.request_id for request in requests}, list(pci_devices)
    # Accelerators are for no request of the server's.
    of_ports = [device for device in devices if getattr(device, 'request_id', None) in ids]
    physical = {vif.slot for vif in instance.vifs if vif.vnic_type == PHYSICAL}
    return [device for device in devices if device not in of_ports or device.address in physical], of_ports


def of(devices: Iterable[objects.PciDevice]) -> dict[str, PciFunction]:
    """They by address."""
    return {one.address: one for one in hostdevs.host_devices(devices) if isinstance(one, PciFunction)}


def netdevs(connection: Connection, vifs: Iterable[Vif], devices: Iterable[objects.PciDevice]) -> dict[str, str]:
    """The network interfaces that the host has of those to which macvtap ports are bound, by address; nothing is looked
    for where there are none of these."""
    slots = {vif.slot for vif in vifs if vif.vnic_type == MACVTAP}
    wanted = {pci.node_name(device.address): device.address for device in devices if device.address in slots}
    found = {}
    for device in map(ElementTree.fromstring, connection.node_devices() if wanted else ()):
        name = device.findtext("capability[@type='net']/interface")
        if name and device.findtext('parent') in wanted:
            found[wanted[device.findtext('parent') or '']] = name
    return found

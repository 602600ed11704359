"""Functions of network devices that are ports of a server (SR-IOV): which of its devices they are.

    given, of_ports = split(instance, pci_devices)     # what the guest gets as devices, and what its cards are
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from xml.etree import ElementTree

from kilonova import objects
from kilonova.objects.vif import ACCELERATED, BEHIND, INFINIBAND, MACVTAP, PROFILED, VDPA, VIRTUAL, Vif
from kilonova.pci.ports import requests_of_ports
from kilonova.virt import command
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.devices import hostdevs, pci
from kilonova.virt.libvirt.devices.pci import PciFunction, Virtual
from kilonova.virt.parts.guests import GuestFailed, InterfaceUnsupported

Devices = list[objects.PciDevice]
# {vnic_type: where a node device below the function says what leads to it}.
_ENDS = {MACVTAP: "capability[@type='net']/interface", VDPA: "capability[@type='vdpa']/chardev"}


def split(instance: objects.Instance, pci_devices: Iterable[objects.PciDevice]) -> tuple[Devices, Devices]:
    """The devices that the guest gets as such, and those that the server holds for its ports. Physical functions, and
    those of InfiniBand cards, are both. One whose port is gone is of no use to the guest, which doesn't get it."""
    requests = requests_of_ports(getattr(instance, 'pci_requests', None))
    ids, devices = {request.request_id for request in requests}, list(pci_devices)
    # Accelerators are for no request of the server's: those that are ports their bindings name.
    accelerated = {vif.slot for vif in instance.vifs if vif.vnic_type in ACCELERATED}
    of_ports = [device for device in devices
                if getattr(device, 'request_id', None) in ids or device.address in accelerated]
    as_such = {vif.slot for vif in instance.vifs if vif.is_device}
    return [device for device in devices if device not in of_ports or device.address in as_such], of_ports


def of(devices: Iterable[objects.PciDevice]) -> dict[str, PciFunction]:
    """They by address."""
    return {one.address: one for one in hostdevs.host_devices(devices) if isinstance(one, PciFunction)}


def trust(instance: objects.Instance, vifs: Iterable[Vif], held: Mapping[str, PciFunction]) -> None:
    """What these ports of a server are, the host trusts where their owners ask for that. Who had one of these functions
    before may have been trusted: it isn't any more. Those that are never trusted (device_spec; Linux has no such thing
    for cards of InfiniBand and VM-FEX) aren't touched.

    InterfaceUnsupported: this host can't trust it. GuestFailed: it doesn't.
    """
    for vif in vifs:
        function = held.get(vif.slot or '') if vif.vnic_type in VIRTUAL else None
        if function is None:
            continue
        if function.trustable is not None and vif.type not in (INFINIBAND, PROFILED):
            _say(instance, function.trustable, vif.is_trusted)
        elif vif.is_trusted:
            raise InterfaceUnsupported(port=vif.id, type=(
                f'{vif.type} on {vif.slot}, which is not trusted by its device_spec, whose physical function has no '
                'network interface, or which is of a type that is never trusted'))


def _say(instance: objects.Instance, function: Virtual, wanted: bool) -> None:
    try:
        command.run('ip', 'link', 'set', 'dev', function.interface, 'vf', str(function.number), 'trust',
                    'on' if wanted else 'off')
    except command.CommandFailed as error:
        raise GuestFailed(act='set the trust of a function for', uuid=instance.uuid, reason=error.message) from error


def ends(connection: Connection, vifs: Iterable[Vif], devices: Iterable[objects.PciDevice]) -> dict[str, str]:
    """What the host has of those functions that guests don't have as such, by address: network interfaces, to which
    macvtap ports are bound, and files of vhost-vdpa; nothing is looked for where there are none of these."""
    kinds = {vif.slot: vif.vnic_type for vif in vifs if vif.vnic_type in BEHIND}
    wanted = {pci.node_name(device.address): device.address for device in devices if device.address in kinds}
    found = {}
    for device in map(ElementTree.fromstring, connection.node_devices() if wanted else ()):
        address = wanted.get(device.findtext('parent') or '')
        name = device.findtext(_ENDS[kinds[address]]) if address is not None else None
        if address is not None and name:
            found[address] = name
    return found


def names(vifs: Iterable[Vif], devices: Iterable[objects.PciDevice]) -> list[str]:
    """What a guest that sleeps is without, of these devices and ports, as ``hotplug`` knows it."""
    behind = {vif.slot: vif for vif in vifs if vif.vnic_type in BEHIND}
    return [device.address for device in devices if device.address not in behind] + [
        vif.mac for vif in behind.values() if vif.vnic_type == VDPA]

"""Find out which of a server's PCI devices are its ports (functions of SR-IOV network cards).

    given, of_ports = split(instance, pci_devices)     # devices for <hostdev> elements, and devices of ports

The module also sets the trust mode of these functions and finds their network interfaces on the host.
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
# For each vnic_type, the XPath by which the interface's name or the device file is found in a node device's XML.
_ENDS = {MACVTAP: "capability[@type='net']/interface", VDPA: "capability[@type='vdpa']/chardev"}


def split(instance: objects.Instance, pci_devices: Iterable[objects.PciDevice]) -> tuple[Devices, Devices]:
    """Return two lists: the devices that the guest gets as <hostdev>, and the devices of the server's ports.

    Physical functions and functions of InfiniBand cards are in both lists: they are ports, and the guest gets them as
    <hostdev>. A device whose port was deleted is only in the second list, so the guest does not get it.
    """
    requests = requests_of_ports(getattr(instance, 'pci_requests', None))
    ids, devices = {request.request_id for request in requests}, list(pci_devices)
    # The device of a port with a Cyborg accelerator has no PCI request. The port's binding has the device's address.
    accelerated = {vif.slot for vif in instance.vifs if vif.vnic_type in ACCELERATED}
    of_ports = [
        device for device in devices if getattr(device, 'request_id', None) in ids or device.address in accelerated
    ]
    as_such = {vif.slot for vif in instance.vifs if vif.is_device}
    return [device for device in devices if device not in of_ports or device.address in as_such], of_ports


def of(devices: Iterable[objects.PciDevice]) -> dict[str, PciFunction]:
    """Return the PCI functions among ``devices``, as a dict from address to function."""
    return {one.address: one for one in hostdevs.host_devices(devices) if isinstance(one, PciFunction)}


def trust(instance: objects.Instance, vifs: Iterable[Vif], held: Mapping[str, PciFunction]) -> None:
    """Set the virtual functions of these ports to trusted or untrusted, as the ports' bindings request.

    ``held`` is a dict from address to the functions allocated to the server for its ports. A function is set to
    untrusted if its port does not request trust, because it may be trusted from earlier use. Functions that cannot be
    trusted are not changed. These are functions without trusted=true in device_spec, and functions of InfiniBand and
    VM-FEX cards.

    Raises:
        InterfaceUnsupported: if trust is requested for a function that this host cannot trust.
        GuestFailed: if setting the trust mode fails.
    """
    for vif in vifs:
        function = held.get(vif.slot or '') if vif.vnic_type in VIRTUAL else None
        if function is None:
            continue
        if function.trustable is not None and vif.type not in (INFINIBAND, PROFILED):
            _say(instance, function.trustable, vif.is_trusted)
        elif vif.is_trusted:
            raise InterfaceUnsupported(
                port=vif.id,
                type=(
                    f'{vif.type} on {vif.slot} in trusted mode, which this host cannot set: the device_spec of the '
                    f'function does '
                    'not have trusted=true, the physical function has no network interface, or ports of this type '
                    'have no trusted mode'
                ),
            )


def _say(instance: objects.Instance, function: Virtual, wanted: bool) -> None:
    try:
        command.run(
            'ip',
            'link',
            'set',
            'dev',
            function.interface,
            'vf',
            str(function.number),
            'trust',
            'on' if wanted else 'off',
        )
    except command.CommandFailed as error:
        raise GuestFailed(
            act='set the trust mode of a virtual function of', uuid=instance.uuid, reason=error.message
        ) from error


def ends(connection: Connection, vifs: Iterable[Vif], devices: Iterable[objects.PciDevice]) -> dict[str, str]:
    """Return a dict from the PCI address of a port's function to the network interface or file that the guest gets.

    For a macvtap port, the value is the name of the function's network interface on the host ('enp1s0f0v1'). For a vDPA
    port, it is the path of the function's vhost-vdpa file ('/dev/vhost-vdpa-0'). Functions of other ports are left out.
    libvirt is called only if there are macvtap or vDPA ports.
    """
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
    """Return the identifiers of the devices that a suspend unplugs from the guest and a resume plugs in again.

    ``vifs`` are the server's ports, and ``devices`` its PCI and mediated devices. An identifier is the address of a
    device, or the MAC address of a vDPA port. Macvtap ports stay plugged in, so they are left out.
    """
    behind = {vif.slot: vif for vif in vifs if vif.vnic_type in BEHIND}
    return [device.address for device in devices if device.address not in behind] + [
        vif.mac for vif in behind.values() if vif.vnic_type == VDPA
    ]

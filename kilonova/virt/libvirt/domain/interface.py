"""Write a guest's network cards into its domain XML, one for each port of the server.

A card is one of the following:

- a tap device, which libvirt plugs into a bridge of the host or an agent connects
- a vhost-user card, which is connected to the socket of a switch in user space
- a macvtap device on a network interface of the host
- a function of an SR-IOV network card: passed through to the guest, or used through macvtap or vDPA
"""

from __future__ import annotations

import re

from kilonova import errors
from kilonova.objects.vif import (
    ACCELERATED_VIRTUAL,
    DIRECT,
    INFINIBAND,
    MACVTAP,
    ON_INTERFACE,
    OVS,
    PROFILED,
    REMOTE,
    VDPA,
    VHOST_USER,
    WHOLE,
    WHOLE_PHYSICAL,
    Plug,
    Vif,
    offloads,
)
from kilonova.virt.libvirt.domain.guest import X86, GuestSpec
from kilonova.virt.libvirt.xml.base import Domain
from kilonova.virt.libvirt.xml.devices import PciHostDevice
from kilonova.virt.libvirt.xml.interfaces import (
    FunctionInterface,
    InterfaceElement,
    MacvtapInterface,
    SocketInterface,
    VdpaInterface,
)
from kilonova.virt.parts.guests import InterfaceUnsupported, UnsupportedHardware

# Values of hw_vif_model: models for every machine type with PCI, and more models for x86. libvirt reports no such list.
_MODELS, _PC_MODELS = ('e1000', 'e1000e', 'rtl8139', 'virtio'), ('ne2k_pci', 'pcnet', 'vmxnet3')
# The maximum number of queues of a tap device in Linux.
_MOST_QUEUES = 256
# vif_types of ports on a Linux bridge, and of ports whose tap device an agent connects to the network.
_LINUX, _TAP = 'bridge', 'tap'
Card = InterfaceElement | SocketInterface | MacvtapInterface | VdpaInterface | FunctionInterface | PciHostDevice
# The accepted modes of vhostuser ports, and the maximum length in bytes of the path of such a port's socket.
_MODES, _LONGEST_PATH = ('client', 'server'), 107
# vhostuser ports with these keys in vif_details are refused: they need software that isn't part of os-vif.
_FOREIGN = ('vhostuser_fp_plug', 'vhostuser_vrouter_plug')
# The accepted paths of a vDPA device's file on the host.
_VHOST_VDPA = re.compile(r'/dev/\w[\w.-]{0,99}', re.ASCII)
# A dict from a port's vnic_type to the vif_types that are accepted for the port.
_BOUND_AS = {
    DIRECT: ('hw_veb', INFINIBAND, PROFILED),
    MACVTAP: ('hw_veb', PROFILED),
    REMOTE: (OVS,),
    ACCELERATED_VIRTUAL: ('hw_veb',),
    **dict.fromkeys(WHOLE_PHYSICAL, ('hostdev_physical',)),
}
# The maximum length of a port profile's name in libvirt, in bytes.
_LONGEST_PROFILE = 39


def models(arch: str) -> tuple[str, ...]:
    """Return the accepted values of hw_vif_model on hosts of this architecture."""
    return _MODELS + (_PC_MODELS if arch in X86 else ())


class InterfaceConfigurator:
    """Writes the guest's network cards into the domain XML: one <interface> per port, in the order of the ports.

    The model is hw_vif_model, by default virtio. A virtio card has one queue for each vCPU if hw:vif_multiqueue_enabled
    or hw_vif_multiqueue_enabled is set. Physical functions and functions of InfiniBand cards are written as <hostdev>.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the guest's network cards.

        Raises InterfaceUnsupported if a port's binding is not supported, and UnsupportedHardware if QEMU does not
        support the model of the network card.
        """
        cards = [(vif, card(guest, vif)) for vif in guest.instance.vifs]
        domain.devices.extend(found for vif, found in cards if not vif.is_device)


def card(guest: GuestSpec, vif: Vif) -> Card:
    """Return the XML element of the device by which the guest uses a port, in most cases an <interface>.

    Raises InterfaceUnsupported if the port's binding is not supported, and UnsupportedHardware if QEMU does not support
    the model of the network card.
    """
    _check(vif)
    if vif.is_function:
        return _function(guest, vif)
    if vif.type == ON_INTERFACE:
        return MacvtapInterface(vif.mac, vif.details['macvtap_source'], vif.details['macvtap_mode'], _model(guest))
    return _socket(guest, vif) if vif.type == VHOST_USER else _plugged(guest, vif)


def _plugged(guest: GuestSpec, vif: Vif) -> InterfaceElement:
    model, bridge = _model(guest), None
    is_ovs, is_virtio = vif.type == OVS and vif.plug is not Plug.HYBRID, model == 'virtio'
    if vif.type != _TAP:
        bridge = (
            vif.own_bridge
            if vif.plug is Plug.HYBRID
            else (vif.switch if is_ovs else vif.bridge or f'brq{vif.network_id[:11]}')
        )
    return InterfaceElement(
        mac=vif.mac,
        bridge=bridge,
        device=vif.device_name,
        model=model,
        ovs_port=vif.id if is_ovs else None,
        mtu=vif.mtu,
        queues=_queues(guest) if is_virtio else None,
        packed=is_virtio and guest.tuning.packed_ring,
        # Switch checksum offload off for Open vSwitch in user space (netdev), which does not compute the checksums.
        offloads=not (is_virtio and vif.details.get('datapath_type') == 'netdev'),
    )


def _socket(guest: GuestSpec, vif: Vif) -> SocketInterface:
    _check_virtio(guest, vif)
    return SocketInterface(
        mac=vif.mac,
        path=vif.socket or '',
        mode=vif.details['vhostuser_mode'],
        queues=_queues(guest),
        packed=guest.tuning.packed_ring,
    )


def _check_virtio(guest: GuestSpec, vif: Vif) -> None:
    model = _model(guest)
    if model != 'virtio':
        said = '' if vif.vnic_type == 'normal' else f' for vnic_type {vif.vnic_type}'
        raise InterfaceUnsupported(port=vif.id, type=f'{vif.type}{said} with hw_vif_model {model}, but needs virtio')


def _queues(guest: GuestSpec) -> int | None:
    queues = min(guest.flavor.vcpus, _MOST_QUEUES) if guest.tuning.multiqueue else 1
    return queues if queues > 1 else None


def _model(guest: GuestSpec) -> str:
    model = guest.image_property('hw_vif_model', 'virtio') or ''
    if model not in models(guest.settings.arch):
        raise UnsupportedHardware(model=f'network card {model}', virt=guest.settings.virt_type)
    return model


def _function(guest: GuestSpec, vif: Vif) -> FunctionInterface | MacvtapInterface | VdpaInterface | PciHostDevice:
    """Return the domain's element for a port that is a PCI function of the host.

    Raises KilonovaError if the PCI function is not allocated to the server.
    """
    function = guest.functions.get(vif.slot or '')
    if function is None:
        # A port's binding names its PCI function. Refuse a function that is not allocated to the server.
        raise errors.KilonovaError(
            f'Port {vif.id} is bound to device {vif.slot}, which is not allocated to instance '
            f'{guest.instance.uuid} on this host.'
        )
    if vif.is_device:
        return PciHostDevice(function.address, function.managed)
    profile = vif.details['profileid'] if vif.type == PROFILED else None
    if vif.vnic_type in WHOLE:
        return FunctionInterface(vif.mac, function.address, vif.vlan, function.managed, profile)
    end = guest.ends.get(function.address)
    if vif.vnic_type == VDPA:
        _check_virtio(guest, vif)
        if end is None or _VHOST_VDPA.fullmatch(end) is None:
            told = 'none' if end is None else repr(end[: 2 * _LONGEST_PATH])
            raise InterfaceUnsupported(
                port=vif.id,
                type=(f'{vif.type} on {function.address}, whose vhost-vdpa file is {told}; it must be a file in /dev'),
            )
        return VdpaInterface(vif.mac, end)
    if end is None:
        raise InterfaceUnsupported(
            port=vif.id, type=f'{vif.type} on {function.address}, which has no network interface'
        )
    return MacvtapInterface(vif.mac, end, 'passthrough', _model(guest), vif.vlan, profile)


def _check(vif: Vif) -> None:
    said = _unusual(vif)
    if said is not None:
        raise InterfaceUnsupported(port=vif.id, type=said)


def _unusual(vif: Vif) -> str | None:
    """Return a text that describes a port's binding if the binding is not supported, or None if it is supported."""
    if vif.vnic_type != 'normal':
        if vif.type not in ((OVS,) if vif.is_offloaded else _BOUND_AS.get(vif.vnic_type, ())):
            return f'{vif.type} for vnic_type {vif.vnic_type}' + ' with switchdev' * offloads(vif.profile)
        return _unprofiled(vif) if vif.type == PROFILED else None
    if vif.type == VHOST_USER:
        return _amiss(vif)
    if vif.type == ON_INTERFACE and vif.vlan is not None:
        # A macvtap port in a VLAN is refused, because libvirt creates no VLAN device on the host's interface.
        return f'{vif.type} in VLAN {vif.vlan}'
    return None if vif.type in (OVS, _LINUX, _TAP, ON_INTERFACE) else vif.type


def _unprofiled(vif: Vif) -> str | None:
    """Return why a VM-FEX port is not supported, or None if it is supported.

    A VM-FEX port gets its VLAN from the port profile in the switch, not from libvirt.
    """
    profile = vif.details.get('profileid')
    if not (isinstance(profile, str) and profile.isprintable() and 0 < len(profile.encode()) <= _LONGEST_PROFILE):
        return f'{vif.type} with profileid {profile!r:.{2 * _LONGEST_PROFILE}} (1 to {_LONGEST_PROFILE} bytes)'
    return f'{vif.type} in VLAN {vif.vlan}' if vif.vlan is not None else None


def _amiss(vif: Vif) -> str | None:
    """Return why a vhostuser port is not supported, or None if it is supported."""
    path, mode = vif.socket or '', vif.details.get('vhostuser_mode')
    for name in _FOREIGN:
        if vif.details.get(name):
            return f'{vif.type} with {name}'
    if mode not in _MODES:
        return f'{vif.type} with vhostuser_mode {mode}'
    if not path.startswith('/') or len(path.encode()) > _LONGEST_PATH:
        return f'{vif.type} with vhostuser_socket {path[: 2 * _LONGEST_PATH]!r}'
    return None

"""The guest's network cards: one for each port of the server, plugged into a bridge of its host by libvirt, or a
function of a network device of its host (SR-IOV)."""
from __future__ import annotations

from kilonova import errors
from kilonova.objects.vif import DIRECT, MACVTAP, ON_INTERFACE, PHYSICAL, REMOTE, WHOLE, Vif
from kilonova.virt.driver import InterfaceUnsupported, UnsupportedHardware
from kilonova.virt.libvirt.domain.guest import X86, GuestSpec
from kilonova.virt.libvirt.xml import Domain, FunctionInterface, Interface, MacvtapInterface, PciHostDevice

# Of the field's models those that QEMU has on any board with PCI, and on a PC besides; libvirt doesn't tell them.
_MODELS, _PC_MODELS = ('e1000', 'e1000e', 'rtl8139', 'virtio'), ('ne2k_pci', 'pcnet', 'vmxnet3')
# Linux gives a tap device no more queues.
_MOST_QUEUES = 256
# vif_types of ports that are no functions: on bridges, and a device that an agent connects.
_OVS, _LINUX, _TAP = 'ovs', 'bridge', 'tap'
Card = Interface | MacvtapInterface | FunctionInterface | PciHostDevice
# {vnic_type: how such a port is bound}.
_BOUND_AS = {DIRECT: 'hw_veb', MACVTAP: 'hw_veb', PHYSICAL: 'hostdev_physical', REMOTE: _OVS}


def models(arch: str) -> tuple[str, ...]:
    """What hw_vif_model may be on hosts of that architecture."""
    return _MODELS + (_PC_MODELS if arch in X86 else ())


class InterfaceConfigurator:
    """One <interface> a port, in the order of the server's ports: hw_vif_model, else virtio. A virtio card has a queue
    for each vCPU with hw:vif_multiqueue_enabled or hw_vif_multiqueue_enabled, and packed rings as virtio disks have.

    A physical function is no <interface>: the guest gets it as it gets other devices.

    InterfaceUnsupported: the port is bound in a way that libvirt alone can't plug. UnsupportedHardware: QEMU has no
    such model.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        cards = [(vif, card(guest, vif)) for vif in guest.instance.vifs]
        domain.devices.extend(found for vif, found in cards if vif.vnic_type != PHYSICAL)


def card(guest: GuestSpec, vif: Vif) -> Card:
    """What a port is in its guest; errors as ``InterfaceConfigurator`` has them."""
    _check(vif)
    if vif.is_function:
        return _function(guest, vif)
    if vif.type == ON_INTERFACE:
        return MacvtapInterface(vif.mac, vif.details['macvtap_source'], vif.details['macvtap_mode'], _model(guest))
    return _plugged(guest, vif)


def _plugged(guest: GuestSpec, vif: Vif) -> Interface:
    model = _model(guest)
    is_ovs, is_virtio = vif.type == _OVS, model == 'virtio'
    queues = min(guest.flavor.vcpus, _MOST_QUEUES) if guest.tuning.multiqueue and is_virtio else 1
    bridge = vif.bridge or ('br-int' if is_ovs else f'brq{vif.network_id[:11]}')
    return Interface(
        mac=vif.mac, bridge=bridge if vif.type != _TAP else None,
        device=vif.device_name, model=model, ovs_port=vif.id if is_ovs else None, mtu=vif.mtu,
        queues=queues if queues > 1 else None, packed=is_virtio and guest.tuning.packed_ring,
        # Open vSwitch in user space passes on frames whose checksum was left to the hardware: TCP would hang.
        offloads=not (is_virtio and vif.details.get('datapath_type') == 'netdev'))


def _model(guest: GuestSpec) -> str:
    model = guest.image_property('hw_vif_model', 'virtio') or ''
    if model not in models(guest.settings.arch):
        raise UnsupportedHardware(model=f'network card {model}', virt=guest.settings.virt_type)
    return model


def _function(guest: GuestSpec, vif: Vif) -> FunctionInterface | MacvtapInterface | PciHostDevice:
    """The card of a port that is a function of a PCI device, which is one of those that the server holds for its ports.
    """
    function = guest.functions.get(vif.slot or '')
    if function is None:
        # As other devices, too: see ``compute.host.Host.check_devices``.
        raise errors.KilonovaError(f'Port {vif.id} is bound to device {vif.slot}, which instance {guest.instance.uuid} '
                                   'does not hold on this host.')
    if vif.vnic_type == PHYSICAL:
        return PciHostDevice(function.address, function.managed)
    if vif.vnic_type in WHOLE:
        return FunctionInterface(vif.mac, function.address, vlan=vif.vlan, managed=function.managed)
    if function.address not in guest.netdevs:
        raise InterfaceUnsupported(port=vif.id,
                                   type=f'{vif.type} on {function.address}, which has no network interface')
    return MacvtapInterface(vif.mac, guest.netdevs[function.address], 'passthrough', _model(guest), vif.vlan)


def _check(vif: Vif) -> None:
    said = vif.type
    if _BOUND_AS.get(vif.vnic_type) == vif.type:
        return
    if vif.vnic_type != 'normal':
        said = f'{vif.type} for vnic_type {vif.vnic_type}'
    elif vif.type == _OVS and vif.details.get('ovs_hybrid_plug'):
        said = f'{vif.type} with ovs_hybrid_plug'
    elif vif.type == ON_INTERFACE and vif.vlan is not None:
        # libvirt makes no VLAN device of the host's interface.
        said = f'{vif.type} in VLAN {vif.vlan}'
    elif vif.type in (_OVS, _LINUX, _TAP, ON_INTERFACE):
        return
    raise InterfaceUnsupported(port=vif.id, type=said)

"""The guest's network cards: one for each port of the server, plugged into a bridge of its host by libvirt."""
from __future__ import annotations

from kilonova.objects.vif import Vif
from kilonova.virt.driver import InterfaceUnsupported, UnsupportedHardware
from kilonova.virt.libvirt.domain.guest import X86, GuestSpec
from kilonova.virt.libvirt.xml import Domain, Interface

# Of the field's models those that QEMU has on any board with PCI, and on a PC besides; libvirt doesn't tell them.
_MODELS, _PC_MODELS = ('e1000', 'e1000e', 'rtl8139', 'virtio'), ('ne2k_pci', 'pcnet', 'vmxnet3')
# Linux gives a tap device no more queues.
_MOST_QUEUES = 256
_OVS, _LINUX = 'ovs', 'bridge'


def models(arch: str) -> tuple[str, ...]:
    """What hw_vif_model may be on hosts of that architecture."""
    return _MODELS + (_PC_MODELS if arch in X86 else ())


class InterfaceConfigurator:
    """One <interface> a port, in the order of the server's ports: hw_vif_model, else virtio. A virtio card has a queue
    for each vCPU with hw:vif_multiqueue_enabled or hw_vif_multiqueue_enabled, and packed rings as virtio disks have.

    InterfaceUnsupported: the port is bound in a way that libvirt alone can't plug. UnsupportedHardware: QEMU has no
    such model.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        domain.devices.extend(card(guest, vif) for vif in guest.instance.vifs)


def card(guest: GuestSpec, vif: Vif) -> Interface:
    """One of the guest's cards; errors as ``InterfaceConfigurator`` has them."""
    model = guest.image_property('hw_vif_model', 'virtio')
    if model not in models(guest.settings.arch):
        raise UnsupportedHardware(model=f'network card {model}', virt=guest.settings.virt_type)
    _check(vif)
    is_ovs, is_virtio = vif.type == _OVS, model == 'virtio'
    queues = min(guest.flavor.vcpus, _MOST_QUEUES) if guest.tuning.multiqueue and is_virtio else 1
    return Interface(
        mac=vif.mac, bridge=vif.bridge or ('br-int' if is_ovs else f'brq{vif.network_id[:11]}'),
        device=vif.device_name, model=model, ovs_port=vif.id if is_ovs else None, mtu=vif.mtu,
        queues=queues if queues > 1 else None, packed=is_virtio and guest.tuning.packed_ring,
        # Open vSwitch in user space passes on frames whose checksum was left to the hardware: TCP would hang.
        offloads=not (is_virtio and vif.details.get('datapath_type') == 'netdev'))


def _check(vif: Vif) -> None:
    said = vif.type
    if vif.vnic_type != 'normal':
        said = f'{vif.type} for vnic_type {vif.vnic_type}'
    elif vif.type == _OVS and vif.details.get('ovs_hybrid_plug'):
        said = f'{vif.type} with ovs_hybrid_plug'
    elif vif.type in (_OVS, _LINUX):
        return
    raise InterfaceUnsupported(port=vif.id, type=said)

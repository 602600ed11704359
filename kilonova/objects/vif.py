"""Vif: an interface of a server, and its JSON form in the column instance_info_caches.network_info.

    vif = Vif.read(server.info_cache.network_info[0])
    vif.mac, vif.device_name                      # 'fa:16:3e:…', 'tap1eeb6c43-4f'
    [vif.stored() for vif in vifs]                # the text of the cache, in the order of the guest's interfaces

The form is Nova's: one dict for each VIF with id, address, network {label, subnets, meta}, type, details, devname, …
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from oslo_utils import strutils

from kilonova.objects.port_resources import ALLOCATION, PortResources

# The name of a port's network device is 'tap' and this number of characters of the port's id.
# The name has only 11 characters of the port's id, because Linux allows 15 characters in the name of a network device.
_NAMED_BY = 11
# vnic_type of a port that is a virtual function (VF) of a PCI device, which the guest gets directly.
DIRECT = 'direct'
# vnic_type of a port that is a virtual function, which the guest gets through a macvtap device.
MACVTAP = 'macvtap'
# vnic_type of a port that is a physical function (PF), which the guest gets directly.
PHYSICAL = 'direct-physical'
# vnic_type of a port that is a virtual function of a SmartNIC (DPU). The operating system of the DPU plugs the port.
REMOTE = 'remote-managed'
# vnic_type of a port that is a vDPA device of a virtual function. The guest sees a virtio network card.
VDPA = 'vdpa'
# vnic_types of ports with a device profile: Cyborg, and not the host, chooses the PCI function.
ACCELERATED = ACCELERATED_VIRTUAL, ACCELERATED_PHYSICAL = 'accelerator-direct', 'accelerator-direct-physical'
# vnic_types of ports whose virtual function itself is passed through to the guest.
WHOLE = (DIRECT, REMOTE, ACCELERATED_VIRTUAL)
# vnic_types of ports whose virtual function is not passed through: the guest gets a device on top of the function.
BEHIND = (MACVTAP, VDPA)
VIRTUAL = (*WHOLE, *BEHIND)
WHOLE_PHYSICAL = (PHYSICAL, ACCELERATED_PHYSICAL)
# The vif_type of ports that are macvtap devices on a host interface that several guests share.
ON_INTERFACE = 'macvtap'
# The vif_types of ports on InfiniBand cards, and of ports whose switch receives a port profile (VM-FEX).
INFINIBAND, PROFILED = 'ib_hostdev', '802.1qbh'
# vnic_types of ports whose PCI function the compute service claims. (Cyborg claims the functions of accelerator ports.)
FUNCTIONS = (DIRECT, REMOTE, MACVTAP, PHYSICAL, VDPA)
# The member of binding:profile that contains the id of the accelerator request.
REQUEST = 'arq_uuid'
# The vif_types of ports of Open vSwitch, and of vhost-user ports (sockets between the guest and a switch process).
OVS, VHOST_USER = 'ovs', 'vhostuser'
# The default Open vSwitch bridge, and the name prefix of the bridges of trunks (ML2/OVS).
_SWITCH, _TRUNK = 'br-int', 'tbr-'


class Plug(enum.Enum):
    """The devices that the host must create before a guest can start with a port."""

    HYBRID = 'a Linux bridge, with a veth pair between it and Open vSwitch'
    TRUNK = 'an Open vSwitch bridge for the trunk only'
    VHOST_USER = 'an Open vSwitch port that is the vhost-user socket'
    REPRESENTOR = "an Open vSwitch port that is the function's representor"


def trusts(profile: Mapping[str, Any]) -> bool:
    """Return whether the binding profile requests a trusted SR-IOV virtual function.

    The guest may change the MAC address of a trusted virtual function.
    """
    return strutils.bool_from_string(profile.get('trusted'))


def offloads(profile: Mapping[str, Any]) -> bool:
    """Return whether the binding profile requests hardware offload: the network card switches the port's packets."""
    asked = profile.get('capabilities')
    return isinstance(asked, list) and 'switchdev' in asked


def has_representor(vnic_type: str, profile: Mapping[str, Any]) -> bool:
    """Return whether the port's function has a representor (a host device) that connects the function to Open vSwitch.

    The result depends on the port's vnic_type and its binding profile.
    """
    return vnic_type == VDPA or (vnic_type == DIRECT and offloads(profile))


@dataclass(frozen=True)
class VifAddress:
    """A fixed address, and the floating IPs that are associated with it."""

    address: str
    floating: tuple[str, ...] = ()


@dataclass(frozen=True)
class VifSubnet:
    """A subnet of an interface.

    ``routes`` are pairs (destination, next hop). ``addresses`` are the interface's addresses in the subnet.
    ``ipv6_mode`` says how a guest gets its IPv6 address: 'slaac', 'dhcpv6-stateless', 'dhcpv6-stateful' or None. ``id``
    is Neutron's id of the subnet; it is None in caches that the previous release wrote.
    """

    cidr: str
    version: int
    gateway: str | None = None
    dns: tuple[str, ...] = ()
    routes: tuple[tuple[str, str], ...] = ()
    dhcp: bool = True
    ipv6_mode: str | None = None
    addresses: tuple[VifAddress, ...] = ()
    id: str | None = None

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> VifSubnet:
        """Return the subnet for the dict that the info cache stores."""
        gateway, about = stored.get('gateway') or {}, stored.get('meta') or {}
        return cls(
            cidr=stored['cidr'],
            version=stored['version'],
            gateway=gateway.get('address'),
            dns=tuple(one['address'] for one in stored.get('dns') or ()),
            routes=tuple((one['cidr'], one['gateway']['address']) for one in stored.get('routes') or ()),
            dhcp=about.get('enable_dhcp', True),
            ipv6_mode=about.get('ipv6_address_mode'),
            id=about.get('subnet_id'),
            addresses=tuple(
                VifAddress(one['address'], tuple(each['address'] for each in one.get('floating_ips') or ()))
                for one in stored.get('ips') or ()
            ),
        )

    def stored(self) -> dict[str, Any]:
        """Return the dict that the info cache stores for the subnet."""

        def known(address: str, kind: str, **more: Any) -> dict[str, Any]:
            return {'address': address, 'type': kind, 'version': self.version, 'meta': {}, **more}

        return {
            'cidr': self.cidr,
            'version': self.version,
            'meta': {
                'enable_dhcp': self.dhcp,
                **({'subnet_id': self.id} if self.id is not None else {}),
                **({'ipv6_address_mode': self.ipv6_mode} if self.ipv6_mode is not None else {}),
            },
            'gateway': known(self.gateway, 'gateway') if self.gateway else None,
            'dns': [known(address, 'dns') for address in self.dns],
            'routes': [
                {'cidr': cidr, 'gateway': known(hop, 'gateway'), 'interface': None} for cidr, hop in self.routes
            ],
            'ips': [
                known(one.address, 'fixed', floating_ips=[known(each, 'floating') for each in one.floating])
                for one in self.addresses
            ],
        }


@dataclass(frozen=True)
class Vif:
    """An interface of a server.

    Attributes:
        details: the vif_details of the port's binding.
        type: the vif_type of the binding.
        mtu: the MTU in bytes.
        active: True if the guest can use the interface now, without waiting for the network service.
        preserve_on_delete: True if the user created the port, so that it is not deleted with the server.
        security_groups: the names of the security groups.
        resource_request: the resources that Placement must allocate for the port, in Neutron's form.
        before: {uuid of a migration: the QoS providers of the port before this migration}. A revert restores them. Only
            the info cache stores it.
        tag: the device tag by which the guest finds the interface. Only the info cache stores it.
    """

    id: str
    mac: str
    network_id: str
    label: str
    project_id: str
    type: str
    mtu: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    profile: Mapping[str, Any] = field(default_factory=dict)
    vnic_type: str = 'normal'
    active: bool = False
    preserve_on_delete: bool = False
    physical_network: str | None = None
    tunneled: bool = False
    subnets: tuple[VifSubnet, ...] = ()
    security_groups: tuple[str, ...] = ()
    resource_request: Mapping[str, Any] | None = None
    before: Mapping[str, Any] = field(default_factory=dict)
    tag: str | None = None

    @property
    def bridge(self) -> str | None:
        """The bridge on the host to which the interface is connected, or None if its type uses no bridge."""
        found: str | None = self.details.get('bridge_name')
        return found

    @property
    def switch(self) -> str:
        """The Open vSwitch bridge to which the interface is connected, directly or through other devices."""
        return self.bridge or _SWITCH

    @property
    def own_bridge(self) -> str:
        """The Linux bridge that is used only by this interface. It exists if ``plug`` is HYBRID."""
        return f'qbr{self.id[:_NAMED_BY]}'

    @property
    def plug(self) -> Plug | None:
        """The kind of device that the host must create, or None if libvirt creates the devices or none are needed."""
        if self.is_offloaded and self.type == OVS:
            return Plug.REPRESENTOR
        if self.vnic_type != 'normal':
            return None
        if self.type == VHOST_USER:
            return Plug.VHOST_USER if self.details.get('vhostuser_ovs_plug') else None
        if self.type != OVS:
            return None
        if self.details.get('ovs_hybrid_plug'):
            return Plug.HYBRID
        return Plug.TRUNK if self.switch.startswith(_TRUNK) else None

    @property
    def socket(self) -> str | None:
        """The path of the socket of a vhostuser port, or None for other ports."""
        found: str | None = self.details.get('vhostuser_socket')
        return found

    @property
    def is_function(self) -> bool:
        """True if the interface is a function of a PCI device of the host."""
        return self.vnic_type in (*FUNCTIONS, *ACCELERATED)

    @property
    def is_device(self) -> bool:
        """True if the guest gets the interface as a passthrough device and not as an emulated network card."""
        return self.vnic_type in WHOLE_PHYSICAL or self.type == INFINIBAND

    @property
    def held(self) -> dict[str, dict[str, int]]:
        """The server's allocations in Placement for the port: {provider: {resource class: amount}}."""
        wanted = PortResources.read(self.id, self.resource_request)
        return wanted.held(self.profile.get(ALLOCATION)) if wanted is not None else {}

    @property
    def is_trusted(self) -> bool:
        """True if the port's binding profile has ``trusted``: it requests a trusted SR-IOV virtual function.

        The guest may change the MAC address of a trusted virtual function, and may receive all frames with it.
        """
        return trusts(self.profile)

    @property
    def is_offloaded(self) -> bool:
        """True if a representor (a host device) connects the interface's function to Open vSwitch.

        The network card itself then switches the packets.
        """
        return has_representor(self.vnic_type, self.profile)

    @property
    def slot(self) -> str | None:
        """The PCI address of the port's function.

        It is None if the port is not a function of a PCI device, or if no function was chosen yet.
        """
        found: str | None = self.profile.get('pci_slot')
        return found

    @property
    def vlan(self) -> int | None:
        """The VLAN into which the host puts the interface, or None if it is in no VLAN."""
        return int(self.details.get('vlan') or 0) or None

    @property
    def device_name(self) -> str:
        """The name of the interface's device on the host."""
        return f'tap{self.id[:_NAMED_BY]}'

    def with_group(self, name: str, *, wanted: bool) -> Vif:
        """Return a copy of the interface with a security group of this name, or without it if ``wanted`` is False."""
        others = tuple(group for group in self.security_groups if group != name)
        return replace(self, security_groups=(*others, name) if wanted else others)

    def with_floating(self, address: str, fixed: str | None) -> Vif:
        """Return a copy of the interface in which a floating IP is associated only with this fixed address.

        If ``fixed`` is None or not an address of the interface, the floating IP is removed.
        """
        return replace(
            self,
            subnets=tuple(
                replace(
                    subnet,
                    addresses=tuple(
                        replace(
                            one,
                            floating=(
                                *(each for each in one.floating if each != address),
                                *((address,) if one.address == fixed else ()),
                            ),
                        )
                        for one in subnet.addresses
                    ),
                )
                for subnet in self.subnets
            ),
        )

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Vif:
        """Return the interface for the dict that the info cache stores."""
        network = stored['network']
        about = network.get('meta') or {}
        return cls(
            id=stored['id'],
            mac=stored['address'],
            network_id=network['id'],
            label=network['label'],
            project_id=about.get('tenant_id') or '',
            type=stored['type'],
            mtu=about.get('mtu'),
            details=stored.get('details') or {},
            profile=stored.get('profile') or {},
            vnic_type=stored.get('vnic_type') or 'normal',
            active=bool(stored.get('active')),
            preserve_on_delete=bool(stored.get('preserve_on_delete')),
            physical_network=about.get('physical_network'),
            tunneled=bool(about.get('tunneled')),
            subnets=tuple(VifSubnet.read(one) for one in network.get('subnets') or ()),
            security_groups=tuple((stored.get('meta') or {}).get('security_groups') or ()),
            resource_request=(stored.get('meta') or {}).get('resource_request'),
            before=(stored.get('meta') or {}).get('before') or {},
            tag=stored.get('tag'),
        )

    def stored(self) -> dict[str, Any]:
        """Return the dict that the info cache stores for the interface."""
        return {
            'id': self.id,
            'address': self.mac,
            'type': self.type,
            'details': dict(self.details),
            'profile': dict(self.profile),
            'vnic_type': self.vnic_type,
            'active': self.active,
            'preserve_on_delete': self.preserve_on_delete,
            'devname': self.device_name,
            'ovs_interfaceid': self.id if self.type == 'ovs' else None,
            'qbh_params': None,
            'qbg_params': None,
            'delegate_create': True,
            'tag': self.tag,
            'meta': {
                'security_groups': list(self.security_groups),
                **({'resource_request': dict(self.resource_request)} if self.resource_request else {}),
                **({'before': dict(self.before)} if self.before else {}),
            },
            'network': {
                'id': self.network_id,
                'label': self.label,
                'bridge': self.bridge,
                'subnets': [subnet.stored() for subnet in self.subnets],
                'meta': {
                    'injected': False,
                    'tenant_id': self.project_id,
                    'mtu': self.mtu,
                    'physical_network': self.physical_network,
                    'tunneled': self.tunneled,
                },
            },
        }

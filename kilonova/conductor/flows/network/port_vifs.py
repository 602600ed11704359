"""Entries of a server's info cache, made from its ports in Neutron."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from kilonova import objects
from kilonova.clients.neutron.networks import Network, Subnet
from kilonova.clients.neutron.ports import FixedIp, Port
from kilonova.conductor.work import Work
from kilonova.db.queries import info_caches
from kilonova.objects.vif import Vif, VifAddress, VifSubnet

# Types of networks whose packets are carried inside packets of another network.
_TUNNELS = frozenset(('geneve', 'gre', 'vxlan'))


def moved(vif: Vif, port: Port) -> Vif:
    """Return the interface (an entry of the info cache) with the values of the port's present binding."""
    # Copy also the MAC address, which changes if the port is a physical function (direct-physical).
    # A port that is a physical function gets the MAC address of the claimed device.
    return dataclasses.replace(
        vif,
        type=port.vif_type or '',
        details=port.vif_details,
        profile=port.profile,
        active=port.active,
        mac=port.mac,
        resource_request=port.resource_request,
    )


def save_info_cache(work: Work[Any], before: Sequence[Vif], after: Sequence[Vif]) -> None:
    """Write the interfaces ``after`` to the server's info cache, if they differ from ``before``."""
    stored = [vif.stored() for vif in after]
    if list(before) != list(after):
        # If the operation is being undone, the info cache is written even though the operation was cancelled.
        work.decide({}, cancelled=work.failed, write=lambda conn: info_caches.write(conn, work.instance_uuid, stored))
        work.changed()


def described(
    work: Work[Any], ports: Sequence[Port], own: Collection[str], groups: Mapping[str, tuple[str, ...]], *, is_new: bool
) -> list[Vif]:
    """Return the interfaces of these ports in the order of the ports, with their networks, subnets and floating IPs.

    ``own`` are the ids of ports that the user created. ``groups`` is a dict from port id to the names of the port's
    security groups. ``is_new`` is True for a new server: ports that were just created for it have no floating IPs, so
    none are read. Sends three requests to Neutron at most.
    """
    client = work.env.networks
    networks = client.networks(None, {port.network_id for port in ports})
    subnets = client.subnets({one.subnet_id for port in ports for one in port.fixed_ips})
    floating: dict[str, dict[str, list[str]]] = {}
    asked = [port.id for port in ports if not is_new or port.id in own]
    for one in client.floating_ips(asked) if asked else ():
        floating.setdefault(one.port_id or '', {}).setdefault(one.fixed_ip or '', []).append(one.address)
    return [
        _vif(
            port,
            networks.get(port.network_id),
            subnets,
            floating.get(port.id, {}),
            port.id in own,
            groups.get(port.id, ()),
        )
        for port in ports
    ]


def _vif(
    port: Port,
    network: Network | None,
    subnets: Mapping[str, Subnet],
    floating: Mapping[str, list[str]],
    is_given: bool,
    groups: tuple[str, ...],
) -> Vif:
    of_subnet: dict[str, list[FixedIp]] = {}
    for one in port.fixed_ips:
        of_subnet.setdefault(one.subnet_id, []).append(one)
    return Vif(
        id=port.id,
        mac=port.mac,
        network_id=port.network_id,
        label=network.name if network else port.network_id,
        project_id=port.project_id,
        type=port.vif_type or '',
        mtu=network.mtu if network else None,
        details=port.vif_details,
        profile=port.profile,
        vnic_type=port.vnic_type,
        active=port.active,
        resource_request=port.resource_request,
        preserve_on_delete=is_given,
        physical_network=network.physical_network if network else None,
        tunneled=network is not None and network.network_type in _TUNNELS,
        security_groups=groups,
        subnets=tuple(
            _subnet(subnets[subnet_id], addresses, floating)
            for subnet_id, addresses in of_subnet.items()
            if subnet_id in subnets
        ),
    )


def _subnet(subnet: Subnet, addresses: Iterable[FixedIp], floating: Mapping[str, list[str]]) -> VifSubnet:
    return VifSubnet(
        cidr=subnet.cidr,
        version=subnet.ip_version,
        gateway=subnet.gateway_ip,
        dns=subnet.dns_nameservers,
        ipv6_mode=subnet.ipv6_address_mode,
        id=subnet.id,
        routes=tuple((route.destination, route.nexthop) for route in subnet.host_routes),
        dhcp=subnet.enable_dhcp,
        addresses=tuple(VifAddress(one.address, tuple(floating.get(one.address, ()))) for one in addresses),
    )


def cached(instance: objects.Instance, vifs: Sequence[Mapping[str, Any]]) -> None:
    """Set the info cache of a server object, before the object is sent to a host.

    ``vifs`` are the server's interfaces in the form in which the info cache stores them. Does nothing if the list is
    empty.
    """
    if vifs:
        instance.info_cache = objects.InstanceInfoCache(instance_uuid=instance.uuid, network_info=list(vifs))

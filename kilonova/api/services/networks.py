"""Networks, ports and security groups that a create asks for, looked up in the network service.

    asked = networks.read(backend, ctxt, body, groups, 1)                # what needs nobody's answer
    found = networks.find(backend, ctxt, asked, external=False)          # what there is
    count = networks.fit(backend, ctxt, found, minimum, maximum)         # the quota of ports
    found.requests(ctxt), found.security_groups(ctxt)                    # as a request spec has them

Requests to the network service: one for networks and one for the quota; one more for ports, one more where some are
functions of PCI devices, one or two more for groups other than default, two for fixed addresses, two for networks with
a QoS policy; whatever the number of servers. Where a project has no network, one more asks whether the network service
makes one for it; the conductor has it made. A cloud without a network service has no network, and no group but each
project's default.
"""
from __future__ import annotations

import ipaddress
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oslo_utils import uuidutils

from kilonova.api.services import refusals
from kilonova.api.services.backend import Backend
from kilonova.clients.network import NetworkClient
from kilonova.clients.neutron.networks import GUARANTEES, PACKET_RATE, Network
from kilonova.clients.neutron.ports import Port
from kilonova.clients.neutron.refusals import (
    FixedIpInUse,
    FixedIpNotOfNetwork,
    NetworkNotFound,
    PortInUse,
    PortNotFound,
    PortQuotaFull,
    SecurityGroupNotApplicable,
)
from kilonova.clients.neutron.security_groups import SecurityGroup
from kilonova.context import RequestContext
from kilonova.errors import Conflict, Forbidden, Invalid, NotFound
from kilonova.objects import InstancePCIRequest, NetworkRequest, NetworkRequestList, SecurityGroupList
from kilonova.objects import SecurityGroup as SecurityGroupObject
from kilonova.objects.port_resources import PortResources
from kilonova.objects.vif import ACCELERATED, DIRECT, FUNCTIONS, REMOTE, VDPA, has_representor, offloads, trusts
from kilonova.pci import ports as pci_ports

NONE, AUTO = 'none', 'auto'
DEFAULT_GROUP = 'default'
# The vnic_types that are served.
SERVED = ('normal', *FUNCTIONS, *ACCELERATED)


class BadNetwork(Invalid):
    msg_fmt = 'Bad network format: each of networks names a network (uuid) or a port.'


class FixedIpOfPort(Invalid):
    msg_fmt = ("Specified Fixed IP '%(address)s' cannot be used with port '%(port_id)s': the two cannot be specified "
               'together.')


class FixedIpOfMany(Invalid):
    msg_fmt = 'Failed to launch instances: max_count cannot be greater than 1 if an fixed_ip is specified.'


class PortOfMany(Invalid):
    msg_fmt = ('Failed to launch instances: Unable to launch multiple instances with a single configured port ID. '
               'Please launch your instance one by one with different ports.')


class PortTwice(Invalid):
    msg_fmt = "Port ID '%(port_id)s' was specified twice: you cannot attach a port multiple times."


class FixedIpTwice(Invalid):
    msg_fmt = "Fixed IP '%(address)s' was specified twice for network %(network_id)s."


class FixedIpOfServer(Invalid):
    msg_fmt = 'Fixed IP address %(address)s is already in use on instance %(server)s.'


class NetworkAmbiguous(Conflict):
    msg_fmt = 'Multiple possible networks found, use a Network ID to be more specific.'


class NothingAllocated(Invalid):
    msg_fmt = 'Unable to automatically allocate a network for project %(project_id)s: %(reason)s'


class SubnetMissing(Invalid):
    msg_fmt = 'Network %(network_id)s requires a subnet in order to boot instances on.'


class ExternalNetwork(Forbidden):
    """The field finds it out on the host; the reason is the same: Neutron's policy."""

    msg_fmt = 'It is not allowed to create an interface on external network %(network_id)s.'


class NetworkGuarantees(Invalid):
    msg_fmt = ('Network %(network_id)s gives its ports a guaranteed bandwidth or packet rate by its QoS policy '
               '%(policy)s: make a port of it, and ask for that one.')


class GuaranteeTooNew(Invalid):
    """What a port guarantees is asked for by clients that know of it."""

    msg_fmt = ('Creating servers with ports having resource requests, like port %(port_id)s with a QoS minimum '
               'bandwidth policy, is not supported until microversion 2.72.')


class PortNotServed(Invalid):
    msg_fmt = 'Port %(port_id)s is not served in this cloud: %(reason)s.'


@dataclass(frozen=True)
class Interface:
    """An interface that is asked for: a port of its user's, or a new one of a network, with an address if one is
    named. ``network_id`` is '' where only the port says it, AUTO where it is made later. ``device``: what a port that
    is a function of a PCI device asks of its host; ``resource_request``: what a port asks of Placement; ``profile``:
    the device profile of a port that is an accelerator; ``tag``: by which the guest is to know it."""

    network_id: str
    port_id: str | None = None
    address: str | None = None
    device: InstancePCIRequest | None = None
    resource_request: Mapping[str, Any] | None = None
    profile: str | None = None
    tag: str | None = None

    @property
    def resources(self) -> PortResources | None:
        """``resource_request``, read."""
        return PortResources.read(self.port_id or '', self.resource_request)


@dataclass(frozen=True)
class Asked:
    """``interfaces``: in the user's order; None: one of the only network that there is, or of one that is made if it is
    ``needed``. ``groups``: names or ids."""

    interfaces: tuple[Interface, ...] | None = ()
    needed: bool = False
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """``interfaces``: each with its network; ``groups``: those that were looked up; ``names``: of others."""

    interfaces: tuple[Interface, ...] = ()
    groups: tuple[SecurityGroup, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def new_ports(self) -> int:
        """Ports that are made for one server."""
        return sum(one.port_id is None for one in self.interfaces)

    def requests(self, ctxt: RequestContext) -> NetworkRequestList:
        return NetworkRequestList(ctxt, objects=[NetworkRequest(
            ctxt, network_id=one.network_id, port_id=one.port_id, address=one.address, tag=one.tag,
            pci_request_id=one.device.request_id if one.device is not None else None,
            arq_uuid=None, device_profile=one.profile) for one in self.interfaces])

    @property
    def resources(self) -> list[PortResources]:
        """What its ports ask of Placement."""
        return [wanted for wanted in (one.resources for one in self.interfaces) if wanted is not None]

    @property
    def profiles(self) -> dict[str, str]:
        """Device profiles of its ports, by port."""
        return {one.port_id: one.profile for one in self.interfaces if one.port_id is not None and one.profile}

    def check_version(self, *, guarantees: bool) -> None:
        """GuaranteeTooNew, for a client that doesn't know of ``guarantees``."""
        for one in self.interfaces:
            if one.resources is not None and not guarantees:
                raise GuaranteeTooNew(port_id=one.port_id)

    def devices(self, numa_policy: str | None) -> list[InstancePCIRequest]:
        """PCI requests of its ports; ``numa_policy`` of flavor or image, for those that have none of their own."""
        return [one.device.replaced(numa_policy=one.device.numa_policy or numa_policy)
                for one in self.interfaces if one.device is not None]

    def security_groups(self, ctxt: RequestContext) -> SecurityGroupList:
        """With id and name where they were looked up, else with the name alone."""
        if self.names:
            return SecurityGroupList.from_names(ctxt, self.names)
        return SecurityGroupList(ctxt, objects=[SecurityGroupObject(ctxt, uuid=group.id, name=group.name)
                                                for group in self.groups])


# --- what needs nobody's answer --------------------------------------------------------------------------------------
def read(backend: Backend, ctxt: RequestContext, networks: Any, groups: Sequence[str], most: int) -> Asked:
    """``networks``: as the body has them; ``most``: servers that are asked for. Without a network service:
    NoNetworkService, NoSuchSecurityGroup."""
    if backend.networks is None:
        _refuse_all(ctxt, networks, groups)
        return Asked(groups=tuple(groups))
    if networks == NONE:
        return Asked(groups=tuple(groups))
    if not networks or networks == AUTO:
        return Asked(None, networks == AUTO, tuple(groups))
    interfaces = tuple(_interface(one) for one in networks)
    _check_addresses(interfaces, most)
    _check_ports(interfaces, most)
    return Asked(interfaces, groups=tuple(groups))


def _refuse_all(ctxt: RequestContext, networks: Any, groups: Sequence[str]) -> None:
    for name in groups:
        if name != DEFAULT_GROUP:
            raise refusals.NoSuchSecurityGroup(name=name, project=ctxt.project_id)
    if isinstance(networks, list) and networks:
        named = [f'port {network["port"]}' if network.get('port') else f'network {network.get("uuid")}'
                 for network in networks]
        raise refusals.NoNetworkService(wanted=', '.join(named))


def _interface(body: dict[str, Any]) -> Interface:
    port, address, tag = body.get('port'), body.get('fixed_ip'), body.get('tag')
    if port and address:
        raise FixedIpOfPort(address=address, port_id=port)
    if port:
        return Interface('', _as_neutron_writes(port), tag=tag)
    if not body.get('uuid'):
        raise BadNetwork
    return Interface(_as_neutron_writes(body['uuid']), None, str(ipaddress.ip_address(address)) if address else None,
                     tag=tag)


def _as_neutron_writes(text: str) -> str:
    """An id as it comes back; what old versions let through as one is none that is known."""
    return str(uuid.UUID(text)) if uuidutils.is_uuid_like(text) else text


def _check_addresses(interfaces: Sequence[Interface], most: int) -> None:
    named = [(one.network_id, one.address) for one in interfaces if one.address is not None]
    if named and most > 1:
        raise FixedIpOfMany
    if twice := _repeated(named):
        raise FixedIpTwice(network_id=twice[0], address=twice[1])


def _check_ports(interfaces: Sequence[Interface], most: int) -> None:
    named = [one.port_id for one in interfaces if one.port_id is not None]
    if named and most > 1:
        raise PortOfMany
    if twice := _repeated(named):
        raise PortTwice(port_id=twice)


def _repeated(values: Sequence[Any]) -> Any:
    return next((value for value in values if values.count(value) > 1), None)


# --- what there is ---------------------------------------------------------------------------------------------------
def find(backend: Backend, ctxt: RequestContext, asked: Asked, *, external: bool) -> Found:
    """``look_up`` for a create: what isn't there is Invalid."""
    try:
        return look_up(backend, ctxt, asked, external=external)
    except NotFound as error:
        raise Invalid(error.message) from None


def look_up(backend: Backend, ctxt: RequestContext, asked: Asked, *, external: bool) -> Found:
    """Everything of it, looked up. ``external``: the user may have interfaces of external networks.

    NetworkNotFound, PortNotFound, SecurityGroupNotFound: it isn't there; other errors are above and the client's.
    """
    client = backend.networks
    if client is None:
        return Found(names=asked.groups)
    interfaces, networks = (_chosen(client, ctxt, asked.needed) if asked.interfaces is None
                            else _named(client, ctxt, asked.interfaces))
    new = [one for one in interfaces if one.port_id is None and one.network_id != AUTO]
    for one in new:
        _check_network(networks[one.network_id], external)
    _check_policies(client, [networks[one.network_id] for one in new])
    _check_free(client, ctxt, networks, [one for one in new if one.address is not None])
    # The one that each project has is the network service's own choice.
    if set(asked.groups) <= {DEFAULT_GROUP}:
        return Found(interfaces, names=asked.groups)
    groups = client.security_groups(ctxt, asked.groups)
    if not all(networks[one.network_id].port_security_enabled for one in new):
        raise SecurityGroupNotApplicable
    return Found(interfaces, tuple(groups))


def _chosen(client: NetworkClient, ctxt: RequestContext, needed: bool) -> tuple[tuple[Interface, ...],
                                                                                 dict[str, Network]]:
    """One of the only network that the project may use; where it has none and one is ``needed``, of one that the
    network service will make."""
    networks = {one.id: one for one in client.available_networks(ctxt, ctxt.project_id or '')
                if one.admin_state_up and not one.external}
    if len(networks) > 1:
        raise NetworkAmbiguous
    if needed and not networks:
        try:
            client.check_topology(ctxt)
        except (Conflict, Forbidden, Invalid) as error:
            raise NothingAllocated(project_id=ctxt.project_id, reason=error.message) from None
        return (Interface(AUTO),), {}
    return tuple(Interface(network_id) for network_id in networks), networks


def _named(client: NetworkClient, ctxt: RequestContext,
           asked: Iterable[Interface]) -> tuple[tuple[Interface, ...], dict[str, Network]]:
    """The interfaces with their networks, and these by id."""
    ports = _ports(client, ctxt, [one.port_id for one in asked if one.port_id is not None])
    devices = _devices(client, ports.values())
    interfaces = tuple(one if one.port_id is None else replace(
        one, network_id=ports[one.port_id].network_id, device=devices.get(one.port_id),
        resource_request=ports[one.port_id].resource_request, profile=ports[one.port_id].device_profile)
        for one in asked)
    wanted = list(dict.fromkeys(one.network_id for one in interfaces))
    networks = client.networks(ctxt, wanted)
    if missing := [network_id for network_id in wanted if network_id not in networks]:
        raise NetworkNotFound(network_id=', '.join(missing))
    return interfaces, networks


def _ports(client: NetworkClient, ctxt: RequestContext, ids: Sequence[str]) -> dict[str, Port]:
    """A server's user may give it free ports of its own project. They are read by the service, which alone sees what
    they ask of a host; a port of somebody else's is as unknown as one that isn't there."""
    if not ids:
        return {}
    found = {port.id: port for port in client.ports(ids=ids) if port.project_id == ctxt.project_id}
    for port_id in ids:
        if port_id not in found:
            raise PortNotFound(port_id=port_id)
        _check_port(found[port_id])
    return found


def _devices(client: NetworkClient, ports: Iterable[Port]) -> dict[str, InstancePCIRequest]:
    """What those that are functions of PCI devices ask of a host, by port. Only the service sees the physical network
    that a network is in."""
    functions = [port for port in ports if port.vnic_type in FUNCTIONS]
    networks = client.networks(None, {port.network_id for port in functions}) if functions else {}
    for port in functions:
        if port.network_id not in networks:
            raise NetworkNotFound(network_id=port.network_id)
    found = {}
    for port in functions:
        wanted = PortResources.read(port.id, port.resource_request)
        found[port.id] = pci_ports.request_of(
            port.id, port.vnic_type, networks[port.network_id].physical_network, port.numa_policy,
            trusted=trusts(port.profile), offloaded=has_representor(port.vnic_type, port.profile),
            groups=wanted.groups if wanted is not None else ())
    return found


def _check_port(port: Port) -> None:
    if port.device_id:
        raise PortInUse(port_id=port.id)
    if port.vnic_type not in SERVED:
        raise PortNotServed(port_id=port.id, reason=f"its vnic_type is '{port.vnic_type}', and interfaces are of type "
                                                    f"{', '.join(SERVED)}")
    if port.vnic_type in (*FUNCTIONS, *ACCELERATED):
        _check_profile(port)
    if port.resource_request and (port.vnic_type in (REMOTE, VDPA, *ACCELERATED) or offloads(port.profile)):
        # Who guarantees it isn't known by the interface of the function's card.
        switched = ' with the capability switchdev' if offloads(port.profile) else ''
        raise PortNotServed(port_id=port.id, reason="it has a resource request, as of a guaranteed bandwidth, and its "
                                                    f"vnic_type is '{port.vnic_type}'{switched}")
    if bool(port.device_profile) != (port.vnic_type in ACCELERATED):
        raise PortNotServed(port_id=port.id, reason=(
            f"it has the device profile '{port.device_profile}', and its vnic_type is '{port.vnic_type}'"
            if port.device_profile else f"its vnic_type is '{port.vnic_type}', and it has no device profile"))


def _check_profile(port: Port) -> None:
    """What its owner asks of the function."""
    if offloads(port.profile) and port.vnic_type not in (DIRECT, REMOTE, VDPA):
        raise PortNotServed(port_id=port.id, reason='its binding:profile asks for the capability switchdev, and its '
                                                    f"vnic_type is '{port.vnic_type}', not {DIRECT}")


def _check_network(network: Network, external: bool) -> None:
    if network.external and not network.shared and not external:
        raise ExternalNetwork(network_id=network.id)
    if not network.subnet_ids:
        raise SubnetMissing(network_id=network.id)


def _check_policies(client: NetworkClient, networks: Iterable[Network]) -> None:
    """NetworkGuarantees: what a port asks of Placement is known when it is made, and a host is chosen before. Only the
    service sees policies of others, and the physical network, without which no bandwidth is guaranteed."""
    policies = {network.id: network.qos_policy_id for network in networks if network.qos_policy_id is not None}
    rules = {policy: client.rules_of(policy) for policy in set(policies.values())}
    wanted = [network_id for network_id, policy in policies.items() if not rules[policy].isdisjoint(GUARANTEES)]
    seen = client.networks(None, wanted) if wanted else {}
    for network_id in wanted:
        if PACKET_RATE in rules[policies[network_id]] or (
                network_id in seen and seen[network_id].physical_network is not None):
            raise NetworkGuarantees(network_id=network_id, policy=policies[network_id])


def _check_free(client: NetworkClient, ctxt: RequestContext, networks: dict[str, Network],
                wanted: Sequence[Interface]) -> None:
    """Whether each address belongs to its network, and to nobody yet."""
    subnets = client.subnets(subnet_id for one in wanted for subnet_id in networks[one.network_id].subnet_ids)
    for one in wanted:
        address = one.address or ''
        if not any(ipaddress.ip_address(address) in ipaddress.ip_network(subnet.cidr) for subnet in subnets.values()
                   if subnet.network_id == one.network_id):
            raise FixedIpNotOfNetwork(address=address, network_id=one.network_id)
        for port in client.ports_at(one.network_id, address):
            # Whose it is on a shared network is nobody else's business.
            if port.device_id and port.project_id == ctxt.project_id:
                raise FixedIpOfServer(address=address, server=port.device_id)
            raise FixedIpInUse(address=address)


def fit(backend: Backend, ctxt: RequestContext, found: Found, minimum: int, maximum: int) -> int:
    """How many of ``maximum`` servers the project's quota of ports leaves room for, at least ``minimum``. PortQuotaFull
    otherwise. The user's own ports are there already."""
    if backend.networks is None or not found.new_ports:
        return maximum
    allowed = backend.networks.port_quota(ctxt.project_id or '')
    if allowed.limit is None:
        return maximum
    count = min(maximum, max(allowed.limit - allowed.used, 0) // found.new_ports)
    if count < max(minimum, 1):
        raise PortQuotaFull
    return count

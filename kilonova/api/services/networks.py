"""Networks, ports and security groups that a request names: check them, and look them up in the network service.

    asked = networks.read(backend, ctxt, body, groups, 1)          # check the request body only
    found = networks.find(backend, ctxt, asked, external=False)    # query the network service
    count = networks.fit(backend, ctxt, found, minimum, maximum)   # number of servers that the port quota allows
    found.requests(ctxt), found.security_groups(ctxt)              # the objects that the request spec stores

The API uses this module when it creates servers or attaches an interface. The number of queries to the network service
does not depend on the number of servers. One query reads the networks, and one reads the project's port quota. Further
queries are made only if they are needed:

- one for ports, and one more if some ports are SR-IOV ports
- one or two for security groups other than default
- two for fixed addresses
- two for networks with a QoS policy
- one if the project has no network and needs one: it asks whether the network service can create a network. A conductor
  has the network created later.

A cloud without a network service has no networks, and only the security group default in each project.
"""

from __future__ import annotations

import ipaddress
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oslo_utils import uuidutils

from kilonova.api.services import unsupported
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
from kilonova.clients.neutron.security_groups import SecurityGroupRules
from kilonova.context import RequestContext
from kilonova.errors import Conflict, Forbidden, Invalid, NotFound
from kilonova.objects import InstancePCIRequest, NetworkRequest, NetworkRequestList, SecurityGroupList
from kilonova.objects import SecurityGroup as SecurityGroupObject
from kilonova.objects.port_resources import PortResources
from kilonova.objects.vif import ACCELERATED, DIRECT, FUNCTIONS, REMOTE, VDPA, has_representor, offloads, trusts
from kilonova.pci import ports as pci_ports

NONE, AUTO = 'none', 'auto'
DEFAULT_GROUP = 'default'
# The vnic_types of ports that Kilonova supports.
SERVED = ('normal', *FUNCTIONS, *ACCELERATED)


class BadNetwork(Invalid):
    """Error 400: an item of ``networks`` names neither a network nor a port."""

    msg_fmt = 'Bad network format: each of networks names a network (uuid) or a port.'


class FixedIpOfPort(Invalid):
    """Error 400: a fixed address is requested for an existing port."""

    msg_fmt = (
        "Specified Fixed IP '%(address)s' cannot be used with port '%(port_id)s': the two cannot be specified together."
    )


class FixedIpOfMany(Invalid):
    """Error 400: a fixed address is requested for more than one server."""

    msg_fmt = 'Failed to launch instances: max_count cannot be greater than 1 if an fixed_ip is specified.'


class PortOfMany(Invalid):
    """Error 400: an existing port is requested for more than one server."""

    msg_fmt = (
        'Failed to launch instances: Unable to launch multiple instances with a single configured port ID. '
        'Please launch your instance one by one with different ports.'
    )


class PortTwice(Invalid):
    """Error 400: the request names a port twice."""

    msg_fmt = "Port ID '%(port_id)s' was specified twice: you cannot attach a port multiple times."


class FixedIpTwice(Invalid):
    """Error 400: the request names a fixed address of a network twice."""

    msg_fmt = "Fixed IP '%(address)s' was specified twice for network %(network_id)s."


class FixedIpOfServer(Invalid):
    """Error 400: the requested fixed address belongs to another server of the project."""

    msg_fmt = 'Fixed IP address %(address)s is already in use on instance %(server)s.'


class NetworkAmbiguous(Conflict):
    """Error 409: the request names no network, and the project can use several."""

    msg_fmt = 'Multiple possible networks found, use a Network ID to be more specific.'


class NothingAllocated(Invalid):
    """Error 400: the network service can't create a network for the project."""

    msg_fmt = 'Unable to automatically allocate a network for project %(project_id)s: %(reason)s'


class SubnetMissing(Invalid):
    """Error 400: the network has no subnet."""

    msg_fmt = 'Network %(network_id)s requires a subnet in order to boot instances on.'


class ExternalNetwork(Forbidden):
    """Error 403: the policy rule network:attach_external_network does not allow the user to use this external network.

    Nova checks the rule only later, on the compute host, so the server gets the state ERROR. Kilonova checks it at
    once.
    """

    msg_fmt = 'It is not allowed to create an interface on external network %(network_id)s.'


class NetworkGuarantees(Invalid):
    """Error 400: the request names a network whose QoS policy has a minimum bandwidth or minimum packet rate.

    The user must create a port in this network with Neutron, and request the port instead of the network.
    """

    msg_fmt = (
        'Network %(network_id)s has QoS policy %(policy)s with a minimum bandwidth or packet rate, which can be '
        'allocated only for existing ports: create a port in the network and use that port.'
    )


class GuaranteeTooNew(Invalid):
    """Error 400: a port with a QoS minimum bandwidth or packet rate is requested, with a microversion below 2.72.

    As in Nova, servers with such ports can only be created from 2.72 on.
    """

    msg_fmt = (
        'Creating servers with ports having resource requests, like port %(port_id)s with a QoS minimum '
        'bandwidth policy, is not supported until microversion 2.72.'
    )


class PortNotServed(Invalid):
    """Error 400: this cloud does not support a port of this kind."""

    msg_fmt = 'Port %(port_id)s is not supported by this cloud: %(reason)s.'


@dataclass(frozen=True)
class RequestedInterface:
    """A requested interface: an existing port of the user, or a new port in a network.

    ``network_id`` is '' until the network of an existing port is looked up, and AUTO if Neutron will create a network.
    ``address`` is the requested fixed address of a new port. ``device`` is the PCI request of an SR-IOV port (vnic_type
    direct and others), otherwise None. ``resource_request`` is the port's resource_request from Neutron (QoS minimum
    bandwidth). ``profile`` is the name of the Cyborg device profile of a port with vnic_type accelerator-direct.
    ``tag`` is the device tag by which the guest finds the interface.
    """

    network_id: str
    port_id: str | None = None
    address: str | None = None
    device: InstancePCIRequest | None = None
    resource_request: Mapping[str, Any] | None = None
    profile: str | None = None
    tag: str | None = None

    @property
    def resources(self) -> PortResources | None:
        """The parsed ``resource_request``, or None if the port has none."""
        return PortResources.read(self.port_id or '', self.resource_request)


@dataclass(frozen=True)
class RequestedNetworks:
    """The networks and security groups that a request asks for, before they are looked up.

    ``interfaces`` are in the order of the request. If ``interfaces`` is None, the request names no network, and the
    server gets one interface in its project's only network (several networks are an error). If the project has no
    network, ``needed`` decides: True (networks is 'auto') has Neutron create one, False gives the server no interface.
    ``groups`` are names or ids of security groups.
    """

    interfaces: tuple[RequestedInterface, ...] | None = ()
    needed: bool = False
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class FoundNetworks:
    """The looked-up networks and security groups of a request.

    Each of ``interfaces`` has the id of its network. ``groups`` are the security groups, as Neutron returned them. If
    the request names no group or only default, ``groups`` is empty, and ``names`` has the requested names, because the
    group default is not looked up.
    """

    interfaces: tuple[RequestedInterface, ...] = ()
    groups: tuple[SecurityGroupRules, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def new_ports(self) -> int:
        """The number of ports that are created for each server."""
        return sum(one.port_id is None for one in self.interfaces)

    def requests(self, ctxt: RequestContext) -> NetworkRequestList:
        """Return the interfaces as a NetworkRequestList, for the request spec."""
        return NetworkRequestList(
            ctxt,
            objects=[
                NetworkRequest(
                    ctxt,
                    network_id=one.network_id,
                    port_id=one.port_id,
                    address=one.address,
                    tag=one.tag,
                    pci_request_id=one.device.request_id if one.device is not None else None,
                    arq_uuid=None,
                    device_profile=one.profile,
                )
                for one in self.interfaces
            ],
        )

    @property
    def resources(self) -> list[PortResources]:
        """The resources that the ports request from Placement."""
        return [wanted for wanted in (one.resources for one in self.interfaces) if wanted is not None]

    @property
    def profiles(self) -> dict[str, str]:
        """The device profiles of the ports, as a dict from port id to profile name."""
        return {one.port_id: one.profile for one in self.interfaces if one.port_id is not None and one.profile}

    def check_version(self, *, guarantees: bool) -> None:
        """Raise GuaranteeTooNew if a port has a resource request, and the microversion is too old for such ports.

        ``guarantees`` says whether the microversion of the request supports ports with resource requests.
        """
        for one in self.interfaces:
            if one.resources is not None and not guarantees:
                raise GuaranteeTooNew(port_id=one.port_id)

    def devices(self, numa_policy: str | None) -> list[InstancePCIRequest]:
        """Return the PCI requests of the ports.

        ``numa_policy`` is the NUMA affinity policy of flavor or image, for ports that have no policy of their own.
        """
        return [
            one.device.replaced(numa_policy=one.device.numa_policy or numa_policy)
            for one in self.interfaces
            if one.device is not None
        ]

    def security_groups(self, ctxt: RequestContext) -> SecurityGroupList:
        """Return the security groups as a SecurityGroupList, for the request spec.

        Each group has an id and a name. If the request names no group or only default, the groups have only names,
        because Kilonova does not look the group default up in Neutron.
        """
        if self.names:
            return SecurityGroupList.from_names(ctxt, self.names)
        return SecurityGroupList(
            ctxt, objects=[SecurityGroupObject(ctxt, uuid=group.id, name=group.name) for group in self.groups]
        )


# --- checks that send no request to Neutron --------------------------------------------------------------------------
def read(backend: Backend, ctxt: RequestContext, networks: Any, groups: Sequence[str], most: int) -> RequestedNetworks:
    """Parse the networks and security groups of a request, and make the checks that need no request to Neutron.

    ``networks`` is the member of the request's body: a list, 'auto', 'none' or None. ``groups`` are names or ids of
    security groups. ``most`` is the request's max_count, the maximum number of servers.

    Raises:
        NoNetworkService: This cloud has no network service, and the request names a network or port.
        NoSuchSecurityGroup: This cloud has no network service, and the request names another group than default.
        Invalid: The parameters contradict each other, for example one port or fixed address for several servers.
    """
    if backend.networks is None:
        _refuse_all(ctxt, networks, groups)
        return RequestedNetworks(groups=tuple(groups))
    if networks == NONE:
        return RequestedNetworks(groups=tuple(groups))
    if not networks or networks == AUTO:
        return RequestedNetworks(None, networks == AUTO, tuple(groups))
    interfaces = tuple(_interface(one) for one in networks)
    _check_addresses(interfaces, most)
    _check_ports(interfaces, most)
    return RequestedNetworks(interfaces, groups=tuple(groups))


def _refuse_all(ctxt: RequestContext, networks: Any, groups: Sequence[str]) -> None:
    for name in groups:
        if name != DEFAULT_GROUP:
            raise unsupported.NoSuchSecurityGroup(name=name, project=ctxt.project_id)
    if isinstance(networks, list) and networks:
        named = [
            f'port {network["port"]}' if network.get('port') else f'network {network.get("uuid")}'
            for network in networks
        ]
        raise unsupported.NoNetworkService(wanted=', '.join(named))


def _interface(body: dict[str, Any]) -> RequestedInterface:
    port, address, tag = body.get('port'), body.get('fixed_ip'), body.get('tag')
    if port and address:
        raise FixedIpOfPort(address=address, port_id=port)
    if port:
        return RequestedInterface('', _as_neutron_writes(port), tag=tag)
    if not body.get('uuid'):
        raise BadNetwork
    return RequestedInterface(
        _as_neutron_writes(body['uuid']), None, str(ipaddress.ip_address(address)) if address else None, tag=tag
    )


def _as_neutron_writes(text: str) -> str:
    """Return a uuid in the form in which Neutron writes it.

    Text that is not a uuid is returned unchanged. Neutron has no object with this id, so the later look-up fails.
    """
    return str(uuid.UUID(text)) if uuidutils.is_uuid_like(text) else text


def _check_addresses(interfaces: Sequence[RequestedInterface], most: int) -> None:
    named = [(one.network_id, one.address) for one in interfaces if one.address is not None]
    if named and most > 1:
        raise FixedIpOfMany
    if twice := _repeated(named):
        raise FixedIpTwice(network_id=twice[0], address=twice[1])


def _check_ports(interfaces: Sequence[RequestedInterface], most: int) -> None:
    named = [one.port_id for one in interfaces if one.port_id is not None]
    if named and most > 1:
        raise PortOfMany
    if twice := _repeated(named):
        raise PortTwice(port_id=twice)


def _repeated(values: Sequence[Any]) -> Any:
    return next((value for value in values if values.count(value) > 1), None)


# --- queries to Neutron ----------------------------------------------------------------------------------------------
def find(backend: Backend, ctxt: RequestContext, asked: RequestedNetworks, *, external: bool) -> FoundNetworks:
    """Look up the networks, ports and security groups of a create request, as ``look_up`` does.

    If one of them does not exist, raise Invalid (400) instead of the NotFound (404) of ``look_up``.
    """
    try:
        return look_up(backend, ctxt, asked, external=external)
    except NotFound as error:
        raise Invalid(error.message) from None


def look_up(backend: Backend, ctxt: RequestContext, asked: RequestedNetworks, *, external: bool) -> FoundNetworks:
    """Look up the networks, ports and security groups of a request in the network service.

    ``external`` says whether the user may have interfaces in external networks.

    Raises:
        NetworkNotFound, PortNotFound, SecurityGroupNotFound: The object does not exist, or the user can't see it.
        NetworkAmbiguous: No network is named, and the project can use several.
        Invalid, Forbidden, Conflict: An object can't be used, for example a port that another server has.
        Unanswered: The network service does not answer.
    """
    client = backend.networks
    if client is None:
        return FoundNetworks(names=asked.groups)
    interfaces, networks = (
        _chosen(client, ctxt, asked.needed) if asked.interfaces is None else _named(client, ctxt, asked.interfaces)
    )
    new = [one for one in interfaces if one.port_id is None and one.network_id != AUTO]
    for one in new:
        _check_network(networks[one.network_id], external)
    _check_policies(client, [networks[one.network_id] for one in new])
    _check_free(client, ctxt, networks, [one for one in new if one.address is not None])
    # The group default needs no look-up: the network service adds it to each new port without a group.
    if set(asked.groups) <= {DEFAULT_GROUP}:
        return FoundNetworks(interfaces, names=asked.groups)
    groups = client.security_groups(ctxt, asked.groups)
    if not all(networks[one.network_id].port_security_enabled for one in new):
        raise SecurityGroupNotApplicable
    return FoundNetworks(interfaces, tuple(groups))


def _chosen(
    client: NetworkClient, ctxt: RequestContext, needed: bool
) -> tuple[tuple[RequestedInterface, ...], dict[str, Network]]:
    """Return (interfaces, networks) of a server whose request names no network: at most one interface.

    ``networks`` is a dict from id to network. If the project can use one network, the interface is in that network. If
    the project has none, ``needed`` decides: True (networks is 'auto') gives an interface with the network id AUTO,
    because Neutron creates the network later; False gives no interface.

    Raises NetworkAmbiguous if the project can use several networks, and NothingAllocated if Neutron can't create one.
    """
    networks = {
        one.id: one
        for one in client.available_networks(ctxt, ctxt.project_id or '')
        if one.admin_state_up and not one.external
    }
    if len(networks) > 1:
        raise NetworkAmbiguous
    if needed and not networks:
        try:
            client.check_topology(ctxt)
        except (Conflict, Forbidden, Invalid) as error:
            raise NothingAllocated(project_id=ctxt.project_id, reason=error.message) from None
        return (RequestedInterface(AUTO),), {}
    return tuple(RequestedInterface(network_id) for network_id in networks), networks


def _named(
    client: NetworkClient, ctxt: RequestContext, asked: Iterable[RequestedInterface]
) -> tuple[tuple[RequestedInterface, ...], dict[str, Network]]:
    """Look up the ports and networks that a request names, and return (interfaces, networks).

    ``asked`` are the requested interfaces, which name a port or a network. Each returned interface has a network id,
    and the interface of a port also the port's data. ``networks`` is a dict from id to network.

    Raises PortNotFound or NetworkNotFound if a port or network does not exist.
    """
    ports = _ports(client, ctxt, [one.port_id for one in asked if one.port_id is not None])
    devices = _devices(client, ports.values())
    interfaces = tuple(
        one
        if one.port_id is None
        else replace(
            one,
            network_id=ports[one.port_id].network_id,
            device=devices.get(one.port_id),
            resource_request=ports[one.port_id].resource_request,
            profile=ports[one.port_id].device_profile,
        )
        for one in asked
    )
    wanted = list(dict.fromkeys(one.network_id for one in interfaces))
    networks = client.networks(ctxt, wanted)
    if missing := [network_id for network_id in wanted if network_id not in networks]:
        raise NetworkNotFound(network_id=', '.join(missing))
    return interfaces, networks


def _ports(client: NetworkClient, ctxt: RequestContext, ids: Sequence[str]) -> dict[str, Port]:
    """Return a dict from id to port for the ports ``ids``, after checking that the user can attach them to a server.

    The ports are read with the service's account, because only this account can see their resource requests. Raises
    PortNotFound if a port does not exist or belongs to another project, PortInUse if it is attached to a server, and
    PortNotServed if this cloud does not support a port of this kind.
    """
    if not ids:
        return {}
    found = {port.id: port for port in client.ports(ids=ids) if port.project_id == ctxt.project_id}
    for port_id in ids:
        if port_id not in found:
            raise PortNotFound(port_id=port_id)
        _check_port(found[port_id])
    return found


def _devices(client: NetworkClient, ports: Iterable[Port]) -> dict[str, InstancePCIRequest]:
    """Return a dict from port id to PCI request, for the SR-IOV ports (vnic_type direct, macvtap and others).

    The networks of these ports are read with the service's account, because only administrators can see a network's
    attribute provider:physical_network, which a PCI request contains.
    """
    functions = [port for port in ports if port.vnic_type in FUNCTIONS]
    networks = client.networks(None, {port.network_id for port in functions}) if functions else {}
    for port in functions:
        if port.network_id not in networks:
            raise NetworkNotFound(network_id=port.network_id)
    found = {}
    for port in functions:
        wanted = PortResources.read(port.id, port.resource_request)
        found[port.id] = pci_ports.request_of(
            port.id,
            port.vnic_type,
            networks[port.network_id].physical_network,
            port.numa_policy,
            trusted=trusts(port.profile),
            offloaded=has_representor(port.vnic_type, port.profile),
            groups=wanted.groups if wanted is not None else (),
        )
    return found


def _check_port(port: Port) -> None:
    if port.device_id:
        raise PortInUse(port_id=port.id)
    if port.vnic_type not in SERVED:
        raise PortNotServed(
            port_id=port.id, reason=f"its vnic_type is '{port.vnic_type}'; supported are {', '.join(SERVED)}"
        )
    if port.vnic_type in (*FUNCTIONS, *ACCELERATED):
        _check_profile(port)
    if port.resource_request and (port.vnic_type in (REMOTE, VDPA, *ACCELERATED) or offloads(port.profile)):
        # Refuse the port, because it has QoS minimum bandwidth or packet rate.
        # For a port of this kind, Kilonova does not know which resource provider (network card) provides the bandwidth.
        switched = ' with the capability switchdev' if offloads(port.profile) else ''
        raise PortNotServed(
            port_id=port.id,
            reason='it has a resource request (QoS minimum bandwidth or packet rate), which is not supported for '
            f"vnic_type '{port.vnic_type}'{switched}",
        )
    if bool(port.device_profile) != (port.vnic_type in ACCELERATED):
        raise PortNotServed(
            port_id=port.id,
            reason=(
                f"it has the device profile '{port.device_profile}', but its vnic_type is '{port.vnic_type}'"
                if port.device_profile
                else f"its vnic_type is '{port.vnic_type}', but it has no device profile"
            ),
        )


def _check_profile(port: Port) -> None:
    """Raise PortNotServed if the binding profile asks for switchdev and the vnic_type does not support it."""
    if offloads(port.profile) and port.vnic_type not in (DIRECT, REMOTE, VDPA):
        raise PortNotServed(
            port_id=port.id,
            reason='its binding:profile asks for the capability switchdev, but its '
            f"vnic_type is '{port.vnic_type}', not {DIRECT}",
        )


def _check_network(network: Network, external: bool) -> None:
    if network.external and not network.shared and not external:
        raise ExternalNetwork(network_id=network.id)
    if not network.subnet_ids:
        raise SubnetMissing(network_id=network.id)


def _check_policies(client: NetworkClient, networks: Iterable[Network]) -> None:
    """Raise NetworkGuarantees if new ports in a network would get a QoS minimum bandwidth or minimum packet rate.

    A new port is created only after the scheduler has chosen the host, so its bandwidth could not be allocated in
    Placement. A port that exists before the request is accepted. Bandwidth rules have no effect in a network without a
    physical network (provider:physical_network). Policies and physical networks are read with the service's account,
    because a user can't see all of them.
    """
    policies = {network.id: network.qos_policy_id for network in networks if network.qos_policy_id is not None}
    rules = {policy: client.rules_of(policy) for policy in set(policies.values())}
    wanted = [network_id for network_id, policy in policies.items() if not rules[policy].isdisjoint(GUARANTEES)]
    seen = client.networks(None, wanted) if wanted else {}
    for network_id in wanted:
        if PACKET_RATE in rules[policies[network_id]] or (
            network_id in seen and seen[network_id].physical_network is not None
        ):
            raise NetworkGuarantees(network_id=network_id, policy=policies[network_id])


def _check_free(
    client: NetworkClient, ctxt: RequestContext, networks: dict[str, Network], wanted: Sequence[RequestedInterface]
) -> None:
    """Check that each requested fixed address is in a subnet of the requested network, and that no port has it.

    ``wanted`` are the requested interfaces that have an address. ``networks`` is a dict from id to network.

    Raises:
        FixedIpNotOfNetwork: The address is in no subnet of the network.
        FixedIpOfServer: A server of the user's project has the address. The error names the server.
        FixedIpInUse: Another port has the address, for example the port of a server in another project.
    """
    subnets = client.subnets(subnet_id for one in wanted for subnet_id in networks[one.network_id].subnet_ids)
    for one in wanted:
        address = one.address or ''
        if not any(
            ipaddress.ip_address(address) in ipaddress.ip_network(subnet.cidr)
            for subnet in subnets.values()
            if subnet.network_id == one.network_id
        ):
            raise FixedIpNotOfNetwork(address=address, network_id=one.network_id)
        for port in client.ports_at(one.network_id, address):
            # Name the server only if it is in the user's project: a shared network also has servers of other projects.
            if port.device_id and port.project_id == ctxt.project_id:
                raise FixedIpOfServer(address=address, server=port.device_id)
            raise FixedIpInUse(address=address)


def fit(backend: Backend, ctxt: RequestContext, found: FoundNetworks, minimum: int, maximum: int) -> int:
    """Return the number of servers, from ``minimum`` to ``maximum``, for which the project's quota of ports has room.

    Only new ports count, because the user's own ports exist already. Raises PortQuotaFull if the quota has no room for
    ``minimum`` servers, and Unanswered if the network service does not answer.
    """
    if backend.networks is None or not found.new_ports:
        return maximum
    allowed = backend.networks.port_quota(ctxt.project_id or '')
    if allowed.limit is None:
        return maximum
    count = min(maximum, max(allowed.limit - allowed.used, 0) // found.new_ports)
    if count < max(minimum, 1):
        raise PortQuotaFull
    return count

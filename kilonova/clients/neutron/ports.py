"""Ports of Neutron: create ports, bind them to servers on hosts, set their DNS names, unbind and delete them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from keystoneauth1.adapter import Adapter

from kilonova.clients.neutron.refusals import PortNotFound, body_of
from kilonova.clients.neutron.request import NeutronRequests
from kilonova.context import RequestContext

_LABEL = re.compile('[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?', re.ASCII)
# EXTENSIONS_KEPT: seconds for which the list of Neutron's extensions is cached.
# DNS: the name of the Neutron extension that gives ports DNS names.
EXTENSIONS_KEPT, DNS = 600.0, 'dns-integration'
# Maximum number of ports in one response when all ports are listed.
PAGE = 1000
# Keys of binding:profile that a compute service writes and later removes. Other keys belong to the owner of the port.
OUR_PROFILE = frozenset(
    (
        'pci_vendor_info',
        'pci_slot',
        'physical_network',
        'pf_mac_address',
        'vf_num',
        'card_serial_number',
        'allocation',
        'arq_uuid',
        'device_mac_address',
        'migrating_to',
    )
)


@dataclass(frozen=True)
class FixedIp:
    """An address of a port in a subnet."""

    subnet_id: str
    address: str


@dataclass(frozen=True)
class Port:
    """A port.

    Only the service's account can read the host, the binding profile and the VIF fields. If the port was read with a
    user's token, these fields are None or empty.
    """

    id: str
    network_id: str
    project_id: str
    mac: str
    # The port's status: ACTIVE, DOWN, BUILD or ERROR.
    status: str
    admin_state_up: bool
    device_id: str
    device_owner: str
    fixed_ips: tuple[FixedIp, ...] = ()
    security_groups: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    vnic_type: str = 'normal'
    # The resources that Placement must allocate for the port. Only the service's account can read this field.
    resource_request: Mapping[str, Any] | None = None
    device_profile: str | None = None
    # The NUMA affinity policy that the port requests for its device, or None.
    numa_policy: str | None = None
    # The type of the virtual interface (VIF), for example unbound, binding_failed, ovs or hw_veb.
    vif_type: str | None = None
    vif_details: Mapping[str, Any] = field(default_factory=dict)
    profile: Mapping[str, Any] = field(default_factory=dict)
    host: str | None = None
    port_security_enabled: bool = True
    # Neutron's revision number of the port, which grows with each change. None if this Neutron has no such numbers.
    revision: int | None = None
    # The port's DNS name, or '' if it has none. None if ports of this Neutron have no DNS names.
    dns_name: str | None = None

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Port:
        """Create a Port from ``body``, the JSON object of a port in a response of Neutron."""
        return cls(
            id=body['id'],
            network_id=body['network_id'],
            project_id=body['project_id'],
            mac=body['mac_address'],
            status=body['status'],
            admin_state_up=body['admin_state_up'],
            device_id=body['device_id'],
            device_owner=body['device_owner'],
            fixed_ips=tuple(FixedIp(one['subnet_id'], one['ip_address']) for one in body['fixed_ips']),
            security_groups=tuple(body.get('security_groups') or ()),
            tags=tuple(body.get('tags') or ()),
            vnic_type=body.get('binding:vnic_type') or 'normal',
            resource_request=body.get('resource_request') or None,
            device_profile=body.get('device_profile') or None,
            numa_policy=body.get('numa_affinity_policy') or None,
            vif_type=body.get('binding:vif_type'),
            vif_details=body.get('binding:vif_details') or {},
            profile=body.get('binding:profile') or {},
            host=body.get('binding:host_id') or None,
            port_security_enabled=body.get('port_security_enabled', True),
            revision=body.get('revision_number'),
            dns_name=body.get('dns_name'),
        )

    @property
    def binding_failed(self) -> bool:
        """Whether no agent on the port's host can bind the port.

        Neutron reports this in the port's VIF type, not as an error.
        """
        return self.vif_type == 'binding_failed'

    @property
    def active(self) -> bool:
        """Whether a guest can start without waiting for Neutron to wire this port.

        This is the case if the port's status is ACTIVE, or if its owner has set admin_state_up to False.
        """
        return self.status == 'ACTIVE' or not self.admin_state_up

    @property
    def takes_groups(self) -> bool:
        """Whether the port can have security groups."""
        return self.port_security_enabled and bool(self.fixed_ips)


@dataclass(frozen=True)
class PortQuota:
    """The number of ports that a project may have, where None means no limit, and the number that it has at present."""

    limit: int | None
    used: int


class _Extensions:
    """The names of this Neutron's extensions. The list is read again after EXTENSIONS_KEPT seconds."""

    def __init__(self, ask: Callable[[], frozenset[str]]) -> None:
        self._ask, self._known, self._until = ask, frozenset[str](), 0.0

    def __contains__(self, alias: str) -> bool:
        if time.monotonic() >= self._until:
            self._known, self._until = self._ask(), time.monotonic() + EXTENSIONS_KEPT
        return alias in self._known


class PortCalls(NeutronRequests):
    """The part of ``NetworkClient`` with the calls for ports."""

    def __init__(self, adapter: Adapter) -> None:
        super().__init__(adapter)
        self._extensions = _Extensions(lambda: frozenset(body['alias'] for body in self._pages('extensions', (), None)))

    def port(self, ctxt: RequestContext | None, port_id: str) -> Port:
        """Return a port. Raises PortNotFound if it does not exist or this user can't see it."""
        path = f'/ports/{quote(port_id, safe="")}'
        return Port.from_body(body_of(self._send('GET', path, ctxt=ctxt), ctxt, port_id=port_id)['port'])

    def ports(
        self, *, ids: Collection[str] | None = None, device_id: str | None = None, ctxt: RequestContext | None = None
    ) -> list[Port]:
        """Return the ports with these ids, or the ports of the server ``device_id`` if ``ids`` is None.

        Ports that do not exist or that the user can't see are left out.
        """
        if ids is not None:
            return [Port.from_body(body) for body in self._list('ports', 'id', ids, ctxt=ctxt)]
        return [Port.from_body(body) for body in self._list('ports', 'device_id', [device_id or ''], ctxt=ctxt)]

    def ports_of_servers(self) -> list[Port]:
        """Return all ports that belong to servers, of all projects.

        Sends one request for each PAGE ports of the cloud.
        """
        return [
            port
            for port in map(Port.from_body, self._pages('ports', [('limit', str(PAGE))], None))
            if port.device_id and port.device_owner.startswith('compute:')
        ]

    def ports_at(self, network_id: str, address: str) -> list[Port]:
        """Return the ports that have a fixed IP address in a network."""
        return [
            Port.from_body(body)
            for body in self._pages('ports', [('network_id', network_id), ('fixed_ips', f'ip_address={address}')], None)
        ]

    def create_port(
        self,
        network_id: str,
        *,
        project_id: str,
        device_id: str,
        device_owner: str,
        host: str | None,
        fixed_ip: str | None = None,
        security_groups: Sequence[str] = (),
        name: str = '',
    ) -> Port:
        """Create a port that is bound to a host, or to no host if ``host`` is None.

        The caller must check ``binding_failed`` of the result. ``security_groups`` are ids; if there are none, the port
        gets the project's default group. ``name`` becomes the port's DNS name if this Neutron has DNS names. If Neutron
        does not answer, the port may exist nevertheless. In this case ``ports(device_id=…)`` returns it.

        Raises:
            NetworkNotFound: No such network exists.
            SecurityGroupNotFound: No such security group exists.
            SecurityGroupNotApplicable: The port can't have security groups.
            FixedIpInUse: Another port has the fixed IP address.
            FixedIpNotOfNetwork: The fixed IP address is not in the network.
            NoMoreFixedIps: The network has no free address.
            PortQuotaFull: The project's quota of ports is used up.
            NetworkInvalid, NetworkConflict: Neutron refuses the request for another reason.
        """
        body: dict[str, Any] = {
            'network_id': network_id,
            'tenant_id': project_id,
            'admin_state_up': True,
            'device_id': device_id,
            'device_owner': device_owner,
        }
        if host is not None:
            body['binding:host_id'] = host
        if fixed_ip is not None:
            body['fixed_ips'] = [{'ip_address': fixed_ip}]
        if security_groups:
            body['security_groups'] = list(security_groups)
        if name and DNS in self._extensions:
            body['dns_name'] = name
        response = self._send('POST', '/ports', json={'port': body})
        return Port.from_body(body_of(response, None, network_id=network_id, address=fixed_ip or '')['port'])

    def bind(
        self,
        port: Port,
        *,
        host: str | None,
        device_id: str,
        device_owner: str,
        profile: Mapping[str, Any] | None = None,
        name: str = '',
    ) -> Port:
        """Bind a port to a server on a host, or to a server without a host if ``host`` is None.

        ``port`` must have been read with the service's account. ``profile`` has the keys of the binding profile that a
        compute service writes; the keys of the port's owner are kept. ``name`` becomes the port's DNS name if this
        Neutron has DNS names; if ``name`` is empty, the DNS name is kept. The caller must check ``binding_failed`` of
        the result.

        Raises:
            PortNotFound: No such port exists.
            PortChanged: The port was changed since it was read. This prevents two servers from getting the same port.
            NetworkInvalid, NetworkConflict: Neutron refuses the request.
        """
        return self._update(
            port,
            {'binding:host_id': host, 'device_id': device_id, 'device_owner': device_owner, **_named(port, name)},
            profile or {},
            unchanged=True,
        )

    def set_name(self, port: Port, name: str) -> None:
        """Set the DNS name of a port, which must have been read with the service's account.

        No request is sent if the port has that name already, or if this Neutron has no DNS names.

        Raises:
            PortNotFound: No such port exists.
            PortChanged: The port was changed since it was read.
            NetworkInvalid: The text can't be a DNS name.
        """
        if fields := _named(port, name):
            self._update(port, fields, None, unchanged=True)

    def unbind(self, port: Port) -> None:
        """Unbind a port from its server and host. Nothing happens if the port is deleted already.

        ``port`` must have been read with the service's account. The port's host, server and DNS name are removed, and
        also the keys of its binding profile that a compute service has written.
        """
        name = {'dns_name': ''} if port.dns_name else {}
        try:
            self._update(port, {'binding:host_id': None, 'device_id': '', 'device_owner': '', **name}, {})
        except PortNotFound:
            return

    def set_security_groups(self, ctxt: RequestContext, port: Port, groups: Sequence[str]) -> None:
        """Replace all security groups of a port by ``groups`` (ids).

        ``port`` must have been read with this user's token.

        Raises:
            PortNotFound: No such port exists.
            SecurityGroupNotFound: No such security group exists.
            SecurityGroupNotApplicable: The port can't have security groups.
            PortChanged: The port was changed since it was read.
        """
        self._update(port, {'security_groups': list(groups)}, None, unchanged=True, ctxt=ctxt)

    def set_fixed_ips(self, ctxt: RequestContext, port: Port, wanted: Sequence[Mapping[str, str]]) -> None:
        """Replace all addresses of a port by ``wanted``. ``port`` must have been read with this user's token.

        Each address is a dict with subnet_id and ip_address. Without ip_address Neutron chooses a free address of the
        subnet.

        Raises:
            PortNotFound: No such port exists.
            NoMoreFixedIps: A subnet has no free address.
            PortChanged: The port was changed since it was read.
        """
        self._update(port, {'fixed_ips': [dict(one) for one in wanted]}, None, unchanged=True, ctxt=ctxt)

    def release_host(self, port: Port) -> Port:
        """Unbind a port from its host. The port still belongs to its server.

        ``port`` must have been read with the service's account. Raises PortNotFound if no such port exists.
        """
        return self._update(port, {'binding:host_id': None}, {})

    def delete_port(self, port_id: str) -> None:
        """Delete a port. Nothing happens if the port is deleted already."""
        response = self._send('DELETE', f'/ports/{quote(port_id, safe="")}')
        if response.status_code not in (204, 404):
            body_of(response, None, port_id=port_id)

    def port_quota(self, project_id: str) -> PortQuota:
        """Return the number of ports that a project may have, and the number that it has or has reserved."""
        path = f'/quotas/{quote(project_id, safe="")}/details.json'
        row = body_of(self._send('GET', path), None)['quota']['port']
        return PortQuota(None if row['limit'] < 0 else row['limit'], row['used'] + row['reserved'])

    def _update(
        self,
        port: Port,
        fields: dict[str, Any],
        profile: Mapping[str, Any] | None,
        unchanged: bool = False,
        ctxt: RequestContext | None = None,
    ) -> Port:
        """Write ``fields`` of a port and return the port.

        ``profile`` replaces the keys of the binding profile that compute services write; the keys of the port's owner
        stay. If it is None, the whole profile stays. If ``unchanged`` is True, Neutron refuses the write if the port's
        revision number has changed since the port was read.
        """
        if profile is not None and (wanted := theirs(port.profile) | dict(profile)) != port.profile:
            fields = {**fields, 'binding:profile': wanted}
        condition = {'If-Match': f'revision_number={port.revision}'} if unchanged and port.revision is not None else {}
        response = self._send(
            'PUT', f'/ports/{quote(port.id, safe="")}', ctxt=ctxt, json={'port': fields}, headers=condition
        )
        return Port.from_body(body_of(response, ctxt, port_id=port.id)['port'])


def _named(port: Port, name: str) -> dict[str, str]:
    """Return the field of a request that sets a port's DNS name.

    Return an empty dict if the port already has this name, or if this Neutron has no DNS names.
    """
    return {'dns_name': name} if name and port.dns_name not in (None, name) else {}


def name_in_dns(hostname: str) -> str:
    """Return a server's hostname as a port's DNS name, or '' if Neutron would not accept the name.

    >>> name_in_dns('Web.example.org'), name_in_dns('ubuntu-24.04'), name_in_dns('a..b')
    ('web.example.org', '', '')
    """
    labels = hostname.lower().split('.')
    # Neutron refuses a DNS name whose last label is a number, because no top-level domain is a number.
    if not all(map(_LABEL.fullmatch, labels)) or (len(labels) > 1 and labels[-1].isdecimal()):
        return ''
    return '.'.join(labels)


def theirs(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a port's binding profile that the port's owner has set, as a dict.

    Keys that compute services write, such as pci_slot and allocation (OUR_PROFILE), are left out.
    """
    return {key: value for key, value in profile.items() if key not in OUR_PROFILE}

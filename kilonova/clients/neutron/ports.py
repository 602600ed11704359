"""Ports of Neutron: made, given to servers on hosts, named, given back, deleted."""
from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from keystoneauth1.adapter import Adapter

from kilonova.clients.neutron.refusals import PortNotFound, body_of
from kilonova.clients.neutron.request import Requests
from kilonova.context import RequestContext

_LABEL = re.compile('[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?', re.ASCII)
# Seconds for which the list of its extensions is good, and the one by which ports have names.
EXTENSIONS_KEPT, DNS = 600.0, 'dns-integration'
# Ports in one answer of a list of all.
PAGE = 1000
# Keys of binding:profile that a compute service writes, and takes away when it unbinds. Others are the owner's.
OUR_PROFILE = frozenset((
    'pci_vendor_info', 'pci_slot', 'physical_network', 'pf_mac_address', 'vf_num', 'card_serial_number', 'allocation',
    'arq_uuid', 'device_mac_address', 'migrating_to'))


@dataclass(frozen=True)
class FixedIp:
    subnet_id: str
    address: str


@dataclass(frozen=True)
class Port:
    """A port as the service sees it: a user is shown no host, profile or VIF (None and empty then)."""

    id: str
    network_id: str
    project_id: str
    mac: str
    # ACTIVE, DOWN, BUILD or ERROR.
    status: str
    admin_state_up: bool
    device_id: str
    device_owner: str
    fixed_ips: tuple[FixedIp, ...] = ()
    security_groups: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    vnic_type: str = 'normal'
    # Only the service sees it: what the port asks of Placement.
    resource_request: Mapping[str, Any] | None = None
    device_profile: str | None = None
    # How near its device must be to the guest's NUMA cells; None: the port doesn't say.
    numa_policy: str | None = None
    # unbound, binding_failed, ovs, hw_veb …
    vif_type: str | None = None
    vif_details: Mapping[str, Any] = field(default_factory=dict)
    profile: Mapping[str, Any] = field(default_factory=dict)
    host: str | None = None
    port_security_enabled: bool = True
    # Counts its changes; None where this Neutron doesn't count.
    revision: int | None = None
    # Its name in DNS, '': it has none; None where ports of this Neutron have no names.
    dns_name: str | None = None

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Port:
        return cls(
            id=body['id'], network_id=body['network_id'], project_id=body['project_id'], mac=body['mac_address'],
            status=body['status'], admin_state_up=body['admin_state_up'], device_id=body['device_id'],
            device_owner=body['device_owner'],
            fixed_ips=tuple(FixedIp(one['subnet_id'], one['ip_address']) for one in body['fixed_ips']),
            security_groups=tuple(body.get('security_groups') or ()), tags=tuple(body.get('tags') or ()),
            vnic_type=body.get('binding:vnic_type') or 'normal', resource_request=body.get('resource_request') or None,
            device_profile=body.get('device_profile') or None, numa_policy=body.get('numa_affinity_policy') or None,
            vif_type=body.get('binding:vif_type'),
            vif_details=body.get('binding:vif_details') or {}, profile=body.get('binding:profile') or {},
            host=body.get('binding:host_id') or None, port_security_enabled=body.get('port_security_enabled', True),
            revision=body.get('revision_number'), dns_name=body.get('dns_name'))

    @property
    def binding_failed(self) -> bool:
        """Whether nothing on its host can bind it: Neutron says so in a port, not by an error."""
        return self.vif_type == 'binding_failed'

    @property
    def active(self) -> bool:
        """Whether there is nothing to wait for: it is plugged, or switched off by its owner."""
        return self.status == 'ACTIVE' or not self.admin_state_up

    @property
    def takes_groups(self) -> bool:
        """Whether it can have security groups."""
        return self.port_security_enabled and bool(self.fixed_ips)


@dataclass(frozen=True)
class PortQuota:
    """Ports that a project may have (None: any number) and those that it has."""

    limit: int | None
    used: int

    def has_room(self, more: int) -> bool:
        return self.limit is None or self.used + more <= self.limit


class _Extensions:
    """What this Neutron can do beside its core: asked for once in EXTENSIONS_KEPT seconds."""

    def __init__(self, ask: Callable[[], frozenset[str]]) -> None:
        self._ask, self._known, self._until = ask, frozenset[str](), 0.0

    def __contains__(self, alias: str) -> bool:
        if time.monotonic() >= self._until:
            self._known, self._until = self._ask(), time.monotonic() + EXTENSIONS_KEPT
        return alias in self._known


class Ports(Requests):
    """``_extensions``: what this Neutron can do beside its core."""

    def __init__(self, adapter: Adapter) -> None:
        super().__init__(adapter)
        self._extensions = _Extensions(lambda: frozenset(
            body['alias'] for body in self._pages('extensions', (), None)))

    def port(self, ctxt: RequestContext | None, port_id: str) -> Port:
        """PortNotFound: none that this user may see."""
        path = f'/ports/{quote(port_id, safe="")}'
        return Port.from_body(body_of(self._send('GET', path, ctxt=ctxt), ctxt, port_id=port_id)['port'])

    def ports(self, *, ids: Collection[str] | None = None, device_id: str | None = None,
              ctxt: RequestContext | None = None) -> list[Port]:
        """Those of these ids that there are, or those of a server."""
        if ids is not None:
            return [Port.from_body(body) for body in self._list('ports', 'id', ids, ctxt=ctxt)]
        return [Port.from_body(body) for body in self._list('ports', 'device_id', [device_id or ''], ctxt=ctxt)]

    def ports_of_servers(self) -> list[Port]:
        """Return all ports that a compute service gave to a server.

        Sends one request for each PAGE ports of the cloud.
        """
        return [port for port in map(Port.from_body, self._pages('ports', [('limit', str(PAGE))], None))
                if port.device_id and port.device_owner.startswith('compute:')]

    def ports_at(self, network_id: str, address: str) -> list[Port]:
        """Who has a fixed IP address of a network."""
        return [Port.from_body(body) for body in self._pages(
            'ports', [('network_id', network_id), ('fixed_ips', f'ip_address={address}')], None)]

    def create_port(self, network_id: str, *, project_id: str, device_id: str, device_owner: str, host: str | None,
                    fixed_ip: str | None = None, security_groups: Sequence[str] = (), name: str = '') -> Port:
        """A port that is bound to a host (None: to none yet); look at ``binding_failed``. ``security_groups``: ids;
        none: the project's default group. ``name``: in DNS, where ports have such.

        After silence it may be there nevertheless: ``ports(device_id=…)`` says so. NetworkNotFound,
        SecurityGroupNotFound, SecurityGroupNotApplicable, FixedIpInUse, FixedIpNotOfNetwork, NoMoreFixedIps,
        PortQuotaFull, NetworkInvalid, NetworkConflict.
        """
        body: dict[str, Any] = {'network_id': network_id, 'tenant_id': project_id, 'admin_state_up': True,
                                'device_id': device_id, 'device_owner': device_owner}
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

    def bind(self, port: Port, *, host: str | None, device_id: str, device_owner: str,
             profile: Mapping[str, Any] | None = None, name: str = '') -> Port:
        """Give a port, as the service reads it, to a server on a host (None: on none yet), with our part of its
        profile; look at ``binding_failed``. What its owner wrote into the profile stays. ``name``: in DNS, where ports
        have such; without, it stays. PortNotFound, NetworkInvalid, NetworkConflict; PortChanged: by somebody, since it
        was read, so that two servers never get one port.
        """
        return self._update(port, {'binding:host_id': host, 'device_id': device_id, 'device_owner': device_owner,
                                   **_named(port, name)}, profile or {}, unchanged=True)

    def set_name(self, port: Port, name: str) -> None:
        """Name a port, as the service reads it, in DNS; no request where it has that name, or ports have none.
        PortNotFound; NetworkInvalid: it can't be one; PortChanged: by somebody, since it was read."""
        if fields := _named(port, name):
            self._update(port, fields, None, unchanged=True)

    def unbind(self, port: Port) -> None:
        """Give a port, as the service reads it, back to its owner: no host, no server, no name, nothing of ours in its
        profile. One that is gone doesn't matter."""
        name = {'dns_name': ''} if port.dns_name else {}
        try:
            self._update(port, {'binding:host_id': None, 'device_id': '', 'device_owner': '', **name}, {})
        except PortNotFound:
            return

    def set_security_groups(self, ctxt: RequestContext, port: Port, groups: Sequence[str]) -> None:
        """Give a port, as this user reads it, these groups (ids) and no others. PortNotFound, SecurityGroupNotFound,
        SecurityGroupNotApplicable; PortChanged: by somebody, since it was read."""
        self._update(port, {'security_groups': list(groups)}, None, unchanged=True, ctxt=ctxt)

    def set_fixed_ips(self, ctxt: RequestContext, port: Port, wanted: Sequence[Mapping[str, str]]) -> None:
        """Give a port, as this user reads it, these addresses (subnet_id, ip_address; without the second one that is
        free) and no others. PortNotFound, NoMoreFixedIps; PortChanged: by somebody, since it was read."""
        self._update(port, {'fixed_ips': [dict(one) for one in wanted]}, None, unchanged=True, ctxt=ctxt)

    def release_host(self, port: Port) -> Port:
        """Bind a port, as the service reads it, to no host; it stays its server's. PortNotFound."""
        return self._update(port, {'binding:host_id': None}, {})

    def delete_port(self, port_id: str) -> None:
        """One that is gone doesn't matter."""
        response = self._send('DELETE', f'/ports/{quote(port_id, safe="")}')
        if response.status_code not in (204, 404):
            body_of(response, None, port_id=port_id)

    def port_quota(self, project_id: str) -> PortQuota:
        """What a project may have of ports and has."""
        path = f'/quotas/{quote(project_id, safe="")}/details.json'
        row = body_of(self._send('GET', path), None)['quota']['port']
        return PortQuota(None if row['limit'] < 0 else row['limit'], row['used'] + row['reserved'])

    def _update(self, port: Port, fields: dict[str, Any], profile: Mapping[str, Any] | None, unchanged: bool = False,
                ctxt: RequestContext | None = None) -> Port:
        """``profile``: our part of it, None: it stays. ``unchanged``: only if nobody changed the port since."""
        if profile is not None and (wanted := theirs(port.profile) | dict(profile)) != port.profile:
            fields = {**fields, 'binding:profile': wanted}
        condition = ({'If-Match': f'revision_number={port.revision}'} if unchanged and port.revision is not None
                     else {})
        response = self._send('PUT', f'/ports/{quote(port.id, safe="")}', ctxt=ctxt, json={'port': fields},
                              headers=condition)
        return Port.from_body(body_of(response, ctxt, port_id=port.id)['port'])


def _named(port: Port, name: str) -> dict[str, str]:
    """What gives a port a name in DNS that it hasn't got."""
    return {'dns_name': name} if name and port.dns_name not in (None, name) else {}


def name_in_dns(hostname: str) -> str:
    """A server's hostname as Neutron takes it for the name of a port; '' where it doesn't.

    >>> name_in_dns('Web.example.org'), name_in_dns('ubuntu-24.04'), name_in_dns('a..b')
    ('web.example.org', '', '')
    """
    labels = hostname.lower().split('.')
    # No top-level domain is a number.
    if not all(map(_LABEL.fullmatch, labels)) or (len(labels) > 1 and labels[-1].isdecimal()):
        return ''
    return '.'.join(labels)


def theirs(profile: Mapping[str, Any]) -> dict[str, Any]:
    """What of a binding profile is the owner's."""
    return {key: value for key, value in profile.items() if key not in OUR_PROFILE}

"""``PortAudit``, the part of the audit that compares the info caches of servers with the ports in Neutron.

``compare.Audit`` calls the methods in this order:

    ports = PortAudit(client)
    ports.read()                       # None, or the reason why Neutron does not answer
    ports.compare(servers, owned, allocated, busy)       # for each cell
    ports.disagreements()
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from kilonova import states
from kilonova.clients.network import NetworkClient
from kilonova.clients.neutron.ports import Port
from kilonova.db.rows import Row
from kilonova.errors import KilonovaError
from kilonova.objects.port_resources import ALLOCATION, PortResources, of_ports, total
from kilonova.objects.vif import ACCELERATED, BEHIND, FUNCTIONS, Vif

# The states in which a server may detach a port.
DETACH = states.TRANSITIONS['detach_interface.start']
# vm states in which a server can't detach a deleted port. The value ends the report's sentence "… are released when …".
LATER = {'resized': 'its resize is confirmed or reverted'}
# End of the report's sentence "the devices and resources … are released when …" for vm states that are not in LATER.
AWAKE = 'Neutron next sends an event while the server is active, paused or stopped'
# Resources that a server holds in Placement, as {provider uuid: {resource class: amount}}.
Held = Mapping[str, Mapping[str, int]]


def hidden(server: Row) -> set[str]:
    """Return the PCI addresses of the server's devices that are not in the libvirt XML of its domain.

    These are the functions (VFs) of macvtap and vDPA ports: the XML has the macvtap or vDPA device of the host instead.
    """
    return {
        vif.slot
        for vif in map(Vif.read, json.loads(server['network_info'] or '[]'))
        if vif.vnic_type in BEHIND and vif.slot is not None
    }


def _kept(server: Row, gone: Iterable[Vif]) -> dict[str, Vif]:
    """Return the interfaces of deleted ports that stay in the server's info cache for now, as a dict by port id.

    ``gone`` are the server's interfaces whose ports were deleted in Neutron. Such an interface stays if the server
    holds a device or resources for it and can't detach a port in its present vm state.
    """
    if server['host'] is None or server['vm_state'] in DETACH.vm:
        return {}
    return {vif.id: vif for vif in gone if vif.vnic_type in FUNCTIONS or vif.held}


def _addresses(devices: Sequence[Row], host: str) -> set[str]:
    return {device['address'] for device in devices if device['host'] == host}


class PortAudit:
    """Compares the info caches of servers with the servers' ports in Neutron.

    ``client`` is None if the cloud has no network service (Neutron). ``in_flight`` has one line of text for each
    deleted port that a server can't detach in its present vm state.
    """

    NAME = 'ports'

    def __init__(self, client: NetworkClient | None) -> None:
        self._client = client
        # The ports in Neutron, as {server uuid: {port id: port}}; None if they could not be read.
        self._held: dict[str, dict[str, Port]] | None = None
        self._known: set[str] = set()
        self._wrong: list[str] = []
        self.in_flight: list[str] = []

    def read(self) -> str | None:
        """Read all ports of servers from Neutron.

        Returns the text of the error if Neutron does not answer, else None.
        """
        if self._client is None:
            return None
        held: dict[str, dict[str, Port]] = defaultdict(dict)
        try:
            for port in self._client.ports_of_servers():
                held[port.device_id][port.id] = port
        except KilonovaError as error:
            return str(error)
        self._held = held
        return None

    def compare(
        self,
        servers: Mapping[str, Row],
        owned: Mapping[str, Sequence[Row]],
        allocated: Mapping[str, Held],
        busy: set[str],
    ) -> None:
        """Compare the servers of a cell with their ports.

        ``servers`` is {server uuid: row of the server}, ``owned`` is {server uuid: rows of its devices}, and
        ``allocated`` is {server uuid: its allocation in Placement}. Servers in ``busy``, on which an operation works,
        are left out.
        """
        self._known.update(servers, busy)
        for uuid, server in servers.items():
            if uuid in busy or self._held is None:
                continue
            held = self._held.get(uuid, {})
            cached = {vif.id: vif for vif in map(Vif.read, json.loads(server['network_info'] or '[]'))}
            kept = _kept(server, [vif for vif in cached.values() if vif.id not in held])
            self._guarantees(server, held.values(), kept.values(), allocated.get(uuid, {}))
            for port_id in kept:
                when = LATER.get(server['vm_state'], AWAKE)
                self.in_flight.append(
                    f'ports: port {port_id} of server {uuid} is deleted; the devices and resources '
                    f'that the server holds for it are released when {when}'
                )
            for port_id, vif in cached.items():
                # A deleted port with an accelerator vnic type is not reported: the server keeps the port's accelerator.
                if port_id not in held and port_id not in kept and vif.vnic_type not in ACCELERATED:
                    self._wrong.append(
                        f'ports: server {uuid} has port {port_id} in its info cache, and in Neutron '
                        f'the port does not belong to the server'
                    )
            for port_id, port in held.items():
                if port_id not in cached:
                    self._wrong.append(f'ports: port {port_id} belongs to server {uuid}, and is not in its info cache')
                elif port.host != server['host']:
                    self._wrong.append(
                        f'ports: port {port_id} of server {uuid} is bound to '
                        f'{port.host or "no host"}, and the server is on {server["host"] or "none"}'
                    )
                elif (
                    port.vnic_type in FUNCTIONS
                    and port.host is not None
                    and ((slot := port.profile.get('pci_slot')) not in _addresses(owned.get(uuid, ()), port.host))
                ):
                    self._wrong.append(
                        f'ports: port {port_id} of server {uuid} names device {slot} of {port.host}, '
                        f'which the server does not hold'
                    )

    def _guarantees(self, server: Row, ports: Iterable[Port], kept: Iterable[Vif], allocated: Held) -> None:
        """Compare the resources that a server holds in Placement for its ports with the bindings of the ports.

        ``allocated`` is the server's allocation in Placement. ``kept`` are the interfaces of deleted ports. Their
        resources are read from the info cache, because a deleted port has no binding.
        """
        read = ((port, PortResources.read(port.id, port.resource_request)) for port in ports)
        wanted = total(
            [
                *(asked.held(port.profile.get(ALLOCATION)) for port, asked in read if asked is not None),
                *(vif.held for vif in kept),
            ]
        )
        found = of_ports(allocated)
        if server['host'] is not None and found != wanted:
            self._wrong.append(
                f'Placement: server {server["uuid"]} holds {found or "nothing"} for its ports, whose '
                f'bindings say {wanted or "nothing"}'
            )

    def disagreements(self) -> list[str]:
        """Return one line of text for each difference between the servers and Neutron.

        Call this after ``compare`` for all cells.
        """
        return self._wrong + [
            f'ports: port {port_id} belongs to {uuid}, which is not a server'
            for uuid, held in (self._held or {}).items()
            if uuid not in self._known
            for port_id in held
        ]

"""Neutron in the simulated cloud: the rules of ``tests.fixtures.neutron`` under virtual time, and the account of it.

    neutron = Neutron(timeline, machines, post, hosts)
    client = neutron.client_by(stores)          # as a process has it: silent, refusing, its answers lost
    settled(cloud, wrong); empty(cloud, wrong)  # what doesn't hold

A port becomes ACTIVE some time after it was bound to a host, and is told of by an event, now and then by none. Hosts
whose agents are away for a while bind nothing.
"""

from __future__ import annotations

import json as jsonlib
import random
import types
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import requests
from keystoneauth1 import session as ks_session

from kilonova.clients.network import NetworkClient
from tests.fixtures import neutron
from tests.simulation.accelerators import PORT_PROFILE
from tests.simulation.timeline import Process, Timeline

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

# Seconds until a port is plugged, at most; how often an event is sent, and seconds until it is.
PLUGGED, SENT, LATER = 3.0, 0.7, 3.0
# The interface of a host's card that guarantees bandwidths.
CARD = 'wire0'


class Neutron(neutron.FakeNeutron):
    """``post(body)`` sends the compute API events."""

    def __init__(
        self, timeline: Timeline, post: Callable[[Any], object], hosts: Sequence[str], project: str, token: str
    ) -> None:
        self._chance = random.Random('ports')
        super().__init__(hosts)
        self._timeline, self._post, self._process = timeline, post, Process('neutron')
        self.plugging, self.notify = False, self._later
        self.users[token] = project
        self.owned: dict[tuple[str, str], str] = {}
        # Ports that their users have deleted.
        self.dropped: set[str] = set()
        self.project, self.network = project, self.add_network('private', project, cidr='10.2.0.0/22')
        self.wire = self.add_network('wire', project, cidr='10.6.0.0/22', **{'provider:physical_network': 'physnet1'})

    def begin(self, seed: str) -> None:
        """From here on everything depends on this seed."""
        self._chance = random.Random(f'{seed}/ports')

    def new_uuid(self) -> str:
        """Threads may draw the same random numbers; a service has its own."""
        return str(uuid.UUID(int=self._chance.getrandbits(128), version=4))

    def function(self) -> str:
        """A user's new port that is to be a function of a network device."""
        return self.add_port(
            self.wire, self.project, **{'binding:vnic_type': 'direct', 'binding:profile': {'note': 'mine'}}
        )

    def guaranteed(self, number: int) -> str:
        """A user's new port that guarantees a bandwidth: in the older form, or with a packet rate beside it."""
        made = self.add_port(self.network, self.project, **{'binding:profile': {'note': 'mine'}})
        self.guarantee(made, 100, packets=5 * (number % 2), is_flat=not number % 2)
        return made

    def own(self, whose: str, kind: str = 'function') -> str:
        """The port of a kind that is to be attached to one server, and detached; another one where it was deleted."""
        if self.owned.get((whose, kind)) not in self.ports:
            self.owned[whose, kind] = self._made(kind)
        return self.owned[whose, kind]

    def _made(self, kind: str) -> str:
        match kind:
            case 'plain':
                return self.add_port(self.network, self.project, **{'binding:profile': {'note': 'mine'}})
            case 'guaranteed':
                return self.guaranteed(len(self.owned))
            case 'wired':
                made = self.function()
                self.guarantee(made, 100)
                return made
            case 'accelerator':
                return self.add_port(
                    self.wire,
                    self.project,
                    device_profile=PORT_PROFILE,
                    **{'binding:vnic_type': 'accelerator-direct', 'binding:profile': {'note': 'mine'}},
                )
        return self.function()

    def of_create(self, number: int) -> dict[str, str]:
        """What server ``number`` is created with, where there are ports of each kind."""
        kind = ('network', 'guaranteed', 'function', 'wired', 'accelerator')[number % 5]
        return {'uuid': self.network} if kind == 'network' else {'port': self.own(f'{number}/first', kind)}

    def drop(self, port_id: str) -> bool:
        """An administrator deletes it. False: it is gone."""
        port = self.ports.pop(port_id, None)
        if port is None:
            return False
        self.dropped.add(port_id)
        self._tell('network-vif-deleted', port)
        return True

    def bound_to(self, port: dict[str, Any]) -> None:
        """Its agent plugs it later, unless it is elsewhere by then."""
        host = port['binding:host_id']

        def plug() -> None:
            if self.ports.get(port['id']) is port and port['binding:host_id'] == host and port['status'] == 'DOWN':
                self.plug(port['id'])

        self._timeline.after(PLUGGED * self._chance.random(), plug)

    def _later(self, events: list[dict[str, str]]) -> None:
        """The compute API hears of it; or it doesn't."""
        if self._chance.random() >= SENT:
            return
        seed = self._chance.getrandbits(64)
        self._timeline.after(
            LATER * self._chance.random(),
            lambda: self._timeline.spawn(self._process, lambda: self._post({'events': events}), 'events', seed),
        )

    def client_by(self, stores: Any) -> NetworkClient:
        """A process's own client."""
        return NetworkClient(stores.wire(_Adapter(self), 'neutron'))


class _Adapter:
    """Stands where the client has its keystoneauth1 Adapter."""

    def __init__(self, service: Neutron) -> None:
        self._service = service
        self.session = ks_session.Session()

    def request(
        self, path: str, method: str, *, json: Any = None, headers: Mapping[str, str] | None = None, **kwargs: Any
    ) -> requests.Response:
        """One request and its answer."""
        return self._service.send(
            types.SimpleNamespace(
                method=method, url=f'{neutron.URL}{path}', body=jsonlib.dumps(json), headers=dict(headers or {})
            )
        )


def settled(cloud: Cloud, wrong: Callable[[str], None]) -> None:
    """Nothing is under way: each port is bound where its server is, and nowhere else, and in that server's guest. What
    servers and info caches have the audit compares."""
    for port in cloud.neutron.ports.values() if cloud.neutron is not None else ():
        if others := list(port.get('bindings', {})):
            wrong(f'ports: {port["id"]} of {port["device_id"]} is bound to {", ".join(others)}, too')
        host = port['binding:host_id']
        domain = cloud.machines[host].domains.get(port['device_id']) if host else None
        if domain is not None and port['id'] not in domain.vifs:
            wrong(f'ports: the guest of {port["device_id"]} has {domain.vifs}, and not its port {port["id"]}')
        elif domain is not None and domain.slots.get(port['id']) != port['binding:profile'].get('pci_slot'):
            wrong(
                f'ports: the guest of {port["device_id"]} has {domain.slots}, and its port {port["id"]} says '
                f'{port["binding:profile"]}'
            )

    for host, machine in cloud.machines.items() if cloud.neutron is not None else ():
        for server, domain in machine.domains.items():
            for port_id in domain.vifs:
                port = cloud.neutron.ports.get(port_id)
                if port is not None and port['device_id'] != server:
                    wrong(
                        f'ports: the guest of {server} on {host} has port {port_id}, which is of '
                        f'{port["device_id"] or "nobody"}'
                    )


def empty(cloud: Cloud, wrong: Callable[[str], None]) -> None:
    """No server is left: there are no ports but users' own, which are as these made them."""
    for port in cloud.neutron.ports.values() if cloud.neutron is not None else ():
        if (port['device_id'], port['binding:host_id'], port['binding:profile']) == ('', '', {'note': 'mine'}):
            continue
        wrong(f'left over in Neutron: port {port["id"]} of {port["device_id"]}, bound to {port["binding:host_id"]}')

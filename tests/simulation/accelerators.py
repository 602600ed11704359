"""Cyborg in the simulated cloud: the rules of ``tests.fixtures.cyborg`` under virtual time.

    cyborg = Cyborg(timeline, machines, post)
    client = cyborg.client_by(stores)           # as a process has it: silent, refusing, its answers lost
    cyborg.offer_all(placement, shape)          # the hosts' accelerators, in Placement too

Some devices are programmed before they are bound, which takes seconds and may fail. Events come later or never. A
mediated device is made when its handle is bound, and removed when it is free, as Cyborg's agent does it.
"""

from __future__ import annotations

import json as jsonlib
import random
import types
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib import parse

from keystoneauth1 import session as ks_session

from kilonova.accel.client import AcceleratorClient
from tests.fixtures import cyborg
from tests.simulation.placement_model import Answer
from tests.simulation.timeline import Process, Timeline

# How often a device must be programmed, seconds that this takes at most, and how often it fails.
PROGRAMMED, PROGRAMMING, FAILS = 0.2, 20.0, 0.1
# What a port asks for that is an accelerator.
PORT_PROFILE = 'nic'
# How often an event is sent, and seconds until it is.
SENT, LATER = 0.5, 3.0
# A host's accelerators: what Cyborg reports of each device.
Offers = Mapping[str, Sequence[tuple[str, str, Sequence[tuple[str, ...]]]]]


class Answered(Answer):
    """What the client reads of it besides."""

    reason = ''


class Cyborg(cyborg.FakeCyborg):
    """``machines``: the hosts by name; ``post(body)`` sends the compute API events; both of the simulated cloud."""

    def __init__(self, timeline: Timeline, machines: Mapping[str, Any], post: Callable[[Any], object]) -> None:
        super().__init__()
        self._timeline, self._machines, self._post = timeline, machines, post
        self._process = Process('cyborg')
        # What stands behind (host, PCI address or uuid of a mediated device).
        self.devices: dict[tuple[str, str], cyborg.Handle] = {}
        self._chance = random.Random('accelerators')
        self._slow = False
        # Called after what may have changed who has which device.
        self.changed: Callable[[], None] = lambda: None

    def offer_all(self, placement: Any, offers: Offers) -> None:
        """Once all hosts are in Placement, which this client reaches."""
        for host, found in offers.items():
            for name, resource_class, handles in found:
                self.offer(types.SimpleNamespace(client=placement), host, f'{host}_{name}', resource_class, handles)
        providers = {row['uuid']: row['name'] for row in placement.list_providers()}
        for handle in self._all():
            handle.info['physical_network'] = 'physnet1'
        self.devices = {
            (providers[provider].partition('_')[0], name_of(handle)): handle
            for provider, handles in self.handles.items()
            for handle in handles
        }

    def begin(self, seed: str) -> None:
        """From here on some devices must be programmed, and everything depends on this seed."""
        self._chance, self._slow = random.Random(f'{seed}/accelerators'), True

    def calm(self) -> None:
        """No device must be programmed any more."""
        self._slow = False

    def holder_of(self, host: str, device: str) -> str | None:
        """The uuid that a device of a host is bound to; None: it is free."""
        request = self.requests.get(self.devices[host, device].holder)
        return request['instance_uuid'] if request is not None else None

    def unbound(self) -> list[str]:
        """Requests that were made for nothing so far."""
        return [name for name, one in self.requests.items() if one['instance_uuid'] is None]

    # -- what is otherwise here ---------------------------------------------------------------------------------------
    def new_uuid(self) -> str:
        """Of a request. Threads may draw the same random numbers; a service has its own."""
        return str(uuid.UUID(int=self._chance.getrandbits(128), version=4))

    def must_be_programmed(self, one: dict[str, Any]) -> bool:
        """Whether the binding of a request stays under way."""
        chance = self._chance
        if not self._slow or chance.random() >= PROGRAMMED:
            return False
        self._timeline.after(PROGRAMMING * chance.random(), lambda: self._programmed(one, chance.random() >= FAILS))
        return True

    def _programmed(self, one: dict[str, Any], well: bool) -> None:
        if self.requests.get(one['uuid']) is one and one['state'] == 'BindStarted':
            self.finish(one, 'Bound' if well else 'BindFailed')
            self._timeline.tell(f'{one["uuid"][:8]} of {one["instance_uuid"][:8]} is {one["state"]}', 'cyborg')
            self.tell([one])

    def finish(self, one: dict[str, Any], state: str) -> bool:
        """A binding comes to its end; whether it got a device."""
        bound = super().finish(one, state)
        if bound and one['attach_handle_type'] == 'MDEV':
            handle = one['attach_handle_info']
            self._machines[one['hostname']].mdevs[one['attach_handle_uuid']] = (
                cyborg.address_of(one),
                handle['asked_type'],
            )
        return bound

    def freed(self, handle: cyborg.Handle) -> None:
        """A device is nobody's any more."""
        for machine in self._machines.values():
            machine.mdevs.pop(handle.uuid, None)

    def tell(self, ended: list[dict[str, Any]]) -> None:
        """The compute API hears of bindings that came to their end; or it doesn't."""
        chance = self._chance
        if not ended or chance.random() >= SENT:
            return
        events = [
            {
                'name': 'accelerator-request-bound',
                'server_uuid': one['instance_uuid'],
                'tag': one['uuid'],
                'status': cyborg.RESOLVED[one['state']],
            }
            for one in ended
        ]
        seed = chance.getrandbits(64)
        self._timeline.after(
            LATER * chance.random(),
            lambda: self._timeline.spawn(self._process, lambda: self._post({'events': events}), 'events', seed),
        )

    # -- the wire -----------------------------------------------------------------------------------------------------
    def client_by(self, stores: Any) -> AcceleratorClient:
        """A process's own client."""
        return AcceleratorClient(stores.wire(_Adapter(self), 'cyborg'))

    def request(self, method: str, path: str, given: Any) -> Answered:
        """One request as it gets here."""
        url = parse.urlsplit(path)
        try:
            status, body = self.answer(
                method, url.path, dict(parse.parse_qsl(url.query)), jsonlib.loads(jsonlib.dumps(given)), True
            )
        except cyborg.Refused as error:
            status, text = error.args
            body = {'error_message': text}
        if method != 'GET':
            self.changed()
        return Answered(status, jsonlib.loads(jsonlib.dumps(body)))


class _Adapter:
    """Stands where the client has its keystoneauth1 Adapter."""

    def __init__(self, service: Cyborg) -> None:
        self._service = service
        self.session = ks_session.Session()

    def request(self, path: str, method: str, *, json: Any = None, **kwargs: Any) -> Answered:
        """One request and its answer."""
        return self._service.request(method, path, json)


def name_of(handle: cyborg.Handle) -> str:
    """What a guest has of it: an address, or the uuid of a mediated device."""
    return handle.uuid if handle.kind == 'MDEV' else '{domain}:{bus}:{device}.{function}'.format(**handle.info)

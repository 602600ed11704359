"""Cinder in the simulated cloud: the rules of ``tests.fixtures.cinder`` under virtual time, and the account of it.

    cinder = Cinder(timeline, project, image)
    client = cinder.client_by(stores)           # as a process has it: silent, refusing, its answers lost
    cinder.own('one server')                    # a volume of its user's, to be attached and detached
    settled(cloud, wrong); empty(cloud, wrong)  # what doesn't hold

A volume that is made or deleted, or gets an image, is so some time later; now and then one can't be made.
"""
from __future__ import annotations

import json as jsonlib
import random
import types
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import requests
from keystoneauth1 import session as ks_session

from kilonova.clients.volume import VolumeClient
from tests.fixtures import cinder
from tests.simulation.timeline import Timeline

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

# Seconds until a volume is made or deleted, at most; how often one can't be made.
MADE, BROKEN = 9.0, 0.03


class Cinder(cinder.FakeCinder):
    """See the module."""

    def __init__(self, timeline: Timeline, project: str, image: str) -> None:
        self._chance = random.Random('volumes')
        super().__init__()
        self._timeline, self._project, self.slow = timeline, project, True
        self.owned: dict[str, str] = {}
        self.images = {image: {}}

    def begin(self, seed: str) -> None:
        """From here on everything depends on this seed."""
        self._chance = random.Random(f'{seed}/volumes')

    def new_uuid(self) -> str:
        """Threads may draw the same random numbers; a service has its own."""
        return str(uuid.UUID(int=self._chance.getrandbits(128), version=4))

    def own(self, whose: str) -> str:
        """The user's volume for one server."""
        if whose not in self.owned:
            self.owned[whose] = super().add_volume(self._project)
        return self.owned[whose]

    def add_volume(self, project: str, *, size: int = 1, **fields: Any) -> str:
        """It is there later."""
        made = super().add_volume(project, size=size, **fields)
        status = 'error' if self._chance.random() < BROKEN else 'available'
        self._timeline.after(MADE * self._chance.random(), lambda: self.finish(made, status)
                             if self.volumes[made]['status'] == 'creating' else None)
        return made

    def _delete(self, volume: dict[str, Any]) -> None:
        super()._delete(volume)
        self._timeline.after(MADE * self._chance.random(), lambda: self.finish(volume['id'])
                             if volume['id'] in self.volumes else None)

    def _reimage(self, volume: dict[str, Any], image: str) -> None:
        super()._reimage(volume, image)
        self._timeline.after(MADE * self._chance.random(), lambda: self.finish_image(volume['id']))

    def client_by(self, stores: Any) -> VolumeClient:
        """A process's own client."""
        return VolumeClient(stores.wire(_Adapter(self), 'cinder'))


class _Adapter:
    """Stands where the client has its keystoneauth1 Adapter."""

    def __init__(self, service: Cinder) -> None:
        self._service = service
        self.session = ks_session.Session()

    def request(self, path: str, method: str, *, json: Any = None, headers: Mapping[str, str] | None = None,
                **kwargs: Any) -> requests.Response:
        """One request and its answer."""
        return self._service.send(types.SimpleNamespace(
            method=method, url=f'{cinder.URL}{path}', body=jsonlib.dumps(json), headers=dict(headers or {})))


def settled(cloud: Cloud, wrong: Callable[[str], None]) -> None:
    """Nothing is under way: each attachment is where its server is, and in its guest. What servers have by their rows
    the audit compares."""
    if cloud.cinder is None:
        return
    of: dict[str, set[str]] = {}
    for one in cloud.cinder.attachments.values():
        of.setdefault(one['instance'], set()).add(one['volume_id'])
        # A volume that came to a server on no host is in use, too.
        if one['status'] not in (('attached',) if one['host'] else ('reserved', 'attached')):
            wrong(f'volumes: {one["volume_id"]} of {one["instance"]} is {one["status"]} at {one["host"]}')
    for host, machine in cloud.machines.items():
        for server, domain in machine.domains.items():
            has = set(domain.volumes)
            if server in of and has != of[server]:
                wrong(f'volumes: the guest of {server} on {host} has {sorted(has)}, and Cinder says '
                      f'{sorted(of[server])}')


def empty(cloud: Cloud, wrong: Callable[[str], None]) -> None:
    """No server is left."""
    if cloud.cinder is None:
        return
    for one in cloud.cinder.attachments.values():
        wrong(f'left over in Cinder: attachment of {one["volume_id"]} to {one["instance"]} at {one["host"]}')
    own = set(cloud.cinder.owned.values())
    for volume_id, volume in cloud.cinder.volumes.items():
        if volume_id not in own and volume['status'] != 'deleting':
            wrong(f'left over in Cinder: volume {volume_id}, {volume["status"]}')
    for host, machine in cloud.machines.items():
        for volume_id, servers in machine.connected.items():
            if servers:
                wrong(f'left over on {host}: volume {volume_id} is connected for {", ".join(sorted(servers))}')

"""Cinder in the simulated cloud: the rules of ``tests.fixtures.cinder`` under virtual time, and the account of it.

    cinder = Cinder(timeline, project, image)
    client = cinder.client_by(stores)           # as a process has it: silent, refusing, its answers lost
    cinder.own('one server')                    # a volume of its user's, to be attached and detached
    cinder.begin_snapshot(volume)               # of a file of a share: the file to which its guest is to write
    cinder.merge_of(snapshot)                   # what the compute API is asked then
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

# What a volume is that is a file, as its attachments say.
FILE = {'driver_volume_type': 'nfs', 'export': 'filer:/v', 'access_mode': 'rw', 'encrypted': False}
# Seconds until a volume is made or deleted, at most; how often one can't be made.
MADE, BROKEN = 9.0, 0.03


class Cinder(cinder.FakeCinder):
    """See the module."""

    def __init__(self, timeline: Timeline, project: str, image: str, is_share: bool = False) -> None:
        self._chance = random.Random('volumes')
        super().__init__()
        self._timeline, self._project, self.slow, self._is_share = timeline, project, True, is_share
        if is_share:
            self.connection = dict(FILE)
        self.owned: dict[str, str] = {}
        # Volumes that were deleted by force.
        self.dropped: set[str] = set()
        # Whose volume was.
        self.lost: set[str] = set()
        # The share: {file: the one from which it reads}, and of each snapshot the file that is it.
        self.files: dict[str, str | None] = {}
        self.frozen: dict[str, str] = {}
        self.images = {image: {}}

    def begin(self, seed: str) -> None:
        """From here on everything depends on this seed."""
        self._chance = random.Random(f'{seed}/volumes')

    def new_uuid(self) -> str:
        """Threads may draw the same random numbers; a service has its own."""
        return str(uuid.UUID(int=self._chance.getrandbits(128), version=4))

    def own(self, whose: str) -> str:
        """The user's volume for one server; another one where it was deleted."""
        if self.owned.get(whose) not in self.volumes:
            self.owned[whose] = self._add(self._project, bootable='true')
        return self.owned[whose]

    def drop(self, volume_id: str) -> bool:
        """An administrator deletes it by force, with its attachments. False: it is gone, a guest has it, or it has
        snapshots."""
        volume = self.volumes.get(volume_id)
        if volume is None or volume['attach_status'] == 'attached' or self.snapshots_of(volume_id):
            return False
        for one in self._of(volume):
            del self.attachments[one['id']]
        del self.volumes[volume_id]
        self.dropped.add(volume_id)
        self.lost.update(whose for whose, owned in self.owned.items() if owned == volume_id)
        return True

    def add_volume(self, project: str, *, size: int = 1, **fields: Any) -> str:
        """It is there later."""
        made = self._add(project, size=size, **fields)
        status = 'error' if self._chance.random() < BROKEN else 'available'
        self._timeline.after(
            MADE * self._chance.random(),
            lambda: self.finish(made, status) if self.volumes[made]['status'] == 'creating' else None,
        )
        return made

    def _add(self, project: str, **fields: Any) -> str:
        made = super().add_volume(project, **fields)
        if self._is_share:
            self.volumes[made]['file'] = (f'volume-{made}', 'raw')
            self.files[f'volume-{made}'] = None
        return made

    # -- snapshots of files -------------------------------------------------------------------------------------------
    def chain(self, name: str) -> list[str]:
        """A file, the one from which it reads, and so on."""
        found = [name]
        while (below := self.files.get(found[-1])) is not None:
            found.append(below)
        return found

    def snapshots_of(self, volume_id: str) -> list[str]:
        """The oldest first."""
        return [one['id'] for one in self.snapshots.values() if one['volume_id'] == volume_id]

    def begin_snapshot(self, volume_id: str) -> str:
        """The new file reads from the one that is to be the snapshot."""
        made = super().begin_snapshot(volume_id)
        self.frozen[made] = self.files[made] = self.volumes[volume_id]['file'][0]
        return made

    def merge_of(self, snapshot_id: str) -> tuple[str | None, str | None]:
        """(file_to_merge, merge_target_file) for its deletion: its file becomes part of the one from which it reads, or
        of the one to which the guest writes."""
        volume = self.volumes[self.snapshots[snapshot_id]['volume_id']]
        chain, file = self.chain(volume['file'][0]), self.frozen[snapshot_id]
        if file not in chain[2:]:
            return next(iter(chain[chain.index(file) + 1 :] if file in chain else chain[1:]), None), None
        if file != chain[-1]:
            return file, chain[chain.index(file) + 1]
        # The last of all takes up the one that reads from it, and is what that was.
        above = chain[-2]
        self.frozen.update({name: file for name, other in self.frozen.items() if other == above})
        return above, file

    def _update(self, snapshot_id: str, status: str, progress: str | None = None) -> None:
        """What is told of one that is taken is known some time later."""
        super()._update(snapshot_id, status, progress)
        if progress is not None and snapshot_id in self.snapshots:
            self._timeline.after(
                MADE * self._chance.random(),
                lambda: (
                    self.finish_snapshot(snapshot_id)
                    if self.snapshots.get(snapshot_id, {}).get('status') == 'creating'
                    else None
                ),
            )

    def give_up(self, snapshot_id: str, status: str) -> None:
        """It waits no longer for a compute service."""
        snapshot = self.snapshots.get(snapshot_id)
        if snapshot is not None and snapshot['status'] in ('creating', 'deleting'):
            snapshot['status'] = status

    def _delete(self, volume: dict[str, Any]) -> None:
        super()._delete(volume)
        self._timeline.after(
            MADE * self._chance.random(), lambda: self.finish(volume['id']) if volume['id'] in self.volumes else None
        )

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

    def request(
        self, path: str, method: str, *, json: Any = None, headers: Mapping[str, str] | None = None, **kwargs: Any
    ) -> requests.Response:
        """One request and its answer."""
        return self._service.send(
            types.SimpleNamespace(
                method=method, url=f'{cinder.URL}{path}', body=jsonlib.dumps(json), headers=dict(headers or {})
            )
        )


def _files(cloud: Cloud, wrong: Callable[[str], None]) -> None:
    """A guest writes to the file that Cinder hands out, and no snapshot waits for anybody."""
    cinder = cloud.cinder
    for snapshot in cinder.snapshots.values():
        if snapshot['status'] in ('creating', 'deleting'):
            wrong(f'volumes: snapshot {snapshot["id"]} of {snapshot["volume_id"]} is {snapshot["status"]}')
    for host, machine in cloud.machines.items():
        for server, domain in machine.domains.items():
            for volume_id, names in domain.files.items():
                expected = cinder.chain(cinder.volumes[volume_id]['file'][0]) if volume_id in cinder.volumes else []
                if volume_id in cinder.volumes and names != expected:
                    wrong(
                        f'volumes: the guest of {server} on {host} has {volume_id} in {names}, and Cinder says '
                        f'{expected}'
                    )


def settled(cloud: Cloud, wrong: Callable[[str], None]) -> None:
    """Nothing is under way: each attachment is where its server is, and in its guest. What servers have by their rows
    the audit compares."""
    if cloud.cinder is None:
        return
    _files(cloud, wrong)
    of: dict[str, set[str]] = {}
    for one in cloud.cinder.attachments.values():
        of.setdefault(one['instance'], set()).add(one['volume_id'])
        # A volume that came to a server on no host is in use, too.
        if one['status'] not in (('attached',) if one['host'] else ('reserved', 'attached')):
            wrong(f'volumes: {one["volume_id"]} of {one["instance"]} is {one["status"]} at {one["host"]}')
    for host, machine in cloud.machines.items():
        for server, domain in machine.domains.items():
            has = set(domain.volumes)
            # A guest doesn't hear of what is deleted by force.
            has -= cloud.cinder.dropped
            if server in of and has != of[server]:
                wrong(
                    f'volumes: the guest of {server} on {host} has {sorted(has)}, and Cinder says {sorted(of[server])}'
                )


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

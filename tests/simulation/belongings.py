"""Ports and volumes that users attach and detach, and that an administrator deletes at their own service; snapshots
that the volume service asks for.

    belongings = Belongings(cloud)
    belongings.request(Act(3.1, 0, 'attach', 'wired', 'api1'), uuid)        # (method, path, body) for the compute API
    belongings.beside(Act(3.2, 0, 'drop', 'wired', 'api1'), uuid)           # no request to it, or one of Cinder's
"""

from __future__ import annotations

import json
from typing import Any
from urllib import parse

from tests.simulation.cloud import Cloud, Refused
from tests.simulation.parts import Act

# What is attached and detached: ports of a server's user, one that the compute service makes, and a port and a volume
# that all servers want.
PORTS = ('plain', 'function', 'guaranteed', 'wired', 'network', 'common')
VOLUMES = ('volume', 'shared')
# What a server is created with.
FIRST = ('first', 'boot')
# Acts that are no request of a user to the compute API.
BESIDE = ('drop', 'snapshot', 'merge')
# Seconds that the volume service waits for a snapshot.
WAITS = (20.0, 600.0)


class Belongings:
    """One a run."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._begun = 0

    def _port(self, act: Act, uuid: str) -> str:
        """Of a server that has none that was made for it some uuid."""
        neutron = self._cloud.neutron
        if act.argument in ('network', 'first'):
            mine = set(neutron.owned.values()) - {
                neutron.owned.get((f'{act.server}/first', kind))
                for kind in ('guaranteed', 'function', 'wired', 'accelerator')
            }
            found = [
                port['id'] for port in neutron.ports.values() if port['device_id'] == uuid and port['id'] not in mine
            ]
            return (found or [uuid])[0 if act.argument == 'first' else -1]
        if act.argument == 'common':
            return neutron.own('everybody')
        return neutron.own(str(act.server), act.argument or 'function')

    def _volume(self, act: Act) -> str:
        whose = {'boot': f'{act.server}/boot', 'shared': 'everybody'}.get(act.argument, str(act.server))
        return self._cloud.cinder.own(whose)

    def _is_volume(self, act: Act) -> bool:
        return act.argument in (*VOLUMES, 'boot') or (not act.argument and self._cloud.cinder is not None)

    def request(self, act: Act, uuid: str) -> tuple[str, str, Any]:
        """An attach or a detach."""
        if self._is_volume(act):
            volume, path = self._volume(act), f'/servers/{uuid}/os-volume_attachments'
            return (
                ('DELETE', f'{path}/{volume}', None)
                if act.kind == 'detach'
                else ('POST', path, {'volumeAttachment': {'volumeId': volume}})
            )
        path = f'/servers/{uuid}/os-interface'
        if act.kind == 'detach':
            return 'DELETE', f'{path}/{self._port(act, uuid)}', None
        wish = (
            {'net_id': self._cloud.neutron.network} if act.argument == 'network' else {'port_id': self._port(act, uuid)}
        )
        return 'POST', path, {'interfaceAttachment': wish}

    def beside(self, act: Act, uuid: str) -> None:
        """Something is deleted, or a snapshot is begun or deleted."""
        cloud = self._cloud
        if act.kind == 'drop':
            done = (
                cloud.cinder.drop(self._volume(act))
                if self._is_volume(act)
                else (cloud.neutron.drop(self._port(act, uuid)))
            )
            cloud.timeline.tell(f'drop {act.argument} of s{act.server}: {done}')
            return
        volume_id, cinder = self._volume(act), cloud.cinder
        snapshots = cinder.snapshots_of(volume_id)
        # It works on one of a volume at a time.
        if cinder.volumes[volume_id]['attach_status'] != 'attached' or any(
            cinder.snapshots[one]['status'] in ('creating', 'deleting') for one in snapshots
        ):
            return
        if act.kind == 'snapshot':
            made = cinder.begin_snapshot(volume_id)
            self._ask(
                act,
                made,
                'error',
                'POST',
                '',
                {
                    'snapshot': {
                        'volume_id': volume_id,
                        'create_info': {'snapshot_id': made, 'type': 'qcow2', 'new_file': made},
                    }
                },
            )
        elif whole := [one for one in snapshots if cinder.snapshots[one]['status'] != 'error']:
            chosen = whole[self._begun % len(whole)]
            cinder.begin_delete(chosen)
            file, into = cinder.merge_of(chosen)
            info = {'volume_id': volume_id, 'type': 'qcow2', 'file_to_merge': file, 'merge_target_file': into}
            self._ask(
                act, chosen, 'error_deleting', 'DELETE', f'/{chosen}?delete_info={parse.quote(json.dumps(info))}', None
            )

    def _ask(self, act: Act, snapshot: str, failed: str, method: str, path: str, body: Any) -> None:
        """As the volume service does it, which gives up some time later."""
        cloud = self._cloud
        self._begun += 1
        patience = WAITS[self._begun % 3 == 0] if method == 'POST' else WAITS[-1]
        try:
            response = cloud.request(method, f'/os-assisted-volume-snapshots{path}', body, act.api)
            status, text = response.status_int, response.text[:120]
        except Refused as error:
            status, text = 0, str(error)
        cloud.timeline.tell(f'{act.kind} {act.argument} of s{act.server}: {status} {text}')
        if status in (200, 204):
            cloud.timeline.after(patience, lambda: cloud.cinder.give_up(snapshot, failed))
        else:
            cloud.cinder.give_up(snapshot, failed)

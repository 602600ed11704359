"""``VolumeAudit``, the part of the audit that compares servers' rows of block_device_mapping with Cinder's attachments.

``compare.Audit`` calls the methods in this order:

    volumes = VolumeAudit(client)
    volumes.read()                     # None, or the reason why Cinder does not answer
    volumes.compare(servers, rows, busy)       # for each cell
    volumes.disagreements()
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kilonova.clients.volume import Attachment, VolumeClient
from kilonova.db.rows import Row
from kilonova.errors import KilonovaError
from kilonova.objects.volume import AttachedVolume


class VolumeAudit:
    """Compares the volume rows of servers with the attachments in Cinder.

    ``client`` is None if the cloud has no volume service (Cinder).
    """

    NAME = 'volumes'

    def __init__(self, client: VolumeClient | None) -> None:
        self._client = client
        # The attachments in Cinder, as {server uuid: {attachment id: attachment}}; None if they could not be read.
        self._held: dict[str, dict[str, Attachment]] | None = None
        self._known: set[str] = set()
        self._wrong: list[str] = []

    def read(self) -> str | None:
        """Read all attachments of servers from Cinder.

        Returns the text of the error if Cinder does not answer, else None.
        """
        if self._client is None:
            return None
        held: dict[str, dict[str, Attachment]] = defaultdict(dict)
        try:
            for one in self._client.attachments_of_servers():
                held[one.server_id or ''][one.id] = one
        except KilonovaError as error:
            return str(error)
        self._held = held
        return None

    def compare(self, servers: Mapping[str, Row], rows: Mapping[str, Sequence[Row]], busy: set[str]) -> None:
        """Compare the volume rows of the servers of a cell with the attachments in Cinder.

        ``servers`` is {server uuid: row of the server}, and ``rows`` is {server uuid: rows of its volumes}. Servers in
        ``busy``, on which an operation works, are left out.
        """
        self._known.update(servers, busy)
        for uuid, server in servers.items():
            if uuid in busy or self._held is None:
                continue
            held = dict(self._held.get(uuid, {}))
            for volume in map(AttachedVolume.read, rows.get(uuid, ())):
                attachment = held.pop(volume.attachment_id or '', None)
                if attachment is None:
                    self._wrong.append(
                        f'volumes: server {uuid} has volume {volume.volume_id} with attachment '
                        f'{volume.attachment_id}, which does not exist in Cinder'
                    )
                elif volume.host != server['host']:
                    self._wrong.append(
                        f'volumes: volume {volume.volume_id} of server {uuid} is attached to '
                        f'{volume.host or "no host"}, and the server is on {server["host"] or "none"}'
                    )
            self._wrong += [
                f'volumes: attachment {one.id} of volume {one.volume_id} belongs to server {uuid}, which '
                f'has no row for it'
                for one in held.values()
            ]

    def disagreements(self) -> list[str]:
        """Return one line of text for each difference between the servers and Cinder.

        Call this after ``compare`` for all cells.
        """
        return self._wrong + [
            f'volumes: attachment {one.id} of volume {one.volume_id} belongs to {uuid}, which is not a server'
            for uuid, held in (self._held or {}).items()
            if uuid not in self._known
            for one in held.values()
        ]

"""AttachedVolume: a volume of a server, as its host uses it and as the table block_device_mapping stores it.

    volume = AttachedVolume.read(row)                 # columns of block_device_mapping
    volume.kind, volume.connection['name']            # 'rbd', 'volumes/volume-…'
    volume.connection_info(server, 'gpu1', attachment.connection, connector)      # new text of the column

The column connection_info has a JSON text in Nova's form: {"driver_volume_type", "data", "serial", "status", …}. The
member "data" is the connection of Cinder's attachment. Kilonova adds two members. "attached_to" is the name of the host
that uses this connection. "hosts" is a dict from the names of the last hosts to their connectors and connections.
During a live migration, the volume has a second attachment for the destination host. The attachment's id is stored in
the entry of this host in "hosts".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

KIND = 'driver_volume_type'
# The kind of volumes that are files on a network share, and the formats of these files.
NFS, RAW, QCOW2 = 'nfs', 'raw', 'qcow2'
# The key under which Kilonova stores Cinder's encryption parameters (without the secret key) in a volume's connection.
ENCRYPTION = 'encryption'
# Key in an entry of "hosts" (in connection_info): the id of Cinder's attachment to the destination of a live migration.
ANOTHER = 'attachment_id'
# Maximum number of hosts for which the connection to a volume is stored. Older connections are dropped.
KNOWN = 3


@dataclass(frozen=True)
class AttachedVolume:
    """A volume of a server.

    Attributes:
        uuid: the uuid of the volume's row in block_device_mapping.
        size: the size in GiB.
        device: the device name, such as '/dev/vdb'; None if it is not known yet.
        host: the host to which the volume is attached; None if it is attached to none.
        connection: Cinder's connection for that host, including secrets.
        boot_index: 0 if the server boots from the volume.
        bus, device_type: the values that the user requested; None means that the values of the image are used.
        known_at: {host: {'connector': …, 'connection': …}} for the last hosts that used the volume. The entry of a live
            migration's destination also has the key 'attachment_id'.
    """

    uuid: str
    volume_id: str
    size: int
    attachment_id: str | None = None
    device: str | None = None
    host: str | None = None
    connection: Mapping[str, Any] = field(default_factory=dict, repr=False)
    boot_index: int | None = None
    delete_on_termination: bool = False
    multiattach: bool = False
    bus: str | None = None
    device_type: str | None = None
    tag: str | None = None
    volume_type: str | None = None
    source_type: str = 'volume'
    known_at: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def kind(self) -> str | None:
        """The kind of access to the volume: 'rbd', 'nfs', 'iscsi' …; None if the volume is not attached to a host."""
        found: str | None = self.connection.get(KIND)
        return found

    @property
    def encryption(self) -> Mapping[str, Any] | None:
        """The encryption parameters (encryption_key_id, provider, control_location …), or None without encryption."""
        return (self.connection.get(ENCRYPTION) or {}) if self.connection.get('encrypted') else None

    @property
    def is_root(self) -> bool:
        """True if the server boots from the volume."""
        return self.boot_index == 0

    def at(self, host: str) -> AttachedVolume | None:
        """Return a copy of the volume that has the connection to ``host``.

        The volume is attached to ``host`` now, or was attached to it earlier: the column connection_info stores the
        connections to the last hosts. Return None if no connection to this host is stored.
        """
        if host == self.host:
            return self
        known = self.known_at.get(host)
        return None if known is None else replace(self, host=host, connection=known['connection'])

    def coming(self, host: str) -> AttachedVolume | None:
        """Return the volume with the attachment to ``host`` that a live migration made for its destination.

        Return None if the volume has no such second attachment to this host.
        """
        known = self.known_at.get(host, {})
        if host == self.host or ANOTHER not in known:
            return None
        return replace(self, host=host, connection=known['connection'], attachment_id=known[ANOTHER])

    @property
    def attachments(self) -> set[str]:
        """The ids of all attachments of the volume. During a live migration there are two."""
        others = {known[ANOTHER] for known in self.known_at.values() if ANOTHER in known}
        return others if self.attachment_id is None else {self.attachment_id, *others}

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> AttachedVolume:
        """Return the volume for a row of block_device_mapping.

        Columns may be missing in the row of a volume that is not attached yet.
        """
        stored = json.loads(row.get('connection_info') or '{}')
        connection = {**stored.get('data', {}), KIND: stored[KIND]} if KIND in stored else {}
        return cls(
            uuid=row['uuid'],
            volume_id=row['volume_id'],
            size=row.get('volume_size') or 0,
            attachment_id=row.get('attachment_id'),
            device=row.get('device_name'),
            host=stored.get('attached_to'),
            connection=connection,
            boot_index=row.get('boot_index'),
            delete_on_termination=bool(row.get('delete_on_termination')),
            multiattach=bool(stored.get('multiattach')),
            bus=row.get('disk_bus'),
            device_type=row.get('device_type'),
            tag=row.get('tag'),
            volume_type=row.get('volume_type'),
            source_type=row.get('source_type') or 'volume',
            known_at=stored.get('hosts') or {},
        )

    def successor(self, columns: Mapping[str, Any]) -> AttachedVolume:
        """Return the volume that replaces this one in a swap.

        ``columns`` are the columns that differ: volume id, size, attachment and connection.
        """
        read = AttachedVolume.read({'uuid': self.uuid, **columns})
        return replace(
            self,
            volume_id=read.volume_id,
            size=read.size,
            attachment_id=read.attachment_id,
            host=read.host,
            connection=read.connection,
            known_at=read.known_at,
        )

    def in_file(self, name: str, format_: str) -> AttachedVolume:
        """Return a copy of the volume with the name and the format ('raw' or 'qcow2') of another file.

        The file is on the same network share, for example the overlay file of a new snapshot.
        """
        return replace(self, connection={**self.connection, 'name': name, 'format': format_})

    @property
    def file(self) -> tuple[str, str]:
        """The name and the format of the file on the network share that contains the volume's data."""
        return str(self.connection.get('name')), str(self.connection.get('format') or RAW)

    def connection_info(
        self,
        server: str,
        host: str | None = None,
        connection: Mapping[str, Any] | None = None,
        connector: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text of the column connection_info for the volume when it is attached to ``server`` on ``host``.

        ``connection`` is the flat dict that Cinder returns, and ``connector`` describes the host. If ``host`` or
        ``connection`` is None, the volume is only reserved for the server.
        """
        kept: dict[str, Any] = {
            'status': 'reserved',
            'instance': server,
            'attached_at': '',
            'detached_at': '',
            'volume_id': self.volume_id,
            'serial': self.volume_id,
        }
        if self.multiattach:
            kept['multiattach'] = True
        hosts = dict(self.known_at)
        if host is not None and connection is not None:
            kept[KIND] = connection[KIND]
            kept['data'] = {key: value for key, value in connection.items() if key not in (KIND, 'attachment_id')}
            kept['attached_to'] = host
            hosts.pop(host, None)
            hosts[host] = {'connector': dict(connector or {}), 'connection': {**kept['data'], KIND: kept[KIND]}}
        kept['hosts'] = dict(list(hosts.items())[-KNOWN:])
        return json.dumps(kept)

    def besides_at(
        self,
        server: str,
        host: str,
        attachment_id: str | None = None,
        connection: Mapping[str, Any] | None = None,
        connector: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text of the column connection_info after adding or removing a second attachment, to ``host``.

        The destination ``host`` of a live migration has the second attachment until the migration ends. ``server`` is
        the server's uuid. To add the attachment, give its ``attachment_id``, the ``connection`` that Cinder returned,
        and the ``connector``, which describes the host. If ``attachment_id`` is None, the attachment is removed.
        """
        known = {key: value for key, value in self.known_at.get(host, {}).items() if key != ANOTHER}
        if attachment_id is not None and connection is not None:
            known = {
                'connector': dict(connector or {}),
                ANOTHER: attachment_id,
                'connection': {key: value for key, value in connection.items() if key != 'attachment_id'},
            }
        hosts = {name: one for name, one in self.known_at.items() if name != host} | ({host: known} if known else {})
        own = self.known_at.get(self.host or '', {}).get('connector')
        return replace(self, known_at=hosts).connection_info(server, self.host, self.connection or None, own)

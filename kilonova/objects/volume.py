"""``AttachedVolume``: a volume of a server, as the guest's host needs it, and as block_device_mapping keeps it.

    volume = AttachedVolume.read(row)                 # columns of block_device_mapping
    volume.kind, volume.connection['name']            # 'rbd', 'volumes/volume-…'
    volume.connection_info(server, 'gpu1', attachment.connection, connector)      # the column from then on

The form of connection_info is the field's: {"driver_volume_type", "data": {what Cinder's attachment says}, "serial",
"status", …}; ``attached_to`` is ours, the host whose connection it is, and so is ``hosts``: what hosts said of
themselves, and got, when it was attached to them. While its guest is on the way to another host, that one's entry has
the id of an attachment of its own.
"""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

KIND = 'driver_volume_type'
# Volumes that are files of a share, and the formats of these.
NFS, RAW, QCOW2 = 'nfs', 'raw', 'qcow2'
# Key of a connection, ours: how the volume is encrypted, as Cinder has it. The key itself is in no row and no message.
ENCRYPTION = 'encryption'
# Arguments of releases: the server whose attachments go, which volumes are deleted then, and whether all that were made
# for it are.
VOLUMES_OF, VOLUMES_DELETED, VOLUMES_MADE = 'volumes_of', 'volumes_deleted', 'volumes_made'
# The same of a volume that was on its way to another: both ids, and whether the guest has the second.
VOLUME_SWAPPED = 'volume_swapped'
# A snapshot of which the volume service must hear yet: its id, status and progress.
SNAPSHOT_TOLD = 'snapshot_told'
# What an entry of ``known_at`` has of an attachment that isn't the volume's own.
ANOTHER = 'attachment_id'
# The same of an image that was to be made of snapshots: its id.
SNAPSHOTS_OF = 'snapshots_of'
# Hosts that are known of one volume: where it is, where it came from, and one before.
KNOWN = 3


@dataclass(frozen=True)
class AttachedVolume:
    """``uuid``: of its row; ``size``: GiB; ``device``: '/dev/vdb', None: not known yet; ``host``: where it is attached,
    None: nowhere; ``connection``: what Cinder said of it for that host, with secrets; ``boot_index`` 0: it is booted
    from; ``bus``, ``device_type``: as its user asked, None: the image's; ``known_at``: {host: its
    connector, the connection there, and 'attachment_id' where it isn't this one}."""

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
        """How a host gets to it: 'rbd', 'nfs', 'iscsi' …; None: it is attached to none."""
        found: str | None = self.connection.get(KIND)
        return found

    @property
    def encryption(self) -> Mapping[str, Any] | None:
        """How it is encrypted: encryption_key_id, provider, control_location …; None: it isn't."""
        return (self.connection.get(ENCRYPTION) or {}) if self.connection.get('encrypted') else None

    @property
    def is_root(self) -> bool:
        return self.boot_index == 0

    def at(self, host: str) -> AttachedVolume | None:
        """As it was attached to this host when it last was; None: nobody knows of that."""
        if host == self.host:
            return self
        known = self.known_at.get(host)
        return None if known is None else replace(self, host=host, connection=known['connection'])

    def coming(self, host: str) -> AttachedVolume | None:
        """As it is attached to this host besides, for a guest that is on its way there; None: it isn't."""
        known = self.known_at.get(host, {})
        if host == self.host or ANOTHER not in known:
            return None
        return replace(self, host=host, connection=known['connection'], attachment_id=known[ANOTHER])

    @property
    def attachments(self) -> set[str]:
        """Ids of its attachments: its own, and those to hosts where it is besides."""
        others = {known[ANOTHER] for known in self.known_at.values() if ANOTHER in known}
        return others if self.attachment_id is None else {self.attachment_id, *others}

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> AttachedVolume:
        """Of columns of block_device_mapping; those of a volume that isn't attached yet may be missing."""
        stored = json.loads(row.get('connection_info') or '{}')
        connection = {**stored.get('data', {}), KIND: stored[KIND]} if KIND in stored else {}
        return cls(
            uuid=row['uuid'], volume_id=row['volume_id'], size=row.get('volume_size') or 0,
            attachment_id=row.get('attachment_id'), device=row.get('device_name'), host=stored.get('attached_to'),
            connection=connection, boot_index=row.get('boot_index'),
            delete_on_termination=bool(row.get('delete_on_termination')), multiattach=bool(stored.get('multiattach')),
            bus=row.get('disk_bus'), device_type=row.get('device_type'), tag=row.get('tag'),
            volume_type=row.get('volume_type'), source_type=row.get('source_type') or 'volume',
            known_at=stored.get('hosts') or {})

    def successor(self, columns: Mapping[str, Any]) -> AttachedVolume:
        """The volume that takes its place, from columns that are other than its own: its id, size, attachment and
        connection."""
        read = AttachedVolume.read({'uuid': self.uuid, **columns})
        return replace(self, volume_id=read.volume_id, size=read.size, attachment_id=read.attachment_id,
                       host=read.host, connection=read.connection, known_at=read.known_at)

    def in_file(self, name: str, format_: str) -> AttachedVolume:
        """The same with its data in another file of its share, as ``connection`` names it."""
        return replace(self, connection={**self.connection, 'name': name, 'format': format_})

    @property
    def file(self) -> tuple[str, str]:
        """The file of its share that has its data: name and format."""
        return str(self.connection.get('name')), str(self.connection.get('format') or RAW)

    def connection_info(self, server: str, host: str | None = None, connection: Mapping[str, Any] | None = None,
                        connector: Mapping[str, Any] | None = None) -> str:
        """The column's text from when it is attached so to ``server`` on ``host``, which is known by ``connector``;
        ``connection``: as Cinder has it, flat. None: it is only reserved."""
        kept: dict[str, Any] = {'status': 'reserved', 'instance': server, 'attached_at': '', 'detached_at': '',
                                'volume_id': self.volume_id, 'serial': self.volume_id}
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

    def besides_at(self, server: str, host: str, attachment_id: str | None = None,
                   connection: Mapping[str, Any] | None = None, connector: Mapping[str, Any] | None = None) -> str:
        """The column's text from when it is attached so to another host besides; without an attachment: no more."""
        known = {key: value for key, value in self.known_at.get(host, {}).items() if key != ANOTHER}
        if attachment_id is not None and connection is not None:
            known = {'connector': dict(connector or {}), ANOTHER: attachment_id,
                     'connection': {key: value for key, value in connection.items() if key != 'attachment_id'}}
        hosts = {name: one for name, one in self.known_at.items() if name != host} | ({host: known} if known else {})
        own = self.known_at.get(self.host or '', {}).get('connector')
        return replace(self, known_at=hosts).connection_info(server, self.host, self.connection or None, own)

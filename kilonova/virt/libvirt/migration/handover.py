"""Live migration between two hosts of libvirt's test driver on one machine.

The test driver cannot migrate. Instead, the source writes the guest's XML into the directory with its disks at the
destination, and the destination starts the guest from that file.
"""

from __future__ import annotations

import json
import os

import libvirt

from kilonova import errors
from kilonova.states import PowerState
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.migration.migration_job import rewritten
from kilonova.virt.libvirt.storage import destination, disk, files
from kilonova.virt.libvirt.storage.server import ServerDisks
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.live_migrations import LiveProgress, LiveTold, PlacedOffer

# The file with the guest's XML at the destination, which exists until the guest is started there.
HANDED_OVER = 'guest.json'


class TestDriverMigration:
    """The simulated live migrations from and to one host."""

    def __init__(self, connection: Connection, disks: ServerDisks) -> None:
        self._libvirt, self._disks = connection, disks
        self._giving: set[str] = set()

    def is_giving(self, uuid: str) -> bool:
        """Return True if this host, as the source, is migrating the guest."""
        return uuid in self._giving

    def give(self, uuid: str, offer: PlacedOffer, receiver: destination.MoveDestination, report: LiveTold) -> None:
        """Copy the disks to the destination, write the guest's XML there, and stop the guest. Called on the source.

        ``receiver`` writes files into the server's directory at the destination, which must be on this machine. Does
        nothing if the guest is off and its XML is already at the destination. Raises GuestFailed if the guest is off
        and the destination does not have its XML, and DisksUnmovable if the destination is on another machine.
        """
        left, guest = os.path.join(offer['instances_path'], uuid, HANDED_OVER), self._libvirt.find(uuid)
        if guest is None or not guest.is_active():
            if os.path.exists(left):
                return
            raise GuestFailed(act='migrate', uuid=uuid, reason='the guest is off')
        if not isinstance(receiver, destination.Local):
            raise errors.DisksUnmovable(
                source=self._libvirt.name,
                dest=offer['host'],
                reason="libvirt's test driver migrates guests on one machine only",
            )
        receiver.check()
        self._giving.add(uuid)
        try:
            self._carry(guest, offer, receiver, report)
        finally:
            self._giving.discard(uuid)

    def _carry(self, guest: Guest, offer: PlacedOffer, receiver: destination.MoveDestination, report: LiveTold) -> None:
        uuid = guest.uuid
        path, there = self._disks.directory(uuid).path, os.path.join(offer['instances_path'], uuid)
        carried = [one for one in self._disks.there(uuid) if one.pool is None] if offer['block'] else []
        total = sum(os.path.getsize(one.path) for one in carried)
        report(_numbers(total, 0))
        for one in carried:
            target = os.path.join(there, os.path.basename(one.path))
            if one.device == 'disk':
                disk.copy_into(one.path, one.format, target)
            else:
                receiver.put([one.path], there, lambda count: None)
        report(_numbers(total, total))
        is_paused = guest.power_state() == PowerState.PAUSED
        # The test driver adds a hot-plugged device only to the persistent definition, so this definition is sent.
        definition = guest.call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE)
        xml = rewritten(definition, path, there, offer)
        files.write_whole(os.path.join(there, HANDED_OVER), json.dumps({'xml': xml, 'paused': is_paused}))
        guest.destroy()

    def has_arrived(self, uuid: str) -> bool:
        """Return True if the source has written the guest's XML into the server's directory on this host."""
        return os.path.exists(self._disks.directory(uuid).file(HANDED_OVER))

    def forget(self, uuid: str) -> None:
        """Delete the file with the guest's XML that an earlier migration to this host may have left."""
        files.remove(self._disks.directory(uuid).file(HANDED_OVER))

    def take(self, uuid: str) -> Guest | None:
        """Start the guest on the destination from its XML file and return it. Return None if there is no file."""
        path = self._disks.directory(uuid).file(HANDED_OVER)
        if not os.path.exists(path):
            return None
        with open(path, encoding='utf-8') as stream:
            given = json.load(stream)
        guest = self._libvirt.define(given['xml'], uuid)
        guest.start()
        if given['paused']:
            guest.hold()
        files.remove(path)
        return guest


def _numbers(total: int, done: int) -> LiveProgress:
    return {
        'memory_total': 0,
        'memory_processed': 0,
        'memory_remaining': 0,
        'disk_total': total,
        'disk_processed': done,
        'disk_remaining': total - done,
    }

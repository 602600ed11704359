"""Volumes of servers: attached to servers that are there, and detached; and those that a create asks for.

    attach = volumes.attach(backend, ctxt, server, volumes.Wanted(volume_id), multiattach=True)
    volumes.attached(backend, ctxt, server, attach)             # its row, once it has a place at the server
    volumes.detach(backend, ctxt, server, volume_id)
    volumes.swap(backend, ctxt, server, volume_id, copy_id)     # the volume service asks for it

    chosen = volumes.find(backend, ctxt, disks.volumes, 2, multiattach=True)        # what there is
    with volumes.made(backend, ctxt, chosen, uuids, multiattach=True) as found:     # what is made,
        …                                                                           # and kept if this ends well

The volume service is asked as the user, who must see the volume: attachments are conductors' work.
"""
from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kilonova import states
from kilonova.api.services import accept, block_devices, images
from kilonova.api.services.accept import Found
from kilonova.api.services.backend import Backend
from kilonova.api.services.block_devices import BLANK, IMAGE, SNAPSHOT, VOLUME, VolumeWish
from kilonova.clients.volume import MADE_FOR, Volume, VolumeClient, VolumeNotFound
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.queries import instances, operations
from kilonova.db.queries import volumes as queries
from kilonova.db.queries.operations import Operation
from kilonova.errors import Conflict, Invalid, NotFound, Unavailable
from kilonova.objects.volume import VOLUMES_DELETED, VOLUMES_MADE, VOLUMES_OF, AttachedVolume

LOG = logging.getLogger(__name__)

ATTACH, DETACH, SWAP = 'attach_volume', 'detach_volume', 'swap_volume'
# What the volume service calls a volume that a server may get; one that several may have is in use, too.
AVAILABLE, IN_USE = 'available', 'in-use'
# Seconds after which a create that made volumes has come to an end: longer than a service may take to answer each of
# them.
LATE = 300.0


class NotAttached(NotFound):
    msg_fmt = 'Instance %(server)s is not attached to volume %(volume)s'


class AlreadyAttached(Invalid):
    msg_fmt = 'Invalid volume: volume %(volume)s already attached'


class AttachedElsewhere(Invalid):
    msg_fmt = 'Invalid volume: volume %(volume)s is already attached to instances: %(servers)s'


class NotAvailable(Invalid):
    msg_fmt = ('Invalid volume: Volume %(volume)s status must be available to reserve, but the current status is '
               '%(status)s.')


class MultiattachUnknown(Invalid):
    msg_fmt = 'Multiattach volumes are only supported starting with compute API version 2.60.'


class RootVolume(Invalid):
    msg_fmt = 'Cannot detach a root device volume'


class NotBootable(Invalid):
    msg_fmt = 'Block Device %(volume)s is not bootable.'


class VolumeOfMany(Invalid):
    msg_fmt = 'Cannot attach one or more volumes to multiple instances'


class NotMigrating(Conflict):
    msg_fmt = 'volume %(volume)s is not migrating; this API should only be called by Cinder'


class NotItsTarget(Invalid):
    msg_fmt = 'Invalid volume: volume %(volume)s is not the one to which volume %(old)s is migrating'


class TooSmall(Invalid):
    msg_fmt = 'Invalid volume: New volume must be the same size or larger.'


class SwapNotServed(Invalid):
    msg_fmt = 'Volume %(volume)s is not swapped: it is %(reason)s.'


class AttachFailed(Conflict):
    msg_fmt = 'Failed to attach volume %(volume)s to server %(server)s: %(reason)s'


class AttachGoesOn(Unavailable):
    msg_fmt = ('Volume %(volume)s is not attached to server %(server)s after %(seconds)g s, and the request goes on: '
               'its instance action %(action)s tells how it ends, request %(request)s.')


@dataclass(frozen=True)
class Wanted:
    """A volume that a server is to get; ``delete_on_termination``: it is deleted with the server."""

    volume_id: str
    tag: str | None = None
    delete_on_termination: bool = False


@dataclass(frozen=True)
class Attach:
    """An attach that was accepted: its operation, and the row that it fills."""

    operation: str
    row: Mapping[str, Any]


# --- those of a server -----------------------------------------------------------------------------------------------
def of_server(server: Found) -> list[dict[str, Any]]:
    """Rows of block_device_mapping, by age; none while no cell has it. The server was found for WORK."""
    found: list[dict[str, Any]] = server.row['extra_volumes'] if server.cell is not None else []
    return found


def one_of(server: Found, volume_id: str) -> dict[str, Any]:
    """One of them. NotAttached."""
    for row in of_server(server):
        if row['volume_id'] == volume_id.lower():
            return row
    raise NotAttached(server=server.uuid, volume=volume_id)


@engine.retried
def set_delete_on_termination(server: Found, volume_id: str, value: bool) -> None:
    """Whether it is deleted with its server. NotAttached."""
    with server.cell.write() as conn:
        if not queries.set_delete_on_termination(conn, server.uuid, volume_id, value):
            raise NotAttached(server=server.uuid, volume=volume_id)


# --- attach ----------------------------------------------------------------------------------------------------------
def attach(backend: Backend, ctxt: RequestContext, server: Found, wanted: Wanted, *, multiattach: bool) -> Attach:
    """Begin it. ``multiattach``: it may be one that several servers may have.

    Errors: those of ``accept.check``, VolumeNotFound, and those above.
    """
    client = backend.volumes
    if client is None:
        raise block_devices.NoVolumeService(wanted=f'volume {wanted.volume_id}')
    accept.check(ctxt, server, f'{ATTACH}.start', hosted=not _is_offloaded(server))
    volume = client.volume(ctxt, wanted.volume_id)
    if any(row['volume_id'] == volume.id for row in of_server(server)):
        raise AlreadyAttached(volume=volume.id)
    _check_kind(volume, multiattach)
    _check_free(volume)
    row = queries.new_row(volume.id, size=volume.size, connection_info=_connection(volume, server.uuid),
                          delete_on_termination=wanted.delete_on_termination, tag=wanted.tag,
                          volume_type=volume.volume_type)
    operation = Operation.new(ctxt, ATTACH, server.uuid, {'volume_id': volume.id, 'row': row['uuid']})

    def write(conn: engine.Connection) -> None:
        _check_count(backend, conn, server)
        if not queries.add(conn, server.uuid, row):
            raise AlreadyAttached(volume=volume.id)
    accept.accept_in_turn(backend, ctxt, server, f'{ATTACH}.start', operation, ATTACH, write=write)
    backend.conductor.run_operation(ctxt, operation=operation.uuid)
    return Attach(operation.uuid, row)


def _is_offloaded(server: Found) -> bool:
    """Whether it is on no host."""
    return bool(server.row['vm_state'] == states.VmState.SHELVED_OFFLOADED.value)


def _connection(volume: Volume, server: str) -> str:
    """The column of one that is attached nowhere yet."""
    found = AttachedVolume('', volume.id, volume.size, multiattach=volume.multiattach)
    return found.connection_info(server)


def _check_kind(volume: Volume, multiattach: bool) -> None:
    """MultiattachUnknown."""
    if volume.multiattach and not multiattach:
        raise MultiattachUnknown


def _check_free(volume: Volume) -> None:
    """AttachedElsewhere, NotAvailable: no server can get it now."""
    if volume.status == AVAILABLE or (volume.multiattach and volume.status == IN_USE):
        return
    if volume.attachments:
        servers = ', '.join(one.server_id for one in volume.attachments)
        raise AttachedElsewhere(volume=volume.id, servers=servers)
    raise NotAvailable(volume=volume.id, status=volume.status)


def _check_count(backend: Backend, conn: engine.Connection, server: Found) -> None:
    """TooManyDisks: one more would be."""
    rows = instances.get_bdms(conn, server.uuid)
    blanks = [row for row in rows if row['destination_type'] == block_devices.LOCAL and row['source_type'] == BLANK]
    swaps = [row for row in blanks if row['guest_format'] == block_devices.SWAP]
    flavor = json.loads(server.row['extra_flavor'])['cur']['nova_object.data']
    volumes = [row for row in rows if row['destination_type'] == VOLUME]
    local = block_devices.local_disks(blanks[len(swaps):], swaps, flavor,
                                      has_root=not any(row['boot_index'] == 0 for row in volumes))
    block_devices.check_count(backend.options.max_disk_devices_to_attach, local + len(volumes) + 1)


def attached(backend: Backend, ctxt: RequestContext, server: Found, attach: Attach) -> dict[str, Any]:
    """The row of a volume, once it has an attachment and the name that its host gave it. AttachFailed, AttachGoesOn."""
    volume_id = attach.row['volume_id']

    def look(conn: engine.Connection) -> dict[str, Any] | None:
        ended = operations.get(conn, attach.operation) is None
        for row in queries.of_servers(conn, [server.uuid]).get(server.uuid, ()):
            if row['uuid'] == attach.row['uuid'] and row['attachment_id'] and row['device_name']:
                return row
        if ended:
            reason = accept.failure(conn, server, ctxt.request_id)
            raise AttachFailed(volume=volume_id, server=server.uuid,
                               reason=reason or 'it was taken from the server at once')
        return None
    row = accept.wait(backend, server, look)
    if row is None:
        raise AttachGoesOn(volume=volume_id, server=server.uuid, seconds=backend.options.answer_seconds,
                           action=ATTACH, request=ctxt.request_id)
    return row


# --- detach ----------------------------------------------------------------------------------------------------------
def detach(backend: Backend, ctxt: RequestContext, server: Found, volume_id: str) -> None:
    """Begin it. NotAttached, RootVolume."""
    row = one_of(server, volume_id)
    if row['boot_index'] == 0:
        raise RootVolume

    def check(conn: engine.Connection) -> None:
        if not any(one['uuid'] == row['uuid'] for one in queries.of_servers(conn, [server.uuid]).get(server.uuid, ())):
            raise NotAttached(server=server.uuid, volume=volume_id)
    accept.run(backend, ctxt, server, DETACH, f'{DETACH}.start', {'volume_id': row['volume_id']},
               hosted=not _is_offloaded(server), write=check)


# --- swap ------------------------------------------------------------------------------------------------------------
def swap(backend: Backend, ctxt: RequestContext, server: Found, volume_id: str, copy_id: str) -> None:
    """Begin to put a volume in the place of the one that is migrating to it. Both are looked at as the service, which
    alone sees that.

    Errors: those of ``accept.check``, NotAttached, NotMigrating, VolumeNotFound, NotItsTarget, SwapNotServed, TooSmall,
    NotAvailable.
    """
    client, row = backend.volumes, one_of(server, volume_id)
    accept.check(ctxt, server, f'{SWAP}.start')
    if client is None:
        raise block_devices.NoVolumeService(wanted=f'volume {copy_id}')
    old = client.volume(None, row['volume_id'])
    if not old.migrating:
        raise NotMigrating(volume=old.id)
    copy = client.volume(None, copy_id)
    if not copy.is_target_of(old.id):
        raise NotItsTarget(volume=copy.id, old=old.id)
    for volume in (old, copy):
        for is_so, reason in ((volume.multiattach, 'one that several servers may have'),
                              (volume.encrypted, 'encrypted')):
            if is_so:
                raise SwapNotServed(volume=volume.id, reason=reason)
    if copy.size < old.size:
        raise TooSmall
    if copy.status != AVAILABLE:
        raise NotAvailable(volume=copy.id, status=copy.status)
    accept.run(backend, ctxt, server, SWAP, f'{SWAP}.start', {
        'volume_id': old.id, 'copy': copy.id, 'row': row['uuid'], 'attachment': row['attachment_id'],
        'columns': {'volume_size': copy.size, 'volume_type': copy.volume_type}},
        write=lambda conn: _check_attached(conn, server, row))


def _check_attached(conn: engine.Connection, server: Found, row: Mapping[str, Any]) -> None:
    """NotAttached: not any more, or anew."""
    if not any(one['uuid'] == row['uuid'] and one['attachment_id'] == row['attachment_id']
               for one in queries.of_servers(conn, [server.uuid]).get(server.uuid, ())):
        raise NotAttached(server=server.uuid, volume=row['volume_id'])


# --- those of new servers --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Chosen:
    """A wish, and the volume that it names; None: one is made for each server. ``wish.size``: GiB that it will have.
    ``image``: where the server boots from it, the image that is on it, as far as the volume service knows."""

    wish: VolumeWish
    volume: Volume | None = None
    image: Mapping[str, Any] | None = None

    @property
    def size(self) -> int:
        """GiB."""
        return self.volume.size if self.volume is not None else self.wish.size or 0


def find(backend: Backend, ctxt: RequestContext, wishes: Iterable[VolumeWish], most: int, *,
         multiattach: bool) -> list[Chosen]:
    """What they name, looked up. ``most``: servers that are asked for. Invalid: it isn't there, or can't be had. One
    request for each volume, snapshot, and image that is booted from; two for such a snapshot."""
    client = backend.volumes
    if client is None:
        return []
    return [_chosen(backend, client, ctxt, wish, most, multiattach) for wish in wishes]


def _chosen(backend: Backend, client: VolumeClient, ctxt: RequestContext, wish: VolumeWish, most: int,
            multiattach: bool) -> Chosen:
    if wish.source == VOLUME:
        try:
            volume = client.volume(ctxt, wish.source_id or '')
        except VolumeNotFound:
            raise block_devices.InvalidBlockDevice(reason=f'failed to get volume {wish.source_id}.') from None
        _check_kind(volume, multiattach)
        _check_free(volume)
        if most > 1 and not volume.multiattach:
            raise VolumeOfMany
        if wish.is_root and not volume.bootable:
            raise NotBootable(volume=volume.id)
        return Chosen(wish, volume, _image_of(volume, wish))
    if wish.source == SNAPSHOT:
        try:
            snapshot = client.snapshot(ctxt, wish.source_id or '')
        except NotFound as error:
            raise Invalid(error.message) from None
        origin = None
        if wish.is_root:
            with contextlib.suppress(VolumeNotFound):
                origin = client.volume(ctxt, snapshot.volume_id)
        return Chosen(replace(wish, size=wish.size or snapshot.size), image=_image_of(origin, wish))
    if wish.source == IMAGE and wish.is_root:
        return Chosen(wish, image={**images.find(backend, ctxt, wish.source_id or ''), 'id': None})
    return Chosen(wish, image=_image_of(None, wish))


def _image_of(volume: Volume | None, wish: VolumeWish) -> dict[str, Any] | None:
    if not wish.is_root:
        return None
    return images.of_volume(volume.image_metadata if volume is not None else {})


@dataclass(frozen=True)
class Made:
    """``rows``: {server: rows of its volumes}. ``notes``: operations by which what was made is given back, unless the
    transaction that accepts the servers deletes their rows."""

    rows: Mapping[str, list[dict[str, Any]]]
    notes: Sequence[str] = ()


@contextlib.contextmanager
def made(backend: Backend, ctxt: RequestContext, chosen: Sequence[Chosen], uuids: Sequence[str], *,
         multiattach: bool) -> Iterator[Made]:
    """Volumes of new servers: those that are made for them may still be so while the block runs. If that fails, or this
    process dies, or the making of one isn't answered, a conductor deletes what there is of them."""
    if all(one.volume is not None for one in chosen):
        yield Made({uuid: [_row(one, one.volume, uuid) for one in chosen if one.volume] for uuid in uuids})
        return
    notes = _note(backend, ctxt, uuids, LATE)
    try:
        rows = {}
        for uuid in uuids:
            volumes = [one.volume or _make(backend.volumes, ctxt, one.wish, uuid) for one in chosen]
            for volume in volumes:
                _check_kind(volume, multiattach)
            rows[uuid] = [_row(one, volume, uuid) for one, volume in zip(chosen, volumes, strict=True)]
        yield Made(rows, notes)
    except BaseException:
        _note(backend, ctxt, uuids, 0.0)
        raise


def _row(one: Chosen, volume: Volume, uuid: str) -> dict[str, Any]:
    return one.wish.row(volume.id, volume_size=volume.size, volume_type=volume.volume_type,
                        connection_info=_connection(volume, uuid))


def _note(backend: Backend, ctxt: RequestContext, uuids: Iterable[str], delay: float) -> list[str]:
    """What was made for these servers is given back, ``delay`` seconds from now. Written before anything is made."""
    rows = [Operation.new(ctxt, 'release', uuid, {VOLUMES_OF: uuid, VOLUMES_DELETED: [], VOLUMES_MADE: True},
                          beside=True) for uuid in uuids]
    operations.plan(backend.api_db, rows, delay)
    return [row.uuid for row in rows]


def _make(client: Any, ctxt: RequestContext, wish: VolumeWish, uuid: str) -> Volume:
    try:
        found: Volume = client.create_volume(
            ctxt, size=wish.size, name=f'{uuid}-blank-vol' if wish.source == BLANK else '',
            image_id=wish.source_id if wish.source == IMAGE else None,
            snapshot_id=wish.source_id if wish.source == SNAPSHOT else None, volume_type=wish.volume_type,
            metadata={MADE_FOR: uuid})
    except NotFound as error:
        raise Invalid(error.message) from None
    return found

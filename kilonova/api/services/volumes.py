"""Volumes of servers: attach, detach and swap, and the volumes that a new server asks for.

    attach = volumes.attach(backend, ctxt, server, volumes.WantedAttachment(volume_id), multiattach=True)
    volumes.attached(backend, ctxt, server, attach)              # wait for the device name, and return the volume's row
    volumes.detach(backend, ctxt, server, volume_id)
    volumes.swap(backend, ctxt, server, volume_id, copy_id)      # replace a volume by its copy, as Cinder requests

A create request for 2 servers (``uuids``) uses the module as follows. ``disks.volumes`` are the requested volumes:

    chosen = volumes.find(backend, ctxt, disks.volumes, 2, multiattach=True)        # look existing volumes up
    with volumes.made(backend, ctxt, chosen, uuids, multiattach=True) as found:     # create the new volumes
        …                                                                           # write the servers' rows

If the ``with`` block fails, a conductor deletes the new volumes.

Requests to the volume service use the token of the user, who must be allowed to see the volume. Only a swap uses the
service's account. Conductors create and delete the attachments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kilonova import states
from kilonova.api.services import block_devices, images, server_operations
from kilonova.api.services.backend import Backend
from kilonova.api.services.block_devices import BLANK, IMAGE, SNAPSHOT, VOLUME, VolumeWish
from kilonova.api.services.server_operations import ServerRef
from kilonova.clients.volume import MADE_FOR, Volume, VolumeClient, VolumeNotFound
from kilonova.context import RequestContext
from kilonova.db import engine, envelopes
from kilonova.db.arguments.attachments import AttachVolumeArguments, SwapVolumeArguments, VolumeArguments
from kilonova.db.arguments.releases import VolumesRelease
from kilonova.db.queries import instances, operations
from kilonova.db.queries import volumes as queries
from kilonova.db.queries.operations import OperationRow
from kilonova.errors import Conflict, Invalid, NotFound, Unavailable
from kilonova.objects.volume import AttachedVolume

ATTACH, DETACH, SWAP = 'attach_volume', 'detach_volume', 'swap_volume'
# The statuses in which a volume can be attached: 'in-use' only for volumes that allow several servers (multiattach).
AVAILABLE, IN_USE = 'available', 'in-use'
# A conductor deletes new volumes if their create request has not been accepted after this number of seconds.
LATE = 300.0


class NotAttached(NotFound):
    """Error 404: the volume is not attached to the server."""

    msg_fmt = 'Instance %(server)s is not attached to volume %(volume)s'


class AlreadyAttached(Invalid):
    """Error 400: the volume is attached to the server already."""

    msg_fmt = 'Invalid volume: volume %(volume)s already attached'


class AttachedElsewhere(Invalid):
    """Error 400: the volume is attached to other servers."""

    msg_fmt = 'Invalid volume: volume %(volume)s is already attached to instances: %(servers)s'


class NotAvailable(Invalid):
    """Error 400: the volume's status is not 'available'."""

    msg_fmt = (
        'Invalid volume: Volume %(volume)s status must be available to reserve, but the current status is %(status)s.'
    )


class MultiattachUnknown(Invalid):
    """Error 400: the volume allows several servers, and the request's microversion is too old for that."""

    msg_fmt = 'Multiattach volumes are only supported starting with compute API version 2.60.'


class RootVolume(Invalid):
    """Error 400: the server boots from the volume, so it can't be detached."""

    msg_fmt = 'Cannot detach a root device volume'


class NotBootable(Invalid):
    """Error 400: a server can't boot from the volume."""

    msg_fmt = 'Block Device %(volume)s is not bootable.'


class VolumeOfMany(Invalid):
    """Error 400: a request for several servers names a volume that only one server can have."""

    msg_fmt = 'Cannot attach one or more volumes to multiple instances'


class NotMigrating(Conflict):
    """Error 409: a swap is requested for a volume that the volume service is not migrating."""

    msg_fmt = 'volume %(volume)s is not migrating; this API should only be called by Cinder'


class NotItsTarget(Invalid):
    """Error 400: the new volume of a swap is not the target of the old volume's migration."""

    msg_fmt = 'Invalid volume: volume %(old)s is not migrating to volume %(volume)s'


class TooSmall(Invalid):
    """Error 400: the new volume of a swap is smaller than the old one."""

    msg_fmt = 'Invalid volume: New volume must be the same size or larger.'


class SwapNotServed(Invalid):
    """Error 400: the volume is encrypted or allows several servers, so it can't be swapped."""

    msg_fmt = 'Volume %(volume)s cannot be swapped: it is %(reason)s.'


class VolumeAttachFailed(Conflict):
    """Error 409: the volume could not be attached."""

    msg_fmt = 'Failed to attach volume %(volume)s to server %(server)s: %(reason)s'


class VolumeAttachContinues(Unavailable):
    """Error 503: the volume is not attached within the response timeout, and the operation continues."""

    msg_fmt = (
        'Volume %(volume)s was not attached to server %(server)s within %(seconds)g s. The request continues; '
        'its result will be in the instance action %(action)s of request %(request)s.'
    )


@dataclass(frozen=True)
class WantedAttachment:
    """A request to attach a volume to a server.

    ``delete_on_termination`` says whether the volume is deleted with the server.
    """

    volume_id: str
    tag: str | None = None
    delete_on_termination: bool = False


@dataclass(frozen=True)
class AcceptedAttach:
    """An accepted request to attach a volume.

    ``operation`` is the uuid of the operation that attaches the volume. ``row`` is the volume's block_device_mapping
    row when the request was accepted, which has no attachment id and no device name yet.
    """

    operation: str
    row: Mapping[str, Any]


# --- volumes of a server ---------------------------------------------------------------------------------------------
def of_server(server: ServerRef) -> list[dict[str, Any]]:
    """Return the server's volumes as rows of block_device_mapping, oldest first.

    Return an empty list while the server is in no cell. ``server`` must have all columns (``find_server`` with the
    purpose WORK).
    """
    found: list[dict[str, Any]] = server.row['extra_volumes'] if server.cell is not None else []
    return found


def one_of(server: ServerRef, volume_id: str) -> dict[str, Any]:
    """Return the block_device_mapping row of one of the server's volumes.

    Raises NotAttached if the server does not have the volume.
    """
    for row in of_server(server):
        if row['volume_id'] == volume_id.lower():
            return row
    raise NotAttached(server=server.uuid, volume=volume_id)


@engine.retried
def set_delete_on_termination(server: ServerRef, volume_id: str, value: bool) -> None:
    """Set whether the volume is deleted with its server.

    Raises NotAttached if the server does not have the volume.
    """
    with server.cell.write() as conn:
        if not queries.set_delete_on_termination(conn, server.uuid, volume_id, value):
            raise NotAttached(server=server.uuid, volume=volume_id)


# --- attach a volume -------------------------------------------------------------------------------------------------
def attach(
    backend: Backend, ctxt: RequestContext, server: ServerRef, wanted: WantedAttachment, *, multiattach: bool
) -> AcceptedAttach:
    """Accept an attach of a volume to a server, and wake a conductor.

    ``multiattach`` says whether a volume that allows several servers is accepted.

    Raises:
        NoVolumeService: This cloud has no volume service.
        VolumeNotFound: The volume does not exist, or the user can't see it.
        AlreadyAttached: The server has the volume.
        MultiattachUnknown: The volume allows several servers, and ``multiattach`` is false.
        AttachedElsewhere: Other servers have the volume.
        NotAvailable: The volume's status does not allow an attach.
        TooManyDisks: The server would have more disks than [compute]max_disk_devices_to_attach allows.

    Also raises the errors of ``server_operations.check`` and ``server_operations.accept_in_turn``.
    """
    client = backend.volumes
    if client is None:
        raise block_devices.NoVolumeService(wanted=f'volume {wanted.volume_id}')
    server_operations.check(ctxt, server, f'{ATTACH}.start', hosted=not _is_offloaded(server))
    volume = client.volume(ctxt, wanted.volume_id)
    if any(row['volume_id'] == volume.id for row in of_server(server)):
        raise AlreadyAttached(volume=volume.id)
    _check_kind(volume, multiattach)
    _check_free(volume)
    row = queries.new_row(
        volume.id,
        size=volume.size,
        connection_info=_connection(volume, server.uuid),
        delete_on_termination=wanted.delete_on_termination,
        tag=wanted.tag,
        volume_type=volume.volume_type,
    )
    operation = OperationRow.new(ctxt, ATTACH, server.uuid, AttachVolumeArguments(volume_id=volume.id, row=row['uuid']))

    def write(conn: engine.Connection) -> None:
        _check_count(backend, conn, server)
        if not queries.add(conn, server.uuid, row):
            raise AlreadyAttached(volume=volume.id)

    server_operations.accept_in_turn(backend, ctxt, server, f'{ATTACH}.start', operation, ATTACH, write=write)
    backend.conductor.run_operation(ctxt, operation=operation.uuid)
    return AcceptedAttach(operation.uuid, row)


def _is_offloaded(server: ServerRef) -> bool:
    """Return whether the server is shelved and on no host."""
    return bool(server.row['vm_state'] == states.VmState.SHELVED_OFFLOADED.value)


def _connection(volume: Volume, server: str) -> str:
    """Return the text of the column connection_info for a new block_device_mapping row.

    The text describes the volume. It has no connection data, because the volume has no attachment yet.
    """
    found = AttachedVolume('', volume.id, volume.size, multiattach=volume.multiattach)
    return found.connection_info(server)


def _check_kind(volume: Volume, multiattach: bool) -> None:
    """Raise MultiattachUnknown if ``volume`` is a multiattach volume and the request does not support such volumes.

    ``multiattach`` is true if the request supports them (from microversion 2.60 on).
    """
    if volume.multiattach and not multiattach:
        raise MultiattachUnknown


def _check_free(volume: Volume) -> None:
    """Check that a server can attach the volume now.

    Raises AttachedElsewhere if other servers have the volume, and NotAvailable if its status does not allow an attach.
    """
    if volume.status == AVAILABLE or (volume.multiattach and volume.status == IN_USE):
        return
    if volume.attachments:
        servers = ', '.join(one.server_id for one in volume.attachments)
        raise AttachedElsewhere(volume=volume.id, servers=servers)
    raise NotAvailable(volume=volume.id, status=volume.status)


def _check_count(backend: Backend, conn: engine.Connection, server: ServerRef) -> None:
    """Raise TooManyDisks if the server can't have one more disk."""
    rows = instances.get_bdms(conn, server.uuid)
    blanks = [row for row in rows if row['destination_type'] == block_devices.LOCAL and row['source_type'] == BLANK]
    swaps = [row for row in blanks if row['guest_format'] == block_devices.SWAP]
    flavor = envelopes.current_flavor(server.row['extra_flavor'])
    volumes = [row for row in rows if row['destination_type'] == VOLUME]
    local = block_devices.local_disks(
        blanks[len(swaps) :], swaps, flavor, has_root=not any(row['boot_index'] == 0 for row in volumes)
    )
    block_devices.check_count(backend.options.max_disk_devices_to_attach, local + len(volumes) + 1)


def attached(backend: Backend, ctxt: RequestContext, server: ServerRef, attach: AcceptedAttach) -> dict[str, Any]:
    """Wait until an accepted attach is complete, and return the volume's block_device_mapping row.

    The attach is complete when the row has an attachment id and a device name.

    Raises:
        VolumeAttachFailed: The attach failed, or another request detached the volume during the wait.
        VolumeAttachContinues: The attach is not complete within the RPC response timeout.
    """
    volume_id = attach.row['volume_id']

    def look(conn: engine.Connection) -> dict[str, Any] | None:
        ended = operations.get(conn, attach.operation) is None
        for row in queries.of_servers(conn, [server.uuid]).get(server.uuid, ()):
            if row['uuid'] == attach.row['uuid'] and row['attachment_id'] and row['device_name']:
                return row
        if ended:
            reason = server_operations.failure(conn, server, ctxt.request_id)
            raise VolumeAttachFailed(
                volume=volume_id, server=server.uuid, reason=reason or 'it was detached again at once'
            )
        return None

    row = server_operations.wait(backend, server, look)
    if row is None:
        raise VolumeAttachContinues(
            volume=volume_id,
            server=server.uuid,
            seconds=backend.options.answer_seconds,
            action=ATTACH,
            request=ctxt.request_id,
        )
    return row


# --- detach a volume -------------------------------------------------------------------------------------------------
def detach(backend: Backend, ctxt: RequestContext, server: ServerRef, volume_id: str) -> None:
    """Accept a detach of a volume from a server, and wake a conductor.

    Raises NotAttached if the server does not have the volume, RootVolume if the server boots from the volume, and the
    errors of ``server_operations.run``.
    """
    row = one_of(server, volume_id)
    if row['boot_index'] == 0:
        raise RootVolume

    def check(conn: engine.Connection) -> None:
        if not any(one['uuid'] == row['uuid'] for one in queries.of_servers(conn, [server.uuid]).get(server.uuid, ())):
            raise NotAttached(server=server.uuid, volume=volume_id)

    server_operations.run(
        backend,
        ctxt,
        server,
        DETACH,
        f'{DETACH}.start',
        VolumeArguments(volume_id=row['volume_id']),
        hosted=not _is_offloaded(server),
        write=check,
    )


# --- swap a volume ---------------------------------------------------------------------------------------------------
def swap(backend: Backend, ctxt: RequestContext, server: ServerRef, volume_id: str, copy_id: str) -> None:
    """Accept a swap, which replaces the server's volume by the volume ``copy_id``.

    The volume service is migrating the old volume to ``copy_id``. Both volumes are read with the service's account,
    because only this account can see a migration.

    Raises:
        NoVolumeService: This cloud has no volume service.
        NotAttached: The server does not have the volume.
        VolumeNotFound: One of the volumes does not exist.
        NotMigrating: The volume service is not migrating the old volume.
        NotItsTarget: The new volume is not the target of this migration.
        SwapNotServed: One of the volumes is encrypted or allows several servers.
        TooSmall: The new volume is smaller than the old one.
        NotAvailable: The new volume's status is not 'available'.

    Also raises the errors of ``server_operations.run``.
    """
    client, row = backend.volumes, one_of(server, volume_id)
    server_operations.check(ctxt, server, f'{SWAP}.start')
    if client is None:
        raise block_devices.NoVolumeService(wanted=f'volume {copy_id}')
    old = client.volume(None, row['volume_id'])
    if not old.migrating:
        raise NotMigrating(volume=old.id)
    copy = client.volume(None, copy_id)
    if not copy.is_target_of(old.id):
        raise NotItsTarget(volume=copy.id, old=old.id)
    for volume in (old, copy):
        for is_so, reason in ((volume.multiattach, 'a multiattach volume'), (volume.encrypted, 'encrypted')):
            if is_so:
                raise SwapNotServed(volume=volume.id, reason=reason)
    if copy.size < old.size:
        raise TooSmall
    if copy.status != AVAILABLE:
        raise NotAvailable(volume=copy.id, status=copy.status)
    server_operations.run(
        backend,
        ctxt,
        server,
        SWAP,
        f'{SWAP}.start',
        SwapVolumeArguments(
            volume_id=old.id,
            copy=copy.id,
            row=row['uuid'],
            attachment=row['attachment_id'],
            columns={'volume_size': copy.size, 'volume_type': copy.volume_type},
        ),
        write=lambda conn: _check_attached(conn, server, row),
    )


def _check_attached(conn: engine.Connection, server: ServerRef, row: Mapping[str, Any]) -> None:
    """Raise NotAttached if the volume's attachment is no longer the one in the block_device_mapping row ``row``.

    A volume that was detached and attached again has a different attachment, for which the request was not checked.
    """
    if not any(
        one['uuid'] == row['uuid'] and one['attachment_id'] == row['attachment_id']
        for one in queries.of_servers(conn, [server.uuid]).get(server.uuid, ())
    ):
        raise NotAttached(server=server.uuid, volume=row['volume_id'])


# --- volumes of new servers ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ChosenVolume:
    """A volume that a create request asks for, after its source was looked up.

    ``wish`` is the requested volume (VolumeWish: source type, source id, size and type). ``volume`` is the existing
    volume that the request names, or None if a new volume is created for each server. If the server boots from the
    volume, ``image`` is the image of the volume: the source image of a new volume, or the volume_image_metadata of an
    existing one.
    """

    wish: VolumeWish
    volume: Volume | None = None
    image: Mapping[str, Any] | None = None

    @property
    def size(self) -> int:
        """The size of the volume in GiB."""
        return self.volume.size if self.volume is not None else self.wish.size or 0


def find(
    backend: Backend, ctxt: RequestContext, wishes: Iterable[VolumeWish], most: int, *, multiattach: bool
) -> list[ChosenVolume]:
    """Look up the existing volumes, snapshots and images that the requested volumes ``wishes`` name.

    ``most`` is the maximum number of new servers. If it is greater than 1, an existing volume must be a multiattach
    volume. If ``multiattach`` is false (before microversion 2.60), multiattach volumes are refused. Return an empty
    list if this cloud has no volume service.

    Raises Invalid if a volume, snapshot or image does not exist or can't be used. Sends one request for each of them,
    and two for the snapshot of a root volume.
    """
    client = backend.volumes
    if client is None:
        return []
    return [_chosen(backend, client, ctxt, wish, most, multiattach) for wish in wishes]


def _chosen(
    backend: Backend, client: VolumeClient, ctxt: RequestContext, wish: VolumeWish, most: int, multiattach: bool
) -> ChosenVolume:
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
        return ChosenVolume(wish, volume, _image_of(volume, wish))
    if wish.source == SNAPSHOT:
        try:
            snapshot = client.snapshot(ctxt, wish.source_id or '')
        except NotFound as error:
            raise Invalid(error.message) from None
        origin = None
        if wish.is_root:
            with contextlib.suppress(VolumeNotFound):
                origin = client.volume(ctxt, snapshot.volume_id)
        return ChosenVolume(replace(wish, size=wish.size or snapshot.size), image=_image_of(origin, wish))
    if wish.source == IMAGE and wish.is_root:
        return ChosenVolume(wish, image={**images.find(backend, ctxt, wish.source_id or ''), 'id': None})
    return ChosenVolume(wish, image=_image_of(None, wish))


def _image_of(volume: Volume | None, wish: VolumeWish) -> dict[str, Any] | None:
    if not wish.is_root:
        return None
    return images.of_volume(volume.image_metadata if volume is not None else {})


@dataclass(frozen=True)
class MadeVolumes:
    """The volumes of new servers.

    ``rows`` is a dict from a server's uuid to the block_device_mapping rows of its volumes. ``notes`` are the uuids of
    cleanup operations. If the servers are accepted, the same transaction deletes the cleanup operations. If not, a
    conductor runs them, and they delete the newly created volumes.
    """

    rows: Mapping[str, list[dict[str, Any]]]
    notes: Sequence[str] = ()


@contextlib.contextmanager
def made(
    backend: Backend, ctxt: RequestContext, chosen: Sequence[ChosenVolume], uuids: Sequence[str], *, multiattach: bool
) -> Iterator[MadeVolumes]:
    """Create the new volumes of new servers, and yield the servers' new and existing volumes as ``MadeVolumes``.

    This is a context manager, whose block writes the rows of the servers. ``chosen`` are the volumes that each of the
    servers ``uuids`` gets. The new volumes may still have the status 'creating' while the block runs. A conductor
    deletes them if the block fails or this process dies. This includes a volume whose creation Cinder did not confirm.
    """
    if all(one.volume is not None for one in chosen):
        yield MadeVolumes({uuid: [_row(one, one.volume, uuid) for one in chosen if one.volume] for uuid in uuids})
        return
    notes = _note(backend, ctxt, uuids, LATE)
    try:
        rows = {}
        for uuid in uuids:
            volumes = [one.volume or _make(backend.volumes, ctxt, one.wish, uuid) for one in chosen]
            for volume in volumes:
                _check_kind(volume, multiattach)
            rows[uuid] = [_row(one, volume, uuid) for one, volume in zip(chosen, volumes, strict=True)]
        yield MadeVolumes(rows, notes)
    except BaseException:
        _note(backend, ctxt, uuids, 0.0)
        raise


def _row(one: ChosenVolume, volume: Volume, uuid: str) -> dict[str, Any]:
    return one.wish.row(
        volume.id, volume_size=volume.size, volume_type=volume.volume_type, connection_info=_connection(volume, uuid)
    )


def _note(backend: Backend, ctxt: RequestContext, uuids: Iterable[str], delay: float) -> list[str]:
    """Insert one cleanup operation for each server, and return the uuids of the operations.

    A cleanup operation deletes the volumes that were created for its server. The caller inserts the operations before
    it creates a volume. If the create request succeeds, its transaction deletes the operation rows. If it fails, or
    this process dies, a conductor runs the operations after ``delay`` seconds.
    """
    rows = [
        OperationRow.new(
            ctxt, 'release', uuid, VolumesRelease(volumes_of=uuid, volumes_deleted=[], volumes_made=True), beside=True
        )
        for uuid in uuids
    ]
    operations.plan(backend.api_db, rows, delay)
    return [row.uuid for row in rows]


def _make(client: Any, ctxt: RequestContext, wish: VolumeWish, uuid: str) -> Volume:
    try:
        found: Volume = client.create_volume(
            ctxt,
            size=wish.size,
            name=f'{uuid}-blank-vol' if wish.source == BLANK else '',
            image_id=wish.source_id if wish.source == IMAGE else None,
            snapshot_id=wish.source_id if wish.source == SNAPSHOT else None,
            volume_type=wish.volume_type,
            metadata={MADE_FOR: uuid},
        )
    except NotFound as error:
        raise Invalid(error.message) from None
    return found

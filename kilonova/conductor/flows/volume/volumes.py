"""Create attachments of Cinder volumes in flows before a host uses a volume, and delete them when a server is deleted.

    volumes.await_created(work)                     # wait for volumes that are created for a new server
    volumes.attach_wanted(work, host, is_first)     # attach the requested volumes of a new server to this host
    volumes.to_host(work, 'gpu2')                   # attach the volumes of a server that moves to this host
    volumes.off_host(work)                          # detach the volumes from the host, and keep them reserved
    volumes.reserve_root(work)                      # detach only the root volume from the host, and keep it reserved
    volumes.announce(work, 'gpu2')                  # attach the volumes to the destination of a live migration as well
    volumes.drop(work, delete)                      # delete all attachments, and the volumes with the ids in ``delete``

The rows of block_device_mapping name the attachments that a server should have. Each attachment in Cinder has the
server's uuid, so a conductor that takes an operation over finds all attachments and deletes those without a row. If
Cinder does not answer, an undo or a delete of the server does not wait. Instead, an operation row is added (a pending
release), and a conductor deletes the attachments later. A pending release is also added if a request to create an
attachment got no reply, because Cinder may create the attachment later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from oslo_log import log as logging

from kilonova import objects
from kilonova.clients.volume import Attachment, Volume, VolumeBackendFailed, VolumeInvalid, VolumeNotFound
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import releases
from kilonova.conductor.row import ChosenHost, Outputs
from kilonova.conductor.work import HostDown, RetryLater, Step, Work
from kilonova.db import engine
from kilonova.db.arguments.attachments import VolumeArguments
from kilonova.db.arguments.releases import SwapRelease, VolumesRelease
from kilonova.db.queries import instances
from kilonova.db.queries import volumes as rows
from kilonova.errors import (
    BuildAbort,
    Cancelled,
    HostRejected,
    InstanceNotFound,
    KilonovaError,
    Unanswered,
)
from kilonova.objects.image_meta import SYSMETA_PREFIX
from kilonova.objects.volume import ENCRYPTION, AttachedVolume
from kilonova.rpc.compute import Compute
from kilonova.virt import disk_names

LOG = logging.getLogger(__name__)

# Maximum number of tries to attach a multiattach volume.
# Cinder may refuse to attach a multiattach volume while it attaches the volume to another server.
TURNS = 6
# Seconds to wait after a request to create an attachment got no reply. After that time Cinder no longer creates it.
LATE = 120.0
# Statuses of a volume that is being created, and statuses of a volume that can be attached.
_COMING, THERE = frozenset(('creating', 'downloading')), frozenset(('available', 'in-use', 'reserved', 'attaching'))


class VolumeNotCreated(BuildAbort):
    """The creation of a volume for a new server has failed or takes too long."""

    def __init__(self, server: str, volume: Volume, seconds: float) -> None:
        super().__init__(
            instance_uuid=server,
            reason=(
                f'Volume {volume.id} did not finish being created even after we waited {seconds:.0f} seconds. And its '
                f'status is {volume.status}.'
            ),
        )


# --- requested volumes -----------------------------------------------------------------------------------------------
def wanted(bdms: Iterable[Mapping[str, Any]] | None) -> list[AttachedVolume]:
    """Return the volumes among the disks of a boot request.

    ``bdms`` are the disks of the request, each as a dict of columns of block_device_mapping.
    """
    return [AttachedVolume.read(row) for row in bdms or () if row['destination_type'] == 'volume']


def going_with(volumes: Iterable[AttachedVolume]) -> list[str]:
    """Return the ids of the volumes that are deleted together with their server."""
    return [volume.volume_id for volume in volumes if volume.delete_on_termination]


# --- attaching to a host ---------------------------------------------------------------------------------------------
def attach_wanted(work: Work[Any], host: ChosenHost, is_first: bool) -> None:
    """Attach the requested volumes of a new server to the host of this attempt.

    Repeated calls are safe. ``is_first`` is True if no earlier call can have created attachments in Cinder, so that
    they need not be searched. Raises HostRejected if this host can't have a volume, but another host might. Raises
    VolumeInvalid or VolumeNotFound if the server can't have a volume on any host.
    """
    to_host(work, host.host, has_strays=not is_first)


def await_created(work: Work[Any]) -> None:
    """Check that the volumes which were created for a new server can be attached.

    Raises RetryLater while a volume is being created. Raises VolumeNotCreated if the creation has failed or takes too
    long.
    """
    for volume in work.instance(fresh=True).volumes:
        if volume.source_type != 'volume' and volume.attachment_id is None:
            _await_created(work, volume)


def _await_created(work: Work[Any], volume: AttachedVolume) -> None:
    conf = work.env.conf
    pause, tries = max(conf.block_device_allocate_retries_interval, 1), conf.block_device_allocate_retries
    found = work.env.volumes.volume(None, volume.volume_id)
    if found.status in THERE:
        return
    now = instances.utcnow()
    waited = (now - (work.created_at or now)).total_seconds()
    if found.status not in _COMING or waited >= pause * tries:
        raise VolumeNotCreated(work.instance_uuid, found, waited)
    raise RetryLater(who=f'volume {volume.volume_id}', reason=f'it is {found.status}', pause=pause)


def to_host(work: Work[Any], host: str, *, has_strays: bool = True, but: str | None = None) -> None:
    """Attach the volumes of a server to this host, and delete their attachments to other hosts.

    Repeated calls are safe. Sends no request for a server without volumes. If a volume was deleted in Cinder, its row
    is deleted, unless the volume was never attached or is the root disk. If the operation is being undone, a volume
    that can't be attached now is skipped, and the next start of the server attaches it (``attached_here``).

    Args:
        work: The operation.
        host: The host.
        has_strays: Whether an earlier try may have left attachments in Cinder that no row of the server names.
        but: Id of a volume whose attachment is not completed here; the caller completes it when the guest has the
            volume.

    Raises:
        HostDown: The host is down, and the connector that describes it to the volume service is unknown.
        HostRejected: The host can't have one of the volumes.
        VolumeInvalid: No host can have the volume.
        VolumeNotFound: The volume does not exist.
    """
    if not work.instance().volumes:
        return
    server = work.instance(fresh=True)
    if has_strays:
        _delete_unknown_attachments(work, server.volumes)
    left = [volume for volume in server.volumes if volume.host != host]
    if left:
        connector, names = _connector(work, server, host)
        devices = iter(names)
        for volume in left:
            try:
                _attach(
                    work, volume, host, connector, volume.device or next(devices), is_complete=volume.volume_id != but
                )
            except (VolumeNotFound, VolumeInvalid, HostRejected) as error:
                if isinstance(error, VolumeNotFound) and volume.attachment_id is not None and not volume.is_root:
                    LOG.warning(
                        'Volume %s no longer exists; removing it from the server',
                        volume.volume_id,
                        instance_uuid=server.uuid,
                    )
                    _write(work, functools.partial(rows.remove, row_uuid=volume.uuid))
                    continue
                if not work.failed or volume.attachment_id is None:
                    raise
                LOG.warning(
                    'Could not attach volume %s to host %s; the next start of the server tries again: %s',
                    volume.volume_id,
                    host,
                    error,
                    instance_uuid=server.uuid,
                )
                _write(
                    work,
                    functools.partial(
                        rows.change,
                        row_uuid=volume.uuid,
                        seen=volume.attachment_id,
                        values={'connection_info': volume.connection_info(server.uuid)},
                    ),
                )
        work.changed()


def _write(work: Work[Any], write: Callable[[engine.Connection], object]) -> None:
    # While the operation is being undone, the row is written even if the operation was cancelled.
    work.decide({}, cancelled=work.failed, write=write)
    work.changed()


def _connector(work: Work[Any], server: objects.Instance, host: str) -> tuple[dict[str, Any], Sequence[str]]:
    """Return the host's connector (its description for Cinder), and device names such as /dev/vdb.

    The host chooses one device name for each of the server's volumes that has none. If the host is down, this function
    returns the connector that was stored with earlier attachments, and no device names. Raises HostDown if no connector
    was stored.
    """
    try:
        said = work.query_host(host, Compute.prepare_volumes, instance=server)
    except HostDown:
        if not all(host in volume.known_at for volume in server.volumes):
            raise
        return dict(server.volumes[0].known_at[host]['connector']), ()
    return said['connector'], said['devices']


def _attach(
    work: Work[Any], volume: AttachedVolume, host: str, connector: Mapping[str, Any], device: str, *, is_complete: bool
) -> None:
    """Attach a volume to a host by a new attachment, and delete the former attachment.

    ``connector`` describes the host to Cinder, and ``device`` is the volume's device name. If ``is_complete`` is True,
    the new attachment is also completed, which makes the volume in-use.
    """
    made = _make(work, volume, host, connector, device, is_complete=is_complete)
    LOG.info('Attached volume %s to host %s', volume.volume_id, host, instance_uuid=work.instance_uuid)
    _keep(
        work,
        volume,
        {
            'attachment_id': made.id,
            'device_name': device,
            'connection_info': volume.connection_info(work.instance_uuid, host, made.connection, connector),
        },
    )


def _make(
    work: Work[Any],
    volume: AttachedVolume,
    host: str,
    connector: Mapping[str, Any],
    device: str | None,
    *,
    is_complete: bool,
) -> Attachment:
    client = work.env.volumes
    if volume.host is None and volume.attachment_id is not None and (client.volume(None, volume.volume_id).is_written):
        raise VolumeInvalid(detail=f'Volume {volume.volume_id} cannot be attached while an image is written to it.')
    work.before_sending()
    try:
        made = client.create_attachment(volume.volume_id, work.instance_uuid, {**connector, 'mountpoint': device})
        if made.connection.get('encrypted'):
            made = replace(made, connection={**made.connection, ENCRYPTION: client.encryption(volume.volume_id)})
        if is_complete:
            client.complete_attachment(made.id)
    except VolumeInvalid as error:
        # Retry if Cinder refused because it is attaching the multiattach volume to another server.
        if (
            not volume.multiattach
            or work.outputs.tries >= TURNS
            or (client.volume(None, volume.volume_id).status not in THERE)
        ):
            raise
        raise Unanswered(
            f'Cinder cannot attach volume {volume.volume_id} to host {host} now; this will be retried: {error}'
        ) from error
    except VolumeBackendFailed as error:
        raise HostRejected(f'Volume {volume.volume_id} cannot be connected to host {host}: {error}') from error
    except Unanswered:
        _release(work, (), delay=LATE)
        raise
    return made


def _put(work: Work[Any], volume: AttachedVolume, values: Mapping[str, Any]) -> None:
    """Write the columns in ``values`` to the row of a volume.

    Raises Unanswered if another operation has changed the row since it was read, so that the step is retried. The retry
    deletes all attachments of the server in Cinder that are in no row, such as a new one in ``values``.
    """

    def write(conn: engine.Connection) -> None:
        if not rows.change(conn, volume.uuid, volume.attachment_id, values):
            raise Unanswered(f'The volumes of server {work.instance_uuid} were changed meanwhile; this will be retried')

    _write(work, write)


def _keep(work: Work[Any], volume: AttachedVolume, values: Mapping[str, Any]) -> None:
    """Write a new attachment to a volume's row, then delete the volume's former attachment in Cinder.

    ``values`` are the columns of the row that describe the new attachment.
    """
    _put(work, volume, values)
    if volume.attachment_id is not None:
        _free(work, volume.attachment_id)


def _free(work: Work[Any], attachment_id: str) -> None:
    """Delete an attachment. If the volume service refuses, add an operation row for deleting the attachment later."""
    try:
        work.env.volumes.delete_attachment(attachment_id)
    except Unanswered:
        raise
    except KilonovaError as error:
        LOG.warning(
            'Could not delete attachment %s; an operation of kind release will retry this later: %s',
            attachment_id,
            error,
            instance_uuid=work.instance_uuid,
        )
        _release(work, ())


def _delete_unknown_attachments(work: Work[Any], volumes: Sequence[AttachedVolume]) -> None:
    """Delete the server's attachments in Cinder that are not in its volume rows.

    An earlier try of a step may have created such an attachment without writing it to a row, or may have failed to
    delete it.
    """
    ours = {attachment_id for volume in volumes for attachment_id in volume.attachments}
    for one in work.env.volumes.attachments(work.instance_uuid):
        if one.id not in ours:
            work.before_sending()
            _free(work, one.id)


def attached_here(work: Work[Any]) -> None:
    """Attach those volumes of a server to its host that could not be attached before.

    Flows call this before the host starts the server. Sends no request if all volumes are attached.
    """
    server = work.instance()
    if server.host and any(volume.host != server.host for volume in server.volumes):
        to_host(work, server.host)


def off_host(work: Work[Any]) -> None:
    """Detach the volumes of a server from its host, and keep them reserved for the server."""
    if not work.instance().volumes:
        return
    server = work.instance(fresh=True)
    _delete_unknown_attachments(work, server.volumes)
    _reserve(work, server, server.volumes)


def reserve_root(work: Work[Any]) -> None:
    """Detach the root volume of a server from its host, and keep it reserved for the server.

    The guest must be off. Repeated calls are safe.
    """
    server = work.instance(fresh=True)
    _delete_unknown_attachments(work, server.volumes)
    _reserve(work, server, [volume for volume in server.volumes if volume.is_root])


def _reserve(work: Work[Any], server: objects.Instance, volumes: Iterable[AttachedVolume]) -> None:
    for volume in volumes:
        if volume.host is None and volume.attachment_id is not None:
            continue
        work.before_sending()
        try:
            made = work.env.volumes.create_attachment(volume.volume_id, work.instance_uuid, None)
        except Unanswered:
            _release(work, (), delay=LATE)
            raise
        _keep(
            work,
            volume,
            {
                'attachment_id': made.id,
                'connection_info': volume.connection_info(work.instance_uuid),
                'device_name': volume.device or _name(server, volume),
            },
        )


def _name(server: objects.Instance, volume: AttachedVolume) -> str:
    """Return the device name, such as /dev/vdb, for a volume of a server that has no host.

    On its next host, the server's disks get names in the order of the local disks and then of the volumes.
    """
    bus = server.system_metadata.get(f'{SYSMETA_PREFIX}hw_disk_bus') or 'virtio'
    own = (not server.is_from_volume) + bool(server.flavor.ephemeral_gb) + bool(server.flavor.swap)
    _, names = disk_names.assign([bus] * own, [(one.bus or bus, one.device) for one in server.volumes])
    return f'/dev/{names[server.volumes.index(volume)]}'


# --- live migration --------------------------------------------------------------------------------------------------
def announce(work: Work[Any], host: str) -> None:
    """Attach the volumes of a running guest to the destination of its live migration as well.

    Repeated calls are safe. Sends no request for a server without volumes. A volume that is not attached to the source
    is left out. Raises HostRejected if the destination can't have a volume, and VolumeInvalid or VolumeNotFound if no
    host can have it.
    """
    if not work.instance().volumes:
        return
    server = work.instance(fresh=True)
    _delete_unknown_attachments(work, server.volumes)
    left = [volume for volume in server.volumes if volume.host == server.host and volume.coming(host) is None]
    if left:
        connector, _names = _connector(work, server, host)
        for volume in left:
            made = _make(work, volume, host, connector, volume.device, is_complete=False)
            LOG.info(
                'Attached volume %s to host %s as well, for the live migration',
                volume.volume_id,
                host,
                instance_uuid=server.uuid,
            )
            _put(
                work,
                volume,
                {'connection_info': volume.besides_at(server.uuid, host, made.id, made.connection, connector)},
            )


def arrived(work: Work[Any], host: str) -> None:
    """Complete the attachments to the destination of a live migration, and write them to the volumes' rows.

    Call this after the guest has arrived on the destination. ``forget_source`` then deletes the attachments to the
    source. Repeated calls are safe.
    """
    for volume in work.instance().volumes and work.instance(fresh=True).volumes:
        there = volume.coming(host)
        if there is None or there.attachment_id is None:
            continue
        work.before_sending()
        try:
            work.env.volumes.complete_attachment(there.attachment_id)
        except Unanswered:
            raise
        except KilonovaError as error:
            # The error is only logged, because the guest on the destination uses the volume already.
            LOG.warning(
                'Attachment %s could not be completed; the guest uses the volume nevertheless: %s',
                there.attachment_id,
                error,
                instance_uuid=work.instance_uuid,
            )
        _put(
            work,
            volume,
            {
                'attachment_id': there.attachment_id,
                'connection_info': volume.connection_info(
                    work.instance_uuid, host, there.connection, volume.known_at[host]['connector']
                ),
            },
        )


def renounce(work: Work[Any], host: str) -> None:
    """Delete the attachments to ``host``, the destination of a live migration that failed.

    Call this after the destination has disconnected the volumes. Repeated calls are safe.
    """
    server = work.instance(fresh=True)
    for volume in server.volumes:
        if volume.coming(host) is not None:
            _put(work, volume, {'connection_info': volume.besides_at(server.uuid, host)})
    forget_source(work)


def forget_source(work: Work[Any], *, later: bool = False) -> None:
    """Delete the server's attachments in Cinder that are not in its volume rows, such as attachments to a former host.

    If the volume service does not answer, or if ``later`` is True, an operation row is added (a pending release), and a
    conductor deletes the attachments later. ``later`` is True if another host must disconnect the volumes first.
    """
    if not work.instance().volumes:
        return
    if later:
        _release(work, (), delay=LATE)
        return
    releases.now_or_later(
        work,
        'Deleting unused volume attachments',
        lambda: _delete_unknown_attachments(work, work.instance(fresh=True).volumes),
        lambda: _release(work, ()),
    )


# --- replacing a volume by a copy ------------------------------------------------------------------------------------
def attach_copy(work: Work[Any], volume: AttachedVolume, copy_id: str) -> dict[str, Any]:
    """Attach the volume ``copy_id``, which will replace a volume of the server, to the server's host as well.

    Returns the columns that the volume's row gets when the guest uses the copy. Repeated calls are safe. Raises
    HostRejected if the host can't have the copy, and VolumeInvalid or VolumeNotFound if no host can have it.
    """
    server = work.instance(fresh=True)
    _delete_unknown_attachments(work, server.volumes)
    connector, _names = _connector(work, server, server.host)
    # Leave out the stored connection data for each host (``known_at``): they are data of ``volume``, not of its copy.
    known = replace(volume, known_at={})
    made = _make(work, replace(known, volume_id=copy_id), server.host, connector, volume.device, is_complete=False)
    return {
        'attachment_id': made.id,
        'connection_info': known.connection_info(server.uuid, server.host, made.connection, connector),
    }


def swapped(work: Work[Any], volume_id: str, copy_id: str) -> None:
    """Ask the volume service to finish the swap of the volume ``volume_id`` for its copy ``copy_id``.

    Call this after the copy's attachment was written to the volume's row. Repeated calls are safe.
    """
    server = work.instance(fresh=True)
    for volume in server.volumes:
        if volume.volume_id == volume_id and volume.attachment_id is not None:
            work.before_sending()
            work.env.volumes.complete_attachment(volume.attachment_id)
    _delete_unknown_attachments(work, server.volumes)
    releases.end_migration(work, volume_id, copy_id, swapped=True)


def end_swap(work: Work[Any], volume_id: str, copy_id: str, *, has_copy: bool) -> None:
    """End a failed or cancelled volume swap in Cinder.

    ``has_copy`` says whether the guest uses the copy (True) or the first volume (False). If the volume service does not
    answer or refuses, an operation row is added (a pending release), and a conductor ends the swap later.
    """

    def give_back() -> None:
        if has_copy:
            swapped(work, volume_id, copy_id)
            return
        _delete_unknown_attachments(work, work.instance(fresh=True).volumes)
        releases.end_migration(work, volume_id, copy_id, swapped=False)

    releases.now_or_later(
        work,
        'Releasing the volumes of a swap',
        give_back,
        lambda: releases.add_release(
            work, SwapRelease(volumes_of=work.instance_uuid, volume_swapped=(volume_id, copy_id, has_copy))
        ),
    )


# --- deleting attachments --------------------------------------------------------------------------------------------
def drop(work: Work[Any], delete: Sequence[str]) -> None:
    """Delete all attachments of the server, and the volumes in ``delete``.

    If the volume service does not answer or refuses, an operation row is added (a pending release), and a conductor
    deletes the attachments and volumes later.
    """
    releases.now_or_later(
        work, 'Releasing volumes', lambda: releases.give_back_volumes(work, (), delete), lambda: _release(work, delete)
    )


def drop_one(work: Work[Any], volume: AttachedVolume) -> None:
    """Delete the attachment of one volume of the server.

    Repeated calls are safe. If the volume service does not answer or refuses, an operation row is added (a pending
    release). A conductor deletes the attachment after the volume's row is deleted.
    """
    kept = [one.attachment_id for one in work.instance(fresh=True).volumes if one.uuid != volume.uuid]
    releases.now_or_later(
        work,
        'Releasing volumes',
        lambda: releases.give_back_volumes(work, [one for one in kept if one], ()),
        lambda: _release(work, ()),
    )


def _release(work: Work[Any], delete: Sequence[str], delay: float = 0) -> None:
    args = VolumesRelease(volumes_of=work.instance_uuid, volumes_deleted=list(delete))
    releases.add_release(work, args, delay=delay)


# --- volumes that were extended --------------------------------------------------------------------------------------
def extend(work: Work[Outputs]) -> None:
    """Write the new size of a volume to the server's row. Ask the host to resize the guest's disk."""
    volume_id = work.arguments(VolumeArguments).volume_id
    size = work.env.volumes.volume(None, volume_id).size
    server = work.instance(fresh=True)
    for volume in server.volumes:
        if volume.volume_id == volume_id and volume.size != size:
            with engine.silence(), work.db.write() as conn:
                rows.change(conn, volume.uuid, volume.attachment_id, {'volume_size': size})
    server = work.instance(fresh=True)
    if server.host and any(volume.volume_id == volume_id and volume.host == server.host for volume in server.volumes):
        work.call_host(server.host, Compute.extend_volume, instance=server, volume_id=volume_id)


class VolumeExtended(Flow[Outputs]):
    """The operation that makes the new size of a volume visible to the guest, after Cinder has extended the volume.

    The operation runs at the same time as the server's other operations.
    """

    name, outputs = 'volume_extended', Outputs
    forward_only = True
    steps = (Step('extend', extend, saved=False),)

    def may_end(self, work: Work[Outputs], error: Exception) -> bool:
        """Return whether the operation ends with this error instead of being retried.

        The operation ends if it was cancelled, if the server or the volume no longer exists, or if the host refuses to
        resize the guest's disk. After such a refusal the guest sees the new size at its next start.
        """
        return isinstance(error, (Cancelled, InstanceNotFound, VolumeNotFound, VolumeInvalid)) or (
            isinstance(error, KilonovaError) and not isinstance(error, Unanswered)
        )

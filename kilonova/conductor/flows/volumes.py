"""Volumes of Cinder in flows: attached to a host before it is asked to use them, given back when a server ends.

    volumes.await_created(work)           # those that are made for a new server
    volumes.attach_wanted(work, host)     # of a new server: those that its user asked for, to this host
    volumes.to_host(work, 'gpu2')         # of one that moves
    volumes.off_host(work)                # of one that is on none: they are only reserved for it
    volumes.reserve_root(work)            # the same of the one that it boots from, while it gets another content
    volumes.announce(work, 'gpu2')        # of one whose guest is about to come there while it runs
    volumes.drop(work, delete)            # attachments go, and these volumes themselves

A server has the attachments of its rows in block_device_mapping, and no others: whoever takes an operation over finds
what is there by the server's uuid, which each attachment has. A volume service that is silent holds no unwinding and no
delete up: what is left becomes a pending release. So does an attachment that may be made after the request for it got
no answer.
"""
from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kilonova import objects
from kilonova.clients.volume import Attachment, Volume, VolumeBackendFailed, VolumeInvalid, VolumeNotFound
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import beside
from kilonova.conductor.row import Choice, Outputs
from kilonova.conductor.work import HostGone, NotYet, Step, Work
from kilonova.db import engine
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
from kilonova.objects.volume import ENCRYPTION, VOLUME_SWAPPED, VOLUMES_DELETED, VOLUMES_OF, AttachedVolume
from kilonova.virt import disk_names

LOG = logging.getLogger(__name__)

# Tries of an operation, some minute together, while others are about to get a volume that several servers may have.
TURNS = 6
# Seconds after which a request that got no answer has made its attachment, or never will.
LATE = 120.0
# States of a volume that is being made, and of one that can be attached.
_COMING, THERE = frozenset(('creating', 'downloading')), frozenset(('available', 'in-use', 'reserved', 'attaching'))


class VolumeNotCreated(BuildAbort):
    def __init__(self, server: str, volume: Volume, seconds: float) -> None:
        super().__init__(instance_uuid=server, reason=(
            f'Volume {volume.id} did not finish being created even after we waited {seconds:.0f} seconds. And its '
            f'status is {volume.status}.'))


# --- what was asked for ----------------------------------------------------------------------------------------------
def wanted(bdms: Iterable[Mapping[str, Any]] | None) -> list[AttachedVolume]:
    """The volumes among the disks that a boot was asked for (columns of block_device_mapping)."""
    return [AttachedVolume.read(row) for row in bdms or () if row['destination_type'] == 'volume']


def going_with(volumes: Iterable[AttachedVolume]) -> list[str]:
    """Ids of those that are deleted with their server."""
    return [volume.volume_id for volume in volumes if volume.delete_on_termination]


# --- to a host -------------------------------------------------------------------------------------------------------
def attach_wanted(work: Work[Any], host: Choice, is_first: bool) -> None:
    """The volumes that a new server's user asked for, attached to the host of this attempt. May be repeated;
    ``is_first``: nothing was asked of the volume service for it yet.

    HostRejected: another host may do. VolumeInvalid, VolumeNotFound: the server can't have them.
    """
    to_host(work, host.host, has_strays=not is_first)


def await_created(work: Work[Any]) -> None:
    """The volumes that were made for a new server are there. NotYet; VolumeNotCreated: one never will be."""
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
    raise NotYet(who=f'volume {volume.volume_id}', reason=f'it is {found.status}', pause=pause)


def to_host(work: Work[Any], host: str, *, has_strays: bool = True, but: str | None = None) -> None:
    """The volumes that a server has are attached to this host, and to no other. May be repeated; no request for a
    server without any. ``has_strays``: an earlier try may have left attachments; ``but``: id of a volume that is in use
    only when its guest has it, as the caller says then.

    One that is gone is the server's no more, unless it never was, or is its root disk. Who unwinds goes on without
    those that can't be attached now: a start tries them again (``attached_here``).

    HostGone: the host is down, and was never asked what the volume service must know of it. HostRejected: it can't have
    them. VolumeInvalid, VolumeNotFound: nobody can.
    """
    if not work.instance().volumes:
        return
    server = work.instance(fresh=True)
    if has_strays:
        _drop_strays(work, server.volumes)
    left = [volume for volume in server.volumes if volume.host != host]
    if left:
        connector, names = _connector(work, server, host)
        devices = iter(names)
        for volume in left:
            try:
                _attach(work, volume, host, connector, volume.device or next(devices),
                        is_complete=volume.volume_id != but)
            except (VolumeNotFound, VolumeInvalid, HostRejected) as error:
                if isinstance(error, VolumeNotFound) and volume.attachment_id is not None and not volume.is_root:
                    LOG.warning('Volume %s of %s is gone: the server has it no more', volume.volume_id, server.uuid)
                    _write(work, functools.partial(rows.remove, row_uuid=volume.uuid))
                    continue
                if not work.failed or volume.attachment_id is None:
                    raise
                LOG.warning('Volume %s of %s is not attached to %s: %s', volume.volume_id, server.uuid, host, error)
                _write(work, functools.partial(rows.change, row_uuid=volume.uuid, seen=volume.attachment_id, values={
                    'connection_info': volume.connection_info(server.uuid)}))
        work.changed()


def _write(work: Work[Any], write: Callable[[engine.Connection], object]) -> None:
    # Also what is unwound because somebody cancelled it.
    work.decide({}, cancelled=work.failed, write=write)
    work.changed()


def _connector(work: Work[Any], server: objects.Instance, host: str) -> tuple[dict[str, Any], Sequence[str]]:
    """What the volume service must know of a host, and names of devices for the volumes that have none. Of a host that
    is down what it said before."""
    try:
        said = work.inquire(host, 'prepare_volumes', instance=server)
    except HostGone:
        if not all(host in volume.known_at for volume in server.volumes):
            raise
        return dict(server.volumes[0].known_at[host]['connector']), ()
    return said['connector'], said['devices']


def _attach(work: Work[Any], volume: AttachedVolume, host: str, connector: Mapping[str, Any], device: str, *,
            is_complete: bool) -> None:
    """A new attachment in place of the one that it has."""
    made = _make(work, volume, host, connector, device, is_complete=is_complete)
    LOG.info('Volume %s of %s is attached to %s', volume.volume_id, work.instance_uuid, host)
    _keep(work, volume, {'attachment_id': made.id, 'device_name': device, 'connection_info': volume.connection_info(
        work.instance_uuid, host, made.connection, connector)})


def _make(work: Work[Any], volume: AttachedVolume, host: str, connector: Mapping[str, Any], device: str | None, *,
          is_complete: bool) -> Attachment:
    client = work.env.volumes
    if volume.host is None and volume.attachment_id is not None and (
            client.volume(None, volume.volume_id).is_written):
        raise VolumeInvalid(detail=f'Volume {volume.volume_id} can not be attached while an image is written to it.')
    work.before_sending()
    try:
        made = client.create_attachment(volume.volume_id, work.instance_uuid, {**connector, 'mountpoint': device})
        if made.connection.get('encrypted'):
            made = replace(made, connection={**made.connection, ENCRYPTION: client.encryption(volume.volume_id)})
        if is_complete:
            client.complete_attachment(made.id)
    except VolumeInvalid as error:
        # The volume service attaches one to one server after the other.
        if not volume.multiattach or work.outputs.tries >= TURNS or (
                client.volume(None, volume.volume_id).status not in THERE):
            raise
        raise Unanswered(who=f'volume {volume.volume_id}', reason=f'{error}') from error
    except VolumeBackendFailed as error:
        raise HostRejected(f'Volume {volume.volume_id} can not be connected to host {host}: {error}') from error
    except Unanswered:
        _release(work, (), delay=LATE)
        raise
    return made


def _put(work: Work[Any], volume: AttachedVolume, values: Mapping[str, Any]) -> None:
    """Columns of its row. What isn't written leaves a stray attachment, which the next try finds."""
    def write(conn: engine.Connection) -> None:
        if not rows.change(conn, volume.uuid, volume.attachment_id, values):
            raise Unanswered(who=f'server {work.instance_uuid}', reason='its volumes were changed meanwhile')
    _write(work, write)


def _keep(work: Work[Any], volume: AttachedVolume, values: Mapping[str, Any]) -> None:
    """The volume has another attachment from now on; the one before goes."""
    _put(work, volume, values)
    if volume.attachment_id is not None:
        _free(work, volume.attachment_id)


def _free(work: Work[Any], attachment_id: str) -> None:
    """An attachment goes; later, where the back end fails at it."""
    try:
        work.env.volumes.delete_attachment(attachment_id)
    except Unanswered:
        raise
    except KilonovaError as error:
        LOG.warning('Attachment %s of %s could not be deleted now: %s', attachment_id, work.instance_uuid, error)
        _release(work, ())


def _drop_strays(work: Work[Any], volumes: Sequence[AttachedVolume]) -> None:
    """Attachments of the server that no row of it has: an earlier try made them, or didn't come to delete them."""
    ours = {attachment_id for volume in volumes for attachment_id in volume.attachments}
    for one in work.env.volumes.attachments(work.instance_uuid):
        if one.id not in ours:
            work.before_sending()
            _free(work, one.id)


def attached_here(work: Work[Any]) -> None:
    """Before a server is started where it is: volumes that could not be attached when it came here are now. No request
    where there are none of these."""
    server = work.instance()
    if server.host and any(volume.host != server.host for volume in server.volumes):
        to_host(work, server.host)


def off_host(work: Work[Any]) -> None:
    """The volumes that a server has are attached to no host, and stay reserved for it."""
    if not work.instance().volumes:
        return
    server = work.instance(fresh=True)
    _drop_strays(work, server.volumes)
    _reserve(work, server, server.volumes)


def reserve_root(work: Work[Any]) -> None:
    """The same of the volume that a server boots from, whose guest is off. May be repeated."""
    server = work.instance(fresh=True)
    _drop_strays(work, server.volumes)
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
        _keep(work, volume, {'attachment_id': made.id, 'connection_info': volume.connection_info(work.instance_uuid),
                             'device_name': volume.device or _name(server, volume)})


def _name(server: objects.Instance, volume: AttachedVolume) -> str:
    """The name of one that comes to a server on no host, as its next one will give it."""
    bus = server.system_metadata.get(f'{SYSMETA_PREFIX}hw_disk_bus') or 'virtio'
    own = (not server.is_from_volume) + bool(server.flavor.ephemeral_gb) + bool(server.flavor.swap)
    _, names = disk_names.assign([bus] * own, [(one.bus or bus, one.device) for one in server.volumes])
    return f'/dev/{names[server.volumes.index(volume)]}'


# --- with a guest that runs ------------------------------------------------------------------------------------------
def announce(work: Work[Any], host: str) -> None:
    """A running guest with volumes will be on this host: they are attached to it besides. May be repeated; no request
    for a server without any. One that the guest was started without stays behind.

    HostRejected: the host can't have them. VolumeInvalid, VolumeNotFound: nobody can.
    """
    if not work.instance().volumes:
        return
    server = work.instance(fresh=True)
    _drop_strays(work, server.volumes)
    left = [volume for volume in server.volumes if volume.host == server.host and volume.coming(host) is None]
    if left:
        connector, _names = _connector(work, server, host)
        for volume in left:
            made = _make(work, volume, host, connector, volume.device, is_complete=False)
            LOG.info('Volume %s of %s is attached to %s besides', volume.volume_id, server.uuid, host)
            _put(work, volume, {'connection_info': volume.besides_at(
                server.uuid, host, made.id, made.connection, connector)})


def arrived(work: Work[Any], host: str) -> None:
    """The guest is on this host, where its volumes were announced: they are attached to it. May be repeated. What they
    are attached to at its source goes with ``forget_source``."""
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
            # The guest uses it all the same.
            LOG.warning('Attachment %s of %s could not be completed: %s', there.attachment_id, work.instance_uuid,
                        error)
        _put(work, volume, {'attachment_id': there.attachment_id, 'connection_info': volume.connection_info(
            work.instance_uuid, host, there.connection, volume.known_at[host]['connector'])})


def renounce(work: Work[Any], host: str) -> None:
    """The guest will not be on this host after all, and it has let its volumes go. May be repeated."""
    server = work.instance(fresh=True)
    for volume in server.volumes:
        if volume.coming(host) is not None:
            _put(work, volume, {'connection_info': volume.besides_at(server.uuid, host)})
    forget_source(work)


def forget_source(work: Work[Any], *, later: bool = False) -> None:
    """The server has the attachments of its rows and no others; ``later``: another host has yet to let its volumes
    go. So it is where the volume service is silent."""
    if not work.instance().volumes:
        return
    if later:
        _release(work, (), delay=LATE)
        return
    beside.now_or_later(work, 'Volumes', lambda: _drop_strays(work, work.instance(fresh=True).volumes),
                        lambda: _release(work, ()))


# --- one in the place of another -------------------------------------------------------------------------------------
def attach_copy(work: Work[Any], volume: AttachedVolume, copy_id: str) -> dict[str, Any]:
    """A volume that is to take the place of one of the server's is attached to its host, too: what the row of that has
    when the guest has it. May be repeated.

    HostRejected: the host can't have it. VolumeInvalid, VolumeNotFound: nobody can.
    """
    server = work.instance(fresh=True)
    _drop_strays(work, server.volumes)
    connector, _names = _connector(work, server, server.host)
    # What hosts before knew of it is no more.
    known = replace(volume, known_at={})
    made = _make(work, replace(known, volume_id=copy_id), server.host, connector, volume.device, is_complete=False)
    return {'attachment_id': made.id, 'connection_info': known.connection_info(
        server.uuid, server.host, made.connection, connector)}


def swapped(work: Work[Any], volume_id: str, copy_id: str) -> None:
    """The guest has a copy in the place of a volume, as the server's row says: the volume service makes one of both.
    May be repeated."""
    server = work.instance(fresh=True)
    for volume in server.volumes:
        if volume.volume_id == volume_id and volume.attachment_id is not None:
            work.before_sending()
            work.env.volumes.complete_attachment(volume.attachment_id)
    _drop_strays(work, server.volumes)
    beside.end_migration(work, volume_id, copy_id, swapped=True)


def end_swap(work: Work[Any], volume_id: str, copy_id: str, *, has_copy: bool) -> None:
    """A swap that goes no further ends: the guest has the copy, or the volume. Later, while the volume service is
    silent."""
    def give_back() -> None:
        if has_copy:
            swapped(work, volume_id, copy_id)
            return
        _drop_strays(work, work.instance(fresh=True).volumes)
        beside.end_migration(work, volume_id, copy_id, swapped=False)

    beside.now_or_later(work, 'Volumes', give_back, lambda: beside.add_release(
        work, {VOLUMES_OF: work.instance_uuid, VOLUME_SWAPPED: [volume_id, copy_id, has_copy]},
        (VOLUMES_OF, VOLUME_SWAPPED)))


# --- back ------------------------------------------------------------------------------------------------------------
def drop(work: Work[Any], delete: Sequence[str]) -> None:
    """The server has no attachments any more, and the volumes to ``delete`` go themselves. Later, while the volume
    service is silent or refuses."""
    beside.now_or_later(work, 'Volumes', lambda: beside.give_back_volumes(work, (), delete),
                        lambda: _release(work, delete))


def drop_one(work: Work[Any], volume: AttachedVolume) -> None:
    """The server has this volume no more. May be repeated; later, as above, when its row is gone."""
    kept = [one.attachment_id for one in work.instance(fresh=True).volumes if one.uuid != volume.uuid]
    beside.now_or_later(work, 'Volumes', lambda: beside.give_back_volumes(work, [one for one in kept if one], ()),
                        lambda: _release(work, ()))


def _release(work: Work[Any], delete: Sequence[str], delay: float = 0) -> None:
    beside.add_release(work, {VOLUMES_OF: work.instance_uuid, VOLUMES_DELETED: list(delete)},
                       (VOLUMES_OF, VOLUMES_DELETED), delay=delay)


# --- one of them has grown -------------------------------------------------------------------------------------------
def extend(work: Work[Outputs]) -> None:
    """The server's row and its guest know the size that the volume has now."""
    volume_id = work.args['volume_id']
    size = work.env.volumes.volume(None, volume_id).size
    server = work.instance(fresh=True)
    for volume in server.volumes:
        if volume.volume_id == volume_id and volume.size != size:
            with engine.silence(), work.db.write() as conn:
                rows.change(conn, volume.uuid, volume.attachment_id, {'volume_size': size})
    server = work.instance(fresh=True)
    if server.host and any(volume.volume_id == volume_id and volume.host == server.host for volume in server.volumes):
        work.ask(server.host, 'extend_volume', instance=server, volume_id=volume_id)


class VolumeExtended(Flow[Outputs]):
    """Cinder said so. Beside whatever works on the server."""

    name, outputs = 'volume_extended', Outputs
    forward_only = True
    steps = (Step('extend', extend, saved=False),)

    def may_end(self, work: Work[Outputs], error: Exception) -> bool:
        """Also where the server or the volume is gone, and where the host can't: its guest sees it when it is started
        again."""
        return isinstance(error, (Cancelled, InstanceNotFound, VolumeNotFound, VolumeInvalid)) or (
            isinstance(error, KilonovaError) and not isinstance(error, Unanswered))

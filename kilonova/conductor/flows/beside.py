"""Rows beside a server's operation: pending releases, and Placement that is to be brought up to date. Only forward.

What a dead host must still give back becomes a row of its own, which outlives the operation and the server and ends
when its host answered (operations.md rule 23). So do an image that got no data and what a late select may still claim.
"""
from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kilonova import objects
from kilonova.clients import aggregates
from kilonova.clients.volume import RESERVED, SnapshotNotFound, VolumeInvalid, VolumeNotFound
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import guarantees
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import GuestMayRun, HostGone, Step, Work
from kilonova.db import engine
from kilonova.db.queries import compute_nodes, instances, operations, volumes
from kilonova.db.queries.operations import Operation
from kilonova.errors import Cancelled, ImageNotFound, KeyGone, KilonovaError, LeaseLost, Unanswered
from kilonova.objects.volume import (
    SNAPSHOT_TOLD,
    SNAPSHOTS_OF,
    VOLUME_SWAPPED,
    VOLUMES_DELETED,
    VOLUMES_MADE,
    VOLUMES_OF,
)
from kilonova.rpc.compute import Compute
from kilonova.rpc.interface import VersionCapError

LOG = logging.getLogger(__name__)

# How often a host that is there is asked for an undo that fails, before it becomes a pending release.
UNDO_TRIES = 3
# Backups of one type at which a rotation looks; what is older waits for the next.
MOST_BACKUPS = 1000
# Arguments of releases: accelerator requests by uuid, and the host where they are; and the uuid whose requests go.
ACCELERATOR_REQUESTS, ACCELERATORS_AT, ACCELERATORS_OF = 'accelerator_requests', 'accelerators_at', 'accelerators_of'
# The server whose ports go, and which of them are their user's own.
PORTS_OF, PORTS_GIVEN = 'ports_of', 'ports_given'
# The port for which the server may still hold something in Placement, and the resource classes of it.
RESOURCES_OF, CLASSES = 'resources_of', 'classes'
Write = Callable[[engine.Connection], object]


def ask_to_undo(work: Work[Any], host: str, method: str, write: Write | None = None,
                may_run: Callable[[str], Exception | None] = lambda host: None, **kwargs: Any) -> Any:
    """Ask a host to give back. A host that is down gets a pending release; so does one that can't do it (its hypervisor
    is away), for another host waits for the server, or whoever unwinds has tried often enough.

    Its answer; None: it did not do it yet. ``write``: see ``pend``. ``may_run(host)``: what to raise in place of that
    where the host may still run the guest and what follows would start it elsewhere as well.
    """
    try:
        return work.ask(host, method, **kwargs)
    except HostGone:
        second = may_run(host)
        if second is not None:
            raise second from None
        pend(work, host, method, write, **kwargs)
    except (Unanswered, LeaseLost, KeyGone, Cancelled):
        raise
    except VersionCapError as error:
        LOG.info('Host %s has nothing of %s to give back: it is of an older release: %s', host, method, error)
    except KilonovaError as error:
        if not work.undoing and work.outputs.tries < UNDO_TRIES:
            raise
        LOG.warning('%s of %s on host %s failed, it is left to a pending release: %s', method, work.instance_uuid,
                    host, error)
        pend(work, host, method, write, **kwargs)
    return None


def pend(work: Work[Any], host: str, method: str, write: Write | None = None, **kwargs: Any) -> None:
    """What a dead host must still give back becomes a pending release: a row of its own that waits for the host.
    ``write(conn)``: what the host would have written of the server, in the same transaction."""
    serializer = objects.base.Serializer()
    args = {'host': host, 'method': method,
            'kwargs': {name: serializer.serialize_entity(work.ctxt, value) for name, value in kwargs.items()
                       if name != 'key'}}
    add_release(work, args, ('host', 'method'), host=host, write=write)


def add_release(work: Work[Any], args: dict[str, Any], same: Sequence[str], *, host: str | None = None,
                delay: float = 0, write: Write | None = None) -> None:
    """A row for something that is to be given back later; see ``add``."""
    add(work, Operation.new(work.ctxt, 'release', work.instance_uuid, args, beside=True, host=host), same, delay=delay,
        write=write)


def add(work: Work[Any], row: Operation, same: Sequence[str], *, delay: float = 0, write: Write | None = None) -> None:
    """A row of the server's beside ours, ``delay`` seconds from now at the earliest, unless there is one of its kind
    whose args of the names in ``same`` are these. Written together with a look whether we still own our row."""
    def is_same(other: Operation) -> bool:
        return other.kind == row.kind and all(other.args.get(name) == row.args[name] for name in same)
    with engine.silence():
        ours = work.add(row, is_same, delay, write)
    if not ours:
        raise work.standing() or LeaseLost(operation=work.uuid)


def now_or_later(work: Work[Any], what: str, give_back: Callable[[], object], release: Callable[[], None]) -> None:
    """Give back to another service; where it is silent or refuses, ``release`` notes that for later."""
    try:
        give_back()
    except Unanswered as error:
        LOG.info('%s of %s are given back later: %s', what, work.instance_uuid, error)
        release()
    except KilonovaError as error:
        LOG.warning('%s of %s could not be given back now: %s', what, work.instance_uuid, error)
        release()


def drop_image(work: Work[Any], image_id: str) -> None:
    """An image of the server goes; later, while the image service is silent."""
    try:
        work.env.drop_image(image_id)
    except Unanswered as error:
        LOG.info('Image %s is deleted later: %s', image_id, error)
        # Nobody waits for the image service to unwind a server, least of all a delete.
        add_release(work, {'image_id': image_id}, ('image_id',))


def undo_image(work: Work[Any], method: str) -> None:
    """No image is made of the server: the host takes back what it did for it (``method``), the image goes."""
    host, image_id = work.instance_row(fresh=True)['host'], work.args['image_id']
    if host is not None:
        ask_to_undo(work, host, method, instance=work.instance(), image_id=image_id)
    if image_id is not None:
        drop_image(work, image_id)


def release(work: Work[Outputs]) -> None:
    """What is still to give back: a host's part (asked until it answers), a Placement consumer, an image, backups that
    are too many, accelerators, ports and what they guarantee, volumes, or snapshots of these; or to say of one."""
    if 'consumer' in work.args:
        work.env.placement.delete_allocations(work.args['consumer'])
        return
    if 'rotation' in work.args:
        _rotate(work)
        return
    if 'image_id' in work.args:
        work.env.drop_image(work.args['image_id'])
        return
    if ACCELERATOR_REQUESTS in work.args:
        if work.args.get(ACCELERATORS_AT) in hosts_left(work):
            raise GuestMayRun(host=work.args[ACCELERATORS_AT])
        work.env.accelerators.delete(work.args[ACCELERATOR_REQUESTS])
        return
    if PORTS_OF in work.args:
        _release_ports(work)
        return
    if RESOURCES_OF in work.args:
        _release_resources(work)
        return
    if VOLUMES_OF in work.args:
        _release_volumes(work)
        return
    if SNAPSHOTS_OF in work.args:
        _release_snapshots(work, work.args[SNAPSHOTS_OF])
        return
    if SNAPSHOT_TOLD in work.args:
        tell_snapshot(work, *work.args[SNAPSHOT_TOLD])
        return
    if ACCELERATORS_OF in work.args:
        _release_accelerators(work, work.args[ACCELERATORS_OF])
        return
    serializer = objects.base.Serializer()
    # A row may have waited for its host since a release whose messages said more.
    taken = Compute.arguments(work.args['method'])
    kwargs = {name: serializer.deserialize_entity(work.ctxt, value) for name, value in work.args['kwargs'].items()
              if name in taken}
    try:
        work.ask(work.args['host'], work.args['method'], **kwargs)
    except HostGone as error:
        raise Unanswered(who=work.args['host'], reason=str(error)) from error


def hosts_left(work: Work[Any]) -> list[str]:
    """Hosts that are still to give back what they have of the server, and may run its guest until then: nobody has
    forced them down."""
    with engine.silence():
        with work.db.read() as conn:
            rows = operations.of_instance(conn, work.instance_uuid)
        # One whose text cannot be read is still of its host.
        hosts = sorted({host for row in rows if row.kind == 'release' and (
            host := row.args.get('host') or (row.host if row.unreadable else None))})
        return [host for host in hosts if not work.env.hearing.is_fenced(work.db, host)]


def _release_accelerators(work: Work[Outputs], holder: str) -> None:
    """All that are bound to this uuid, but those on hosts that may run the guest: GuestMayRun."""
    client, hosts = work.env.accelerators, hosts_left(work)
    if not hosts:
        client.delete_of_instance(holder)
        return
    with engine.silence(), work.db.read() as conn:
        nodes = {node['hypervisor_hostname']: host for host in hosts for node in compute_nodes.by_host(conn, host)}
    found = client.of_instance(holder)
    client.delete(one.uuid for one in found if one.hostname not in nodes)
    kept = [nodes[one.hostname] for one in found if one.hostname in nodes]
    if kept:
        raise GuestMayRun(host=kept[0])


def ports_given(work: Work[Any]) -> set[str]:
    """Ports that pending releases of the server know as its user's own: it may have them still."""
    with engine.silence(), work.db.read() as conn:
        rows = operations.of_instance(conn, work.instance_uuid)
    return {port_id for row in rows if row.kind == 'release' for port_id in row.args.get(PORTS_GIVEN, ())}


def give_back_ports(work: Work[Any], own: Collection[str], keep: Collection[str] = ()) -> None:
    """The server's ports go: deleted, but its user's ``own`` are unbound, and so are those that another release knows
    as such; not those to ``keep``."""
    client, own = work.env.networks, {*own, *ports_given(work)}
    for port in client.ports(device_id=work.instance_uuid):
        if port.id in keep:
            continue
        if port.id in own:
            client.unbind(port)
        else:
            client.delete_port(port.id)


def at_rest(work: Work[Any]) -> None:
    """Unanswered: an operation works on the server."""
    with engine.silence(), work.db.read() as conn:
        _check_rest(conn, work.instance_uuid)


def _check_rest(conn: engine.Connection, uuid: str) -> None:
    if any(row.slot in (operations.RUN, operations.WAIT) for row in operations.of_instance(conn, uuid)):
        raise Unanswered(who=f'server {uuid}', reason='an operation works on it')


def _release_ports(work: Work[Outputs]) -> None:
    """What the server has of ports besides those of its info cache goes: all, of one that is deleted. While an
    operation is at it, nobody knows which are its own."""
    with engine.silence(), work.db.read() as conn:
        _check_rest(conn, work.instance_uuid)
        server = instances.get(conn, work.instance_uuid)
    cache = json.loads(server['extra_network_info'] or '[]') if server is not None else []
    give_back_ports(work, work.args[PORTS_GIVEN], [vif['id'] for vif in cache])


def _release_resources(work: Work[Outputs]) -> None:
    """The server holds nothing for this port any more, unless it has it again. While an operation is at it, it may
    hold what its ports don't say yet, so that is looked at again before each write."""
    def check() -> None:
        at_rest(work)
        work.compare_now()
    with engine.silence(), work.db.read() as conn:
        _check_rest(conn, work.instance_uuid)
        server = instances.get(conn, work.instance_uuid)
    port_id = work.args[RESOURCES_OF]
    cache = json.loads(server['extra_network_info'] or '[]') if server is not None else []
    guarantees.settle(work.env, work.instance_uuid, work.args[CLASSES], check,
                      but=None if port_id in [vif['id'] for vif in cache] else port_id)


def give_back_volumes(work: Work[Any], keep: Collection[str], delete: Collection[str]) -> None:
    """The server's attachments go but those to ``keep``; then the volumes to ``delete``. Unanswered: an image is being
    written to one of them, and its volume service would call it reserved for the server when that ends."""
    client, written = work.env.volumes, None
    for one in client.attachments(work.instance_uuid):
        if one.id in keep:
            continue
        if one.status == RESERVED and client.volume(None, one.volume_id).is_written:
            written = one.volume_id
        else:
            client.delete_attachment(one.id)
    if written is not None:
        raise Unanswered(who=f'volume {written}', reason='an image is being written to it')
    for volume_id in delete:
        client.delete_volume(volume_id)


def end_migration(work: Work[Any], volume_id: str, target_id: str, swapped: bool) -> None:
    """The volume service learns whether the server's guest has ``target_id`` in the place of ``volume_id``, which has
    no attachments of its own any more, or the other way round. May be repeated."""
    client = work.env.volumes
    try:
        if client.volume(None, volume_id).migrating:
            client.complete_migration(volume_id, target_id, failed=not swapped)
    except (VolumeNotFound, VolumeInvalid) as error:
        LOG.warning('The volume service knows nothing any more of a move of volume %s to %s: %s', volume_id, target_id,
                    error)
    held = client.attachments(work.instance_uuid)
    with contextlib.suppress(VolumeNotFound):
        # It calls the volume what it was when the move began, whoever has left it since.
        if client.volume(None, volume_id).status == 'in-use' and all(one.volume_id != volume_id for one in held):
            client.call_available(volume_id)
    if swapped:
        _call_as(work, {one.id: one.volume_id for one in held}, volume_id)


def _call_as(work: Work[Any], held: Mapping[str, str], volume_id: str) -> None:
    """The server's row of a volume has the id by which the volume service knows what is attached."""
    with engine.silence(), work.db.write() as conn:
        for row in volumes.of_servers(conn, [work.instance_uuid]).get(work.instance_uuid, ()):
            known = held.get(row['attachment_id'] or '', volume_id)
            if row['volume_id'] == volume_id != known:
                LOG.warning('Volume %s of %s is %s from now on', volume_id, work.instance_uuid, known)
                volumes.change(conn, row['uuid'], row['attachment_id'], {'volume_id': known})


def _release_volumes(work: Work[Outputs]) -> None:
    """What the server has of attachments besides those of its rows goes: all, of one that is deleted, or never came to
    a cell. While an operation is at it, nobody knows which are its own."""
    with engine.silence(), work.db.read() as conn:
        _check_rest(conn, work.instance_uuid)
        server = instances.get(conn, work.instance_uuid) if work.db is not work.env.api else None
    kept = [row['attachment_id'] for row in server['extra_volumes']] if server is not None else []
    if VOLUME_SWAPPED in work.args:
        give_back_volumes(work, kept, ())
        end_migration(work, *work.args[VOLUME_SWAPPED])
        return
    made = work.env.volumes.made_for(work.instance_uuid) if work.args.get(VOLUMES_MADE) else []
    give_back_volumes(work, kept, [*work.args[VOLUMES_DELETED], *made])


def _release_snapshots(work: Work[Outputs], image_id: str) -> None:
    """Snapshots that were made for an image go, unless it came to be; so does what there is of it."""
    with contextlib.suppress(ImageNotFound):
        if work.env.images.get(image_id)['status'] == 'active':
            return
        work.env.drop_image(image_id)
    for snapshot_id in work.env.volumes.snapshots_for(image_id):
        work.env.volumes.delete_snapshot(snapshot_id)


def tell_snapshot(work: Work[Any], snapshot_id: str, status: str, progress: str | None = None) -> str | None:
    """The volume service learns how it is with a snapshot that it has begun to make or to delete: what it says against
    that; None: it takes it. Unanswered: also where it refuses our account."""
    work.before_sending()
    try:
        work.env.volumes.tell_snapshot(snapshot_id, status, progress)
    except (SnapshotNotFound, VolumeInvalid) as error:
        LOG.warning('The volume service does not take that snapshot %s of %s is %s: %s', snapshot_id,
                    work.instance_uuid, status, error)
        return str(error)
    except Unanswered:
        raise
    except KilonovaError as error:
        raise Unanswered(who='The volume service', reason=str(error)) from error
    return None


def _rotate(work: Work[Outputs]) -> None:
    """The oldest backups of the server's go, of this type and of the project that asked: of those with data
    ``rotation`` stay, the one that was just made among them. Whoever names an image so in another project changes
    nothing."""
    wanted = {'image_type': 'backup', 'backup_type': work.args['backup_type'], 'instance_uuid': work.instance_uuid,
              'owner': work.ctxt.project_id or '', 'status': 'active'}
    found = work.env.images.find({**wanted, 'sort_key': 'created_at', 'sort_dir': 'desc'}, MOST_BACKUPS)
    # What is deleted is looked at here, too: a service may read a query otherwise.
    ours = [record['id'] for record in found if all(record.get(name) == value for name, value in wanted.items())]
    newest_first = sorted(ours, key=lambda image_id: image_id != work.args['image_id'])
    for image_id in newest_first[work.args['rotation']:]:
        LOG.info('Deleting image %s of %s: there are more than %s backups', image_id, work.instance_uuid,
                 work.args['rotation'])
        work.env.drop_image(image_id)


class Release(Flow[Outputs]):
    """A pending release."""

    name, outputs = 'release', Outputs
    forward_only = True
    steps = (Step('release', release, saved=False),)


def mirror(work: Work[Outputs]) -> None:
    """What the API database says of a host and an aggregate, whatever was changed when the row was written; the API's
    own try didn't come to an end."""
    with engine.silence():
        aggregates.bring_up_to_date(work.env.placement, work.env.api, work.env.cells, work.args['aggregate'],
                                    work.args['host'])


class Mirror(Flow[Outputs]):
    name, outputs = aggregates.KIND, Outputs
    forward_only = True
    steps = (Step('mirror', mirror, saved=False),)

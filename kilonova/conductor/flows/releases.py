"""Operations that run at the same time as other operations of a server: pending releases and aggregate updates.

They are ``forward_only``. What a host that is down has yet to clean up becomes an operation row of its own, a pending
release. The row remains after the operation and the server have ended, and ends when the host has done it
(operations.md, rule 23). Images without data, late claims of the scheduler, ports, volumes and accelerators are
released in the same way if their service does not answer. The flow ``mirror`` updates Placement's aggregates.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from oslo_log import log as logging

from kilonova import objects
from kilonova.clients import aggregates
from kilonova.clients.volume import RESERVED, SnapshotNotFound, VolumeInvalid, VolumeNotFound
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows.network import guarantees
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import HostDown, HostMethod, HostNotFenced, P, Reply, Step, Work
from kilonova.db import engine
from kilonova.db.queries import compute_nodes, instances, operations, volumes
from kilonova.db.queries.operations import OperationRow
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

# Number of failed undo calls to a host that is up after which the undo becomes a pending release.
UNDO_TRIES = 3
# Maximum number of backups of one type that a rotation reads; older ones are left for the next rotation.
MOST_BACKUPS = 1000
# Names of release arguments: uuids of accelerator requests, their host, and the uuid whose requests are all deleted.
ACCELERATOR_REQUESTS, ACCELERATORS_AT, ACCELERATORS_OF = 'accelerator_requests', 'accelerators_at', 'accelerators_of'
# Names of release arguments: the server whose ports are released, and the ports among them that the user created.
PORTS_OF, PORTS_GIVEN = 'ports_of', 'ports_given'
# Names of release arguments: the port for which the server may still hold resources in Placement, and their classes.
RESOURCES_OF, CLASSES = 'resources_of', 'classes'
Write = Callable[[engine.Connection], object]


def ask_to_undo(
    work: Work[Any],
    host: str,
    method: HostMethod[P, Reply],
    write: Write | None = None,
    may_run: Callable[[str], Exception | None] = lambda host: None,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Reply | None:
    """Call a host to undo its part, or add a pending release if it can't do it now.

    Returns the host's reply, or None if the host has not done it. A pending release is added if the host is down. It is
    also added if the host is up but fails, for example because its hypervisor does not answer: at once if another host
    is to be tried, otherwise after ``UNDO_TRIES`` tries. Nothing is undone on a host whose release is too old for the
    method, because it can't have begun the step.

    Args:
        work: The operation.
        host: The host.
        method: Declared method of the host.
        write: See ``add_pending_release``.
        may_run: ``may_run(host)`` returns an error to raise instead of adding a pending release, if the host is down
            and may still run the guest that the next step would start elsewhere; else None.
        args: Always empty, because RPC arguments are passed by name.
        kwargs: Arguments of the method.
    """
    try:
        return work.call_host(host, method, *args, **kwargs)
    except HostDown:
        second = may_run(host)
        if second is not None:
            raise second from None
        add_pending_release(work, host, method, write, *args, **kwargs)
    except (Unanswered, LeaseLost, KeyGone, Cancelled):
        raise
    except VersionCapError as error:
        LOG.info(
            'Skipping %s on host %s: its compute is too old to have started it (%s)',
            method.__name__,
            host,
            error,
            instance_uuid=work.instance_uuid,
        )
    except KilonovaError as error:
        if not work.undoing and work.outputs.tries < UNDO_TRIES:
            raise
        LOG.warning(
            '%s failed on host %s; it will be retried as a pending release: %s',
            method.__name__,
            host,
            error,
            instance_uuid=work.instance_uuid,
        )
        add_pending_release(work, host, method, write, *args, **kwargs)
    return None


def add_pending_release(
    work: Work[Any],
    host: str,
    method: HostMethod[P, Any],
    write: Write | None = None,
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Add a pending release: an operation row that calls this method of the host when the host is up again.

    ``write(conn)`` writes in the same transaction what the host would have written about the server.
    """
    serializer = objects.base.Serializer()
    stored = {
        'host': host,
        'method': method.__name__,
        'kwargs': {name: serializer.serialize_entity(work.ctxt, value) for name, value in kwargs.items()},
    }
    add_release(work, stored, ('host', 'method'), host=host, write=write)


def add_release(
    work: Work[Any],
    args: dict[str, Any],
    same: Sequence[str],
    *,
    host: str | None = None,
    delay: float = 0,
    write: Write | None = None,
) -> None:
    """Add an operation row that releases something later.

    ``add`` describes the arguments.
    """
    add(
        work,
        OperationRow.new(work.ctxt, 'release', work.instance_uuid, args, beside=True, host=host),
        same,
        delay=delay,
        write=write,
    )


def add(
    work: Work[Any], row: OperationRow, same: Sequence[str], *, delay: float = 0, write: Write | None = None
) -> None:
    """Insert an operation row that runs at the same time as the server's other operations.

    It may be taken after ``delay`` seconds at the earliest. Nothing is inserted if there is a row of the same kind
    whose arguments named in ``same`` are equal. ``write(conn)`` writes in the same transaction. Raises LeaseLost if
    this conductor does not own its row any more, and Cancelled if the operation was cancelled.
    """

    def is_same(other: OperationRow) -> bool:
        return other.kind == row.kind and all(other.args.get(name) == row.args[name] for name in same)

    with engine.silence():
        ours = work.add(row, is_same, delay, write)
    if not ours:
        raise work.standing() or LeaseLost(operation=work.uuid)


def now_or_later(work: Work[Any], what: str, give_back: Callable[[], object], release: Callable[[], None]) -> None:
    """Call ``give_back``, and call ``release`` to do it later if the service does not answer or refuses.

    ``what`` names the act at the beginning of a log line, for example 'Deleting ports'.
    """
    try:
        give_back()
    except Unanswered as error:
        LOG.info(
            '%s is not possible now; a pending release will retry it: %s', what, error, instance_uuid=work.instance_uuid
        )
        release()
    except KilonovaError as error:
        LOG.warning('%s failed; a pending release will retry it: %s', what, error, instance_uuid=work.instance_uuid)
        release()


def drop_image(work: Work[Any], image_id: str) -> None:
    """Delete an image of the server, or add a pending release that does it if the image service does not answer."""
    try:
        work.env.drop_image(image_id)
    except Unanswered as error:
        LOG.info(
            'Could not delete image %s now; a pending release will retry it: %s',
            image_id,
            error,
            instance_uuid=work.instance_uuid,
        )
        # The undo of an operation, and above all a delete, must not wait for the image service.
        add_release(work, {'image_id': image_id}, ('image_id',))


def undo_image(work: Work[Any], method: HostMethod[..., Any]) -> None:
    """Have the host undo its part of an image of the server by ``method``, and delete the image."""
    host, image_id = work.instance_row(fresh=True)['host'], work.args['image_id']
    if host is not None:
        ask_to_undo(work, host, method, instance=work.instance(), image_id=image_id)
    if image_id is not None:
        drop_image(work, image_id)


def release(work: Work[Outputs]) -> None:
    """Release what an operation or a deleted server left behind, as the arguments of the row say.

    That is a host's part (the host is called until it answers), a consumer in Placement, an image, surplus backups,
    accelerators, ports, their resources in Placement, volumes, or snapshots of volumes; or a message about a snapshot
    to the volume service.
    """
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
            raise HostNotFenced(host=work.args[ACCELERATORS_AT])
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
    # The row may have been written by an older release, whose messages had more arguments.
    taken = Compute.arguments(work.args['method'])
    kwargs = {
        name: serializer.deserialize_entity(work.ctxt, value)
        for name, value in work.args['kwargs'].items()
        if name in taken
    }
    try:
        work.call_host(work.args['host'], Compute.methods()[work.args['method']], **kwargs)
    except HostDown as error:
        raise Unanswered(who=work.args['host'], reason=str(error)) from error


def hosts_left(work: Work[Any]) -> list[str]:
    """Return the hosts that have a pending release of the server and may still run its guest.

    A host that was forced down is not among them.
    """
    with engine.silence():
        with work.db.read() as conn:
            rows = operations.of_instance(conn, work.instance_uuid)
        # A row whose text cannot be parsed still belongs to its host.
        hosts = sorted(
            {
                host
                for row in rows
                if row.kind == 'release' and (host := row.args.get('host') or (row.host if row.unreadable else None))
            }
        )
        return [host for host in hosts if not work.env.liveness.is_fenced(work.db, host)]


def _release_accelerators(work: Work[Outputs], holder: str) -> None:
    """Delete the accelerator requests that are bound to ``holder``, except those on hosts that may still run the guest.

    Raises HostNotFenced if there are such hosts.
    """
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
        raise HostNotFenced(host=kept[0])


def ports_given(work: Work[Any]) -> set[str]:
    """Return the ports that pending releases of the server list as created by the user.

    The server may still have these ports.
    """
    with engine.silence(), work.db.read() as conn:
        rows = operations.of_instance(conn, work.instance_uuid)
    return {port_id for row in rows if row.kind == 'release' for port_id in row.args.get(PORTS_GIVEN, ())}


def give_back_ports(work: Work[Any], own: Collection[str], keep: Collection[str] = ()) -> None:
    """Release the ports of the server, except those in ``keep``.

    Ports in ``own``, and ports that another release lists as created by the user, are unbound. The others are deleted.
    """
    client, own = work.env.networks, {*own, *ports_given(work)}
    for port in client.ports(device_id=work.instance_uuid):
        if port.id in keep:
            continue
        if port.id in own:
            client.unbind(port)
        else:
            client.delete_port(port.id)


def check_no_running_operation(work: Work[Any]) -> None:
    """Raise Unanswered if an operation runs on the server or waits for one."""
    with engine.silence(), work.db.read() as conn:
        _check_rest(conn, work.instance_uuid)


def _check_rest(conn: engine.Connection, uuid: str) -> None:
    if any(row.slot in (operations.RUN, operations.WAIT) for row in operations.of_instance(conn, uuid)):
        raise Unanswered(f'Another operation works on server {uuid}')


def _release_ports(work: Work[Outputs]) -> None:
    """Release the ports of the server that are not in its info cache.

    All ports are released if the server is deleted. Raises Unanswered while an operation works on the server, because
    then it is not known which ports are the server's.
    """
    with engine.silence(), work.db.read() as conn:
        _check_rest(conn, work.instance_uuid)
        server = instances.get(conn, work.instance_uuid)
    cache = json.loads(server['extra_network_info'] or '[]') if server is not None else []
    give_back_ports(work, work.args[PORTS_GIVEN], [vif['id'] for vif in cache])


def _release_resources(work: Work[Outputs]) -> None:
    """Release the resources that the server holds in Placement for a port, unless it has the port again.

    Raises Unanswered while an operation works on the server, because the server may hold resources that its ports don't
    show yet. That is checked again before each write.
    """

    def check() -> None:
        check_no_running_operation(work)
        work.compare_now()

    with engine.silence(), work.db.read() as conn:
        _check_rest(conn, work.instance_uuid)
        server = instances.get(conn, work.instance_uuid)
    port_id = work.args[RESOURCES_OF]
    cache = json.loads(server['extra_network_info'] or '[]') if server is not None else []
    guarantees.settle(
        work.env,
        work.instance_uuid,
        work.args[CLASSES],
        check,
        but=None if port_id in [vif['id'] for vif in cache] else port_id,
    )


def give_back_volumes(work: Work[Any], keep: Collection[str], delete: Collection[str]) -> None:
    """Delete the server's attachments except those in ``keep``, then delete the volumes in ``delete``.

    Raises Unanswered if an image is being written to an attached volume. The volume service would mark that volume as
    reserved for the server when the image is written.
    """
    client, written = work.env.volumes, None
    for one in client.attachments(work.instance_uuid):
        if one.id in keep:
            continue
        if one.status == RESERVED and client.volume(None, one.volume_id).is_written:
            written = one.volume_id
        else:
            client.delete_attachment(one.id)
    if written is not None:
        raise Unanswered(f'An image is being written to volume {written}')
    for volume_id in delete:
        client.delete_volume(volume_id)


def end_migration(work: Work[Any], volume_id: str, target_id: str, swapped: bool) -> None:
    """Tell the volume service whether the guest uses ``target_id`` instead of ``volume_id``, or the other way round.

    ``volume_id`` has no attachments of its own any more. Repeated calls are safe.
    """
    client = work.env.volumes
    try:
        if client.volume(None, volume_id).migrating:
            client.complete_migration(volume_id, target_id, failed=not swapped)
    except (VolumeNotFound, VolumeInvalid) as error:
        LOG.warning(
            'The volume service no longer has a migration of volume %s to volume %s: %s',
            volume_id,
            target_id,
            error,
            instance_uuid=work.instance_uuid,
        )
    held = client.attachments(work.instance_uuid)
    with contextlib.suppress(VolumeNotFound):
        # The volume service sets the status that the volume had when its migration began, even if it was detached
        # since.
        if client.volume(None, volume_id).status == 'in-use' and all(one.volume_id != volume_id for one in held):
            client.call_available(volume_id)
    if swapped:
        _call_as(work, {one.id: one.volume_id for one in held}, volume_id)


def _call_as(work: Work[Any], held: Mapping[str, str], volume_id: str) -> None:
    """Set the volume id in the server's row to the id by which the volume service knows the attachment."""
    with engine.silence(), work.db.write() as conn:
        for row in volumes.of_servers(conn, [work.instance_uuid]).get(work.instance_uuid, ()):
            known = held.get(row['attachment_id'] or '', volume_id)
            if row['volume_id'] == volume_id != known:
                LOG.warning(
                    'The server has volume %s instead of %s from now on, as the volume service says',
                    known,
                    volume_id,
                    instance_uuid=work.instance_uuid,
                )
                volumes.change(conn, row['uuid'], row['attachment_id'], {'volume_id': known})


def _release_volumes(work: Work[Outputs]) -> None:
    """Delete the attachments of the server that are not in its rows.

    All attachments are deleted if the server is deleted or has no cell. Raises Unanswered while an operation works on
    the server, because then it is not known which attachments are the server's.
    """
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
    """Delete the snapshots that were created for an image, and the image, unless the image became active."""
    with contextlib.suppress(ImageNotFound):
        if work.env.images.get(image_id)['status'] == 'active':
            return
        work.env.drop_image(image_id)
    for snapshot_id in work.env.volumes.snapshots_for(image_id):
        work.env.volumes.delete_snapshot(snapshot_id)


def tell_snapshot(work: Work[Any], snapshot_id: str, status: str, progress: str | None = None) -> str | None:
    """Send the volume service the status of a snapshot that it has begun to create or to delete.

    Returns None if the service accepts the status, else the text of its refusal. Raises Unanswered if the service does
    not answer, or refuses this conductor's account.
    """
    work.before_sending()
    try:
        work.env.volumes.tell_snapshot(snapshot_id, status, progress)
    except (SnapshotNotFound, VolumeInvalid) as error:
        LOG.warning(
            "The volume service refused the status '%s' of snapshot %s: %s",
            status,
            snapshot_id,
            error,
            instance_uuid=work.instance_uuid,
        )
        return str(error)
    except Unanswered:
        raise
    except KilonovaError as error:
        raise Unanswered(who='The volume service', reason=str(error)) from error
    return None


def _rotate(work: Work[Outputs]) -> None:
    """Delete the oldest backups of the server, so that ``rotation`` of them stay.

    Only active images of this backup type and of the requesting project count. The backup that was just made is among
    those that stay. Images of other projects with the same properties are ignored.
    """
    wanted = {
        'image_type': 'backup',
        'backup_type': work.args['backup_type'],
        'instance_uuid': work.instance_uuid,
        'owner': work.ctxt.project_id or '',
        'status': 'active',
    }
    found = work.env.images.find({**wanted, 'sort_key': 'created_at', 'sort_dir': 'desc'}, MOST_BACKUPS)
    # The properties are checked here as well, because a service may interpret the query differently.
    ours = [record['id'] for record in found if all(record.get(name) == value for name, value in wanted.items())]
    newest_first = sorted(ours, key=lambda image_id: image_id != work.args['image_id'])
    for image_id in newest_first[work.args['rotation'] :]:
        LOG.info(
            'Deleting image %s: the server has more than %s backups',
            image_id,
            work.args['rotation'],
            instance_uuid=work.instance_uuid,
        )
        work.env.drop_image(image_id)


class Release(Flow[Outputs]):
    """The operation that releases something later, which is called a pending release."""

    name, outputs = 'release', Outputs
    forward_only = True
    steps = (Step('release', release, saved=False),)


def mirror(work: Work[Outputs]) -> None:
    """Update a host's membership of an aggregate in Placement to the state in the API database.

    The API process tried this when the aggregate was changed, and did not complete it. The present state counts, not
    the state when the row was written.
    """
    with engine.silence():
        aggregates.bring_up_to_date(
            work.env.placement, work.env.api, work.env.cells, work.args['aggregate'], work.args['host']
        )


class SyncAggregate(Flow[Outputs]):
    """The operation that updates an aggregate in Placement."""

    name, outputs = aggregates.KIND, Outputs
    forward_only = True
    steps = (Step('mirror', mirror, saved=False),)

"""Operations that run at the same time as other operations of a server: pending releases and aggregate updates.

If a host must clean up and is down, a pending release is added: a separate operation row, which a conductor runs when
the host is up again. The row remains even if the server is deleted. It is deleted when the host has cleaned up
(operations.md, rule 23). Images, allocations, ports, volumes and accelerators are released in the same way if the
service that has them does not answer. The flow ``mirror`` updates Placement's aggregates. All these flows are retried
until they succeed (``forward_only``).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Mapping
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
from kilonova.db.arguments.base import NewImageArguments
from kilonova.db.arguments.releases import (
    AcceleratorRequestsRelease,
    AcceleratorsRelease,
    BackupsRelease,
    ConsumerRelease,
    HostRelease,
    ImageRelease,
    PortResourcesRelease,
    PortsRelease,
    ReleaseArguments,
    SnapshotsRelease,
    SnapshotStatusRelease,
    SwapRelease,
    SyncAggregateArguments,
    VolumesRelease,
)
from kilonova.db.queries import compute_nodes, instances, operations, volumes
from kilonova.db.queries.operations import RELEASE, OperationRow
from kilonova.errors import Cancelled, ImageNotFound, KeyGone, KilonovaError, LeaseLost, Unanswered
from kilonova.rpc.compute import Compute
from kilonova.rpc.interface import VersionCapError

LOG = logging.getLogger(__name__)

# A conductor calls a host to undo the host's part of a step. If the host is up, this many calls may fail.
# After this many failures, the conductor adds a pending release to the database and goes on.
# A pending release is an operation row for this call: a conductor repeats the call until it succeeds.
UNDO_TRIES = 3
# Maximum number of backups of one type that a rotation reads, newest first. Older backups are not deleted.
MOST_BACKUPS = 1000
Write = Callable[[engine.Connection], object]


def ask_to_undo(
    work: Work[Any],
    host: str,
    method: HostMethod[P, Reply],
    write: Write | None = None,
    may_run: Callable[[], bool] = lambda: False,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Reply | None:
    """Call a host to undo its part of a step, or add an operation row with which a conductor calls it later.

    Returns the host's reply, or None if the host gave no reply. Such a row (a pending release) is added if the host is
    down, or if its calls fail ``UNDO_TRIES`` times (once, if the operation then tries another host). A host whose
    release is too old for the method is not called, because it can't have begun the step. If the host is down and may
    still run the guest, HostNotFenced is raised and no row is added.

    Args:
        work: The operation.
        host: The host.
        method: Declared method of the host.
        write: Function ``write(conn)``, called in the transaction that adds the row (see ``add_pending_release``).
        may_run: Function that returns whether the guest could run on two hosts (see ``check_no_guest``).
        args: Always empty, because RPC arguments are passed by name.
        kwargs: Arguments of the method.
    """
    try:
        return work.call_host(host, method, *args, **kwargs)
    except HostDown:
        check_no_guest(work, host, may_run)
        add_pending_release(work, host, method, write, *args, **kwargs)
    except (Unanswered, LeaseLost, KeyGone, Cancelled):
        raise
    except VersionCapError as error:
        LOG.info(
            'Skipping %s on host %s: the release of the host is too old to have begun the step to undo (%s)',
            method.__name__,
            host,
            error,
            instance_uuid=work.instance_uuid,
        )
    except KilonovaError as error:
        if not work.undoing and work.outputs.tries < UNDO_TRIES:
            raise
        LOG.warning(
            '%s failed on host %s; an operation of kind release will retry this later: %s',
            method.__name__,
            host,
            error,
            instance_uuid=work.instance_uuid,
        )
        add_pending_release(work, host, method, write, *args, **kwargs)
    return None


def check_no_guest(work: Work[Any], host: str, may_run: Callable[[], bool] = lambda: True) -> None:
    """Raise HostNotFenced if the guest could run twice: on ``host``, which is down, and on another host.

    No error is raised if ``may_run()`` returns False: the caller knows that ``host`` can't have started the guest, or
    that no other host will start it. No error is raised either if an operator has forced down or deleted the host's
    compute service, because this declares that no guest runs on the host.
    """
    if may_run() and not work.env.liveness.is_fenced(work.db, host):
        raise HostNotFenced(host=host) from None


def add_pending_release(
    work: Work[Any],
    host: str,
    method: HostMethod[P, Any],
    write: Write | None = None,
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Add a pending release: an operation row with which a conductor calls ``method`` when the host is up again.

    ``write(conn)``, if it is not None, is called in the transaction that inserts the row. ``write`` makes those changes
    in the database at once that the host would have made during the call. ``kwargs`` are the arguments of ``method``.
    """
    serializer = objects.base.Serializer()
    asked = HostRelease(
        host=host,
        method=method.__name__,
        kwargs={name: serializer.serialize_entity(work.ctxt, value) for name, value in kwargs.items()},
    )
    add_release(work, asked, host=host, write=write)


def add_release(
    work: Work[Any],
    args: ReleaseArguments,
    *,
    host: str | None = None,
    delay: float = 0,
    write: Write | None = None,
) -> None:
    """Add a pending release: an operation row with which a conductor releases later what ``args`` describe.

    ``host`` is the host that a conductor calls for this, or None. ``add`` describes the other arguments.
    """
    add(
        work,
        OperationRow.new(work.ctxt, 'release', work.instance_uuid, args, beside=True, host=host),
        delay=delay,
        write=write,
    )


def add(work: Work[Any], row: OperationRow, *, delay: float = 0, write: Write | None = None) -> None:
    """Insert an operation row that runs at the same time as the server's other operations.

    Conductors may take the row after ``delay`` seconds or later. The row is not inserted if the server already has an
    equal one (``OperationRow.is_like``). ``write(conn)`` is called in the same transaction in both cases. Raises
    LeaseLost if this conductor no longer owns the row of ``work``, and Cancelled if ``work`` was cancelled.
    """
    with engine.silence():
        ours = work.add(row, row.is_like, delay, write)
    if not ours:
        raise work.standing() or LeaseLost(operation=work.uuid)


def now_or_later(work: Work[Any], what: str, give_back: Callable[[], object], release: Callable[[], None]) -> None:
    """Call ``give_back``, which sends a request to a service now. If this fails, call ``release``.

    ``release`` adds an operation row, with which a conductor sends the request later (a pending release). ``what``
    begins the log line about the failure, for example 'Deleting ports'.
    """
    try:
        give_back()
    except Unanswered as error:
        LOG.info(
            '%s is not possible now; an operation of kind release will retry this later: %s',
            what,
            error,
            instance_uuid=work.instance_uuid,
        )
        release()
    except KilonovaError as error:
        LOG.warning(
            '%s failed; an operation of kind release will retry this later: %s',
            what,
            error,
            instance_uuid=work.instance_uuid,
        )
        release()


def drop_image(work: Work[Any], image_id: str) -> None:
    """Delete an image of the server. If the image service does not answer, add an operation row to delete it later."""
    try:
        work.env.drop_image(image_id)
    except Unanswered as error:
        LOG.info(
            'Could not delete image %s now; an operation of kind release will retry this later: %s',
            image_id,
            error,
            instance_uuid=work.instance_uuid,
        )
        # The image is deleted later, because an undo or a delete must not wait for the image service.
        add_release(work, ImageRelease(image_id=image_id))


def undo_image(work: Work[Any], method: HostMethod[..., Any]) -> None:
    """Ask the server's host to undo its part in the creation of an image. Delete the image.

    ``method`` is the RPC method that the conductor calls.
    """
    host, image_id = work.instance_row(fresh=True)['host'], work.arguments(NewImageArguments).image_id
    if host is not None:
        ask_to_undo(work, host, method, instance=work.instance(), image_id=image_id)
    if image_id is not None:
        drop_image(work, image_id)


def release(work: Work[Outputs]) -> None:
    """Release a resource that an operation or a deleted server left behind. The arguments of the row name the resource.

    The resource is one of: a consumer in Placement, an image, surplus backups, accelerators, ports, the resources of
    ports in Placement, volumes, snapshots of volumes, or resources on a host, which is called until it answers. Some
    rows release nothing: they send the volume service the status of a snapshot.
    """
    RELEASES[type(work.arguments(ReleaseArguments))](work)


def _call_host(work: Work[Outputs]) -> None:
    """Call a compute's RPC method. Its host, name and arguments are stored in the operation row (a pending release).

    Raises Unanswered if the host is down, so that the operation is retried.
    """
    serializer, args = objects.base.Serializer(), work.arguments(HostRelease)
    # An older release of Kilonova, whose RPC method had other arguments, may have written the row.
    # Leave out stored arguments that this release's method does not have.
    taken = Compute.arguments(args.method)
    kwargs = {
        name: serializer.deserialize_entity(work.ctxt, value) for name, value in args.kwargs.items() if name in taken
    }
    try:
        work.call_host(args.host, Compute.methods()[args.method], **kwargs)
    except HostDown as error:
        raise Unanswered(who=args.host, reason=str(error)) from error


def hosts_left(work: Work[Any]) -> list[str]:
    """Return the hosts that may still run a guest of the server, because they have not cleaned up after an operation.

    These are the hosts of the server's pending releases. A host whose compute service an operator has forced down or
    deleted is left out, because no guest runs on it.
    """
    with engine.silence():
        with work.db.read() as conn:
            rows = operations.of_instance(conn, work.instance_uuid)
        # If a row's arguments cannot be parsed, its host is read from the column ``host``.
        hosts = {host for row in rows if row.kind == RELEASE and (host := _host_of(row))}
        return [host for host in sorted(hosts) if not work.env.liveness.is_fenced(work.db, host)]


def _host_of(row: OperationRow) -> str | None:
    """Return the host that must do something for this pending release, or None if it is a release without a host."""
    args = row.arguments(ReleaseArguments)
    if isinstance(args, HostRelease):
        return args.host
    return row.host if row.unreadable else None


def _release_requests(work: Work[Outputs]) -> None:
    """Delete the accelerator requests in the arguments. Raises HostNotFenced if their host may still run the guest."""
    args = work.arguments(AcceleratorRequestsRelease)
    if args.accelerators_at in hosts_left(work):
        raise HostNotFenced(host=args.accelerators_at)
    work.env.accelerators.delete(args.accelerator_requests)


def _release_accelerators(work: Work[Outputs]) -> None:
    """Delete the accelerator requests that are bound to a holder, except those on hosts that may still run the guest.

    Raises HostNotFenced if requests on such hosts are left.
    """
    client, hosts = work.env.accelerators, hosts_left(work)
    holder = work.arguments(AcceleratorsRelease).accelerators_of
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
    """Return the ids of the user's own ports that pending releases of the server have yet to unbind.

    In Neutron these ports may still belong to the server. They must be unbound, not deleted like ports that Kilonova
    created.
    """
    with engine.silence(), work.db.read() as conn:
        rows = operations.of_instance(conn, work.instance_uuid)
    pending = [row.arguments(ReleaseArguments) for row in rows if row.kind == RELEASE]
    known = [args for args in pending if isinstance(args, PortsRelease) and args.is_complete]
    return {port_id for args in known for port_id in args.ports_given}


def give_back_ports(work: Work[Any], own: Collection[str], keep: Collection[str] = ()) -> None:
    """Release the server's ports in Neutron, except the ports in ``keep``.

    Ports that the user created are unbound: the ports in ``own``, and those that a pending release lists as created by
    the user. All other ports are deleted.
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
    """Raise Unanswered if an operation of the server runs or waits. Pending releases don't count."""
    with engine.silence(), work.db.read() as conn:
        _check_rest(conn, work.instance_uuid)


def _check_rest(conn: engine.Connection, uuid: str) -> None:
    if any(row.slot in (operations.RUN, operations.WAIT) for row in operations.of_instance(conn, uuid)):
        raise Unanswered(f'Another operation works on server {uuid}')


def _release_ports(work: Work[Outputs]) -> None:
    """Release the ports of the server that are not in its info cache.

    All ports are released if the server is deleted. Raises Unanswered while an operation works on the server, because
    the operation may add ports that are not in the info cache yet.
    """
    with engine.silence(), work.db.read() as conn:
        _check_rest(conn, work.instance_uuid)
        server = instances.get(conn, work.instance_uuid)
    cache = json.loads(server['extra_network_info'] or '[]') if server is not None else []
    give_back_ports(work, work.arguments(PortsRelease).ports_given, [vif['id'] for vif in cache])


def _release_resources(work: Work[Outputs]) -> None:
    """Release the resources that the server holds in Placement for a port, unless the server has the port again.

    Raises Unanswered while an operation works on the server, because the server may hold resources that its ports don't
    show yet. The operations of the server are checked again before each write to Placement.
    """

    def check() -> None:
        check_no_running_operation(work)
        work.compare_now()

    with engine.silence(), work.db.read() as conn:
        _check_rest(conn, work.instance_uuid)
        server = instances.get(conn, work.instance_uuid)
    args = work.arguments(PortResourcesRelease)
    cache = json.loads(server['extra_network_info'] or '[]') if server is not None else []
    guarantees.settle(
        work.env,
        work.instance_uuid,
        args.classes,
        check,
        but=None if args.resources_of in [vif['id'] for vif in cache] else args.resources_of,
    )


def give_back_volumes(work: Work[Any], keep: Collection[str], delete: Collection[str]) -> None:
    """Delete the server's volume attachments except those in ``keep``, then delete the volumes in ``delete``.

    ``keep`` are ids of attachments, and ``delete`` are ids of volumes. Raises Unanswered if the volume service is still
    writing an image to an attached volume. Such an attachment is not deleted, because the volume service would mark the
    volume as reserved for the server when the image is written.
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
        raise Unanswered(f'Cannot delete an attachment yet, because Cinder is writing an image to volume {written}')
    for volume_id in delete:
        client.delete_volume(volume_id)


def end_migration(work: Work[Any], volume_id: str, target_id: str, swapped: bool) -> None:
    """Tell the volume service whether the swap of a migrating volume has succeeded, so that it ends the migration.

    If ``swapped`` is True, the guest uses the volume ``target_id`` now, otherwise it still uses ``volume_id``. Call
    this after the attachment of the unused volume was deleted. Repeated calls are safe.
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
        # At the end of a migration, Cinder restores the volume's former status 'in-use'.
        # If the server has no attachment to the volume any more, set the volume's status to 'available'.
        if client.volume(None, volume_id).status == 'in-use' and all(one.volume_id != volume_id for one in held):
            client.call_available(volume_id)
    if swapped:
        _call_as(work, {one.id: one.volume_id for one in held}, volume_id)


def _call_as(work: Work[Any], held: Mapping[str, str], volume_id: str) -> None:
    """Correct the server's block_device_mapping rows after a volume migration, in which Cinder swaps volume ids.

    A row with ``volume_id`` gets the volume id of its attachment in Cinder. Other rows are not changed. ``held`` is a
    dict from attachment id to volume id, as Cinder returned them.
    """
    with engine.silence(), work.db.write() as conn:
        for row in volumes.of_servers(conn, [work.instance_uuid]).get(work.instance_uuid, ()):
            known = held.get(row['attachment_id'] or '', volume_id)
            if row['volume_id'] == volume_id != known:
                LOG.warning(
                    'Writing volume id %s instead of %s to block_device_mapping: Cinder swapped the volume ids',
                    known,
                    volume_id,
                    instance_uuid=work.instance_uuid,
                )
                volumes.change(conn, row['uuid'], row['attachment_id'], {'volume_id': known})


def _kept_attachments(work: Work[Outputs]) -> list[str]:
    """Return the ids of the attachments in the server's volume rows.

    The list is empty if the server is deleted or has no cell. Raises Unanswered while an operation works on the server,
    because the operation may create attachments that are not in the rows yet.
    """
    with engine.silence(), work.db.read() as conn:
        _check_rest(conn, work.instance_uuid)
        server = instances.get(conn, work.instance_uuid) if work.db is not work.env.api else None
    return [row['attachment_id'] for row in server['extra_volumes']] if server is not None else []


def _release_swap(work: Work[Outputs]) -> None:
    """Delete the server's attachments in Cinder that are not in its volume rows, and end a volume migration.

    The migrating volume, its target, and whether the guest uses the target are arguments of the operation row.
    """
    give_back_volumes(work, _kept_attachments(work), ())
    end_migration(work, *work.arguments(SwapRelease).volume_swapped)


def _release_volumes(work: Work[Outputs]) -> None:
    """Delete the server's attachments in Cinder that are not in its volume rows, then delete volumes.

    Deletes the volumes that the arguments of the operation row list, and, if the arguments say so, all volumes that
    were created for the server.
    """
    kept, args = _kept_attachments(work), work.arguments(VolumesRelease)
    made = work.env.volumes.made_for(work.instance_uuid) if args.volumes_made else []
    give_back_volumes(work, kept, [*args.volumes_deleted, *made])


def _release_snapshots(work: Work[Outputs]) -> None:
    """Delete the snapshots that were created for an image, and the image, unless the image became active."""
    image_id = work.arguments(SnapshotsRelease).snapshots_of
    with contextlib.suppress(ImageNotFound):
        if work.env.images.get(image_id)['status'] == 'active':
            return
        work.env.drop_image(image_id)
    for snapshot_id in work.env.volumes.snapshots_for(image_id):
        work.env.volumes.delete_snapshot(snapshot_id)


def tell_snapshot(work: Work[Any], snapshot_id: str, status: str, progress: str | None = None) -> str | None:
    """Send the volume service the new status of a snapshot that the volume service is creating or deleting.

    The ``progress`` '90%' means that the host has done its part. Returns None if the service accepts the status, else
    the text of its refusal. Raises Unanswered if the service does not answer, or refuses this conductor's account.
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
        raise Unanswered(f'The volume service did not accept the status of snapshot {snapshot_id}: {error}') from error
    return None


def _rotate(work: Work[Outputs]) -> None:
    """Delete the oldest backups of the server, so that ``rotation`` backups stay (an argument of the operation row).

    Only active images of this backup type that belong to the requesting project are counted and deleted. The backup
    that was just made counts as the newest. So it is deleted only if ``rotation`` is 0.
    """
    args = work.arguments(BackupsRelease)
    wanted = {
        'image_type': 'backup',
        'backup_type': args.backup_type,
        'instance_uuid': work.instance_uuid,
        'owner': work.ctxt.project_id or '',
        'status': 'active',
    }
    found = work.env.images.find({**wanted, 'sort_key': 'created_at', 'sort_dir': 'desc'}, MOST_BACKUPS)
    # The properties are checked here again, because an image service may return images that do not have them.
    ours = [record['id'] for record in found if all(record.get(name) == value for name, value in wanted.items())]
    newest_first = sorted(ours, key=lambda image_id: image_id != args.image_id)
    for image_id in newest_first[args.rotation :]:
        LOG.info(
            'Deleting image %s: the server has more than %s backups',
            image_id,
            args.rotation,
            instance_uuid=work.instance_uuid,
        )
        work.env.drop_image(image_id)


def _delete_allocations(work: Work[Outputs]) -> None:
    work.env.placement.delete_allocations(work.arguments(ConsumerRelease).consumer)


def _drop_image(work: Work[Outputs]) -> None:
    work.env.drop_image(work.arguments(ImageRelease).image_id)


def _tell_snapshot(work: Work[Outputs]) -> None:
    tell_snapshot(work, *work.arguments(SnapshotStatusRelease).snapshot_told)


# Functions that release a resource, by the class of the operation's arguments.
RELEASES: dict[type[ReleaseArguments], Callable[[Work[Outputs]], None]] = {
    ConsumerRelease: _delete_allocations,
    BackupsRelease: _rotate,
    ImageRelease: _drop_image,
    AcceleratorRequestsRelease: _release_requests,
    PortsRelease: _release_ports,
    PortResourcesRelease: _release_resources,
    SwapRelease: _release_swap,
    VolumesRelease: _release_volumes,
    SnapshotsRelease: _release_snapshots,
    SnapshotStatusRelease: _tell_snapshot,
    AcceleratorsRelease: _release_accelerators,
    HostRelease: _call_host,
}


class Release(Flow[Outputs]):
    """The operation that releases a resource later, for example on a host that was down (a pending release)."""

    name, outputs = 'release', Outputs
    forward_only = True
    steps = (Step('release', release, saved=False),)


def update_aggregate(work: Work[Outputs]) -> None:
    """Add a host's nodes to an aggregate in Placement, or remove them, as the API database says now.

    An API process could not do this when it changed the aggregate. Later changes of the aggregate are included.
    """
    args = work.arguments(SyncAggregateArguments)
    with engine.silence():
        aggregates.bring_up_to_date(work.env.placement, work.env.api, work.env.cells, args.aggregate, args.host)


class SyncAggregate(Flow[Outputs]):
    """The operation that updates an aggregate in Placement."""

    name, outputs = aggregates.KIND, Outputs
    forward_only = True
    steps = (Step('update_aggregate', update_aggregate, saved=False, formerly='mirror'),)

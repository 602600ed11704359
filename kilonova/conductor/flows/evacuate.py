"""Flow of an evacuation: begin_evacuation, select, claim_and_move, evacuate_instance, mark_evacuated.

An evacuation builds a server again on another host, because its host (the source) is down. The source must be fenced:
an operator has declared, by forcing its service down, that no guest runs on it. An operation row (a pending release)
records that the source has to release the server's resources. The source does this when it starts again and before it
counts as up (``compute.evacuated``). If the evacuation fails, the server stays unchanged on the source.
"""

from __future__ import annotations

from dataclasses import replace

from kilonova import objects
from kilonova.accel import holder
from kilonova.conductor.ending import Ending
from kilonova.conductor.flows import accelerators, releases
from kilonova.conductor.flows.moving import (
    Choosing,
    Rechosen,
    allocated_spec,
    as_before,
    claim_and_move,
    create_migration,
    image,
    migration,
    select,
    undo_claim_and_move,
)
from kilonova.conductor.flows.network import port_moves
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.work import Step, Work
from kilonova.db import engine
from kilonova.db.arguments.moves import EvacuateArguments
from kilonova.db.arguments.releases import AcceleratorsRelease, ConsumerRelease, HostRelease
from kilonova.db.queries import instances, migrations
from kilonova.db.queries import metadata as pairs
from kilonova.db.queries.operations import OperationRow, insert
from kilonova.errors import Conflict, NoValidHost
from kilonova.rpc.compute import Compute
from kilonova.virt.hardware import constraints

EVENT, ON_HOST = 'rebuild_server', 'compute_rebuild_instance'
EvacuateWork = Work[Rechosen]


class NotFenced(Conflict):
    """The compute service of the source host is not forced down, so its hypervisor may still run the guest."""

    msg_fmt = (
        'The compute service of host %(host)s is not forced down (any more): its hypervisor may still run the '
        'server, so the server is not started on another host.'
    )


def begin_evacuation(work: EvacuateWork) -> None:
    """Set the server's task state for the evacuation, and insert the migration's row.

    An operation of the server that ran when the evacuation was accepted has ended by now, and may have moved the
    server. Raises NotFenced if the server is on a host that is not fenced now, and InstanceInvalidState if the server's
    state does not allow an evacuation.
    """
    _check_fenced(work, work.instance_row(fresh=True)['host'])
    with engine.silence(), work.db.write() as conn:
        if not instances.transition(conn, work.instance_uuid, 'evacuate.begin'):
            raise instances.refuse(conn, work.instance_uuid, 'evacuate.begin')
    create_migration(work)


def choose(work: EvacuateWork) -> None:
    """Ask the scheduler to choose hosts for the server, with the image that the server has now."""
    _follow_image(work)
    select(work)


def _follow_image(work: EvacuateWork) -> None:
    """If the server has another image now than in the evacuation's arguments, replace the image in the arguments.

    The API stored the new image of a running rebuild if it accepted the evacuation during the rebuild. The server has
    the old image again if the rebuild was then undone.
    """
    server = work.instance()
    kept = objects.ImageMeta.from_system_metadata(server.system_metadata, server.image_ref or None)
    if kept.to_dict() == image(work):
        return
    spec = work.request_spec()
    spec.image, spec.numa_topology = kept, constraints.of(server.flavor, kept.properties)
    args = work.arguments(EvacuateArguments)
    work.args = replace(args, image=kept.to_dict(), request_spec=spec.obj_to_primitive())


def evacuate_instance(work: EvacuateWork) -> None:
    """Bind the server's ports and attach its volumes to the chosen host, and ask this host to build the server.

    Raises NotFenced if the service of the source is no longer forced down.
    """
    host, moved, args = work.chosen(), migration(work), work.arguments(EvacuateArguments)
    _check_fenced(work, moved.source_compute)
    _follow_image(work)
    port_moves.to_host(work, host)
    volumes.to_host(work, host.host)
    with engine.silence(), work.db.write() as conn:
        instances.add_event_once(conn, work.instance_uuid, work.request_id, work.event(EVENT, host=work.env.host))
    instance = work.instance(fresh=True)
    with engine.silence(), work.db.read() as conn:
        # The host writes the user's metadata to the config drive, and creates the disks from the rows of block devices.
        instance.metadata = pairs.get(conn, work.instance_uuid)
        rows = instances.get_bdms(conn, work.instance_uuid)
    work.env.notify.emit(work.ctxt, 'instance.rebuild_scheduled', instance=instance)
    work.call_host(
        host.host,
        Compute.evacuate_instance,
        order=objects.EvacuateOrder(
            instance=instance,
            image=image(work),
            migration=moved,
            request_spec=allocated_spec(work),
            sealed=args.sealed,
            limits=host.scheduler_limits,
            power_on=not _stays_off(work),
            shared=args.shared,
            block_devices=list(objects.BlockDeviceMappingList.of_server(work.ctxt, work.instance_uuid, rows)),
        ),
    )


def _check_fenced(work: EvacuateWork, source: str) -> None:
    """Raise NotFenced if the host's service exists and is not forced down."""
    if not work.env.liveness.is_fenced(work.db, source):
        raise NotFenced(host=source)


def _stays_off(work: EvacuateWork) -> bool:
    return bool(work.arguments(EvacuateArguments).stays_off) or work.instance_row()['vm_state'] == 'stopped'


def undo_evacuate_instance(work: EvacuateWork) -> None:
    """Ask the chosen host to destroy the guest and to release its claim. Bind ports and volumes to the source again.

    Ports and volumes are kept if another host will be tried. If the chosen host is down and may run the guest, the undo
    is retried until the host answers or an operator forces it down: otherwise there could be a second guest.
    """
    if work.outputs.select is None:
        return
    instance, moved = work.instance(fresh=True), migration(work)

    host = work.chosen().host

    def may_run() -> bool:
        # Return True if the host may have started the guest.
        # A host writes its name to the migration's row, together with its claim, before it starts the guest.
        return moved.dest_compute == host and not work.cancelled

    releases.ask_to_undo(
        work,
        host,
        Compute.undo_evacuate_instance,
        as_before(work),
        may_run,
        instance=instance,
        migration=moved,
    )
    if work.failed:
        port_moves.to_source(work, moved, instance.availability_zone, agent_away=True)
        volumes.to_host(work, moved.source_compute)


def mark_evacuated(work: EvacuateWork) -> None:
    """Set the server's state to ACTIVE or SHUTOFF, and add pending releases for the server's resources on the source.

    The resources are the server's files and devices on the source, its old allocation and its old accelerators.
    """
    moved, instance = migration(work), work.instance(fresh=True)
    event = 'rebuild.stopped' if _stays_off(work) else 'rebuild.active'
    ours = objects.base.Serializer()
    source = OperationRow.new(
        work.ctxt,
        'release',
        work.instance_uuid,
        HostRelease(
            host=moved.source_compute,
            method='clean_evacuated',
            kwargs={
                name: ours.serialize_entity(work.ctxt, value)
                for name, value in (('instance', instance), ('migration', moved))
            },
        ),
        beside=True,
        host=moved.source_compute,
    )
    held = [
        OperationRow.new(work.ctxt, 'release', work.instance_uuid, ConsumerRelease(consumer=moved.uuid), beside=True)
    ]
    bound: dict[str, str | None] = {}
    if accelerators.wanted_by(instance.flavor):
        held.append(
            OperationRow.new(
                work.ctxt,
                'release',
                work.instance_uuid,
                AcceleratorsRelease(accelerators_of=holder.of(instance.uuid, instance.system_metadata)),
                beside=True,
            )
        )
        bound = holder.came(moved.uuid)

    def end(conn: engine.Connection) -> None:
        uuid = work.instance_uuid
        if not instances.transition(conn, uuid, event, {'launched_at': instances.utcnow()}):
            raise instances.refuse(conn, uuid, event)
        instances.update_extra(conn, uuid, {'migration_context': None})
        migrations.update(conn, moved.uuid, {'status': 'done'})
        instances.set_system_metadata(conn, uuid, bound)
        insert(conn, [source, *held])
        instances.finish_action(conn, uuid, work.request_id)

    work.end(end)
    work.env.runner.wake(work.db, [row.uuid for row in held], urgent=True)
    work.env.notify.emit(work.ctxt, 'instance.rebuild.end', instance=instance, moved=event, host=instance.host)


class Evacuate(Choosing[Rechosen]):
    """The operation that evacuates a server from a host that is down."""

    name, outputs = 'evacuate', Rechosen
    steps = (
        Step('begin_evacuation', begin_evacuation, saved=False, formerly='create_migration'),
        Step('select', choose),
        Step('claim_and_move', claim_and_move, undo_claim_and_move, again_from='claim_and_move'),
        Step('evacuate_instance', evacuate_instance, undo_evacuate_instance, again_from='claim_and_move'),
        Step('mark_evacuated', mark_evacuated),
    )

    def ended_badly(self, work: EvacuateWork) -> None:
        """Write the server's state and host as before the evacuation, with a fault and the events of the failure."""
        put_back = as_before(work)
        row, power_state = work.instance_row(), work.arguments(EvacuateArguments).power_state

        def as_it_was(conn: engine.Connection) -> None:
            put_back(conn)
            instances.update(conn, work.instance_uuid, {'power_state': power_state})

        names = (EVENT, ON_HOST) if work.position >= self.index('evacuate_instance') else (EVENT,)
        Ending(
            before=as_it_was,
            event='rebuild.failed',
            fault=True,
            migration='error',
            events=[work.event(name, 'Error', work.env.host) for name in names],
            once=True,
            failed=True,
        ).end(work)
        if (work.error or {}).get('class') == NoValidHost.__name__:
            work.env.notify.emit(
                work.ctxt,
                'compute_task.rebuild_server.error',
                instance_uuid=work.instance_uuid,
                request_spec=work.request_spec(),
                state=row['vm_state'],
                record=work.error,
            )

"""Live migration: create_migration · check_source · select · claim_and_move · check_destination · pre_live_migration ·
live_migration · post_live_migration_at_destination · clean_source · drop_allocation · mark_migrated.

Until the guest has gone every step has its undo, and a migration that fails leaves the server on the source as it was.
A guest that has gone isn't fetched back: whatever fails afterwards, and whoever cancels it, the server is the
destination's and what is left to do is done (``settle``). Which of the two it is the hypervisors know: the source says
whether it has the guest, and if not the destination; while one that must be asked is away it is waited for, so that no
server ever has two guests.
"""
from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Any

from kilonova import objects
from kilonova.accel import holder
from kilonova.conductor.flows import accelerators, beside, port_moves, resize, volumes
from kilonova.conductor.flows.resize import Choosing, Rechosen, allocated_spec, chosen, migration, second_guest
from kilonova.conductor.work import HostGone, Parked, Step, Work
from kilonova.db import engine
from kilonova.db.queries import instances, migrations
from kilonova.errors import (
    DisksUnmovable,
    HostRejected,
    KilonovaError,
    LeaseLost,
    LiveMigrationAborted,
    MigrationPreCheckError,
    Unanswered,
)
from kilonova.rpc.interface import VersionCapError

LOG = logging.getLogger(__name__)


@dataclass
class LiveOutputs(Rechosen):
    """``guest``: what the source said of it; ``offer``: what the destination said; ``gone``: whether the guest has left
    the source (None: not known yet)."""

    guest: dict[str, Any] | None = None
    offer: dict[str, Any] | None = None
    gone: bool | None = None


LiveWork = Work[LiveOutputs]


# --- the steps -------------------------------------------------------------------------------------------------------
def check_source(work: LiveWork) -> None:
    """The guest runs there, and this is what it needs. A host that is down has none that could be carried away."""
    source = migration(work).source_compute
    guest = work.ask(source, 'check_can_live_migrate_source', instance=work.instance())
    _check_release(work, source, guest)
    work.outputs.guest = guest


def _check_release(work: LiveWork, host: str, said: dict[str, Any]) -> None:
    """MigrationPreCheckError: a compute of the release before moves no guest with volumes."""
    if work.instance().volumes and 'volumes' not in said:
        raise MigrationPreCheckError(reason=f'the compute service of host {host} is of an older release, which moves '
                                            f'no running guest with volumes')


def undo_check_source(work: LiveWork) -> None:
    """The guest goes on where a migration held it; nothing of it is elsewhere any more."""
    if work.outputs.offer is not None or _by_user(work):
        _ask_to_abort(work, resume=True)


def check_destination(work: LiveWork) -> None:
    """The destination compares and claims; how the guest gets there."""
    host = chosen(work)
    order = objects.LiveMigrationCheckOrder(
        instance=work.instance(), migration=migration(work), request_spec=allocated_spec(work),
        limits=host.scheduler_limits, guest=work.outputs.guest, block=work.args['block'],
        over_commit=work.args['over_commit'])
    work.outputs.offer = work.ask(host.host, 'check_can_live_migrate_destination', order=order)
    work.changed()


def undo_check_destination(work: LiveWork) -> None:
    """The destination forgets the guest that was on its way, its disks and the claim."""
    if work.outputs.select is not None:
        beside.ask_to_undo(work, chosen(work).host, 'rollback_live_migration_at_destination',
                           order=_undo(work, gone=False))
        port_moves.renounce(work, chosen(work).host)
        volumes.renounce(work, chosen(work).host)


def _order(work: LiveWork) -> objects.LiveMigrationOrder:
    return objects.LiveMigrationOrder(instance=work.instance(), migration=migration(work), guest=work.outputs.guest,
                                      offer=work.outputs.offer)


def _undo(work: LiveWork, resume: bool = False, gone: bool | None = None) -> objects.LiveMigrationUndo:
    # Said once: by the first order that the source gets.
    first = not resume or work.position < FLOW.index('live_migration')
    return objects.LiveMigrationUndo(instance=work.instance(fresh=True), migration=migration(work), resume=resume,
                                     aborted=first and _by_user(work), gone=gone)


def _by_user(work: LiveWork) -> bool:
    """Whether a user aborted it."""
    return work.error is not None and work.error['class'] == LiveMigrationAborted.__name__


def _end_actions(work: LiveWork, conn: engine.Connection, result: str) -> None:
    """The event and the end of its action, and of the one that aborted it."""
    instances.add_events(conn, work.instance_uuid, work.request_id, [
        work.event('conductor_live_migrate_instance', result, work.env.host)])
    instances.finish_action(conn, work.instance_uuid, work.request_id, None if result == 'Success' else result)
    if work.error is not None and _by_user(work):
        request = work.error['request_id']
        event = {**work.event('compute_live_migration_abort', host=migration(work).source_compute), 'details': None,
                 'traceback': None}
        instances.add_events(conn, work.instance_uuid, request, [event])
        instances.finish_action(conn, work.instance_uuid, request)


def pre_live_migration(work: LiveWork) -> None:
    """The destination makes room for disks, and connects volumes. The server's ports are bound there, too, and its
    volumes attached."""
    host = chosen(work).host
    port_moves.announce(work, chosen(work), allocated_spec(work).pci_requests)
    volumes.announce(work, host)
    said = work.ask(host, 'pre_live_migration', order=_order(work))
    _check_release(work, host, said)
    work.outputs.offer = {**(work.outputs.offer or {}), **said}


def live_migration(work: LiveWork) -> None:
    """The source carries the guest away, without ports that are functions of its devices. From here on nothing is
    undone."""
    source, vifs = migration(work).source_compute, _functions(work)
    if vifs:
        work.ask(source, 'unplug_functions', instance=work.instance(), vifs=vifs)
    work.ask(source, 'live_migration', order=_order(work))
    work.outputs.gone = True


def undo_live_migration(work: LiveWork) -> None:
    """No migration runs any more, and the guest has all its ports again."""
    _ask_to_abort(work, resume=False)
    vifs = _functions(work)
    if vifs:
        beside.ask_to_undo(work, migration(work).source_compute, 'undo_unplug_functions',
                           instance=work.instance(fresh=True), vifs=vifs)


def _functions(work: LiveWork) -> list[dict[str, Any]]:
    """The server's ports that are functions of PCI devices, where it is."""
    return [vif.stored() for vif in work.vifs() if vif.is_function]


def _arriving(work: LiveWork) -> objects.Instance:
    """The server with the devices that it has at the destination."""
    server = work.instance(fresh=True)
    context = server.migration_context
    if context is not None and 'new_pci_requests' in context:
        server.pci_requests = context.new_pci_requests
    return server


def _ask_to_abort(work: LiveWork, resume: bool) -> None:
    beside.ask_to_undo(work, migration(work).source_compute, 'undo_live_migration', order=_undo(work, resume=resume))


def post_live_migration_at_destination(work: LiveWork) -> None:
    """The server is the destination's, and so are its ports and volumes. The guest gets functions of devices there."""
    moved = migration(work)
    work.ask(chosen(work).host, 'post_live_migration_at_destination', instance=work.instance(), migration=moved)
    port_moves.arrived(work, chosen(work).host, moved.source_compute)
    volumes.arrived(work, chosen(work).host)
    work.changed()
    vifs = _functions(work)
    if vifs:
        work.ask(chosen(work).host, 'plug_functions', instance=_arriving(work), vifs=vifs)


def clean_source(work: LiveWork) -> None:
    """What the source kept goes; a source that is down does it when it is back."""
    order, host = _order(work), migration(work).source_compute
    try:
        work.ask(host, 'post_live_migration', order=order)
    except HostGone:
        beside.pend(work, host, 'post_live_migration', order=order)
    volumes.forget_source(work)


def drop_allocation(work: LiveWork) -> None:
    """What the migration held in Placement goes; before it the accelerators that the server had."""
    server = work.instance()
    if accelerators.wanted_by(server.flavor):
        accelerators.drop(work, holder.of(server.uuid, server.system_metadata))
    work.env.placement.delete_allocations(work.args['migration_uuid'])


def mark_migrated(work: LiveWork) -> None:
    """The end: as before, elsewhere."""
    extra, bound = _arrived(work), _bound(work)

    def end(conn: engine.Connection) -> None:
        _migrated(work, conn, extra, bound)
        _end_actions(work, conn, 'Success')
    work.end(end)


def _arrived(work: LiveWork) -> dict[str, str | None]:
    """Columns of instance_extra once the server is the destination's: its place on the NUMA cells there, and the
    devices that it asked for there. Until then both ends read them from the migration context."""
    server = work.instance()
    context = server.migration_context
    extra: dict[str, str | None] = {'migration_context': None}
    if context is not None and context.new_numa_topology is not None:
        extra['numa_topology'] = context.new_numa_topology.to_json()
    if context is not None and 'new_pci_requests' in context and context.new_pci_requests is not None:
        extra['pci_requests'] = context.new_pci_requests.to_column()
    return extra


def _bound(work: LiveWork) -> dict[str, str | None]:
    """System metadata: the accelerators that the server has from now on."""
    return holder.came(work.args['migration_uuid']) if accelerators.wanted_by(work.instance().flavor) else {}


def _migrated(work: LiveWork, conn: engine.Connection, extra: dict[str, str | None],
              bound: dict[str, str | None]) -> None:
    instances.transition(conn, work.instance_uuid, 'live_migrate.done')
    instances.update_extra(conn, work.instance_uuid, extra)
    instances.set_system_metadata(conn, work.instance_uuid, bound)
    migrations.update(conn, work.args['migration_uuid'], {'status': 'completed'})


# --- a migration that was ended --------------------------------------------------------------------------------------
def has_gone(work: LiveWork) -> bool:
    """Whether the guest is no longer on the source; no migration runs afterwards, so that it stays so.

    GuestMayRun: who would have to say is away, and may run it.
    """
    if work.outputs.gone is None:
        order = _undo(work)
        found = _at_source(work, order)
        # By post-copy it may have gone to a destination that has lost it since: the disks there are the newer ones.
        work.outputs.gone = found['switched'] or (not found['active'] and _has_arrived(work, order))
        work.decide({'position': work.position}, cancelled=True)
    return work.outputs.gone


def _at_source(work: LiveWork, order: objects.LiveMigrationUndo) -> dict[str, bool]:
    """'active', 'switched': what the source says of the guest; neither if it is away."""
    nothing = {'active': False, 'switched': False}
    try:
        answer = work.ask(order.migration.source_compute, 'undo_live_migration', order=order)
    except (HostGone, VersionCapError):
        return nothing
    except (Unanswered, LeaseLost):
        raise
    except KilonovaError:
        # Its hypervisor is away: after some tries the destination says all there is to know.
        if work.outputs.tries < beside.UNDO_TRIES:
            raise
        return nothing
    # A compute of the release before says nothing of the second.
    return {**nothing, **answer}


def _has_arrived(work: LiveWork, order: objects.LiveMigrationUndo) -> bool:
    host = chosen(work).host
    try:
        answer = work.ask(host, 'rollback_live_migration_at_destination', order=order)
    except HostGone:
        second = second_guest(work, order.instance, host)
        if second is not None:
            raise second from None
        return False
    return bool(answer['arrived'])


def settle(work: LiveWork) -> None:
    """The server is the destination's, though the operation was ended: what the source kept, the migration held and
    Cyborg has for the source goes, and the end is written. A destination that is down receives it when it is back."""
    moved, host = migration(work), chosen(work)
    beside.ask_to_undo(work, host.host, 'rollback_live_migration_at_destination', order=_undo(work, gone=True))
    work.changed()
    port_moves.arrived(work, host.host, moved.source_compute)
    volumes.arrived(work, host.host)
    work.changed()
    vifs = _functions(work)
    if vifs:
        beside.pend(work, host.host, 'plug_functions', instance=_arriving(work), vifs=vifs)
    beside.pend(work, moved.source_compute, 'post_live_migration', order=_order(work))
    volumes.forget_source(work, later=True)
    drop_allocation(work)
    extra, bound = _arrived(work), _bound(work)

    def end(conn: engine.Connection) -> None:
        instances.put_back(conn, work.instance_uuid, {'host': host.host, 'node': moved.dest_node},
                           {moved.source_compute, host.host})
        _migrated(work, conn, extra, bound)
        _end_actions(work, conn, 'Error')
    work.end(end)


class LiveMigrate(Choosing[LiveOutputs]):
    name, outputs = 'live_migrate', LiveOutputs
    steps = (
        Step('create_migration', functools.partial(resize.create_migration, status='accepted')),
        Step('check_source', check_source, undo_check_source),
        Step('select', resize.select),
        Step('claim_and_move', resize.claim_and_move, resize.undo_claim_and_move, again_from='claim_and_move'),
        Step('check_destination', check_destination, undo_check_destination, again_from='claim_and_move'),
        # Undone by check_destination's: disks and claim go together.
        Step('pre_live_migration', pre_live_migration, again_from='claim_and_move'),
        # The source refuses before it begins: it can't reach this destination.
        Step('live_migration', live_migration, undo_live_migration, again_from='claim_and_move'),
        Step('post_live_migration_at_destination', post_live_migration_at_destination),
        Step('clean_source', clean_source),
        Step('drop_allocation', drop_allocation, saved=False),
        Step('mark_migrated', mark_migrated),
    )

    def next_attempt(self, work: LiveWork, step: Step[LiveOutputs], error: HostRejected) -> bool:
        """Of the source's refusals only that of the way to this destination comes before the guest may have gone."""
        if step.do is live_migration and not isinstance(error, DisksUnmovable):
            return False
        return super().next_attempt(work, step, error)

    def unwind(self, work: LiveWork) -> None:
        """Back, unless the guest has gone: then to the end."""
        position = self.index('live_migration')
        if work.position < position:
            super().unwind(work)
            return
        work.at(position, self.steps[position].name)
        try:
            work.compare()
            gone = has_gone(work)
            if gone:
                settle(work)
        except (LeaseLost, Unanswered, Parked):
            raise
        except Exception as error:
            LOG.exception('%s: the end of %s could not be found', self.name, work.instance_uuid)
            work.give_back(error)
            return
        if gone:
            work.close()
        else:
            super().unwind(work)

    def ended_badly(self, work: LiveWork) -> None:
        """The server is as it was; its fault and event say why."""
        put_back = resize.as_before(work)

        def end(conn: engine.Connection) -> None:
            uuid = work.instance_uuid
            put_back(conn)
            if instances.transition(conn, uuid, 'live_migrate.failed') and not _by_user(work):
                instances.add_fault(conn, uuid, work.fault())
            migrations.update(conn, work.args['migration_uuid'],
                              {'status': 'cancelled' if _by_user(work) else 'error'})
            _end_actions(work, conn, 'Error')
        work.end(end)


FLOW = LiveMigrate()

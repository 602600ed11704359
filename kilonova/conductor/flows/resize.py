"""Resize and cold migrate: create_migration · select · claim_and_move · prep_resize · resize_instance · finish_resize ·
save_spec · mark_resized.

One owner, every step with its undo: a failed or refused move leaves the server as it was, the reason is in its event.
The PCI requests are those of the new flavor (the API put them into the request spec), tied to the providers that
Placement allocated (``with_allocation``), so the host claims the very devices.
"""
from __future__ import annotations

import functools
import logging
from typing import Any

from kilonova import objects
from kilonova.clients.placement import PlacementInvalid
from kilonova.conductor.environment import silence
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import boot, move
from kilonova.conductor.work import Step, Work
from kilonova.db import engine
from kilonova.db.queries import instances, migrations
from kilonova.errors import HostRejected, NoValidHost, PlacementConflict
from kilonova.pci import request as pci_request

LOG = logging.getLogger(__name__)

# Choices of one move, counted together: each time another move was quicker, so others got on meanwhile.
CHOICES = 10


def create_migration(work: Work) -> None:
    """The migration row; its uuid was chosen when the request was accepted."""
    row = work.instance_row()
    flavor = new_flavor(work)
    values = {'uuid': work.args['migration_uuid'], 'instance_uuid': work.instance_uuid, 'status': 'pre-migrating',
              'migration_type': work.args['migration_type'], 'source_compute': row['host'],
              'source_node': row['node'], 'old_instance_type_id': row['instance_type_id'],
              'new_instance_type_id': flavor.id, 'user_id': work.ctxt.user_id, 'project_id': work.ctxt.project_id}
    with silence():
        _write_migration(work, values)


@engine.retried
def _write_migration(work: Work, values: dict[str, Any]) -> None:
    with work.db.write() as conn:
        migrations.create(conn, values)


def new_flavor(work: Work) -> objects.Flavor:
    """The flavor after the move."""
    return objects.base.Serializer().deserialize_entity(work.ctxt, work.args['flavor'])


def select(work: Work) -> list[dict[str, Any]]:
    """Hosts for the new flavor, behind those that refused before; nothing is claimed yet."""
    refused = work.outputs.get('select', [])[:work.attempt - 1]
    work.before_sending()
    found = work.env.select_destinations(
        work.ctxt, spec_obj=move.request_spec(work), instance_uuids=[work.instance_uuid], return_objects=True,
        return_alternates=True, claim=False, time_left=boot.SELECT_DEADLINE)
    return refused + boot.as_outputs(found[0])


def claim_and_move(work: Work) -> None:
    """One POST: the destination's allocation to the server, its present one to the migration."""
    host = boot.chosen(work)
    try:
        work.env.placement.move_allocation(
            work.instance_uuid, work.args['migration_uuid'], new=host['allocations'], mappings=host['mappings'],
            project_id=work.ctxt.project_id, user_id=work.ctxt.user_id, check=work.compare_now)
    except (PlacementConflict, PlacementInvalid) as error:
        # Invalid: Placement doesn't know one of its providers (any more).
        raise HostRejected(reason=f"{host['host']}: {error}") from error


def undo_claim_and_move(work: Work) -> None:
    """The server gets its allocation back."""
    if 'select' in work.outputs:
        work.env.placement.move_back(work.instance_uuid, work.args['migration_uuid'], work.compare_now)


def _spec(work: Work) -> objects.RequestSpec:
    spec = move.request_spec(work)
    if spec.pci_requests is not None:
        spec.pci_requests = pci_request.with_allocation(spec.pci_requests, boot.chosen(work)['mappings'])
    return spec


def prep_resize(work: Work) -> dict[str, Any]:
    """The destination claims for the new flavor and says where the disk shall go."""
    host = boot.chosen(work)
    result = work.ask(host['host'], 'prep_resize', order=objects.PrepResizeOrder(
        instance=work.instance(), image=move.image(work), migration=move.migration(work), flavor=new_flavor(work),
        request_spec=_spec(work), limits=boot.limits_of(host)))
    work.changed()
    return result


def undo_prep_resize(work: Work) -> None:
    """The destination gives back what it claimed."""
    if 'select' in work.outputs:
        work.ask_to_undo(boot.chosen(work)['host'], 'undo_prep_resize', instance=work.instance(fresh=True),
                         migration=move.migration(work))


def resize_instance(work: Work) -> dict[str, Any]:
    """The source powers the guest off and carries its disk."""
    source = move.migration(work)
    result = work.ask(source.source_compute, 'resize_instance', order=objects.ResizeOrder(
        instance=work.instance(), image=move.image(work), migration=source, flavor=new_flavor(work),
        clean_shutdown=work.args.get('clean_shutdown', True),
        disk=(work.outputs.get('prep_resize') or {}).get('disk')))
    work.changed()
    return result


def undo_resize_instance(work: Work) -> None:
    """The source takes the server back as it was: disk, devices, power state."""
    source = move.migration(work)
    work.ask_to_undo(source.source_compute, 'undo_resize_instance', instance=work.instance(fresh=True),
                     migration=source)
    work.changed()


def finish_resize(work: Work) -> None:
    """The destination builds the guest from the new flavor and the new devices."""
    host = boot.chosen(work)
    work.ask(host['host'], 'finish_resize', order=objects.FinishResizeOrder(
        instance=work.instance(), image=move.image(work), migration=move.migration(work), request_spec=_spec(work),
        disk_info=work.outputs.get('resize_instance')))
    work.changed()


def undo_finish_resize(work: Work) -> None:
    """The destination destroys the new guest, before the source starts the old one."""
    instance = work.instance(fresh=True)
    work.ask_to_undo(boot.chosen(work)['host'], 'undo_finish_resize', instance=instance, migration=move.migration(work),
                     may_run=functools.partial(move.second_guest, work, instance))
    work.changed()


def save_spec(work: Work) -> None:
    """The stored request spec is from now on the new flavor's."""
    move.save_spec(work, move.request_spec(work))


def undo_save_spec(work: Work) -> None:
    """The stored request spec is the old flavor's again."""
    if work.args.get('old_request_spec'):
        move.save_spec(work, move.request_spec(work, 'old_request_spec'))


def mark_resized(work: Work) -> None:
    """VERIFY_RESIZE."""
    vm_state = work.instance_row()['vm_state']

    def end(conn: Any) -> None:
        if not instances.transition(conn, work.instance_uuid, 'resize.done'):
            raise instances.refuse(conn, work.instance_uuid, 'resize.done')
        instances.set_system_metadata(conn, work.instance_uuid, {'old_vm_state': vm_state})
        migrations.update(conn, work.args['migration_uuid'], {'status': 'finished'})
        instances.add_events(conn, work.instance_uuid, work.request_id, [
            move.stored_event(work, name) for name in ('conductor_migrate_server', 'cold_migrate')])
        instances.finish_action(conn, work.instance_uuid, work.request_id)
    row = work.instance() if work.env.notify.enabled else None
    work.end(end)
    if row is not None:
        work.env.notify.emit(work.ctxt, 'instance.resize_finish.end', instance=row, moved='resize.done', host=row.host)


class Resize(Flow):
    name = 'resize'
    steps = (
        Step('create_migration', create_migration, saved=False),
        Step('select', select),
        Step('claim_and_move', claim_and_move, undo_claim_and_move, again_from='claim_and_move'),
        Step('prep_resize', prep_resize, undo_prep_resize, again_from='claim_and_move'),
        # The source refuses before it stops the guest: it can't reach this destination.
        Step('resize_instance', resize_instance, undo_resize_instance, again_from='claim_and_move'),
        Step('finish_resize', finish_resize, undo_finish_resize),
        Step('save_spec', save_spec, undo_save_spec),
        Step('mark_resized', mark_resized, saved=False),
    )

    def next_attempt(self, work: Work, step: Step, error: HostRejected) -> bool:
        """The next alternate. Without one, where Placement gave the very devices to somebody else since they were
        chosen, the scheduler chooses again: others may be free on the same host."""
        if super().next_attempt(work, step, error):
            return True
        made = work.outputs.get('choices', 1)
        if not isinstance(error.__cause__, PlacementConflict) or made == CHOICES:
            return False
        work.outputs['choices'] = made + 1
        work.undo_attempt(self.index('select'), error)
        self._undo_attempt(work)
        return True

    def exhausted(self, work: Work, error: HostRejected) -> Exception:
        refusals = [*work.outputs.get('refusals', []), str(error)]
        return NoValidHost(reason=f'Hosts said: {"; ".join(refusals)}')

    def ended_badly(self, work: Work) -> None:
        """The server is as it was; its fault and event say why."""
        put_back = move.as_before(work)

        def end(conn: Any) -> None:
            uuid = work.instance_uuid
            put_back(conn)
            if instances.transition(conn, uuid, 'resize.failed'):
                instances.add_fault(conn, uuid, work.fault())
            migrations.update(conn, work.args['migration_uuid'], {'status': 'error'})
            instances.add_events(conn, uuid, work.request_id, [
                move.stored_event(work, name, 'Error') for name in ('conductor_migrate_server', 'cold_migrate')])
            instances.finish_action(conn, uuid, work.request_id, 'Error')
        state = work.instance_row()['vm_state'] if work.env.notify.enabled else None
        work.end(end)
        if state is not None and (work.error or {}).get('class') == NoValidHost.__name__:
            work.env.notify.emit(work.ctxt, 'compute_task.migrate_server.error', instance_uuid=work.instance_uuid,
                                 request_spec=move.request_spec(work), state=state, record=work.error)


FLOW = Resize()

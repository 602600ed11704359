"""Boot: select · create_instance · claim · build.

The row lives in the api database until ``create_instance`` hands it over to the chosen cell (operations.md rule 19).
The first host is claimed by the scheduler, an alternate by ``claim``. A server that no host takes is buried in cell0
while no cell is recorded, else it stays in its cell as ERROR; the fault says why.
"""
from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from kilonova import objects, states
from kilonova.clients.placement import PlacementInvalid, same_allocations
from kilonova.conductor.environment import HostsSilent, silence
from kilonova.conductor.flow import Flow
from kilonova.conductor.work import GuestMayRun, Step, Work
from kilonova.db import engine
from kilonova.db.queries import build_requests, instance_mappings, instances, operations, request_specs
from kilonova.errors import (
    BuildAbort,
    Cancelled,
    GroupPolicyViolated,
    HostRejected,
    LeaseLost,
    MaxRetriesExceeded,
    PlacementConflict,
    Unanswered,
)
from kilonova.pci import request as pci_request

LOG = logging.getLogger(__name__)

# After this many seconds a scheduler that still works on our question must not claim any more (rule 9).
SELECT_DEADLINE = 60.0


def spec_of(work: Work) -> objects.RequestSpec:
    """The request spec that travels in the row."""
    return objects.base.Serializer().deserialize_entity(work.ctxt, work.args['request_spec'])


def selections(work: Work) -> list[dict[str, Any]]:
    """What ``select`` came to: [{host, node, compute_node_uuid, cell_uuid, allocations, mappings,
    availability_zone}]."""
    return work.outputs['select']


def chosen(work: Work) -> dict[str, Any]:
    """The host of this attempt."""
    return selections(work)[work.attempt - 1]


def as_outputs(found: Sequence[objects.Selection]) -> list[dict[str, Any]]:
    """Selections as what the row keeps of them."""
    plan = []
    for selection in found:
        request = json.loads(selection.allocation_request) if selection.allocation_request else {}
        zone = selection.availability_zone if 'availability_zone' in selection else None
        plan.append({'host': selection.service_host, 'node': selection.nodename,
                     'compute_node_uuid': selection.compute_node_uuid, 'cell_uuid': selection.cell_uuid,
                     'allocations': request.get('allocations', {}), 'mappings': request.get('mappings') or {},
                     'availability_zone': zone,
                     'limits': selection.limits.obj_to_primitive() if selection.limits is not None else None})
    return plan


def limits_of(host: dict[str, Any]) -> objects.SchedulerLimits | None:
    """How far the claim on a chosen host may go, where a filter said so."""
    stored = host.get('limits')
    return objects.SchedulerLimits.obj_from_primitive(stored) if stored else None


def select(work: Work) -> list[dict[str, Any]]:
    """Ask the scheduler; it claims the first host in Placement."""
    return _select([work])[0]


def _select(works: Sequence[Work]) -> list[list[dict[str, Any]]]:
    first = works[0]
    for work in works:
        work.before_sending()
    answered = True
    try:
        found = first.env.select_destinations(
            first.ctxt, spec_obj=spec_of(first), instance_uuids=[work.instance_uuid for work in works],
            return_objects=True, return_alternates=True, claim=True, time_left=SELECT_DEADLINE,
            operations=[work.uuid for work in works])
    except HostsSilent:
        raise
    except Unanswered:
        answered = False
        raise
    finally:
        for work in works:
            work.select_answered = answered
    return [as_outputs(hosts) for hosts in found]


def choose_again(work: Work) -> None:
    """Further alternates, of the cell that the server is in; none is claimed yet. There may be none. NoValidHost: by
    now nobody could take the server, and why."""
    work.before_sending()
    found = work.env.select_destinations(
        work.ctxt, spec_obj=spec_of(work), instance_uuids=[work.instance_uuid], return_objects=True,
        return_alternates=True, claim=False, time_left=SELECT_DEADLINE)
    cell, tried = chosen(work)['cell_uuid'], selections(work)[:work.attempt]
    # Who forces a host is told it again and again.
    closed = {tried[attempt - 1]['host'] for attempt in overtaken(work)}
    work.outputs['select'] = tried + [host for host in as_outputs(found[0])
                                      if host['cell_uuid'] == cell and host['host'] not in closed]


def overtaken(work: Work) -> list[int]:
    """The attempts whose host others of the server's group took first. They don't count as attempts."""
    found: list[int] = work.outputs.get('overtaken', [])
    return found


def undo_select(work: Work) -> None:
    """Give back what the scheduler claimed; an unanswered question may still claim until its deadline."""
    work.env.placement.drop(work.instance_uuid, work.compare_now)
    if 'select' not in work.outputs and not work.select_answered:
        work.select_answered = True
        # Once more after the deadline.
        work.add_release({'consumer': work.instance_uuid}, ('consumer',), delay=SELECT_DEADLINE)


def create_instance(work: Work) -> dict[str, Any]:
    """Hand-over: the server and the row into the cell (b), then the api row, build request and mapping (c)."""
    cell = work.env.cells.by_uuid(chosen(work)['cell_uuid'])
    owner = work.env.runner.owner_in(cell)
    work.env.runner.check_lease(cell, owner)
    with silence():
        new_id = _insert_server(work, cell, owner)
        if not _end_api_row(work, cell):
            # The build request is gone: deleted meanwhile. The api row stays and unwinds what is in the cell.
            work.cancelled = True
            raise Cancelled(key=work.uuid)
    work.handed_over(cell, owner, FLOW.index('build'))
    return {'id': new_id}


@engine.retried
def _insert_server(work: Work, cell: Any, owner: str) -> int:
    instance = _requested(work)
    rows = instance.to_rows()
    # From the cell the first attempt goes on at ``build``: its host is claimed already.
    row = work.row_of(owner, FLOW.index('build'))
    with cell.write() as conn:
        new_id, created = instances.create(
            conn, 'build.start', rows.values, rows.extra, rows.system_metadata or {}, rows.metadata or {},
            work.args.get('tags') or (), work.args.get('bdms') or ())
        if created:
            operations.insert(conn, [row])
            instances.start_action(conn, work.instance_uuid, action_of(work))
        else:
            operations.own(conn, work.uuid, owner)
    return new_id


@engine.retried
def _end_api_row(work: Work, cell: Any) -> bool:
    """(c), from which on the cell's row counts; False, and nothing written, when the build request is gone."""
    with work.env.api.write() as conn:
        # It comes first and locks: an early delete of the same moment finds it gone, or it finds itself gone.
        if not build_requests.destroy(conn, work.instance_uuid):
            # Or written, and only the answer to its COMMIT was lost.
            return engine.repeated() and _lives_in(conn, work, cell)
        if not operations.end_owned(conn, work.uuid, work.owner, cancelled=True):
            raise LeaseLost(operation=work.uuid)
        instance_mappings.set_cell(conn, work.instance_uuid, cell_id(work, cell))
    return True


def _lives_in(conn: Any, work: Work, cell: Any) -> bool:
    """Whether the mapping says that the server lives in this cell: its hand-over was completed."""
    return instance_mappings.cells_of(conn, [work.instance_uuid]).get(work.instance_uuid) == cell_id(work, cell)


def cell_id(work: Work, cell: Any) -> int:
    """The cell_mappings id of a cell's database."""
    return work.env.cells.id_of(cell)


def action_of(work: Work) -> dict[str, Any]:
    """The create action's columns."""
    return {'action': 'create', 'request_id': work.request_id, 'user_id': work.ctxt.user_id,
            'project_id': work.ctxt.project_id}


def _requested(work: Work) -> objects.Instance:
    """The server as the API asked for it, with the devices' providers of this attempt in its PCI requests."""
    instance = objects.base.Serializer().deserialize_entity(work.ctxt, work.args['instance'])
    if instance.pci_requests is not None and instance.pci_requests.requests and 'select' in work.outputs:
        instance.pci_requests = pci_request.with_allocation(instance.pci_requests, chosen(work)['mappings'])
    return instance


def undo_create_instance(work: Work) -> None:
    """While the api row counts: what the hand-over put into the cell goes. Later the end state says what became of
    it."""
    if work.db is not work.env.api or 'select' not in work.outputs:
        return
    cell = work.env.cells.by_uuid(selections(work)[0]['cell_uuid'])
    with silence():
        _take_out_of_cell(work, cell)


@engine.retried
def _take_out_of_cell(work: Work, cell: Any) -> None:
    with cell.write() as conn:
        operations.end(conn, work.uuid, work.instance_uuid)
        instances.mark_deleted(conn, work.instance_uuid)


def claim(work: Work) -> None:
    """Claim an alternate in Placement (the first host was claimed by the scheduler), in place of what the server has
    there for the host that refused it: one write, so that its generation tells a late one from this."""
    if work.attempt == 1:
        return
    host = chosen(work)
    held = work.env.placement.get_allocations(work.instance_uuid)
    if same_allocations(held['allocations'], host['allocations']):
        return
    work.compare_now()
    try:
        work.env.placement.claim(work.instance_uuid, host['allocations'], host['mappings'],
                                 project_id=work.ctxt.project_id, user_id=work.ctxt.user_id,
                                 generation=held.get('consumer_generation'))
    except (PlacementConflict, PlacementInvalid) as error:
        # Invalid: Placement doesn't know one of its providers (any more).
        raise HostRejected(reason=f"{host['host']}: {error}") from error


def build(work: Work) -> None:
    """The host claims, spawns and writes the end state; with it the row goes."""
    host, attempt = chosen(work), work.attempt
    instance = _requested(work)
    instance.id = work.outputs['create_instance']['id']
    spec = spec_of(work)
    spec.pci_requests = instance.pci_requests
    alternates = [other['host'] for other in selections(work)[attempt:]]
    LOG.debug('Selected host: %s; Selected node: %s; Alternates: %s', host['host'], host['node'], alternates)
    instance.availability_zone = host['availability_zone'] or instance.availability_zone
    if work.env.notify.enabled:
        # Nothing but notifications tells them.
        instance.tags = objects.TagList.from_words(work.ctxt, work.instance_uuid, work.args.get('tags') or ())
    work.ask(host['host'], 'build_and_run_instance', order=objects.BuildOrder(
        instance=instance, image=work.args['image'] or {}, request_spec=spec, sealed=work.args.get('sealed'),
        attempt=attempt, limits=limits_of(host), block_devices=list(objects.BlockDeviceMappingList.of_server(
            work.ctxt, work.instance_uuid, work.args.get('bdms') or ()))))
    work.ended_by_host()


def undo_build(work: Work) -> None:
    """The host destroys what there is of the guest and gives its devices back."""
    if 'select' not in work.outputs or 'create_instance' not in work.outputs:
        return
    instance = _requested(work)
    instance.id = work.outputs['create_instance']['id']
    host = chosen(work)['host']

    def may_run(host: str) -> Exception | None:
        # No claim of this attempt is accepted any more: a host that has none can't have gone further.
        if work.failed or work.instance_row(fresh=True)['host'] != host:
            return None
        with silence():
            if work.env.hearing.is_fenced(work.db, host):
                return None
        return MaxRetriesExceeded(reason=f'{GuestMayRun(host=host).message}. No other host was tried for instance '
                                         f'{work.instance_uuid}')
    work.ask_to_undo(host, 'undo_build', may_run=may_run, instance=instance, write=lambda conn: instances.leave_host(
        conn, work.instance_uuid, host, expect={'vm_state': states.VmState.BUILDING.value}))


class Boot(Flow):
    """Many creates of one request are selected together (rule 3); from ``create_instance`` on each goes alone."""

    name = 'boot'
    steps = (
        Step('select', select, undo_select),
        Step('create_instance', create_instance, undo_create_instance, saved=False),
        Step('claim', claim, again_from='claim', saved=lambda work: work.attempt > 1),
        Step('build', build, undo_build, again_from='claim', saved=False),
    )

    def select_together(self, works: Sequence[Work]) -> None:
        """One select for all; their outputs in one transaction. A failure fails each with the same reason."""
        for work in works:
            work.check()
        try:
            plans = _select(works)
        except Unanswered:
            return
        except Exception as error:  # noqa: BLE001 - whatever select raised becomes the fault of each server
            for work in works:
                try:
                    work.fail(error)
                except (LeaseLost, Cancelled, Unanswered) as other:
                    LOG.info('operation %s: %s', work.uuid, other)
            return
        for work, plan in zip(works, plans, strict=True):
            try:
                work.done(self.steps[0], plan)
            except Cancelled:
                LOG.info('operation %s was cancelled while its host was chosen', work.uuid)
            except (LeaseLost, Unanswered) as other:
                LOG.info('operation %s: %s', work.uuid, other)
                work.position = 0

    def next_attempt(self, work: Work, step: Step, error: HostRejected) -> bool:
        if isinstance(error, GroupPolicyViolated):
            work.outputs['overtaken'] = sorted({*overtaken(work), work.attempt})
            if not self.more_attempts(work):
                # Where the others are now is known, and was not when the alternates were chosen.
                choose_again(work)
        return super().next_attempt(work, step, error)

    def more_attempts(self, work: Work) -> bool:
        counted = work.attempt - len(overtaken(work))
        return work.attempt < len(selections(work)) and counted < work.env.max_attempts

    def exhausted(self, work: Work, error: HostRejected) -> Exception:
        uuid = work.instance_uuid
        # A fault's column is short: the server is named once, what several hosts say is said once.
        said = dict.fromkeys(
            refusal.replace(f'Build of instance {uuid} was re-scheduled: ', '').replace(f' {uuid}', '')
            for refusal in (*work.outputs.get('refusals', []), str(error)))
        return MaxRetriesExceeded(reason=f'Exhausted all hosts available for retrying build failures for instance '
                                         f'{uuid}. Hosts said: {"; ".join(said)}')

    def run(self, work: Work) -> None:
        if work.db is not work.env.api:
            try:
                if _is_orphan(work):
                    LOG.warning('Operation %s of %s was left behind by a hand-over that never was: it goes', work.uuid,
                                work.instance_uuid)
                    _take_out_of_cell(work, work.db)
                    work.lost()
                    return
            except Unanswered as error:
                work.give_back(error)
                return
        # The position after create_instance was written by the hand-over itself; claim and build save none.
        if work.position > 1 and 'create_instance' not in work.outputs and not work.failed:
            try:
                work.outputs['create_instance'] = {'id': work.instance_row()['id']}
            except Unanswered as error:
                work.give_back(error)
                return
        super().run(work)

    def ended_badly(self, work: Work) -> None:
        if work.db is work.env.api:
            state = _end_in_api(work)
        else:
            state = _end_in_cell(work)
        if state is not None:
            _notify(work, state)


def _is_orphan(work: Work) -> bool:
    """A row in a cell where the server doesn't live: its owner put it there when it was no owner any more, and whoever
    was ended the operation without it."""
    with silence(), work.env.api.read() as conn:
        return not _lives_in(conn, work, work.db) and not operations.existing(conn, [work.uuid])


def _notify(work: Work, state: str) -> None:
    """A server that could not be scheduled, and its vm state now. What a host's failure was, the host has told."""
    kind = (work.error or {}).get('class')
    if work.env.notify.enabled and kind not in (None, BuildAbort.__name__, Cancelled.__name__):
        work.env.notify.emit(work.ctxt, 'compute_task.build_instances.error', instance_uuid=work.instance_uuid,
                             request_spec=spec_of(work), state=state, record=work.error)


def _end_in_api(work: Work) -> str | None:
    """No cell is recorded: bury the server in cell0, unless it was deleted meanwhile. Its vm state, if it is there."""
    with silence(), work.env.api.read() as conn:
        asked = build_requests.exists(conn, work.instance_uuid)
    if not asked:
        work.end(lambda conn: _forget(conn, work.instance_uuid))
        return None
    cell0 = work.env.cells.cell0()
    with silence():
        _bury(work, cell0)

    def end(conn: Any) -> None:
        kept = build_requests.destroy(conn, work.instance_uuid)
        instance_mappings.set_cell(conn, work.instance_uuid, cell_id(work, cell0))
        if not kept:
            work.outputs['early_delete'] = True
    work.end(end)
    if work.outputs.get('early_delete'):
        with silence(), cell0.write() as conn:
            instances.mark_deleted(conn, work.instance_uuid)
        return None
    return states.VmState.ERROR.value


@engine.retried
def _bury(work: Work, cell0: Any) -> None:
    instance = _requested(work)
    rows = instance.to_rows()
    moment = instances.utcnow()
    with cell0.write() as conn:
        _, created = instances.create(conn, 'build.buried', rows.values, rows.extra, rows.system_metadata or {},
                                      rows.metadata or {}, work.args.get('tags') or ())
        if created:
            instances.start_action(conn, work.instance_uuid, {**action_of(work), 'message': 'Error',
                                                              'finish_time': moment})
            instances.add_events(conn, work.instance_uuid, work.request_id, [{
                'event': 'conductor_schedule_and_build_instances', 'result': 'Error', 'start_time': work.created_at,
                'finish_time': moment, 'details': (work.error or {}).get('message'),
                'traceback': (work.error or {}).get('details')}])
            instances.add_fault(conn, work.instance_uuid, work.fault())


def _forget(conn: Any, instance_uuid: str) -> None:
    """An early delete: nothing of the request stays."""
    build_requests.destroy(conn, instance_uuid)
    request_specs.destroy(conn, instance_uuid)
    instance_mappings.destroy(conn, instance_uuid)


def _end_in_cell(work: Work) -> str | None:
    """ERROR with its fault; a server that is being deleted keeps that state, which is given back."""
    state: str | None = states.VmState.ERROR.value

    def end(conn: Any) -> None:
        nonlocal state
        uuid = work.instance_uuid
        if instances.transition(conn, uuid, 'build.failed', {'host': None, 'node': None, 'compute_id': None}):
            instances.add_fault(conn, uuid, work.fault())
        else:
            row = instances.get(conn, uuid)
            state = row['vm_state'] if row is not None else None
        instances.finish_action(conn, uuid, work.request_id, 'Error')
    work.end(end)
    return state


FLOW = Boot()

"""Flow of a boot: select_and_claim, create_instance, prepare_resources, build.

The operation row is in the API database until ``create_instance`` moves it into the chosen cell (operations.md, rule
19). The scheduler claims the first chosen host in Placement. If this host refuses, the step ``prepare_resources``
claims the next one; this step also creates the server's ports. If no host takes the server, the server gets the state
ERROR and a fault with the reason: in its cell, or in cell0 if the server has no cell yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from oslo_log import log as logging

from kilonova import objects, states
from kilonova.clients.placement import PlacementInvalid, same_allocations
from kilonova.conductor.environment import HostsNotReporting
from kilonova.conductor.flow import Flow, reasons
from kilonova.conductor.flows import accelerators, releases
from kilonova.conductor.flows.network import port_releases, port_vifs, ports, requested_ports
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.row import ChosenHost, SelectOutputs
from kilonova.conductor.work import HostNotFenced, RetryLater, Step, Work
from kilonova.db import engine, envelopes
from kilonova.db.arguments.releases import ConsumerRelease
from kilonova.db.arguments.servers import BootArguments
from kilonova.db.queries import (
    build_requests,
    info_caches,
    instance_mappings,
    instances,
    operation_leases,
    operations,
    request_specs,
)
from kilonova.db.queries import volumes as volume_rows
from kilonova.db.queries.cells import CELL0_UUID
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
from kilonova.objects.vif import Vif
from kilonova.pci import request as pci_request
from kilonova.rpc.compute import Compute

LOG = logging.getLogger(__name__)

# Name of the event that the conductor adds to the instance action ``create`` if the boot fails.
EVENT = 'conductor_schedule_and_build_instances'
# Maximum seconds of a call to the scheduler. After that time the scheduler must not claim (operations.md, rule 9).
SELECT_DEADLINE = 60.0


@dataclass
class BootOutputs(SelectOutputs, accelerators.AcceleratorOutputs, ports.PortOutputs):
    """Stored results of a boot.

    Attributes:
        create_instance: {'id': integer id of the server's row in its cell}; None before the row exists.
        overtaken: Numbers of the attempts that failed because of the server group's policy: another member of the group
            was on the host first. These attempts don't count for the maximum number of attempts.
        early_delete: True if the server was deleted before a host was chosen.
        unasked: True while the boot waits for a volume and has not yet created or changed ports and attachments. The
            next try then need not search Neutron and Cinder for ports and attachments of an earlier try.
    """

    create_instance: dict[str, int] | None = None
    overtaken: list[int] = field(default_factory=list)
    early_delete: bool = False
    unasked: bool = False


BootWork = Work[BootOutputs]


def select_and_claim(work: BootWork) -> None:
    """Ask the scheduler to choose hosts and to claim the first host in Placement."""
    (work.outputs.select,) = _select_and_claim([work])


def _select_and_claim(works: Sequence[BootWork]) -> list[list[ChosenHost]]:
    first = works[0]
    for work in works:
        work.before_sending()
    answered = True
    try:
        found = first.env.select_destinations(
            first.ctxt,
            spec_obj=first.request_spec(),
            instance_uuids=[work.instance_uuid for work in works],
            claim=True,
            time_left=SELECT_DEADLINE,
            operations=[work.uuid for work in works],
        )
    except HostsNotReporting:
        raise
    except Unanswered:
        answered = False
        raise
    finally:
        for work in works:
            work.select_answered = answered
    return [ChosenHost.all_of(hosts) for hosts in found]


def choose_again(work: BootWork) -> None:
    """Ask the scheduler for new hosts, and replace the list of alternates by those that are in the server's cell.

    Nothing is claimed. The list of alternates may be empty afterwards. Raises NoValidHost, with the reason, if no host
    can take the server now.
    """
    work.before_sending()
    found = work.env.select_destinations(
        work.ctxt,
        spec_obj=work.request_spec(),
        instance_uuids=[work.instance_uuid],
        claim=False,
        time_left=SELECT_DEADLINE,
    )
    cell, tried = work.chosen().cell_uuid, work.outputs.hosts[: work.attempt]
    # Leave out hosts that an earlier attempt failed on because of the server group's policy.
    # The scheduler may choose such a host again if the user's request forces the server to this host.
    closed = {tried[attempt - 1].host for attempt in work.outputs.overtaken}
    work.outputs.select = tried + [
        choice for choice in ChosenHost.all_of(found[0]) if choice.cell_uuid == cell and choice.host not in closed
    ]


def undo_select_and_claim(work: BootWork) -> None:
    """Delete the allocation that the scheduler claimed, and release the server's volumes.

    Volumes are detached, and volumes that are to be deleted with the server are deleted. This is part of the first
    step's undo, because the volumes were created before the first step. If the scheduler did not reply, it may still
    claim resources until its deadline. Therefore an operation row is added, with which a conductor deletes the
    allocation once more after the deadline.
    """
    if asked := volumes.wanted(work.arguments(BootArguments).bdms):
        volumes.drop(work, volumes.going_with(asked))
    work.env.placement.drop(work.instance_uuid, work.compare_now)
    if work.outputs.select is None and not work.select_answered:
        work.select_answered = True
        # The scheduler may still claim resources. Add an operation row to delete the allocation after the deadline.
        releases.add_release(work, ConsumerRelease(consumer=work.instance_uuid), delay=SELECT_DEADLINE)


def create_instance(work: BootWork) -> None:
    """Insert the server and the operation row into the chosen cell, then delete the row in the API database.

    The insertion and the deletion are the transactions (b) and (c) of rule 19 of operations.md. The transaction that
    deletes the row also deletes the build request and sets the server's mapping. Raises Cancelled if the server was
    deleted in the meantime.
    """
    cell = work.env.cells.by_uuid(work.chosen().cell_uuid)
    owner = work.env.leases.owner_in(cell)
    work.env.leases.check(cell, owner)
    with engine.silence():
        new_id = _insert_server(work, cell, owner)
        if not _end_api_row(work, cell):
            # The build request is gone, so the user has deleted the server in the meantime.
            # The operation row in the API database stays valid. The undo deletes the rows that were copied to the cell.
            raise Cancelled(key=work.uuid)
    work.handed_over(cell, owner, _first_in_cell(work))
    work.just_handed_over = True
    work.outputs.create_instance = {'id': new_id}


def _first_in_cell(work: BootWork) -> int:
    """Return the index in ``steps`` of the step that follows ``create_instance`` in the first attempt.

    The scheduler has already claimed the first host in Placement. So the step ``prepare_resources`` is skipped if the
    server needs no accelerators, ports or volumes.
    """
    return FLOW.index('prepare_resources' if _needs_others(work) else 'build')


def _needs_others(work: BootWork) -> bool:
    """Return whether the server needs accelerators, ports or volumes."""
    args = work.arguments(BootArguments)
    return (
        profile_of(work) is not None
        or bool(requested_ports.wishes(args.request_spec))
        or bool(volumes.wanted(args.bdms))
    )


@engine.retried
def _insert_server(work: BootWork, cell: engine.Database, owner: str) -> int:
    instance, args = _requested(work), work.arguments(BootArguments)
    rows = instance.to_rows()
    row = work.copy_for(owner, _first_in_cell(work))
    with cell.write() as conn:
        new_id, created = instances.create(
            conn,
            'build.start',
            rows.values,
            rows.extra,
            rows.system_metadata or {},
            rows.metadata or {},
            args.tags or (),
            args.bdms or (),
        )
        if created:
            operations.insert(conn, [row])
            instances.start_action(conn, work.instance_uuid, action_of(work))
        else:
            operation_leases.own(conn, work.uuid, owner)
    return new_id


@engine.retried
def _end_api_row(work: BootWork, cell: engine.Database) -> bool:
    """Delete the operation row and the build request in the API database, and set the server's cell.

    After this transaction, the operation row in the cell is the valid one. Returns False, and writes nothing, if the
    build request does not exist any more, because the user has deleted the server.
    """
    with work.env.api.write() as conn:
        # The build request is deleted first, because this statement locks its row.
        # If the user deletes the server at the same time, only one of the two transactions finds the build request.
        if not build_requests.destroy(conn, work.instance_uuid):
            # If this is a repeated try, the first try may have been committed although its reply was lost.
            # If the instance mapping names the cell, the first try was committed: the boot continues.
            return engine.repeated() and _lives_in(conn, work, cell)
        if not operation_leases.end_owned(conn, work.uuid, work.owner, cancelled=True):
            raise LeaseLost(operation=work.uuid)
        instance_mappings.set_cell(conn, work.instance_uuid, cell_id(work, cell))
    return True


def _lives_in(conn: engine.Connection, work: BootWork, cell: engine.Database) -> bool:
    """Return whether the server's instance mapping names this cell, which means that the server is in the cell."""
    return instance_mappings.cells_of(conn, [work.instance_uuid]).get(work.instance_uuid) == cell_id(work, cell)


def cell_id(work: BootWork, cell: engine.Database) -> int:
    """Return the id that a cell has in the table cell_mappings."""
    return work.env.cells.id_of(cell)


def action_of(work: BootWork) -> dict[str, Any]:
    """Return the columns of the instance action ``create`` as a dict."""
    return {
        'action': 'create',
        'request_id': work.request_id,
        'user_id': work.ctxt.user_id,
        'project_id': work.ctxt.project_id,
    }


def _requested(work: BootWork) -> objects.Instance:
    """Return the server as the user requested it, before it is on a host.

    If a host is chosen, the PCI requests name the resource providers of the devices that are allocated on the host.
    """
    stored = work.arguments(BootArguments).instance
    instance: objects.Instance = objects.base.Serializer().deserialize_entity(work.ctxt, stored)
    if work.outputs.select:
        host = work.chosen()
        instance.pci_requests = pci_request.on_host(
            instance.pci_requests,
            work.instance_uuid,
            work.uuid,
            host.compute_node_uuid,
            host.allocations,
            host.mappings,
        )
    return instance


def _created(work: BootWork) -> objects.Instance:
    """Return the server for the call that builds it, as an object made from the arguments of the operation.

    Its id and its attached volumes come from the cell's database.
    """
    instance = _requested(work)
    instance.id = (work.outputs.create_instance or {})['id']
    if volumes.wanted(work.arguments(BootArguments).bdms):
        instance.block_devices = work.instance(fresh=True).block_devices
    return instance


def undo_create_instance(work: BootWork) -> None:
    """Remove the server and the operation row from the cell, if the move into the cell was not completed.

    If the move was completed, nothing is removed, because the server stays in its cell with the state ERROR.
    """
    if work.db is not work.env.api or not work.outputs.select:
        return
    cell = work.env.cells.by_uuid(work.outputs.select[0].cell_uuid)
    with engine.silence():
        _take_out_of_cell(work, cell)


@engine.retried
def _take_out_of_cell(work: BootWork, cell: engine.Database) -> None:
    with cell.write() as conn:
        operations.end(conn, work.uuid, work.instance_uuid)
        instances.mark_deleted(conn, work.instance_uuid)


def prepare_resources(work: BootWork) -> None:
    """Claim the host of this attempt in Placement, request accelerators, create or bind ports, and attach volumes.

    The first host was claimed by the scheduler already. For a further host, one request replaces the server's
    allocation. The request contains the consumer generation, so that Placement refuses the request if it arrives late.
    Accelerator requests are created for the flavor's device profile and for ports. Ports are bound and volumes attached
    to the host of this attempt.
    """
    is_first, args = _await_volumes(work), work.arguments(BootArguments)
    if work.attempt > 1:
        claim_chosen(work)
    profile, accelerated = profile_of(work), requested_ports.profiles(args.request_spec)
    if profile is not None or accelerated:
        accelerators.make(work, profile, accelerated)
    if volumes.wanted(args.bdms):
        volumes.attach_wanted(work, work.chosen(), is_first)
    if requested_ports.wishes(args.request_spec):
        bound = ports.bind_wanted(work, work.chosen(), is_first)
        vifs = work.outputs.vifs = [vif.stored() for vif in bound]
        access = _access_addresses(work, bound)

        def write(conn: engine.Connection) -> None:
            info_caches.write(conn, work.instance_uuid, vifs)
            if access:
                instances.update(conn, work.instance_uuid, access)

        work.write_with_checkpoint(write)


def _await_volumes(work: BootWork) -> bool:
    """Check that the volumes created for the server are ready. Return True if no ports and attachments exist yet.

    The result is False if an earlier try of the step may have created ports or attachments, which the step must then
    search for. Raises RetryLater if a volume is not ready yet, and VolumeNotCreated if Cinder can't create it.
    """
    is_first, work.just_handed_over = work.just_handed_over or work.outputs.unasked, False
    if volumes.wanted(work.arguments(BootArguments).bdms):
        try:
            volumes.await_created(work)
        except RetryLater:
            work.outputs.unasked = is_first
            raise
    if work.outputs.unasked:
        # This step now sends requests to Neutron and Cinder.
        # After a crash, the next try must search Neutron and Cinder for ports and attachments that this try made.
        work.outputs.unasked = False
        work.decide({})
    return is_first


def _access_addresses(work: BootWork, vifs: Sequence[Vif]) -> dict[str, str]:
    """Return the columns access_ip_v4 and access_ip_v6 of the server, as a dict.

    The values are the first addresses in the network [DEFAULT]default_access_ip_network_name. Returns an empty dict if
    the option is not set or the user has requested an access address.
    """
    name = work.env.conf.default_access_ip_network_name
    asked = envelopes.fields(work.arguments(BootArguments).instance)
    if name is None or asked.get('access_ip_v4') or asked.get('access_ip_v6'):
        return {}
    found: dict[str, str] = {}
    for subnet in (subnet for vif in vifs if vif.label == name for subnet in vif.subnets):
        for one in subnet.addresses:
            found.setdefault(f'access_ip_v{subnet.version}', one.address)
    return found


def undo_prepare_resources(work: BootWork) -> None:
    """Delete the accelerator requests and, if no other host will be tried, delete or unbind the ports.

    If another host will be tried, the ports are kept, and the next attempt binds them to that host.
    """
    spec = work.arguments(BootArguments).request_spec
    if work.failed and requested_ports.wishes(spec):
        port_releases.drop(work, requested_ports.given(spec))
    accelerators.unbind(work)


def profile_of(work: BootWork) -> str | None:
    """Return the name of the device profile of the requested flavor, or None."""
    return accelerators.profile_of(envelopes.flavor_of(work.arguments(BootArguments).request_spec))


def claim_chosen(work: Work[Any]) -> None:
    """Write the server's allocation on the host of this attempt to Placement, unless Placement has it already.

    Raises HostRejected if the host no longer has the resources that were free when the scheduler chose it.
    """
    host = work.chosen()
    held = work.env.placement.get_allocations(work.instance_uuid)
    if same_allocations(held['allocations'], host.allocations):
        return
    work.compare_now()
    try:
        work.env.placement.claim(
            work.instance_uuid,
            host.allocations,
            host.mappings,
            project_id=work.ctxt.project_id or '',
            user_id=work.ctxt.user_id or '',
            generation=held.get('consumer_generation'),
        )
    except (PlacementConflict, PlacementInvalid) as error:
        # PlacementInvalid means that Placement does not know one of the resource providers, or no longer knows it.
        raise HostRejected(reason=f'{host.host}: {error}') from error


def build(work: BootWork) -> None:
    """Bind the accelerators to the server. Ask the host to claim resources and to start the guest.

    The host also writes the new state of the server. The same transaction deletes the operation row.
    """
    host, attempt, args = work.chosen(), work.attempt, work.arguments(BootArguments)
    profile, accelerated = profile_of(work), requested_ports.profiles(args.request_spec)
    if profile is not None or accelerated:
        accelerators.bind(work, profile, host, work.instance_uuid, accelerated)
    instance = _created(work)
    spec = work.request_spec()
    spec.pci_requests = instance.pci_requests
    alternates = [other.host for other in work.outputs.hosts[attempt:]]
    LOG.debug(
        'Selected host: %s; Selected node: %s; Alternates: %s',
        host.host,
        host.node,
        alternates,
        instance_uuid=work.instance_uuid,
    )
    instance.availability_zone = host.availability_zone or instance.availability_zone
    port_vifs.cached(instance, work.outputs.vifs or ())
    if work.env.notify.enabled:
        # Add the server's tags, because notifications contain them.
        instance.tags = objects.TagList.from_words(work.ctxt, work.instance_uuid, args.tags or ())
    work.call_host(
        host.host,
        Compute.build_and_run_instance,
        order=objects.BuildOrder(
            instance=instance,
            image=args.image or {},
            request_spec=spec,
            sealed=args.sealed,
            attempt=attempt,
            limits=host.scheduler_limits,
            block_devices=list(
                objects.BlockDeviceMappingList.of_server(work.ctxt, work.instance_uuid, args.bdms or ())
            ),
        ),
    )
    work.ended_by_host()


def undo_build(work: BootWork) -> None:
    """Ask the host of this attempt to destroy the guest and to release the server's devices.

    Raises MaxRetriesExceeded if another host would be tried while this host is down and may run the guest.
    """
    instance = _created(work)
    host = work.chosen().host

    def may_run() -> bool:
        # Return True if this host may run the guest and another host could start a second one.
        # Before a host starts the guest, it writes its name to the server's row. If the row has no host, no guest runs.
        # If the build has failed, no other host is tried.
        return not work.failed and work.instance_row(fresh=True)['host'] == host

    def leave(conn: engine.Connection) -> None:
        instances.leave_host(conn, work.instance_uuid, host, expect={'vm_state': states.VmState.BUILDING.value})

    try:
        releases.ask_to_undo(work, host, Compute.undo_build, leave, may_run, instance=instance)
    except HostNotFenced as error:
        raise MaxRetriesExceeded(
            reason=f'{error.message}. No other host was tried for instance {work.instance_uuid}'
        ) from None


class Boot(Flow[BootOutputs]):
    """The operation that boots a new server.

    If a user creates several servers in one request, their boots are scheduled together (operations.md, rule 3). From
    the step ``create_instance`` on, each boot runs alone.
    """

    name, outputs = 'boot', BootOutputs
    steps = (
        Step('select_and_claim', select_and_claim, undo_select_and_claim, formerly='select'),
        Step('create_instance', create_instance, undo_create_instance, saved=False),
        Step(
            'prepare_resources',
            prepare_resources,
            undo_prepare_resources,
            again_from='prepare_resources',
            saved=lambda work: work.attempt > 1 or _needs_others(work),
            formerly='claim',
        ),
        Step('build', build, undo_build, again_from='prepare_resources'),
    )

    def begin_together(self, works: Sequence[BootWork]) -> None:
        """Ask the scheduler to choose hosts for all these servers in one call.

        If the scheduler replies with an error, each boot fails with this error. If the scheduler does not answer, each
        boot calls the scheduler alone later.
        """
        if len(works) < 2:
            return
        for work in works:
            work.check()
        try:
            plans = _select_and_claim(works)
        except Unanswered:
            return
        except Exception as error:  # noqa: BLE001 - whatever the scheduler raised becomes the fault of each server
            for work in works:
                try:
                    work.fail(error)
                except (LeaseLost, Cancelled, Unanswered) as other:
                    LOG.info('Operation %s: %s', work.uuid, other, instance_uuid=work.instance_uuid)
            return
        for work, plan in zip(works, plans, strict=True):
            try:
                work.outputs.select = plan
                work.done(self.steps[0])
            except Cancelled:
                LOG.info(
                    'Operation %s was cancelled while its host was chosen; it will be undone',
                    work.uuid,
                    instance_uuid=work.instance_uuid,
                )
            except (LeaseLost, Unanswered) as other:
                LOG.info('Operation %s: %s', work.uuid, other, instance_uuid=work.instance_uuid)
                work.position = 0

    def next_attempt(self, work: BootWork, step: Step[BootOutputs], error: HostRejected) -> bool:
        """Undo this attempt and try the next chosen host. Returns False if no host is left.

        An attempt that failed because of the server group's policy does not count. If no host is left after such an
        attempt, the scheduler chooses further hosts.
        """
        if isinstance(error, GroupPolicyViolated):
            work.outputs.overtaken = sorted({*work.outputs.overtaken, work.attempt})
            if not self.more_attempts(work):
                # The other members of the server group have hosts by now, so the scheduler can leave these hosts out.
                choose_again(work)
        return super().next_attempt(work, step, error)

    def more_attempts(self, work: BootWork) -> bool:
        """Return whether a chosen host is left to try and the maximum number of attempts is not reached."""
        counted = work.attempt - len(work.outputs.overtaken)
        return work.attempt < len(work.outputs.hosts) and counted < work.env.max_attempts

    def exhausted(self, work: BootWork, error: HostRejected) -> Exception:
        """Return a MaxRetriesExceeded error with the error messages of all hosts that refused the server."""
        uuid = work.instance_uuid
        # The text begins with the reasons, because the end of a fault's message is cut off if it is too long.
        said = reasons(uuid, [*work.outputs.refusals, str(error)])
        return MaxRetriesExceeded(
            f'Hosts said: {said} (Exceeded maximum number of retries. Exhausted all hosts '
            f'available for retrying build failures for instance {uuid}.)'
        )

    def run(self, work: BootWork) -> None:
        """Run the boot, or delete its operation row if the row was left in a cell that is not the server's cell."""
        if work.db is not work.env.api:
            try:
                if _is_orphan(work):
                    LOG.warning(
                        'Deleting operation %s of server %s, because the server does not belong to this cell',
                        work.uuid,
                        work.instance_uuid,
                        instance_uuid=work.instance_uuid,
                    )
                    _take_out_of_cell(work, work.db)
                    work.lost()
                    return
                if work.outputs.create_instance is None and not work.failed:
                    # This process took over the operation row in the cell, whose outputs lack the id of the server.
                    # The operation row was written before the id of the server's row was known, so read the id now.
                    work.outputs.create_instance = {'id': work.instance_row()['id']}
            except Unanswered as error:
                work.give_back(error)
                return
        super().run(work)

    def ended_badly(self, work: BootWork) -> None:
        """Write the server with the state ERROR to cell0 or to its cell, and send a notification of the failure."""
        if work.db is work.env.api:
            state = _end_in_api(work)
        else:
            state = _end_in_cell(work)
        if state is not None:
            _notify(work, state)


def _is_orphan(work: BootWork) -> bool:
    """Return whether this operation row is in a cell that does not contain the server.

    Such a row is left if a conductor was too slow: a second conductor took the boot over and ended it, and then the
    first conductor, which no longer owned the boot, still inserted this row into the cell. The row must be deleted.
    """
    with engine.silence(), work.env.api.read() as conn:
        return not _lives_in(conn, work, work.db) and not operations.existing(conn, [work.uuid])


def _notify(work: BootWork, state: str) -> None:
    """Send the notification that a server could not be scheduled.

    ``state`` is the present vm state of the server. Nothing is sent if the boot was cancelled, or if it failed on a
    host, because the host has sent another notification.
    """
    kind = (work.error or {}).get('class')
    if work.env.notify.enabled and kind not in (None, BuildAbort.__name__, Cancelled.__name__):
        work.env.notify.emit(
            work.ctxt,
            'compute_task.build_instances.error',
            instance_uuid=work.instance_uuid,
            request_spec=work.request_spec(),
            state=state,
            record=work.error,
        )


def _end_in_api(work: BootWork) -> str | None:
    """End a boot that has no cell yet: record the server in cell0, unless it was deleted in the meantime.

    Returns the server's vm state, or None if it was deleted.
    """
    with engine.silence(), work.env.api.read() as conn:
        asked = build_requests.exists(conn, work.instance_uuid)
    if not asked:
        work.end(lambda conn: _forget(conn, work.instance_uuid))
        return None
    cell0 = work.env.cells.by_uuid(CELL0_UUID)
    with engine.silence():
        _bury(work, cell0)

    def end(conn: engine.Connection) -> None:
        kept = build_requests.destroy(conn, work.instance_uuid)
        instance_mappings.set_cell(conn, work.instance_uuid, cell_id(work, cell0))
        if not kept:
            work.outputs.early_delete = True

    work.end(end)
    if work.outputs.early_delete:
        with engine.silence(), cell0.write() as conn:
            instances.mark_deleted(conn, work.instance_uuid)
        return None
    return states.VmState.ERROR.value


@engine.retried
def _bury(work: BootWork, cell0: engine.Database) -> None:
    instance = _requested(work)
    rows = instance.to_rows()
    moment = instances.utcnow()
    with cell0.write() as conn:
        _, created = instances.create(
            conn,
            'build.buried',
            rows.values,
            rows.extra,
            rows.system_metadata or {},
            rows.metadata or {},
            work.arguments(BootArguments).tags or (),
        )
        if created:
            instances.start_action(
                conn, work.instance_uuid, {**action_of(work), 'message': 'Error', 'finish_time': moment}
            )
            instances.add_events(
                conn,
                work.instance_uuid,
                work.request_id,
                [
                    {
                        'event': EVENT,
                        'result': 'Error',
                        'start_time': work.created_at,
                        'finish_time': moment,
                        'details': (work.error or {}).get('message'),
                        'traceback': (work.error or {}).get('details'),
                    }
                ],
            )
            instances.add_fault(conn, work.instance_uuid, work.fault())


def _forget(conn: engine.Connection, instance_uuid: str) -> None:
    """Delete the request spec and the mapping of a server that the user deleted before it had a cell."""
    request_specs.destroy(conn, instance_uuid)
    instance_mappings.destroy(conn, instance_uuid)


def _end_in_cell(work: BootWork) -> str | None:
    """End a failed boot whose server is in a cell: the server gets the state ERROR and a fault.

    A server that is being deleted keeps its state. Returns the server's vm state afterwards, for the notification of
    the failure, or None if the server's row is deleted.
    """

    def end(conn: engine.Connection) -> str | None:
        uuid = work.instance_uuid
        state: str | None = states.VmState.ERROR.value
        if instances.transition(conn, uuid, 'build.failed', {'host': None, 'node': None, 'compute_id': None}):
            instances.add_fault(conn, uuid, work.fault())
            # The event of the action gets the whole reason, because the message of a fault may be cut off.
            instances.add_events(conn, uuid, work.request_id, [work.event(EVENT, 'Error', work.env.host)])
        else:
            row = instances.get(conn, uuid)
            state = row['vm_state'] if row is not None else None
        instances.finish_action(conn, uuid, work.request_id, 'Error')
        if work.outputs.vifs:
            info_caches.write(conn, uuid, [])
        if volumes.wanted(work.arguments(BootArguments).bdms):
            volume_rows.remove_all(conn, uuid)
        return state

    return work.end(end)


FLOW = Boot()

"""Functions, steps and the base class of flows that move a server to another host, or build it again there.

The flows of resizes, evacuations, live migrations and unshelves use them. The flows of confirms, reverts and rebuilds
use the functions that read the operation's arguments and store request specs. ``Choosing`` is the base class of the
flows in which the scheduler only chooses hosts, and the step ``claim_and_move`` or ``claim`` claims a host in
Placement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from kilonova import objects, states
from kilonova.clients.placement import PlacementInvalid
from kilonova.conductor.flow import Flow, reasons
from kilonova.conductor.flows import accelerators, boot
from kilonova.conductor.flows.network import guarantees, port_moves
from kilonova.conductor.row import ChosenHost, SelectOutputs
from kilonova.conductor.work import Step, Work
from kilonova.db import engine
from kilonova.db.arguments.base import ImageArguments, MigrationArguments
from kilonova.db.arguments.moves import MoveArguments
from kilonova.db.queries import instances, migrations, request_specs
from kilonova.errors import HostRejected, MigrationNotFound, NoValidHost, PlacementConflict, Unanswered
from kilonova.pci import request as pci_request

# Maximum number of times that one move asks the scheduler to choose hosts.
# The scheduler is asked again only if another server took the resources of the last chosen host.
CHOICES = 10
# Maximum number of tries to write a request spec. A try fails if the request spec was changed since it was read.
SAVES = 5


@dataclass
class Rechosen(SelectOutputs, accelerators.AcceleratorOutputs):
    """Stored results of flows that may ask the scheduler to choose hosts several times.

    ``choices`` is the number of times that the scheduler has chosen hosts.
    """

    choices: int = 1


RechosenT = TypeVar('RechosenT', bound=Rechosen)


# --- reading the operation row and the database ----------------------------------------------------------------------
def migration(work: Work[Any]) -> objects.Migration:
    """Read the row of the migration that the operation's arguments name, and return it as an object.

    Raises MigrationNotFound if there is no such row.
    """
    uuid = work.arguments(MigrationArguments).migration_uuid
    with engine.silence(), work.db.read() as conn:
        row = migrations.get(conn, uuid=uuid)
    if row is None:
        raise MigrationNotFound(migration_id=uuid)
    return objects.Migration.from_row(work.ctxt, row)


def image(work: Work[Any]) -> dict[str, Any]:
    """Return the metadata of the server's image, which the API stored in the operation row, or {}."""
    return work.arguments(ImageArguments).image or {}


def new_flavor(work: Work[Any]) -> objects.Flavor:
    """Return the flavor of the server after the move."""
    stored = work.arguments(MoveArguments).flavor
    found: objects.Flavor = objects.base.Serializer().deserialize_entity(work.ctxt, stored)
    return found


def allocated_spec(work: Work[Any]) -> objects.RequestSpec:
    """Return the request spec with PCI requests that name the resource providers of the allocated devices."""
    spec, host = work.request_spec(), work.chosen()
    guarantees.with_groups(spec, work.outputs.port_groups)
    spec.pci_requests = pci_request.on_host(
        spec.pci_requests, work.instance_uuid, work.uuid, host.compute_node_uuid, host.allocations, host.mappings
    )
    return spec


def store_spec(work: Work[Any], spec: objects.RequestSpec) -> None:
    """Store the server's request spec in the API database.

    The operation row is in another database than the request spec. Therefore the function first reads the stored
    request spec, then checks that this process still owns the operation. It writes only if the request spec was not
    changed since the read. Otherwise it tries again. Raises Unanswered if the request spec was changed in each of
    ``SAVES`` tries.
    """
    for _ in range(SAVES):
        with engine.silence(), work.env.api.read() as conn:
            seen = request_specs.get(conn, work.instance_uuid)
        work.compare_now()
        if seen is None:
            return
        with engine.silence():
            if _save(work.env.api, seen, spec.to_json()):
                return
    raise Unanswered(
        f'The request spec of server {work.instance_uuid} was changed during each of {SAVES} attempts to store it'
    )


@engine.retried
def _save(api: engine.Database, seen: dict[str, Any], text: str) -> bool:
    with api.write() as conn:
        return request_specs.save(conn, seen, text)


def had_guest(work: Work[Any]) -> bool:
    """Return whether the server had a running or paused guest before the move.

    If it had, it must have one after the move. Only conductors call this; a host calls
    ``compute.host.must_run_after_move`` to decide whether to start the guest.
    """
    instance = work.instance()
    return bool(instance.system_metadata.get('old_vm_state', instance.vm_state) != states.VmState.STOPPED.value)


def will_have_guest(work: Work[Any], instance: objects.Instance) -> bool:
    """Return whether the source will start the guest again if the move is undone.

    Returns False if the guest was off before the move, or if the server is being deleted. Moves call this if the
    destination is down: if the source starts no guest, the server can't have two guests (``releases.check_no_guest``).
    """
    return had_guest(work) and instance.task_state not in states.ENDING


def as_before(work: Work[Any]) -> Callable[[engine.Connection], None]:
    """Return a function ``write(conn)`` that writes the server's row as it was before a failed move.

    The function is needed because a host may have written new values and may be unable to undo them. Call ``as_before``
    before the transaction begins, because it reads the database itself.
    """
    uuid = work.arguments(MigrationArguments).migration_uuid
    with engine.silence(), work.db.read() as conn:
        row = migrations.get(conn, uuid=uuid)
    server = work.instance(fresh=True)
    if row is None or (server.host, server.instance_type_id) == (row['source_compute'], row['old_instance_type_id']):
        return lambda conn: instances.update_extra(conn, work.instance_uuid, {'migration_context': None})
    context = server.migration_context
    extra = server.go_back(context if context is not None and context.migration_id == row['id'] else None)
    values = {**server.flavor_columns(), 'host': row['source_compute'], 'node': row['source_node']}

    def write(conn: engine.Connection) -> None:
        instances.update_extra(conn, work.instance_uuid, {**extra, 'migration_context': None})
        instances.put_back(conn, work.instance_uuid, values, {row['source_compute'], row['dest_compute']})

    return write


# --- steps -----------------------------------------------------------------------------------------------------------
def create_migration(work: Work[Any], status: str = 'pre-migrating') -> None:
    """Insert the row of the migration, with the status ``status`` and the uuid from the operation's arguments."""
    row, args = work.instance_row(), work.arguments(MoveArguments)
    flavor = new_flavor(work)
    values = {
        'uuid': args.migration_uuid,
        'instance_uuid': work.instance_uuid,
        'status': status,
        'migration_type': args.migration_type,
        'source_compute': row['host'],
        'source_node': row['node'],
        'old_instance_type_id': row['instance_type_id'],
        'new_instance_type_id': flavor.id,
        'user_id': work.ctxt.user_id,
        'project_id': work.ctxt.project_id,
    }
    with engine.silence():
        _write_migration(work, values)


@engine.retried
def _write_migration(work: Work[Any], values: dict[str, Any]) -> None:
    with work.db.write() as conn:
        migrations.create(conn, values)


def select(work: Work[Any]) -> None:
    """Ask the scheduler to choose hosts for the server, without a claim of resources.

    The request to the scheduler includes the ports' resource requests (QoS minimum bandwidth). ``outputs.select`` keeps
    the hosts of the earlier attempts and gets the new hosts after them, because attempt N uses the host number N.
    """
    refused = work.outputs.hosts[: work.attempt - 1]
    spec = work.request_spec()
    port_moves.ask(work, spec)
    work.before_sending()
    found = work.env.select_destinations(
        work.ctxt,
        spec_obj=spec,
        instance_uuids=[work.instance_uuid],
        claim=False,
        time_left=boot.SELECT_DEADLINE,
    )
    work.outputs.select = refused + ChosenHost.all_of(found[0])


def claim_and_move(work: Work[Any]) -> None:
    """Move the server's present allocation to the migration, and allocate the chosen host to the server.

    Placement writes the two allocations by one POST request. Accelerators for the new flavor are bound on the chosen
    host; the server also keeps its present accelerators. Raises HostRejected if the host no longer has the resources.
    """
    host, args = work.chosen(), work.arguments(MoveArguments)
    try:
        work.env.placement.move_allocation(
            work.instance_uuid,
            args.migration_uuid,
            new=host.allocations,
            mappings=host.mappings,
            project_id=work.ctxt.project_id or '',
            user_id=work.ctxt.user_id or '',
            check=work.compare_now,
        )
    except (PlacementConflict, PlacementInvalid) as error:
        # PlacementInvalid means that Placement does not know one of the resource providers, or no longer knows it.
        raise HostRejected(reason=f'{host.host}: {error}') from error
    if (profile := accelerators.profile_of(args.flavor)) is not None:
        accelerators.bind(work, profile, host, args.migration_uuid)


def undo_claim_and_move(work: Work[Any]) -> None:
    """Delete the accelerator requests on the destination. Move the migration's allocation back to the server."""
    accelerators.unbind(work)
    if work.outputs.select is not None:
        uuid = work.arguments(MigrationArguments).migration_uuid
        work.env.placement.move_back(work.instance_uuid, uuid, work.compare_now)


# --- flows -----------------------------------------------------------------------------------------------------------
class Choosing(Flow[RechosenT]):
    """Base class of flows in which the scheduler only chooses hosts, and a later step claims a host in Placement."""

    def next_attempt(self, work: Work[RechosenT], step: Step[RechosenT], error: HostRejected) -> bool:
        """Undo this attempt and try the next chosen host, or ask the scheduler to choose hosts again.

        The scheduler is asked again if no chosen host is left and Placement refused the last claim, because another
        server had taken the resources. The new choice may include this host, for example with another free device.
        Returns False if no host is left to try.
        """
        if super().next_attempt(work, step, error):
            return True
        if not isinstance(error.__cause__, PlacementConflict) or work.outputs.choices == CHOICES:
            return False
        work.outputs.choices += 1
        work.undo_attempt(self.index('select'), error)
        self._undo_attempt(work)
        return True

    def exhausted(self, work: Work[RechosenT], error: HostRejected) -> Exception:
        """Return a NoValidHost error with the error messages of all hosts that refused the server."""
        said = reasons(work.instance_uuid, [*work.outputs.refusals, str(error)])
        return NoValidHost(reason=f'Hosts said: {said}')

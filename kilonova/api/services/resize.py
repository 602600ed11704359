"""Resize and cold migration of servers, confirm and revert: check and accept the requests.

An accepted request becomes an operation row that has all arguments for the conductor. The modules of other moves
(evacuate, live migrate, unshelve) use the helper functions for request specs.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from oslo_utils import uuidutils

from kilonova.api.services import accelerators, create, images, quota, server_operations, unsupported
from kilonova.api.services.backend import Backend
from kilonova.api.services.server_operations import ServerRef
from kilonova.context import RequestContext
from kilonova.db.arguments.moves import ConfirmArguments, ResizeArguments, RevertArguments
from kilonova.db.queries import instances, migrations, operations, request_specs, withdrawals
from kilonova.db.queries.operations import OperationRow
from kilonova.errors import Invalid
from kilonova.objects import (
    CellMapping,
    Destination,
    Flavor,
    Instance,
    InstancePCIRequest,
    InstancePCIRequests,
    RequestSpec,
)
from kilonova.objects.image_meta import NOTHING
from kilonova.pci import ports as pci_ports
from kilonova.virt.hardware import constraints


class CannotResizeToSameFlavor(Invalid):
    """Error 400: the server already has the requested flavor."""

    msg_fmt = 'When resizing, instances must change flavor!'


class CannotResizeDisk(Invalid):
    """Error 400: the new flavor has no root disk, and the server needs one."""

    msg_fmt = 'Server disk was unable to be resized because: %(reason)s'


class CannotMigrateToSameHost(Invalid):
    """Error 400: the requested destination is the server's host."""

    msg_fmt = 'Cannot migrate to the host where the server exists.'


class NotResized(Invalid):
    """Error 400: no resize or cold migration of the server waits for a confirm or revert."""

    msg_fmt = 'Instance has not been resized.'


@dataclass(frozen=True)
class _Move:
    """A resize or cold migration that passed all checks.

    ``kind`` is the migration's type, 'resize' or 'migration'. ``host`` is the destination that an administrator
    requested, or None. ``allowed`` are the quota limits, and ``more`` is a dict from quota resource to the amount that
    the new flavor needs in addition to the old flavor. ``values`` is a dict from column of the server to its new value.
    """

    event: str
    action: str
    kind: str
    flavor: Flavor
    spec: RequestSpec
    old_spec: RequestSpec
    image: dict[str, Any]
    host: str | None = None
    allowed: quota.UserLimits | None = None
    more: dict[str, int] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


# --- requests for a move ---------------------------------------------------------------------------------------------
@quota.settled
def resize(
    backend: Backend, ctxt: RequestContext, server: ServerRef, flavor_ref: str, disk_config: str | None = None
) -> None:
    """Accept a resize of a server to another flavor. A successful resize ends with the status VERIFY_RESIZE.

    The scheduler chooses the host. It may choose the server's own host only if [DEFAULT]allow_resize_to_same_host is
    set. ``disk_config`` ('AUTO' or 'MANUAL') changes the server's diskConfig, None keeps it.

    Raises:
        Invalid: The flavor does not exist, or the flavor and the server's image don't fit together.
        CannotResizeToSameFlavor: The server has this flavor (error 400).
        CannotResizeDisk: The new flavor has no root disk, and the server needs one (error 400).
        OverQuota: The quota has no room for the larger flavor.

    Also raises the errors of ``server_operations.check`` and ``server_operations.accept``.
    """
    server_operations.check(ctxt, server, 'resize.start')
    instance = instance_of(ctxt, server)
    values = (
        {}
        if disk_config is None
        else {
            'auto_disk_config': images.disk_config_of_server(instance.system_metadata, instance.image_ref, disk_config)
        }
    )
    new = _new_flavor(backend, ctxt, instance, flavor_ref)
    image, flavor = images.of_server(instance.system_metadata, instance.image_ref), Flavor.from_row(ctxt, new)
    more = quota.more(backend, quota.sizes(instance.flavor, image), quota.sizes(flavor, image))
    allowed = quota.limits(backend, server.row['project_id'], server.row['user_id'])
    quota.check(backend, allowed, more)
    if instance.is_from_volume:
        images.check_memory(image, new)
    else:
        images.check_fits(image, new, zero_disk_allowed=True)
    # Check whether the extra specs of the new flavor ask for unsupported features.
    # The image's properties were checked when the server was created.
    # Also check that the new flavor and the image do not contradict each other.
    unsupported.check_flavor(flavor.extra_specs)
    create.check_board(flavor, image)
    spec, old_spec = specs_of(backend, ctxt, instance, flavor, image)
    if not backend.options.allow_resize_to_same_host:
        spec.ignore_hosts = [instance.host]
    spec.requested_destination = destination_of(ctxt, server)
    _accept(
        backend,
        ctxt,
        server,
        _Move(
            'resize.start', 'resize', 'resize', flavor, spec, old_spec, image, allowed=allowed, more=more, values=values
        ),
    )


def migrate(backend: Backend, ctxt: RequestContext, server: ServerRef, host: str | None) -> None:
    """Accept a cold migration of a server to another host, with the same flavor.

    ``host`` is the requested destination, which must pass the scheduler's filters, or None to let the scheduler choose.
    Raises CannotMigrateToSameHost if ``host`` is the server's host, HostUnknown if ``host`` does not exist, and the
    errors of ``server_operations.check`` and ``server_operations.accept``.
    """
    server_operations.check(ctxt, server, 'migrate.start')
    instance = instance_of(ctxt, server)
    if host is not None:
        if host == instance.host:
            raise CannotMigrateToSameHost
        create.check_host(backend, host)
    image = images.of_server(instance.system_metadata, instance.image_ref)
    spec, old_spec = specs_of(backend, ctxt, instance, instance.flavor, image)
    # A cold migration must leave the server's host, even if an option allows resizes on the same host.
    spec.ignore_hosts, spec.requested_destination = [instance.host], destination_of(ctxt, server, host)
    _accept(
        backend,
        ctxt,
        server,
        _Move('migrate.start', 'migrate', 'migration', instance.flavor, spec, old_spec, image, host),
    )


def destination_of(ctxt: RequestContext, server: ServerRef, host: str | None = None) -> Destination:
    """Return the Destination of a move: ``host``, or any host of the server's cell if ``host`` is None.

    A move never leaves the cell. The Destination is stored with the request spec, so its CellMapping has only the
    cell's uuid and name. It does not have the URLs of the database and message queue, which contain passwords.
    """
    cell = server.cell.cell
    found = Destination(ctxt, cell=CellMapping(ctxt, uuid=cell.uuid, name=cell.name))
    if host is not None:
        found.host, found.node = host, None
    return found


def send_to(ctxt: RequestContext, server: ServerRef, spec: RequestSpec, host: str | None, *, force: bool) -> None:
    """Set the destination of a move in the request spec ``spec``.

    Without ``force``, ``host`` must pass the scheduler's filters. With ``force``, the filters are not applied to
    ``host``, and ``host`` may be disabled or in another zone or aggregate. If ``host`` is None, the scheduler may
    choose any host of the cell except the server's own.
    """
    spec.ignore_hosts = [server.row['host']]
    spec.requested_destination = destination_of(ctxt, server, None if force else host)
    if force and host is not None:
        spec.force_hosts = [host]
        spec.scheduler_hints = {**(spec.scheduler_hints or {}), '_nova_forced_move': ['true']}


def instance_of(ctxt: RequestContext, server: ServerRef) -> Instance:
    """Return the server as an Instance with its system metadata. Runs one SQL statement."""
    row, extra = instances.split(server.row)
    with server.cell.read() as conn:
        kept = instances.get_system_metadata(conn, server.uuid)
    return Instance.from_row(ctxt, row, extra, system_metadata=kept)


def _new_flavor(backend: Backend, ctxt: RequestContext, instance: Instance, flavor_ref: str) -> dict[str, Any]:
    flavor = create.find_flavor(backend, ctxt, flavor_ref)
    if flavor['flavorid'] == instance.flavor.flavorid:
        raise CannotResizeToSameFlavor
    if not flavor['root_gb'] and instance.flavor.root_gb and not instance.is_from_volume:
        raise CannotResizeDisk(reason='Resize to zero disk flavor is not allowed.')
    return flavor


def specs_of(
    backend: Backend, ctxt: RequestContext, instance: Instance, flavor: Flavor, image: dict[str, Any]
) -> tuple[RequestSpec, RequestSpec]:
    """Return two request specs: a new one for a move of the server (resize, migration, evacuation), and the stored one.

    For a resize, the PCI requests are built from the PCI aliases of the new flavor. If ``flavor`` is the server's own
    flavor, the PCI requests of the instance are used, so that the server can move even if an alias was renamed. The PCI
    requests of ports are always those of the instance. Each PCI request gets a new id, which distinguishes the devices
    on the destination from those on the source.

    Raises Invalid if the flavor and the image contradict each other, and the errors of ``accelerators.groups``.
    """
    old = stored_spec(backend, ctxt, instance, image)
    spec = old.obj_clone()
    stays = flavor is instance.flavor
    of_flavor = _requests_kept(instance) if stays else None
    if of_flavor is None:
        of_flavor = create.pci_requests_of(backend, flavor.extra_specs, image)
    spec.flavor = flavor
    spec.requested_resources = accelerators.groups(backend, ctxt, flavor.extra_specs)
    try:
        spec.numa_topology = create.numa_topology_of(flavor, image)
    except Invalid:
        # Moves without a new flavor (evacuate, cold and live migration) call this function, too.
        # An older release may have accepted extra specs that are refused today. Such a server must be able to move.
        if not stays:
            raise
    spec.num_instances = 1
    # Remove the host or node that the create request may have forced, so that the server can move to another host.
    spec.force_hosts = spec.force_nodes = None
    spec.pci_requests = InstancePCIRequests(
        instance_uuid=instance.uuid,
        requests=[
            request.replaced(request_id=uuidutils.generate_uuid())
            for request in (*of_flavor, *requests_of_ports(instance))
        ],
    )
    return spec, old


def _requests_kept(instance: Instance) -> list[InstancePCIRequest] | None:
    """Return the instance's PCI requests for PCI aliases, as they were built at its creation or last resize.

    The uuids of the allocated resource providers are removed from the requests, because the scheduler chooses new
    providers. Return None if the database has no PCI requests of the instance.
    """
    if instance.pci_requests is None:
        return None
    return [
        request
        for request in instance.pci_requests.without_providers().requests
        if request.source == request.FLAVOR_ALIAS
    ]


def requests_of_ports(instance: Instance) -> list[InstancePCIRequest]:
    """Return the PCI requests of the SR-IOV ports that are attached to the server now.

    The requests are read from the instance and not from the stored request spec, because the spec may still contain the
    PCI requests of ports that were detached after the spec was written.
    """
    vifs = {vif.id for vif in instance.vifs}
    return [request for request in pci_ports.requests_of_ports(instance.pci_requests) if request.requester_id in vifs]


def stored_spec(backend: Backend, ctxt: RequestContext, instance: Instance, image: dict[str, Any]) -> RequestSpec:
    """Return the server's request spec, which is stored when the server is created, and again after each resize.

    If none is stored, build one from the instance's flavor, image, project, user and PCI requests.
    """
    with backend.api_db.read() as conn:
        stored = request_specs.get(conn, instance.uuid)
    kept = RequestSpec.from_json(stored['spec'], ctxt) if stored else None
    return (
        kept
        if kept is not None
        else RequestSpec.from_components(
            ctxt,
            instance_uuid=instance.uuid,
            flavor=instance.flavor,
            image=image,
            project_id=instance.project_id,
            user_id=instance.user_id,
            is_bfv=instance.is_from_volume,
            pci_requests=None if instance.pci_requests is None else instance.pci_requests.without_providers(),
        )
    )


def _accept(backend: Backend, ctxt: RequestContext, server: ServerRef, move: _Move) -> None:
    row = OperationRow.new(
        ctxt,
        'resize',
        server.uuid,
        ResizeArguments(
            migration_uuid=uuidutils.generate_uuid(),
            migration_type=move.kind,
            host=move.host,
            flavor=move.flavor.stored_primitive(),
            request_spec=move.spec.obj_to_primitive(),
            old_request_spec=move.old_spec.obj_to_primitive(),
            image=move.image,
        ),
    )
    operations.accept(
        server.cell,
        instance_uuid=server.uuid,
        event=move.event,
        operation=row,
        action=server_operations.action(ctxt, move.action),
        values=move.values or None,
    )
    if move.allowed is not None:
        quota.recheck(
            backend,
            move.allowed,
            move.more,
            lambda: withdrawals.operation(
                server.cell, uuid=row.uuid, instance_uuid=server.uuid, event='resize.failed', request_id=ctxt.request_id
            ),
        )
    backend.conductor.migrate_server(ctxt, operation=row.uuid)


# --- confirm and revert ----------------------------------------------------------------------------------------------
def confirm(backend: Backend, ctxt: RequestContext, server: ServerRef) -> None:
    """Accept the confirmation of a finished resize or migration.

    If a confirm and a revert are requested at the same time, one of them is refused with error 409. Raises NotResized
    (400) if no move waits for confirmation, and the errors of ``server_operations.check`` and
    ``server_operations.accept``.
    """
    uuid = _finished(ctxt, server, 'confirm.start')
    row = OperationRow.new(ctxt, 'confirm', server.uuid, ConfirmArguments(migration_uuid=uuid))
    server_operations.accept(
        ctxt, server, 'confirm.start', row, 'confirmResize', migration=(uuid, 'finished', 'confirming')
    )
    backend.conductor.confirm_resize(ctxt, operation=row.uuid)


def revert(backend: Backend, ctxt: RequestContext, server: ServerRef) -> None:
    """Accept the revert of a finished resize or migration: the server returns to its old host and flavor.

    Raises NotResized (400) if no move waits for confirmation, and the errors of ``server_operations.check`` and
    ``server_operations.accept``.
    """
    uuid = _finished(ctxt, server, 'revert.start')
    spec = _spec_before(backend, ctxt, server)
    row = OperationRow.new(
        ctxt,
        'revert',
        server.uuid,
        RevertArguments(migration_uuid=uuid, request_spec=spec.obj_to_primitive() if spec is not None else None),
    )
    server_operations.accept(
        ctxt, server, 'revert.start', row, 'revertResize', migration=(uuid, 'finished', 'reverting')
    )
    backend.conductor.revert_resize(ctxt, operation=row.uuid)


def _finished(ctxt: RequestContext, server: ServerRef, event: str) -> str:
    """Check the server's state, and return the uuid of the migration that waits for a confirm or revert.

    ``event`` is the state change of the confirm or revert. Raises NotResized (400) if no migration waits, and the
    errors of ``server_operations.check``.
    """
    server_operations.check(ctxt, server, event)
    with server.cell.read() as conn:
        found = migrations.by_instance(conn, server.uuid, statuses=['finished'], types=['resize', 'migration'])
    if not found:
        raise NotResized
    answer: str = found[0]['uuid']
    return answer


def _spec_before(backend: Backend, ctxt: RequestContext, server: ServerRef) -> RequestSpec | None:
    """Return the request spec of the server from before its resize, which the revert of the resize stores again.

    The result is a copy of the stored request spec with the old flavor, NUMA topology and PCI requests. Return None if
    no request spec is stored, or if the server's row has no old flavor.
    """
    row, extra = instances.split(server.row)
    instance = Instance.from_row(ctxt, row, extra)
    with backend.api_db.read() as conn:
        stored = request_specs.get(conn, server.uuid)
    spec = RequestSpec.from_json(stored['spec'], ctxt) if stored else None
    if spec is None or instance.old_flavor is None:
        return None
    spec.flavor = instance.old_flavor
    spec.numa_topology = None
    with contextlib.suppress(Invalid):
        # ``constraints.of`` raises Invalid if the extra specs of the old flavor are not valid.
        # The request spec then keeps None, because a server with such a flavor was created without a NUMA topology.
        spec.numa_topology = constraints.of(instance.old_flavor, spec.image.properties if spec.image else NOTHING)
    context = instance.migration_context
    if context is not None and 'old_pci_requests' in context:
        spec.pci_requests = context.old_pci_requests
    return spec

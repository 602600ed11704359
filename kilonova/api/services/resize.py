"""Resize and cold migrate, confirm and revert: what may be asked, and what travels to the conductor with it."""
from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from oslo_utils import uuidutils

from kilonova.api.services import accelerators, accept, create, images, quota, refusals
from kilonova.api.services.accept import Found
from kilonova.api.services.backend import Backend
from kilonova.context import RequestContext
from kilonova.db.queries import instances, migrations, operations, request_specs, withdrawals
from kilonova.db.queries.operations import Operation
from kilonova.errors import FlavorNotFound, Invalid
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
    msg_fmt = 'When resizing, instances must change flavor!'


class CannotResizeDisk(Invalid):
    msg_fmt = 'Server disk was unable to be resized because: %(reason)s'


class CannotMigrateToSameHost(Invalid):
    msg_fmt = 'Cannot migrate to the host where the server exists.'


class NotResized(Invalid):
    msg_fmt = 'Instance has not been resized.'


@dataclass(frozen=True)
class _Move:
    """A move that passed all checks. ``kind`` is the migration's type, ``host`` where an administrator wants it;
    ``more``: what it takes of the quotas ``allowed``; ``values``: columns of the server that change at once."""

    event: str
    action: str
    kind: str
    flavor: Flavor
    spec: RequestSpec
    old_spec: RequestSpec
    image: dict[str, Any]
    host: str | None = None
    allowed: quota.Limits | None = None
    more: dict[str, int] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


# --- asking for a move -----------------------------------------------------------------------------------------------
@quota.settled
def resize(backend: Backend, ctxt: RequestContext, server: Found, flavor_ref: str,
           disk_config: str | None = None) -> None:
    """Give a server another flavor, on another host or (if allowed) its own. It is VERIFY_RESIZE afterwards.
    ``disk_config``: AUTO or MANUAL from now on."""
    accept.check(ctxt, server, 'resize.start')
    instance = instance_of(ctxt, server)
    values = {} if disk_config is None else {'auto_disk_config': images.disk_config_of_server(
        instance.system_metadata, instance.image_ref, disk_config)}
    new = _new_flavor(backend, ctxt, instance, flavor_ref)
    image, flavor = images.of_server(instance.system_metadata, instance.image_ref), Flavor.from_row(ctxt, new)
    more = quota.more(backend, quota.sizes(instance.flavor, image), quota.sizes(flavor, image))
    allowed = quota.limits(backend, server.row['project_id'], server.row['user_id'])
    quota.check(backend, allowed, more)
    if instance.is_from_volume:
        images.check_memory(image, new)
    else:
        images.check_fits(image, new, zero_disk_allowed=True)
    # What its image asks for the server has, or does without since it was made.
    refusals.check_flavor(flavor.extra_specs)
    create.check_board(flavor, image)
    spec, old_spec = specs_of(backend, ctxt, instance, flavor, image)
    if not backend.options.allow_resize_to_same_host:
        spec.ignore_hosts = [instance.host]
    spec.requested_destination = destination_of(ctxt, server)
    _accept(backend, ctxt, server, _Move('resize.start', 'resize', 'resize', flavor, spec, old_spec, image,
                                         allowed=allowed, more=more, values=values))


def migrate(backend: Backend, ctxt: RequestContext, server: Found, host: str | None) -> None:
    """Carry a server to another host, as it is; ``host``: to that one, if the scheduler agrees."""
    accept.check(ctxt, server, 'migrate.start')
    instance = instance_of(ctxt, server)
    if host is not None:
        if host == instance.host:
            raise CannotMigrateToSameHost
        create.check_host(backend, host)
    image = images.of_server(instance.system_metadata, instance.image_ref)
    spec, old_spec = specs_of(backend, ctxt, instance, instance.flavor, image)
    # A server is never migrated to where it is, whatever a resize may do.
    spec.ignore_hosts, spec.requested_destination = [instance.host], destination_of(ctxt, server, host)
    _accept(backend, ctxt, server, _Move('migrate.start', 'migrate', 'migration', instance.flavor, spec, old_spec,
                                         image, host))


def destination_of(ctxt: RequestContext, server: Found, host: str | None = None) -> Destination:
    """``host``, or any of its own cell: nothing carries servers from one cell's database to another's. What a cell's
    services connect to is nobody's business."""
    cell = server.cell.cell
    found = Destination(ctxt, cell=CellMapping(ctxt, uuid=cell.uuid, name=cell.name))
    if host is not None:
        found.host, found.node = host, None
    return found


def send_to(ctxt: RequestContext, server: Found, spec: RequestSpec, host: str | None, *, force: bool) -> None:
    """Where the move may go: to ``host``, if filters agree, or with ``force`` whatever these and operators (disabled,
    zone, aggregates) say of it; None: to any of the cell but its own."""
    spec.ignore_hosts = [server.row['host']]
    spec.requested_destination = destination_of(ctxt, server, None if force else host)
    if force and host is not None:
        spec.force_hosts = [host]
        spec.scheduler_hints = {**(spec.scheduler_hints or {}), '_nova_forced_move': ['true']}


def instance_of(ctxt: RequestContext, server: Found) -> Instance:
    """The server as an object, with its system metadata."""
    row, extra = instances.split(server.row)
    with server.cell.read() as conn:
        kept = instances.get_system_metadata(conn, server.uuid)
    return Instance.from_row(ctxt, row, extra, system_metadata=kept)


def _new_flavor(backend: Backend, ctxt: RequestContext, instance: Instance, flavor_ref: str) -> dict[str, Any]:
    flavor = create.find_flavor(backend, ctxt, flavor_ref)
    if flavor['flavorid'] == instance.flavor.flavorid:
        raise CannotResizeToSameFlavor
    if flavor['disabled']:
        raise Invalid(FlavorNotFound(flavor_id=flavor_ref).message)
    if not flavor['root_gb'] and instance.flavor.root_gb and not instance.is_from_volume:
        raise CannotResizeDisk(reason='Resize to zero disk flavor is not allowed.')
    return flavor


def specs_of(backend: Backend, ctxt: RequestContext, instance: Instance, flavor: Flavor,
             image: dict[str, Any]) -> tuple[RequestSpec, RequestSpec]:
    """Return the request spec with this flavor and *its* PCI requests, and the one that is stored now.

    The PCI requests of a new flavor are made: a spec that kept the old ones would give the server its vCPUs and the
    devices that it had. Where the server keeps its flavor, it keeps its requests: the alias may have another name or
    another meaning by now, and the server of a dead host must not stay there for that. Requests of ports that the
    server still has are the same. Each has a new id, as the server holds devices at both hosts during a move.
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
        # A server that was made before its flavor meant anything stays what it is, as the spec has it.
        if not stays:
            raise
    spec.num_instances = 1
    # Where the create was forced to says nothing about where a move may go.
    spec.force_hosts = spec.force_nodes = None
    spec.pci_requests = InstancePCIRequests(
        instance_uuid=instance.uuid, requests=[request.replaced(request_id=uuidutils.generate_uuid())
                                               for request in (*of_flavor, *requests_of_ports(instance))])
    return spec, old


def _requests_kept(instance: Instance) -> list[InstancePCIRequest] | None:
    """Return the requests for devices of aliases that the server was made with, or last resized to.

    Return None if they are not known. They name no providers: the scheduler chooses these.
    """
    if instance.pci_requests is None:
        return None
    return [request for request in instance.pci_requests.without_providers().requests
            if request.source == request.FLAVOR_ALIAS]


def requests_of_ports(instance: Instance) -> list[InstancePCIRequest]:
    """The devices that ports of a server are: of those that it has now. Its stored spec knows those that it had."""
    vifs = {vif.id for vif in instance.vifs}
    return [request for request in pci_ports.requests_of_ports(instance.pci_requests) if request.requester_id in vifs]


def stored_spec(backend: Backend, ctxt: RequestContext, instance: Instance, image: dict[str, Any]) -> RequestSpec:
    """What was asked for when the server was made or last resized. One that lost its spec still is what it is."""
    with backend.api_db.read() as conn:
        stored = request_specs.get(conn, instance.uuid)
    kept = RequestSpec.from_json(stored['spec'], ctxt) if stored else None
    return kept if kept is not None else RequestSpec.from_components(
        ctxt, instance_uuid=instance.uuid, flavor=instance.flavor, image=image, project_id=instance.project_id,
        user_id=instance.user_id, is_bfv=instance.is_from_volume,
        pci_requests=None if instance.pci_requests is None else instance.pci_requests.without_providers())


def _accept(backend: Backend, ctxt: RequestContext, server: Found, move: _Move) -> None:
    row = Operation.new(ctxt, 'resize', server.uuid, {
        'migration_uuid': uuidutils.generate_uuid(), 'migration_type': move.kind, 'host': move.host,
        'flavor': move.flavor.stored_primitive(), 'request_spec': move.spec.obj_to_primitive(),
        'old_request_spec': move.old_spec.obj_to_primitive(), 'image': move.image, 'clean_shutdown': True})
    operations.accept(server.cell, instance_uuid=server.uuid, event=move.event, operation=row,
                      action=accept.action(ctxt, move.action), values=move.values or None)
    if move.allowed is not None:
        quota.recheck(backend, move.allowed, move.more, lambda: withdrawals.operation(
            server.cell, uuid=row.uuid, instance_uuid=server.uuid, event='resize.failed',
            request_id=ctxt.request_id))
    backend.conductor.migrate_server(ctxt, operation=row.uuid)


# --- ending a move ---------------------------------------------------------------------------------------------------
def confirm(backend: Backend, ctxt: RequestContext, server: Found) -> None:
    """Keep what the move made. Of a confirm and a revert at once one gets 409."""
    uuid = _finished(ctxt, server, 'confirm.start')
    row = Operation.new(ctxt, 'confirm', server.uuid, {'migration_uuid': uuid})
    accept.accept(ctxt, server, 'confirm.start', row, 'confirmResize', migration=(uuid, 'finished', 'confirming'))
    backend.conductor.confirm_resize(ctxt, operation=row.uuid)


def revert(backend: Backend, ctxt: RequestContext, server: Found) -> None:
    """Go back to how it was before."""
    uuid = _finished(ctxt, server, 'revert.start')
    spec = _spec_before(backend, ctxt, server)
    row = Operation.new(ctxt, 'revert', server.uuid, {
        'migration_uuid': uuid, 'request_spec': spec.obj_to_primitive() if spec is not None else None})
    accept.accept(ctxt, server, 'revert.start', row, 'revertResize', migration=(uuid, 'finished', 'reverting'))
    backend.conductor.revert_resize(ctxt, operation=row.uuid)


def _finished(ctxt: RequestContext, server: Found, event: str) -> str:
    """The migration that waits for an answer. NotResized (400) where none does."""
    accept.check(ctxt, server, event)
    with server.cell.read() as conn:
        found = migrations.by_instance(conn, server.uuid, statuses=['finished'], types=['resize', 'migration'])
    if not found:
        raise NotResized
    answer: str = found[0]['uuid']
    return answer


def _spec_before(backend: Backend, ctxt: RequestContext, server: Found) -> RequestSpec | None:
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
        # A server that was made before its flavor meant anything goes back to what it was.
        spec.numa_topology = constraints.of(instance.old_flavor, spec.image.properties if spec.image else NOTHING)
    context = instance.migration_context
    if context is not None and 'old_pci_requests' in context:
        spec.pci_requests = context.old_pci_requests
    return spec

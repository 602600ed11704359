"""Shelve, shelve offload and unshelve: check and accept the requests.

An accepted request becomes an operation row that has all arguments for the conductor.
"""

from __future__ import annotations

from dataclasses import dataclass

from kilonova import states
from kilonova.api.services import accelerators, create, hosts, images, resize, server_operations, snapshot
from kilonova.api.services.backend import Backend
from kilonova.api.services.server_operations import ServerRef
from kilonova.context import RequestContext
from kilonova.db.arguments.moves import UnshelveArguments
from kilonova.db.arguments.servers import ShelveArguments, ShelveOffloadArguments
from kilonova.db.queries.operations import OperationRow
from kilonova.errors import Conflict, Invalid
from kilonova.objects import InstancePCIRequests
from kilonova.pci.request import as_list


class UnshelveToRefused(Conflict):
    """Error 409: an unshelve request names a zone or host, but the server is not SHELVED_OFFLOADED.

    A server that is only SHELVED still has its host, and can be unshelved only there.
    """

    msg_fmt = (
        'Specifying an availability zone or a host when unshelving server "%(uuid)s" with status "%(status)s" '
        'is not supported. The server status must be SHELVED_OFFLOADED.'
    )


class HostNotInZone(Invalid):
    """Error 400: the requested host is not in the server's availability zone."""

    msg_fmt = 'Host "%(host)s" is not in the availability zone "%(zone)s".'


@dataclass(frozen=True)
class Where:
    """The destination that an unshelve request asks for.

    ``has_zone`` is true if the request has the parameter availability_zone. ``zone`` is its value: a zone pins the
    server to this zone, and None (null in the request) unpins the server. ``host`` is the requested host, or None to
    let the scheduler choose.
    """

    zone: str | None = None
    has_zone: bool = False
    host: str | None = None

    @property
    def is_given(self) -> bool:
        """Return whether the request names a zone or a host."""
        return self.has_zone or self.host is not None


def shelve(backend: Backend, ctxt: RequestContext, server: ServerRef) -> None:
    """Accept a shelve: the server becomes SHELVED or SHELVED_OFFLOADED.

    A server that boots from an image is first saved as a new image. Raises the errors of ``snapshot.make``.
    """
    server_operations.check(ctxt, server, 'shelve.start')
    if not server.row['image_ref']:
        # The root disk is a volume. A shelve keeps the volume, so no image is needed.
        server_operations.run(backend, ctxt, server, 'shelve', 'shelve.start', ShelveArguments(image_id=None))
        return
    name = f'{server.row["display_name"] or server.uuid}'[: 255 - len('-shelved')] + '-shelved'
    snapshot.make(backend, ctxt, server, snapshot.Making('shelve.start', 'shelve', 'shelve', name, ShelveArguments))


def offload(backend: Backend, ctxt: RequestContext, server: ServerRef) -> None:
    """Accept a shelve offload: a shelved server is removed from its host, and its resources on the host become free.

    Raises the errors of ``server_operations.check`` and ``server_operations.accept``.
    """
    server_operations.check(ctxt, server, 'shelve_offload.start')
    row = OperationRow.new(ctxt, 'shelve_offload', server.uuid, ShelveOffloadArguments())
    server_operations.accept(ctxt, server, 'shelve_offload.start', row, 'shelveOffload')
    backend.conductor.run_operation(ctxt, operation=row.uuid)


def unshelve(backend: Backend, ctxt: RequestContext, server: ServerRef, where: Where) -> None:
    """Accept an unshelve. A successful unshelve ends with the status ACTIVE.

    The server starts on its host or, if it is offloaded, on a host that the scheduler chooses.

    Raises:
        UnshelveToRefused: A destination is requested, and the server is not offloaded (error 409).
        ZoneUnavailable: The zone has no enabled compute service (error 400).
        HostUnknown: The host does not exist (error 400).
        HostNotInZone: The host is not in the server's zone (error 400).

    Also raises the errors of ``server_operations.check`` and ``server_operations.accept``.
    """
    if server.row['vm_state'] != states.VmState.SHELVED_OFFLOADED.value:
        server_operations.check(ctxt, server, 'unshelve_start.start')
        if where.is_given:
            raise UnshelveToRefused(
                uuid=server.uuid, status=states.status(server.row['vm_state'], server.row['task_state'])
            )
        row, event = OperationRow.new(ctxt, 'unshelve_start', server.uuid), 'unshelve_start.start'
    else:
        event = 'unshelve.start'
        server_operations.check(ctxt, server, event, hosted=False)
        row = OperationRow.new(ctxt, 'unshelve', server.uuid, _args(backend, ctxt, server, where))
    server_operations.accept(ctxt, server, event, row, 'unshelve')
    backend.conductor.run_operation(ctxt, operation=row.uuid)


def _args(backend: Backend, ctxt: RequestContext, server: ServerRef, where: Where) -> UnshelveArguments:
    """Return the arguments of the operation row of an unshelve.

    The member ``request_spec`` is the request spec for the scheduler. If the request names an availability zone or
    null, ``new_request_spec`` is the server's stored spec with the new zone, which is written to the database, and
    ``old_request_spec`` is the stored spec, which is written back if the unshelve fails. Otherwise both are None.
    """
    instance = resize.instance_of(ctxt, server)
    image = images.of_server(instance.system_metadata, instance.image_ref)
    kept = resize.stored_spec(backend, ctxt, instance, image)
    wanted = kept.obj_clone()
    wanted.requested_resources = accelerators.groups(backend, ctxt, instance.flavor.extra_specs)
    if where.has_zone:
        wanted.availability_zone = where.zone or backend.options.schedule_zone
    zone = wanted.availability_zone if 'availability_zone' in wanted else None
    _check_destination(backend, zone if where.is_given else None, where)
    spec = wanted.obj_clone()
    spec.num_instances, spec.ignore_hosts = 1, None
    # Remove the host or node that the create request may have forced, so that the server can start on another host.
    spec.force_hosts = spec.force_nodes = None
    spec.requested_destination = resize.destination_of(ctxt, server, where.host)
    of_flavor = [
        request
        for request in as_list(kept.pci_requests if 'pci_requests' in kept else None)
        if request.source != request.NEUTRON_PORT
    ]
    spec.pci_requests = InstancePCIRequests(
        instance_uuid=instance.uuid, requests=[*of_flavor, *resize.requests_of_ports(instance)]
    )
    return UnshelveArguments(
        request_spec=spec.obj_to_primitive(),
        new_request_spec=wanted.obj_to_primitive() if where.has_zone else None,
        old_request_spec=kept.obj_to_primitive() if where.has_zone else None,
    )


def _check_destination(backend: Backend, zone: str | None, where: Where) -> None:
    """Check that the zone and host of an unshelve request exist, and that this host is in the server's zone.

    ``where`` is the requested zone and host. ``zone`` is the zone to which the server is pinned after the unshelve, or
    None if its host may be in any zone. Raises ZoneUnavailable, HostUnknown or HostNotInZone (errors 400).
    """
    if where.zone is not None:
        create.check_zone(backend, where.zone)
    if where.host is None:
        return
    create.check_host(backend, where.host)
    if zone is not None and hosts.zone_of(backend, where.host) != zone:
        raise HostNotInZone(host=where.host, zone=zone)

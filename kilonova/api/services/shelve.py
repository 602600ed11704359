"""Shelve, shelve offload, unshelve: what may be asked, and what travels to the conductor with it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kilonova import states
from kilonova.api.services import accelerators, accept, create, hosts, images, resize, snapshot
from kilonova.api.services.accept import Found
from kilonova.api.services.backend import Backend
from kilonova.context import RequestContext
from kilonova.db.queries.operations import Operation
from kilonova.errors import Conflict, Invalid
from kilonova.objects import InstancePCIRequests
from kilonova.pci.request import as_list


class UnshelveToRefused(Conflict):
    msg_fmt = ('Specifying an availability zone or a host when unshelving server "%(uuid)s" with status "%(status)s" '
               'is not supported. The server status must be SHELVED_OFFLOADED.')


class HostNotInZone(Invalid):
    msg_fmt = 'Host "%(host)s" is not in the availability zone "%(zone)s".'


@dataclass(frozen=True)
class Where:
    """Where a server shall come back: ``zone`` counts if ``has_zone`` (None: from now on it is bound to none), ``host``
    None: wherever the scheduler wants."""

    zone: str | None = None
    has_zone: bool = False
    host: str | None = None

    @property
    def is_said(self) -> bool:
        """Whether anything was asked for."""
        return self.has_zone or self.host is not None


def shelve(backend: Backend, ctxt: RequestContext, server: Found) -> None:
    """The server is SHELVED afterwards, or SHELVED_OFFLOADED. Errors: as ``snapshot.make`` has them."""
    accept.check(ctxt, server, 'shelve.start')
    if not server.row['image_ref']:
        # Its disk is a volume, which stays.
        accept.run(backend, ctxt, server, 'shelve', 'shelve.start', {'image_id': None})
        return
    name = f"{server.row['display_name'] or server.uuid}"[:255 - len('-shelved')] + '-shelved'
    snapshot.make(backend, ctxt, server, snapshot.Making('shelve.start', 'shelve', 'shelve', name))


def offload(backend: Backend, ctxt: RequestContext, server: Found) -> None:
    """A shelved server leaves its host: what it had there is free afterwards."""
    accept.check(ctxt, server, 'shelve_offload.start')
    row = Operation.new(ctxt, 'shelve_offload', server.uuid, {})
    accept.accept(ctxt, server, 'shelve_offload.start', row, 'shelveOffload')
    backend.conductor.run_operation(ctxt, operation=row.uuid)


def unshelve(backend: Backend, ctxt: RequestContext, server: Found, where: Where) -> None:
    """ACTIVE afterwards: on its host, or, when it was offloaded, on one that the scheduler chooses."""
    if server.row['vm_state'] != states.VmState.SHELVED_OFFLOADED.value:
        accept.check(ctxt, server, 'unshelve_start.start')
        if where.is_said:
            raise UnshelveToRefused(uuid=server.uuid, status=states.status(
                server.row['vm_state'], server.row['task_state']))
        row, event = Operation.new(ctxt, 'unshelve_start', server.uuid, {}), 'unshelve_start.start'
    else:
        event = 'unshelve.start'
        accept.check(ctxt, server, event, hosted=False)
        row = Operation.new(ctxt, 'unshelve', server.uuid, _args(backend, ctxt, server, where))
    accept.accept(ctxt, server, event, row, 'unshelve')
    backend.conductor.run_operation(ctxt, operation=row.uuid)


def _args(backend: Backend, ctxt: RequestContext, server: Found, where: Where) -> dict[str, Any]:
    """``request_spec``: for this choice; ``new_request_spec``, where its zone changes: to be kept, ``old_request_spec``
    is what there was."""
    instance = resize.instance_of(ctxt, server)
    image = images.of_server(instance.system_metadata, instance.image_ref)
    kept = resize.stored_spec(backend, ctxt, instance, image)
    wanted = kept.obj_clone()
    wanted.requested_resources = accelerators.groups(backend, ctxt, instance.flavor.extra_specs)
    if where.has_zone:
        wanted.availability_zone = where.zone or backend.options.schedule_zone
    zone = wanted.availability_zone if 'availability_zone' in wanted else None
    _check_place(backend, zone if where.is_said else None, where)
    spec = wanted.obj_clone()
    spec.num_instances, spec.ignore_hosts = 1, None
    # Where the create was forced to says nothing about where it comes back.
    spec.force_hosts = spec.force_nodes = None
    spec.requested_destination = resize.destination_of(ctxt, server, where.host)
    of_flavor = [request for request in as_list(kept.pci_requests if 'pci_requests' in kept else None)
                 if request.source != request.NEUTRON_PORT]
    spec.pci_requests = InstancePCIRequests(
        instance_uuid=instance.uuid, requests=[*of_flavor, *resize.requests_of_ports(instance)])
    args: dict[str, Any] = {'request_spec': spec.obj_to_primitive()}
    if where.has_zone:
        args.update(new_request_spec=wanted.obj_to_primitive(), old_request_spec=kept.obj_to_primitive())
    return args


def _check_place(backend: Backend, zone: str | None, where: Where) -> None:
    """ZoneUnavailable, HostUnknown, HostNotInZone: all 400."""
    if where.zone is not None:
        create.check_zone(backend, where.zone)
    if where.host is None:
        return
    create.check_host(backend, where.host)
    if zone is not None and hosts.zone_of(backend, where.host) != zone:
        raise HostNotInZone(host=where.host, zone=zone)


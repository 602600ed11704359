"""Evacuate: a server whose host is dead is built on another one.

A compute service that is silent says nothing about its hypervisor: only a host that an operator forced down is
evacuated, or two guests of one server could run.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from oslo_utils import uuidutils

from kilonova.api.services import accept, images, passwords, resize
from kilonova.api.services.accept import Found
from kilonova.api.services.backend import Backend
from kilonova.context import RequestContext
from kilonova.db.queries import cells, host_losses, services
from kilonova.db.queries.operations import Operation
from kilonova.errors import ComputeHostNotFound, Conflict, Invalid


class ServiceInUse(Invalid):
    msg_fmt = 'Compute service of %(host)s is still in use.'


class MayStillRun(Conflict):
    msg_fmt = ('The compute service of %(host)s is down, but its hypervisor may still run the server. Make sure that '
               'the host is off and force the service down, then evacuate.')


class SameHost(Invalid):
    msg_fmt = "The target host can't be the same one."


@dataclass(frozen=True, kw_only=True)
class EvacuateRequest:
    """``host``: to that one, if the scheduler agrees, or whatever its filters and operators say of it (``force``): it
    must have room, and be up. ``shared``: whether the disks are on storage that both hosts use, where the user says so.
    ``stays_off``: the guest isn't started."""

    host: str | None = None
    force: bool = False
    admin_password: str | None = field(default=None, repr=False)
    shared: bool | None = None
    stays_off: bool = False


def evacuate(backend: Backend, ctxt: RequestContext, server: Found, request: EvacuateRequest) -> str | None:
    """Accept an evacuation, and return the guest's new password (None without keys: nobody gets one then).

    What runs on the server is cancelled: its host is off. Raises InstanceInvalidState, InstanceBusy, ServiceInUse,
    MayStillRun, SameHost, ComputeHostNotFound.
    """
    accept.check(ctxt, server, 'evacuate.start')
    source = server.row['host']
    _check_down(backend, server, source)
    if request.host is not None:
        if request.host == source:
            raise SameHost
        with backend.api_db.read() as conn:
            if cells.get_host(conn, request.host) is None:
                raise ComputeHostNotFound(host=request.host)
    keys = passwords.keys(backend, request.admin_password)
    instance = resize.instance_of(ctxt, server)
    image = images.of_server(instance.system_metadata, instance.image_ref)
    spec, _ = resize.specs_of(backend, ctxt, instance, instance.flavor, image)
    resize.send_to(ctxt, server, spec, request.host, force=request.force)
    password = passwords.choose(backend, keys, request.admin_password)
    row = Operation.new(ctxt, 'evacuate', server.uuid, {
        'migration_uuid': uuidutils.generate_uuid(), 'migration_type': 'evacuation',
        'flavor': instance.flavor.stored_primitive(), 'request_spec': spec.obj_to_primitive(), 'image': image,
        'sealed': passwords.seal(keys, password, (), server.uuid), 'shared': request.shared,
        'stays_off': request.stays_off, 'power_state': server.row['power_state']})
    host_losses.accept_evacuation(server.cell, instance_uuid=server.uuid, host=source, operation=row,
                                  action=accept.action(ctxt, 'evacuate'))
    backend.notify.emit(ctxt, 'instance.evacuate', instance=instance, moved='evacuate.start')
    backend.conductor.rebuild_instance(ctxt, operation=row.uuid)
    return password


def _check_down(backend: Backend, server: Found, source: str) -> None:
    """ServiceInUse: the host lives. MayStillRun: it is only silent."""
    with server.cell.read() as conn:
        if services.host_is_up(conn, source, 'nova-compute', backend.options.service_down_time):
            raise ServiceInUse(host=source)
        heard = services.report_of(conn, source)
    if heard is not None and not heard.forced_down:
        raise MayStillRun(host=source)

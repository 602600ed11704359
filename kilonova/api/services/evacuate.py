"""Evacuate: rebuild a server on another host, because its host is down.

A hypervisor may still run guests although the compute service of its host does not report. To prevent a second guest of
the same server, a server is evacuated only if an operator has forced the compute service of its host down.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from oslo_utils import uuidutils

from kilonova.api.services import images, passwords, resize, server_operations
from kilonova.api.services.backend import Backend
from kilonova.api.services.server_operations import ServerRef
from kilonova.context import RequestContext
from kilonova.db.arguments.moves import EvacuateArguments
from kilonova.db.queries import cells, host_losses, services
from kilonova.db.queries.operations import OperationRow
from kilonova.errors import ComputeHostNotFound, Conflict, Invalid


class ServiceInUse(Invalid):
    """Error 400: the compute service of the server's host is up."""

    msg_fmt = 'Compute service of %(host)s is still in use.'


class MayStillRun(Conflict):
    """Error 409: the compute service is down, but no operator has forced it down, so the guest may still run."""

    msg_fmt = (
        'The compute service of %(host)s is down, but its hypervisor may still run the server. Make sure that '
        'the host is off and force the service down, then evacuate.'
    )


class SameHost(Invalid):
    """Error 400: the requested destination is the server's current host."""

    msg_fmt = "The target host can't be the same one."


@dataclass(frozen=True, kw_only=True)
class EvacuateRequest:
    """The parameters of an evacuation.

    ``host`` is the requested destination, or None to let the scheduler choose. ``host`` must pass the scheduler's
    filters. With ``force`` the filters are not applied, but ``host`` must be up and have enough free resources.
    ``shared`` is the parameter onSharedStorage, whether the two hosts share the storage of the disks, or None (from
    microversion 2.14 on). If ``stays_off`` is true (from 2.95 on), the guest is not started on the destination.
    """

    host: str | None = None
    force: bool = False
    admin_password: str | None = field(default=None, repr=False)
    shared: bool | None = None
    stays_off: bool = False


def evacuate(backend: Backend, ctxt: RequestContext, server: ServerRef, request: EvacuateRequest) -> str | None:
    """Accept an evacuation, wake a conductor, and return the guest's new password.

    Return None if no key is configured to encrypt a password: the guest then gets no new password. Operations that run
    on the server are cancelled, because the host of the server is off.

    Raises:
        InstanceInvalidState: The server's state does not allow an evacuation.
        InstanceBusy: An operation that can't be cancelled runs on the server.
        ServiceInUse: The compute service of the server's host is up.
        MayStillRun: The compute service is down, but not forced down.
        SameHost: The destination is the server's host.
        ComputeHostNotFound: The destination does not exist.
    """
    server_operations.check(ctxt, server, 'evacuate.start')
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
    row = OperationRow.new(
        ctxt,
        'evacuate',
        server.uuid,
        EvacuateArguments(
            migration_uuid=uuidutils.generate_uuid(),
            migration_type='evacuation',
            flavor=instance.flavor.stored_primitive(),
            request_spec=spec.obj_to_primitive(),
            image=image,
            sealed=passwords.seal(keys, password, (), server.uuid),
            shared=request.shared,
            stays_off=request.stays_off,
            power_state=server.row['power_state'],
        ),
    )
    host_losses.accept_evacuation(
        server.cell,
        instance_uuid=server.uuid,
        host=source,
        operation=row,
        action=server_operations.action(ctxt, 'evacuate'),
    )
    backend.notify.emit(ctxt, 'instance.evacuate', instance=instance, moved='evacuate.start')
    backend.conductor.rebuild_instance(ctxt, operation=row.uuid)
    return password


def _check_down(backend: Backend, server: ServerRef, source: str) -> None:
    """Check that the compute service of the host ``source`` is down, and that an operator has forced it down.

    Raises ServiceInUse if the service is up, and MayStillRun if the service is down, but not forced down.
    """
    with server.cell.read() as conn:
        if services.host_is_up(conn, source, 'nova-compute', backend.options.service_down_time):
            raise ServiceInUse(host=source)
        heard = services.report_of(conn, source)
    if heard is not None and not heard.forced_down:
        raise MayStillRun(host=source)

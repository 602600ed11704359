"""Live migration of servers: check and accept the requests.

An accepted request becomes an operation row that has all arguments for the conductor.
"""

from __future__ import annotations

from dataclasses import dataclass

from oslo_utils import uuidutils

from kilonova.api.services import accelerators, create, images, resize, server_operations
from kilonova.api.services.backend import Backend
from kilonova.api.services.server_operations import ServerRef
from kilonova.context import RequestContext
from kilonova.db.arguments.moves import LiveMigrateArguments
from kilonova.db.queries.operations import OperationRow
from kilonova.errors import Invalid, UnableToMigrateToSelf
from kilonova.objects import Instance
from kilonova.pci.device import PF
from kilonova.pci.request import as_list


class DeviceNotMovable(Invalid):
    """Error 400: the server has a device that can't move while the guest runs."""

    msg_fmt = 'Migration pre-check error: instance %(uuid)s cannot be live migrated: %(reason)s.'


class NoHostToForce(Invalid):
    """Error 400: the request has force, but names no host."""

    msg_fmt = "Can't force to a non-provided destination"


@dataclass(frozen=True)
class LiveMigrationOptions:
    """The parameters of a live migration.

    ``host`` is the destination, or None to let the scheduler choose. With ``force`` the scheduler's filters are not
    applied to ``host``, and ``host`` may be disabled or in another zone or aggregate. ``block`` is true to copy the
    disks (block migration), false to use shared disks, and None to copy the disks that the two hosts don't share.
    ``over_commit`` is the parameter disk_over_commit: the destination then needs free disk space only for the used
    parts of sparse disks.
    """

    host: str | None
    force: bool
    block: bool | None
    over_commit: bool


def live_migrate(backend: Backend, ctxt: RequestContext, server: ServerRef, wanted: LiveMigrationOptions) -> None:
    """Accept a live migration, and wake a conductor.

    The hosts check the migration only after this request is answered. If a host refuses the migration, the events of
    the instance action tell the reason.

    Raises:
        DeviceNotMovable: A PCI device of the server can't move while the guest runs (error 400).
        NoHostToForce: ``force`` is set without a host (error 400).
        UnableToMigrateToSelf: The destination is the server's host (error 400).
        HostUnknown: The destination does not exist (error 400).
        AcceleratorsRefused: An accelerator of the server can't move while the guest runs (error 400).

    Also raises the errors of ``server_operations.check`` and ``server_operations.accept``.
    """
    server_operations.check(ctxt, server, 'live_migrate.start')
    instance = resize.instance_of(ctxt, server)
    _check(instance)
    if wanted.force and wanted.host is None:
        raise NoHostToForce
    if wanted.host is not None:
        if wanted.host == instance.host:
            raise UnableToMigrateToSelf(instance_id=instance.uuid, host=instance.host)
        create.check_host(backend, wanted.host)
    image = images.of_server(instance.system_metadata, instance.image_ref)
    spec, _ = resize.specs_of(backend, ctxt, instance, instance.flavor, image)
    accelerators.check_moves_live(backend, instance)
    # Request the topology that the guest has now. A running guest cannot get other NUMA cells or other page sizes.
    spec.numa_topology = instance.numa_topology
    resize.send_to(ctxt, server, spec, wanted.host, force=wanted.force)
    row = OperationRow.new(
        ctxt,
        'live_migrate',
        server.uuid,
        LiveMigrateArguments(
            migration_uuid=uuidutils.generate_uuid(),
            migration_type='live-migration',
            block=wanted.block,
            over_commit=wanted.over_commit,
            flavor=instance.flavor.stored_primitive(),
            request_spec=spec.obj_to_primitive(),
        ),
    )
    server_operations.accept(ctxt, server, 'live_migrate.start', row, 'live-migration')
    backend.conductor.live_migrate_instance(ctxt, operation=row.uuid)


def _check(instance: Instance) -> None:
    """Raise DeviceNotMovable if the server has PCI devices that can't move while the guest runs.

    Mediated devices (vGPUs) are not checked here: the source host checks them. Virtual functions of ports pass the
    check, because they are detached from the guest before the migration and attached again after it.
    """
    for request in as_list(instance.pci_requests):
        if request.source == request.NEUTRON_PORT:
            if request.spec[0]['dev_type'] == PF:
                raise DeviceNotMovable(
                    uuid=instance.uuid,
                    reason=f'its port {request.requester_id} is a physical function (vnic_type direct-physical), '
                    'which cannot be live migrated',
                )
        elif request.source != request.FLAVOR_RESOURCES and not all(
            spec.get('live_migratable') == 'true' for spec in request.spec
        ):
            raise DeviceNotMovable(
                uuid=instance.uuid,
                reason=f'it has PCI devices of alias {request.alias_name}, which is not configured as live_migratable',
            )

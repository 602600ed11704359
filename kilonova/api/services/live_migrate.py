"""Live migrate: what may be asked, and what travels to the conductor with it."""
from __future__ import annotations

from dataclasses import dataclass

from oslo_utils import uuidutils

from kilonova.api.services import accelerators, accept, create, images, resize
from kilonova.api.services.accept import Found
from kilonova.api.services.backend import Backend
from kilonova.context import RequestContext
from kilonova.db.queries.operations import Operation
from kilonova.errors import Invalid, UnableToMigrateToSelf
from kilonova.objects import Instance
from kilonova.pci.device import PF
from kilonova.pci.request import as_list


class NotLive(Invalid):
    msg_fmt = 'Migration pre-check error: instance %(uuid)s can not be live migrated: %(reason)s.'


class NoHostToForce(Invalid):
    msg_fmt = "Can't force to a non-provided destination"


@dataclass(frozen=True)
class Wanted:
    """``host``: where to, None: the scheduler chooses; ``force``: whatever its filters and operators say of it.
    ``block``: whether the disks go along, None: unless both hosts use them; ``over_commit``: holes of disks need no
    room there."""

    host: str | None
    force: bool
    block: bool | None
    over_commit: bool


def live_migrate(backend: Backend, ctxt: RequestContext, server: Found, wanted: Wanted) -> None:
    """Carry a server to another host while it runs. In all versions the hosts are asked after the answer: the action's
    events say what they refused."""
    accept.check(ctxt, server, 'live_migrate.start')
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
    # As it runs: the guest sees its cells, and pages of another size can't take its memory.
    spec.numa_topology = instance.numa_topology
    resize.send_to(ctxt, server, spec, wanted.host, force=wanted.force)
    row = Operation.new(ctxt, 'live_migrate', server.uuid, {
        'migration_uuid': uuidutils.generate_uuid(), 'migration_type': 'live-migration', 'block': wanted.block,
        'over_commit': wanted.over_commit, 'flavor': instance.flavor.stored_primitive(),
        'request_spec': spec.obj_to_primitive()})
    accept.accept(ctxt, server, 'live_migrate.start', row, 'live-migration')
    backend.conductor.live_migrate_instance(ctxt, operation=row.uuid)


def _check(instance: Instance) -> None:
    """What a guest can't take along: refused before anything is done. Its host looks whether it can move mediated
    devices. Virtual functions of ports leave it, and come anew."""
    for request in as_list(instance.pci_requests):
        if request.source == request.NEUTRON_PORT:
            if request.spec[0]['dev_type'] == PF:
                raise NotLive(uuid=instance.uuid, reason=f'its port {request.requester_id} is a physical function, '
                                                         'which stays with its host')
        elif request.source != request.FLAVOR_RESOURCES and not all(
                spec.get('live_migratable') == 'true' for spec in request.spec):
            raise NotLive(uuid=instance.uuid, reason=f'it has PCI devices of alias {request.alias_name}, which does '
                                                     'not say that they are live_migratable: they stay with their host')

"""A move's first step on its destination: claim for the new flavor, say where the disk shall go.

The devices are those that Placement allocated for the new flavor's requests; the migration context keeps both ends.
"""
from __future__ import annotations

from typing import Any

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import claims, records
from kilonova.compute.dispatch import Check, order
from kilonova.compute.events import Event
from kilonova.compute.host import Host, image_of
from kilonova.compute.keys import Work
from kilonova.compute.ops import move
from kilonova.compute.tracker import side_of
from kilonova.compute.undo import Undo
from kilonova.rpc.compute import Compute

LOG = logging.getLogger(__name__)


@order(Compute.prep_resize, checks=Check.WRITE)
def run(host: Host, work: Work, ctxt: Any, order: objects.PrepResizeOrder) -> dict[str, Any]:
    """{'disk': where the source shall put the disk}. HostRejected: an alternate may take it."""
    instance, flavor, migration = order.instance, order.flavor, order.migration
    event = host.event('compute_prep_resize')
    with host.turn(work, instance.uuid), Undo('prep_resize') as undo:
        host.notify.emit(ctxt, 'instance.exists', instance=instance)
        host.notify.emit(ctxt, 'instance.resize_prep.start', instance=instance, new_flavor=flavor)
        undo.add(_failed, host, work, ctxt, instance, flavor, event, undo)
        check_host(host, instance, migration)
        disk = host.driver.prepare_move()
        _claim(host, work, ctxt, order)
        # Only now: a claim that was refused took nothing, and what there is under this side may be a running guest's.
        undo.add(_free, host, work, ctxt, instance, migration, undo)
        work.check()
        if migration.source_compute != host.name:
            _fetch_base(host, instance, order.image)
            work.check()
        LOG.info('Migrating', instance_uuid=instance.uuid)
        claims.tell(host, work, ctxt, instance.uuid, event=event.success())
    host.notify.emit(ctxt, 'instance.resize_prep.end', instance=instance, new_flavor=flavor)
    return {'disk': disk}


def _fetch_base(host: Host, instance: objects.Instance, image: dict[str, Any]) -> None:
    """While the guest still runs. What can't be fetched the source carries."""
    try:
        host.driver.fetch_base(instance, image_of(instance, image))
    except (errors.KilonovaError, OSError) as error:
        LOG.warning('The image of the server is carried with its disks, as it can not be fetched: %s', error,
                    instance_uuid=instance.uuid)


def _failed(host: Host, work: Work, ctxt: Any, instance: objects.Instance, flavor: objects.Flavor, event: Event,
            undo: Undo) -> None:
    """The action says so, and the end of the preparation is told even so, as the field has it."""
    if isinstance(undo.error, errors.KeyGone):
        return
    # A service that was silent is asked again under the same key.
    undone = None if isinstance(undo.error, errors.Unanswered) else claims.why(undo.error)
    claims.tell(host, work, ctxt, instance.uuid, undo=True, event=event.failure(undo.error), undone=undone)
    host.notify.emit(ctxt, 'instance.resize.error', instance=instance, fault=undo.error)
    host.notify.emit(ctxt, 'instance.resize_prep.end', instance=instance, new_flavor=flavor)


def check_host(host: Host, instance: objects.Instance, migration: objects.Migration) -> None:
    """A cold migration to the host where the server is moves nothing; this driver says whether it can."""
    if (migration.migration_type == 'migration' and migration.source_compute == host.name
            and not host.driver.capabilities.supports_migrate_to_same_host):
        raise errors.HostRejected(errors.UnableToMigrateToSelf(instance_id=instance.uuid, host=host.name).message)


def _claim(host: Host, work: Work, ctxt: Any, order: objects.PrepResizeOrder) -> None:
    instance, migration, request_spec = order.instance, order.migration, order.request_spec
    requests = request_spec.pci_requests if 'pci_requests' in request_spec else None
    node, side = host.tracker.node, side_of(migration)
    old = _old_devices(host, ctxt, instance, migration)

    def extra(devices: list[objects.PciDevice]) -> dict[str, str | None]:
        placed = host.tracker.topology(instance.uuid, side)
        return {'migration_context': _context(instance, request_spec, migration, old, devices, placed)}
    claims.take(host, work, ctxt, instance.uuid, side, order.flavor, requests,
                request_spec.numa_topology if 'numa_topology' in request_spec else None,
                expect={'host': migration.source_compute, 'task_state': ['resize_prep']}, values={}, extra=extra,
                limits=order.limits,
                # A server that stays on its host changes nothing for its group.
                group=claims.group_of(host, request_spec) if migration.source_compute != host.name else None,
                migration={'uuid': migration.uuid, 'dest_compute': host.name, 'dest_node': host.tracker.nodename,
                           'dest_compute_id': node.id, 'dest_host': host.conf.my_ip})


def _old_devices(host: Host, ctxt: Any, instance: objects.Instance,
                 migration: objects.Migration) -> list[objects.PciDevice]:
    """What the server holds at the source."""
    if migration.source_compute == host.name:
        return host.tracker.devices(instance.uuid)
    requests = instance.pci_requests if 'pci_requests' in instance else None
    if requests is None or not requests.requests:
        return []
    return [device for device in records.devices_of(ctxt, instance.uuid)
            if device.compute_node_id != host.tracker.node.id]


def _context(instance: objects.Instance, request_spec: objects.RequestSpec, migration: objects.Migration,
             old: list[objects.PciDevice], new: list[objects.PciDevice],
             placed: objects.InstanceNUMATopology | None) -> str:
    taken = {(device.compute_node_id, device.address) for device in new}
    before = [device for device in old if (device.compute_node_id, device.address) not in taken]
    return objects.MigrationContext(
        instance_uuid=instance.uuid, migration_id=migration.id,
        old_numa_topology=move.place_of(instance),
        new_numa_topology=placed,
        old_pci_devices=objects.PciDeviceList(objects=before), new_pci_devices=objects.PciDeviceList(objects=new),
        old_pci_requests=instance.pci_requests if 'pci_requests' in instance else None,
        new_pci_requests=_requests(instance, request_spec), old_resources=None, new_resources=None).to_json()


def _requests(instance: objects.Instance, request_spec: objects.RequestSpec) -> objects.InstancePCIRequests | None:
    requests = request_spec.pci_requests if 'pci_requests' in request_spec else None
    if requests is None:
        return None
    return objects.InstancePCIRequests(instance_uuid=instance.uuid, requests=requests.requests)


def _free(host: Host, work: Work, ctxt: Any, instance: objects.Instance, migration: objects.Migration,
          undo: Undo) -> None:
    claims.give_back(host, work, ctxt, instance.uuid, move.of_destination(migration), unsided=False, undo=True,
                     undone=claims.why(undo.error))


@order(Compute.undo_prep_resize, checks=Check.UNDO, forward=True)
def undo(host: Host, work: Work, ctxt: Any, instance: objects.Instance,
         migration: objects.Migration) -> dict[str, Any]:
    """Give the claim back, and what had arrived of the disk. On one host guest and disk are the source's: untouched."""
    with host.turn(work, instance.uuid):
        here = move.same_host(migration) or migration.dest_compute is None
        move.learn(host, instance, migration)
        if not here and not host.tracker.sides(instance.uuid) - {side_of(migration)}:
            host.driver.cleanup_move_dest(instance, False)
        claims.give_back(host, work, ctxt, instance.uuid, move.of_destination(migration), unsided=not here, undo=True)
    return {}

"""A move's step on its source: power off, keep the disks, carry a copy; then the server is the destination's."""
from __future__ import annotations

import time
from typing import Any

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import claims, records
from kilonova.compute.dispatch import Check, order
from kilonova.compute.events import Event
from kilonova.compute.host import Host, image_of, was_active
from kilonova.compute.keys import Work
from kilonova.compute.ops import build, move
from kilonova.compute.tracker import side_of
from kilonova.compute.undo import Undo
from kilonova.rpc.compute import Compute
from kilonova.virt.driver import Progress

LOG = logging.getLogger(__name__)

# Seconds between two notes of how much of the disks has gone.
EVERY = 5.0


@order(Compute.resize_instance)
def run(host: Host, work: Work, ctxt: Any, order: objects.ResizeOrder) -> dict[str, Any]:
    """The ``disk_info`` for ``finish_resize``."""
    instance, migration, disk = order.instance, order.migration, order.disk
    event = host.event('compute_resize_instance')
    if disk is None:
        raise errors.ResizeError(reason='the destination did not say where the disk shall go')
    with host.turn(work, instance.uuid), Undo('resize_instance') as undo:
        host.notify.emit(ctxt, 'instance.resize.start', instance=instance)
        undo.add(_failed, host, work, ctxt, instance, event, undo)
        undo.add(_put_back, host, ctxt, instance, order.image, migration)
        undo.add(host.driver.discard_copy, instance, disk)
        timeout, retry = host.shutdown_wait(instance, order.clean_shutdown)
        with host.tracker.at_work(instance.uuid, 'move'):
            info = host.driver.migrate_disk_and_power_off(instance, disk, order.flavor, timeout, retry,
                                                          _progress(host, work, ctxt, instance, migration))
        work.check()
        values = {'host': migration.dest_compute, 'node': migration.dest_node, 'compute_id': migration.dest_compute_id}
        claims.tell(host, work, ctxt, instance.uuid, transition='resize.migrated', expect={'host': host.name},
                    values=values, migration={'uuid': migration.uuid, 'status': 'post-migrating'},
                    event=event.success())
    host.notify.emit(ctxt, 'instance.resize.end', instance=instance, moved='resize.migrated', values=values)
    return info


def _progress(host: Host, work: Work, ctxt: Any, instance: objects.Instance,
              migration: objects.Migration) -> Progress:
    """Keeps the migration's row up to date while disks go, and ends that when the operation was cancelled or lost."""
    said, mark = time.monotonic(), 0

    def tell(done: int, total: int) -> None:
        nonlocal said, mark
        work.check()
        if time.monotonic() - said < EVERY:
            return
        said, mark = time.monotonic(), mark + 1
        LOG.info('Disks are being carried to %s: %d of %d MiB', migration.dest_compute, done >> 20, total >> 20,
                 instance_uuid=instance.uuid)
        claims.tell(host, work, ctxt, instance.uuid, mark=mark, migration={
            'uuid': migration.uuid, 'disk_total': total, 'disk_processed': done, 'disk_remaining': total - done})
    return tell


def _failed(host: Host, work: Work, ctxt: Any, instance: objects.Instance, event: Event, undo: Undo) -> None:
    host.notify.emit(ctxt, 'instance.resize.error', instance=instance, fault=undo.error)
    # A service that was silent is asked again under the same key.
    undone = None if isinstance(undo.error, errors.Unanswered) else claims.why(undo.error)
    claims.tell(host, work, ctxt, instance.uuid, undo=True, event=event.failure(undo.error), undone=undone)


def _put_back(host: Host, ctxt: Any, instance: objects.Instance, image: dict[str, Any] | None,
              migration: objects.Migration) -> None:
    """The guest as it was: a guest that wasn't touched yet keeps running. One whose device left the host stays off."""
    move.learn(host, instance, migration)
    devices, power_on = host.tracker.devices_without(instance.uuid, side_of(migration)), was_active(instance)
    try:
        move.check_devices(host, instance, devices)
    except errors.DevicesMissing as error:
        LOG.error('The guest is not started: %s', error, instance_uuid=instance.uuid)
        power_on = False
    host.driver.finish_revert_migration(ctxt, instance, image_of(instance, image), devices, power_on)


@order(Compute.undo_resize_instance, checks=Check.UNDO, forward=True)
def undo(host: Host, work: Work, ctxt: Any, instance: objects.Instance,
         migration: objects.Migration) -> dict[str, Any]:
    """The server is the source's again: disk, devices, power state, and its columns in the database.

    A server that was deleted while this host was away is destroyed instead.
    """
    with host.turn(work, instance.uuid):
        fresh = records.instance(ctxt, instance.uuid)
        if fresh is None:
            build.destroy(host, work, ctxt, instance)
            return {}
        # The order's: of a move that has ended meanwhile the server's row says no more which devices were to come.
        move.learn(host, instance, migration)
        columns, extra = _columns(host, fresh, migration)
        _put_back(host, ctxt, fresh, None, migration)
        columns['power_state'] = host.driver.get_info(fresh)
        claims.tell(host, work, ctxt, fresh.uuid, undo=True, values=columns, extra=extra,
                    expect={'host': [migration.source_compute, migration.dest_compute]})
    return {}


def _columns(host: Host, fresh: objects.Instance,
             migration: objects.Migration) -> tuple[dict[str, Any], dict[str, str | None]]:
    """What the destination wrote goes too, should it be unable to take that back itself."""
    values = {'host': migration.source_compute, 'node': migration.source_node, 'compute_id': host.tracker.node.id}
    context = move.context_of(fresh, migration)
    if context is None or fresh.old_flavor is None:
        return values, {}
    extra = fresh.go_back(context)
    return {**values, **fresh.flavor_columns()}, extra

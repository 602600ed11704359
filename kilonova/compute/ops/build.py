"""Build a server: claim · spawn · save its end state. Two calls upward when all goes well.

Whatever fails is undone here: guest and files go, devices are given back. ``verdict`` says if another host may try.
"""
from __future__ import annotations

from typing import Any

from oslo_log import log as logging

from kilonova import errors, objects, sealing
from kilonova.compute import claims, records
from kilonova.compute.dispatch import Check, order
from kilonova.compute.events import Event, now, readable
from kilonova.compute.host import Host, metadata
from kilonova.compute.keys import Work
from kilonova.compute.ops import move
from kilonova.compute.tracker import RUN
from kilonova.compute.undo import Undo
from kilonova.rpc.compute import Compute
from kilonova.states import VmState

LOG = logging.getLogger(__name__)

# Another host would refuse for the same reason (state-machine.md §3.1, 'BuildAbortException').
HOPELESS = (errors.BuildAbort, errors.Invalid, errors.Forbidden, errors.ImageNotFound)
# These say what they mean to the flow.
TOLD = (errors.HostRejected, errors.KeyGone, errors.Cancelled, errors.Conflict)


@order(Compute.build_and_run_instance, checks=Check.WRITE,
       verdict=lambda error, order: verdict(error, order.instance.uuid))
def run(host: Host, work: Work, ctxt: Any, order: objects.BuildOrder) -> dict[str, Any]:
    """Build and run the order's server. Errors: see ``verdict``."""
    with host.turn(work, order.instance.uuid), host.build_slots.hold(work):
        return _build(host, work, ctxt, order)


def _build(host: Host, work: Work, ctxt: Any, order: objects.BuildOrder) -> dict[str, Any]:
    instance, began = order.instance, host.clock()
    LOG.info('Starting instance...', instance_uuid=instance.uuid)
    event = host.event('compute__do_build_and_run_instance')
    with Undo('build') as undo:
        # 1. A place: CPU, memory, disk, devices. Nothing to undo when this fails.
        work.check()
        host.notify.emit(ctxt, 'instance.create.start', instance=instance, image_name=order.image.get('name') or '',
                         bdms=order.block_devices)
        undo.add(_refused, host, work, ctxt, instance, event, undo)
        devices = claims.take(host, work, ctxt, instance.uuid, RUN, instance.flavor, order.pci_requests,
                              order.numa_topology, **_claim(host, ctxt, order))
        instance.numa_topology = host.tracker.topology(instance.uuid, RUN)
        # 2. The guest.
        undo.add(_release, host, work, ctxt, instance, event, undo)
        work.check()
        move.check_present(host, instance, devices)
        _spawn(host, ctxt, order, devices)
        # 3. The end state, and with it the operation's end.
        work.check()
        _save(host, work, ctxt, order, event)
    LOG.info('Took %0.2f seconds to build instance.', host.clock() - began, instance_uuid=instance.uuid)
    return {'host': host.name, 'node': host.tracker.nodename}


def _claim(host: Host, ctxt: Any, order: objects.BuildOrder) -> dict[str, Any]:
    instance, node = order.instance, host.tracker.node
    values = {'host': host.name, 'node': host.tracker.nodename, 'compute_id': node.id, 'launched_on': host.name}
    if 'availability_zone' in instance and instance.availability_zone:
        values['availability_zone'] = instance.availability_zone
    # The first attempt's providers are stored with the server; an alternate's are not.
    requests = order.pci_requests
    extra = {'pci_requests': requests.to_column()} if requests is not None and order.attempt > 1 else {}
    return {'transition': 'build.claim', 'expect': {'host': [None, host.name]}, 'values': values, 'extra': extra,
            'migration': None, 'limits': order.limits, 'group': claims.group_of(host, order.request_spec)}


def _spawn(host: Host, ctxt: Any, order: objects.BuildOrder, devices: list[objects.PciDevice]) -> None:
    instance, began = order.instance, host.clock()
    LOG.info('Start spawning the instance on the hypervisor.', instance_uuid=instance.uuid)
    secrets = _open(host, order)
    host.driver.spawn(ctxt, instance, order.image, pci_devices=devices, admin_password=secrets.admin_password,
                      files=secrets.files, block_devices=order.block_devices)
    LOG.info('Took %0.2f seconds to spawn the instance on the hypervisor.', host.clock() - began,
             instance_uuid=instance.uuid)


def _open(host: Host, order: objects.BuildOrder) -> sealing.Secrets:
    """The admin password and files, in clear for the driver alone. HostRejected: this host lacks the key."""
    if order.sealed is None:
        return sealing.Secrets()
    try:
        return sealing.Keys.read(host.conf.secrets.key_file).open(order.sealed, order.instance.uuid)
    except (sealing.NoKeys, sealing.NotOpened) as error:
        raise errors.HostRejected(f'{host.name} can not open the sealed password and files: {error}') from error


def _save(host: Host, work: Work, ctxt: Any, order: objects.BuildOrder, event: Event) -> None:
    tracker, instance = host.tracker, order.instance
    fields: dict[str, Any] = {
        'transition': 'build.done', 'expect': {'host': host.name}, 'event': event.success(), 'end': True,
        'values': {'power_state': host.driver.get_info(instance), 'launched_at': now()}}
    if 'boot_roles' not in metadata(instance):
        fields['system_metadata'] = {'boot_roles': ','.join(ctxt.roles)}
    with tracker.writing(ctxt):
        plan = tracker.plan_allocate(instance.uuid, RUN)
        # Less work under way, and no failed builds any more.
        tracker.failed_builds = 0
        fields['usage'] = tracker.usage(plan)
        claims.tell(host, work, ctxt, instance.uuid, plan, **fields)
    home = {'host': host.name, 'node': tracker.nodename, 'launched_on': host.name}
    host.notify.emit(ctxt, 'instance.create.end', instance=instance, moved='build.done', bdms=order.block_devices,
                     values={**home, **fields['values']})


def _refused(host: Host, work: Work, ctxt: Any, instance: objects.Instance, event: Event, undo: Undo) -> None:
    """A host that couldn't take the server says so in the action; ``_release`` does when it came further."""
    if not isinstance(undo.error, (errors.KeyGone, errors.Cancelled)):
        host.notify.emit(ctxt, 'instance.create.error', instance=instance, fault=undo.error)
    if isinstance(undo.error, errors.HostRejected):
        claims.tell(host, work, ctxt, instance.uuid, undo=True, event=event.failure(undo.error),
                    undone=claims.why(undo.error))


def _release(host: Host, work: Work, ctxt: Any, instance: objects.Instance, event: Event, undo: Undo) -> None:
    """Guest and files go; devices are free; the server belongs to no host."""
    if host.conf.compute.consecutive_build_service_disable_threshold and not isinstance(undo.error, TOLD):
        host.tracker.failed_builds += 1
    host.notify.emit(ctxt, 'instance.shutdown.start', instance=instance, moved='build.claim')
    destroy(host, work, ctxt, instance, event=event.failure(undo.error), undone=claims.why(undo.error))
    host.notify.emit(ctxt, 'instance.shutdown.end', instance=instance, moved='build.claim')


def destroy(host: Host, work: Work, ctxt: Any, instance: objects.Instance, **fields: Any) -> None:
    """Undo of a build, whole or in part or never begun. A server whose build was saved after all is left alone: the
    reply got lost and its row says so."""
    fresh = records.instance(ctxt, instance.uuid)
    if fresh is not None and fresh.host == host.name and fresh.vm_state != VmState.BUILDING:
        LOG.warning('Not undoing the build of a server that is at home here', instance_uuid=instance.uuid)
        return
    host.driver.destroy(instance)
    claims.give_back(host, work, ctxt, instance.uuid, undo=True,
                     expect={'host': host.name, 'vm_state': VmState.BUILDING.value},
                     values={'host': None, 'node': None, 'compute_id': None, 'launched_on': None}, **fields)


@order(Compute.undo_build, checks=Check.UNDO, forward=True)
def undo(host: Host, work: Work, ctxt: Any, instance: objects.Instance) -> dict[str, Any]:
    """The flow's undo: safe when the build never ran, failed here already, or was lost with an earlier process."""
    with host.turn(work, instance.uuid):
        destroy(host, work, ctxt, instance)
    return {}


def verdict(error: Exception, instance_uuid: str) -> Exception:
    """What the flow is told: HostRejected (an alternate may try), BuildAbort (none should), or as it is."""
    if isinstance(error, TOLD):
        return error
    text = readable(error)
    if isinstance(error, HOPELESS):
        return error if isinstance(error, errors.BuildAbort) else errors.BuildAbort(
            instance_uuid=instance_uuid, reason=text)
    return errors.HostRejected(f'Build of instance {instance_uuid} was re-scheduled: {text}')

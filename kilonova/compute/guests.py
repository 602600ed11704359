"""Guests against their rows: after the host booted, and now and then.

A domain that is not there is a guest that is off; no server is ACTIVE without its guest. A server with an operation
row belongs to its flow and is looked at when that is over.
"""
from __future__ import annotations

from collections.abc import Callable

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import records
from kilonova.compute.host import Host, image_of
from kilonova.compute.operation import tags_found
from kilonova.context import RequestContext
from kilonova.states import PowerState, VmState
from kilonova.virt.parts.host import HypervisorUnavailable

LOG = logging.getLogger(__name__)

# What a guest is called that its server's vm_state wants running.
WANTED_RUNNING = (VmState.ACTIVE, VmState.RESIZED, VmState.RESCUED)
# What a server at rest is called whose guest is there, each with the power states that its guest may be in.
KEPT = {VmState.ACTIVE: (PowerState.RUNNING, PowerState.PAUSED),
        VmState.PAUSED: (PowerState.RUNNING, PowerState.PAUSED),
        VmState.SUSPENDED: (PowerState.RUNNING, PowerState.PAUSED, PowerState.SUSPENDED)}
# A host that was down when its server was soft-deleted comes back with the guest running.
WANTED_OFF = (VmState.STOPPED, VmState.SOFT_DELETED, VmState.SHELVED)
NOT_COMPARED = (VmState.BUILDING, VmState.ERROR)


class Guests:
    """``later`` are servers that were in an operation when this process started; ``recount(ctxt, uuid)`` is told of
    each whose operation is over."""

    def __init__(self, host: Host, ctxt: Callable[[], RequestContext],
                 recount: Callable[[RequestContext, str], None]) -> None:
        self._host, self._ctxt, self._recount = host, ctxt, recount
        self.later: set[str] = set()

    def boot(self) -> None:
        """Once, at start: bring back what ran, or say that it is off; stop what was to be off while we were away."""
        ctxt, host = self._ctxt(), self._host
        self.later, states = records.busy(ctxt, host.name), self._states()
        for instance in records.instances(ctxt, host.name):
            if instance.uuid in self.later:
                continue
            if not _is_right(instance, states):
                self._restore(ctxt, instance)
            elif instance.vm_state in WANTED_OFF and states.get(instance.uuid) == PowerState.RUNNING:
                self._sync_fresh(ctxt, instance.uuid)

    def look_again(self) -> None:
        """Those that a flow worked on: when it is over and left a server whose guest is not running, like ``boot``."""
        if not self.later:
            return
        ctxt, host = self._ctxt(), self._host
        for uuid in sorted(self.later - records.busy(ctxt, host.name)):
            self._recount(ctxt, uuid)
            instance = records.instance(ctxt, uuid)
            if instance is not None and instance.host == host.name and not _is_right(instance, self._states()):
                self._restore(ctxt, instance)
            self.later.discard(uuid)

    def sync(self) -> None:
        """A guest that stopped by itself is SHUTOFF, one that started by itself is stopped again."""
        ctxt, host = self._ctxt(), self._host
        states = self._states()
        for seen in records.instances(ctxt, host.name):
            if seen.task_state is None and not _agrees(seen, states):
                self._sync_fresh(ctxt, seen.uuid)

    def sync_one(self, uuid: str) -> bool:
        """The same for one server; False: an operation works on it, and it was left alone."""
        return self._sync_fresh(self._ctxt(), uuid)

    def _states(self) -> dict[str, int]:
        return {domain['uuid']: domain['state'] for domain in self._host.driver.guests.describe()}

    # -- one server ----------------------------------------------------------------------------------------------------
    def _restore(self, ctxt: RequestContext, seen: objects.Instance) -> None:
        host = self._host
        with host.locks.hold(seen.uuid):
            instance = records.instance(ctxt, seen.uuid)
            if instance is None or instance.task_state is not None or instance.host != host.name:
                return
            if (host.conf.resume_guests_state_on_host_boot and instance.power_state == PowerState.RUNNING
                    and instance.vm_state in WANTED_RUNNING):
                try:
                    self._resume(ctxt, instance)
                    return
                except HypervisorUnavailable:
                    # It says nothing about this guest.
                    raise
                except Exception:
                    LOG.exception('Failed to resume instance', instance_uuid=instance.uuid)
            state = host.driver.guests.get_info(instance)
            self._end(ctxt, instance, state if state == PowerState.SUSPENDED else PowerState.SHUTDOWN)

    def _resume(self, ctxt: RequestContext, instance: objects.Instance) -> None:
        LOG.info('Rebooting instance after host boot, with the devices it had', instance_uuid=instance.uuid)
        devices = self._devices(instance)
        self._host.check_devices(instance, devices)
        devices = devices + self._host.accelerators_of(instance)
        # A rescued server goes on with the rescue: its own disk is what is to be repaired.
        rescued = instance.vm_state == VmState.RESCUED
        start = self._host.driver.rescues.restart if rescued else self._host.driver.power.power_on
        start(instance, image_of(instance), devices)
        if extra := tags_found(instance):
            self._save(ctxt, objects.Save(instance_uuid=instance.uuid, extra=extra, expect={'host': self._host.name}))

    def _devices(self, instance: objects.Instance) -> list[objects.PciDevice]:
        """During VERIFY_RESIZE the destination's: on one host both ends are here."""
        context = instance.migration_context if 'migration_context' in instance else None
        devices = self._host.tracker.devices(instance.uuid)
        if instance.vm_state != VmState.RESIZED or context is None:
            return devices
        new = {(device.compute_node_id, device.address) for device in context.new_pci_devices or ()}
        return [device for device in devices if (device.compute_node_id, device.address) in new]

    def _end(self, ctxt: RequestContext, instance: objects.Instance, state: int) -> None:
        """Its guest doesn't run: the server is off. Nobody who asked us suspended the guest, so it is stopped."""
        if state == PowerState.SUSPENDED:
            LOG.warning('Instance is %s and its guest is suspended. It is stopped', instance.vm_state,
                        instance_uuid=instance.uuid)
            self._host.driver.power.power_off(instance)
            state = PowerState.SHUTDOWN
        self._say_off(ctxt, instance, state)

    def _say_off(self, ctxt: RequestContext, instance: objects.Instance, power_state: int) -> None:
        """SHUTOFF; a resized or rescued server stays so and is off."""
        save = objects.Save(instance_uuid=instance.uuid, values={'power_state': int(power_state)},
                            expect={'host': self._host.name, 'task_state': [None]})
        if instance.vm_state in KEPT:
            save.transition, save.expect = 'host.stopped', {'host': self._host.name}
        LOG.warning('Instance is %s, its guest is not running: it is shown as off', instance.vm_state,
                    instance_uuid=instance.uuid)
        self._save(ctxt, save)

    def _sync_fresh(self, ctxt: RequestContext, uuid: str) -> bool:
        """False: the server isn't at rest."""
        host = self._host
        with host.locks.hold(uuid):
            if uuid in records.busy(ctxt, host.name):
                # Something waits to be given back here: the disk of a move that ended elsewhere, and with it the guest.
                return False
            fresh = records.instance(ctxt, uuid)
            if fresh is None or fresh.host != host.name:
                return True
            if fresh.task_state is not None:
                return False
            if fresh.vm_state not in NOT_COMPARED:
                self._sync_one(ctxt, fresh)
            return True

    def _sync_one(self, ctxt: RequestContext, instance: objects.Instance) -> None:
        state = self._host.driver.guests.get_info(instance)
        wanted, there = instance.vm_state in WANTED_RUNNING, state == PowerState.RUNNING
        if instance.vm_state in KEPT and _is_off(instance, state):
            self._end(ctxt, instance, state)
        elif instance.vm_state in WANTED_OFF and there:
            LOG.warning('Instance is not stopped. It is stopped again', instance_uuid=instance.uuid)
            self._host.driver.power.power_off(instance)
        elif state != instance.power_state:
            LOG.info("During sync_power_state the DB power_state (%s) does not match the hypervisor's (%s)",
                     instance.power_state, state, instance_uuid=instance.uuid)
            if (wanted and not there) or (instance.vm_state in KEPT and not wanted and there):
                LOG.warning('Instance is %s and its guest is in power state %s', instance.vm_state, state,
                            instance_uuid=instance.uuid)
            self._save(ctxt, objects.Save(
                instance_uuid=instance.uuid, values={'power_state': state},
                expect={'host': self._host.name, 'task_state': [None]}))

    def _save(self, ctxt: RequestContext, save: objects.Save) -> None:
        try:
            self._host.upcalls.save(ctxt, save)
        except errors.Conflict as error:
            LOG.info('Not written, the server changed meanwhile: %s', error, instance_uuid=save.instance_uuid)


def _is_right(instance: objects.Instance, states: dict[str, int]) -> bool:
    """Whether nothing is to be restored: the guest runs, or isn't expected to."""
    state = states.get(instance.uuid, int(PowerState.SHUTDOWN))
    if instance.vm_state in KEPT:
        return not _is_off(instance, state)
    return (state in (PowerState.RUNNING, PowerState.PAUSED) or instance.vm_state not in WANTED_RUNNING
            or instance.power_state != PowerState.RUNNING)


def _is_off(instance: objects.Instance, state: int) -> bool:
    """Whether a server that has a guest lost it: nothing of what it did goes on. NOSTATE is no answer."""
    return state != PowerState.NOSTATE and state not in KEPT[VmState(instance.vm_state)]


def _agrees(instance: objects.Instance, states: dict[str, int]) -> bool:
    state = states.get(instance.uuid, int(PowerState.SHUTDOWN))
    if instance.vm_state in NOT_COMPARED:
        return True
    if instance.vm_state in KEPT and _is_off(instance, state):
        return False
    if instance.vm_state in WANTED_OFF and state == PowerState.RUNNING:
        return False
    return bool(state == instance.power_state)

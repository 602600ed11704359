"""Guests against their rows: after the host booted, and now and then.

A domain that is not there is a guest that is off. A server that ran when its host went down and can't be started again
at once gets an operation row, by which conductors have it tried again (``db.queries.resumes``): something that it needs
may come back later than its host. Without such a row no server is ACTIVE without its guest. A server with an operation
row belongs to its flow and is looked at when that is over.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import records
from kilonova.compute.host import Host, image_of
from kilonova.compute.operation import readable, tags_found
from kilonova.context import RequestContext
from kilonova.rpc.interface import VersionCapError
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
# Seconds that a start of the service spends on servers that can't be started; the others are left to conductors then.
PATIENCE = 60.0
UNTRIED = 'Not tried yet: others of its host took long to fail'


class Guests:
    """The guests of one host. ``recount(ctxt, uuid)`` is called for each server of ``host.interrupted``, the servers
    that were in an operation when this process started, as soon as its operation is over."""

    def __init__(self, host: Host, ctxt: Callable[[], RequestContext],
                 recount: Callable[[RequestContext, str], None]) -> None:
        self._host, self._ctxt, self._recount = host, ctxt, recount

    def boot(self) -> None:
        """Start the guests that ran, or say that they are off; stop those that were to be off while we were away.

        Called once, when the service starts. Servers whose start fails, or that were waiting for it already, are left
        to conductors.
        """
        ctxt, host = self._ctxt(), self._host
        host.interrupted.clear()
        host.interrupted.update(records.busy(ctxt, host.name))
        states = self._states()
        failed: dict[str, str] = {}
        spent = 0.0
        for instance in records.instances(ctxt, host.name):
            if instance.uuid in host.interrupted:
                continue
            if not _is_right(instance, states):
                began = host.clock()
                reason = self._restore(ctxt, instance) if spent < PATIENCE or not self._is_wanted(instance) else UNTRIED
                if reason is not None:
                    failed[instance.uuid] = reason
                    spent += host.clock() - began
            elif instance.vm_state in WANTED_OFF and states.get(instance.uuid) == PowerState.RUNNING:
                self._sync_fresh(ctxt, instance.uuid)
        if failed or host.interrupted:
            self._resume_later(ctxt, failed)

    def await_hypervisor(self, error: Exception) -> None:
        """Say of each server that ran here that it waits for the hypervisor, which doesn't answer since this start."""
        ctxt, host = self._ctxt(), self._host
        busy = records.busy(ctxt, host.name)
        waiting = {instance.uuid: readable(error) for instance in records.instances(ctxt, host.name)
                   if instance.uuid not in busy and self._is_wanted(instance)}
        if waiting:
            host.upcalls.resume_later(ctxt, host.name, waiting, is_off=False)

    def _is_wanted(self, instance: objects.Instance) -> bool:
        """Return whether a server that is at rest is to be started again after its host went down."""
        return bool(self._host.conf.resume_guests_state_on_host_boot and instance.power_state == PowerState.RUNNING
                    and instance.vm_state in WANTED_RUNNING and instance.task_state is None)

    def _resume_later(self, ctxt: RequestContext, failed: Mapping[str, str]) -> None:
        """Leave servers that could not be started, {uuid: why}, to conductors; those of the release before know only
        that they are off."""
        host = self._host
        try:
            host.upcalls.resume_later(ctxt, host.name, failed, is_off=True)
        except VersionCapError as error:
            LOG.warning('Servers that could not be started are off, and are not tried again: %s', error)
            for uuid in failed:
                with host.locks.hold(uuid):
                    instance = records.instance(ctxt, uuid)
                    if instance is not None and instance.host == host.name and instance.task_state is None:
                        self._end(ctxt, instance, host.driver.guests.get_info(instance))

    def look_again(self) -> None:
        """Those that a flow worked on: when it is over and left a server whose guest is not running, like ``boot``."""
        if not self._host.interrupted:
            return
        ctxt, host = self._ctxt(), self._host
        for uuid in sorted(host.interrupted - records.busy(ctxt, host.name)):
            try:
                self._recount(ctxt, uuid)
                instance = records.instance(ctxt, uuid)
            except errors.ServerUnreadable as error:
                LOG.error('%s It is left as it is.', error, instance_uuid=uuid)
                instance = None
            if instance is not None and instance.host == host.name and not _is_right(instance, self._states()):
                reason = self._restore(ctxt, instance)
                if reason is not None:
                    self._resume_later(ctxt, {uuid: reason})
            host.interrupted.discard(uuid)

    def sync(self) -> None:
        """Say of a guest that stopped by itself that it is SHUTOFF, and stop one that started by itself.

        A server whose row cannot be read is logged and left as it is.
        """
        ctxt, host = self._ctxt(), self._host
        states = self._states()
        for seen in records.instances(ctxt, host.name):
            if seen.task_state is None and seen.uuid not in host.interrupted and not _agrees(seen, states):
                try:
                    self._sync_fresh(ctxt, seen.uuid)
                except errors.ServerUnreadable as error:
                    LOG.error('%s It is left as it is.', error, instance_uuid=seen.uuid)

    def sync_one(self, uuid: str) -> bool:
        """The same for one server; False: an operation works on it, and it was left alone."""
        return self._sync_fresh(self._ctxt(), uuid)

    def _states(self) -> dict[str, int]:
        return {domain['uuid']: domain['state'] for domain in self._host.driver.guests.describe()}

    # -- one server ----------------------------------------------------------------------------------------------------
    def _restore(self, ctxt: RequestContext, seen: objects.Instance) -> str | None:
        """Start the guest of a server that is to run, or say that the server is off.

        Returns why the guest could not be started, else None. Raises HypervisorUnavailable, which says nothing about
        the guest.
        """
        host = self._host
        with host.locks.hold(seen.uuid):
            try:
                instance = records.instance(ctxt, seen.uuid)
            except errors.ServerUnreadable as error:
                LOG.error('%s Its guest is not started.', error, instance_uuid=seen.uuid)
                return readable(error) if self._is_wanted(seen) else None
            if instance is None or instance.task_state is not None or instance.host != host.name:
                return None
            if self._is_wanted(instance):
                try:
                    resume(ctxt, host, instance)
                    host.devices_used(ctxt, instance.uuid)
                    return None
                except HypervisorUnavailable:
                    raise
                except Exception as error:
                    LOG.exception('Failed to resume instance', instance_uuid=instance.uuid)
                    host.devices_failed(ctxt, instance.uuid, error)
                    return readable(error)
            state = host.driver.guests.get_info(instance)
            self._end(ctxt, instance, state if state == PowerState.SUSPENDED else PowerState.SHUTDOWN)
            return None

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
            if uuid in host.interrupted or uuid in records.busy(ctxt, host.name):
                # ``look_again`` may have to start it, or something waits to be given back here: the disk of a move that
                # ended elsewhere, and with it the guest.
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
        _save(ctxt, self._host, save)


def _save(ctxt: RequestContext, host: Host, save: objects.Save) -> None:
    try:
        host.upcalls.save(ctxt, save)
    except errors.Conflict as error:
        LOG.info('Not written, the server changed meanwhile: %s', error, instance_uuid=save.instance_uuid)


def resume(ctxt: RequestContext, host: Host, instance: objects.Instance) -> None:
    """Start the guest of a server that ran when this host went down, with the devices that it had.

    The caller holds the server's lock. Raises whatever keeps the guest from running; nothing is left of the try then.
    """
    LOG.info('Rebooting instance after host boot, with the devices it had', instance_uuid=instance.uuid)
    devices = _devices(host, instance)
    host.check_devices(instance, devices)
    devices = devices + host.accelerators_of(instance)
    # A rescued server goes on with the rescue: its own disk is what is to be repaired.
    rescued = instance.vm_state == VmState.RESCUED
    start = host.driver.rescues.restart if rescued else host.driver.power.power_on
    start(instance, image_of(instance), devices)
    if extra := tags_found(instance):
        _save(ctxt, host, objects.Save(instance_uuid=instance.uuid, extra=extra, expect={'host': host.name}))


def _devices(host: Host, instance: objects.Instance) -> list[objects.PciDevice]:
    """Return the devices of a server; during VERIFY_RESIZE the destination's, as on one host both ends are here."""
    context = instance.migration_context if 'migration_context' in instance else None
    devices = host.tracker.devices(instance.uuid)
    if instance.vm_state != VmState.RESIZED or context is None:
        return devices
    new = {(device.compute_node_id, device.address) for device in context.new_pci_devices or ()}
    return [device for device in devices if (device.compute_node_id, device.address) in new]


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

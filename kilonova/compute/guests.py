"""Compare guests with their servers' rows after the host has booted, and periodically.

A guest whose domain does not exist counts as off. A server that ran when its host went down is started again. This can
fail, for example because a service that the server needs comes back later than the host. Then a conductor creates an
operation row for the server and tries again later (``db.queries.resumes``). So a server that is ACTIVE without a
running guest always has an operation row. This module does not change a server that has an operation row until the
operation has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import records
from kilonova.compute.host import ComputeHost, image_of
from kilonova.compute.operation import readable, tags_found
from kilonova.context import RequestContext
from kilonova.rpc.interface import VersionCapError
from kilonova.states import PowerState, VmState
from kilonova.virt.parts.host import HypervisorUnavailable

LOG = logging.getLogger(__name__)

# vm_states of servers whose guest must run.
WANTED_RUNNING = (VmState.ACTIVE, VmState.RESIZED, VmState.RESCUED)
# {vm_state: power states that the guest may have}. With another power state, the server becomes STOPPED.
KEPT = {
    VmState.ACTIVE: (PowerState.RUNNING, PowerState.PAUSED),
    VmState.PAUSED: (PowerState.RUNNING, PowerState.PAUSED),
    VmState.SUSPENDED: (PowerState.RUNNING, PowerState.PAUSED, PowerState.SUSPENDED),
}
# vm_states of servers whose guest must be off. A guest that still runs is stopped again.
# A guest may still run, for example, because its host was down when its server was soft-deleted.
WANTED_OFF = (VmState.STOPPED, VmState.SOFT_DELETED, VmState.SHELVED)
# vm_states of servers that are not compared with their guests.
NOT_COMPARED = (VmState.BUILDING, VmState.ERROR)
# Maximum seconds that this service, when it starts, spends on guests that fail to start.
# After PATIENCE seconds of failed starts, this service starts no more guests. Conductors start the others later.
PATIENCE = 60.0
UNTRIED = 'Not tried yet: other servers of its host took too long to fail'


class HostGuests:
    """The guests of one host.

    ``host.interrupted`` holds the servers that were in an operation when this process started. When the operation of
    such a server has ended, ``recount(ctxt, uuid)`` is called: it counts the server's resources in the tracker again.
    """

    def __init__(
        self, host: ComputeHost, ctxt: Callable[[], RequestContext], recount: Callable[[RequestContext, str], None]
    ) -> None:
        self._host, self._ctxt, self._recount = host, ctxt, recount

    def boot(self) -> None:
        """Start the guests that ran before the host went down, and stop guests that must now be off.

        Servers whose guest does not run and is not started are marked as off. Called once, when the service starts. If
        a server can't be started now, a conductor starts it later. Servers that were already waiting for a start are
        also left to the conductors.
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
        """Record for each server that ran on this host that it waits for the hypervisor.

        Called if the hypervisor has not answered since this process started. ``error`` is the hypervisor's error.
        """
        ctxt, host = self._ctxt(), self._host
        busy = records.busy(ctxt, host.name)
        waiting = {
            instance.uuid: readable(error)
            for instance in records.instances(ctxt, host.name)
            if instance.uuid not in busy and self._is_wanted(instance)
        }
        if waiting:
            host.upcalls.resume_later(ctxt, host.name, waiting, is_off=False)

    def _is_wanted(self, instance: objects.Instance) -> bool:
        """Return whether a server without an operation is to be started again after its host went down."""
        return bool(
            self._host.conf.resume_guests_state_on_host_boot
            and instance.power_state == PowerState.RUNNING
            and instance.vm_state in WANTED_RUNNING
            and instance.task_state is None
        )

    def _resume_later(self, ctxt: RequestContext, failed: Mapping[str, str]) -> None:
        """Let conductors try later to start servers that could not be started. ``failed`` is {uuid: reason}.

        Conductors of the previous release don't know this call. In this case the servers are only marked as off.
        """
        host = self._host
        try:
            host.upcalls.resume_later(ctxt, host.name, failed, is_off=True)
        except VersionCapError as error:
            LOG.warning(
                'Conductors of the previous release cannot start servers later; servers whose start failed are marked '
                'as off: %s',
                error,
            )
            for uuid in failed:
                with host.locks.hold(uuid):
                    instance = records.instance(ctxt, uuid)
                    if instance is not None and instance.host == host.name and instance.task_state is None:
                        self._end(ctxt, instance, host.driver.guests.get_info(instance))

    def look_again(self) -> None:
        """Start the guests of servers whose operation has ended and left the guest off although it must run.

        Only servers that were in an operation when this process started are considered.
        """
        if not self._host.interrupted:
            return
        ctxt, host = self._ctxt(), self._host
        for uuid in sorted(host.interrupted - records.busy(ctxt, host.name)):
            try:
                self._recount(ctxt, uuid)
                instance = records.instance(ctxt, uuid)
            except errors.ServerUnreadable as error:
                LOG.error(
                    'The guest of the server is not started, because the row of the server cannot be read: %s',
                    error,
                    instance_uuid=uuid,
                )
                instance = None
            if instance is not None and instance.host == host.name and not _is_right(instance, self._states()):
                reason = self._restore(ctxt, instance)
                if reason is not None:
                    self._resume_later(ctxt, {uuid: reason})
            host.interrupted.discard(uuid)

    def sync(self) -> None:
        """Set a server to SHUTOFF if its guest stopped by itself, and stop a guest that started by itself.

        A server whose row can't be read is logged and left as it is.
        """
        ctxt, host = self._ctxt(), self._host
        states = self._states()
        for seen in records.instances(ctxt, host.name):
            if seen.task_state is None and seen.uuid not in host.interrupted and not _agrees(seen, states):
                try:
                    self._sync_fresh(ctxt, seen.uuid)
                except errors.ServerUnreadable as error:
                    LOG.error(
                        'The server is not compared with its guest, because the row of the server cannot be read: %s',
                        error,
                        instance_uuid=seen.uuid,
                    )

    def sync_one(self, uuid: str) -> bool:
        """Compare one server's row with its guest, and correct the row or the guest if they differ.

        Return False if the server is in an operation.
        """
        return self._sync_fresh(self._ctxt(), uuid)

    def _states(self) -> dict[str, int]:
        return {domain['uuid']: domain['state'] for domain in self._host.driver.guests.describe()}

    # -- comparison of one server with its guest -----------------------------------------------------------------------
    def _restore(self, ctxt: RequestContext, seen: objects.Instance) -> str | None:
        """Start the guest of a server that is to run, or mark the server as off.

        Return the reason if the guest could not be started, otherwise None. Raises HypervisorUnavailable if the
        hypervisor does not answer, because the state of the guest is then unknown.
        """
        host = self._host
        with host.locks.hold(seen.uuid):
            try:
                instance = records.instance(ctxt, seen.uuid)
            except errors.ServerUnreadable as error:
                LOG.error(
                    'The guest is not started, because the row of its server cannot be read: %s',
                    error,
                    instance_uuid=seen.uuid,
                )
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
        """Mark a server as off, because its guest does not run.

        If the guest is suspended although no user suspended it, the guest is stopped first.
        """
        if state == PowerState.SUSPENDED:
            LOG.warning(
                'Instance is %s and its guest is suspended; stopping the guest',
                instance.vm_state,
                instance_uuid=instance.uuid,
            )
            self._host.driver.power.power_off(instance)
            state = PowerState.SHUTDOWN
        self._say_off(ctxt, instance, state)

    def _say_off(self, ctxt: RequestContext, instance: objects.Instance, power_state: int) -> None:
        """Record in the server's row that its guest is off.

        The vm_state ACTIVE, PAUSED or SUSPENDED becomes STOPPED. Another vm_state, such as RESIZED, stays as it is.
        """
        save = objects.Save(
            instance_uuid=instance.uuid,
            values={'power_state': int(power_state)},
            expect={'host': self._host.name, 'task_state': [None]},
        )
        if instance.vm_state in KEPT:
            save.transition, save.expect = 'host.stopped', {'host': self._host.name}
        LOG.warning(
            'Instance is %s, but its guest is not running; marking the instance as off',
            instance.vm_state,
            instance_uuid=instance.uuid,
        )
        self._save(ctxt, save)

    def _sync_fresh(self, ctxt: RequestContext, uuid: str) -> bool:
        """Read the server's current row and compare it with the guest.

        Return False if the server is in an operation.
        """
        host = self._host
        with host.locks.hold(uuid):
            if uuid in host.interrupted or uuid in records.busy(ctxt, host.name):
                # The server is in an operation. The operation or ``look_again`` decides whether its guest runs.
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
            LOG.warning('Instance is not stopped. Stopping its guest again', instance_uuid=instance.uuid)
            self._host.driver.power.power_off(instance)
        elif state != instance.power_state:
            LOG.info(
                "During sync_power_state the DB power_state (%s) does not match the hypervisor's (%s)",
                instance.power_state,
                state,
                instance_uuid=instance.uuid,
            )
            if (wanted and not there) or (instance.vm_state in KEPT and not wanted and there):
                LOG.warning(
                    'Instance is %s and its guest is in power state %s; recording the power state without changing the '
                    'vm_state or the guest',
                    instance.vm_state,
                    state,
                    instance_uuid=instance.uuid,
                )
            self._save(
                ctxt,
                objects.Save(
                    instance_uuid=instance.uuid,
                    values={'power_state': state},
                    expect={'host': self._host.name, 'task_state': [None]},
                ),
            )

    def _save(self, ctxt: RequestContext, save: objects.Save) -> None:
        _save(ctxt, self._host, save)


def _save(ctxt: RequestContext, host: ComputeHost, save: objects.Save) -> None:
    try:
        host.upcalls.save(ctxt, save)
    except errors.Conflict as error:
        LOG.info(
            'The state of the guest was not written, because another request changed the server at the same time: %s',
            error,
            instance_uuid=save.instance_uuid,
        )


def resume(ctxt: RequestContext, host: ComputeHost, instance: objects.Instance) -> None:
    """Start the guest of a server that ran when this host went down, with the devices that it had.

    The caller must hold the server's lock. Raises an error if the guest can't be started. Everything that the failed
    start created is then removed again.
    """
    LOG.info('Rebooting instance after host boot, with the devices it had', instance_uuid=instance.uuid)
    devices = host.devices_of(instance, _devices(host, instance))
    # A rescued server is started in rescue mode again, because its own disk is to be repaired.
    rescued = instance.vm_state == VmState.RESCUED
    start = host.driver.rescues.restart if rescued else host.driver.power.power_on
    start(instance, image_of(instance), devices)
    if extra := tags_found(instance):
        _save(ctxt, host, objects.Save(instance_uuid=instance.uuid, extra=extra, expect={'host': host.name}))


def _devices(host: ComputeHost, instance: objects.Instance) -> list[objects.PciDevice]:
    """Return the devices of a server. In VERIFY_RESIZE, return only the devices of the move's destination.

    If a server is resized within this host, the tracker has the old and the new devices.
    """
    context = instance.migration_context if 'migration_context' in instance else None
    devices = host.tracker.devices(instance.uuid)
    if instance.vm_state != VmState.RESIZED or context is None:
        return devices
    new = {(device.compute_node_id, device.address) for device in context.new_pci_devices or ()}
    return [device for device in devices if (device.compute_node_id, device.address) in new]


def _is_right(instance: objects.Instance, states: dict[str, int]) -> bool:
    """Return True if the guest need not be started, because it runs or because its server need not run.

    ``states`` is {server uuid: power state of its guest in the hypervisor}. A server that is not in it has no guest.
    """
    state = states.get(instance.uuid, int(PowerState.SHUTDOWN))
    if instance.vm_state in KEPT:
        return not _is_off(instance, state)
    return (
        state in (PowerState.RUNNING, PowerState.PAUSED)
        or instance.vm_state not in WANTED_RUNNING
        or instance.power_state != PowerState.RUNNING
    )


def _is_off(instance: objects.Instance, state: int) -> bool:
    """Return True if a server must have a guest and its guest is off. Power state NOSTATE does not count as off."""
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

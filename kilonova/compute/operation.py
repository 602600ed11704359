"""``HostTask``: the object with which a function of ``ops`` carries out one step of an operation for one server.

    @operation_method(Compute.soft_delete_instance, forward=True)
    def soft_delete(op: HostTask) -> Reply:
        op.begin('compute_soft_delete_instance')            # the event of the instance action
        with op.exclusive():                           # take the server's lock; is the operation still current?
            op.host.driver.power.power_off(op.instance)
            op.save(transition='soft_delete.done', end=True, event=op.event())
        return {}

    with op.exclusive(), op.undoing('build'):
        op.undo(_release, op)                               # before the act, so that a lost reply leaks nothing
        devices = op.claim(RUN, flavor, pci_requests, numa_topology)

``claim``, ``save`` and ``give_back`` keep the tracker and the database equal. The tracker first chooses devices and
amounts (a ``ClaimPlan``), the conductor writes the plan to the database, and then the tracker records it as done.
"""

from __future__ import annotations

import contextlib
import datetime
import enum
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypedDict, Unpack

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import records
from kilonova.compute.host import ComputeHost, Stopping
from kilonova.compute.keys import RunningTask
from kilonova.compute.tracker import RUN, ClaimPlan, NodeUsage, Usage
from kilonova.context import RequestContext
from kilonova.pci import ports as pci_ports
from kilonova.pci.request import as_list

LOG = logging.getLogger(__name__)

DETAILS_LIMIT, TRACE_LIMIT = 4096, 16384

# The result of an RPC method; it can be written as JSON.
Reply = Mapping[str, object]
# {column of a database row: value}
Columns = Mapping[str, object]
# {column of instance_extra: JSON text to write, or None to write NULL}
Extra = Mapping[str, str | None]


class StepCheck(enum.Enum):
    """The check that a host makes before a step changes anything: must the step still be done?

    - STEP: ask the conductor whether the operation is still at this step and attempt.
    - UNDO: ask the conductor whether the operation is undoing this step.
    - WRITE: do not ask first. The step's first write (a claim or a save) fails if the operation has left the step.
    """

    STEP = 'step'
    UNDO = 'undo'
    WRITE = 'write'


class ActionEvent(TypedDict):
    """An event of an instance action. Users read ``details``, administrators read ``traceback``."""

    event: str
    result: str
    host: str
    start_time: str
    finish_time: str
    details: str | None
    traceback: str | None


class Fault(TypedDict):
    """Columns of an instance fault. Users read ``message``, administrators ``details``."""

    code: int
    message: str
    details: str
    host: str


class _WrittenArguments(TypedDict, total=False):
    transition: str
    expect: Columns
    values: Columns
    migration: Columns | None


class ClaimFields(_WrittenArguments, total=False):
    """The optional fields of a claim, which are attributes of ``db.queries.claims.ClaimWrite``.

    Other fields, such as CPUs, memory, disk and devices, are in each claim.
    """

    group: Mapping[str, str] | None


class Undone(TypedDict, total=False):
    """The optional fields of the message with which a host reports that it has undone its work for a step.

    ``event`` is the finished event of the instance action. ``undone`` is the reason why the host undid the work, as
    text. Later calls for this step and attempt on the host are refused with this text.
    """

    event: ActionEvent
    undone: str | None


class SaveFields(_WrittenArguments, Undone, total=False):
    """The optional fields of ``objects.Save``, the message with which a host reports a step's result to the conductor.

    The fields are attributes of ``db.queries.claims.SaveWrite``.
    """

    extra: Extra
    system_metadata: Mapping[str, str | None]
    fault: Fault
    message: str
    end: bool
    undo: bool
    mark: int
    usage: NodeUsage


class NotificationFacts(TypedDict, total=False):
    """The optional fields of a notification about a server, as keyword arguments of ``Notifications.emit``."""

    moved: str
    values: Columns
    fault: Exception | None
    new_flavor: objects.Flavor
    image_name: str
    bdms: list[objects.BlockDeviceMapping]
    snapshot_image_id: str
    rescue_image_ref: str | None
    volume_id: str
    old_volume_id: str
    new_volume_id: str
    rescue_image_name: str


class HostTask:
    """One step of an operation, executed on this host under one operation key (operation, step and attempt).

    ``instance`` is the server as the conductor sent it. ``error`` is the error that ended the ``undoing`` block; undo
    functions report it. ``check()`` raises Cancelled if the operation has been cancelled.
    """

    def __init__(
        self,
        host: ComputeHost,
        work: RunningTask,
        ctxt: RequestContext,
        instance: objects.Instance,
        checks: StepCheck = StepCheck.STEP,
    ) -> None:
        self.host, self.ctxt, self.instance = host, ctxt, instance
        self.key, self.check = work.key, work.check
        self.error: Exception | None = None
        # True after a save of this step has written the event of the instance action. It is written only once.
        self.has_told = False
        self._checks = checks
        self._undos: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the server's lock while the block runs, and check that the operation is still at this step.

        The check is made after the lock is taken, because the operation may end while this call waits for the lock, and
        because the call may arrive late. When an error is raised, nothing has been done.

        Raises:
            Cancelled: The operation has been cancelled.
            KeyGone: The operation is no longer at this step or, if this call is an undo, no longer undoes this step.
            HostRejected: This host has already done this step and undone it.
            ReleasePending: This host must first release what an earlier operation of the server left on it.
        """
        host, uuid = self.host, self.instance.uuid
        with host.locks.hold(uuid):
            self.check()
            if self._checks is not StepCheck.WRITE:
                host.upcalls.check_key(self.ctxt, self.key, host.name, undo=self._checks is StepCheck.UNDO)
            host.upcalls.power_states.pop(uuid, None)
            yield

    def is_at_home(self) -> bool:
        """Return whether the server exists and belongs to this host now. Makes one call to the conductor."""
        found = records.instance(self.ctxt, self.instance.uuid)
        return found is not None and found.host == self.host.name

    # -- action events and notifications of this step ------------------------------------------------------------------
    def begin(self, event: str) -> None:
        """Start the event of the instance action. It is written to the database once, together with its end."""
        self._event, self._began = event, now()

    def event(self, error: Exception | None = None) -> ActionEvent:
        """Return the finished event of the instance action: failed if there is an ``error``, otherwise successful."""
        return {
            'event': self._event,
            'result': 'Success' if error is None else 'Error',
            'host': self.host.name,
            'start_time': self._began,
            'finish_time': now(),
            'details': None if error is None else errors.shortened(readable(error), DETAILS_LIMIT),
            'traceback': None if error is None else trace_of(error),
        }

    def fault(self, error: Exception) -> Fault:
        """Return the fault to store for a server whose operation ended with ``error``."""
        return {
            'code': getattr(error, 'code', 500),
            'message': readable(error),
            'details': trace_of(error),
            'host': self.host.name,
        }

    def notify(self, event: str, **facts: Unpack[NotificationFacts]) -> None:
        """Send a notification about the server. ``facts`` are further fields of the notification."""
        self.host.notify.emit(self.ctxt, event, instance=self.instance, **facts)

    # -- undo of a step that failed on this host -----------------------------------------------------------------------
    @contextlib.contextmanager
    def undoing(self, name: str) -> Iterator[None]:
        """Run the registered undos, newest first, if the block raises an ``Exception``. Then raise that error again.

        Errors of undos are only logged. Nothing is undone if the error is ``Stopping`` or not an ``Exception``: the
        process is ending, and the conductor sends the call to the next process.
        """
        try:
            yield
        except Stopping:
            raise
        except Exception as error:
            self.error = error
            # Mark the failed devices before the undos release them. Otherwise the devices would be offered again.
            self.host.devices_failed(self.ctxt, self.instance.uuid, error)
            for func, args in reversed(self._undos):
                try:
                    func(*args)
                except errors.KeyGone as gone:
                    # The operation has left this step, so this undo function stops early. The others are still called.
                    # What the function has not undone is undone by the conductor's undo or at the host's next start.
                    LOG.info(
                        'The undo of the step %s was not completed (function %s); the conductor or the next start of '
                        'this host completes it: %s',
                        name,
                        getattr(func, '__name__', func),
                        gone,
                        instance_uuid=self.instance.uuid,
                    )
                except Exception:
                    LOG.exception(
                        'The undo of the step %s failed (function %s)',
                        name,
                        getattr(func, '__name__', func),
                        instance_uuid=self.instance.uuid,
                    )
            raise

    def undo(self, func: Callable[..., object], *args: object) -> None:
        """Register ``func(*args)`` to undo the work that the step does next.

        If the step fails, the registered functions are called in reverse order. ``func`` must do no harm if the work
        was not done.
        """
        self._undos.append((func, args))

    @property
    def undone(self) -> str:
        """A text that says why this host undid the step. The host reports it to the conductor.

        If this host later receives a call with the same operation key, the conductor refuses the step with this reason.
        """
        return readable(self.error) if self.error is not None else 'it was undone on this host'

    # -- claims and saves of this step ---------------------------------------------------------------------------------
    def claim(
        self,
        side: str,
        flavor: objects.Flavor,
        requests: objects.InstancePCIRequests | None,
        wanted: objects.InstanceNUMATopology | None,
        limits: objects.SchedulerLimits | None,
        extra: Callable[[ClaimPlan], Extra],
        **fields: Unpack[ClaimFields],
    ) -> list[objects.PciDevice]:
        """Claim CPU, memory, disk and devices for the server, and return the claimed devices.

        ``side`` is the claim's name in the tracker: ``RUN``, or ``claim_key(migration)`` in a move. ``wanted`` holds
        the requested NUMA cells; ``tracker.topology(uuid, side)`` returns the assigned ones. ``extra(plan)`` returns
        the columns of instance_extra to write. If an error is raised, nothing stays claimed.

        Raises:
            HostRejected: The host can't take the server; an alternate host may.
            KeyGone: The operation is no longer at this step.
            Conflict: The server has changed meanwhile.
        """
        tracker, uuid = self.host.tracker, self.instance.uuid
        usage = Usage.of(flavor, from_volume=self.instance.is_from_volume)
        LOG.info(
            'Attempting claim: memory %d MB, disk %d GB, vcpus %d CPU',
            usage.memory_mb,
            usage.local_gb,
            usage.vcpus,
            instance_uuid=uuid,
        )
        try:
            with tracker.writing(self.ctxt):
                plan = tracker.plan(uuid, side, flavor, requests, wanted, limits, self.instance.is_from_volume)
                self._write_claim(plan, side, extra(plan), fields)
        except errors.KilonovaError as error:
            LOG.info('Failed to claim: %s', error, instance_uuid=uuid)
            raise
        LOG.info('Claim successful on node %s', tracker.nodename, instance_uuid=uuid)
        return plan.devices

    def claim_more(self, request: objects.InstancePCIRequest) -> objects.PciDevice:
        """Claim a device for one more PCI request of a server of this host, and add the request to the server.

        Raises the same errors as ``claim``.
        """
        tracker, before = self.host.tracker, self.instance.pci_requests
        others = [one for one in as_list(before) if one.request_id != request.request_id]
        requests = objects.InstancePCIRequests(instance_uuid=self.instance.uuid, requests=[*others, request])
        with tracker.writing(self.ctxt):
            plan = tracker.plan_more(self.instance.uuid, request)
            self._write_claim(plan, RUN, {'pci_requests': requests.to_column()}, {'expect': {'host': self.host.name}})
        (device,) = plan.devices
        LOG.info('Claimed %s for port %s', device.address, request.requester_id, instance_uuid=self.instance.uuid)
        return device

    def _write_claim(self, plan: ClaimPlan, side: str, extra: Extra, fields: ClaimFields) -> None:
        tracker, host = self.host.tracker, self.host
        if side == RUN and plan.topology is not None:
            # The claim RUN has its NUMA placement in instance_extra, a move's claim in the migration context.
            extra = {**extra, 'numa_topology': plan.topology.to_json()}
        usage = tracker.usage(plan)
        try:
            host.upcalls.claim(
                self.ctxt,
                objects.Claim(
                    key=self.key,
                    request_id=self.ctxt.request_id,
                    instance_uuid=self.instance.uuid,
                    extra=extra,
                    devices=plan.changes,
                    usage=tracker.numbered(usage),
                    host=host.name,
                    **fields,
                ),
            )
        except errors.ClaimConflict as error:
            # ClaimConflict: another process changed this node's device rows, so the tracker must read them again.
            tracker.abort(plan)
            tracker.distrust()
            raise errors.HostRejected(reason='Claim pci failed') from error
        except Stopping:
            raise
        except Exception as error:
            tracker.abort(plan)
            if isinstance(error, errors.KeyGone):
                # The claim may have been written although its answer was lost, so the device rows are read again.
                tracker.distrust()
            raise
        tracker.commit(plan)
        tracker.published = usage

    def bind_ports(
        self, devices: list[objects.PciDevice], accelerated: Mapping[str, dict[str, Any]] = MappingProxyType({})
    ) -> None:
        """Bind the server's ports that use claimed devices or accelerators, and update the server's network info.

        ``devices`` are claimed devices of this host. ``accelerated`` is a dict from port id to binding profile, for the
        ports that are accelerators. If the server has no ports of these two kinds, the conductor is not called.

        Raises:
            HostRejected: The ports can't be bound on this host; another host may take the server.
            BuildAbort: A port does not belong to the server any more, so no host can build the server.
            KeyGone: The operation is no longer at this step.
        """
        profiles = {**pci_ports.profiles(self.instance.pci_requests, devices), **accelerated}
        if profiles:
            self.instance.info_cache = objects.InstanceInfoCache(
                instance_uuid=self.instance.uuid,
                network_info=self.host.upcalls.bind_ports(
                    self.ctxt, self.key, self.instance.uuid, self.host.name, profiles, self.check
                ),
            )

    def group_of(self, request_spec: objects.RequestSpec | None) -> dict[str, str] | None:
        """Return {'uuid': the server's group, 'host': this host}, with which the conductor checks the group's policy.

        The conductor makes this late check when it writes the claim. Return None (no late check) if the server has no
        group, or if ``[workarounds]disable_group_policy_check_upcall`` is set.
        """
        group = request_spec.instance_group if request_spec is not None and 'instance_group' in request_spec else None
        if group is None or 'uuid' not in group or self.host.conf.workarounds.disable_group_policy_check_upcall:
            return None
        return {'uuid': group.uuid, 'host': self.host.name}

    def save(self, plan: ClaimPlan | None = None, **fields: Unpack[SaveFields]) -> None:
        """Send the result of a step to the conductor, which writes it to the database.

        ``plan`` is a planned change of the server's claims in the tracker. A caller that gives a ``plan`` must hold
        ``tracker.writing()``. The rows of its devices are written with the result. Raises KeyGone, ClaimConflict or
        Conflict if nothing was written. The tracker then does not make the planned change.
        """
        tracker = self.host.tracker
        usage = fields.get('usage')
        save = objects.Save(key=self.key, request_id=self.ctxt.request_id, instance_uuid=self.instance.uuid, **fields)
        if plan is not None:
            save.devices = plan.changes
            if plan.dropped or plan.freed:
                usage = tracker.usage(plan)
        if usage is not None:
            save.usage = tracker.numbered(usage)
        try:
            self.host.upcalls.save(self.ctxt, save)
        except Stopping:
            raise
        except Exception as error:
            if plan is not None:
                tracker.abort(plan)
                if isinstance(error, errors.ClaimConflict):
                    tracker.distrust()
            raise
        self.has_told = self.has_told or 'event' in fields
        if plan is not None:
            tracker.commit(plan)
        tracker.published = usage or tracker.published

    def save_tags(self, late: bool = False) -> None:
        """Save the addresses at which the guest finds its tagged devices. Called after an attach or detach.

        ``late`` is True if the server may have left this host in the meantime. If ``late`` is True, and in every undo,
        the server's row is read first, and nothing is saved if the server is on another host.
        """
        extra, late = tags_found(self.instance), late or self._checks is StepCheck.UNDO
        if extra and late:
            fresh = records.instance(self.ctxt, self.instance.uuid)
            if fresh is None or fresh.host != self.host.name:
                return
        if extra:
            self.save(undo=late, extra=extra)

    def give_back(
        self, leaving: Callable[[str], bool] = lambda side: True, *, unsided: bool = True, **fields: Unpack[SaveFields]
    ) -> None:
        """Free the devices, CPUs, memory and disk that the server holds on this host, and save this in the database.

        ``leaving(name)`` returns whether the claim with this name is freed. The name is ``RUN`` or the claim key of a
        migration. If ``unsided`` is True, also free devices of the server that belong to no claim in the tracker, as
        after a restart of the service. ``fields`` are saved in the same transaction.
        """
        tracker = self.host.tracker
        with tracker.writing(self.ctxt):
            self.save(tracker.plan_free(self.instance.uuid, leaving, unsided=unsided), **fields)


def tags_found(instance: objects.Instance) -> Extra:
    """Return {'device_metadata': JSON text} if the driver has set new addresses of the guest's tagged devices.

    The text is the new value of this column of instance_extra. Return an empty dict if the addresses have not changed.
    """
    return instance.extra_values({'device_metadata'} & instance.obj_what_changed())


def now() -> str:
    """Return the current time as naive UTC in ISO format, the form that claims and saves use."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None).isoformat()


def readable(error: BaseException) -> str:
    """Return an error's text in a form that a user may read.

    For Kilonova's own errors it is the error's text without paths of this host. For other errors it is only the error's
    class, because their text may contain anything.
    """
    text = errors.without_paths(str(error)) if isinstance(error, errors.KilonovaError) else ''
    return text or f'{type(error).__name__} on the compute host'


def trace_of(error: BaseException) -> str:
    """Return the error's traceback for administrators, at most the last 16384 characters."""
    return ''.join(traceback.format_exception(error))[-TRACE_LIMIT:]

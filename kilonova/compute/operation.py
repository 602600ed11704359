"""``Operation``: what a function of ``ops`` is given to carry out one order for one server.

    @order(Compute.soft_delete_instance, forward=True)
    def soft_delete(op: Operation) -> Reply:
        op.begin('compute_soft_delete_instance')            # the event of the instance action
        with op.turn():                                     # the server's lock; does the operation still stand?
            op.host.driver.power.power_off(op.instance)
            op.save(transition='soft_delete.done', end=True, event=op.event())
        return {}

    with op.turn(), op.undoing('build'):
        op.undo(_release, op)                               # before the act: a lost reply leaks nothing
        devices = op.claim(RUN, flavor, pci_requests, numa_topology)

``claim``, ``save`` and ``give_back`` keep ledger and database in step: the ledger plans, the conductor writes, the
ledger commits.
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
from kilonova.compute.host import Host, Stopping
from kilonova.compute.keys import Work
from kilonova.compute.tracker import RUN, NodeUsage, Plan, Usage
from kilonova.context import RequestContext
from kilonova.pci import ports as pci_ports
from kilonova.pci.request import as_list

LOG = logging.getLogger(__name__)

DETAILS_LIMIT, TRACE_LIMIT = 4096, 16384

# What a method answers, as JSON carries it; {column: value}; columns of instance_extra, as JSON text.
Reply = Mapping[str, object]
Columns = Mapping[str, object]
Extra = Mapping[str, str | None]


class Check(enum.Enum):
    """What an order must find before it changes anything: STEP: the operation stands at this step of this attempt;
    UNDO: it is undoing it; WRITE: its own first write looks (a claim, a state)."""

    STEP = 'step'
    UNDO = 'undo'
    WRITE = 'write'


class ActionEvent(TypedDict):
    """An event of an instance action: ``details`` are for users to read, ``traceback`` is for administrators."""

    event: str
    result: str
    host: str
    start_time: str
    finish_time: str
    details: str | None
    traceback: str | None


class Fault(TypedDict):
    """Columns of a fault: users read the message, administrators the details."""

    code: int
    message: str
    details: str
    host: str


class _Written(TypedDict, total=False):
    transition: str
    expect: Columns
    values: Columns
    migration: Columns | None


class ClaimFields(_Written, total=False):
    """What a claim may say besides what is claimed: see ``objects.Claim``."""

    group: Mapping[str, str] | None


class Undone(TypedDict, total=False):
    """What the save of an undo may say besides what it gives back."""

    event: ActionEvent
    undone: str | None


class SaveFields(_Written, Undone, total=False):
    """What a save may say: see ``objects.Save``."""

    extra: Extra
    system_metadata: Mapping[str, str | None]
    fault: Fault
    message: str
    end: bool
    undo: bool
    mark: int
    usage: NodeUsage


class Facts(TypedDict, total=False):
    """What a notification may say besides the server: see ``Notifications.emit``."""

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


class Operation:
    """One order under one key. ``instance``: the server as the conductor sent it; ``error``: what ended the block of
    ``undoing``, for undos that report it; ``check()`` raises Cancelled when the operation was cancelled meanwhile."""

    def __init__(self, host: Host, work: Work, ctxt: RequestContext, instance: objects.Instance,
                 checks: Check = Check.STEP) -> None:
        self.host, self.ctxt, self.instance = host, ctxt, instance
        self.key, self.check = work.key, work.check
        self.error: Exception | None = None
        # Whether a save has written the event.
        self.has_told = False
        self._checks = checks
        self._undos: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """The server is this order's alone for the block. Asked behind the lock: does the operation still stand?

        An order that waited here, or came late, may find its operation over; it ends with KeyGone and has done nothing.
        """
        host, uuid = self.host, self.instance.uuid
        with host.locks.hold(uuid):
            self.check()
            if self._checks is not Check.WRITE:
                host.upcalls.check_key(self.ctxt, self.key, host.name, undo=self._checks is Check.UNDO)
            host.upcalls.power_states.pop(uuid, None)
            yield

    def is_at_home(self) -> bool:
        """Return whether the server exists and belongs to this host now. Asks the conductor."""
        found = records.instance(self.ctxt, self.instance.uuid)
        return found is not None and found.host == self.host.name

    # -- what is told of it --------------------------------------------------------------------------------------------
    def begin(self, event: str) -> None:
        """The event of the instance action begins now. It is written once, at its end."""
        self._event, self._began = event, now()

    def event(self, error: Exception | None = None) -> ActionEvent:
        """The event, at its end: it failed with ``error``, or all went well."""
        return {'event': self._event, 'result': 'Success' if error is None else 'Error', 'host': self.host.name,
                'start_time': self._began, 'finish_time': now(),
                'details': None if error is None else errors.shortened(readable(error), DETAILS_LIMIT),
                'traceback': None if error is None else trace_of(error)}

    def fault(self, error: Exception) -> Fault:
        """The fault of a server whose operation ended with ``error``."""
        return {'code': getattr(error, 'code', 500), 'message': readable(error), 'details': trace_of(error),
                'host': self.host.name}

    def notify(self, event: str, **facts: Unpack[Facts]) -> None:
        """A notification about the server; ``facts`` are what is told besides it."""
        self.host.notify.emit(self.ctxt, event, instance=self.instance, **facts)

    # -- undo ----------------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def undoing(self, name: str) -> Iterator[None]:
        """What the block registers with ``undo`` is undone when it raises, newest first; its own error survives.

        A process that ends (no ``Exception``), or ends while it waits for an answer (``Stopping``), undoes nothing: the
        next process is asked again.
        """
        try:
            yield
        except Stopping:
            raise
        except Exception as error:
            self.error = error
            # Before what failed is given back, or it would be offered.
            self.host.devices_failed(self.ctxt, self.instance.uuid, error)
            for func, args in reversed(self._undos):
                try:
                    func(*args)
                except errors.KeyGone as gone:
                    # The attempt is over: what is still here is asked for by its flow's undo, or a pending release.
                    LOG.info('%s: undo %s: %s', name, getattr(func, '__name__', func), gone)
                except Exception:
                    LOG.exception('%s: undo %s failed', name, getattr(func, '__name__', func))
            raise

    def undo(self, func: Callable[..., object], *args: object) -> None:
        """Register ``func(*args)``; it must be safe when the act it undoes never happened."""
        self._undos.append((func, args))

    @property
    def undone(self) -> str:
        """Why this host takes back what it did under the key, for whoever asks for it again."""
        return readable(self.error) if self.error is not None else 'it was undone here'

    # -- what is written -----------------------------------------------------------------------------------------------
    def claim(self, side: str, flavor: objects.Flavor, requests: objects.InstancePCIRequests | None,
              wanted: objects.InstanceNUMATopology | None, limits: objects.SchedulerLimits | None,
              extra: Callable[[Plan], Extra],
              **fields: Unpack[ClaimFields]) -> list[objects.PciDevice]:
        """Claim CPU, memory, disk and devices for the server; the devices it got.

        ``wanted``: the NUMA cells that it asks for; where it got them ``tracker.topology(uuid, side)`` tells.
        ``extra``: columns of instance_extra. HostRejected: an alternate may take it. KeyGone, Conflict: the operation
        or the server moved on. Nothing stays claimed then.
        """
        tracker, uuid = self.host.tracker, self.instance.uuid
        usage = Usage.of(flavor, from_volume=self.instance.is_from_volume)
        LOG.info('Attempting claim: memory %d MB, disk %d GB, vcpus %d CPU', usage.memory_mb, usage.local_gb,
                 usage.vcpus, instance_uuid=uuid)
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
        """Claim the device of one request more for a server that is at home here, which has that request then. Errors
        as ``claim`` has them."""
        tracker, before = self.host.tracker, self.instance.pci_requests
        others = [one for one in as_list(before) if one.request_id != request.request_id]
        requests = objects.InstancePCIRequests(instance_uuid=self.instance.uuid, requests=[*others, request])
        with tracker.writing(self.ctxt):
            plan = tracker.plan_more(self.instance.uuid, request)
            self._write_claim(plan, RUN, {'pci_requests': requests.to_column()}, {'expect': {'host': self.host.name}})
        (device,) = plan.devices
        LOG.info('Claimed %s for port %s', device.address, request.requester_id, instance_uuid=self.instance.uuid)
        return device

    def _write_claim(self, plan: Plan, side: str, extra: Extra, fields: ClaimFields) -> None:
        tracker, host = self.host.tracker, self.host
        if side == RUN and plan.topology is not None:
            # A server at home keeps its place on the NUMA cells there, one that arrives in its migration context.
            extra = {**extra, 'numa_topology': plan.topology.to_json()}
        usage = tracker.usage(plan)
        try:
            host.upcalls.claim(self.ctxt, objects.Claim(
                key=self.key, request_id=self.ctxt.request_id, instance_uuid=self.instance.uuid, extra=extra,
                devices=plan.changes, usage=tracker.numbered(usage), host=host.name, **fields))
        except errors.ClaimConflict as error:
            # Somebody else wrote rows of this node: what we know of them is no longer true.
            tracker.abort(plan)
            tracker.distrust()
            raise errors.HostRejected(reason='Claim pci failed') from error
        except Stopping:
            raise
        except Exception as error:
            tracker.abort(plan)
            if isinstance(error, errors.KeyGone):
                # Perhaps an asking before this one was written, and only its answer was lost.
                tracker.distrust()
            raise
        tracker.commit(plan)
        tracker.published = usage

    def bind_ports(self, devices: list[objects.PciDevice],
                   accelerated: Mapping[str, dict[str, Any]] = MappingProxyType({})) -> None:
        """Those of the server's ports that are functions of PCI devices are bound to these, which were claimed for them
        just now, and those that are accelerators as ``accelerated`` says; the server knows it then. Nothing is asked
        where there are none. HostRejected, BuildAbort."""
        profiles = {**pci_ports.profiles(self.instance.pci_requests, devices), **accelerated}
        if profiles:
            self.instance.info_cache = objects.InstanceInfoCache(
                instance_uuid=self.instance.uuid, network_info=self.host.upcalls.bind_ports(
                    self.ctxt, self.key, self.instance.uuid, self.host.name, profiles, self.check))

    def group_of(self, request_spec: objects.RequestSpec | None) -> dict[str, str] | None:
        """What a claim says of the server's group: its policy is looked at once more when the claim is written."""
        group = (request_spec.instance_group if request_spec is not None and 'instance_group' in request_spec else None)
        if group is None or 'uuid' not in group or self.host.conf.workarounds.disable_group_policy_check_upcall:
            return None
        return {'uuid': group.uuid, 'host': self.host.name}

    def save(self, plan: Plan | None = None, **fields: Unpack[SaveFields]) -> None:
        """Save what a step came to. With a ``plan`` the caller holds ``tracker.writing()``.

        KeyGone, ClaimConflict, Conflict: nothing was written then, and the plan is off.
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
        """Save where the guest finds what has tags, after something has come to it or gone. An undo, and what may come
        ``late``, finds out first whether the server has gone elsewhere since."""
        extra, late = tags_found(self.instance), late or self._checks is Check.UNDO
        if extra and late:
            fresh = records.instance(self.ctxt, self.instance.uuid)
            if fresh is None or fresh.host != self.host.name:
                return
        if extra:
            self.save(undo=late, extra=extra)

    def give_back(self, leaving: Callable[[str], bool] = lambda side: True, *, unsided: bool = True,
                  **fields: Unpack[SaveFields]) -> None:
        """Free what the server holds here (see ``Tracker.plan_free``) and save that, with whatever else is given."""
        tracker = self.host.tracker
        with tracker.writing(self.ctxt):
            self.save(tracker.plan_free(self.instance.uuid, leaving, unsided=unsided), **fields)


def tags_found(instance: objects.Instance) -> Extra:
    """The column of instance_extra that says where the guest finds what has tags, once the driver has noted it; nothing
    of a server without any."""
    return instance.extra_values({'device_metadata'} & instance.obj_what_changed())


def now() -> str:
    """Naive UTC as text, the form in which times travel in claims and saves."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None).isoformat()


def readable(error: BaseException) -> str:
    """What a user may read: our own texts, without paths of this host; of anything else only the class, its text may
    hold anything."""
    text = errors.without_paths(str(error)) if isinstance(error, errors.KilonovaError) else ''
    return text or f'{type(error).__name__} on the compute host'


def trace_of(error: BaseException) -> str:
    """The whole story, for administrators."""
    return ''.join(traceback.format_exception(error))[-TRACE_LIMIT:]

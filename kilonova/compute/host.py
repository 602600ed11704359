"""``Host``: what every operation on this host works with, and its calls upward.

    host.upcalls.check_key(ctxt, key, host.name)    # KeyGone: the operation doesn't stand here (any more)
    host.upcalls.claim(ctxt, claim)                 # objects.Claim, objects.Save
    host.upcalls.save(ctxt, save)
    host.upcalls.bind_ports(ctxt, key, uuid, …)     # those that are functions of devices which were claimed here
    host.upcalls.resume_later(ctxt, host.name, …)   # servers that could not be started when this host was

Silence means ask, never undo (operations.md, rules 12–14): a claim or save that isn't answered is sent again with the
same key, with growing pauses. The conductor recognises what it wrote under that key.
"""
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import errors, objects, states
from kilonova.accel import holder
from kilonova.accel import request as accel_request
from kilonova.compute.accelerators import Accelerators, attached
from kilonova.compute.holders import Holders
from kilonova.compute.keys import Locks, Slots
from kilonova.compute.ports import Ports
from kilonova.compute.tracker import Tracker
from kilonova.context import RequestContext
from kilonova.objects.vif import REQUEST
from kilonova.pci.device import units
from kilonova.rpc.notify import OFF, Notifications
from kilonova.virt.driver import ComputeDriver

LOG = logging.getLogger(__name__)

# Seconds between askings; the last one repeats.
PAUSES = (1.0, 2.0, 4.0, 8.0, 10.0)


class Stopping(errors.Unanswered):
    """This process ends while nobody answers: nothing is undone, the next process is asked again."""


class ConductorClient(Protocol):
    """What is used of ``rpc.interface.Client(rpc.conductor.Conductor, …)``."""

    def check_key(self, ctxt: RequestContext, *, key: str, undo: bool, host: str) -> object: ...

    def claim_instance(self, ctxt: RequestContext, *, claim: objects.Claim) -> object: ...

    def save_instance(self, ctxt: RequestContext, *, save: objects.Save) -> object: ...

    def bind_ports(self, ctxt: RequestContext, *, key: str, instance_uuid: str, host: str,
                   profiles: Mapping[str, Mapping[str, Any]]) -> Any: ...

    def resume_later(self, ctxt: RequestContext, *, host: str, reasons: Mapping[str, str], is_off: bool) -> object: ...


class Upcalls:
    """``stopping`` ends the asking when the process ends; ``pauses`` are the seconds between two askings."""

    def __init__(self, client: ConductorClient, stopping: threading.Event,
                 pauses: tuple[float, ...] = PAUSES) -> None:
        self._client, self._stopping, self._pauses = client, stopping, pauses
        # What was written last of each guest, since the last order for it began.
        self.power_states: dict[str, int] = {}

    def check_key(self, ctxt: RequestContext, key: str, host: str, undo: bool = False) -> object:
        """Whether the operation stands at this key, or is being undone there: KeyGone if not. HostRejected: this
        ``host`` did it before and undid it. ReleasePending: it has something of the server to give back first."""
        return self._ask(f'check of {key}', lambda: self._client.check_key(ctxt, key=key, undo=undo, host=host))

    def claim(self, ctxt: RequestContext, claim: objects.Claim) -> object:
        """Write a claim in one transaction. KeyGone, ClaimConflict or Conflict: nothing was written."""
        return self._ask(f'claim for {claim.instance_uuid}',
                         lambda: self._client.claim_instance(ctxt, claim=claim))

    def save(self, ctxt: RequestContext, save: objects.Save) -> object:
        """Write the result of a step in one transaction. KeyGone, ClaimConflict or Conflict: nothing was written."""
        answer = self._ask(f'save for {save.instance_uuid}',
                           lambda: self._client.save_instance(ctxt, save=save))
        power_state = (save.values or {}).get('power_state')
        if power_state is not None:
            self.power_states[save.instance_uuid] = power_state
        return answer

    def bind_ports(self, ctxt: RequestContext, key: str, uuid: str, host: str,
                   profiles: Mapping[str, Mapping[str, Any]], check: Callable[[], None]) -> list[dict[str, Any]]:
        """Ports of a server, {id: what their binding says of the device that this host claimed}, are bound to it; the
        server's interfaces as they are then. HostRejected, BuildAbort, KeyGone. It takes as long as the network service
        does; what ``check()`` raises ends the asking."""
        found: Any = self._ask(f'binding of ports of {uuid}', lambda: self._client.bind_ports(
            ctxt, key=key, instance_uuid=uuid, host=host, profiles=profiles), check)
        return list(found)

    def resume_later(self, ctxt: RequestContext, host: str, reasons: Mapping[str, str], is_off: bool) -> None:
        """Have these servers, {uuid: why they were not started}, tried again later; see ``rpc.conductor``.

        Raises VersionCapError if conductors of the release before are still there.
        """
        self._ask(f'word of servers of {host} that wait to be started', lambda: self._client.resume_later(
            ctxt, host=host, reasons=reasons, is_off=is_off))

    def _ask(self, what: str, send: Callable[[], object], check: Callable[[], None] = lambda: None) -> object:
        asked = 0
        while True:
            check()
            try:
                return send()
            except errors.Unanswered as error:
                pause = self._pauses[min(asked, len(self._pauses) - 1)]
                asked += 1
                LOG.warning('The %s was not answered (%s); asking again in %s s', what, error, pause)
                if self._stopping.wait(pause):
                    raise Stopping(who='conductor', reason=f'this host stops; {what} is open') from error


@dataclass
class Host:
    """One compute service. ``name`` is the service's host, the node's name is the tracker's."""

    name: str
    conf: cfg.ConfigOpts
    driver: ComputeDriver
    upcalls: Upcalls
    tracker: Tracker
    build_slots: Slots
    snapshot_slots: Slots = field(default_factory=lambda: Slots(0))
    live_migration_slots: Slots = field(default_factory=lambda: Slots(0))
    locks: Locks = field(default_factory=Locks)
    clock: Callable[[], float] = time.monotonic
    notify: Notifications = OFF
    # HostRejected: one of these devices, which were claimed for a server, is not well.
    before_use: Callable[[RequestContext, list[objects.PciDevice]], None] = lambda ctxt, devices: None
    accelerators: Accelerators = field(default_factory=lambda: Accelerators(None, 0))
    ports: Ports = field(default_factory=Ports)
    # What is done of devices that failed, and of those with which a guest runs: see ``DeviceRest``.
    devices_failed: Callable[[RequestContext, str, BaseException], None] = lambda ctxt, uuid, error: None
    devices_used: Callable[[RequestContext, str], None] = lambda ctxt, uuid: None
    # Servers that an operation works on which was under way when this process started: see ``Guests``.
    interrupted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.holders = Holders(self.driver, self.tracker, self.locks)

    def shutdown_wait(self, instance: objects.Instance, clean: bool = True) -> tuple[int, int]:
        """(seconds to wait for the guest, seconds between requests) of a power-off."""
        if not clean:
            return 0, 0
        asked = metadata(instance).get('image_os_shutdown_timeout')
        timeout = int(asked) if asked and str(asked).isdigit() else self.conf.shutdown_timeout
        return timeout, self.conf.compute.shutdown_retry_interval

    def check_devices(self, instance: objects.Instance, devices: list[objects.PciDevice]) -> None:
        """A guest must never be built with other devices than its flavor asks for, nor without one that left the host.
        DevicesMissing, before anything is changed."""
        requests = instance.pci_requests if 'pci_requests' in instance else None
        wanted = sum(request.count for request in self.tracker.host_devices.asked(requests))
        if wanted != units(devices):
            raise errors.KilonovaError(f'Instance {instance.uuid} asks for {wanted} PCI devices and holds '
                                       f'{units(devices)} on this host.')
        self.check_present(instance, devices)

    def check_claimed(self, ctxt: RequestContext, instance: objects.Instance, devices: list[objects.PciDevice]) -> None:
        """Devices that were claimed just now, before a guest gets them: DevicesMissing, HostRejected."""
        self.check_present(instance, devices)
        if devices:
            self.before_use(ctxt, devices)

    def devices_of(self, instance: objects.Instance) -> list[objects.PciDevice]:
        """What the guest of a server that is at home here has: all that its flavor asks for, and all of it is there, or
        it isn't started."""
        devices = self.tracker.devices(instance.uuid)
        self.check_devices(instance, devices)
        return devices + self.accelerators_of(instance)

    def accelerators_of(self, instance: objects.Instance) -> list[objects.PciDevice]:
        """Those of a server that is at home here, which are none of the host's ledger. DevicesMissing."""
        about = metadata(instance)
        has_ports = holder.has_ports(instance.uuid, about)
        found = self.accelerators.devices(instance.flavor, holder.of(instance.uuid, about), has_ports=has_ports,
                                          ports=_requests_of_ports(instance) if has_ports else {})
        self.check_present(instance, found)
        return found

    def await_accelerators(self, instance: objects.Instance, flavor: objects.Flavor, bound_to: str,
                           check: Callable[[], None]) -> list[objects.PciDevice]:
        """Those of a server that comes here with ``flavor``, when they are bound. DevicesMissing;
        AcceleratorRequestBindingFailed."""
        found = attached(self.accelerators.await_bound(flavor, bound_to, check), bound_to)
        self.check_present(instance, found)
        return found

    def await_new(self, instance: objects.Instance, check: Callable[[], None]
                  ) -> tuple[list[objects.PciDevice], dict[str, dict[str, str | None]]]:
        """``await_accelerators`` of a new server; and what the bindings of ports say that are some of them."""
        ports = _requests_of_ports(instance)
        requests = self.accelerators.await_bound(instance.flavor, instance.uuid, check, has_ports=bool(ports),
                                                 ports=ports)
        found = attached(requests, instance.uuid)
        self.check_present(instance, found)
        return found, accel_request.profiles(requests, ports)

    def check_present(self, instance: objects.Instance, devices: list[objects.PciDevice]) -> None:
        """Check before a guest is built that it can have these devices: each way to start one passes here.

        Raises DevicesMissing if some left the host since it was last looked at, DevicesFailed if some can't be used now
        or if another domain or server has them (``Holders.check``).
        """
        if not devices:
            return
        missing = self.driver.devices.missing_devices(devices)
        if missing:
            raise errors.DevicesMissing(addresses=', '.join(missing), uuid=instance.uuid)
        unusable = self.driver.devices.unusable(devices)
        if unusable:
            raise errors.DevicesFailed(addresses=sorted(unusable), reason='; '.join(sorted(set(unusable.values()))))
        self.holders.check(instance.uuid, devices)


def _requests_of_ports(instance: objects.Instance) -> dict[str, str]:
    """Return a dict from the accelerator request of each of the server's ports that is an accelerator to the port."""
    return {vif.profile[REQUEST]: vif.id for vif in instance.vifs if REQUEST in vif.profile}


def metadata(instance: objects.Instance) -> dict[str, str]:
    """The server's system metadata, {} when it didn't come with it."""
    return (instance.system_metadata or {}) if 'system_metadata' in instance else {}


def image_of(instance: objects.Instance, image: dict[str, Any] | None = None) -> dict[str, Any]:
    """The plain image dict for the driver: as given, or what the server keeps of its image."""
    if image:
        return image
    return objects.ImageMeta.from_system_metadata(metadata(instance), instance.image_ref).to_dict()


def was_active(instance: objects.Instance) -> bool:
    """Whether a server in a move was running before it, and is to run after it: not one that somebody deletes."""
    return ((metadata(instance).get('old_vm_state') or instance.vm_state) == 'active'
            and instance.task_state not in states.ENDING)

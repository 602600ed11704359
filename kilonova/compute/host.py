"""``ComputeHost``: the objects that every operation on this host uses. ``Upcalls``: the host's calls to the conductor.

    host.upcalls.check_key(ctxt, key, host.name)    # raises KeyGone if the operation is no longer at this step
    host.upcalls.claim(ctxt, claim)                 # objects.Claim, objects.Save
    host.upcalls.save(ctxt, save)
    host.upcalls.bind_ports(ctxt, key, uuid, …)     # ports that use devices which were claimed on this host
    host.upcalls.resume_later(ctxt, host.name, …)   # servers that could not be started when this host started

If a call is not answered, it is sent again and nothing is undone (operations.md, rules 12–14). A claim or save is
repeated with growing pauses and with the same operation key (operation, step and attempt). The conductor recognises by
the key what it has already written.
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
from kilonova.compute.accelerators import HostAccelerators, attached
from kilonova.compute.holders import Holders
from kilonova.compute.keys import NamedLocks, TaskSlots
from kilonova.compute.ports import HostPorts
from kilonova.compute.tracker import Tracker
from kilonova.context import RequestContext
from kilonova.objects.vif import REQUEST
from kilonova.pci.device import units
from kilonova.rpc.notify import OFF, Notifications
from kilonova.virt.driver import ComputeDriver

LOG = logging.getLogger(__name__)

# Seconds between two sends of a call that is not answered. The last value repeats.
PAUSES = (1.0, 2.0, 4.0, 8.0, 10.0)


class Stopping(errors.Unanswered):
    """The error of a step that waits for an answer of the conductor while this process is ending.

    The step's work is not undone, because the next process of this host runs the step again.
    """


class ConductorClient(Protocol):
    """The conductor's RPC methods that a compute host calls (``rpc.interface.Client(rpc.conductor.Conductor, …)``)."""

    def check_key(self, ctxt: RequestContext, *, key: str, undo: bool, host: str) -> object:
        """Check that the operation is still at the step and attempt that ``key`` names."""

    def claim_instance(self, ctxt: RequestContext, *, claim: objects.Claim) -> object:
        """Write a host's claim of resources and devices for a server."""

    def save_instance(self, ctxt: RequestContext, *, save: objects.Save) -> object:
        """Write the result of an operation's step."""

    def bind_ports(
        self,
        ctxt: RequestContext,
        *,
        key: str,
        instance_uuid: str,
        host: str,
        profiles: Mapping[str, Mapping[str, Any]],
    ) -> Any:
        """Bind ports to devices of this host and return the server's network info."""

    def resume_later(self, ctxt: RequestContext, *, host: str, reasons: Mapping[str, str], is_off: bool) -> object:
        """Create operations that later try to start servers. ``reasons`` is {uuid: reason of the failed start}."""


class Upcalls:
    """The calls of this host to the conductor, each repeated until it is answered.

    ``stopping`` ends the retries when the process ends. ``pauses`` are the seconds between two sends.
    """

    def __init__(self, client: ConductorClient, stopping: threading.Event, pauses: tuple[float, ...] = PAUSES) -> None:
        self._client, self._stopping, self._pauses = client, stopping, pauses
        # {server uuid: power state that this host wrote since the server's last step began}, for ``Hypervisor``.
        self.power_states: dict[str, int] = {}

    def check_key(self, ctxt: RequestContext, key: str, host: str, undo: bool = False) -> object:
        """Check that the operation is at the step and attempt that ``key`` names.

        With ``undo``, check that the operation is undoing this step.

        Raises:
            KeyGone: The operation is at another step or has ended.
            HostRejected: The ``host`` has already done this step and undone it.
            ReleasePending: The ``host`` must first release what an earlier operation of the server left on it.
        """
        return self._ask(f'check of step {key}', lambda: self._client.check_key(ctxt, key=key, undo=undo, host=host))

    def claim(self, ctxt: RequestContext, claim: objects.Claim) -> object:
        """Write a claim in one transaction. Raises KeyGone, ClaimConflict or Conflict if nothing was written."""
        return self._ask(
            f'claim for server {claim.instance_uuid}', lambda: self._client.claim_instance(ctxt, claim=claim)
        )

    def save(self, ctxt: RequestContext, save: objects.Save) -> object:
        """Write the result of a step in one transaction.

        Raises KeyGone, ClaimConflict or Conflict if nothing was written.
        """
        answer = self._ask(f'save for server {save.instance_uuid}', lambda: self._client.save_instance(ctxt, save=save))
        power_state = (save.values or {}).get('power_state')
        if power_state is not None:
            self.power_states[save.instance_uuid] = power_state
        return answer

    def bind_ports(
        self,
        ctxt: RequestContext,
        key: str,
        uuid: str,
        host: str,
        profiles: Mapping[str, Mapping[str, Any]],
        check: Callable[[], None],
    ) -> list[dict[str, Any]]:
        """Let the conductor bind ports of a server to devices that this host claimed. Return the server's interfaces.

        ``profiles`` is {port id: binding profile of the port's device}. The conductor answers after Neutron has bound
        the ports. If it does not answer, the call is sent again. ``check()`` is called before each send and may raise
        an error, so that the call is not sent again.

        Raises:
            HostRejected: The ports can't be bound on this host; another host may take the server.
            BuildAbort: A port does not belong to the server any more, so no host can build the server.
            KeyGone: The operation is no longer at this step.
        """
        found: Any = self._ask(
            f'port binding of server {uuid}',
            lambda: self._client.bind_ports(ctxt, key=key, instance_uuid=uuid, host=host, profiles=profiles),
            check,
        )
        return list(found)

    def resume_later(self, ctxt: RequestContext, host: str, reasons: Mapping[str, str], is_off: bool) -> None:
        """Let conductors try later to start servers that could not be started.

        ``reasons`` is a dict from server uuid to the reason of the failed start. ``is_off`` says whether the guests are
        known to be off (``rpc.conductor``). Raises VersionCapError if conductors of the previous release still run.
        """
        self._ask(
            f'list of servers of {host} that wait to be started',
            lambda: self._client.resume_later(ctxt, host=host, reasons=reasons, is_off=is_off),
        )

    def _ask(self, what: str, send: Callable[[], object], check: Callable[[], None] = lambda: None) -> object:
        asked = 0
        while True:
            check()
            try:
                return send()
            except errors.Unanswered as error:
                pause = self._pauses[min(asked, len(self._pauses) - 1)]
                asked += 1
                LOG.warning(
                    'The conductor did not answer a request of this host (%s): %s; sending the request again in %s s',
                    what,
                    error,
                    pause,
                )
                if self._stopping.wait(pause):
                    raise Stopping(
                        who='conductor',
                        reason=f'the service on this host stops before the {what} is answered by the conductor',
                    ) from error


@dataclass
class ComputeHost:
    """One compute service. ``name`` is its host name. The node's name may differ and is in ``tracker``."""

    name: str
    conf: cfg.ConfigOpts
    driver: ComputeDriver
    upcalls: Upcalls
    tracker: Tracker
    build_slots: TaskSlots
    snapshot_slots: TaskSlots = field(default_factory=lambda: TaskSlots(0))
    live_migration_slots: TaskSlots = field(default_factory=lambda: TaskSlots(0))
    locks: NamedLocks = field(default_factory=NamedLocks)
    clock: Callable[[], float] = time.monotonic
    notify: Notifications = OFF
    # ``before_use(ctxt, devices)`` raises HostRejected if a device claimed for a server fails its health check.
    before_use: Callable[[RequestContext, list[objects.PciDevice]], None] = lambda ctxt, devices: None
    accelerators: HostAccelerators = field(default_factory=lambda: HostAccelerators(None, 0))
    ports: HostPorts = field(default_factory=HostPorts)
    # ``devices_failed(ctxt, server uuid, error)`` is called after a step has failed. DeviceRest sets this function.
    devices_failed: Callable[[RequestContext, str, BaseException], None] = lambda ctxt, uuid, error: None
    # ``devices_used(ctxt, server uuid)`` is called after a step has succeeded. DeviceRest sets this function.
    devices_used: Callable[[RequestContext, str], None] = lambda ctxt, uuid: None
    # Uuids of servers with an operation that was running when this process started (``HostGuests``).
    interrupted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.holders = Holders(self.driver, self.tracker, self.locks)

    def shutdown_wait(self, instance: objects.Instance, clean: bool = True) -> tuple[int, int]:
        """Return the seconds that a power-off waits for the guest, and the seconds between two shutdown requests."""
        if not clean:
            return 0, 0
        asked = metadata(instance).get('image_os_shutdown_timeout')
        timeout = int(asked) if asked and str(asked).isdigit() else self.conf.shutdown_timeout
        return timeout, self.conf.compute.shutdown_retry_interval

    def check_number(self, instance: objects.Instance, devices: list[objects.PciDevice]) -> None:
        """Check that a guest gets as many PCI devices as its flavor asks for. Raises KilonovaError if it does not.

        Called together with ``check_present``, before anything is changed.
        """
        requests = instance.pci_requests if 'pci_requests' in instance else None
        wanted = sum(request.count for request in self.tracker.host_devices.asked(requests))
        if wanted != units(devices):
            raise errors.KilonovaError(
                f'Instance {instance.uuid} asks for {wanted} PCI devices and holds {units(devices)} on this host.'
            )

    def check_claimed(self, ctxt: RequestContext, instance: objects.Instance, devices: list[objects.PciDevice]) -> None:
        """Check devices that were just claimed, before they are given to a guest.

        Raises the errors of ``check_present``, and HostRejected if a device fails its health check.
        """
        self.check_present(instance, devices)
        if devices:
            self.before_use(ctxt, devices)

    def devices_of(
        self, instance: objects.Instance, devices: list[objects.PciDevice] | None = None
    ) -> list[objects.PciDevice]:
        """Return the PCI devices and accelerators that the guest of a server of this host gets.

        ``devices`` are the PCI devices, or None for those that the tracker has for the server. Raises the errors of
        ``check_number`` and ``check_present`` if a device that the flavor asks for is missing: the guest is not
        started.
        """
        devices = self.tracker.devices(instance.uuid) if devices is None else devices
        self.check_number(instance, devices)
        self.check_present(instance, devices)
        return devices + self.accelerators_of(instance)

    def accelerators_of(self, instance: objects.Instance) -> list[objects.PciDevice]:
        """Return the accelerators of a server of this host. The tracker does not contain them.

        Raises the errors of ``HostAccelerators.devices`` and of ``check_present``.
        """
        about = metadata(instance)
        has_ports = holder.has_ports(instance.uuid, about)
        found = self.accelerators.devices(
            instance.flavor,
            holder.of(instance.uuid, about),
            has_ports=has_ports,
            ports=_requests_of_ports(instance) if has_ports else {},
        )
        self.check_present(instance, found)
        return found

    def await_accelerators(
        self, instance: objects.Instance, flavor: objects.Flavor, bound_to: str, check: Callable[[], None]
    ) -> list[objects.PciDevice]:
        """Wait until the accelerator requests of a server that moves to this host are bound, and return the devices.

        ``flavor`` is the server's flavor on this host. ``bound_to`` is the uuid to which the requests are bound. Raises
        AcceleratorRequestBindingFailed and the errors of ``check_present``.
        """
        found = attached(self.accelerators.await_bound(flavor, bound_to, check), bound_to)
        self.check_present(instance, found)
        return found

    def await_new(
        self, instance: objects.Instance, check: Callable[[], None]
    ) -> tuple[list[objects.PciDevice], dict[str, dict[str, str | None]]]:
        """Wait for a new server's accelerators, and return them with the binding profiles of its accelerator ports.

        The accelerators are returned as devices, the binding profiles as a dict from port id to profile. Raises
        AcceleratorRequestBindingFailed and the errors of ``check_present``.
        """
        ports = _requests_of_ports(instance)
        requests = self.accelerators.await_bound(
            instance.flavor, instance.uuid, check, has_ports=bool(ports), ports=ports
        )
        found = attached(requests, instance.uuid)
        self.check_present(instance, found)
        return found, accel_request.profiles(requests, ports)

    def check_present(self, instance: objects.Instance, devices: list[objects.PciDevice]) -> None:
        """Check that a guest can have these devices. Called before each start of a guest, while nothing is built yet.

        Raises DevicesMissing if a device has left the host since the last check. Raises DevicesFailed if a device can't
        be used now, or if another domain or server has it (``Holders.check``).
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
    """Return {uuid of an accelerator request: id of the port for which it was made} for the server's ports."""
    return {vif.profile[REQUEST]: vif.id for vif in instance.vifs if REQUEST in vif.profile}


def metadata(instance: objects.Instance) -> dict[str, str]:
    """Return the server's system metadata, or an empty dict if it was not sent with the server."""
    return (instance.system_metadata or {}) if 'system_metadata' in instance else {}


def image_of(instance: objects.Instance, image: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the image as a dict: the given ``image``, or else the image properties stored with the server."""
    if image:
        return image
    return objects.ImageMeta.from_system_metadata(metadata(instance), instance.image_ref).to_dict()


def must_run_after_move(instance: objects.Instance) -> bool:
    """Return True if the server was ACTIVE before its move and is not being deleted. Its guest is then started.

    Conductors use ``conductor.flows.moving.had_guest`` instead, which is also True if the server was PAUSED.
    """
    return (
        metadata(instance).get('old_vm_state') or instance.vm_state
    ) == 'active' and instance.task_state not in states.ENDING

"""Assemble, start and stop the compute service of one host. ``cmd.compute`` uses it.

    manager = ComputeManager(conf, driver=driver, conductor=client, placement=placement)
    manager.start(server.start)           # reads the host, listens, reports the service as up
    …
    manager.stop()

The process must call ``objects.base.set_indirection`` first, so that objects reach the database through the conductor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import errors
from kilonova.accel.client import AcceleratorClient
from kilonova.clients.network import NetworkClient
from kilonova.clients.placement import PlacementClient
from kilonova.compute import evacuated, volume_usage
from kilonova.compute.accelerators import HostAccelerators
from kilonova.compute.device_health import DeviceHealth
from kilonova.compute.device_rest import DeviceRest
from kilonova.compute.endpoint import Endpoint
from kilonova.compute.guests import HostGuests
from kilonova.compute.host import PAUSES, ComputeHost, ConductorClient, Upcalls
from kilonova.compute.hypervisor import Hypervisor
from kilonova.compute.keys import TaskRegistry, TaskSlots
from kilonova.compute.leftovers import Leftovers
from kilonova.compute.mdev_types import HostMdevTypes
from kilonova.compute.node import Node
from kilonova.compute.ops import (
    answers,
    build,
    confirm_revert,
    consoles,
    evacuate,
    interfaces,
    live_migration,
    power,
    rebuild,
    resize,
    shelve,
    snapshot,
    unshelve,
    volume_snapshots,
    volumes,
)
from kilonova.compute.ports import HostPorts
from kilonova.compute.report import Heartbeat, Send, audit_usage
from kilonova.compute.tracker import Tracker
from kilonova.context import RequestContext, get_admin_context
from kilonova.rpc.interface import VersionCapError
from kilonova.rpc.notify import OFF, Notifications
from kilonova.timers import Timers
from kilonova.virt.driver import ComputeDriver
from kilonova.virt.parts.host import HypervisorUnavailable

LOG = logging.getLogger(__name__)

# Seconds between two checks of failed devices, and of servers that were in an operation when this service started.
LOOK_AGAIN = 5
# Seconds between two checks whether a usage audit period has ended.
AUDIT_PERIOD = 60
# Seconds without an answer of the hypervisor after which the host's servers are marked as waiting for it.
HYPERVISOR_LATE = 10.0
# Seconds that ``stop`` waits for the timers to end.
STOP_TIMEOUT = 10.0

# Modules with the functions that implement the methods of ``rpc.compute``.
OPERATIONS = (
    answers,
    build,
    confirm_revert,
    consoles,
    evacuate,
    interfaces,
    live_migration,
    power,
    rebuild,
    resize,
    shelve,
    snapshot,
    unshelve,
    volume_snapshots,
    volumes,
)


class ComputeManager:
    """The compute service of one host.

    ``conductor`` is a client of ``rpc.conductor.Conductor``. ``ctxt()`` returns a request context of the service
    itself. ``report`` sends a heartbeat to which no answer is expected (``rpc.reports``).
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        *,
        driver: ComputeDriver,
        conductor: ConductorClient,
        placement: PlacementClient | None,
        ctxt: Callable[[], RequestContext] = get_admin_context,
        pauses: tuple[float, ...] = PAUSES,
        notify: Notifications = OFF,
        report: Send | None = None,
        accelerators: AcceleratorClient | None = None,
        networks: NetworkClient | None = None,
    ) -> None:
        self.conf, self._ctxt, self._pauses, self._report = conf, ctxt, pauses, report
        self.stopping = threading.Event()
        self.host = ComputeHost(
            conf.host,
            conf,
            driver,
            Upcalls(conductor, self.stopping, pauses),
            Tracker(),
            TaskSlots(conf.max_concurrent_builds),
            TaskSlots(conf.max_concurrent_snapshots),
            TaskSlots(conf.max_concurrent_live_migrations),
            notify=notify,
            accelerators=HostAccelerators(accelerators, conf.arq_binding_timeout),
            ports=HostPorts(networks, conf.vif_plugging_timeout, conf.vif_plugging_is_fatal),
        )
        self.keys = TaskRegistry()
        self.node = Node(self.host, placement, ctxt)
        self.care = DeviceHealth(self.host, self.node.book, ctxt, self.stopping)
        self.rest = DeviceRest(self.host, self.node.book, self.care.why_unhealthy, ctxt)
        self.guests = HostGuests(self.host, ctxt, self.node.recount)
        self.leftovers = Leftovers(self.host, ctxt)
        self.timers = Timers(self.stopping)
        self.hypervisor = Hypervisor(self.host, self.guests, self.node.follow, ctxt, self.stopping, pauses)
        self.heartbeat: Heartbeat | None = None
        # True once the host's servers are marked as waiting for the hypervisor.
        self._told = False
        types = HostMdevTypes(self.host, self.node.book, self.node.kinds, self.node.update)
        self.endpoint = Endpoint(
            self.host,
            self.keys,
            OPERATIONS,
            own=(
                self.cancel,
                self.report_again,
                self.set_host_enabled,
                self.node.book.set_device_disabled,
                types.set_mdev_type,
            ),
        )

    # -- start and stop of the service ---------------------------------------------------------------------------------
    def start(self, serve: Callable[[], None] | None = None) -> None:
        """Read the host, restore its guests, start to listen (call ``serve``), then report the service as up.

        Connection errors of the conductor, Placement and the hypervisor are retried until the process stops. Any other
        error is raised and ends the start. Guests are started before the host is reported to Placement, because a
        guest's start needs nothing from Placement.
        """
        self.host.driver.host.listen(self.hypervisor)
        self._until_answered(self.host.driver.host.init_host)
        self._until_answered(self.node.start)
        self._until_answered(lambda: evacuated.clean_all(self.host, self._ctxt()))
        self._until_answered(self.guests.boot)
        self._until_answered(self.node.announce)
        self._until_answered(self.care.start)
        if self.stopping.is_set():
            return
        if serve is not None:
            serve()
        self.heartbeat = Heartbeat(self.node.service, self._heard_again, self.conf.service_down_time, send=self._report)
        self.heartbeat.beat()
        self.hypervisor.start(self.node.service)
        self.timers.every(self.conf.report_interval, self.heartbeat.beat, 'report_state')
        self.timers.every(LOOK_AGAIN, self.guests.look_again, 'look_again')
        self.timers.every(LOOK_AGAIN, self.rest.look, 'look_at_failed_devices')
        if self.conf.periodic_enable:
            self.timers.every(self.conf.update_resources_interval, self.node.update, 'update_available_resource')
            if self.care.has_commands:
                self.timers.every(self.conf.devices.health_check_interval, self.care.look, 'look_after_devices')
            self.timers.every(self.conf.sync_power_state_interval, self.guests.sync, 'sync_power_states')
            self.timers.every(
                self.conf.running_deleted_instance_poll_interval,
                self.leftovers.reap,
                'cleanup_running_deleted_instances',
                at_once=True,
            )
            self.timers.every(self.conf.instance_delete_interval, self.leftovers.remove_files, 'run_pending_deletes')
            self.timers.every(
                self.conf.image_cache.manager_interval, self.leftovers.clean_image_cache, 'run_image_cache_manager_pass'
            )
            if self.conf.instance_usage_audit:
                self.timers.every(AUDIT_PERIOD, self.audit_usage, 'instance_usage_audit')
            self.timers.every(self.conf.volume_usage_poll_interval or -1, self.poll_volume_usage, 'poll_volume_usage')

    def _heard_again(self) -> None:
        """Apply changes that this host may have missed while no conductor received its reports.

        For example, the service may have been enabled or disabled, or a server may have been soft-deleted. The guest of
        a soft-deleted server must be off.
        """
        self.node.follow()
        self.hypervisor.look_again()
        if self.conf.sync_power_state_interval >= 0:
            self.timers.once(self.guests.sync, 'sync_power_states')

    def stop(self) -> None:
        """Stop the timers and all retries of calls to other services.

        Operations that are running end with the RPC server, which the caller stops first.
        """
        self.stopping.set()
        self.timers.join(STOP_TIMEOUT)

    def audit_usage(self) -> None:
        """Send the usage notifications of the last period, unless they have been sent already."""
        audit_usage(self.host, self._ctxt())

    def poll_volume_usage(self) -> None:
        """Record how much the guests have read from and written to their volumes."""
        volume_usage.poll(self.host, self._ctxt())

    def _until_answered(self, act: Callable[[], None]) -> None:
        """Call ``act`` repeatedly until every service that it needs has answered, or until this process stops."""
        asked, waited = 0, 0.0
        while not self.stopping.is_set():
            try:
                act()
                return
            except (errors.Unanswered, HypervisorUnavailable) as error:
                pause = self._pauses[min(asked, len(self._pauses) - 1)]
                asked += 1
                LOG.warning('Not started yet: %s; trying again in %s s', error, pause)
                if isinstance(error, HypervisorUnavailable) and waited >= HYPERVISOR_LATE and not self._told:
                    self._tell_of_hypervisor(error)
                self.stopping.wait(pause)
                waited += pause

    def _tell_of_hypervisor(self, error: HypervisorUnavailable) -> None:
        """Record for each server that ran on this host that it waits for the hypervisor.

        If the conductor does not answer, the record is written when the start of this service is retried.
        """
        try:
            self.guests.await_hypervisor(error)
            self._told = True
        except (errors.Unanswered, VersionCapError) as silent:
            LOG.info(
                'The conductor could not record that servers of this host wait for the hypervisor; trying again at the '
                'next try to start this service: %s',
                silent,
            )

    # -- methods of ``rpc.compute`` that need more than ``ComputeHost`` ------------------------------------------------
    def cancel(self, ctxt: RequestContext, key_prefix: str) -> None:
        """Cancel the running tasks of an operation or of one of its steps.

        Each task stops at its next check for cancellation. This method does not wait for it.
        """
        LOG.info(
            'Cancelled %d running tasks whose operation key begins with %s', self.keys.cancel(key_prefix), key_prefix
        )

    def report_again(self, ctxt: RequestContext) -> None:
        """Send the next heartbeat of this host as a call that a conductor answers.

        A conductor sends this message in two cases: it received a heartbeat of a host that counted as down, or of a
        host whose service record does not exist.
        """
        if self.heartbeat is not None:
            self.heartbeat.again()

    def set_host_enabled(self, ctxt: RequestContext, enabled: bool) -> None:
        """Write to Placement whether this host takes servers, as its service record says.

        The API has already written the record and does not wait for the host. The record decides, not ``enabled``,
        because two messages may arrive in the wrong order. A host that misses the message reads its record later.
        """
        LOG.info('The compute service of this host was set to %s', 'enabled' if enabled else 'disabled')
        self.node.follow()
        self.hypervisor.look_again()

"""The compute service: what it answers over RPC, one line a method, and how it starts and stops.

    manager = ComputeManager(conf, driver=driver, conductor=client, placement=placement)
    manager.start(server.start)           # looks at its host, listens, reports up
    …
    manager.stop()

Before it starts the process must have told the objects where the database is (``objects.base.set_indirection``).
"""
from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import errors
from kilonova.clients.placement import PlacementClient
from kilonova.compute import upcalls
from kilonova.compute.dispatch import Check, Dispatcher, Order, known_errors
from kilonova.compute.guests import Guests
from kilonova.compute.host import BuildSlots, Host
from kilonova.compute.hypervisor import Hypervisor
from kilonova.compute.keys import Keys
from kilonova.compute.node import Node
from kilonova.compute.ops import (
    build,
    confirm,
    console,
    diagnostics,
    external_events,
    finish_resize,
    power,
    prep_resize,
    resize_instance,
    revert,
    snapshot,
    soft_delete,
    terminate,
    usage,
)
from kilonova.compute.report import Heartbeat, Send
from kilonova.compute.timers import Timers
from kilonova.compute.tracker import Tracker
from kilonova.context import get_admin_context
from kilonova.objects import BuildOrder, FinishResizeOrder, Instance, Migration, PrepResizeOrder, ResizeOrder
from kilonova.rpc.notify import OFF, Notifications
from kilonova.virt.driver import ComputeDriver, HypervisorUnavailable

LOG = logging.getLogger(__name__)

# Seconds between two looks at servers that a flow worked on when the host came up.
LOOK_AGAIN = 5
# Seconds between two looks whether a period of usage is over.
AUDIT_PERIOD = 60
# Seconds that timers get to end.
STOP_TIMEOUT = 10.0

ORDERS = {
    'build_and_run_instance': Order(build.run, checks=Check.WRITE),
    # A server that is being deleted never comes back, so what is still here may go; its save looks.
    'terminate_instance': Order(terminate.run, checks=Check.WRITE, forward=True),
    'stop_instance': Order(power.stop),
    'start_instance': Order(power.start),
    'reboot_instance': Order(power.reboot),
    'soft_delete_instance': Order(soft_delete.run, forward=True),
    'restore_instance': Order(soft_delete.restore),
    'snapshot_instance': Order(snapshot.run, checks=Check.WRITE),
    'undo_snapshot_instance': Order(snapshot.undo, checks=Check.UNDO, forward=True),
    'prep_resize': Order(prep_resize.run, checks=Check.WRITE),
    'resize_instance': Order(resize_instance.run),
    'finish_resize': Order(finish_resize.run),
    'confirm_resize': Order(confirm.run, forward=True),
    'check_revert': Order(revert.check),
    'revert_resize': Order(revert.destination, forward=True),
    'finish_revert_resize': Order(revert.source, forward=True),
    'undo_build': Order(build.undo, checks=Check.UNDO, forward=True),
    'undo_prep_resize': Order(prep_resize.undo, checks=Check.UNDO, forward=True),
    'undo_resize_instance': Order(resize_instance.undo, checks=Check.UNDO, forward=True),
    'undo_finish_resize': Order(finish_resize.undo, checks=Check.UNDO, forward=True),
}


class ComputeManager:
    """One host. ``conductor``: a client of ``rpc.conductor.Conductor``; ``ctxt`` makes the service's own contexts;
    ``report`` sends a heartbeat that nobody answers (``rpc.reports``)."""

    def __init__(self, conf: cfg.ConfigOpts, *, driver: ComputeDriver, conductor: upcalls.ConductorClient,
                 placement: PlacementClient | None, ctxt: Callable[[], Any] = get_admin_context,
                 pauses: tuple[float, ...] = upcalls.PAUSES, notify: Notifications = OFF,
                 report: Send | None = None) -> None:
        self.conf, self._ctxt, self._pauses, self._report = conf, ctxt, pauses, report
        self.stopping = threading.Event()
        self.host = Host(conf.host, conf, driver, upcalls.Upcalls(conductor, self.stopping, pauses), Tracker(),
                         BuildSlots(conf.max_concurrent_builds), BuildSlots(conf.max_concurrent_snapshots),
                         notify=notify)
        self.keys = Keys()
        self.node = Node(self.host, placement, ctxt)
        self.guests = Guests(self.host, ctxt, self.node.recount)
        self.timers = Timers(self.stopping)
        self.hypervisor = Hypervisor(self.host, self.guests, self.node.follow, ctxt, self.stopping, pauses)
        self.heartbeat: Heartbeat | None = None
        self._run = Dispatcher(self.host, self.keys, ORDERS).run

    # -- life ----------------------------------------------------------------------------------------------------------
    def start(self, serve: Callable[[], None] | None = None) -> None:
        """Look at the host, bring its guests in order, listen (``serve``), then report up. Errors refuse the start."""
        self.host.driver.listen(self.hypervisor)
        self._until_answered(self.host.driver.init_host)
        self._until_answered(self.node.start)
        self._until_answered(self.guests.boot)
        if self.stopping.is_set():
            return
        if serve is not None:
            serve()
        self.heartbeat = Heartbeat(self.node.service, self._heard_again, self.conf.service_down_time,
                                   send=self._report)
        self.heartbeat.beat()
        self.hypervisor.start(self.node.service)
        self.timers.every(self.conf.report_interval, self.heartbeat.beat, 'report_state')
        self.timers.every(LOOK_AGAIN, self.guests.look_again, 'look_again')
        if self.conf.periodic_enable:
            self.timers.every(self.conf.update_resources_interval, self.node.update, 'update_available_resource')
            self.timers.every(self.conf.sync_power_state_interval, self.guests.sync, 'sync_power_states')
            if self.conf.instance_usage_audit:
                self.timers.every(AUDIT_PERIOD, self.audit_usage, 'instance_usage_audit')

    def _heard_again(self) -> None:
        """What was decided without us while nobody heard us: enabled or disabled, and which guests are to be off."""
        self.node.follow()
        self.hypervisor.look_again()
        if self.conf.sync_power_state_interval >= 0:
            self.timers.once(self.guests.sync, 'sync_power_states')

    def stop(self) -> None:
        """End the timers and all asking; work under way ends with the RPC server, which the caller stops first."""
        self.stopping.set()
        self.timers.join(STOP_TIMEOUT)

    def audit_usage(self) -> None:
        """Tell the usage of the last period, if that isn't done."""
        usage.audit(self.host, self._ctxt())

    def _until_answered(self, act: Callable[[], None]) -> None:
        """A conductor, Placement or hypervisor that doesn't answer yet is waited for."""
        asked = 0
        while not self.stopping.is_set():
            try:
                act()
                return
            except (errors.Unanswered, HypervisorUnavailable) as error:
                pause = self._pauses[min(asked, len(self._pauses) - 1)]
                asked += 1
                LOG.warning('Not started yet: %s; trying again in %s s', error, pause)
                self.stopping.wait(pause)

    # -- operations ----------------------------------------------------------------------------------------------------
    def build_and_run_instance(self, ctxt: Any, order: BuildOrder, key: str) -> Any:
        return self._run('build_and_run_instance', ctxt, key, order,
                         verdict=lambda error: build.verdict(error, order.instance.uuid))

    def terminate_instance(self, ctxt: Any, instance: Instance, key: str) -> Any:
        return self._run('terminate_instance', ctxt, key, instance)

    def stop_instance(self, ctxt: Any, instance: Instance, clean_shutdown: bool, key: str) -> Any:
        return self._run('stop_instance', ctxt, key, instance, clean_shutdown)

    def start_instance(self, ctxt: Any, instance: Instance, key: str) -> Any:
        return self._run('start_instance', ctxt, key, instance)

    def reboot_instance(self, ctxt: Any, instance: Instance, reboot_type: str, key: str) -> Any:
        return self._run('reboot_instance', ctxt, key, instance, reboot_type)

    def soft_delete_instance(self, ctxt: Any, instance: Instance, key: str) -> Any:
        return self._run('soft_delete_instance', ctxt, key, instance)

    def restore_instance(self, ctxt: Any, instance: Instance, key: str) -> Any:
        return self._run('restore_instance', ctxt, key, instance)

    def snapshot_instance(self, ctxt: Any, instance: Instance, image_id: str, key: str) -> Any:
        return self._run('snapshot_instance', ctxt, key, instance, image_id)

    def undo_snapshot_instance(self, ctxt: Any, instance: Instance, image_id: str, key: str) -> Any:
        return self._run('undo_snapshot_instance', ctxt, key, instance, image_id)

    def prep_resize(self, ctxt: Any, order: PrepResizeOrder, key: str) -> Any:
        return self._run('prep_resize', ctxt, key, order)

    def resize_instance(self, ctxt: Any, order: ResizeOrder, key: str) -> Any:
        return self._run('resize_instance', ctxt, key, order)

    def finish_resize(self, ctxt: Any, order: FinishResizeOrder, key: str) -> Any:
        return self._run('finish_resize', ctxt, key, order)

    def confirm_resize(self, ctxt: Any, instance: Instance, migration: Migration, key: str) -> Any:
        return self._run('confirm_resize', ctxt, key, instance, migration)

    def check_revert(self, ctxt: Any, instance: Instance, migration: Migration, key: str) -> Any:
        return self._run('check_revert', ctxt, key, instance, migration)

    def revert_resize(self, ctxt: Any, instance: Instance, migration: Migration, key: str) -> Any:
        return self._run('revert_resize', ctxt, key, instance, migration)

    def finish_revert_resize(self, ctxt: Any, instance: Instance, migration: Migration, key: str) -> Any:
        return self._run('finish_revert_resize', ctxt, key, instance, migration)

    def undo_build(self, ctxt: Any, instance: Instance, key: str) -> Any:
        return self._run('undo_build', ctxt, key, instance)

    def undo_prep_resize(self, ctxt: Any, instance: Instance, migration: Migration, key: str) -> Any:
        return self._run('undo_prep_resize', ctxt, key, instance, migration)

    def undo_resize_instance(self, ctxt: Any, instance: Instance, migration: Migration, key: str) -> Any:
        return self._run('undo_resize_instance', ctxt, key, instance, migration)

    def undo_finish_resize(self, ctxt: Any, instance: Instance, migration: Migration, key: str) -> Any:
        return self._run('undo_finish_resize', ctxt, key, instance, migration)

    # -- the rest ------------------------------------------------------------------------------------------------------
    def cancel(self, ctxt: Any, key_prefix: str) -> Any:
        """Running work of this operation (or step) stops at its next boundary; it isn't waited for."""
        LOG.info('Cancelled %s: %d at work', key_prefix, self.keys.cancel(key_prefix))

    def get_diagnostics(self, ctxt: Any, instance: Instance) -> Any:
        with known_errors('get_diagnostics'):
            return diagnostics.flat(self.host, instance)

    def get_instance_diagnostics(self, ctxt: Any, instance: Instance) -> Any:
        with known_errors('get_instance_diagnostics'):
            return diagnostics.standard(self.host, instance)

    def get_console_output(self, ctxt: Any, instance: Instance, tail_length: int | None) -> Any:
        with known_errors('get_console_output'):
            return console.output(self.host, instance, tail_length)

    def external_instance_event(self, ctxt: Any, instances: list[Instance], events: list[Any]) -> Any:
        external_events.handle(instances, events)

    def report_again(self, ctxt: Any) -> Any:
        """This host had counted as down when it was heard, or nobody knows its record."""
        if self.heartbeat is not None:
            self.heartbeat.again()

    def set_host_enabled(self, ctxt: Any, enabled: bool) -> Any:
        """'enabled' or 'disabled': the scheduler passes a disabled host over. The service record is the API's."""
        with known_errors('set_host_enabled'):
            self.node.set_disabled(not enabled)
            self.hypervisor.look_again()
        return 'enabled' if enabled else 'disabled'

    def get_host_uptime(self, ctxt: Any) -> Any:
        """What uptime(1) says here; None: the driver can't tell."""
        with known_errors('get_host_uptime'):
            return self.host.driver.uptime()

    def describe_host(self, ctxt: Any) -> Any:
        """What really is here, for the audit: domains with their devices, the servers' directories, and which devices
        that servers hold are not here any more."""
        driver = self.host.driver
        with known_errors('describe_host'):
            held = sorted(address for addresses in self.host.tracker.ledger.owners().values() for address in addresses)
            return {'missing_devices': driver.missing_devices(held),
                    'host': self.host.name, 'node': self.host.tracker.nodename,
                    'instances_path': self.conf.instances_path, 'domains': driver.describe(),
                    'directories': driver.list_directories()}

"""Notifications: what happened, told to other programs over the message queue.

    notify = Notifications(conf)
    notify.emit(ctxt, 'instance.power_off.end', instance=instance, moved='stop.done')

``NOTIFICATIONS`` declares each event once: who publishes it, its payloads in both forms, its priority. Nothing is
rendered when nobody asked ([oslo_messaging_notifications]driver is empty or noop). What is rendered is sent by a thread
of its own from a bounded queue: a broker that is away costs messages, never an operation.
"""
from __future__ import annotations

import functools
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_messaging import opts as messaging_opts
from oslo_serialization import jsonutils

from kilonova import concurrency
from kilonova.context import RequestContext
from kilonova.objects import notifications as payloads
from kilonova.objects.notifications import About, legacy
from kilonova.rpc.transport import EXCHANGE

LOG = logging.getLogger(__name__)

API, CONDUCTOR, SCHEDULER, COMPUTE = 'nova-api', 'nova-conductor', 'nova-scheduler', 'nova-compute'
GROUP = 'oslo_messaging_notifications'
# Messages that wait for the broker; when it is away for longer the newest are lost.
QUEUE_SIZE = 10_000
# Seconds that a daemon that ends gives the rest of them.
FLUSH_TIME = 5.0


@dataclass(frozen=True)
class Notification:
    """One event type. ``binary`` None: the publisher is the service that it is about.

    ``old`` is the event type of the unversioned form ('{method}' stands for a fact), None where there is none;
    ``plain`` makes its payload. It is published by '<old_publisher>.<host>', or with ``old_id`` by '<old_publisher>.<id
    in the payload>'. ``facts`` are handed to both forms beside those of the emitter.
    """

    event: str
    binary: str | None
    payload: type[payloads.Payload]
    old: str | None = None
    plain: Callable[..., dict[str, Any]] = legacy.usage
    old_publisher: str = 'compute'
    old_id: str | None = None
    error: bool = False
    facts: tuple[tuple[str, Any], ...] = ()


def _phases(phases: str, event: str, binary: str, payload: type[payloads.Payload], old: str | None = None,
            **more: Any) -> list[Notification]:
    """One event a phase."""
    return [Notification(f'{event}.{phase}', binary, payload, old and f'{old}.{phase}', error=phase == 'error', **more)
            for phase in phases.split()]


def _action(phases: str, event: str, old: str | None = None,
            payload: type[payloads.Payload] = payloads.InstanceActionPayload, **more: Any) -> list[Notification]:
    """Something that a host does with a server."""
    return _phases(phases, f'instance.{event}', COMPUTE, payload, f'compute.instance.{old or event}', **more)


def _api(phases: str, event: str, payload: type[payloads.Payload], old: str | None = None,
         **more: Any) -> list[Notification]:
    return _phases(phases, event, API, payload, old, **more)


_DONE = (('done', True),)
_CREATE: dict[str, Any] = {'payload': payloads.InstanceCreatePayload, 'plain': legacy.create}
_PREP: dict[str, Any] = {'payload': payloads.InstanceActionResizePrepPayload, 'plain': legacy.resize_prep}
_REBUILD: dict[str, Any] = {'payload': payloads.InstanceActionRebuildPayload, 'plain': legacy.create}
_VOLUME: dict[str, Any] = {'payload': payloads.InstanceActionVolumePayload, 'plain': legacy.volume}
_AGGREGATE: dict[str, Any] = {'plain': legacy.aggregate, 'old_publisher': 'aggregate', 'old_id': 'aggregate_id'}
_GROUP: dict[str, Any] = {'plain': legacy.server_group, 'old_publisher': 'servergroup', 'old_id': 'server_group_id'}
_KEYPAIR: dict[str, Any] = {'plain': legacy.keypair, 'old_publisher': 'api'}
_TASK: dict[str, Any] = {'plain': legacy.compute_task, 'old_publisher': 'compute_task', 'error': True}

_TABLE: list[Notification] = [
    # --- what hosts do with servers
    *_action('start error', 'create', **_CREATE),
    *_action('end', 'create', facts=_DONE, **_CREATE),
    *_action('start end', 'delete'),
    *_action('start end', 'shutdown'),
    *_action('start end', 'soft_delete'),
    *_action('start end', 'restore'),
    *_action('start end', 'power_off'),
    *_action('start end', 'power_on'),
    *_action('start end error', 'reboot'),
    *_action('start end', 'pause'),
    *_action('start end', 'unpause'),
    *_action('start end', 'suspend'),
    *_action('start end', 'resume'),
    *_action('start end', 'trigger_crash_dump'),
    *_phases('start end error', 'instance.interface_attach', COMPUTE, payloads.InstanceActionPayload),
    *_phases('start end', 'instance.interface_detach', COMPUTE, payloads.InstanceActionPayload),
    *_action('start end error', 'volume_attach', 'volume.attach', **_VOLUME),
    *_action('start end', 'volume_detach', 'volume.detach', **_VOLUME),
    *_phases('start end error', 'instance.volume_swap', COMPUTE, payloads.InstanceActionVolumeSwapPayload),
    *_action('start end error', 'rebuild', **_REBUILD),
    Notification('instance.rebuild_scheduled', CONDUCTOR, payloads.InstanceActionRebuildPayload,
                 'compute.instance.rebuild.scheduled'),
    *_action('start end', 'rescue', payload=payloads.InstanceActionRescuePayload, plain=legacy.rescue),
    *_action('start end', 'unrescue'),
    *_action('start end', 'snapshot', payload=payloads.InstanceActionSnapshotPayload),
    *_action('start end', 'shelve'),
    *_action('start end', 'shelve_offload'),
    *_action('start end', 'unshelve'),
    *_action('start', 'resize_prep', 'resize.prep', **_PREP),
    *_action('end', 'resize_prep', 'resize.prep', facts=_DONE, **_PREP),
    *_action('start end error', 'resize'),
    *_action('start end', 'resize_finish', 'finish_resize'),
    *_action('start end', 'resize_confirm', 'resize.confirm'),
    *_action('start end', 'resize_revert', 'resize.revert'),
    *_action('start end', 'live_migration_pre', 'live_migration.pre'),
    *_action('start end', 'live_migration_post', 'live_migration._post'),
    *_action('start end', 'live_migration_post_dest', 'live_migration.post.dest'),
    *_action('start end', 'live_migration_abort', 'live.migration.abort'),
    *_action('start end', 'live_migration_force_complete', 'live.migration.force.complete'),
    *_action('start end', 'live_migration_rollback', 'live_migration._rollback'),
    *_action('start end', 'live_migration_rollback_dest', 'live_migration.rollback.dest'),
    Notification('instance.device_barred', COMPUTE, payloads.InstanceActionPayload, 'compute.instance.device_barred',
                 error=True),
    Notification('instance.exists', COMPUTE, payloads.InstanceExistsPayload, 'compute.instance.exists', legacy.exists),
    Notification('instance.update', COMPUTE, payloads.InstanceUpdatePayload, 'compute.instance.update', legacy.update),
    Notification('compute.exception', COMPUTE, payloads.ExceptionPayload, '{method}', legacy.exception, error=True),
    Notification('volume.usage', COMPUTE, payloads.VolumeUsagePayload, 'volume.usage', legacy.volume_usage),
    # --- scheduling
    *_phases('start end', 'scheduler.select_destinations', SCHEDULER, payloads.RequestSpecPayload,
             'scheduler.select_destinations', plain=legacy.select, old_publisher='scheduler'),
    Notification('compute_task.build_instances.error', CONDUCTOR, payloads.ComputeTaskPayload,
                 'compute_task.build_instances', facts=(('method', 'build_instances'),), **_TASK),
    Notification('compute_task.migrate_server.error', CONDUCTOR, payloads.ComputeTaskPayload,
                 'compute_task.migrate_server', facts=(('method', 'migrate_server'),), **_TASK),
    Notification('compute_task.rebuild_server.error', CONDUCTOR, payloads.ComputeTaskPayload,
                 'compute_task.rebuild_server', facts=(('method', 'rebuild_server'),), **_TASK),
    # --- what the API does itself
    Notification('instance.evacuate', API, payloads.InstanceActionPayload, 'compute.instance.evacuate',
                 old_publisher='api'),
    Notification('instance.lock', API, payloads.InstanceActionPayload),
    Notification('instance.unlock', API, payloads.InstanceActionPayload),
    Notification('flavor.create', API, payloads.FlavorPayload),
    Notification('flavor.update', API, payloads.FlavorPayload),
    Notification('flavor.delete', API, payloads.FlavorPayload),
    *_api('start end', 'keypair.create', payloads.KeypairPayload, 'keypair.create', **_KEYPAIR),
    *_api('start end', 'keypair.import', payloads.KeypairPayload, 'keypair.import', **_KEYPAIR),
    *_api('start end', 'keypair.delete', payloads.KeypairPayload, 'keypair.delete', **_KEYPAIR),
    *_api('start end', 'aggregate.create', payloads.AggregatePayload, 'aggregate.create', **_AGGREGATE),
    *_api('start end', 'aggregate.delete', payloads.AggregatePayload, 'aggregate.delete', **_AGGREGATE),
    *_api('start end', 'aggregate.add_host', payloads.AggregatePayload, 'aggregate.addhost', **_AGGREGATE),
    *_api('start end', 'aggregate.remove_host', payloads.AggregatePayload, 'aggregate.removehost', **_AGGREGATE),
    *_api('start end', 'aggregate.update_prop', payloads.AggregatePayload, 'aggregate.updateprop', **_AGGREGATE),
    *_api('start end', 'aggregate.update_metadata', payloads.AggregatePayload, 'aggregate.updatemetadata',
          **_AGGREGATE),
    Notification('server_group.create', API, payloads.ServerGroupPayload, 'servergroup.create', **_GROUP),
    Notification('server_group.delete', API, payloads.ServerGroupPayload, 'servergroup.delete', **_GROUP),
    Notification('server_group.add_member', API, payloads.ServerGroupPayload, 'servergroup.addmember', **_GROUP),
    # --- services, each told in its own name
    Notification('service.create', None, payloads.ServiceStatusPayload),
    Notification('service.update', None, payloads.ServiceStatusPayload),
    Notification('service.delete', None, payloads.ServiceStatusPayload),
]
NOTIFICATIONS: dict[str, Notification] = {row.event: row for row in _TABLE}


@functools.cache
def _options() -> list[Any]:
    """Of oslo.messaging's options, which it copies all each time it is asked, those of notifications."""
    return [opt for group, opts in messaging_opts.list_opts() if group == GROUP for opt in opts]


def register(conf: cfg.ConfigOpts) -> None:
    """Let a configuration know oslo.messaging's section of notifications."""
    conf.register_opts(_options(), group=GROUP)


@dataclass(frozen=True)
class Message:
    """What goes to the broker; ``versioned`` says on whose topics."""

    versioned: bool
    event: str
    publisher: str
    priority: str
    payload: dict[str, Any]


class _Contexts(messaging.NoOpSerializer):  # type: ignore[misc]  # oslo.messaging has no types
    def serialize_context(self, ctxt: RequestContext) -> dict[str, Any]:
        return ctxt.to_dict()


class Sender:
    """Hands messages to oslo.messaging's drivers, in the order in which they came, in a thread of its own."""

    def __init__(self, conf: cfg.ConfigOpts, size: int = QUEUE_SIZE) -> None:
        messaging.set_transport_defaults(EXCHANGE)
        transport = messaging.get_notification_transport(conf)
        self._notifiers = {
            False: messaging.Notifier(transport, serializer=_Contexts()),
            True: messaging.Notifier(transport, serializer=_Contexts(),
                                     topics=conf.notifications.versioned_notifications_topics)}
        self._queue: queue.Queue[Callable[[], list[tuple[Any, Message]]]] = queue.Queue(size)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.lost = 0

    def put(self, make: Callable[[], list[tuple[Any, Message]]]) -> None:
        """``make`` gives (context, message) pairs when their turn has come. Never waits, never raises."""
        with self._lock:
            # Here and not when this was made: a process that forks in between has no threads of its parent.
            if self._thread is None or not self._thread.is_alive():
                self._thread = concurrency.spawn(self._work, name='notifications')
        try:
            self._queue.put_nowait(make)
        except queue.Full:
            if not self.lost:
                LOG.error('Notifications are lost: %d wait for a broker that does not take them', self._queue.maxsize)
            self.lost += 1
        else:
            if self.lost and self._queue.qsize() <= self._queue.maxsize // 2:
                LOG.warning('%d notifications were lost', self.lost)
                self.lost = 0

    def flush(self, timeout: float) -> None:
        """Wait until all is sent, ``timeout`` seconds at most."""
        end = time.monotonic() + timeout
        while self._queue.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.01)

    def _work(self) -> None:
        while True:
            make = self._queue.get()
            try:
                for ctxt, message in make():
                    self._send(ctxt, message)
            except Exception:
                LOG.exception('A notification could not be made or sent')
            finally:
                self._queue.task_done()

    def _send(self, ctxt: RequestContext, message: Message) -> None:
        notifier = self._notifiers[message.versioned].prepare(publisher_id=message.publisher)
        getattr(notifier, message.priority.lower())(ctxt, message.event, message.payload)


class Notifications:
    """One a process. Off (``enabled`` False) it does nothing at all."""

    def __init__(self, conf: cfg.ConfigOpts, sender: Sender | None = None) -> None:
        register(conf)
        section = conf.notifications
        drivers = set(conf[GROUP].driver)
        self.enabled = bool(drivers - {'noop'})
        self.on_states = section.notify_on_state_change if self.enabled else None
        self._host, self._level = conf.host, section.default_level
        self._versioned = section.notification_format in ('versioned', 'both')
        self._unversioned = section.notification_format in ('unversioned', 'both')
        self._about = {'bdms': section.bdms_in_notifications, 'audit_period': conf.instance_usage_audit_period,
                       'name_template': conf.instance_name_template}
        self._sender = sender or (Sender(conf) if self.enabled else None)

    def emit(self, ctxt: RequestContext, event: str, *, host: str | None = None, binary: str | None = None,
             **facts: Any) -> None:
        """Tell an event of the table. ``host`` and ``binary`` publish it in another daemon's name; ``facts`` are what
        its payloads are made of, now. Never raises: what can't be told must not fail what happened."""
        if not self.enabled or self._sender is None:
            return
        try:
            messages = self.render(ctxt, event, host=host, binary=binary, **facts)
        except Exception:
            LOG.exception('Notification %s could not be made', event)
            return
        if messages:
            self._sender.put(lambda: [(ctxt, message) for message in messages])

    def later(self, ctxt: RequestContext, event: str, read: Callable[[], dict[str, Any] | None], *,
              host: str | None = None, binary: str | None = None) -> None:
        """The same with facts that must be read first: the sending thread does that. None: there is nothing to tell."""
        if not self.enabled or self._sender is None:
            return

        def make() -> list[tuple[Any, Message]]:
            facts = read()
            if facts is None:
                return []
            return [(ctxt, message) for message in self.render(ctxt, event, host=host, binary=binary, **facts)]
        self._sender.put(make)

    def render(self, ctxt: RequestContext, event: str, *, host: str | None = None, binary: str | None = None,
               **facts: Any) -> list[Message]:
        """The messages of an event in the forms that are asked for."""
        row = NOTIFICATIONS[event]
        about = About(ctxt, **self._about)
        facts |= dict(row.facts)
        priority = 'ERROR' if row.error else self._level
        messages = []
        if self._unversioned and row.old is not None:
            payload = jsonutils.to_primitive(row.plain(about, **facts))
            name = payload[row.old_id] if row.old_id else host or self._host
            of = row.old_publisher if binary is None else binary.removeprefix('nova-')
            messages.append(Message(False, row.old.format_map(facts), f'{of}.{name}', priority, payload))
        if self._versioned:
            made = row.payload.of(about, **facts)  # type: ignore[attr-defined]
            publisher = (f'{made.binary}:{made.host}' if row.binary is None
                         else f'{binary or row.binary}:{host or self._host}')
            messages.append(Message(True, event, publisher, priority, made.obj_to_primitive()))
        return messages

    def stop(self, timeout: float = FLUSH_TIME) -> None:
        """Send what waits, ``timeout`` seconds at most."""
        if self._sender is not None:
            self._sender.flush(timeout)


class Silent(Notifications):
    """What is used where nobody configured notifications: nothing is told."""

    def __init__(self) -> None:
        self.enabled, self.on_states, self._sender = False, None, None


OFF = Silent()

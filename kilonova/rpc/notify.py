"""Notifications, which report events to other programs through the message queue.

    notify = Notifications(conf)
    notify.emit(ctxt, 'instance.power_off.end', instance=instance, moved='stop.done')

``NOTIFICATIONS`` declares each event, with its publisher, its priority, and its payload in the versioned and in the
unversioned format. If no driver is configured ([oslo_messaging_notifications]driver is empty or noop), no messages are
made. Messages are put into a queue of limited size, and a thread sends them. If the broker can't be reached, messages
are lost, but no operation fails.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg
from oslo_log import log as logging
from oslo_messaging import opts as messaging_opts
from oslo_serialization import jsonutils

from kilonova import concurrency
from kilonova.context import RequestContext
from kilonova.objects import notifications as payloads
from kilonova.objects.notifications import EventContext, legacy
from kilonova.rpc.transport import EXCHANGE

LOG = logging.getLogger(__name__)

API, CONDUCTOR, SCHEDULER, COMPUTE = 'nova-api', 'nova-conductor', 'nova-scheduler', 'nova-compute'
GROUP = 'oslo_messaging_notifications'
# Maximum number of messages that wait for the broker. If the queue is full, new messages are lost.
QUEUE_SIZE = 10_000
# Maximum number of seconds for which a daemon that ends still sends the waiting messages.
FLUSH_TIME = 5.0


@dataclass(frozen=True)
class Notification:
    """One event type, in the versioned and in the unversioned (old) format.

    Attributes:
        event: Name of the event in the versioned format.
        binary: Service that publishes the event, or None for the service that the event is about.
        payload: Class of the versioned payload.
        old: Name of the event in the unversioned format, or None if the event is not sent in this format. '{method}' in
            the name is replaced by the argument ``method`` of ``emit``.
        plain: Function that makes the unversioned payload.
        old_publisher: First part of the publisher in the unversioned format: '<old_publisher>.<host>'.
        old_id: Field of the unversioned payload that replaces the host in the publisher, or None.
        error: Whether the priority is ERROR.
        facts: Pairs (name, value) that are added to the arguments of ``emit`` when the payloads are made.
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


def _phases(
    phases: str, event: str, binary: str, payload: type[payloads.Payload], old: str | None = None, **more: Any
) -> list[Notification]:
    """Return a list with one Notification for each phase of an action. ``phases`` is text such as 'start end error'.

    The other arguments are the attributes of the Notifications. The phase is added to the names ``event`` and ``old``.
    """
    return [
        Notification(f'{event}.{phase}', binary, payload, old and f'{old}.{phase}', error=phase == 'error', **more)
        for phase in phases.split()
    ]


def _action(
    phases: str,
    event: str,
    old: str | None = None,
    payload: type[payloads.Payload] = payloads.InstanceActionPayload,
    **more: Any,
) -> list[Notification]:
    """Return a list with one Notification for each phase of an action that a host does with a server.

    ``event`` and ``old`` are the names of the event without the prefixes 'instance.' and 'compute.instance.'.
    """
    return _phases(phases, f'instance.{event}', COMPUTE, payload, f'compute.instance.{old or event}', **more)


def _api(
    phases: str, event: str, payload: type[payloads.Payload], old: str | None = None, **more: Any
) -> list[Notification]:
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
    # --- Events of actions that hosts do with servers
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
    Notification(
        'instance.rebuild_scheduled',
        CONDUCTOR,
        payloads.InstanceActionRebuildPayload,
        'compute.instance.rebuild.scheduled',
    ),
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
    Notification(
        'instance.device_barred', COMPUTE, payloads.InstanceActionPayload, 'compute.instance.device_barred', error=True
    ),
    Notification('instance.exists', COMPUTE, payloads.InstanceExistsPayload, 'compute.instance.exists', legacy.exists),
    Notification('instance.update', COMPUTE, payloads.InstanceUpdatePayload, 'compute.instance.update', legacy.update),
    Notification('compute.exception', COMPUTE, payloads.ExceptionPayload, '{method}', legacy.exception, error=True),
    Notification('volume.usage', COMPUTE, payloads.VolumeUsagePayload, 'volume.usage', legacy.volume_usage),
    # --- Events of scheduling
    *_phases(
        'start end',
        'scheduler.select_destinations',
        SCHEDULER,
        payloads.RequestSpecPayload,
        'scheduler.select_destinations',
        plain=legacy.select,
        old_publisher='scheduler',
    ),
    Notification(
        'compute_task.build_instances.error',
        CONDUCTOR,
        payloads.ComputeTaskPayload,
        'compute_task.build_instances',
        facts=(('method', 'build_instances'),),
        **_TASK,
    ),
    Notification(
        'compute_task.migrate_server.error',
        CONDUCTOR,
        payloads.ComputeTaskPayload,
        'compute_task.migrate_server',
        facts=(('method', 'migrate_server'),),
        **_TASK,
    ),
    Notification(
        'compute_task.rebuild_server.error',
        CONDUCTOR,
        payloads.ComputeTaskPayload,
        'compute_task.rebuild_server',
        facts=(('method', 'rebuild_server'),),
        **_TASK,
    ),
    # --- Events of actions that the API does, without a host
    Notification(
        'instance.evacuate', API, payloads.InstanceActionPayload, 'compute.instance.evacuate', old_publisher='api'
    ),
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
    *_api(
        'start end', 'aggregate.update_metadata', payloads.AggregatePayload, 'aggregate.updatemetadata', **_AGGREGATE
    ),
    Notification('server_group.create', API, payloads.ServerGroupPayload, 'servergroup.create', **_GROUP),
    Notification('server_group.delete', API, payloads.ServerGroupPayload, 'servergroup.delete', **_GROUP),
    Notification('server_group.add_member', API, payloads.ServerGroupPayload, 'servergroup.addmember', **_GROUP),
    # --- Events of services. Each service publishes them under its own name.
    Notification('service.create', None, payloads.ServiceStatusPayload),
    Notification('service.update', None, payloads.ServiceStatusPayload),
    Notification('service.delete', None, payloads.ServiceStatusPayload),
]
NOTIFICATIONS: dict[str, Notification] = {row.event: row for row in _TABLE}


@functools.cache
def _options() -> list[Any]:
    """Return the notification options of oslo.messaging.

    The result is cached, because oslo.messaging copies all its options at each call.
    """
    return [opt for group, opts in messaging_opts.list_opts() if group == GROUP for opt in opts]


def register(conf: cfg.ConfigOpts) -> None:
    """Register oslo.messaging's options for notifications in a configuration."""
    conf.register_opts(_options(), group=GROUP)


@dataclass(frozen=True)
class Message:
    """A notification message for the broker.

    ``versioned`` is True for the versioned format and False for the unversioned one. Each format has topics of its own.
    """

    versioned: bool
    event: str
    publisher: str
    priority: str
    payload: dict[str, Any]


class _Contexts(messaging.NoOpSerializer):  # type: ignore[misc]  # oslo.messaging has no type hints
    def serialize_context(self, ctxt: RequestContext) -> dict[str, Any]:
        return ctxt.to_dict()


class NotificationSender:
    """A queue of notifications, and a thread that passes them to the drivers of oslo.messaging.

    Notifications are sent in the order in which they were put into the queue. At most ``size`` notifications wait.
    """

    def __init__(self, conf: cfg.ConfigOpts, size: int = QUEUE_SIZE) -> None:
        messaging.set_transport_defaults(EXCHANGE)
        transport = messaging.get_notification_transport(conf)
        self._notifiers = {
            False: messaging.Notifier(transport, serializer=_Contexts()),
            True: messaging.Notifier(
                transport, serializer=_Contexts(), topics=conf.notifications.versioned_notifications_topics
            ),
        }
        self._queue: queue.Queue[Callable[[], list[tuple[Any, Message]]]] = queue.Queue(size)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.lost = 0

    def put(self, make: Callable[[], list[tuple[Any, Message]]]) -> None:
        """Add the function ``make`` to the queue. The thread calls it and sends the messages that it returns.

        ``make()`` returns pairs (context, message). ``put`` never blocks and never raises. If the queue is full, the
        messages are lost.
        """
        with self._lock:
            # Start the thread here and not in the constructor, because a thread does not survive a fork of the process.
            if self._thread is None or not self._thread.is_alive():
                self._thread = concurrency.spawn(self._work, name='notifications')
        try:
            self._queue.put_nowait(make)
        except queue.Full:
            if not self.lost:
                LOG.error(
                    'Notifications are being dropped: %d are waiting for the message broker, which does not '
                    'accept them',
                    self._queue.maxsize,
                )
            self.lost += 1
        else:
            if self.lost and self._queue.qsize() <= self._queue.maxsize // 2:
                LOG.warning('%d notifications were lost', self.lost)
                self.lost = 0

    def flush(self, timeout: float) -> None:
        """Wait until all messages are sent, for at most ``timeout`` seconds."""
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
                LOG.exception('A notification could not be created or sent')
            finally:
                self._queue.task_done()

    def _send(self, ctxt: RequestContext, message: Message) -> None:
        notifier = self._notifiers[message.versioned].prepare(publisher_id=message.publisher)
        getattr(notifier, message.priority.lower())(ctxt, message.event, message.payload)


class Notifications:
    """The sender of the notifications of one process. If ``enabled`` is False, no notification is sent."""

    def __init__(self, conf: cfg.ConfigOpts, sender: NotificationSender | None = None) -> None:
        register(conf)
        section = conf.notifications
        drivers = set(conf[GROUP].driver)
        self.enabled = bool(drivers - {'noop'})
        self.on_states = section.notify_on_state_change if self.enabled else None
        self._host, self._level = conf.host, section.default_level
        self._versioned = section.notification_format in ('versioned', 'both')
        self._unversioned = section.notification_format in ('unversioned', 'both')
        self._about = {
            'bdms': section.bdms_in_notifications,
            'audit_period': conf.instance_usage_audit_period,
            'name_template': conf.instance_name_template,
        }
        self._sender = sender or (NotificationSender(conf) if self.enabled else None)

    def emit(
        self, ctxt: RequestContext, event: str, *, host: str | None = None, binary: str | None = None, **facts: Any
    ) -> None:
        """Send the notification of an event that ``NOTIFICATIONS`` declares.

        ``facts`` are the arguments of the functions that make the event's payloads, such as ``instance``. The payloads
        are made before ``emit`` returns. ``host`` and ``binary`` replace the host and the name of this daemon in the
        publisher. Never raises, because a failed notification must not make the reported action fail.
        """
        if not self.enabled or self._sender is None:
            return
        try:
            messages = self.render(ctxt, event, host=host, binary=binary, **facts)
        except Exception:
            LOG.exception('Notification %s could not be created', event)
            return
        if messages:
            self._sender.put(lambda: [(ctxt, message) for message in messages])

    def later(
        self,
        ctxt: RequestContext,
        event: str,
        read: Callable[[], dict[str, Any] | None],
        *,
        host: str | None = None,
        binary: str | None = None,
    ) -> None:
        """Queue the notification of an event in NOTIFICATIONS. The thread that sends it reads the arguments.

        So the caller does not wait for queries that the arguments need. ``read()`` returns the arguments (``facts`` of
        ``emit``) as a dict, or None if nothing is to be sent. ``host`` and ``binary`` have the same meaning as in
        ``emit``.
        """
        if not self.enabled or self._sender is None:
            return

        def make() -> list[tuple[Any, Message]]:
            facts = read()
            if facts is None:
                return []
            return [(ctxt, message) for message in self.render(ctxt, event, host=host, binary=binary, **facts)]

        self._sender.put(make)

    def render(
        self, ctxt: RequestContext, event: str, *, host: str | None = None, binary: str | None = None, **facts: Any
    ) -> list[Message]:
        """Return the messages of an event, one for each configured format. ``emit`` describes the arguments."""
        row = NOTIFICATIONS[event]
        about = EventContext(ctxt, **self._about)
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
            publisher = (
                f'{made.binary}:{made.host}' if row.binary is None else f'{binary or row.binary}:{host or self._host}'
            )
            messages.append(Message(True, event, publisher, priority, made.obj_to_primitive()))
        return messages

    def stop(self, timeout: float = FLUSH_TIME) -> None:
        """Send the waiting messages before the process ends, for at most ``timeout`` seconds."""
        if self._sender is not None:
            self._sender.flush(timeout)


class Silent(Notifications):
    """A replacement for ``Notifications`` whose methods do nothing, for a process that sends no notifications."""

    def __init__(self) -> None:
        self.enabled, self.on_states, self._sender = False, None, None


OFF = Silent()

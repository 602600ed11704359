"""Stop, start, reboot: one step on the server's host, which writes the end state; and pending releases."""
from __future__ import annotations

from typing import Any

from kilonova import objects
from kilonova.conductor.flow import Flow
from kilonova.conductor.work import HostGone, Step, Work
from kilonova.db.queries import instances
from kilonova.errors import Unanswered
from kilonova.rpc.compute import Compute


def _on_host(work: Work, method: str, **kwargs: Any) -> None:
    work.ask(work.instance_row()['host'], method, instance=work.instance(), **kwargs)
    work.ended_by_host()


def stop_instance(work: Work) -> None:
    """The guest is shut down."""
    _on_host(work, 'stop_instance', clean_shutdown=work.args.get('clean_shutdown', True))


def start_instance(work: Work) -> None:
    """The guest is started with its devices."""
    _on_host(work, 'start_instance')


def reboot_instance(work: Work) -> None:
    """The guest is rebooted, soft or hard."""
    _on_host(work, 'reboot_instance', reboot_type=work.args['reboot_type'])


class OneStep(Flow):
    """A failure leaves the server as it was, with the reason in its event."""

    failed: str
    action_event: str

    def ended_badly(self, work: Work) -> None:
        def end(conn: Any) -> None:
            uuid, error = work.instance_uuid, work.error or {}
            if instances.transition(conn, uuid, self.failed):
                instances.add_fault(conn, uuid, work.fault())
            instances.add_events(conn, uuid, work.request_id, [{
                'event': self.action_event, 'result': 'Error', 'start_time': work.created_at,
                'finish_time': instances.utcnow(), 'details': error.get('message'),
                'traceback': error.get('details')}])
            instances.finish_action(conn, uuid, work.request_id, 'Error')
        work.end(end)


class Stop(OneStep):
    name, failed, action_event = 'stop', 'stop.failed', 'compute_stop_instance'
    steps = (Step('stop_instance', stop_instance, saved=False),)


class Start(OneStep):
    name, failed, action_event = 'start', 'start.failed', 'compute_start_instance'
    steps = (Step('start_instance', start_instance, saved=False),)


class Reboot(OneStep):
    name, failed, action_event = 'reboot', 'reboot.failed', 'compute_reboot_instance'
    steps = (Step('reboot_instance', reboot_instance, saved=False),)


def release(work: Work) -> None:
    """What is still to give back: a host's part (asked until it answers), a Placement consumer, or an image."""
    if 'consumer' in work.args:
        work.env.placement.delete_allocations(work.args['consumer'])
        return
    if 'image_id' in work.args:
        work.env.drop_image(work.args['image_id'])
        return
    serializer = objects.base.Serializer()
    # A row may have waited for its host since a release whose messages said more.
    taken = Compute.arguments(work.args['method'])
    kwargs = {name: serializer.deserialize_entity(work.ctxt, value) for name, value in work.args['kwargs'].items()
              if name in taken}
    try:
        work.ask(work.args['host'], work.args['method'], **kwargs)
    except HostGone as error:
        raise Unanswered(who=work.args['host'], reason=str(error)) from error


class Release(Flow):
    """A pending release (operations.md rule 23): outlives the server, ends when its host answered."""

    name = 'release'
    forward_only = True
    steps = (Step('release', release, saved=False),)

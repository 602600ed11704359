"""Stop, pause, suspend, snapshot and the like: one step on the server's host, which writes the end state."""
from __future__ import annotations

from typing import Any

from kilonova import objects
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import beside, port_moves, volumes
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import Step, Work
from kilonova.db.engine import Connection
from kilonova.db.queries import instances


class OneStep(Flow[Outputs]):
    """A failure leaves the server as it was, with the reason in its event: ``action_event``. ``failed``: what is
    written of its state then."""

    outputs = Outputs
    failed: str
    action_event: str

    def ended_badly(self, work: Work[Outputs]) -> None:
        def end(conn: Connection) -> None:
            uuid = work.instance_uuid
            if instances.transition(conn, uuid, self.failed):
                instances.add_fault(conn, uuid, work.fault())
            instances.add_events(conn, uuid, work.request_id, [work.event(self.action_event, 'Error')])
            instances.finish_action(conn, uuid, work.request_id, 'Error')
        work.end(end)


def _on_host(work: Work[Outputs], method: str, **kwargs: Any) -> None:
    work.ask(work.instance_row()['host'], method, instance=work.instance(), **kwargs)
    work.ended_by_host()


# --- stop, start, reboot ---------------------------------------------------------------------------------------------
def stop_instance(work: Work[Outputs]) -> None:
    """The guest is shut down."""
    _on_host(work, 'stop_instance', clean_shutdown=work.args.get('clean_shutdown', True))


class Stop(OneStep):
    name, failed, action_event = 'stop', 'stop.failed', 'compute_stop_instance'
    steps = (Step('stop_instance', stop_instance),)


def start_instance(work: Work[Outputs]) -> None:
    """The guest is started with its devices."""
    port_moves.bound_here(work)
    volumes.attached_here(work)
    _on_host(work, 'start_instance')


class Start(OneStep):
    name, failed, action_event = 'start', 'start.failed', 'compute_start_instance'
    steps = (Step('start_instance', start_instance),)


def reboot_instance(work: Work[Outputs]) -> None:
    """The guest is rebooted, soft or hard."""
    if work.args['reboot_type'] == 'HARD':
        port_moves.bound_here(work)
        volumes.attached_here(work)
    _on_host(work, 'reboot_instance', reboot_type=work.args['reboot_type'])


class Reboot(OneStep):
    name, failed, action_event = 'reboot', 'reboot.failed', 'compute_reboot_instance'
    steps = (Step('reboot_instance', reboot_instance),)


# --- pause, suspend --------------------------------------------------------------------------------------------------
def pause_instance(work: Work[Outputs]) -> None:
    """The guest's CPUs are stopped."""
    _on_host(work, 'pause_instance')


class Pause(OneStep):
    name, failed, action_event = 'pause', 'pause.failed', 'compute_pause_instance'
    steps = (Step('pause_instance', pause_instance),)


def unpause_instance(work: Work[Outputs]) -> None:
    """They go on."""
    _on_host(work, 'unpause_instance')


class Unpause(OneStep):
    name, failed, action_event = 'unpause', 'unpause.failed', 'compute_unpause_instance'
    steps = (Step('unpause_instance', unpause_instance),)


def suspend_instance(work: Work[Outputs]) -> None:
    """The guest gives up its devices, and its memory is saved."""
    _on_host(work, 'suspend_instance')


class Suspend(OneStep):
    name, failed, action_event = 'suspend', 'suspend.failed', 'compute_suspend_instance'
    steps = (Step('suspend_instance', suspend_instance),)


def resume_instance(work: Work[Outputs]) -> None:
    """The guest goes on from its saved memory and gets the same devices."""
    _on_host(work, 'resume_instance')


class Resume(OneStep):
    name, failed, action_event = 'resume', 'resume.failed', 'compute_resume_instance'
    steps = (Step('resume_instance', resume_instance),)


def trigger_crash_dump(work: Work[Outputs]) -> None:
    """The guest gets a non-maskable interrupt."""
    _on_host(work, 'trigger_crash_dump')


class TriggerCrashDump(OneStep):
    name, failed, action_event = 'trigger_crash_dump', 'trigger_crash_dump.failed', 'compute_trigger_crash_dump'
    steps = (Step('trigger_crash_dump', trigger_crash_dump),)


# --- rescue ----------------------------------------------------------------------------------------------------------
def rescue_instance(work: Work[Outputs]) -> None:
    """The guest starts from another image, its disks beside it."""
    work.ask(work.instance_row()['host'], 'rescue_instance', order=objects.RescueOrder(
        instance=work.instance(), image=work.args['image'] or {}, sealed=work.args['sealed']))
    work.ended_by_host()


class Rescue(OneStep):
    name, failed, action_event = 'rescue', 'rescue.failed', 'compute_rescue_instance'
    steps = (Step('rescue_instance', rescue_instance),)


def unrescue_instance(work: Work[Outputs]) -> None:
    """It starts from its own disk again."""
    _on_host(work, 'unrescue_instance')


class Unrescue(OneStep):
    name, failed, action_event = 'unrescue', 'unrescue.failed', 'compute_unrescue_instance'
    steps = (Step('unrescue_instance', unrescue_instance),)


# --- password --------------------------------------------------------------------------------------------------------
def set_admin_password(work: Work[Outputs]) -> None:
    """The guest's agent sets the administrator's password."""
    _on_host(work, 'set_admin_password', sealed=work.args['sealed'])


class SetAdminPassword(OneStep):
    name, failed, action_event = 'set_admin_password', 'set_admin_password.failed', 'compute_set_admin_password'
    steps = (Step('set_admin_password', set_admin_password),)


# --- snapshot --------------------------------------------------------------------------------------------------------
def snapshot_instance(work: Work[Outputs]) -> None:
    """The host copies the root disk and sends it. A silent image service is asked again, like any other."""
    _on_host(work, 'snapshot_instance', image_id=work.args['image_id'])


def undo_snapshot_instance(work: Work[Outputs]) -> None:
    """The guest goes on, the host's copy goes, the image goes."""
    beside.undo_image(work, 'undo_snapshot_instance')


class Snapshot(OneStep):
    """The API made the image (queued, without data). An operation that fails or is cancelled takes it away again."""

    name, failed, action_event = 'snapshot', 'snapshot.failed', 'compute_snapshot_instance'
    steps = (Step('snapshot_instance', snapshot_instance, undo_snapshot_instance),)


# --- restore ---------------------------------------------------------------------------------------------------------
def restore_instance(work: Work[Outputs]) -> None:
    """The host starts the guest of a soft-deleted server and writes the end state."""
    _on_host(work, 'restore_instance')


class Restore(OneStep):
    """A failure leaves the server soft-deleted."""

    name, failed, action_event = 'restore', 'restore.failed', 'compute_restore_instance'
    steps = (Step('restore_instance', restore_instance),)


FLOWS = (Stop(), Start(), Reboot(), Pause(), Unpause(), Suspend(), Resume(), TriggerCrashDump(), Rescue(),
         Unrescue(), SetAdminPassword(), Snapshot(), Restore())

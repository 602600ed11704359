"""Flows with only one step, such as stop, pause, suspend and snapshot.

In this step the server's host changes the guest, writes the server's new state and ends the operation.
"""

from __future__ import annotations

from typing import Any

from kilonova import objects
from kilonova.conductor.ending import Ending
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import releases
from kilonova.conductor.flows.network import port_moves
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import HostMethod, Step, Work
from kilonova.db.arguments.servers import (
    PasswordArguments,
    RebootArguments,
    RescueArguments,
    SnapshotArguments,
    StopArguments,
)
from kilonova.rpc.compute import Compute


class OneStep(Flow[Outputs]):
    """Base class of operations with one step. If the step fails, the server keeps the state that it had before.

    Attributes:
        failed: Name of the state transition that a failure causes (``states.TRANSITIONS``).
        action_event: Name of the event that is added to the instance action and has the reason of the failure.
    """

    outputs = Outputs
    failed: str
    action_event: str

    def ended_badly(self, work: Work[Outputs]) -> None:
        """Write the server's state after a failure, with a fault, and end the instance action with the error."""
        Ending(event=self.failed, fault=True, events=[work.event(self.action_event, 'Error')], failed=True).end(work)


def _on_host(work: Work[Outputs], method: HostMethod[..., Any], **more: Any) -> None:
    work.call_host(work.instance_row()['host'], method, instance=work.instance(), **more)
    work.ended_by_host()


# --- stop, start, reboot ---------------------------------------------------------------------------------------------
def stop_instance(work: Work[Outputs]) -> None:
    """Ask the host to shut the guest down."""
    _on_host(work, Compute.stop_instance, clean_shutdown=work.arguments(StopArguments).clean_shutdown)


class Stop(OneStep):
    """The operation that stops a server."""

    name, failed, action_event = 'stop', 'stop.failed', 'compute_stop_instance'
    steps = (Step('stop_instance', stop_instance),)


def start_instance(work: Work[Outputs]) -> None:
    """Ask the host to start the guest with its devices.

    Before this request, ports that are not bound to the host yet are bound to the host. Volumes that are not attached
    to the host yet are attached to the host.
    """
    port_moves.bound_here(work)
    volumes.attached_here(work)
    _on_host(work, Compute.start_instance)


class Start(OneStep):
    """The operation that starts a server."""

    name, failed, action_event = 'start', 'start.failed', 'compute_start_instance'
    steps = (Step('start_instance', start_instance),)


def reboot_instance(work: Work[Outputs]) -> None:
    """Ask the host to reboot the guest, soft or hard."""
    reboot_type = work.arguments(RebootArguments).reboot_type
    if reboot_type == 'HARD':
        port_moves.bound_here(work)
        volumes.attached_here(work)
    _on_host(work, Compute.reboot_instance, reboot_type=reboot_type)


class Reboot(OneStep):
    """The operation that reboots a server."""

    name, failed, action_event = 'reboot', 'reboot.failed', 'compute_reboot_instance'
    steps = (Step('reboot_instance', reboot_instance),)


# --- pause, suspend --------------------------------------------------------------------------------------------------
def pause_instance(work: Work[Outputs]) -> None:
    """Ask the host to stop the CPUs of the guest."""
    _on_host(work, Compute.pause_instance)


class Pause(OneStep):
    """The operation that pauses a server."""

    name, failed, action_event = 'pause', 'pause.failed', 'compute_pause_instance'
    steps = (Step('pause_instance', pause_instance),)


def unpause_instance(work: Work[Outputs]) -> None:
    """Ask the host to start the CPUs of a paused guest again."""
    _on_host(work, Compute.unpause_instance)


class Unpause(OneStep):
    """The operation that ends the pause of a server."""

    name, failed, action_event = 'unpause', 'unpause.failed', 'compute_unpause_instance'
    steps = (Step('unpause_instance', unpause_instance),)


def suspend_instance(work: Work[Outputs]) -> None:
    """Ask the host to save the guest's memory, to stop the guest and to detach its devices."""
    _on_host(work, Compute.suspend_instance)


class Suspend(OneStep):
    """The operation that suspends a server."""

    name, failed, action_event = 'suspend', 'suspend.failed', 'compute_suspend_instance'
    steps = (Step('suspend_instance', suspend_instance),)


def resume_instance(work: Work[Outputs]) -> None:
    """Ask the host to restore the guest from its saved memory with the same devices."""
    _on_host(work, Compute.resume_instance)


class ResumeServer(OneStep):
    """The operation that resumes a suspended server."""

    name, failed, action_event = 'resume', 'resume.failed', 'compute_resume_instance'
    steps = (Step('resume_instance', resume_instance),)


def trigger_crash_dump(work: Work[Outputs]) -> None:
    """Ask the host to send the guest a non-maskable interrupt."""
    _on_host(work, Compute.trigger_crash_dump)


class TriggerCrashDump(OneStep):
    """The operation that triggers a crash dump in a guest."""

    name, failed, action_event = 'trigger_crash_dump', 'trigger_crash_dump.failed', 'compute_trigger_crash_dump'
    steps = (Step('trigger_crash_dump', trigger_crash_dump),)


# --- rescue ----------------------------------------------------------------------------------------------------------
def rescue_instance(work: Work[Outputs]) -> None:
    """Ask the host to start the guest from a rescue image. The guest's own disks stay attached."""
    args = work.arguments(RescueArguments)
    work.call_host(
        work.instance_row()['host'],
        Compute.rescue_instance,
        order=objects.RescueOrder(instance=work.instance(), image=args.image or {}, sealed=args.sealed),
    )
    work.ended_by_host()


class RescueServer(OneStep):
    """The operation that rescues a server."""

    name, failed, action_event = 'rescue', 'rescue.failed', 'compute_rescue_instance'
    steps = (Step('rescue_instance', rescue_instance),)


def unrescue_instance(work: Work[Outputs]) -> None:
    """Ask the host to start the guest from its own disk again."""
    _on_host(work, Compute.unrescue_instance)


class Unrescue(OneStep):
    """The operation that ends the rescue of a server."""

    name, failed, action_event = 'unrescue', 'unrescue.failed', 'compute_unrescue_instance'
    steps = (Step('unrescue_instance', unrescue_instance),)


# --- password --------------------------------------------------------------------------------------------------------
def set_admin_password(work: Work[Outputs]) -> None:
    """Ask the host to set the administrator's password through the guest's agent."""
    _on_host(work, Compute.set_admin_password, sealed=work.arguments(PasswordArguments).sealed)


class SetAdminPassword(OneStep):
    """The operation that sets the administrator's password of a server."""

    name, failed, action_event = 'set_admin_password', 'set_admin_password.failed', 'compute_set_admin_password'
    steps = (Step('set_admin_password', set_admin_password),)


# --- snapshot --------------------------------------------------------------------------------------------------------
def snapshot_instance(work: Work[Outputs]) -> None:
    """Ask the host to copy the root disk and to upload the copy to the image service.

    The step is retried if the image service does not answer.
    """
    _on_host(work, Compute.snapshot_instance, image_id=work.arguments(SnapshotArguments).image_id)


def undo_snapshot_instance(work: Work[Outputs]) -> None:
    """Ask the host to resume the guest and to delete the copy of the root disk. Delete the image."""
    releases.undo_image(work, Compute.undo_snapshot_instance)


class SnapshotServer(OneStep):
    """The operation that creates an image of a server.

    The API has created the image with the status ``queued`` and without data. If the operation fails or is cancelled,
    the image is deleted.
    """

    name, failed, action_event = 'snapshot', 'snapshot.failed', 'compute_snapshot_instance'
    steps = (Step('snapshot_instance', snapshot_instance, undo_snapshot_instance),)


# --- restore ---------------------------------------------------------------------------------------------------------
def restore_instance(work: Work[Outputs]) -> None:
    """Ask the host to start the guest of a soft-deleted server."""
    _on_host(work, Compute.restore_instance)


class Restore(OneStep):
    """The operation that restores a soft-deleted server.

    A failure leaves the server soft-deleted.
    """

    name, failed, action_event = 'restore', 'restore.failed', 'compute_restore_instance'
    steps = (Step('restore_instance', restore_instance),)


FLOWS = (
    Stop(),
    Start(),
    Reboot(),
    Pause(),
    Unpause(),
    Suspend(),
    ResumeServer(),
    TriggerCrashDump(),
    RescueServer(),
    Unrescue(),
    SetAdminPassword(),
    SnapshotServer(),
    Restore(),
)

"""The RPC methods that compute services answer.

The names of the methods are Nova's. Where Nova's hosts send casts to each other, the conductor's flow here calls each
host in sequence, so these methods are long calls. A method has the arguments that hosts use. If there are many, they
form one object (``objects.orders``). Each call of a flow carries a step key, ``key``: '<operation>/<step>/<attempt>'.
"""

from __future__ import annotations

from typing import Any

from kilonova.context import RequestContext
from kilonova.objects import (
    BuildOrder,
    EvacuateOrder,
    FinishResizeOrder,
    Instance,
    InstancePCIRequest,
    LiveMigrationCheckOrder,
    LiveMigrationOrder,
    LiveMigrationUndo,
    Migration,
    PrepResizeOrder,
    RebuildOrder,
    RescueOrder,
    ResizeOrder,
    UnshelveOrder,
)
from kilonova.rpc.interface import RpcInterface, call, cast, step_call


class LifeCalls(RpcInterface):
    """Methods that create, rebuild and delete servers."""

    @step_call('6.11')
    def build_and_run_instance(self, ctxt: RequestContext, order: BuildOrder) -> Any:
        """Claim resources for a new server, create its guest and start it."""

    @step_call('6.11')
    def undo_build(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Undo ``build_and_run_instance``. Nothing happens if the build never ran or was already undone."""

    @step_call('6.13')
    def rebuild_instance(self, ctxt: RequestContext, order: RebuildOrder) -> Any:
        """Create the server's disks again from the order's image. The guest of a stopped server stays off."""

    @step_call('6.13')
    def stop_to_reimage(self, ctxt: RequestContext, order: RebuildOrder) -> Any:
        """Stop the guest and disconnect its boot volume from the host, so that the volume can get new content."""

    @step_call('6.13')
    def undo_stop_to_reimage(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Undo ``stop_to_reimage``: start the guest again if its server is to run."""

    @step_call('6.11')
    def terminate_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Delete the server's guest and files, and release all that it holds on the host."""

    @step_call('6.11')
    def soft_delete_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Power the guest off and save that the server is soft-deleted. The server keeps its disks and devices."""

    @step_call('6.11')
    def restore_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Start the guest of a soft-deleted server with the devices that it kept."""


class PowerCalls(RpcInterface):
    """Methods that start, stop and pause a guest on its host."""

    @step_call('6.13')
    def resume_guest(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Start a guest that was running when its host went down.

        Return {'is_running': whether the guest runs, 'power_state': its state}. ``is_running`` is False, without a
        power state, if the server has changed meanwhile.
        """

    @step_call('6.11')
    def stop_instance(self, ctxt: RequestContext, instance: Instance, clean_shutdown: bool) -> Any:
        """Shut the guest down, or cut its power if ``clean_shutdown`` is False or it does not shut down in time."""

    @step_call('6.11')
    def start_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Start the guest with the devices that its server holds."""

    @step_call('6.11')
    def reboot_instance(self, ctxt: RequestContext, instance: Instance, reboot_type: str) -> Any:
        """Reboot the guest. ``reboot_type`` is SOFT or HARD."""

    @step_call('6.13')
    def pause_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Stop the guest's CPUs."""

    @step_call('6.13')
    def unpause_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Start the CPUs of a paused guest again."""

    @step_call('6.13')
    def suspend_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Save the guest's memory and stop the guest. Its devices stay claimed for the server."""

    @step_call('6.13')
    def resume_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Restore the guest from its saved memory with the devices that its server holds."""

    @step_call('6.13')
    def trigger_crash_dump(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Send the guest a non-maskable interrupt."""

    @step_call('6.13')
    def rescue_instance(self, ctxt: RequestContext, order: RescueOrder) -> Any:
        """Start the guest from the order's rescue image, with its own disks attached."""

    @step_call('6.13')
    def unrescue_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Start the guest from its own disk again."""

    @step_call('6.13')
    def set_admin_password(self, ctxt: RequestContext, instance: Instance, sealed: str) -> Any:
        """Set the administrator's password in the guest. ``sealed`` is the sealed password (``sealing``)."""


class Images(RpcInterface):
    """Methods that make an image of a server, and that shelve and unshelve servers."""

    @step_call('6.11')
    def snapshot_instance(self, ctxt: RequestContext, instance: Instance, image_id: str) -> Any:
        """Upload the server's root disk as the data of image ``image_id``, and save the server's end state."""

    @step_call('6.11')
    def undo_snapshot_instance(self, ctxt: RequestContext, instance: Instance, image_id: str) -> Any:
        """Undo ``snapshot_instance`` or ``backup_instance``. Nothing happens if nothing was begun."""

    @step_call('6.13')
    def backup_instance(self, ctxt: RequestContext, instance: Instance, image_id: str) -> Any:
        """Upload the server's root disk as the data of image ``image_id``, for a backup."""

    @step_call('6.13')
    def shelve_instance(self, ctxt: RequestContext, instance: Instance, image_id: str | None) -> Any:
        """Stop the guest and upload its root disk.

        ``image_id`` is None if the root disk is a volume, which is not uploaded.
        """

    @step_call('6.13')
    def shelve_offload_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Delete the guest and files of a shelved server, and release all that it holds on the host."""

    @step_call('6.13')
    def undo_shelve_instance(self, ctxt: RequestContext, instance: Instance, image_id: str | None) -> Any:
        """Undo ``shelve_instance``: delete the copied disk, and start the guest again if its server is to run."""

    @step_call('6.13')
    def unshelve_instance(self, ctxt: RequestContext, order: UnshelveOrder) -> Any:
        """Claim resources for a shelved server, and build its guest from the image that the order names."""

    @step_call('6.13')
    def undo_unshelve_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Undo ``unshelve_instance``. Nothing happens if nothing was begun or it was already undone."""

    @step_call('6.13')
    def start_shelved_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Start the guest of a shelved server that is still on this host."""

    @step_call('6.13')
    def undo_start_shelved_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Undo ``start_shelved_instance``: power the guest off if its server is still shelved."""


class MoveCalls(RpcInterface):
    """Methods that move a stopped server to another host in three steps, or build it elsewhere after its host was lost.

    Each step has a method that undoes it.
    """

    @step_call('6.11')
    def prep_resize(self, ctxt: RequestContext, order: PrepResizeOrder) -> Any:
        """Claim resources for the new flavor at the destination.

        Return {'disk': where the source must put the disk}. Raises HostRejected if the host can't take the server.
        """

    @step_call('6.11')
    def undo_prep_resize(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Undo ``prep_resize`` at the destination: release the claim and delete what has arrived of the disk."""

    @step_call('6.11')
    def resize_instance(self, ctxt: RequestContext, order: ResizeOrder) -> Any:
        """Stop the guest at the source, and copy its disks to the destination.

        Return the ``disk_info`` for ``finish_resize``.
        """

    @step_call('6.11')
    def undo_resize_instance(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Undo ``resize_instance`` at the source: restore the server with its disk, devices and power state."""

    @step_call('6.11')
    def finish_resize(self, ctxt: RequestContext, order: FinishResizeOrder) -> Any:
        """Create the guest at the destination with the new flavor. It is started if it ran before the move."""

    @step_call('6.11')
    def undo_finish_resize(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Undo ``finish_resize`` at the destination: delete the guest and its copied disks."""

    @step_call('6.11')
    def confirm_resize(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Delete what the source has kept of the server, and free its old devices there."""

    @step_call('6.11')
    def check_revert(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Check that the source can take the server back, without a change. Raises HostRejected if it can't."""

    @step_call('6.11')
    def revert_resize(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Delete the new guest, the copied disks and the new claims at the destination."""

    @step_call('6.11')
    def finish_revert_resize(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Restore the server at the source, with the kept disks, the old flavor and the old devices."""

    @step_call('6.13')
    def evacuate_instance(self, ctxt: RequestContext, order: EvacuateOrder) -> Any:
        """Build a server on this host after its previous host was lost."""

    @step_call('6.13')
    def undo_evacuate_instance(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Undo ``evacuate_instance``. Nothing happens if this host claimed nothing."""

    @step_call('6.13')
    def clean_evacuated(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Delete what the old host still has of an evacuated server, once that host can be reached again."""


class LiveMigrationCalls(RpcInterface):
    """Methods that move a guest to another host while it runs."""

    @step_call('6.13')
    def check_can_live_migrate_source(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Return what a destination must know of the running guest."""

    @step_call('6.13')
    def check_can_live_migrate_destination(self, ctxt: RequestContext, order: LiveMigrationCheckOrder) -> Any:
        """Compare the guest with this host and claim resources for it.

        Raises HostRejected if this host can't take it.
        """

    @step_call('6.13')
    def pre_live_migration(self, ctxt: RequestContext, order: LiveMigrationOrder) -> Any:
        """Prepare disks, mediated devices and volumes at the destination."""

    @step_call('6.13')
    def live_migration(self, ctxt: RequestContext, order: LiveMigrationOrder) -> Any:
        """Migrate the guest from the source to the destination."""

    @step_call('6.13')
    def post_live_migration_at_destination(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Make the server the destination's after its guest has arrived."""

    @step_call('6.13')
    def post_live_migration(self, ctxt: RequestContext, order: LiveMigrationOrder) -> Any:
        """Delete the domain, disks, volume connections and claim at the source after the guest has left."""

    @call('6.13')
    def live_migration_force_complete(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Force the running migration to complete. Raises MigrationError if no migration of the guest runs."""

    @step_call('6.13')
    def undo_live_migration(self, ctxt: RequestContext, order: LiveMigrationUndo) -> Any:
        """Abort the migration at the source, and return where the guest is."""

    @step_call('6.13')
    def rollback_live_migration_at_destination(self, ctxt: RequestContext, order: LiveMigrationUndo) -> Any:
        """Delete what has arrived of the guest at the destination, and its claim there.

        If the guest has arrived completely, nothing is deleted.
        """


class Interfaces(RpcInterface):
    """Methods that attach network interfaces to an existing guest and detach them, each with a method that undoes it.

    ``vif`` is the interface as the info cache has it. For an interface that is the function of a PCI device, the host
    claims the function before the interface is attached (``request``), and frees it after the guest has released it.
    """

    @step_call('6.13')
    def claim_function(self, ctxt: RequestContext, instance: Instance, request: InstancePCIRequest) -> Any:
        """Claim the function of a PCI device for an interface.

        Return {'profile': what the port's binding profile says about the function}. Raises HostRejected if none is
        free.
        """

    @step_call('6.13')
    def undo_claim_function(self, ctxt: RequestContext, instance: Instance, request_id: str) -> Any:
        """Undo ``claim_function``. Nothing happens if nothing was claimed."""

    @step_call('6.13')
    def free_function(self, ctxt: RequestContext, instance: Instance, request_id: str) -> Any:
        """Free the function of an interface that the guest has released and whose port is unbound."""

    @step_call('6.13')
    def unplug_functions(self, ctxt: RequestContext, instance: Instance, vifs: list[dict[str, Any]]) -> Any:
        """Detach device functions from the guest at the source, before a live migration."""

    @step_call('6.13')
    def undo_unplug_functions(self, ctxt: RequestContext, instance: Instance, vifs: list[dict[str, Any]]) -> Any:
        """Undo ``unplug_functions``: attach the functions to the guest again."""

    @step_call('6.13')
    def plug_functions(self, ctxt: RequestContext, instance: Instance, vifs: list[dict[str, Any]]) -> Any:
        """Attach the destination's device functions to the guest, after a live migration."""

    @step_call('6.13')
    def attach_interface(self, ctxt: RequestContext, instance: Instance, vif: dict[str, Any]) -> Any:
        """Attach a network interface to the guest."""

    @step_call('6.13')
    def undo_attach_interface(self, ctxt: RequestContext, instance: Instance, vif: dict[str, Any]) -> Any:
        """Undo ``attach_interface``. Nothing happens if nothing was attached."""

    @step_call('6.13')
    def detach_interface(self, ctxt: RequestContext, instance: Instance, vif: dict[str, Any]) -> Any:
        """Detach a network interface from the guest. Returns after the guest has released it."""

    @step_call('6.13')
    def undo_detach_interface(self, ctxt: RequestContext, instance: Instance, vif: dict[str, Any]) -> Any:
        """Undo ``detach_interface``: attach the interface again. Nothing happens if the guest never released it."""


class VolumeCalls(RpcInterface):
    """Methods that attach volumes to an existing guest and detach them, each with a method that undoes it.

    ``instance.volumes`` contains the volume ``volume_id``, which is attached to this host.
    """

    @call('6.13')
    def prepare_volumes(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Return what must be known of this host before volumes of the server are attached to it.

        The reply is {'connector': {…}, 'devices': ['/dev/vdb']}. The connector describes the host for the volume
        service. The devices are names for the server's volumes that have none yet, in the order of these volumes.
        """

    @step_call('6.13')
    def attach_volume(self, ctxt: RequestContext, instance: Instance, volume_id: str) -> Any:
        """Connect the volume to the host and attach it to the guest."""

    @step_call('6.13')
    def undo_attach_volume(self, ctxt: RequestContext, instance: Instance, volume_id: str) -> Any:
        """Undo ``attach_volume``. Nothing happens if the guest never got the volume."""

    @step_call('6.13')
    def detach_volume(self, ctxt: RequestContext, instance: Instance, volume_id: str) -> Any:
        """Detach the volume from the guest and disconnect it from the host."""

    @step_call('6.13')
    def undo_detach_volume(self, ctxt: RequestContext, instance: Instance, volume_id: str) -> Any:
        """Undo ``detach_volume``: attach the volume again. Nothing happens if the guest never released it."""

    @step_call('6.13')
    def copy_volume(self, ctxt: RequestContext, instance: Instance, copy: dict[str, Any]) -> Any:
        """Copy a volume of the server to another volume while the guest uses it.

        The two volumes have the same content from the time when this method returns. ``copy`` has the columns of the
        second volume (``AttachedVolume.successor``), and ``of``, the id of the first volume.
        """

    @step_call('6.13')
    def undo_copy_volume(self, ctxt: RequestContext, instance: Instance, copy: dict[str, Any]) -> Any:
        """Undo ``copy_volume``: end the copying and disconnect the second volume.

        Nothing happens if there was no copy.
        """

    @step_call('6.13')
    def swap_volume(self, ctxt: RequestContext, instance: Instance, copy: dict[str, Any]) -> Any:
        """Switch the guest from the volume to its copy."""

    @step_call('6.13')
    def undo_swap_volume(self, ctxt: RequestContext, instance: Instance, copy: dict[str, Any]) -> Any:
        """Complete ``swap_volume`` if the guest still can. Return {'swapped': whether the guest uses the copy}."""

    @step_call('6.13')
    def extend_volume(self, ctxt: RequestContext, instance: Instance, volume_id: str) -> Any:
        """Make the guest see the volume's new size."""


class VolumeSnapshotCalls(RpcInterface):
    """Methods for a snapshot, which the volume service has begun, of a volume that is a file on a share."""

    @step_call('6.13')
    def snapshot_volume(self, ctxt: RequestContext, instance: Instance, files: dict[str, str]) -> Any:
        """Make the guest write to a new file of the volume from now on.

        ``files`` contains ``volume_id``, ``name`` and ``format`` of the file that the guest writes to at present, and
        ``new``, the name of the new file, a qcow2.
        """

    @step_call('6.13')
    def undo_snapshot_volume(self, ctxt: RequestContext, instance: Instance, files: dict[str, str]) -> Any:
        """Return {'taken': whether the guest writes to the new file}. Nothing is changed."""

    @step_call('6.13')
    def withdraw_volume_snapshot(self, ctxt: RequestContext, instance: Instance, files: dict[str, str]) -> Any:
        """Make the guest write to the first file again. That file then has all that the guest wrote to the new one."""

    @step_call('6.13')
    def merge_volume(self, ctxt: RequestContext, instance: Instance, merge: dict[str, Any]) -> Any:
        """Merge two files of volume ``volume_id``.

        ``merge`` has ``file`` and ``into``, with the meaning of ``virt.parts`` ``Merge``.
        """

    @step_call('6.13')
    def undo_merge_volume(self, ctxt: RequestContext, instance: Instance, merge: dict[str, Any]) -> Any:
        """End a running merge, and return {'merged': whether the files are merged}."""


class Questions(RpcInterface):
    """Queries that only the host of a guest can answer. They change nothing."""

    @call('6.11')
    def get_diagnostics(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Return a guest's measurements under the driver's own names."""

    @call('6.11')
    def get_instance_diagnostics(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Return a guest's measurements under names that are the same for all drivers."""

    @call('6.11')
    def get_console_output(self, ctxt: RequestContext, instance: Instance, tail_length: int | None) -> Any:
        """Return the last ``tail_length`` lines that a guest wrote to its serial console.

        None returns all stored lines.
        """

    @call('6.13')
    def get_vnc_console(self, ctxt: RequestContext, instance: Instance, console_type: str) -> Any:
        """Return the address of the guest's VNC console."""

    @call('6.13')
    def get_spice_console(self, ctxt: RequestContext, instance: Instance, console_type: str) -> Any:
        """Return the address of the guest's SPICE console."""

    @call('6.13')
    def get_serial_console(self, ctxt: RequestContext, instance: Instance, console_type: str) -> Any:
        """Return the address of the guest's serial console."""

    @call('6.13')
    def validate_console_port(self, ctxt: RequestContext, instance: Instance, console_type: str, target: str) -> Any:
        """Return whether ``target`` ('address:port') is the current address of the guest's console."""


class ServiceCalls(RpcInterface):
    """Methods that concern the compute service itself and its host, not one server."""

    @cast('6.11')
    def cancel(self, ctxt: RequestContext, key_prefix: str) -> Any:
        """Cancel the running work of an operation or step. Each piece of work stops at its next boundary."""

    @cast('6.11')
    def report_again(self, ctxt: RequestContext) -> Any:
        """Make the host's next report a call that is answered."""

    @cast('6.11')
    def set_host_enabled(self, ctxt: RequestContext, enabled: bool) -> Any:
        """Update in Placement whether the host takes servers, as its service record says."""

    @call('6.13')
    def set_device_disabled(self, ctxt: RequestContext, address: str, reason: str | None) -> Any:
        """Disable a device of the host, or enable it if ``reason`` is None."""

    @call('6.13')
    def set_mdev_type(self, ctxt: RequestContext, address: str, mdev_type: str) -> Any:
        """Set the type of the mediated devices of the card at an address."""

    @call('6.11')
    def describe_host(self, ctxt: RequestContext) -> Any:
        """Return the host's domains with their devices, its server directories and its missing devices."""

    @call('6.11')
    def get_host_uptime(self, ctxt: RequestContext) -> Any:
        """Return the output of the uptime command on the host, or None if the driver can't provide it."""

    @cast('6.11')
    def external_instance_event(self, ctxt: RequestContext, instances: list[Instance], events: list[Any]) -> Any:
        """Deliver events of other services to the threads that wait for them."""


class Compute(
    LifeCalls,
    PowerCalls,
    Images,
    MoveCalls,
    LiveMigrationCalls,
    Interfaces,
    VolumeCalls,
    VolumeSnapshotCalls,
    Questions,
    ServiceCalls,
):
    """All RPC methods of a compute service, collected from one class per subject."""

    topic = 'compute'
    version = '6.13'

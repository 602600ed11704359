"""The RPC methods that compute services answer.

Most names of methods are Nova's. Nova's hosts send casts to each other. In Kilonova a conductor calls one host after
the other and waits for the replies, so these methods are long calls. A method with many arguments gets them as the
fields of one object (``objects.orders``). ``key`` is the step key of the operation for which the conductor calls:
'<operation uuid>/<position>.<step name>/<attempt>'. Hosts recognise repeated calls by the step key.
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
        """Undo ``build_and_run_instance``: delete the new guest, and release the claim.

        The call is safe even if the build never ran or was already undone.
        """

    @step_call('6.13')
    def rebuild_instance(self, ctxt: RequestContext, order: RebuildOrder) -> Any:
        """Create the server's disks again from the order's image. The guest of a stopped server stays off."""

    @step_call('6.13')
    def stop_to_reimage(self, ctxt: RequestContext, order: RebuildOrder) -> Any:
        """Stop the guest and disconnect its boot volume from the host, so that the volume can get new content."""

    @step_call('6.13')
    def undo_stop_to_reimage(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Undo ``stop_to_reimage``: start the guest again if the server's state says that it should run."""

    @step_call('6.11')
    def terminate_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Delete the server's guest and files on the host, and release its devices and its claim."""

    @step_call('6.11')
    def soft_delete_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Power the guest off and write the state of a soft-deleted server. The server keeps its disks and devices."""

    @step_call('6.11')
    def restore_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Start the guest of a soft-deleted server with the devices that it kept."""


class PowerCalls(RpcInterface):
    """Methods that start, stop and pause a guest on its host."""

    @step_call('6.13')
    def resume_guest(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Start a guest that was running when its host went down.

        Returns a dict with ``is_running``, which says whether the guest runs, and ``power_state``. If the server was
        changed during the call, ``is_running`` is False and ``power_state`` is missing.
        """

    @step_call('6.11')
    def stop_instance(self, ctxt: RequestContext, instance: Instance, clean_shutdown: bool) -> Any:
        """Shut the guest down. Cut its power if ``clean_shutdown`` is False or the guest does not shut down in time."""

    @step_call('6.11')
    def start_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Start the guest with the devices that are claimed for its server."""

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
        """Save the guest's memory and stop the guest. The guest's devices stay claimed for the server."""

    @step_call('6.13')
    def resume_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Restore the guest from its saved memory, with the devices that are claimed for its server."""

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
        """Set the administrator's password in the guest. ``sealed`` is the encrypted password (see ``sealing``)."""


class Images(RpcInterface):
    """Methods that make an image of a server, and that shelve and unshelve servers."""

    @step_call('6.11')
    def snapshot_instance(self, ctxt: RequestContext, instance: Instance, image_id: str) -> Any:
        """Upload the server's root disk as the data of image ``image_id``, and write the server's new state."""

    @step_call('6.11')
    def undo_snapshot_instance(self, ctxt: RequestContext, instance: Instance, image_id: str) -> Any:
        """Undo ``snapshot_instance`` or ``backup_instance``: delete the temporary copy of the root disk, if it exists.

        The host made this copy for the upload.
        """

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
        """Delete the guest and files of a shelved server on the host, and release its devices and its claim."""

    @step_call('6.13')
    def undo_shelve_instance(self, ctxt: RequestContext, instance: Instance, image_id: str | None) -> Any:
        """Undo ``shelve_instance``: start the guest again if it should run.

        The temporary copy of the root disk that was made for the upload is deleted.
        """

    @step_call('6.13')
    def unshelve_instance(self, ctxt: RequestContext, order: UnshelveOrder) -> Any:
        """Claim resources for a shelved server, and build its guest from the image that the order names."""

    @step_call('6.13')
    def undo_unshelve_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Undo ``unshelve_instance``: delete the new guest and its files, and release the claim.

        The call is safe even if the unshelve was never begun or was already undone.
        """

    @step_call('6.13')
    def start_shelved_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Start the guest of a shelved server that is still on this host."""

    @step_call('6.13')
    def undo_start_shelved_instance(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Undo ``start_shelved_instance``: power the guest off if its server is still shelved."""


class MoveCalls(RpcInterface):
    """Methods that move a stopped server to another host, or build a server on another host after its host was lost.

    A move has three steps: prep_resize, resize_instance and finish_resize. For each step there is a method that undoes
    it.
    """

    @step_call('6.11')
    def prep_resize(self, ctxt: RequestContext, order: PrepResizeOrder) -> Any:
        """Claim resources for the new flavor at the destination.

        Returns a dict. Its key ``disk`` is a MoveOffer (``virt.parts.moves``): a dict that tells the source host to
        which address and directory it copies the disks. Raises HostRejected if the host can't take the server.
        """

    @step_call('6.11')
    def undo_prep_resize(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Undo ``prep_resize`` at the destination: release the claim, and delete the parts of the disk that arrived."""

    @step_call('6.11')
    def resize_instance(self, ctxt: RequestContext, order: ResizeOrder) -> Any:
        """Stop the guest at the source, and copy its disks to the destination.

        Returns a DiskInfo: a dict with the names of the copied disks. The conductor passes it to ``finish_resize`` as
        the order's field ``disk_info``.
        """

    @step_call('6.11')
    def undo_resize_instance(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Undo ``resize_instance`` at the source: restore the server with its disk, devices and power state."""

    @step_call('6.11')
    def finish_resize(self, ctxt: RequestContext, order: FinishResizeOrder) -> Any:
        """Create the guest at the destination with the new flavor, and start the guest if it ran before the move."""

    @step_call('6.11')
    def undo_finish_resize(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Undo ``finish_resize`` at the destination: delete the guest and its copied disks."""

    @step_call('6.11')
    def confirm_resize(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Delete the files of a server that remained on the source host after its move, and free its old devices."""

    @step_call('6.11')
    def check_revert(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Check, without a change, that the source can take the server back.

        Raises HostRejected if the source can't take the server back.
        """

    @step_call('6.11')
    def revert_resize(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Delete the new guest, the copied disks and the new claims at the destination."""

    @step_call('6.11')
    def finish_revert_resize(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Restore the server on the source host, with the disks that remained there and the old flavor and devices."""

    @step_call('6.13')
    def evacuate_instance(self, ctxt: RequestContext, order: EvacuateOrder) -> Any:
        """Build a server on this host after its previous host was lost."""

    @step_call('6.13')
    def undo_evacuate_instance(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Undo ``evacuate_instance``: delete the new guest, release the claim, and write the old host to the database.

        The call is safe even if this host has claimed nothing for the server.
        """

    @step_call('6.13')
    def clean_evacuated(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Delete the guest, files and devices that the old host still has of an evacuated server.

        The old host is called when it can be reached again.
        """


class LiveMigrationCalls(RpcInterface):
    """Methods that move a guest to another host while it runs."""

    @step_call('6.13')
    def check_can_live_migrate_source(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Check that the guest runs, and return a description of the guest for the check on the destination.

        The description is a LiveGuest (``virt.parts.live_migrations``): a dict with the guest's CPU model, machine
        type, disks and volumes, for example.
        """

    @step_call('6.13')
    def check_can_live_migrate_destination(self, ctxt: RequestContext, order: LiveMigrationCheckOrder) -> Any:
        """Check that this host, the destination, can run a guest of another host, and claim resources for the guest.

        Raises HostRejected if this host can't take the guest.
        """

    @step_call('6.13')
    def pre_live_migration(self, ctxt: RequestContext, order: LiveMigrationOrder) -> Any:
        """Prepare disks, mediated devices and volumes at the destination."""

    @step_call('6.13')
    def live_migration(self, ctxt: RequestContext, order: LiveMigrationOrder) -> Any:
        """Migrate the guest from the source to the destination."""

    @step_call('6.13')
    def post_live_migration_at_destination(self, ctxt: RequestContext, instance: Instance, migration: Migration) -> Any:
        """Write to the database that the server is on the destination, after its guest has arrived."""

    @step_call('6.13')
    def post_live_migration(self, ctxt: RequestContext, order: LiveMigrationOrder) -> Any:
        """Delete the domain, disks, volume connections and claim on the source after the guest has left the source."""

    @call('6.13')
    def live_migration_force_complete(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Force the running migration to complete. Raises MigrationError if the guest is not being migrated."""

    @step_call('6.13')
    def undo_live_migration(self, ctxt: RequestContext, order: LiveMigrationUndo) -> Any:
        """Abort the live migration of a guest at the source.

        Returns {'active': True if the source still has the guest, 'switched': True if the migration was complete before
        it could be aborted, so that the guest runs at the destination}.
        """

    @step_call('6.13')
    def rollback_live_migration_at_destination(self, ctxt: RequestContext, order: LiveMigrationUndo) -> Any:
        """Delete the incoming guest, its disks and its claim on the destination.

        If the guest has arrived completely, nothing is deleted. Returns a dict whose key ``arrived`` says whether the
        guest has arrived.
        """


class Interfaces(RpcInterface):
    """Methods that attach network interfaces to an existing guest and detach them, with methods that undo this.

    ``vif`` is the interface in the form in which the info cache stores it. The interface of an SR-IOV port is a
    function of a PCI device. The host claims this function (``claim_function``) before the interface is attached, and
    frees it (``free_function``) after the guest has released the interface. ``request`` is the InstancePCIRequest for
    the function, and ``request_id`` its request_id.
    """

    @step_call('6.13')
    def claim_function(self, ctxt: RequestContext, instance: Instance, request: InstancePCIRequest) -> Any:
        """Claim a function of a PCI device for an SR-IOV port of the server.

        Returns {'profile': {…}}, the part of the port's binding:profile that names the function, with pci_slot and
        physical_network, for example. Raises HostRejected if no function is free.
        """

    @step_call('6.13')
    def undo_claim_function(self, ctxt: RequestContext, instance: Instance, request_id: str) -> Any:
        """Release the PCI function that ``claim_function`` claimed for this request. Do nothing if it claimed none."""

    @step_call('6.13')
    def free_function(self, ctxt: RequestContext, instance: Instance, request_id: str) -> Any:
        """Release the PCI function that is claimed for the PCI request ``request_id`` of an SR-IOV port.

        Called when the interface is detached from the guest and the port is unbound.
        """

    @step_call('6.13')
    def unplug_functions(self, ctxt: RequestContext, instance: Instance, vifs: list[dict[str, Any]]) -> Any:
        """Detach the interfaces of SR-IOV ports from the guest on the source, before a live migration."""

    @step_call('6.13')
    def undo_unplug_functions(self, ctxt: RequestContext, instance: Instance, vifs: list[dict[str, Any]]) -> Any:
        """Undo ``unplug_functions``: attach the interfaces to the guest again."""

    @step_call('6.13')
    def plug_functions(self, ctxt: RequestContext, instance: Instance, vifs: list[dict[str, Any]]) -> Any:
        """Attach the interfaces of SR-IOV ports to the guest on the destination, after a live migration.

        Each interface gets a function of a PCI device that is claimed on the destination.
        """

    @step_call('6.13')
    def attach_interface(self, ctxt: RequestContext, instance: Instance, vif: dict[str, Any]) -> Any:
        """Attach a network interface to the guest."""

    @step_call('6.13')
    def undo_attach_interface(self, ctxt: RequestContext, instance: Instance, vif: dict[str, Any]) -> Any:
        """Undo ``attach_interface``: detach the interface from the guest, if the guest has it."""

    @step_call('6.13')
    def detach_interface(self, ctxt: RequestContext, instance: Instance, vif: dict[str, Any]) -> Any:
        """Detach a network interface from the guest. Returns after the guest has released the interface."""

    @step_call('6.13')
    def undo_detach_interface(self, ctxt: RequestContext, instance: Instance, vif: dict[str, Any]) -> Any:
        """Undo ``detach_interface``: attach the interface again, if the guest has released it."""


class VolumeCalls(RpcInterface):
    """RPC methods of a host that attach, detach or replace volumes of an existing guest, or undo one of these changes.

    If a method has the argument ``volume_id``, ``instance.volumes`` contains this volume, and the caller has created an
    attachment of the volume to this host in Cinder.
    """

    @call('6.13')
    def prepare_volumes(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Return the connector of this host, and device names for volumes, before volumes are attached to the host.

        The reply is {'connector': {…}, 'devices': ['/dev/vdb']}. The connector is a dict that describes the host to the
        volume service. ``devices`` has one device name for each volume of the server that has no name yet, in the order
        of these volumes.
        """

    @step_call('6.13')
    def attach_volume(self, ctxt: RequestContext, instance: Instance, volume_id: str) -> Any:
        """Connect the volume to the host and attach it to the guest."""

    @step_call('6.13')
    def undo_attach_volume(self, ctxt: RequestContext, instance: Instance, volume_id: str) -> Any:
        """Undo ``attach_volume``: detach the volume from the guest and disconnect it from the host.

        The call is safe even if the guest never got the volume.
        """

    @step_call('6.13')
    def detach_volume(self, ctxt: RequestContext, instance: Instance, volume_id: str) -> Any:
        """Detach the volume from the guest, and disconnect the volume from the host."""

    @step_call('6.13')
    def undo_detach_volume(self, ctxt: RequestContext, instance: Instance, volume_id: str) -> Any:
        """Undo ``detach_volume``: attach the volume again, if the guest has released it."""

    @step_call('6.13')
    def copy_volume(self, ctxt: RequestContext, instance: Instance, copy: dict[str, Any]) -> Any:
        """Copy a volume of the server to a new volume while the guest uses the old one (block copy).

        After this method has returned, each write of the guest goes to the two volumes, so their content stays equal.
        ``copy`` is a dict: ``of`` is the old volume's id, and the other keys are columns of block_device_mapping with
        the new volume's values (see ``AttachedVolume.successor``).
        """

    @step_call('6.13')
    def undo_copy_volume(self, ctxt: RequestContext, instance: Instance, copy: dict[str, Any]) -> Any:
        """Undo ``copy_volume``: end the block copy and disconnect the new volume. ``copy`` is as in ``copy_volume``.

        Does nothing if the volume is not being copied.
        """

    @step_call('6.13')
    def swap_volume(self, ctxt: RequestContext, instance: Instance, copy: dict[str, Any]) -> Any:
        """Switch the guest from the old volume to the new volume, after ``copy_volume`` (pivot).

        ``copy`` is as in ``copy_volume``. Raises NotSwapped if the guest can't be switched.
        """

    @step_call('6.13')
    def undo_swap_volume(self, ctxt: RequestContext, instance: Instance, copy: dict[str, Any]) -> Any:
        """Switch the guest to the new volume, if this is still possible. A volume swap is completed, not undone.

        The old and the new volume have the same content. ``copy`` is as in ``copy_volume``. Returns {'swapped': True if
        the guest uses the new volume}.
        """

    @step_call('6.13')
    def extend_volume(self, ctxt: RequestContext, instance: Instance, volume_id: str) -> Any:
        """Make the guest see the volume's new size."""


class VolumeSnapshotCalls(RpcInterface):
    """Methods for snapshots of volumes that are files on a network share, such as NFS.

    Cinder calls the API os-assisted-volume-snapshots when it creates or deletes such a snapshot of an attached volume.
    The host then changes the files that the guest uses.
    """

    @step_call('6.13')
    def snapshot_volume(self, ctxt: RequestContext, instance: Instance, files: dict[str, str]) -> Any:
        """Make the guest write to a new file of the volume from now on.

        ``files`` is a dict. It has ``volume_id``, ``name`` and ``format`` of the file to which the guest writes at
        present, and ``new``, the name of the new file. The new file has the format qcow2.
        """

    @step_call('6.13')
    def undo_snapshot_volume(self, ctxt: RequestContext, instance: Instance, files: dict[str, str]) -> Any:
        """Return {'taken': True if the guest writes to the snapshot's new file}. Changes nothing.

        ``snapshot_volume`` is not undone, because the new file may have data that are in no other file. ``files`` is as
        in ``snapshot_volume``.
        """

    @step_call('6.13')
    def withdraw_volume_snapshot(self, ctxt: RequestContext, instance: Instance, files: dict[str, str]) -> Any:
        """Withdraw a snapshot: commit the new file into the file from before it, to which the guest then writes again.

        ``files`` is as in ``snapshot_volume``: ``new`` is the new file, and ``name`` is the file from before the
        snapshot.
        """

    @step_call('6.13')
    def merge_volume(self, ctxt: RequestContext, instance: Instance, merge: dict[str, Any]) -> Any:
        """Merge files of a volume when a snapshot of the volume is deleted.

        ``merge`` is a dict with the keys ``volume_id``, ``file`` and ``into``. If ``into`` is a file name, ``file`` is
        committed into its backing file ``into`` (block commit). If ``into`` is None, backing files are pulled into the
        active file, to which the guest writes (block pull): the files between the active file and ``file``, or all
        backing files if ``file`` is None.
        """

    @step_call('6.13')
    def undo_merge_volume(self, ctxt: RequestContext, instance: Instance, merge: dict[str, Any]) -> Any:
        """Stop a merge that is still running. Returns a dict whose key ``merged`` says whether the files are merged."""


class Questions(RpcInterface):
    """Queries about a guest, which only the guest's host can answer. The queries change nothing."""

    @call('6.11')
    def get_diagnostics(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Return measurements of a guest, such as CPU time, as a dict with names that depend on the driver."""

    @call('6.11')
    def get_instance_diagnostics(self, ctxt: RequestContext, instance: Instance) -> Any:
        """Return measurements of a guest, such as CPU time, under names that are the same for all drivers."""

    @call('6.11')
    def get_console_output(self, ctxt: RequestContext, instance: Instance, tail_length: int | None) -> Any:
        """Return the last ``tail_length`` lines that a guest wrote to its serial console.

        If ``tail_length`` is None, all stored lines are returned.
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
    """Methods that concern a whole compute service or host, not one server."""

    @cast('6.11')
    def cancel(self, ctxt: RequestContext, key_prefix: str) -> Any:
        """Cancel the running calls of one operation, or of one of its steps.

        The step keys of these calls begin with ``key_prefix``. A call stops when it next checks whether it is
        cancelled.
        """

    @cast('6.11')
    def report_again(self, ctxt: RequestContext) -> Any:
        """Make the host send its next heartbeat as an RPC call, which a conductor answers.

        A conductor sends this message if the host counted as down or has no service record. After the answer, the host
        checks its servers, because it may have missed messages.
        """

    @cast('6.11')
    def set_host_enabled(self, ctxt: RequestContext, enabled: bool) -> Any:
        """Write to Placement whether the host is enabled to take new servers."""

    @call('6.13')
    def set_device_disabled(self, ctxt: RequestContext, address: str, reason: str | None) -> Any:
        """Disable the device at a PCI address of the host with a reason, or enable it if ``reason`` is None."""

    @call('6.13')
    def set_mdev_type(self, ctxt: RequestContext, address: str, mdev_type: str) -> Any:
        """Set the type of the mediated devices that the card at a PCI address offers."""

    @call('6.11')
    def describe_host(self, ctxt: RequestContext) -> Any:
        """Return a dict that describes the host, for ``kilonova-manage audit``.

        It has the domains with their devices, the servers' directories, and ``missing_devices``: devices that servers
        hold according to the database but that the host does not have.
        """

    @call('6.11')
    def get_host_uptime(self, ctxt: RequestContext) -> Any:
        """Return the output of the uptime command on the host, or None if the driver can't provide it."""

    @cast('6.11')
    def external_instance_event(self, ctxt: RequestContext, instances: list[Instance], events: list[Any]) -> Any:
        """Deliver events of other services, such as network-vif-plugged of Neutron, to the host.

        In kilonova-compute, the threads that wait for these events of these servers continue.
        """


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
    """The interface of compute services, with the methods of all base classes, one for each subject."""

    topic = 'compute'
    version = '6.13'

"""What computes answer. Each call of a flow carries the key of its step: '<operation>/<step>/<attempt>'.

The names are the field's; where the field casts from host to host, here the
conductor's flow calls each host in turn, so they are long calls. A method has the arguments that hosts use; where that
are many they are an order (``objects.orders``).
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
from kilonova.rpc.interface import Interface, call, cast, long_call


class Life(Interface):
    """A server is made, made anew and ended."""

    @long_call('6.11')
    def build_and_run_instance(self, ctxt: RequestContext, order: BuildOrder, key: str) -> Any: ...

    @long_call('6.11')
    def undo_build(self, ctxt: RequestContext, instance: Instance, key: str) -> Any: ...

    @long_call('6.13')
    def rebuild_instance(self, ctxt: RequestContext, order: RebuildOrder, key: str) -> Any: ...

    @long_call('6.13')
    def stop_to_reimage(self, ctxt: RequestContext, order: RebuildOrder, key: str) -> Any: ...

    @long_call('6.13')
    def undo_stop_to_reimage(self, ctxt: RequestContext, instance: Instance, key: str) -> Any: ...

    @long_call('6.11')
    def terminate_instance(self, ctxt: RequestContext, instance: Instance, key: str) -> Any: ...

    @long_call('6.11')
    def soft_delete_instance(self, ctxt: RequestContext, instance: Instance, key: str) -> Any: ...

    @long_call('6.11')
    def restore_instance(self, ctxt: RequestContext, instance: Instance, key: str) -> Any: ...


class Power(Interface):
    """A guest starts, runs and stops where it is."""

    @long_call('6.13')
    def resume_guest(self, ctxt: RequestContext, instance: Instance, key: str) -> Any:
        """Start a guest that ran when its host went down: {is_running: whether it runs (False: the server changed
        meanwhile), power_state}."""

    @long_call('6.11')
    def stop_instance(self, ctxt: RequestContext, instance: Instance, clean_shutdown: bool, key: str) -> Any: ...

    @long_call('6.11')
    def start_instance(self, ctxt: RequestContext, instance: Instance, key: str) -> Any: ...

    @long_call('6.11')
    def reboot_instance(self, ctxt: RequestContext, instance: Instance, reboot_type: str, key: str) -> Any: ...

    @long_call('6.13')
    def pause_instance(self, ctxt: RequestContext, instance: Instance, key: str) -> Any: ...

    @long_call('6.13')
    def unpause_instance(self, ctxt: RequestContext, instance: Instance, key: str) -> Any: ...

    @long_call('6.13')
    def suspend_instance(self, ctxt: RequestContext, instance: Instance, key: str) -> Any: ...

    @long_call('6.13')
    def resume_instance(self, ctxt: RequestContext, instance: Instance, key: str) -> Any: ...

    @long_call('6.13')
    def trigger_crash_dump(self, ctxt: RequestContext, instance: Instance, key: str) -> Any: ...

    @long_call('6.13')
    def rescue_instance(self, ctxt: RequestContext, order: RescueOrder, key: str) -> Any: ...

    @long_call('6.13')
    def unrescue_instance(self, ctxt: RequestContext, instance: Instance, key: str) -> Any: ...

    @long_call('6.13')
    def set_admin_password(self, ctxt: RequestContext, instance: Instance, sealed: str, key: str) -> Any: ...


class Images(Interface):
    """A server becomes an image, and a shelved one comes back from it."""

    @long_call('6.11')
    def snapshot_instance(self, ctxt: RequestContext, instance: Instance, image_id: str, key: str) -> Any: ...

    @long_call('6.11')
    def undo_snapshot_instance(self, ctxt: RequestContext, instance: Instance, image_id: str, key: str) -> Any: ...

    @long_call('6.13')
    def backup_instance(self, ctxt: RequestContext, instance: Instance, image_id: str, key: str) -> Any: ...

    @long_call('6.13')
    def shelve_instance(self, ctxt: RequestContext, instance: Instance, image_id: str | None, key: str) -> Any: ...

    @long_call('6.13')
    def shelve_offload_instance(self, ctxt: RequestContext, instance: Instance, key: str) -> Any: ...

    @long_call('6.13')
    def undo_shelve_instance(self, ctxt: RequestContext, instance: Instance, image_id: str | None, key: str) -> Any: ...

    @long_call('6.13')
    def unshelve_instance(self, ctxt: RequestContext, order: UnshelveOrder, key: str) -> Any: ...

    @long_call('6.13')
    def undo_unshelve_instance(self, ctxt: RequestContext, instance: Instance, key: str) -> Any: ...

    @long_call('6.13')
    def start_shelved_instance(self, ctxt: RequestContext, instance: Instance, key: str) -> Any: ...

    @long_call('6.13')
    def undo_start_shelved_instance(self, ctxt: RequestContext, instance: Instance, key: str) -> Any: ...


class Moves(Interface):
    """A server goes to another host, cold, in three steps or after its host was lost; each step has its undo."""

    @long_call('6.11')
    def prep_resize(self, ctxt: RequestContext, order: PrepResizeOrder, key: str) -> Any: ...

    @long_call('6.11')
    def undo_prep_resize(self, ctxt: RequestContext, instance: Instance, migration: Migration, key: str) -> Any: ...

    @long_call('6.11')
    def resize_instance(self, ctxt: RequestContext, order: ResizeOrder, key: str) -> Any: ...

    @long_call('6.11')
    def undo_resize_instance(self, ctxt: RequestContext, instance: Instance, migration: Migration, key: str) -> Any: ...

    @long_call('6.11')
    def finish_resize(self, ctxt: RequestContext, order: FinishResizeOrder, key: str) -> Any: ...

    @long_call('6.11')
    def undo_finish_resize(self, ctxt: RequestContext, instance: Instance, migration: Migration, key: str) -> Any: ...

    @long_call('6.11')
    def confirm_resize(self, ctxt: RequestContext, instance: Instance, migration: Migration, key: str) -> Any: ...

    @long_call('6.11')
    def check_revert(self, ctxt: RequestContext, instance: Instance, migration: Migration, key: str) -> Any: ...

    @long_call('6.11')
    def revert_resize(self, ctxt: RequestContext, instance: Instance, migration: Migration, key: str) -> Any: ...

    @long_call('6.11')
    def finish_revert_resize(self, ctxt: RequestContext, instance: Instance, migration: Migration, key: str) -> Any: ...

    @long_call('6.13')
    def evacuate_instance(self, ctxt: RequestContext, order: EvacuateOrder, key: str) -> Any: ...

    @long_call('6.13')
    def undo_evacuate_instance(self, ctxt: RequestContext, instance: Instance, migration: Migration,
                               key: str) -> Any: ...

    @long_call('6.13')
    def clean_evacuated(self, ctxt: RequestContext, instance: Instance, migration: Migration, key: str) -> Any: ...


class LiveMigrations(Interface):
    """A guest goes to another host while it runs."""

    @long_call('6.13')
    def check_can_live_migrate_source(self, ctxt: RequestContext, instance: Instance, key: str) -> Any: ...

    @long_call('6.13')
    def check_can_live_migrate_destination(self, ctxt: RequestContext, order: LiveMigrationCheckOrder,
                                           key: str) -> Any: ...

    @long_call('6.13')
    def pre_live_migration(self, ctxt: RequestContext, order: LiveMigrationOrder, key: str) -> Any: ...

    @long_call('6.13')
    def live_migration(self, ctxt: RequestContext, order: LiveMigrationOrder, key: str) -> Any: ...

    @long_call('6.13')
    def post_live_migration_at_destination(self, ctxt: RequestContext, instance: Instance, migration: Migration,
                                           key: str) -> Any: ...

    @long_call('6.13')
    def post_live_migration(self, ctxt: RequestContext, order: LiveMigrationOrder, key: str) -> Any: ...

    @call('6.13')
    def live_migration_force_complete(self, ctxt: RequestContext, instance: Instance) -> Any: ...

    @long_call('6.13')
    def undo_live_migration(self, ctxt: RequestContext, order: LiveMigrationUndo, key: str) -> Any: ...

    @long_call('6.13')
    def rollback_live_migration_at_destination(self, ctxt: RequestContext, order: LiveMigrationUndo,
                                               key: str) -> Any: ...


class Interfaces(Interface):
    """A guest that is there gets an interface (``vif``: as the info cache has it) or gives one up; each with its
    undo. Its host claims the function of a PCI device that an interface is before it gets that (``request``), and has
    it back after it gave that up."""

    @long_call('6.13')
    def claim_function(self, ctxt: RequestContext, instance: Instance, request: InstancePCIRequest, key: str) -> Any:
        """{'profile': what the binding profile of the port says of it}."""

    @long_call('6.13')
    def undo_claim_function(self, ctxt: RequestContext, instance: Instance, request_id: str, key: str) -> Any: ...

    @long_call('6.13')
    def free_function(self, ctxt: RequestContext, instance: Instance, request_id: str, key: str) -> Any: ...

    @long_call('6.13')
    def unplug_functions(self, ctxt: RequestContext, instance: Instance, vifs: list[dict[str, Any]],
                         key: str) -> Any:
        """They leave the guest before it is migrated while it runs."""

    @long_call('6.13')
    def undo_unplug_functions(self, ctxt: RequestContext, instance: Instance, vifs: list[dict[str, Any]],
                              key: str) -> Any: ...

    @long_call('6.13')
    def plug_functions(self, ctxt: RequestContext, instance: Instance, vifs: list[dict[str, Any]],
                       key: str) -> Any:
        """Those of the destination come to it."""

    @long_call('6.13')
    def attach_interface(self, ctxt: RequestContext, instance: Instance, vif: dict[str, Any], key: str) -> Any: ...

    @long_call('6.13')
    def undo_attach_interface(self, ctxt: RequestContext, instance: Instance, vif: dict[str, Any], key: str) -> Any: ...

    @long_call('6.13')
    def detach_interface(self, ctxt: RequestContext, instance: Instance, vif: dict[str, Any], key: str) -> Any: ...

    @long_call('6.13')
    def undo_detach_interface(self, ctxt: RequestContext, instance: Instance, vif: dict[str, Any], key: str) -> Any: ...


class Volumes(Interface):
    """A guest that is there gets a volume, or gives one up, by its id: ``instance.volumes`` has it, attached to this
    host; each with its undo."""

    @call('6.13')
    def prepare_volumes(self, ctxt: RequestContext, instance: Instance) -> Any:
        """What this host must have said of it to the volume service before volumes are attached to it, and the names
        that those of the server get which have none, in their order: {connector: {…}, devices: ['/dev/vdb']}."""

    @long_call('6.13')
    def attach_volume(self, ctxt: RequestContext, instance: Instance, volume_id: str, key: str) -> Any: ...

    @long_call('6.13')
    def undo_attach_volume(self, ctxt: RequestContext, instance: Instance, volume_id: str, key: str) -> Any: ...

    @long_call('6.13')
    def detach_volume(self, ctxt: RequestContext, instance: Instance, volume_id: str, key: str) -> Any: ...

    @long_call('6.13')
    def undo_detach_volume(self, ctxt: RequestContext, instance: Instance, volume_id: str, key: str) -> Any: ...

    @long_call('6.13')
    def copy_volume(self, ctxt: RequestContext, instance: Instance, copy: dict[str, Any], key: str) -> Any:
        """A volume of the server's is copied to another one while the guest uses it: both are the same from when this
        returns. ``copy``: columns of the second's (``AttachedVolume.successor``); ``of``: the first's id."""

    @long_call('6.13')
    def undo_copy_volume(self, ctxt: RequestContext, instance: Instance, copy: dict[str, Any], key: str) -> Any: ...

    @long_call('6.13')
    def swap_volume(self, ctxt: RequestContext, instance: Instance, copy: dict[str, Any], key: str) -> Any:
        """The guest has the copy in place of the volume."""

    @long_call('6.13')
    def undo_swap_volume(self, ctxt: RequestContext, instance: Instance, copy: dict[str, Any], key: str) -> Any:
        """The same, if the guest still can: {swapped: whether it has the copy}."""

    @long_call('6.13')
    def extend_volume(self, ctxt: RequestContext, instance: Instance, volume_id: str, key: str) -> Any: ...


class VolumeSnapshots(Interface):
    """A snapshot of a volume that is a file of a share, which the volume service has begun."""

    @long_call('6.13')
    def snapshot_volume(self, ctxt: RequestContext, instance: Instance, files: dict[str, str], key: str) -> Any:
        """The guest writes to another file of ``volume_id`` from now on: to ``new``, a qcow2, no more to the one of
        that ``name`` and ``format``."""

    @long_call('6.13')
    def undo_snapshot_volume(self, ctxt: RequestContext, instance: Instance, files: dict[str, str], key: str) -> Any:
        """{taken: whether it does}."""

    @long_call('6.13')
    def withdraw_volume_snapshot(self, ctxt: RequestContext, instance: Instance, files: dict[str, str],
                                 key: str) -> Any:
        """It writes to the first file again, which has all that it wrote to the other."""

    @long_call('6.13')
    def merge_volume(self, ctxt: RequestContext, instance: Instance, merge: dict[str, Any], key: str) -> Any:
        """Two files behind ``volume_id`` become one: ``file`` and ``into`` as ``Merge`` of ``virt.parts`` has them."""

    @long_call('6.13')
    def undo_merge_volume(self, ctxt: RequestContext, instance: Instance, merge: dict[str, Any], key: str) -> Any:
        """They don't any more: {merged: whether they have}."""


class Questions(Interface):
    """What only the host of a guest can answer."""

    @call('6.11')
    def get_diagnostics(self, ctxt: RequestContext, instance: Instance) -> Any: ...

    @call('6.11')
    def get_instance_diagnostics(self, ctxt: RequestContext, instance: Instance) -> Any: ...

    @call('6.11')
    def get_console_output(self, ctxt: RequestContext, instance: Instance, tail_length: int | None) -> Any: ...

    @call('6.13')
    def get_vnc_console(self, ctxt: RequestContext, instance: Instance, console_type: str) -> Any: ...

    @call('6.13')
    def get_spice_console(self, ctxt: RequestContext, instance: Instance, console_type: str) -> Any: ...

    @call('6.13')
    def get_serial_console(self, ctxt: RequestContext, instance: Instance, console_type: str) -> Any: ...

    @call('6.13')
    def validate_console_port(self, ctxt: RequestContext, instance: Instance, console_type: str,
                              target: str) -> Any: ...


class Service(Interface):
    """What the service of a host itself is asked."""

    @cast('6.11')
    def cancel(self, ctxt: RequestContext, key_prefix: str) -> Any: ...

    @cast('6.11')
    def report_again(self, ctxt: RequestContext) -> Any: ...

    @cast('6.11')
    def set_host_enabled(self, ctxt: RequestContext, enabled: bool) -> Any: ...

    @call('6.13')
    def set_device_disabled(self, ctxt: RequestContext, address: str, reason: str | None) -> Any: ...

    @call('6.13')
    def set_mdev_type(self, ctxt: RequestContext, address: str, mdev_type: str) -> Any: ...

    @call('6.11')
    def describe_host(self, ctxt: RequestContext) -> Any: ...

    @call('6.11')
    def get_host_uptime(self, ctxt: RequestContext) -> Any: ...

    @cast('6.11')
    def external_instance_event(self, ctxt: RequestContext, instances: list[Instance], events: list[Any]) -> Any: ...


class Compute(Life, Power, Images, Moves, LiveMigrations, Interfaces, Volumes, VolumeSnapshots, Questions,
              Service):
    """Everything that a host is asked, by subjects."""

    topic = 'compute'
    version = '6.13'

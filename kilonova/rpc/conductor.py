"""What conductors answer: objects' remote calls, hosts' claims and saves (no namespace) and compute tasks.

Methods with the field's names keep its arguments and versions (rpc-objects-db.md §1 'Conductor RPC'). Ours come after
its last version. Compute tasks only wake somebody: the operation row is what counts, so a lost cast loses nothing.
"""
from __future__ import annotations

from typing import Any

from kilonova.rpc.interface import Interface, call, cast

# Bodiless on purpose: the signatures are the declaration.
# ruff: noqa: D102


class Conductor(Interface):
    """Objects' remote calls, and the three calls of a host that works on an operation."""

    topic = 'conductor'
    version = '3.1'

    @call('3.0')
    def object_class_action_versions(self, ctxt, objname, objmethod, object_versions, args, kwargs) -> Any: ...

    @call('3.0')
    def object_action(self, ctxt, objinst, objmethod, args, kwargs) -> Any: ...

    @call('3.0')
    def object_backport_versions(self, ctxt, objinst, object_versions) -> Any: ...

    @call('3.1')
    def check_key(self, ctxt, key) -> Any: ...

    @call('3.1')
    def claim_instance(self, ctxt, claim) -> Any: ...

    @call('3.1')
    def save_instance(self, ctxt, save) -> Any: ...


class ComputeTask(Interface):
    """The field's compute tasks."""

    topic = 'conductor'
    namespace = 'compute_task'
    version = '1.27'

    @cast('1.17', operations='1.27')
    def schedule_and_build_instances(self, ctxt, build_requests, request_specs, image, admin_password, injected_files,
                                     requested_networks, block_device_mapping, tags=None, operations=None) -> Any: ...

    @cast('1.4', objects_since={'instance': '1.6', 'flavor': '1.10'}, clean_shutdown='1.11', request_spec='1.13',
          host_list='1.20', operation='1.27')
    def migrate_server(self, ctxt, instance, scheduler_hint, live, rebuild, flavor, block_migration,
                       disk_over_commit, reservations=None, clean_shutdown=True, request_spec=None,
                       host_list=None, operation=None) -> Any: ...

    @cast('1.27')
    def confirm_resize(self, ctxt, operation) -> Any: ...

    @cast('1.27')
    def revert_resize(self, ctxt, operation) -> Any: ...

    @cast('1.27')
    def terminate_instance(self, ctxt, operation) -> Any: ...

    @cast('1.27')
    def run_operation(self, ctxt, operation) -> Any: ...

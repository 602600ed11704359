"""What conductors answer: objects' remote calls, hosts' claims and saves (no namespace) and compute tasks.

Methods with the field's names keep its arguments and versions (rpc-objects-db.md §1 'Conductor RPC'). Ours come after
its last version. Compute tasks only wake somebody: the operation row is what counts, so a lost cast loses nothing.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kilonova.rpc.interface import Interface, call, cast


class Conductor(Interface):
    """Objects' remote calls, and the three calls of a host that works on an operation."""

    topic = 'conductor'
    version = '3.2'

    @call('3.0')
    def object_class_action_versions(self, ctxt: Any, objname: str, objmethod: str, object_versions: dict[str, str],
                                     args: Sequence[Any], kwargs: dict[str, Any]) -> Any: ...

    @call('3.0')
    def object_action(self, ctxt: Any, objinst: Any, objmethod: str, args: Sequence[Any],
                      kwargs: dict[str, Any]) -> Any: ...

    @call('3.0')
    def object_backport_versions(self, ctxt: Any, objinst: Any, object_versions: dict[str, str]) -> Any: ...

    @call('3.1', undo='3.2', host='3.2')
    def check_key(self, ctxt: Any, key: str, undo: bool = False, host: str | None = None) -> Any: ...

    @call('3.1')
    def claim_instance(self, ctxt: Any, claim: dict[str, Any]) -> Any: ...

    @call('3.1')
    def save_instance(self, ctxt: Any, save: dict[str, Any]) -> Any: ...


class ComputeTask(Interface):
    """The field's compute tasks."""

    topic = 'conductor'
    namespace = 'compute_task'
    version = '1.27'

    @cast('1.17', operations='1.27')
    def schedule_and_build_instances(self, ctxt: Any, build_requests: Any, request_specs: Any, image: Any,
                                     admin_password: str | None, injected_files: Any, requested_networks: Any,
                                     block_device_mapping: Any, tags: Any = None,
                                     operations: Sequence[str] | None = None) -> Any: ...

    @cast('1.4', objects_since={'instance': '1.6', 'flavor': '1.10'}, clean_shutdown='1.11', request_spec='1.13',
          host_list='1.20', operation='1.27')
    def migrate_server(self, ctxt: Any, instance: Any, scheduler_hint: Any, live: bool, rebuild: bool, flavor: Any,
                       block_migration: Any, disk_over_commit: Any, reservations: Any = None,
                       clean_shutdown: bool = True, request_spec: Any = None, host_list: Any = None,
                       operation: str | None = None) -> Any: ...

    @cast('1.27')
    def confirm_resize(self, ctxt: Any, operation: str) -> Any: ...

    @cast('1.27')
    def revert_resize(self, ctxt: Any, operation: str) -> Any: ...

    @cast('1.27')
    def terminate_instance(self, ctxt: Any, operation: str) -> Any: ...

    @cast('1.27')
    def run_operation(self, ctxt: Any, operation: str) -> Any: ...

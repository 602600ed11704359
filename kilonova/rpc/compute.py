"""What computes answer. Each call of a flow carries the key of its step: '<operation>/<step>/<attempt>'.

Names and arguments are the field's (rpc-objects-db.md §1 'Compute RPC'); where the field casts from host to host, here
the conductor's flow calls each host in turn, so they are long calls. ``key`` came with 6.6. ``sealed`` (6.8) carries
what ``admin_password`` and ``injected_files`` did (``kilonova.sealing``); nobody sends or reads these two any more.
"""
from __future__ import annotations

from typing import Any

from kilonova.objects import Flavor, Instance, Migration, RequestSpec
from kilonova.rpc.interface import Interface, call, cast, long_call


class Compute(Interface):
    """Everything that a conductor asks of a host."""

    topic = 'compute'
    version = '6.10'

    @long_call('6.0', key='6.6', sealed='6.8')
    def build_and_run_instance(self, ctxt: Any, instance: Instance, image: dict[str, Any] | None,
                               request_spec: RequestSpec | None, filter_properties: dict[str, Any] | None,
                               admin_password: str | None = None, injected_files: list[Any] | None = None,
                               requested_networks: Any = None, security_groups: Any = None,
                               block_device_mapping: Any = None, node: str | None = None, limits: Any = None,
                               host_list: list[Any] | None = None, accel_uuids: list[str] | None = None,
                               key: str | None = None, sealed: str | None = None) -> Any: ...

    @long_call('6.0', key='6.6')
    def terminate_instance(self, ctxt: Any, instance: Instance, bdms: Any, key: str | None = None) -> Any: ...

    @long_call('6.0', key='6.6')
    def stop_instance(self, ctxt: Any, instance: Instance, clean_shutdown: bool = True,
                      key: str | None = None) -> Any: ...

    @long_call('6.0', key='6.6')
    def start_instance(self, ctxt: Any, instance: Instance, key: str | None = None) -> Any: ...

    @long_call('6.0', key='6.6')
    def reboot_instance(self, ctxt: Any, instance: Instance, block_device_info: Any, reboot_type: str,
                        key: str | None = None) -> Any: ...

    @long_call('6.7')
    def soft_delete_instance(self, ctxt: Any, instance: Instance, key: str) -> Any: ...

    @long_call('6.7')
    def restore_instance(self, ctxt: Any, instance: Instance, key: str) -> Any: ...

    @long_call('6.7')
    def snapshot_instance(self, ctxt: Any, instance: Instance, image_id: str, key: str) -> Any: ...

    @long_call('6.7')
    def undo_snapshot_instance(self, ctxt: Any, instance: Instance, image_id: str, key: str) -> Any: ...

    @long_call('6.0', key='6.6')
    def prep_resize(self, ctxt: Any, image: dict[str, Any] | None, instance: Instance, flavor: Flavor,
                    request_spec: RequestSpec, filter_properties: dict[str, Any] | None, node: str | None,
                    clean_shutdown: bool, migration: Migration, host_list: list[Any] | None,
                    key: str | None = None) -> Any: ...

    @long_call('6.0', disk='6.6', key='6.6')
    def resize_instance(self, ctxt: Any, instance: Instance, image: dict[str, Any] | None, migration: Migration,
                        flavor: Flavor, clean_shutdown: bool, request_spec: RequestSpec,
                        disk: dict[str, Any] | None = None, key: str | None = None) -> Any: ...

    @long_call('6.0', key='6.6')
    def finish_resize(self, ctxt: Any, disk_info: dict[str, Any], image: dict[str, Any] | None, instance: Instance,
                      migration: Migration, request_spec: RequestSpec, key: str | None = None) -> Any: ...

    @long_call('6.0', key='6.6')
    def confirm_resize(self, ctxt: Any, instance: Instance, migration: Migration, key: str | None = None) -> Any: ...

    @long_call('6.9')
    def check_revert(self, ctxt: Any, instance: Instance, migration: Migration, key: str) -> Any: ...

    @long_call('6.0', key='6.6')
    def revert_resize(self, ctxt: Any, instance: Instance, migration: Migration, request_spec: RequestSpec | None,
                      key: str | None = None) -> Any: ...

    @long_call('6.0', key='6.6')
    def finish_revert_resize(self, ctxt: Any, instance: Instance, migration: Migration,
                             request_spec: RequestSpec | None, key: str | None = None) -> Any: ...

    @long_call('6.6')
    def undo_build(self, ctxt: Any, instance: Instance, key: str) -> Any: ...

    @long_call('6.6')
    def undo_prep_resize(self, ctxt: Any, instance: Instance, migration: Migration, key: str) -> Any: ...

    @long_call('6.6')
    def undo_resize_instance(self, ctxt: Any, instance: Instance, migration: Migration, key: str) -> Any: ...

    @long_call('6.6')
    def undo_finish_resize(self, ctxt: Any, instance: Instance, migration: Migration, key: str) -> Any: ...

    @cast('6.6')
    def cancel(self, ctxt: Any, key_prefix: str) -> Any: ...

    @cast('6.10')
    def report_again(self, ctxt: Any) -> Any: ...

    @call('6.0')
    def set_host_enabled(self, ctxt: Any, host: str, enabled: bool) -> Any: ...

    @call('6.6')
    def describe_host(self, ctxt: Any) -> Any: ...

    @call('6.7')
    def get_diagnostics(self, ctxt: Any, instance: Instance) -> Any: ...

    @call('6.7')
    def get_instance_diagnostics(self, ctxt: Any, instance: Instance) -> Any: ...

    @call('6.7')
    def get_console_output(self, ctxt: Any, instance: Instance, tail_length: int | None) -> Any: ...

    @cast('6.7')
    def external_instance_event(self, ctxt: Any, instances: list[Instance], events: list[Any]) -> Any: ...

    @call('6.7')
    def get_host_uptime(self, ctxt: Any) -> Any: ...

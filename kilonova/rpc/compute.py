"""What computes answer. Each call of a flow carries the key of its step: '<operation>/<step>/<attempt>'.

Names and arguments are the field's (rpc-objects-db.md §1 'Compute RPC'); where the field casts from host to host, here
the conductor's flow calls each host in turn, so they are long calls. ``key`` came with 6.6.
"""
from __future__ import annotations

from typing import Any

from kilonova.rpc.interface import Interface, call, cast, long_call


class Compute(Interface):
    """Everything that a conductor asks of a host."""

    topic = 'compute'
    version = '6.6'

    @long_call('6.0', key='6.6')
    def build_and_run_instance(self, ctxt, instance, image, request_spec, filter_properties, admin_password=None,
                               injected_files=None, requested_networks=None, security_groups=None,
                               block_device_mapping=None, node=None, limits=None, host_list=None, accel_uuids=None,
                               key=None) -> Any: ...

    @long_call('6.0', key='6.6')
    def terminate_instance(self, ctxt, instance, bdms, key=None) -> Any: ...

    @long_call('6.0', key='6.6')
    def stop_instance(self, ctxt, instance, clean_shutdown=True, key=None) -> Any: ...

    @long_call('6.0', key='6.6')
    def start_instance(self, ctxt, instance, key=None) -> Any: ...

    @long_call('6.0', key='6.6')
    def reboot_instance(self, ctxt, instance, block_device_info, reboot_type, key=None) -> Any: ...

    @long_call('6.0', key='6.6')
    def prep_resize(self, ctxt, image, instance, flavor, request_spec, filter_properties, node, clean_shutdown,
                    migration, host_list, key=None) -> Any: ...

    @long_call('6.0', disk='6.6', key='6.6')
    def resize_instance(self, ctxt, instance, image, migration, flavor, clean_shutdown, request_spec, disk=None,
                        key=None) -> Any: ...

    @long_call('6.0', key='6.6')
    def finish_resize(self, ctxt, disk_info, image, instance, migration, request_spec, key=None) -> Any: ...

    @long_call('6.0', key='6.6')
    def confirm_resize(self, ctxt, instance, migration, key=None) -> Any: ...

    @long_call('6.0', key='6.6')
    def revert_resize(self, ctxt, instance, migration, request_spec, key=None) -> Any: ...

    @long_call('6.0', key='6.6')
    def finish_revert_resize(self, ctxt, instance, migration, request_spec, key=None) -> Any: ...

    @long_call('6.6')
    def undo_build(self, ctxt, instance, key) -> Any: ...

    @long_call('6.6')
    def undo_prep_resize(self, ctxt, instance, migration, key) -> Any: ...

    @long_call('6.6')
    def undo_resize_instance(self, ctxt, instance, migration, key) -> Any: ...

    @long_call('6.6')
    def undo_finish_resize(self, ctxt, instance, migration, key) -> Any: ...

    @cast('6.6')
    def cancel(self, ctxt, key_prefix) -> Any: ...

    @call('6.0')
    def set_host_enabled(self, ctxt, host, enabled) -> Any: ...

    @call('6.6')
    def describe_host(self, ctxt) -> Any: ...

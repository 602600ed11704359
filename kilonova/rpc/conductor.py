"""What conductors answer: objects' remote calls, hosts' claims, saves and ports (no namespace) and compute tasks.

The names are the field's where it has such a method; objects' remote calls have its version, too. Compute tasks only
wake somebody: the operation row is what counts, so a lost cast loses nothing.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kilonova.context import RequestContext
from kilonova.objects import Claim, Save
from kilonova.objects.base import KilonovaObject
from kilonova.rpc.interface import Interface, call, cast


class Conductor(Interface):
    """Objects' remote calls, the four calls of a host that works on an operation, and one of a host that starts."""

    topic = 'conductor'
    version = '3.5'

    @call('3.0')
    def object_class_action_versions(self, ctxt: RequestContext, objname: str, objmethod: str,
                                     object_versions: dict[str, str], args: Sequence[Any],
                                     kwargs: dict[str, Any]) -> Any: ...

    @call('3.0')
    def object_action(self, ctxt: RequestContext, objinst: KilonovaObject, objmethod: str, args: Sequence[Any],
                      kwargs: dict[str, Any]) -> Any: ...

    @call('3.0')
    def object_backport_versions(self, ctxt: RequestContext, objinst: KilonovaObject,
                                 object_versions: dict[str, str]) -> Any: ...

    @call('3.3')
    def check_key(self, ctxt: RequestContext, key: str, undo: bool, host: str) -> Any: ...

    @call('3.3')
    def claim_instance(self, ctxt: RequestContext, claim: Claim) -> Any: ...

    @call('3.3')
    def save_instance(self, ctxt: RequestContext, save: Save) -> Any: ...

    @call('3.5')
    def bind_ports(self, ctxt: RequestContext, key: str, instance_uuid: str, host: str,
                   profiles: dict[str, dict[str, Any]]) -> Any: ...

    @call('3.5')
    def resume_later(self, ctxt: RequestContext, host: str, reasons: dict[str, str], is_off: bool) -> Any:
        """A host was started and could not start these servers again, {server: why}: see ``db.queries.resumes``."""


class ComputeTask(Interface):
    """The field's compute tasks."""

    topic = 'conductor'
    namespace = 'compute_task'
    version = '1.30'

    @cast('1.28')
    def schedule_and_build_instances(self, ctxt: RequestContext, operations: Sequence[str]) -> Any: ...

    @cast('1.28')
    def migrate_server(self, ctxt: RequestContext, operation: str) -> Any: ...

    @cast('1.30')
    def live_migrate_instance(self, ctxt: RequestContext, operation: str) -> Any: ...

    @cast('1.28')
    def confirm_resize(self, ctxt: RequestContext, operation: str) -> Any: ...

    @cast('1.28')
    def revert_resize(self, ctxt: RequestContext, operation: str) -> Any: ...

    @cast('1.30')
    def rebuild_instance(self, ctxt: RequestContext, operation: str) -> Any: ...

    @cast('1.28')
    def terminate_instance(self, ctxt: RequestContext, operation: str) -> Any: ...

    @cast('1.28')
    def run_operation(self, ctxt: RequestContext, operation: str) -> Any: ...

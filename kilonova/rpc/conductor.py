"""The RPC methods that conductors answer.

``Conductor`` (no namespace) has the remote calls of objects, and the calls with which hosts claim resources, save
results and bind ports. ``ComputeTask`` has the compute tasks. Method names are Nova's if Nova has such a method. The
remote calls of objects have Nova's versions as well. A compute task only wakes the runner. The operation row decides
what is done, so a lost cast loses no work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kilonova.context import RequestContext
from kilonova.objects import Claim, Save
from kilonova.objects.base import KilonovaObject
from kilonova.rpc.interface import RpcInterface, call, cast


class Conductor(RpcInterface):
    """The remote calls of objects, four calls of hosts that work on operations, and one call of a host that starts."""

    topic = 'conductor'
    version = '3.5'

    @call('3.0')
    def object_class_action_versions(
        self,
        ctxt: RequestContext,
        objname: str,
        objmethod: str,
        object_versions: dict[str, str],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call a class method of an object class, and return its result in the caller's versions."""

    @call('3.0')
    def object_action(
        self, ctxt: RequestContext, objinst: KilonovaObject, objmethod: str, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Call a method of an object, and return the changed fields and the result."""

    @call('3.0')
    def object_backport_versions(
        self, ctxt: RequestContext, objinst: KilonovaObject, object_versions: dict[str, str]
    ) -> Any:
        """Return an object as a primitive in the versions that the caller knows."""

    @call('3.3')
    def check_key(self, ctxt: RequestContext, key: str, undo: bool, host: str) -> Any:
        """Check that an operation is at this step key, or that the step is being undone."""

    @call('3.3')
    def claim_instance(self, ctxt: RequestContext, claim: Claim) -> Any:
        """Claim resources of a host for a server, in one transaction."""

    @call('3.3')
    def save_instance(self, ctxt: RequestContext, save: Save) -> Any:
        """Write the result of a host's step, in one transaction."""

    @call('3.5')
    def bind_ports(
        self, ctxt: RequestContext, key: str, instance_uuid: str, host: str, profiles: dict[str, dict[str, Any]]
    ) -> Any:
        """Bind ports of a server to devices that a host has claimed, and return the server's interfaces.

        ``profiles`` is a dict from port id to the binding profile of the port.
        """

    @call('3.5')
    def resume_later(self, ctxt: RequestContext, host: str, reasons: dict[str, str], is_off: bool) -> Any:
        """Record that a host was started and could not start some of its servers.

        ``reasons`` is a dict from server uuid to the reason (see ``db.queries.resumes``). ``is_off`` says that the
        guests are known to be off.
        """


class ComputeTask(RpcInterface):
    """Nova's compute tasks. Each method wakes the conductor's runner for operation rows."""

    topic = 'conductor'
    namespace = 'compute_task'
    version = '1.30'

    @cast('1.28')
    def schedule_and_build_instances(self, ctxt: RequestContext, operations: Sequence[str]) -> Any:
        """Wake the runner for the boot operations of one request."""

    @cast('1.28')
    def migrate_server(self, ctxt: RequestContext, operation: str) -> Any:
        """Wake the runner for a resize or a cold migration."""

    @cast('1.30')
    def live_migrate_instance(self, ctxt: RequestContext, operation: str) -> Any:
        """Wake the runner for a live migration."""

    @cast('1.28')
    def confirm_resize(self, ctxt: RequestContext, operation: str) -> Any:
        """Wake the runner for a confirm of a move."""

    @cast('1.28')
    def revert_resize(self, ctxt: RequestContext, operation: str) -> Any:
        """Wake the runner for a revert of a move."""

    @cast('1.30')
    def rebuild_instance(self, ctxt: RequestContext, operation: str) -> Any:
        """Wake the runner for a rebuild or an evacuation."""

    @cast('1.28')
    def terminate_instance(self, ctxt: RequestContext, operation: str) -> Any:
        """Wake the runner for a delete, as urgent work."""

    @cast('1.28')
    def run_operation(self, ctxt: RequestContext, operation: str) -> Any:
        """Wake the runner for an operation of any other kind."""

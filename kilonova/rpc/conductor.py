"""The RPC methods that conductors answer.

``Conductor`` (no namespace) has the methods by which hosts read and write objects, claim resources, save results and
bind ports. ``ComputeTask`` has casts that only wake the conductor's runner. The operation rows in the database say what
must be done, so no operation is lost with a cast. Method names are Nova's if Nova has such a method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kilonova.context import RequestContext
from kilonova.objects import Claim, Save
from kilonova.objects.base import KilonovaObject
from kilonova.rpc.interface import RpcInterface, call, cast


class Conductor(RpcInterface):
    """The methods that compute services call: three for remote calls of objects, and five for operations on servers."""

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
        """Call a class method of an object class, and return its result in the object versions of the calling process.

        ``object_versions`` is a dict from the name of an object to its version there.
        """

    @call('3.0')
    def object_action(
        self, ctxt: RequestContext, objinst: KilonovaObject, objmethod: str, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Call a method of an object, and return the changed fields and the result."""

    @call('3.0')
    def object_backport_versions(
        self, ctxt: RequestContext, objinst: KilonovaObject, object_versions: dict[str, str]
    ) -> Any:
        """Return an object serialized in the versions that the calling process knows.

        ``object_versions`` is a dict from the name of an object to its version there.
        """

    @call('3.3')
    def check_key(self, ctxt: RequestContext, key: str, undo: bool, host: str) -> Any:
        """Check that an operation is still at the step with this key, or that the step is being undone (``undo``).

        A step key is '<operation uuid>/<position>.<step name>/<attempt>'.
        """

    @call('3.3')
    def claim_instance(self, ctxt: RequestContext, claim: Claim) -> Any:
        """Claim resources of a host for a server, in one transaction."""

    @call('3.3')
    def save_instance(self, ctxt: RequestContext, save: Save) -> Any:
        """Write what a host has changed in a step, in one transaction."""

    @call('3.5')
    def bind_ports(
        self, ctxt: RequestContext, key: str, instance_uuid: str, host: str, profiles: dict[str, dict[str, Any]]
    ) -> Any:
        """Bind Neutron ports of a server to devices that a host has claimed, and return the server's interfaces.

        ``profiles`` is a dict from port id to the part of the port's binding profile that names the device. ``key`` is
        the step key of the operation for which the host works.
        """

    @call('3.5')
    def resume_later(self, ctxt: RequestContext, host: str, reasons: dict[str, str], is_off: bool) -> Any:
        """Record that a host was started and could not start some of its servers, so that the start is retried.

        ``reasons`` is a dict from server uuid to the reason (see ``db.queries.resumes``). ``is_off`` is True if the
        guests of these servers are known to be off.
        """


class ComputeTask(RpcInterface):
    """Casts that wake the conductor's runner for operation rows. The names are those of Nova's compute tasks.

    The arguments are the uuids of operation rows.
    """

    topic = 'conductor'
    namespace = 'compute_task'
    version = '1.30'

    @cast('1.28')
    def schedule_and_build_instances(self, ctxt: RequestContext, operations: Sequence[str]) -> Any:
        """Wake the runner for the boot operations of one create request."""

    @cast('1.28')
    def migrate_server(self, ctxt: RequestContext, operation: str) -> Any:
        """Wake the runner for a resize or a cold migration."""

    @cast('1.30')
    def live_migrate_instance(self, ctxt: RequestContext, operation: str) -> Any:
        """Wake the runner for a live migration."""

    @cast('1.28')
    def confirm_resize(self, ctxt: RequestContext, operation: str) -> Any:
        """Wake the runner for the confirm of a resize or cold migration."""

    @cast('1.28')
    def revert_resize(self, ctxt: RequestContext, operation: str) -> Any:
        """Wake the runner for the revert of a resize or cold migration."""

    @cast('1.30')
    def rebuild_instance(self, ctxt: RequestContext, operation: str) -> Any:
        """Wake the runner for a rebuild or an evacuation."""

    @cast('1.28')
    def terminate_instance(self, ctxt: RequestContext, operation: str) -> Any:
        """Wake the runner for a delete, which workers run before ordinary operations."""

    @cast('1.28')
    def run_operation(self, ctxt: RequestContext, operation: str) -> Any:
        """Wake the runner for an operation of any other kind."""

"""The RPC methods that conductors answer.

``Conductor`` (no namespace) has the methods by which hosts read and write objects, claim resources, save results and
bind ports. ``ComputeTask`` has casts that only name operation rows. The rows in the database say what must be done, so
no operation is lost if a cast is lost. Method names are Nova's if Nova has such a method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kilonova.context import RequestContext
from kilonova.objects import Claim, Save
from kilonova.objects.base import KilonovaObject
from kilonova.rpc.interface import RpcInterface, call, cast


class Conductor(RpcInterface):
    """The methods that compute services call: three for remote calls of objects, five for operations on servers."""

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

        ``object_versions`` is a dict from the name of an object to the version that the calling process knows.
        """

    @call('3.0')
    def object_action(
        self, ctxt: RequestContext, objinst: KilonovaObject, objmethod: str, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Call a method of an object. Return the fields that the call changed, and the method's result."""

    @call('3.0')
    def object_backport_versions(
        self, ctxt: RequestContext, objinst: KilonovaObject, object_versions: dict[str, str]
    ) -> Any:
        """Return an object serialized in the versions that the calling process knows.

        ``object_versions`` is a dict from the name of an object to the version that the calling process knows.
        """

    @call('3.3')
    def check_key(self, ctxt: RequestContext, key: str, undo: bool, host: str) -> Any:
        """Check that a host may work on a step: the operation must be at the step and attempt that ``key`` names.

        ``key`` is '<operation uuid>/<position>.<step name>/<attempt>'. If ``undo`` is True, the operation must be
        undoing this step. Raises KeyGone if this is not so, and other errors if ``host`` may not work on the step (see
        ``db.queries.claims.check``).
        """

    @call('3.3')
    def claim_instance(self, ctxt: RequestContext, claim: Claim) -> Any:
        """Claim resources of a host for a server, in one transaction."""

    @call('3.3')
    def save_instance(self, ctxt: RequestContext, save: Save) -> Any:
        """Write the values that a host has changed while it did a step of an operation, in one transaction."""

    @call('3.5')
    def bind_ports(
        self, ctxt: RequestContext, key: str, instance_uuid: str, host: str, profiles: dict[str, dict[str, Any]]
    ) -> Any:
        """Bind Neutron ports of a server to devices that a host has claimed, and return the server's interfaces.

        ``profiles`` is {port id: part of the port's binding:profile that names the device, such as pci_slot}. ``key``
        is the step key of the operation for which the host works. The interfaces are returned in the form of the info
        cache.
        """

    @call('3.5')
    def resume_later(self, ctxt: RequestContext, host: str, reasons: dict[str, str], is_off: bool) -> Any:
        """Record the servers that a host could not start after its own start, so that their start is retried.

        ``reasons`` is a dict from server uuid to the reason (see ``db.queries.resumes``). ``is_off`` is True if the
        guests of these servers are known to be off.
        """


class ComputeTask(RpcInterface):
    """Casts that tell a conductor to run operations. The names are those of Nova's compute tasks.

    The arguments are the uuids of operation rows.
    """

    topic = 'conductor'
    namespace = 'compute_task'
    version = '1.30'

    @cast('1.28')
    def schedule_and_build_instances(self, ctxt: RequestContext, operations: Sequence[str]) -> Any:
        """Tell a conductor to run the boot operations of one create request."""

    @cast('1.28')
    def migrate_server(self, ctxt: RequestContext, operation: str) -> Any:
        """Tell a conductor to run the operation of a resize or a cold migration."""

    @cast('1.30')
    def live_migrate_instance(self, ctxt: RequestContext, operation: str) -> Any:
        """Tell a conductor to run the operation of a live migration."""

    @cast('1.28')
    def confirm_resize(self, ctxt: RequestContext, operation: str) -> Any:
        """Tell a conductor to run the operation that confirms a resize or a cold migration."""

    @cast('1.28')
    def revert_resize(self, ctxt: RequestContext, operation: str) -> Any:
        """Tell a conductor to run the operation that reverts a resize or a cold migration."""

    @cast('1.30')
    def rebuild_instance(self, ctxt: RequestContext, operation: str) -> Any:
        """Tell a conductor to run the operation of a rebuild or an evacuation."""

    @cast('1.28')
    def terminate_instance(self, ctxt: RequestContext, operation: str) -> Any:
        """Tell a conductor to run the operation that deletes a server. Deletes are run before other operations."""

    @cast('1.28')
    def run_operation(self, ctxt: RequestContext, operation: str) -> Any:
        """Tell a conductor to run an operation for which this interface has no method of its own."""

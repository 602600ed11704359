"""Install a fault: an order that arrives late frees the devices of a running guest.

`prep_resize` registers the undo of its claim before the claim. So a claim that is refused, as its operation is over,
frees the devices that the server has there; and an undo may write after its attempt is over. The simulator should
report a device in a running guest whose row says that it is free.
"""

from __future__ import annotations

from typing import Any

from kilonova import objects
from kilonova.compute.operation import HostTask
from kilonova.compute.ops import move
from kilonova.db.queries import claims
from kilonova.states import TaskState
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def _claim(
        op: HostTask,
        order: objects.PrepResizeOrder | objects.LiveMigrationCheckOrder | objects.EvacuateOrder,
        task_state: TaskState,
        host_of_server: list[str] | None = None,
        **columns: str,
    ) -> list[objects.PciDevice]:
        op.undo(move.free, op, order.migration)
        return claim(op, order, task_state, host_of_server, **columns)

    def _check_attempt(conn: Any, key: str, is_own: bool = False) -> None:
        pass

    claim = replace(move, 'claim', _claim)
    replace(claims, '_check_attempt', _check_attempt)

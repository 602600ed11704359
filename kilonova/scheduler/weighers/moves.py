"""CrossCellWeigher: a server that moves stays in its cell if it can."""
from __future__ import annotations

from typing import Any

import numpy as np

from kilonova.scheduler.weighers import LOOP, BaseHostWeigher


class CrossCellWeigher(BaseHostWeigher):
    """Of a move that may leave the cell: +1 in the server's cell, -1 elsewhere."""

    multiplier = 'cross_cell_move_weight_multiplier'

    def _weigh_object(self, host_state: Any, weight_properties: Any) -> float:
        cell = _source_cell(weight_properties)
        if cell is None:
            return 0
        return 1 if host_state.cell_uuid == cell else -1

    def values(self, look: Any, weight_properties: Any) -> Any:
        return np.zeros(len(look.table['live'])) if _source_cell(weight_properties) is None else LOOP


def _source_cell(spec_obj: Any) -> str | None:
    """uuid of the cell that a move starts in, None when it mustn't leave it or isn't one."""
    destination = spec_obj.requested_destination if 'requested_destination' in spec_obj else None
    if destination is None or 'cell' not in destination or destination.cell is None:
        return None
    allowed = 'allow_cross_cell_move' in destination and destination.allow_cross_cell_move
    return destination.cell.uuid if allowed else None

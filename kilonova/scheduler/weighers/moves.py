"""CrossCellWeigher: a server that moves stays in its cell if it can."""
from __future__ import annotations

from typing import Any

import numpy as np

from kilonova.objects import RequestSpec
from kilonova.scheduler.look import Look
from kilonova.scheduler.weighers import BaseHostWeigher


class CrossCellWeigher(BaseHostWeigher):
    """Of a move that may leave the cell: +1 in the server's cell, -1 elsewhere."""

    multiplier = 'cross_cell_move_weight_multiplier'

    def values(self, look: Look, weight_properties: RequestSpec) -> Any:
        cell = _source_cell(weight_properties)
        if cell is None:
            return np.zeros(len(look.table['live']))
        return np.where(look.table.present({cell}), 1.0, -1.0)


def _source_cell(spec_obj: RequestSpec) -> str | None:
    """uuid of the cell that a move starts in, None when it mustn't leave it or isn't one."""
    destination = spec_obj.requested_destination if 'requested_destination' in spec_obj else None
    if destination is None or 'cell' not in destination or destination.cell is None:
        return None
    allowed = 'allow_cross_cell_move' in destination and destination.allow_cross_cell_move
    return destination.cell.uuid if allowed else None

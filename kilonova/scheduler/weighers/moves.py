"""CrossCellWeigher: it keeps a server in its cell during a move, if possible."""

from __future__ import annotations

from typing import Any

import numpy as np

from kilonova.objects import RequestSpec
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.weighers import BaseHostWeigher


class CrossCellWeigher(BaseHostWeigher):
    """Prefer hosts in the server's own cell for a move that may leave the cell."""

    multiplier = 'cross_cell_move_weight_multiplier'

    def values(self, arrays: HostArrays, weight_properties: RequestSpec) -> Any:
        """Return 1 for hosts in the server's cell and -1 for other hosts.

        All values are 0 if the request is not a move or the server must not leave its cell.
        """
        cell = _source_cell(weight_properties)
        if cell is None:
            return np.zeros(len(arrays.table['live']))
        return np.where(arrays.table.present({cell}), 1.0, -1.0)


def _source_cell(spec_obj: RequestSpec) -> str | None:
    """Return the uuid of the cell in which the server of a cross-cell move is now.

    Return None if the request is not a move, or if it does not allow the server to leave its cell.
    """
    destination = spec_obj.requested_destination if 'requested_destination' in spec_obj else None
    if destination is None or 'cell' not in destination or destination.cell is None:
        return None
    allowed = 'allow_cross_cell_move' in destination and destination.allow_cross_cell_move
    return destination.cell.uuid if allowed else None

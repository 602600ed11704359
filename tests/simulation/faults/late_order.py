"""Finding 1.1: an order that comes late frees the devices of a running guest.

``prep_resize`` registers the undo of its claim before the claim, so a claim that is refused, as its operation is over,
frees what there is under this side; and an undo may write when its attempt is over. The simulator should see a device
in a running guest whose row says that it is free.
"""
from __future__ import annotations

from typing import Any

from kilonova import objects
from kilonova.compute.host import Host
from kilonova.compute.keys import Work
from kilonova.compute.ops import prep_resize
from kilonova.compute.undo import Undo
from kilonova.db.queries import claims
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""
    def _claim(host: Host, work: Work, ctxt: Any, order: objects.PrepResizeOrder) -> None:
        with Undo('claim') as undo:
            undo.add(prep_resize._free, host, work, ctxt, order.instance, order.migration, undo)
            claim(host, work, ctxt, order)

    def _check_attempt(conn: Any, key: str) -> None:
        pass
    claim = replace(prep_resize, '_claim', _claim)
    replace(claims, '_check_attempt', _check_attempt)

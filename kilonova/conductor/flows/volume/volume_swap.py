"""Flow of a volume swap: attach, copy, swap, finish.

The volume service moves a volume of a running server to another back end. It has created a second volume, and requests
that the guest uses that one. The second volume is attached to the host as well. The host copies the first volume to it
while the guest writes, and then writes to both. Then the guest uses the second volume under the id of the first.

A failure before ``swap`` leaves the guest with the first volume. After it both volumes have all data, so the second one
can be used even if it is unknown which one the guest has. In ``finish`` the volume service merges both records, and the
first id remains. The server gets no task state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from oslo_log import log as logging

from kilonova.conductor.flows import releases
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.flows.volume.volume_attach import OneVolume, end_with, volume_of
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import HostDown, HostNotFenced, Step, Work
from kilonova.db import engine
from kilonova.db.queries import volumes as rows
from kilonova.rpc.compute import Compute

LOG = logging.getLogger(__name__)


@dataclass
class SwapOutputs(Outputs):
    """Stored results of a volume swap.

    Attributes:
        columns: Columns of block_device_mapping when the guest uses the second volume.
        swapped: True if the guest uses the second volume.
    """

    columns: dict[str, Any] = field(default_factory=dict)
    swapped: bool = False


def attach(work: Work[SwapOutputs]) -> None:
    """Attach the second volume to the server's host as well."""
    work.outputs.columns = {**volumes.attach_copy(work, volume_of(work), work.args['copy']), **work.args['columns']}


def undo_attach(work: Work[SwapOutputs]) -> None:
    """Detach the second volume, and have the volume service delete it."""
    if not work.outputs.swapped:
        volumes.end_swap(work, work.args['volume_id'], work.args['copy'], has_copy=False)


def copy(work: Work[SwapOutputs]) -> None:
    """Have the host copy the volume to the second one, and keep both equal."""
    volume_of(work)
    work.call_host(work.instance().host, Compute.copy_volume, **_message(work))


def _message(work: Work[SwapOutputs]) -> dict[str, Any]:
    return {
        'instance': work.instance(),
        'copy': {**work.outputs.columns, 'volume_id': work.args['copy'], 'of': work.args['volume_id']},
    }


def undo_copy(work: Work[SwapOutputs]) -> None:
    """Have the host detach the second volume."""
    if work.outputs.columns and not work.outputs.swapped:
        releases.ask_to_undo(work, work.instance(fresh=True).host, Compute.undo_copy_volume, **_message(work))


def swap(work: Work[SwapOutputs]) -> None:
    """Have the guest use the second volume, and write that to the server's row.

    Raises HostNotFenced if the host is down and its guest may run, because then it is unknown which volume the guest
    uses.
    """
    host = work.instance().host
    try:
        work.call_host(host, Compute.swap_volume, **_message(work))
    except HostDown:
        if not work.env.liveness.is_fenced(work.db, host):
            raise HostNotFenced(host=host) from None
        LOG.warning(
            'Replacing volume %s of the server by its copy %s: host %s is off',
            work.args['volume_id'],
            work.args['copy'],
            host,
            instance_uuid=work.instance_uuid,
        )
    work.outputs.swapped = True
    work.write_with_checkpoint(lambda conn: _write(work, conn))
    work.changed()


def _write(work: Work[SwapOutputs], conn: engine.Connection) -> None:
    rows.change(conn, work.args['row'], work.args['attachment'], work.outputs.columns)


def undo_swap(work: Work[SwapOutputs]) -> None:
    """Ask the host which volume the guest uses, and keep the second one if the guest uses it.

    If the host is down, the second volume is kept, and a pending release sends the question later.
    """
    if not work.outputs.swapped:
        answer = releases.ask_to_undo(work, work.instance(fresh=True).host, Compute.undo_swap_volume, **_message(work))
        work.outputs.swapped = answer is None or answer['swapped']
    if work.outputs.swapped:
        work.decide({}, cancelled=True, write=lambda conn: _write(work, conn))
        work.changed()


def finish(work: Work[SwapOutputs]) -> None:
    """Have the volume service merge the two volumes, and end the operation."""
    volumes.swapped(work, work.args['volume_id'], work.args['copy'])
    end_with(work, Swap.event)


class Swap(OneVolume[SwapOutputs]):
    """The operation that moves a volume of a running server to another back end."""

    name, outputs, event = 'swap_volume', SwapOutputs, 'compute_swap_volume'
    steps = (
        Step('attach', attach, undo_attach),
        Step('copy', copy, undo_copy),
        Step('swap', swap, undo_swap),
        Step('finish', finish),
    )

    def ended_badly(self, work: Work[SwapOutputs]) -> None:
        """End the operation, and have the guest keep the second volume if it uses that one."""
        if work.outputs.swapped:
            volumes.end_swap(work, work.args['volume_id'], work.args['copy'], has_copy=True)
            end_with(work, self.event)
        else:
            super().ended_badly(work)


FLOW = Swap()

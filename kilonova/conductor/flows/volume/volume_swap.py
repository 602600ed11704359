"""Flow of a volume swap: attach_copy, copy, swap, merge_records.

The volume service moves a volume of a running server to another back end. It has created a second volume, the copy, and
requests that the guest uses the copy. "The first volume" is the volume to be moved. The steps do the following:

- ``attach_copy`` attaches the copy to the server's host. The first volume stays attached.
- ``copy`` copies the data of the first volume, while the guest continues to write. After this step the hypervisor
  writes the guest's data to both volumes.
- ``swap`` switches the guest to the copy.
- ``merge_records`` requests that the volume service merges its records of the two volumes. The copy gets the id of the
  first volume.

If a step before ``swap`` fails, the guest keeps the first volume. During ``swap`` the two volumes have the same data.
So the copy can be used even if it is unknown which volume the guest uses. The server gets no task state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from oslo_log import log as logging

from kilonova.conductor.flows import releases
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.flows.volume.volume_attach import OneVolume, end_with, volume_of
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import HostDown, Step, Work
from kilonova.db import engine
from kilonova.db.arguments.attachments import SwapVolumeArguments
from kilonova.db.queries import volumes as rows
from kilonova.rpc.compute import Compute

LOG = logging.getLogger(__name__)


@dataclass
class SwapOutputs(Outputs):
    """Stored results of a volume swap.

    Attributes:
        columns: Columns that the volume's row in block_device_mapping gets when the guest uses the copy.
        swapped: True if the guest uses the copy, or is to use it at its next start.
    """

    columns: dict[str, Any] = field(default_factory=dict)
    swapped: bool = False


def attach_copy(work: Work[SwapOutputs]) -> None:
    """Attach the copy to the server's host, in addition to the first volume."""
    args = work.arguments(SwapVolumeArguments)
    work.outputs.columns = {**volumes.attach_copy(work, volume_of(work), args.copy), **args.columns}


def undo_attach_copy(work: Work[SwapOutputs]) -> None:
    """Detach the copy, and ask the volume service to delete the copy."""
    args = work.arguments(SwapVolumeArguments)
    if not work.outputs.swapped:
        volumes.end_swap(work, args.volume_id, args.copy, has_copy=False)


def copy(work: Work[SwapOutputs]) -> None:
    """Ask the host to copy the data of the first volume to the copy (block copy), while the guest runs.

    After this step the hypervisor writes the guest's data to both volumes.
    """
    volume_of(work)
    work.call_host(work.instance().host, Compute.copy_volume, **_message(work))


def _message(work: Work[SwapOutputs]) -> dict[str, Any]:
    args = work.arguments(SwapVolumeArguments)
    return {
        'instance': work.instance(),
        'copy': {**work.outputs.columns, 'volume_id': args.copy, 'of': args.volume_id},
    }


def undo_copy(work: Work[SwapOutputs]) -> None:
    """Ask the host to end the block copy and to disconnect the copy."""
    if work.outputs.columns and not work.outputs.swapped:
        releases.ask_to_undo(work, work.instance(fresh=True).host, Compute.undo_copy_volume, **_message(work))


def swap(work: Work[SwapOutputs]) -> None:
    """Ask the host to switch the guest to the copy (pivot). Record the copy in the server's volume row.

    If the host was forced down, only the row is written. Raises HostNotFenced if the host is down and may still run the
    guest, because in this case it is unknown which volume the guest uses.
    """
    host, args = work.instance().host, work.arguments(SwapVolumeArguments)
    try:
        work.call_host(host, Compute.swap_volume, **_message(work))
    except HostDown:
        releases.check_no_guest(work, host)
        LOG.warning(
            'Replacing volume %s of the server by its copy %s without a call to host %s, which is down',
            args.volume_id,
            args.copy,
            host,
            instance_uuid=work.instance_uuid,
        )
    work.outputs.swapped = True
    work.write_with_checkpoint(lambda conn: _write(work, conn))
    work.changed()


def _write(work: Work[SwapOutputs], conn: engine.Connection) -> None:
    args = work.arguments(SwapVolumeArguments)
    rows.change(conn, args.row, args.attachment, work.outputs.columns)


def undo_swap(work: Work[SwapOutputs]) -> None:
    """Ask the host which volume the guest uses. Record the copy in the server's volume row if the guest uses the copy.

    If the host is down, the copy is recorded too. This is safe, because during ``swap`` the copy has the same data as
    the first volume. A conductor calls the host when it is up again (a pending release).
    """
    if not work.outputs.swapped:
        answer = releases.ask_to_undo(work, work.instance(fresh=True).host, Compute.undo_swap_volume, **_message(work))
        work.outputs.swapped = answer is None or answer['swapped']
    if work.outputs.swapped:
        work.decide({}, cancelled=True, write=lambda conn: _write(work, conn))
        work.changed()


def merge_records(work: Work[SwapOutputs]) -> None:
    """Ask Cinder to complete the volume migration, then end the operation.

    In Cinder, the copy, which the guest uses now, gets the id of the volume that was swapped.
    """
    args = work.arguments(SwapVolumeArguments)
    volumes.swapped(work, args.volume_id, args.copy)
    end_with(work, Swap.event)


class Swap(OneVolume[SwapOutputs]):
    """The operation that moves a volume of a running server to another back end."""

    name, outputs, event = 'swap_volume', SwapOutputs, 'compute_swap_volume'
    steps = (
        Step('attach_copy', attach_copy, undo_attach_copy, formerly='attach'),
        Step('copy', copy, undo_copy),
        Step('swap', swap, undo_swap),
        Step('merge_records', merge_records, formerly='finish'),
    )

    def ended_badly(self, work: Work[SwapOutputs]) -> None:
        """End a failed or cancelled swap. If the guest uses the copy already, complete the swap."""
        args = work.arguments(SwapVolumeArguments)
        if work.outputs.swapped:
            volumes.end_swap(work, args.volume_id, args.copy, has_copy=True)
            end_with(work, self.event)
        else:
            super().ended_badly(work)


FLOW = Swap()

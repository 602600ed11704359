"""A volume of a server that runs is on its way to another back end, and its guest goes along: attach · copy · swap ·
finish. The volume service made the second volume, and asks for this.

The second is attached to the host besides; the host copies the first to it while the guest writes, then to both; and
the guest gets the second, under the id of the first. Until ``swap`` the guest has the first, and what fails leaves it
so. From ``swap`` on both have all that the guest wrote, so that the second is as good where nobody can say which one
the guest has. ``finish`` lets the volume service make one of both: the first id remains. There is no task state.
"""
from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from kilonova.conductor.flows import beside, volumes
from kilonova.conductor.flows.attachments import OneVolume, end_with, volume_of
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import GuestMayRun, HostGone, Step, Work
from kilonova.db import engine
from kilonova.db.queries import volumes as rows

LOG = logging.getLogger(__name__)


@dataclass
class SwapOutputs(Outputs):
    """``columns``: of block_device_mapping, as they are when the guest has the second volume; ``swapped``: it has."""

    columns: dict[str, Any] = field(default_factory=dict)
    swapped: bool = False


def attach(work: Work[SwapOutputs]) -> None:
    """The second volume is attached to the host, too."""
    work.outputs.columns = {**volumes.attach_copy(work, volume_of(work), work.args['copy']), **work.args['columns']}


def undo_attach(work: Work[SwapOutputs]) -> None:
    """It is free, and the volume service deletes it."""
    if not work.outputs.swapped:
        volumes.end_swap(work, work.args['volume_id'], work.args['copy'], has_copy=False)


def copy(work: Work[SwapOutputs]) -> None:
    """The host copies: both are the same, and stay so."""
    volume_of(work)
    work.ask(work.instance().host, 'copy_volume', **_message(work))


def _message(work: Work[SwapOutputs]) -> dict[str, Any]:
    return {'instance': work.instance(), 'copy': {
        **work.outputs.columns, 'volume_id': work.args['copy'], 'of': work.args['volume_id']}}


def undo_copy(work: Work[SwapOutputs]) -> None:
    """The host lets the second go."""
    if work.outputs.columns and not work.outputs.swapped:
        beside.ask_to_undo(work, work.instance(fresh=True).host, 'undo_copy_volume', **_message(work))


def swap(work: Work[SwapOutputs]) -> None:
    """The guest has the second volume, and so does the server. GuestMayRun: of a host that is down nobody knows what
    its guest has, and it may run."""
    host = work.instance().host
    try:
        work.ask(host, 'swap_volume', **_message(work))
    except HostGone:
        if not work.env.hearing.is_fenced(work.db, host):
            raise GuestMayRun(host=host) from None
        LOG.warning('Volume %s of %s goes on as its copy %s: host %s is off', work.args['volume_id'],
                    work.instance_uuid, work.args['copy'], host)
    work.outputs.swapped = True
    work.together(lambda conn: _write(work, conn))
    work.changed()


def _write(work: Work[SwapOutputs], conn: engine.Connection) -> None:
    rows.change(conn, work.args['row'], work.args['attachment'], work.outputs.columns)


def undo_swap(work: Work[SwapOutputs]) -> None:
    """What was cancelled here goes to its end if the guest can: its host says what it has. One that is down is asked
    later."""
    if not work.outputs.swapped:
        answer = beside.ask_to_undo(work, work.instance(fresh=True).host, 'undo_swap_volume', **_message(work))
        work.outputs.swapped = answer is None or answer['swapped']
    if work.outputs.swapped:
        work.decide({}, cancelled=True, write=lambda conn: _write(work, conn))
        work.changed()


def finish(work: Work[SwapOutputs]) -> None:
    """The volume service makes one of both volumes."""
    volumes.swapped(work, work.args['volume_id'], work.args['copy'])
    end_with(work, Swap.event)


class Swap(OneVolume[SwapOutputs]):
    name, outputs, event = 'swap_volume', SwapOutputs, 'compute_swap_volume'
    steps = (Step('attach', attach, undo_attach), Step('copy', copy, undo_copy), Step('swap', swap, undo_swap),
             Step('finish', finish))

    def ended_badly(self, work: Work[SwapOutputs]) -> None:
        """A guest that has the second volume keeps it."""
        if work.outputs.swapped:
            volumes.end_swap(work, work.args['volume_id'], work.args['copy'], has_copy=True)
            end_with(work, self.event)
        else:
            super().ended_badly(work)


FLOW = Swap()

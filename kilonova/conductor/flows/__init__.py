"""``FLOWS``, a dict from the kind of an operation row to the flow that runs such operations.

Each module of this package has the flows of related operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova import texts
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import (
    backup,
    boot,
    confirm_revert,
    delete,
    evacuate,
    host_boot,
    host_removal,
    live_migrate,
    one_step,
    rebuild,
    releases,
    resize,
    shelve,
    unshelve,
)
from kilonova.conductor.flows.network import interfaces, network_changed
from kilonova.conductor.flows.volume import volume_attach, volume_snapshots, volume_swap
from kilonova.conductor.row import SelectOutputs

FLOWS: dict[str, Flow[Any]] = {
    flow.name: flow
    for flow in (
        boot.FLOW,
        evacuate.Evacuate(),
        *rebuild.FLOWS,
        resize.Resize(),
        confirm_revert.Confirm(),
        confirm_revert.Revert(),
        live_migrate.FLOW,
        delete.DeleteServer(),
        delete.SoftDeleteServer(),
        *one_step.FLOWS,
        backup.Backup(),
        *shelve.FLOWS,
        *unshelve.FLOWS,
        releases.Release(),
        releases.SyncAggregate(),
        host_removal.HostRemoval(),
        network_changed.NetworkChanged(),
        *interfaces.FLOWS,
        *volume_attach.FLOWS,
        volume_swap.FLOW,
        *volume_snapshots.FLOWS,
        host_boot.ResumeOnHostBoot(),
    )
}


# Exceptions that ``Outputs.read`` raises if a row's outputs are JSON with a wrong structure.
_OTHER_FORM = (ValueError, LookupError, TypeError, AttributeError)


def unreadable(row: Mapping[str, Any]) -> str:
    """Return a text that says which column of an operation row cannot be parsed and why, or '' if there is none.

    ``row`` has the column ``kind``, and the columns ``args``, ``context`` and ``outputs`` as JSON texts. A result is,
    for example, 'outputs (ValueError: …)'. Conductors do not run an operation whose row cannot be parsed.
    """
    if row['kind'] not in FLOWS:
        return 'kind (this release knows no such operation)'
    read, why = texts.split(row, ('args', 'context', 'outputs'))
    if why:
        return why
    try:
        FLOWS[row['kind']].outputs.read(read['outputs'])
    except _OTHER_FORM as error:
        return f'outputs ({type(error).__name__}: {error})'
    return ''


def hosts_of(outputs: dict[str, Any], attempt: int) -> set[str]:
    """Return a set with one host: the host that the scheduler chose for this attempt of an operation.

    ``outputs`` are the stored results of the operation's steps: its key 'select' lists the chosen hosts. ``attempt`` is
    the number of the attempt, from 1. Returns an empty set if no host is chosen, or if the outputs can't be parsed.
    """
    try:
        chosen = SelectOutputs.read(outputs).hosts
    except _OTHER_FORM:
        return set()
    return {chosen[attempt - 1].host} if len(chosen) >= attempt else set()

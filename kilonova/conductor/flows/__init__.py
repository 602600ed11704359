"""All flows, by the kind of their operation rows.

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


# Exceptions raised by reading outputs with a structure that no release writes.
_OTHER_FORM = (ValueError, LookupError, TypeError, AttributeError)


def unreadable(row: Mapping[str, Any]) -> str:
    """Return which column of an operation row no conductor can parse and why, or '' if the operation can be run.

    ``row`` has the ``kind``, and ``args``, ``context`` and ``outputs`` as the texts that the database has.
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
    """Return the hosts on which the current attempt of an operation works, as its outputs name them.

    Returns an empty set if no host is chosen yet, or if the outputs have a structure that no release writes.
    """
    try:
        chosen = SelectOutputs.read(outputs).hosts
    except _OTHER_FORM:
        return set()
    return {chosen[attempt - 1].host} if len(chosen) >= attempt else set()

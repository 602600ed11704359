"""The flows by the kind of their operation rows."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova import texts
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import (
    attachments,
    backup,
    beside,
    boot,
    delete,
    evacuate,
    host_boot,
    host_removal,
    interfaces,
    live_migrate,
    network_changed,
    one_step,
    rebuild,
    resize,
    resized,
    shelve,
    swap,
    unshelve,
    volume_snapshots,
)
from kilonova.conductor.row import Chosen

FLOWS: dict[str, Flow[Any]] = {flow.name: flow for flow in (
    boot.FLOW, evacuate.Evacuate(), *rebuild.FLOWS, resize.Resize(), resized.Confirm(), resized.Revert(),
    live_migrate.FLOW, delete.Delete(), delete.SoftDelete(), *one_step.FLOWS, backup.Backup(), *shelve.FLOWS,
    *unshelve.FLOWS, beside.Release(), beside.Mirror(), host_removal.HostRemoval(), network_changed.NetworkChanged(),
    *interfaces.FLOWS, *attachments.FLOWS, swap.FLOW, *volume_snapshots.FLOWS, host_boot.Resume())}


# What reading outputs raises that are of a form that no release writes.
_OTHER_FORM = (ValueError, LookupError, TypeError, AttributeError)


def unreadable(row: Mapping[str, Any]) -> str:
    """Return which columns of an operation's row no conductor can read and why, '' if it can be run.

    ``row``: its ``kind``, and ``args``, ``context`` and ``outputs`` as the database has them.
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
    """Return the hosts that a row's steps work on, as far as its outputs tell; an empty set if they are of a form that
    no release writes."""
    try:
        chosen = Chosen.read(outputs).hosts
    except _OTHER_FORM:
        return set()
    return {chosen[attempt - 1].host} if len(chosen) >= attempt else set()

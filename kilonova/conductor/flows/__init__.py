"""The flows by the kind of their operation rows."""
from __future__ import annotations

from typing import Any

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


def hosts_of(outputs: dict[str, Any], attempt: int) -> set[str]:
    """Hosts that a row's steps work on, as far as its outputs tell."""
    chosen = Chosen.read(outputs).hosts
    return {chosen[attempt - 1].host} if len(chosen) >= attempt else set()

"""The flows by the kind of their operation rows."""
from __future__ import annotations

from typing import Any

from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import boot, confirm, delete, mirror, power, resize, revert, snapshot, soft_delete

FLOWS: dict[str, Flow] = {
    'boot': boot.FLOW,
    'resize': resize.FLOW,
    'confirm': confirm.FLOW,
    'revert': revert.FLOW,
    'delete': delete.FLOW,
    'stop': power.Stop(),
    'start': power.Start(),
    'reboot': power.Reboot(),
    'snapshot': snapshot.FLOW,
    'soft_delete': soft_delete.FLOW,
    'restore': soft_delete.RESTORE,
    'release': power.Release(),
    'mirror': mirror.FLOW,
}


def hosts_of(outputs: dict[str, Any], attempt: int) -> set[str]:
    """Hosts that a row's steps work on, as far as its outputs tell."""
    chosen = outputs.get('select') or []
    return {chosen[attempt - 1]['host']} if len(chosen) >= attempt else set()

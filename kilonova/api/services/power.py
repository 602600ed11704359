"""Stop, start and reboot: one step on the server's host."""
from __future__ import annotations

from typing import Any

from kilonova.api.services import accept
from kilonova.api.services.backend import Backend
from kilonova.api.services.lookup import Found


def stop(backend: Backend, ctxt: Any, server: Found) -> None:
    """Shut the guest down; devices and disks stay."""
    _run(backend, ctxt, server, 'stop', 'stop.start', {'clean_shutdown': True})


def start(backend: Backend, ctxt: Any, server: Found) -> None:
    """Start the guest with the same devices."""
    _run(backend, ctxt, server, 'start', 'start.start', {})


def reboot(backend: Backend, ctxt: Any, server: Found, kind: str) -> None:
    """``kind`` SOFT asks the guest, HARD makes a new one of the same disks and devices."""
    event = 'reboot_hard.start' if kind == 'HARD' else 'reboot.start'
    _run(backend, ctxt, server, 'reboot', event, {'reboot_type': kind})


def _run(backend: Backend, ctxt: Any, server: Found, kind: str, event: str, args: dict[str, Any]) -> None:
    accept.check(ctxt, server, event)
    row = accept.operation(ctxt, server, kind, args)
    accept.accept(ctxt, server, event, row, kind)
    backend.conductor.run_operation(ctxt, operation=row['uuid'])

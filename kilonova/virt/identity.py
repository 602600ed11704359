"""Who this host, its machine and its storage are, by files that outlive a restart.

Two computes carry disks to one another by a local copy only when machine id, boot id *and* the storage id
found under the other's path are equal: containers of one image share the first two, not their file systems.
Hosts that find the run of one another in their own instances_path share it; a storage id alone may be a clone's.
"""
from __future__ import annotations

import contextlib
import os
import uuid as uuidlib

_MACHINE_IDS = ('/etc/machine-id', '/var/lib/dbus/machine-id', '/sys/class/dmi/id/product_uuid')
_BOOT_ID = '/proc/sys/kernel/random/boot_id'
STORAGE_ID = '.storage_id'


def _first_line(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding='utf-8') as stream:
        return stream.readline().strip()
    return ''


def machine_id() -> str:
    """The operating system's id, or the board's; empty if the machine tells neither."""
    return next(filter(None, map(_first_line, _MACHINE_IDS)), '')


def boot_id() -> str:
    """The running kernel's boot."""
    return _first_line(_BOOT_ID)


def _lasting_uuid(path: str) -> str:
    """The uuid in ``path``; written there once, complete or not at all."""
    found = _first_line(path)
    if found:
        return found
    aside = f'{path}.{uuidlib.uuid4()}'
    with open(aside, 'w', encoding='utf-8') as stream:
        stream.write(f'{uuidlib.uuid4()}\n')
    try:
        # Whoever else writes it at this moment wins or loses as a whole.
        os.link(aside, path)
    except FileExistsError:
        if not _first_line(path):
            os.replace(aside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)
    return _first_line(path)


def node_uuid(state_path: str) -> str:
    """The compute node's uuid, kept in ``state_path``/compute_id: one state_path a compute."""
    os.makedirs(state_path, exist_ok=True)
    return _lasting_uuid(os.path.join(state_path, 'compute_id'))


def storage_id(instances_path: str, create: bool = False) -> str:
    """Which storage ``instances_path`` is: equal in two places if and only if they are the same directory."""
    path = os.path.join(instances_path, STORAGE_ID)
    return _lasting_uuid(path) if create else _first_line(path)


def show_run(instances_path: str, host: str, run: str) -> None:
    """Let all who use this storage know that this run of the host's compute does."""
    path = _run_path(instances_path, host)
    with open(os.open(f'{path}.new', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 'w', encoding='utf-8') as stream:
        stream.write(f'{run}\n')
    os.replace(f'{path}.new', path)


def run_of(instances_path: str, host: str) -> str:
    """The last run of the host's compute that used this storage; empty if none did."""
    return _first_line(_run_path(instances_path, host))


def _run_path(instances_path: str, host: str) -> str:
    return os.path.join(instances_path, f'.host.{host}')

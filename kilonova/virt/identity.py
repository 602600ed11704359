"""Identities of this host, its machine and its storage, which files keep over a restart.

Two computes move disks between them by a local copy only if the machine id, the boot id *and* the storage id found
under the other's path are equal. Containers of one image have the same machine and boot id, but not the same file
systems. Each start of a compute has an id, its *run*, which it writes to its instances_path. Hosts that find each
other's run in their own instances_path share this storage. An equal storage id alone is not sufficient, because the
file may be from a cloned disk.
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
    """Return the id of the operating system, or of the mainboard, or '' if neither is readable."""
    return next(filter(None, map(_first_line, _MACHINE_IDS)), '')


def boot_id() -> str:
    """Return the id of the running kernel's boot, or '' if it is not readable."""
    return _first_line(_BOOT_ID)


def _lasting_uuid(path: str) -> str:
    """Return the uuid in the file ``path``, which is created with a new uuid if it does not exist.

    The file is written completely or not at all.
    """
    found = _first_line(path)
    if found:
        return found
    aside = f'{path}.{uuidlib.uuid4()}'
    with open(aside, 'w', encoding='utf-8') as stream:
        stream.write(f'{uuidlib.uuid4()}\n')
    try:
        # If another process writes the file at the same time, one of the two complete files is used.
        os.link(aside, path)
    except FileExistsError:
        if not _first_line(path):
            os.replace(aside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)
    return _first_line(path)


def node_uuid(state_path: str) -> str:
    """Return the compute node's uuid, which is stored in ``state_path``/compute_id.

    Each compute needs its own state_path.
    """
    os.makedirs(state_path, exist_ok=True)
    return _lasting_uuid(os.path.join(state_path, 'compute_id'))


def storage_id(instances_path: str, create: bool = False) -> str:
    """Return the id of the storage at ``instances_path``.

    It is equal at two paths if and only if they are the same directory. Return '' if it has no id and ``create`` is
    False.
    """
    path = os.path.join(instances_path, STORAGE_ID)
    return _lasting_uuid(path) if create else _first_line(path)


def show_run(instances_path: str, host: str, run: str) -> None:
    """Write the id of the current run of the host's compute to the storage, for all hosts that use this storage."""
    path = _run_path(instances_path, host)
    with open(os.open(f'{path}.new', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 'w', encoding='utf-8') as stream:
        stream.write(f'{run}\n')
    os.replace(f'{path}.new', path)


def run_of(instances_path: str, host: str) -> str:
    """Return the id of the last run of the host's compute that used this storage, or '' if there is none."""
    return _first_line(_run_path(instances_path, host))


def _run_path(instances_path: str, host: str) -> str:
    return os.path.join(instances_path, f'.host.{host}')

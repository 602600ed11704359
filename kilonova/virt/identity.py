"""Ids of this host, its machine and its storage, which are stored in files and survive a restart.

The ids answer two questions. First: can the source of a move copy disks to the destination as local files? It can if
the two hosts have the same machine id and boot id, and if the directory at the destination's instances_path has, as the
source reads it, the destination's storage id. The storage id is compared because containers on one machine have the
same machine id and boot id, but may have different file systems.

Second: do two hosts share storage? At each start, a compute service writes a new id, its *run id*, to its
instances_path. Two hosts share storage if they have the same storage id, and if each host finds the run id of the other
host in its own instances_path. An equal storage id alone is not sufficient, because its file may be a copy.
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
    """Return the id of the operating system. If it cannot be read, return the id of the mainboard, or ''."""
    return next(filter(None, map(_first_line, _MACHINE_IDS)), '')


def boot_id() -> str:
    """Return the boot id of the running kernel, or '' if it cannot be read."""
    return _first_line(_BOOT_ID)


def _lasting_uuid(path: str) -> str:
    """Return the uuid in the file ``path``. If the file does not exist, create it with a new uuid.

    The file is written completely or not at all.
    """
    found = _first_line(path)
    if found:
        return found
    aside = f'{path}.{uuidlib.uuid4()}'
    with open(aside, 'w', encoding='utf-8') as stream:
        stream.write(f'{uuidlib.uuid4()}\n')
    try:
        # Unlike ``rename``, ``link`` fails if the file exists, so the first of two processes that write it wins.
        os.link(aside, path)
    except FileExistsError:
        if not _first_line(path):
            os.replace(aside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)
    return _first_line(path)


def node_uuid(state_path: str) -> str:
    """Return the compute node's uuid, which is stored in ``state_path``/compute_id. Create the file if it is missing.

    Each compute service on a machine needs a state_path of its own.
    """
    os.makedirs(state_path, exist_ok=True)
    return _lasting_uuid(os.path.join(state_path, 'compute_id'))


def storage_id(instances_path: str, create: bool = False) -> str:
    """Return the id of the storage at ``instances_path``.

    Two paths have equal ids if they are the same directory. Return '' if the storage has no id and ``create`` is False.
    """
    path = os.path.join(instances_path, STORAGE_ID)
    return _lasting_uuid(path) if create else _first_line(path)


def show_run(instances_path: str, host: str, run: str) -> None:
    """Write the id of this start of the host's compute service, its run, to the storage.

    Other hosts that use the same storage read the id with ``run_of``.
    """
    path = _run_path(instances_path, host)
    with open(os.open(f'{path}.new', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 'w', encoding='utf-8') as stream:
        stream.write(f'{run}\n')
    os.replace(f'{path}.new', path)


def run_of(instances_path: str, host: str) -> str:
    """Return the id that the compute service of ``host`` wrote to this storage at its last start, or '' if none."""
    return _first_line(_run_path(instances_path, host))


def _run_path(instances_path: str, host: str) -> str:
    return os.path.join(instances_path, f'.host.{host}')

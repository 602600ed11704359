"""The table ``KINDS``, from the kind of an operation to the class of its arguments, and functions that use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova import texts
from kilonova.db.arguments import attachments, moves, releases, servers
from kilonova.db.arguments.base import Arguments

# {kind of operation: class of its arguments}. Kinds of operations without arguments are left out.
KINDS: dict[str, type[Arguments]] = {
    'boot': servers.BootArguments,
    'rebuild': servers.RebuildArguments,
    'reimage': servers.ReimageArguments,
    'stop': servers.StopArguments,
    'reboot': servers.RebootArguments,
    'rescue': servers.RescueArguments,
    'set_admin_password': servers.PasswordArguments,
    'snapshot': servers.SnapshotArguments,
    'backup': servers.BackupArguments,
    'shelve': servers.ShelveArguments,
    'shelve_offload': servers.ShelveOffloadArguments,
    'resume_on_host_boot': servers.HostBootArguments,
    'resize': moves.ResizeArguments,
    'live_migrate': moves.LiveMigrateArguments,
    'evacuate': moves.EvacuateArguments,
    'unshelve': moves.UnshelveArguments,
    'confirm': moves.ConfirmArguments,
    'revert': moves.RevertArguments,
    'soft_delete': moves.SoftDeleteArguments,
    'attach_interface': attachments.AttachInterfaceArguments,
    'detach_interface': attachments.DetachInterfaceArguments,
    'network_changed': attachments.NetworkChangedArguments,
    'attach_volume': attachments.AttachVolumeArguments,
    'detach_volume': attachments.VolumeArguments,
    'volume_extended': attachments.VolumeArguments,
    'swap_volume': attachments.SwapVolumeArguments,
    'volume_snapshot_create': attachments.CreateSnapshotArguments,
    'volume_snapshot_delete': attachments.DeleteSnapshotArguments,
    'release': releases.ReleaseArguments,
    'mirror': releases.SyncAggregateArguments,
    'host_removal': releases.HostRemovalArguments,
}


def read(kind: str, stored: Mapping[str, Any]) -> Arguments:
    """Return the arguments of an operation of this kind from the JSON object of its row."""
    return KINDS.get(kind, Arguments).read(stored)


def of_row(row: Mapping[str, Any]) -> Arguments | None:
    """Return the arguments of a row with the columns ``kind`` and ``args`` (a JSON text), for an audit.

    Returns None if the text can't be read or lacks a required key.
    """
    stored, why = texts.split(row, ['args'])
    found = read(row['kind'], stored['args'])
    return None if why or not found.is_complete else found


def write(kind: str, arguments: Arguments | None) -> dict[str, Any]:
    """Return the JSON object for the row of an operation of this kind. It is empty if ``arguments`` is None.

    Raises TypeError if this kind of operation has another class of arguments.
    """
    if arguments is None:
        return {}
    if not isinstance(arguments, KINDS.get(kind, Arguments)):
        raise TypeError(f'An operation of kind {kind} does not have arguments of class {type(arguments).__name__}')
    return arguments.stored()

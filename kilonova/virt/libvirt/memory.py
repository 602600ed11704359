"""A guest's memory on the host's disk, where libvirt keeps it: [its save directory]/<domain>.save.

    memory.save(guest)        # it is off then, and guest.is_saved()
    guest.start()             # it goes on where it was, and nothing is saved any more
    memory.forget(guest)      # or: its next start begins anew
"""
from __future__ import annotations

import libvirt

from kilonova.virt import driver
from kilonova.virt.libvirt.guest import Guest


def save(guest: Guest) -> None:
    """Save the memory of a guest that runs, and stop it. Raises GuestFailed; it runs on then."""
    try:
        guest.call('managedSave', 0)
    except libvirt.libvirtError as error:
        # Asked again after the connection was lost, it may be saved already.
        if guest.is_active() or not guest.is_saved():
            raise driver.GuestFailed(act='save', uuid=guest.uuid, reason=str(error)) from error


def forget(guest: Guest) -> None:
    """Fine if nothing is saved."""
    if guest.is_saved():
        guest.call('managedSaveRemove', 0)

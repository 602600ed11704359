"""Files behind a disk of a guest that runs: it writes to the first, which gets what it lacks from the next.

    files(guest.xml(), 'vdb')                       # ['/mnt/…/volume-1.s2', '/mnt/…/volume-1.s1', '/mnt/…/volume-1']
    switch(guest, 'vdb', '/mnt/…/volume-1.s3')      # it writes to that one, which reads from the first
    merge(guest, 'vdb', Merge('volume-1.s1', 'volume-1'), check)
    take_back(guest, 'vdb', '/mnt/…/volume-1.s2', check)    # the reverse of switch: what it wrote since is in that

These are libvirt's external snapshots and its block jobs. A job that was begun by a process that is gone is found.
"""
from __future__ import annotations

import os
import time
from collections.abc import Callable
from xml.etree import ElementTree

import libvirt
from oslo_log import log as logging

from kilonova.virt.libvirt.devices import mirrors
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.xml import node, to_text
from kilonova.virt.parts.disks import Check
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.volume_snapshots import Merge

LOG = logging.getLogger(__name__)

# Seconds between two looks at a job, and for how long one is waited for: the volume service waits no longer.
_LOOK, MOST = 0.5, 7200.0
# The file is there, and reads from the disk's by name; libvirt keeps no record of it.
_SWITCH = (libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_DISK_ONLY | libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_NO_METADATA
           | libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_REUSE_EXT)


def files(xml: str, target: str) -> list[str]:
    """Paths, of a domain."""
    return [path for path, _number in _links(xml, target)]


def names(xml: str, target: str) -> list[str]:
    """The same without their directory."""
    return [os.path.basename(path) for path in files(xml, target)]


def _links(xml: str, target: str) -> list[tuple[str, str | None]]:
    """(path, libvirt's number of it)."""
    found: list[tuple[str, str | None]] = []
    for element in ElementTree.fromstring(xml).iterfind('devices/disk'):
        place, link = element.find('target'), element
        if place is None or place.get('dev') != target:
            continue
        while (source := link.find('source')) is not None:
            found.append((source.get('file') or source.get('dev') or '', source.get('index') or link.get('index')))
            below = link.find('backingStore')
            if below is None:
                break
            link = below
    return found


def _number(guest: Guest, target: str, name: str) -> str:
    """What libvirt calls one of the files."""
    for path, number in _links(guest.xml(), target):
        if os.path.basename(path) == name and number:
            return f'{target}[{number}]'
    return name


def switch(guest: Guest, target: str, path: str, must_freeze: bool = False) -> None:
    """The guest writes to ``path`` from now on. Its agent, if it has one, lets it write what it holds back, and hold
    still meanwhile; without that a snapshot is as after a loss of power, unless it ``must_freeze``. GuestFailed."""
    disks = [node('disk', node('driver', type='qcow2'), node('source', file=path), name=target, snapshot='external',
                  type='file') if name == target else node('disk', name=name, snapshot='no')
             for name in _targets(guest.xml())]
    xml = to_text(node('domainsnapshot', node('disks', *disks)))
    try:
        guest.bound_agent()
        try:
            guest.call('snapshotCreateXML', xml, _SWITCH | libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_QUIESCE)
        except libvirt.libvirtError as error:
            if must_freeze or _is_first(guest, target, path):
                raise
            LOG.info('The guest is not asked to write out what it holds of disk %s: %s', target, error,
                     instance_uuid=guest.uuid)
            guest.call('snapshotCreateXML', xml, _SWITCH)
    except libvirt.libvirtError as error:
        # Asked again after the connection was lost, it may have been done.
        if not _is_first(guest, target, path):
            raise GuestFailed(act=f'take a snapshot of disk {target} of', uuid=guest.uuid,
                              reason=str(error)) from error


def _is_first(guest: Guest, target: str, path: str) -> bool:
    return files(guest.xml(), target)[:1] == [path]


def _targets(xml: str) -> list[str]:
    places = (disk.find('target') for disk in ElementTree.fromstring(xml).iterfind('devices/disk'))
    return [place.get('dev', '') for place in places if place is not None]


def merge(guest: Guest, target: str, wanted: Merge, check: Check) -> None:
    """See ``parts.volume_snapshots.Merge``; what ``check()`` raises leaves it going on. GuestFailed."""
    def begin() -> None:
        found = names(guest.xml(), target)
        reason = wanted.why_not(found)
        if reason:
            raise GuestFailed(act=f'merge files of disk {target} of', uuid=guest.uuid, reason=reason)
        if wanted.into is None:
            base = None if wanted.file is None else _number(guest, target, wanted.file)
            guest.call('blockRebase', target, base, 0, libvirt.VIR_DOMAIN_BLOCK_REBASE_RELATIVE if base else 0)
        else:
            guest.call('blockCommit', target, _number(guest, target, wanted.into),
                       _number(guest, target, wanted.file or ''), 0, libvirt.VIR_DOMAIN_BLOCK_COMMIT_RELATIVE)
    _work(guest, target, begin, lambda: wanted.is_done(names(guest.xml(), target)), check)


def take_back(guest: Guest, target: str, path: str, check: Check) -> None:
    """The guest writes to ``path`` again, from which the first file reads; what it wrote to that is in it. GuestFailed,
    and what ``check()`` raises: it writes to the first one still."""
    def begin() -> None:
        guest.call('blockCommit', target, _number(guest, target, os.path.basename(path)), None, 0,
                   libvirt.VIR_DOMAIN_BLOCK_COMMIT_ACTIVE | libvirt.VIR_DOMAIN_BLOCK_COMMIT_RELATIVE)
    if _is_first(guest, target, path):
        return
    _work(guest, target, begin, lambda: mirrors.state(guest.xml(), target) == mirrors.READY, check)
    try:
        mirrors.pivot(guest, target)
    except libvirt.libvirtError as error:
        if not _is_first(guest, target, path):
            raise GuestFailed(act=f'end the snapshot of disk {target} of', uuid=guest.uuid,
                              reason=str(error)) from error


def _work(guest: Guest, target: str, begin: Callable[[], object], is_done: Callable[[], bool],
          check: Check) -> None:
    """A job of the disk is begun, unless one is at work, and waited for."""
    act, begun, end = f'merge files of disk {target} of', False, time.monotonic() + MOST
    while True:
        # Looked at in this order: what a job did is there when it has gone.
        is_working = works(guest, target)
        if is_done():
            return
        if not is_working:
            if begun:
                raise GuestFailed(act=act, uuid=guest.uuid, reason='QEMU ended it, or the guest stopped')
            try:
                begin()
            except libvirt.libvirtError as error:
                # Asked again after the connection was lost, it refuses a second one.
                if not works(guest, target) and not is_done():
                    raise GuestFailed(act=act, uuid=guest.uuid, reason=str(error)) from error
            begun = True
            continue
        check()
        if time.monotonic() >= end:
            end_work(guest, target)
            raise GuestFailed(act=act, uuid=guest.uuid, reason=f'it was not done after {MOST:g} seconds')
        time.sleep(_LOOK)


def works(guest: Guest, target: str) -> bool:
    """Whether a job of the disk is at work."""
    try:
        return bool(guest.call('blockJobInfo', target, 0))
    except libvirt.libvirtError:
        if guest.is_active():
            raise
        return False


def end_work(guest: Guest, target: str) -> None:
    """No job of the disk is at work when this returns; the files are what they were. GuestFailed."""
    try:
        if works(guest, target):
            guest.call('blockJobAbort', target, 0)
    except libvirt.libvirtError as error:
        # It may have ended just now.
        if works(guest, target):
            raise GuestFailed(act=f'end the merge of files of disk {target} of', uuid=guest.uuid,
                              reason=str(error)) from error

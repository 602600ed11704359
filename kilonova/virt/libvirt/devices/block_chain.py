"""The backing chain of a disk of a running guest: read the chain, add a file to it, merge files of it.

    files(guest.xml(), 'vdb')                       # ['/mnt/…/volume-1.s2', '/mnt/…/volume-1.s1', '/mnt/…/volume-1']
    switch(guest, 'vdb', '/mnt/…/volume-1.s3')      # the guest now writes to s3, whose backing file is s2
    merge(guest, 'vdb', Merge('volume-1.s1', 'volume-1'), check)    # write the data of s1 into volume-1
    take_back(guest, 'vdb', '/mnt/…/volume-1.s2', check)    # undo switch: write the data of s3 into s2, and use s2

The guest writes to the first file of the chain. What a file does not contain is read from the next file of the chain.
The functions use libvirt's external snapshots and block jobs. A block job that an earlier process of this service began
is found and continued.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from xml.etree import ElementTree

import libvirt
from oslo_log import log as logging

from kilonova.virt.libvirt.devices import block_copy
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.xml.base import node, to_text
from kilonova.virt.parts.disks import Check
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.volume_snapshots import Merge

LOG = logging.getLogger(__name__)

# Seconds between two checks of a block job.
_LOOK = 0.5
# Time limit in seconds for a block job. The volume service has the same time limit.
MOST = 7200.0
# Flags for a snapshot whose overlay file already exists, and of which libvirt stores no metadata.
_SWITCH = (
    libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_DISK_ONLY
    | libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_NO_METADATA
    | libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_REUSE_EXT
)


def files(xml: str, target: str) -> list[str]:
    """Return the paths of the backing chain of the disk ``target``, such as 'vdb', read from a domain's XML.

    The first is the file that the guest writes to.
    """
    return [path for path, _number in _links(xml, target)]


def names(xml: str, target: str) -> list[str]:
    """Return the file names of the backing chain of the disk ``target``, without directories."""
    return [os.path.basename(path) for path in files(xml, target)]


def _links(xml: str, target: str) -> list[tuple[str, str | None]]:
    """Return pairs (path, libvirt's index of the file) for the backing chain of the disk ``target``."""
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
    """Return libvirt's name, such as 'vdb[2]', of the file ``name`` in the backing chain of the disk ``target``."""
    for path, number in _links(guest.xml(), target):
        if os.path.basename(path) == name and number:
            return f'{target}[{number}]'
    return name


def switch(guest: Guest, target: str, path: str, must_freeze: bool = False) -> None:
    """Make the guest write to the existing file ``path`` from now on, by an external snapshot of its disk ``target``.

    If the guest has an agent, the agent flushes and freezes the file systems during the snapshot. Without an agent, the
    old file is like a disk after a power failure. With ``must_freeze`` the switch fails if the file systems cannot be
    frozen. Raises GuestFailed if the guest still writes to the old file.
    """
    disks = [
        node(
            'disk',
            node('driver', type='qcow2'),
            node('source', file=path),
            name=target,
            snapshot='external',
            type='file',
        )
        if name == target
        else node('disk', name=name, snapshot='no')
        for name in _targets(guest.xml())
    ]
    xml = to_text(node('domainsnapshot', node('disks', *disks)))
    try:
        guest.bound_agent()
        try:
            guest.call('snapshotCreateXML', xml, _SWITCH | libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_QUIESCE)
        except libvirt.libvirtError as error:
            if must_freeze or _is_first(guest, target, path):
                raise
            LOG.info(
                'Taking the snapshot of disk %s without freezing the file systems in the guest: %s',
                target,
                error,
                instance_uuid=guest.uuid,
            )
            guest.call('snapshotCreateXML', xml, _SWITCH)
    except libvirt.libvirtError as error:
        # Ignore the error if the snapshot exists: the first call's answer was lost, and only its repetition failed.
        if not _is_first(guest, target, path):
            raise GuestFailed(act=f'take a snapshot of disk {target} of', uuid=guest.uuid, reason=str(error)) from error


def _is_first(guest: Guest, target: str, path: str) -> bool:
    return files(guest.xml(), target)[:1] == [path]


def _targets(xml: str) -> list[str]:
    places = (disk.find('target') for disk in ElementTree.fromstring(xml).iterfind('devices/disk'))
    return [place.get('dev', '') for place in places if place is not None]


def merge(guest: Guest, target: str, wanted: Merge, check: Check) -> None:
    """Merge files of the running guest's disk ``target``, as ``wanted`` describes. Wait for the end of the block job.

    ``check`` is called again and again during the wait. An exception that it raises ends the wait, but not the block
    job. Raises GuestFailed if the merge is impossible or fails.
    """

    def begin() -> None:
        found = names(guest.xml(), target)
        reason = wanted.why_not(found)
        if reason:
            raise GuestFailed(act=f'merge files of disk {target} of', uuid=guest.uuid, reason=reason)
        if wanted.into is None:
            base = None if wanted.file is None else _number(guest, target, wanted.file)
            guest.call('blockRebase', target, base, 0, libvirt.VIR_DOMAIN_BLOCK_REBASE_RELATIVE if base else 0)
        else:
            guest.call(
                'blockCommit',
                target,
                _number(guest, target, wanted.into),
                _number(guest, target, wanted.file or ''),
                0,
                libvirt.VIR_DOMAIN_BLOCK_COMMIT_RELATIVE,
            )

    _work(guest, target, begin, lambda: wanted.is_done(names(guest.xml(), target)), check)


def take_back(guest: Guest, target: str, path: str, check: Check) -> None:
    """Undo ``switch``: commit the overlay that the guest writes to into its backing file ``path``, and pivot to it.

    Raises GuestFailed if the block commit fails, and whatever ``check()`` raises. After an error the guest still writes
    to the overlay.
    """

    def begin() -> None:
        guest.call(
            'blockCommit',
            target,
            _number(guest, target, os.path.basename(path)),
            None,
            0,
            libvirt.VIR_DOMAIN_BLOCK_COMMIT_ACTIVE | libvirt.VIR_DOMAIN_BLOCK_COMMIT_RELATIVE,
        )

    if _is_first(guest, target, path):
        return
    _work(guest, target, begin, lambda: block_copy.state(guest.xml(), target) == block_copy.READY, check)
    try:
        block_copy.pivot(guest, target)
    except libvirt.libvirtError as error:
        if not _is_first(guest, target, path):
            raise GuestFailed(
                act=f'end the snapshot of disk {target} of', uuid=guest.uuid, reason=str(error)
            ) from error


def _work(guest: Guest, target: str, begin: Callable[[], object], is_done: Callable[[], bool], check: Check) -> None:
    """Start a block job of the disk ``target``, unless a job is already running, and wait until the job is done.

    ``begin()`` starts the job, and ``is_done()`` returns whether it has done its work. ``check()`` is called during the
    wait, and an exception that it raises ends the wait.
    """
    act, begun, end = f'merge files of disk {target} of', False, time.monotonic() + MOST
    while True:
        # ``works`` returns whether libvirt still runs the job, ``is_done`` whether the chain has the job's result.
        # ``works`` must be called first: a job that ends between the two calls is then found done, and not failed.
        is_working = works(guest, target)
        if is_done():
            return
        if not is_working:
            if begun:
                raise GuestFailed(act=act, uuid=guest.uuid, reason='QEMU ended the block job, or the guest stopped')
            try:
                begin()
            except libvirt.libvirtError as error:
                # Ignore the error if the job runs or is done: the answer to the first call was lost, the second failed.
                if not works(guest, target) and not is_done():
                    raise GuestFailed(act=act, uuid=guest.uuid, reason=str(error)) from error
            begun = True
            continue
        check()
        if time.monotonic() >= end:
            end_work(guest, target)
            raise GuestFailed(act=act, uuid=guest.uuid, reason=f'the block job did not end within {MOST:g} seconds')
        time.sleep(_LOOK)


def works(guest: Guest, target: str) -> bool:
    """Return True if a block job of the guest's disk ``target`` is running."""
    try:
        return bool(guest.call('blockJobInfo', target, 0))
    except libvirt.libvirtError:
        if guest.is_active():
            raise
        return False


def end_work(guest: Guest, target: str) -> None:
    """End the block job of the guest's disk ``target``, if one is running. The backing chain keeps its files.

    Raises GuestFailed if the job is still running afterwards.
    """
    try:
        if works(guest, target):
            guest.call('blockJobAbort', target, 0)
    except libvirt.libvirtError as error:
        # libvirt also reports an error if the job ended before blockJobAbort. This error is ignored: the job is over.
        if works(guest, target):
            raise GuestFailed(
                act=f'end the merge of files of disk {target} of', uuid=guest.uuid, reason=str(error)
            ) from error

"""Turn the files of a host of Nova into those of a host of Kilonova, and back, while its guests run on.

    plan = host.plan(place, guests)             # guests: {uuid: XML} of the domains of this host
    if not plan.problems:
        host.adopt(plan)
    host.give_back(place)

No guest and no disk is touched. In each server's directory, disk.info is written in the form of the other
program, by one rename, and the file ``owner`` gets the host's name. After an interruption, run the function again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from oslo_config import cfg

from kilonova import errors
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.hostinfo import settings
from kilonova.virt.libvirt.storage import files
from kilonova.virt.libvirt.storage.instance import CONFIG, DOMAIN_XML, INFO, KEPT, MOVE, OWNER
from kilonova.virt.libvirt.storage.rescue import NOTE

# Formats of disks in disk.info.
FORMATS = ('raw', 'qcow2')
IDENTITY = 'compute_id'
# The file in instances_path in which each nova-compute records that it uses the directory.
# On a shared file system the file names several hosts.
USERS = 'compute_nodes'
# The most bytes of a file that is read.
MOST_BYTES = 1 << 20
_UUID = re.compile(r'[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}')
# The file with which a compute of Nova leaves the rescue system.
_RESCUED = 'unrescue' + '.xml'
_NOVA = '{http://openstack.org/xmlns/libvirt/nova/1.1}instance'
# Elements of a domain that Kilonova does not write, and what they are.
REFUSED: Mapping[str, str] = {
    './devices/tpm': 'an emulated TPM',
    './devices/filesystem': 'a file share',
    './devices/memory': 'persistent or added memory',
    './launchSecurity': 'encrypted memory',
    "./devices/disk[@type='file']/encryption": 'an encrypted disk',
    "./devices/disk[@type='file']/source/encryption": 'an encrypted disk',
}
# Files that Kilonova writes into a server's directory and that Nova does not know.
OURS = (OWNER, DOMAIN_XML, MOVE, NOTE)


class HostUnusable(errors.Invalid):
    """A file of the host can't be read or has another form than Nova's or Kilonova's."""

    msg_fmt = '%(path)s: %(reason)s'


@dataclass(frozen=True)
class HostFiles:
    """The directories of a host with files of Nova and of Kilonova.

    Attributes:
        host: The name of the host, [DEFAULT]host.
        instances: The directory with the servers' directories, [DEFAULT]instances_path, the same for both.
        nova_state: Nova's [DEFAULT]state_path.
        state: Kilonova's [DEFAULT]state_path.
    """

    host: str
    instances: Path
    nova_state: Path
    state: Path


@dataclass
class Plan:
    """The changes to make on a host, the obstacles to them, and notes for the operator.

    Attributes:
        place: The directories of the host.
        infos: {path of a disk.info: its new text}.
        owned: The servers' directories that get a file ``owner`` with this host's name.
        identity: The uuid to write into Kilonova's file compute_id, or None if nothing must be written.
        problems: The obstacles to the changes, a sentence each.
        notes: Notes for the operator that prevent nothing, a sentence each.
    """

    place: HostFiles
    infos: dict[Path, str] = field(default_factory=dict)
    owned: list[Path] = field(default_factory=list)
    identity: str | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def plan(place: HostFiles, guests: Mapping[str, str]) -> Plan:
    """Return what has to be done on a host. Nothing is changed.

    ``guests`` is {uuid: XML} of all domains of the host.
    """
    found = Plan(place)
    _plan_identity(found)
    for uuid, xml in sorted(guests.items()):
        _look_at_guest(found, uuid, xml)
    for directory, uuid, suffix in _directories(place.instances):
        _plan_directory(found, directory, uuid, suffix, guests)
    others = _other_users(place)
    if others:
        found.notes.append(
            f'{place.instances} is shared with {", ".join(others)}: only the directories of guests of this host get '
            f'{place.host} as their owner; adopt all of these hosts before any of them starts'
        )
    return found


def _plan_identity(found: Plan) -> None:
    path, own = found.place.nova_state / IDENTITY, found.place.state / IDENTITY
    if not path.is_file():
        found.problems.append(
            f'{path} does not exist: Nova keeps the uuid of the node there, and Placement knows the host by it. Is '
            '[DEFAULT]state_path the one of nova-compute?'
        )
        return
    theirs, ours = _first_line(path), _first_line(own) if own.is_file() else None
    if not _UUID.fullmatch(theirs):
        found.problems.append(f'{path} has no uuid')
    elif ours is None:
        found.identity = theirs
    elif ours != theirs:
        found.problems.append(
            f'{own} has another uuid ({ours}) than {path} ({theirs}): Kilonova has already made a node of its own '
            f'here. Delete that node and {own}'
        )


def _look_at_guest(found: Plan, uuid: str, xml: str) -> None:
    try:
        domain = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        found.problems.append(f'domain {uuid}: its XML cannot be read: {error}')
        return
    name = domain.findtext('name') or uuid
    if domain.find(f'./metadata/{_NOVA}') is None:
        found.notes.append(f'domain {name} ({uuid}) is none of Nova: it is left alone')
        return
    for path, what in REFUSED.items():
        if domain.find(path) is not None:
            found.problems.append(f'server {uuid} ({name}) has {what}, which Kilonova does not give')
            break
    for disk in domain.iterfind('./devices/disk/source'):
        if disk.get('protocol') == 'rbd' and f'{uuid}_disk' in (disk.get('name') or ''):
            found.problems.append(f'server {uuid} ({name}) has its disks in Ceph, which cannot be adopted yet')
            break


def _plan_directory(found: Plan, directory: Path, uuid: str, suffix: str, guests: Mapping[str, str]) -> None:
    if suffix and (directory.parent / uuid).is_dir():
        found.problems.append(
            f'server {uuid} waits for the confirmation of a resize on this same host: confirm or revert it first'
        )
    if not suffix:
        _plan_owner(found, directory, uuid, guests)
    path = directory / INFO
    if path.is_file():
        try:
            text = json.dumps(_formats(path))
        except HostUnusable as error:
            found.problems.append(str(error))
            return
        if text != _read(path):
            found.infos[path] = text


def _plan_owner(found: Plan, directory: Path, uuid: str, guests: Mapping[str, str]) -> None:
    if (directory / _RESCUED).exists() and not (directory / NOTE).exists():
        found.notes.append(
            f'server {uuid} runs its rescue system: after a boot of the host its own disk starts. Unrescue it first'
        )
    if uuid in guests:
        found.owned.append(directory)
    else:
        found.notes.append(f'{directory} has no domain on this host: it gets no owner')


def _formats(path: Path) -> dict[str, str]:
    """Return {file name of a disk: format} for the existing disks that a disk.info lists.

    Nova's disk.info has paths as its keys, Kilonova's has file names. An existing disk.config is always included.
    """
    try:
        stored = json.loads(_read(path) or '{}')
    except ValueError as error:
        raise HostUnusable(path=path, reason=f'this is no JSON: {error}') from None
    if not isinstance(stored, dict):
        raise HostUnusable(path=path, reason='this is no JSON object from disk to format')
    found = {}
    for key, format_ in stored.items():
        if format_ not in FORMATS:
            raise HostUnusable(path=path, reason=f'{key} has the format {format_!r}; {" and ".join(FORMATS)} are known')
        name = os.path.basename(key)
        if (path.parent / name).exists():
            found[name] = format_
    if (path.parent / CONFIG).exists():
        found.setdefault(CONFIG, 'raw')
    return found


def adopt(plan: Plan) -> None:
    """Make the changes of a plan.

    Raises ValueError if the plan has problems, and OSError if a file can't be written.
    """
    if plan.problems:
        raise ValueError('a plan with problems is not carried out')
    place = plan.place
    if plan.identity is not None:
        place.state.mkdir(parents=True, exist_ok=True)
        files.write_whole(str(place.state / IDENTITY), f'{plan.identity}\n')
    for directory in plan.owned:
        if not (directory / OWNER).is_file() or _read(directory / OWNER) != place.host:
            _write(directory / OWNER, place.host)
    # disk.info is written last. After an interruption, the next run finds those in Nova's form and converts them.
    for path, text in plan.infos.items():
        _write(path, text)


def give_back(place: HostFiles) -> int:
    """Give each disk.info Nova's form, delete the files that only Kilonova has, and return the number of disk.infos.

    Servers that were created by Kilonova are included. Raises HostUnusable before anything is changed if a file can't
    be read. Raises OSError if a file can't be written.
    """
    texts = {}
    for directory, uuid, _ in _directories(place.instances):
        path = directory / INFO
        if path.is_file():
            # The disk.info in <uuid>_resize has paths in <uuid>, too, because a revert renames the directory to <uuid>.
            home = place.instances / uuid
            formats = {name: format_ for name, format_ in _formats(path).items() if name != CONFIG}
            texts[path] = json.dumps({str(home / name): format_ for name, format_ in formats.items()})
    for path, text in texts.items():
        if text != _read(path):
            _write(path, text, 0o644)
        for name in OURS:
            with contextlib.suppress(FileNotFoundError):
                (path.parent / name).unlink()
    return len(texts)


def guests_of(conf: cfg.ConfigOpts) -> dict[str, str]:
    """Return {uuid: XML} of all domains of this host. Raises HypervisorUnavailable."""
    connection = Connection(settings.connection_uri(conf), conf.host)
    return {guest.uuid: guest.xml() for guest in connection.guests()}


def running(program: str, processes: Path = Path('/proc')) -> int | None:
    """Return the process id of a program that runs on this machine, or None."""
    for entry in sorted(processes.glob('[0-9]*/cmdline')):
        try:
            words = entry.read_bytes().split(b'\0')
        except OSError:
            continue
        if program in {os.path.basename(os.fsdecode(word)) for word in words[:3]}:
            return int(entry.parent.name)
    return None


def _directories(instances: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield (path, uuid, suffix) of the servers' directories, sorted. ``suffix`` is '' or '_resize'.

    Raises HostUnusable if ``instances`` can't be listed.
    """
    try:
        entries = sorted(instances.iterdir())
    except OSError as error:
        raise HostUnusable(path=instances, reason=error.strerror or str(error)) from None
    for entry in entries:
        uuid = entry.name.removesuffix(KEPT)
        if _UUID.fullmatch(uuid) and entry.is_dir():
            yield entry, uuid, entry.name.removeprefix(uuid)


def _other_users(place: HostFiles) -> Sequence[str]:
    """Return the other hosts that use the same instances_path, sorted. The file ``compute_nodes`` in it names them."""
    path = place.instances / USERS
    if not path.is_file():
        return ()
    try:
        users = json.loads(_read(path))
    except ValueError:
        return ()
    return sorted(map(str, users.keys() - {place.host})) if isinstance(users, dict) else ()


def _read(path: Path) -> str:
    try:
        with path.open(encoding='utf-8') as file:
            return file.read(MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise HostUnusable(path=path, reason=str(error)) from None


def _first_line(path: Path) -> str:
    return _read(path).partition('\n')[0].strip()


def _write(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a text file atomically, and give it the owner and group of its directory.

    The directory belongs to the account that runs nova-compute or kilonova-compute.
    """
    files.write_whole(str(path), text, mode)
    owner = path.parent.stat()
    if (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(path, owner.st_uid, owner.st_gid)

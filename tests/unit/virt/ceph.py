"""A cluster of Ceph as the programs rbd and ceph tell of it, for tests without one: exit codes and texts are those of
16.2. Only the first two MiB of images are kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kilonova.virt import command

FSID = '0e7d7f4e-6f0c-4f5e-9d0a-0d0a4f2b6f11'
SECRET = '7c1a4b9e-5f0d-4f7e-8a7b-2f0f3a1b9c56'
OPTIONS = {
    'images_type': 'rbd',
    'images_rbd_pool': 'vms',
    'rbd_user': 'nova',
    'rbd_secret_uuid': SECRET,
    'images_rbd_ceph_conf': '/etc/ceph/vms.conf',
    'rbd_destroy_volume_retry_interval': 0,
}
_KEPT = 2 << 20
_AT, _LENGTH = 1 << 20, 64 << 10


@dataclass
class Image:
    """``opened``: how many more looks find somebody who has it open."""

    size: int
    data: bytearray
    parent: str | None = None
    meta: dict[str, str] = field(default_factory=dict)
    snaps: dict[str, tuple[int, bytearray]] = field(default_factory=dict)
    opened: int = 0


class Cluster:
    """``images`` by pool/name; ``lines``: what rbd was asked; ``silent``: nobody answers; ``free``: bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images: dict[str, Image] = {}
        self.lines: list[str] = []
        self.silent = False
        self.free = 100 << 30
        self._run, self._watched = command.run, command.watched
        monkeypatch.setattr(command, 'run', self.run)
        monkeypatch.setattr(command, 'watched', self.watched)

    def run(self, *argv: str) -> str:
        if argv[0] != 'timeout':
            return self._run(*argv)
        assert argv[1] == '--kill-after=5' and int(argv[2]) > 0, 'each command has an end'
        program, rest = argv[3], list(argv[4:])
        assert rest[:4] == ['--id', 'nova', '--conf', '/etc/ceph/vms.conf']
        rest = rest[4:]
        if self.silent:
            raise _failed(2, f"{program}: couldn't connect to the cluster!")
        if program == 'ceph':
            assert rest[:4] == ['--connect-timeout', '5', '--format', 'json']
            return json.dumps(self._ceph(rest[4:]))
        assert rest[:6] == [
            '--client-mount-timeout',
            '5',
            '--rados-mon-op-timeout',
            '5',
            '--rados-osd-op-timeout',
            '60',
        ]
        return self._rbd([each for each in rest[6:] if each != '--no-progress'])

    def watched(self, check: Callable[[], None], *argv: str) -> None:
        """qemu-img, which reads a snapshot."""
        source = next((each for each in argv if each.startswith('rbd:')), None)
        if source is None:
            self._watched(check, *argv)
            return
        path, _, said = source.removeprefix('rbd:').partition(':')
        assert said == (
            'id=nova:conf=/etc/ceph/vms.conf:client_mount_timeout=5:rados_mon_op_timeout=5:rados_osd_op_timeout=60'
        )
        size, data = self._snap(path)
        raw = Path(argv[-1]).with_name('of-the-snapshot')
        with raw.open('wb') as stream:
            stream.write(data)
            stream.truncate(size)
        self._watched(check, *(str(raw) if each == source else each for each in argv))
        raw.unlink()

    def write(self, name: str, pattern: int = 0x5A) -> None:
        """What a guest does: 64 KiB of ``pattern`` at 1 MiB."""
        self.images[name].data[_AT : _AT + _LENGTH] = bytes([pattern]) * _LENGTH

    def has(self, name: str, pattern: int = 0x5A) -> bool:
        return bytes(self.images[name].data[_AT : _AT + _LENGTH]) == bytes([pattern]) * _LENGTH

    def of(self, uuid: str) -> list[str]:
        """Names of a server's disks in the pool."""
        return sorted(name.partition('_')[2] for name in self.images if name.startswith(f'vms/{uuid}_'))

    def host(self, name: str) -> str:
        """Whose an image is."""
        found: str = json.loads(self.images[name].meta['kilonova'])['host']
        return found

    # -- programs -----------------------------------------------------------------------------------------------------
    def _ceph(self, words: list[str]) -> Any:
        if words == ['mon', 'dump']:
            addresses = [{'type': 'v2', 'addr': '192.0.2.1:3300'}, {'type': 'v1', 'addr': '192.0.2.1:6789'}]
            return {
                'fsid': FSID,
                'mons': [
                    {'name': 'a', 'public_addrs': {'addrvec': addresses}},
                    {'name': 'b', 'public_addrs': {'addrvec': [{'type': 'v2', 'addr': '[2001:db8::2]:3300'}]}},
                ],
            }
        assert words == ['df']
        return {
            'pools': [{'name': 'vms', 'stats': {'stored': 28 << 30, 'bytes_used': 84 << 30, 'max_avail': self.free}}]
        }

    def _rbd(self, words: list[str]) -> str:
        self.lines.append(' '.join(words))
        if words[0] == 'snap':
            self._snapshot(*words[1:])
            return ''
        found: str | None = getattr(self, '_' + words[0].replace('-', '_'))(*words[1:])
        return found or ''

    def _snapshot(self, act: str, path: str) -> None:
        name, _, snap = path.partition('@')
        image = self._image(name)
        if act == 'purge':
            image.snaps.clear()
        elif act == 'create':
            if snap in image.snaps:
                raise _failed(17, 'rbd: failed to create snapshot: (17) File exists')
            image.snaps[snap] = image.size, deepcopy(image.data)
        else:
            size, data = self._snap(path)
            if act == 'rollback':
                image.size, image.data = size, deepcopy(data)
            else:
                assert act == 'rm'
                del image.snaps[snap]

    def _image(self, name: str) -> Image:
        if name not in self.images:
            if name.startswith('secret/'):
                raise _failed(
                    13,
                    '2026-11-26T12:08:04.695+0000 7fbfa3397380 -1 auth: unable\n'
                    "rbd: couldn't connect to the cluster!\nrbd: info: (13) Permission denied",
                )
            if not name.startswith(('vms/', 'images/')):
                raise _failed(2, f"rbd: error opening pool '{name.partition('/')[0]}': (2) No such file or directory")
            raise _failed(2, f'rbd: error opening image {name}: (2) No such file or directory')
        return self.images[name]

    def _snap(self, path: str) -> tuple[int, bytearray]:
        name, _, snap = path.partition('@')
        found = self._image(name).snaps.get(snap)
        if found is None:
            raise _failed(2, f'rbd: failed to find snapshot {path}: (2) No such file or directory')
        return found

    def _info(self, _format: str, json_: str, path: str) -> str:
        assert (_format, json_) == ('--format', 'json')
        if '@' in path:
            return json.dumps({'size': self._snap(path)[0]})
        image = self._image(path)
        parent = dict(zip(('pool', 'image'), (image.parent or '').partition('@')[0].split('/'), strict=False))
        return json.dumps({'size': image.size, **({'parent': parent} if image.parent else {})})

    def _du(self, _format: str, _json: str, path: str) -> str:
        return json.dumps({'images': [{'name': path, 'used_size': len(bytes(self._image(path).data).rstrip(b'\0'))}]})

    def _ls(self, _format: str, _json: str, pool: str) -> str:
        return json.dumps([name.partition('/')[2] for name in self.images if name.startswith(f'{pool}/')])

    def _import(self, _option: str, format_: str, path: str, name: str) -> None:
        assert format_ == '2' and name not in self.images
        with open(path, 'rb') as stream:
            data = bytearray(stream.read(_KEPT).ljust(_KEPT, b'\0'))
        self.images[name] = Image(Path(path).stat().st_size, data)

    def _clone(self, parent: str, name: str) -> None:
        assert name not in self.images
        size, data = self._snap(parent)
        self.images[name] = Image(size, deepcopy(data), parent)

    def _resize(self, _option: str, size: str, name: str) -> None:
        image = self._image(name)
        assert size.endswith('M') and int(size[:-1]) << 20 > image.size, 'it shrinks'
        image.size = int(size[:-1]) << 20

    def _rm(self, name: str) -> None:
        image = self._image(name)
        if image.opened:
            image.opened -= 1
            raise _failed(16, 'rbd: error: image still has watchers')
        if image.snaps:
            raise _failed(39, "rbd: image has snapshots - these must be deleted with 'rbd snap purge'")
        del self.images[name]

    def _image_meta(self, act: str, name: str, key: str, value: str = '') -> str:
        image = self._image(name)
        if act == 'set':
            image.meta[key] = value
        elif key not in image.meta:
            raise _failed(2, f'failed to get metadata {key} of image : (2) No such file or directory')
        return image.meta[key]


def _failed(code: int, said: str) -> command.CommandFailed:
    failed = command.CommandFailed(command='timeout', reason=said)
    failed.exit_code, failed.said = code, said
    return failed

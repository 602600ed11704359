"""The public images: ``demo``, a small qcow2 disk, and those of the guest that boots. Each is uploaded once.

ensure_image(glance_url, token, layout)
ensure_guest(glance_url, token, guest)      # guest; guest-kernel, guest-ramdisk, guest-direct
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from tools.cloud.http import call, send
from tools.cloud.layout import CloudError, Layout
from tools.guest.image import COMMAND_LINE, Guest

NAME = 'demo'
SIZE = '64M'


def make_disk(path: Path) -> None:
    """Make a 64 MiB qcow2 whose first MiB is written, so that a copy of it differs from an empty disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix('.new')
    for argv in (
        ['qemu-img', 'create', '-q', '-f', 'qcow2', str(aside), SIZE],
        ['qemu-io', '-f', 'qcow2', '-c', 'write -q -P 0x4b 0 1M', str(aside)],
    ):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CloudError(f'{argv[0]} failed: {done.stderr.strip()}')
    aside.replace(path)


def ensure_image(url: str, token: str, layout: Layout, name: str = NAME) -> bool:
    """Upload the disk as an image of this name unless it is there; says whether it had to."""
    disk = layout.data('glance') / 'demo.qcow2'
    if not disk.exists():
        make_disk(disk)
    return _ensure(url, token, name, disk, disk_format='qcow2', min_disk=1, min_ram=64)[1]


def ensure_guest(url: str, token: str, guest: Guest) -> bool:
    """Upload the guest's images unless they are there; says whether it had to upload any."""
    kernel, one = _ensure(url, token, 'guest-kernel', guest.kernel, disk_format='aki', container_format='aki')
    ramdisk, two = _ensure(url, token, 'guest-ramdisk', guest.ramdisk, disk_format='ari', container_format='ari')
    needs = {'min_disk': 1, 'min_ram': 96}
    three = _ensure(url, token, 'guest', guest.disk, disk_format='qcow2', **needs)[1]
    four = _ensure(
        url,
        token,
        'guest-direct',
        guest.blank,
        disk_format='qcow2',
        kernel_id=kernel,
        ramdisk_id=ramdisk,
        os_command_line=f'{COMMAND_LINE} direct=1',
        **needs,
    )[1]
    return one or two or three or four


def ensure_system(url: str, token: str, disk: Path, name: str, **more: str) -> str:
    """Upload the disk of the guest that one can log in to as an image of this name, unless it is there.

    Returns the image's id.
    """
    return _ensure(url, token, name, disk, disk_format='qcow2', min_disk=1, min_ram=96, **more)[0]


def _ensure(url: str, token: str, name: str, path: Path, **fields: str | int) -> tuple[str, bool]:
    """Upload a file as an image unless it is there; return the image's id and whether it was uploaded.

    It is uploaded if the image does not exist, has other fields, or an upload was cut short.
    """
    content = path.read_bytes()
    checksum = hashlib.md5(content, usedforsecurity=False).hexdigest()
    for row in call('GET', f'{url}/v2/images?name={name}', token=token).data['images']:
        if (row['status'], row['checksum']) == ('active', checksum) and all(
            row.get(field) == value for field, value in fields.items()
        ):
            return str(row['id']), False
        call('DELETE', f'{url}/v2/images/{row["id"]}', token=token)
    wanted = {'name': name, 'visibility': 'public', 'container_format': 'bare', **fields}
    image = str(call('POST', f'{url}/v2/images', wanted, token=token).data['id'])
    reply = send(
        'PUT',
        f'{url}/v2/images/{image}/file',
        data=content,
        headers={'X-Auth-Token': token, 'Content-Type': 'application/octet-stream'},
    )
    if reply.status != 204:
        raise CloudError(f'Glance refused the image {name}: {reply.status} {reply.body[:300].decode(errors="replace")}')
    return image, True

"""The public image ``demo``: a small qcow2 disk, uploaded once.

    ensure_image(glance_url, token, layout)
"""
from __future__ import annotations

import subprocess
from pathlib import Path

from tools.cloud.http import call, send
from tools.cloud.layout import CloudError, Layout

NAME = 'demo'
SIZE = '64M'


def make_disk(path: Path) -> None:
    """A 64 MiB qcow2 whose first MiB is written, so that a copy of it can be told from an empty disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix('.new')
    for argv in (['qemu-img', 'create', '-q', '-f', 'qcow2', str(aside), SIZE],
                 ['qemu-io', '-f', 'qcow2', '-c', 'write -q -P 0x4b 0 1M', str(aside)]):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CloudError(f'{argv[0]} failed: {done.stderr.strip()}')
    aside.replace(path)


def ensure_image(url: str, token: str, layout: Layout) -> bool:
    """Upload the image unless it is there; says whether it had to."""
    for row in call('GET', f'{url}/v2/images?name={NAME}', token=token).data['images']:
        if row['status'] == 'active':
            return False
        # What an upload that was cut short left.
        call('DELETE', f'{url}/v2/images/{row["id"]}', token=token)
    disk = layout.data('glance') / 'demo.qcow2'
    if not disk.exists():
        make_disk(disk)
    fields = {'name': NAME, 'visibility': 'public', 'disk_format': 'qcow2', 'container_format': 'bare',
              'min_disk': 1, 'min_ram': 64}
    image = call('POST', f'{url}/v2/images', fields, token=token).data['id']
    reply = send('PUT', f'{url}/v2/images/{image}/file', data=disk.read_bytes(),
                 headers={'X-Auth-Token': token, 'Content-Type': 'application/octet-stream'})
    if reply.status != 204:
        raise CloudError(f'Glance refused the image: {reply.status} {reply.body[:300].decode(errors="replace")}')
    return True

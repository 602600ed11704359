"""The config drive: a CD or a disk from which a guest's cloud-init reads its metadata without any network.

    if required(conf, instance, image_meta):
        files = content(GuestFacts.of(instance, 'novalocal'), vendor, files=files)
        build(path, files, Format('iso9660', 'genisoimage'))

The drive has the files of the metadata service in all its versions, the vendor data, and the files and the admin
password that the user gave.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oslo_config import cfg
from oslo_utils import strutils

from kilonova import errors, objects
from kilonova.clients.vendordata import Vendordata
from kilonova.virt import command, guest_metadata
from kilonova.virt.guest_metadata import GuestFacts
from kilonova.virt.libvirt.storage import disk, files
from kilonova.virt.parts.disks import ImageMeta

_LABEL = 'config-2'
# Size in bytes of a config drive that is a disk.
SIZE = 64 << 20


class ConfigDriveFailed(errors.KilonovaError):
    """The program that builds config drives is missing or has failed."""

    msg_fmt = 'Could not build the config drive with %(program)s: %(reason)s'


@dataclass(frozen=True)
class Format:
    """The format of config drives, from [DEFAULT]config_drive_format (iso9660 or vfat) and mkisofs_cmd."""

    name: str = 'iso9660'
    mkisofs: str = 'genisoimage'

    @property
    def device(self) -> str:
        """The kind of device that the guest sees: 'disk' for vfat, otherwise 'cdrom'."""
        return 'disk' if self.name == 'vfat' else 'cdrom'


def required(conf: cfg.ConfigOpts, instance: objects.Instance, image_meta: ImageMeta) -> bool:
    """Return True if a server must have a config drive.

    Each of these is sufficient: the user requested a config drive, the image has img_config_drive=mandatory, or
    [DEFAULT]force_config_drive is set.
    """
    wish = (image_meta.get('properties') or {}).get('img_config_drive')
    return (
        conf.force_config_drive
        or wish == 'mandatory'
        or strutils.bool_from_string(getattr(instance, 'config_drive', None))
    )


def content(
    about: GuestFacts, vendor: Vendordata, *, admin_password: str | None = None, files: Sequence[tuple[str, str]] = ()
) -> dict[str, bytes]:
    """Return a dict from path to content of the config drive's files.

    ``about`` has the server's metadata, and ``vendor`` reads the vendor data. ``files`` are pairs of a path in the
    guest and the content in base64. Raises VendordataFailed if the vendor data cannot be read.
    """
    found: dict[str, bytes] = {}
    more: dict[str, Any] = {'admin_pass': admin_password} if admin_password else {}
    for number, (path, encoded) in enumerate(files):
        name = f'content/{number:04}'
        more.setdefault('files', []).append({'path': path, 'content_path': f'/{name}'})
        found[f'openstack/{name}'] = base64.b64decode(encoded)
    vendors = {
        'vendor_data.json': json.dumps(vendor.static()).encode(),
        'vendor_data2.json': json.dumps(vendor.all(guest_metadata.question(about))).encode(),
    }
    for version in (*guest_metadata.VERSIONS, guest_metadata.LATEST):
        for name, data in guest_metadata.openstack(about, version, **more).items():
            found[f'openstack/{version}/{name}'] = data
        for name in guest_metadata.vendor_files(version):
            found[f'openstack/{version}/{name}'] = vendors[name]
    for version in (guest_metadata.EC2_VERSIONS[-1], guest_metadata.LATEST):
        found[f'ec2/{version}/meta-data.json'] = json.dumps(guest_metadata.ec2(about)).encode()
        if about.user_data:
            found[f'ec2/{version}/user-data'] = about.user_data
    return found


def build(path: str, tree: dict[str, bytes], format_: Format) -> None:
    """Write a config drive with the files ``tree``, a dict from path to content, to the file ``path``.

    Raises ConfigDriveFailed if the program that builds the drive fails. An existing file at ``path`` is not changed in
    this case.
    """
    aside = f'{path}.new'
    # The drive may contain the admin password, so only the file's owner may read it.
    # A file that an earlier try left is deleted, because it might have other permissions.
    files.remove(aside)
    scratch = tempfile.mkdtemp(prefix='.configdrive-', dir=os.path.dirname(path))
    try:
        for name, data in tree.items():
            target = os.path.join(scratch, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, 'wb') as stream:
                stream.write(data)
        if format_.name == 'vfat':
            disk.create_blank(aside, SIZE, 'mkfs.vfat', '-n', _LABEL)
            command.run('mcopy', '-s', '-Q', '-i', aside, *(entry.path for entry in os.scandir(scratch)), '::')
        else:
            command.run(
                *shlex.split(format_.mkisofs),
                '-o',
                aside,
                '-ldots',
                '-allow-lowercase',
                '-allow-multidot',
                '-l',
                '-quiet',
                '-J',
                '-r',
                '-V',
                _LABEL,
                scratch,
            )
    except command.CommandFailed as error:
        files.remove(aside)
        raise ConfigDriveFailed(program=error.fields['command'], reason=error.fields['reason']) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    os.replace(aside, path)

"""The config drive: a CD from which a guest's cloud-init reads who it is, without any network.

    if required(conf, instance, image_meta):
        build(path, content(instance, admin_password, files), program='genisoimage')
"""
from __future__ import annotations

import base64
import json
import os
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg
from oslo_utils import strutils

from kilonova import errors, objects
from kilonova.virt.driver import ImageMeta
from kilonova.virt.libvirt.storage import command, files

_LABEL = 'config-2'
# cloud-init takes the newest version that it knows, else latest.
_VERSIONS = ('2018-08-27', 'latest')


class ConfigDriveFailed(errors.KilonovaError):
    """The program that builds config drives is missing, or refused."""

    msg_fmt = 'Could not build the config drive with %(program)s: %(reason)s'


def required(conf: cfg.ConfigOpts, instance: objects.Instance, image_meta: ImageMeta) -> bool:
    """Whether user, image (img_config_drive=mandatory) or host ([DEFAULT]force_config_drive) want one."""
    wish = (image_meta.get('properties') or {}).get('img_config_drive')
    return conf.force_config_drive or wish == 'mandatory' or strutils.bool_from_string(
        getattr(instance, 'config_drive', None))


def content(instance: objects.Instance, admin_password: str | None = None,
            files: Sequence[tuple[str, str]] = (), devices: Sequence[dict[str, Any]] = ()) -> dict[str, bytes]:
    """The drive's files by path. ``files``: (path in the guest, base64 content). ``devices``: those with tags."""
    def given(name: str) -> Any:
        """Servers come with the fields that were read for them, not with all."""
        return getattr(instance, name, None)

    meta: dict[str, Any] = {
        'uuid': instance.uuid, 'name': given('display_name'), 'hostname': given('hostname'),
        'launch_index': given('launch_index') or 0, 'availability_zone': given('availability_zone'),
        'project_id': given('project_id'), 'devices': list(devices), 'dedicated_cpus': [],
        'random_seed': base64.b64encode(secrets.token_bytes(512)).decode()}
    if given('metadata'):
        meta['meta'] = dict(instance.metadata)
    if given('key_name'):
        meta['public_keys'] = {instance.key_name: given('key_data')}
        kinds = {pair.name: pair.type for pair in given('keypairs') or ()}
        meta['keys'] = [{'name': instance.key_name, 'type': kinds.get(instance.key_name, 'ssh'),
                         'data': given('key_data')}]
    if admin_password:
        meta['admin_pass'] = admin_password
    found: dict[str, bytes] = {}
    for number, (path, encoded) in enumerate(files):
        name = f'content/{number:04}'
        meta.setdefault('files', []).append({'path': path, 'content_path': f'/{name}'})
        found[f'openstack/{name}'] = base64.b64decode(encoded)
    for version in _VERSIONS:
        found[f'openstack/{version}/meta_data.json'] = json.dumps(meta).encode()
        found[f'openstack/{version}/network_data.json'] = b'{"links": [], "networks": [], "services": []}'
        found[f'openstack/{version}/vendor_data.json'] = b'{}'
        if given('user_data'):
            found[f'openstack/{version}/user_data'] = base64.b64decode(instance.user_data)
    return found


def build(path: str, tree: dict[str, bytes], program: str) -> None:
    """Write the ISO 9660 file ``path``; raises ConfigDriveFailed, with the old file still there."""
    aside = f'{path}.new'
    # The admin password will be in it: it is its owner's alone from the first byte, as all that programs make here; of
    # a file that an earlier try left the mode would stay.
    files.remove(aside)
    scratch = tempfile.mkdtemp(prefix='.configdrive-', dir=os.path.dirname(path))
    try:
        for name, data in tree.items():
            target = os.path.join(scratch, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, 'wb') as stream:
                stream.write(data)
        command.run(*shlex.split(program), '-o', aside, '-ldots', '-allow-lowercase', '-allow-multidot', '-l',
                    '-quiet', '-J', '-r', '-V', _LABEL, scratch)
    except command.CommandFailed as error:
        raise ConfigDriveFailed(program=program, reason=error.fields['reason']) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    os.replace(aside, path)

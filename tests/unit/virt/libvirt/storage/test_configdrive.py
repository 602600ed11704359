"""The config drive, read back by isoinfo where that is there."""

from __future__ import annotations

import base64
import json
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kilonova.virt import guest_metadata
from kilonova.virt.guest_metadata import GuestFacts
from kilonova.virt.libvirt.storage import configdrive
from kilonova.virt.libvirt.storage.configdrive import Format
from tests.unit.virt.builders import image_meta, new_conf, new_instance

USER_DATA = base64.b64encode(b'#cloud-config').decode()


@pytest.mark.parametrize(
    ('wish', 'properties', 'forced', 'answer'),
    [
        ('', {}, False, False),
        ('True', {}, False, True),
        (None, {}, True, True),
        ('', {'img_config_drive': 'mandatory'}, False, True),
        ('', {'img_config_drive': 'optional'}, False, False),
    ],
)
def test_who_wants_one(
    tmp_path: Path, wish: str | None, properties: dict[str, str], forced: bool, answer: bool
) -> None:
    conf = new_conf(tmp_path, force_config_drive=forced)
    assert configdrive.required(conf, new_instance(config_drive=wish), image_meta(properties=properties)) is answer


class Vendors:
    """Vendordata that says what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def static(self) -> Any:
        return {'cloud': 'ours'}

    def all(self, about: Any) -> Any:
        self.asked.append(about)
        return {'static': {'cloud': 'ours'}, 'who': about['instance-id']}


def content(instance: Any, domain: str = '', **more: Any) -> dict[str, bytes]:
    return configdrive.content(GuestFacts.of(instance, domain), Vendors(), **more)


def meta_of(tree: dict[str, bytes], version: str = 'latest') -> dict[str, Any]:
    return json.loads(tree[f'openstack/{version}/meta_data.json'])


def test_content() -> None:
    instance = new_instance(key_name='k', key_data='ssh-rsa AAA', metadata={'a': 'b'}, user_data=USER_DATA)
    tree = content(
        instance, 'novalocal', admin_password='secret', files=[('/etc/motd', base64.b64encode(b'hello').decode())]
    )
    meta = meta_of(tree)
    assert (meta['uuid'], meta['hostname'], meta['meta'], meta['admin_pass']) == (
        instance.uuid,
        'one.novalocal',
        {'a': 'b'},
        'secret',
    )
    assert meta['files'] == [{'path': '/etc/motd', 'content_path': '/content/0000'}]
    assert tree['openstack/content/0000'] == b'hello'
    assert tree['openstack/latest/user_data'] == tree['ec2/latest/user-data'] == b'#cloud-config'
    for version in (*guest_metadata.VERSIONS, 'latest'):
        assert meta_of(tree, version)['admin_pass'] == 'secret'
    assert json.loads(tree['ec2/2009-04-04/meta-data.json'])['instance-id'] == 'i-00000001'


def test_vendordata_is_on_it() -> None:
    """From the versions on that had it; services are asked once."""
    vendors, instance = Vendors(), new_instance()
    tree = configdrive.content(GuestFacts.of(instance, ''), vendors)
    assert json.loads(tree['openstack/2013-10-17/vendor_data.json']) == {'cloud': 'ours'}
    assert 'openstack/2013-04-04/vendor_data.json' not in tree
    assert json.loads(tree['openstack/latest/vendor_data2.json'])['who'] == instance.uuid
    assert 'openstack/2016-06-30/vendor_data2.json' not in tree and len(vendors.asked) == 1


def test_nothing_is_said_of_what_there_is_not() -> None:
    tree = content(new_instance())
    assert not {'admin_pass', 'public_keys', 'files', 'meta'} & set(meta_of(tree))
    assert 'openstack/latest/user_data' not in tree and 'ec2/latest/user-data' not in tree


@pytest.mark.skipif(not shutil.which('genisoimage'), reason='genisoimage is not installed')
def test_build(tmp_path: Path) -> None:
    path = tmp_path / 'disk.config'
    configdrive.build(str(path), content(new_instance(user_data=USER_DATA)), Format())
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes()[0x8001:0x8006] == b'CD001'
    assert b'config-2' in path.read_bytes()[0x8000:0x8800]
    if shutil.which('isoinfo'):
        listed = subprocess.run(['isoinfo', '-i', str(path), '-J', '-f'], check=True, capture_output=True, text=True)
        assert '/openstack/latest/user_data' in listed.stdout


@pytest.mark.parametrize(
    ('program', 'said'),
    [
        ('no-such-program', 'no-such-program: the program is not installed on this host'),
        ('sh -c exit\\ 3', 'exit code 3'),
    ],
)
def test_a_program_that_does_not_do_it(tmp_path: Path, program: str, said: str) -> None:
    with pytest.raises(configdrive.ConfigDriveFailed, match=said):
        configdrive.build(str(tmp_path / 'disk.config'), {'x': b''}, Format(mkisofs=program))
    assert list(tmp_path.iterdir()) == []


def test_a_disk(tmp_path: Path) -> None:
    """Read back by mtools, file by file."""
    path, tree = tmp_path / 'disk.config', content(new_instance(user_data=USER_DATA))
    configdrive.build(str(path), tree, Format('vfat'))
    assert list(tmp_path.iterdir()) == [path]
    found = path.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_size) == (0o600, 64 << 20) and found.st_blocks * 512 < 4 << 20
    assert b'config-2   ' in path.read_bytes()[:512]
    for name, data in tree.items():
        assert (
            subprocess.run(['mcopy', '-n', '-i', path, f'::{name}', '-'], check=True, capture_output=True).stdout
            == data
        ), name


def test_a_disk_that_is_too_small(tmp_path: Path) -> None:
    with pytest.raises(configdrive.ConfigDriveFailed, match=r'with mcopy .*: Disk full'):
        configdrive.build(str(tmp_path / 'disk.config'), {'x': b'x' * (65 << 20)}, Format('vfat'))
    assert list(tmp_path.iterdir()) == []

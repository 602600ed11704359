"""What a guest learns of itself is the same from its config drive and from the metadata service."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest
import webob

from kilonova.api.metadata import MetadataService
from kilonova.clients.vendordata import Vendordata
from kilonova.virt.libvirt.storage import configdrive
from tests.fixtures.cloud import IMAGE_ID, PROJECT, Cloud

SECRET = 'shared'


def test_config_drive_and_metadata_service_say_the_same(
    make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    vendor = tmp_path / 'vendor.json'
    vendor.write_text('{"cloud": "ours"}')
    cloud, trees = (
        make_cloud(
            {'gpu1': ['0000:08:00.0']},
            api__vendordata_jsonfile_path=str(vendor),
            neutron__service_metadata_proxy=True,
            neutron__metadata_proxy_shared_secret=SECRET,
        ),
        [],
    )
    build = configdrive.build
    monkeypatch.setattr(
        configdrive, 'build', lambda path, tree, format_: (trees.append(tree), build(path, tree, format_))
    )
    public = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8aTp5V0cJfJ6bS1XwW8fOaYkXr0gkJ1rFvW5xqkTtB me'
    key = cloud.ok('POST', '/os-keypairs', {'keypair': {'name': 'mine', 'public_key': public}})
    server = cloud.boot(
        cloud.flavor(gpus=1),
        name='web',
        config_drive=True,
        key_name=key['keypair']['name'],
        block_device_mapping_v2=[
            {
                'source_type': 'image',
                'uuid': IMAGE_ID,
                'destination_type': 'local',
                'boot_index': 0,
                'disk_bus': 'scsi',
                'tag': 'system',
            }
        ],
        user_data=base64.b64encode(b'#!/bin/sh').decode(),
        metadata={'tier': 'front'},
    )
    assert cloud.status(server) == 'ACTIVE'
    (drive,) = trees
    service = MetadataService(cloud.conf, databases=cloud.databases, cells=cloud.cells, vendor=Vendordata(cloud.conf))

    def ask(path: str) -> bytes:
        request = webob.Request.blank(path)
        request.headers.update(
            {
                'X-Instance-ID': server,
                'X-Tenant-ID': PROJECT,
                'X-Instance-ID-Signature': hmac.new(SECRET.encode(), server.encode(), hashlib.sha256).hexdigest(),
            }
        )
        answer = request.get_response(service)
        assert answer.status_int == 200, (path, answer.text)
        return answer.body

    names = [name for name in drive if name.startswith('openstack/')]
    assert len(names) >= 40
    for name in names:
        here, there = drive[name], ask(f'/{name}')
        if name.endswith('meta_data.json'):
            mine, theirs = json.loads(here), json.loads(there)
            for alone in ('random_seed', 'admin_pass'):
                mine.pop(alone, None)
                theirs.pop(alone, None)
            assert mine == theirs and mine['uuid'] == server, name
            assert mine['availability_zone'] == 'nova', name
            if 'devices' in mine:
                assert mine['devices'] == [
                    {'type': 'disk', 'bus': 'scsi', 'address': '0:0:0:0', 'path': '/dev/sda', 'tags': ['system']}
                ]
        else:
            assert here == there, name
    ec2 = json.loads(drive['ec2/latest/meta-data.json'])
    assert ask('/latest/meta-data/instance-id').decode() == ec2['instance-id']
    assert ask('/latest/meta-data/hostname') == b'web.novalocal' and ec2['hostname'] == 'web.novalocal'
    assert ask('/latest/user-data') == drive['ec2/latest/user-data'] == b'#!/bin/sh'

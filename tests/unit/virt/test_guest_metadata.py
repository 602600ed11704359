"""What a guest may know of itself, by version."""
from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.virt import guest_metadata
from kilonova.virt.guest_metadata import About
from tests.unit.virt.builders import new_instance

SINCE = {'2013-04-04': {'random_seed'}, '2015-10-15': {'project_id'}, '2016-06-30': {'devices'},
         '2020-10-14': {'dedicated_cpus'}}


def test_each_version_has_what_came_until_then() -> None:
    about, expected = About.of(new_instance(), ''), {'uuid', 'name', 'hostname', 'launch_index', 'availability_zone'}
    for version in (*guest_metadata.VERSIONS, guest_metadata.LATEST):
        expected |= SINCE.get(version, set())
        assert set(guest_metadata.meta_data(about, version)) == expected, version
        found = guest_metadata.openstack(about, version)
        assert ('network_data.json' in found) == (version >= '2015-10-15')
    assert guest_metadata.vendor_files('2013-04-04') == ()
    assert guest_metadata.vendor_files('2016-10-06') == ('vendor_data.json', 'vendor_data2.json')


def test_the_seed_is_never_the_same() -> None:
    about = About.of(new_instance(), '')
    seeds = {guest_metadata.meta_data(about, 'latest')['random_seed'] for _ in range(3)}
    assert len(seeds) == 3 and {len(base64.b64decode(seed)) for seed in seeds} == {512}


def test_keys_are_those_of_the_pair() -> None:
    few = SimpleNamespace(uuid='u-1', key_name='c', key_data='PEM', keypairs=[SimpleNamespace(name='c', type='x509')])
    meta = guest_metadata.meta_data(About.of(few, ''), 'latest')
    assert (meta['keys'], meta['public_keys']) == ([{'name': 'c', 'type': 'x509', 'data': 'PEM'}], {'c': 'PEM'})
    assert guest_metadata.ec2(About.of(few, ''))['public-keys'] == {'0=c': {'openssh-key': 'PEM'}}
    plain = About.of(new_instance(key_name='k', key_data='ssh-rsa AAA'), '')
    assert plain.keys == [{'name': 'k', 'type': 'ssh', 'data': 'ssh-rsa AAA'}]


def test_a_server_that_came_with_few_fields() -> None:
    about = About.of(SimpleNamespace(uuid='u-1'), 'novalocal')
    assert guest_metadata.meta_data(about, 'latest')['uuid'] == 'u-1' and about.hostname is None
    assert json.dumps(guest_metadata.ec2(about))


@pytest.mark.parametrize(('given', 'read'), [(None, None), ('', None), ('IyE=', b'#!'), ('x', None)])
def test_user_data_is_as_it_was_given(given: Any, read: bytes | None) -> None:
    assert About.of(new_instance(user_data=given), '').user_data == read


def test_ec2_names() -> None:
    about = About.of(new_instance(id=255, kernel_id='aaaaaaaa-1111', ramdisk_id='bbbbbbbb-2222',
                                  root_device_name='/dev/sda', reservation_id='r-1'), 'novalocal')
    found = guest_metadata.ec2(about)
    assert found['instance-id'] == 'i-000000ff' and found['hostname'] == 'one.novalocal'
    assert (found['kernel-id'], found['ramdisk-id']) == ('aki-aaaaaaaa', 'ari-bbbbbbbb')
    assert found['block-device-mapping'] == {'ami': 'sda', 'root': '/dev/sda'}
    assert found['placement'] == {'availability-zone': 'nova'} and found['instance-type'] == 'tmp1'


def test_what_services_are_told() -> None:
    about = About.of(new_instance(user_data='IyE=', system_metadata={'boot_roles': 'member,reader'}), '')
    asked = guest_metadata.question(about)
    assert asked['user-data'] == '#!' and asked['boot-roles'] == 'member,reader'
    assert set(asked) == {'project-id', 'instance-id', 'image-id', 'user-data', 'hostname', 'metadata', 'boot-roles'}

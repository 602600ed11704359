"""Sealed passwords and files on the host are opened only for the driver, and refused without the key."""

from __future__ import annotations

import base64
import logging
import os

import pytest

from kilonova import errors, sealing
from kilonova.conf import secrets
from kilonova.sealing import SealingKeys, ServerSecrets
from tests.unit.compute.cell import new_context
from tests.unit.compute.cloud import build_order

FILES = [('/etc/motd', base64.b64encode(b'hello').decode())]


@pytest.fixture
def manager(cloud, tmp_path):
    """A host with keys."""
    made = cloud.host('gpu1')
    made.conf.register_opts(secrets.OPTS, group=secrets.GROUP)
    made.conf.set_override('key_file', str(tmp_path / 'secrets.keys'), group=secrets.GROUP)
    sealing.create_file(made.conf.secrets.key_file)
    return made


@pytest.fixture
def given(manager, monkeypatch):
    """What the driver was given."""
    found, spawn = [], manager.host.driver.guests.spawn

    def watched(*args, admin_password, files, **kwargs):
        found.append((admin_password, files))
        return spawn(*args, admin_password=admin_password, files=files, **kwargs)

    monkeypatch.setattr(manager.host.driver.guests, 'spawn', watched)
    return found


def build(manager, instance, sealed, **more):
    return manager.endpoint.build_and_run_instance(
        new_context(), order=build_order(instance, sealed=sealed, **more), key='o/3.build/1'
    )


def test_the_driver_gets_what_was_sealed(cloud, manager, given, caplog):
    instance = cloud.cell.new_instance(0)
    sealed = SealingKeys.read(manager.conf.secrets.key_file).seal(ServerSecrets('top-secret', FILES), instance.uuid)
    with caplog.at_level(logging.DEBUG):
        build(manager, instance, sealed)
    assert given == [('top-secret', FILES)]
    assert 'top-secret' not in caplog.text and 'top-secret' not in repr(vars(manager.keys))


def test_nothing_sealed_needs_no_keys(cloud, manager, given):
    os.unlink(manager.conf.secrets.key_file)
    build(manager, cloud.cell.new_instance(0), None)
    assert given == [(None, ())]


@pytest.mark.parametrize('damage', ['missing', 'other key', 'other server'])
def test_a_host_that_can_not_open_refuses(cloud, manager, given, damage):
    """Another host may have the key; here nothing is left of the server."""
    instance, path = cloud.cell.new_instance(0), manager.conf.secrets.key_file
    uuid = cloud.cell.new_instance(0).uuid if damage == 'other server' else instance.uuid
    sealed = SealingKeys.read(path).seal(ServerSecrets('top-secret', FILES), uuid)
    if damage != 'other server':
        os.unlink(path)
    if damage == 'other key':
        sealing.create_file(path)
    with pytest.raises(errors.HostRejected, match=r'gpu1 cannot decrypt .*\[secrets\]key_file') as caught:
        build(manager, instance, sealed)
    assert given == [] and 'top-secret' not in str(caught.value)
    row = cloud.cell.instances[instance.uuid]
    assert (row['host'], row['vm_state']) == (None, 'building') and manager.host.tracker.used.vcpus == 0

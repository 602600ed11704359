"""Guests of QEMU in Ceph (``make test-ceph``), with volumes by the real Cinder, or with all of their disks in a pool
(images_type = rbd), or with a volume in a share of NFS that is mounted upon itself: the one-machine cloud, with two
computes that have a libvirtd each. The guest is a boot sector that
counts its boots on its disk, and says so on its console; then it says a dot twice a second.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import libvirt
import pytest

from kilonova import conf as kilonova_conf
from kilonova.clients.volume import VolumeClient
from kilonova.cmd.daemon import parts
from tests.integration import ceph
from tests.integration.libvirtd import Libvirtd
from tests.integration.site import Site
from tests.integration.test_cinder import disks, held, other
from tests.integration.test_live_migration import PORTS, free_port
from tools.cloud import cinder, http, render
from tools.cloud.layout import DEFAULT_HOSTS

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason='libvirtd and QEMU in system mode need root'),
    pytest.mark.skipif(bool(ceph.missing()), reason='Ceph is not installed: make test-ceph installs it'),
]

HOSTS = ('gpu1', 'gpu2')
WAIT = 180.0
# The secret with the key of Ceph has the same id on each host.
SECRET = str(uuid4())
# Where Debian has the modules for Ceph, which are in no package index.
MODULES = Path('/usr/lib/python3/dist-packages')
AUTO = {'host': None, 'block_migration': 'auto'}
EXPORT = '127.0.0.1:/v'
# What Cinder's driver of NFS asks for: whether mounts can be had, and commands as root, which it is.
PROGRAMS = {
    'mount.nfs': 'exit 0',
    'sudo': 'while [ "${1#-}" != "$1" ]; do shift; done; [ "${1##*-}" != rootwrap ] || shift 2; exec "$@"',
}


def until(met: Callable[[], Any], what: str) -> Any:
    """What it gives in the end."""
    deadline = time.monotonic() + WAIT
    while not (found := met()):
        assert time.monotonic() < deadline, f'not after {WAIT:.0f} s: {what}'
        time.sleep(0.2)
    return found


class Stored:
    """The cloud, its libvirtds, its Ceph, and the directory that is its share."""

    def __init__(self, site: Site, daemons: dict[str, Libvirtd], store: ceph.Ceph, share: Path) -> None:
        self.site, self._daemons, self.store, self.share = site, daemons, store, share
        conf = kilonova_conf.new()
        conf(['--config-file', str(site.layout.conf)], project='kilonova', default_config_dirs=[])
        made = parts.volumes(conf)
        assert made is not None
        self.client: VolumeClient = made

    def cinder(self, method: str, path: str, body: object = None) -> Any:
        """As the user."""
        return http.call(method, self.site.url('cinder') + path, body, token=self.site.token('demo')).data

    def status(self, volume: str) -> str:
        return self.client.volume(None, volume).status

    def volume(self, kind: str | None = None) -> str:
        made: str = self.cinder('POST', '/volumes', {'volume': {'size': 1, 'volume_type': kind}})['volume']['id']
        until(lambda: self.status(made) == 'available', f'volume {made}')
        return made

    def root(self) -> str:
        """A volume that boots. Its guest has disks on virtio-scsi, which go whether its system answers or not."""
        volume = self.volume()
        self.store.write(f'volume-{volume}', self._daemons['gpu1'].image)
        return self._bootable(volume)

    def root_in_a_file(self) -> str:
        """The same in the share."""
        volume = self.volume('nfs')
        with (self.share / f'volume-{volume}').open('r+b') as file:
            file.write(self._daemons['gpu1'].image.read_bytes())
        return self._bootable(volume)

    def _bootable(self, volume: str) -> str:
        for action in (
            {'os-set_bootable': {'bootable': True}},
            {'os-set_image_metadata': {'metadata': {'hw_disk_bus': 'scsi', 'hw_scsi_model': 'virtio-scsi'}}},
        ):
            self.cinder('POST', f'/volumes/{volume}/action', action)
        return volume

    def act(self, server: str, status: str, name: str, argument: object = None) -> None:
        self.site.act(server, name, argument)
        self.site.await_status([server], status)

    def console(self, server: str) -> str:
        reply = self.site.action(server, 'os-getConsoleOutput', {})
        return reply.data['output'] if reply.status == 200 else ''

    def counts(self, server: str, boots: int) -> None:
        """The guest has read so many boots from its volume, written that, and runs."""
        until(lambda: f'GUEST-BOOT {boots}' in self.console(server), f'boot {boots} of {server}')
        self.runs(server)

    def runs(self, server: str) -> None:
        before = self.console(server).count('.')
        until(lambda: self.console(server).count('.') > before + 1, f'{server} runs')

    def secrets(self, host: str) -> set[str]:
        """Volumes that its QEMU can decrypt."""
        connection = libvirt.open(self._daemons[host].uri)
        try:
            return {secret.UUIDString() for secret in connection.listAllSecrets()} - {SECRET}
        finally:
            connection.close()

    def image(self, **more: str) -> str:
        """The guest as an image, whose data are in Ceph."""
        url, headers = f'{self.site.url("glance")}/v2/images', {'X-Auth-Token': self.site.token('demo')}
        made: str = http.call(
            'POST',
            url,
            {'name': 'guest', 'disk_format': 'raw', 'container_format': 'bare', **more},
            token=self.site.token('demo'),
        ).data['id']
        sent = http.send(
            'PUT',
            f'{url}/{made}/file',
            data=self._daemons['gpu1'].image.read_bytes(),
            headers={**headers, 'Content-Type': 'application/octet-stream', 'X-Image-Meta-Store': 'ceph'},
        )
        assert sent.status == 204, sent.body
        return made

    def pool(self) -> list[str]:
        """The images in the pool of servers' disks."""
        found: list[str] = json.loads(self.store.rbd('ls', '--format', 'json', ceph.DISKS))
        return sorted(found)

    def info(self, image: str) -> Any:
        return json.loads(self.store.rbd('info', '--format', 'json', f'{ceph.DISKS}/{image}'))

    def cut(self, server: str, host: str) -> None:
        """The power of a host that is lost, as far as that server feels it."""
        connection = libvirt.open(self._daemons[host].uri)
        try:
            connection.lookupByUUIDString(server).destroy()
        finally:
            connection.close()

    def size(self, server: str, volume: str) -> int | None:
        """Bytes that its QEMU sees of the volume; None: it hasn't got it."""
        connection = libvirt.open(self._daemons[self.site.at(server)].uri)
        try:
            domain = connection.lookupByUUIDString(server)
            return int(domain.blockInfo('sdb')[0]) if volume in domain.XMLDesc() else None
        finally:
            connection.close()


@pytest.fixture(scope='module')
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    directory = tmp_path_factory.mktemp('stored')
    daemons: dict[str, Libvirtd] = {}
    site = None
    with (
        ceph.Ceph(directory / 'ceph') as store,
        pytest.MonkeyPatch.context() as patch,
        contextlib.ExitStack() as mounted,
    ):
        try:
            store.df(directory / 'bin')
            share = directory / 'mnt' / hashlib.md5(EXPORT.encode(), usedforsecurity=False).hexdigest()
            share.mkdir(parents=True)
            subprocess.run(['mount', '--bind', share, share], check=True)
            mounted.callback(subprocess.run, ['umount', '--lazy', share], check=True)
            patch.setenv('PATH', str(directory / 'bin'), prepend=os.pathsep)
            glance = render.glance
            patch.setattr(render, 'glance', lambda *args: _with_store(glance(*args), store))
            for host in HOSTS:
                daemons[host] = _libvirtd(directory / host, store.key)
            (directory / 'site').mkdir()
            site = Site(directory / 'site', hosts=_described(directory / 'hosts', daemons, store, share), volume=True)
            _use(site, store, share)
            for name, text in PROGRAMS.items():
                program = directory / 'bin' / name
                program.write_text(f'#!/bin/sh\nPATH=$PATH:{site.layout.cinder_venv}/bin\n{text}\n')
                program.chmod(0o755)
            site.configure('[DEFAULT]\nshutdown_timeout = 1\n[serial_console]\nenabled = false\n')
            site.up()
            _type_volumes(site)
            yield Stored(site, daemons, store, share)
        finally:
            if site is not None:
                site.end()
            for daemon in daemons.values():
                daemon.end()


def _libvirtd(directory: Path, key: str) -> Libvirtd:
    """It knows the secret, as operators give it (docs/admin/volumes.md)."""
    made, first = Libvirtd(directory), free_port()
    etc = made.directory / 'etc' / 'libvirt'
    with (etc / 'libvirtd.conf').open('a') as conf:
        conf.write(f'host_uuid = "{uuid4()}"\n')
    with (etc / 'qemu.conf').open('a') as conf:
        conf.write(f'migration_port_min = {first}\nmigration_port_max = {first + PORTS}\n')
    made.start()
    connection = libvirt.open(made.uri)
    try:
        secret = connection.secretDefineXML(
            f"<secret ephemeral='no' private='yes'><uuid>{SECRET}</uuid><usage type='ceph'><name>client.cinder secret"
            '</name></usage></secret>'
        )
        secret.setValue(base64.b64decode(key))
    finally:
        connection.close()
    return made


def _with_store(glance: str, store: ceph.Ceph) -> str:
    """The settings of Glance that has a second store, in Ceph, and says where images are."""
    return (
        glance.replace('local:file', 'local:file, ceph:rbd\nshow_image_direct_url = true')
        + f"""
[ceph]
rbd_store_ceph_conf = {store.conf}
rbd_store_user = {ceph.USER}
rbd_store_pool = {ceph.IMAGES}
"""
    )


def _described(directory: Path, daemons: dict[str, Libvirtd], store: ceph.Ceph, share: Path) -> Path:
    """Hosts without devices, whose hypervisors are these, with the disks of servers in Ceph."""
    directory.mkdir()
    for host, daemon in daemons.items():
        shutil.copy(DEFAULT_HOSTS / f'{host}.xml', directory)
        (directory / f'{host}.conf').write_text(
            f'[libvirt]\nconnection_uri = {daemon.uri}\nlive_migration_uri = {daemon.uri}\n'
            'live_migration_inbound_addr = 127.0.0.1\ncpu_mode = none\n'
            f'images_type = rbd\nimages_rbd_pool = {ceph.DISKS}\nimages_rbd_ceph_conf = {store.conf}\n'
            f'rbd_user = {ceph.USER}\nrbd_secret_uuid = {SECRET}\nnfs_mount_point_base = {share.parent}\n'
        )
    return directory


def _type_volumes(site: Site) -> None:
    """A type for each back end."""
    url, token = f'{site.url("cinder")}/types', site.token('admin')
    http.call('POST', url, {'volume_type': {'name': 'nfs', 'extra_specs': {}}}, token=token)
    for one in http.call('GET', f'{url}?is_public=None', token=token).data['volume_types']:
        http.call(
            'POST',
            f'{url}/{one["id"]}/extra_specs',
            {'extra_specs': {'volume_backend_name': 'nfs' if one['name'] == 'nfs' else 'ceph'}},
            token=token,
        )


def _use(site: Site, store: ceph.Ceph, share: Path) -> None:
    """Cinder of this site has its volumes there. Of a process's back ends only the last reports that it is up."""
    path = cinder.more_path(site.layout)
    path.parent.mkdir(parents=True)
    (path.parent / 'shares').write_text(f'{EXPORT}\n')
    path.write_text(f"""[DEFAULT]
enabled_backends = ceph, nfs
service_down_time = 3600
[nfs]
volume_driver = cinder.volume.drivers.nfs.NfsDriver
volume_backend_name = nfs
nfs_shares_config = {path.parent / 'shares'}
nfs_mount_point_base = {share.parent}
nfs_snapshot_support = true
nas_secure_file_operations = false
nas_secure_file_permissions = false
[ceph]
volume_driver = cinder.volume.drivers.rbd.RBDDriver
volume_backend_name = ceph
rbd_ceph_conf = {store.conf}
rbd_user = {ceph.USER}
rbd_pool = {ceph.POOL}
rbd_secret_uuid = {SECRET}
""")
    for venv in (site.layout.cinder_venv, site.layout.services_venv):
        there = venv / 'lib' / f'python{sysconfig.get_python_version()}' / 'site-packages'
        for name in ('rados', 'rbd'):
            for module in MODULES.glob(f'{name}.cpython-*.so'):
                if not (there / module.name).exists():
                    (there / module.name).symlink_to(module)


def test_a_volume_in_ceph_goes_where_its_guest_goes(stored: Stored) -> None:
    """Booted from, written by it, taken along live and cold, read there; another one, encrypted, attached as it runs,
    grown under it, taken along, detached."""
    site, client = stored.site, stored.client
    root, data = stored.root(), stored.volume('encrypted')
    (server,) = site.boot(
        1,
        site.flavor('tiny', ram=64),
        imageRef='',
        block_device_mapping_v2=[
            {'source_type': 'volume', 'destination_type': 'volume', 'uuid': root, 'boot_index': 0}
        ],
    )
    stored.counts(server, 1)
    source = site.at(server)

    def is_at(host: str) -> None:
        assert site.at(server) == host and held(client, server) == dict.fromkeys((root, data), ('attached', host))
        assert all(f'volumes/volume-{volume}' in disks(site, host, server) for volume in (root, data))
        assert {one: stored.secrets(one) for one in HOSTS} == {host: {data}, other(host): set()}
        site.audit()

    site.call('POST', f'/servers/{server}/os-volume_attachments', {'volumeAttachment': {'volumeId': data}})
    # The answer comes before the guest has it.
    until(lambda: held(client, server).get(data) == ('attached', source), 'the volume is attached')
    assert stored.size(server, data) == 1 << 30
    is_at(source)
    grow = http.send(
        'POST',
        f'{site.url("cinder")}/volumes/{data}/action',
        data=b'{"os-extend": {"new_size": 2}}',
        headers={
            'X-Auth-Token': site.token('demo'),
            'Content-Type': 'application/json',
            'OpenStack-API-Version': 'volume 3.42',
        },
    )
    assert grow.status == 202, grow.body
    until(lambda: stored.size(server, data) == 2 << 30, 'the guest sees 2 GiB')
    site.settle([server], WAIT)

    stored.act(server, 'ACTIVE', 'os-migrateLive', AUTO)
    stored.runs(server)
    is_at(other(source))
    assert stored.size(server, data) == 2 << 30
    stored.act(server, 'ACTIVE', 'reboot', {'type': 'HARD'})
    stored.counts(server, 2)

    stored.act(server, 'VERIFY_RESIZE', 'migrate')
    stored.counts(server, 3)
    is_at(source)
    stored.act(server, 'ACTIVE', 'confirmResize')
    stored.act(server, 'VERIFY_RESIZE', 'resize', {'flavorRef': site.flavor('larger', ram=96)})
    stored.counts(server, 4)
    is_at(other(source))
    stored.act(server, 'ACTIVE', 'revertResize')
    stored.counts(server, 5)
    is_at(source)

    site.call('DELETE', f'/servers/{server}/os-volume_attachments/{data}')
    until(lambda: stored.status(data) == 'available', 'the volume is free')
    site.settle([server], WAIT)
    assert stored.size(server, data) is None and stored.secrets(source) == set()
    site.clean()
    for volume in (root, data):
        until(lambda volume=volume: stored.status(volume) == 'available', 'it is free')  # type: ignore[misc]
        stored.cinder('DELETE', f'/volumes/{volume}')
    until(lambda: not stored.cinder('GET', '/volumes')['volumes'], 'they are deleted')
    site.assert_nothing_held()


def test_disks_in_ceph_go_where_their_guest_goes(stored: Stored) -> None:
    """Cloned from the image, grown, written by the guest; taken along live and cold, brought back as they were,
    taken over from a dead host; saved as an image; nothing is left of them."""
    site, image = stored.site, stored.image()
    flavor = site.flavor('in-ceph', ram=64, specs={}, disk=1)
    (server,) = site.boot(1, flavor, imageRef=image, config_drive=True)
    stored.counts(server, 1)
    source, root, drive = site.at(server), f'{server}_disk', f'{server}_disk.config'
    found = stored.info(root)
    assert stored.pool() == [root, drive] and found['size'] == 1 << 30
    assert (found['parent']['pool'], found['parent']['image']) == (ceph.IMAGES, image)
    site.audit()

    stored.act(server, 'ACTIVE', 'os-migrateLive', AUTO)
    stored.runs(server)
    assert site.at(server) == other(source) and site.directories(source) == []
    stored.act(server, 'ACTIVE', 'reboot', {'type': 'HARD'})
    stored.counts(server, 2)

    stored.act(server, 'VERIFY_RESIZE', 'migrate')
    stored.counts(server, 3)
    assert site.at(server) == source and stored.info(root)['snapshot_count'] == 1
    stored.act(server, 'ACTIVE', 'confirmResize')
    assert stored.info(root)['snapshot_count'] == 0
    stored.act(server, 'VERIFY_RESIZE', 'resize', {'flavorRef': site.flavor('more-in-ceph', ram=96, disk=2)})
    stored.counts(server, 4)
    assert stored.info(root)['size'] == 2 << 30
    stored.act(server, 'ACTIVE', 'revertResize')
    # What the boot on the other host wrote is undone, and so is its disk's size.
    stored.counts(server, 4)
    found = stored.info(root)
    assert (found['size'], found['snapshot_count'], stored.pool()) == (1 << 30, 0, [root, drive])

    stored.act(server, 'RESCUE', 'rescue', {'rescue_image_ref': image})
    stored.counts(server, 1)
    assert stored.pool() == [root, drive, f'{drive}.rescue', f'{root}.rescue']
    stored.act(server, 'ACTIVE', 'unrescue')
    stored.counts(server, 5)
    assert stored.pool() == [root, drive]

    at = site.at(server)
    site.lose(at)
    stored.cut(server, at)
    stored.act(server, 'ACTIVE', 'evacuate', {})
    stored.counts(server, 6)
    site.find(at)
    assert site.at(server) == other(at) and site.directories(at) == [] and stored.pool() == [root, drive]
    site.audit()

    saved = site.action(server, 'createImage', {'name': 'saved'}, user='demo').data['image_id']
    site.settle([server], WAIT)
    stored.act(server, 'ACTIVE', 'rebuild', {'imageRef': image})
    stored.counts(server, 1)
    (again,) = site.boot(1, flavor, imageRef=saved)
    # It is a qcow2, whose data come into the pool as a copy.
    stored.counts(again, 7)
    assert 'parent' not in stored.info(f'{again}_disk')
    stored.act(again, 'SHELVED_OFFLOADED', 'shelve')
    assert stored.pool() == [root, drive]
    stored.act(again, 'ACTIVE', 'unshelve')
    stored.counts(again, 8)
    site.clean()
    assert stored.pool() == []
    site.assert_nothing_held()


def test_snapshots_of_a_volume_in_a_share_while_its_guest_runs(stored: Stored) -> None:
    """Cinder asks for them: the guest goes on in another file, which goes along with it; files are merged under it, in
    the middle and at the top; what it wrote is there all the time."""
    site, volume = stored.site, stored.root_in_a_file()
    (server,) = site.boot(
        1,
        site.flavor('filed', ram=64),
        imageRef='',
        block_device_mapping_v2=[
            {'source_type': 'volume', 'destination_type': 'volume', 'uuid': volume, 'boot_index': 0}
        ],
    )
    stored.counts(server, 1)

    def files() -> list[str]:
        """By age; what Cinder notes of them isn't one."""
        found = [path for path in stored.share.glob(f'volume-{volume}*') if path.suffix != '.info']
        return [path.name for path in sorted(found, key=lambda path: path.stat().st_ctime_ns)]

    def snapshot() -> str:
        made: str = stored.cinder('POST', '/snapshots', {'snapshot': {'volume_id': volume, 'force': True}})['snapshot'][
            'id'
        ]
        until(lambda: stored.client.snapshot(None, made).status != 'creating', f'snapshot {made}')
        assert stored.client.snapshot(None, made).status == 'available'
        site.settle([server], WAIT)
        assert f'volume-{volume}.{made}' in disks(site, site.at(server), server)
        return made

    def delete(made: str) -> None:
        stored.cinder('DELETE', f'/snapshots/{made}')
        until(
            lambda: made not in [one['id'] for one in stored.cinder('GET', '/snapshots')['snapshots']],
            f'snapshot {made} is deleted',
        )
        site.settle([server], WAIT)

    first = snapshot()
    stored.act(server, 'ACTIVE', 'reboot', {'type': 'HARD'})
    stored.counts(server, 2)
    second, third = snapshot(), snapshot()
    stored.act(server, 'VERIFY_RESIZE', 'migrate')
    stored.counts(server, 3)
    stored.act(server, 'ACTIVE', 'confirmResize')
    assert set(files()) == {f'volume-{volume}{name}' for name in ('', f'.{first}', f'.{second}', f'.{third}')}
    delete(second)
    delete(third)
    assert set(files()) == {f'volume-{volume}.{third}', f'volume-{volume}'}
    delete(first)
    assert files() == [f'volume-{volume}.{third}']
    stored.act(server, 'ACTIVE', 'reboot', {'type': 'HARD'})
    stored.counts(server, 4)
    site.audit()
    site.clean()
    until(lambda: stored.status(volume) == 'available', 'it is free')
    stored.cinder('DELETE', f'/volumes/{volume}')
    until(lambda: not stored.cinder('GET', '/volumes')['volumes'] and not files(), 'it is deleted')
    site.assert_nothing_held()

"""Rigs: two hosts of one machine, played by each driver in turn."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import libvirt
import pytest

from kilonova.virt import command
from kilonova.virt.fake import FakeDriver
from kilonova.virt.fakes.state import FakeMachine
from kilonova.virt.libvirt.driver import LibvirtDriver
from kilonova.virt.libvirt.storage import ssh
from tests.fixtures.hosts import sriov_gpu
from tests.unit.virt import builders, ceph


def _ports(domain: ElementTree.Element) -> list[str]:
    return [found.get('interfaceid', '') for found in domain.iterfind('devices/interface/virtualport/parameters')]


def _volumes(domain: ElementTree.Element) -> list[str]:
    return [found.text or '' for found in domain.iterfind('devices/disk/serial')]


@pytest.fixture(scope='session')
def image_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builders.make_image(tmp_path_factory.mktemp('images') / 'demo.qcow2')


@pytest.fixture
def images(image_file: Path) -> builders.Images:
    return builders.Images(image_file)


class LibvirtRig:
    """Two hosts of libvirt's test driver, each with its own instances_path. ``extra``: XML of devices that hosts have
    besides."""

    extra = ''

    def __init__(self, path: Path, images: builders.Images) -> None:
        self.path, self.images = path, images
        self.here, self.there = self.driver('gpu1'), self.driver('gpu2')

    def driver(self, host: str, **overrides: Any) -> LibvirtDriver:
        """A driver as a compute that has just started has it: libvirt's test driver knows no domains then."""
        uri = builders.write_node(self.path / f'{host}.xml', extra=self.extra)
        conf = builders.new_conf(
            self.path, host, libvirt={'connection_uri': uri, **overrides.pop('libvirt', {})}, **overrides
        )
        driver = LibvirtDriver(conf, self.images)
        driver.host.init_host()
        return driver

    def file(self, host: str, *parts: str) -> Path:
        return self.path.joinpath(host, 'instances', *parts)

    def write(self, host: str, uuid: str) -> None:
        builders.write_marker(self.file(host, uuid, 'disk'))

    def kept(self, host: str, uuid: str) -> bool:
        return builders.has_marker(self.file(host, uuid, 'disk'))

    def ports(self, host: str, uuid: str) -> list[str]:
        """The ports that the guest has, by its XML."""
        return _ports(ElementTree.parse(self.file(host, uuid, 'libvirt.xml')).getroot())

    def ports_at_start(self, host: str, uuid: str) -> list[str]:
        """Those that its next start gives it."""
        guest = {'gpu1': self.here, 'gpu2': self.there}[host].guests._libvirt.find(uuid)
        return _ports(ElementTree.fromstring(guest.call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE)))

    def volumes(self, host: str, uuid: str) -> list[str]:
        """The volumes that the guest has, by its XML."""
        return _volumes(ElementTree.parse(self.file(host, uuid, 'libvirt.xml')).getroot())

    def volumes_at_start(self, host: str, uuid: str) -> list[str]:
        """Those that its next start gives it."""
        guest = {'gpu1': self.here, 'gpu2': self.there}[host].guests._libvirt.find(uuid)
        return _volumes(ElementTree.fromstring(guest.call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE)))

    def connected(self, host: str) -> dict[str, set[str]]:
        """The volumes that the host has, each with the servers that it is for."""
        return dict({'gpu1': self.here, 'gpu2': self.there}[host].volumes._volumes._users)

    def mount(self, share: Path) -> None:
        """Volumes that are files are there, at the first host."""
        self.here.volumes._volumes._bricks = builders.Share(share)  # type: ignore[assignment]

    def have_vgpus(self) -> None:
        """The first host has VGPU_PARENT, and MDEV on it. libvirt's test driver makes no others."""
        self.extra = ''.join(builders.VGPUS)
        self.here = self.driver('gpu1')

    def have_functions(self) -> None:
        """The first host has a card with two virtual functions, and VGPU_PARENT with MDEV on it."""
        self.extra = ''.join([*sriov_gpu('0000:3b:00.0', ['0000:3b:00.4', '0000:3b:00.5']), *builders.VGPUS])
        self.here = self.driver('gpu1')

    def elsewhere(self) -> dict[str, Any]:
        """A machine that nobody can log in to."""
        return {**self.there.moves.prepare_move(), 'boot_id': 'another', 'address': '192.0.2.99'}


# Stands for ssh and its server: the command runs here, under the other host's eyes. "cut" holds how many bytes of what
# is sent still get through; "log" what was done.
SSH = """#!/bin/sh
while :; do
    case "$1" in -o) shift 2 ;; -T) shift ;; --) shift; break ;; *) break ;; esac
done
here=$(dirname "$0")
[ "$1" = 192.0.2.99 ] && { echo "ssh: connect to host $1 port 22: No route to host" >&2; exit 255; }
shift
echo "$*" >> "$here/log"
case "$*" in *"dd of="*)
    if [ -e "$here/cut" ]; then
        count=$(cat "$here/cut"); rm "$here/cut"
        head -c "$count" | sh -c "$*"
        exit 255
    fi ;;
esac
exec sh -c "$*"
"""


class RemoteRig(LibvirtRig):
    """As if the second host were another machine: disks go there by ssh."""

    def __init__(self, path: Path, images: builders.Images, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bin = path / 'bin'
        self.bin.mkdir()
        (self.bin / 'ssh').write_text(SSH)
        (self.bin / 'ssh').chmod(0o755)
        monkeypatch.setitem(command.ENVIRONMENT, 'PATH', f'{self.bin}:{command.ENVIRONMENT["PATH"]}')
        monkeypatch.setattr(ssh, '_PAUSES', (0, 0))
        super().__init__(path, images)

    def driver(self, host: str, **overrides: Any) -> LibvirtDriver:
        made = super().driver(host, **overrides)
        if host == 'gpu2':
            offer = made.moves._mover.offer
            made.moves._mover.offer = lambda: {**offer(), 'boot_id': 'of another machine'}  # type: ignore[method-assign]
        return made

    def cut(self, count: int) -> None:
        """The connection ends after so many bytes of the next block."""
        (self.bin / 'cut').write_text(str(count))

    def log(self, part: str) -> list[str]:
        """The commands over there that have ``part`` in them."""
        return [line for line in (self.bin / 'log').read_text().splitlines() if part in line]


class SharedRig(LibvirtRig):
    """Both hosts use one directory."""

    one_storage = True

    def driver(self, host: str, **overrides: Any) -> LibvirtDriver:
        return super().driver(host, **{'instances_path': str(self.file(host)), **overrides})

    def file(self, host: str, *parts: str) -> Path:
        return self.path.joinpath('instances', *parts)

    def elsewhere(self) -> dict[str, Any]:
        return {**super().elsewhere(), 'storage_id': 'another'}


class PoolRig(LibvirtRig):
    """Hosts whose servers' disks are in one pool."""

    one_storage = True

    def __init__(self, path: Path, images: builders.Images, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = ceph.Cluster(monkeypatch)
        super().__init__(path, images)

    def driver(self, host: str, **overrides: Any) -> LibvirtDriver:
        return super().driver(host, **{**overrides, 'libvirt': {**ceph.OPTIONS, **overrides.get('libvirt', {})}})

    def write(self, host: str, uuid: str) -> None:
        self.cluster.write(f'vms/{uuid}_disk')

    def kept(self, host: str, uuid: str) -> bool:
        return self.cluster.has(f'vms/{uuid}_disk')


class FakeRig:
    """Two hosts of the fake."""

    def __init__(self, path: Path, images: builders.Images) -> None:
        machine = FakeMachine()
        self.images = images
        self.here, self.there = (
            FakeDriver(builders.new_conf(path, host), images, machine=machine) for host in ('gpu1', 'gpu2')
        )
        self._hosts = {'gpu1': self.here, 'gpu2': self.there}

    def write(self, host: str, uuid: str) -> None:
        self._hosts[host].write(uuid, 'marker')

    def kept(self, host: str, uuid: str) -> bool:
        return self._hosts[host].read(uuid) == 'marker'

    def ports(self, host: str, uuid: str) -> list[str]:
        return self._hosts[host].domains[uuid].vifs

    ports_at_start = ports

    def volumes(self, host: str, uuid: str) -> list[str]:
        return list(self._hosts[host].domains[uuid].volumes)

    volumes_at_start = volumes

    def connected(self, host: str) -> dict[str, set[str]]:
        return self._hosts[host].connected

    def mount(self, share: Path) -> None:
        """It needs none."""

    def have_vgpus(self) -> None:
        self.here.pci_devices = [
            {'address': builders.GPU},
            {
                'address': builders.VGPU_PARENT,
                'vendor_id': '10de',
                'product_id': '13f2',
                'numa_node': 1,
                'label': 'label_10de_13f2',
                'mdev_types': {builders.VGPU: {'available': 1, 'api': 'vfio-pci'}},
            },
        ]
        self.here.make_mdev(builders.MDEV, builders.VGPU_PARENT, builders.VGPU)

    def have_functions(self) -> None:
        self.have_vgpus()
        self.here.pci_devices += [
            {'address': '0000:3b:00.0', 'dev_type': 'type-PF'},
            *(
                {'address': address, 'dev_type': 'type-VF', 'parent_addr': '0000:3b:00.0', 'vgpu_type': 1519}
                for address in ('0000:3b:00.4', '0000:3b:00.5')
            ),
        ]

    def elsewhere(self) -> dict[str, Any]:
        return {**self.there.moves.prepare_move(), 'machine_id': 'another'}


@pytest.fixture
def libvirt_rig(tmp_path: Path, images: builders.Images) -> LibvirtRig:
    return LibvirtRig(tmp_path, images)


@pytest.fixture
def remote_rig(tmp_path: Path, images: builders.Images, monkeypatch: pytest.MonkeyPatch) -> RemoteRig:
    return RemoteRig(tmp_path, images, monkeypatch)


@pytest.fixture
def shared_rig(tmp_path: Path, images: builders.Images) -> SharedRig:
    return SharedRig(tmp_path, images)


@pytest.fixture
def pool_rig(tmp_path: Path, images: builders.Images, monkeypatch: pytest.MonkeyPatch) -> PoolRig:
    return PoolRig(tmp_path, images, monkeypatch)


@pytest.fixture(params=['fake', 'libvirt', 'remote', 'shared'])
def rig(request: pytest.FixtureRequest, tmp_path: Path, images: builders.Images) -> Any:
    if request.param == 'fake':
        return FakeRig(tmp_path, images)
    return request.getfixturevalue(f'{request.param}_rig')


def qemu_size(path: Path) -> int:
    """The virtual size in bytes, as qemu-img sees it."""
    import json

    done = subprocess.run(['qemu-img', 'info', '--output=json', str(path)], check=True, capture_output=True)
    return int(json.loads(done.stdout)['virtual-size'])

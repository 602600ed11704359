"""Real libvirtd and real QEMU, by TCG: what libvirt's test driver takes without a word, and what a daemon does that
dies, comes back, or stands still. The guest's console and its disk are the witnesses."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4
from xml.etree import ElementTree

import libvirt
import pytest

from kilonova import errors
from kilonova.compute.manager import ComputeManager
from kilonova.objects import Flavor, InstancePCIRequest, InstancePCIRequests
from kilonova.pci.ports import request_of
from kilonova.states import PowerState
from kilonova.virt.hardware import constraints, numa
from kilonova.virt.hardware.offer import Offer
from kilonova.virt.libvirt import connection as connection_module
from kilonova.virt.libvirt.devices.vif.openvswitch import OpenVSwitch
from kilonova.virt.libvirt.domain import interface
from kilonova.virt.libvirt.xml.base import MemoryBacking
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.host import DriverMisconfigured, HypervisorUnavailable
from kilonova.virt.parts.volume_snapshots import Merge
from kilonova.virt.parts.volumes import VolumeCounters
from tests.fixtures.hosts import vdpa_device
from tests.integration.beside import Beside
from tests.integration.libvirtd import Libvirtd
from tests.integration.pretended import Pretended
from tests.integration.site import Site
from tests.unit.compute.cell import flavor, new_context
from tests.unit.compute.cloud import Cloud, build_order, new_conf
from tests.unit.virt.builders import (
    KEY,
    Listener,
    device,
    devices,
    image_meta,
    new_flavor,
    new_instance,
    new_locked_volume,
    new_vif,
    new_volume,
)
from tools.cloud import http

WAIT = 60.0
# Bytes that LUKS has before the data of an encrypted volume.
HEADER = 2 << 20
NUMBERS = itertools.count()
# What images and flavors ask of a guest's board, and the settings of its host. All of them boot.
SHAPES: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    'plain': ({}, {}, 'pc'),
    'plain-q35': ({}, {}, 'q35'),
    'usb': ({'hw_disk_bus': 'usb'}, {}, 'pc'),
    'usb-old': ({'hw_disk_bus': 'usb', 'hw_sound_model': 'sb16'}, {'hw:usb_model': 'ich9-ehci1'}, 'pc'),
    'usb-q35': (
        {'hw_disk_bus': 'usb', 'hw_cdrom_bus': 'usb', 'hw_usb_model': 'qemu-xhci'},
        {'hw:sound_model': 'usb'},
        'q35',
    ),
    'scsi': ({'hw_disk_bus': 'scsi', 'hw_scsi_model': 'virtio-scsi'}, {'hw:virtio_packed_ring': 'true'}, 'pc'),
    'ide': (
        {'hw_disk_bus': 'ide', 'hw_sound_model': 'ac97'},
        {'hw:maxphysaddr_mode': 'emulate', 'hw:maxphysaddr_bits': '40'},
        'pc',
    ),
    'sata': ({'hw_disk_bus': 'sata', 'hw_sound_model': 'ich9'}, {'hw:viommu_model': 'auto'}, 'q35'),
    'virtio-q35': ({'hw_viommu_model': 'virtio', 'hw_virtio_packed_ring': 'true'}, {}, 'q35'),
    'windows': ({'os_type': 'windows'}, {}, 'pc'),
    'windows-hidden': ({'os_type': 'windows', 'img_hide_hypervisor_id': 'true'}, {}, 'q35'),
    'hidden': ({}, {'hw:hide_hypervisor_id': 'true', 'hw:pmu': 'false', 'hw_rng:allowed': 'False'}, 'pc'),
    'rated': (
        {'hw_time_hpet': 'true'},
        {'hw_rng:rate_bytes': '10', 'hw_rng:rate_period': '1000', 'hw:cpu_sockets': '1'},
        'pc',
    ),
    'watched': (
        {'hw_video_model': 'vga', 'hw_video_ram': '32', 'hw_qemu_guest_agent': 'yes'},
        {'hw:watchdog_action': 'reset', 'hw_video:ram_max_mb': '32'},
        'pc',
    ),
    'watched-q35': (
        {'hw_video_model': 'virtio', 'hw_qemu_guest_agent': 'yes'},
        {'hw:watchdog_action': 'pause', 'quota:disk_read_iops_sec': '500'},
        'q35',
    ),
}


def until(met: Callable[[], Any]) -> Any:
    """What it gives in the end; fails where that never comes."""
    end = time.monotonic() + WAIT
    while not (found := met()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


@pytest.fixture(scope='module')
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Libvirtd]:
    made = Libvirtd(tmp_path_factory.mktemp('libvirtd'))
    try:
        made.start()
        yield made
    finally:
        made.end()


class Rig(Listener):
    """A compute's driver and its guests."""

    def __init__(self, daemon: Libvirtd, name: str, **options: Any) -> None:
        super().__init__()
        self.daemon, self.name = daemon, name
        self.driver = daemon.driver(name, **options)
        self.servers: list[Any] = []

    def boot(
        self,
        properties: dict[str, str] | None = None,
        extra_specs: dict[str, str] | None = None,
        vcpus: int = 1,
        plugged: Callable[[Any], None] | None = None,
        **values: Any,
    ) -> Any:
        server = new_instance(
            id=len(self.servers) + 1,
            flavor=new_flavor(vcpus=vcpus, memory_mb=64, extra_specs=extra_specs or {}),
            **values,
        )
        self.servers.append(server)
        self.driver.guests.spawn(server, self.image(properties), plugged=(lambda: plugged(server)) if plugged else None)
        return server

    def image(self, properties: dict[str, str] | None = None) -> dict[str, Any]:
        return image_meta(disk_format='raw', properties=properties or {})

    def says(self, server: Any, text: str) -> None:
        """Wait until the guest said so on its console."""
        until(lambda: text in self.daemon.console(self.name, server.uuid))

    def dots(self, server: Any) -> int:
        return self.daemon.console(self.name, server.uuid).count('.')


@contextlib.contextmanager
def rig_of(daemon: Libvirtd, name: str, **options: Any) -> Iterator[Rig]:
    made = Rig(daemon, name, **options)
    made.driver.host.listen(made)
    made.driver.host.init_host()
    yield made
    # QEMU takes a second to go.
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(made.driver.guests.destroy, made.servers))


@pytest.fixture
def rig(daemon: Libvirtd) -> Iterator[Rig]:
    with rig_of(daemon, f'host{next(NUMBERS)}') as made:
        yield made


@pytest.fixture
def bridge() -> Iterator[str]:
    """A bridge of this machine."""
    name = f'brkn{os.getpid()}'
    subprocess.run(['ip', 'link', 'add', name, 'type', 'bridge'], check=True)
    try:
        yield name
    finally:
        subprocess.run(['ip', 'link', 'del', name], check=True)


# -- guests ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('properties', 'datapath'),
    [
        ({}, 'system'),
        ({'hw_vif_multiqueue_enabled': 'yes', 'hw_virtio_packed_ring': 'yes'}, 'netdev'),
        *(({'hw_vif_model': model}, 'netdev') for model in interface.models('x86_64') if model != 'virtio'),
    ],
)
def test_a_guest_is_plugged_in_and_runs_when_it_may(
    rig: Rig, bridge: str, properties: dict[str, str], datapath: str
) -> None:
    details = {'bridge_name': bridge, 'datapath_type': datapath}
    vifs = [
        new_vif(id=str(uuid4()), mac=f'fa:16:3e:00:00:0{number}', type='bridge', details=details) for number in range(2)
    ]
    taps = {vif.device_name for vif in vifs}
    seen = []

    def plugged(server: Any) -> None:
        seen.append((rig.driver.guests.get_info(server), set(os.listdir(f'/sys/class/net/{bridge}/brif'))))
        time.sleep(2)
        seen.append(rig.daemon.console(rig.name, server.uuid))

    server = rig.boot(properties, vcpus=2, plugged=plugged, vifs=vifs)
    assert seen == [(PowerState.PAUSED, taps), '']
    rig.says(server, 'GUEST-BOOT 1')
    assert rig.driver.guests.get_info(server) == PowerState.RUNNING
    rig.driver.power.reboot(server, 'HARD', rig.image(properties))
    rig.says(server, 'GUEST-BOOT 2')
    assert set(os.listdir(f'/sys/class/net/{bridge}/brif')) == taps


@pytest.mark.parametrize(('machine', 'ports'), [('pc', 0), ('q35', 16)])
def test_a_running_guest_gets_an_interface_and_keeps_it(
    daemon: Libvirtd, bridge: str, machine: str, ports: int
) -> None:
    """The host's end comes. These guests have no system that lets a card go: it stays until they are off. Where a card
    with a tag is was noted before the guest was started, and is noted anew."""
    vifs = [
        new_vif(
            id=str(uuid4()),
            mac=f'fa:16:3e:00:00:0{number}',
            type='bridge',
            tag=f'nic{number}',
            details={'bridge_name': bridge, 'datapath_type': 'system'},
        )
        for number in range(2)
    ]

    def there() -> set[str]:
        return set(os.listdir(f'/sys/class/net/{bridge}/brif'))

    def noted() -> list[tuple[str, str]]:
        found = [(device.tags[0], device.bus.address) for device in server.device_metadata.devices]
        assert found == [
            (f'nic{mac[-1]}', f'0000:{bus:02x}:{slot:02x}.0')
            for mac, bus, slot in _cards(_Again(daemon, server.uuid).XMLDesc(0))
        ]
        return found

    with rig_of(
        daemon,
        f'cards-{machine}',
        hw_machine_type=[f'x86_64={machine}'],
        num_pcie_ports=ports,
        device_detach_attempts=2,
        device_detach_timeout=1,
    ) as rig:
        server = rig.boot(vifs=vifs[:1])
        rig.says(server, 'GUEST-BOOT 1')
        assert len(noted()) == 1
        for _again in range(2):
            rig.driver.guests.attach_interface(server, rig.image(), vifs[1])
            assert there() == {vif.device_name for vif in vifs} and len(noted()) == 2
        with pytest.raises(GuestFailed, match=f'does not release {vifs[1].device_name}'):
            rig.driver.guests.detach_interface(server, vifs[1], lambda: None)
        assert there() == {vif.device_name for vif in vifs}
        rig.driver.guests.attach_interface(server, rig.image(), vifs[1])
        found = _Again(daemon, server.uuid)
        assert [vif.device_name in found.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE) for vif in vifs] == [True, True]
        rig.driver.power.power_off(server)
        for _again in range(2):
            rig.driver.guests.detach_interface(server, vifs[0], lambda: None)
            assert [vif.device_name in found.XMLDesc(0) for vif in vifs] == [False, True] and there() == set()
        server.vifs = vifs[1:]
        rig.driver.power.power_on(server, rig.image())
        assert there() == {vifs[1].device_name} and len(noted()) == 1


@pytest.fixture
def switch() -> Iterator[str]:
    """Open vSwitch's database; the switch itself, which would make devices of this machine by fixed names, isn't there,
    and has done all that is asked of it."""
    directory = Path(tempfile.mkdtemp(prefix='kn-ovs-'))  # short enough for a socket
    schema, database = '/usr/share/openvswitch/vswitch.ovsschema', f'unix:{directory}/db'
    subprocess.run(['ovsdb-tool', 'create', directory / 'conf.db', schema], check=True)
    with subprocess.Popen(
        [
            'ovsdb-server',
            directory / 'conf.db',
            f'--remote=p{database}',
            '--log-file=/dev/null',
            f'--unixctl={directory}/ctl',
        ],
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            until((directory / 'db').exists)
            subprocess.run(
                [
                    'ovs-vsctl',
                    f'--db={database}',
                    '--no-wait',
                    'init',
                    '--',
                    'set',
                    'Open_vSwitch',
                    '.',
                    'cur_cfg=1000',
                ],
                check=True,
            )
            yield database
        finally:
            server.terminate()
    # Daemons take their sockets away when they end.
    shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def answered(path: Path) -> Iterator[None]:
    """The end of a switch in user space, as far as QEMU asks it things: without one QEMU waits at the guest's start."""
    ended = threading.Event()
    thread = threading.Thread(target=_answer, args=(path, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _answer(path: Path, ended: threading.Event) -> None:
    while not ended.is_set():
        with socket.socket(socket.AF_UNIX) as line, contextlib.suppress(OSError):
            line.settimeout(0.2)
            line.connect(str(path))
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    head = line.recv(12)
                    if not head:
                        break
                    request, _flags, size = struct.unpack('<III', head)
                    body = line.recv(size) if size else b''
                    if request in (1, 11):  # its features: virtio 1.0; where it is in a ring
                        line.sendall(struct.pack('<IIIQ', request, 5, 8, 1 << 32 if request == 1 else body[0]))
        time.sleep(0.1)


def test_ports_that_the_host_connects_itself(daemon: Libvirtd, switch: str) -> None:
    """By os-vif: one behind a bridge of its own, and one that is a socket, which QEMU makes."""
    name = str(uuid4())
    details = {'bridge_name': 'br-kn', 'datapath_type': 'system'}
    hybrid = new_vif(id=name, details={**details, 'ovs_hybrid_plug': True})
    end, path = f'qvo{name[:11]}', Path(switch.removeprefix('unix:')).with_name('vhu')
    user = new_vif(
        id=str(uuid4()),
        mac='fa:16:3e:00:00:02',
        type='vhostuser',
        details={
            **details,
            'datapath_type': 'netdev',
            'vhostuser_ovs_plug': True,
            'vhostuser_mode': 'server',
            'vhostuser_socket': str(path),
        },
    )

    def known(*words: str) -> str:
        return subprocess.run(
            ['ovs-vsctl', f'--db={switch}', '--no-wait', *words], check=True, capture_output=True, text=True
        ).stdout

    with answered(path), rig_of(daemon, 'plugging', switch=switch) as rig:
        server = rig.boot(vifs=[hybrid, user])
        rig.says(server, 'GUEST-BOOT 1')
        assert known('list-ports', 'br-kn').split() == [end, f'vhu{user.id[:11]}']
        assert f'iface-id="{name}"' in known('get', 'Interface', end, 'external_ids')
        assert f'"{path}"' in known('get', 'Interface', f'vhu{user.id[:11]}', 'options')
        assert set(os.listdir(f'/sys/class/net/{hybrid.own_bridge}/brif')) == {hybrid.device_name, f'qvb{name[:11]}'}
        assert Path(f'/sys/class/net/{end}/mtu').read_text() == '1442\n' and path.is_socket()
        rig.driver.power.reboot(server, 'HARD', rig.image())
        rig.says(server, 'GUEST-BOOT 2')
        rig.driver.guests.destroy(server)
        assert known('list-ports', 'br-kn') == ''
        assert [one for one in os.listdir('/sys/class/net') if name[:11] in one] == []


def test_a_representor_is_a_port_of_open_vswitch(switch: str, tmp_path: Path) -> None:
    """By os-vif, which finds it in /sys by the address of its function."""
    said = subprocess.run(
        [
            'unshare',
            '--mount',
            '--net',
            sys.executable,
            '-W',
            'ignore',
            '-m',
            'tests.integration.eswitch',
            tmp_path,
            switch,
            str(uuid4()),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said.stdout.splitlines() == ['plug True True'] * 2 + ['unplug False False'] * 2


def test_a_card_by_vdpa(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """libvirt takes it for QEMU's, and opens the file of vhost-vdpa that QEMU is to have."""
    slot, number = '0000:81:00.2', 999_999
    vif, function = new_vif(vnic_type='vdpa', profile={'pci_slot': slot}), device(slot)
    request = request_of(vif.id, 'vdpa', None, None, offloaded=True)
    function.request_id = request.request_id
    monkeypatch.setattr(connection_module.Connection, 'node_devices', lambda host: [vdpa_device(slot, number)])
    for act in ('check', 'plug', 'unplug'):
        monkeypatch.setattr(OpenVSwitch, act, lambda *args: None)
    server = new_instance(flavor=new_flavor(vcpus=1, memory_mb=64), vifs=[vif], pci_requests=[request])
    with pytest.raises(GuestFailed, match=f"Unable to open '/dev/vhost-vdpa-{number}' for vdpa device"):
        rig.driver.guests.spawn(server, rig.image(), pci_devices=[function])
    rig.driver.guests.destroy(server)


def _cards(xml: str) -> list[tuple[str, int, int]]:
    """(MAC address, bus, slot) of a guest's network cards."""
    found = []
    for card in ElementTree.fromstring(xml).iterfind('devices/interface'):
        mac, address = card.find('mac'), card.find('address')
        assert mac is not None and address is not None and address.get('type') == 'pci'
        found.append((mac.get('address', ''), int(address.get('bus', ''), 16), int(address.get('slot', ''), 16)))
    return found


@contextlib.contextmanager
def share(daemon: Libvirtd, host: str) -> Iterator[Path]:
    """A share of NFS that is mounted on a host, as os-brick sees it."""
    path = daemon.directory / 'hosts' / host / 'mnt' / hashlib.md5(b'filer:/v', usedforsecurity=False).hexdigest()
    path.mkdir(parents=True)
    # Upon itself: the libvirtd that is there already has other mounts.
    subprocess.run(['mount', '--bind', path, path], check=True)
    try:
        yield path
    finally:
        subprocess.run(['umount', '--lazy', path], check=True)


def lock(path: Path, size: int, image: Path | None = None) -> None:
    """Make an encrypted volume with so many bytes for a guest, and an image on it."""
    with path.open('wb') as file:
        file.truncate(HEADER + size)
    subprocess.run(
        [
            'cryptsetup',
            '--batch-mode',
            'luksFormat',
            '--type=luks1',
            '--pbkdf-force-iterations=1000',
            '--key-file=-',
            path,
        ],
        input=KEY.encode(),
        check=True,
    )
    if image is not None:
        subprocess.run(
            [
                'qemu-img',
                'convert',
                '-n',
                '-f',
                'raw',
                '--object',
                f'secret,id=key,data={KEY}',
                '--target-image-opts',
                image,
                f'driver=luks,key-secret=key,file.filename={path}',
            ],
            check=True,
        )


def secrets(daemon: Libvirtd) -> set[str]:
    """Those of the host. What is in them libvirt tells nobody."""
    with contextlib.closing(libvirt.open(daemon.uri)) as connection:
        found = connection.listAllSecrets()
        for secret in found:
            with pytest.raises(libvirt.libvirtError, match='secret is private'):
                secret.value()
        return {secret.UUIDString() for secret in found}


def test_a_guest_boots_from_a_volume(daemon: Libvirtd) -> None:
    """Another one beside it comes before it by age; what the guest wrote is there when it starts anew. QEMU counts what
    it does with them, and decrypts the one that it boots from."""
    host = 'roots'
    with share(daemon, host) as path, rig_of(daemon, host) as rig:
        data, root = (
            new(
                volume_id=str(uuid4()),
                host=host,
                device=device,
                boot_index=index,
                connection={'driver_volume_type': 'nfs', 'export': 'filer:/v', 'name': device[5:], 'format': 'raw'},
            )
            for new, index, device in ((new_volume, None, '/dev/vdb'), (new_locked_volume, 0, '/dev/vda'))
        )
        with (path / 'vdb').open('wb') as file:
            file.truncate(1 << 20)
        lock(path / 'vda', daemon.image.stat().st_size, daemon.image)
        server = rig.boot(volumes=[data, root], image_ref='')
        rig.says(server, 'GUEST-BOOT 1')
        # The sector that it boots from, and the one that it reads, counts up and writes before it says that.
        once = {data.volume_id: VolumeCounters(), root.volume_id: VolumeCounters(2, 1024, 1, 512)}
        assert rig.driver.volumes.usage(server) == once
        rig.driver.power.suspend(server, lambda: None)
        assert rig.driver.volumes.usage(server) == {} and secrets(daemon) == {root.volume_id}
        # Secrets don't outlive their daemon.
        daemon.stop()
        daemon.start()
        assert secrets(daemon) == set()
        rig.driver.power.resume(server, [], lambda: None)
        rig.driver.power.power_off(server)
        rig.driver.power.power_on(server, rig.image())
        rig.says(server, 'GUEST-BOOT 2')
        assert rig.driver.volumes.usage(server) == once
        assert [name for name in os.listdir(rig.driver.disks.directory(server.uuid).path) if 'disk' in name] == []
        strange, left = str(uuid4()), str(uuid4())
        with contextlib.closing(libvirt.open(daemon.uri)) as connection:
            for uuid, usage in ((strange, 'of another'), (left, left)):
                connection.secretDefineXML(
                    f"<secret ephemeral='yes' private='yes'><uuid>{uuid}</uuid><usage "
                    f"type='volume'><volume>{usage}</volume></usage></secret>"
                )
            rig.driver.host.init_host()
            assert secrets(daemon) == {strange, root.volume_id}
            rig.driver.guests.destroy(server)
            assert secrets(daemon) == {strange}
            connection.secretLookupByUUIDString(strange).undefine()


def test_a_running_guest_gets_a_volume_and_gives_it_up(daemon: Libvirtd) -> None:
    """Its QEMU is the witness. A disk on SCSI goes whatever the guest's system does; for one of virtio's it is asked,
    and the system of these guests doesn't answer."""
    host, properties = 'volumes', {'hw_disk_bus': 'scsi', 'hw_scsi_model': 'virtio-scsi'}
    with share(daemon, host) as path, rig_of(daemon, host, device_detach_attempts=1, device_detach_timeout=1) as rig:
        scsi, virtio = (
            new(
                volume_id=str(uuid4()),
                host=host,
                bus=bus,
                device=device,
                connection={'driver_volume_type': 'nfs', 'export': 'filer:/v', 'name': device[5:], 'format': 'raw'},
            )
            for new, bus, device in ((new_locked_volume, None, '/dev/sdb'), (new_volume, 'virtio', '/dev/vda'))
        )
        lock(path / 'sdb', 1 << 30)
        with (path / 'vda').open('wb') as file:
            file.truncate(1 << 30)
        server, volumes = rig.boot(properties), rig.driver.volumes
        domain, image = _Again(daemon, server.uuid), rig.image(properties)

        def size(target: str) -> int | None:
            try:
                return int(domain.blockInfo(target)[0])
            except libvirt.libvirtError:
                return None

        rig.says(server, 'GUEST-BOOT 1')
        for _again in range(2):
            volumes.attach(server, image, scsi)
            assert size('sdb') == 1 << 30
        volumes.extend(server, replace(scsi, size=2))
        assert size('sdb') == (path / 'sdb').stat().st_size - HEADER == 2 << 30
        # It is there after a stop and a start, and not in the definition alone.
        server.volumes = [scsi]
        rig.driver.power.power_off(server)
        rig.driver.power.power_on(server, image)
        rig.says(server, 'GUEST-BOOT 2')
        assert size('sdb') == 2 << 30 and f'<serial>{scsi.volume_id}</serial>' in domain.XMLDesc()
        for _again in range(2):
            volumes.detach(server, scsi, lambda: None)
            assert size('sdb') is None and scsi.volume_id not in domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
            assert secrets(daemon) == set()
        volumes.attach(server, image, virtio)
        with pytest.raises(GuestFailed, match=f'does not release {virtio.volume_id}'):
            volumes.detach(server, virtio, lambda: None)
        assert size('vda') == 1 << 30 and virtio.volume_id in domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
        rig.driver.power.power_off(server)
        volumes.detach(server, virtio, lambda: None)
        assert virtio.volume_id not in domain.XMLDesc()


def test_a_running_guest_goes_along_with_its_volume(daemon: Libvirtd) -> None:
    """To another file, which is larger. Until then it has the first, and keeps that when it stops before; from then on
    nothing of it is written to the first."""
    host = 'moves'
    with share(daemon, host) as path, rig_of(daemon, host) as rig:
        old, new = (
            new_volume(
                volume_id=str(uuid4()),
                host=host,
                device='/dev/vda',
                boot_index=0,
                size=size,
                connection={'driver_volume_type': 'nfs', 'export': 'filer:/v', 'name': name, 'format': 'raw'},
            )
            for name, size in (('old', 1), ('new', 2))
        )
        shutil.copy(daemon.image, path / 'old')
        with (path / 'new').open('wb') as file:
            file.truncate((path / 'old').stat().st_size)
        server, volumes, image = rig.boot(volumes=[old], image_ref=''), rig.driver.volumes, rig.image()
        domain = _Again(daemon, server.uuid)

        def files() -> list[str]:
            texts = domain.XMLDesc(), domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
            return [re.findall(r"<source file='[^']*/(\w+)'", text)[0] for text in texts]

        rig.says(server, 'GUEST-BOOT 1')
        for end in (lambda: volumes.end_copy(server, old, new), lambda: rig.driver.power.power_off(server)):
            volumes.copy(server, image, old, new, lambda: None)
            assert (path / 'new').read_bytes() == (path / 'old').read_bytes()
            end()
            assert not volumes.swap(server, image, old, new) and files() == ['old', 'old']
        with pytest.raises(GuestFailed, match='the guest is off, or does not have this volume'):
            volumes.copy(server, image, old, new, lambda: None)
        rig.driver.power.power_on(server, image)
        rig.says(server, 'GUEST-BOOT 2')
        for _again in range(2):
            volumes.copy(server, image, old, new, lambda: None)
        assert files() == ['old', 'old']
        for _again in range(2):
            assert volumes.swap(server, image, old, new) and files() == ['new', 'new']
        assert domain.blockInfo('vda')[0] == 2 << 30 and f'<serial>{old.volume_id}</serial>' in domain.XMLDesc()
        (path / 'old').unlink()
        server.volumes = [replace(new, volume_id=old.volume_id)]
        rig.driver.power.power_off(server)
        rig.driver.power.power_on(server, image)
        rig.says(server, 'GUEST-BOOT 3')


def test_a_guest_goes_on_in_another_file_when_a_snapshot_is_taken(daemon: Libvirtd) -> None:
    """Its volume is what it was, running and off, while files are added behind it and taken out in any order. What it
    wrote before a snapshot is in that, and what it wrote since isn't."""
    host = 'assisted'
    with share(daemon, host) as path, rig_of(daemon, host) as rig:
        volume = new_volume(
            volume_id=str(uuid4()),
            host=host,
            device='/dev/vda',
            boot_index=0,
            connection={'driver_volume_type': 'nfs', 'export': 'filer:/v', 'name': 'v', 'format': 'raw'},
        )
        shutil.copy(daemon.image, path / 'v')
        server, image, numbers = rig.boot(volumes=[volume], image_ref=''), rig.image(), itertools.count(1)
        snapshots, power, domain = rig.driver.volume_snapshots, rig.driver.power, _Again(daemon, server.uuid)

        def boots() -> None:
            """Each boot is counted on the volume."""
            number = next(numbers)
            rig.says(server, f'GUEST-BOOT {number}')

        def again() -> None:
            power.power_off(server)
            power.power_on(server, image)
            boots()

        def take(name: str) -> Any:
            """As the volume service does it: an empty file that reads from the one before, by its name."""
            old = server.volumes[0]
            new = old.in_file(name, 'qcow2')
            subprocess.run(
                ['qemu-img', 'create', '-q', '-f', 'qcow2', '-b', old.file[0], '-F', old.file[1], path / name],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            for _again in range(2):
                snapshots.take(server, image, old, new)
                assert snapshots.has(server, new) and not snapshots.has(server, old)
            server.volumes = [new]
            return old

        def chain() -> list[str]:
            """What its files say, from the one that both its definitions name."""
            texts = domain.XMLDesc(), domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
            # Files may be merged before its next start.
            assert 'backingStore' not in texts[1]
            (first,) = {re.findall(r"<source file='[^']*/([.\w]+)'", text)[0] for text in texts}
            found = json.loads(
                subprocess.run(
                    ['qemu-img', 'info', '-U', '--output=json', '--backing-chain', path / first],
                    check=True,
                    capture_output=True,
                ).stdout
            )
            # By its name alone: shares are mounted elsewhere on other hosts.
            assert all(one.get('backing-filename', '').count('/') == 0 for one in found), found
            return [os.path.basename(one['filename']) for one in found]

        def merge(file: str | None, into: str | None) -> None:
            for _again in range(2):
                snapshots.merge(server, server.volumes[0], Merge(file, into), lambda: None)
                assert snapshots.end_merge(server, server.volumes[0], Merge(file, into))

        boots()
        take('v.1')
        assert chain() == ['v.1', 'v']
        was = (path / 'v').read_bytes()
        take('v.2')
        take('v.3')
        assert chain() == ['v.3', 'v.2', 'v.1', 'v'] and (path / 'v').read_bytes() == was
        again()
        # One in the middle; the one below the last; the last one of all.
        merge('v.1', 'v')
        assert chain() == ['v.3', 'v.2', 'v']
        merge('v', None)
        assert chain() == ['v.3', 'v']
        merge(None, None)
        assert chain() == ['v.3']
        # The same of a guest that is off.
        power.power_off(server)
        for name in ('v.4', 'v.5', 'v.6'):
            take(name)
        assert chain() == ['v.6', 'v.5', 'v.4', 'v.3']
        merge('v.4', 'v.3')
        assert chain() == ['v.6', 'v.5', 'v.3']
        merge('v.3', None)
        assert chain() == ['v.6', 'v.3']
        merge(None, None)
        assert chain() == ['v.6']
        # The volume service didn't want one after all: what was written since stays.
        old = take('v.7')
        again()
        for _again in range(2):
            snapshots.withdraw(server, image, old, server.volumes[0], lambda: None)
        server.volumes = [old]
        assert chain() == ['v.6']
        (path / 'v.7').unlink()
        again()
        with pytest.raises(GuestFailed, match=r'the guest does not use the file v\.7, only v\.6'):
            snapshots.merge(server, server.volumes[0], Merge('v.7', 'v.5'), lambda: None)
        with pytest.raises(GuestFailed, match=r'take a snapshot of disk vda of .*v.8'):
            snapshots.take(server, image, server.volumes[0], server.volumes[0].in_file('v.8', 'qcow2'))
        assert not snapshots.has(server, server.volumes[0].in_file('v.8', 'qcow2')) and chain() == ['v.6']


def test_guests_of_all_shapes_boot(daemon: Libvirtd) -> None:
    """Guests of all shapes boot, among them guests with disks on USB and Windows guests without KVM."""
    for machine in ('pc', 'q35'):
        with rig_of(
            daemon,
            f'shapes-{machine}',
            hw_machine_type=[f'x86_64={machine}'],
            num_pcie_ports=4 if machine == 'q35' else 0,
        ) as rig:
            booted = {
                name: rig.boot(properties, extra_specs, config_drive='True')
                for name, (properties, extra_specs, host) in SHAPES.items()
                if host == machine
            }
            for server in booted.values():
                rig.says(server, 'GUEST-BOOT 1')
            assert {name: rig.driver.guests.get_info(server) for name, server in booted.items()} == dict.fromkeys(
                booted, PowerState.RUNNING
            )


def test_a_guest_has_the_first_cpu_with_what_it_requires(daemon: Libvirtd) -> None:
    """[libvirt]cpu_models; one that guests can't have here refuses the start, and traits say what the others have."""
    with rig_of(daemon, 'models', cpu_mode='custom', cpu_models=['qemu64', 'Nehalem']) as rig:
        assert 'HW_CPU_X86_SSE42' in rig.driver.host.traits()
        server = rig.boot(extra_specs={'trait:HW_CPU_X86_SSE42': 'required'})
        rig.says(server, 'GUEST-BOOT 1')
        assert "<model fallback='forbid'>Nehalem</model>" in _Again(daemon, server.uuid).XMLDesc()
    with pytest.raises(DriverMisconfigured, match='cpu_models has nosuch'):
        daemon.driver('nosuch', cpu_mode='custom', cpu_models=['Nehalem', 'nosuch']).host.init_host()
    own = daemon.driver('own')
    own.host.init_host()
    assert {'HW_CPU_X86_SSE2', 'HW_CPU_X86_MMX'} <= own.host.traits()


def may_lock() -> bool:
    """Whether this root may raise its limit of locked memory (CAP_SYS_RESOURCE): in a container often not."""
    line = next(line for line in Path('/proc/self/status').read_text().splitlines() if line.startswith('CapEff:'))
    return bool(int(line.split()[1], 16) >> 24 & 1)


def test_the_kernel_runs_realtime_cpus_before_all_else(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """hw:cpu_realtime: of QEMU's threads the one of that vCPU, and no other, on a host CPU of its own. Its memory is
    locked where this root may do it; elsewhere the guest is defined without that."""
    if not may_lock():
        element = MemoryBacking.element
        monkeypatch.setattr(MemoryBacking, 'element', lambda self: element(replace(self, locked=False)))
    ours = sorted(os.sched_getaffinity(0))[:2]
    specs = {'hw:cpu_policy': 'dedicated', 'hw:cpu_realtime': 'yes', 'hw:cpu_realtime_mask': '1'}
    host = numa.topology_of(
        [numa.HostCell(0, frozenset(ours), 1024, (), 0, {4: 262144})],
        Offer(shared=frozenset(), dedicated=frozenset(ours), said=True),
    )
    wanted = constraints.of(Flavor(vcpus=2, memory_mb=64, extra_specs=specs))
    assert host is not None and wanted is not None
    server = rig.boot(extra_specs=specs, vcpus=2, numa_topology=numa.fit(host, wanted))
    rig.says(server, 'GUEST-BOOT 1')
    pid = rig.daemon.pid_of(f'instance-{server.id:08x}')
    threads = {
        Path(f'/proc/{pid}/task/{tid}/comm').read_text().strip(): int(tid) for tid in os.listdir(f'/proc/{pid}/task')
    }
    first = [name for name, tid in threads.items() if os.sched_getscheduler(tid) == os.SCHED_FIFO]
    assert first == ['CPU 1/TCG'] and os.sched_getparam(threads[first[0]]).sched_priority == 1
    own, other = (os.sched_getaffinity(threads[name]) for name in ('CPU 1/TCG', 'CPU 0/TCG'))
    assert [len(own), len(other), own & other] == [1, 1, set()] and os.sched_getaffinity(pid) == other
    locked = next(line for line in Path(f'/proc/{pid}/status').read_text().splitlines() if line.startswith('VmLck:'))
    assert (int(locked.split()[1]) >= 64 << 10) is may_lock()


def test_a_guest_keeps_its_disk_through_its_life(rig: Rig) -> None:
    """Stop, start, hard reboot, and a resize on the same host, told by the guest's own count of its boots."""
    server = rig.boot()
    rig.says(server, 'GUEST-BOOT 1')
    rig.driver.power.power_off(server)
    assert rig.driver.guests.get_info(server) == PowerState.SHUTDOWN
    rig.driver.power.power_on(server, rig.image())
    rig.says(server, 'GUEST-BOOT 2')
    rig.driver.power.reboot(server, 'HARD', rig.image())
    rig.says(server, 'GUEST-BOOT 3')
    bigger = new_flavor(vcpus=2, memory_mb=96, root_gb=2)
    disk_info = rig.driver.moves.migrate_disk_and_power_off(server, rig.driver.moves.prepare_move(), bigger)
    server.flavor = bigger
    rig.driver.moves.finish_migration(server, rig.image(), (), True, disk_info)
    rig.says(server, 'GUEST-BOOT 4')
    rig.driver.moves.confirm_migration(server, True)
    assert rig.driver.guests.get_diagnostics(server)['memory'] == 96 << 10


def test_a_move_on_shared_storage_is_confirmed_under_a_running_guest(rig: Rig) -> None:
    """Its disk reads from files whose directory goes away meanwhile; revert gives the disk as it was."""
    server = rig.boot()
    rig.says(server, 'GUEST-BOOT 1')
    other = rig.daemon.driver('beside', storage_of=rig.name)
    other.host.init_host()
    for boots, end in ((2, 'revert'), (3, 'confirm')):
        disk_info = rig.driver.moves.migrate_disk_and_power_off(server, other.moves.prepare_move(), server.flavor)
        other.moves.finish_migration(server, rig.image(), (), True, disk_info)
        rig.says(server, f'GUEST-BOOT {boots}')
        if end == 'revert':
            other.moves.cleanup_move_dest(server, False)
            rig.driver.moves.finish_revert_migration(server, rig.image(), (), True)
            rig.says(server, 'GUEST-BOOT 2')
    # Not the driver's: one daemon plays both hosts' here.
    rig.driver.moves._mover.confirm(server.uuid)
    assert rig.driver.disks.list_directories() == [] and other.disks.list_directories() == [server.uuid]
    seen = rig.dots(server)
    until(lambda: rig.dots(server) > seen)
    other.power.reboot(server, 'HARD', rig.image())
    rig.says(server, 'GUEST-BOOT 4')
    other.guests.destroy(server)


def test_a_paused_and_a_suspended_guest_go_on_where_they_were(rig: Rig) -> None:
    """Its console is the witness: it says nothing meanwhile, counts on afterwards, and boots anew only where its saved
    memory was dropped. libvirtd may be another one in between."""
    server = rig.boot()
    rig.says(server, 'GUEST-BOOT 1')
    domain = _Again(rig.daemon, server.uuid)
    power, look = rig.driver.power, rig.driver.guests.get_info

    def stands_still() -> None:
        # What it had said already may still be on its way into the file.
        time.sleep(1)
        seen = rig.dots(server)
        time.sleep(2)
        assert rig.dots(server) == seen

    def counts() -> None:
        seen = rig.dots(server)
        until(lambda: rig.dots(server) > seen)

    counts()
    for _again in range(2):
        power.pause(server)
        assert look(server) == PowerState.PAUSED
    stands_still()
    for _again in range(2):
        power.unpause(server)
        assert look(server) == PowerState.RUNNING
    counts()
    # By somebody else: it is heard.
    rig.heard.clear()
    domain.suspend()
    until(lambda: server.uuid in rig.heard)
    assert look(server) == PowerState.PAUSED
    rig.heard.clear()
    domain.resume()
    until(lambda: server.uuid in rig.heard)
    counts()
    for _again in range(2):
        power.suspend(server, lambda: None)
        assert look(server) == PowerState.SUSPENDED and not domain.isActive()
    rig.daemon.kill()
    rig.daemon.start()
    assert look(server) == PowerState.SUSPENDED
    stands_still()
    for _again in range(2):
        power.resume(server, (), lambda: None)
        assert look(server) == PowerState.RUNNING
    counts()
    assert 'GUEST-BOOT 2' not in rig.daemon.console(rig.name, server.uuid)
    power.trigger_crash_dump(server)
    power.suspend(server, lambda: None)
    power.reboot(server, 'HARD', rig.image())
    rig.says(server, 'GUEST-BOOT 2')
    power.suspend(server, lambda: None)
    power.power_off(server)
    assert look(server) == PowerState.SHUTDOWN
    power.power_on(server, rig.image())
    rig.says(server, 'GUEST-BOOT 3')


def test_a_rescued_guest_boots_another_disk_and_comes_back_to_its_own(rig: Rig) -> None:
    """By the count of boots that each disk keeps: the rescue disk is new each time, its own is not booted."""
    server = rig.boot()
    for boots in (1, 2):
        rig.says(server, f'GUEST-BOOT {boots}')
        console = Path(rig.driver.disks.directory(server.uuid).file('console.log'))
        console.write_bytes(b'')
        rig.driver.rescues.rescue(server, rig.image(), None, ())
        rig.says(server, 'GUEST-BOOT 1')
        assert f'GUEST-BOOT {boots + 1}' not in rig.daemon.console(rig.name, server.uuid)
        if boots == 2:
            rig.driver.power.power_off(server)
            rig.driver.rescues.restart(server, rig.image(), ())
            rig.says(server, 'GUEST-BOOT 2')
        rig.driver.power.power_on(server, rig.image())
    rig.says(server, 'GUEST-BOOT 3')


# -- images of a guest -------------------------------------------------------------------------------------------------
def test_an_image_is_made_while_the_guest_runs(rig: Rig, tmp_path: Path) -> None:
    """A guest runs on while an image of its disk is made.

    If the snapshot is cancelled, or libvirtd or the compute dies during it, guest and disk are as before.
    """
    server = rig.boot()
    rig.says(server, 'GUEST-BOOT 1')
    rig.driver.power.power_off(server)
    disk = rig.driver.disks.directory(server.uuid).file('disk')
    subprocess.run(['qemu-io', '-f', 'qcow2', '-c', 'write -P 0x5a 8M 200M', disk], check=True, capture_output=True)
    rig.driver.power.power_on(server, rig.image())
    rig.says(server, 'GUEST-BOOT 2')
    domain = libvirt.open(rig.daemon.uri).lookupByUUIDString(server.uuid)
    devices, snapshots = domain.XMLDesc().partition('<devices>')[2], Path(rig.driver.snapshots._directory)
    seen: list[tuple[int, int]] = []

    def make(image: str, look: Callable[[], None] = lambda: None) -> None:
        seen.clear()
        rig.heard.clear()

        def check() -> None:
            seen.append((domain.jobInfo()[0], rig.driver.guests.get_info(server)))
            if seen == [(libvirt.VIR_DOMAIN_JOB_UNBOUNDED, PowerState.RUNNING)]:
                look()

        rig.driver.snapshots.snapshot(server, image, check, lambda: None)

    def is_whole(image: str) -> bool:
        sent = tmp_path / 'sent'
        sent.write_bytes(rig.daemon.images.sent[image])
        for what in ('read -P 0x5a 8M 200M', 'read -P 2 512 1'):  # the guest's own count of its boots
            done = subprocess.run(
                ['qemu-io', '-f', 'qcow2', '-r', '-c', what, str(sent)], check=True, capture_output=True, text=True
            )
            assert 'verification failed' not in done.stdout, what
        return b'backing' not in subprocess.run(['qemu-img', 'info', str(sent)], check=True, capture_output=True).stdout

    # 1. It is copied, by libvirt's account, and nobody held the guest.
    make('one')
    assert any(job for job, _state in seen) and {state for _job, state in seen} == {PowerState.RUNNING}
    assert server.uuid not in rig.heard and is_whole('one')

    # 2. Nobody wants it any more.
    def stop() -> None:
        raise errors.Cancelled(key='x')

    with pytest.raises(errors.Cancelled):
        make('two', stop)
    assert domain.jobInfo()[0] == 0 and 'two' not in rig.daemon.images.sent
    rig.driver.snapshots.forget_snapshot(server, 'two')
    assert list(snapshots.iterdir()) == []

    # 3. The compute died.
    made, guest = rig.driver.snapshots.copy('three'), rig.driver.host._libvirt.find(server.uuid)
    made.make_room()
    assert guest is not None and guest.begin_copy(disk, made.part) and guest.is_copying(made.part)
    after = rig.daemon.driver(rig.name)
    after.host.init_host()
    after.snapshots.forget_snapshot(server, 'three')
    assert domain.jobInfo()[0] == 0 and list(snapshots.iterdir()) == []
    assert domain.XMLDesc().partition('<devices>')[2] == devices

    # 4. libvirtd did; QEMU goes on copying.
    def restart() -> None:
        rig.daemon.kill()
        rig.daemon.start()

    domain = _Again(rig.daemon, server.uuid)
    make('four', restart)
    assert is_whole('four') and server.uuid not in rig.heard
    count = rig.dots(server)
    until(lambda: rig.dots(server) > count)


class _Again:
    """A domain, looked up anew for each call: its libvirtd may be another."""

    def __init__(self, daemon: Libvirtd, uuid: str) -> None:
        self._daemon, self._uuid = daemon, uuid

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            with contextlib.closing(libvirt.open(self._daemon.uri)) as connection:
                return getattr(connection.lookupByUUIDString(self._uuid), name)(*args)

        return call


# -- the daemon --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('end', ['stop', 'kill'])
def test_a_restarted_daemon_fails_no_call_and_no_guest(rig: Rig, end: str) -> None:
    """After libvirtd was restarted, the next call succeeds on a new connection, and the guest has run on."""
    server = rig.boot()
    rig.says(server, 'GUEST-BOOT 1')
    getattr(rig.daemon, end)()
    seen = rig.dots(server)
    until(lambda: rig.dots(server) > seen)
    rig.daemon.start()
    assert rig.driver.guests.get_info(server) == PowerState.RUNNING
    rig.driver.power.reboot(server, 'HARD', rig.image())
    rig.says(server, 'GUEST-BOOT 2')
    until(lambda: 'back' in rig.heard)


def test_a_daemon_that_is_being_restarted_is_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call waits while libvirtd is restarted, succeeds, and no loss of the connection is reported."""
    monkeypatch.setattr(connection_module, 'PATIENCE', WAIT)
    server = rig.boot()
    rig.daemon.kill()
    starting = threading.Timer(1, rig.daemon.start)
    starting.start()
    assert rig.driver.guests.get_info(server) == PowerState.RUNNING
    starting.join()
    until(lambda: 'back' in rig.heard)
    assert not any(text.startswith('Connection') for text in rig.heard)


def test_a_daemon_that_stays_away_is_told_and_undos_of_nothing_go_on(rig: Rig) -> None:
    """A libvirtd that stays away is reported, and the undo of a guest that was never made needs no libvirtd."""
    server, never = rig.boot(), new_instance(flavor=new_flavor(vcpus=1, memory_mb=64))
    rig.daemon.kill()
    until(lambda: 'Connection to libvirt lost: 1' in rig.heard)
    with pytest.raises(HypervisorUnavailable):
        rig.driver.guests.spawn(never, rig.image())
    rig.driver.guests.destroy(never)
    with pytest.raises(HypervisorUnavailable):
        rig.driver.guests.destroy(server)
    assert os.path.exists(rig.driver.disks.directory(server.uuid).path)
    rig.daemon.start()
    until(lambda: 'back' in rig.heard)


def test_a_daemon_that_hangs_holds_nobody_up(daemon: Libvirtd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls to a libvirtd that hangs fail after a set time, and one thread at most is left for each connection."""
    monkeypatch.setattr(connection_module, 'OPEN_WAIT', 2.0)
    with rig_of(daemon, 'hung', keepalive_interval=1) as rig:
        server, failed = rig.boot(), []

        def ask() -> None:
            try:
                rig.driver.guests.get_info(server)
            except HypervisorUnavailable as error:
                failed.append(error)

        daemon.hang()
        try:
            callers = [threading.Thread(target=ask) for _ in range(2 * connection_module.CALLS)]
            for caller in callers:
                caller.start()
            until(lambda: not any(caller.is_alive() for caller in callers))
            assert len(failed) == len(callers)
            until(lambda: 'Connection to libvirt lost: 2' in rig.heard)
            # One for calls, one for what it tells.
            assert sum(thread.name == 'libvirt connection' for thread in threading.enumerate()) == 2
        finally:
            daemon.go_on()
        until(lambda: 'back' in rig.heard)
        assert rig.driver.guests.get_info(server) == PowerState.RUNNING


# -- events ------------------------------------------------------------------------------------------------------------
def test_what_guests_and_others_do_is_told(rig: Rig) -> None:
    """A guest that another program pauses, resumes or kills is reported with its new power state."""
    server = rig.boot()
    virsh = libvirt.open(rig.daemon.uri).lookupByUUIDString(server.uuid)
    for act, state in (
        (virsh.suspend, PowerState.PAUSED),
        (virsh.resume, PowerState.RUNNING),
        (lambda: os.kill(rig.daemon.pid_of(virsh.name()), signal.SIGKILL), PowerState.SHUTDOWN),
    ):
        rig.heard.clear()
        act()
        until(lambda: server.uuid in rig.heard)
        assert rig.driver.guests.get_info(server) == state


def test_a_compute_and_its_libvirtd(daemon: Libvirtd, caplog: pytest.LogCaptureFixture) -> None:
    """A compute waits for libvirtd, records that its guest died, and is disabled while libvirtd is away."""
    cloud = Cloud()
    cloud.drivers['gpu1'] = made = daemon.driver('compute')
    daemon.stop()
    try:
        starting = threading.Thread(target=cloud.host, args=('gpu1',), kwargs={'shutdown_timeout': 0})
        with caplog.at_level(logging.WARNING):
            starting.start()
            until(lambda: 'Not started yet' in caplog.text)
        daemon.start()
        starting.join(WAIT)
        manager, service = cloud.managers['gpu1'], cloud.cell.services['gpu1']
        server = cloud.cell.new_instance(0, flavor(vcpus=1, memory_mb=64, root_gb=1), image_ref='image-1')
        manager.endpoint.build_and_run_instance(
            new_context(), order=build_order(server, image_meta(disk_format='raw')), key='boot/3.build/1'
        )
        row = cloud.cell.instances[server.uuid]
        assert (row['vm_state'], row['power_state']) == ('active', PowerState.RUNNING)
        until(lambda: 'GUEST-BOOT 1' in daemon.console('compute', server.uuid))
        # Its guest dies.
        os.kill(daemon.pid_of('instance-00000001'), signal.SIGKILL)
        until(lambda: row['vm_state'] == 'stopped')
        # Its libvirtd does, too.
        daemon.kill()
        until(
            lambda: (service['disabled'], service['disabled_reason']) == (True, 'AUTO: Connection to libvirt lost: 1')
        )
        manager.heartbeat.beat()
        assert not manager.heartbeat.lost
        daemon.start()
        until(lambda: (service['disabled'], service['disabled_reason']) == (False, None))
        made.guests.destroy(server)
    finally:
        cloud.stop()
        if daemon.process is None or daemon.process.poll() is not None:
            daemon.start()


# -- GPUs --------------------------------------------------------------------------------------------------------------
CARDS, VFS = ('0000:3a:00.0', '0000:3b:00.0', '0000:b9:00.0', '0000:ba:00.0'), ('0000:ba:00.4', '0000:ba:00.5')
DIVIDED, VGPUS = '0000:3c:00.0', [f'c2177883-f1bb-47f0-914d-32a22e3a880{number}' for number in (4, 5)]


@pytest.fixture
def h100s(tmp_path: Path) -> Iterator[tuple[Pretended, Libvirtd]]:
    machine = Pretended(tmp_path)
    made = Libvirtd(tmp_path, machine)
    try:
        made.start()
        yield machine, made
    finally:
        made.end()


def test_h100s_from_discovery_to_a_guest_and_back(h100s: tuple[Pretended, Libvirtd]) -> None:
    """Real libvirt on a /sys with seven H100 functions, one of them with two vGPUs: found, matched, claimed, in the
    guest's XML and bound to vfio-pci, given back. What somebody else took by hand fails
    the build, and the ledger has it as free."""
    machine, libvirtd = h100s
    conf = new_conf('gpus')
    conf.set_override(
        'device_spec',
        [
            json.dumps({'vendor_id': '10de', 'product_id': '2330', 'address': address})
            for address in ({'bus': '3[ab]', 'slot': '00', 'function': '0'}, '0000:ba:00.*')
        ],
        group='pci',
    )
    conf.set_override('enabled_mdev_types', ['nvidia-1145'], group='devices')
    hypervisor, cloud = libvirtd.driver('gpus', pci={'device_spec': conf.pci.device_spec}), Cloud()
    try:
        # 1. Found: cards, a PF, its VFs, and where they are.
        manager = cloud.managers['gpus'] = ComputeManager(
            conf,
            driver=hypervisor,
            conductor=cloud.cell,
            placement=None,
            ctxt=cloud.cell.context,
            pauses=(0.0,),
        )
        manager.start()
        found = {row['address']: row for row in hypervisor.host.get_available_resource()['pci_passthrough_devices']}
        assert list(found) == sorted([*CARDS, *VFS, DIVIDED]) + VGPUS
        assert {(row['vendor_id'], row['product_id'], row['label']) for row in found.values()} == {
            ('10de', '2330', 'label_10de_2330')
        }
        assert [row['dev_type'] for row in found.values()] == [
            *['type-PCI'] * 4,
            'type-PF',
            'type-VF',
            'type-VF',
            'mdev',
            'mdev',
        ]
        assert [row['numa_node'] for row in found.values()] == [0, 0, 0, 1, 1, 1, 1, 0, 0]
        assert found[DIVIDED]['mdev_types'] == {'nvidia-1145': {'available': 0, 'api': 'vfio-pci'}}
        assert {(found[one]['parent_addr'], found[one]['mdev_type']) for one in VGPUS} == {(DIVIDED, 'nvidia-1145')}
        assert {found[address]['parent_addr'] for address in VFS} == {CARDS[3]}
        # 2. Matched: one card is nobody's.
        rows = cloud.cell.devices
        assert {row['address'] for row in rows.values()} == {*CARDS, *VFS, *VGPUS} - {CARDS[2]}

        def statuses() -> dict[str, str]:
            return {row['address']: row['status'] for row in rows.values()}

        def build(key: str, *wanted: tuple[str, int]) -> str:
            """A server with so many devices of a kind."""
            server = cloud.cell.new_instance(0, flavor(vcpus=1, memory_mb=64, root_gb=1), image_ref='image-1')
            cloud.cell.extras[server.uuid]['pci_requests'] = InstancePCIRequests(
                instance_uuid=server.uuid,
                requests=[
                    InstancePCIRequest(
                        count=count,
                        spec=[{'vendor_id': '10de', 'product_id': '2330', 'dev_type': kind}],
                        alias_name='h100',
                        is_new=False,
                        request_id=str(uuid4()),
                        requester_id=None,
                        numa_policy='preferred',
                    )
                    for kind, count in wanted
                ],
            ).to_column()
            manager.endpoint.build_and_run_instance(
                new_context(),
                order=build_order(cloud.cell.instance(server.uuid), image_meta(disk_format='raw')),
                key=f'{key}/3.build/1',
            )
            return server.uuid

        # 3. Claimed, and given to a guest that runs.
        server = build('one', ('type-PCI', 1), ('type-VF', 1), ('mdev', 1))
        held = sorted(cloud.cell.held(server))
        card, function, vgpu = held
        assert card in CARDS[:2] and function in VFS and vgpu in VGPUS
        assert set(cloud.cell.held(server).values()) == {'allocated'}
        domain = libvirt.open(libvirtd.uri).lookupByUUIDString(server)
        assert hypervisor.guests.describe()[0]['hostdevs'] == held
        assert "<hostdev mode='subsystem' type='pci' managed='yes'>" in domain.XMLDesc()
        assert f"<address uuid='{vgpu}'/>" in domain.XMLDesc()
        assert [machine.driver_of(address) for address in (card, function)] == ['vfio-pci', 'vfio-pci']
        until(lambda: 'GUEST-BOOT 1' in libvirtd.console('gpus', server))
        # A PF whose VF is in use is no whole card.
        assert statuses()[CARDS[3]] == 'unavailable'
        # 4. The other card is somebody else's: the host refuses before it starts anything, nothing is left.
        other = next(address for address in CARDS[:2] if address != card)
        taken = Rig(libvirtd, 'byhand')
        taken.driver.host.init_host()
        stranger = new_instance(id=99, flavor=new_flavor(vcpus=1, memory_mb=64))
        taken.driver.guests.spawn(stranger, taken.image(), pci_devices=devices(other))
        with pytest.raises(errors.HostRejected, match=f'which is no server of this host, has {other}'):
            build('two', ('type-PCI', 1))
        # It rests, as somebody has it, until it is enabled.
        assert statuses()[other] == 'unavailable' and len(hypervisor.guests.list_instance_uuids()) == 2
        taken.driver.guests.destroy(stranger)
        manager.endpoint.set_device_disabled(new_context(), address=other, reason=None)
        # 5. Given back, to the kernel's driver as well.
        manager.endpoint.terminate_instance(
            new_context(), instance=cloud.cell.instance(server), key='end/1.terminate/1'
        )
        assert set(statuses().values()) == {'available'} and cloud.cell.held(server) == {}
        until(lambda: machine.driver_of(card) == machine.driver_of(other) == 'nvidia')
        assert machine.driver_of(function) is None
    finally:
        cloud.stop()


# -- the whole cloud ---------------------------------------------------------------------------------------------------
HOST = 'real1'


class Real:
    """A compute of real guests beside those that libvirt's test driver plays, in the same cloud."""

    def __init__(self, site: Site, daemon: Libvirtd, compute: Beside) -> None:
        self.site, self.daemon, self.compute = site, daemon, compute

    def service(self) -> dict[str, Any]:
        rows = self.site.call('GET', f'/os-services?host={HOST}', user='admin')['services']
        return rows[0] if rows else {}

    def until_service(self, status: str, reason: str | None) -> None:
        """It stays up all the time, whatever its libvirtd does."""

        def shows() -> bool:
            row = self.service()
            assert row['state'] == 'up'
            return (row['status'], row['disabled_reason']) == (status, reason)

        self.compute.until(shows, f'{status}: {reason}')

    def until_power(self, server: str, state: PowerState) -> None:
        self.compute.until(lambda: self.site.servers()[server]['OS-EXT-STS:power_state'] == state, state.name)

    def until_console(self, server: str, text: str) -> None:
        def says() -> bool:
            reply = self.site.action(server, 'os-getConsoleOutput', {})
            return reply.status == 200 and text in reply.data['output']

        self.compute.until(says, text)


@pytest.fixture
def real(site: Site, daemon: Libvirtd, tmp_path: Path) -> Iterator[Real]:
    home = daemon.directory / 'hosts' / HOST
    settings = (
        f'[DEFAULT]\nhost = {HOST}\nstate_path = {home}\ninstances_path = {home}/instances\n'
        f'shutdown_timeout = 1\nsync_power_state_interval = 600\n[libvirt]\nconnection_uri = {daemon.uri}\n'
        'virt_type = qemu\nkeepalive_interval = 2\n'
    )
    home.mkdir()
    with Beside(site, 'kilonova-compute', directory=tmp_path, settings=settings) as compute:
        made = Real(site, daemon, compute)
        compute.until(lambda: made.service().get('state') == 'up', 'its service')
        done = site.manage('cell_v2', 'discover_hosts')
        assert done.returncode == 0, done.stderr
        yield made
        site.clean()
        assert compute.terminate() == 0
        assert 'Traceback' not in compute.log()
    site.call('DELETE', f'/os-services/{made.service()["id"]}', user='admin')


def test_a_real_guest_in_a_whole_cloud(site: Site, real: Real) -> None:
    """A compute keeps its guest while libvirtd is killed and hung, and sees what other programs do to the guest.

    Others pause and kill the guest. Its own output on its console shows whether it ran on.
    """
    token = site.token('admin')
    image = http.call(
        'POST',
        site.url('glance') + '/v2/images',
        {'name': 'boots', 'disk_format': 'raw', 'container_format': 'bare', 'visibility': 'public'},
        token=token,
    ).data['id']
    http.send(
        'PUT',
        f'{site.url("glance")}/v2/images/{image}/file',
        data=real.daemon.image.read_bytes(),
        headers={'X-Auth-Token': token, 'Content-Type': 'application/octet-stream'},
    )
    (server,) = site.boot(1, site.flavor('real', ram=64), user='admin', host=HOST, imageRef=image)
    real.until_console(server, 'GUEST-BOOT 1')
    # 1. What others do to it is seen.
    domain = libvirt.open(real.daemon.uri).lookupByUUIDString(server)
    domain.suspend()
    real.until_power(server, PowerState.PAUSED)
    domain.resume()
    real.until_power(server, PowerState.RUNNING)
    os.kill(real.daemon.pid_of(domain.name()), signal.SIGKILL)
    site.await_status([server], 'SHUTOFF')
    site.act(server, 'os-start')
    site.await_status([server], 'ACTIVE')
    real.until_console(server, 'GUEST-BOOT 2')
    # 2. A libvirtd that is away: the host takes no servers, its guest runs.
    real.daemon.kill()
    real.until_service('disabled', 'AUTO: Connection to libvirt lost: 1')
    assert site.servers()[server]['status'] == 'ACTIVE'
    real.daemon.start()
    real.until_service('enabled', None)
    site.act(server, 'reboot', {'type': 'HARD'})
    real.until_console(server, 'GUEST-BOOT 3')
    # 3. One that hangs.
    real.daemon.hang()
    try:
        real.until_service('disabled', 'AUTO: Connection to libvirt lost: 2')
    finally:
        real.daemon.go_on()
    real.until_service('enabled', None)
    site.settle([server])
    site.act(server, 'os-stop')
    site.await_status([server], 'SHUTOFF')
    site.audit()
    http.call('DELETE', f'{site.url("glance")}/v2/images/{image}', token=token)

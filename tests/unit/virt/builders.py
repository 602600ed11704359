"""What the tests of the hypervisor's side are made of: settings, servers, images, host descriptions."""

from __future__ import annotations

import subprocess
import uuid as uuidlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from oslo_config import cfg

from kilonova.conf import (
    api,
    base,
    base_api,
    base_virt,
    compute,
    image_cache,
    key_manager,
    libvirt,
    os_brick,
    os_vif_ovs,
    pci,
    privsep_osbrick,
    serial_console,
    spice,
    vendordata_dynamic_auth,
    vif_plug_ovs_privileged,
    vnc,
)
from kilonova.objects.vif import Vif
from kilonova.objects.volume import AttachedVolume

GPU, GPU2, GPU3 = '0000:08:00.0', '0000:88:00.0', '0000:89:00.0'
# A GPU that is cut into vGPUs, the type of these, and two of them.
VGPU_PARENT, VGPU = '0000:84:00.0', 'nvidia-35'
MDEV, MDEV2 = '4b20d080-1b54-4048-85b3-a6a62d165c01', '4b20d080-1b54-4048-85b3-a6a62d165c02'


def new_conf(path: Path, host: str = 'gpu1', **overrides: Any) -> cfg.ConfigOpts:
    """Settings of one compute below ``path``; ``libvirt={…}`` and the like override a section."""
    conf = cfg.ConfigOpts()
    for module in (
        api,
        base,
        base_api,
        base_virt,
        compute,
        image_cache,
        key_manager,
        libvirt,
        os_brick,
        os_vif_ovs,
        pci,
        privsep_osbrick,
        serial_console,
        spice,
        vendordata_dynamic_auth,
        vif_plug_ovs_privileged,
        vnc,
    ):
        conf.register_opts(module.OPTS, group=module.GROUP)
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override('host', host)
    conf.set_override('fixed_key', KEY, group='key_manager')
    conf.set_override('state_path', str(path / host))
    conf.set_override('my_block_storage_ip', '192.0.2.7')
    for name, value in overrides.items():
        if isinstance(value, dict):
            for option, inner in value.items():
                conf.set_override(option, inner, group=name)
        else:
            conf.set_override(name, value)
    return conf


def new_flavor(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            'name': 'tmp1',
            'vcpus': 8,
            'memory_mb': 32768,
            'root_gb': 1,
            'ephemeral_gb': 0,
            'swap': 0,
            'extra_specs': {},
            **values,
        }
    )


class Server(SimpleNamespace):
    """What drivers read of ``objects.Instance``."""

    @property
    def is_from_volume(self) -> bool:
        return not self.image_ref

    @property
    def local_root_gb(self) -> int:
        return 0 if self.is_from_volume else self.flavor.root_gb


def new_instance(**values: Any) -> Server:
    return Server(
        **{
            'uuid': str(uuidlib.uuid4()),
            'id': 1,
            'flavor': new_flavor(),
            'image_ref': 'image-1',
            'project_id': 'demo',
            'user_id': 'ann',
            'config_drive': '',
            'hostname': 'one',
            'display_name': 'One',
            'metadata': {},
            'user_data': None,
            'key_name': None,
            'key_data': None,
            'launch_index': 0,
            'availability_zone': 'nova',
            'vifs': [],
            'volumes': [],
            **values,
        }
    )


PORT, PORT2 = '1eeb6c43-4f11-4d55-9d26-9b0f3ff6a1d5', '7d2f3c11-8a01-4a51-b2c3-0c9be2f1d4aa'


def new_vif(**values: Any) -> Vif:
    """A port that ML2/OVN bound to a host whose Open vSwitch is the kernel's."""
    return Vif(
        **{
            'id': PORT,
            'mac': 'fa:16:3e:00:00:01',
            'network_id': '3a8e46f0-3d8c-4f44-8a4f-6a3b5c2d1e0f',
            'label': 'private',
            'project_id': 'demo',
            'type': 'ovs',
            'mtu': 1442,
            'active': True,
            'details': {'bridge_name': 'br-int', 'datapath_type': 'system', 'ovs_create_tap': True},
            **values,
        }
    )


VOLUME, VOLUME2 = '5d6f1b0a-6a0f-4a70-9d55-0a3a1c8f2b01', '9a0e4c77-31d5-4b4e-8f5c-7d2b6c1e0f02'


def new_volume(**values: Any) -> AttachedVolume:
    """A volume in Ceph, as Cinder attached it to a host."""
    volume_id = values.get('volume_id', VOLUME)
    kind = {
        'driver_volume_type': 'rbd',
        'name': f'volumes/volume-{volume_id}',
        'hosts': ['192.0.2.1', '192.0.2.2'],
        'ports': ['6789', '6789'],
        'auth_enabled': True,
        'auth_username': 'cinder',
        'secret_type': 'ceph',
        'secret_uuid': '7c1a4b9e-5f0d-4f7e-8a7b-2f0f3a1b9c55',
        'encrypted': False,
        'discard': True,
    }
    return AttachedVolume(
        **{
            'uuid': volume_id[::-1],
            'volume_id': volume_id,
            'size': 1,
            'device': '/dev/vdb',
            'host': 'gpu1',
            'attachment_id': volume_id,
            'connection': kind,
            **values,
        }
    )


class Share:
    """Stands for os-brick: a directory with volumes, which hosts have mounted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def connect(self, volume: AttachedVolume) -> str:
        return str(self.path / volume.connection['name'])

    def disconnect(self, volume: AttachedVolume, path: str | None, force: bool = False) -> None:
        pass


# The key of all encrypted volumes, and what opens them.
KEY = '5e' * 32


def new_locked_volume(**values: Any) -> AttachedVolume:
    """The same, encrypted."""
    made = new_volume(**values)
    return replace(
        made,
        connection={
            **made.connection,
            'encrypted': True,
            'encryption': {
                'encryption_key_id': '00000000-0000-0000-0000-000000000000',
                'control_location': 'front-end',
                'provider': 'luks',
                'cipher': 'aes-xts-plain64',
                'key_size': 256,
            },
        },
    )


def device(address: str, **extra_info: str) -> SimpleNamespace:
    return SimpleNamespace(address=address, dev_type='type-PCI', parent_addr=None, extra_info=extra_info)


def mediated(uuid: str, parent: str = VGPU_PARENT, type_: str = VGPU) -> SimpleNamespace:
    """A vGPU of a server."""
    return SimpleNamespace(address=uuid, dev_type='mdev', parent_addr=parent, extra_info={'mdev_type': type_})


def devices(*addresses: str) -> list[SimpleNamespace]:
    return [device(address) for address in addresses]


def image_meta(**values: Any) -> dict[str, Any]:
    return {'id': 'image-1', 'disk_format': 'qcow2', 'min_disk': 0, 'size': 0, 'properties': {}, **values}


class Images:
    """An image client that has one file for every image and counts how often it is fetched; ``sent`` are the uploads,
    ``formats`` what their records were changed to.

    ``refuses``: what the next calls of ``upload`` raise.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.fetched = path, 0
        self.sent: dict[str, bytes] = {}
        self.formats: dict[str, str] = {}
        self.refuses: list[Exception] = []

    def get(self, image_id: str) -> dict[str, Any]:
        return {'id': image_id, 'status': 'active' if image_id in self.sent else 'queued'}

    def update(self, image_id: str, changes: Sequence[Mapping[str, Any]]) -> None:
        assert image_id not in self.sent, 'an image with data keeps its format'
        (change,) = changes
        assert (change['op'], change['path']) == ('replace', '/disk_format')
        self.formats[image_id] = change['value']

    def upload(self, image_id: str, file: IO[bytes], check: Any) -> None:
        check()
        if self.refuses:
            raise self.refuses.pop(0)
        self.sent[image_id] = file.read()

    def download(self, image_id: str, file: IO[bytes]) -> None:
        self.fetched += 1
        file.write(self.path.read_bytes())


class Listener:
    """Whom a driver tells what happens by itself; ``heard``: what, in order."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def guest_changed(self, uuid: str) -> None:
        self.heard.append(uuid)

    def hypervisor_lost(self, reason: str) -> None:
        self.heard.append(reason)

    def hypervisor_back(self) -> None:
        self.heard.append('back')


def make_image(path: Path, format_: str = 'qcow2', size: str = '64M', *options: str) -> Path:
    subprocess.run(['qemu-img', 'create', '-q', '-f', format_, *options, str(path), size], check=True)
    return path


def write_marker(path: Path, pattern: int = 0x5A) -> None:
    """What a guest does: 64 KiB of ``pattern`` at 1 MiB."""
    subprocess.run(
        ['qemu-io', '-f', 'qcow2', '-c', f'write -P {pattern} 1M 64k', str(path)], check=True, capture_output=True
    )


def has_marker(path: Path, pattern: int = 0x5A) -> bool:
    """Whether a guest would read the marker there."""
    done = subprocess.run(
        ['qemu-io', '-f', 'qcow2', '-r', '-c', f'read -P {pattern} 1M 64k', str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and 'Pattern verification failed' not in done.stdout:
        raise AssertionError(done.stderr)
    return not done.returncode


_PCI = """
  <device><name>pci_{name}</name><parent>computer</parent>
    <capability type='pci'><class>0x030000</class><domain>0</domain><bus>{bus}</bus><slot>0</slot>
      <function>0</function><product id='0x13f1'>GM204GL [Quadro M4000]</product>
      <vendor id='0x10de'>NVIDIA Corporation</vendor><numa node='{numa}'/></capability></device>"""


MDEV_TYPES = """<capability type='mdev_types'>
      <type id='nvidia-35'><name>GRID M60-0B</name><deviceAPI>vfio-pci</deviceAPI>
        <availableInstances>16</availableInstances></type>
      <type id='nvidia-36'><name>GRID M60-0Q</name><deviceAPI>vfio-pci</deviceAPI>
        <availableInstances>0</availableInstances></type></capability>"""


def mdev_node(uuid: str, parent: str = 'pci_0000_84_00_0', type_: str = VGPU, *, old: bool = False) -> str:
    """A mediated device as libvirt shows it; ``old``: as one before 7.8 does."""
    name = f'mdev_{uuid.replace("-", "_")}'
    return (f'<device><name>{name}</name>' if old else f'<device><name>{name}_{parent.removeprefix("pci_")}</name>') + (
        f"<parent>{parent}</parent><capability type='mdev'><type id='{type_}'/>"
        f"{'' if old else f'<uuid>{uuid}</uuid>'}<iommuGroup number='12'/></capability></device>"
    )


# The GPU that is cut into vGPUs, and one that is made.
VGPUS = (
    f"""<device><name>pci_0000_84_00_0</name><parent>computer</parent><capability type='pci'>
    <class>0x030200</class><domain>0</domain><bus>132</bus><slot>0</slot><function>0</function>
    <product id='0x13f2'>GRID</product><vendor id='0x10de'>NVIDIA</vendor>{MDEV_TYPES}<numa node='1'/>
    </capability></device>""",
    mdev_node(MDEV),
)


def write_node(path: Path, buses: dict[int, int] | None = None, extra: str = '') -> str:
    """A host for libvirt's test driver: 64 CPUs, 256 GiB, a GPU a PCI bus {bus: NUMA node}; its URI."""
    gpus = ''.join(
        _PCI.format(name=f'0000_{bus:02x}_00_0', bus=bus, numa=numa)
        for bus, numa in ({0x08: 0, 0x88: 1} if buses is None else buses).items()
    )
    path.write_text(f"""<node>
  <cpu><mhz>2400</mhz><model>i686</model><active>64</active><nodes>2</nodes><sockets>1</sockets><cores>16</cores>
    <threads>2</threads></cpu><memory>268435456</memory>
  <device><name>computer</name><capability type='system'><hardware><vendor>T</vendor><version>1</version>
    <serial>s</serial><uuid>11111111-1111-1111-1111-111111111111</uuid></hardware>
    <firmware><vendor>V</vendor></firmware></capability></device>{gpus}{extra}
</node>""")
    return f'test://{path}'

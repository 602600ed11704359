"""Describe one more host of the one-machine cloud: its node file, its device_spec, an alias for its devices.

    paths = host.describe(Path('var/described'), 'gpu3', gpus=8, device='10de:20b5', vgpus=4)

vGPUs are those of one card more, and exist already: libvirt's test driver makes none. The node file is one of that
driver (docs/admin/gpu-passthrough.md explains it). The directory begins with the shipped hosts, so that a cloud that
runs keeps them; ``aliases.conf`` in it is for all daemons.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from pathlib import Path

from tools.cloud.layout import DEFAULT_HOSTS, CloudError
from tools.cloud.render import ALIASES

ALIAS_FILE = 'aliases.conf'
MOST = 64
NODES = 2
# PCI buses of the devices of each NUMA node, from this one on.
FIRST_BUS = (0x10, 0x80)

_NODE = """<node>
  <!-- {name}: 64 CPUs and 256 GiB in two NUMA nodes; {gpus} devices {device}, spread over both; {vgpus} vGPUs. -->
  <cpu>
    <mhz>2600</mhz>
    <model>x86_64</model>
    <nodes>2</nodes>
    <sockets>1</sockets>
    <cores>16</cores>
    <threads>2</threads>
    <active>64</active>
  </cpu>
  <memory>268435456</memory>
  <device>
    <name>computer</name>
    <capability type="system">
      <hardware>
        <vendor>Kilonova</vendor>
        <version>1</version>
        <serial>{name}</serial>
        <uuid>{uuid}</uuid>
      </hardware>
    </capability>
  </device>
{devices}</node>
"""
_DEVICE = """  <device>
    <name>pci_0000_{bus:02x}_00_0</name>
    <parent>computer</parent>
    <capability type="pci">
      <class>0x030200</class>
      <domain>0</domain>
      <bus>{bus}</bus>
      <slot>0</slot>
      <function>0</function>
      <product id="0x{product}">device {vendor}:{product}</product>
      <vendor id="0x{vendor}">vendor {vendor}</vendor>
      <iommuGroup number="{bus}">
        <address domain="0x0000" bus="0x{bus:02x}" slot="0x00" function="0x0"/>
      </iommuGroup>
      <numa node="{node}"/>{more}
    </capability>
  </device>
"""
# The card of the vGPUs, an A16, and their type.
VGPU_BUS, VGPU_CARD, VGPU_TYPE = 0x70, ('10de', '25b6'), 'nvidia-711'
_MDEV_TYPES = f"""
      <capability type="mdev_types">
        <type id="{VGPU_TYPE}">
          <name>NVIDIA A16-4Q</name>
          <deviceAPI>vfio-pci</deviceAPI>
          <availableInstances>0</availableInstances>
        </type>
      </capability>"""
_MDEV = """  <device>
    <name>mdev_{name}_0000_{bus:02x}_00_0</name>
    <parent>pci_0000_{bus:02x}_00_0</parent>
    <capability type="mdev">
      <type id="{mdev_type}"/>
      <uuid>{uuid}</uuid>
      <iommuGroup number="{group}"/>
    </capability>
  </device>
"""


def describe(directory: Path, name: str, *, gpus: int, device: str, vgpus: int = 0) -> list[Path]:
    """Write NAME.xml, NAME.conf and the alias; gives back these files. CloudError: what can't be."""
    if not re.fullmatch(r'[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?', name):
        raise CloudError(f'NAME={name} is no host name: lower-case letters, digits and hyphens')
    parts = re.fullmatch(r'([0-9a-f]{4}):([0-9a-f]{4})', device.lower())
    if parts is None:
        raise CloudError(f'ID={device} is no PCI id: vendor and product, four hexadecimal digits each, as in 10de:20b5')
    if not 1 <= gpus <= MOST:
        raise CloudError(f'GPUS={gpus}: 1 to {MOST}')
    if not 0 <= vgpus <= MOST:
        raise CloudError(f'VGPUS={vgpus}: 0 to {MOST}')
    if not directory.exists():
        shutil.copytree(DEFAULT_HOSTS, directory)
    if (directory / f'{name}.xml').exists():
        raise CloudError(f'{directory / name}.xml is there already; remove it, or choose another NAME')
    vendor, product = parts.groups()
    devices = ''.join(
        _DEVICE.format(
            bus=FIRST_BUS[number % NODES] + number // NODES,
            node=number % NODES,
            vendor=vendor,
            product=product,
            more='',
        )
        for number in range(gpus)
    )
    if vgpus:
        devices += _divided(name, vgpus)
    node_file, settings = directory / f'{name}.xml', directory / f'{name}.conf'
    node_file.write_text(
        _NODE.format(
            name=name,
            gpus=gpus,
            vgpus=vgpus,
            device=device.lower(),
            devices=devices,
            uuid=uuid.uuid5(uuid.NAMESPACE_DNS, name),
        )
    )
    ids = {'vendor_id': vendor, 'product_id': product}
    settings.write_text(
        f'# Settings of the compute "{name}" alone.\n[pci]\ndevice_spec = {json.dumps(ids)}\n'
        + (f'[devices]\nenabled_mdev_types = {VGPU_TYPE}\n' if vgpus else '')
    )
    return [node_file, settings, _alias(directory / ALIAS_FILE, ids)]


def _divided(name: str, number: int) -> str:
    """Describe a card with so many mediated devices."""
    vendor, product = VGPU_CARD
    card = _DEVICE.format(bus=VGPU_BUS, node=0, vendor=vendor, product=product, more=_MDEV_TYPES)
    uuids = [uuid.uuid5(uuid.NAMESPACE_DNS, f'{name}-vgpu-{count}') for count in range(number)]
    return card + ''.join(
        _MDEV.format(name=str(one).replace('-', '_'), bus=VGPU_BUS, mdev_type=VGPU_TYPE, uuid=one, group=1000 + count)
        for count, one in enumerate(uuids)
    )


def alias_name(device: str) -> str:
    """Return the name of the alias that a flavor asks for."""
    vendor, product = device.lower().split(':')
    whole = [one for one in ALIASES if one['device_type'] == 'type-PCI']
    return next(
        (one['name'] for one in whole if (one['vendor_id'], one['product_id']) == (vendor, product)), f'gpu-{product}'
    )


def _alias(path: Path, ids: dict[str, str]) -> Path:
    name = alias_name(f'{ids["vendor_id"]}:{ids["product_id"]}')
    line = 'alias = ' + json.dumps({'name': name, **ids, 'device_type': 'type-PCI'}) + '\n'
    text = path.read_text() if path.exists() else '# Aliases of the hosts that make host described.\n[pci]\n'
    if line not in text and all(one['name'] != name for one in ALIASES):
        text += line
    path.write_text(text)
    return path

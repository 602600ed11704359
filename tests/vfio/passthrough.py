"""A one-machine cloud whose one host is the nested machine of tools/vfio: guests are given real devices by vfio-pci,
and say on their consoles what they have. Asked through the REST API and by the ``openstack`` command.

    cloud.openstack('server', 'create', '--flavor', 'one', …)       # its output; it is printed with what it was told
    cloud.sees(server, [CARD, CARD])        # waits until its newest boot has listed these; the lines are printed
    cloud.held(server)                      # addresses and uuids in the domain that runs
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from xml.etree import ElementTree

import libvirt

from kilonova.virt.libvirt.devices import hostdevs
from tests.integration.openstack_shell import Shells
from tests.integration.real_guests import RealGuests
from tests.integration.site import Site
from tools.cloud import control, identity, render
from tools.cloud.image import ensure_guest
from tools.cloud.layout import ROOT
from tools.guest import image as guest_image
from tools.vfio import image, vgpu
from tools.vfio.machine import CARD, NVME, VIRTUAL, Nested

HOST = 'vfio1'
COMPUTE = f'compute-{HOST}'
CACHE = ROOT / 'build' / 'vfio'
# What the host gives out: the cards whole, the VFs of the NVMe controller, and vGPUs.
_SETTINGS = """[DEFAULT]
initial_cpu_allocation_ratio = 16.0
reserved_host_memory_mb = 256
[libvirt]
connection_uri = {uri}
virt_type = kvm
cpu_mode = none
disk_cachemodes = file=writeback
[serial_console]
enabled = false
[pci]
{specs}
[devices]
enabled_mdev_types = {mdev_type}
"""
# One host: a resize ends where it began.
_EXTRA = """[DEFAULT]
allow_resize_to_same_host = true
[pci]
{aliases}
"""


class Passthrough:
    """``site`` is the cloud, ``guests`` its servers, ``nested`` the host."""

    def __init__(self, directory: Path) -> None:
        hosts = directory / 'hosts'
        hosts.mkdir()
        (hosts / f'{HOST}.xml').write_text('<node><!-- connection_uri has another host --></node>\n')
        self.site = Site(directory, hosts=hosts)
        began = time.monotonic()
        built = image.build(CACHE)
        print(f'the nested machine is built after {time.monotonic() - began:.0f} s')
        self.nested = Nested(built, directory / 'nested', self.site.layout.host(HOST))
        vendor, product = CARD.split(':')
        nvme_vendor, nvme_product = NVME.split(':')
        specs = [{'vendor_id': vendor, 'product_id': product}, *({'address': address} for address in VIRTUAL)]
        (hosts / f'{HOST}.conf').write_text(
            _SETTINGS.format(
                uri=self.nested.uri,
                specs='\n'.join(f'device_spec = {json.dumps(spec)}' for spec in specs),
                mdev_type=next(iter(vgpu.TYPES)),
            )
        )
        aliases = [
            {'name': 'card', 'vendor_id': vendor, 'product_id': product, 'device_type': 'type-PCI'},
            {'name': 'vf', 'vendor_id': nvme_vendor, 'product_id': nvme_product, 'device_type': 'type-VF'},
        ]
        self.site.configure(_EXTRA.format(aliases='\n'.join(f'alias = {json.dumps(alias)}' for alias in aliases)))
        self.guests = RealGuests(self.site)
        self._shells: Shells | None = None
        self._flavors: set[str] = set()
        self._home = directory

    def up(self) -> None:
        """Machine, cloud, images."""
        began = time.monotonic()
        if not self.nested.is_on():
            self.nested.start()
            print(
                f'the nested machine is up after {time.monotonic() - began:.0f} s: '
                f'{self.nested.console.splitlines()[-1]}'
            )
        # What runs where is no news each time.
        with (self._home / 'up.log').open('a') as log, contextlib.redirect_stdout(log):
            self.site.up()
        if self._shells is None:
            guest = guest_image.build(control.GUEST_DIRECTORY)
            keystone = identity.Keystone(self.site.url('keystone'), self.site.cloud.secrets['admin'])
            ensure_guest(render.url(self.site.cloud.ports, 'glance'), keystone.token, guest)
            print(f'the cloud is up after {time.monotonic() - began:.0f} s')
            self._shells = Shells(self.site.layout.bin('python'), self.site.layout.clouds, self._home)

    def end(self) -> None:
        """Nothing is left running."""
        if self._shells is not None:
            self._shells.end()
        self.site.end()
        if self.nested.is_on():
            print(f'the nested machine took {self.nested.peak} MiB of memory at most')
        self.nested.end()

    # -- the openstack command ---------------------------------------------------------------------------------------
    def openstack(self, *arguments: str, user: str = 'admin') -> str:
        """Its output; it ended well."""
        assert self._shells is not None
        done = self._shells.run(f'kilonova-{user}', None, *arguments)
        assert done.code == 0, f'{" ".join(arguments)}: {done.output}{done.errors}'
        return done.output

    def flavor(self, name: str, asked: str) -> str:
        """A flavor with that property (key=value), made when it isn't there."""
        if name not in self._flavors:
            self.openstack('flavor', 'create', '--id', name, '--vcpus', '1', '--ram', '96', '--disk', '1', name)
            self.openstack('flavor', 'set', name, '--property', asked)
            self._flavors.add(name)
        return name

    def boot(self, name: str, flavor: str) -> str:
        """A server's id; it is ACTIVE."""
        shown = json.loads(
            self.openstack(
                'server',
                'create',
                '--image',
                'guest-direct',
                '--flavor',
                flavor,
                '--no-network',
                '--wait',
                name,
                '-f',
                'json',
            )
        )
        assert shown['status'] == 'ACTIVE', shown
        return str(shown['id'])

    # -- what guests have --------------------------------------------------------------------------------------------
    def sees(self, server: str, wanted: list[str], boots: int) -> None:
        """Wait until that boot of its disk's content has ended; its devices that are none of QEMU's own are these."""
        said = ''

        def listed() -> bool:
            nonlocal said
            said = self.guests.console(server).rpartition('GUEST-UP')[2]
            return 'GUEST-READY' in said and f'GUEST-BOOTS {boots}\n' in said

        self.guests.until(listed, f'boot {boots} of {server}')
        print(self.openstack('console', 'log', 'show', server, '--lines', '60'))
        assert _given(said.partition('GUEST-READY')[0]) == sorted(wanted)

    def sees_now(self, server: str, wanted: list[str]) -> None:
        """Wait until it lists these as what it has now, since they came or went while it ran."""

        def lists() -> bool:
            said = self.guests.console(server).rpartition('GUEST-CHANGED')[2]
            return 'GUEST-LISTED' in said and _given(said.partition('GUEST-LISTED')[0]) == sorted(wanted)

        self.guests.until(lists, f'{server} lists {wanted}')
        print(self.openstack('console', 'log', 'show', server, '--lines', '30'))

    def devices_of(self, server: str) -> list[str]:
        """Addresses and uuids of what it owns, by the database."""
        return sorted(row['address'] for row in self.site.devices() if row['instance_uuid'] == server)

    def held(self, server: str) -> list[str]:
        """Addresses of PCI functions and uuids of mediated devices of its domain, by the host's libvirt."""
        with contextlib.closing(libvirt.open(self.nested.uri)) as connection:
            xml = connection.lookupByUUIDString(server).XMLDesc()
        return hostdevs.given_to(ElementTree.fromstring(xml))

    def domains(self) -> list[str]:
        """Servers that have one on the host."""
        with contextlib.closing(libvirt.open(self.nested.uri)) as connection:
            return sorted(domain.UUIDString() for domain in connection.listAllDomains())


def _given(said: str) -> list[str]:
    """Vendor and product of the devices in what a guest said that are none of QEMU's own."""
    ids = [line.split()[2].replace('0x', '') for line in said.splitlines() if line.startswith('GUEST-PCI ')]
    return sorted(found for found in ids if found in (CARD, NVME, vgpu.SEEN))

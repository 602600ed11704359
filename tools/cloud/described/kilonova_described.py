"""A driver for cyborg-agent: the FPGA cards of a host of the one-machine cloud, read from its node file.

    [agent]
    enabled_drivers = described
    [described]
    node_file = etc/kilonova/dev/hosts/gpu1.xml
    card = 10ee:5020

It is a plug-in by Cyborg's entry point ``cyborg.accelerator.driver``. Each card is a device with one deployable, of one
accelerator of class FPGA, and one attach handle of type PCI: libvirt's test driver has the same card, so that a guest's
XML is checked against it.
"""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

from cyborg.accelerator.drivers.driver import GenericDriver
from cyborg.common import constants
from cyborg.conf import CONF
from cyborg.objects.driver_objects.driver_attach_handle import DriverAttachHandle
from cyborg.objects.driver_objects.driver_attribute import DriverAttribute
from cyborg.objects.driver_objects.driver_controlpath_id import DriverControlPathID
from cyborg.objects.driver_objects.driver_deployable import DriverDeployable
from cyborg.objects.driver_objects.driver_device import DriverDevice
from oslo_config import cfg

CONF.register_opts(
    [
        cfg.StrOpt('node_file', required=True, help="The host's description, a node file of libvirt's test driver."),
        cfg.StrOpt('card', required=True, regex='^[0-9a-f]{4}:[0-9a-f]{4}$', help='Vendor and product of the cards.'),
    ],
    group='described',
)


def cards(text: str, vendor: str, product: str) -> list[dict[str, str]]:
    """Return the addresses of the PCI functions with these ids in a node file.

    An address has domain, bus, device and function in hexadecimal digits, as attach handles have them.
    """
    found = []
    for capability in ElementTree.fromstring(text).findall("./device/capability[@type='pci']"):
        ids = [
            (capability.find(name).get('id') or '').removeprefix('0x')  # type: ignore[union-attr]
            for name in ('vendor', 'product')
        ]
        if ids == [vendor, product]:
            domain, bus, slot, function = (
                int(capability.findtext(name) or '0', 0) for name in ('domain', 'bus', 'slot', 'function')
            )
            found.append(
                {'domain': f'{domain:04x}', 'bus': f'{bus:02x}', 'device': f'{slot:02x}', 'function': f'{function:x}'}
            )
    return found


class DescribedDriver(GenericDriver):  # type: ignore[misc]  # Cyborg comes without types
    """As ``GenericDriver`` describes its methods; nothing is programmed."""

    def discover(self) -> list[Any]:
        """Return Cyborg's objects for the cards of the host's description."""
        vendor, product = CONF.described.card.split(':')
        with open(CONF.described.node_file, encoding='utf-8') as file:
            return [_device(address, vendor, product) for address in cards(file.read(), vendor, product)]

    def update(self, control_path: object, image_path: str) -> bool:
        """Pretend to program an image into a card."""
        return True

    def get_stats(self) -> dict[str, object]:
        """Return no statistics."""
        return {}


def _device(address: dict[str, str], vendor: str, product: str) -> Any:
    slot = json.dumps(address)
    path = DriverControlPathID(cpid_type='PCI', cpid_info=slot)
    handle = DriverAttachHandle(attach_type=constants.AH_TYPE_PCI, attach_info=slot, in_use=False)
    traits = [f'CUSTOM_FPGA_{vendor}_{product}'.upper()]
    # Its name is the provider's in Placement, which has one of each.
    name = '_'.join([CONF.host, 'fpga', *address.values()])
    deployable = DriverDeployable(
        name=name,
        num_accelerators=1,
        driver_name='described',
        attach_handle_list=[handle],
        attribute_list=[
            DriverAttribute(key='rc', value='FPGA'),
            *(DriverAttribute(key=f'trait{number}', value=trait) for number, trait in enumerate(traits)),
        ],
    )
    return DriverDevice(
        vendor=vendor,
        model='described card',
        type=constants.DEVICE_FPGA,
        stub=False,
        std_board_info=json.dumps({'product_id': product}),
        vendor_board_info='',
        controlpath_id=path,
        deployable_list=[deployable],
    )

"""Which type of mediated devices a card has, changed while its host goes on.

    types = CardTypes(host, book, node.kinds, node.update)
    types.set_mdev_type(ctxt, '0000:84:00.0', 'nvidia-36')       # [{'address': …, 'mdev_type': 'nvidia-36'}]

What was chosen is kept in ``state_path`` and counts more than ``[mdev_<type>]device_addresses``.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from oslo_log import log as logging

from kilonova import errors
from kilonova.compute.device_book import DeviceBook
from kilonova.compute.host import Host
from kilonova.context import RequestContext
from kilonova.pci.kinds import Kind
from kilonova.pci.mdev import MediatedDevices

LOG = logging.getLogger(__name__)


class CardTypes:
    """``look()``: see ``Node.update``."""

    def __init__(self, host: Host, book: DeviceBook, kinds: Iterable[Kind], look: Callable[[], None]) -> None:
        self._host, self._book, self._look = host, book, look
        self._mediated = next(kind for kind in kinds if isinstance(kind, MediatedDevices))

    def set_mdev_type(self, ctxt: RequestContext, address: str, mdev_type: str) -> list[dict[str, Any]]:
        """The card at an address has devices of this type from now on; the devices that it has then. Nothing was
        changed: NotFound, this host has no such card; Invalid, the card or the host doesn't give that type; Conflict,
        servers hold devices of the card, or are about to."""
        host, tracker = self._host, self._host.tracker
        found = host.driver.host.get_available_resource()['pci_passthrough_devices']
        with tracker.writing(ctxt):
            chosen = self._mediated.checked(found, address, mdev_type)
            held = [device for device in tracker.host_devices.held() if device.parent_addr == address
                    and device.extra_info.get('mdev_type') not in (None, mdev_type)]
            if held:
                servers = ', '.join(sorted({device.instance_uuid for device in held}))
                raise errors.Conflict(f'{len(held)} devices of {host.name} {address} are held by {servers}: its type '
                                      'can be changed when they are free')
            self._mediated.choose(address, chosen)
            self._book.save(ctxt, tracker.host_devices.looked(found))
        LOG.info('Card %s has mediated devices of type %s from now on', address, mdev_type)
        self._look()
        return [{'address': device.address, 'mdev_type': device.extra_info['mdev_type']}
                for device in tracker.host_devices.all() if device.parent_addr == address]

"""Change the type of the mediated devices of a card while its host runs.

    types = HostMdevTypes(host, book, node.kinds, node.update)
    types.set_mdev_type(ctxt, '0000:84:00.0', 'nvidia-36')       # [{'address': …, 'mdev_type': 'nvidia-36'}]

The choice is stored in ``state_path`` and has priority over ``[mdev_<type>]device_addresses``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from oslo_log import log as logging

from kilonova import errors
from kilonova.compute.device_inventory import DeviceInventory
from kilonova.compute.host import ComputeHost
from kilonova.context import RequestContext
from kilonova.pci.kinds import DeviceKind
from kilonova.pci.mdev import MdevKind

LOG = logging.getLogger(__name__)


class HostMdevTypes:
    """The types of the mediated devices on one host's cards.

    ``update()`` updates the host's records and Placement after a change (``Node.update``).
    """

    def __init__(
        self, host: ComputeHost, book: DeviceInventory, kinds: Iterable[DeviceKind], update: Callable[[], None]
    ) -> None:
        self._host, self._book, self._update = host, book, update
        self._mediated = next(kind for kind in kinds if isinstance(kind, MdevKind))

    def set_mdev_type(self, ctxt: RequestContext, address: str, mdev_type: str) -> list[dict[str, Any]]:
        """Set the type of the mediated devices of the card at an address, and return the devices that it now offers.

        Each device is a dict with ``address`` and ``mdev_type``. When an error is raised, nothing has been changed.

        Raises:
            NotFound: This host has no such card.
            Invalid: The card or the host does not provide that type.
            Conflict: Servers hold devices of the card, or are about to get them.
        """
        host, tracker = self._host, self._host.tracker
        found = host.driver.host.get_available_resource()['pci_passthrough_devices']
        with tracker.writing(ctxt):
            chosen = self._mediated.checked(found, address, mdev_type)
            held = [
                device
                for device in tracker.host_devices.held()
                if device.parent_addr == address and device.extra_info.get('mdev_type') not in (None, mdev_type)
            ]
            if held:
                servers = ', '.join(sorted({device.instance_uuid for device in held}))
                raise errors.Conflict(
                    f'{len(held)} devices of {host.name} {address} are held by {servers}: the '
                    'type of the card can be changed when they are free'
                )
            self._mediated.choose(address, chosen)
            self._book.save(ctxt, tracker.host_devices.looked(found))
        LOG.info('Card %s provides mediated devices of type %s from now on', address, mdev_type)
        self._update()
        return [
            {'address': device.address, 'mdev_type': device.extra_info['mdev_type']}
            for device in tracker.host_devices.all()
            if device.parent_addr == address
        ]

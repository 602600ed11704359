"""PCI requests and binding profiles of Neutron ports that are functions of PCI devices (SR-IOV).

    request = request_of(port_id, 'direct', 'physnet1', None)     # a PCI request like the requests of flavors
    …                                                             # the host claims a device for it
    profiles([request], devices)       # {port id: {'pci_slot': '0000:81:00.2', 'pci_vendor_info': '8086:1520', …}}

The API, the conductor, the scheduler and the compute service use this module.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from oslo_utils import uuidutils

from kilonova.objects import InstancePCIRequest, InstancePCIRequests, PciDevice
from kilonova.objects.vif import PHYSICAL, REMOTE, VDPA
from kilonova.pci import device as kinds
from kilonova.pci.device import PF, PORT_PROVIDERS, SWITCHDEV, VF
from kilonova.pci.pools import NETWORK, REMOTE_MANAGED
from kilonova.pci.request import PORT_GROUPS, as_list

# A dict from a port's vnic_type to its device's dev_type. Ports of all other vnic_types get virtual functions.
_TYPES = {PHYSICAL: PF, VDPA: kinds.VDPA}
# A dict from a property in the spec of a port's PCI request to the word for this property in error messages.
_KINDS = {'trusted': 'trusted', REMOTE_MANAGED: 'remote-managed', SWITCHDEV: 'switchdev'}


def request_of(
    port_id: str,
    vnic_type: str,
    physical_network: str | None,
    numa_policy: str | None,
    *,
    trusted: bool = False,
    offloaded: bool = False,
    groups: Iterable[str] = (),
) -> InstancePCIRequest:
    """Return the PCI request of a port for one function in this physical network.

    ``physical_network`` is None for a tunnelled network: the port then gets a function whose device_spec has
    ``physical_network`` null. ``trusted`` requests a function whose device_spec has the tag trusted. ``offloaded``
    (hardware offload) requests a virtual function in switchdev mode. ``groups`` are the names of the port's request
    groups for QoS minimum bandwidth and packet rate in the query to Placement.
    """
    of_kind = {'trusted': trusted, REMOTE_MANAGED: vnic_type == REMOTE, SWITCHDEV: offloaded}
    wanted = {
        NETWORK: physical_network,
        'dev_type': _TYPES.get(vnic_type, VF),
        **{key: 'true' for key, it in of_kind.items() if it},
        **_groups(groups),
    }
    return InstancePCIRequest(
        count=1,
        spec=[wanted],
        alias_name=None,
        is_new=False,
        request_id=uuidutils.generate_uuid(),
        requester_id=port_id,
        numa_policy=numa_policy,
    )


def requests_of_ports(requests: Iterable[InstancePCIRequest] | InstancePCIRequests | None) -> list[InstancePCIRequest]:
    """Return the requests of a server that belong to its ports."""
    return [request for request in as_list(requests) if request.source == request.NEUTRON_PORT]


def asking(
    requests: Iterable[InstancePCIRequest] | InstancePCIRequests | None, groups: Mapping[str, Collection[str]]
) -> list[InstancePCIRequest]:
    """Return the PCI requests with the names of their ports' QoS request groups, before a new query to Placement.

    ``groups`` is a dict from port id to the names of the port's request groups (minimum bandwidth, packet rate) in this
    query. By the names, a host later finds the provider that Placement chose for a port. The names and providers of an
    earlier query are removed. Requests that are not of a port are returned unchanged.
    """
    return [
        request
        if request.source != request.NEUTRON_PORT
        else request.replaced(
            spec=[
                {
                    **{key: value for key, value in one.items() if key not in (PORT_GROUPS, PORT_PROVIDERS)},
                    **_groups(groups.get(request.requester_id, ())),
                }
                for one in request.spec
            ]
        )
        for request in as_list(requests)
    ]


def _groups(names: Iterable[str]) -> dict[str, str]:
    return {PORT_GROUPS: ','.join(names)} if names else {}


def words(request: InstancePCIRequest) -> str:
    """Return a readable text that describes the devices for which a port's request asks."""
    network = request.spec[0].get(NETWORK)
    kinds = [word for key, word in _KINDS.items() if request.spec[0].get(key)]
    return ' '.join([*kinds, f'{request.spec[0]["dev_type"]} devices ']) + (
        f'of physical network {network}' if network is not None else 'without physical network'
    )


def without(requests: InstancePCIRequests | None, port_id: str) -> InstancePCIRequests | None:
    """Return a server's requests except the request of port ``port_id``. Return None if the port has no request."""
    left = [request for request in as_list(requests) if request.requester_id != port_id]
    if requests is None or len(left) == len(requests.requests):
        return None
    return InstancePCIRequests(instance_uuid=requests.instance_uuid, requests=left)


def profiles(
    requests: Iterable[InstancePCIRequest] | InstancePCIRequests | None, devices: Iterable[PciDevice]
) -> dict[str, dict[str, Any]]:
    """Return a dict from port id to the part of the port's binding profile that describes its device.

    ``devices`` are the devices that the host claimed for the requests. Ports without a claimed device are left out.
    """
    of_request = {device.request_id: device for device in devices}
    return {
        request.requester_id: _profile(of_request[request.request_id], request.spec[0])
        for request in requests_of_ports(requests)
        if request.request_id in of_request
    }


def _profile(device: PciDevice, wanted: Mapping[str, str | None]) -> dict[str, Any]:
    found: dict[str, Any] = {
        'pci_slot': device.address,
        NETWORK: wanted.get(NETWORK),
        'pci_vendor_info': f'{device.vendor_id}:{device.product_id}',
    }
    info = device.extra_info
    if device.dev_type == PF and 'mac_address' in info:
        # The port takes over this MAC address, because the MAC address of a physical function can't be changed.
        found['device_mac_address'] = info['mac_address']
    about = json.loads(info.get('capabilities') or '{}')
    if wanted.get(REMOTE_MANAGED):
        # The values of the VPD (vital product data) identify the SmartNIC that connects the port.
        found.update(about.get('vpd', {}))
    return {**found, **about.get('sriov', {})}

"""Which of a server's devices are its ports."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kilonova.pci.ports import request_of
from kilonova.virt.libvirt.devices import functions
from kilonova.virt.libvirt.devices.pci import PciFunction
from tests.fixtures.hosts import sriov_nic
from tests.unit.virt.builders import GPU, PORT, PORT2, device, new_instance, new_vif

PHYSICAL, VIRTUAL, SECOND = '0000:81:00.0', '0000:81:00.2', '0000:81:00.3'


def held(*requests: Any, addresses: tuple[str, ...]) -> list[Any]:
    """A device for each request, and a GPU and an accelerator besides."""
    given = [device(GPU), device('0000:99:00.0', managed='false')]
    given[0].request_id = 'of the flavor'
    for request, address in zip(requests, addresses, strict=True):
        given.append(device(address))
        given[-1].request_id = request.request_id
    return given


def server(*vifs: Any, requests: Any) -> SimpleNamespace:
    return new_instance(vifs=list(vifs), pci_requests=list(requests))


def test_devices_of_ports_are_no_devices_of_the_guest() -> None:
    """But for a physical function; one whose port is gone is of no use."""
    requests = [request_of(PORT, 'direct', 'physnet1', None), request_of(PORT2, 'direct-physical', 'physnet1', None),
                request_of('gone', 'direct', 'physnet1', None)]
    instance = server(new_vif(vnic_type='direct', profile={'pci_slot': VIRTUAL}),
                      new_vif(id=PORT2, vnic_type='direct-physical', profile={'pci_slot': PHYSICAL}),
                      requests=requests)
    given, of_ports = functions.split(instance, held(*requests, addresses=(VIRTUAL, PHYSICAL, SECOND)))
    assert [one.address for one in given] == [GPU, '0000:99:00.0', PHYSICAL]
    assert functions.of(of_ports) == {one: PciFunction(one) for one in (VIRTUAL, PHYSICAL, SECOND)}


def test_interfaces_are_looked_for_where_macvtap_needs_them() -> None:
    asked: list[int] = []

    def node_devices() -> list[str]:
        asked.append(1)
        return sriov_nic(PHYSICAL, [VIRTUAL, SECOND])
    requests = [request_of(PORT, 'macvtap', 'physnet1', None)]
    devices = held(*requests, addresses=(SECOND,))[2:]
    connection: Any = SimpleNamespace(node_devices=node_devices)
    for vnic_type, found in (('direct', {}), ('macvtap', {SECOND: 'nic2'})):
        instance = server(new_vif(vnic_type=vnic_type, profile={'pci_slot': SECOND}), requests=requests)
        assert functions.netdevs(connection, instance.vifs, devices) == found
    assert asked == [1]

"""Which of a server's devices are its ports."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.pci.ports import request_of
from kilonova.virt import command
from kilonova.virt.libvirt.devices import functions
from kilonova.virt.libvirt.devices.pci import PciFunction
from kilonova.virt.parts.guests import GuestFailed, InterfaceUnsupported
from tests.fixtures.hosts import sriov_nic
from tests.unit.virt.builders import GPU, PORT, PORT2, device, new_instance, new_vif

PHYSICAL, VIRTUAL, SECOND, OTHER = '0000:81:00.0', '0000:81:00.2', '0000:81:00.3', '0000:82:00.2'


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
    """But for a physical function and one of InfiniBand; one whose port is gone is of no use."""
    requests = [
        request_of(PORT, 'direct', 'physnet1', None),
        request_of(PORT2, 'direct-physical', 'physnet1', None),
        request_of('gone', 'direct', 'physnet1', None),
        request_of('infiniband', 'direct', 'physnet1', None),
    ]
    instance = server(
        new_vif(vnic_type='direct', profile={'pci_slot': VIRTUAL}),
        new_vif(id=PORT2, vnic_type='direct-physical', profile={'pci_slot': PHYSICAL}),
        new_vif(id='infiniband', vnic_type='direct', type='ib_hostdev', profile={'pci_slot': OTHER}),
        requests=requests,
    )
    given, of_ports = functions.split(instance, held(*requests, addresses=(VIRTUAL, PHYSICAL, SECOND, OTHER)))
    assert [one.address for one in given] == [GPU, '0000:99:00.0', PHYSICAL, OTHER]
    assert functions.of(of_ports) == {one: PciFunction(one) for one in (VIRTUAL, PHYSICAL, SECOND, OTHER)}


def trusting(monkeypatch: pytest.MonkeyPatch, *vifs: Any, **info: str) -> list[str]:
    """What the host is told of these ports, whose function has this besides."""
    said: list[str] = []
    monkeypatch.setattr(command, 'run', lambda *argv: said.append(' '.join(argv)))
    known = {'parent_ifname': 'nic0', 'capabilities': json.dumps({'sriov': {'vf_num': 3}}), **info}
    functions.trust(new_instance(), vifs, functions.of([device(VIRTUAL, **known)]))
    return said


def port(vnic_type: str = 'direct', type_: str = 'hw_veb', **profile: Any) -> Any:
    return new_vif(vnic_type=vnic_type, type=type_, profile={'pci_slot': VIRTUAL, **profile})


@pytest.mark.parametrize(
    ('vif', 'word'),
    [(port(trusted='true'), 'on'), (port('macvtap', trusted=True), 'on'), (port(), 'off'), (port(trusted='no'), 'off')],
)
def test_a_function_that_may_be_trusted(monkeypatch: pytest.MonkeyPatch, vif: Any, word: str) -> None:
    """What its last owner asked for doesn't count."""
    assert trusting(monkeypatch, vif, new_vif(), trusted='true') == [f'ip link set dev nic0 vf 3 trust {word}']


def test_functions_that_are_never_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    for info in ({}, {'trusted': 'false'}, {'trusted': 'true', 'capabilities': '{}'}):
        assert trusting(monkeypatch, port(), **info) == []
        with pytest.raises(InterfaceUnsupported, match=f'hw_veb on {VIRTUAL} in trusted mode, which this host'):
            trusting(monkeypatch, port(trusted='true'), **info)


@pytest.mark.parametrize('bound', ['ib_hostdev', '802.1qbh'])
def test_types_that_are_never_trusted(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """Whatever device_spec says of their functions."""
    assert trusting(monkeypatch, port(type_=bound), trusted='true') == []
    with pytest.raises(InterfaceUnsupported, match=f'{bound} on .* or ports of this type have no trusted mode'):
        trusting(monkeypatch, port(type_=bound, trusted='true'), trusted='true')


def test_a_host_that_does_not_trust_a_function() -> None:
    held_ = functions.of(
        [device(VIRTUAL, trusted='true', parent_ifname='none-such', capabilities=json.dumps({'sriov': {'vf_num': 3}}))]
    )
    with pytest.raises(GuestFailed, match='could not set the trust mode of a virtual function of guest'):
        functions.trust(new_instance(), [port(trusted='true')], held_)


def test_what_leads_to_functions_is_looked_for_where_it_is_needed() -> None:
    asked: list[int] = []

    def node_devices() -> list[str]:
        asked.append(1)
        return sriov_nic(PHYSICAL, [VIRTUAL, SECOND], vdpa=True)

    requests = [request_of(PORT, 'macvtap', 'physnet1', None)]
    devices = held(*requests, addresses=(SECOND,))[2:]
    connection: Any = SimpleNamespace(node_devices=node_devices)
    for vnic_type, found in (('direct', {}), ('macvtap', {SECOND: 'nic2'}), ('vdpa', {SECOND: '/dev/vhost-vdpa-1'})):
        instance = server(new_vif(vnic_type=vnic_type, profile={'pci_slot': SECOND}), requests=requests)
        assert functions.ends(connection, instance.vifs, devices) == found
    assert asked == [1, 1]

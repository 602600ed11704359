"""Virtual functions of NVIDIA cards are offered while they have a vGPU type (nvidia/current_vgpu_type)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kilonova.states import PowerState
from tests.fixtures.carved import CarvedSys
from tests.fixtures.cloud import Cloud
from tests.fixtures.hosts import sriov_gpu

CARD, OTHER = '0000:3b:00.0', '0000:5e:00.0'
CLASS = 'CUSTOM_H100_40C'


def functions(card: str) -> list[str]:
    return [f'{card[:-1]}{number}' for number in range(4, 8)]


@pytest.fixture
def carved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CarvedSys:
    return CarvedSys(monkeypatch, tmp_path)


def make(make_cloud: Any, carved: CarvedSys, types: list[int], in_placement: bool = True) -> Cloud:
    """Two hosts, each with a card whose four virtual functions have these types."""
    cards = {'gpu1': CARD, 'gpu2': OTHER}
    for card in cards.values():
        for address, vgpu_type in zip(functions(card), types, strict=True):
            carved.carve(address, vgpu_type)
    spec = {'vendor_id': '10de', 'address': {'bus': '(3b|5e)', 'slot': '00', 'function': '[4-7]'}, 'managed': 'no'}
    alias = {'name': 'h100-40c', 'vendor_id': '10de', 'product_id': '2330', 'device_type': 'type-VF'}
    if in_placement:
        spec['resource_class'] = alias['resource_class'] = CLASS
    made: Cloud = make_cloud(
        dict.fromkeys(cards, ()),
        devices={host: sriov_gpu(card, functions(card)) for host, card in cards.items()},
        specs={host: [json.dumps(spec)] for host in cards},
        pci__alias=[json.dumps(alias)],
        pci__report_in_placement=in_placement,
        filter_scheduler__pci_in_placement=in_placement,
    )
    return made


def offered(cloud: Cloud) -> list[str]:
    return sorted(name for name, (status, _owner) in cloud.devices().items() if status == 'available')


@pytest.mark.parametrize('in_placement', [True, False])
def test_functions_without_a_type_are_offered_to_no_server(
    make_cloud: Any, carved: CarvedSys, in_placement: bool
) -> None:
    """While two of four functions have an mdev type, the third server of a host gets NoValidHost and no host is
    asked. Functions that get a type are offered after the next update of the host."""
    cloud = make(make_cloud, carved, [1519, 1519, 0, 0], in_placement)
    flavor = cloud.flavor(gpus=1, alias='h100-40c')
    servers = [cloud.boot(flavor) for _ in range(4)]
    assert [cloud.status(server) for server in servers] == ['ACTIVE'] * 4
    held = sorted(address for server in servers for address in cloud.hostdevs(server))
    assert held == [*functions(CARD)[:2], *functions(OTHER)[:2]]
    asked = len(cloud.messages)
    refused = cloud.boot(flavor)
    assert cloud.show(refused)['fault']['message'].startswith('No valid host was found.')
    assert [one for one in cloud.messages[asked:] if one[3] == 'build_and_run_instance'] == []
    cloud.ok('DELETE', f'/servers/{refused}')
    cloud.settle()
    cloud.assert_clean()
    carved.carve(functions(CARD)[2], 1519)
    cloud.computes['gpu1'].node.update()
    assert cloud.hostdevs(cloud.boot(flavor)) == [functions(CARD)[2]]
    cloud.assert_clean()


def test_two_types_of_one_card_are_not_one_pool(make_cloud: Any, carved: CarvedSys) -> None:
    """Its provider in Placement has one type: the one that most of its functions have. The others are offered once they
    have it, too."""
    cloud = make(make_cloud, carved, [1520, 1519, 1519, 0])
    flavor = cloud.flavor(gpus=1, alias='h100-40c')
    for _ in range(4):
        cloud.boot(flavor)
    assert sorted(cloud.devices()) == sorted(
        f'{host} {address}' for host, card in (('gpu1', CARD), ('gpu2', OTHER)) for address in functions(card)[1:3]
    )
    assert cloud.status(cloud.boot(flavor)) == 'ERROR'
    carved.carve(functions(CARD)[0], 1519)
    cloud.computes['gpu1'].node.update()
    assert offered(cloud) == [f'gpu1 {functions(CARD)[0]}']


def test_a_stopped_server_whose_function_lost_its_type_is_not_started(make_cloud: Any, carved: CarvedSys) -> None:
    """After a boot of the host no function has a type until somebody carves it. Nor does a server get another type than
    it had."""
    cloud = make(make_cloud, carved, [1519, 1519, 0, 0])
    server = cloud.boot(cloud.flavor(gpus=1, alias='h100-40c'))
    (address,) = cloud.hostdevs(server)
    cloud.action(server, 'os-stop')
    for vgpu_type, said in (
        (0, 'nvidia/current_vgpu_type is 0: it has no vGPU type'),
        (1520, 'nvidia/current_vgpu_type is 1520, not 1519'),
    ):
        carved.carve(address, vgpu_type)
        cloud.action(server, 'os-start')
        assert cloud.show(server)['OS-EXT-STS:power_state'] == PowerState.SHUTDOWN
        _action, _message, ((_event, result, details, _trace),) = cloud.story(server)[0]
        assert (result, details) == ('Error', f'Device(s) {address} cannot be used: its {said}')
    carved.carve(address, 1519)
    cloud.action(server, 'os-start')
    assert cloud.status(server) == 'ACTIVE'

"""Groups of devices: a server gets all members or none. A GPU with its audio function, and pairs of GPUs by a list."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kilonova.pci.address import PciConfigInvalidSpec
from tests.fixtures.cloud import Cloud
from tests.flows.cases import lose_host
from tests.functional.test_devices_that_leave import unplugged
from tests.functional.test_disabled_devices import disable, reserved

GPUS = {'gpu1': ['0000:08:00.0', '0000:09:00.0'], 'gpu2': ['0000:85:00.0', '0000:86:00.0']}
AUDIO = [
    json.dumps(
        {'vendor_id': '10de', 'product_id': product, 'group': 'gpu-with-audio', 'group_by': 'slot', 'group_size': 2}
    )
    for product in ('13f1', '0fbb')
]
PAIR = [
    json.dumps(
        {
            'vendor_id': '10de',
            'product_id': '13f1',
            'group': 'pair',
            'group_by': [['0000:08:00.0', '0000:09:00.0'], ['0000:85:00.0', '0000:86:00.0']],
        }
    )
]
ALIASES = [
    json.dumps(alias)
    for alias in (
        {'name': 'whole', 'group': 'gpu-with-audio'},
        {'name': 'pair', 'group': 'pair'},
        {'name': 'gpu', 'vendor_id': '10de', 'product_id': '13f1'},
    )
]


def members(*gpus: str) -> list[str]:
    """These GPUs and their audio functions."""
    return sorted(address for gpu in gpus for address in (gpu, gpu[:-1] + '1'))


@pytest.fixture
def cloud_of(make_cloud: Callable[..., Cloud]) -> Callable[..., Cloud]:
    def make(gpus: dict[str, list[str]], spec: list[str], **more: Any) -> Cloud:
        return make_cloud(gpus, specs=dict.fromkeys(gpus, spec), pci__alias=ALIASES, **more)

    return make


def flavor(cloud: Cloud, number: int = 1, alias: str = 'whole', **more: Any) -> str:
    return cloud.flavor(gpus=number, alias=alias, **more)


def free(cloud: Cloud) -> list[str]:
    return sorted(name.split()[1] for name, (status, _) in cloud.devices().items() if status == 'available')


@pytest.mark.parametrize('in_placement', [True, False])
def test_a_server_gets_whole_groups(cloud_of: Callable[..., Cloud], in_placement: bool) -> None:
    """One, and two; what is left is too little for another; a single GPU is not given out of a group."""
    cloud = cloud_of(
        {'gpu1': GPUS['gpu1']},
        AUDIO,
        filter_scheduler__pci_in_placement=in_placement,
        pci__report_in_placement=in_placement,
    )
    assert cloud.status(cloud.boot(flavor(cloud, alias='gpu'))) == 'ERROR'
    first = cloud.boot(flavor(cloud))
    assert cloud.hostdevs(first) == members('0000:08:00.0')
    cloud.settle()
    assert cloud.status(cloud.boot(flavor(cloud, 2))) == 'ERROR' and free(cloud) == members('0000:09:00.0')
    cloud.ok('DELETE', f'/servers/{first}')
    cloud.settle()
    both = cloud.boot(flavor(cloud, 2))
    assert cloud.hostdevs(both) == members(*GPUS['gpu1'])
    assert cloud.status(cloud.boot(flavor(cloud))) == 'ERROR'
    for action, body in (('os-stop', None), ('os-start', None), ('reboot', {'type': 'HARD'})):
        cloud.action(both, action, body)
        assert (cloud.status(both) in ('ACTIVE', 'SHUTOFF')) and cloud.hostdevs(both) == members(*GPUS['gpu1'])
    cloud.ok('DELETE', f'/servers/{both}')
    cloud.settle()
    assert free(cloud) == members(*GPUS['gpu1'])
    if in_placement:
        cloud.assert_clean()


def test_in_placement_a_group_is_one_unit(cloud_of: Callable[..., Cloud]) -> None:
    cloud = cloud_of({'gpu1': GPUS['gpu1']}, AUDIO)
    root, client = cloud.computes['gpu1'].node.record.uuid, cloud.placement.client
    providers = {one['name']: one['uuid'] for one in client.list_providers(in_tree=root)}
    assert sorted(providers) == ['gpu1', 'gpu1_0000:08:00.0', 'gpu1_0000:09:00.0']
    inventory = client.get_inventory(providers['gpu1_0000:08:00.0'])[0]
    assert {name: (given['total'], given['max_unit']) for name, given in inventory.items()} == {
        'CUSTOM_PCI_GROUP_GPU_WITH_AUDIO': (1, 1)
    }
    server = cloud.boot(flavor(cloud))
    held = client.get_allocations(server)['allocations']
    assert held[providers['gpu1_0000:08:00.0']]['resources'] == {'CUSTOM_PCI_GROUP_GPU_WITH_AUDIO': 1}
    assert len(held) == 2
    devices = {one['address']: one for one in cloud.ok('GET', '/os-devices', mount='/kilonova/v1')['devices']}
    assert {(one['group'], one['group_head']) for address, one in devices.items() if '08:00' in address} == {
        ('gpu-with-audio', '0000:08:00.0')
    }
    cloud.crash_compute('gpu1')
    cloud.start_compute('gpu1')
    cloud.assert_clean()


def test_what_placement_lacks_of_a_group_is_added_once(cloud_of: Callable[..., Cloud]) -> None:
    """When the compute starts."""
    cloud = cloud_of({'gpu1': GPUS['gpu1'][:1]}, AUDIO)
    server, client = cloud.boot(flavor(cloud)), cloud.placement.client
    there = client.get_allocations(server)
    root = cloud.computes['gpu1'].node.record.uuid
    client.claim(
        server,
        {root: {'resources': there['allocations'][root]['resources']}},
        project_id=there['project_id'],
        user_id=there['user_id'],
        generation=there['consumer_generation'],
    )
    assert cloud.audit().disagreements
    cloud.crash_compute('gpu1')
    cloud.start_compute('gpu1')
    assert client.get_allocations(server)['allocations'].keys() == there['allocations'].keys()
    cloud.action(server, 'reboot', {'type': 'HARD'})
    cloud.assert_clean()


@pytest.mark.parametrize('end', ['confirmResize', 'revertResize'])
def test_resizes(cloud_of: Callable[..., Cloud], end: str) -> None:
    """0 → 1 → 2 → 1 → 0 groups."""
    cloud = cloud_of(GPUS, AUDIO)
    server = cloud.boot(cloud.flavor())
    number = 0
    for wanted in (1, 2, 1, 0):
        before = cloud.hostdevs(server)
        cloud.action(server, 'resize', {'flavorRef': flavor(cloud, wanted) if wanted else cloud.flavor()})
        assert (cloud.status(server), len(cloud.hostdevs(server))) == ('VERIFY_RESIZE', 2 * wanted)
        cloud.action(server, end)
        if end == 'confirmResize':
            number = wanted
        else:
            assert cloud.hostdevs(server) == before
        assert (cloud.status(server), len(cloud.hostdevs(server))) == ('ACTIVE', 2 * number)
        assert cloud.hostdevs(server) == members(*(one for one in cloud.hostdevs(server) if one.endswith('0')))
        cloud.assert_clean()


def test_shelve_and_evacuate(cloud_of: Callable[..., Cloud]) -> None:
    cloud = cloud_of(GPUS, PAIR)
    server = cloud.boot(flavor(cloud, alias='pair'))
    assert cloud.hostdevs(server) == GPUS[cloud.host_of(server)]
    cloud.action(server, 'shelve')
    assert len(free(cloud)) == 4
    cloud.action(server, 'unshelve')
    source = cloud.host_of(server)
    assert cloud.hostdevs(server) == GPUS[source]
    cloud.assert_clean()
    lose_host(cloud, source)
    assert cloud.request('POST', f'/servers/{server}/action', {'evacuate': {}}).status_int < 300
    cloud.settle(kinds_left=('release',))
    assert cloud.host_of(server) != source
    assert (
        sorted(name.split()[1] for name in cloud.owned(server) if name.startswith(cloud.host_of(server)))
        == (GPUS[cloud.host_of(server)])
    )


def test_a_disabled_member(cloud_of: Callable[..., Cloud]) -> None:
    """The whole group is not given out, in Placement neither."""
    cloud = cloud_of({'gpu1': GPUS['gpu1'][:1]}, AUDIO)
    disable(cloud, 'gpu1', '0000:08:00.1')
    assert free(cloud) == [] and reserved(cloud, 'gpu1', '0000:08:00.0') == 1
    cloud.assert_clean()
    assert cloud.status(cloud.boot(flavor(cloud))) == 'ERROR'
    disable(cloud, 'gpu1', '0000:08:00.1', None)
    assert free(cloud) == members('0000:08:00.0') and reserved(cloud, 'gpu1', '0000:08:00.0') == 0
    assert cloud.status(cloud.boot(flavor(cloud))) == 'ACTIVE'


@pytest.mark.parametrize('held', [True, False])
def test_a_member_leaves(cloud_of: Callable[..., Cloud], held: bool) -> None:
    """The others are given to no server until it is back."""
    cloud = cloud_of({'gpu1': GPUS['gpu1'][:1]}, AUDIO)
    server = cloud.boot(flavor(cloud)) if held else None
    with unplugged(cloud, 'gpu1', '0000:08:00.1'):
        cloud.computes['gpu1'].node.update()
        if server is not None:
            cloud.ok('DELETE', f'/servers/{server}')
            cloud.settle()
            cloud.computes['gpu1'].node.update()
        assert cloud.devices() == {}
        assert cloud.status(cloud.boot(flavor(cloud))) == 'ERROR'
    assert free(cloud) == members('0000:08:00.0')
    assert cloud.status(cloud.boot(flavor(cloud))) == 'ACTIVE'
    cloud.assert_clean()


@pytest.mark.parametrize(
    ('gpus', 'spec', 'why'),
    [
        (
            GPUS['gpu1'][:1],
            AUDIO[:1],
            'group gpu-with-audio: group_size is 2, but the number of devices in one slot is',
        ),
        (GPUS['gpu1'][:1], PAIR, 'group pair: 0000:09:00.0 of 0000:08:00.0, 0000:09:00.0 is not a device of this host'),
    ],
)
def test_a_host_that_lacks_a_member_does_not_start(
    cloud_of: Callable[..., Cloud], gpus: list[str], spec: list[str], why: str
) -> None:
    with pytest.raises(PciConfigInvalidSpec, match=why):
        cloud_of({'gpu1': gpus}, spec)

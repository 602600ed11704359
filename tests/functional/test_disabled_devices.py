"""Devices that must not be given out: disabled by an operator."""

from __future__ import annotations

import pytest

from kilonova import errors
from kilonova.context import get_admin_context
from tests.fixtures.cloud import Cloud
from tests.fixtures.mdev import mdev_bus, mdev_card

ONE = {'gpu1': ['0000:08:00.0']}
CARD = '0000:84:00.0'


def disable(cloud: Cloud, host: str, address: str, reason: str | None = 'ECC errors') -> list[dict[str, object]]:
    """As ``kilonova-manage device disable`` asks the host; ``reason`` None: enable."""
    found: list[dict[str, object]] = cloud.compute_client.set_device_disabled(
        get_admin_context(), server=host, address=address, reason=reason
    )
    return found


def reserved(cloud: Cloud, host: str, address: str) -> int:
    """What Placement has reserved of the provider of a device."""
    client, root = cloud.placement.client, cloud.computes[host].node.record.uuid
    name = f'{host}_{address}'
    (uuid,) = [one['uuid'] for one in client.list_providers(in_tree=root) if one['name'] == name]
    (inventory,) = client.get_inventory(uuid)[0].values()
    return int(inventory['reserved'])


def reserve(cloud: Cloud, host: str, address: str, number: int) -> None:
    """As an operator does in Placement."""
    client, root = cloud.placement.client, cloud.computes[host].node.record.uuid
    (uuid,) = [one['uuid'] for one in client.list_providers(in_tree=root) if one['name'] == f'{host}_{address}']
    inventory, generation = client.get_inventory(uuid)
    client.set_inventory(uuid, generation, {name: {**one, 'reserved': number} for name, one in inventory.items()})


def barred(cloud: Cloud, server: str) -> list[str]:
    """What the story of a server says of its devices, the newest first."""
    return [
        one['message']
        for one in cloud.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']
        if one['action'] == 'device_barred'
    ]


@pytest.mark.parametrize('in_placement', [True, False])
def test_a_disabled_device_is_offered_to_no_server(make_cloud, in_placement):
    """Another one is chosen; a start of the compute changes nothing; enabled, it is offered again."""
    cloud = make_cloud(
        {'gpu1': ['0000:08:00.0', '0000:09:00.0']},
        filter_scheduler__pci_in_placement=in_placement,
        pci__report_in_placement=in_placement,
    )
    flavor = cloud.flavor(gpus=1)
    assert disable(cloud, 'gpu1', '0000:08:00.0') == [
        {'address': '0000:08:00.0', 'status': 'unavailable', 'instance_uuid': None}
    ]
    assert disable(cloud, 'gpu1', '0000:08:00.0') == disable(cloud, 'gpu1', '0000:08:00.0')
    assert cloud.devices()['gpu1 0000:08:00.0'] == ('unavailable', None)
    cloud.assert_clean()
    server = cloud.boot(flavor)
    assert cloud.hostdevs(server) == ['0000:09:00.0']
    cloud.crash_compute('gpu1')
    cloud.start_compute('gpu1')
    cloud.computes['gpu1'].node.update()
    full = cloud.boot(flavor)
    assert cloud.status(full) == 'ERROR'
    cloud.ok('DELETE', f'/servers/{full}')
    cloud.settle()
    cloud.assert_clean()
    assert disable(cloud, 'gpu1', '0000:08:00.0', None)[0]['status'] == 'available'
    assert cloud.hostdevs(cloud.boot(flavor)) == ['0000:08:00.0']
    cloud.assert_clean()


def test_what_an_operator_reserved_stays(make_cloud):
    """Placement counts the device as reserved as long as it is disabled, and then what it had before."""
    cloud = make_cloud({'gpu1': ['0000:08:00.0', '0000:09:00.0']})
    reserve(cloud, 'gpu1', '0000:09:00.0', 1)
    for address, before in (('0000:08:00.0', 0), ('0000:09:00.0', 1)):
        disable(cloud, 'gpu1', address)
        assert reserved(cloud, 'gpu1', address) == 1
        cloud.crash_compute('gpu1')
        cloud.start_compute('gpu1')
        assert reserved(cloud, 'gpu1', address) == 1
        disable(cloud, 'gpu1', address, None)
        assert reserved(cloud, 'gpu1', address) == before
    # The rows say nothing of it any more, so what an operator sets now is the operator's.
    reserve(cloud, 'gpu1', '0000:08:00.0', 1)
    cloud.crash_compute('gpu1')
    cloud.start_compute('gpu1')
    assert reserved(cloud, 'gpu1', '0000:08:00.0') == 1


def test_placement_is_away(make_cloud):
    """The host refuses by itself; Placement follows at the next look."""
    cloud = make_cloud(ONE)
    client = cloud.placement.client

    def away(method, path):
        raise errors.Unanswered(who='Placement', reason='away')

    client.on_request = away
    disable(cloud, 'gpu1', '0000:08:00.0')
    client.on_request = None
    assert (cloud.devices(), reserved(cloud, 'gpu1', '0000:08:00.0')) == (
        {'gpu1 0000:08:00.0': ('unavailable', None)},
        0,
    )
    assert cloud.status(cloud.boot(cloud.flavor(gpus=1))) == 'ERROR'
    cloud.computes['gpu1'].node.update()
    assert reserved(cloud, 'gpu1', '0000:08:00.0') == 1
    client.on_request = away
    disable(cloud, 'gpu1', '0000:08:00.0', None)
    client.on_request = None
    assert reserved(cloud, 'gpu1', '0000:08:00.0') == 1
    cloud.computes['gpu1'].node.update()
    assert reserved(cloud, 'gpu1', '0000:08:00.0') == 0
    assert cloud.status(cloud.boot(cloud.flavor(gpus=1))) == 'ACTIVE'


@pytest.mark.parametrize('leave', ['delete', 'resize', 'revert'])
def test_its_holder_keeps_it_until_it_leaves(make_cloud, leave):
    """The audit names it. It stops, starts, moves away and is deleted as ever; then no server gets the device, not for
    a moment."""
    cloud = make_cloud({'gpu1': ['0000:08:00.0'], 'gpu2': ['0000:85:00.0']})
    flavor = cloud.flavor(gpus=1)
    server = cloud.boot(flavor)
    host, (address,) = cloud.host_of(server), cloud.hostdevs(server)
    assert disable(cloud, host, address) == [{'address': address, 'status': 'allocated', 'instance_uuid': server}]
    line = f'host: {host} device {address} is disabled (ECC errors), and server {server} holds it'
    assert cloud.audit().disagreements == [line]
    told = [f'Device {address} is disabled: ECC errors']
    assert barred(cloud, server) == told
    for action in ('os-stop', 'os-start'):
        cloud.action(server, action)
    assert (cloud.status(server), cloud.hostdevs(server)) == ('ACTIVE', [address])
    cloud.crash_compute(host)
    cloud.start_compute(host)
    assert disable(cloud, host, address)[0]['status'] == 'allocated' and barred(cloud, server) == told
    if leave == 'delete':
        cloud.ok('DELETE', f'/servers/{server}')
        cloud.settle()
    else:
        cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=1, ram=1024)})
        assert cloud.status(server) == 'VERIFY_RESIZE'
        if leave == 'revert':
            cloud.action(server, 'revertResize')
            assert (cloud.status(server), cloud.hostdevs(server)) == ('ACTIVE', [address])
            assert cloud.audit().disagreements == [line]
            return
        cloud.action(server, 'confirmResize')
    assert cloud.devices()[f'{host} {address}'] == ('unavailable', None)
    assert reserved(cloud, host, address) == 1
    cloud.assert_clean()
    disable(cloud, host, address, None)
    assert (cloud.devices()[f'{host} {address}'], reserved(cloud, host, address)) == (('available', None), 0)
    cloud.assert_clean()


def test_it_stays_disabled_when_it_is_gone_and_comes_back(make_cloud):
    from tests.functional.test_devices_that_leave import unplugged

    cloud = make_cloud(ONE)
    disable(cloud, 'gpu1', '0000:08:00.0')
    with unplugged(cloud, 'gpu1', '0000:08:00.0'):
        assert cloud.devices() == {'gpu1 0000:08:00.0': ('removed', None)}
        cloud.computes['gpu1'].node.update()
        cloud.assert_clean()
    assert cloud.devices() == {'gpu1 0000:08:00.0': ('unavailable', None)}
    assert reserved(cloud, 'gpu1', '0000:08:00.0') == 1
    disable(cloud, 'gpu1', '0000:08:00.0', None)
    assert reserved(cloud, 'gpu1', '0000:08:00.0') == 0
    disable(cloud, 'gpu1', '0000:08:00.0')
    with unplugged(cloud, 'gpu1', '0000:08:00.0'):
        assert disable(cloud, 'gpu1', '0000:08:00.0', None) == []
        assert cloud.devices() == {}


def test_a_device_that_its_host_has_no_more(make_cloud):
    """Its holder is told once, whatever starts meanwhile; again when it was back and leaves again."""
    from tests.functional.test_devices_that_leave import unplugged

    cloud = make_cloud(ONE)
    server = cloud.boot(cloud.flavor(gpus=1))
    text = 'Device 0000:08:00.0 is missing: its host no longer has it, or the configuration no longer names it'
    for times in (1, 2):
        with unplugged(cloud, 'gpu1', '0000:08:00.0'):
            cloud.computes['gpu1'].node.update()
            cloud.computes['gpu1'].node.start()
            assert barred(cloud, server) == [text] * times
        cloud.assert_clean()
    cloud.ok('DELETE', f'/servers/{server}')
    cloud.settle()
    assert (cloud.devices(), reserved(cloud, 'gpu1', '0000:08:00.0')) == ({'gpu1 0000:08:00.0': ('available', None)}, 0)


def test_a_part_of_a_card_and_the_whole_card(make_cloud):
    """Placement gives the other part only; the card's address names all of them."""
    with mdev_bus():
        cloud = make_cloud(
            {'gpu1': []},
            devices={'gpu1': [mdev_card(CARD, {'nvidia-35': 2})]},
            devices__enabled_mdev_types=['nvidia-35'],
        )
        flavor, name = cloud.flavor(**{'resources:VGPU': '1'}), 'pci_0000_84_00_0'
        first, second = sorted(each.split()[1] for each in cloud.devices())
        disable(cloud, 'gpu1', first)
        assert reserved(cloud, 'gpu1', name) == 1
        server = cloud.boot(flavor)
        assert cloud.hostdevs(server) == [second]
        assert cloud.status(cloud.boot(flavor)) == 'ERROR'
        assert sorted(one['address'] for one in disable(cloud, 'gpu1', CARD)) == [first, second]
        assert reserved(cloud, 'gpu1', name) == 1
        cloud.ok('DELETE', f'/servers/{server}')
        cloud.settle()
        assert reserved(cloud, 'gpu1', name) == 2
        disable(cloud, 'gpu1', CARD, None)
        assert reserved(cloud, 'gpu1', name) == 0
        assert cloud.status(cloud.boot(flavor)) == 'ACTIVE'


def test_what_is_refused(make_cloud):
    cloud = make_cloud(ONE)
    with pytest.raises(errors.NotFound, match=r'gpu1 has no device 0000:99:00\.0'):
        disable(cloud, 'gpu1', '0000:99:00.0')
    for reason in ('', ' ', 'x' * 256, 'a\nb'):
        with pytest.raises(errors.Invalid, match='1 to 255 printable characters'):
            disable(cloud, 'gpu1', '0000:08:00.0', reason)
    assert cloud.devices() == {'gpu1 0000:08:00.0': ('available', None)}

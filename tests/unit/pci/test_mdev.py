"""The kind of mediated devices: which parent has which type, which devices a host has, what they are in Placement."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from kilonova import errors
from kilonova.conf import base, devices, filter_scheduler
from kilonova.conf import pci as pci_options
from kilonova.objects import InstancePCIRequest
from kilonova.pci import kinds
from kilonova.pci.device import CLAIMED, MDEV
from kilonova.pci.devices import DeviceOwner, NodeDevices
from kilonova.pci.mdev import ChosenTypes, InvalidLibvirtMdevConfig, MdevKind, MdevTypes
from tests.unit.pci import builders

ONE, TWO, UUID = '0000:84:00.0', '0000:85:00.0', 'aaaaaaaa-0000-4000-8000-000000000000'
MADE = '5b0b3a8e-54b7-4d2c-9a67-1b2c3d4e5f60'


def conf(types: str, specs: list[str] | None = None, **sections: dict[str, Any]) -> cfg.ConfigOpts:
    """``sections``: {type with _: its options}."""
    made = cfg.ConfigOpts()
    for module in (base, devices, pci_options, filter_scheduler):
        made.register_opts(module.OPTS, group=module.GROUP)
    made([], default_config_files=[], default_config_dirs=[])
    made.set_override('host', 'gpu1')
    made.set_override('enabled_mdev_types', [one for one in types.split(',') if one], 'devices')
    made.set_override('device_spec', specs or [], 'pci')
    for name, options in sections.items():
        devices.mdev_section(made, name.replace('_', '-'))
        for option, value in options.items():
            made.set_override(option, value, f'mdev_{name.replace("_", "-")}')
    return made


def parent(address: str, available: int = 2, mdev_type: str = 'nvidia-35', api: str = 'vfio-pci', **more: Any) -> Any:
    return builders.found(address, mdev_types={mdev_type: {'available': available, 'api': api}}, **more)


def made_of(address: str, of: str, mdev_type: str = 'nvidia-35') -> Any:
    return builders.found(address, dev_type=MDEV, parent=of, mdev_type=mdev_type)


def host(settings: cfg.ConfigOpts, *found: Any) -> NodeDevices:
    """Its devices, with rows."""
    look = NodeDevices.of(kinds.from_conf(settings), [], 1).looked(found)
    lacking = look.unwritten()
    return look.written(lacking, {device.address: number for number, device in enumerate(lacking.created, 1)})


def by_parent(devices: NodeDevices) -> dict[str, int]:
    found: dict[str, int] = {}
    for device in devices.all():
        found[device.parent_addr] = found.get(device.parent_addr, 0) + 1
    return found


@pytest.mark.parametrize(
    ('types', 'sections', 'text'),
    [
        ('nvidia-35,nvidia-35', {}, "'nvidia-35' is listed twice"),
        ('nvidia 35', {}, "'nvidia 35' in [devices]enabled_mdev_types is not the name of a type"),
        (','.join(f'a{number}' for number in range(65)), {}, '65 types, but may have at most 64'),
        ('a,b', {}, 'a and b both have no device_addresses'),
        ('a', {'a': {'device_addresses': ['84:00.0']}}, "incorrect device address: '84:00.0' in [mdev_a]"),
        ('a', {'a': {'device_addresses': ['mtty_mtty']}}, "incorrect device address: 'mtty_mtty'"),
        (
            'a,b',
            {'a': {'device_addresses': [ONE]}, 'b': {'device_addresses': [ONE.upper()]}},
            f'duplicate types for PCI ID {ONE}: it is in device_addresses of the types a and b',
        ),
    ],
)
def test_bad_configuration_is_refused(types, sections, text):
    with pytest.raises(InvalidLibvirtMdevConfig) as caught:
        MdevTypes.from_conf(conf(types, **sections))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ('spec', 'found', 'text'),
    [
        (
            {'address': ONE},
            [parent(ONE)],
            f'{ONE} is configured for mediated devices of type nvidia-35, but [pci]device_spec also matches',
        ),
        (
            {'address': TWO},
            [builders.found(TWO, dev_type='type-PF'), parent(ONE, dev_type='type-VF', parent_addr=TWO)],
            f'{ONE} is configured for mediated devices',
        ),
        (None, [parent(ONE, mdev_type='nvidia-36')], 'supports only nvidia-36'),
        (None, [builders.found(ONE)], 'supports only none'),
    ],
)
def test_a_host_that_the_configuration_does_not_fit_is_refused(spec, found, text):
    settings = conf('nvidia-35', [json.dumps(spec)] if spec else [], nvidia_35={'device_addresses': [ONE]})
    functions, mediated = kinds.from_conf(settings)
    functions.check(found)
    with pytest.raises(InvalidLibvirtMdevConfig) as caught:
        mediated.check(found)
    assert text in str(caught.value)


def test_a_type_without_addresses_is_that_of_all_other_cards():
    settings = conf('nvidia-35,nvidia-36', nvidia_36={'device_addresses': [TWO], 'mdev_class': 'CUSTOM_BIG'})
    types = {'nvidia-35': {'available': 2, 'api': 'vfio-pci'}, 'nvidia-36': {'available': 1, 'api': 'vfio-pci'}}
    look = host(
        settings,
        builders.found(ONE, mdev_types=types),
        builders.found(TWO, mdev_types=types),
        builders.found('0000:86:00.0'),
    )
    assert by_parent(look) == {ONE: 2, TWO: 1}
    view = look.providers('gpu1')
    assert {name: (one.resource_class, one.total, one.traits) for name, one in view.items()} == {
        'gpu1_pci_0000_84_00_0': ('VGPU', 2, {'OWNER_NOVA'}),
        'gpu1_pci_0000_85_00_0': ('CUSTOM_BIG', 1, {'OWNER_NOVA'}),
    }


def test_without_types_there_are_none():
    assert host(conf(''), parent(ONE), made_of(MADE, ONE)).all() == []


def test_a_card_given_away_whole_later_has_no_parts(caplog):
    """A spec may name a card that is plugged in while the host runs."""
    look = host(conf('nvidia-35', [json.dumps({'vendor_id': '10de'})]), parent(ONE))
    assert [(one.address, one.dev_type) for one in look.all()] == [(ONE, 'type-PCI')]
    assert f'{ONE} provides no mediated devices of type nvidia-35' in caplog.text


@pytest.mark.parametrize('card', [parent(ONE, api='ccw'), parent(ONE, mdev_type='nvidia-36')])
def test_a_card_whose_type_is_not_for_guests_has_none(card, caplog):
    assert host(conf('nvidia-35'), card).all() == []
    assert f'{ONE} provides no mediated devices of type nvidia-35' in caplog.text


def test_those_that_exist_count_and_the_rest_keep_their_uuids():
    settings = conf('nvidia-35')
    look = host(settings, parent(ONE, 3))
    planned = [device.address for device in look.all()]
    first = min(planned)
    after = look.looked([parent(ONE, 2), made_of(first, ONE)])
    assert not after.unwritten()
    assert sorted(device.address for device in after.all()) == sorted(planned)
    # One that somebody else made takes the place of one that is planned.
    foreign = look.looked([parent(ONE, 2), made_of(MADE, ONE), made_of(first, TWO, 'nvidia-36')])
    addresses = {device.address for device in foreign.all()}
    assert len(addresses) == 3 and MADE in addresses and len(addresses - {MADE} - set(planned)) == 0


def test_what_is_in_the_way_of_another_type_is_not_needed():
    """Only what was made here, and nobody holds; never where the card has no type."""
    old = [device.address for device in host(conf('nvidia-35'), parent(ONE)).all()]
    found = [parent(ONE, mdev_type='nvidia-36'), *(made_of(one, ONE) for one in [*old, MADE])]
    _, mediated = kinds.from_conf(conf('nvidia-36'))
    assert mediated.unneeded(found, {old[1]}) == [old[0]]
    for types in ('', 'nvidia-35'):
        assert kinds.from_conf(conf(types))[1].unneeded(found, ()) == []


def test_other_hosts_plan_other_uuids():
    settings = conf('nvidia-35')
    mine = {device.address for device in host(settings, parent(ONE)).all()}
    settings.set_override('host', 'gpu2')
    assert mine.isdisjoint(device.address for device in host(settings, parent(ONE)).all())


def test_no_more_than_max_instances():
    settings = conf('nvidia-35', nvidia_35={'max_instances': 3})
    assert by_parent(host(settings, parent(ONE), parent(TWO), parent('0000:86:00.0'))) == {ONE: 2, TWO: 1}
    settings = conf('nvidia-35', nvidia_35={'max_instances': 2})
    made = host(settings, parent(ONE, 1), made_of(MADE, ONE), parent(TWO))
    assert by_parent(made) == {ONE: 2} and MADE in {device.address for device in made.all()}


def test_a_claim_takes_from_the_parents_that_placement_chose():
    look = host(
        conf('nvidia-35', [json.dumps({'vendor_id': '10de', 'address': '0000:86:00.0'})]),
        parent(ONE),
        parent(TWO),
        builders.found('0000:86:00.0'),
    ).provided({ONE: 'rp-1', TWO: 'rp-2'})
    look = look.written(look.unwritten(), {})
    wanted = [
        InstancePCIRequest(
            count=3,
            request_id=UUID,
            alias_name=None,
            requester_id=None,
            spec=[{'dev_type': MDEV, 'resource_class': 'VGPU', 'rp_uuids': 'rp-2,rp-1,rp-2'}],
        )
    ]
    pools = look.pools.copy()
    # Where the guest's NUMA cells are makes no difference.
    taken = pools.consume_requests(wanted, numa_cells=[7])
    assert sorted(device.parent_addr for device, _ in taken) == [ONE, TWO, TWO]
    # An alias's request gets none of them, whatever it says of vendor and product.
    assert [pool.keys['dev_type'] for pool in look.pools.pools].count(MDEV) == 2
    assert len(look.pools.copy().consume_requests([builders.request(1)])) == 1
    assert not look.pools.support_requests([builders.request(2)])
    # The scheduler counts PCI functions alone.
    told = json.loads(look.pools_text)['nova_object.data']['objects']
    assert [pool['nova_object.data']['count'] for pool in told] == [1]


def test_requests_for_resources_of_others_are_not_for_this_host():
    look = host(conf('nvidia-35'), parent(ONE)).provided({ONE: 'rp-1'})

    def wanted(name: str, providers: str) -> InstancePCIRequest:
        return InstancePCIRequest(
            count=1,
            request_id=UUID,
            alias_name=None,
            requester_id=None,
            spec=[{'dev_type': MDEV, 'resource_class': name, 'rp_uuids': providers}],
        )

    alias = builders.request(1)
    mine = look.asked([wanted('CUSTOM_A', 'rp-9'), wanted('CUSTOM_B', 'rp-1'), wanted('VGPU', 'rp-9')])
    assert [one.spec[0]['resource_class'] for one in mine] == ['CUSTOM_B', 'VGPU']
    assert look.asked([alias]) == [alias] and look.asked(None) == []


def test_held_ones_of_a_former_type_stay_until_they_are_free():
    """The class is the same: they take from what Placement may give. Another class is left as Placement has it."""
    settings = conf('nvidia-35')
    look = host(settings, parent(ONE))
    address = look.all()[0].address
    held, _ = look.given({address: DeviceOwner(CLAIMED, UUID, None)}, UUID)
    rows = [device for device in held.all() if device.address == address]
    for options, total, resource_class in (({}, 3, 'VGPU'), ({'mdev_class': 'CUSTOM_B'}, 2, 'CUSTOM_B')):
        now = NodeDevices.of(kinds.from_conf(conf('nvidia-36', nvidia_36=options)), rows, 1).looked(
            [parent(ONE, mdev_type='nvidia-36'), made_of(address, ONE)]
        )
        created = now.unwritten().created
        now = now.written(now.unwritten(), {device.address: number for number, device in enumerate(created, 9)})
        view = now.providers('gpu1')['gpu1_pci_0000_84_00_0']
        assert (view.total, view.resource_class) == (total, resource_class)
        assert address not in {device.address for pool in now.pools.pools for device in pool.devices}
        freed, _ = now.given({address: None}, UUID)
        assert address not in {device.address for pool in freed.pools.pools for device in pool.devices}


def test_a_held_device_of_another_class_does_not_hide_other_cards() -> None:
    look = host(conf('nvidia-35'), parent(ONE), parent(TWO))
    address = next(device.address for device in look.all() if device.parent_addr == ONE)
    held, _ = look.given({address: DeviceOwner(CLAIMED, UUID, None)}, UUID)
    rows = [device for device in held.all() if device.address == address]
    settings = conf('nvidia-36', nvidia_36={'mdev_class': 'CUSTOM_B'})
    now = NodeDevices.of(kinds.from_conf(settings), rows, 1).looked(
        [parent(ONE, mdev_type='nvidia-36'), made_of(address, ONE), parent(TWO, mdev_type='nvidia-36')]
    )
    now = now.written(
        now.unwritten(), {device.address: number for number, device in enumerate(now.unwritten().created, 9)}
    )
    assert {name: one.total for name, one in now.providers('gpu1').items()} == {
        'gpu1_pci_0000_84_00_0': 2,
        'gpu1_pci_0000_85_00_0': 2,
    }


def test_a_card_without_devices_does_not_hide_those_behind_it() -> None:
    look = host(conf('nvidia-35'), parent(ONE, api='ccw'), parent(TWO))
    assert by_parent(look) == {TWO: 2}


@pytest.mark.parametrize(('spec', 'is_whole'), [(ONE, True), (TWO, True), ('0000:86:00.0', False)])
def test_a_function_is_given_away_whole_with_itself_or_with_its_card(spec: str, is_whole: bool) -> None:
    """Its mediated devices would be parts of a device that another guest has."""
    found = [builders.found(TWO, dev_type='type-PF'), parent(ONE, dev_type='type-VF', parent=TWO)]
    _functions, mediated = kinds.from_conf(conf('nvidia-35', [json.dumps({'address': spec})]))
    assert isinstance(mediated, MdevKind)
    assert bool(mediated.columns(found)) is not is_whole
    if is_whole:
        with pytest.raises(errors.Invalid, match=rf'{ONE} cannot have mediated devices: .* offers it as a whole'):
            mediated.checked(found, ONE, 'nvidia-35')
    else:
        assert mediated.checked(found, ONE, 'nvidia-35') == 'nvidia-35'


# --- chosen by operators ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('card', 'name', 'error', 'text'),
    [
        (parent(TWO), 'nvidia-35', errors.NotFound, f'gpu1 has no card {ONE}'),
        (parent(ONE), 'nvidia-36', errors.Invalid, f'{ONE} supports nvidia-35, not nvidia-36'),
        (parent(ONE, api='ccw'), 'nvidia-35', errors.Invalid, f'{ONE} supports no mediated devices, not nvidia-35'),
        (builders.found(ONE), 'nvidia-35', errors.Invalid, f'{ONE} supports no mediated devices, not nvidia-35'),
    ],
)
def test_a_type_that_a_card_can_not_have_is_refused(card: Any, name: str, error: Any, text: str) -> None:
    _functions, mediated = kinds.from_conf(conf('nvidia-35,nvidia-36', nvidia_36={'device_addresses': [TWO]}))
    assert isinstance(mediated, MdevKind)
    with pytest.raises(error, match=text):
        mediated.checked([card], ONE, name)


def test_a_choice_is_on_the_disk_before_it_replaces_the_former(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that loses its power has the former file or the new one, never an empty one that ends its service."""
    types, written = ChosenTypes(str(tmp_path / 'types.json')), []
    replace = os.replace
    monkeypatch.setattr(os, 'fsync', lambda number: written.append(os.fstat(number).st_size))
    monkeypatch.setattr(os, 'replace', lambda old, new: (written.append('replaced'), replace(old, new)))
    types.set(ONE, 'nvidia-35')
    assert written == [(tmp_path / 'types.json').stat().st_size, 'replaced']
    assert ChosenTypes(str(tmp_path / 'types.json')).types == {ONE: 'nvidia-35'}


def test_what_was_chosen_counts_more_than_the_configuration(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = conf('nvidia-35,nvidia-36', nvidia_36={'device_addresses': [TWO]})
    made.set_override('state_path', str(tmp_path / 'new'))
    types = MdevTypes.from_conf(made)
    assert [types.of(one).name for one in (ONE, TWO)] == ['nvidia-35', 'nvidia-36']  # type: ignore[union-attr]
    types.choose(ONE, 'nvidia-36')
    types.choose(TWO, 'nvidia-35')
    for again in (types, MdevTypes.from_conf(made)):
        assert [again.of(one).name for one in (ONE, TWO)] == ['nvidia-36', 'nvidia-35']  # type: ignore[union-attr]
    made.set_override('enabled_mdev_types', ['nvidia-35'], 'devices')
    assert MdevTypes.from_conf(made).of(ONE).name == 'nvidia-35'  # type: ignore[union-attr]
    assert f'Type nvidia-36, which an operator set for card {ONE}, is no longer enabled' in caplog.text


@pytest.mark.parametrize(
    'text',
    [
        '',
        '{',
        '[]',
        '5',
        '{"0000:84:00.0": 5}',
        '{"84:00.0": "nvidia-35"}',
        '{"0000:84:00.0": "a b"}',
        '{"0000:84:00.0": null}',
    ],
)
def test_a_file_that_somebody_else_wrote(tmp_path: Path, text: str) -> None:
    made = conf('nvidia-35')
    made.set_override('state_path', str(tmp_path))
    (tmp_path / 'mdev_types.json').write_text(text)
    with pytest.raises(InvalidLibvirtMdevConfig, match=r'mdev_types\.json does not have the form'):
        MdevTypes.from_conf(made)

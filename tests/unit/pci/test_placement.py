from __future__ import annotations

import json

import pytest

from kilonova.pci import placement
from kilonova.pci.placement import placement_view
from kilonova.pci.spec import DeviceSpecs, PlacementPciException
from tests.unit.pci.builders import claimed, found, functions, host, request

PF0 = '0000:81:00.0'
UUID = 'aaaaaaaa-0000-4000-8000-00000000000a'
OWN = {'COMPUTE_MANAGED_PCI_DEVICE', 'OWNER_NOVA'}


def specs_of(*entries):
    return DeviceSpecs.parse([json.dumps(entry) for entry in entries], report_in_placement=True)


def view_of(devices, *entries):
    return placement_view('host1', host(devices, '{}').all(), specs_of(*entries))


def test_one_provider_a_device():
    view = view_of(
        [found('0000:81:0a.0'), found('0000:82:00.0', product_id='1430')],
        {'product_id': '13f1'},
        {'product_id': '1430', 'resource_class': 'gpu', 'traits': 'fast', 'live_migratable': 'true'},
    )
    assert list(view) == ['host1_0000:81:0A.0', 'host1_0000:82:00.0']
    first, second = view.values()
    assert first.inventory() == {'CUSTOM_PCI_10DE_13F1': {'total': 1, 'max_unit': 1}}
    assert first.traits == OWN
    assert second.inventory() == {'CUSTOM_GPU': {'total': 1, 'max_unit': 1}}
    assert second.traits == OWN | {'CUSTOM_FAST', 'HW_PCI_LIVE_MIGRATABLE'}
    assert placement.describe_view('host1', view).startswith(
        'Placement PCI view on host1: RP(host1_0000:81:0A.0, CUSTOM_PCI_10DE_13F1=1, '
        'traits=COMPUTE_MANAGED_PCI_DEVICE,OWNER_NOVA), RP('
    )


def test_functions_count_on_their_pf():
    view = view_of(functions(PF0, 3), {'vendor_id': '10de'})
    assert list(view) == [f'host1_{PF0}']
    assert view[f'host1_{PF0}'].inventory() == {'CUSTOM_PCI_10DE_13F1': {'total': 3, 'max_unit': 3}}


def test_pf_and_its_functions_are_refused():
    with pytest.raises(placement.PlacementPciDependentDeviceException, match=f'function {PF0} and its'):
        view_of([found(PF0, dev_type='type-PF'), *functions(PF0, 2)], {'address': PF0})
    with pytest.raises(PlacementPciException):
        view_of([*functions('0000:81:1f.0', 1), found('0000:81:1f.0', dev_type='type-PF')], {})


def test_mixed_classes_and_traits_are_refused():
    devices = functions(PF0, 2)
    first = {'address': devices[0]['address']}
    with pytest.raises(placement.PlacementPciMixedResourceClassException, match='CUSTOM_PCI_10DE_13F1 instead of'):
        view_of(devices, {**first, 'resource_class': 'a'}, {})
    with pytest.raises(placement.PlacementPciMixedTraitsException, match='CUSTOM_A'):
        view_of(devices, {**first, 'traits': 'a'}, {})


def test_devices_of_a_network_are_not_reported():
    assert view_of([found(PF0), *functions('0000:82:00.0', 1)], {'physical_network': None}) == {}
    assert (
        view_of(functions(PF0, 1, capabilities={'vpd': {'card_serial_number': 'MT1'}}), {'remote_managed': 'true'})
        == {}
    )


def test_one_time_use():
    with pytest.raises(PlacementPciException, match='does not qualify'):
        view_of(functions(PF0, 1), {'one_time_use': 'false'})
    made = host([found(PF0)], '{}')
    specs = specs_of({'one_time_use': 'true'})
    before = placement_view('host1', made.all(), specs)[f'host1_{PF0}']
    assert before.reserved is None
    assert before.traits == OWN | {'HW_PCI_ONE_TIME_USE'}
    after = placement_view('host1', claimed(made, UUID, request(1)).all(), specs)[f'host1_{PF0}']
    assert after.inventory() == {'CUSTOM_PCI_10DE_13F1': {'total': 1, 'max_unit': 1, 'reserved': 1}}


def test_allocations():
    made = claimed(
        host([*functions(PF0, 3), found('0000:82:00.0')]),
        UUID,
        request(2, vendor_id='10de', dev_type='type-VF'),
        request(1, vendor_id='10de', dev_type='type-PCI'),
    )
    view = placement_view('host1', made.all(), specs_of({}))
    assert placement.allocations(view, {PF0: 'rp1', '0000:82:00.0': 'rp2'}) == {
        UUID: {'rp1': {'CUSTOM_PCI_10DE_13F1': 2}, 'rp2': {'CUSTOM_PCI_10DE_13F1': 1}}
    }


def test_devices_in_use():
    wanted = request(1)
    made = claimed(host([found(PF0), found('0000:82:00.0')], '{}'), UUID, wanted)
    view = placement_view('host1', made.all(), specs_of({}))
    assert placement.in_use(view) == {UUID: {(PF0, wanted.request_id)}}
    assert placement.in_use(placement_view('host1', made.all(), specs_of({'physical_network': None}))) == {}


def test_what_allocations_lack_is_added_and_all_else_stays():
    """A device's former class goes with what is added for it."""
    there = {
        'root': {'resources': {'VCPU': 4, 'MEMORY_MB': 512}, 'generation': 7},
        'rp1': {'resources': {'A': 1, 'B': 5}, 'generation': 2},
        'rp2': {'resources': {'A': 3}, 'generation': 2},
    }
    wanted = {'rp1': {'A': 3}, 'rp2': {'A': 1}, 'rp3': {'A': 1}}
    more = placement.lacking(there, wanted)
    assert more == {'rp1': {'A': 3}, 'rp3': {'A': 1}}
    made = placement.with_devices(there, more)
    assert made == {
        'root': {'resources': {'VCPU': 4, 'MEMORY_MB': 512}},
        'rp1': {'resources': {'A': 3}},
        'rp2': {'resources': {'A': 3}},
        'rp3': {'resources': {'A': 1}},
    }
    assert placement.lacking(made, wanted) == {}
    assert there['rp1']['resources'] == {'A': 1, 'B': 5}


def test_a_provider_that_lacks_one_of_several_classes_is_lacking():
    there = {'rp1': {'resources': {'A': 1, 'B': 5}}}
    assert placement.lacking(there, {'rp1': {'A': 3, 'B': 5}}) == {'rp1': {'A': 3, 'B': 5}}


def test_devices_in_use_that_nobody_configures_any_more():
    made = host([*functions(PF0, 2), found('0000:82:00.0'), found('0000:83:00.0')])
    made = claimed(
        made.provided({PF0: 'rp1', '0000:82:00.0': 'rp2', '0000:83:00.0': 'rp3'}),
        UUID,
        request(2, vendor_id='10de', dev_type='type-VF'),
        request(1, vendor_id='10de', rp_uuids='rp2'),
    )
    first = functions(PF0, 1)[0]['address']
    view = placement_view(
        'host1', made.all(), specs_of({'address': {'bus': first[5:7], 'function': '0', 'slot': '10'}})
    )
    assert view[f'host1_{PF0}'].total == 2
    assert view['host1_0000:82:00.0'].inventory() == {}
    assert 'host1_0000:83:00.0' not in view
    assert placement.allocations(view, {PF0: 'rp1'}) == {UUID: {'rp1': {'CUSTOM_PCI_10DE_13F1': 2}}}

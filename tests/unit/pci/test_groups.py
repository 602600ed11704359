"""Groups of devices: what operators may write, and which devices of a host belong together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kilonova.compute.tracker import RUN
from kilonova.objects import Flavor, InstancePCIRequests
from kilonova.pci import groups
from kilonova.pci.address import PciConfigInvalidSpec
from kilonova.pci.groups import Grouping, form
from kilonova.pci.kinds import PciFunctions
from kilonova.pci.request import Aliases, PciInvalidAlias, request_groups, requests_from_flavor
from kilonova.pci.spec import DeviceSpecs
from tests.unit.pci.builders import found, ledger, request

A, B, C, D = (f'0000:{bus}:00.0' for bus in ('81', '82', 'c1', 'c2'))
SLOT = {'group': 'g', 'group_by': 'slot', 'group_size': 2}


def specs(*entries: dict[str, Any]) -> DeviceSpecs:
    return DeviceSpecs.parse([json.dumps(entry) for entry in entries], report_in_placement=True)


# --- what may be written ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('change', 'why'),
    [
        ({'group': ''}, "group: '' is invalid"),
        ({'group': 5}, 'group: 5 is invalid'),
        ({'group': 'a b'}, "group: 'a b' is invalid"),
        ({'group': 'x' * 65}, 'is invalid: it must be 1 to 64 letters'),
        ({'group': None}, 'group: None is invalid'),
        ({'group_by': 'bus'}, "group_by: 'bus' is invalid: it must be slot, iommu_group or lists of addresses"),
        ({'group_by': None}, 'group_by: None is invalid'),
        ({'group_size': None}, 'group_size: None is invalid'),
        ({'group_size': 1}, 'group_size: 1 is invalid: it must be a number from 2 to 16'),
        ({'group_size': 17}, 'group_size: 17'),
        ({'group_size': '2'}, "group_size: '2'"),
        ({'group_size': True}, 'group_size: True'),
        ({'group_size': 2.0}, r'group_size: 2\.0'),
        ({'group_by': [], 'group_size': ...}, 'group_by has 0 lists'),
        ({'group_by': [[A, B]]}, 'group_size is valid only with group_by slot'),
        ({'group_by': [A, B], 'group_size': ...}, f"'{A}' is invalid: it must be a list of 2 to 16 addresses"),
        ({'group_by': [[A]], 'group_size': ...}, 'a list of 2 to 16 addresses'),
        ({'group_by': [[f'0000:{bus:02x}:00.0' for bus in range(17)]], 'group_size': ...}, 'a list of 2 to 16'),
        (
            {'group_by': [[f'{each:04x}:00:00.0', f'{each:04x}:00:01.0'] for each in range(257)], 'group_size': ...},
            'group_by has 257 lists, but must have 1 to 256',
        ),
        ({'group_by': [[A, A]], 'group_size': ...}, f'{A} is listed twice'),
        ({'group_by': [[A, B], [C, B]], 'group_size': ...}, f'{B} is listed twice'),
        ({'group_by': [[A, '82:00.0']], 'group_size': ...}, "'82:00.0' is not a PCI address"),
        ({'group_by': [[A, 7]], 'group_size': ...}, '7 is not a PCI address'),
        ({'one_time_use': True}, "'one_time_use' is not supported for devices of a group"),
        ({'live_migratable': 'yes'}, "'live_migratable' is not supported"),
        ({'remote_managed': 'no'}, "'remote_managed'"),
        ({'physical_network': 'net'}, "'physical_network'"),
    ],
)
def test_a_bad_group_is_refused_by_its_value(change: dict[str, Any], why: str) -> None:
    entry = {name: value for name, value in {**SLOT, **change}.items() if value is not ...}
    with pytest.raises(PciConfigInvalidSpec, match=why):
        specs(entry)


@pytest.mark.parametrize('alone', ['group', 'group_by', 'group_size'])
def test_one_key_alone(alone: str) -> None:
    with pytest.raises(PciConfigInvalidSpec, match='group'):
        specs({alone: SLOT[alone]})


def test_two_specs_of_one_group() -> None:
    assert len(specs({**SLOT, 'product_id': '1'}, {**SLOT, 'product_id': '2'})) == 2
    with pytest.raises(PciConfigInvalidSpec, match='group G: two specs name it, but with different group_by'):
        specs({**SLOT, 'product_id': '1'}, {**SLOT, 'product_id': '2', 'group': 'G', 'group_size': 3})


def test_a_mistyped_key() -> None:
    with pytest.raises(PciConfigInvalidSpec, match=r"'groupby' is not a known key\. Did you mean 'group_by'"):
        specs({**SLOT, 'groupby': 'slot'})


@pytest.mark.parametrize(
    ('alias', 'why'),
    [
        ({'group': 'a b'}, "'a b' does not match"),
        ({'group': 5}, "5 is not of type 'string'"),
        ({'group': 'g', 'vendor_id': '10de'}, "'vendor_id' cannot be combined with 'group'"),
        ({'group': 'g', 'product_id': '10de'}, "'product_id' cannot be combined"),
        ({'group': 'g', 'device_type': 'type-PF'}, "'device_type' cannot be combined"),
        ({'group': 'g', 'live_migratable': True}, "'live_migratable' cannot be combined"),
    ],
)
def test_a_bad_alias(alias: dict[str, Any], why: str) -> None:
    with pytest.raises(PciInvalidAlias, match=why):
        Aliases.parse([json.dumps({'name': 'a', **alias})])


@pytest.mark.parametrize(
    ('more', 'wanted'), [({}, 'CUSTOM_PCI_GROUP_L40S_PAIR'), ({'resource_class': 'pairs'}, 'CUSTOM_PAIRS')]
)
def test_what_placement_is_asked_for(more: dict[str, str], wanted: str) -> None:
    aliases = Aliases.parse([json.dumps({'name': 'a', 'group': 'l40s-pair', **more})], pci_in_placement=True)
    (request,) = requests_from_flavor({'pci_passthrough:alias': 'a:2'}, aliases)
    assert [group.resources for group in request_groups([request])] == [{wanted: 1}] * 2


# --- which belong together -------------------------------------------------------------------------------------------
def formed(grouping: Grouping, *devices: dict[str, Any]) -> groups.Formed:
    return form((device, grouping) for device in devices)  # type: ignore[misc]


def test_by_slot() -> None:
    made = formed(Grouping('g', 'slot', 2), *(found(f'0000:81:00.{number}') for number in (1, 0)), found(B))
    assert made.heads == {'0000:81:00.0': '0000:81:00.0', '0000:81:00.1': '0000:81:00.0'}
    assert made.problems == {B: f'group g: group_size is 2, but the number of devices in one slot is 1 ({B})'}


def test_by_iommu_group() -> None:
    made = formed(
        Grouping('g', 'iommu_group', 2),
        found(A, iommu_group=7),
        found(B, iommu_group=0),
        found(C, iommu_group=7),
        found(D),
        found('0000:d1:00.0', iommu_group=0),
    )
    assert made.heads == {A: A, C: A, B: B, '0000:d1:00.0': B}
    assert made.problems == {D: f'group g: {D} is in no IOMMU group'}


def test_by_lists() -> None:
    made = formed(
        Grouping('g', lists=((B, A), (C, D), ('0000:f1:00.0', '0000:f2:00.0'))),
        found(A),
        found(B),
        found(C),
        found('0000:d1:00.0'),
    )
    assert made.heads == {A: A, B: A}
    assert made.problems == {
        C: f'group g: {D} of {C}, {D} is not a device of this host that matches a spec of the group',
        '0000:d1:00.0': 'group g: 0000:d1:00.0 is in none of the lists of group_by',
    }


def test_devices_of_specs_without_a_group_may_come_between() -> None:
    grouping = Grouping('g', 'slot', 2)
    devices = [(found(B), None), (found('0000:81:00.0'), grouping), (found(C), None), (found('0000:81:00.1'), grouping)]
    made = form(devices)  # type: ignore[arg-type]
    assert made.heads == {'0000:81:00.0': '0000:81:00.0', '0000:81:00.1': '0000:81:00.0'} and made.problems == {}


@pytest.mark.parametrize('dev_type', ['type-PF', 'type-VF'])
def test_only_plain_functions(dev_type: str) -> None:
    made = formed(Grouping('g', 'slot', 2), found(A, dev_type=dev_type))
    assert made.problems == {A: f'group g: {A} is {dev_type}, only type-PCI can be in a group'}


def test_what_is_in_no_whole_group_is_not_offered(caplog: pytest.LogCaptureFixture) -> None:
    """The log says why, once as long as it is so."""
    kind = PciFunctions(specs({**SLOT, 'product_id': '13f1'}, {'product_id': '2330'}))
    audio = found('0000:81:00.1')
    for _ in range(2):
        assert list(kind.columns([found(A), found(B, product_id='2330')])) == [B]
    assert caplog.text.count(f'PCI device {A} is not offered to servers') == 1
    assert sorted(kind.columns([found(A), audio])) == [A, '0000:81:00.1']
    assert kind.columns([found(A)]) == {} and caplog.text.count('is not offered to servers') == 2


def test_a_claim_that_is_sent_again() -> None:
    """It has its devices already: two requests of one group each, four devices."""
    devices = [found(f'0000:{bus}:00.{number}') for bus in ('81', '82', '83') for number in (0, 1)]
    tracker = ledger(devices, json.dumps(SLOT))
    wanted = [request(1, group='g'), request(1, group='g')]
    flavor = Flavor(memory_mb=1, root_gb=1, ephemeral_gb=0, swap=0, vcpus=1, extra_specs={})
    for _ in range(2):
        plan = tracker.plan('server', RUN, flavor, InstancePCIRequests(requests=wanted))
        assert sorted(device.address for device in plan.devices) == [one['address'] for one in devices[:4]]
        tracker.commit(plan)

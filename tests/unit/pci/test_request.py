from __future__ import annotations

import json
import re

import pytest
from oslo_config import cfg

from kilonova.conf import pci as pci_options
from kilonova.pci import request
from kilonova.pci.request import Aliases
from tests.unit.pci import builders

M4000 = {'name': 'QuadroM4000-video', 'vendor_id': '10de', 'product_id': '13f1', 'device_type': 'type-PCI'}


def aliases(*entries, **options):
    return Aliases.parse([json.dumps(entry) for entry in entries], **options)


@pytest.mark.parametrize(
    ('change', 'text'),
    [
        ({'name': ''}, "'' "),
        ({'name': '   '}, 'the name is empty'),
        ({'name': 'x' * 257}, 'too long'),
        ({'vendor_id': '10d'}, "'10d' does not match"),
        ({'product_id': 'xyzw'}, "'xyzw' does not match"),
        ({'device_type': 'vdpa'}, "'vdpa' is not one of"),
        ({'numa_policy': 'near'}, "'near' is not one of"),
        ({'capability_type': 'usb'}, "'usb' is not one of"),
        ({'colour': 'red'}, "'colour' was unexpected"),
        ({'resource_class': 'x' * 300}, 'resource class CUSTOM_'),
        ({'traits': 'x' * 300}, 'trait'),
        ({'live_migratable': 'maybe'}, "live_migratable of alias 'QuadroM4000-video'"),
    ],
)
def test_bad_alias(change, text):
    with pytest.raises(request.PciInvalidAlias, match=r'^Invalid PCI alias definition: ') as caught:
        aliases({**M4000, **change})
    assert text in str(caught.value)
    assert caught.value.code == 400


def test_alias_that_is_no_json_object():
    for value in ('{', '[]', '"x"'):
        with pytest.raises(request.PciInvalidAlias, match=re.escape(value)):
            Aliases.parse([value])


def test_alias_needs_ids_unless_placement_knows_a_class():
    only_class = {'name': 'a', 'resource_class': 'GPU'}
    with pytest.raises(request.PciInvalidAlias, match="'vendor_id' is a required property"):
        aliases(only_class)
    with pytest.raises(request.PciInvalidAlias, match="'product_id' is a required property"):
        aliases({'name': 'a', 'vendor_id': '10de'}, pci_in_placement=True)
    assert aliases(only_class, pci_in_placement=True)['a'].specs == ({'resource_class': 'GPU'},)


def test_alias_defaults_and_stored_keys():
    alias = aliases({**M4000, 'name': ' a ', 'capability_type': 'pci', 'live_migratable': 'yes'})['a']
    assert alias.numa_policy == 'legacy'
    assert alias.specs == (
        {'vendor_id': '10de', 'product_id': '13f1', 'dev_type': 'type-PCI', 'live_migratable': 'true'},
    )


def test_repeated_names_are_alternatives():
    both = aliases(M4000, {**M4000, 'product_id': '1430'})
    assert [one['product_id'] for one in both['QuadroM4000-video'].specs] == ['13f1', '1430']
    assert list(both) == ['QuadroM4000-video']


@pytest.mark.parametrize(
    ('second', 'text'),
    [
        ({**M4000, 'numa_policy': 'required'}, "NUMA policy mismatch for alias 'QuadroM4000-video'"),
        ({**M4000, 'device_type': 'type-VF'}, "Device type mismatch for alias 'QuadroM4000-video'"),
        (
            {key: value for key, value in M4000.items() if key != 'device_type'},
            "alias 'QuadroM4000-video' is defined several times: each definition needs device_type",
        ),
    ],
)
def test_repeated_names_that_differ(second, text):
    with pytest.raises(request.PciInvalidAlias) as caught:
        aliases(M4000, second)
    assert str(caught.value).startswith('Invalid PCI alias definition: ')
    assert text in str(caught.value)


def test_repeated_names_and_placement():
    with pytest.raises(request.PciInvalidAlias, match="'QuadroM4000-video' are not supported with pci_in_placement"):
        aliases(M4000, M4000, pci_in_placement=True)


def test_requests_from_flavor():
    known = aliases(M4000, {**M4000, 'name': 'b', 'numa_policy': 'required'})
    made = request.requests_from_flavor({request.EXTRA_SPEC: 'QuadroM4000-video:2 , b:1'}, known)
    assert [(one.alias_name, one.count, one.numa_policy) for one in made] == [
        ('QuadroM4000-video', 2, 'legacy'),
        ('b', 1, 'required'),
    ]
    assert made[0].spec == [{'vendor_id': '10de', 'product_id': '13f1', 'dev_type': 'type-PCI'}]
    assert made[0].request_id != made[1].request_id
    assert made[0].source == made[0].FLAVOR_ALIAS
    assert request.requests_from_flavor({}, known) == []
    assert request.requests_from_flavor({request.EXTRA_SPEC: 'b:0'}, known) == []
    # None of one doesn't mean none of the others.
    made = request.requests_from_flavor({request.EXTRA_SPEC: 'b:0,QuadroM4000-video:1'}, known)
    assert [one.alias_name for one in made] == ['QuadroM4000-video']
    other = request.requests_from_flavor({request.EXTRA_SPEC: 'b:1'}, known, 'socket')
    assert other[0].numa_policy == 'socket'


def test_requests_share_nothing_with_the_alias():
    known = aliases(M4000)
    first = request.requests_from_flavor({request.EXTRA_SPEC: 'QuadroM4000-video:1'}, known)[0]
    first.spec[0]['rp_uuids'] = 'x'
    assert 'rp_uuids' not in known['QuadroM4000-video'].specs[0]


@pytest.mark.parametrize('value', ['X', 'X:', 'X:a', ':1', 'X:1,', 'X:1:2', 'a,X:1', 'X:-1', ' :1'])
def test_value_of_another_form(value):
    with pytest.raises(request.PciInvalidAlias, match=re.escape(f"'{value}'")) as caught:
        request.requests_from_flavor({request.EXTRA_SPEC: value}, aliases(M4000))
    assert caught.value.code == 400


@pytest.mark.parametrize('value', ['a:99999999999', 'a:257', 'a:128,b:129', 'a:' + '9' * 200])
def test_the_devices_of_a_flavor_are_counted(value):
    """A PCI request for more than 256 devices is refused with 400, as each device is a group in the Placement query."""
    with pytest.raises(request.PciInvalidAlias) as caught:
        request.parse_value(value)
    assert caught.value.code == 400
    assert request.parse_value('a:200, b:56') == [('a', 200), ('b', 56)]


def test_unknown_alias():
    with pytest.raises(request.PciRequestAliasNotDefined) as caught:
        request.requests_from_flavor({request.EXTRA_SPEC: 'nope:1'}, aliases(M4000))
    assert str(caught.value) == 'PCI alias nope is not defined'
    assert caught.value.code == 400


def test_numa_affinity_policy():
    policy = request.numa_affinity_policy
    flavor, image = {'hw:pci_numa_affinity_policy': 'required'}, {'hw_pci_numa_affinity_policy': 'required'}
    assert policy({}, {}) is None
    assert policy(flavor, {}) == policy({}, image) == policy(flavor, image) == 'required'
    with pytest.raises(request.ImagePCINUMAPolicyForbidden):
        policy(flavor, {'hw_pci_numa_affinity_policy': 'socket'})
    with pytest.raises(request.InvalidPCINUMAAffinity, match='near'):
        policy({'hw:pci_numa_affinity_policy': 'near'}, {})


def test_request_groups():
    wanted = builders.request(2)
    traits = builders.request(1, resource_class='gpu', traits='fast', live_migratable='true')
    fixed = builders.request(1, vendor_id='10de', product_id='13f1', live_migratable='false')
    port = builders.request(1, alias_name=None)
    groups = request.request_groups([wanted, traits, fixed, port])
    assert [group.requester_id for group in groups] == [
        f'{wanted.request_id}-0',
        f'{wanted.request_id}-1',
        f'{traits.request_id}-0',
        f'{fixed.request_id}-0',
    ]
    assert groups[0].resources == {'CUSTOM_PCI_10DE_13F1': 1}
    assert groups[2].resources == {'CUSTOM_GPU': 1}
    assert groups[2].required_traits == {'CUSTOM_FAST', 'HW_PCI_LIVE_MIGRATABLE'}
    assert groups[3].forbidden_traits == {'HW_PCI_LIVE_MIGRATABLE'}
    assert all(group.use_same_provider for group in groups)


def test_request_group_of_alternatives_is_refused():
    wanted = builders.request(1)
    wanted.spec = [*wanted.spec, {'vendor_id': '8086', 'product_id': '1533'}]
    with pytest.raises(request.PciInvalidAlias, match="'gpu' has several"):
        request.request_groups([wanted])


def test_with_allocation():
    two, one = builders.request(2), builders.request(1)
    mappings = {f'{two.request_id}-0': ['rp1'], f'{two.request_id}-1': ['rp2'], '': ['root']}
    made = request.with_allocation([two, one], mappings, 'aaaaaaaa-0000-4000-8000-000000000000')
    assert made.requests[0].spec[0]['rp_uuids'] == 'rp1,rp2'
    assert 'rp_uuids' not in made.requests[1].spec[0]
    assert 'rp_uuids' not in two.spec[0]
    again = request.with_allocation(made, None)
    assert again.instance_uuid == made.instance_uuid
    assert request.allocated_providers(again.requests[0], {}) == ['rp1', 'rp2']


def test_aliases_from_conf(make_conf):
    conf = make_conf(pci_options)
    conf.register_opts([cfg.BoolOpt('pci_in_placement', default=False)], group='filter_scheduler')
    conf.set_override('alias', [json.dumps(M4000)], 'pci')
    assert list(Aliases.from_conf(conf)) == ['QuadroM4000-video']
    conf.set_override('alias', [json.dumps(M4000)] * 2, 'pci')
    conf.set_override('pci_in_placement', True, 'filter_scheduler')
    with pytest.raises(request.PciInvalidAlias):
        Aliases.from_conf(conf)


ROOT, CARD, OTHER, SERVER = 'root', 'rp-card', 'rp-other', 'aaaaaaaa-0000-4000-8000-000000000000'


def allocated(**children):
    """Allocations of a server: its host's, and of providers below it."""
    return {
        ROOT: {'resources': {'VCPU': 4, 'CUSTOM_LICENCE': 1}},
        **{f'rp-{name}': {'resources': resources} for name, resources in children.items()},
    }


def on_host(requests, operation=SERVER, mappings=None, **children):
    return request.on_host(requests, SERVER, operation, ROOT, allocated(**children), {'': [ROOT], **(mappings or {})})


def test_what_is_asked_for_by_class_becomes_a_request_once_it_is_allocated():
    made = on_host(None, card={'VGPU': 2, 'CUSTOM_BIG': 1}, other={'VGPU': 1, 'SRIOV_NET_VF': 1})
    assert made.instance_uuid == SERVER
    assert [(one.count, one.spec, one.source) for one in made.requests] == [
        (1, [{'dev_type': 'mdev', 'resource_class': 'CUSTOM_BIG', 'rp_uuids': CARD}], 2),
        (3, [{'dev_type': 'mdev', 'resource_class': 'VGPU', 'rp_uuids': f'{CARD},{CARD},{OTHER}'}], 2),
    ]
    again = on_host(made, card={'VGPU': 2, 'CUSTOM_BIG': 1}, other={'VGPU': 1, 'SRIOV_NET_VF': 1})
    assert [one.request_id for one in again.requests] == [one.request_id for one in made.requests]
    # Another operation's devices are others: a server that is resized holds both.
    later = on_host(made, 'bbbbbbbb-0000-4000-8000-000000000000', other={'VGPU': 1})
    assert [(one.count, one.spec[0]['rp_uuids']) for one in later.requests] == [(1, OTHER)]
    assert later.requests[0].request_id != made.requests[1].request_id
    assert made.without_providers().requests == []


def test_devices_of_aliases_are_not_asked_for_twice():
    alias = builders.request(1, resource_class='big', vendor_id='10de', product_id='13f1')
    asked = request.InstancePCIRequests(instance_uuid=SERVER, requests=[alias])
    made = on_host(asked, mappings={f'{alias.request_id}-0': [CARD]}, card={'CUSTOM_BIG': 1}, other={'VGPU': 1})
    assert [(one.alias_name, one.count, one.spec[0]['rp_uuids']) for one in made.requests] == [
        ('gpu', 1, CARD),
        (None, 1, OTHER),
    ]


def test_nothing_asked_for_stays_nothing():
    assert on_host(None) is None
    assert on_host(request.InstancePCIRequests(instance_uuid=SERVER, requests=[])).requests == []

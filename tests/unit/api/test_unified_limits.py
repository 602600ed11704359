"""Limits that are Keystone's: by resource class and by the type of GPU."""

from __future__ import annotations

import json

import pytest

from kilonova.api.services import unified_limits
from kilonova.api.services.unified_limits import Registered, amounts
from kilonova.errors import Unanswered
from kilonova.pci.request import Aliases
from kilonova.scheduler.placement import query
from tests.unit.api.conftest import IMAGE, PROJECT
from tests.unit.scheduler.builders import spec, uuid

ALIAS = json.dumps({'name': 'gpu', 'vendor_id': '10de', 'product_id': '20b5', 'device_type': 'type-PCI'})
DRIVER = 'nova.quota.UnifiedLimitsDriver'
SIZES = {'vcpus': 4, 'memory_mb': 2048, 'root_gb': 10, 'ephemeral_gb': 2, 'swap': 512}
PLAIN = {'servers': 1, 'class:VCPU': 4, 'class:MEMORY_MB': 2048, 'class:DISK_GB': 13}


@pytest.mark.parametrize(
    ('extra_specs', 'expected'),
    [
        ({}, PLAIN),
        ({'pci_passthrough:alias': 'gpu:2'}, {**PLAIN, 'alias:gpu': 2, 'class:CUSTOM_PCI_10DE_20B5': 2}),
        (
            {'pci_passthrough:alias': 'gpu:1,old:3'},
            {**PLAIN, 'alias:gpu': 1, 'alias:old': 3, 'class:CUSTOM_PCI_10DE_20B5': 1},
        ),
        ({'resources:VGPU': '1', 'resources1:VGPU': '2'}, {**PLAIN, 'class:VGPU': 3}),
        (
            {'resources:VCPU': '0', 'resources:CUSTOM_BAREMETAL': '1'},
            {'servers': 1, 'class:MEMORY_MB': 2048, 'class:DISK_GB': 13, 'class:CUSTOM_BAREMETAL': 1},
        ),
        ({'hw:cpu_policy': 'dedicated'}, {'servers': 1, 'class:PCPU': 4, 'class:MEMORY_MB': 2048, 'class:DISK_GB': 13}),
    ],
)
def test_what_a_server_counts(extra_specs, expected):
    flavor = {**SIZES, 'extra_specs': extra_specs}
    assert amounts(flavor, Aliases.parse([ALIAS])) == expected
    if 'class:PCPU' in expected:
        assert amounts(flavor, Aliases.parse([ALIAS]), pcpu_as_vcpu=True) == PLAIN


DEDICATED, ISOLATE = {'hw:cpu_policy': 'dedicated'}, {'hw:emulator_threads_policy': 'isolate'}
MIXED = {'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '0-2'}


@pytest.mark.parametrize(
    'image',
    [
        {},
        {'hw_cpu_policy': 'dedicated'},
        {'hw_cpu_policy': 'shared'},
        {'hw_cpu_policy': 'mixed'},
        {'hw_mem_encryption': 'true'},
    ],
)
@pytest.mark.parametrize(
    'extra_specs',
    [
        {},
        DEDICATED,
        MIXED,
        ISOLATE,
        {**DEDICATED, **ISOLATE},
        {**MIXED, **ISOLATE},
        {'hw:cpu_policy': 'shared'},
        {'hw:cpu_policy': 'mixed'},
        {'hw:cpu_dedicated_mask': '1'},
        {'resources:PCPU': '4'},
        {'resources_x:PCPU': '4'},
        {'resources:VCPU': '2'},
        {'resources:VCPU': 'many'},
        {'resources:VCPU': '3', **DEDICATED},
        {'resources_cpus:VCPU': '1', **DEDICATED},
        {'resources:VCPU': '2', 'resources_more:VCPU': '3'},
        {'resources:DISK_GB': '0', 'resources1:MEMORY_MB': '1024'},
        {'resources:VGPU': '1', 'resources1:VGPU': '2'},
        {'hw:mem_encryption': 'true'},
        {'hw:pmem': '6GB,6GB'},
        {'hw:numa_nodes': '2', **DEDICATED},
    ],
)
def test_a_server_counts_what_the_scheduler_asks_for(extra_specs, image):
    request = spec(extra_specs, flavor_values=SIZES, image={'id': uuid(), 'properties': image})
    flavor = {**SIZES, 'extra_specs': extra_specs, 'image': image}
    assert amounts(flavor, Aliases({})) == {
        'servers': 1,
        **{f'class:{name}': number for name, number in query.build(request, max_results=1).resources().items()},
    }


def test_cells_that_only_the_image_describes_change_no_amounts():
    """The place of the CPUs on NUMA cells is nothing that limits look at, so it can't hide dedicated ones."""
    image = {'hw_numa_cpus': ['0', '1', '2,3'], 'hw_numa_mem': ['512', '512', '1024']}
    extra_specs = {**DEDICATED, 'hw:numa_nodes': '3'}
    request = spec(
        extra_specs,
        flavor_values=SIZES,
        image={
            'id': uuid(),
            'properties': {
                'hw_numa_cpus.0': '0',
                'hw_numa_cpus.1': '1',
                'hw_numa_cpus.2': '2,3',
                'hw_numa_mem.0': '512',
                'hw_numa_mem.1': '512',
                'hw_numa_mem.2': '1024',
            },
        },
    )
    assert query.build(request, max_results=1).resources()['PCPU'] == 4
    assert amounts({**SIZES, 'extra_specs': extra_specs, 'image': image}, Aliases({}))['class:PCPU'] == 4


def test_names_without_a_registered_limit():
    required = Registered({'class:VCPU': 7}, 'require', ['servers', 'class:VCPU'])
    assert (required['cores'], required['class:VCPU'], required['instances'], required['class:VGPU']) == (7, 7, 0, -1)
    ignored = Registered({'class:VCPU': 7}, 'ignore', ['class:DISK_GB'])
    assert (ignored['cores'], ignored['class:DISK_GB'], ignored['class:VGPU'], ignored['alias:gpu']) == (7, -1, 0, -1)
    assert required.get('server_groups', -1) == -1 and 'key_pairs' in set(required)


@pytest.fixture
def limited(make_site):
    """A site with limits in Keystone, and what creates a server of a flavor with these extra specs: the answer."""
    site = make_site(quota__driver=DRIVER, pci__alias=[ALIAS])
    site.limits.registered.update({'servers': 10})

    def create(extra_specs=None, count=1, minimum=None, **flavor):
        return site.request(
            'POST',
            '/servers',
            {
                'server': {
                    'name': 's',
                    'flavorRef': site.flavor(extra_specs, **flavor),
                    'imageRef': IMAGE,
                    'networks': 'none',
                    'min_count': minimum or count,
                    'max_count': count,
                }
            },
            user='bob',
        )

    site.asked = create
    return site


def message(response):
    assert response.status_int == 403, response.text
    return response.json['forbidden']['message']


@pytest.mark.parametrize('name', ['alias:gpu', 'class:CUSTOM_PCI_10DE_20B5'])
def test_so_many_gpus_of_a_type(limited, name):
    limited.limits.registered[name] = 3
    assert limited.asked({'pci_passthrough:alias': 'gpu:2'}).status_int == 202
    refused = limited.asked({'pci_passthrough:alias': 'gpu:2'})
    assert message(refused) == f'Quota exceeded for {name}: Requested 2, but already used 2 of 3 {name}'
    assert limited.asked({'pci_passthrough:alias': 'gpu:1'}).status_int == 202
    assert limited.asked().status_int == 202
    limited.limits.own[PROJECT] = {name: 5}
    assert limited.asked({'pci_passthrough:alias': 'gpu:2'}).status_int == 202


def test_what_stands_in_cells_counts_too(limited, statements):
    """One statement a database, whatever the number of servers."""
    limited.limits.registered['class:VCPU'] = 8
    flavor = limited.flavor(vcpus=2)
    for _ in range(2):
        limited.server(flavor=flavor)
    statements.clear()
    assert limited.asked(vcpus=2, count=3, minimum=1).status_int == 202
    assert len(limited.ok('GET', '/servers', user='bob')['servers']) == 4
    counted = [text for name, text in statements if 'instance_extra' in text and 'count(*)' in text]
    # Twice: before and after the write, in cell0 and two cells.
    assert len(counted) == 2 * 3
    assert message(limited.asked(vcpus=1)) == (
        'Quota exceeded for class:VCPU: Requested 1, but already used 8 of 8 class:VCPU'
    )


def test_dedicated_cpus_of_the_image_count_at_the_request_and_later(limited):
    """Before a cell has the server, in its cell, and when it is resized or restored."""
    limited.limits.registered['class:PCPU'] = 8
    limited.images.record['hw_cpu_policy'] = 'dedicated'
    assert message(limited.asked(vcpus=9)).startswith('Quota exceeded for class:PCPU: Requested 9, but already used 0')
    assert limited.asked(vcpus=3).status_int == 202
    server = limited.server(flavor=limited.flavor(vcpus=2))
    assert message(limited.asked(vcpus=4)).startswith('Quota exceeded for class:PCPU: Requested 4, but already used 5')
    refused = limited.request(
        'POST', f'/servers/{server}/action', {'resize': {'flavorRef': limited.flavor(vcpus=6)}}, user='bob'
    )
    assert message(refused).startswith('Quota exceeded for class:PCPU: Requested 4, but already used 5')


def test_a_restored_server_counts_with_its_images_cpus(limited):
    limited.images.record['hw_cpu_policy'] = 'dedicated'
    server = limited.server(flavor=limited.flavor(vcpus=9), vm_state='soft-delete')
    limited.limits.registered['class:PCPU'] = 8
    refused = limited.request('POST', f'/servers/{server}/action', {'restore': None})
    assert message(refused).startswith('Quota exceeded for class:PCPU: Requested 9, but already used 0')


def test_resize_counts_what_is_more(limited):
    limited.limits.registered['alias:gpu'] = 2
    server = limited.server(flavor=limited.flavor({'pci_passthrough:alias': 'gpu:1'}))

    def resize(number):
        flavor = limited.flavor({'pci_passthrough:alias': f'gpu:{number}'})
        return limited.request('POST', f'/servers/{server}/action', {'resize': {'flavorRef': flavor}}, user='bob')

    assert message(resize(3)).startswith('Quota exceeded for alias:gpu: Requested 2, but already used 1 of 2')
    assert resize(2).status_int == 202
    assert message(limited.asked({'pci_passthrough:alias': 'gpu:1'})).startswith('Quota exceeded for alias:gpu')


def test_the_fields_names_show_keystones_limits(limited):
    """Read only: what is written is not kept."""
    limited.limits.registered.update(
        {'class:VCPU': 5, 'class:MEMORY_MB': 6, 'server_groups': 1, 'server_metadata_items': 1, 'server_key_pairs': 0}
    )
    path = f'/os-quota-sets/{PROJECT}'
    shown = limited.ok('GET', path)['quota_set']
    assert (shown['instances'], shown['cores'], shown['ram'], shown['key_pairs'], shown['server_group_members']) == (
        10,
        5,
        6,
        0,
        -1,
    )
    put = limited.ok('PUT', path, {'quota_set': {'cores': 99}})['quota_set']
    limited.ok('PUT', '/os-quota-class-sets/default', {'quota_class_set': {'cores': 99}})
    limited.ok('DELETE', path)
    assert put['cores'] == limited.ok('GET', path)['quota_set']['cores'] == 5
    assert limited.ok('GET', '/os-quota-class-sets/default')['quota_class_set']['cores'] == 5
    assert limited.ok('GET', '/limits', user='bob')['limits']['absolute']['maxTotalCores'] == 5
    group = {'server_group': {'name': 'g', 'policy': 'affinity'}}
    assert limited.request('POST', '/os-server-groups', group, user='bob').status_int == 200
    assert message(limited.request('POST', '/os-server-groups', group, user='bob')) == (
        'Quota exceeded, too many server groups.'
    )


def test_what_must_be_registered(make_site):
    site = make_site(quota__driver='kilonova.quota.UnifiedLimitsDriver')
    body = {'server': {'name': 's', 'flavorRef': site.flavor(), 'imageRef': IMAGE, 'networks': 'none'}}
    assert message(site.request('POST', '/servers', body, user='bob')) == (
        'Quota exceeded for servers: Requested 1, but already used 0 of 0 servers'
    )


def test_keystone_is_silent(limited):
    limited.limits.fails = Unanswered(who='Keystone', reason='gone')
    assert limited.asked().status_int == 503


def test_nothing_is_limited(make_site):
    site = make_site(quota__driver='nova.quota.NoopQuotaDriver', quota__instances=0, quota__metadata_items=0)
    body = {
        'server': {
            'name': 's',
            'flavorRef': site.flavor(),
            'imageRef': IMAGE,
            'networks': 'none',
            'metadata': {'a': 'b'},
        }
    }
    assert site.request('POST', '/servers', body, user='bob').status_int == 202
    assert site.ok('GET', f'/os-quota-sets/{PROJECT}')['quota_set']['instances'] == -1


def test_every_name_of_the_api_has_one_in_keystone():
    from kilonova.api.services.backend import QUOTAS

    assert set(unified_limits.NAMES) == set(QUOTAS)

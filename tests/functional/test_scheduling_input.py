"""What users and operators may write into hints, flavors and aggregates: it is refused, or it suits no host, or it is
left out; nobody sees a traceback, and the scheduler goes on."""

from __future__ import annotations

import json
import logging

import pytest
from stevedore import extension

from kilonova.scheduler.filters import BaseHostFilter
from tests.fixtures.cloud import IMAGE_ID

NAMESPACE = 'kilonova.scheduler.filters'
NO_HOST = 'No valid host was found. '
TWO = {'gpu1': ['0000:08:00.0'], 'gpu2': ['0000:88:00.0']}


@pytest.fixture
def strict(make_cloud):
    """Every filter that there is, two hosts."""
    names = extension.ExtensionManager(NAMESPACE).names()
    assert len(names) > 20
    return make_cloud(TWO, filter_scheduler__enabled_filters=sorted(names))


def ends(cloud, flavor, hints=None):
    """How a create ends: (status, the fault's text)."""
    body = {'server': {'name': 's', 'flavorRef': flavor, 'imageRef': IMAGE_ID, 'networks': 'none'}}
    if hints is not None:
        body['os:scheduler_hints'] = hints
    response = cloud.request('POST', '/servers', body)
    assert response.status_int in (202, 400), response.text
    if response.status_int == 400:
        return 400, response.json['badRequest']['message']
    cloud.settle()
    shown = cloud.show(response.json['server']['id'])
    return shown['status'], shown.get('fault', {}).get('message', '')


HINTS = [
    # Names that nobody knows go to plug-ins as they are.
    ({'no_such_hint': 'x'}, 'ACTIVE'),
    ({'no_such_hint': {'a': [1, {'b': None}]}}, 'ACTIVE'),
    ({'': 'x'}, 'ACTIVE'),
    ({'no_such_hint': None, 'another': 7}, 'ACTIVE'),
    # Forms that the schema knows.
    ({'group': 'x'}, 400),
    ({'different_host': 'x'}, 400),
    ({'same_host': [1]}, 400),
    ({'query': 7}, 400),
    ({'build_near_host_ip': 'x'}, 400),
    ({'cidr': 'x'}, 400),
    ({'different_cell': {}}, 400),
    ([], 400),
    ('x', 400),
    # What the services tell one another: it would get a host without an allocation.
    ({'_nova_check_type': ['rebuild']}, 400),
    ({'_nova_x': 1}, 400),
    # Queries that are none suit no host.
    ({'query': '[">=", "$free_ram_mb"'}, 'ERROR'),
    ({'query': '{"a": 1}'}, 'ERROR'),
    ({'query': '["?", 1]'}, 'ERROR'),
    ({'query': '[' * 20000}, 'ERROR'),
    ({'query': '[">", "$no_such", 1]'}, 'ERROR'),
    ({'query': '[">=", "$free_ram_mb", 1]'}, 'ACTIVE'),
]
SPECS = [
    ({'capabilities:vcpus_total': '>='}, 'ERROR'),
    ({'capabilities:vcpus_total': '>= many'}, 'ERROR'),
    ({'capabilities:vcpus_total': '<or>'}, 'ERROR'),
    ({'capabilities:vcpus_total': '<in>'}, 'ERROR'),
    ({'capabilities:cpu_info:no:such:thing': '<all-in>'}, 'ERROR'),
    ({'capabilities:': '1'}, 'ERROR'),
    ({'capabilities:vcpus_total': 's=='}, 'ERROR'),
    ({'capabilities:vcpus_total': '>= 1'}, 'ACTIVE'),
    ({'aggregate_instance_extra_specs:x': '<or>'}, 'ERROR'),
]
METADATA = {
    'cpu_allocation_ratio': 'lots',
    'ram_allocation_ratio': '',
    'max_io_ops_per_host': 'many',
    'max_instances_per_host': '1e',
    'instance_type': ',,',
    'filter_tenant_id_x': '%',
    'os_type': '"',
    'ram_weight_multiplier': 'heavy',
    'cpu_weight_multiplier': 'nan',
    'io_ops_weight_multiplier': '--1',
    'soft_affinity_weight_multiplier': '[]',
    'trait:CUSTOM_NO': 'perhaps',
    'opt:x': '>= z',
}


def test_whatever_is_written_into_a_request(strict, caplog):
    """Hints and extra specs; a plain create goes through before and after."""
    caplog.set_level(logging.INFO)
    plain = strict.flavor()
    told = {}
    for number, (hints, expected) in enumerate(HINTS):
        status, message = told[f'hint {number}'] = ends(strict, plain, hints)
        assert status == expected, (hints, status, message)
    for number, (specs, expected) in enumerate(SPECS):
        flavor = strict.flavor()
        for key, value in specs.items():
            # The last version that checks no values: what older clients wrote is there.
            reply = strict.request(
                'POST', f'/flavors/{flavor}/os-extra_specs', {'extra_specs': {key: value}}, version='2.85'
            )
            assert reply.status_int == 200, reply.text
        status, message = told[f'specs {number}'] = ends(strict, flavor)
        assert status == expected, (specs, status, message)
    for name, (status, message) in told.items():
        assert 'Traceback' not in message and 'Error(' not in message, name
        if status == 'ERROR':
            assert message.startswith(f'{NO_HOST}2 hosts considered: '), (name, message)
    assert not [record for record in caplog.records if record.exc_info], 'no filter raised'
    assert ends(strict, plain) == ('ACTIVE', '')
    strict.assert_clean()


def test_whatever_is_written_into_an_aggregate(strict, caplog):
    """Numbers that are none are left out, with a word in the log; requests go on."""
    caplog.set_level(logging.INFO)
    made = strict.ok('POST', '/os-aggregates', {'aggregate': {'name': 'a', 'availability_zone': None}})['aggregate']
    strict.ok('POST', f'/os-aggregates/{made["id"]}/action', {'add_host': {'host': 'gpu1'}})
    plain = strict.flavor()
    for key, value in METADATA.items():
        strict.ok('POST', f'/os-aggregates/{made["id"]}/action', {'set_metadata': {'metadata': {key: value}}})
        status, message = ends(strict, plain)
        assert (status, message) == ('ACTIVE', ''), (key, value, message)
        strict.ok('POST', f'/os-aggregates/{made["id"]}/action', {'set_metadata': {'metadata': {key: None}}})
    assert not [record for record in caplog.records if record.exc_info], 'no filter raised'
    strict.ok(
        'POST',
        f'/os-aggregates/{made["id"]}/action',
        {'set_metadata': {'metadata': {key: json.dumps(value) for key, value in METADATA.items()}}},
    )
    assert ends(strict, plain)[0] == 'ACTIVE'
    strict.assert_clean()


class Limiting(BaseHostFilter):
    """A plug-in that lets each host give two vCPUs and 1536 MiB in all, and leaves the looking to the host."""

    def host_passes(self, host_state, spec_obj):
        host_state.limits.update(vcpu=2, memory_mb=1536.0)
        return True


def test_limits_of_a_filter_hold_at_the_claim(make_cloud):
    """The limits that a filter sets hold when a host claims for a boot or a move. A server beyond them goes to the
    next host, or to none."""
    cloud = make_cloud(TWO)
    cloud.scheduler.filters.append(Limiting())
    small, large = cloud.flavor(vcpus=1, ram=512), cloud.flavor(vcpus=2, ram=512)
    hosts = [cloud.host_of(cloud.boot(small)) for _ in range(4)]
    assert sorted(hosts) == ['gpu1', 'gpu1', 'gpu2', 'gpu2']
    refused = cloud.show(cloud.boot(small))
    assert refused['status'] == 'ERROR'
    assert 'vcpus 3.00 used of 2.00' in refused['fault']['message']
    cloud.request('DELETE', f'/servers/{refused["id"]}')
    cloud.settle()
    server = next(row['id'] for row in cloud.ok('GET', '/servers')['servers'])
    cloud.action(server, 'resize', {'flavorRef': large})
    assert cloud.status(server) == 'ACTIVE', 'no other host has room within the limits'
    assert any('vcpus 4.00 used of 2.00' in str(event) for event in cloud.story(server))
    cloud.assert_clean()


def test_memory_limits_of_a_filter_hold_at_the_claim(make_cloud):
    cloud = make_cloud({'gpu1': []})
    cloud.scheduler.filters.append(Limiting())
    assert cloud.status(cloud.boot(cloud.flavor(ram=1536))) == 'ACTIVE'
    assert 'memory 2048.00 MB used of 1536.00 MB' in cloud.show(cloud.boot(cloud.flavor(ram=512)))['fault']['message']

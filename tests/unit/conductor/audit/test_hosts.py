"""What the audit says of services, nodes, host mappings, aggregates and providers of hosts."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from kilonova.clients.providers import OWNER
from kilonova.conductor.audit.hosts import STARTED, HostAudit


class Providers:
    """Placement with providers, as {uuid: (name, root, traits and aggregates)}, and what consumers hold of them."""

    def __init__(self, rows: dict[str, tuple[str, str, set[str]]], held: dict[str, dict[str, Any]]) -> None:
        self.rows, self.held = rows, held

    def list_providers(self, **query: str) -> list[dict[str, Any]]:
        ((key, value),) = query.items()
        return [
            {'uuid': uuid, 'name': name, 'parent_provider_uuid': root if root != uuid else None}
            for uuid, (name, root, has) in self.rows.items()
            if (root == value if key == 'in_tree' else value in has)
        ]

    def provider_allocations(self, uuid: str) -> dict[str, Any]:
        return self.held.get(uuid, {})


def operation(kind: str, host: str, **args: Any) -> dict[str, Any]:
    """Return the row of an operation about a host."""
    return {'uuid': f'{kind} of {host}', 'kind': kind, 'host': host, 'args': json.dumps({'host': host, **args})}


def test_each_difference_between_the_records_of_hosts_is_reported_and_no_other() -> None:
    """Compare hosts that are as they should be with hosts that lack one record each."""
    wrong: list[str] = []
    placement: Any = Providers(
        {
            'n1': ('node1', 'n1', {OWNER, 'rack1'}),
            'n2': ('node2', 'n2', {OWNER, 'rack2'}),
            'n3': ('node3', 'n3', {OWNER, 'rack1'}),
            'n4': ('node4', 'n4', {OWNER}),
            'n4 gpu': ('node4_gpu', 'n4', {OWNER}),
            'n5': ('node5', 'n5', {OWNER}),
            'n5 gpu': ('node5_gpu', 'n5', {OWNER}),
            'other': ('storage', 'other', set()),
        },
        {'n4 gpu': {'c1': {'GPU': 1}}, 'n4': {'c1': {'VCPU': 2}, 'c2': {'VCPU': 3}}, 'n5 gpu': {'c3': {'GPU': 4}}},
    )
    audit = HostAudit(placement, wrong.append)
    services = [
        {'host': host, 'uuid': f's of {host}', 'age': age}
        for host, age in (('gpu1', STARTED + 1), ('gpu2', 0), ('new', STARTED), ('late', STARTED + 1))
    ]
    nodes = [
        {'uuid': f'n{number}', 'node': f'node{number}', 'host': host}
        for number, host in enumerate(('gpu1', 'gpu2', 'lone'), 1)
    ]
    leaving = operation('host_removal', 'leaving', nodes=['n5'])
    broken = {**operation('host_removal', 'unread'), 'args': '{'}
    audit.learn(
        SimpleNamespace(id=1),  # type: ignore[arg-type]
        {'services': services, 'nodes': nodes, 'operations': [leaving, broken, operation('stop', 'gone')]},
    )
    assert wrong == [
        (
            'database: node node3 of host lone has no compute service: start nova-compute there; if the host is to be '
            'removed, delete the service afterwards'
        ),
        (
            'database: the compute service of late has no node: its log says why it does not start; if the host is '
            "gone, run 'openstack compute service delete s of late'"
        ),
    ]
    wrong.clear()
    mappings = [
        {'cell_id': cell, 'host': host, 'cell_uuid': f'u{cell}', 'cell_name': name}
        for cell, host, name in (
            (1, 'gpu1', 'cell1'),
            (1, 'leaving', 'cell1'),
            (1, 'unread', 'cell1'),
            (2, 'gpu2', 'cell2'),
            (1, 'gone', None),
        )
    ]
    aggregates = [
        {'uuid': 'rack1', 'name': 'first', 'hosts': ['gpu1', 'gpu2', 'gone', 'leaving']},
        {'uuid': 'rack2', 'name': 'second', 'hosts': []},
        {'uuid': 'rack3', 'name': 'third', 'hosts': ['gpu2']},
    ]
    changes = [
        operation('mirror', 'gpu2', aggregate='rack3'),
        operation('mirror', 'gpu1', aggregate='rack2'),
        operation('stop', 'gpu2', aggregate='rack2'),
    ]
    audit.compare(mappings, aggregates, changes)
    at, sync = 'no compute service for this host: start nova-compute there, or run', 'placement sync_aggregates'
    assert wrong == [
        (
            f"database: host gpu2 is mapped to cell cell2, which has {at} 'kilonova-manage cell_v2 delete_host "
            f"--cell_uuid u2 --host gpu2'"
        ),
        (
            f"database: host gone is mapped to cell u1, which has {at} 'kilonova-manage cell_v2 delete_host "
            f"--cell_uuid u1 --host gone'"
        ),
        (
            "database: host gone of aggregate first has no compute service: run 'openstack aggregate remove host first "
            "gone'"
        ),
        f"Placement: provider n2 (node2) is not in aggregate first, its host gpu2 is: run 'kilonova-manage {sync}'",
        f"Placement: provider n3 (node3) is in aggregate first, its host lone is not: run 'kilonova-manage {sync}'",
        f"Placement: provider n2 (node2) is in aggregate second, its host gpu2 is not: run 'kilonova-manage {sync}'",
        (
            'Placement: provider n4 (node4) belongs to no compute node, and consumer c1 holds VCPU 2, GPU 1 of it, and '
            "consumer c2 holds VCPU 3 of it: stop nova-compute there if it runs; then run 'openstack resource provider "
            "delete' for its children and for the provider itself"
        ),
        (
            'Placement: provider n5 gpu (node5_gpu) of host leaving, whose service was deleted, is held by consumer c3 '
            "(GPU 4): if nothing needs the allocation, run 'openstack resource provider allocation delete c3'; then "
            'operation host_removal of leaving completes the removal'
        ),
    ]

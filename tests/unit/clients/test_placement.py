"""PlacementClient against the real Placement service."""

from __future__ import annotations

import contextlib
import threading
import uuid as uuidlib

import pytest

from kilonova import errors
from kilonova.clients import candidates, query
from kilonova.clients.placement import (
    CONCURRENT_UPDATE,
    PlacementClient,
    PlacementInvalid,
    ProviderNotFound,
    is_consumer_conflict,
    is_generation_conflict,
    same_allocations,
)
from kilonova.clients.providers import NodenameTaken, PciReportingTurnedOff
from tests.fixtures import modelled
from tests.fixtures import placement as placement_fixture
from tests.fixtures.placement import Reader

GPU = 'CUSTOM_PCI_10DE_13F1'
OWNER = {'project_id': 'demo', 'user_id': 'alice'}


def uuid() -> str:
    return str(uuidlib.uuid4())


def amount(rp, **resources):
    return {rp: {'resources': resources}}


@pytest.fixture
def gpu_host(placement):
    """A compute with two GPUs: (root uuid, {provider name: uuid})."""
    root = placement.host('gpu1', vcpus=8, pci={'gpu1_0000:08:00.0': GPU, 'gpu1_0000:88:00.0': GPU})
    return root, {row['name']: row['uuid'] for row in placement.client.list_providers(in_tree=root)}


def test_candidates_carry_allocations_and_mappings(placement, gpu_host):
    root, names = gpu_host
    found = placement.client.allocation_candidates(
        [
            ('resources', 'VCPU:2'),
            ('resources_r-0', f'{GPU}:1'),
            ('required_r-0', 'OWNER_NOVA'),
            ('root_required', 'OWNER_NOVA,!COMPUTE_STATUS_DISABLED'),
        ]
    )
    assert len(found['allocation_requests']) == 2
    for request in found['allocation_requests']:
        assert request['allocations'][root]['resources'] == {'VCPU': 2}
        assert request['mappings'][''] == [root]
        assert request['mappings']['_r-0'][0] in names.values()


def test_unknown_resource_class_is_refused_with_its_name(placement, gpu_host):
    with pytest.raises(PlacementInvalid, match='CUSTOM_NO_SUCH'):
        placement.client.allocation_candidates('resources=CUSTOM_NO_SUCH:1')


def test_claim_get_delete(placement, gpu_host):
    root, names = gpu_host
    server, device = uuid(), names['gpu1_0000:88:00.0']
    placement.client.claim(server, amount(root, VCPU=2) | amount(device, **{GPU: 1}), {'': [root]}, **OWNER)
    found = placement.client.get_allocations(server)
    assert found['project_id'] == 'demo'
    assert same_allocations(found['allocations'], amount(root, VCPU=2) | amount(device, **{GPU: 1}))
    assert placement.client.provider_allocations(device) == {server: {GPU: 1}}
    assert placement.client.provider_allocations(root) == {server: {'VCPU': 2}}
    for provider in (root, device):
        # What the audits of other tests go by.
        assert Reader().provider_allocations(provider) == placement.client.provider_allocations(provider)
        assert {row['uuid']: row['name'] for row in Reader().list_providers(in_tree=provider)} == {
            row['uuid']: row['name'] for row in placement.client.list_providers(in_tree=provider)
        }
    assert placement.client.delete_allocations(server) is True
    assert placement.client.delete_allocations(server) is False
    assert placement.client.get_allocations(server) == {'allocations': {}}
    assert placement.allocations() == {}


def test_what_is_dropped_is_compared_after_it_was_read(placement, gpu_host):
    """Rule 6: whoever may not any more drops nothing, nor what somebody wrote since."""
    root, _ = gpu_host
    server, seen = uuid(), []
    placement.client.claim(server, amount(root, VCPU=1), **OWNER)

    def lost():
        seen.append(1)
        raise errors.LeaseLost(operation='o')

    with pytest.raises(errors.LeaseLost):
        placement.client.drop(server, lost)
    assert list(placement.allocations()) == [server]

    def written_since():
        if len(seen) == 2:
            raise errors.LeaseLost(operation='o')
        seen.append(2)
        held = placement.client.get_allocations(server)
        placement.client.claim(server, amount(root, VCPU=2), **OWNER, generation=held['consumer_generation'])

    with pytest.raises(errors.LeaseLost):
        placement.client.drop(server, written_since)
    assert placement.allocations() == {server: {'gpu1': {'VCPU': 2}}}
    assert placement.client.drop(server, lambda: None) is True
    assert placement.client.drop(server, lambda: None) is False


def test_second_claim_of_a_consumer_is_a_consumer_conflict(placement, gpu_host):
    root, _ = gpu_host
    server = uuid()
    placement.client.claim(server, amount(root, VCPU=1), **OWNER)
    with pytest.raises(errors.PlacementConflict) as caught:
        placement.client.claim(server, amount(root, VCPU=1), **OWNER)
    assert is_consumer_conflict(caught.value)


def test_no_room_is_a_conflict_of_another_kind(placement, gpu_host):
    _, names = gpu_host
    device = names['gpu1_0000:08:00.0']
    placement.client.claim(uuid(), amount(device, **{GPU: 1}), **OWNER)
    placement.requests.clear()
    with pytest.raises(errors.PlacementConflict) as caught:
        placement.client.claim(uuid(), amount(device, **{GPU: 1}), **OWNER)
    assert not is_generation_conflict(caught.value)
    assert len(placement.requests) == 1


def test_the_race_for_the_last_device_has_one_winner(placement, gpu_host):
    _, names = gpu_host
    device = names['gpu1_0000:08:00.0']
    servers = [uuid() for _ in range(6)]
    outcome: dict[str, str] = {}

    def claim(server):
        try:
            placement.client.claim(server, amount(device, **{GPU: 1}), **OWNER)
            outcome[server] = 'won'
        except errors.PlacementConflict:
            outcome[server] = 'lost'

    threads = [threading.Thread(target=claim, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome.values()) == ['lost'] * 5 + ['won']
    assert list(placement.allocations()) == [server for server, how in outcome.items() if how == 'won']


@pytest.mark.parametrize('times', [2, 9])
def test_too_many_that_write_at_the_same_time_say_nothing_about_the_room(placement, placed, monkeypatch, times) -> None:
    """A stale generation is repeated; when that goes on, nobody knows whether there is room: Unanswered."""
    server, migration, old, new = placed
    root = next(iter(old))
    monkeypatch.setattr('time.sleep', lambda seconds: None)
    client = placement.client

    def conflicts(method: str, path: str) -> None:
        if method != 'GET' and left:
            left.pop()
            raise errors.PlacementConflict(detail='concurrent', placement_code=CONCURRENT_UPDATE)

    fresh = uuid()
    for act in (
        lambda: client.claim(fresh, amount(root, VCPU=1), **OWNER),
        lambda: client.delete_allocations(fresh),
        lambda: client.move_allocation(server, migration, new=new, **OWNER),
        lambda: client.move_back(server, migration),
    ):
        left = [None] * times
        monkeypatch.setattr(client, 'on_request', conflicts)
        if times > 4:
            with pytest.raises(errors.Unanswered, match=r'^Placement received too many concurrent writes: '):
                act()
            assert len(left) == times - 4
            left.clear()
        act()
        assert left == []
    assert client.get_allocations(fresh) == {'allocations': {}}
    assert holds(placement, server, old)


# Moves


@pytest.fixture
def placed(placement, gpu_host):
    """A server with one GPU on the host: (server, migration, what it has, what it shall get)."""
    root, names = gpu_host
    server, migration = uuid(), uuid()
    old = amount(root, VCPU=2) | amount(names['gpu1_0000:08:00.0'], **{GPU: 1})
    new = amount(root, VCPU=4) | amount(names['gpu1_0000:88:00.0'], **{GPU: 1})
    placement.client.claim(server, old, **OWNER)
    placement.requests.clear()
    return server, migration, old, new


def holds(placement, consumer, allocations):
    return same_allocations(placement.client.get_allocations(consumer)['allocations'], allocations)


def test_move_is_one_read_and_one_post(placement, placed):
    server, migration, old, new = placed
    assert placement.client.move_allocation(server, migration, new=new, **OWNER) == old
    assert [method for method, _ in placement.requests] == ['GET', 'POST']
    assert holds(placement, server, new)
    assert holds(placement, migration, old)


def test_move_with_what_was_read_is_one_post(placement, placed):
    server, migration, _, new = placed
    read = placement.client.get_allocations(server)
    placement.requests.clear()
    placement.client.move_allocation(server, migration, new=new, old=read, mappings={'': list(new)[:1]}, **OWNER)
    assert [method for method, _ in placement.requests] == ['POST']


def test_move_repeated_after_a_lost_reply_changes_nothing(placement, placed):
    server, migration, old, new = placed

    def lose(method, path):
        if method == 'POST':
            raise placement.broken()

    placement.after = lose
    with pytest.raises(errors.Unanswered):
        placement.client.move_allocation(server, migration, new=new, **OWNER)
    placement.after = None
    assert placement.client.move_allocation(server, migration, new=new, **OWNER) == old
    assert holds(placement, server, new)
    assert holds(placement, migration, old)


def test_move_to_the_next_alternate_keeps_the_old_allocation(placement, placed):
    server, migration, old, new = placed
    other = amount(placement.host('gpu2'), VCPU=4)
    placement.client.move_allocation(server, migration, new=new, **OWNER)
    assert placement.client.move_allocation(server, migration, new=other, **OWNER) == old
    assert holds(placement, server, other)
    assert holds(placement, migration, old)


def test_move_without_room_changes_nothing(placement, placed):
    server, migration, old, _ = placed
    root = next(iter(old))
    with pytest.raises(errors.PlacementConflict):
        placement.client.move_allocation(server, migration, new=amount(root, VCPU=7), **OWNER)
    assert holds(placement, server, old)
    assert holds(placement, migration, {})


def test_move_with_a_stale_read_reads_again(placement, placed):
    server, migration, old, new = placed
    read = placement.client.get_allocations(server)
    root = next(iter(old))
    placement.client.claim(server, amount(root, VCPU=3), generation=read['consumer_generation'], **OWNER)
    moved = placement.client.move_allocation(server, migration, new=new, old=read, **OWNER)
    assert moved == amount(root, VCPU=3)
    assert holds(placement, migration, amount(root, VCPU=3))


def test_move_back_returns_it_once(placement, placed):
    server, migration, old, new = placed
    placement.client.move_allocation(server, migration, new=new, **OWNER)
    assert placement.client.move_back(server, migration) is True
    assert holds(placement, server, old)
    assert placement.client.move_back(server, migration) is False
    assert holds(placement, server, old)
    assert list(placement.allocations()) == [server]


# Silence


def test_lost_connection_and_5xx_are_unanswered(placement, gpu_host):
    def refuse(method, path):
        raise placement.broken()

    placement.before = refuse
    placement.requests.clear()
    with pytest.raises(errors.Unanswered, match='Placement does not answer'):
        placement.client.claim(uuid(), amount(gpu_host[0], VCPU=1), **OWNER)
    assert len(placement.requests) == 1


def test_a_read_is_tried_again(placement, gpu_host):
    failures = iter([True, True, False])

    def refuse_twice(method, path):
        if next(failures):
            raise placement.broken()

    placement.before = refuse_twice
    assert len(placement.client.list_providers()) == 3


def test_requests_are_counted_by_the_hook(placement, gpu_host):
    seen = []
    placement.client.on_request = lambda method, path: seen.append((method, path))
    server = uuid()
    placement.client.delete_allocations(server)
    assert seen == [('DELETE', f'/allocations/{server}')]


# Providers


def test_sync_again_costs_one_read(placement):
    root = placement.host('gpu1', uuid='6b1b5c0e-6c0e-4a0e-8f8e-6c7d1b6b3a11', pci={'gpu1_0000:08:00.0': GPU})
    placement.requests.clear()
    placement.host('gpu1', uuid=root, pci={'gpu1_0000:08:00.0': GPU})
    assert placement.requests == [('GET', f'/resource_providers?in_tree={root}')]


def test_sync_of_a_restarted_process_writes_nothing(placement):
    root = placement.host('gpu1', pci={'gpu1_0000:08:00.0': GPU})
    placement.requests.clear()
    placement.client = PlacementClient(placement.adapter)
    placement.host('gpu1', uuid=root, pci={'gpu1_0000:08:00.0': GPU})
    assert {method for method, path in placement.requests if 'resource_providers' in path} == {'GET'}


def test_sync_writes_the_difference_after_allocations_moved_generations(placement):
    root = placement.host('gpu1', vcpus=8, pci={})
    placement.client.claim(uuid(), amount(root, VCPU=1), **OWNER)
    placement.requests.clear()
    placement.host('gpu1', vcpus=12, uuid=root, pci={})
    assert [method for method, _ in placement.requests] == ['GET', 'PUT']
    assert placement.client.get_inventory(root)[0]['VCPU']['total'] == 12


def test_sync_with_refresh_mends_what_the_host_says_and_leaves_the_rest(placement):
    root = placement.host('gpu1')
    inventory, generation = placement.client.get_inventory(root)
    given = {name: {'total': value['total'], 'max_unit': value['max_unit']} for name, value in inventory.items()}
    inventory['VCPU'] |= {'total': 3, 'reserved': 2}
    placement.client.set_inventory(root, generation, inventory)
    placement.client.sync_compute(root, 'gpu1', given, set(), refresh=True)
    found = placement.client.get_inventory(root)[0]['VCPU']
    assert (found['total'], found['reserved']) == (16, 2)


def test_sync_keeps_an_operators_traits_and_the_disabled_mark(placement):
    root = placement.host('gpu1')
    placement.client.ensure_traits(['CUSTOM_FAST'])
    traits, generation = placement.client.get_traits(root)
    placement.client.set_traits(root, generation, traits | {'CUSTOM_FAST', 'COMPUTE_ACCELERATORS'})
    placement.client.set_host_disabled(root, True)
    placement.client.set_host_disabled(root, True)
    placement.client.sync_compute(root, 'gpu1', {'VCPU': {'total': 1}}, {'HW_CPU_X86_VMX'}, refresh=True)
    assert placement.client.get_traits(root)[0] == {
        'CUSTOM_FAST',
        'COMPUTE_STATUS_DISABLED',
        'HW_CPU_X86_VMX',
        'OWNER_NOVA',
    }
    placement.client.set_host_disabled(root, False)
    assert 'COMPUTE_STATUS_DISABLED' not in placement.client.get_traits(root)[0]


def test_sync_leaves_out_a_trait_that_placement_does_not_know(placement, caplog):
    root = uuid()
    placement.client.sync_compute(root, 'gpu1', {'VCPU': {'total': 1}}, {'HW_NO_SUCH_THING'})
    assert placement.client.get_traits(root)[0] == {'OWNER_NOVA'}
    assert 'HW_NO_SUCH_THING' in caplog.text


def test_a_device_that_is_gone_loses_its_provider_unless_held(placement, gpu_host, caplog):
    root, names = gpu_host
    placement.client.claim(uuid(), amount(names['gpu1_0000:08:00.0'], **{GPU: 1}), **OWNER)
    placement.host('gpu1', vcpus=8, uuid=root, pci={})
    assert {row['name'] for row in placement.client.list_providers()} == {'gpu1', 'gpu1_0000:08:00.0'}
    assert 'gpu1_0000:08:00.0 is no longer on the host' in caplog.text


def test_parents_of_mediated_devices_come_and_go(placement):
    """An operator's traits stay on one; one that is reported no more goes, whether PCI is reported or not."""
    root, name = uuid(), 'gpu1_pci_0000_84_00_0'
    parent = {'resource_class': 'VGPU', 'total': 4, 'traits': {'OWNER_NOVA'}, 'more_traits': True}

    def sync(devices):
        return placement.client.sync_compute(
            root, 'gpu1', {'VCPU': {'total': 1}}, set(), devices, has_pci=False, refresh=True
        )

    child = sync({name: parent})[name]
    placement.client.ensure_traits(['CUSTOM_FAST'])
    traits, generation = placement.client.get_traits(child)
    placement.client.set_traits(child, generation, traits | {'CUSTOM_FAST'})
    sync({name: {**parent, 'total': 2}})
    assert placement.client.get_traits(child)[0] == {'OWNER_NOVA', 'CUSTOM_FAST'}
    assert placement.client.get_inventory(child)[0]['VGPU']['total'] == 2
    sync({})
    assert {row['name'] for row in placement.client.list_providers()} == {'gpu1'}


def test_a_class_in_use_stays_in_the_inventory(placement, gpu_host, caplog):
    root, _ = gpu_host
    placement.client.claim(uuid(), amount(root, DISK_GB=1), **OWNER)
    placement.client.sync_compute(root, 'gpu1', {'VCPU': {'total': 4}}, set(), {})
    inventory = placement.client.get_inventory(root)[0]
    assert inventory['VCPU']['total'] == 4
    assert inventory['DISK_GB']['total'] == 100
    assert 'DISK_GB' in caplog.text


def test_pci_reporting_cannot_be_turned_off(placement, gpu_host):
    with pytest.raises(PciReportingTurnedOff, match=r'gpu1_0000:08:00\.0'):
        placement.client.sync_compute(gpu_host[0], 'gpu1', {'VCPU': {'total': 4}}, set(), has_pci=False)


def test_another_compute_with_the_same_node_name_is_refused(placement, gpu_host):
    with pytest.raises(NodenameTaken, match=gpu_host[0]):
        placement.host('gpu1', pci={})


def test_delete_tree_takes_children_first(placement, gpu_host):
    """Other services report providers of more levels."""
    parent = gpu_host[0]
    for name in ('agent', 'bridge', 'another'):
        parent = placement.client.ensure_provider(name, uuid(), parent)['uuid']
    placement.client.delete_tree(gpu_host[0])
    assert placement.client.list_providers() == []
    assert placement.client.delete_provider(gpu_host[0]) is False
    with pytest.raises(ProviderNotFound):
        placement.client.get_traits(gpu_host[0])


def test_ensure_provider_finds_the_one_of_that_name(placement):
    first = placement.client.ensure_provider('gpu9', uuid())
    assert placement.client.ensure_provider('gpu9', uuid())['uuid'] == first['uuid']


def test_resource_classes_are_asked_once(placement):
    placement.client.ensure_resource_class(GPU)
    placement.client.ensure_resource_class(GPU)
    placement.client.ensure_resource_class('VCPU')
    assert placement.requests == [('PUT', f'/resource_classes/{GPU}')]


def test_members_of_aggregates(placement):
    """Only the one aggregate changes, nothing is written where nothing differs; what never was is in none."""
    root, others = placement.host('gpu1'), [uuid() for _ in range(2)]
    for aggregate in others:
        placement.client.set_member(root, aggregate, True)
    assert {row['uuid'] for row in placement.client.list_providers(member_of=others[0])} == {root}
    placement.requests.clear()
    placement.client.set_member(root, others[0], True)
    assert [method for method, _ in placement.requests] == ['GET']
    placement.client.set_member(root, others[0], False)
    assert placement.client.list_providers(member_of=others[0]) == []
    assert {row['uuid'] for row in placement.client.list_providers(member_of=others[1])} == {root}
    gone = uuid()
    placement.client.set_member(gone, others[0], False)
    with pytest.raises(ProviderNotFound):
        placement.client.set_member(gone, others[0], True)


@pytest.mark.parametrize('make', [placement_fixture.shared, modelled.shared])
def test_a_late_compute_of_another_cloud_writes_nothing(make):
    """Of these fixtures: what a client of before a reset asks is not for the cloud behind it."""
    service = make()
    late = service.client
    service.reset()
    with contextlib.suppress(errors.Unanswered):
        late.ensure_provider('gpu1', uuid())
    assert service.client.list_providers() == [] == service.requests[:-1]


def queries_of(placement, path: str) -> list[str]:
    """The query strings of the requests that were sent to this path."""
    asked = [sent.partition('?') for method, sent in placement.requests if method == 'GET']
    return [query for where, _, query in asked if where == path]


def test_names_of_many_traits_are_asked_in_portions_found_1_6(placement):
    """A name of a trait is at most 255 characters long, and a host may have any number of them."""
    names = [f'CUSTOM_TRAIT_{number}_{"A" * 100}' for number in range(178)]
    placement.requests.clear()
    assert placement.client.ensure_traits([*names, 'HW_CPU_X86_AVX', 'COMPUTE_NO_SUCH']) == {*names, 'HW_CPU_X86_AVX'}
    queries = queries_of(placement, '/traits')
    assert len(queries) > 1
    assert max(map(len, queries)) <= query.LIMIT
    assert '%2C' not in ''.join(queries)


@pytest.mark.parametrize('needed', ['in', '!in', 'both'])
def test_candidates_of_many_aggregates_are_asked_in_portions_found_1_6(placement, needed):
    """Hosts of any of many aggregates, and of none of many others, are found by portions as by one request."""
    roots = {name: placement.host(name) for name in ('gpu1', 'gpu2', 'gpu3')}
    wanted, barred = ([uuid() for _ in range(150)] for _ in range(2))
    for name, aggregate in (('gpu1', wanted[0]), ('gpu1', wanted[-1]), ('gpu2', wanted[-1])):
        placement.client.set_member(roots[name], aggregate, True)
    placement.client.set_member(roots['gpu2'], barred[-1], True)
    pairs = [('limit', '100'), ('resources', 'VCPU:1')]
    if needed != '!in':
        pairs.append(('member_of', 'in:' + ','.join(wanted)))
    if needed != 'in':
        pairs.append(('member_of', '!in:' + ','.join(barred)))
    placement.requests.clear()
    found = placement.client.allocation_candidates(pairs)
    queries = queries_of(placement, '/allocation_candidates')
    assert max(map(len, queries)) <= query.LIMIT
    hosts = {'in': ['gpu1', 'gpu2'], '!in': ['gpu1', 'gpu3'], 'both': ['gpu1']}[needed]
    assert sorted(next(iter(request['allocations'])) for request in found['allocation_requests']) == sorted(
        roots[host] for host in hosts
    )
    assert found['provider_summaries'].keys() >= {roots[host] for host in hosts}


def test_a_query_of_too_many_groups_is_not_sent(placement):
    """Groups can't be asked for in portions; a web server would close the connection, which looks like silence."""
    pairs = [('resources', 'VCPU:1'), ('group_policy', 'none')]
    for number in range(200):
        pairs += [(f'resources_{number}', 'CUSTOM_NIC:1'), (f'required_{number}', f'CUSTOM_NETWORK_{number}')]
    placement.requests.clear()
    with pytest.raises(
        candidates.QueryTooLong,
        match=r'The request has 201 groups .* would have \d+ characters; .* '
        r'at most 7500\. Ask for fewer devices, ports or accelerators',
    ):
        placement.client.allocation_candidates(pairs)
    assert placement.requests == []
    placement.client.allocation_candidates(
        [
            ('resources', 'VCPU:1'),
            *((f'resources_{number}', 'CUSTOM_NIC:1') for number in range(100)),
            ('group_policy', 'none'),
        ]
    )


def test_candidates_in_portions_are_no_more_than_the_limit_found_1_6(placement):
    aggregates = [uuid() for _ in range(150)]
    for number in range(6):
        placement.client.set_member(placement.host(f'gpu{number}'), aggregates[number * 29], True)
    found = placement.client.allocation_candidates(
        [('limit', '4'), ('member_of', 'in:' + ','.join(aggregates)), ('resources', 'VCPU:1')]
    )
    assert len(found['allocation_requests']) == 4


def test_candidates_of_many_traits_are_asked_in_portions_found_1_6(placement):
    names = [f'CUSTOM_TRAIT_{number}_{"A" * 100}' for number in range(50)]
    placement.client.ensure_traits(names)
    roots = {name: placement.host(name) for name in ('gpu1', 'gpu2')}
    for root, has in ((roots['gpu1'], names), (roots['gpu2'], names[1:])):
        _, generation = placement.client.get_traits(root)
        placement.client.set_traits(root, generation, has)
    placement.requests.clear()
    found = placement.client.allocation_candidates([('required', ','.join(names)), ('resources', 'VCPU:1')])
    assert [list(request['allocations']) for request in found['allocation_requests']] == [[roots['gpu1']]]
    assert max(map(len, queries_of(placement, '/allocation_candidates'))) <= query.LIMIT


def test_providers_of_many_aggregates_and_traits_are_asked_in_portions_found_1_6(placement):
    names = [f'CUSTOM_TRAIT_{number}_{"A" * 100}' for number in range(50)]
    placement.client.ensure_traits(names)
    roots = {name: placement.host(name) for name in ('gpu1', 'gpu2', 'gpu3')}
    aggregates = [uuid() for _ in range(150)]
    for root, has, aggregate in (
        (roots['gpu1'], names, aggregates[0]),
        (roots['gpu2'], names, aggregates[-1]),
        (roots['gpu3'], names[1:], aggregates[-1]),
    ):
        _, generation = placement.client.get_traits(root)
        placement.client.set_traits(root, generation, has)
        placement.client.set_member(root, aggregate, True)
    placement.requests.clear()
    anywhere = 'in:' + ','.join(aggregates)
    assert {row['name'] for row in placement.client.list_providers(member_of=anywhere)} == {'gpu1', 'gpu2', 'gpu3'}
    assert {row['name'] for row in placement.client.list_providers(member_of=anywhere, required=','.join(names))} == {
        'gpu1',
        'gpu2',
    }
    assert [
        placement.client.qualifies(roots[name], names, [], [aggregates, aggregates[1:]])
        for name in ('gpu1', 'gpu2', 'gpu3')
    ] == [False, True, False]
    assert max(map(len, queries_of(placement, '/resource_providers'))) <= query.LIMIT

"""NUMA end to end: dedicated CPUs, cells, pages, devices of one socket, through boots, moves and reboots of the host.

Each host has two cells of 32 CPUs (pairs of threads) and 128 GiB; of each four CPUs are shared and four are dedicated.
The GPUs lie on both cells in turn: 08, 0a (85, 87) on the first, 09, 0b (86, 88) on the second.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from lxml import etree

from kilonova.db.queries import compute_nodes, instances
from kilonova.objects import cpuset
from kilonova.virt.hardware import numa
from kilonova.virt.parts.guests import GuestFailed
from tests.fixtures.cloud import IMAGE_ID

SETS = {'compute__cpu_shared_set': '0-3,32-35', 'compute__cpu_dedicated_set': '8-11,40-43'}
ONE = {'gpu1': ['0000:08:00.0', '0000:09:00.0', '0000:0a:00.0', '0000:0b:00.0']}
SPREAD = numa.spread
DEDICATED, FIRST, SECOND = set(range(8, 12)) | set(range(40, 44)), set(range(8, 12)), set(range(40, 44))


def pinned(cloud, vcpus=2, gpus=0, **specs):
    """A flavor with dedicated CPUs."""
    return cloud.flavor(gpus=gpus, vcpus=vcpus, **{'hw:cpu_policy': 'dedicated', **specs})


def pins(cloud, server, host=None):
    """{vCPU: host CPUs} in the XML that libvirt holds."""
    tree = etree.fromstring(cloud.xml(server, host).encode())
    return {int(pin.get('vcpu')): cpuset.parse(pin.get('cpuset')) for pin in tree.findall('cputune/vcpupin')}


def cpus(cloud, server, host=None):
    return set().union(*pins(cloud, server, host).values())


def node(cloud, host):
    """The host's cells as the database has them: [(pinned CPUs, shared vCPUs, MiB, {page size: used})]."""
    with cloud.cell.read() as conn:
        row = compute_nodes.get(conn, hypervisor_hostname=host)
    return [
        (
            set(cell['pinned_cpus']),
            cell['cpu_usage'],
            cell['memory_usage'],
            {page['nova_object.data']['size_kb']: page['nova_object.data']['used'] for page in cell['mempages']},
        )
        for cell in (one['nova_object.data'] for one in json.loads(row['numa_topology'])['nova_object.data']['cells'])
    ]


def taken(cloud, host):
    return set().union(*(cell[0] for cell in node(cloud, host)))


def shown(cloud, server):
    return cloud.ok('GET', f'/servers/{server}/topology')


def check(cloud, *servers):
    """No CPU is two servers' on one host, all are dedicated ones, and the hosts count them and nothing else."""
    cloud.assert_clean()
    used = Counter((cloud.host_of(server), cpu) for server in servers for cpu in cpus(cloud, server))
    assert all(number == 1 for number in used.values())
    for host in cloud.gpus:
        assert taken(cloud, host) == {cpu for name, cpu in used if name == host} <= DEDICATED


def test_servers_get_different_cpus_until_there_are_none(make_cloud):
    """Boot pinned, a second one elsewhere, what doesn't fit is refused; deleting gives all back."""
    cloud = make_cloud(ONE, **SETS)
    two = pinned(cloud)
    first = cloud.boot(two)
    assert cloud.status(first) == 'ACTIVE', cloud.story(first)
    assert list(map(len, pins(cloud, first).values())) == [1, 1]
    assert max(cpus(cloud, first)) == min(cpus(cloud, first)) + 1
    second = cloud.boot(two)
    assert cpus(cloud, first) & FIRST and cpus(cloud, second) & SECOND
    check(cloud, first, second)
    # As the API shows it.
    body = shown(cloud, first)
    assert body['nodes'] == [
        {'memory_mb': 512, 'vcpu_set': [0, 1], 'siblings': [[0, 1]], 'host_node': 0, 'cpu_pinning': {'0': 8, '1': 9}}
    ]
    assert 'cpu_pinning' not in cloud.ok('GET', f'/servers/{first}/topology', user='bob')['nodes'][0]
    (held,) = cloud.placement.allocations()[first].values()
    assert (held.get('PCPU'), held.get('VCPU')) == (2, None)
    # Three CPUs of one cell aren't left, though four are on the host.
    assert cloud.status(cloud.boot(pinned(cloud, vcpus=3))) == 'ERROR'
    # Several at once see each other.
    many = cloud.create(two, min_count=2, max_count=2)['server']['id']
    cloud.settle()
    servers = [one['id'] for one in cloud.ok('GET', '/servers')['servers'] if cloud.status(one['id']) == 'ACTIVE']
    assert len(servers) == 4 and many in servers
    check(cloud, *servers)
    assert cloud.status(cloud.boot(two)) == 'ERROR'
    # A shared guest still fits, on shared CPUs.
    plain = cloud.boot(cloud.flavor(vcpus=2))
    assert etree.fromstring(cloud.xml(plain).encode()).find('vcpu').get('cpuset') == '0-3,32-35'
    assert shown(cloud, plain) == {'nodes': [], 'pagesize_kb': None}
    for server in [one['id'] for one in cloud.ok('GET', '/servers')['servers']]:
        assert cloud.request('DELETE', f'/servers/{server}').status_int == 204
        cloud.settle()
    cloud.assert_empty()
    assert node(cloud, 'gpu1') == [(set(), 0, 0, {4: 0})] * 2


def test_inventory_and_traits(make_cloud):
    """VCPU is the shared set, PCPU the dedicated one; threads of cores are a trait."""
    cloud = make_cloud(ONE, **SETS)
    root = cloud.computes['gpu1'].host.tracker.node.uuid
    inventory, _ = cloud.placement.client.get_inventory(root)
    assert {name: inventory[name]['total'] for name in ('VCPU', 'PCPU')} == {'VCPU': 8, 'PCPU': 8}
    assert inventory['PCPU']['allocation_ratio'] == 1.0
    assert {'HW_CPU_HYPERTHREADING', 'COMPUTE_SOCKET_PCI_NUMA_AFFINITY'} <= cloud.placement.client.get_traits(root)[0]
    shape = cloud.ok('GET', '/os-hypervisors/detail', version='2.87')['hypervisors'][0]
    assert shape['vcpus'] == 8
    server = cloud.boot(
        cloud.flavor(
            vcpus=4,
            **{'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '2-3', 'hw:emulator_threads_policy': 'isolate'},
        )
    )
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    assert pins(cloud, server) == {0: {0, 1, 2, 3}, 1: {0, 1, 2, 3}, 2: {8}, 3: {9}}
    (allocation,) = cloud.placement.allocations()[server].values()
    assert (allocation['VCPU'], allocation['PCPU']) == (2, 3)
    assert taken(cloud, 'gpu1') == {8, 9, 10}
    tree = etree.fromstring(cloud.xml(server).encode())
    assert tree.find('cputune/emulatorpin').get('cpuset') == '10'
    cloud.assert_clean()


def test_realtime_cpus_through_the_life_of_a_server(make_cloud):
    """hw:cpu_realtime: its vCPUs, and where the emulator runs, after a reboot and on a host that it is carried to."""
    cloud = make_cloud({**ONE, 'gpu2': ['0000:85:00.0']}, libvirt__realtime_scheduler_priority=5, **SETS)
    server = cloud.boot(pinned(cloud, vcpus=3, **{'hw:cpu_realtime': 'yes', 'hw:cpu_realtime_mask': '^0'}))
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)

    def check_domain(realtime):
        tree = etree.fromstring(cloud.xml(server).encode())
        found, own = tree.findall('cputune/vcpusched'), pins(cloud, server)
        assert {(one.get('scheduler'), one.get('priority')) for one in found} == {('fifo', '5')}
        assert set().union(*(cpuset.parse(one.get('vcpus')) for one in found)) == realtime
        assert cpuset.parse(tree.find('cputune/emulatorpin').get('cpuset')) == set().union(
            *(cpus for vcpu, cpus in own.items() if vcpu not in realtime)
        )
        assert [one.tag for one in tree.find('memoryBacking')] == ['nosharepages', 'locked']

    check_domain({1, 2})
    cloud.action(server, 'reboot', {'type': 'HARD'})
    check_domain({1, 2})
    source = cloud.host_of(server)
    cloud.action(
        server,
        'resize',
        {'flavorRef': pinned(cloud, vcpus=3, **{'hw:cpu_realtime': 'yes', 'hw:cpu_realtime_mask': '1'})},
    )
    assert cloud.status(server) == 'VERIFY_RESIZE' and cloud.host_of(server) != source
    check_domain({1})
    cloud.action(server, 'revertResize')
    check_domain({1, 2})
    mixed = cloud.boot(
        cloud.flavor(vcpus=3, **{'hw:cpu_policy': 'mixed', 'hw:cpu_realtime': 'yes', 'hw:cpu_realtime_mask': '2'})
    )
    (held,) = cloud.placement.allocations()[mixed].values()
    assert (held['PCPU'], held['VCPU']) == (1, 2)
    cloud.assert_clean()


def test_what_flavors_may_not_say(cloud):
    """A flavor with contradictory NUMA, CPU or page extra specs is refused with 400 when a server is created and
    when a server is resized to it."""
    server = cloud.boot(cloud.flavor())
    for specs in (
        {'hw:numa_nodes': '0'},
        {'hw:numa_nodes': '3'},
        {'hw:cpu_thread_policy': 'require'},
        {'hw:cpu_policy': 'mixed'},
        {'hw:mem_page_size': 'x'},
        {'hw:locked_memory': 'true'},
        {'hw:cpu_max_sockets': '1', 'hw:cpu_sockets': '2'},
        {'hw:cpu_realtime': 'yes'},
        {'hw:cpu_realtime': 'yes', 'hw:cpu_policy': 'dedicated'},
        {'hw:cpu_realtime': 'yes', 'hw:cpu_policy': 'dedicated', 'hw:cpu_realtime_mask': '0-1'},
    ):
        _refused(cloud, server, specs)
    assert cloud.status(server) == 'ACTIVE'


def _refused(cloud, server, specs):
    flavor = cloud.flavor(vcpus=2)
    # Before 2.86 extra specs aren't checked when they are set.
    cloud.ok('POST', f'/flavors/{flavor}/os-extra_specs', {'extra_specs': specs}, version='2.85')
    body = {'server': {'name': 's', 'flavorRef': flavor, 'imageRef': IMAGE_ID, 'networks': 'none'}}
    assert cloud.request('POST', '/servers', body).status_int == 400, specs
    cloud.action(server, 'resize', {'flavorRef': flavor}, expect=400)


def test_devices_beside_the_cpus(make_cloud):
    """Required and socket keep the GPU on the cell of the CPUs, preferred tries to."""
    cloud = make_cloud(ONE, **SETS)
    required = pinned(cloud, gpus=1, **{'hw:pci_numa_affinity_policy': 'required'})
    socket = pinned(cloud, gpus=1, **{'hw:pci_numa_affinity_policy': 'socket'})
    cell = {'0000:08:00.0': FIRST, '0000:0a:00.0': FIRST, '0000:09:00.0': SECOND, '0000:0b:00.0': SECOND}
    servers = [cloud.boot(flavor) for flavor in (required, socket, required)]
    for server in servers:
        assert cloud.status(server) == 'ACTIVE', cloud.story(server)
        (address,) = cloud.hostdevs(server)
        assert cpus(cloud, server) <= cell[address]
    check(cloud, *servers)
    # Of each cell one GPU and two CPUs are left: what insists on two GPUs finds no place, what prefers does.
    paired = next(
        server
        for server in servers
        if sum(bool(cpus(cloud, server) & FIRST) == bool(cpus(cloud, other) & FIRST) for other in servers) == 2
    )
    servers.remove(paired)
    assert cloud.request('DELETE', f'/servers/{paired}').status_int == 204
    cloud.settle()
    far = cloud.boot(pinned(cloud, vcpus=1, gpus=3, **{'hw:pci_numa_affinity_policy': 'required'}))
    assert cloud.status(far) == 'ERROR'
    both = cloud.boot(pinned(cloud, vcpus=1, gpus=2, **{'hw:pci_numa_affinity_policy': 'required'}))
    assert cloud.status(both) == 'ERROR'
    near = cloud.boot(pinned(cloud, vcpus=1, gpus=2, **{'hw:pci_numa_affinity_policy': 'preferred'}))
    assert cloud.status(near) == 'ACTIVE', cloud.story(near)
    check(cloud, *servers, near)


def test_resize_confirm_revert_migrate_and_power(cloud_of_sets):
    """CPUs follow the server: both ends hold theirs until confirm or revert, stop and start keep them."""
    cloud = cloud_of_sets
    server = cloud.boot(pinned(cloud, gpus=1))
    source, before = cloud.host_of(server), pins(cloud, server)
    kept = shown(cloud, server)
    cloud.action(server, 'resize', {'flavorRef': pinned(cloud, vcpus=4, gpus=2, **{'hw:numa_nodes': '2'})})
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    dest = cloud.host_of(server)
    assert (len(pins(cloud, server)), len(cpus(cloud, server)), len(shown(cloud, server)['nodes'])) == (4, 4, 2)
    assert (len(taken(cloud, source)), taken(cloud, dest)) == (2, cpus(cloud, server))
    cloud.assert_clean()
    cloud.action(server, 'revertResize')
    assert (cloud.status(server), cloud.host_of(server), pins(cloud, server)) == ('ACTIVE', source, before)
    assert shown(cloud, server) == kept
    check(cloud, server)
    cloud.action(server, 'resize', {'flavorRef': pinned(cloud, vcpus=4)})
    cloud.action(server, 'confirmResize')
    assert cloud.status(server) == 'ACTIVE' and len(cpus(cloud, server)) == 4
    check(cloud, server)
    cloud.action(server, 'migrate')
    cloud.action(server, 'confirmResize')
    check(cloud, server)
    now = pins(cloud, server)
    cloud.action(server, 'os-stop')
    cloud.action(server, 'os-start')
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert pins(cloud, server) == now
    # To a flavor that asks for nothing: all CPUs are free.
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(vcpus=2)})
    cloud.action(server, 'confirmResize')
    assert shown(cloud, server)['nodes'] == [] and pins(cloud, server) == {}
    assert taken(cloud, 'gpu1') | taken(cloud, 'gpu2') == set()
    cloud.assert_clean()


LIVE = {'host': None, 'block_migration': 'auto'}
# Flavors of two vCPUs or more that have a place, by what is special of them.
PLACED = {
    'dedicated': {'hw:cpu_policy': 'dedicated'},
    'cells': {'hw:cpu_policy': 'dedicated', 'hw:numa_nodes': '2'},
    'mixed': {'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '1', 'hw:emulator_threads_policy': 'isolate'},
    'realtime': {'hw:cpu_policy': 'dedicated', 'hw:cpu_realtime': 'yes', 'hw:cpu_realtime_mask': '1'},
    'share': {'hw:cpu_policy': 'dedicated', 'hw:emulator_threads_policy': 'share', 'quota:cpu_shares': '512'},
}


def place(cloud, server):
    """What libvirt holds of the server's place, as a guest of its flavor that starts there would get it."""
    tree = etree.fromstring(cloud.xml(server).encode())
    return [tree.find('vcpu').get('cpuset')] + [
        sorted((part.tag, *sorted(part.items())) for part in tree.find(name)) for name in ('cputune', 'numatune')
    ]


@pytest.mark.parametrize('kind', PLACED)
def test_a_server_that_runs_gets_a_place_on_the_host_that_it_goes_to(cloud_of_sets, kind):
    """Its CPUs there are in the XML, the row and the host's cells; those that it had are free."""
    cloud = cloud_of_sets
    server = cloud.boot(cloud.flavor(vcpus=2, **PLACED[kind]))
    source, before = cloud.host_of(server), place(cloud, server)
    there = next(host for host in cloud.gpus if host != source)
    other = cloud.boot(pinned(cloud, vcpus=4, **{'hw:numa_nodes': '2'}), availability_zone=f'nova:{there}')
    held = taken(cloud, there)
    cloud.action(server, 'os-migrateLive', LIVE)
    assert (cloud.status(server), cloud.host_of(server)) == ('ACTIVE', there), cloud.story(server)
    cloud.assert_clean()
    assert place(cloud, server) != before
    assert taken(cloud, source) == set() and held == cpus(cloud, other) < taken(cloud, there)
    own = {cpu for node in shown(cloud, server)['nodes'] for cpu in (node['cpu_pinning'] or {}).values()}
    assert own and not own & held and {cpu for of in pins(cloud, server).values() if len(of) == 1 for cpu in of} == own
    # A guest that starts anew there is at the same place.
    now = place(cloud, server)
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert place(cloud, server) == now
    counted = {host: node(cloud, host) for host in cloud.gpus}
    for host in cloud.gpus:
        cloud.crash_compute(host)
        cloud.start_compute(host)
    assert {host: node(cloud, host) for host in cloud.gpus} == counted
    for each in (server, other):
        assert cloud.request('DELETE', f'/servers/{each}').status_int == 204
    cloud.settle()
    cloud.assert_empty()
    assert taken(cloud, source) | taken(cloud, there) == set()


def test_a_server_without_a_place_is_kept_on_the_shared_cpus_of_its_host(make_cloud):
    """[compute]cpu_shared_set is each host's own."""
    cloud = make_cloud(**SETS)
    server = cloud.boot(cloud.flavor(vcpus=2))
    source = cloud.host_of(server)
    there = next(host for host in cloud.gpus if host != source)
    cloud.crash_compute(there)
    cloud.start_compute(there, compute__cpu_shared_set='4-7,36-39')
    cloud.action(server, 'os-migrateLive', LIVE)
    assert cloud.host_of(server) == there
    assert etree.fromstring(cloud.xml(server).encode()).find('vcpu').get('cpuset') == '4-7,36-39'


@pytest.mark.parametrize('where', ['place', 'prepare', 'migrate'])
def test_a_live_migration_that_fails_leaves_no_second_place(cloud_of_sets, monkeypatch, where):
    cloud = cloud_of_sets
    server = cloud.boot(pinned(cloud))
    source, before = cloud.host_of(server), pins(cloud, server)
    there = next(host for host in cloud.gpus if host != source)
    other = cloud.boot(pinned(cloud), availability_zone=f'nova:{there}')

    def fail(*args):
        raise GuestFailed(act='migrate', uuid=server, reason='boom')

    for compute in cloud.computes.values():
        monkeypatch.setattr(compute.host.driver.live_migrations, where, fail)
    cloud.action(server, 'os-migrateLive', LIVE)
    assert (cloud.status(server), cloud.host_of(server), pins(cloud, server)) == ('ACTIVE', source, before)
    check(cloud, server, other)


def test_a_host_without_a_fitting_place_refuses_a_live_migration(cloud_of_sets):
    """Of each of its cells two CPUs are free, and three are asked for: it says so."""
    cloud = cloud_of_sets
    server = cloud.boot(pinned(cloud, vcpus=3))
    source = cloud.host_of(server)
    there = next(host for host in cloud.gpus if host != source)
    other = cloud.boot(pinned(cloud, vcpus=4, **{'hw:numa_nodes': '2'}), availability_zone=f'nova:{there}')
    cloud.action(server, 'os-migrateLive', {'host': there, 'block_migration': 'auto', 'force': True}, version='2.67')
    assert (cloud.status(server), cloud.host_of(server)) == ('ACTIVE', source)
    (action,) = (
        one
        for one in cloud.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']
        if one['action'] == 'live-migration'
    )
    found = cloud.ok('GET', f'/servers/{server}/os-instance-actions/{action["request_id"]}')['instanceAction']
    assert (
        'Requested instance NUMA topology cannot fit the given host NUMA topology'
        in {one['event']: one['details'] for one in found['events']}['compute_check_can_live_migrate_destination']
    )
    check(cloud, server, other)


def test_on_one_host_both_ends_have_cpus_of_their_own(make_cloud):
    """Resize to the same host: what isn't free beside the held CPUs isn't there."""
    cloud = make_cloud(ONE, allow_resize_to_same_host=True, **SETS)
    server = cloud.boot(pinned(cloud, vcpus=4))
    before = pins(cloud, server)
    cloud.action(server, 'resize', {'flavorRef': pinned(cloud, vcpus=2, gpus=1)})
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    assert not cpus(cloud, server) & set().union(*before.values())
    assert len(taken(cloud, 'gpu1')) == 6
    cloud.crash_compute('gpu1')
    cloud.start_compute('gpu1')
    assert len(taken(cloud, 'gpu1')) == 6
    assert cloud.status(cloud.boot(pinned(cloud, vcpus=3))) == 'ERROR'
    cloud.action(server, 'revertResize')
    assert pins(cloud, server) == before
    check(cloud, server)
    cloud.action(server, 'resize', {'flavorRef': pinned(cloud, vcpus=2)})
    cloud.action(server, 'confirmResize')
    check(cloud, server)
    cloud.action(server, 'resize', {'flavorRef': pinned(cloud, vcpus=8, **{'hw:numa_nodes': '2'})})
    assert cloud.status(server) == 'ACTIVE'
    check(cloud, server)


@pytest.mark.parametrize('finish', ['confirmResize', 'revertResize'])
def test_hosts_reboot_with_pinned_servers(cloud_of_sets, finish):
    """After a reboot the same CPUs are held, on both ends of a move, and nobody else gets them."""
    cloud = cloud_of_sets
    server, other = cloud.boot(pinned(cloud)), cloud.boot(pinned(cloud, vcpus=4))
    old = (cloud.host_of(server), pins(cloud, server))
    cloud.action(server, 'resize', {'flavorRef': pinned(cloud, vcpus=3)})
    new = (cloud.host_of(server), pins(cloud, server))
    counted = {host: node(cloud, host) for host in cloud.gpus}
    for host in cloud.gpus:
        cloud.crash_compute(host)
        cloud.start_compute(host)
    assert {host: node(cloud, host) for host in cloud.gpus} == counted
    assert (cloud.status(server), pins(cloud, server)) == ('VERIFY_RESIZE', new[1])
    third = cloud.boot(pinned(cloud, vcpus=1))
    cloud.action(server, finish)
    assert (cloud.host_of(server), pins(cloud, server)) == (new if finish == 'confirmResize' else old)
    check(cloud, server, other, third)


def hosts_have(monkeypatch, pages):
    """Large pages on each cell of hosts that are looked at from now on: {size in KiB: how many}."""

    def spread(cells, sockets, cores, threads, memory_mb):
        return [
            numa.HostCell(
                cell.id,
                cell.cpus,
                cell.memory_mb,
                cell.siblings,
                cell.socket,
                {4: cell.memory_mb * 256 - sum(size // 4 * count for size, count in pages.items()), **pages},
            )
            for cell in SPREAD(cells, sockets, cores, threads, memory_mb)
        ]

    monkeypatch.setattr(numa, 'spread', spread)


def test_pages(make_cloud, monkeypatch):
    """Large pages are counted, shown and used up. A guest of two cells has memory on both."""
    hosts_have(monkeypatch, {2048: 1024})
    cloud = make_cloud(ONE, reserved_huge_pages=[{'node': '0', 'size': '2MB', 'count': '512'}])
    large = cloud.flavor(
        vcpus=2, ram=2048, **{'hw:mem_page_size': 'large', 'hw:numa_nodes': '2', 'hw:locked_memory': 'true'}
    )
    server = cloud.boot(large)
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    assert shown(cloud, server)['pagesize_kb'] == 2048
    assert [cell[3][2048] for cell in node(cloud, 'gpu1')] == [512, 512]
    tree = etree.fromstring(cloud.xml(server).encode())
    assert [(page.get('size'), page.get('nodeset')) for page in tree.findall('memoryBacking/hugepages/page')] == [
        ('2048', '0'),
        ('2048', '1'),
    ]
    assert tree.find('memoryBacking/locked') is not None
    assert [cell.get('memAccess') for cell in tree.findall('cpu/numa/cell')] == ['shared', 'shared']
    assert [memnode.get('nodeset') for memnode in tree.findall('numatune/memnode')] == ['0', '1']
    assert cloud.status(cloud.boot(large)) == 'ERROR'
    one = cloud.boot(cloud.flavor(vcpus=1, ram=1024, **{'hw:mem_page_size': '2048'}))
    assert [cell['host_node'] for cell in shown(cloud, one)['nodes']] == [1]
    assert cloud.status(cloud.boot(cloud.flavor(vcpus=1, ram=512, **{'hw:mem_page_size': '1GB'}))) == 'ERROR'
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(vcpus=2, ram=1024)}, expect=None)
    assert cloud.status(server) == 'ACTIVE'  # no other host, and not to its own
    cloud.assert_clean()


def test_memory_that_is_in_use_keeps_the_size_of_its_pages(make_cloud, monkeypatch):
    """A flavor that takes any large pages goes live only to where there are those that the guest has."""
    hosts_have(monkeypatch, {2048: 1024})
    cloud = make_cloud()
    server = cloud.boot(cloud.flavor(vcpus=2, ram=1024, **{'hw:mem_page_size': 'large'}))
    source = cloud.host_of(server)
    there = next(host for host in cloud.gpus if host != source)
    for pages, end in (({1048576: 2}, source), ({1048576: 2, 2048: 512}, there)):
        hosts_have(monkeypatch, pages)
        cloud.crash_compute(there)
        cloud.start_compute(there)
        cloud.action(server, 'os-migrateLive', LIVE)
        assert (cloud.status(server), cloud.host_of(server)) == ('ACTIVE', end), cloud.story(server)
        assert shown(cloud, server)['pagesize_kb'] == 2048
        cloud.assert_clean()
    assert [cell[3] for cell in node(cloud, there)] in (
        [{4: 0, 2048: 512, 1048576: 0}, {4: 0, 2048: 0, 1048576: 0}],
        [{4: 0, 2048: 0, 1048576: 0}, {4: 0, 2048: 512, 1048576: 0}],
    )


def test_a_host_that_filled_up_meanwhile_refuses(cloud_of_sets):
    """The claim looks again with the filter's own code: the next host takes the server."""
    cloud = cloud_of_sets
    from kilonova.scheduler.filters.numa_topology import NUMATopologyFilter

    fill = [cloud.boot(pinned(cloud, vcpus=4)) for _ in range(3)]
    full = next(host for host in cloud.gpus if len(taken(cloud, host)) == 8)
    one = next(one for one in cloud.scheduler._filters if isinstance(one, NUMATopologyFilter))
    cloud.scheduler._filters.remove(one)
    try:
        # Placement counts CPUs, not cells: three are nowhere on one cell of the host with one server.
        server = cloud.boot(pinned(cloud, vcpus=3, **{'hw:emulator_threads_policy': 'isolate'}))
        assert cloud.status(server) == 'ACTIVE' and cloud.host_of(server) != full
        refused = cloud.boot(pinned(cloud, vcpus=1))
    finally:
        cloud.scheduler._filters.append(one)
    assert cloud.status(refused) == 'ERROR'
    cloud.assert_clean()
    assert len(fill) == 3


def test_hosts_that_report_no_dedicated_cpus(cloud):
    """If no host reports PCPU, the scheduler asks Placement again with VCPU, unless disable_fallback_pcpu_query is
    set. Such a host takes no guest with dedicated CPUs in either case."""
    asked = []
    real = cloud.placement.client.allocation_candidates

    def candidates(query):
        asked.append(dict(query)['resources'])
        return real(query)

    cloud.scheduler._placement.allocation_candidates = candidates
    try:
        assert cloud.status(cloud.boot(pinned(cloud))) == 'ERROR'
        assert asked == ['DISK_GB:1,MEMORY_MB:512,PCPU:2', 'DISK_GB:1,MEMORY_MB:512,VCPU:2']
        asked.clear()
        cloud.conf.set_override('disable_fallback_pcpu_query', True, 'workarounds')
        assert cloud.status(cloud.boot(pinned(cloud))) == 'ERROR'
        assert asked == ['DISK_GB:1,MEMORY_MB:512,PCPU:2']
    finally:
        del cloud.scheduler._placement.allocation_candidates


@pytest.fixture
def cloud_of_sets(make_cloud):
    """Two hosts with four GPUs each."""
    return make_cloud(**SETS)


def test_the_place_is_in_the_servers_row(cloud_of_sets):
    """The NUMA topology of a server is stored as a NUMATopology envelope in instance_extra and in the migration
    context."""
    cloud = cloud_of_sets
    server = cloud.boot(pinned(cloud))
    cloud.action(server, 'resize', {'flavorRef': pinned(cloud, vcpus=4)})
    with cloud.cell.read() as conn:
        row = instances.get(conn, server)
    topology = json.loads(row['extra_numa_topology'])
    assert (topology['nova_object.name'], topology['nova_object.version']) == ('InstanceNUMATopology', '1.3')
    context = json.loads(row['extra_migration_context'])['nova_object.data']
    assert context['new_numa_topology']['nova_object.data']['cells'] == topology['nova_object.data']['cells']
    (old,) = context['old_numa_topology']['nova_object.data']['cells']
    assert len(old['nova_object.data']['cpu_pinning_raw']) == 2


def test_cells_are_overcommitted_as_initial_ratios_say(make_cloud):
    """NUMA cells are overcommitted by the initial allocation ratios if the configuration sets none.

    The ratios are in the host's row. Six guests of 32 vCPUs fit on two cells of 32 CPUs.
    """
    cloud = make_cloud(ONE)
    with cloud.cell.read() as conn:
        row = compute_nodes.get(conn, hypervisor_hostname='gpu1')
    assert (row['cpu_allocation_ratio'], row['ram_allocation_ratio']) == (4.0, 1.0)
    flavor = cloud.flavor(vcpus=32, **{'hw:numa_nodes': '1'})
    servers = [cloud.boot(flavor) for _ in range(6)]
    assert {cell[1] for cell in node(cloud, 'gpu1')} == {96}
    assert len(set(servers)) == 6

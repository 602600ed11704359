"""Server groups through the whole cloud: together, apart, rather so, and what moves and races may do about it."""

from __future__ import annotations

import threading

import pytest

from kilonova.rpc.scheduler import Scheduler
from kilonova.scheduler.manager import SchedulerManager

THREE = {'gpu1': [], 'gpu2': [], 'gpu3': []}


def group(cloud, policy, **rules):
    body = {'name': 'g', 'policy': policy, **({'rules': rules} if rules else {})}
    return cloud.ok('POST', '/os-server-groups', {'server_group': body})['server_group']['id']


def ask(cloud, flavor, name, count=1):
    """Create servers of a group, without waiting; the status."""
    return cloud.request(
        'POST',
        '/servers',
        {
            'server': {
                'name': 's',
                'flavorRef': flavor,
                'imageRef': '70a599e0-31e7-49b7-b260-868f441e862b',
                'networks': 'none',
                'min_count': count,
                'max_count': count,
            },
            'os:scheduler_hints': {'group': name},
        },
    )


def boot(cloud, flavor, name, count=1):
    """Create servers of a group and wait for their end; their ids."""
    before = set(members(cloud, name))
    response = ask(cloud, flavor, name, count)
    assert response.status_int == 202, response.text
    cloud.settle()
    return [server for server in members(cloud, name) if server not in before]


def members(cloud, name):
    return cloud.ok('GET', f'/os-server-groups/{name}')['server_group']['members']


def hosts(cloud, servers):
    return [cloud.host_of(server) for server in servers]


def fault(cloud, server):
    return cloud.show(server)['fault']['message']


def test_apart(make_cloud):
    """anti-affinity: at create, for several at once, beside a move, and after a delete."""
    cloud = make_cloud(THREE)
    flavor, spread = cloud.flavor(), group(cloud, 'anti-affinity')
    first, second = boot(cloud, flavor, spread, 2)
    assert len(set(hosts(cloud, [first, second]))) == 2
    assert cloud.show(first)['server_groups'] == [spread]
    # The move can only go to the third host; until it ends it holds both of its hosts.
    cloud.action(first, 'migrate')
    free = {'gpu1', 'gpu2', 'gpu3'} - set(hosts(cloud, [second]))
    assert cloud.status(first) == 'VERIFY_RESIZE' and cloud.host_of(first) in free
    (refused,) = boot(cloud, flavor, spread)
    assert cloud.status(refused) == 'ERROR' and fault(cloud, refused).startswith('No valid host was found.')
    # A server in ERROR that is nowhere is a member and in nobody's way; deleted ones are no members.
    cloud.request('DELETE', f'/servers/{refused}')
    cloud.settle()
    assert members(cloud, spread) == [first, second]
    cloud.action(first, 'revertResize')
    (third,) = boot(cloud, flavor, spread)
    assert len(set(hosts(cloud, [first, second, third]))) == 3
    # No host is left to go to: the server stays as it was.
    cloud.action(second, 'migrate')
    assert cloud.status(second) == 'ACTIVE' and len(set(hosts(cloud, [first, second, third]))) == 3
    cloud.assert_clean()


def test_so_many_on_a_host(cloud):
    """max_server_per_host; a group that is gone binds nobody."""
    flavor, pairs = cloud.flavor(), group(cloud, 'anti-affinity', max_server_per_host=2)
    five = boot(cloud, flavor, pairs, 5)
    assert {fault(cloud, server) for server in five} == {
        'No valid host was found. 2 hosts considered: 2 could take one of the servers, not all of them.'
    }
    servers = boot(cloud, flavor, pairs, 4)
    assert sorted(hosts(cloud, servers)) == ['gpu1', 'gpu1', 'gpu2', 'gpu2']
    (fifth,) = boot(cloud, flavor, pairs)
    assert cloud.status(fifth) == 'ERROR'
    assert cloud.request('DELETE', f'/os-server-groups/{pairs}').status_int == 204
    assert cloud.show(servers[0])['server_groups'] == []
    assert ask(cloud, flavor, pairs).status_int == 400
    cloud.action(servers[0], 'migrate')
    assert cloud.status(servers[0]) == 'VERIFY_RESIZE'
    cloud.assert_clean()


def test_together(make_cloud):
    """affinity: a lone server may move, and others wait for the end of its move; then they follow it, and stay."""
    cloud = make_cloud(THREE)
    flavor, near = cloud.flavor(), group(cloud, 'affinity')
    (first,) = boot(cloud, flavor, near)
    home = cloud.host_of(first)
    cloud.action(first, 'migrate')
    assert cloud.status(first) == 'VERIFY_RESIZE' and cloud.host_of(first) != home
    (early,) = boot(cloud, flavor, near)
    assert cloud.status(early) == 'ERROR' and 'are being moved: confirm or revert' in fault(cloud, early)
    cloud.request('DELETE', f'/servers/{early}')
    cloud.action(first, 'confirmResize')
    others = boot(cloud, flavor, near, 2)
    assert set(hosts(cloud, others)) == {cloud.host_of(first)}
    cloud.action(first, 'migrate')
    assert cloud.status(first) == 'ACTIVE' and set(hosts(cloud, [first, *others])) == {cloud.host_of(first)}
    cloud.assert_clean()


@pytest.mark.parametrize(('policy', 'different'), [('soft-affinity', 1), ('soft-anti-affinity', 3)])
def test_wishes(make_cloud, policy, different):
    """soft-*: a wish that weighs; what can't be had doesn't fail."""
    # Other weighers spread servers over equal hosts.
    cloud = make_cloud(
        THREE,
        filter_scheduler__soft_affinity_weight_multiplier=100.0,
        filter_scheduler__soft_anti_affinity_weight_multiplier=100.0,
    )
    flavor, wish = cloud.flavor(), group(cloud, policy)
    servers = boot(cloud, flavor, wish, 2) + boot(cloud, flavor, wish)
    assert len(set(hosts(cloud, servers))) == different
    (fourth,) = boot(cloud, flavor, wish)
    assert cloud.status(fourth) == 'ACTIVE'


@pytest.mark.parametrize(
    ('policy', 'missing'),
    [
        ('affinity', 'ServerGroupAffinityFilter'),
        ('anti-affinity', 'ServerGroupAntiAffinityFilter'),
        ('soft-affinity', 'ServerGroupSoftAffinityWeigher'),
    ],
)
def test_a_policy_that_nobody_looks_at(make_cloud, policy, missing):
    cloud = make_cloud(
        {'gpu1': []},
        filter_scheduler__enabled_filters=['ComputeFilter'],
        filter_scheduler__weight_classes=['RAMWeigher'],
    )
    (server,) = boot(cloud, cloud.flavor(), group(cloud, policy))
    assert cloud.status(server) == 'ERROR'
    assert fault(cloud, server) == (
        f'No valid host was found. ServerGroup policy is not supported: {missing} not configured'
    )


# --- races -----------------------------------------------------------------------------------------------------------
class Crossing:
    """Two selects of two schedulers that don't know of one another: no build begins before both have chosen."""

    def __init__(self, cloud):
        self.cloud, self.chosen = cloud, threading.Semaphore(0)
        self.both, self.turn, self.sent = threading.Event(), threading.Lock(), []
        self.schedulers = [
            cloud.scheduler,
            SchedulerManager(
                cloud.conf, databases=cloud.databases, cells=cloud.cells, placement=cloud.placement.client
            ),
        ]
        cloud.on_message = self

    def __call__(self, kind, topic, server, method, args, deliver):
        if method == 'select_destinations' and self.schedulers:
            # In turn, or both ask the one that was registered last.
            with self.turn:
                scheduler = self.schedulers.pop(0)
                self.cloud.transport.register('scheduler', 'controller', [(Scheduler, scheduler)])
                answer = deliver()
                if not self.schedulers:
                    self.both.set()
                return answer
        if method == 'build_and_run_instance':
            assert self.both.wait(30)
            self.sent.append((args['order'].instance.uuid, server))
        return deliver()


@pytest.mark.parametrize(
    ('policy', 'workaround', 'different'),
    [('anti-affinity', False, 2), ('anti-affinity', True, 1), ('affinity', False, 1)],
)
def test_two_schedulers_choose_at_the_same_time(make_cloud, policy, workaround, different):
    """When two schedulers choose at the same time for two servers of one group, the claim checks the policy again and
    the second server goes to an alternate, unless disable_group_policy_check_upcall is set."""
    cloud = make_cloud({'gpu1': [], 'gpu2': []}, workarounds__disable_group_policy_check_upcall=workaround)
    flavor, name = cloud.flavor(), group(cloud, policy)
    crossing = Crossing(cloud)
    for scheduler, multiplier in zip(crossing.schedulers, (1.0, -1.0 if policy == 'affinity' else 1.0), strict=True):
        scheduler._conf = cloud.make_conf('controller')
        for weigher in scheduler._weighers:
            weigher.conf = scheduler._conf
        # Of two hosts that differ in nothing else one takes the newer, one the older.
        scheduler._conf.set_override('hypervisor_version_weight_multiplier', multiplier, 'filter_scheduler')
    if policy == 'affinity':
        newer(cloud, 'gpu2')
    assert [ask(cloud, flavor, name).status_int for _ in range(2)] == [202, 202]
    cloud.settle()
    servers = members(cloud, name)
    assert {cloud.status(server) for server in servers} == {'ACTIVE'}
    assert len(set(hosts(cloud, servers))) == different
    first_choices = {server for _, server in crossing.sent[:2]}
    assert len(first_choices) == (2 if policy == 'affinity' else 1)
    told = [
        text
        for server in servers
        for text in events(cloud, server)
        if text.endswith('instance group policy was violated.')
    ]
    assert len(told) == (0 if workaround else 1)
    cloud.on_message = None
    cloud.assert_clean()


def newer(cloud, host):
    """A host whose hypervisor is newer than the others'."""
    with cloud.cell.write() as conn:
        conn.exec_driver_sql(
            f"UPDATE compute_nodes SET hypervisor_version = hypervisor_version + 1 WHERE host = '{host}'"
        )


def events(cloud, server):
    return [str(part) for _, _, told in cloud.story(server) for event in told for part in event]


def test_a_move_and_a_create_that_cross(make_cloud):
    """When a new server of an anti-affinity group is claimed on the host to which another member moves, the move
    takes its next alternate."""
    cloud = make_cloud(THREE)
    flavor, spread = cloud.flavor(), group(cloud, 'anti-affinity')
    (mover,) = boot(cloud, flavor, spread)
    stolen = []

    def steal(kind, topic, server, method, args, deliver):
        if method == 'prep_resize' and not stolen:
            stolen.append(server)
            cloud.on_message = None
            # By a host that is forced: nobody's filters look at the group.
            force(cloud, flavor, spread, server)
        return deliver()

    cloud.on_message = steal
    cloud.action(mover, 'migrate')
    assert cloud.status(mover) == 'VERIFY_RESIZE'
    assert stolen and cloud.host_of(mover) not in stolen
    assert len(set(hosts(cloud, members(cloud, spread)))) == 2
    cloud.assert_clean()


@pytest.mark.parametrize('thefts', [2, 3])
def test_a_create_that_others_overtake_again_and_again(make_cloud, thefts):
    """Hosts that other members of the group claimed first do not count as attempts. The create goes on until a host
    takes it or none is left, and the fault then says so."""
    cloud = make_cloud(THREE, scheduler__max_attempts=2)
    flavor, spread = cloud.flavor(), group(cloud, 'anti-affinity')
    stolen = []

    def steal(kind, topic, server, method, args, deliver):
        if method == 'build_and_run_instance' and len(stolen) < thefts:
            stolen.append(server)
            cloud.on_message = None
            force(cloud, flavor, spread, server)
            cloud.on_message = steal
        return deliver()

    cloud.on_message = steal
    response = ask(cloud, flavor, spread)
    assert response.status_int == 202, response.text
    cloud.settle()
    (server,) = (server for server in members(cloud, spread) if cloud.show(server)['name'] == 's')
    assert len(stolen) == len(set(stolen)) == thefts
    if thefts < len(THREE):
        assert cloud.status(server) == 'ACTIVE' and cloud.host_of(server) not in stolen
    else:
        assert fault(cloud, server) == (
            'No valid host was found. 3 hosts considered: 3 have too many servers of the server group.'
        )
    cloud.assert_clean()


def force(cloud, flavor, name, host):
    """A server of the group on this host, past all filters; it is there when this returns."""
    body = {
        'name': 'thief',
        'flavorRef': flavor,
        'imageRef': '70a599e0-31e7-49b7-b260-868f441e862b',
        'networks': 'none',
        'availability_zone': f'nova:{host}',
    }
    thief = cloud.ok('POST', '/servers', {'server': body, 'os:scheduler_hints': {'group': name}})
    wait_for(cloud, thief['server']['id'])


def wait_for(cloud, server):
    done = threading.Event()
    for _ in range(300):
        if cloud.status(server) == 'ACTIVE':
            return
        done.wait(0.05)
    raise AssertionError(cloud.show(server))


def test_quotas_of_groups(make_cloud):
    """Too many servers in a group, or too many groups, are refused. Requests at the same time cannot exceed the
    quota together."""
    cloud = make_cloud({'gpu1': []}, quota__server_groups=1, quota__server_group_members=2)
    flavor, only = cloud.flavor(), group(cloud, 'soft-affinity')
    response = cloud.request('POST', '/os-server-groups', {'server_group': {'name': 'g', 'policy': 'affinity'}})
    assert (response.status_int, response.json['forbidden']['message']) == (
        403,
        'Quota exceeded, too many server groups.',
    )
    response = ask(cloud, flavor, only, 3)
    assert (response.status_int, response.json['forbidden']['message']) == (
        403,
        'Quota exceeded, too many servers in group',
    )
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(ask(cloud, flavor, only).status_int)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cloud.settle()
    assert sorted(answers) == [202, 202, 403, 403]
    assert len(members(cloud, only)) == 2
    cloud.assert_clean()

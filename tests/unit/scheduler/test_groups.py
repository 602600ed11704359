"""Server groups: what a select knows of them, and both forms of the filters and weighers that ask."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kilonova import errors, objects
from kilonova.scheduler import groups
from kilonova.scheduler.filters.affinity import ServerGroupAffinityFilter, ServerGroupAntiAffinityFilter
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.reservations import Reservation
from kilonova.scheduler.hosts.table import Table
from kilonova.scheduler.weighers.groups import ServerGroupSoftAffinityWeigher, ServerGroupSoftAntiAffinityWeigher
from tests.unit.scheduler.builders import CELL, conf, node, spec, uuid

CONF = conf()
HOSTS = ('host1', 'host2', 'host3')
PLUGINS = (
    ServerGroupAffinityFilter(),
    ServerGroupAntiAffinityFilter(),
    ServerGroupSoftAffinityWeigher(),
    ServerGroupSoftAntiAffinityWeigher(),
)


class Known:
    """What the databases say: a group's row and members, and where servers are."""

    def __init__(self, policy='anti-affinity', members=(), places=None, rules=None):
        self.row = {'policy': policy, 'rules': rules or {}}
        self.members, self.places, self.table = list(members), places or {}, Table(4)
        self.servers = self
        for number, host in enumerate(HOSTS):
            row = node(host)
            self.table.services.put(CELL, {**row['service'], 'id': number, 'deleted': 0})
            self.table.put(
                CELL,
                {
                    **{key: value for key, value in row.items() if key != 'service'},
                    'id': number,
                    'deleted': 0,
                    'created_at': None,
                    'deleted_at': None,
                },
            )

    def group(self, name):
        return None if self.row is None else (self.row, self.members)

    def places_of(self, servers):
        return {server: set(hosts) for server, hosts in self.places.items() if server in servers}


def request(policy='anti-affinity', own='own', **fields):
    group = objects.InstanceGroup(uuid=uuid('group'), policy=policy, _rules={}, **fields)
    return spec(instance_group=group, instance_uuid=uuid(own))


def prepared(known, own='own', uuids=None, plugins=PLUGINS):
    asked = request(known.row['policy'] if known.row else 'affinity', own)
    groups.prepare(asked, uuids or [uuid(own)], known, plugins[:2], plugins[2:])
    return asked


def test_members_and_hosts_are_read_anew():
    one, two = uuid('1'), uuid('2')
    asked = prepared(Known(members=[one, two], places={one: {'host1', 'host2'}}, rules={'max_server_per_host': '2'}))
    group = asked.instance_group
    assert (group.members, group.hosts, group.rules) == ([one, two], ['host1', 'host2'], {'max_server_per_host': 2})
    assert group.places == {one: {'host1', 'host2'}}


@pytest.mark.parametrize('policy', groups.NEEDED)
def test_the_policy_is_read_anew(policy):
    """A stored request has only the uuid of its group."""
    asked = spec(instance_group=objects.InstanceGroup(uuid=uuid('group')), instance_uuid=uuid('own'))
    groups.prepare(asked, [uuid('own')], Known(policy=policy), PLUGINS[:2], PLUGINS[2:])
    assert asked.instance_group.policy == policy


@pytest.mark.parametrize('policy', groups.NEEDED)
def test_a_policy_whose_plugin_is_not_enabled_is_refused(policy):
    others = [one for one in PLUGINS if type(one).__name__ != groups.NEEDED[policy]]
    with pytest.raises(errors.NoValidHost, match=f'{groups.NEEDED[policy]} not configured'):
        prepared(Known(policy=policy), plugins=others + others)


def test_what_was_just_sent_to_a_host_is_there():
    known = Known(members=[uuid('1'), uuid('own')])
    for name in ('1', 'own'):
        known.table.reservations.take(uuid(name), Reservation(known.table.places.of(uuid('host2')), 1, 1, 1, {}))
    assert prepared(known).instance_group.places == {uuid('1'): {'host2'}}


def test_a_group_that_is_gone_is_forgotten():
    known = Known()
    known.row = None
    assert prepared(known).instance_group is None


def test_affinity_waits_for_moves():
    """Where a lone server will be isn't known; beside one that stays it doesn't matter, and its own move it may do."""
    one, two = uuid('1'), uuid('2')
    with pytest.raises(errors.NoValidHost, match='are being moved: confirm or revert'):
        prepared(Known('affinity', [one], {one: {'host1', 'host2'}}))
    both = prepared(Known('affinity', [one, two], {one: {'host1', 'host2'}, two: {'host1'}}))
    assert both.instance_group.hosts == ['host1']
    alone = prepared(Known('affinity', [uuid('own')], {uuid('own'): {'host1', 'host2'}}))
    assert alone.instance_group.hosts == []


@pytest.mark.parametrize(
    ('policy', 'missing'), [('affinity', 0), ('anti-affinity', 1), ('soft-affinity', 2), ('soft-anti-affinity', 3)]
)
def test_a_policy_needs_its_plugin(policy, missing):
    left = [plugin for number, plugin in enumerate(PLUGINS) if number != missing]
    with pytest.raises(errors.NoValidHost, match=f'{type(PLUGINS[missing]).__name__} not configured'):
        prepared(Known(policy), plugins=left)
    assert prepared(Known(policy)).instance_group.policy == policy


def test_a_subclass_of_a_plugin_does():
    class Mine(ServerGroupAffinityFilter):
        pass

    assert prepared(Known('affinity'), plugins=[Mine()]).instance_group.places == {}


def test_put_is_what_the_next_server_sees():
    group = request().instance_group
    group.places = {}
    group.put('a', 'host1')
    group.put('b', 'host1')
    assert (group.members, group.hosts, group.count('host1'), group.count('host1', but='a')) == (
        ['a', 'b'],
        ['host1', 'host1'],
        2,
        1,
    )


PLACES = st.dictionaries(
    st.sampled_from([uuid(name) for name in ('own', '1', '2', '3', '4')]),
    st.sets(st.sampled_from((*HOSTS, 'elsewhere')), min_size=1, max_size=2),
)


@settings(max_examples=80, deadline=None)
@given(PLACES, st.integers(1, 3), st.booleans(), st.sampled_from(sorted(groups.NEEDED)))
def test_where_servers_of_a_group_are_decides(places, most, looked, policy):
    """With places as ``prepare`` finds them, and without, by the servers that hosts have."""
    known = Known()
    asked = request(policy, members=sorted(places), hosts=sorted({host for hosts in places.values() for host in hosts}))
    asked.instance_group._rules = {'max_server_per_host': str(most)}
    where = {server: hosts if looked else {min(hosts)} for server, hosts in places.items()}
    if looked:
        asked.instance_group.places = places
    look = HostArrays(
        SimpleNamespace(
            table=known.table,
            servers=SimpleNamespace(
                hosts_of=lambda uuids: {server: (min(where[server]), None) for server in uuids if server in where}
            ),
        )
    )
    for host in HOSTS:
        others = sum(host in hosts for server, hosts in where.items() if server != uuid('own'))
        expected = [
            policy != 'affinity' or not places or any(host in hosts for hosts in places.values()),
            policy != 'anti-affinity' or host in where.get(uuid('own'), ()) or others < most,
            others if policy == 'soft-affinity' else 0,
            -others if policy == 'soft-anti-affinity' else 0,
        ]
        place = known.table.places.of(uuid(host))
        masks = [plugin.mask(look, asked) for plugin in PLUGINS[:2]]
        found = [mask is None or bool(mask[place]) for mask in masks]
        assert [*found, *(plugin.values(look, asked)[place] for plugin in PLUGINS[2:])] == expected, host


@pytest.mark.parametrize(
    ('policy', 'plugin', 'expected'),
    [
        ('soft-affinity', 2, [2, 1, 0]),
        ('soft-anti-affinity', 3, [-2, -1, 0]),
        ('affinity', 2, [0, 0, 0]),
        ('soft-affinity', 3, [0, 0, 0]),
    ],
)
def test_wishes_count_the_others(policy, plugin, expected):
    asked = request(policy)
    asked.instance_group.places = {uuid('1'): {'host1'}, uuid('2'): {'host1', 'host2'}, uuid('own'): {'host3'}}
    known = Known()
    values = PLUGINS[plugin].values(HostArrays(SimpleNamespace(table=known.table)), asked)
    assert [values[known.table.places.of(uuid(host))] for host in HOSTS] == expected

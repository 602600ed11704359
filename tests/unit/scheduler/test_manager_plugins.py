"""Other people's filters and weighers in a whole select, both ways that hosts are chosen."""

from __future__ import annotations

import logging

import pytest
import sqlalchemy as sa

from kilonova import errors
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.models.cell import ComputeNode, InstanceSystemMetadata
from kilonova.scheduler import filters, weighers
from kilonova.scheduler.manager import SchedulerManager
from kilonova.scheduler.plugins import guard
from kilonova.scheduler.plugins import loading as plugins
from kilonova.scheduler.weighers.images import ImagePropertiesWeigher
from tests.unit.scheduler.builders import conf, spec, uuid

CTXT = RequestContext(user_id='alice', project_id='demo', overwrite=False)
# With a claim the scheduler chooses from its own view, without one from Placement's candidates.
BOTH_WAYS = pytest.mark.parametrize('claim', [True, False], ids=['direct', 'candidates'])


def select(manager, request, *uuids, **how):
    found = manager.select_destinations(CTXT, request, list(uuids or (uuid('s1'),)), **how)
    return [[selection.service_host for selection in one] for one in found]


class Fussy(filters.BaseHostFilter):
    """Raises for one host."""

    def host_passes(self, host_state, spec_obj):
        if host_state.host == 'gpu1':
            raise LookupError('what is gpu1?')
        return True


class FussyWeigher(weighers.BaseHostWeigher):
    def _weigh_object(self, host_state, weight_properties):
        if host_state.host == 'gpu1':
            raise LookupError('what does gpu1 weigh?')
        return 1.0


class BadArrays(filters.BaseHostFilter, weighers.BaseHostWeigher):
    """Forms for all hosts at once that raise; the others work."""

    def host_passes(self, host_state, spec_obj):
        return host_state.host == 'gpu2'

    def mask(self, arrays, spec_obj):
        raise IndexError('no such column')

    def _weigh_object(self, host_state, weight_properties):
        return 1.0

    def values(self, arrays, weight_properties):
        raise IndexError('no such column')


class Always(filters.BaseHostFilter):
    def host_passes(self, host_state, spec_obj):
        raise RuntimeError('always')


class Counts(filters.BaseHostFilter):
    def host_passes(self, host_state, spec_obj):
        return len(host_state.instances) < 10


@BOTH_WAYS
@pytest.mark.parametrize(('kind', 'cls'), [('_filters', Fussy), ('_weighers', FussyWeigher)])
def test_a_plugin_that_raises_costs_the_host(rig, kind, cls, claim, caplog):
    for name in ('gpu1', 'gpu2', 'gpu3'):
        rig.host(name)
    manager = rig.manager()
    getattr(manager, kind).append(cls())
    for number in range(2):
        caplog.clear()
        found = select(manager, spec(), uuid(f's{number}'), claim=claim)
        assert sorted(found[0]) == ['gpu2', 'gpu3']
        lines = [record for record in caplog.records if 'raised' in record.getMessage()]
        assert len(lines) == 1 and cls.__name__ in lines[0].getMessage()


def test_forms_for_all_hosts_that_raise_are_left_for_the_other_ones(rig, caplog):
    rig.host('gpu1')
    rig.host('gpu2')
    manager = rig.manager()
    manager._filters.append(BadArrays())
    manager._weighers.append(BadArrays())
    rig.placement.requests.clear()
    assert select(manager, spec()) == [['gpu2']]
    assert not [path for _, path in rig.placement.requests if path.startswith('/allocation_candidates')]
    assert 'no such column' in caplog.text


@BOTH_WAYS
def test_a_filter_that_always_raises_leaves_a_scheduler_that_works(rig, claim, caplog):
    caplog.set_level(logging.INFO)
    rig.host('gpu1')
    manager = rig.manager()
    manager._filters.append(Always())
    before = guard.FAILED['Always']
    with pytest.raises(errors.NoValidHost):
        select(manager, spec(), claim=claim)
    assert guard.FAILED['Always'] > before
    assert 'Filter Always returned 0 hosts' in caplog.text
    assert rig.placement.allocations() == {}
    manager._filters.pop()
    assert select(manager, spec(), claim=claim) == [['gpu1']]


@BOTH_WAYS
def test_servers_of_hosts_are_read_once_a_cell(rig, claim):
    for name in ('gpu1', 'gpu2', 'gpu3'):
        rig.host(name)
    manager = rig.manager()
    manager._filters.append(Counts())
    select(manager, spec(), claim=False)
    statements = []
    stop = engine.listen(lambda *event: statements.append(event[1]))
    select(manager, spec(), claim=claim)
    stop()
    assert len([statement for statement in statements if 'FROM instances' in statement]) == 2


@BOTH_WAYS
def test_servers_of_like_images_come_together(rig, claim):
    rig.host('gpu1')
    rig.host('gpu2')
    with rig.by_name['cell1'].write() as connection:
        for name, host, value in (('a', 'gpu1', 'windows'), ('b', 'gpu2', 'debian')):
            server = rig_server(connection, name, host)
            connection.execute(
                InstanceSystemMetadata.__table__.insert(),
                {'instance_uuid': server, 'key': 'image_os_distro', 'value': value},
            )
    manager = rig.manager(filter_scheduler__image_props_weight_multiplier=1000.0)
    weigher = ImagePropertiesWeigher()
    weigher.conf = manager._conf
    manager._weighers.append(weigher)
    for value, first in (('debian', 'gpu2'), ('windows', 'gpu1')):
        request = spec(image={'id': uuid(), 'properties': {'os_distro': value}})
        assert select(manager, request, uuid(value), claim=claim)[0][0] == first


def rig_server(connection, name, host):
    from kilonova.db.models.cell import Instance

    connection.execute(Instance.__table__.insert(), {'uuid': uuid(name), 'host': host, 'node': host})
    return uuid(name)


def test_a_host_whose_record_is_nonsense_costs_only_itself(rig, caplog):
    rig.host('gpu1', stats='{broken')
    rig.host('gpu2')
    manager = rig.manager()
    assert select(manager, spec()) == [['gpu2']]
    assert 'The record of compute node gpu1:gpu1 cannot be read' in caplog.text
    with rig.by_name['cell1'].write() as connection:
        table = ComputeNode.__table__
        connection.execute(
            sa.update(table).where(table.c.host == 'gpu1').values(stats='{}', updated_at=engine.db_utcnow())
        )
    assert sorted(select(manager, spec(), uuid('s2'))[0]) == ['gpu1', 'gpu2']


def test_a_prefilter_of_others_is_asked(rig, monkeypatch):
    """A prefilter of another package changes the query to Placement."""

    def licences(query, request, facts):
        query.root_required.add('CUSTOM_LICENCE')

    monkeypatch.setattr(plugins, 'load_prefilters', lambda conf: [licences])
    rig.host('gpu1')
    with pytest.raises(errors.NoValidHost, match='CUSTOM_LICENCE'):
        select(rig.manager(), spec())


def test_an_unknown_name_stops_the_start(rig):
    """An unknown filter or weigher stops the start of the scheduler with an error that names it."""
    for options, error in (
        ({'enabled_filters': ['NoSuch']}, plugins.SchedulerHostFilterNotFound),
        ({'weight_classes': ['NoSuch']}, plugins.SchedulerWeigherNotFound),
    ):
        made = conf(**{f'filter_scheduler__{name}': value for name, value in options.items()})
        with pytest.raises(error, match='NoSuch'):
            SchedulerManager(made, rig.databases, rig.cells, rig.placement.client)


def test_groups_of_a_flavor_without_a_policy_are_refused_by_placement(rig):
    rig.host('gpu1')
    with pytest.raises(errors.NoValidHost, match='group_policy'):
        select(rig.manager(), spec({'resources1:VCPU': '1', 'resources2:VCPU': '1'}))

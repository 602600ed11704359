"""Loading by entry points and dotted paths, and plug-ins of others: a package of its own, and what raises."""

from __future__ import annotations

import configparser
import logging
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
import stevedore

from kilonova import errors, objects
from kilonova.scheduler import filters, prefilters, weighers
from kilonova.scheduler.hosts.host_state import HostState
from kilonova.scheduler.placement.query import CandidateQuery, RequestFilterFailed
from kilonova.scheduler.plugins import guard, nova_names
from kilonova.scheduler.plugins import loading as plugins
from tests.fixtures import environment
from tests.unit.scheduler.builders import CELL, conf, host, looked_at, node, spec, state, uuid

HERE = Path(__file__)
ALL_HOSTS = 'kilonova.scheduler.filters.all_hosts:AllHostsFilter'
RAM = 'kilonova.scheduler.weighers.amounts:RAMWeigher'
OWN = f'{__name__}:Own'


class Own(filters.BaseHostFilter):
    def host_passes(self, host_state, spec_obj):
        return self.conf is not None


def several():
    return [Own]


def licences(query, spec, facts):
    query.root_required.add('CUSTOM_LICENCE')


@pytest.fixture
def installed(monkeypatch):
    """Entry points as distributions would bring them: {group: [(name, value)]}."""
    found = {
        plugins.FILTERS: [('AllHostsFilter', ALL_HOSTS)],
        plugins.WEIGHERS: [('RAMWeigher', RAM)],
        plugins.PREFILTERS: [],
    }

    class Manager:
        def __init__(self, group, names):
            assert names == []
            self.group = group

        def list_entry_points(self):
            return [EntryPoint(name, value, self.group) for name, value in found[self.group]]

    monkeypatch.setattr(stevedore, 'NamedExtensionManager', Manager)
    return found


def names(loaded):
    return [type(one).__name__ for one in loaded]


def test_enabled_filters_in_their_order(installed):
    """Enabled filters are loaded in the order of the option, and get the configuration."""
    installed[plugins.FILTERS].append(('Own', OWN))
    made = conf(filter_scheduler__enabled_filters=['Own', 'AllHostsFilter'])
    loaded = plugins.load_filters(made)
    assert names(loaded) == ['Own', 'AllHostsFilter']
    assert all(one.conf is made for one in loaded)


@pytest.mark.parametrize('path', [f'{__name__}.Own', f'{__name__}.several'])
@pytest.mark.parametrize('everything', filters.ALL_FILTERS)
def test_paths_beside_what_is_installed(installed, path, everything):
    """available_filters may name classes by their paths, beside those that are installed."""
    loaded = plugins.load_filters(
        conf(
            filter_scheduler__available_filters=[everything, path],
            filter_scheduler__enabled_filters=['AllHostsFilter', 'Own'],
        )
    )
    assert names(loaded) == ['AllHostsFilter', 'Own']
    assert loaded[1].host_passes(state(), None)


@pytest.mark.parametrize(
    'path',
    [
        'nova.scheduler.filters.all_hosts_filter.AllHostsFilter',
        'nova.scheduler.filters.of_the_last_release.AllHostsFilter',
    ],
)
def test_paths_of_the_fields_own_filters_and_weighers_mean_ours(installed, path):
    loaded = plugins.load_filters(
        conf(filter_scheduler__available_filters=[path], filter_scheduler__enabled_filters=['AllHostsFilter'])
    )
    assert type(loaded[0]).__module__ == 'kilonova.scheduler.filters.all_hosts'
    loaded = plugins.load_weighers(conf(filter_scheduler__weight_classes=['nova.scheduler.weights.ram.RAMWeigher']))
    assert type(loaded[0]).__module__ == 'kilonova.scheduler.weighers.amounts'


def test_an_unknown_filter_is_named_with_those_there_are(installed):
    """An unknown filter raises SchedulerHostFilterNotFound, which names it and the filters that exist."""
    with pytest.raises(
        plugins.SchedulerHostFilterNotFound, match=r'Scheduler Host Filter NoSuch could not be found.*AllHostsFilter'
    ):
        plugins.load_filters(conf(filter_scheduler__enabled_filters=['AllHostsFilter', 'NoSuch']))


def test_filters_that_run_by_default():
    """The default of enabled_filters has seven filters, and each loads."""
    made = conf()
    assert made.filter_scheduler.enabled_filters == [
        'ComputeFilter',
        'ComputeCapabilitiesFilter',
        'ImagePropertiesFilter',
        'ServerGroupAntiAffinityFilter',
        'ServerGroupAffinityFilter',
        'PciPassthroughFilter',
        'NUMATopologyFilter',
    ]
    assert names(plugins.load_filters(made)) == made.filter_scheduler.enabled_filters


@pytest.mark.parametrize('gone', ['RetryFilter', 'AvailabilityZoneFilter', 'RamFilter', 'DiskFilter', 'CoreFilter'])
def test_filters_that_the_field_dropped_are_named(gone):
    """A filter that Nova has dropped, because Placement, zones or alternates do its work, is named in an error if
    it is enabled."""
    with pytest.raises(plugins.SchedulerHostFilterNotFound, match=gone):
        plugins.load_filters(conf(filter_scheduler__enabled_filters=['ComputeFilter', gone]))


def test_a_name_that_two_packages_bring_stops_the_start(installed):
    """A filter or weigher whose name two packages use raises PluginNameClash if it is enabled. A class path chooses
    one of them."""
    installed[plugins.FILTERS].append(('AllHostsFilter', OWN))
    with pytest.raises(plugins.PluginNameClash, match=r'AllHostsFilter of kilonova\.scheduler') as told:
        plugins.load_filters(conf(filter_scheduler__enabled_filters=['AllHostsFilter']))
    assert ALL_HOSTS in str(told.value) and OWN in str(told.value)
    # Who doesn't use it isn't hindered, who names the path has chosen.
    assert plugins.load_filters(conf(filter_scheduler__enabled_filters=[])) == []
    assert names(
        plugins.load_filters(
            conf(
                filter_scheduler__available_filters=[filters.ALL_FILTERS[0], ALL_HOSTS.replace(':', '.')],
                filter_scheduler__enabled_filters=['AllHostsFilter'],
            )
        )
    ) == ['AllHostsFilter']
    installed[plugins.WEIGHERS].append(('RAMWeigher', OWN))
    with pytest.raises(plugins.PluginNameClash, match='RAMWeigher'):
        plugins.load_weighers(conf())


def test_the_same_entry_point_told_twice_is_one(installed):
    installed[plugins.FILTERS].append(('AllHostsFilter', ALL_HOSTS))
    assert names(plugins.load_filters(conf(filter_scheduler__enabled_filters=['AllHostsFilter']))) == ['AllHostsFilter']


def test_a_filter_that_is_not_available_is_refused(installed):
    with pytest.raises(plugins.SchedulerHostFilterNotFound, match='AllHostsFilter'):
        plugins.load_filters(
            conf(
                filter_scheduler__available_filters=[f'{__name__}.Own'],
                filter_scheduler__enabled_filters=['AllHostsFilter'],
            )
        )


@pytest.mark.parametrize('path', ['no.such.module', f'{__name__}.NoSuch', f'{__name__}.HERE'])
def test_a_path_that_leads_nowhere_is_named(installed, path):
    with pytest.raises(plugins.PluginNotLoadable, match=path):
        plugins.load_filters(conf(filter_scheduler__available_filters=[path]))


class Picked:
    def __init__(self):
        raise OSError('no licence')


def test_a_plugin_that_can_not_be_made_is_named(installed):
    with pytest.raises(plugins.PluginNotLoadable, match=r'Picked .* OSError: no licence'):
        plugins.load_filters(
            conf(
                filter_scheduler__available_filters=[f'{__name__}.Picked'], filter_scheduler__enabled_filters=['Picked']
            )
        )


def test_an_entry_point_that_does_not_load_is_named(installed):
    """An enabled filter whose entry point does not load raises PluginNotLoadable. Filters that are not enabled are
    not loaded."""
    installed[plugins.FILTERS].append(('Broken', 'acme_no_such_package:Broken'))
    with pytest.raises(plugins.PluginNotLoadable, match='acme_no_such_package'):
        plugins.load_filters(conf(filter_scheduler__enabled_filters=['Broken']))
    # Nothing that isn't enabled is loaded.
    assert names(plugins.load_filters(conf(filter_scheduler__enabled_filters=['AllHostsFilter']))) == ['AllHostsFilter']


@pytest.mark.parametrize(
    'classes',
    [
        ['kilonova.scheduler.weighers.all_weighers'],
        ['nova.scheduler.weights.all_weighers'],
        ['RAMWeigher'],
        ['kilonova.scheduler.weighers.amounts.RAMWeigher'],
    ],
)
def test_weighers(installed, classes):
    assert names(plugins.load_weighers(conf(filter_scheduler__weight_classes=classes))) == ['RAMWeigher']


def test_an_unknown_weigher_is_named(installed):
    with pytest.raises(plugins.SchedulerWeigherNotFound, match=r'NoSuch.*Installed are: RAMWeigher'):
        plugins.load_weighers(conf(filter_scheduler__weight_classes=['NoSuch']))


def test_whatever_is_installed_can_be_enabled():
    """Every entry point of ours loads and can be enabled."""
    everything = plugins._Installed(plugins.FILTERS).names
    assert names(plugins.load_filters(conf(filter_scheduler__enabled_filters=everything))) == everything
    assert sorted(names(plugins.load_weighers(conf()))) == plugins._Installed(plugins.WEIGHERS).names


# Prefilters of others


def facts():
    return prefilters.PrefilterFacts(conf(), {}.get)


def test_prefilters_of_others_run_after_ours(installed):
    installed[plugins.PREFILTERS] += [('acme', f'{__name__}:licences'), ('a_first', f'{__name__}:several')]
    loaded = plugins.load_prefilters(conf())
    assert loaded == [*prefilters.ALL, several, licences]
    query = CandidateQuery()
    prefilters.run([*prefilters.ALL, licences], query, spec(), facts())
    assert 'CUSTOM_LICENCE' in query.root_required


def test_prefilters_are_entry_points_like_those_of_others():
    """The prefilters are exactly those that setup.cfg names, in their order."""
    written = configparser.ConfigParser()
    written.optionxform = str
    written.read(HERE.parents[4] / 'setup.cfg')
    lines = written['options.entry_points'][plugins.PREFILTERS].strip().splitlines()
    assert [tuple(line.split(' = ')) for line in lines] == [
        (one.__name__, f'{one.__module__}:{one.__name__}') for one in prefilters.ALL
    ]
    group = {point.name: point.value for point in entry_points(group=plugins.PREFILTERS)}
    assert group.items() >= dict(tuple(line.split(' = ')) for line in lines).items()
    assert plugins._Installed(plugins.PREFILTERS).names == sorted(group)
    assert plugins.load_prefilters(conf())[: len(prefilters.ALL)] == list(prefilters.ALL)


@pytest.mark.parametrize('ours', [True, False])
def test_a_prefilter_named_like_another_stops_the_start(installed, ours):
    """Ours as well as two of others; those of ours are there even where the distribution forgot to name them."""
    other = prefilters.ALL[3] if ours else several
    name = other.__name__ if ours else 'acme'
    installed[plugins.PREFILTERS].append((name, f'{__name__}:licences'))
    if not ours:
        installed[plugins.PREFILTERS].append((name, f'{__name__}:several'))
    with pytest.raises(plugins.PluginNameClash, match=rf'{name} of kilonova\.scheduler\.prefilters') as told:
        plugins.load_prefilters(conf())
    assert f'{__name__}:licences' in str(told.value) and f'{other.__module__}:{other.__name__}' in str(told.value)
    assert str(told.value).partition('Installed are: ')[2].rstrip('.').split(', ') == sorted(
        {*(one.__name__ for one in prefilters.ALL), name}
    )


def test_a_prefilter_of_others_finds_the_names_of_the_field(installed, nova):
    installed[plugins.PREFILTERS].append(('acme', f'{__name__}:licences'))
    plugins.load_prefilters(conf())
    assert sys.modules['nova'].__kilonova__


def test_a_prefilter_that_raises_refuses_the_request(caplog):
    def broken(query, spec, facts):
        raise ZeroDivisionError('oops')

    with pytest.raises(RequestFilterFailed, match='prefilter broken failed'):
        prefilters.run([broken], CandidateQuery(), spec(), facts())
    assert 'Prefilter broken raised' in caplog.text and 'oops' in caplog.text


# What raises


class Picky(filters.BaseHostFilter):
    """Knows nothing of hosts whose name ends in b."""

    def host_passes(self, host_state, spec_obj):
        return not 1 / (host_state.host[-1] != 'b')


class Fair(filters.BaseHostFilter):
    def host_passes(self, host_state, spec_obj):
        return bool(1 / (host_state.host[-1] != 'b'))


class Streams(filters.BaseHostFilter):
    def filter_all(self, filter_obj_list, spec_obj):
        for one in filter_obj_list:
            yield one if one.host != 'b' else 1 / 0


class Indexed(filters.BaseHostFilter):
    def run_filter_for_index(self, index):
        raise RuntimeError('which index?')

    def host_passes(self, host_state, spec_obj):
        return host_state.host == 'c'


class Once(filters.BaseHostFilter):
    run_filter_once_per_request = True

    def host_passes(self, host_state, spec_obj):
        return False


class Silent(filters.BaseHostFilter):
    def host_passes(self, host_state, spec_obj):
        raise errors.Unanswered(who='the database', reason='it is gone')


class Asked(filters.BaseHostFilter):
    def filter_all(self, filter_obj_list, spec_obj):
        raise errors.Unanswered(who='a filter', reason='it was asked')


def hosts():
    return [state(name, free_ram_mb=number) for number, name in enumerate('abc', 1)]


def names_of(**plugins_):
    """The hosts that are left of the same three, best first."""
    return [
        name
        for name, _ in looked_at([host(name, free_ram_mb=number) for number, name in enumerate('abc', 1)], **plugins_)
    ]


@pytest.mark.parametrize(
    ('cls', 'left', 'times'), [(Fair, ['a', 'c'], 1), (Streams, ['a'], 1), (Indexed, ['c'], 1), (Picky, [], 1)]
)
def test_a_filter_that_raises_rejects_the_host_and_is_told_once(cls, left, times, caplog):
    caplog.set_level(logging.INFO)
    before = guard.FAILED[cls.__name__]
    assert names_of(filters=[cls()]) == left
    lines = [record for record in caplog.records if record.levelname == 'ERROR']
    assert len(lines) == 1 and f'Filter {cls.__name__} raised {times} time(s)' in lines[0].getMessage()
    assert lines[0].exc_info
    assert guard.FAILED[cls.__name__] == before + times
    assert (f"['{cls.__name__}: (start: 3, end: 0)']" in caplog.text) == (not left)


def test_silence_is_no_fault_of_a_filter(caplog):
    with pytest.raises(errors.Unanswered):
        names_of(filters=[Silent()])
    assert 'raised' not in caplog.text


class Weighs(weighers.BaseHostWeigher):
    def __init__(self, bad='b'):
        self.bad = bad

    def _weigh_object(self, host_state, weight_properties):
        return float('nan') if host_state.host == self.bad else host_state.free_ram_mb


class AllAtOnce(weighers.BaseHostWeigher):
    def weigh_objects(self, weighed_obj_list, weight_properties):
        raise KeyError('all')


class TooFew(weighers.BaseHostWeigher):
    def weigh_objects(self, weighed_obj_list, weight_properties):
        return [1.0]


class Multiplied(Weighs):
    def weight_multiplier(self, host_state):
        return {'a': 1.0, 'c': 2.0}[host_state.host]


@pytest.mark.parametrize(
    ('made', 'left'),
    [
        (Weighs(), ['c', 'a']),
        (Multiplied('x'), ['c', 'a']),
        (AllAtOnce(), ['a', 'b', 'c']),
        (TooFew(), ['a', 'b', 'c']),
    ],
)
def test_a_weigher_that_raises(made, left, caplog):
    assert names_of(weighers=[made]) == left
    assert caplog.text.count(f'Weigher {type(made).__name__} raised 1 time(s)') == 1


def test_no_host_is_left_when_none_can_be_weighed():
    class Never(weighers.BaseHostWeigher):
        def _weigh_object(self, host_state, weight_properties):
            raise ValueError(host_state.host)

    assert names_of(weighers=[Never()]) == []


# Nova's names

_IMPORTS = """
import nova.conf
import nova.utils
from nova import context, exception, filters as base, objects, weights as weighing
from nova.i18n import _, _LE, _LI, _LW
from nova.objects import fields, request_spec, selection
from nova.objects.flavor import Flavor
from nova.objects.instance import Instance
from nova.scheduler import filters, host_manager, utils as scheduler_utils, weights
from nova.scheduler.filters import extra_specs_ops, utils
from nova.scheduler.filters.affinity_filter import DifferentHostFilter
from nova.scheduler.weights import utils as weights_utils
from nova.scheduler.weights.ram import RAMWeigher
"""


def forget_names():
    for name in [name for name in sys.modules if name == 'nova' or name.startswith('nova.')]:
        del sys.modules[name]


@pytest.fixture
def nova():
    """The names are there for one test, and gone after it."""
    forget_names()
    yield nova_names
    forget_names()


@pytest.fixture
def namespace(nova):
    """What a module has that imports all of them."""
    found = {}
    assert nova.provide(conf()) is True
    exec(_IMPORTS, found)
    return found


def test_every_name_of_the_field_is_something(namespace):
    assert issubclass(namespace['filters'].BaseHostFilter, namespace['base'].BaseFilter)
    assert issubclass(namespace['weights'].BaseHostWeigher, namespace['weighing'].BaseWeigher)
    assert namespace['_LI']('text') == 'text'
    assert namespace['objects'].Instance(uuid='6f70656e-7374-4163-b000-000000000001').uuid
    assert namespace['nova'].conf.CONF.filter_scheduler.ram_weight_multiplier == 1.0
    host = state(metadata={'rack': 'r1, r2', 'limit': '8'})
    assert namespace['utils'].aggregate_values_from_key(host, 'rack') == {'r1, r2'}
    assert namespace['utils'].aggregate_metadata_get_by_host(host) == {'rack': {'r1', 'r2'}, 'limit': {'8'}}
    assert namespace['utils'].validate_num_values({'8', '3'}, 5) == 3
    assert namespace['utils'].validate_num_values(set(), 5) == 5


def test_names_of_modules_that_plugins_import(namespace):
    """Plug-ins can import the names of Nova's modules that they need. Any other module of Nova raises ImportError."""
    assert isinstance(state(), namespace['host_manager'].HostState)
    assert namespace['context'].get_admin_context().is_admin
    assert namespace['context'].RequestContext(user_id='u').user_id == 'u'
    assert namespace['request_spec'].RequestSpec is objects.RequestSpec
    assert namespace['request_spec'].Destination is objects.Destination
    assert namespace['selection'].Selection is objects.Selection
    assert (namespace['Instance'], namespace['Flavor']) == (objects.Instance, objects.Flavor)
    assert isinstance(namespace['exception'].RequestFilterFailed(reason='no'), namespace['exception'].NovaException)
    with pytest.raises(ImportError):
        exec('from nova.scheduler import manager', {})
    packages = {name for name in nova_names.MODULES if hasattr(sys.modules[name], '__path__')}
    assert packages == {'nova', 'nova.objects', 'nova.scheduler', 'nova.scheduler.filters', 'nova.scheduler.weights'}


OF_THE_FIELD = {
    'filters': {
        'affinity_filter': 'DifferentHostFilter SameHostFilter ServerGroupAffinityFilter ServerGroupAntiAffinityFilter',
        'aggregate_image_properties_isolation': 'AggregateImagePropertiesIsolation',
        'aggregate_instance_extra_specs': 'AggregateInstanceExtraSpecsFilter',
        'aggregate_multitenancy_isolation': 'AggregateMultiTenancyIsolation',
        'all_hosts_filter': 'AllHostsFilter',
        'compute_capabilities_filter': 'ComputeCapabilitiesFilter',
        'compute_filter': 'ComputeFilter',
        'extra_specs_ops': 'match',
        'image_props_filter': 'ImagePropertiesFilter',
        'io_ops_filter': 'AggregateIoOpsFilter IoOpsFilter',
        'isolated_hosts_filter': 'IsolatedHostsFilter',
        'json_filter': 'JsonFilter',
        'metrics_filter': 'MetricsFilter',
        'num_instances_filter': 'AggregateNumInstancesFilter NumInstancesFilter',
        'numa_topology_filter': 'NUMATopologyFilter',
        'pci_passthrough_filter': 'PciPassthroughFilter',
        'simple_cidr_affinity_filter': 'SimpleCIDRAffinityFilter',
        'type_filter': 'AggregateTypeAffinityFilter',
        'utils': 'aggregate_metadata_get_by_host aggregate_values_from_key instance_uuids_overlap validate_num_values',
    },
    'weights': {
        'affinity': 'ServerGroupSoftAffinityWeigher ServerGroupSoftAntiAffinityWeigher',
        'compute': 'BuildFailureWeigher',
        'cpu': 'CPUWeigher',
        'cross_cell': 'CrossCellWeigher',
        'disk': 'DiskWeigher',
        'hypervisor_version': 'HypervisorVersionWeigher',
        'image_props': 'ImagePropertiesWeigher',
        'io_ops': 'IoOpsWeigher',
        'metrics': 'MetricsWeigher',
        'num_instances': 'NumInstancesWeigher',
        'pci': 'PCIWeigher',
        'ram': 'RAMWeigher',
        'utils': 'get_multiplier',
    },
}
ROOTS = {
    'nova': '',
    'nova.conf': 'CONF',
    'nova.context': 'RequestContext get_admin_context',
    'nova.exception': 'NovaException RequestFilterFailed NotFound',
    'nova.filters': 'BaseFilter BaseFilterHandler',
    'nova.i18n': '_ _LI _LW _LE _LC',
    'nova.objects': 'Aggregate RequestSpec Instance',
    'nova.scheduler': '',
    'nova.objects.aggregate': 'Aggregate AggregateList',
    'nova.objects.compute_node': 'ComputeNode ComputeNodeList',
    'nova.objects.fields': 'StringField IntegerField',
    'nova.objects.flavor': 'Flavor FlavorList',
    'nova.objects.image_meta': 'ImageMeta ImageMetaProps',
    'nova.objects.instance': 'Instance InstanceList',
    'nova.objects.instance_group': 'InstanceGroup InstanceGroupList',
    'nova.objects.request_spec': 'RequestSpec Destination RequestGroup SchedulerLimits',
    'nova.objects.selection': 'Selection',
    'nova.scheduler.filters': 'BaseHostFilter all_filters',
    'nova.scheduler.host_manager': 'HostState',
    'nova.scheduler.utils': 'get_multiplier',
    'nova.utils': '',
    'nova.scheduler.weights': 'BaseHostWeigher WeighedHost all_weighers',
    'nova.weights': 'BaseWeigher WeighedObject normalize',
}


def test_where_the_field_has_its_names(namespace):
    wanted = {
        **ROOTS,
        **{
            f'nova.scheduler.{kind}.{name}': names
            for kind, modules in OF_THE_FIELD.items()
            for name, names in modules.items()
        },
    }
    assert nova_names.MODULES.keys() == wanted.keys()
    for module, names_ in wanted.items():
        for name in names_.split():
            assert hasattr(sys.modules[module], name), (module, name)
            parent, _, child = module.rpartition('.')
            assert not parent or getattr(sys.modules[parent], child) is sys.modules[module]
        private = [name for name in vars(sys.modules[module]) if name.startswith('_') and not name.startswith('__')]
        assert module == 'nova.i18n' or not private, module
    for word in ('_', '_LI', '_LW', '_LE', '_LC'):
        assert getattr(sys.modules['nova.i18n'], word)('text') == 'text'
    # What only these modules make use of isn't theirs.
    assert not hasattr(sys.modules['nova.scheduler.filters.compute_filter'], 'HostArrays')


def test_servers_that_a_host_has(namespace):
    overlap = namespace['utils'].instance_uuids_overlap
    host_state = state(servers=[{'uuid': uuid('a'), 'host': 'host1', 'node': 'host1', 'deleted': 0, 'id': 1}])
    assert overlap(host_state, uuid('a')) and overlap(host_state, [uuid('x'), uuid('a')])
    assert not overlap(host_state, uuid('x')) and not overlap(host_state, [])


def test_the_configuration_of_the_field_is_that_of_the_scheduler(monkeypatch):
    made = nova_names.Conf()
    monkeypatch.setattr(nova_names.Conf, '_conf', conf(host='here'))
    assert (made.host, made['host'], 'host' in made, 'no_such' in made) == ('here', 'here', True, False)
    monkeypatch.setattr(nova_names.Conf, '_conf', None)
    with pytest.raises(AttributeError, match='configuration is not loaded yet, so it has no host'):
        made.host  # noqa: B018 - reading it is what fails
    assert 'host' not in made


@pytest.mark.parametrize(
    ('given', 'expected'),
    [
        ({}, 2.0),
        ({'ram_weight_multiplier': '3.5'}, 3.5),
        ({'cpu_weight_multiplier': '3.5'}, 2.0),
        ({'ram_weight_multiplier': 'many'}, 2.0),
        ({'ram_weight_multiplier': 'nan'}, 2.0),
    ],
)
def test_the_multiplier_of_a_host(namespace, caplog, given, expected):
    for module in ('scheduler_utils', 'weights_utils'):
        assert namespace[module].get_multiplier(state(metadata=given), 'ram_weight_multiplier', 2.0) == expected
    told = 'Could not decode the ram_weight_multiplier weight multiplier of host1' in caplog.text
    assert told == (given.get('ram_weight_multiplier') in ('many', 'nan'))


def test_the_least_multiplier_of_several_aggregates_counts(namespace):
    host = HostState(
        node(),
        CELL,
        [
            {'id': number, 'uuid': uuid(value), 'name': value, 'metadata': {'ram_weight_multiplier': value}}
            for number, value in enumerate(('3', '-1', '2'))
        ],
    )
    assert namespace['scheduler_utils'].get_multiplier(host, 'ram_weight_multiplier', 9.0) == -1.0


def test_all_that_is_ours_as_functions(namespace):
    """A function that available_filters or weight_classes names may begin with ours."""
    for found, group, base in (
        (namespace['filters'].all_filters(), plugins.FILTERS, filters.BaseHostFilter),
        (namespace['weights'].all_weighers(), plugins.WEIGHERS, weighers.BaseHostWeigher),
    ):
        assert [one.__name__ for one in found] == sorted(
            point.name for point in entry_points(group=group) if point.value.startswith('kilonova.')
        )
        assert all(issubclass(one, base) and one.__module__.startswith('kilonova.') for one in found)
    assert filters.all_filters() == namespace['filters'].all_filters()
    assert weighers.all_weighers() == namespace['weights'].all_weighers()


def ours_and_own():
    from nova.scheduler import filters as theirs

    return [*theirs.all_filters(), Own]


def test_a_function_that_begins_with_ours(nova):
    loaded = plugins.load_filters(
        conf(
            filter_scheduler__available_filters=[f'{__name__}.ours_and_own'],
            filter_scheduler__enabled_filters=['ComputeFilter', 'Own'],
        )
    )
    assert names(loaded) == ['ComputeFilter', 'Own']


def test_a_handler_of_filters(namespace):
    handler = namespace['base'].BaseFilterHandler()
    passing = handler.get_filtered_objects([Indexed()], hosts(), spec())
    assert [host.host for host in passing] == ['c']
    passing = handler.get_filtered_objects([Once()], hosts(), spec(), index=1)
    assert [host.host for host in passing] == ['a', 'b', 'c']
    assert handler.get_filtered_objects([Once()], hosts(), spec()) == []
    # Nothing is left: the next one isn't asked, as it may read what the hosts have together.
    assert handler.get_filtered_objects([Once(), Silent()], hosts(), spec()) == []
    with pytest.raises(errors.Unanswered):
        handler.get_filtered_objects([Asked()], hosts(), spec())
    assert handler.get_filtered_objects([Once(), Asked()], hosts(), spec()) == []


def test_where_nova_is_its_names_are_left_alone(nova):
    assert 'nova' not in sys.modules
    assert nova.provide(conf(), find=lambda name: object()) is False
    assert 'nova' not in sys.modules


def test_names_that_are_there_already_are_ours_and_not_those_of_nova(nova):
    """Filters and weighers each ask for them; modules that plug-ins have imported stay the same."""
    assert nova.provide(conf()) is True
    there = sys.modules['nova.scheduler.filters']
    assert nova.provide(conf(), find=lambda name: object()) is True
    assert sys.modules['nova.scheduler.filters'] is there


def test_names_are_not_there_before_a_plugin_wants_them(installed, nova):
    plugins.load_filters(conf(filter_scheduler__enabled_filters=['AllHostsFilter']))
    assert 'nova' not in sys.modules
    installed[plugins.FILTERS].append(('Own', OWN))
    plugins.load_filters(conf(filter_scheduler__enabled_filters=['Own']))
    assert sys.modules['nova'].__kilonova__


# A package of its own

_SCHEDULER = """
import logging, sys
from importlib import metadata
import kilonova.conf
from kilonova import objects
from kilonova.scheduler.plugins import loading as plugins
from tests.unit.scheduler.builders import host, looked_at, pools, spec

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(message)s')
conf = kilonova.conf.new()
conf(['--config-file', sys.argv[1]], project='kilonova', default_config_dirs=[])
print('from', sys.prefix, metadata.distribution('acme-scheduling').locate_file(''))
enabled, weighing = plugins.load_filters(conf), plugins.load_weighers(conf)
print('prefilters', [one.__name__ for one in plugins.load_prefilters(conf)])
made = spec({'acme:rack': 'r1', 'acme:licence': 'cad'})
for request in (made, objects.RequestSpec.from_json(made.to_json())):
    hosts = [host(name, running_vms=number, metadata={'rack': rack}, pci_stats=pools('0000:08:00.0'))
             for name, number, rack in (('a', 3, 'r1'), ('b', 1, 'r1'), ('c', 0, 'r2'))]
    print('chosen', [name for name, _ in looked_at(hosts, request, filters=enabled, weighers=weighing)])
"""


@pytest.fixture(scope='module')
def acme(tmp_path_factory):
    """The interpreter of an environment into which the package of tests/plugins is installed."""
    return environment.with_plugins(tmp_path_factory.mktemp('acme'))


def run_scheduler(acme, tmp_path, text):
    (tmp_path / 'kilonova.conf').write_text(text)
    # From the tree: the script imports builders of the tests.
    return subprocess.run(
        [acme, '-c', _SCHEDULER, tmp_path / 'kilonova.conf'],
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE.parents[4],
    )


def test_an_installed_package_is_enabled_by_configuration_alone(acme, tmp_path):
    """An installed package with a filter and a weigher written for Nova is enabled by configuration alone. The
    filter prints every field and passes."""
    done = run_scheduler(acme, tmp_path, '[filter_scheduler]\nenabled_filters = ComputeFilter,RackFilter,DumpFilter\n')
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    home = acme.parents[1]
    assert any(line.startswith(f'from {home} {home}/') for line in lines)
    assert f'prefilters {[*(one.__name__ for one in prefilters.ALL), "licences"]}' in lines
    # A new server's request and a stored one.
    assert lines.count("chosen ['b', 'a']") == 2
    assert 'host_state: (a, a) ram: 262144MB disk: 1024000MB io_ops: 0 instances: 3, allocation_candidates: 1' in lines
    for line in (
        'host_state.free_ram_mb: 262144',
        'host_state.limits: {}',
        'host_state.instances: {}',
        "host_state.supported_instances: [['x86_64', 'qemu', 'hvm']]",
        'spec_obj.memory_mb: 32768',
        'spec_obj.vcpus: 8',
        'spec_obj.id: None',
        'spec_obj.num_instances: 1',
        'flavor.projects: []',
        'flavor.rxtx_factor: 1.0',
    ):
        assert lines.count(line) == 4, line
    for what, names_ in (('spec_obj', objects.RequestSpec.fields), ('flavor', objects.Flavor.fields)):
        for name in names_:
            assert sum(line.startswith(f'{what}.{name}: ') for line in lines) == 4, f'{what}.{name}'
    assert not any(line.startswith('host_state.host: c') for line in lines)
    assert 'raised' not in done.stdout + done.stderr
    # Installed there and nowhere else.
    assert 'DumpFilter' not in plugins._Installed(plugins.FILTERS)


def test_a_name_of_the_package_that_is_not_there_stops_the_start(acme, tmp_path):
    done = run_scheduler(acme, tmp_path, '[filter_scheduler]\nenabled_filters = DumpFiler\n')
    assert done.returncode != 0
    assert 'Scheduler Host Filter DumpFiler could not be found' in done.stderr and 'DumpFilter' in done.stderr

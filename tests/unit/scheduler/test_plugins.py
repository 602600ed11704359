"""Loading by entry points and dotted paths, and plug-ins of others: a package of its own, and what raises."""
from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import stevedore

import kilonova
from kilonova import errors
from kilonova.scheduler import filters, guard, nova_names, plugins, prefilters, weighers
from kilonova.scheduler.query import Query, RequestFilterFailed
from tests.unit.scheduler.builders import conf, spec, state

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
    found = {plugins.FILTERS: [('AllHostsFilter', ALL_HOSTS)], plugins.WEIGHERS: [('RAMWeigher', RAM)],
             plugins.PREFILTERS: []}

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
    installed[plugins.FILTERS].append(('Own', OWN))
    made = conf(filter_scheduler__enabled_filters=['Own', 'AllHostsFilter'])
    loaded = plugins.load_filters(made)
    assert names(loaded) == ['Own', 'AllHostsFilter']
    assert all(one.conf is made for one in loaded)


@pytest.mark.parametrize('path', [f'{__name__}.Own', f'{__name__}.several'])
@pytest.mark.parametrize('everything', filters.ALL_FILTERS)
def test_paths_beside_what_is_installed(installed, path, everything):
    loaded = plugins.load_filters(conf(filter_scheduler__available_filters=[everything, path],
                                       filter_scheduler__enabled_filters=['AllHostsFilter', 'Own']))
    assert names(loaded) == ['AllHostsFilter', 'Own']
    assert loaded[1].host_passes(state(), None)


@pytest.mark.parametrize('path', ['nova.scheduler.filters.all_hosts_filter.AllHostsFilter',
                                  'nova.scheduler.filters.of_the_last_release.AllHostsFilter'])
def test_paths_of_the_fields_own_filters_and_weighers_mean_ours(installed, path):
    loaded = plugins.load_filters(conf(filter_scheduler__available_filters=[path],
                                       filter_scheduler__enabled_filters=['AllHostsFilter']))
    assert type(loaded[0]).__module__ == 'kilonova.scheduler.filters.all_hosts'
    loaded = plugins.load_weighers(conf(filter_scheduler__weight_classes=['nova.scheduler.weights.ram.RAMWeigher']))
    assert type(loaded[0]).__module__ == 'kilonova.scheduler.weighers.amounts'


def test_an_unknown_filter_is_named_with_those_there_are(installed):
    """Rows 3.10, 3.16."""
    with pytest.raises(plugins.SchedulerHostFilterNotFound,
                       match=r'Scheduler Host Filter NoSuch could not be found.*AllHostsFilter'):
        plugins.load_filters(conf(filter_scheduler__enabled_filters=['AllHostsFilter', 'NoSuch']))


@pytest.mark.parametrize('gone', ['RetryFilter', 'AvailabilityZoneFilter', 'RamFilter', 'DiskFilter', 'CoreFilter'])
def test_filters_that_the_field_dropped_are_named(gone):
    """Row 3.17: Placement, zones and alternates do their work; whoever still enables one is told."""
    with pytest.raises(plugins.SchedulerHostFilterNotFound, match=gone):
        plugins.load_filters(conf(filter_scheduler__enabled_filters=['ComputeFilter', gone]))


def test_a_name_that_two_packages_bring_stops_the_start(installed):
    installed[plugins.FILTERS].append(('AllHostsFilter', OWN))
    with pytest.raises(plugins.PluginNameClash, match=r'AllHostsFilter of kilonova\.scheduler') as told:
        plugins.load_filters(conf(filter_scheduler__enabled_filters=['AllHostsFilter']))
    assert ALL_HOSTS in str(told.value) and OWN in str(told.value)
    # Who doesn't use it isn't hindered, who names the path has chosen.
    assert plugins.load_filters(conf(filter_scheduler__enabled_filters=[])) == []
    assert names(plugins.load_filters(conf(
        filter_scheduler__available_filters=[filters.ALL_FILTERS[0], ALL_HOSTS.replace(':', '.')],
        filter_scheduler__enabled_filters=['AllHostsFilter']))) == ['AllHostsFilter']
    installed[plugins.WEIGHERS].append(('RAMWeigher', OWN))
    with pytest.raises(plugins.PluginNameClash, match='RAMWeigher'):
        plugins.load_weighers(conf())


def test_the_same_entry_point_told_twice_is_one(installed):
    installed[plugins.FILTERS].append(('AllHostsFilter', ALL_HOSTS))
    assert names(plugins.load_filters(conf(filter_scheduler__enabled_filters=['AllHostsFilter']))) == ['AllHostsFilter']


def test_a_filter_that_is_not_available_is_refused(installed):
    with pytest.raises(plugins.SchedulerHostFilterNotFound, match='AllHostsFilter'):
        plugins.load_filters(conf(filter_scheduler__available_filters=[f'{__name__}.Own'],
                                  filter_scheduler__enabled_filters=['AllHostsFilter']))


@pytest.mark.parametrize('path', ['no.such.module', f'{__name__}.NoSuch', f'{__name__}.HERE'])
def test_a_path_that_leads_nowhere_is_named(installed, path):
    with pytest.raises(plugins.PluginNotLoadable, match=path):
        plugins.load_filters(conf(filter_scheduler__available_filters=[path]))


def test_an_entry_point_that_does_not_load_is_named(installed):
    installed[plugins.FILTERS].append(('Broken', 'acme_no_such_package:Broken'))
    with pytest.raises(plugins.PluginNotLoadable, match='acme_no_such_package'):
        plugins.load_filters(conf(filter_scheduler__enabled_filters=['Broken']))
    # Nothing that isn't enabled is loaded.
    assert names(plugins.load_filters(conf(filter_scheduler__enabled_filters=['AllHostsFilter']))) == ['AllHostsFilter']


@pytest.mark.parametrize('classes', [
    ['kilonova.scheduler.weighers.all_weighers'], ['nova.scheduler.weights.all_weighers'], ['RAMWeigher'],
    ['kilonova.scheduler.weighers.amounts.RAMWeigher']])
def test_weighers(installed, classes):
    assert names(plugins.load_weighers(conf(filter_scheduler__weight_classes=classes))) == ['RAMWeigher']


def test_an_unknown_weigher_is_named(installed):
    with pytest.raises(plugins.SchedulerWeigherNotFound, match=r'NoSuch.*Installed are: RAMWeigher'):
        plugins.load_weighers(conf(filter_scheduler__weight_classes=['NoSuch']))


def test_whatever_is_installed_can_be_enabled():
    """Row 1.32: each entry point of ours loads."""
    everything = plugins._Installed(plugins.FILTERS).names
    assert names(plugins.load_filters(conf(filter_scheduler__enabled_filters=everything))) == everything
    assert sorted(names(plugins.load_weighers(conf()))) == plugins._Installed(plugins.WEIGHERS).names


# Prefilters of others

def facts():
    return prefilters.Facts(conf(), {}.get)


def test_prefilters_of_others_run_after_ours(installed):
    installed[plugins.PREFILTERS].append(('acme', f'{__name__}:licences'))
    loaded = plugins.load_prefilters()
    assert loaded == [licences]
    query = Query()
    prefilters.run([*prefilters.ALL, *loaded], query, spec(), facts())
    assert 'CUSTOM_LICENCE' in query.root_required


def test_a_prefilter_that_raises_refuses_the_request(caplog):
    def broken(query, spec, facts):
        raise ZeroDivisionError('oops')
    with pytest.raises(RequestFilterFailed, match='prefilter broken failed'):
        prefilters.run([broken], Query(), spec(), facts())
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
        for host in filter_obj_list:
            yield host if host.host != 'b' else 1 / 0


class Indexed(filters.BaseHostFilter):
    def run_filter_for_index(self, index):
        raise RuntimeError('which index?')

    def host_passes(self, host_state, spec_obj):
        return host_state.host == 'c'


class Silent(filters.BaseHostFilter):
    def host_passes(self, host_state, spec_obj):
        raise errors.Unanswered(who='the database', reason='it is gone')


def hosts():
    return [state(name, free_ram_mb=number) for number, name in enumerate('abc', 1)]


@pytest.mark.parametrize(('cls', 'left', 'times'), [
    (Fair, ['a', 'c'], 1), (Streams, ['a'], 1), (Indexed, ['c'], 1), (Picky, [], 1)])
def test_a_filter_that_raises_rejects_the_host_and_is_told_once(cls, left, times, caplog):
    caplog.set_level(logging.INFO)
    before = guard.FAILED[cls.__name__]
    assert [host.host for host in filters.run([cls()], hosts(), spec())] == left
    lines = [record for record in caplog.records if record.levelname == 'ERROR']
    assert len(lines) == 1 and f'Filter {cls.__name__} raised {times} time(s)' in lines[0].getMessage()
    assert lines[0].exc_info
    assert guard.FAILED[cls.__name__] == before + times
    assert (f"['{cls.__name__}: (start: 3, end: 0)']" in caplog.text) == (not left)


def test_silence_is_no_fault_of_a_filter(caplog):
    with pytest.raises(errors.Unanswered):
        filters.run([Silent()], hosts(), spec())
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


@pytest.mark.parametrize(('made', 'left'), [
    (Weighs(), ['c', 'a']), (Multiplied('x'), ['c', 'a']), (AllAtOnce(), ['a', 'b', 'c']), (TooFew(), ['a', 'b', 'c'])])
def test_a_weigher_that_raises(made, left, caplog):
    assert [one.obj.host for one in weighers.weigh([made], hosts(), spec())] == left
    assert caplog.text.count(f'Weigher {type(made).__name__} raised 1 time(s)') == 1


def test_no_host_is_left_when_none_can_be_weighed():
    class Never(weighers.BaseHostWeigher):
        def _weigh_object(self, host_state, weight_properties):
            raise ValueError(host_state.host)
    assert weighers.weigh([Never()], hosts(), spec()) == []


# Nova's names

_IMPORTS = """
import nova.conf
from nova import exception, filters as base, objects, weights as weighing
from nova.i18n import _, _LE, _LI, _LW
from nova.objects import fields
from nova.scheduler import filters, weights
from nova.scheduler.filters import extra_specs_ops, utils
from nova.scheduler.filters.affinity_filter import DifferentHostFilter
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


def test_every_name_of_the_field_is_something(nova):
    made = conf()
    assert nova.provide(made) is True
    namespace = {}
    exec(_IMPORTS, namespace)
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


def test_where_nova_is_its_names_are_left_alone(nova):
    assert 'nova' not in sys.modules
    assert nova.provide(conf(), find=lambda name: object()) is False
    assert 'nova' not in sys.modules


def test_names_are_not_there_before_a_plugin_wants_them(installed, nova):
    plugins.load_filters(conf(filter_scheduler__enabled_filters=['AllHostsFilter']))
    assert 'nova' not in sys.modules
    installed[plugins.FILTERS].append(('Own', OWN))
    plugins.load_filters(conf(filter_scheduler__enabled_filters=['Own']))
    assert sys.modules['nova'].__kilonova__


# A package of its own

_SCHEDULER = """
import json, logging, sys
import kilonova.conf
from kilonova.scheduler import filters, plugins, weighers
from tests.unit.scheduler.builders import pools, spec, state

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(message)s')
conf = kilonova.conf.new()
conf(['--config-file', sys.argv[1]], project='kilonova', default_config_dirs=[])
hosts = [state(name, running_vms=number, metadata={'rack': rack}, pci_stats=pools('0000:08:00.0'))
         for name, number, rack in (('a', 3, 'r1'), ('b', 1, 'r1'), ('c', 0, 'r2'))]
request = spec({'acme:rack': 'r1', 'acme:licence': 'cad'})
passing = filters.run(plugins.load_filters(conf), hosts, request)
best = weighers.weigh(plugins.load_weighers(conf), passing, request)
print('chosen', [one.obj.host for one in best], [one.__name__ for one in plugins.load_prefilters()])
"""


@pytest.fixture(scope='module')
def acme(tmp_path_factory):
    """The package of tests/plugins, installed into a directory of its own; without a network."""
    directory = tmp_path_factory.mktemp('acme')
    # setuptools writes beside the sources.
    shutil.copytree(HERE.parents[2] / 'plugins', directory / 'source')
    done = subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', '--no-deps', '--no-build-isolation',
                           '--no-index', '--disable-pip-version-check', '--target', directory / 'site',
                           directory / 'source'], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory / 'site'


def run_scheduler(acme, tmp_path, text):
    (tmp_path / 'kilonova.conf').write_text(text)
    root = Path(kilonova.__file__).parents[1]
    return subprocess.run([sys.executable, '-c', _SCHEDULER, tmp_path / 'kilonova.conf'], capture_output=True,
                          text=True, check=False, cwd=root, env={
                              **os.environ, 'PYTHONPATH': os.pathsep.join((str(acme), str(root)))})


def test_an_installed_package_is_enabled_by_configuration_alone(acme, tmp_path):
    """Rows 3.18 to 3.21: a filter written for Nova prints every field and passes; a weigher of the same kind."""
    done = run_scheduler(acme, tmp_path, '[filter_scheduler]\nenabled_filters = ComputeFilter,RackFilter,DumpFilter\n')
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "chosen ['b', 'a'] ['licences']" in lines
    assert 'host_state: (a, a) ram: 262144MB disk: 1024000MB io_ops: 0 instances: 3, allocation_candidates: 1' in lines
    for line in ('host_state.free_ram_mb: 262144', 'host_state.limits: {}', 'host_state.instances: {}',
                 "host_state.supported_instances: [['x86_64', 'qemu', 'hvm']]", 'spec_obj.memory_mb: 32768',
                 'spec_obj.vcpus: 8'):
        assert line in lines, line
    assert not any(line.startswith('host_state.host: c') for line in lines)
    assert 'raised' not in done.stdout + done.stderr


def test_a_name_of_the_package_that_is_not_there_stops_the_start(acme, tmp_path):
    done = run_scheduler(acme, tmp_path, '[filter_scheduler]\nenabled_filters = DumpFiler\n')
    assert done.returncode != 0
    assert 'Scheduler Host Filter DumpFiler could not be found' in done.stderr and 'DumpFilter' in done.stderr

"""Loading by entry points and dotted paths."""
from __future__ import annotations

import pytest
import stevedore
from stevedore.extension import Extension

from kilonova.scheduler import filters, plugins
from kilonova.scheduler.filters.all_hosts import AllHostsFilter
from kilonova.scheduler.weighers.amounts import RAMWeigher
from tests.unit.scheduler.builders import conf, state


class Own(filters.BaseHostFilter):
    def host_passes(self, host_state, spec_obj):
        return self.conf is not None


def several():
    return [Own]


@pytest.fixture
def installed(monkeypatch):
    """Entry points as a distribution would bring them: {group: {name: class}}."""
    found = {plugins.FILTERS: {'AllHostsFilter': AllHostsFilter}, plugins.WEIGHERS: {'RAMWeigher': RAMWeigher}}

    class Every:
        def __init__(self, namespace):
            self.names = found[namespace]

        def entry_points_names(self):
            return list(self.names)

    def named(namespace, names, **kwargs):
        return [Extension(name, None, found[namespace][name], None) for name in names if name in found[namespace]]

    monkeypatch.setattr(stevedore, 'ExtensionManager', Every)
    monkeypatch.setattr(stevedore, 'NamedExtensionManager', named)
    return found


def names(loaded):
    return [type(one).__name__ for one in loaded]


def test_enabled_filters_in_their_order(installed):
    installed[plugins.FILTERS]['Own'] = Own
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


def test_an_unknown_filter_is_named_with_those_there_are(installed):
    with pytest.raises(plugins.SchedulerHostFilterNotFound,
                       match=r'Scheduler Host Filter NoSuch could not be found.*AllHostsFilter'):
        plugins.load_filters(conf(filter_scheduler__enabled_filters=['AllHostsFilter', 'NoSuch']))


def test_a_filter_that_is_not_available_is_refused(installed):
    with pytest.raises(plugins.SchedulerHostFilterNotFound, match='AllHostsFilter'):
        plugins.load_filters(conf(filter_scheduler__available_filters=[f'{__name__}.Own'],
                                  filter_scheduler__enabled_filters=['AllHostsFilter']))


def test_a_path_that_leads_nowhere_is_named(installed):
    with pytest.raises(plugins.PluginNotLoadable, match=r'no\.such\.module'):
        plugins.load_filters(conf(filter_scheduler__available_filters=['no.such.module']))


@pytest.mark.parametrize('classes', [
    ['kilonova.scheduler.weighers.all_weighers'], ['nova.scheduler.weights.all_weighers'], ['RAMWeigher'],
    ['kilonova.scheduler.weighers.amounts.RAMWeigher']])
def test_weighers(installed, classes):
    assert names(plugins.load_weighers(conf(filter_scheduler__weight_classes=classes))) == ['RAMWeigher']


def test_an_unknown_weigher_is_named(installed):
    with pytest.raises(plugins.SchedulerWeigherNotFound, match='NoSuch'):
        plugins.load_weighers(conf(filter_scheduler__weight_classes=['NoSuch']))

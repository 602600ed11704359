"""Nova's module names: filters and weighers that import them get Kilonova's objects.

    from nova.scheduler import filters, weights
    from nova.i18n import _LI

``plugins`` calls ``provide(conf)`` before it loads a plug-in of another package. If Nova itself can be imported,
nothing is changed. Only the names in ``MODULES`` exist; importing another name raises the usual ImportError.
``nova.conf.CONF`` is the configuration of the scheduler that loaded plug-ins last. The global ``oslo_config.cfg.CONF``
stays empty.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import context, errors, objects
from kilonova.objects import (
    RequestSpec,
    aggregate,
    compute_node,
    fields,
    flavor,
    image_meta,
    instance,
    instance_group,
    request_spec,
    selection,
)
from kilonova.scheduler import filters, weighers
from kilonova.scheduler.filters import (
    affinity,
    aggregates,
    all_hosts,
    cidr,
    compute,
    compute_capabilities,
    extra_specs,
    image_properties,
    isolated_hosts,
    json_query,
    limits,
    metrics,
    numa_topology,
    pci_passthrough,
)
from kilonova.scheduler.hosts.host_state import HostState
from kilonova.scheduler.placement.query import RequestFilterFailed
from kilonova.scheduler.plugins.guard import Guard
from kilonova.scheduler.weighers import amounts, groups, hosts, images, moves
from kilonova.scheduler.weighers import metrics as measured

LOG = logging.getLogger(__name__)


class Conf:
    """The object ``nova.conf.CONF``: it forwards each access to the configuration that ``provide`` received last."""

    _conf: cfg.ConfigOpts | None = None

    def __getattr__(self, name: str) -> Any:
        if Conf._conf is None:
            raise AttributeError(f'the configuration is not loaded yet, so it has no {name}')
        return getattr(Conf._conf, name)

    def __getitem__(self, name: str) -> Any:
        return self.__getattr__(name)

    def __contains__(self, name: str) -> bool:
        return Conf._conf is not None and name in Conf._conf


def _same(text: str) -> str:
    """Return the message unchanged, because messages are not translated."""
    return text


def instance_uuids_overlap(host_state: HostState, uuids: str | Iterable[str]) -> bool:
    """Return whether the host has at least one of these servers. ``uuids`` is one uuid or several."""
    asked = {uuids} if isinstance(uuids, str) else set(uuids)
    return not asked.isdisjoint(host_state.instances)


class BaseFilterHandler:
    """Runs filters in the same way as the scheduler, for plug-ins that use Nova's class of this name."""

    def get_filtered_objects(
        self, filters_: Sequence[filters.BaseFilter], objs: Iterable[Any], spec_obj: RequestSpec, index: int = 0
    ) -> list[Any]:
        """Return the hosts that pass all filters. ``index`` is the server's number in its request, from 0."""
        left = list(objs)
        for one in filters_:
            guard = Guard('Filter', one, spec_obj)
            if bool(left) and guard.call(one.run_filter_for_index, index, default=True):
                left = filters.passing(one, left, spec_obj, guard) or []
                guard.report()
        return left


def _public(module: types.ModuleType) -> dict[str, Any]:
    """Return {name: class} of the public classes that a module defines."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__ and not name.startswith('_')
    }


CONF = Conf()
_FILTERS = 'nova.scheduler.filters'
_WEIGHTS = 'nova.scheduler.weights'
_IN_FILTERS: Mapping[str, types.ModuleType] = MappingProxyType(
    {
        'affinity_filter': affinity,
        'aggregate_image_properties_isolation': aggregates,
        'aggregate_instance_extra_specs': aggregates,
        'aggregate_multitenancy_isolation': aggregates,
        'all_hosts_filter': all_hosts,
        'compute_capabilities_filter': compute_capabilities,
        'compute_filter': compute,
        'image_props_filter': image_properties,
        'io_ops_filter': limits,
        'isolated_hosts_filter': isolated_hosts,
        'json_filter': json_query,
        'metrics_filter': metrics,
        'num_instances_filter': limits,
        'numa_topology_filter': numa_topology,
        'pci_passthrough_filter': pci_passthrough,
        'simple_cidr_affinity_filter': cidr,
        'type_filter': aggregates,
    }
)
_IN_WEIGHTS: Mapping[str, types.ModuleType] = MappingProxyType(
    {
        'affinity': groups,
        'compute': hosts,
        'cpu': amounts,
        'cross_cell': moves,
        'disk': amounts,
        'hypervisor_version': hosts,
        'image_props': images,
        'io_ops': amounts,
        'metrics': measured,
        'num_instances': amounts,
        'pci': hosts,
        'ram': amounts,
    }
)

_OBJECTS: Mapping[str, types.ModuleType] = MappingProxyType(
    {
        'aggregate': aggregate,
        'compute_node': compute_node,
        'flavor': flavor,
        'image_meta': image_meta,
        'instance': instance,
        'instance_group': instance_group,
        'request_spec': request_spec,
        'selection': selection,
    }
)
_MULTIPLIER: Mapping[str, Any] = MappingProxyType({'get_multiplier': weighers.multiplier_of})

# Nova's modules that plug-ins can import, as {module name: {name in the module: Kilonova's object of this name}}.
MODULES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        'nova': {},
        'nova.i18n': dict.fromkeys(('_', '_LI', '_LW', '_LE', '_LC'), _same),
        'nova.conf': {'CONF': CONF},
        'nova.context': {**_public(context), 'get_admin_context': context.get_admin_context},
        'nova.exception': {
            **_public(errors),
            'NovaException': errors.KilonovaError,
            'RequestFilterFailed': RequestFilterFailed,
        },
        'nova.filters': {'BaseFilter': filters.BaseFilter, 'BaseFilterHandler': BaseFilterHandler},
        'nova.utils': {},
        'nova.weights': {
            'BaseWeigher': weighers.BaseHostWeigher,
            'WeighedObject': weighers.WeighedHost,
            'normalize': weighers.normalize,
        },
        'nova.objects': {name: getattr(objects, name) for name in objects.__all__},
        'nova.objects.fields': {name: value for name, value in vars(fields).items() if not name.startswith('_')},
        **{f'nova.objects.{name}': _public(module) for name, module in _OBJECTS.items()},
        'nova.scheduler': {},
        'nova.scheduler.host_manager': {'HostState': HostState},
        'nova.scheduler.utils': _MULTIPLIER,
        _FILTERS: {'BaseHostFilter': filters.BaseHostFilter, 'all_filters': filters.all_filters},
        f'{_FILTERS}.extra_specs_ops': {'match': extra_specs.match},
        f'{_FILTERS}.utils': {
            'aggregate_metadata_get_by_host': aggregates.aggregate_metadata,
            'aggregate_values_from_key': aggregates.aggregate_values,
            'instance_uuids_overlap': instance_uuids_overlap,
            'validate_num_values': aggregates.lowest,
        },
        _WEIGHTS: {
            'BaseHostWeigher': weighers.BaseHostWeigher,
            'WeighedHost': weighers.WeighedHost,
            'all_weighers': weighers.all_weighers,
        },
        f'{_WEIGHTS}.utils': _MULTIPLIER,
        **{f'{_FILTERS}.{name}': _public(module) for name, module in _IN_FILTERS.items()},
        **{f'{_WEIGHTS}.{name}': _public(module) for name, module in _IN_WEIGHTS.items()},
    }
)


def provide(conf: cfg.ConfigOpts, find: Callable[[str], Any] = importlib.util.find_spec) -> bool:
    """Add Nova's module names to ``sys.modules``. Return False, and add nothing, if Nova itself is installed."""
    Conf._conf = conf  # noqa: SLF001 - the class is this module's
    ours = getattr(sys.modules.get('nova'), '__kilonova__', False)
    if not ours and ('nova' in sys.modules or find('nova') is not None):
        return False
    if not ours:
        for name, values in MODULES.items():
            sys.modules[name] = _module(name, values)
        for name in MODULES:
            parent, _, child = name.rpartition('.')
            if parent:
                setattr(sys.modules[parent], child, sys.modules[name])
        LOG.debug('Plug-ins that import modules of nova get replacements from Kilonova')
    return True


def _module(name: str, values: Mapping[str, Any]) -> types.ModuleType:
    module = types.ModuleType(
        name, f'The names of {name} that Kilonova provides; see kilonova.scheduler.plugins.nova_names.'
    )
    module.__dict__.update(values, __kilonova__=True)
    if any(other.startswith(f'{name}.') for other in MODULES):
        # The empty path makes the module a package without files, so that only modules in ``MODULES`` are found.
        module.__path__ = []
    return module

"""Filters and weighers by name: installed entry points (stevedore) and dotted paths.

    filters = load_filters(conf)        # in the order of enabled_filters
    weighers = load_weighers(conf)
"""
from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import stevedore
from oslo_config import cfg
from oslo_utils import importutils

from kilonova import errors
from kilonova.scheduler.filters import ALL_FILTERS, BaseFilter
from kilonova.scheduler.weighers import ALL_WEIGHERS, BaseHostWeigher

FILTERS = 'kilonova.scheduler.filters'
WEIGHERS = 'kilonova.scheduler.weighers'


class SchedulerHostFilterNotFound(errors.NotFound):
    msg_fmt = 'Scheduler Host Filter %(filter_name)s could not be found. Available are: %(available)s.'


class SchedulerWeigherNotFound(errors.NotFound):
    msg_fmt = 'Scheduler weigher %(name)s could not be found. Installed are: %(installed)s.'


class PluginNotLoadable(errors.Invalid):
    msg_fmt = '%(path)s of [filter_scheduler]%(option)s cannot be loaded: %(reason)s'


def load_filters(conf: cfg.ConfigOpts) -> list[BaseFilter]:
    """One of each enabled filter. SchedulerHostFilterNotFound names one that no available_filters entry has."""
    enabled = conf.filter_scheduler.enabled_filters
    classes: dict[str, Any] = {}
    everything = False
    for path in conf.filter_scheduler.available_filters:
        if path in ALL_FILTERS:
            everything = True
            classes |= _entry_points(FILTERS, enabled)
        else:
            classes |= {cls.__name__: cls for cls in _classes(path, 'available_filters')}
    for name in enabled:
        if name not in classes:
            available = classes.keys() | (set(_names(FILTERS)) if everything else set())
            raise SchedulerHostFilterNotFound(filter_name=name, available=', '.join(sorted(available)) or 'none')
    return [_made(classes[name], conf) for name in enabled]


def load_weighers(conf: cfg.ConfigOpts) -> list[BaseHostWeigher]:
    """One of each weigher that weight_classes names."""
    classes: dict[str, Any] = {}
    for path in conf.filter_scheduler.weight_classes:
        if path in ALL_WEIGHERS:
            classes |= _entry_points(WEIGHERS, _names(WEIGHERS))
        elif '.' in path:
            classes |= {cls.__name__: cls for cls in _classes(path, 'weight_classes')}
        else:
            found = _entry_points(WEIGHERS, [path])
            if not found:
                raise SchedulerWeigherNotFound(name=path, installed=', '.join(_names(WEIGHERS)) or 'none')
            classes |= found
    return [_made(cls, conf) for cls in classes.values()]


def _names(namespace: str) -> list[str]:
    return sorted(stevedore.ExtensionManager(namespace).entry_points_names())


def _entry_points(namespace: str, names: Iterable[str]) -> dict[str, Any]:
    def refuse(manager: Any, entry_point: Any, error: BaseException) -> None:
        raise PluginNotLoadable(path=entry_point.value, option=namespace, reason=error) from error

    def miss(names: Iterable[str]) -> None:
        """Callers say what is missing, with what there is."""

    manager: Any = stevedore.NamedExtensionManager(namespace, list(names), on_load_failure_callback=refuse,
                                                   on_missing_entrypoints_callback=miss)
    return {extension.name: extension.plugin for extension in manager}


def _classes(path: str, option: str) -> list[type]:
    """The class at a dotted path, or those that the function there returns."""
    try:
        found = importutils.import_class(path)
        return [found] if inspect.isclass(found) else list(found())
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise PluginNotLoadable(path=path, option=option, reason=error) from error


def _made(cls: Any, conf: cfg.ConfigOpts) -> Any:
    plugin = cls()
    plugin.conf = conf
    return plugin

"""Load filters, weighers and prefilters by name, from entry points (stevedore) and dotted paths.

    filters = load_filters(conf)        # in the order of enabled_filters
    weighers = load_weighers(conf)
    prefilters = load_prefilters(conf)  # Kilonova's in their order, then those of other packages

A name that does not exist, a name that two packages provide, and a plug-in that cannot be loaded prevent the start of
the scheduler; the error lists the available names. Plug-ins of other packages may import Nova's names (``nova_names``).
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable
from importlib.metadata import EntryPoint
from typing import Any

import stevedore
from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import importutils

from kilonova import errors
from kilonova.scheduler import prefilters
from kilonova.scheduler.filters import ALL_FILTERS, BaseFilter
from kilonova.scheduler.plugins import nova_names
from kilonova.scheduler.weighers import ALL_WEIGHERS, BaseHostWeigher

LOG = logging.getLogger(__name__)

FILTERS = 'kilonova.scheduler.filters'
WEIGHERS = 'kilonova.scheduler.weighers'
PREFILTERS = 'kilonova.scheduler.prefilters'
# Beginning of the path of one of Nova's own filters or weighers. Kilonova's class of the same name is loaded instead.
NOVA = 'nova.scheduler.'


class SchedulerHostFilterNotFound(errors.NotFound):
    """An enabled filter does not exist."""

    msg_fmt = 'Scheduler Host Filter %(filter_name)s could not be found. Available are: %(available)s.'


class SchedulerWeigherNotFound(errors.NotFound):
    """A configured weigher does not exist."""

    msg_fmt = 'Scheduler weigher %(name)s could not be found. Installed are: %(installed)s.'


class PluginNotLoadable(errors.Invalid):
    """A plug-in raised an error while it was imported or created."""

    msg_fmt = '%(path)s of [filter_scheduler]%(option)s cannot be loaded: %(reason)s'


class PluginNameClash(errors.Invalid):
    """Several installed packages provide a plug-in of the same name."""

    msg_fmt = (
        'Several packages provide %(name)s of %(group)s: %(values)s. Uninstall all but one of them, or '
        'configure the full path of the class. Installed are: %(installed)s.'
    )


class _Installed:
    """The entry points of a group of plug-ins.

    The plug-ins in ``ours`` are included even if no installed package lists them. A plug-in is imported only when it is
    loaded.
    """

    def __init__(self, group: str, ours: Iterable[Any] = ()) -> None:
        self._group = group
        manager: Any = stevedore.NamedExtensionManager(group, [])
        self._points: dict[str, list[Any]] = {
            one.__name__: [EntryPoint(one.__name__, f'{one.__module__}:{one.__name__}', group)] for one in ours
        }
        for point in manager.list_entry_points():
            if point.value not in [other.value for other in self._points.setdefault(point.name, [])]:
                self._points[point.name].append(point)

    @property
    def names(self) -> list[str]:
        return sorted(self._points)

    def __contains__(self, name: str) -> bool:
        return name in self._points

    def __str__(self) -> str:
        return ', '.join(self.names) or 'none'

    def check(self, names: Iterable[str]) -> None:
        """Raise PluginNameClash if two packages provide one of these names."""
        for name in names:
            points = self._points.get(name, ())
            if len(points) > 1:
                raise PluginNameClash(
                    name=name,
                    group=self._group,
                    installed=str(self),
                    values=', '.join(sorted(point.value for point in points)),
                )

    def load(self, names: Collection[str], conf: cfg.ConfigOpts | None = None) -> dict[str, Any]:
        """Return {name: class} for the names that are installed, in the order of ``names``."""
        self.check(names)
        found = {}
        for name in names:
            if name in self._points:
                point = self._points[name][0]
                if conf is not None and not point.value.startswith('kilonova.'):
                    nova_names.provide(conf)
                found[name] = _loaded(point, self._group)
        return found


def _loaded(point: EntryPoint, group: str) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise PluginNotLoadable(path=point.value, option=group, reason=_why(error)) from error


def load_filters(conf: cfg.ConfigOpts) -> list[BaseFilter]:
    """Return an object of each enabled filter, in the order of ``enabled_filters``.

    Raises:
        SchedulerHostFilterNotFound: No entry of ``available_filters`` provides an enabled filter.
        PluginNameClash: Two installed packages each provide a filter with the name of an enabled filter.
        PluginNotLoadable: A filter raised an error while it was imported or created.
    """
    enabled = conf.filter_scheduler.enabled_filters
    paths = conf.filter_scheduler.available_filters
    installed = _Installed(FILTERS)
    everything = any(path in ALL_FILTERS for path in paths)
    classes: dict[str, Any] = {}
    for path in paths:
        if path not in ALL_FILTERS:
            classes |= {cls.__name__: cls for cls in _classes(path, 'available_filters', conf, installed)}
    # A filter that is named by its path has priority over an installed filter of the same name.
    rest = [name for name in enabled if name not in classes]
    if everything:
        classes |= installed.load(rest, conf)
    for name in enabled:
        if name not in classes:
            available = {*classes, *(installed.names if everything else ())}
            raise SchedulerHostFilterNotFound(filter_name=name, available=', '.join(sorted(available)) or 'none')
    return [_made(classes[name], conf, name) for name in enabled]


def load_weighers(conf: cfg.ConfigOpts) -> list[BaseHostWeigher]:
    """Return an object of each weigher in ``weight_classes``.

    Raises:
        SchedulerWeigherNotFound: No installed package provides a configured weigher.
        PluginNameClash: Two installed packages each provide a weigher of the same name.
        PluginNotLoadable: A weigher raised an error while it was imported or created.
    """
    installed = _Installed(WEIGHERS)
    classes: dict[str, Any] = {}
    for path in conf.filter_scheduler.weight_classes:
        if path in ALL_WEIGHERS:
            classes |= installed.load(installed.names, conf)
        elif '.' in path:
            classes |= {cls.__name__: cls for cls in _classes(path, 'weight_classes', conf, installed)}
        elif path in installed:
            classes |= installed.load([path], conf)
        else:
            raise SchedulerWeigherNotFound(name=path, installed=str(installed))
    return [_made(cls, conf, name) for name, cls in classes.items()]


def load_prefilters(conf: cfg.ConfigOpts) -> list[prefilters.Prefilter]:
    """Return all installed prefilters: Kilonova's in their order, then those of other packages sorted by name."""
    installed = _Installed(PREFILTERS, prefilters.ALL)
    ours = [one.__name__ for one in prefilters.ALL]
    return list(installed.load([*ours, *(name for name in installed.names if name not in ours)], conf).values())


def _classes(path: str, option: str, conf: cfg.ConfigOpts, installed: _Installed) -> list[type]:
    """Return the class at a dotted path, or the classes that the function at this path returns."""
    name = path.rpartition('.')[2]
    if not path.startswith('kilonova.'):
        ours = nova_names.provide(conf)
        if ours and path.startswith(NOVA) and name in installed:
            return list(installed.load([name], conf).values())
    try:
        found = importutils.import_class(path)
        return [found] if inspect.isclass(found) else list(found())
    except Exception as error:
        raise PluginNotLoadable(path=path, option=option, reason=_why(error)) from error


def _why(error: Exception) -> str:
    return f'{type(error).__name__}: {error}'


def _made(cls: Any, conf: cfg.ConfigOpts, name: str) -> Any:
    try:
        plugin = cls()
        plugin.conf = conf
        return plugin
    except Exception as error:
        raise PluginNotLoadable(path=name, option='enabled_filters or weight_classes', reason=_why(error)) from error

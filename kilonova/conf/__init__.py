"""All options: one module a section, registered together.

    conf = kilonova.conf.new()
    conf(['--config-file', 'kilonova.conf'], project='kilonova')
    conf.pci.alias

Each section's module has ``GROUP`` (None for [DEFAULT]) and ``OPTS``. Nothing reads a global configuration: whoever
needs options is given ``conf``.
"""
from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType

from oslo_config import cfg


@functools.cache
def sections() -> tuple[ModuleType, ...]:
    """The modules of all sections, by name."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f'{__name__}.{name}') for name in names]
    return tuple(module for module in modules if hasattr(module, 'OPTS'))


def register(conf: cfg.ConfigOpts) -> cfg.ConfigOpts:
    """Register every section."""
    for section in sections():
        conf.register_opts(section.OPTS, group=section.GROUP)
    return conf


def new() -> cfg.ConfigOpts:
    """A configuration of its own with all options, not parsed yet."""
    return register(cfg.ConfigOpts())


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For oslo-config-generator (entry point ``oslo.config.opts``)."""
    groups: dict[str, list[cfg.Opt]] = {}
    for section in sections():
        groups.setdefault(section.GROUP or 'DEFAULT', []).extend(section.OPTS)
    return sorted(groups.items())

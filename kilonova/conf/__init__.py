"""The configuration options: one module for each section, registered together.

    conf = kilonova.conf.new()
    conf(['--config-file', 'kilonova.conf'], project='kilonova')
    conf.pci.alias

The module of a section has ``GROUP``, its name (None for [DEFAULT]), and ``OPTS``, its options. Kilonova has no global
configuration: code that needs options gets ``conf`` as an argument.

[DEFAULT] has too many options for one file. The module ``base`` has the options that all daemons share, and each module
``base_*`` has the options of one subject: ``base_api``, ``base_compute``, ``base_console`` and so on.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType

from oslo_config import cfg


@functools.cache
def sections() -> tuple[ModuleType, ...]:
    """Return the modules of all sections, sorted by name."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f'{__name__}.{name}') for name in names]
    return tuple(module for module in modules if hasattr(module, 'OPTS'))


def register(conf: cfg.ConfigOpts) -> cfg.ConfigOpts:
    """Register the options of all sections in ``conf``, and return ``conf``."""
    for section in sections():
        conf.register_opts(section.OPTS, group=section.GROUP)
    return conf


def new() -> cfg.ConfigOpts:
    """Return a new configuration with all options. No command line and no file has been parsed yet."""
    return register(cfg.ConfigOpts())


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return all options as (section, options) pairs, for oslo-config-generator (entry point ``oslo.config.opts``)."""
    groups: dict[str, list[cfg.Opt]] = {}
    for section in sections():
        groups.setdefault(section.GROUP or 'DEFAULT', []).extend(section.OPTS)
    return sorted(groups.items())

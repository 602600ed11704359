"""All options: one module a section, registered together.

    conf = kilonova.conf.new()
    conf(['--config-file', 'kilonova.conf'], project='kilonova')
    conf.pci.alias

Each section's module has ``GROUP`` (None for [DEFAULT]) and ``OPTS``. Nothing reads a global configuration: whoever
needs options is given ``conf``.
"""
from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from oslo_config import cfg


def sections() -> Iterator[ModuleType]:
    """The modules of all sections, by name."""
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        module = importlib.import_module(f'{__name__}.{info.name}')
        if hasattr(module, 'OPTS'):
            yield module


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

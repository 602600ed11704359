"""The options that Kilonova and its libraries read: find each by name, and find those in files that nothing reads.

    known.unread(conf)              # [('libvirt', 'virt_typ')]
    known.options(conf)             # {('libvirt', 'virt_type'): StrOpt, ...}
    known.former_names(conf)        # {('DEFAULT', 'libvirt_type'): ('libvirt', 'virt_type'), ...}

An option is named by its section and its name, with ``_`` in the place of ``-``.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from keystoneauth1 import loading as ks_loading
from oslo_config import cfg

import kilonova.conf
from kilonova.conf import devices

# Libraries that read options from Kilonova's configuration files, by their names in oslo-config-generator.
LIBRARIES = ('castellan.config', 'keystonemiddleware.auth_token', 'oslo.log', 'oslo.messaging', 'oslo.reports')

# The section and the name of an option.
Name = tuple[str, str]
# The options of some sections: pairs of a section and its options.
Sections = Iterable[tuple[object, Iterable[cfg.Opt]]]


def unread(conf: cfg.ConfigOpts) -> list[Name]:
    """Return the options in the configuration files that neither Kilonova nor a library registers, sorted."""
    found = {name for path in files(conf) for name in in_file(path)}
    found -= {(group, name) for group, name in found if name in registered(conf, group)}
    if found:
        found -= _names(kilonova.conf.list_opts())
    found -= _names(map(devices.mdev_options, conf.devices.enabled_mdev_types))
    if found:
        found -= _names(_library_options())
    found -= _names(_plugin_options(conf, {group for group, _ in found}))
    return sorted(found)


def options(conf: cfg.ConfigOpts) -> dict[Name, cfg.Opt]:
    """Return all options that a program of Kilonova reads with this configuration, by their current names."""
    return {(_group(section), opt.dest): opt for section, opts in _all(conf) for opt in opts}


def former_names(conf: cfg.ConfigOpts) -> dict[Name, Name]:
    """Return the former names that are still read, each with the current name of its option."""
    current = options(conf)
    return {
        old: (_group(section), opt.dest)
        for section, opts in _all(conf)
        for opt in opts
        for old in _former(_group(section), opt)
        if old not in current
    }


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options of all libraries, too, so that their values can be read and are checked."""
    for section, opts in _all(conf):
        for opt in opts:
            group = _group(section)
            if opt.dest not in registered(conf, group):
                conf.register_opt(opt, group=None if group == 'DEFAULT' else group)


def registered(conf: cfg.ConfigOpts, group: str) -> Iterable[str]:
    """Return the names of the options that are registered in a section. If there is no such section, return ()."""
    if group == 'DEFAULT':
        return conf
    return conf[group] if group in conf else ()  # noqa: SIM401 - its get() raises for what it doesn't know


def files(conf: cfg.ConfigOpts) -> list[Path]:
    """Return the files that this configuration was read from, in the order in which oslo.config read them."""
    found = [Path(name) for name in conf.config_file or ()]
    for folder in conf.config_dir or ():
        found.extend(sorted(Path(folder).glob('*.conf')))
    return found


def in_file(path: Path) -> dict[Name, list[str]]:
    """Return {(section, option): values as written in a file}. An option may occur several times in the file.

    Raises cfg.ParseError if a line is neither a section nor an option, and OSError if the file can't be read.
    """
    sections: dict[str, dict[str, list[str]]] = {}
    cfg.ConfigParser(str(path), sections).parse()
    found: dict[Name, list[str]] = {}
    for group, opts in sections.items():
        for name, values in opts.items():
            found.setdefault((group, name.replace('-', '_')), []).extend(values)
    return found


def _all(conf: cfg.ConfigOpts) -> Iterator[tuple[object, Sequence[cfg.Opt]]]:
    """Yield the options of each section: Kilonova's, its libraries', and those of the chosen auth plug-ins."""
    yield from _library_options()
    yield from kilonova.conf.list_opts()
    yield from map(devices.mdev_options, conf.devices.enabled_mdev_types)
    yield from _plugin_options(conf, {group for group, _ in kilonova.conf.list_opts()} | {'keystone_authtoken'})


def _plugin_options(conf: cfg.ConfigOpts, groups: Iterable[str]) -> Iterator[tuple[str, Sequence[cfg.Opt]]]:
    """Yield the options of the keystoneauth plug-in that each of these sections chooses by ``auth_type``."""
    for group in groups:
        plugin = conf[group].auth_type if 'auth_type' in registered(conf, group) else None
        if plugin:
            yield group, ks_loading.get_auth_plugin_conf_options(plugin)


def _library_options() -> Iterator[tuple[object, Sequence[cfg.Opt]]]:
    for entry in importlib.metadata.entry_points(group='oslo.config.opts'):
        if entry.name in LIBRARIES:
            yield from entry.load()()


def _names(sections: Sections) -> set[Name]:
    """Return the current and former names of these options."""
    return {
        name
        for section, opts in sections
        for opt in opts
        for name in ((_group(section), opt.dest), *_former(_group(section), opt))
    }


def _group(section: object) -> str:
    return str(getattr(section, 'name', section) or 'DEFAULT')


def _former(group: str, opt: cfg.Opt) -> Iterator[Name]:
    for old in opt.deprecated_opts:
        yield old.group or group, (old.name or opt.name).replace('-', '_')

"""The configuration of a program: parsed, checked, and what in its files is never read.

    conf = options.parse(argv, 'kilonova-compute')
    options.warn_unread(conf)
"""
from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from keystoneauth1 import loading as ks_loading
from oslo_config import cfg
from oslo_log import log as logging
from oslo_reports import opts as report_opts

import kilonova.conf
from kilonova.cmd import outages
from kilonova.conf import devices, wsgi
from kilonova.rpc import versions

LOG = logging.getLogger(__name__)

PROJECT = 'kilonova'
# Libraries whose options take effect in one of the daemons, by their names for oslo-config-generator.
LIBRARIES = ('castellan.config', 'keystonemiddleware.auth_token', 'oslo.log', 'oslo.messaging', 'oslo.reports')
# Each report_interval of this many a service_down_time is one late heartbeat from being down.
LATE_HEARTBEATS = 2.5

Name = tuple[str, str]


def version() -> str:
    """The release of this installation."""
    try:
        return importlib.metadata.version(PROJECT)
    except importlib.metadata.PackageNotFoundError:
        return '0.0.0'


def new() -> cfg.ConfigOpts:
    """Every option of ours and those of the libraries that don't register theirs by themselves."""
    conf = kilonova.conf.new()
    logging.register_options(conf)
    report_opts.set_defaults(conf)
    _register_hidden(conf)
    return conf


def parse(argv: Sequence[str], prog: str, conf: cfg.ConfigOpts | None = None) -> cfg.ConfigOpts:
    """The configuration of a program; a mistake in arguments or files ends it with a message."""
    conf = conf or new()
    try:
        conf(list(argv), project=PROJECT, prog=prog, version=version())
        for group, opts in kilonova.conf.list_opts():
            for opt in opts:
                # A value is only checked when it is read, which may be much later.
                _ = (conf if group == 'DEFAULT' else conf[group])[opt.dest]
        for mdev_type in conf.devices.enabled_mdev_types:
            section = devices.mdev_section(conf, mdev_type)
            _ = [section[name] for name in section]
    except cfg.Error as error:
        raise SystemExit(f'{prog}: {error}') from None
    return conf


def setup_logging(conf: cfg.ConfigOpts) -> None:
    """Logging as the options say; called again it opens the files anew."""
    # The plugins that it loads are not worth a line each; the revisions that it runs are.
    quiet = ['alembic.runtime.plugins=WARNING', 'alembic.ddl=WARNING']
    logging.set_defaults(default_log_levels=[*logging.get_default_log_levels(), *quiet])
    logging.setup(conf, PROJECT, version())
    outages.quieten()


def reload(conf: cfg.ConfigOpts) -> bool:
    """Read the files again (SIGHUP) and take over what may change in place; False: all stays as it was."""
    LOG.info('Caught SIGHUP, reading the configuration again')
    try:
        # A bad value would be taken over, and raise whenever it is read.
        parse([argument for option, paths in (('--config-file', conf.config_file), ('--config-dir', conf.config_dir))
               for path in paths or () for argument in (option, path)], PROJECT)
        conf.mutate_config_files()
        setup_logging(conf)
    except (Exception, SystemExit):
        # oslo.config ends the program for a bad value of an option that the command line has too.
        LOG.exception('The configuration stays as it was')
        return False
    return True


def check_intervals(conf: cfg.ConfigOpts) -> None:
    """Raise a service_down_time that live services would not keep."""
    least = int(conf.report_interval * LATE_HEARTBEATS)
    if conf.service_down_time <= least:
        LOG.warning('Report interval must be less than service down time. Current config: <service_down_time: %d, '
                    'report_interval: %d>. Setting service_down_time to: %d', conf.service_down_time,
                    conf.report_interval, least + 1)
        conf.set_override('service_down_time', least + 1)


def cap(conf: cfg.ConfigOpts, interface: str) -> str | None:
    """The version to which [upgrade_levels] pins messages to an interface (a name of ``rpc.versions``); None: to none.

    The option ``conductor`` is for both of the conductor's interfaces: 1.x for compute tasks, 3.x for the other. What
    no release has that works beside this one is refused (ConfigFileValueError).
    """
    option = 'conductor' if interface == 'compute_task' else interface
    value = conf.upgrade_levels[option]
    if not value or value == 'auto':
        return None
    names = ('conductor', 'compute_task') if option == 'conductor' else (interface,)
    accepted = {name: versions.accepted(name) for name in names}
    if not any(value in known for known in accepted.values()):
        words = ', '.join(version for known in accepted.values() for version in known)
        raise cfg.ConfigFileValueError(f'[upgrade_levels]{option} is {value!r}: accepted are auto, {words}')
    return value if value in accepted[interface] else None


def warn_unread(conf: cfg.ConfigOpts) -> None:
    """One WARNING with the options of the configuration files that no program here reads: misspelt, or of something
    we lack; the API has another for a paste file. Once a daemon, not once a worker."""
    names = unread(conf)
    if names:
        LOG.warning('The configuration files set options that nobody here reads: %s',
                    ', '.join(f'[{group}]{name}' for group, name in names))
    if conf.prog == 'kilonova-api':
        _warn_of_paste(conf)


def _warn_of_paste(conf: cfg.ConfigOpts) -> None:
    """One WARNING that names an operator's api-paste.ini: who changed it there would look for the effect in vain."""
    name = conf.wsgi.api_paste_config
    found = conf.find_file(name)
    if found or name != wsgi.PASTE:
        LOG.warning('%s is passed over: [wsgi]api_paste_config names a file of Nova, and the order of the filters in '
                    'front of this API is part of the program', found or name)


def unread(conf: cfg.ConfigOpts) -> list[Name]:
    """(section, option) of the configuration files that neither we nor a library registers, by name."""
    found = set(_in_files(conf))
    found -= {(group, name) for group, name in found if name in _registered(conf, group)}
    if found:
        found -= _known(kilonova.conf.list_opts())
    found -= _known(map(devices.mdev_options, conf.devices.enabled_mdev_types))
    if found:
        found -= _known(_library_options())
    for group in {group for group, _ in found}:
        plugin = conf[group].auth_type if 'auth_type' in _registered(conf, group) else None
        if plugin:
            found -= _known([(group, ks_loading.get_auth_plugin_conf_options(plugin))])
    return sorted(found)


def _in_files(conf: cfg.ConfigOpts) -> Iterator[Name]:
    files = [Path(name) for name in conf.config_file or ()]
    for folder in conf.config_dir or ():
        files.extend(sorted(Path(folder).glob('*.conf')))
    for path in files:
        sections: dict[str, dict[str, list[str]]] = {}
        cfg.ConfigParser(str(path), sections).parse()
        for group, options in sections.items():
            yield from ((group, name.replace('-', '_')) for name in options)


def _registered(conf: cfg.ConfigOpts, group: str) -> Iterable[str]:
    if group == 'DEFAULT':
        return conf
    return conf[group] if group in conf else ()  # noqa: SIM401 - its get() raises for what it doesn't know


def _known(options: Iterable[tuple[str | None, Iterable[cfg.Opt]]]) -> set[Name]:
    known = set()
    for section, opts in options:
        group = str(getattr(section, 'name', section) or 'DEFAULT')
        for opt in opts:
            known.add((group, opt.dest))
            for old in opt.deprecated_opts:
                known.add((old.group or group, (old.name or opt.name).replace('-', '_')))
    return known


def _library_options() -> Iterator[tuple[str | None, Iterable[cfg.Opt]]]:
    for entry in importlib.metadata.entry_points(group='oslo.config.opts'):
        if entry.name in LIBRARIES:
            yield from entry.load()()


def _register_hidden(conf: cfg.ConfigOpts) -> None:
    """oslo.messaging reads these of any configuration, and registers them with the global one only."""
    for name in ('tracing', 'metrics'):
        group = f'oslo_messaging_{name}'
        try:
            module = importlib.import_module(f'oslo_messaging._{name}.client')
        except ImportError:
            continue
        conf.register_opts(getattr(module, group), group=group)

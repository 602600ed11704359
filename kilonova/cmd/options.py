"""Read and check the configuration of a program, and find options in its files that are never read.

    conf = options.parse(argv, 'kilonova-compute')
    options.warn_unread(conf)

All daemons and command-line tools use the module.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Sequence

from oslo_config import cfg
from oslo_log import log as logging
from oslo_reports import opts as report_opts

import kilonova.conf
from kilonova.cmd.daemon import broker_log_filter
from kilonova.conf import devices, known, wsgi
from kilonova.rpc import versions

LOG = logging.getLogger(__name__)

PROJECT = 'kilonova'
# service_down_time must be at least this many times report_interval, so that one late heartbeat does no harm.
LATE_HEARTBEATS = 2.5


def version() -> str:
    """Return the release of this installation."""
    try:
        return importlib.metadata.version(PROJECT)
    except importlib.metadata.PackageNotFoundError:
        return '0.0.0'


def new() -> cfg.ConfigOpts:
    """Return a configuration with all options of Kilonova.

    The configuration also has the options of libraries that don't register their options themselves.
    """
    conf = kilonova.conf.new()
    logging.register_options(conf)
    report_opts.set_defaults(conf)
    _register_hidden(conf)
    return conf


def parse(argv: Sequence[str], prog: str, conf: cfg.ConfigOpts | None = None) -> cfg.ConfigOpts:
    """Return the configuration of a program. A mistake in arguments or files ends the program with a message."""
    conf = conf or new()
    try:
        conf(list(argv), project=PROJECT, prog=prog, version=version())
        for group, opts in kilonova.conf.list_opts():
            for opt in opts:
                # Read each value now, because it is checked only when it is read, which may be much later.
                _ = (conf if group == 'DEFAULT' else conf[group])[opt.dest]
        for mdev_type in conf.devices.enabled_mdev_types:
            section = devices.mdev_section(conf, mdev_type)
            _ = [section[name] for name in section]
    except cfg.Error as error:
        raise SystemExit(f'{prog}: {error}') from None
    return conf


def setup_logging(conf: cfg.ConfigOpts) -> None:
    """Set up logging as the options say. A further call opens the log files again."""
    # Leave out Alembic's lines about loaded plugins, and keep its lines about the revisions that it applies.
    quiet = ['alembic.runtime.plugins=WARNING', 'alembic.ddl=WARNING']
    logging.set_defaults(default_log_levels=[*logging.get_default_log_levels(), *quiet])
    logging.setup(conf, PROJECT, version())
    broker_log_filter.quieten()


def reload(conf: cfg.ConfigOpts) -> bool:
    """Read the configuration files again after SIGHUP, and apply options that may change at run time.

    Return False if an error occurred and everything stays as it was.
    """
    LOG.info('Caught SIGHUP, reading the configuration again')
    try:
        # Parse the files into a copy first, so that a file with a wrong value raises an error here and is not applied.
        parse(
            [
                argument
                for option, paths in (('--config-file', conf.config_file), ('--config-dir', conf.config_dir))
                for path in paths or ()
                for argument in (option, path)
            ],
            PROJECT,
        )
        conf.mutate_config_files()
        setup_logging(conf)
    except (Exception, SystemExit):
        # oslo.config raises SystemExit if a file has a wrong value for an option that the command line also sets.
        LOG.exception('The configuration could not be read again: all options keep their values')
        return False
    return True


def check_intervals(conf: cfg.ConfigOpts) -> None:
    """Increase the option service_down_time if it is so short that running services would count as down."""
    least = int(conf.report_interval * LATE_HEARTBEATS)
    if conf.service_down_time <= least:
        LOG.warning(
            'Report interval must be less than service down time. Current config: <service_down_time: %d, '
            'report_interval: %d>. Setting service_down_time to: %d',
            conf.service_down_time,
            conf.report_interval,
            least + 1,
        )
        conf.set_override('service_down_time', least + 1)


def cap(conf: cfg.ConfigOpts, interface: str) -> str | None:
    """Return the version to which [upgrade_levels] limits messages to an interface, or None if there is no limit.

    ``interface`` is a name of ``rpc.versions``. The option ``conductor`` is for two interfaces: a value 1.x limits only
    the interface compute_task, and a value 3.x only the interface conductor. For the other interface the result is
    None. Raises ConfigFileValueError if no release that can run together with this release has the version.
    """
    option = 'conductor' if interface == 'compute_task' else interface
    value = conf.upgrade_levels[option]
    if not value or value == 'auto':
        return None
    names = ('conductor', 'compute_task') if option == 'conductor' else (interface,)
    accepted = {name: versions.accepted(name) for name in names}
    if not any(value in known for known in accepted.values()):
        words = ', '.join(version for known in accepted.values() for version in known)
        raise cfg.ConfigFileValueError(f'[upgrade_levels]{option} is {value!r}: accepted values are auto, {words}')
    return value if value in accepted[interface] else None


def warn_unread(conf: cfg.ConfigOpts) -> None:
    """Log one WARNING with the options in the configuration files that no program of Kilonova reads.

    An option is not read if it is misspelt or not supported. The API logs another WARNING for a paste file. The
    function is called once for a daemon, not for each worker.
    """
    names = known.unread(conf)
    if names:
        LOG.warning(
            'The configuration files set options that Kilonova does not read: %s',
            ', '.join(f'[{group}]{name}' for group, name in names),
        )
    if conf.prog == 'kilonova-api':
        _warn_of_paste(conf)


def _warn_of_paste(conf: cfg.ConfigOpts) -> None:
    """Log a WARNING that names an operator's api-paste.ini, because changes in that file have no effect."""
    name = conf.wsgi.api_paste_config
    found = conf.find_file(name)
    if found or name != wsgi.PASTE:
        LOG.warning(
            '%s is ignored: [wsgi]api_paste_config names a file of Nova, but the order of the filters of this '
            'API is part of the program',
            found or name,
        )


def _register_hidden(conf: cfg.ConfigOpts) -> None:
    """Register options that oslo.messaging reads, but registers only in oslo.config's global configuration."""
    for name in ('tracing', 'metrics'):
        group = f'oslo_messaging_{name}'
        try:
            module = importlib.import_module(f'oslo_messaging._{name}.client')
        except ImportError:
            continue
        conf.register_opts(getattr(module, group), group=group)

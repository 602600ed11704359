"""Translate the nova.conf of a running Nova into a kilonova.conf.

    translation = config.translate(config.ConfigRequest([Path('/etc/nova/nova.conf')], Path('own.conf')), options.new)
    if not translation.problems:
        config.write(translation, Path('kilonova.conf'))

Kilonova's options have the names and sections of Nova's. Each option in Nova's files is copied, copied under
its new name, or listed as without effect. The URLs of databases and broker must differ from those of the running Nova.
They come from a file that the operator writes for Kilonova.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.metadata
import os
import re
import string
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import oslo_messaging
from oslo_config import cfg

import kilonova.conf
from kilonova import errors
from kilonova.adopt import nova_options
from kilonova.conf import cinder, known, libvirt
from kilonova.conf.known import Name
from kilonova.db import explain
from kilonova.scheduler.plugins.loading import load_filters, load_weighers

# The most files that are read, and the most bytes of each.
MOST_FILES = 64
MOST_BYTES = 1 << 20
# Options whose values must differ from Nova's, because Kilonova has its own databases and broker while Nova still runs.
DATABASES: tuple[Name, ...] = (('database', 'connection'), ('api_database', 'connection'))
BROKER: Name = ('DEFAULT', 'transport_url')
OWN = (BROKER, *DATABASES)
STATE_PATH: Name = ('DEFAULT', 'state_path')
NOTIFICATION_BROKER: Name = ('oslo_messaging_notifications', 'transport_url')
NOTIFICATION_DRIVER: Name = ('oslo_messaging_notifications', 'driver')
# Options whose default in Kilonova is another text than in Nova but means the same. They are not reported as different.
OWN_DEFAULTS: tuple[Name, ...] = (
    ('DEFAULT', 'host'),
    ('filter_scheduler', 'available_filters'),
    ('filter_scheduler', 'weight_classes'),
)
DRIVERS = 'kilonova.virt.drivers'
# The section of nova.conf with the RPC versions of Nova's services.
# Kilonova has other RPC versions, so no option of the section is translated.
VERSIONS = 'upgrade_levels'
# An option as an operator writes it.
OPTION = re.compile(r'\[([^]\s]+)\]([A-Za-z0-9_-]+)')


class UnreadableFile(errors.Invalid):
    """A configuration file does not exist, is too large, or has a line that is no option."""

    msg_fmt = '%(path)s: %(reason)s'


class OutputExists(errors.Invalid):
    """The output file can't be written, for example because it exists already or its directory does not exist."""

    msg_fmt = '%(path)s cannot be written: %(reason)s'


@dataclass(frozen=True)
class ConfigRequest:
    """A request to translate Nova's configuration files.

    ``nova`` are Nova's files, in the order in which its daemons read them, or directories of such files. ``own`` is a
    file that the operator wrote for Kilonova; its options take precedence over Nova's. ``left_out`` are options of
    Nova's files that the operator doesn't want to have translated.
    """

    nova: Sequence[Path]
    own: Path | None = None
    left_out: frozenset[Name] = frozenset()


@dataclass(frozen=True)
class Setting:
    """An option that one or more files set.

    ``values`` are all its values, as written, in the order of reading. ``path`` is the last file that sets it.
    """

    name: Name
    values: tuple[str, ...]
    path: Path

    def __str__(self) -> str:
        return shown(self.name)


@dataclass(frozen=True)
class OptionLine:
    """An option to write to kilonova.conf.

    ``comment`` is the comment line above the option that says where the option comes from. It is None if the option has
    the same name in nova.conf.
    """

    name: Name
    values: tuple[str, ...]
    comment: str | None = None


@dataclass
class Translation:
    """The result of ``translate``.

    Attributes:
        written: The options for kilonova.conf.
        renamed: Pairs (the option's name in Nova's files, its name in Kilonova).
        without_effect: Pairs (option of Nova's files that is not written, the reason).
        defaults: Triples (option that no file sets, Nova's default, Kilonova's other default).
        problems: The reasons why no file can be written, a sentence each.
    """

    written: list[OptionLine] = field(default_factory=list)
    renamed: list[tuple[Name, Name]] = field(default_factory=list)
    without_effect: list[tuple[Name, str]] = field(default_factory=list)
    defaults: list[tuple[Name, str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def shown(name: Name) -> str:
    """Return an option as operators write it: [section]name."""
    return f'[{name[0]}]{name[1]}'


def option_name(text: str) -> Name:
    """Return the option that a text such as '[libvirt]virt_type' names. Raises ValueError for another text."""
    found = OPTION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f'{text!r} is no option: write [section]name')
    return found[1], found[2].replace('-', '_')


def translate(request: ConfigRequest, blank: Callable[[], cfg.ConfigOpts]) -> Translation:
    """Return the translation of Nova's files. ``blank`` returns a configuration with all options of Kilonova.

    Raises UnreadableFile. Other mistakes in the files are in ``problems``.
    """
    nova = _read(_expanded(request.nova))
    own = _read([request.own] if request.own else [])
    translation = Translation()
    with _parsed(_raw(nova, own), blank) as conf:
        _Sorter(conf, nova, own, request.left_out, translation).run()
    with _parsed(text_of(translation), blank) as conf:
        translation.problems += _refused(conf, translation)
        translation.defaults = _other_defaults({one.name for one in translation.written})
    return translation


@contextlib.contextmanager
def parsed(paths: Sequence[Path], blank: Callable[[], cfg.ConfigOpts]) -> Iterator[cfg.ConfigOpts]:
    """Parse Nova's files with Kilonova's options, and provide the configuration in a ``with`` block.

    An option that no file sets has Kilonova's default. ``blank`` returns a configuration with all options of Kilonova.
    Raises UnreadableFile.
    """
    with _parsed(_raw(_read(_expanded(paths)), {}), blank) as conf:
        yield conf


# --- reading
def _expanded(paths: Iterable[Path]) -> list[Path]:
    """Return the files, with the ``*.conf`` files of each directory in its place."""
    return [file for path in paths for file in (sorted(path.glob('*.conf')) if path.is_dir() else [path])]


def _read(paths: Sequence[Path]) -> dict[Name, Setting]:
    """Return the options that the files set; values of an option in several files are in the order of the files."""
    if len(paths) > MOST_FILES:
        raise UnreadableFile(path=paths[MOST_FILES], reason=f'more than {MOST_FILES} files are not read')
    found: dict[Name, Setting] = {}
    for path in paths:
        try:
            if path.stat().st_size > MOST_BYTES:
                raise UnreadableFile(path=path, reason=f'more than {MOST_BYTES} bytes are not read')
            options = known.in_file(path)
        except OSError as error:
            raise UnreadableFile(path=path, reason=error.strerror or str(error)) from None
        except (cfg.ParseError, UnicodeDecodeError) as error:
            raise UnreadableFile(path=path, reason=str(error)) from None
        for name, values in options.items():
            before = found[name].values if name in found else ()
            found[name] = Setting(name, (*before, *values), path)
    return found


# --- deciding on each option
class _Sorter:
    """A sorter of the options in Nova's files and in the operator's file into the lists of a translation.

    ``conf`` is parsed from all these files. ``own`` are the options of the operator's file.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        nova: Mapping[Name, Setting],
        own: Mapping[Name, Setting],
        left_out: frozenset[Name],
        translation: Translation,
    ) -> None:
        self._conf = conf
        self._nova, self._own, self._left_out = nova, own, left_out
        self._options, self._former = known.options(conf), known.former_names(conf)
        self._overridden = {self._current(name) for name in own}
        self._result = translation

    def run(self) -> None:
        """Put each option into the translation's list ``written``, ``renamed``, ``without_effect`` or ``problems``."""
        for name in sorted(self._left_out - set(self._nova)):
            self._result.problems.append(f'{shown(name)} cannot be left out: none of the files of Nova sets it')
        for setting in self._own.values():
            self._take_own(setting)
        for setting in self._nova.values():
            self._take(setting)
        self._check_own()
        self._check_state_path()
        self._keep_notifications()

    def _current(self, name: Name) -> Name | None:
        """Return the name that an option has in Kilonova, or None if Kilonova doesn't read it."""
        if name in self._options:
            return name
        if name in self._former:
            return self._former[name]
        option = nova_options.find(name)
        return option.name if option is not None and option.name in self._options else None

    def _take_own(self, setting: Setting) -> None:
        current = self._current(setting.name)
        if current is None:
            self._result.problems.append(self._unknown(setting))
        else:
            self._write(current, setting, f'from {setting.path}')

    def _take(self, setting: Setting) -> None:
        name, current = setting.name, self._current(setting.name)
        if name in self._left_out:
            self._result.without_effect.append((name, 'left out as asked for'))
        elif name[0] == VERSIONS:
            self._result.without_effect.append((name, "Nova's versions of messages mean nothing here"))
        elif current in OWN:
            pass  # URL of a database or the broker: the operator's file must set it, see _check_own
        elif current is None:
            self._pass_over(setting)
        elif current in self._overridden:
            self._result.without_effect.append((name, f'the own file sets {shown(current)}'))
        elif current != name and current in self._nova:
            self._result.without_effect.append((name, f'{shown(current)} is set, too, and has priority'))
        elif current != name:
            self._result.renamed.append((name, current))
            self._write(current, setting, f'in Nova: {shown(name)}')
        else:
            self._write(current, setting, None)

    def _pass_over(self, setting: Setting) -> None:
        option = nova_options.find(setting.name)
        if option is None:
            self._result.problems.append(self._unknown(setting))
            return
        if setting.values[-1] == (option.default or ''):
            reason = "has Nova's default"
        else:
            reason = nova_options.loss_of(option)
        self._result.without_effect.append((setting.name, reason))

    def _write(self, name: Name, setting: Setting, comment: str | None) -> None:
        values = setting.values if self._options[name].multi else setting.values[-1:]
        self._result.written.append(OptionLine(name, values, comment))

    def _unknown(self, setting: Setting) -> str:
        names = {*self._options, *nova_options.known()}
        near = difflib.get_close_matches(
            setting.name[1], [name for group, name in names if group == setting.name[0]], 1
        )
        if near:
            hint = f'did you mean {shown((setting.name[0], near[0]))}?'
        else:
            elsewhere = sorted(shown(name) for name in names if name[1] == setting.name[1])[:3]
            hint = f'the name exists as {", ".join(elsewhere)}.' if elsewhere else 'no option has a similar name.'
        return (
            f'{setting} in {setting.path} is an option of neither Nova nor Kilonova: {hint} '
            f"Correct it, or give it up by --leave-out '{setting}'"
        )

    # --- what must differ from Nova's
    def _check_own(self) -> None:
        for name in OWN:
            mine = [one.values[-1] for one in self._own.values() if self._current(one.name) == name]
            # Each database URL of the operator is compared with both database URLs of Nova.
            kinds = (BROKER,) if name == BROKER else DATABASES
            theirs = [one.values[-1] for one in self._nova.values() if self._current(one.name) in kinds]
            what = 'broker' if name == BROKER else 'database'
            if not mine:
                self._result.problems.append(
                    f"Set {shown(name)} in the file of --own: Kilonova needs a {what} beside Nova's"
                )
            elif any(self._same(name, mine[-1], url) for url in theirs):
                self._result.problems.append(
                    f'{shown(name)} in the file of --own names the {what} of Nova: it must be one of its own'
                    + (', at least another virtual host' if name == BROKER else '')
                )

    def _same(self, name: Name, mine: str, theirs: str) -> bool:
        """Return whether two URLs lead to the same database, or to the same virtual host of a broker.

        ``name`` is the option, ``mine`` is its value for Kilonova, and ``theirs`` a value in Nova's files.
        """
        try:
            if name != BROKER:
                databases = urlsplit(mine), urlsplit(theirs)
                # If only one URL has a port, the ports count as equal: the other URL may mean the same port by default.
                ports = {url.port for url in databases} - {None}
                return len(ports) < 2 and len({(url.hostname, url.path) for url in databases}) == 1
            one, other = (oslo_messaging.TransportURL.parse(self._conf, url) for url in (mine, theirs))
        except (oslo_messaging.InvalidTransportURL, ValueError):
            # A URL can't be parsed. Compare the texts only: ``_refused`` reports a malformed URL of a database.
            return mine == theirs
        hosts = {(host.hostname, host.port) for host in one.hosts} & {
            (host.hostname, host.port) for host in other.hosts
        }
        return bool(hosts) and (one.virtual_host or '/') == (other.virtual_host or '/')

    def _check_state_path(self) -> None:
        if not any(one.name == STATE_PATH for one in self._result.written):
            self._result.problems.append(
                "None of the files sets [DEFAULT]state_path. Nova's default is the directory of its package, and "
                'distributions set /var/lib/nova in a file such as /usr/share/nova/nova-dist.conf: name that file '
                'before the others, or set state_path in the file of --own'
            )

    def _keep_notifications(self) -> None:
        """Make Kilonova send its notifications to Nova's broker, where the consumers of the notifications listen.

        Adds [oslo_messaging_notifications]transport_url to the translation, unless it is set or notifications are off.
        """
        written = {one.name: one for one in self._result.written}
        drivers = set(written[NOTIFICATION_DRIVER].values) if NOTIFICATION_DRIVER in written else set()
        brokers = [one for one in self._nova.values() if self._current(one.name) == BROKER]
        if drivers - {'', 'noop'} and NOTIFICATION_BROKER not in written and brokers:
            self._result.written.append(
                OptionLine(
                    NOTIFICATION_BROKER,
                    brokers[-1].values[-1:],
                    'the transport_url of Nova: the readers of its notifications listen at this broker',
                )
            )


# --- checking the result
def _refused(conf: cfg.ConfigOpts, translation: Translation) -> Iterator[str]:
    """Yield a sentence for each value that Kilonova's daemons refuse at their start."""
    known.register(conf)
    options = known.options(conf)
    bad = []
    for one in translation.written:
        for value in one.values:
            reason = _reason(conf, options[one.name], value)
            if reason:
                shown_value = 'a value that is not shown here' if options[one.name].secret else repr(value)
                bad.append(f'{shown(one.name)} is {shown_value}: {reason}')
    yield from (f'{text}. Correct it, set it in the file of --own, or leave it out by --leave-out' for text in bad)
    if bad or translation.problems:
        return
    checks = (explain.check_urls, cinder.check_zones, _check_driver, _check_images, load_filters, load_weighers)
    for check in checks:
        try:
            check(conf)
        except (cfg.Error, errors.KilonovaError) as error:
            yield str(error)


def _reason(conf: cfg.ConfigOpts, opt: cfg.Opt, value: str) -> str | None:
    """Return why the option does not take this value, or None if it does.

    A value may refer to other options, as in ``$state_path/instances``. Of such a value only the references are
    checked: each option to which it refers must exist.
    """
    template = string.Template(value)
    names = [found['named'] or found['braced'] for found in template.pattern.finditer(value)]
    for name in filter(None, names):
        group, _, rest = name.rpartition('.')
        if rest not in known.registered(conf, group or 'DEFAULT'):
            return f'there is no option {name} to which ${name} could refer'
    if any(names):
        return None
    try:
        opt.type(value.replace('$$', '$'))
    except ValueError as error:
        return str(error).rstrip('.')
    return None


def _check_driver(conf: cfg.ConfigOpts) -> None:
    """Raise ConfigFileValueError if no package provides the driver that [DEFAULT]compute_driver names."""
    names = sorted({point.name for point in importlib.metadata.entry_points(group=DRIVERS)})
    if conf.compute_driver and conf.compute_driver not in names:
        raise cfg.ConfigFileValueError(
            f'[DEFAULT]compute_driver is {conf.compute_driver!r}: there are the drivers {", ".join(names)}'
        )


def _other_defaults(written: set[Name]) -> list[tuple[Name, str, str]]:
    """Return the options of Kilonova with another default than Nova's that are not in ``written``."""
    found = []
    for section, opts in kilonova.conf.list_opts():
        for opt in opts:
            theirs = nova_options.known().get((section, opt.dest))
            if (section, opt.dest) in {*written, *OWN_DEFAULTS} or theirs is None or theirs.until is not None:
                continue
            ours = _text(opt.default)
            if sorted(ours.split(',')) != sorted((theirs.default or '').split(',')):
                found.append(((section, opt.dest), theirs.default or '', ours))
    return sorted(found)


def _text(value: object) -> str:
    """Return an option's default as text, as nova_options.json stores it: '' for None, a list joined by commas."""
    if value is None:
        return ''
    return ','.join(map(str, value)) if isinstance(value, list) else str(value)


def _check_images(conf: cfg.ConfigOpts) -> None:
    """Raise ConfigFileValueError if kilonova-compute does not start with the value of [libvirt]images_type."""
    if conf.libvirt.images_type not in libvirt.IMAGE_TYPES:
        raise cfg.ConfigFileValueError(
            f'[libvirt]images_type is {conf.libvirt.images_type}: computes start with {", ".join(libvirt.IMAGE_TYPES)}'
        )


# --- writing
def text_of(translation: Translation, head: str = '') -> str:
    """Return the text of kilonova.conf. ``head`` is the comment at its beginning."""
    lines = [f'# {line}' for line in head.splitlines()]
    sections: dict[str, list[OptionLine]] = {}
    for one in translation.written:
        sections.setdefault(one.name[0], []).append(one)
    for section in sorted(sections, key=lambda name: (name != 'DEFAULT', name)):
        lines += ['', f'[{section}]']
        for one in sections[section]:
            lines += [f'# {one.comment}'] if one.comment else []
            lines += [_line(one.name[1], value) for value in one.values]
    if translation.without_effect:
        lines += ['', '# Options of Nova without effect here:']
        lines += [f'#   {shown(name)}: {reason}' for name, reason in sorted(translation.without_effect)]
    return '\n'.join(lines).lstrip('\n') + '\n'


def _line(name: str, value: str) -> str:
    """Return the text 'name = value'. If the value has several lines, all lines after the first are indented."""
    first, *rest = value.split('\n')
    if not rest and (first != first.strip() or (len(first) > 1 and first[0] == first[-1] and first[0] in '\'"')):
        first = f'"{first}"'
    return '\n'.join([f'{name} = {first}'.rstrip(), *(f'    {line}' for line in rest)])


def _raw(nova: Mapping[Name, Setting], own: Mapping[Name, Setting]) -> str:
    """Return the options of Nova's files and of the operator's file (``own``) as one configuration text, ``own`` last.

    The text is parsed to find out which options Kilonova has: some sections exist only because an option names them.
    """
    written = [OptionLine(one.name, one.values) for one in (*nova.values(), *own.values())]
    return text_of(Translation(written))


@contextlib.contextmanager
def _parsed(text: str, blank: Callable[[], cfg.ConfigOpts]) -> Iterator[cfg.ConfigOpts]:
    """Parse a configuration text, and provide the configuration in a ``with`` block.

    ``blank`` returns a configuration with all options of Kilonova, without values.
    """
    with tempfile.TemporaryDirectory(prefix='kilonova-adopt-') as directory:
        path = Path(directory) / 'kilonova.conf'
        path.touch(mode=0o600)
        path.write_text(text)
        conf = blank()
        conf(['--config-file', str(path)], project='kilonova', default_config_files=[], default_config_dirs=[])
        yield conf


def write(translation: Translation, path: Path, head: str) -> None:
    """Write kilonova.conf, readable by its owner alone. Raises OutputExists; then nothing was written."""
    text = text_of(translation, head)
    part = path.with_name(f'.{path.name}.{os.getpid()}')
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), 'w') as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # os.link fails if ``path`` exists. A rename would overwrite the existing file.
        os.link(part, path)
    except OSError as error:
        raise OutputExists(path=path, reason=error.strerror or str(error)) from None
    finally:
        part.unlink(missing_ok=True)

"""The common parts of the command-line tools: the class ``Cloud``, which commands use, and the code that runs them.

    TREE = {'db': {'sync': Command(db_sync, (VERSION,))}}
    sys.exit(run('kilonova-manage', parser(TREE), argv))

A command is a function that takes the ``Cloud`` and the parsed arguments, prints its output, and returns the exit code.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from kilonova import concurrency

if TYPE_CHECKING:
    from oslo_config import cfg

# Exit code for an error that the command does not expect.
ERROR = 255
# Exit code that a shell shows for a program ended by SIGPIPE.
READER_GONE = 141


class Cloud:
    """The databases and settings of a command, each created at its first use.

    If ``takes_long`` is True, SQL statements have no time limit.
    """

    def __init__(self, conf: cfg.ConfigOpts, takes_long: bool = False) -> None:
        self.conf = conf
        self._changed = {'statement_timeout': 0} if takes_long else {}

    @cached_property
    def databases(self) -> Any:
        """The databases that the configuration names, as a ``Databases`` object."""
        from kilonova.db import engine, explain

        explain.check_urls(self.conf)
        return engine.configure(self.conf, **self._changed)

    @cached_property
    def cells(self) -> Any:
        """The databases of the cells, as a ``CellDatabases`` object."""
        from kilonova.db.queries.cells import CellDatabases

        return CellDatabases(self.databases, self.transport_url)

    @cached_property
    def transport_url(self) -> str | None:
        """The value of ``[DEFAULT]transport_url`` as configured."""
        import oslo_messaging

        oslo_messaging.TransportURL.parse(self.conf)
        found: str | None = self.conf.transport_url
        return found


def argument(*names: str, **settings: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the description of a command's argument: a pair (names, settings) for argparse's ``add_argument``."""
    return names, settings


@dataclass(frozen=True)
class Command:
    """A command: a function and its arguments.

    ``takes_long`` is True for commands whose SQL statements process whole tables; these have no time limit.
    ``unanswered`` is the exit code if a service that the command needs does not answer.
    """

    run: Callable[[Cloud, argparse.Namespace], int]
    arguments: Sequence[tuple[tuple[str, ...], dict[str, Any]]] = field(default=())
    takes_long: bool = False
    unanswered: int = ERROR


# A dict from a word of the command line to a command, or to a further dict of this kind.
Tree: TypeAlias = 'Mapping[str, Command | Tree]'

VERBOSE = argument('--verbose', action='store_true', help='print more details')

# Arguments that every program accepts before its command.
COMMON = (
    argument('--config-file', action='append', default=[], metavar='PATH', help='configuration file; may be repeated'),
    argument(
        '--config-dir',
        action='append',
        default=[],
        metavar='DIR',
        help='directory of configuration files; may be repeated',
    ),
    argument('--log-file', metavar='PATH'),
    argument('--debug', '-d', action='store_true'),
)


def parser(prog: str, description: str, tree: Tree) -> argparse.ArgumentParser:
    """Return the command-line parser of a program. ``tree`` has its commands (see ``Tree``)."""
    made = argparse.ArgumentParser(prog=prog, description=description, epilog='Exit code 255: an unexpected error.')
    for names, settings in COMMON:
        made.add_argument(*names, **settings)
    _grow(made.add_subparsers(metavar='COMMAND', required=True), tree)
    return made


def _grow(branches: Any, tree: Tree) -> None:
    for name, node in tree.items():
        if isinstance(node, Command):
            text = (node.run.__doc__ or '').strip()
            leaf = branches.add_parser(name, help=text, description=text)
            for names, settings in node.arguments:
                leaf.add_argument(*names, **settings)
            leaf.set_defaults(run=node.run, takes_long=node.takes_long, unanswered=node.unanswered)
        else:
            branch = branches.add_parser(name, help=', '.join(node))
            _grow(branch.add_subparsers(metavar='ACTION', required=True), node)


def config_arguments(args: argparse.Namespace) -> list[str]:
    """Return the part of the command line that is for oslo.config."""
    words = [word for path in args.config_file for word in ('--config-file', path)]
    words += [word for path in args.config_dir for word in ('--config-dir', path)]
    words += ['--log-file', args.log_file] if args.log_file else []
    return words + (['--debug'] if args.debug else [])


def run(prog: str, command_line: argparse.ArgumentParser, argv: Sequence[str] | None, trouble: str) -> int:
    """Parse the command line, run the command, and return its exit code.

    For an unexpected error, the text ``trouble`` and the traceback are printed. For other errors one line is printed,
    and the traceback only with --debug.
    """
    try:
        try:
            return _run(prog, command_line, argv, trouble)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The program that reads the output has ended, as in 'kilonova-manage device list | head'.
        # Replace standard output by /dev/null, so that Python's last write at its exit raises no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE


def _run(prog: str, command_line: argparse.ArgumentParser, argv: Sequence[str] | None, trouble: str) -> int:
    warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')
    args = command_line.parse_args(argv)
    # Let the garbage collector run rarely, because a command is short and most of its objects stay until its end.
    gc.set_threshold(100_000, 50, 50)
    concurrency.setup('threading')
    from kilonova.cmd import options

    conf = options.new()
    # Write log lines to standard error, because standard output is for the output of the commands.
    conf.set_default('use_stderr', True)
    conf = options.parse(config_arguments(args), prog, conf)
    options.setup_logging(conf)
    cloud = Cloud(conf, args.takes_long)
    try:
        found: int = args.run(cloud, args)
        return found
    except Exception as error:  # noqa: BLE001 - told in a line, or its traceback is printed
        from kilonova.db import explain
        from kilonova.errors import Unanswered

        line = explain.line(vars(cloud).get('databases'), error)
        if line is not None:
            print(f'{prog}: {line}', file=sys.stderr)
        if line is None or args.debug:
            print(trouble)
            traceback.print_exc(file=sys.stdout)
        return int(args.unanswered) if isinstance(error, Unanswered) else ERROR
    finally:
        if 'databases' in vars(cloud):
            cloud.databases.dispose()


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table, left aligned."""
    from prettytable import PrettyTable

    made = PrettyTable(list(columns))
    made.align = 'l'
    made.add_rows([list(row) for row in rows])
    print(made)


def moment(text: str) -> datetime.datetime:
    """Convert a date as people write it ('2026-03-01', 'Mar 1 2026 12:00') to naive UTC.

    Raises ValueError if the text is not a date.
    """
    from dateutil import parser as dates

    try:
        found = dates.parse(text)
    except (dates.ParserError, OverflowError) as error:
        raise ValueError(str(error)) from None
    answer: datetime.datetime = found if found.tzinfo is None else found.astimezone(datetime.UTC).replace(tzinfo=None)
    return answer

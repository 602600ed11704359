"""What kilonova-manage and kilonova-status share: the cloud that commands work on, and how a program of commands runs.

    TREE = {'db': {'sync': Command(db_sync, (VERSION,))}}
    sys.exit(run('kilonova-manage', parser(TREE), argv))

A command gets the ``Cloud`` and its arguments, prints, and returns the exit code.
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

# The exit code of an error that no command expects.
ERROR = 255
# What a shell shows of a program that SIGPIPE ended.
READER_GONE = 141


class Cloud:
    """What the commands work on, made when it is first needed. ``takes_long``: statements have no limit of time."""

    def __init__(self, conf: cfg.ConfigOpts, takes_long: bool = False) -> None:
        self.conf = conf
        self._changed = {'statement_timeout': 0} if takes_long else {}

    @cached_property
    def databases(self) -> Any:
        """The databases of the configuration."""
        from kilonova.db import engine, explain
        explain.check_urls(self.conf)
        return engine.configure(self.conf, **self._changed)

    @cached_property
    def cells(self) -> Any:
        """The databases of the cells."""
        from kilonova.db.queries.cells import Cells
        return Cells(self.databases, self.transport_url)

    @cached_property
    def transport_url(self) -> str | None:
        """[DEFAULT]transport_url as it is written."""
        import oslo_messaging
        oslo_messaging.TransportURL.parse(self.conf)
        found: str | None = self.conf.transport_url
        return found


def argument(*names: str, **settings: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """One argument of a command, as argparse takes it."""
    return names, settings


@dataclass(frozen=True)
class Command:
    """A function and its arguments. ``takes_long``: its statements work through whole tables. ``unanswered``: the exit
    code where a service that it asks does not answer."""

    run: Callable[[Cloud, argparse.Namespace], int]
    arguments: Sequence[tuple[tuple[str, ...], dict[str, Any]]] = field(default=())
    takes_long: bool = False
    unanswered: int = ERROR


# A command, or more words, by word.
Tree: TypeAlias = 'Mapping[str, Command | Tree]'

VERBOSE = argument('--verbose', action='store_true', help='tell more')

# Those of every program, before the command.
COMMON = (
    argument('--config-file', action='append', default=[], metavar='PATH', help='may be repeated'),
    argument('--config-dir', action='append', default=[], metavar='DIR', help='may be repeated'),
    argument('--log-file', metavar='PATH'),
    argument('--debug', '-d', action='store_true'),
)


def parser(prog: str, description: str, tree: Tree) -> argparse.ArgumentParser:
    """The whole command line of a program; ``tree``: {word: Command, or more words}."""
    made = argparse.ArgumentParser(prog=prog, description=description,
                                   epilog='Exit code 255: an error that no command expects.')
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
    """The part of the command line that is oslo.config's."""
    words = [word for path in args.config_file for word in ('--config-file', path)]
    words += [word for path in args.config_dir for word in ('--config-dir', path)]
    words += ['--log-file', args.log_file] if args.log_file else []
    return words + (['--debug'] if args.debug else [])


def run(prog: str, command_line: argparse.ArgumentParser, argv: Sequence[str] | None, trouble: str) -> int:
    """Parse, run the command, and give back its exit code; ``trouble`` is printed before the traceback of an error that
    nobody expects. Of others there is one line, and the traceback with --debug."""
    try:
        try:
            return _run(prog, command_line, argv, trouble)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # As in 'kilonova-manage device list | head': what is left has nowhere to go, and Python would say so at its
        # end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE


def _run(prog: str, command_line: argparse.ArgumentParser, argv: Sequence[str] | None, trouble: str) -> int:
    warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')
    args = command_line.parse_args(argv)
    # A command is short, and most of it are imports: what they make is no garbage.
    gc.set_threshold(100_000, 50, 50)
    concurrency.setup('threading')
    from kilonova.cmd import options
    conf = options.new()
    # Standard output is for what the commands print.
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
    """A date as people write it ('2026-03-01', 'Mar 1 2026 12:00'), naive UTC; ValueError."""
    from dateutil import parser as dates
    try:
        found = dates.parse(text)
    except (dates.ParserError, OverflowError) as error:
        raise ValueError(str(error)) from None
    answer: datetime.datetime = found if found.tzinfo is None else found.astimezone(datetime.UTC).replace(tzinfo=None)
    return answer

"""kilonova-manage adopt: take over a running Nova."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kilonova.cmd.cli import Cloud, Command, argument

if TYPE_CHECKING:
    from kilonova.adopt.config import Translation

OUTPUT = 'kilonova.conf'


def config(cloud: Cloud, args: argparse.Namespace) -> int:
    """Write a kilonova.conf from the configuration files of Nova.

    Each option is taken, renamed, or listed as without effect. What must differ from Nova (transport_url of [DEFAULT],
    connection of [database] and [api_database]) comes from the file of --own. Exit code 1: there are problems, each is
    printed, and no file is written.
    """
    from kilonova import errors
    from kilonova.adopt import config as adopt
    from kilonova.cmd import options

    try:
        request = adopt.ConfigRequest(
            [Path(name) for name in args.nova_conf],
            Path(args.own) if args.own else None,
            frozenset(map(adopt.option_name, args.leave_out)),
        )
        translation = adopt.translate(request, options.new)
        if not translation.problems:
            adopt.write(translation, Path(args.output), f'Made by kilonova-manage adopt config from {_listed(args)}.')
    except (ValueError, errors.Invalid) as error:
        print(error)
        return 1
    _report(translation)
    if translation.problems:
        print(f'\n{len(translation.problems)} problems, nothing is written:')
        for problem in translation.problems:
            print(f'- {problem}')
        return 1
    print(f'\n{args.output} is written, readable by its owner alone.')
    return 0


def _listed(args: argparse.Namespace) -> str:
    return ', '.join([*args.nova_conf, *([args.own] if args.own else [])])


def _report(translation: Translation) -> None:
    from kilonova.adopt.config import shown

    print(f'{len(translation.written)} options are taken.')
    _section('Renamed:', [f'{shown(old)} is {shown(new)} in Kilonova' for old, new in sorted(translation.renamed)])
    _section(
        'Without effect in Kilonova:',
        [f'{shown(name)}: {reason}' for name, reason in sorted(translation.without_effect)],
    )
    _section(
        "Not set, and Kilonova's default differs from Nova's:",
        [
            f'{shown(name)}: {theirs or "not set"} in Nova, {ours or "not set"} here'
            for name, theirs, ours in translation.defaults
        ],
    )


def _section(title: str, lines: Sequence[str]) -> None:
    if lines:
        print(f'\n{title}')
        for line in lines:
            print(f'- {line}')


ADOPT = {
    'config': Command(
        config,
        (
            argument('nova_conf', nargs='+', metavar='NOVA_CONF', help='file of Nova, or directory of *.conf files'),
            argument('--own', metavar='FILE', help='file whose options take precedence over those of Nova'),
            argument('--output', metavar='PATH', default=OUTPUT, help=f'the file to write (default: {OUTPUT})'),
            argument(
                '--leave-out',
                action='append',
                default=[],
                metavar='[SECTION]OPTION',
                help="give up an option of Nova's files; may be repeated",
            ),
        ),
    )
}

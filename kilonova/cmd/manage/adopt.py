"""kilonova-manage adopt: take over a running Nova."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kilonova.cmd.cli import Cloud, Command, argument

if TYPE_CHECKING:
    from oslo_config import cfg

    from kilonova.adopt.check import Report
    from kilonova.adopt.config import Translation
    from kilonova.adopt.host import HostFiles
    from kilonova.adopt.obstacles import Obstacle
    from kilonova.adopt.verify import Mirror

OUTPUT = 'kilonova.conf'
# The most rows of a kind of obstacle that are printed.
MOST_ROWS = 100_000


def config(cloud: Cloud, args: argparse.Namespace) -> int:
    """Write a kilonova.conf from the configuration files of Nova.

    Each option of Nova's files is copied, copied under its new name, or listed in a comment as without effect. The URLs
    that must differ from Nova's (transport_url of [DEFAULT], connection of [database] and [api_database]) come from the
    file that --own names. Exit code 1: there are problems, each is printed, and no file is written.
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


def check(cloud: Cloud, args: argparse.Namespace) -> int:
    """Print how many rows Kilonova would copy from a running Nova, and the obstacles to adopting it.

    The databases that Nova's configuration files name are only read. Exit code 1: there is an obstacle that is not
    accepted, or a database can't be read.
    """
    from kilonova import errors
    from kilonova.adopt import check as adopt
    from kilonova.adopt import cloud as nova_cloud
    from kilonova.cmd import options

    try:
        with nova_cloud.opened([Path(name) for name in args.nova_conf], options.new) as nova:
            report = adopt.run(nova, args.most)
    except (errors.Invalid, errors.Unavailable) as error:
        print(error)
        return 1
    _print_counts(report)
    left = report.obstacles.left(args.accept)
    _print_obstacles([one for one in report.obstacles.sorted() if one not in left], 'Accepted:')
    _print_obstacles(left, 'In the way:')
    kinds = len({one.kind for one in left})
    print(
        f'\n{kinds} kind{"s" * (kinds > 1)} of obstacle{"s" * (kinds > 1)}. Nothing was changed.'
        if left
        else '\nNothing stands in the way.'
    )
    return 1 if left else 0


def copy(cloud: Cloud, args: argparse.Namespace) -> int:
    """Copy the rows of a running Nova into Kilonova's databases, or what has changed since the last copy.

    Nova's databases are only read. Nothing is copied if an obstacle prevents that rows are read. With --last nothing is
    copied if there is any obstacle of adopt check that is not accepted, or if a conductor or scheduler of Nova still
    runs. Exit code 1: nothing was copied, or the copy ended at a row that can't be converted.
    """
    from kilonova import errors
    from kilonova.adopt import check as adopt_check
    from kilonova.adopt import cloud as nova_cloud
    from kilonova.adopt import copy as adopt
    from kilonova.adopt.obstacles import UNREADABLE
    from kilonova.cmd import options
    from kilonova.db.nova.merge import Counts

    try:
        with nova_cloud.opened([Path(name) for name in args.nova_conf], options.new) as nova:
            left = adopt_check.run(nova, args.most).obstacles.left(args.accept)
            later = [] if args.last else [one for one in left if one.kind not in UNREADABLE]
            now = [one for one in left if one not in later]
            running = adopt.running(nova) if args.last else []
            if now or running:
                _print_obstacles(now, 'In the way:')
                _section('Still running (stop it, and wait for some seconds):', running)
                print('\nNothing was copied.')
                return 1
            copied = adopt.run(nova, cloud.databases, cloud.cells, print)
    except (errors.Invalid, errors.Unavailable) as error:
        print(error)
        return 1
    total = sum(copied.values(), Counts())
    print(f'\n{total.total} rows: {total.inserted} new, {total.changed} changed, {total.deleted} deleted.')
    if later:
        kinds = ', '.join(sorted({one.kind for one in later}))
        print(f"In the way of the last copy (see 'kilonova-manage adopt check'): {kinds}.")
    return 0


def begin(cloud: Cloud, args: argparse.Namespace) -> int:
    """Mark Nova's databases, so that Nova does not start any more, and let Kilonova's controllers start.

    It needs a last copy after which Nova has not changed. Nothing else is written into Nova's databases. Exit code 1:
    nothing was marked.
    """
    from kilonova import errors
    from kilonova.adopt import begin as adopt
    from kilonova.adopt import cloud as nova_cloud
    from kilonova.cmd import options

    try:
        with nova_cloud.opened([Path(name) for name in args.nova_conf], options.new, writable=True) as nova:
            adopt.run(nova, cloud.databases, cloud.cells)
            print(f"Nova's databases are marked: {', '.join(adopt.marked(nova))}. Start Kilonova's controllers now.")
    except (errors.Invalid, errors.Unavailable) as error:
        print(error)
        return 1
    return 0


def back(cloud: Cloud, args: argparse.Namespace) -> int:
    """Write what has changed since the takeover into Nova's databases, so that Nova can start again.

    All daemons of Kilonova must be stopped. With --check nothing is written. Exit code 1: something stands in the way,
    and nothing was written, or a database does not answer: then repeat the command.
    """
    from kilonova import errors
    from kilonova.adopt import back as adopt
    from kilonova.adopt import cloud as nova_cloud
    from kilonova.cmd import options
    from kilonova.db.nova.merge import Counts

    try:
        with nova_cloud.opened([Path(name) for name in args.nova_conf], options.new, writable=True) as nova:
            plan = adopt.plan(nova, cloud.databases, cloud.cells, args.most)
            _section('In the way:', plan.obstacles)
            if plan.obstacles:
                print('\nNothing was written.')
                return 1
            _section('Stays with Kilonova:', [f'{number} {words}' for words, number in plan.staying.items()])
            counts = plan.counts if args.check else adopt.run(plan, print)
    except (errors.Invalid, errors.Unavailable) as error:
        print(error)
        return 1
    total = sum(counts.values(), Counts())
    what = f'{total.inserted} rows new, {total.changed} changed, {total.deleted} deleted'
    if args.check:
        print(f'\nNothing was written. In Nova there would be: {what}.')
    else:
        print(f"\n{what}. Nova's databases have no mark any more: give the hosts back, and start Nova's controllers.")
    return 0


def record(cloud: Cloud, args: argparse.Namespace) -> int:
    """Record the answers of a compute API to all GET requests of an administrator and of a member, for adopt verify.

    Each request reads only. Exit code 1: the API does not answer or refuses a list, or an account cannot be used; no
    file is written.
    """
    from kilonova import errors
    from kilonova.adopt import answers
    from kilonova.adopt import record as adopt

    path = Path(args.answers)
    try:
        count = answers.write(path, adopt.everything(adopt.accounts(Path(args.accounts))))
    except (errors.Invalid, errors.Unanswered, OSError) as error:
        print(error)
        return 1
    print(f'{path} has {count} answers.')
    return 0


def verify(cloud: Cloud, args: argparse.Namespace) -> int:
    """Compare recorded answers of Nova with the present answers of Kilonova to the same requests.

    Differences are printed by kind, those that are expected with their reason. Exit code 1: there are others.
    """
    from kilonova import errors
    from kilonova.adopt import answers, record
    from kilonova.adopt import verify as adopt

    mirror = adopt.Mirror()
    try:
        accounts = {one.role: one for one in record.accounts(Path(args.accounts))}
        for answer in answers.read(Path(args.answers)):
            mirror.add(answer, *accounts[answer.role].get(answer.path, answer.version))
    except (errors.Invalid, errors.Unanswered) as error:
        print(error)
        return 1
    print(f'{mirror.compared} answers were compared.')
    _section(
        'Expected differences:',
        [f'{kind} ({mirror.numbers[kind]}): {mirror.first[kind].reason}' for kind in mirror.kinds(expected=True)],
    )
    others = mirror.kinds(expected=False)
    _section('Other differences:', [_difference(mirror, kind) for kind in others])
    if not others:
        print('\nThere are no other differences.')
    return 1 if others else 0


def host(cloud: Cloud, args: argparse.Namespace) -> int:
    """Turn the files of this host, where nova-compute ran, into those of kilonova-compute, or back with --back.

    Guests run on, and no disk is touched. With --check nothing is changed. Exit code 1: an obstacle was printed, and
    nothing was changed.
    """
    from kilonova import errors
    from kilonova.adopt import config as adopt_config
    from kilonova.adopt import host as adopt
    from kilonova.cmd import options

    try:
        with adopt_config.parsed([Path(name) for name in args.nova_conf], options.new) as nova:
            place, problems = _place(cloud, nova)
        program = 'kilonova-compute' if args.back else 'nova-compute'
        process = adopt.running(program)
        if process is not None and not args.check:
            problems.append(f'{program} runs on this machine (process {process}): stop it first')
        if args.back:
            return _give_back(place, problems)
        plan = adopt.plan(place, adopt.guests_of(cloud.conf))
        problems += plan.problems
        _section('To know:', plan.notes)
        _section('In the way:', problems)
        if not problems and not args.check:
            adopt.adopt(plan)
    except (errors.KilonovaError, OSError) as error:
        print(error)
        return 1
    what = f'{len(plan.infos)} records of disks, {len(plan.owned)} directories of guests of {place.host}'
    if problems or args.check:
        print(f'\nNothing was changed. {what} are to be adopted.')
        return 1 if problems else 0
    print(f'\n{what} are adopted. Start kilonova-compute now.')
    return 0


def _place(cloud: Cloud, nova: cfg.ConfigOpts) -> tuple[HostFiles, list[str]]:
    """Return the directories of this host, and a message for each option that must have the same value in Nova.

    Such options are host and instances_path. A message is returned only if nova.conf and kilonova.conf differ.
    """
    from kilonova.adopt.host import HostFiles

    ours = cloud.conf
    problems = [
        f'[DEFAULT]{name} is {ours[name]} in the configuration of Kilonova, and {nova[name]} in that of Nova: it must '
        'be the same'
        for name in ('host', 'instances_path')
        if nova[name] != ours[name]
    ]
    return HostFiles(ours.host, Path(ours.instances_path), Path(nova.state_path), Path(ours.state_path)), problems


def _give_back(place: HostFiles, problems: Sequence[str]) -> int:
    from kilonova.adopt.host import give_back

    _section('In the way:', problems)
    if problems:
        return 1
    print(f'{give_back(place)} servers have the files of Nova again. Start nova-compute now.')
    return 0


def _difference(mirror: Mirror, kind: str) -> str:
    one = mirror.first[kind]
    return (
        f'{kind} ({mirror.numbers[kind]}), first in {one.answer.path} of {one.answer.role} at {one.answer.version}: '
        f'{one.ours!r:.200} here, {one.theirs!r:.200} in Nova'
    )


def _print_counts(report: Report) -> None:
    for name, release in report.releases.items():
        print(f'{name}: {release}')
    for name, counts in report.counts.items():
        _section(f'Would come from {name}:', [f'{number} {words}' for words, number in counts.items() if number])


def _print_obstacles(found: Sequence[Obstacle], title: str) -> None:
    from kilonova.adopt.obstacles import KINDS

    if found:
        print(f'\n{title}')
    for one in found:
        kind = KINDS[one.kind]
        print(f'\n{one.kind} ({one.number} in {one.where}): {kind.why}.')
        print(f'  What to do: {kind.remedy}.')
        if kind.loss is not None:
            print(f'  Or accept by --accept {one.kind}: {kind.loss}.')
        for what in one.first:
            print(f'  - {what}')
        if one.number > len(one.first):
            print(f'  - and {one.number - len(one.first)} more')


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


def _kind(word: str) -> str:
    """Return ``word``, the value of --accept, if it is a kind of obstacle that an operator can accept.

    Raises ArgumentTypeError otherwise.
    """
    from kilonova.adopt.obstacles import acceptable

    if word not in acceptable():
        raise argparse.ArgumentTypeError(
            f'{word!r} is no kind of obstacle that can be accepted; kinds: {", ".join(acceptable())}'
        )
    return word


def _most(word: str) -> int:
    """Return the value of --most as a number. Raises ArgumentTypeError if it is no number from 1 to MOST_ROWS."""
    if not word.isdecimal() or not 1 <= int(word) <= MOST_ROWS:
        raise argparse.ArgumentTypeError(f'{word!r} is no number from 1 to {MOST_ROWS}')
    return int(word)


ACCEPT = argument(
    '--accept',
    action='append',
    default=[],
    type=_kind,
    metavar='KIND',
    help='accept what is lost by this kind of obstacle; may be repeated',
)
MOST = argument(
    '--most', type=_most, default=20, metavar='N', help='print at most so many rows of a kind (default: 20)'
)
ANSWERS = argument('answers', metavar='FILE', help='file of recorded answers, such as answers.json.gz')
ACCOUNTS = argument(
    '--accounts',
    required=True,
    metavar='FILE',
    help='file with the sections [admin] and [member], each with an account as in [placement] of nova.conf',
)
NOVA_CONF = argument('nova_conf', nargs='+', metavar='NOVA_CONF', help='file of Nova, or directory of *.conf files')
ADOPT = {
    'check': Command(
        check,
        (
            NOVA_CONF,
            ACCEPT,
            MOST,
        ),
        takes_long=True,
    ),
    'config': Command(
        config,
        (
            NOVA_CONF,
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
    ),
    'copy': Command(
        copy,
        (
            NOVA_CONF,
            argument(
                '--last', action='store_true', help="the last copy: Nova's API is closed, and nothing may be in the way"
            ),
            ACCEPT,
            MOST,
        ),
        takes_long=True,
    ),
    'begin': Command(begin, (NOVA_CONF,), takes_long=True),
    'back': Command(
        back,
        (
            NOVA_CONF,
            argument('--check', action='store_true', help='write nothing; say what would be written'),
            MOST,
        ),
        takes_long=True,
    ),
    'record': Command(record, (ANSWERS, ACCOUNTS)),
    'verify': Command(verify, (ANSWERS, ACCOUNTS)),
    'host': Command(
        host,
        (
            NOVA_CONF,
            argument('--check', action='store_true', help='change nothing; nova-compute may run'),
            argument('--back', action='store_true', help='give the files back to nova-compute'),
        ),
    ),
}

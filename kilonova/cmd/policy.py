"""kilonova-policy: print the policy rules, find redundant rules in the policy file, and show which rules a user passes.

    kilonova-policy sample --output-file /etc/kilonova/policy.yaml.sample
    kilonova-policy --config-file kilonova.conf list-redundant
    kilonova-policy --config-file kilonova.conf check --roles member,reader --project 6f70656e --rule servers:

The programs of oslo.policy can use the same rules under the name ``kilonova``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oslo_config import cfg

from kilonova.cmd import cli
from kilonova.cmd.cli import Cloud, Command, argument

if TYPE_CHECKING:
    from oslo_policy import policy

PROG = 'kilonova-policy'
NAMESPACE = 'kilonova'


def sample(cloud: Cloud, args: argparse.Namespace) -> int:
    """Print a sample policy file: each rule with its default and what it protects, in comment lines."""
    from oslo_policy import generator

    words = ['--namespace', NAMESPACE]
    if args.output_file:
        words += ['--output-file', args.output_file]
    # Use a separate configuration, because the generator registers arguments that are not options of Kilonova.
    generator.generate_sample(words, conf=cfg.ConfigOpts())
    return 0


def list_redundant(cloud: Cloud, args: argparse.Namespace) -> int:
    """Print the rules of the policy file that are equal to their defaults."""
    enforcer = _enforcer(cloud.conf)
    for name, rule in sorted(enforcer.file_rules.items()):
        if name in enforcer.registered_rules and rule == enforcer.registered_rules[name]:
            print(rule)
    return 0


def check(cloud: Cloud, args: argparse.Namespace) -> int:
    """Check the policy file for mistakes (exit code 1). With --roles, print which rules a caller with them passes."""
    from oslo_policy.policy import InvalidDefinitionError

    enforcer = _enforcer(cloud.conf)
    wrong = [f'unknown rule: {name}' for name in sorted(set(enforcer.file_rules) - set(enforcer.registered_rules))]
    try:
        enforcer.check_rules(raise_on_violation=True)
    except InvalidDefinitionError as error:
        wrong.append(str(error))
    for line in wrong:
        print(line)
    if args.roles is not None:
        _print_answers(enforcer, args)
    return 1 if wrong else 0


def _print_answers(enforcer: policy.Enforcer, args: argparse.Namespace) -> None:
    roles = [role.strip() for role in args.roles.split(',') if role.strip()]
    caller = {'roles': roles, 'user_id': args.user, 'project_id': args.project}
    caller['is_admin'] = bool(enforcer.authorize('context_is_admin', dict(caller), {**caller, 'is_admin': False}))
    target = {'user_id': args.user, 'project_id': args.project}
    target.update(pair.partition('=')[::2] for pair in args.target)
    for name in sorted(enforcer.registered_rules):
        if ':' in name and args.rule in name:
            print(f'{"passed" if enforcer.authorize(name, target, caller) else "failed"}: {name}')


def _enforcer(conf: cfg.ConfigOpts) -> Any:
    from kilonova.api.policies import loaded

    return loaded(conf)


def get_enforcer() -> Any:
    """Return the enforcer of this cloud's policy rules, for the programs of oslo.policy.

    The function is the entry point of ``oslo.policy.enforcer``. It reads --config-file and --config-dir from the
    command line of the program.
    """
    from kilonova.cmd import options

    line = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ('--config-file', '--config-dir'):
        line.add_argument(name, action='append', default=[])
    line.set_defaults(log_file=None, debug=False)
    known, _ = line.parse_known_args(sys.argv[1:])
    return _enforcer(options.parse(cli.config_arguments(known), PROG))


TREE = {
    'sample': Command(
        sample, (argument('--output-file', metavar='PATH', help='file to write instead of standard output'),)
    ),
    'list-redundant': Command(list_redundant),
    'check': Command(
        check,
        (
            argument('--roles', help='comma-separated roles of a caller, including implied roles'),
            argument('--user', default='user', help='user id of the caller'),
            argument('--project', default='project', help='project id of the caller'),
            argument(
                '--target',
                action='append',
                default=[],
                metavar='NAME=VALUE',
                help='project_id or user_id of the resource; default: those of the caller',
            ),
            argument('--rule', default='', help='only rules whose name contains this text'),
        ),
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run kilonova-policy; the entry point of the console script."""
    return cli.run(
        PROG,
        cli.parser(PROG, 'Show and check the policy rules of a Kilonova cloud.', TREE),
        argv,
        'An error has occurred:',
    )


if __name__ == '__main__':
    sys.exit(main())

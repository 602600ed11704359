"""kilonova-manage: the operators' tool for schemas, cells, keys, devices, operations, periodic tasks and the audit.

    kilonova-manage --config-file kilonova.conf cell_v2 discover_hosts --verbose

Each group of commands is in a module of its own in this package.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from kilonova.cmd import cli
from kilonova.cmd.cli import Cloud, Command
from kilonova.cmd.manage import adopt as manage_adopt
from kilonova.cmd.manage import cells as manage_cells
from kilonova.cmd.manage import completion
from kilonova.cmd.manage import db as manage_db
from kilonova.cmd.manage import device_state as manage_device_state
from kilonova.cmd.manage import devices as manage_devices
from kilonova.cmd.manage import operations as manage_operations
from kilonova.cmd.manage import periodic as manage_periodic
from kilonova.cmd.manage import placement as manage_placement
from kilonova.cmd.manage import scheduler as manage_scheduler
from kilonova.cmd.manage import secrets as manage_secrets

PROG = 'kilonova-manage'


def print_completion(cloud: Cloud, args: argparse.Namespace) -> int:
    """Print the bash completion for the commands of kilonova-manage, kilonova-status and kilonova-policy."""
    from kilonova.cmd import policy, status

    print(completion.bash({PROG: TREE, status.PROG: status.TREE, policy.PROG: policy.TREE}), end='')
    return 0


TREE: dict[str, dict[str, Command] | Command] = {
    'api_db': manage_db.API_DB,
    'db': manage_db.DB,
    'cell_v2': manage_cells.CELL_V2,
    'device': {**manage_devices.DEVICE, **manage_device_state.DEVICE},
    'placement': manage_placement.PLACEMENT,
    'audit': manage_devices.AUDIT,
    'operation': manage_operations.OPERATION,
    'periodic': manage_periodic.PERIODIC,
    'scheduler': manage_scheduler.SCHEDULER,
    'secrets': manage_secrets.SECRETS,
    'adopt': manage_adopt.ADOPT,
    'completion': Command(print_completion),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    return cli.parser(PROG, 'Manage the databases, cells, keys and devices of a Kilonova cloud, and audit it.', TREE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run kilonova-manage; the entry point of the console script."""
    return cli.run(PROG, parser(), argv, 'An error has occurred:')


if __name__ == '__main__':
    sys.exit(main())

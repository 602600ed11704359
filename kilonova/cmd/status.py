"""kilonova-status upgrade check: is this installation ready for this release?

    kilonova-status --config-file kilonova.conf upgrade check

Exit code 0: all is well; 1: a warning; 2: a failure; 255: an error that no check expects.
"""
from __future__ import annotations

import argparse
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

from kilonova import concurrency
from kilonova.cmd.manage import Cloud, config_arguments

PROG = 'kilonova-status'
WIDTH = 60
NEEDED_PLACEMENT = (1, 36)


class Result(IntEnum):
    """The exit code is the worst of all checks."""

    SUCCESS = 0
    WARNING = 1
    FAILURE = 2


Outcome = tuple[Result, str | None]


def cells_v2(cloud: Cloud) -> Outcome:
    """cell0 and another cell are mapped, and hosts to it."""
    from kilonova.db.queries import cells, compute_nodes
    setup = "Run command 'kilonova-manage cell_v2 simple_cell_setup' and then retry."
    mapped = cells.list_cells(cloud.databases)
    if len(mapped) < 2:
        return Result.FAILURE, ('There needs to be at least two cell mappings, one for cell0 and one for your first '
                                f'cell. {setup}')
    if all(row['uuid'] != cells.CELL0_UUID for row in mapped):
        return Result.FAILURE, f'No cell0 mapping found. {setup}'
    if cells.list_hosts(cloud.databases):
        return Result.SUCCESS, None
    nodes = False
    for database in cloud.cells.enabled():
        with database.read() as connection:
            nodes = nodes or compute_nodes.any_nodes(connection)
    if nodes:
        return Result.FAILURE, f'No host mappings found but there are compute nodes. {setup}'
    return Result.SUCCESS, ("No host mappings or compute nodes were found. Remember to run command 'kilonova-manage "
                            "cell_v2 discover_hosts' when new hosts are deployed.")


def placement_api(cloud: Cloud) -> Outcome:
    """Placement answers, and is new enough."""
    from kilonova.clients import session
    from kilonova.errors import KilonovaError
    needed = '.'.join(map(str, NEEDED_PLACEMENT))
    try:
        response = session.send(session.adapter(cloud.conf, 'placement'), 'Placement', 'GET', '/')
        newest = response.json()['versions'][0]['max_version']
    except KilonovaError as error:
        return Result.FAILURE, str(error)
    except (ValueError, LookupError):
        return Result.FAILURE, 'What [placement] leads to does not answer like Placement.'
    except Exception as error:  # noqa: BLE001 - what keystoneauth1 raises for a section that lacks credentials
        return Result.FAILURE, f'[placement] does not work: {error}'
    if tuple(map(int, newest.split('.'))) < NEEDED_PLACEMENT:
        return Result.FAILURE, f'Placement API version {needed} needed, you have {newest}.'
    return Result.SUCCESS, None


CHECKS: dict[str, Callable[[Cloud], Outcome]] = {'Cells v2': cells_v2, 'Placement API': placement_api}


def check(cloud: Cloud) -> int:
    """Run all checks and print what came of them."""
    outcomes = {name: run(cloud) for name, run in CHECKS.items()}
    print(render(outcomes))
    return max(result for result, _ in outcomes.values())


def render(outcomes: dict[str, Outcome]) -> str:
    """The checks in a box each."""
    line = f'+{"-" * (WIDTH + 2)}+'
    rows = [line, f'| {"Upgrade Check Results":<{WIDTH}} |', line]
    for name, (result, details) in outcomes.items():
        text = textwrap.wrap(f'Details: {details}', WIDTH, subsequent_indent='  ')
        told = (f'Check: {name}', f'Result: {result.name.capitalize()}', *text)
        rows.extend(f'| {row:<{WIDTH}} |' for row in told)
        rows.append(line)
    return '\n'.join(rows)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    made = argparse.ArgumentParser(prog=PROG, description='Is this installation ready for this release?')
    made.add_argument('--config-file', action='append', default=[], metavar='PATH', help='may be repeated')
    made.add_argument('--config-dir', action='append', default=[], metavar='DIR', help='may be repeated')
    made.add_argument('--log-file', metavar='PATH')
    made.add_argument('--debug', '-d', action='store_true')
    upgrade = made.add_subparsers(metavar='CATEGORY', required=True).add_parser('upgrade', help='check')
    upgrade.add_subparsers(metavar='ACTION', required=True).add_parser('check', help='check this installation')
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """The console script."""
    warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')
    args = parser().parse_args(argv)
    concurrency.setup('threading')
    from kilonova.cmd import options
    conf: Any = options.new()
    conf.set_default('use_stderr', True)
    cloud = Cloud(options.parse(config_arguments(args), PROG, conf))
    options.setup_logging(cloud.conf)
    try:
        return check(cloud)
    except Exception:  # noqa: BLE001 - its traceback is printed, as the field's program does
        print('Error:')
        traceback.print_exc(file=sys.stdout)
        return 255
    finally:
        if 'databases' in vars(cloud):
            cloud.databases.dispose()


if __name__ == '__main__':
    sys.exit(main())

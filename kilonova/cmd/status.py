"""kilonova-status upgrade check: check whether this installation is ready for this release.

    kilonova-status --config-file kilonova.conf upgrade check

Exit code 0: all checks passed. 1: there is a warning. 2: there is a failure. 255: an error that no check expects.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import textwrap
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Literal

from kilonova.cmd import cli
from kilonova.cmd.cli import Cloud, Command

PROG = 'kilonova-status'
WIDTH = 60
NEEDED_PLACEMENT = (1, 36)


class Result(IntEnum):
    """The result of a check. The program's exit code is the worst of all results."""

    SUCCESS = 0
    WARNING = 1
    FAILURE = 2


Outcome = tuple[Result, str | None]


def cells_v2(cloud: Cloud) -> Outcome:
    """Check that cell0 and another cell are mapped and, if there are compute nodes, that hosts are mapped."""
    from kilonova.db.queries import cells, compute_nodes

    setup = "Run command 'kilonova-manage cell_v2 simple_cell_setup' and then retry."
    mapped = cells.list_cells(cloud.databases)
    if len(mapped) < 2:
        return Result.FAILURE, (
            f'There needs to be at least two cell mappings, one for cell0 and one for your first cell. {setup}'
        )
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
    return Result.SUCCESS, (
        "No host mappings or compute nodes were found. Remember to run command 'kilonova-manage "
        "cell_v2 discover_hosts' when new hosts are deployed."
    )


def placement_api(cloud: Cloud) -> Outcome:
    """Check that Placement answers and is new enough."""
    from kilonova.clients import session
    from kilonova.errors import KilonovaError

    needed = '.'.join(map(str, NEEDED_PLACEMENT))
    try:
        response = session.send(session.adapter(cloud.conf, 'placement'), 'Placement', 'GET', '/')
        newest = response.json()['versions'][0]['max_version']
    except KilonovaError as error:
        return Result.FAILURE, str(error)
    except (ValueError, LookupError):
        return Result.FAILURE, 'The service that [placement] names does not respond like Placement.'
    except Exception as error:  # noqa: BLE001 - what keystoneauth1 raises for a section that lacks credentials
        return Result.FAILURE, f'[placement] cannot be used: {error}'
    if tuple(map(int, newest.split('.'))) < NEEDED_PLACEMENT:
        return Result.FAILURE, f'Placement API version {needed} needed, you have {newest}.'
    return Result.SUCCESS, None


def schemas(cloud: Cloud) -> Outcome:
    """Check that the API database and the database of each cell have the tables of this release."""
    from kilonova.db import migration

    wanted: list[tuple[Any, Literal['api', 'cell'], str]] = [
        (cloud.databases.api(), 'api', 'kilonova-manage api_db sync')
    ]
    wanted += [(database, 'cell', 'kilonova-manage db sync') for database in cloud.cells.databases()]
    behind = [
        f"database {database.name} is at revision {found}, run '{remedy}'"
        for database, schema, remedy in wanted
        if (found := migration.version(database, schema)) != migration.newest(schema)
    ]
    return (Result.FAILURE, f'{"; ".join(behind)}.') if behind else (Result.SUCCESS, None)


def old_computes(cloud: Cloud) -> Outcome:
    """Check that no compute service is older than the previous release. If there is one, other daemons do not start."""
    from kilonova.cmd.daemon import caps

    refusal = caps.too_old(cloud.cells)
    return (Result.SUCCESS, None) if refusal is None else (Result.FAILURE, str(refusal))


def silent_services(cloud: Cloud) -> Outcome:
    """Check that no service of an older release has stopped reporting.

    As long as the record of such a service exists, all services get only messages that the old service understands.
    """
    from kilonova.cmd.daemon import caps
    from kilonova.rpc.versions import BINARIES, SERVICE_VERSION

    found = [
        text
        for binary in sorted(set(BINARIES.values()))
        if (text := caps.named(cloud.cells, binary, SERVICE_VERSION, cloud.conf.service_down_time))
    ]
    if not found:
        return Result.SUCCESS, None
    return Result.WARNING, (
        f'{"; ".join(found)}: as long as these services exist, all others receive only messages '
        'that these understand. Start them, or if their hosts no longer exist, delete them '
        "('openstack compute service delete')."
    )


def policy_json(cloud: Cloud) -> Outcome:
    """Check that the policy file is YAML, and that no JSON policy file is left that is not read."""
    name = cloud.conf.oslo_policy.policy_file
    remedy = (
        'Convert it with oslopolicy-convert-json-to-yaml --namespace kilonova and name the result in '
        '[oslo_policy]policy_file.'
    )
    found = cloud.conf.find_file(name)
    if found and _is_json(found):
        return Result.FAILURE, f'Your policy file {found} is JSON-formatted. {remedy}'
    left = cloud.conf.find_file('policy.json')
    if left and not found:
        return Result.FAILURE, f'{left} is not read: [oslo_policy]policy_file is {name}, which does not exist. {remedy}'
    return Result.SUCCESS, None


def secret_keys(cloud: Cloud) -> Outcome:
    """Check that this host has keys that encrypt passwords and files of new servers."""
    from kilonova import sealing

    try:
        sealing.SealingKeys.read(cloud.conf.secrets.key_file)
    except sealing.NoKeys as error:
        if not error.missing:
            return Result.FAILURE, str(error)
        return Result.WARNING, (
            f'{error}: new servers get no admin password, and requests that contain a password '
            "or files are refused. Run command 'kilonova-manage secrets create_key' and copy the "
            'file to each host of kilonova-api and kilonova-compute.'
        )
    return Result.SUCCESS, None


def _is_json(path: str) -> bool:
    try:
        json.loads(pathlib.Path(path).read_text())
    except ValueError:
        return False
    return True


# The checks by name. A check that also exists in nova-status has the same name.
CHECKS: dict[str, Callable[[Cloud], Outcome]] = {
    'Cells v2': cells_v2,
    'Placement API': placement_api,
    'Policy File JSON to YAML Migration': policy_json,
    'Older than N-1 computes': old_computes,
    'Services of an older release that do not report': silent_services,
    'Database schemas': schemas,
    'Secret keys': secret_keys,
}


def check(cloud: Cloud) -> int:
    """Run all checks, print the results, and return the exit code."""
    outcomes = {name: run(cloud) for name, run in CHECKS.items()}
    print(render(outcomes))
    return max(result for result, _ in outcomes.values())


def upgrade_check(cloud: Cloud, args: argparse.Namespace) -> int:
    """Check whether this installation is ready for this release."""
    return check(cloud)


def render(outcomes: dict[str, Outcome]) -> str:
    """Return the results as text, with a box for each check."""
    line = f'+{"-" * (WIDTH + 2)}+'
    rows = [line, f'| {"Upgrade Check Results":<{WIDTH}} |', line]
    for name, (result, details) in outcomes.items():
        text = textwrap.wrap(f'Details: {details}', WIDTH, subsequent_indent='  ')
        told = (f'Check: {name}', f'Result: {result.name.capitalize()}', *text)
        rows.extend(f'| {row:<{WIDTH}} |' for row in told)
        rows.append(line)
    return '\n'.join(rows)


TREE = {'upgrade': {'check': Command(upgrade_check)}}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    return cli.parser(PROG, 'Check whether this installation is ready for this release.', TREE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run kilonova-status; the entry point of the console script."""
    return cli.run(PROG, parser(), argv, 'Error:')


if __name__ == '__main__':
    sys.exit(main())

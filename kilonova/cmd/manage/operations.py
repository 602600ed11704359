"""kilonova-manage operation: list and show operations that have not ended, in all databases."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from kilonova.cmd.cli import Cloud, Command, argument, table
from kilonova.errors import shortened

COLUMNS = (
    'operation',
    'kind',
    'server',
    'state',
    'step',
    'attempt',
    'host',
    'conductor',
    'since',
    'database',
    'reason',
)
# Maximum number of characters of a reason in a table.
LONGEST = 160
UNREADABLE = 'unreadable: it is neither run nor undone'
# Advice for operators about an operation row that no conductor can read.
REMEDY = (
    "Restore these columns from a backup, and it continues within five minutes; or run 'kilonova-manage "
    "operation forget {uuid}', then delete the server or set its state, and run 'kilonova-manage audit'"
)
# Kinds of operations that belong to no server.
# ``mirror`` updates the aggregates of a host in Placement.
# ``host_removal`` removes a host whose compute service was deleted.
WITHOUT_SERVER = ('mirror', 'host_removal')

# Keys in an operation's outputs for the conductor's own data.
# 'tries' is how often the operation was retried, and 'reason' is the reason of the last retry.
# 'back_to' is the position to which the operation is being undone, and 'refusals' are the hosts' refusals.
# The other keys in the outputs are results of steps that are done, mostly under the step's name.
OWN = ('tries', 'reason', 'back_to', 'refusals')


def operation_list(cloud: Cloud, args: argparse.Namespace) -> int:
    """List running operations, pending releases, and servers that wait to be started after their host went down.

    A pending release is an operation that cleans up on a host when the host is up again. Each line shows the
    operation's step, its conductor, and why it waited the last time.
    """
    rows = [_told(row) for row in _rows(cloud, server=args.server)]
    if args.format == 'json':
        print(json.dumps(rows, indent=2))
    else:
        table(
            COLUMNS,
            [
                tuple(
                    {
                        **row,
                        'reason': row['reason']
                        if row['state'] == UNREADABLE
                        else shortened(row['reason'] or '', LONGEST),
                    }.values()
                )
                for row in rows
            ],
        )
    return 0


def operation_show(cloud: Cloud, args: argparse.Namespace) -> int:
    """Show one operation, or all operations of a server, with the last error of each.

    Tokens, passwords and other data that only the conductor needs are left out. Exit code 1 means that no operation has
    this uuid, and that no server with this uuid has an operation.
    """
    rows = list(_rows(cloud, uuid=args.which)) or list(_rows(cloud, server=args.which))
    for row in rows:
        more = {
            'request': row['request_id'],
            'arguments': ', '.join(row['args']),
            'steps done': ', '.join(name for name in row['outputs'] if name not in OWN),
            'error': row['error'],
        }
        table(
            ('Field', 'Value'),
            [(name, value) for name, value in {**_told(row), **more}.items() if value not in (None, '')],
        )
    if not rows:
        print(f'There is no operation {args.which}, and no operation of a server {args.which}.')
    return 0 if rows else 1


def operation_forget(cloud: Cloud, args: argparse.Namespace) -> int:
    """Delete the row of an operation that no conductor can read.

    If a user has requested to delete the server, the delete operation may wait for this operation. After this command,
    the delete operation continues. The changes that this operation has made so far are not undone. Exit code 1 means
    that the operation does not exist, or that conductors can read it.
    """
    from kilonova.conductor.flows import unreadable
    from kilonova.db.queries import operations, operations_shown

    for database in (cloud.databases.api(), *cloud.cells.databases()):
        with database.write() as connection:
            for row in operations_shown.shown(connection, uuid=args.which):
                if not unreadable(row['stored']):
                    print(
                        f'Operation {args.which} ({row["kind"]}) is readable: nothing was changed. A '
                        'conductor runs it, or undoes it if its server is deleted.'
                    )
                    return 1
                operations.end(connection, row['uuid'], row['instance_uuid'])
                print(
                    f'Operation {args.which} ({row["kind"]} of {row["instance_uuid"]}) is deleted. Delete the '
                    "server, or set its state ('openstack server set --state'); then run 'kilonova-manage audit'."
                )
                return 0
    print(f'There is no operation {args.which}.')
    return 1


def _rows(cloud: Cloud, **which: str | None) -> Iterator[dict[str, Any]]:
    from kilonova.conductor.flows import unreadable
    from kilonova.db.queries import operations_shown

    for database in (cloud.databases.api(), *cloud.cells.databases()):
        with database.read() as connection:
            for row in operations_shown.shown(connection, **which):
                yield {**row, 'database': database.name, 'unreadable': unreadable(row['stored'])}


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict that has the names in COLUMNS as keys, for the output of an operation row."""
    from kilonova.conductor.flows import FLOWS, hosts_of

    flow = FLOWS.get(row['kind'])
    step = flow.steps[row['position']].name if flow and row['position'] < len(flow.steps) else str(row['position'])
    host = row['host'] or ', '.join(sorted(hosts_of(row['outputs'], row['attempt'])))
    return dict(
        zip(
            COLUMNS,
            (
                row['uuid'],
                row['kind'],
                None if row['kind'] in WITHOUT_SERVER else row['instance_uuid'],
                _state(row),
                step,
                row['attempt'],
                host or None,
                row['conductor'],
                row['created_at'].isoformat(timespec='seconds') + 'Z',
                row['database'],
                _reason(row),
            ),
            strict=True,
        )
    )


def _reason(row: Mapping[str, Any]) -> str | None:
    if row['unreadable']:
        return f'{row["unreadable"]}. {REMEDY.format(**row)}'
    reason: str | None = row['outputs'].get('reason')
    return reason


def _state(row: Mapping[str, Any]) -> str:
    if row['unreadable']:
        return UNREADABLE
    if row['slot'] == 'wait':
        return "waits for the server's running operation"
    if row['conductor']:
        said = 'running'
    elif row['owner']:
        said = 'its conductor ended, another conductor will take it over'
    else:
        said = f'continues in {row["waits"]:.0f} s' if row['waits'] else 'waits for a conductor'
    if row['cancelled'] or row['failed']:
        return f'{said}, {"cancelled" if row["cancelled"] else "failed"}: it is being undone'
    return f'{said}, the steps of this attempt are being undone' if row['undoing'] else said


OPERATION = {
    'list': Command(
        operation_list,
        (
            argument('--server', metavar='UUID', help='only operations of this server'),
            argument('--format', choices=('table', 'json'), default='table'),
        ),
    ),
    'show': Command(
        operation_show, (argument('which', metavar='OPERATION-OR-SERVER', help='UUID of the operation or server'),)
    ),
    'forget': Command(
        operation_forget, (argument('which', metavar='OPERATION', help='UUID of an unreadable operation'),)
    ),
}

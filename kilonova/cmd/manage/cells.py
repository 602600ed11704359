"""kilonova-manage cell_v2: manage cells and their hosts, and find the cell of a server."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from kilonova.cmd.cli import VERBOSE, Cloud, Command, argument, table

NOT_GIVEN = '--{} not provided in the command line, using the value {} from the configuration file'
UNKNOWN_CELL = 'Cell with uuid {} was not found.'
NO_HOSTS = 'No hosts found to map to cell, exiting.'
TRANSPORT_OPTION, DATABASE_OPTION = '[DEFAULT]/transport_url', '[database]/connection'


# -- commands that map cells ------------------------------------------------------------------------------------------
def map_cell0(cloud: Cloud, args: argparse.Namespace) -> int:
    """Map cell0, the database of servers that never got a host."""
    from kilonova.db.queries import cells

    if not cells.map_cell0(cloud.databases, args.database_connection):
        print('Cell0 is already setup')
    return 0


def simple_cell_setup(cloud: Cloud, args: argparse.Namespace) -> int:
    """Map cell0 and one cell of this configuration, with the hosts that exist. It is safe to run the command again."""
    from kilonova.db import migration
    from kilonova.db.queries import cells

    url = args.transport_url or cloud.transport_url
    if not url:
        return _missing('transport-url', TRANSPORT_OPTION)
    if not cells.map_cell0(cloud.databases):
        print('Cell0 is already setup')
    main = cloud.databases.main()
    with cloud.databases.api().read() as connection:
        known = {cells.fill(row['database_connection'], main.url): row['uuid'] for row in cells.get_cells(connection)}
    uuid = known.get(main.url) or cells.create_cell(cloud.databases, transport_url=url, database_connection=main.url)
    hosts: tuple[str, ...] = ()
    if migration.version(main, 'cell') is not None:
        hosts = cells.discover_hosts(cloud.databases, cell_uuid=uuid, transport_url=url)[0].hosts
    if not hosts and not cells.list_hosts(cloud.databases, uuid):
        print(NO_HOSTS)
    return 0


def create_cell(cloud: Cloud, args: argparse.Namespace) -> int:
    """Map a cell. URLs that are not given are taken from this configuration."""
    from kilonova.db.queries import cells

    given = {
        'transport-url': (args.transport_url, cloud.transport_url, TRANSPORT_OPTION),
        'database_connection': (args.database_connection, cloud.conf.database.connection, DATABASE_OPTION),
    }
    urls = []
    for name, (wanted, configured, option) in given.items():
        if not wanted and not configured:
            return _missing(name, option)
        if not wanted:
            print(NOT_GIVEN.format(name, option))
        urls.append(wanted or configured)
    try:
        uuid = cells.create_cell(
            cloud.databases, transport_url=urls[0], database_connection=urls[1], name=args.name, disabled=args.disabled
        )
    except cells.CellExists as error:
        print(error)
        return 2
    if args.verbose:
        print(uuid)
    return 0


def map_cell_and_hosts(cloud: Cloud, args: argparse.Namespace) -> int:
    """Map a cell of this configuration and the hosts that report to its database."""
    from kilonova.db.queries import cells

    url = args.transport_url or cloud.transport_url
    if not url:
        return _missing('transport-url', TRANSPORT_OPTION)
    done = cells.map_cell_and_hosts(cloud.databases, url, args.name)
    if done.cell is None:
        print(NO_HOSTS)
    elif not done.hosts:
        print('All hosts are already mapped to cell(s), exiting.')
    if args.verbose and done.cell is not None:
        print(done.cell.uuid)
    return 0


# -- commands that change or delete cells and hosts --------------------------------------------------------------------
def update_cell(cloud: Cloud, args: argparse.Namespace) -> int:
    """Change a cell. If no new value is given, the cell gets the database and queue URLs of this configuration."""
    from kilonova.db.queries import cell_changes, cells
    from kilonova.errors import CellMappingNotFound

    if args.enable and args.disable:
        print('Cell cannot be both disabled and enabled.')
        return 4
    if args.cell_uuid == cells.CELL0_UUID and (args.enable or args.disable):
        print('Cell0 cannot be disabled.')
        return 5
    values: dict[str, Any] = {
        'name': args.name,
        'transport_url': args.transport_url,
        'database_connection': args.database_connection,
        'disabled': True if args.disable else False if args.enable else None,
    }
    values = {name: value for name, value in values.items() if value is not None}
    if not values:
        values = {'transport_url': cloud.transport_url, 'database_connection': cloud.conf.database.connection}
        for name, value, option in (
            ('transport-url', values['transport_url'], TRANSPORT_OPTION),
            ('database_connection', values['database_connection'], DATABASE_OPTION),
        ):
            if not value:
                _missing(name, option)
                return 2
            print(NOT_GIVEN.format(name, option))
    try:
        cell_changes.update_cell(cloud.databases, args.cell_uuid, values)
    except CellMappingNotFound:
        print(UNKNOWN_CELL.format(args.cell_uuid))
        return 1
    except cells.CellExists as error:
        print(error)
        return 3
    return 0


def delete_cell(cloud: Cloud, args: argparse.Namespace) -> int:
    """Remove a cell from the cloud. The cell's database is not deleted.

    Exit code 1: the cell does not exist. 2: the cell has hosts. 3: the cell has servers. 4: the cell has rows of
    deleted servers.
    """
    from kilonova.db.queries import cell_changes
    from kilonova.errors import CellMappingNotFound

    try:
        cell_changes.delete_cell(cloud.databases, args.cell_uuid, force=args.force, transport_url=cloud.transport_url)
    except CellMappingNotFound:
        print(UNKNOWN_CELL.format(args.cell_uuid))
        return 1
    except cell_changes.CellInUse as error:
        print(error)
        return {cell_changes.CellHasHosts: 2, cell_changes.CellHasServers: 3}.get(type(error), 4)
    return 0


def delete_host(cloud: Cloud, args: argparse.Namespace) -> int:
    """Remove a host without servers from a cell. The command discover_hosts maps it again when it reports."""
    from kilonova.db.queries import cell_changes
    from kilonova.errors import CellMappingNotFound

    try:
        cell_changes.delete_host(cloud.databases, args.cell_uuid, args.host, transport_url=cloud.transport_url)
    except CellMappingNotFound:
        print(UNKNOWN_CELL.format(args.cell_uuid))
        return 1
    except (cell_changes.HostInNoCell, cell_changes.HostElsewhere, cell_changes.HostHasServers) as error:
        print(error)
        return {cell_changes.HostInNoCell: 2, cell_changes.HostElsewhere: 3}.get(type(error), 4)
    return 0


# -- commands that find hosts, or list cells and hosts -----------------------------------------------------------------
def discover_hosts(cloud: Cloud, args: argparse.Namespace) -> int:
    """Map the hosts that report to a cell and are not mapped to a cell yet."""
    from kilonova.db.queries import cells
    from kilonova.errors import CellMappingNotFound

    try:
        found = cells.discover_hosts(
            cloud.databases, cell_uuid=args.cell_uuid, by_service=args.by_service, transport_url=cloud.transport_url
        )
    except cells.HostMapped as error:
        print(error)
        return 2
    except CellMappingNotFound:
        print(UNKNOWN_CELL.format(args.cell_uuid))
        return 1
    if args.verbose:
        _tell_discovered(cloud, args, found)
    return 1 if args.strict and not any(one.hosts for one in found) else 0


def _tell_discovered(cloud: Cloud, args: argparse.Namespace, found: Sequence[Any]) -> None:
    from kilonova.db.queries.cells import CELL0_UUID

    if args.cell_uuid is None:
        mapped = cloud.cells.databases()
        print(f'Found {len(mapped)} cell mappings.')
        if any(database.cell.uuid == CELL0_UUID for database in mapped):
            print('Skipping cell0 since it does not contain hosts.')
    for one in found:
        what = f"cell '{one.cell.name}': {one.cell.uuid}" if one.cell.name else f'cell: {one.cell.uuid}'
        print(f'Getting computes from {what}')
        for host in one.hosts:
            print(f"Creating host mapping for compute host '{host}'")
        print(f'Found {len(one.hosts)} unmapped computes in cell: {one.cell.uuid}')


def list_cells(cloud: Cloud, args: argparse.Namespace) -> int:
    """List all cells. Passwords are hidden unless --verbose is given."""
    from kilonova.db.queries import cells

    mask = '' if args.verbose else 'masked_'
    table(
        ('Name', 'UUID', 'Transport URL', 'Database Connection', 'Disabled'),
        [
            (
                row['name'],
                row['uuid'],
                row[f'{mask}transport_url'],
                row[f'{mask}database_connection'],
                bool(row['disabled']),
            )
            for row in sorted(cells.list_cells(cloud.databases), key=lambda row: row['name'] or '')
        ],
    )
    return 0


def list_hosts(cloud: Cloud, args: argparse.Namespace) -> int:
    """List the hosts of all cells, or of one cell."""
    from kilonova.db.queries import cells
    from kilonova.errors import CellMappingNotFound

    try:
        rows = cells.list_hosts(cloud.databases, args.cell_uuid)
    except CellMappingNotFound:
        print(UNKNOWN_CELL.format(args.cell_uuid))
        return 1
    table(('Cell Name', 'Cell UUID', 'Hostname'), [(row['cell_name'], row['cell_uuid'], row['host']) for row in rows])
    return 0


# -- commands for the cells of servers --------------------------------------------------------------------------------
def map_instances(cloud: Cloud, args: argparse.Namespace) -> int:
    """Map the servers of a cell that have no mapping, for example after the loss of the API database.

    Exit code 1: the cell has more servers without a mapping than --max-count.
    """
    from kilonova.db.queries import cell_changes
    from kilonova.errors import CellMappingNotFound

    if args.max_count is not None and args.max_count < 1:
        print('Must supply a positive value for max-count')
        return 127
    try:
        mapped, more = cell_changes.map_instances(
            cloud.databases, args.cell_uuid, args.max_count, transport_url=cloud.transport_url
        )
    except CellMappingNotFound:
        print(UNKNOWN_CELL.format(args.cell_uuid))
        return 127
    print(f'Mapped {mapped} instances.')
    return 1 if more else 0


def verify_instance(cloud: Cloud, args: argparse.Namespace) -> int:
    """Print which cell a server is in.

    Exit code 1: the server is unknown. 2: it is in no cell yet. 3: it is deleted. 4: it is deleted and archived.
    """
    from kilonova.db.queries import cell_changes

    found = cell_changes.locate(cloud.databases, args.uuid, cloud.transport_url)
    if not args.quiet:
        print(
            LOCATED[found.state].format(
                uuid=args.uuid,
                cell=found.cell.name if found.cell else None,
                cell_uuid=found.cell.uuid if found.cell else None,
            )
        )
    return LOCATED_CODES[found.state]


# {where ``cell_changes.locate`` found a server: text that the command verify_instance prints}
LOCATED = {
    'here': 'Instance {uuid} is in cell: {cell} ({cell_uuid})',
    'unknown': 'Instance {uuid} is not mapped to a cell (upgrade is incomplete) or instance does not exist',
    'waiting': 'Instance {uuid} is not mapped to a cell (upgrade is incomplete)',
    'deleted': 'The instance with uuid {uuid} has been deleted.',
    'archived': 'The instance with uuid {uuid} has been deleted and archived; its mapping is still there.',
}
LOCATED_CODES = {'here': 0, 'unknown': 1, 'waiting': 2, 'deleted': 3, 'archived': 4}


def _missing(name: str, option: str) -> int:
    print(f'Must specify --{name} if {option} is not set in the configuration file.')
    return 1


TRANSPORT_URL = argument('--transport-url', '--transport_url', help="URL of the cell's message queue")
DATABASE = argument('--database_connection', '--database-connection', help="URL of the cell's database")
CELL = argument('--cell_uuid', '--cell-uuid', metavar='UUID', help='UUID of the cell; default: all cells')
THE_CELL = argument('--cell_uuid', '--cell-uuid', metavar='UUID', required=True, help='UUID of the cell')
NAME = argument('--name', help='name of the cell')

CELL_V2 = {
    'map_cell0': Command(map_cell0, (DATABASE,)),
    'simple_cell_setup': Command(simple_cell_setup, (TRANSPORT_URL,)),
    'map_cell_and_hosts': Command(map_cell_and_hosts, (NAME, TRANSPORT_URL, VERBOSE)),
    'create_cell': Command(
        create_cell,
        (
            NAME,
            DATABASE,
            TRANSPORT_URL,
            VERBOSE,
            argument('--disabled', action='store_true', help='do not schedule new servers to the cell'),
        ),
    ),
    'update_cell': Command(
        update_cell,
        (
            THE_CELL,
            NAME,
            TRANSPORT_URL,
            DATABASE,
            argument('--disable', action='store_true', help='do not schedule new servers to the cell'),
            argument('--enable', action='store_true', help='schedule new servers to the cell again'),
        ),
    ),
    'delete_cell': Command(
        delete_cell, (THE_CELL, argument('--force', action='store_true', help='delete the cell even if it has hosts'))
    ),
    'discover_hosts': Command(
        discover_hosts,
        (
            CELL,
            VERBOSE,
            argument('--strict', action='store_true', help='exit with code 1 if no host was mapped'),
            argument(
                '--by-service',
                '--by_service',
                action='store_true',
                help='find hosts by their service records instead of compute nodes',
            ),
        ),
    ),
    'list_cells': Command(list_cells, (VERBOSE,)),
    'list_hosts': Command(list_hosts, (CELL,)),
    'delete_host': Command(delete_host, (THE_CELL, argument('--host', required=True, help='name of the host'))),
    'map_instances': Command(
        map_instances,
        (
            THE_CELL,
            argument('--max-count', '--max_count', type=int, metavar='N', help='maximum number of servers to map'),
        ),
    ),
    'verify_instance': Command(
        verify_instance,
        (
            argument('--uuid', required=True, help='UUID of the server'),
            argument('--quiet', action='store_true', help='print nothing'),
        ),
    ),
}

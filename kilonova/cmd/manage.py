"""kilonova-manage: schemas, cells, devices and the audit, for operators.

    kilonova-manage --config-file kilonova.conf cell_v2 discover_hosts --verbose

The table at the end says which command is which function. A function gets the ``Cloud`` and its arguments, prints, and
returns the exit code (rpc-objects-db.md §7).
"""
from __future__ import annotations

import argparse
import json
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kilonova import concurrency

PROG = 'kilonova-manage'
PCI_COLUMNS = ('host', 'address', 'vendor_id', 'product_id', 'dev_type', 'numa_node', 'status', 'instance_uuid')
NOT_GIVEN = '--{} not provided in the command line, using the value {} from the configuration file'


class Cloud:
    """What the commands work on, made when it is first needed."""

    def __init__(self, conf: Any) -> None:
        self.conf = conf

    @cached_property
    def databases(self) -> Any:
        """The databases of the configuration."""
        from kilonova.db import engine
        return engine.configure(self.conf)

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
        return self.conf.transport_url


# -- schemas ----------------------------------------------------------------------------------------------------------
def api_db_sync(cloud: Cloud, args: argparse.Namespace) -> int:
    """Bring the API database to the newest (or the given) revision."""
    return _sync([cloud.databases.api()], 'api', args.version)


def api_db_version(cloud: Cloud, args: argparse.Namespace) -> int:
    """Print the revision of the API database."""
    return _version(cloud.databases.api(), 'api')


def db_sync(cloud: Cloud, args: argparse.Namespace) -> int:
    """Bring the main database, and cell0 unless --local_cell, to the newest (or the given) revision."""
    databases = [cloud.databases.main()]
    if not args.local_cell:
        cell0 = _cell0(cloud)
        if cell0 is None:
            print('cell0 is not mapped, only the main database is brought up to date. Run api_db sync and '
                  'cell_v2 map_cell0, then db sync again.', file=sys.stderr)
        else:
            databases.insert(0, cell0)
    return _sync(databases, 'cell', args.version)


def db_version(cloud: Cloud, args: argparse.Namespace) -> int:
    """Print the revision of the main database."""
    return _version(cloud.databases.main(), 'cell')


def _cell0(cloud: Cloud) -> Any:
    from kilonova.db import migration
    if cloud.conf.api_database.connection is None or migration.version(cloud.databases.api(), 'api') is None:
        return None
    return cloud.cells.cell0()


def _sync(databases: Sequence[Any], schema: Any, version: str) -> int:
    from kilonova.db import migration
    from kilonova.errors import Invalid
    for database in databases:
        try:
            migration.sync(database, schema, version)
        except Invalid as error:
            print(error)
            return 1
    return 0


def _version(database: Any, schema: Any) -> int:
    from kilonova.db import migration
    print(migration.version(database, schema))
    return 0


# -- cells ------------------------------------------------------------------------------------------------------------
def map_cell0(cloud: Cloud, args: argparse.Namespace) -> int:
    """Map cell0, the database of servers that never got a host."""
    from kilonova.db.queries import cells
    if not cells.map_cell0(cloud.databases, args.database_connection):
        print('Cell0 is already setup')
    return 0


def simple_cell_setup(cloud: Cloud, args: argparse.Namespace) -> int:
    """Map cell0 and one cell of this configuration, with the hosts that there are. May be repeated."""
    from kilonova.db import migration
    from kilonova.db.queries import cells
    url = args.transport_url or cloud.transport_url
    if not url:
        return _missing('transport-url', '[DEFAULT]/transport_url')
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
        print('No hosts found to map to cell, exiting.')
    return 0


def create_cell(cloud: Cloud, args: argparse.Namespace) -> int:
    """Map a cell; its URLs are this configuration's unless they are given."""
    from kilonova.db.queries import cells
    given = {'transport-url': (args.transport_url, cloud.transport_url, '[DEFAULT]/transport_url'),
             'database_connection': (args.database_connection, cloud.conf.database.connection, '[database]/connection')}
    urls = []
    for name, (wanted, configured, option) in given.items():
        if not wanted and not configured:
            return _missing(name, option)
        if not wanted:
            print(NOT_GIVEN.format(name, option))
        urls.append(wanted or configured)
    try:
        uuid = cells.create_cell(cloud.databases, transport_url=urls[0], database_connection=urls[1], name=args.name,
                                 disabled=args.disabled)
    except cells.CellExists as error:
        print(error)
        return 2
    if args.verbose:
        print(uuid)
    return 0


def discover_hosts(cloud: Cloud, args: argparse.Namespace) -> int:
    """Map the hosts that report to a cell and are in none yet."""
    from kilonova.db.queries import cells
    from kilonova.errors import CellMappingNotFound
    try:
        found = cells.discover_hosts(cloud.databases, cell_uuid=args.cell_uuid, by_service=args.by_service,
                                     transport_url=cloud.transport_url)
    except cells.HostMapped as error:
        print(error)
        return 2
    except CellMappingNotFound:
        print(f'Cell with uuid {args.cell_uuid} was not found.')
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
    """All cells; passwords are hidden unless --verbose."""
    from kilonova.db.queries import cells
    mask = '' if args.verbose else 'masked_'
    _table(('Name', 'UUID', 'Transport URL', 'Database Connection', 'Disabled'), [
        (row['name'], row['uuid'], row[f'{mask}transport_url'], row[f'{mask}database_connection'],
         bool(row['disabled']))
        for row in sorted(cells.list_cells(cloud.databases), key=lambda row: row['name'] or '')])
    return 0


def list_hosts(cloud: Cloud, args: argparse.Namespace) -> int:
    """The hosts of all cells, or of one."""
    from kilonova.db.queries import cells
    from kilonova.errors import CellMappingNotFound
    try:
        rows = cells.list_hosts(cloud.databases, args.cell_uuid)
    except CellMappingNotFound:
        print(f'Cell with uuid {args.cell_uuid} was not found.')
        return 1
    _table(('Cell Name', 'Cell UUID', 'Hostname'), [(row['cell_name'], row['cell_uuid'], row['host']) for row in rows])
    return 0


def _missing(name: str, option: str) -> int:
    print(f'Must specify --{name} if {option} is not set in the configuration file.')
    return 1


# -- devices and audit ------------------------------------------------------------------------------------------------
def pci_list(cloud: Cloud, args: argparse.Namespace) -> int:
    """All PCI devices of all cells: whose they are and what state they are in."""
    from kilonova.db.queries import pci_devices
    rows: list[dict[str, Any]] = []
    for database in cloud.cells.databases():
        if database is cloud.cells.cell0():
            continue
        with database.read() as connection:
            rows.extend({name: row[name] for name in PCI_COLUMNS} for row in pci_devices.list_devices(connection))
    rows.sort(key=lambda row: (row['host'] or '', row['address']))
    if args.format == 'json':
        print(json.dumps(rows, indent=2))
    else:
        _table(PCI_COLUMNS, [tuple(row.values()) for row in rows])
    return 0


def audit(cloud: Cloud, args: argparse.Namespace) -> int:
    """Compare databases, Placement, domains and files. 0: they agree; 1: they don't; 2: a host doesn't answer."""
    from kilonova.cmd import options, parts
    from kilonova.conductor.audit import Audit
    from kilonova.context import get_admin_context
    from kilonova.rpc.compute import Compute
    from kilonova.rpc.interface import Client
    transport = parts.transport(cloud.conf)
    try:
        compute = Client(Compute, transport, options.cap(cloud.conf, 'compute'))
        report = Audit(cloud.databases, cloud.cells, parts.placement(cloud.conf), compute, get_admin_context()).run()
    finally:
        transport.close()
    for line in report.in_flight:
        print(f'in flight: {line}')
    for line in report.silent:
        print(f'no answer: {line}')
    for line in report.disagreements:
        print(line)
    checked = ', '.join(f'{count} {what}' for what, count in report.checked.items())
    print(f'checked {checked}: {len(report.disagreements)} disagreements')
    return report.exit_code


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from prettytable import PrettyTable
    table = PrettyTable(list(columns))
    table.align = 'l'
    table.add_rows([list(row) for row in rows])
    print(table)


# -- the tree ---------------------------------------------------------------------------------------------------------
def argument(*names: str, **settings: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """One argument of a command, as argparse takes it."""
    return names, settings


@dataclass(frozen=True)
class Command:
    """A function and its arguments."""

    run: Callable[[Cloud, argparse.Namespace], int]
    arguments: Sequence[tuple[tuple[str, ...], dict[str, Any]]] = field(default=())


VERSION = argument('version', nargs='?', default='head', metavar='VERSION', help='revision, the newest unless given')
VERBOSE = argument('--verbose', action='store_true', help='tell more')
TRANSPORT_URL = argument('--transport-url', '--transport_url', help='message queue of the cell')
DATABASE = argument('--database_connection', '--database-connection', help='URL of the database')
CELL = argument('--cell_uuid', '--cell-uuid', metavar='UUID', help='one cell only')

TREE: dict[str, dict[str, Command] | Command] = {
    'api_db': {
        'sync': Command(api_db_sync, (VERSION,)),
        'version': Command(api_db_version),
    },
    'db': {
        'sync': Command(db_sync, (VERSION, argument('--local_cell', '--local-cell', action='store_true',
                                                    help='leave cell0 alone'))),
        'version': Command(db_version),
    },
    'cell_v2': {
        'map_cell0': Command(map_cell0, (DATABASE,)),
        'simple_cell_setup': Command(simple_cell_setup, (TRANSPORT_URL,)),
        'create_cell': Command(create_cell, (
            argument('--name', help='name of the cell'), DATABASE, TRANSPORT_URL, VERBOSE,
            argument('--disabled', action='store_true', help='new servers do not go there'))),
        'discover_hosts': Command(discover_hosts, (
            CELL, VERBOSE, argument('--strict', action='store_true', help='exit with 1 when nothing was mapped'),
            argument('--by-service', '--by_service', action='store_true', help='by service records, not nodes'))),
        'list_cells': Command(list_cells, (VERBOSE,)),
        'list_hosts': Command(list_hosts, (CELL,)),
    },
    'pci': {
        'list': Command(pci_list, (argument('--format', choices=('table', 'json'), default='table'),)),
    },
    'audit': Command(audit),
}


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    made = argparse.ArgumentParser(prog=PROG, description='Schemas, cells, devices and the audit of a Kilonova cloud.',
                                   epilog='Exit code 255: an error that no command expects.')
    made.add_argument('--config-file', action='append', default=[], metavar='PATH', help='may be repeated')
    made.add_argument('--config-dir', action='append', default=[], metavar='DIR', help='may be repeated')
    made.add_argument('--log-file', metavar='PATH')
    made.add_argument('--debug', '-d', action='store_true')
    _grow(made.add_subparsers(metavar='COMMAND', required=True), TREE)
    return made


def _grow(branches: Any, tree: Any) -> None:
    for name, node in tree.items():
        if isinstance(node, Command):
            text = (node.run.__doc__ or '').strip()
            leaf = branches.add_parser(name, help=text, description=text)
            for names, settings in node.arguments:
                leaf.add_argument(*names, **settings)
            leaf.set_defaults(run=node.run)
        else:
            branch = branches.add_parser(name, help=', '.join(node))
            _grow(branch.add_subparsers(metavar='ACTION', required=True), node)


def config_arguments(args: argparse.Namespace) -> list[str]:
    """The part of the command line that is oslo.config's."""
    words = [word for path in args.config_file for word in ('--config-file', path)]
    words += [word for path in args.config_dir for word in ('--config-dir', path)]
    words += ['--log-file', args.log_file] if args.log_file else []
    return words + (['--debug'] if args.debug else [])


def main(argv: Sequence[str] | None = None) -> int:
    """The console script."""
    warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')
    args = parser().parse_args(argv)
    concurrency.setup('threading')
    from kilonova.cmd import options
    conf = options.new()
    # Standard output is for what the commands print.
    conf.set_default('use_stderr', True)
    conf = options.parse(config_arguments(args), PROG, conf)
    options.setup_logging(conf)
    cloud = Cloud(conf)
    try:
        return args.run(cloud, args)
    except Exception:  # noqa: BLE001 - its traceback is printed, as the field's program does
        print('An error has occurred:')
        traceback.print_exc(file=sys.stdout)
        return 255
    finally:
        if 'databases' in vars(cloud):
            cloud.databases.dispose()


if __name__ == '__main__':
    sys.exit(main())

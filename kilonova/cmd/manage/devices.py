"""kilonova-manage device list, show, history, metrics, check and release, and kilonova-manage audit."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from kilonova.cmd.cli import Cloud, Command, argument, table

COLUMNS = ('host', 'address', 'vendor_id', 'product_id', 'dev_type', 'numa_node', 'status', 'instance_uuid')
HISTORY_COLUMNS = ('host', 'address', 'kind', 'server_id', 'project_id', 'began_at', 'ended_at')
FREE = ('available',)
# Maximum number of entries that one command prints.
MOST = 10_000


def device_list(cloud: Cloud, args: argparse.Namespace) -> int:
    """List the devices of all cells, with their state and the servers that hold them."""
    from kilonova.db.queries import pci_devices
    from kilonova.pci.shown import shown

    rows: list[dict[str, Any]] = []
    for database in _cells(cloud):
        with database.read() as connection:
            found = pci_devices.list_devices(connection, host=args.host, statuses=FREE if args.free else None)
        rows.extend(
            {**{name: row[name] for name in (*COLUMNS, 'server_name')}, 'barred': shown(row)['barred']} for row in found
        )
    if args.server:
        rows = [row for row in rows if args.server in (row['instance_uuid'], row['server_name'])]
    rows.sort(key=lambda row: (row['host'] or '', row['address']))
    if args.format == 'json':
        print(json.dumps(rows, indent=2))
    else:
        table((*COLUMNS, 'server_name', 'barred'), [(*list(row.values())[:-1], _text(row['barred'])) for row in rows])
    return 0


def device_show(cloud: Cloud, args: argparse.Namespace) -> int:
    """Show one device with all its fields, as the REST API does. Exit code 2: there is no such device."""
    from kilonova.db.queries import pci_devices
    from kilonova.pci.shown import shown

    for database in _cells(cloud):
        with database.read() as connection:
            row = pci_devices.find(connection, host=args.host, address=args.address.lower())
        if row is not None:
            fields = shown(row)
            if args.format == 'json':
                print(json.dumps(fields, indent=2, default=str))
            else:
                table(('field', 'value'), [(name, _text(value)) for name, value in fields.items()])
            return 0
    print(f'{args.host} has no device {args.address}')
    return 2


def device_history(cloud: Cloud, args: argparse.Namespace) -> int:
    """List which server held which device from when to when, starting with the device that was released last."""
    from kilonova.db.queries import device_history as queries
    from kilonova.pci.shown import shown_entry

    found: list[dict[str, Any]] = []
    for database in _cells(cloud):
        with database.read() as connection:
            found += [
                shown_entry(row)
                for row in queries.page(
                    connection,
                    after=None,
                    limit=args.limit,
                    host=args.host,
                    instance_uuid=args.server,
                    address=args.address and args.address.lower(),
                    project_id=args.project,
                )
            ]
    found = sorted(found, key=lambda entry: (entry['ended_at'], entry['id']), reverse=True)[: args.limit]
    if args.format == 'json':
        print(json.dumps(found, indent=2, default=str))
    else:
        table(HISTORY_COLUMNS, [tuple(_text(entry[name]) for name in HISTORY_COLUMNS) for entry in found])
    return 0


def device_metrics(cloud: Cloud, args: argparse.Namespace) -> int:
    """Print the number of devices in the text format of Prometheus, for the textfile collector of its node exporter."""
    from kilonova.db.queries import device_counts
    from kilonova.pci import metrics
    from kilonova.pci.device import BARS

    cells = []
    for database in _cells(cloud):
        with database.read() as connection:
            cells.append((database.name, device_counts.counts(connection), device_counts.with_words(connection, BARS)))
    print(metrics.text(cells, silent=()), end='')
    return 0


def _number(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f'{text!r} is not a number from 1 to {MOST}')
    return int(text)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ', '.join(f'{name}: {each}' for name, each in value.items())
    return '' if value is None else str(value)


def device_check(cloud: Cloud, args: argparse.Namespace) -> int:
    """List devices that are marked as held although no existing server holds them.

    Exit code 0: there is no such device. 1: there is at least one.
    """
    from kilonova.db.queries import device_owners, pci_devices

    busy, number, lost = _busy(cloud), 0, []
    for database in _cells(cloud):
        with database.read() as connection:
            number += len(pci_devices.list_devices(connection))
            lost += device_owners.lost(connection, busy)
    for row in lost:
        print(f'{row["host"]} {row["address"]} is {row["why"]}')
    if not lost:
        print(f'{number} devices, each held by a server or free')
        return 0
    print("Run 'kilonova-manage device release HOST ADDRESS' to release a device")
    return 1


def device_release(cloud: Cloud, args: argparse.Namespace) -> int:
    """Release a device that 'device check' lists.

    Exit code 1: the device is free, or a server or operation holds it. 2: there is no such device.
    """
    from kilonova.db.queries import device_owners, pci_devices

    what, busy = f'{args.host} {args.address}', _busy(cloud)
    for database in _cells(cloud):
        with database.write() as connection:
            device = next(
                (row for row in pci_devices.list_devices(connection, host=args.host) if row['address'] == args.address),
                None,
            )
            if device is None:
                continue
            lost = next((row for row in device_owners.lost(connection, busy) if row['id'] == device['id']), None)
            if lost is not None and device_owners.release(connection, lost['id'], lost['instance_uuid']):
                print(
                    f'{what} is available again. Restart kilonova-compute on {args.host}: it reads the rows of '
                    'its devices only when it starts'
                )
                return 0
            owner = device['instance_uuid']
            name = device_owners.names(connection, [owner]).get(owner) if owner else None
            work = device_owners.at_work(connection, owner) if owner else None
        print(f'{what} {_why_not(device, name, work or busy.get(owner))}')
        return 1
    print(f'{args.host} has no device {args.address}')
    return 2


def _why_not(device: Mapping[str, Any], name: str | None, work: Mapping[str, Any] | None) -> str:
    owner = device['instance_uuid']
    if work is not None:
        return (
            f'is held by server {owner}, for which operation {work["uuid"]} ({work["kind"]}) is running: nothing '
            'was changed'
        )
    if name is not None:
        return f"is held by server {owner} ({name}): nothing was changed. 'openstack server delete' frees it"
    return f'is {device["status"]}: nothing was changed'


def _cells(cloud: Cloud) -> list[Any]:
    return [database for database in cloud.cells.databases() if database is not cloud.cells.cell0()]


def _busy(cloud: Cloud) -> dict[str, dict[str, Any]]:
    """Return a dict from a server's uuid to the server's operation in the API database."""
    from kilonova.db.queries import operations_shown

    with cloud.databases.api().read() as connection:
        return {row['instance_uuid']: row for row in operations_shown.shown(connection)}


def audit(cloud: Cloud, args: argparse.Namespace) -> int:
    """Compare databases, Placement, domains and files with each other. Where they disagree, compare a second time.

    Exit code 0: they agree. 1: they disagree. 2: a host or Placement does not answer. If Placement does not answer,
    nothing is compared.
    """
    from kilonova.errors import Unanswered

    away = broker_away(cloud)
    try:
        report = _compared(cloud, away is None)
    except Unanswered as error:
        for line in (away, f'{error}; nothing was compared'):
            if line is not None:
                print(f'no answer: {line}')
        return 2
    for line in report.in_flight:
        print(f'in flight: {line}')
    for line in (away, *report.silent):
        if line is not None:
            print(f'no answer: {line}')
    for line in report.disagreements:
        print(line)
    checked = ', '.join(f'{count} {what}' for what, count in report.checked.items())
    print(f'checked {checked}: {len(report.disagreements)} disagreements')
    return 2 if away is not None else int(report.exit_code)


def _compared(cloud: Cloud, ask_hosts: bool) -> Any:
    """Return the report of the audit. Raises Unanswered if Placement does not answer.

    If ``ask_hosts`` is True, the hosts are called, too, and their domains and files are compared.
    """
    from kilonova.cmd import options
    from kilonova.cmd.daemon import database_parts, parts
    from kilonova.conductor.audit.compare import Audit
    from kilonova.context import get_admin_context
    from kilonova.rpc.compute import Compute
    from kilonova.rpc.interface import Client

    placement, ctxt = parts.placement(cloud.conf), get_admin_context()
    services: dict[str, Any] = {
        'accelerators': parts.accelerators(cloud.conf),
        'networks': parts.networks(cloud.conf),
        'volumes': parts.volumes(cloud.conf),
    }
    if not ask_hosts:
        return Audit(cloud.databases, cloud.cells, placement, None, ctxt, **services).run()
    transport = database_parts.routed(cloud.conf, parts.transport(cloud.conf), cloud.cells)
    try:
        compute = Client(Compute, transport, options.cap(cloud.conf, 'compute'))
        return Audit(
            cloud.databases, cloud.cells, placement, compute, ctxt, down_time=cloud.conf.service_down_time, **services
        ).run()
    finally:
        transport.close()


def broker_away(cloud: Cloud) -> str | None:
    """Return the reason why no host can be called, or None if the broker accepts connections.

    Commands check this first, because an RPC call would wait until the broker is back.
    """
    import oslo_messaging

    from kilonova.cmd.daemon import parts

    try:
        parts.broker_checks(cloud.conf)['broker']()
    except OSError as error:
        hosts = ', '.join(
            f'{host.hostname}:{host.port or parts.AMQP_PORT}'
            for host in oslo_messaging.TransportURL.parse(cloud.conf).hosts
        )
        return f'the message broker of [DEFAULT]transport_url ({hosts}): {error}; no host was asked'
    return None


_FORMAT = argument('--format', choices=('table', 'json'), default='table')
_WHICH = (
    argument('host', metavar='HOST', help='name of the compute host'),
    argument('address', metavar='ADDRESS', help='address of the device, such as 0000:81:00.0'),
)
DEVICE = {
    'list': Command(
        device_list,
        (
            argument('--host', metavar='NAME', help='only devices of this host'),
            argument('--free', action='store_true', help='only devices that a server could get'),
            argument('--server', metavar='UUID-OR-NAME', help='only devices that this server holds'),
            _FORMAT,
        ),
    ),
    'show': Command(device_show, (*_WHICH, _FORMAT)),
    'history': Command(
        device_history,
        (
            argument('--host', metavar='NAME', help='only devices of this host'),
            argument('--address', metavar='ADDRESS', help='only the device with this address, such as 0000:81:00.0'),
            argument('--server', metavar='UUID', help='only devices that this server held'),
            argument('--project', metavar='ID', help='only devices that servers of this project held'),
            argument(
                '--limit',
                type=_number,
                default=100,
                metavar='N',
                help=f'maximum number of entries, 1 to {MOST}; default: 100',
            ),
            _FORMAT,
        ),
    ),
    'metrics': Command(device_metrics),
    'check': Command(device_check),
    'release': Command(device_release, _WHICH),
}
AUDIT = Command(audit)

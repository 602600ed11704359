"""kilonova-manage pci list, and audit."""
from __future__ import annotations

import argparse
import json
from typing import Any

from kilonova.cmd.cli import Cloud, Command, argument, table

PCI_COLUMNS = ('host', 'address', 'vendor_id', 'product_id', 'dev_type', 'numa_node', 'status', 'instance_uuid')


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
        table(PCI_COLUMNS, [tuple(row.values()) for row in rows])
    return 0


def audit(cloud: Cloud, args: argparse.Namespace) -> int:
    """Compare databases, Placement, domains and files, again where they disagree. 0: they agree; 1: they don't; 2: a
    host doesn't answer."""
    from kilonova.cmd import database_parts, options, parts
    from kilonova.conductor.audit import Audit
    from kilonova.context import get_admin_context
    from kilonova.rpc.compute import Compute
    from kilonova.rpc.interface import Client
    placement, ctxt = parts.placement(cloud.conf), get_admin_context()
    down_time = cloud.conf.service_down_time
    away = _broker_away(cloud)
    if away is not None:
        report = Audit(cloud.databases, cloud.cells, placement, None, ctxt).run()
        report.silent.insert(0, away)
    else:
        transport = database_parts.routed(cloud.conf, parts.transport(cloud.conf), cloud.cells)
        try:
            compute = Client(Compute, transport, options.cap(cloud.conf, 'compute'))
            report = Audit(cloud.databases, cloud.cells, placement, compute, ctxt, down_time=down_time).run()
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


def _broker_away(cloud: Cloud) -> str | None:
    """Why no host can be asked; None: hosts can. Looked at first, as RPC waits for its broker to come back."""
    from kilonova.cmd import parts
    try:
        parts.broker_checks(cloud.conf)['broker']()
    except OSError as error:
        hosts = ', '.join(f'{host.hostname}:{host.port or parts.AMQP_PORT}'
                          for host in parts.oslo_messaging.TransportURL.parse(cloud.conf).hosts)
        return f'the message broker of [DEFAULT]transport_url ({hosts}): {error}; no host was asked'
    return None


PCI = {
    'list': Command(pci_list, (argument('--format', choices=('table', 'json'), default='table'),)),
}
AUDIT = Command(audit)

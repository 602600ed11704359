"""Pretended hosts for OVN: what ovn-controllers write into the southbound database, without any data path.

    python -m tools.cloud.ovn_hosts unix:/path/of/sb.sock gpu1 gpu2

Each host is a chassis that is alive, and a port that Neutron binds to it is up at once: Neutron then says ACTIVE, and
notifies the compute API. Needs the package ``ovs``, so it runs in Neutron's virtual environment.
"""
from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ovs import poller
from ovs.db import idl

SCHEMA = '/usr/share/ovn/ovn-sb.ovsschema'
COLUMNS = {
    'SB_Global': ['nb_cfg'],
    'Chassis': ['name', 'hostname', 'encaps', 'other_config'],
    'Chassis_Private': ['name', 'chassis', 'nb_cfg', 'nb_cfg_timestamp'],
    'Encap': ['type', 'ip', 'chassis_name'],
    'Port_Binding': ['logical_port', 'type', 'chassis', 'up', 'options', 'additional_chassis'],
}
CONFIG = {'datapath-type': 'netdev', 'iface-types': 'geneve,internal,tap', 'port-up-notif': 'true',
          'ovn-bridge-mappings': ''}
# Kinds of ports that belong to guests: on the overlay, and on a VF.
KINDS = ('', 'external')


def serve(remote: str, hosts: Sequence[str]) -> None:
    """Follow the database until the process ends."""
    helper = idl.SchemaHelper(SCHEMA)
    for table, columns in COLUMNS.items():
        helper.register_columns(table, columns)
    database = idl.Idl(remote, helper)
    seen: int | None = None
    while True:
        database.run()
        if database.has_ever_connected() and database.change_seqno != seen:
            seen = database.change_seqno
            change = idl.Transaction(database)
            if not appear(database, change, hosts):
                report(database, hosts)
                claim(database, hosts)
            if change.commit_block() not in (idl.Transaction.SUCCESS, idl.Transaction.UNCHANGED):
                # Somebody else wrote the same rows; they are read again.
                seen = None
        pause = poller.Poller()
        database.wait(pause)
        if seen is None:
            pause.timer_wait(200)
        pause.block()


def rows(database: Any, table: str) -> list[Any]:
    return list(database.tables[table].rows.values())


def appear(database: Any, change: Any, hosts: Sequence[str]) -> bool:
    """Add the chassis that are missing; whether there were any."""
    chassis = {row.name: row for row in rows(database, 'Chassis')}
    private = {row.name for row in rows(database, 'Chassis_Private')}
    for number, host in enumerate(hosts):
        if host not in chassis:
            tunnel = change.insert(database.tables['Encap'])
            # The database wants a different address for each.
            tunnel.type, tunnel.ip, tunnel.chassis_name = 'geneve', f'127.77.{number // 250}.{number % 250 + 1}', host
            row = chassis[host] = change.insert(database.tables['Chassis'])
            row.name, row.hostname, row.encaps, row.other_config = host, host, [tunnel], CONFIG
        if host not in private:
            row = change.insert(database.tables['Chassis_Private'])
            row.name, row.chassis = host, chassis[host]
    return not private.issuperset(hosts)


def report(database: Any, hosts: Sequence[str]) -> None:
    """Neutron counts up a number, and a host that follows is alive."""
    for wanted in rows(database, 'SB_Global'):
        for row in rows(database, 'Chassis_Private'):
            if row.name in hosts and row.nb_cfg != wanted.nb_cfg:
                row.nb_cfg, row.nb_cfg_timestamp = wanted.nb_cfg, int(time.time() * 1000)


def claim(database: Any, hosts: Sequence[str]) -> None:
    """Take the ports that are bound to these hosts, and give up those that are not any more. Where a port is bound to
    two, as while its guest moves, the first has it."""
    chassis = {row.name: row for row in rows(database, 'Chassis') if row.name in hosts}
    for port in rows(database, 'Port_Binding'):
        if port.type not in KINDS:
            continue
        asked = [host for host in port.options.get('requested-chassis', '').split(',') if host in chassis]
        held = port.chassis[0] if port.chassis else None
        if not asked and (held is None or held.name not in chassis):
            continue
        _write(port, {'chassis': [chassis[host] for host in asked[:1]],
                      'additional_chassis': [chassis[host] for host in asked[1:]], 'up': [bool(asked)]})


def _write(row: Any, wanted: Mapping[str, list[Any]]) -> None:
    """Only what differs: each write wakes Neutron."""
    for column, values in wanted.items():
        if list(getattr(row, column)) != values:
            setattr(row, column, values)


if __name__ == '__main__':
    serve(sys.argv[1], sys.argv[2:])

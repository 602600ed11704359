"""Pretended hosts for OVN: what ovn-controllers write into the southbound database, without any data path.

    python -m tools.cloud.ovn_hosts unix:/path/of/sb.sock gpu1 gpu2

Each host is a chassis that is alive, and a port that Neutron binds to it is up soon after: Neutron then says ACTIVE,
and notifies the compute API. Needs the package ``ovs``, so it runs in Neutron's virtual environment.
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
CONFIG = {
    'datapath-type': 'netdev',
    'iface-types': 'geneve,internal,tap',
    'port-up-notif': 'true',
    'ovn-bridge-mappings': '',
}
# Kinds of ports that belong to guests: on the overlay, and on a VF.
KINDS = ('', 'external')
# Seconds between a binding and the guest's interface. Neutron writes the host of a port here before it has stored the
# binding: a port that is up at that moment stays DOWN there (both of its threads wait for what the other holds).
DELAY = 0.5


def serve(remote: str, hosts: Sequence[str]) -> None:
    """Follow the database until the process ends."""
    helper = idl.SchemaHelper(SCHEMA)
    for table, columns in COLUMNS.items():
        helper.register_columns(table, columns)
    database = idl.Idl(remote, helper)
    seen: int | None = None
    bindings = Bindings()
    while True:
        database.run()
        if database.has_ever_connected() and (database.change_seqno != seen or bindings.waiting):
            seen = database.change_seqno
            change = idl.Transaction(database)
            if not appear(database, change, hosts):
                report(database, hosts)
                claim(database, hosts, bindings)
            if change.commit_block() not in (idl.Transaction.SUCCESS, idl.Transaction.UNCHANGED):
                # Somebody else wrote the same rows; they are read again.
                seen = None
        pause = poller.Poller()
        database.wait(pause)
        if seen is None or bindings.waiting:
            pause.timer_wait(100)
        pause.block()


class Bindings:
    """Ports that Neutron has just bound. ``waiting``: {port: (host, when it was seen)}."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[str, float]] = {}

    def is_old(self, port: str, host: str) -> bool:
        """Whether it was bound to this host DELAY seconds ago."""
        at, since = self.waiting.get(port, ('', 0.0))
        if at != host:
            self.waiting[port] = host, time.monotonic()
            return False
        return time.monotonic() - since >= DELAY


def rows(database: Any, table: str) -> list[Any]:
    """Return the rows of a table."""
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
    """Report as Neutron's hosts do: Neutron counts up a number, and a host that follows is alive."""
    for wanted in rows(database, 'SB_Global'):
        for row in rows(database, 'Chassis_Private'):
            if row.name in hosts and row.nb_cfg != wanted.nb_cfg:
                row.nb_cfg, row.nb_cfg_timestamp = wanted.nb_cfg, int(time.time() * 1000)


def claim(database: Any, hosts: Sequence[str], bindings: Bindings) -> None:
    """Give up the ports that are no longer bound to these hosts, and take those that are, after a while.

    If a port is bound to two hosts, as while its guest moves, the first has it; the other takes it over at once.
    """
    chassis = {row.name: row for row in rows(database, 'Chassis') if row.name in hosts}
    ports = {port.logical_port: port for port in rows(database, 'Port_Binding') if port.type in KINDS}
    for name in set(bindings.waiting).difference(ports):
        del bindings.waiting[name]
    for name, port in ports.items():
        asked = [host for host in port.options.get('requested-chassis', '').split(',') if host in chassis]
        held = port.chassis[0] if port.chassis else None
        if not asked and (held is None or held.name not in chassis):
            bindings.waiting.pop(name, None)
            continue
        had = {row.name for row in (*port.chassis, *port.additional_chassis)}
        if asked and asked[0] not in had and not bindings.is_old(name, asked[0]):
            asked = []
        else:
            bindings.waiting.pop(name, None)
        _write(
            port,
            {
                'chassis': [chassis[host] for host in asked[:1]],
                'additional_chassis': [chassis[host] for host in asked[1:]],
                'up': [bool(asked)],
            },
        )


def _write(row: Any, wanted: Mapping[str, list[Any]]) -> None:
    """Write what differs. Each write wakes Neutron."""
    for column, values in wanted.items():
        if list(getattr(row, column)) != values:
            setattr(row, column, values)


if __name__ == '__main__':
    serve(sys.argv[1], sys.argv[2:])

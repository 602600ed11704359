"""The account of Cyborg's accelerators: its requests, the servers, their guests and Placement say the same.

accounts = Accounts(cloud, query, wrong)
accounts.guest('gpu1', domain)      # always: a running guest has only what is bound to its server
accounts.settled()                  # when nothing is under way: each request is a server's, and nothing is missing
accounts.empty()                    # when all servers are deleted
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kilonova.accel import holder
from kilonova.accel import profile as device_profile
from kilonova.conductor.audit.rows import flavors
from kilonova.objects.vif import ACCELERATED
from kilonova.virt.fakes.state import FakeDomain
from tests.simulation.accelerators import PORT_PROFILE, name_of
from tests.simulation.cloud import Cloud

_SERVERS = """SELECT i.uuid, i.host, i.vm_state, e.flavor, c.network_info FROM instances i
              JOIN instance_extra e ON e.instance_uuid = i.uuid
              LEFT JOIN instance_info_caches c ON c.instance_uuid = i.uuid WHERE i.deleted = 0"""
_MARKS = f"""SELECT instance_uuid, "key", value FROM instance_system_metadata
             WHERE "key" IN ('{holder.BOUND_TO}', '{holder.BEFORE}') AND deleted = 0"""
# What is wanted: how many of each (profile, group of it).
Wanted = Counter[tuple[str, int]]
Query = Callable[[str, str], Sequence[Mapping[str, Any]]]


class Accounts:
    """``query(database, statement)`` reads rows; ``wrong(text)`` is called with what doesn't hold."""

    def __init__(self, cloud: Cloud, query: Query, wrong: Callable[[str], None]) -> None:
        self._cloud, self._query, self._wrong = cloud, query, wrong
        self._movers: dict[str, str] = {}

    def guest(self, host: str, domain: FakeDomain) -> None:
        """A running guest."""
        cyborg = self._cloud.cyborg
        for device in domain.hostdevs if cyborg is not None else ():
            if (host, device) not in cyborg.devices:
                continue
            bound_to = cyborg.holder_of(host, device)
            if bound_to != domain.uuid and self._mover(bound_to) != domain.uuid:
                self._wrong(
                    f'{host} accelerator {device} is in the running guest of {domain.uuid}, Cyborg has it '
                    f'bound to {self._mover(bound_to) or bound_to}'
                )

    def _mover(self, uuid: str | None) -> str | None:
        """The server of a migration; None: it is none."""
        if uuid is not None and uuid not in self._movers:
            self._movers.update(
                (row['uuid'], row['instance_uuid'])
                for row in self._query('cell1', 'SELECT uuid, instance_uuid FROM migrations')
            )
        return self._movers.get(uuid or '')

    def settled(self) -> None:
        """Nothing is under way."""
        cyborg = self._cloud.cyborg
        if cyborg is None:
            return
        marks: dict[str, dict[str, str]] = defaultdict(dict)
        for row in self._query('cell1', _MARKS):
            marks[row['instance_uuid']][row['key']] = row['value']
        moving = {
            row['instance_uuid']: row['uuid']
            for row in self._query('cell1', "SELECT uuid, instance_uuid FROM migrations WHERE status = 'finished'")
        }
        due: dict[str, tuple[str, Wanted]] = {}
        held: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for one in cyborg.requests.values():
            held[one['instance_uuid'] or ''].append(one)
        for row in self._query('cell1', _SERVERS):
            uuid, found, mark = row['uuid'], flavors(row['flavor']), marks[row['uuid']]
            if row['vm_state'] == 'resized' and 'old' in found and uuid in moving:
                self._server(due, uuid, self._of_flavor(found['old']), holder.before(uuid, mark), moving[uuid])
            if row['host'] is None:
                continue
            now = holder.of(uuid, mark)
            if row['vm_state'] == 'error' and not held.get(now):
                continue
            self._server(due, uuid, self._of_flavor(found['cur']) + _of_ports(row['network_info']), now, uuid)
            self._domain(row, held.get(now, ()))
        for bound_to, ones in held.items():
            self._requests(bound_to, ones, due.pop(bound_to, None))
        for bound_to, (uuid, wanted) in due.items():
            self._wrong(f'accelerators: {uuid} wants {dict(wanted)} and nothing is bound to {bound_to}')

    def _of_flavor(self, flavor: Any) -> Wanted:
        profile = device_profile.name_of(flavor.extra_specs)
        groups = self._cloud.shape.profiles[profile] if profile else []
        return Counter(
            {
                (profile or '', number): sum(int(value) for key, value in group.items() if key.startswith('resources'))
                for number, group in enumerate(groups)
            }
        )

    def _server(
        self, due: dict[str, tuple[str, Wanted]], uuid: str, wanted: Wanted, bound_to: str, consumer: str
    ) -> None:
        """What a server must have: with its flavor and ports, or with the flavor before a move. Placement agrees."""
        if wanted:
            due[bound_to] = uuid, wanted
        requests: Counter[tuple[str, str]] = (
            Counter(
                (one['device_rp_uuid'], self._class(one))
                for one in self._cloud.cyborg.requests.values()
                if one['instance_uuid'] == bound_to
            )
            if wanted
            else Counter()
        )
        providers = self._cloud.cyborg.handles
        allocated = Counter(
            {
                (provider, name): amount
                for provider, amounts in self._cloud.model.allocations().get(consumer, {}).items()
                if provider in providers
                for name, amount in amounts.items()
            }
        )
        if allocated != requests:
            self._wrong(
                f'accelerators: {uuid} holds {dict(allocated)} in Placement as {consumer}, and Cyborg has '
                f'{dict(requests)} bound to {bound_to}'
            )

    def _class(self, one: dict[str, Any]) -> str:
        group = self._cloud.shape.profiles[one['device_profile_name']][one['device_profile_group_id']]
        return next(key.partition(':')[2] for key in group if key.startswith('resources'))

    def _domain(self, row: Mapping[str, Any], held: Sequence[dict[str, Any]]) -> None:
        """The guest's XML has exactly what is bound to its server."""
        cyborg, domain = self._cloud.cyborg, self._cloud.machines[row['host']].domains.get(row['uuid'])
        if domain is None:
            return
        has = sorted(device for device in domain.hostdevs if (row['host'], device) in cyborg.devices)
        of = {one['uuid'] for one in held}
        given = sorted(name_of(handle) for handle in cyborg.devices.values() if handle.holder in of)
        if has != given:
            self._wrong(f'accelerators: the guest of {row["uuid"]} has {has}, bound to it are {given}')

    def _requests(self, bound_to: str, ones: Sequence[dict[str, Any]], due: tuple[str, Wanted] | None) -> None:
        """What is bound to one uuid, and what should be."""
        if due is None:
            self._wrong(
                f'accelerators: {len(ones)} requests are bound to {bound_to or "nothing"}, which is not a server'
            )
            return
        uuid, wanted = due
        if Counter((one['device_profile_name'], one['device_profile_group_id']) for one in ones) != wanted:
            self._wrong(f'accelerators: {uuid} wants {dict(wanted)} and has the requests {json.dumps(ones)}')
        if bad := [one['state'] for one in ones if one['state'] != 'Bound']:
            self._wrong(f'accelerators: of the requests of {uuid} some are {", ".join(bad)}')

    def empty(self) -> None:
        """No server is left."""
        cyborg = self._cloud.cyborg
        if cyborg is None:
            return
        for uuid, one in cyborg.requests.items():
            self._wrong(f'left over in Cyborg: request {uuid}, {one["state"]}, bound to {one["instance_uuid"]}')
        for (host, device), handle in cyborg.devices.items():
            if handle.holder:
                self._wrong(f'left over in Cyborg: {host} {device} belongs to {handle.holder}')
        parts = {name for _, name in cyborg.devices}
        for host, machine in self._cloud.machines.items():
            if left := parts & machine.mdevs.keys():
                self._wrong(f'left over on {host}: parts {", ".join(left)}')


def _of_ports(network_info: str | None) -> Wanted:
    """What the ports of a server's info cache ask for that are accelerators."""
    ports = sum(vif.get('vnic_type') in ACCELERATED for vif in json.loads(network_info or '[]'))
    return Counter({(PORT_PROFILE, 0): ports} if ports else {})

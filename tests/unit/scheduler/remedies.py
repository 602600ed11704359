"""What makes a reason that the scheduler gives for a host go away, and comes back afterwards.

with Remedies(cloud, host, request) as remedies:
    remedies.remove('disabled')                 # a key of ``reasons.ReasonCheck``
    …                                           # the host is enabled now, in database and Placement
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import sqlalchemy as sa

from kilonova import objects
from kilonova.db import engine
from kilonova.db.models.api import InstanceGroupPolicy
from kilonova.db.models.cell import ComputeNode, Service
from kilonova.db.queries import aggregates
from kilonova.virt.hardware import numa
from kilonova.virt.hardware.offer import Offer
from tests.unit.scheduler.builders import uuid
from tests.unit.scheduler.random_clouds import BOTH, GPUS, LICENSE, Cloud, Host, Request

# {resource class: column of the host's row}
_COLUMNS = {'VCPU': 'vcpus', 'MEMORY_MB': 'memory_mb', 'DISK_GB': 'local_gb', 'PCPU': None, LICENSE: None}
_FREE = {'MEMORY_MB': 'free_ram_mb', 'DISK_GB': 'free_disk_gb'}


class Remedies:
    """Changes of one host or request, undone at the end, the last one first."""

    def __init__(self, cloud: Cloud, host: Host, request: Request) -> None:
        self._cloud, self._host, self._request = cloud, host, request
        self._undo: list[Callable[[], Any]] = []
        self._made = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        while self._undo:
            self._undo.pop()()

    def remove(self, key: str) -> set[str]:
        """What goes away with it, itself among it; LookupError: nobody knows how to remove that."""
        kind, _, name = key.partition(':')
        gone = {key, *(('PCPU',) if key == 'NUMATopologyFilter' else ())}
        if not self._in_placement() and key not in ('disabled', 'down', 'trait:OWNER_NOVA'):
            # What it lacks it would lack in Placement as well.
            self._report()
            gone.add('trait:OWNER_NOVA')
        if key in _COLUMNS:
            self._enlarge(key)
        elif kind == 'pci':
            self._add_gpus(name, self._request.gpus[name])
        elif kind == 'trait':
            self._give_trait(name)
        elif kind in _BY_KEY:
            _BY_KEY[kind](self)
        else:
            raise LookupError(f'no remedy for {key}')
        return gone

    def release(self, consumers: list[str]) -> None:
        """What these servers took is free again."""
        rows = self._cloud.rows
        taken = rows.take_away(consumers)
        self._undo.append(lambda: rows.put_back(taken))

    # -- rows ----------------------------------------------------------------------------------------------------------
    def _write(self, model: Any, **values: Any) -> None:
        table, host = model.__table__, self._host
        with host.cell.write() as connection:
            before = (
                connection.execute(sa.select(*(table.c[name] for name in values)).where(table.c.host == host.name))
                .mappings()
                .one()
            )

            def write(values: dict[str, Any]) -> None:
                with host.cell.write() as connection:
                    connection.execute(
                        table.update().where(table.c.host == host.name).values(updated_at=engine.db_utcnow(), **values)
                    )

        write(values)
        self._undo.append(lambda: write(dict(before)))

    def _in_placement(self) -> bool:
        return self._cloud.rows.inventory(self._host.name, 'VCPU') is not None

    def _read(self, name: str) -> Any:
        table = ComputeNode.__table__
        with self._host.cell.read() as connection:
            return connection.execute(sa.select(table.c[name]).where(table.c.host == self._host.name)).scalar_one()

    def _set_trait(self, trait: str, there: bool) -> None:
        rows, name = self._cloud.rows, self._host.name
        before = rows.set_trait(name, trait, there)
        self._undo.append(lambda: rows.set_trait(name, trait, before))

    # -- by key --------------------------------------------------------------------------------------------------------
    def _enable(self) -> None:
        self._write(Service, disabled=False)
        if self._in_placement():
            self._set_trait('COMPUTE_STATUS_DISABLED', False)

    def _wake(self) -> None:
        self._write(Service, last_seen_up=engine.db_utcnow())

    def _move_into_zone(self) -> None:
        cloud, name = self._cloud, self._host.name
        zone = cloud.zones[self._request.zone or '']
        with cloud.databases.api().write() as connection:
            if not aggregates.has_host(connection, zone['uuid'], name):
                aggregates.add_host(connection, zone['id'], name)
                self._undo.append(lambda: self._leave_zone(zone['id']))
        self._mirror()

    def _leave_zone(self, zone: int) -> None:
        with self._cloud.databases.api().write() as connection:
            aggregates.remove_host(connection, self._host.name, zone)

    def _mirror(self) -> None:
        rows, name = self._cloud.rows, self._host.name
        aggregate = self._cloud.zones[self._request.zone or '']['uuid']
        before = rows.set_member(name, aggregate, True)
        self._undo.append(lambda: rows.set_member(name, aggregate, before))

    def _enlarge(self, name: str) -> None:
        """As much more as nobody can ask for."""
        rows, host = self._cloud.rows, self._host.name
        more = 4 * max(self._request.amounts.values()) * self._request.number
        before = rows.inventory(host, name)
        total, reserved, ratio = before or (0, 0, 1.0)
        rows.set_inventory(host, name, (total + more, reserved, ratio))
        self._undo.append(lambda: rows.set_inventory(host, name, before))
        column = _COLUMNS[name]
        if column is not None:
            columns = [column, *filter(None, [_FREE.get(name)])]
            self._write(ComputeNode, **{one: self._read(one) + more for one in columns})

    def _add_gpus(self, alias: str, number: int) -> None:
        rows, host = self._cloud.rows, self._host
        pools = objects.PciDevicePoolList.from_column(self._read('pci_stats'))
        new = []
        for _ in range(number):
            self._made += 1
            address = f'0000:f{self._made // 8:x}:0{self._made % 8}.0'
            name = f'{host.name}_{address}'
            rows.add(
                name, uuid(name), {GPUS[alias][1]: (1, 0, 1.0)}, ['OWNER_NOVA', 'COMPUTE_MANAGED_PCI_DEVICE'], host.name
            )
            self._undo.append(lambda name=name: rows.drop(name))
            new.append(
                objects.PciDevicePool(
                    vendor_id='10de',
                    product_id=GPUS[alias][0],
                    numa_node=0,
                    count=1,
                    tags={'dev_type': 'type-PCI', 'address': address, 'rp_uuid': uuid(name)},
                )
            )
        self._write(ComputeNode, pci_stats=objects.PciDevicePoolList(objects=[*(pools or ()), *new]).to_json())

    def _add_all_gpus(self) -> None:
        for alias, number in self._request.gpus.items():
            self._add_gpus(alias, number)

    def _give_trait(self, name: str) -> None:
        if name == 'OWNER_NOVA':
            self._report()
        else:
            self._set_trait(name.lstrip('!'), not name.startswith('!'))

    def _report(self) -> None:
        cloud, host = self._cloud, self._host
        if self._in_placement():
            return
        cloud.report(host)
        self._undo.append(lambda: cloud.rows.drop(host.name))
        for address in host.gpus:
            self._undo.append(lambda name=f'{host.name}_{address}': cloud.rows.drop(name))

    def _loosen_group(self) -> None:
        """The policy is only a wish then."""
        table, api = InstanceGroupPolicy.__table__, self._cloud.databases.api()
        group = self._cloud.groups[self._request.group or '']

        def write(policy: str) -> None:
            with api.write() as connection:
                connection.execute(table.update().where(table.c.group_id == group['id']).values(policy=policy))

        write(f'soft-{group["policy"]}')
        self._undo.append(lambda: write(group['policy']))

    def _drop_hint(self) -> None:
        dropped = self._request.dropped
        before = set(dropped)
        dropped.update(self._request.hints)
        self._undo.append(lambda: (dropped.clear(), dropped.update(before)))

    def _run_anything(self) -> None:
        self._write(ComputeNode, supported_instances=BOTH)

    def _allow_more_servers(self) -> None:
        conf = self._cloud.conf
        before = conf.filter_scheduler.max_instances_per_host
        conf.set_override('max_instances_per_host', 1000, 'filter_scheduler')
        self._undo.append(lambda: conf.set_override('max_instances_per_host', before, 'filter_scheduler'))

    def _empty_cells(self) -> None:
        """Large empty NUMA cells with dedicated CPUs, and enough devices beside the first."""
        cells = numa.topology_of(
            numa.spread(2, 1, 256, 2, 4 << 20),
            Offer(
                frozenset(number for number in range(1024) if number % 4 < 2),
                frozenset(number for number in range(1024) if number % 4 >= 2),
            ),
        )
        assert cells is not None
        self._write(ComputeNode, numa_topology=cells.to_json())
        self._enlarge('PCPU')
        self._add_all_gpus()


_BY_KEY: dict[str, Callable[[Remedies], None]] = {
    'disabled': Remedies._enable,
    'down': Remedies._wake,
    'availability_zone': Remedies._move_into_zone,
    'member_of': Remedies._mirror,
    'ServerGroupAntiAffinityFilter': Remedies._loosen_group,
    'ServerGroupAffinityFilter': Remedies._loosen_group,
    'DifferentHostFilter': Remedies._drop_hint,
    'SameHostFilter': Remedies._drop_hint,
    'ImagePropertiesFilter': Remedies._run_anything,
    'NumInstancesFilter': Remedies._allow_more_servers,
    'NUMATopologyFilter': Remedies._empty_cells,
    'PciPassthroughFilter': Remedies._add_all_gpus,
}

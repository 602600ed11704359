"""A scheduler over real databases and Placement, or its model (KILONOVA_TEST_PLACEMENT=model)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from kilonova.db import engine
from kilonova.db.models.api import Aggregate, AggregateHost, AggregateMetadata
from kilonova.db.models.cell import ComputeNode, Instance, Service
from kilonova.db.queries import build_requests
from kilonova.db.queries import cells as cell_queries
from kilonova.scheduler.filters.affinity import DifferentHostFilter, SameHostFilter
from kilonova.scheduler.filters.compute import ComputeFilter
from kilonova.scheduler.filters.pci_passthrough import PciPassthroughFilter
from kilonova.scheduler.manager import SchedulerManager
from kilonova.scheduler.weighers.amounts import RAMWeigher
from tests.fixtures.placement import Placement, of_clouds, placement
from tests.unit.scheduler.builders import conf, node, uuid

__all__ = ['placement']


@pytest.fixture(scope='session')
def templates(migrated: Path) -> Path:
    return migrated


class Rig:
    """Cells 'cell1', 'cell2'; ``host()`` makes a compute in database and Placement; ``manager()`` a scheduler."""

    def __init__(self, path: Path, templates: Path, placement: Any) -> None:
        self.placement = placement
        urls = {name: f'sqlite:///{path}/{name}.sqlite' for name in ('api', 'cell0', 'cell1', 'cell2')}
        for name in urls:
            shutil.copy(templates / f'{"api" if name == "api" else "cell"}.sqlite', path / f'{name}.sqlite')
        self.databases = engine.Databases(urls['api'], urls['cell1'])
        cell_queries.map_cell0(self.databases, urls['cell0'])
        for name in ('cell1', 'cell2'):
            cell_queries.create_cell(
                self.databases, transport_url=f'fake://{name}/', database_connection=urls[name], name=name
            )
        self.cells = cell_queries.CellDatabases(self.databases)
        self.by_name = {database.name: database for database in self.cells.enabled()}

    def host(
        self,
        name: str,
        gpus: tuple[str, ...] = (),
        cell: str = 'cell1',
        service: dict[str, Any] | None = None,
        vcpus: int = 64,
        mapped: bool = True,
        products: Mapping[str, str] = MappingProxyType({}),
        numa: Mapping[str, int] = MappingProxyType({}),
        **values: Any,
    ) -> str:
        """A compute with a GPU at each address; returns its node's uuid. ``mapped`` False: the host doesn't report
        its devices to Placement. ``products``: {address: product} of other devices, ``numa``: their NUMA cells."""
        root = Placement.host(
            self.placement,
            name,
            uuid=uuid(name),
            vcpus=vcpus,
            memory_mb=262144,
            disk_gb=1000,
            pci={f'{name}_{address}': f'CUSTOM_PCI_10DE_{products.get(address, "13F1")}' for address in gpus if mapped},
        )
        providers = {row['name']: row['uuid'] for row in self.placement.client.list_providers(in_tree=root)}
        row = node(name, **values)
        row['pci_stats'] = self.pools(name, gpus, providers, products, numa)
        row.pop('service')
        row.pop('id')
        with self.by_name[cell].write() as connection:
            connection.execute(ComputeNode.__table__.insert(), row)
            if service != {}:
                connection.execute(
                    Service.__table__.insert().values(
                        {
                            'uuid': uuid(f'service {name}'),
                            'host': name,
                            'binary': 'nova-compute',
                            'topic': 'compute',
                            'last_seen_up': engine.db_utcnow(),
                            **(service or {}),
                        }
                    )
                )
        return root

    @staticmethod
    def pools(
        name: str,
        gpus: tuple[str, ...],
        providers: dict[str, str],
        products: Mapping[str, str],
        numa: Mapping[str, int],
    ) -> str:
        from kilonova import objects

        return objects.PciDevicePoolList(
            objects=[
                objects.PciDevicePool(
                    vendor_id='10de',
                    product_id=products.get(address, '13f1'),
                    numa_node=numa.get(address, 0),
                    count=1,
                    tags={
                        'dev_type': 'type-PCI',
                        'address': address,
                        **({'rp_uuid': providers[f'{name}_{address}']} if f'{name}_{address}' in providers else {}),
                    },
                )
                for address in gpus
            ]
        ).to_json()

    def asked_for(self, *uuids: str) -> None:
        """Servers that no cell has yet."""
        with self.databases.api().write() as connection:
            build_requests.create(connection, [{'instance_uuid': one, 'project_id': 'p'} for one in uuids])

    def server(self, name: str, host: str, cell: str = 'cell1') -> str:
        with self.by_name[cell].write() as connection:
            connection.execute(Instance.__table__.insert(), {'uuid': uuid(name), 'host': host, 'node': host})
        return uuid(name)

    def aggregate(self, host: str, **metadata: str) -> str:
        with self.databases.api().write() as connection:
            key = connection.execute(
                Aggregate.__table__.insert(), {'uuid': uuid(f'aggregate {host}'), 'name': host}
            ).inserted_primary_key[0]
            connection.execute(AggregateHost.__table__.insert(), {'host': host, 'aggregate_id': key})
            connection.execute(
                AggregateMetadata.__table__.insert(),
                [{'aggregate_id': key, 'key': name, 'value': value} for name, value in metadata.items()],
            )
        return uuid(f'aggregate {host}')

    def manager(self, **overrides: Any) -> SchedulerManager:
        made = conf(**{'filter_scheduler__pci_in_placement': True, **overrides})
        filters = [ComputeFilter(), PciPassthroughFilter(), DifferentHostFilter(), SameHostFilter()]
        weighers = [RAMWeigher()]
        for one in (*filters, *weighers):
            one.conf = made
        return SchedulerManager(
            made, self.databases, self.cells, self.placement.client, enabled_filters=filters, weighers=weighers
        )


@pytest.fixture
def rig(tmp_path: Path, templates: Path) -> Iterator[Rig]:
    placement = of_clouds()
    placement.reset()
    made = Rig(tmp_path, templates, placement)
    yield made
    placement.before = placement.after = None
    made.databases.dispose()

"""Which CPUs a host offers: a compute starts with each combination of CPU sets and ratios, on new and on old rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from kilonova.db.models import cell as models
from kilonova.db.queries import compute_nodes
from tests.fixtures.cloud import Cloud

ONE = {'gpu1': ['0000:08:00.0']}
SHARED, DEDICATED = {'compute__cpu_shared_set': '0-3,32-35'}, {'compute__cpu_dedicated_set': '8-11,40-43'}
SETS = {'none': {}, 'shared': SHARED, 'dedicated': DEDICATED, 'both': {**SHARED, **DEDICATED}}
# CPUs that each combination offers: shared ones, dedicated ones.
OFFERED = {'none': (64, 0), 'shared': (8, 0), 'dedicated': (0, 8), 'both': (8, 8)}
RATIOS = {'cpu_allocation_ratio': 16.0, 'ram_allocation_ratio': 1.5, 'disk_allocation_ratio': 2.0}
INITIAL = {'initial_cpu_allocation_ratio': 2.0, 'initial_ram_allocation_ratio': 1.2}


def ratios(cloud: Cloud) -> list[float]:
    with cloud.cell.read() as conn:
        row = compute_nodes.get(conn, hypervisor_hostname='gpu1')
    assert row is not None
    return [row[name] for name in RATIOS]


def offered(cloud: Cloud) -> tuple[int, int]:
    with cloud.cell.read() as conn:
        row = compute_nodes.get(conn, hypervisor_hostname='gpu1')
    assert row is not None
    inventory, _ = cloud.placement.client.get_inventory(row['uuid'])
    return inventory.get('VCPU', {'total': 0})['total'], inventory.get('PCPU', {'total': 0})['total']


@pytest.mark.parametrize('first', SETS)
def test_a_compute_starts_with_each_combination_of_sets_and_ratios(
    make_cloud: Callable[..., Cloud], first: str
) -> None:
    """A compute starts with each combination of CPU sets and allocation ratios: with a new node row, with the row of
    other sets, and with a row whose ratios are NULL."""
    cloud = make_cloud(ONE, disk_allocation_ratio=None, **SETS[first])
    assert (offered(cloud), ratios(cloud)) == (OFFERED[first], [4.0, 1.0, 1.0])
    for then, given, is_null in itertools.product(SETS, ({}, RATIOS, INITIAL), (False, True)):
        cloud.crash_compute('gpu1')
        if is_null:
            with cloud.cell.write() as conn:
                conn.execute(sa.update(models.ComputeNode).values(dict.fromkeys(RATIOS)))
        options = {**dict.fromkeys((*SHARED, *DEDICATED)), **SETS[then], **given}
        cloud.start_compute('gpu1', **options)
        assert offered(cloud) == OFFERED[then], (then, given, is_null)
        assert None not in ratios(cloud), (then, given, is_null)
        if given is RATIOS:
            assert ratios(cloud) == [16.0, 1.5, 2.0], (then, is_null)


@pytest.mark.parametrize('name', ['dedicated', 'both'])
def test_servers_with_cpus_of_their_own_boot_where_all_are_dedicated(
    make_cloud: Callable[..., Cloud], name: str
) -> None:
    """A server with dedicated CPUs boots on a host without shared CPUs; a server without dedicated CPUs is refused
    there."""
    cloud = make_cloud(ONE, **SETS[name])
    own = cloud.boot(cloud.flavor(gpus=1, vcpus=2, **{'hw:cpu_policy': 'dedicated'}))
    assert cloud.status(own) == 'ACTIVE', cloud.story(own)
    other = cloud.boot(cloud.flavor(vcpus=1))
    assert cloud.status(other) == ('ACTIVE' if name == 'both' else 'ERROR')
    cloud.assert_clean()

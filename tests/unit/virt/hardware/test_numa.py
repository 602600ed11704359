"""NUMA cells from bare numbers, and their envelope."""
from __future__ import annotations

import json

from kilonova.virt.hardware import numa


def test_cells_share_cpus_and_memory_evenly() -> None:
    cells = numa.spread(cells=2, sockets=1, cores=2, threads=2, memory_mb=4096)
    assert [(cell.id, sorted(cell.cpus), cell.memory_mb, cell.socket) for cell in cells] == [
        (0, [0, 1, 2, 3], 2048, 0), (1, [4, 5, 6, 7], 2048, 1)]
    assert cells[1].siblings == (frozenset({4, 5}), frozenset({6, 7}))


def test_cores_without_threads_have_no_siblings() -> None:
    assert numa.spread(1, 1, 4, 1, 1024)[0].siblings == ()


def test_envelope() -> None:
    topology = json.loads(numa.to_json(numa.spread(1, 1, 1, 2, 1024)) or '')
    assert (topology['nova_object.name'], topology['nova_object.version']) == ('NUMATopology', '1.2')
    data = topology['nova_object.data']['cells'][0]['nova_object.data']
    assert (data['cpuset'], data['memory'], data['siblings']) == ([0, 1], 1024, [[0, 1]])
    assert data['mempages'][0]['nova_object.data'] == {'size_kb': 4, 'total': 262144, 'used': 0, 'reserved': 0}


def test_a_host_that_tells_of_no_cells() -> None:
    assert numa.to_json([]) is None

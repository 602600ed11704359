"""Metrics of devices in the text format of Prometheus (0.0.4).

    numbers = device_counts.counts(conn)                   # number of devices of each host, type, status and project
    unavailable = device_counts.with_words(conn, BARS)     # devices that are not offered, with the reasons
    text([('cell1', numbers, unavailable)], silent=['cell2'])    # the database of cell2 did not answer

The API and ``kilonova-manage device metrics`` use this module.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from kilonova.pci.device import BARS, KIND_OF

CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8'
# Numbers of devices, as tuples of host, device type, status, project or None, and number.
Counts = Iterable[tuple[str, str, str, str | None, int]]
# Devices that are not offered: (host, device type, extra_info as JSON). The reasons are keys of ``extra_info``.
Barred = Iterable[tuple[str, str, str]]

DEVICES, BARRED, ALLOCATED, CELL = (
    f'kilonova_{name}' for name in ('devices', 'devices_barred', 'device_allocations', 'cell_up')
)
_HELP = {
    DEVICES: 'Devices of each host by kind and status.',
    BARRED: 'Devices that are not offered to servers, by reason. A server may still hold one.',
    ALLOCATED: 'Devices that the servers of a project hold, by kind.',
    CELL: '1 if the database of a cell answered; 0 if not, and then the devices of the cell are missing.',
}


def text(cells: Iterable[tuple[str, Counts, Barred]], silent: Sequence[str]) -> str:
    """Return the metrics of the devices in these cells. Each cell is a tuple of name, counts and unavailable devices.

    ``silent`` are the names of the cells whose database did not answer.
    """
    names, found = [], dict[str, Counter[tuple[tuple[str, str], ...]]]()
    for name in (DEVICES, BARRED, ALLOCATED):
        found[name] = Counter()
    for cell, counts, barred in cells:
        names.append(cell)
        for host, dev_type, status, project_id, number in counts:
            kind = KIND_OF[dev_type]
            found[DEVICES][('host', host), ('kind', kind), ('status', status)] += number
            if project_id is not None:
                found[ALLOCATED][('project_id', project_id), ('kind', kind)] += number
        for host, dev_type, info in barred:
            for reason in set(BARS).intersection(json.loads(info)):
                found[BARRED][('host', host), ('kind', KIND_OF[dev_type]), ('reason', reason)] += 1
    found[CELL] = Counter()
    up = {**dict.fromkeys(names, 1), **dict.fromkeys(silent, 0)}
    found[CELL].update({(('cell', cell),): number for cell, number in up.items()})
    return ''.join(_metric(name, samples) for name, samples in found.items())


def _metric(name: str, samples: Counter[tuple[tuple[str, str], ...]]) -> str:
    lines = [f'# HELP {name} {_HELP[name]}', f'# TYPE {name} gauge']
    for labels, number in sorted(samples.items()):
        inner = ','.join(f'{label}="{_escaped(value)}"' for label, value in labels)
        lines.append(f'{name}{{{inner}}} {number}')
    return ''.join(f'{line}\n' for line in lines)


def _escaped(value: str) -> str:
    return value.replace('\\', r'\\').replace('"', r'\"').replace('\n', r'\n')

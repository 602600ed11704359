"""What is told of devices to a monitoring system."""

from __future__ import annotations

import json

from kilonova.pci import metrics


def samples(text: str) -> set[str]:
    return {line for line in text.splitlines() if not line.startswith('#')}


def test_devices_are_counted_by_host_kind_and_status_and_by_project() -> None:
    """Those of two projects on one host are one sample of the host."""
    text = metrics.text(
        [
            (
                'cell1',
                [
                    ('gpu1', 'type-PCI', 'available', None, 5),
                    ('gpu1', 'type-PCI', 'allocated', 'demo', 2),
                    ('gpu1', 'type-PCI', 'allocated', 'other', 1),
                ],
                [],
            ),
            ('cell2', [('gpu2', 'mdev', 'allocated', 'demo', 3)], []),
        ],
        silent=['cell3'],
    )
    assert samples(text) == {
        'kilonova_devices{host="gpu1",kind="pci",status="available"} 5',
        'kilonova_devices{host="gpu1",kind="pci",status="allocated"} 3',
        'kilonova_devices{host="gpu2",kind="mdev",status="allocated"} 3',
        'kilonova_device_allocations{project_id="demo",kind="pci"} 2',
        'kilonova_device_allocations{project_id="other",kind="pci"} 1',
        'kilonova_device_allocations{project_id="demo",kind="mdev"} 3',
        'kilonova_cell_up{cell="cell1"} 1',
        'kilonova_cell_up{cell="cell2"} 1',
        'kilonova_cell_up{cell="cell3"} 0',
    }


def test_devices_that_are_not_offered_are_counted_by_each_of_their_reasons() -> None:
    """The names of the reasons are those in rows of all releases, and in the alerts of operators."""
    barred = [
        ('gpu1', 'type-PCI', json.dumps({'unhealthy': 'Xid 79', 'dirty': 'not cleaned', 'rp_uuid': 'u'})),
        ('gpu1', 'type-PCI', json.dumps({'unhealthy': 'Xid 48'})),
        ('gpu1', 'type-VF', json.dumps({'disabled': 'by hand', 'missing': 'gone', 'failed': 'no start'})),
    ]
    assert samples(metrics.text([('cell1', [], barred)], [])) - {'kilonova_cell_up{cell="cell1"} 1'} == {
        'kilonova_devices_barred{host="gpu1",kind="pci",reason="unhealthy"} 2',
        'kilonova_devices_barred{host="gpu1",kind="pci",reason="dirty"} 1',
        'kilonova_devices_barred{host="gpu1",kind="vf",reason="disabled"} 1',
        'kilonova_devices_barred{host="gpu1",kind="vf",reason="missing"} 1',
        'kilonova_devices_barred{host="gpu1",kind="vf",reason="failed"} 1',
    }


def test_text_in_labels_is_escaped() -> None:
    text = metrics.text([('a"b\\c\nd', [], [])], [])
    assert samples(text) == {'kilonova_cell_up{cell="a\\"b\\\\c\\nd"} 1'}

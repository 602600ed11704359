"""What the audit says of accelerator requests while some of them are still to be deleted."""

from __future__ import annotations

from types import SimpleNamespace

from kilonova.accel.request import AcceleratorRequest
from kilonova.conductor.audit.accelerators import AcceleratorAudit
from kilonova.db.arguments.releases import AcceleratorRequestsRelease, ConsumerRelease

FAILED_MOVE = 'c1c2c3c4-0000-4000-8000-000000000001'


def test_requests_of_a_failed_move_that_a_release_deletes_are_not_missed():
    """Those of the same uuid that no release deletes are."""
    requests = [
        AcceleratorRequest.from_body(
            {
                'uuid': f'a{number}',
                'state': 'Bound',
                'instance_uuid': FAILED_MOVE,
                'attach_handle_type': 'TEST_PCI',
                'attach_handle_info': {},
                'device_profile_name': 'fpga',
                'device_profile_group_id': 0,
            }
        )
        for number in (1, 2)
    ]
    audit = AcceleratorAudit(SimpleNamespace(every=lambda: requests))
    assert audit.read() is None
    audit.give_back(
        [AcceleratorRequestsRelease(accelerator_requests=['a1']), ConsumerRelease(consumer=FAILED_MOVE), None]
    )
    audit.compare({}, {}, set())
    assert audit.disagreements() == [f'accelerators: requests a2 belong to {FAILED_MOVE}, which is not a server']
    audit.give_back([AcceleratorRequestsRelease(accelerator_requests=['a2'])])
    assert audit.disagreements() == []

"""What the audit says of accelerator requests while some of them are still to be deleted."""

from __future__ import annotations

import json
from types import SimpleNamespace

from kilonova.accel.request import AcceleratorRequest
from kilonova.conductor.audit.accelerators import AcceleratorAudit
from kilonova.db.arguments.releases import AcceleratorRequestsRelease, ConsumerRelease
from tests.unit.scheduler.builders import flavor

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


def test_a_server_without_its_requests_is_reported_whatever_servers_are_left_out_before_it():
    """Left out are servers on which an operation works, and servers of flavors without accelerators."""
    plain, fpga = (
        json.dumps({'cur': flavor(extra_specs=extra_specs).obj_to_primitive()})
        for extra_specs in ({}, {'accel:device_profile': 'fpga'})
    )
    audit = AcceleratorAudit(SimpleNamespace(every=list))
    assert audit.read() is None
    audit.compare(
        {
            name: {'uuid': name, 'flavor': of, 'host': 'gpu1', 'vm_state': 'active'}
            for name, of in (('busy', fpga), ('plain', plain), ('wrong', fpga))
        },
        {},
        {'busy'},
    )
    assert audit.disagreements() == ['accelerators: server wrong has a device profile and no bound accelerator request']


def test_a_server_without_a_host_that_holds_requests_is_reported():
    """It was shelved, and its devices are still not free."""
    of = json.dumps({'cur': flavor(extra_specs={'accel:device_profile': 'fpga'}).obj_to_primitive()})
    requests = [
        AcceleratorRequest.from_body(
            {
                'uuid': f'of {name}',
                'state': 'Bound',
                'instance_uuid': name,
                'attach_handle_type': 'TEST_PCI',
                'attach_handle_info': {},
                'device_profile_name': 'fpga',
                'device_profile_group_id': 0,
            }
        )
        for name in ('shelved', 'running')
    ]
    audit = AcceleratorAudit(SimpleNamespace(every=lambda: requests))
    assert audit.read() is None
    audit.compare(
        {
            name: {'uuid': name, 'flavor': of, 'host': host, 'vm_state': 'active'}
            for name, host in (('shelved', None), ('running', 'gpu1'), ('empty', None))
        },
        {},
        set(),
    )
    assert audit.disagreements() == ['accelerators: server shelved has no host and holds requests of shelved']

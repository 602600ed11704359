"""Accelerators of a host that has no account for Cyborg."""

from __future__ import annotations

import pytest

from kilonova import errors
from kilonova.accel.client import AcceleratorRequestBindingFailed
from kilonova.compute.accelerators import HostAccelerators
from tests.unit.compute.cell import flavor

FPGA = flavor()
FPGA.extra_specs = {'accel:device_profile': 'fpga'}


def test_the_option_that_is_missing_is_named():
    """The host can't know whether the server has devices, so it says so and does not start the guest without them."""
    accelerators = HostAccelerators(None, 0)
    assert not accelerators.available
    with pytest.raises(errors.Unanswered, match=r'no account is set in \[cyborg\] or \[keystone_authtoken\]'):
        accelerators.devices(FPGA, 'u')
    with pytest.raises(AcceleratorRequestBindingFailed, match=r'not bound after 0 s: .* no account is set'):
        accelerators.await_bound(FPGA, 'u', lambda: None)


def test_servers_without_accelerators_run_there():
    accelerators = HostAccelerators(None, 0)
    assert accelerators.devices(flavor(), 'u') == accelerators.await_bound(flavor(), 'u', lambda: None) == []

"""A sample of the field's acceptance suite that looks into a guest (``make tempest GUESTS=qemu``): a cloud of its own
with QEMU guests, the real Neutron and Cinder, and one scenario of Tempest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cloud import neutron
from tools.cloud.layout import ROOT

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason='machines of namespaces, libvirtd and QEMU in system mode need root'),
    pytest.mark.skipif(not Path('/dev/net/tun').exists(), reason='guests on networks need /dev/net/tun'),
    pytest.mark.skipif(
        bool(neutron.missing_programs(data_path=True)),
        reason='OVN is not installed: make bootstrap-network installs it',
    ),
]


def test_tempest_logs_in_to_a_guest_by_its_floating_address() -> None:
    """The scenario reads the guest's metadata there, from the service and from the config drive, and stores a password
    by the service."""
    done = subprocess.run(
        [sys.executable, '-P', '-m', 'tools.acceptance', '--guests', 'qemu', 'test_server_basic_ops'],
        cwd=ROOT,
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert done.stdout.splitlines()[-1] == '1 passed, 0 failed, 0 excluded'

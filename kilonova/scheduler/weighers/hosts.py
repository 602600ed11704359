"""Weighers by a host's hypervisor version, its failed builds and its PCI devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from kilonova.objects import RequestSpec
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.weighers import BaseHostWeigher

# Hosts with more free devices than this number have the same weight.
MAX_DEVICES = 100


class HypervisorVersionWeigher(BaseHostWeigher):
    """Prefer hosts with a newer hypervisor, so that servers use upgraded hosts first."""

    multiplier = 'hypervisor_version_weight_multiplier'

    def values(self, arrays: HostArrays, weight_properties: RequestSpec) -> Any:
        """Return the hypervisor version of each host."""
        return arrays.table['hypervisor_version']


class BuildFailureWeigher(BaseHostWeigher):
    """Prefer hosts with fewer failed builds since the host's last successful build."""

    multiplier = 'build_failure_weight_multiplier'

    def values(self, arrays: HostArrays, weight_properties: RequestSpec) -> Any:
        """Return the number of failed builds of each host, as a negative number."""
        return -1 * arrays.table['failed_builds']


class PCIWeigher(BaseHostWeigher):
    """Prefer hosts with fewer free PCI devices, even if the request does not need any."""

    multiplier = 'pci_weight_multiplier'

    def values(self, arrays: HostArrays, weight_properties: RequestSpec) -> Any:
        """Return a number for each host. The fewer devices are free on the host, the greater is the number."""
        return MAX_DEVICES - np.minimum(arrays.table['pci_free'], MAX_DEVICES - 1)

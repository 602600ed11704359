"""Weighers of what a host is like: its hypervisor, its failures, its devices."""
from __future__ import annotations

from typing import Any

import numpy as np

from kilonova.objects import RequestSpec
from kilonova.scheduler.look import Look
from kilonova.scheduler.weighers import BaseHostWeigher

# More free devices than this make no difference.
MAX_DEVICES = 100


class HypervisorVersionWeigher(BaseHostWeigher):
    """The newer the better, so that an upgrade fills the hosts that have it."""

    multiplier = 'hypervisor_version_weight_multiplier'

    def values(self, look: Look, weight_properties: RequestSpec) -> Any:
        return look.table['hypervisor_version']


class BuildFailureWeigher(BaseHostWeigher):
    """Hosts where builds fail come last; the count falls back to 0 with the next build that works."""

    multiplier = 'build_failure_weight_multiplier'

    def values(self, look: Look, weight_properties: RequestSpec) -> Any:
        return -1 * look.table['failed_builds']


class PCIWeigher(BaseHostWeigher):
    """Hosts with fewer free PCI devices win, whether any are asked for or not."""

    multiplier = 'pci_weight_multiplier'

    def values(self, look: Look, weight_properties: RequestSpec) -> Any:
        return MAX_DEVICES - np.minimum(look.table['pci_free'], MAX_DEVICES - 1)

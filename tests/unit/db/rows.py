"""Rows that tests insert."""

from __future__ import annotations

import uuid
from typing import Any


def node(host: str, **values: Any) -> dict[str, Any]:
    """Values of a compute node whose name is its host's."""
    return {
        'uuid': str(uuid.uuid5(uuid.NAMESPACE_DNS, host)),
        'host': host,
        'hypervisor_hostname': host,
        'vcpus': 16,
        'memory_mb': 65536,
        'local_gb': 100,
        'vcpus_used': 0,
        'memory_mb_used': 512,
        'local_gb_used': 0,
        'hypervisor_type': 'QEMU',
        'hypervisor_version': 9000000,
        'cpu_info': '{}',
        **values,
    }


def device(address: str, **values: Any) -> dict[str, Any]:
    """Values of a GPU."""
    return {
        'address': address,
        'vendor_id': '10de',
        'product_id': '13f1',
        'dev_type': 'type-PCI',
        'label': 'label_10de_13f1',
        'status': 'available',
        'extra_info': '{}',
        'numa_node': None,
        **values,
    }

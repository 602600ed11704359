"""Amounts of each resource class that a server's allocation in Placement has.

The scheduler requests these amounts from Placement, and quota limits count them.

    shared, dedicated = constraints.cpus_asked(flavor, image.properties)
    amounts.of(flavor, shared, dedicated)           # {'PCPU': 4, 'MEMORY_MB': 4096, 'DISK_GB': 20, 'VGPU': 1}

Amounts belong to *groups*, {suffix: {resource class: amount}}. The extra specs ``resources<suffix>:X`` of a flavor with
the same suffix are one group, whose resources come from one provider. All other resources are in the group ''. Devices
of PCI aliases, ports and accelerators are not included.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import os_resource_classes
from oslo_log import log as logging
from oslo_utils import strutils

LOG = logging.getLogger(__name__)

Groups = Mapping[str, dict[str, int]]

# The form of an extra spec's name after the word ``resources`` or ``trait``, such as '1:VGPU' or ':VGPU'.
SUFFIX_AND_NAME = r'(?P<suffix>[a-zA-Z0-9_-]{1,64})?:(?P<name>.+)'
_RESOURCES = re.compile(f'resources{SUFFIX_AND_NAME}')


def of(
    flavor: Any, shared: int, dedicated: int, *, encrypted: bool = False, from_volume: bool = False
) -> dict[str, int]:
    """Return how much of each resource class a server needs, summed over all groups.

    ``flavor`` has the attributes of objects.Flavor: vcpus, memory_mb, root_gb, ephemeral_gb, swap, extra_specs.
    ``shared`` and ``dedicated`` are the numbers of the server's shared and dedicated CPUs. ``encrypted`` says whether
    its memory must be encrypted. With ``from_volume``, the root disk is a volume and is not counted.
    """
    groups: dict[str, dict[str, int]] = {'': {}}
    for key, value in flavor.extra_specs.items():
        found = _RESOURCES.fullmatch(key)
        amount = number(found['name'], value) if found is not None else None
        if found is not None and amount is not None:
            groups.setdefault(found['suffix'] or '', {})[found['name']] = amount
    add_sizes(groups, flavor, from_volume)
    pin(groups[''], shared, dedicated)
    add_memory(groups[''], flavor.extra_specs, encrypted)
    total: dict[str, int] = {}
    for group in groups.values():
        for name, amount in group.items():
            total[name] = total.get(name, 0) + amount
    return {name: amount for name, amount in total.items() if amount}


def number(name: str, value: str) -> int | None:
    """Return the value of the extra spec ``name`` as an amount, or None if the value is not a number."""
    if value.isdecimal():
        return int(value)
    LOG.warning('Resource amounts must be integers. Received %s=%s', name, value)
    return None


def add_sizes(groups: Groups, flavor: Any, from_volume: bool = False) -> None:
    """Add the flavor's VCPU, MEMORY_MB and DISK_GB to the group '', whose extra specs have no suffix.

    A resource class that an extra spec ``resources<suffix>:X`` sets in any group is not added. With ``from_volume``,
    the root disk is a volume and is not counted in DISK_GB.
    """
    disk = flavor.ephemeral_gb + math.ceil((flavor.swap or 0) / 1024)
    if not from_volume:
        disk += flavor.root_gb
    named = {name for resources in groups.values() for name in resources}
    for name, amount in (('VCPU', flavor.vcpus), ('MEMORY_MB', flavor.memory_mb), ('DISK_GB', disk)):
        if name not in named:
            groups[''][name] = amount


def pin(resources: dict[str, int], shared: int, dedicated: int) -> None:
    """Replace VCPU in ``resources`` by ``shared`` VCPU and ``dedicated`` PCPU.

    ``resources`` is the group of the flavor's resources without a suffix. Do nothing if there are no dedicated CPUs, or
    if the group has no VCPU, because an extra spec such as resources1:VCPU requests VCPU in another group.
    """
    if dedicated and 'VCPU' in resources:
        resources.update(VCPU=shared, PCPU=dedicated)


def add_memory(resources: dict[str, int], extra_specs: Mapping[str, str], encrypted: bool) -> None:
    """Add resource classes for encrypted memory (if ``encrypted``) and for the flavor's persistent memory."""
    if encrypted:
        resources['MEM_ENCRYPTION_CONTEXT'] = 1
    for label in filter(None, map(str.strip, extra_specs.get('hw:pmem', '').split(','))):
        name = os_resource_classes.normalize_name(f'PMEM_NAMESPACE_{label}')
        resources[name] = resources.get(name, 0) + 1


def wants_encryption(extra_specs: Mapping[str, str], properties: Any = None) -> bool:
    """Return whether the guest's memory must be encrypted.

    The flavor's hw:mem_encryption decides. If the flavor has no such extra spec, the image's hw_mem_encryption decides.
    An invalid value, or no value, counts as False.
    """
    value = extra_specs.get('hw:mem_encryption')
    if value is None and properties is not None:
        value = properties.get('hw_mem_encryption')
    return strutils.bool_from_string(value)

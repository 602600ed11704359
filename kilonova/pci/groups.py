"""Groups of devices: a server gets all devices of a group or none.

    formed = form([(found, spec), …])        # the groups that device_spec defines for the devices of a host
    formed.heads                             # {'0000:81:00.1': '0000:81:00.0', '0000:81:00.0': '0000:81:00.0'}
    formed.problems                          # {'0000:82:00.0': 'group gpu: 0000:82:00.0 is 1 device, …'}

A group counts as one device in pools, requests and Placement. The member with the lowest address represents the group
and is called its head (``device.unit``). The other members have the same status as the head.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kilonova.pci.address import PciConfigInvalidSpec, PciDeviceWrongAddressFormat, parse
from kilonova.pci.device import STANDARD, DiscoveredDevice

SLOT, IOMMU_GROUP = 'slot', 'iommu_group'
RULES = (SLOT, IOMMU_GROUP)
# A group has LEAST to MOST devices. A device_spec may list each group's addresses, for at most MOST_LISTS groups.
LEAST, MOST, MOST_LISTS = 2, 16, 256
NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9_.-]{0,63}')
# A device_spec defines a group by the keys in KEYS. A spec with a group must not have the keys in EXCLUDED.
KEYS = ('group', 'group_by', 'group_size')
EXCLUDED = ('one_time_use', 'live_migratable', 'remote_managed', 'physical_network', 'devname')


@dataclass(frozen=True)
class Grouping:
    """The groups that one device_spec defines.

    ``name`` is the name by which a [pci]alias requests a group. The devices of a group are defined in one of two ways.
    ``by`` is 'slot' or 'iommu_group': devices with the same slot or IOMMU group form a group of ``size`` devices. Or
    ``lists`` has the addresses of the devices of each group.
    """

    name: str
    by: str | None = None
    size: int = 0
    lists: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def parse(cls, entry: Mapping[str, object]) -> Grouping | None:
        """Return the groups that an entry of device_spec defines, or None if it defines none.

        Raises PciConfigInvalidSpec, with the reason, if the entry is wrong.
        """
        given = {key: entry[key] for key in KEYS if key in entry}
        if not given:
            return None
        name, by, size = (given.get(key) for key in KEYS)
        if not isinstance(name, str) or NAME.fullmatch(name) is None:
            raise PciConfigInvalidSpec(
                reason=f"group: {name!r} is invalid: it must be 1 to 64 letters, digits, '_', '.' or '-'"
            )
        beside = [key for key in EXCLUDED if key in entry]
        if beside:
            raise PciConfigInvalidSpec(reason=f"group {name}: '{beside[0]}' is not supported for devices of a group")
        if isinstance(by, list):
            if size is not None:
                raise PciConfigInvalidSpec(
                    reason=f'group {name}: group_size is valid only with group_by {" or ".join(RULES)}'
                )
            return cls(name, lists=_lists(name, by))
        if by not in RULES:
            raise PciConfigInvalidSpec(
                reason=f'group {name}: group_by: {by!r} is invalid: it must be {", ".join(RULES)} or lists of addresses'
            )
        if not isinstance(size, int) or isinstance(size, bool) or not LEAST <= size <= MOST:
            raise PciConfigInvalidSpec(
                reason=f'group {name}: group_size: {size!r} is invalid: it must be a number from {LEAST} to {MOST}'
            )
        return cls(name, str(by), size)


def _lists(name: str, given: list[object]) -> tuple[tuple[str, ...], ...]:
    if not 1 <= len(given) <= MOST_LISTS:
        raise PciConfigInvalidSpec(
            reason=f'group {name}: group_by has {len(given)} lists, but must have 1 to {MOST_LISTS}'
        )
    lists, seen = [], set[str]()
    for members in given:
        if not isinstance(members, list) or not LEAST <= len(members) <= MOST:
            raise PciConfigInvalidSpec(
                reason=f'group {name}: group_by: {members!r} is invalid: it must be a list of '
                f'{LEAST} to {MOST} addresses'
            )
        addresses = tuple(_address(name, member) for member in members)
        for address in addresses:
            if address in seen:
                raise PciConfigInvalidSpec(reason=f'group {name}: {address} is listed twice')
            seen.add(address)
        lists.append(addresses)
    return tuple(lists)


def _address(name: str, member: object) -> str:
    try:
        return str(parse(member if isinstance(member, str) else ''))
    except PciDeviceWrongAddressFormat:
        raise PciConfigInvalidSpec(
            reason=f'group {name}: {member!r} is not a PCI address such as 0000:81:00.0'
        ) from None


def check_same(groupings: Iterable[Grouping | None]) -> None:
    """Raise PciConfigInvalidSpec if two specs define different groups with one name."""
    known: dict[str, Grouping] = {}
    for grouping in groupings:
        if grouping is not None and known.setdefault(grouping.name.lower(), grouping) != grouping:
            raise PciConfigInvalidSpec(
                reason=f'group {grouping.name}: two specs name it, but with different group_by or group_size'
            )


@dataclass
class Formed:
    """The groups of a host's devices.

    ``heads`` is a dict from the address of each member to the address of the head (the first member) of its group.
    ``problems`` is a dict from address to reason, for devices that should be in a group but whose group is incomplete.
    The devices in ``problems`` are not offered to servers.
    """

    heads: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def form(named: Iterable[tuple[DiscoveredDevice, Grouping | None]]) -> Formed:
    """Return the groups that a host's devices form.

    ``named`` has a pair for each discovered device that matches a device_spec: the device, and the definition of groups
    in this device_spec (None if the spec defines no groups).
    """
    formed, members = Formed(), dict[Grouping, dict[str, DiscoveredDevice]]()
    for found, grouping in named:
        if grouping is None:
            continue
        if found['dev_type'] != STANDARD:
            formed.problems[found['address']] = (
                f'group {grouping.name}: {found["address"]} is {found["dev_type"]}, only {STANDARD} can be in a group'
            )
        else:
            members.setdefault(grouping, {})[found['address']] = found
    for grouping, devices in members.items():
        if grouping.by is None:
            _by_lists(formed, grouping, devices)
        else:
            _by_rule(formed, grouping, devices)
    return formed


def _by_lists(formed: Formed, grouping: Grouping, devices: Mapping[str, DiscoveredDevice]) -> None:
    for addresses in grouping.lists:
        absent = [address for address in addresses if address not in devices]
        if len(absent) == len(addresses):
            # It is no problem if none of a group's devices is on this host, because hosts may share a configuration.
            continue
        if not absent:
            _add(formed, addresses)
            continue
        why = (
            f'group {grouping.name}: {", ".join(absent)} of {", ".join(addresses)} is not a device of this host '
            'that matches a spec of the group'
        )
        formed.problems.update({address: why for address in addresses if address in devices})
    listed = {address for addresses in grouping.lists for address in addresses}
    for address in devices.keys() - listed:
        formed.problems[address] = f'group {grouping.name}: {address} is in none of the lists of group_by'


def _by_rule(formed: Formed, grouping: Grouping, devices: Mapping[str, DiscoveredDevice]) -> None:
    together: dict[object, list[str]] = {}
    for address, found in devices.items():
        key: object = address.rpartition('.')[0] if grouping.by == SLOT else found.get('iommu_group')
        if key is None:
            formed.problems[address] = f'group {grouping.name}: {address} is in no IOMMU group'
        else:
            together.setdefault(key, []).append(address)
    for addresses in together.values():
        if len(addresses) == grouping.size:
            _add(formed, addresses)
            continue
        why = (
            f'group {grouping.name}: group_size is {grouping.size}, but the number of devices in one {grouping.by} '
            f'is {len(addresses)} ({", ".join(sorted(addresses))})'
        )
        formed.problems.update(dict.fromkeys(addresses, why))


def _add(formed: Formed, addresses: Iterable[str]) -> None:
    ordered = sorted(addresses)
    formed.heads.update(dict.fromkeys(ordered, ordered[0]))

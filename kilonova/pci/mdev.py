"""Mediated devices (vGPUs): parts of a card that servers hold one by one.

    types = MdevTypes.from_conf(conf)           # [devices]enabled_mdev_types, [mdev_<type>]
    kind = MediatedDevices(types, specs, conf.host)
    kind.columns(found)                         # {uuid: columns}: those that exist, and those that there is room for

A card (a PCI function, the *parent*) has devices of one type. Each that it has room for is a device of the host's
ledger under a UUID that is planned here; the hypervisor's driver makes it under that UUID when a guest first needs it.
It is not removed when it is free again. In Placement a parent is a provider, and each of its devices one of the type's
resource class.
"""
from __future__ import annotations

import json
import logging
import os
import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import os_traits
from oslo_config import cfg

from kilonova import errors
from kilonova.conf.devices import mdev_section
from kilonova.objects import PciDevice
from kilonova.pci.device import AVAILABLE, MDEV, OWNED, Columns, Found, PoolKeys
from kilonova.pci.placement import Provider
from kilonova.pci.spec import DeviceSpecs

LOG = logging.getLogger(__name__)

# The interface of devices that guests can be given.
VFIO = 'vfio-pci'
MOST_TYPES = 64
# Of one parent; no card has so many.
MOST_DEVICES = 1024
# Of the file of chosen types.
MOST_BYTES = 1 << 20
_TYPE = re.compile(r'[A-Za-z0-9_.-]{1,64}')
_ADDRESS = re.compile(r'[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]')
# Planned UUIDs follow from the host, the parent, the type and a number.
_PLANNED = uuid.UUID('5b2a5c3e-7d1f-5a86-9f43-0c1de4b8a917')


class InvalidLibvirtMdevConfig(errors.Invalid):
    msg_fmt = 'Invalid configuration of mediated devices: %(reason)s'


@dataclass(frozen=True)
class MdevType:
    """An enabled type. ``most``: devices of it on the host, None: as many as its parents give."""

    name: str
    resource_class: str
    most: int | None


class ChosenTypes:
    """The types that operators chose for cards, in a file: ``types`` {address of a card: type}.
    InvalidLibvirtMdevConfig: it was written by somebody else."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.types: dict[str, str] = {}
        if not os.path.exists(path):
            return
        with open(path, encoding='utf-8') as file:
            text = file.read(MOST_BYTES)
        try:
            types = json.loads(text)
            assert all(_ADDRESS.fullmatch(parent) and _TYPE.fullmatch(name) for parent, name in types.items())
        except (ValueError, AttributeError, TypeError, AssertionError):
            raise InvalidLibvirtMdevConfig(
                reason=f"{path} is not what 'kilonova-manage device set-type' wrote; without it cards have the types "
                       'of the configuration') from None
        self.types = types

    def set(self, parent: str, name: str) -> None:
        """Write it down."""
        types = {**self.types, parent: name}
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        fresh = f'{self._path}.new'
        with open(fresh, 'w', encoding='utf-8') as file:
            json.dump(types, file, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._path)
        self.types = types


class MdevTypes:
    """Which parent has which type."""

    def __init__(self, types: Collection[MdevType], of_parent: Mapping[str, MdevType],
                 default: MdevType | None, chosen: ChosenTypes | None = None) -> None:
        """``default``: of parents that ``of_parent`` doesn't name. ``chosen``: by operators, which counts more."""
        self.types, self.named, self._default = tuple(types), dict(of_parent), default
        self._by_name = {one.name: one for one in types}
        self._chosen = chosen
        for parent, name in (chosen.types if chosen is not None else {}).items():
            if name not in self._by_name:
                LOG.warning('%s was chosen for %s by an operator, and is not enabled any more: it has the type of the '
                            'configuration', name, parent)

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> MdevTypes:
        """From ``[devices]enabled_mdev_types`` and ``[mdev_<type>]``; InvalidLibvirtMdevConfig."""
        types: list[MdevType] = []
        of_parent: dict[str, MdevType] = {}
        default: MdevType | None = None
        for name in mdev_types(conf):
            section = mdev_section(conf, name)
            types.append(MdevType(name, section.mdev_class, section.max_instances))
            for text in section.device_addresses:
                address = text.strip().lower()
                if _ADDRESS.fullmatch(address) is None:
                    raise InvalidLibvirtMdevConfig(reason=f'incorrect device address: {text!r} in [mdev_{name}]'
                                                          'device_addresses is no PCI address such as 0000:84:00.0')
                if address in of_parent:
                    raise InvalidLibvirtMdevConfig(reason=f'duplicate types for PCI ID {address}: '
                                                          f'{of_parent[address].name} and {name}')
                of_parent[address] = types[-1]
            if not section.device_addresses:
                if default is not None:
                    raise InvalidLibvirtMdevConfig(
                        reason=f'{default.name} and {name} both have no device_addresses; only one type can be that of '
                               'all other cards')
                default = types[-1]
        return cls(types, of_parent, default, ChosenTypes(os.path.join(conf.state_path, 'mdev_types.json')))

    def of(self, parent: str) -> MdevType | None:
        """The type of a parent; None: it gives no devices."""
        chosen = self._by_name.get(self._chosen.types.get(parent, '')) if self._chosen is not None else None
        return chosen or self.named.get(parent, self._default)

    def enabled(self, name: str) -> MdevType:
        """An enabled type by its name; errors.Invalid."""
        if name not in self._by_name:
            raise errors.Invalid(f'{name!r} is not among [devices]enabled_mdev_types: '
                                 f"{', '.join(sorted(self._by_name)) or 'none'}")
        return self._by_name[name]

    def choose(self, parent: str, name: str) -> None:
        """It has this type from now on, whatever the configuration says."""
        assert self._chosen is not None
        self._chosen.set(parent, name)


def mdev_types(conf: cfg.ConfigOpts) -> list[str]:
    """The enabled types, as they are named; InvalidLibvirtMdevConfig."""
    names: list[str] = conf.devices.enabled_mdev_types
    if len(names) > MOST_TYPES:
        raise InvalidLibvirtMdevConfig(reason=f'[devices]enabled_mdev_types has {len(names)} types, at most '
                                              f'{MOST_TYPES} are accepted')
    for number, name in enumerate(names):
        if _TYPE.fullmatch(name) is None:
            raise InvalidLibvirtMdevConfig(reason=f'{name!r} in [devices]enabled_mdev_types is no type: letters, '
                                                  'digits, . _ and - are accepted, at most 64')
        if name in names[:number]:
            raise InvalidLibvirtMdevConfig(reason=f'{name!r} is twice in [devices]enabled_mdev_types')
    return names


class MediatedDevices:
    """``kinds.Kind``. A card that ``specs`` give away whole gives no parts of itself."""

    dev_types = frozenset((MDEV,))

    def __init__(self, types: MdevTypes, specs: DeviceSpecs, host: str) -> None:
        self._types, self._specs, self._host = types, specs, host
        self._told: set[str] = set()

    def check(self, found: Collection[Found]) -> None:
        """As ``Kind``: a parent that [pci]device_spec gives away whole, or that lacks its type."""
        functions = _functions(found)
        for parent, mdev_type in self._parents(functions):
            where = f'{parent["address"]} has mediated devices of type {mdev_type.name}'
            if self._is_whole(parent, functions):
                raise InvalidLibvirtMdevConfig(reason=f'{where}, and [pci]device_spec names it (or its physical '
                                                      'function): a card is given away whole or in parts')
            if parent['address'] in self._types.named and mdev_type.name not in parent.get('mdev_types', {}):
                supported = ', '.join(sorted(parent.get('mdev_types', {}))) or 'none'
                raise InvalidLibvirtMdevConfig(
                    reason=f'{where} by [mdev_{mdev_type.name}]device_addresses, and supports only {supported}')

    def checked(self, found: Collection[Found], address: str, name: str) -> str:
        """A type that a card may have: its name. NotFound: there is no such card; errors.Invalid: it doesn't give that
        type, or the host doesn't."""
        functions = _functions(found)
        parent = functions.get(address)
        if parent is None:
            raise errors.NotFound(f'{self._host} has no card {address}')
        self._types.enabled(name)
        supported = sorted(one for one, of in parent.get('mdev_types', {}).items() if of['api'] == VFIO)
        if name not in supported:
            raise errors.Invalid(f'{address} supports {", ".join(supported) or "no mediated devices"}, not {name}')
        if self._is_whole(parent, functions):
            raise errors.Invalid(f'[pci]device_spec gives {address} away whole')
        return name

    def choose(self, address: str, name: str) -> None:
        """The card has this type from now on; see ``checked``."""
        self._types.choose(address, name)

    def columns(self, found: Collection[Found]) -> dict[str, Columns]:
        """As ``Kind``: of each parent, in the order of addresses, the devices that exist and those that it has room
        for, up to the type's ``max_instances``."""
        left = {one.name: one.most for one in self._types.types}
        made: dict[str, Columns] = {}
        functions = _functions(found)
        there: dict[tuple[str | None, str | None], list[str]] = {}
        for one in found:
            if one['dev_type'] == MDEV:
                there.setdefault((one.get('parent_addr'), one.get('mdev_type')), []).append(one['address'])
        for parent, mdev_type in self._parents(functions):
            supported = parent.get('mdev_types', {}).get(mdev_type.name)
            if supported is None or supported['api'] != VFIO or self._is_whole(parent, functions):
                self._tell(parent['address'], mdev_type.name)
                continue
            exist = sorted(there.get((parent['address'], mdev_type.name), ()))
            room = min(supported['available'], MOST_DEVICES)
            uuids = exist + self._planned(parent['address'], mdev_type.name, room, exist)
            most = left[mdev_type.name]
            if most is not None:
                uuids = uuids[:most]
                left[mdev_type.name] = most - len(uuids)
            made.update((one, _columns(parent, mdev_type)) for one in uuids)
        return made

    def unneeded(self, found: Collection[Found], held: Collection[str]) -> list[str]:
        """As ``Kind``: those of another type than their parent's: most cards have one type at a time. Those that
        somebody else made stay."""
        return [one['address'] for one in found if one['dev_type'] == MDEV and one['address'] not in held
                and (mdev_type := self._types.of(one.get('parent_addr') or '')) is not None
                and mdev_type.name != one['mdev_type'] and self._is_ours(one)]

    def statuses(self, devices: Collection[PciDevice]) -> dict[str, str]:
        """As ``Kind``: none bars another."""
        return {device.address: device.status if device.status in OWNED else AVAILABLE for device in devices}

    def pool_keys(self, device: PciDevice) -> PoolKeys | None:
        """As ``Kind``; None: its parent has another type now."""
        mdev_type = self._types.of(device.parent_addr)
        if mdev_type is None or mdev_type.name != device.extra_info.get('mdev_type'):
            return None
        return {'vendor_id': device.vendor_id, 'product_id': device.product_id, 'numa_node': device.numa_node,
                'dev_type': MDEV, 'mdev_type': mdev_type.name, 'address': device.parent_addr}

    def pool_address(self, device: PciDevice) -> str:
        """As ``Kind``: the parent's."""
        found: str = device.parent_addr
        return found

    def providers(self, nodename: str, devices: Collection[PciDevice]) -> dict[str, Provider]:
        """As ``Kind``: one a parent, named like libvirt's node device. Devices of the parent's former type that are
        still held are part of it as long as their class is the same; of another class Placement keeps what is used."""
        view: dict[str, Provider] = {}
        for device in sorted(devices, key=lambda one: (one.parent_addr, one.address)):
            current = self.pool_keys(device) is not None
            if not current and device.status not in OWNED:
                continue
            resource_class = device.extra_info['mdev_class']
            mdev_type = self._types.of(device.parent_addr)
            if mdev_type is not None and resource_class != mdev_type.resource_class:
                continue
            name = f'{nodename}_pci_{re.sub("[:.]", "_", device.parent_addr)}'
            provider = view.setdefault(name, Provider(name, device.parent_addr, more_traits=True,
                                                      traits=frozenset((os_traits.OWNER_NOVA,))))
            provider.resource_class = resource_class if mdev_type is not None else None
            provider.devices.append(device)
        return view

    def used_up(self, device: PciDevice) -> bool:
        """As ``Kind``: never."""
        return False

    def _parents(self, functions: Mapping[str, Found]) -> Iterator[tuple[Found, MdevType]]:
        """Those that are to give devices, by address, with their types."""
        for address, one in sorted(functions.items()):
            mdev_type = self._types.of(address)
            if mdev_type is not None and (one.get('mdev_types') or address in self._types.named):
                yield one, mdev_type

    def _is_whole(self, parent: Found, functions: Mapping[str, Found]) -> bool:
        above = functions.get(parent.get('parent_addr') or '')
        return any(self._specs.match(one) is not None for one in (parent, above) if one is not None)

    def _planned(self, parent: str, mdev_type: str, number: int, exist: Collection[str]) -> list[str]:
        """UUIDs for devices that don't exist yet: always the first ones that are not taken."""
        made: list[str] = []
        count = 0
        while len(made) < number:
            planned = self._uuid(parent, mdev_type, count)
            if planned not in exist:
                made.append(planned)
            count += 1
        return made

    def _uuid(self, parent: str | None, mdev_type: str, number: int) -> str:
        return str(uuid.uuid5(_PLANNED, f'{self._host}/{parent}/{mdev_type}/{number}'))

    def _is_ours(self, one: Found) -> bool:
        """Whether it was made under a UUID that was planned here."""
        return any(self._uuid(one.get('parent_addr'), one['mdev_type'], number) == one['address']
                   for number in range(MOST_DEVICES))

    def _tell(self, parent: str, mdev_type: str) -> None:
        if parent not in self._told:
            self._told.add(parent)
            LOG.warning('%s gives no mediated devices of type %s: it does not support the type for guests (%s), or '
                        '[pci]device_spec gives it away whole', parent, mdev_type, VFIO)


def _functions(found: Collection[Found]) -> dict[str, Found]:
    return {one['address']: one for one in found if one['dev_type'] != MDEV}


def _columns(parent: Found, mdev_type: MdevType) -> Columns:
    vendor_id, product_id = parent['vendor_id'].lower(), parent['product_id'].lower()
    return {'vendor_id': vendor_id, 'product_id': product_id, 'dev_type': MDEV, 'dev_id': None,
            'label': f'label_{vendor_id}_{product_id}', 'numa_node': parent.get('numa_node'),
            'parent_addr': parent['address'],
            'extra_info': {'mdev_type': mdev_type.name, 'mdev_class': mdev_type.resource_class}}

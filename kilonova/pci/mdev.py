"""Mediated devices (vGPUs): parts of a card that servers hold one by one.

    types = MdevTypes.from_conf(conf)           # [devices]enabled_mdev_types, [mdev_<type>]
    kind = MdevKind(types, specs, conf.host)
    kind.columns(found)                         # {uuid: columns} of devices that exist or can be created

A card (a PCI function, called the parent) has mediated devices of one type. For each device that can still be created
on the card, this module computes a UUID, called the planned UUID, and offers the device to servers: it has a row in
pci_devices before it exists. The hypervisor's driver creates the device with this UUID when a guest first needs it. The
device stays on the host when it is freed. In Placement a parent is a provider, and each of its devices is one unit of
the type's resource class.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import os_traits
from oslo_config import cfg
from oslo_log import log as logging

from kilonova import errors
from kilonova.conf.devices import mdev_section
from kilonova.objects import PciDevice
from kilonova.pci.device import AVAILABLE, MDEV, OWNED, DeviceColumns, DiscoveredDevice, PoolKeys
from kilonova.pci.placement import DeviceProvider
from kilonova.pci.spec import DeviceSpecs

LOG = logging.getLogger(__name__)

# The interface of mediated devices that guests can use.
VFIO = 'vfio-pci'
MOST_TYPES = 64
# Maximum number of devices of one parent. It is higher than the number on any real card.
MOST_DEVICES = 1024
# Maximum size in bytes of the file that stores the types which operators chose.
MOST_BYTES = 1 << 20
_TYPE = re.compile(r'[A-Za-z0-9_.-]{1,64}')
_ADDRESS = re.compile(r'[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]')
# Namespace of the UUIDs that are computed for mediated devices from the host, the parent, the type and a number.
_PLANNED = uuid.UUID('5b2a5c3e-7d1f-5a86-9f43-0c1de4b8a917')


class InvalidLibvirtMdevConfig(errors.Invalid):
    """The configuration of mediated devices is wrong."""

    msg_fmt = 'Invalid configuration of mediated devices: %(reason)s'


@dataclass(frozen=True)
class EnabledMdevType:
    """An enabled type of mediated devices.

    ``most`` is the maximum number of devices of the type on the host, or None for as many as its parents provide.
    """

    name: str
    resource_class: str
    most: int | None


class ChosenTypes:
    """The types that operators chose for cards, stored in a file.

    ``types`` is a dict from a card's address to the name of the type. The constructor raises InvalidLibvirtMdevConfig
    if the file does not have the form that ``set`` writes.
    """

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
                reason=f"{path} does not have the form that 'kilonova-manage device set-type' writes; without the file "
                'all cards have the types of the configuration'
            ) from None
        self.types = types

    def set(self, parent: str, name: str) -> None:
        """Store the type of a card in the file."""
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
    """The type of mediated devices that each card (parent) of the host provides."""

    def __init__(
        self,
        types: Collection[EnabledMdevType],
        of_parent: Mapping[str, EnabledMdevType],
        default: EnabledMdevType | None,
        chosen: ChosenTypes | None = None,
    ) -> None:
        """Create the object. ``of_parent`` is {address of a card: type}; ``default`` is the type of all other cards.

        ``chosen`` are types that operators chose while the host ran. They have priority over ``of_parent`` and
        ``default``.
        """
        self.types, self.named, self._default = tuple(types), dict(of_parent), default
        self._by_name = {one.name: one for one in types}
        self._chosen = chosen
        for parent, name in (chosen.types if chosen is not None else {}).items():
            if name not in self._by_name:
                LOG.warning(
                    'Type %s, which an operator set for card %s, is no longer enabled; the card has the type '
                    'of the configuration',
                    name,
                    parent,
                )

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> MdevTypes:
        """Return the types that ``[devices]enabled_mdev_types`` and ``[mdev_<type>]`` assign to cards.

        Raises InvalidLibvirtMdevConfig if the configuration is wrong.
        """
        types: list[EnabledMdevType] = []
        of_parent: dict[str, EnabledMdevType] = {}
        default: EnabledMdevType | None = None
        for name in mdev_types(conf):
            section = mdev_section(conf, name)
            types.append(EnabledMdevType(name, section.mdev_class, section.max_instances))
            for text in section.device_addresses:
                address = text.strip().lower()
                if _ADDRESS.fullmatch(address) is None:
                    raise InvalidLibvirtMdevConfig(
                        reason=f'incorrect device address: {text!r} in [mdev_{name}]'
                        'device_addresses is not a PCI address such as 0000:84:00.0'
                    )
                if address in of_parent:
                    raise InvalidLibvirtMdevConfig(
                        reason=f'duplicate types for PCI ID {address}: it is in device_addresses of the types '
                        f'{of_parent[address].name} and {name}'
                    )
                of_parent[address] = types[-1]
            if not section.device_addresses:
                if default is not None:
                    raise InvalidLibvirtMdevConfig(
                        reason=f'{default.name} and {name} both have no device_addresses; only one type may have none, '
                        'because it is the type of all other cards'
                    )
                default = types[-1]
        return cls(types, of_parent, default, ChosenTypes(os.path.join(conf.state_path, 'mdev_types.json')))

    def of(self, parent: str) -> EnabledMdevType | None:
        """Return the type of a parent's mediated devices, or None if the parent provides none."""
        chosen = self._by_name.get(self._chosen.types.get(parent, '')) if self._chosen is not None else None
        return chosen or self.named.get(parent, self._default)

    def enabled(self, name: str) -> EnabledMdevType:
        """Return an enabled type by its name. Raises Invalid if the type is not enabled."""
        if name not in self._by_name:
            raise errors.Invalid(
                f'{name!r} is not among [devices]enabled_mdev_types: {", ".join(sorted(self._by_name)) or "none"}'
            )
        return self._by_name[name]

    def choose(self, parent: str, name: str) -> None:
        """Store an operator's choice of type for a parent. The choice has priority over the configuration."""
        assert self._chosen is not None
        self._chosen.set(parent, name)


def mdev_types(conf: cfg.ConfigOpts) -> list[str]:
    """Return the names of the enabled types. Raises InvalidLibvirtMdevConfig if the option is wrong."""
    names: list[str] = conf.devices.enabled_mdev_types
    if len(names) > MOST_TYPES:
        raise InvalidLibvirtMdevConfig(
            reason=f'[devices]enabled_mdev_types has {len(names)} types, but may have at most {MOST_TYPES}'
        )
    for number, name in enumerate(names):
        if _TYPE.fullmatch(name) is None:
            raise InvalidLibvirtMdevConfig(
                reason=f'{name!r} in [devices]enabled_mdev_types is not the name of a '
                'type: it must be 1 to 64 letters, digits, . _ or -'
            )
        if name in names[:number]:
            raise InvalidLibvirtMdevConfig(reason=f'{name!r} is listed twice in [devices]enabled_mdev_types')
    return names


class MdevKind:
    """The kind of mediated devices (see ``kinds.DeviceKind``).

    A card that ``[pci]device_spec`` offers as a whole provides no mediated devices.
    """

    dev_types = frozenset((MDEV,))

    def __init__(self, types: MdevTypes, specs: DeviceSpecs, host: str) -> None:
        self._types, self._specs, self._host = types, specs, host
        self._told: set[str] = set()

    def check(self, found: Collection[DiscoveredDevice]) -> None:
        """Check that each parent supports its configured type, and that ``[pci]device_spec`` does not offer it whole.

        Raises InvalidLibvirtMdevConfig if a parent fails one of the checks.
        """
        functions = _functions(found)
        for parent, mdev_type in self._parents(functions):
            where = f'{parent["address"]} is configured for mediated devices of type {mdev_type.name}'
            if self._is_whole(parent, functions):
                raise InvalidLibvirtMdevConfig(
                    reason=f'{where}, but [pci]device_spec also matches this card or its physical function: '
                    'a card can be offered either as a PCI device or as mediated devices'
                )
            if parent['address'] in self._types.named and mdev_type.name not in parent.get('mdev_types', {}):
                supported = ', '.join(sorted(parent.get('mdev_types', {}))) or 'none'
                raise InvalidLibvirtMdevConfig(
                    reason=f'{where} by [mdev_{mdev_type.name}]device_addresses, but the card supports only {supported}'
                )

    def checked(self, found: Collection[DiscoveredDevice], address: str, name: str) -> str:
        """Return the name of a type after checking that the card at ``address`` may have it.

        Raises NotFound if there is no such card. Raises Invalid if the card or the host does not provide that type.
        """
        functions = _functions(found)
        parent = functions.get(address)
        if parent is None:
            raise errors.NotFound(f'{self._host} has no card {address}')
        self._types.enabled(name)
        supported = sorted(one for one, of in parent.get('mdev_types', {}).items() if of['api'] == VFIO)
        if name not in supported:
            raise errors.Invalid(f'{address} supports {", ".join(supported) or "no mediated devices"}, not {name}')
        if self._is_whole(parent, functions):
            raise errors.Invalid(f'{address} cannot have mediated devices: [pci]device_spec offers it as a whole')
        return name

    def choose(self, address: str, name: str) -> None:
        """Store on this host that the card at ``address`` has mediated devices of the type ``name`` from now on.

        This choice of an operator replaces the configured type. The caller must first call ``checked``, which checks
        that the card may have the type.
        """
        self._types.choose(address, name)

    def columns(self, found: Collection[DiscoveredDevice]) -> dict[str, DeviceColumns]:
        """Return the mediated devices that exist or can be created, as {uuid: columns of the row in pci_devices}.

        ``found`` are the host's devices. The option [mdev_<type>]max_instances limits the number of devices of a type
        on the host. Devices above this limit are not returned; these are the devices of the cards with the highest
        addresses.
        """
        left = {one.name: one.most for one in self._types.types}
        made: dict[str, DeviceColumns] = {}
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

    def unneeded(self, found: Collection[DiscoveredDevice], held: Collection[str]) -> list[str]:
        """Return the addresses of mediated devices that must be removed, because their card now has another type.

        Most cards can have devices of only one type at a time. ``found`` are the host's devices. Devices that servers
        hold (addresses ``held``), and devices that Kilonova did not create, are not returned.
        """
        return [
            one['address']
            for one in found
            if one['dev_type'] == MDEV
            and one['address'] not in held
            and (mdev_type := self._types.of(one.get('parent_addr') or '')) is not None
            and mdev_type.name != one['mdev_type']
            and self._is_ours(one)
        ]

    def statuses(self, devices: Collection[PciDevice]) -> dict[str, str]:
        """Return a dict from address to status: a held device keeps its status, and every other device is available.

        The caller then makes the free devices unavailable that have a reason in ``extra_info``, such as 'disabled'.
        """
        return {device.address: device.status if device.status in OWNED else AVAILABLE for device in devices}

    def pool_keys(self, device: PciDevice) -> PoolKeys | None:
        """Return the properties of the device's pool.

        Return None if the device's card now has another mdev type, so that the device is not offered.
        """
        mdev_type = self._types.of(device.parent_addr)
        if mdev_type is None or mdev_type.name != device.extra_info.get('mdev_type'):
            return None
        return {
            'vendor_id': device.vendor_id,
            'product_id': device.product_id,
            'numa_node': device.numa_node,
            'dev_type': MDEV,
            'mdev_type': mdev_type.name,
            'address': device.parent_addr,
        }

    def pool_address(self, device: PciDevice) -> str:
        """Return the address of the device's parent, which identifies pool and resource provider."""
        found: str = device.parent_addr
        return found

    def providers(self, nodename: str, devices: Collection[PciDevice]) -> dict[str, DeviceProvider]:
        """Return a dict from name to resource provider, one for each parent.

        The name of a provider contains libvirt's name of the parent. After a change of the parent's type, servers may
        still hold devices of the former type. A provider includes these devices if the new type has the same resource
        class. Otherwise they are left out, and Placement keeps the inventory of the former class that servers use.
        """
        view: dict[str, DeviceProvider] = {}
        for device in sorted(devices, key=lambda one: (one.parent_addr, one.address)):
            current = self.pool_keys(device) is not None
            if not current and device.status not in OWNED:
                continue
            resource_class = device.extra_info['mdev_class']
            mdev_type = self._types.of(device.parent_addr)
            if mdev_type is not None and resource_class != mdev_type.resource_class:
                continue
            name = f'{nodename}_pci_{re.sub("[:.]", "_", device.parent_addr)}'
            provider = view.setdefault(
                name,
                DeviceProvider(name, device.parent_addr, more_traits=True, traits=frozenset((os_traits.OWNER_NOVA,))),
            )
            provider.resource_class = resource_class if mdev_type is not None else None
            provider.devices.append(device)
        return view

    def used_up(self, device: PciDevice) -> bool:
        """Return False, because mediated devices can be used repeatedly."""
        return False

    def _parents(self, functions: Mapping[str, DiscoveredDevice]) -> Iterator[tuple[DiscoveredDevice, EnabledMdevType]]:
        """Yield (PCI function, type of its mediated devices) for each function to which the configuration gives a type.

        The functions are sorted by address. The type for all other cards is given only to functions that support
        mediated devices. A function that the configuration names is yielded even if it does not support its type.
        """
        for address, one in sorted(functions.items()):
            mdev_type = self._types.of(address)
            if mdev_type is not None and (one.get('mdev_types') or address in self._types.named):
                yield one, mdev_type

    def _is_whole(self, parent: DiscoveredDevice, functions: Mapping[str, DiscoveredDevice]) -> bool:
        above = functions.get(parent.get('parent_addr') or '')
        return any(self._specs.match(one) is not None for one in (parent, above) if one is not None)

    def _planned(self, parent: str, mdev_type: str, number: int, exist: Collection[str]) -> list[str]:
        """Return ``number`` UUIDs for devices of a parent and a type that do not exist yet.

        The UUIDs are computed from the host, the parent, the type and a count from 0, so the result is the same after a
        restart. ``exist`` has the UUIDs of existing devices, which are skipped.
        """
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

    def _is_ours(self, one: DiscoveredDevice) -> bool:
        """Return whether Kilonova created the mediated device.

        Kilonova computes the UUIDs of its devices from the host, the card, the type and a number. Any other UUID shows
        that another program created the device.
        """
        return any(
            self._uuid(one.get('parent_addr'), one['mdev_type'], number) == one['address']
            for number in range(MOST_DEVICES)
        )

    def _tell(self, parent: str, mdev_type: str) -> None:
        if parent not in self._told:
            self._told.add(parent)
            LOG.warning(
                'Card %s provides no mediated devices of type %s: it does not support the type with the interface %s, '
                'or [pci]device_spec offers the card as a whole',
                parent,
                mdev_type,
                VFIO,
            )


def _functions(found: Collection[DiscoveredDevice]) -> dict[str, DiscoveredDevice]:
    return {one['address']: one for one in found if one['dev_type'] != MDEV}


def _columns(parent: DiscoveredDevice, mdev_type: EnabledMdevType) -> DeviceColumns:
    vendor_id, product_id = parent['vendor_id'].lower(), parent['product_id'].lower()
    return {
        'vendor_id': vendor_id,
        'product_id': product_id,
        'dev_type': MDEV,
        'dev_id': None,
        'label': f'label_{vendor_id}_{product_id}',
        'numa_node': parent.get('numa_node'),
        'parent_addr': parent['address'],
        'extra_info': {'mdev_type': mdev_type.name, 'mdev_class': mdev_type.resource_class},
    }

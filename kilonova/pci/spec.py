"""The devices of a host that an operator offers to servers: ``[pci]device_spec``.

    specs = DeviceSpecs.from_conf(conf)
    spec = specs.match(discovered)           # the first spec that matches the device, or None
    spec.tags                                # {'physical_network': 'net1', 'managed': 'true', …}

A discovered device is a dict as the driver's ``get_available_resource`` lists it. Requests can ask for a spec's tags in
addition to vendor and product.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import os_resource_classes
import os_traits
from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import strutils

from kilonova import errors
from kilonova.pci import sysfs
from kilonova.pci.address import (
    ANY,
    MAX_DOMAIN,
    AddressMatch,
    GlobAddress,
    PciConfigInvalidSpec,
    PciDeviceWrongAddressFormat,
    RegexAddress,
    hex_value,
    parse,
)
from kilonova.pci.device import CHILD_TYPES, PF
from kilonova.pci.groups import KEYS as GROUP_KEYS
from kilonova.pci.groups import Grouping, check_same

__all__ = (
    'DeviceSpec',
    'DeviceSpecs',
    'PciConfigInvalidSpec',
    'PciDeviceInvalidDeviceName',
    'PciDeviceInvalidPFRemoteManaged',
    'PciDeviceRemoteManagedNotPresent',
    'PciDeviceWrongAddressFormat',
    'PlacementPciException',
    'default_resource_class',
    'resource_class',
    'traits',
)

LOG = logging.getLogger(__name__)

MAX_NAME = 255
KEYS = (
    'vendor_id',
    'product_id',
    'address',
    'devname',
    'resource_class',
    'traits',
    'physical_network',
    'trusted',
    'remote_managed',
    'managed',
    'live_migratable',
    'one_time_use',
    *GROUP_KEYS,
)
# Similarity (difflib's ratio) above which an unknown key counts as a mistyped known key.
LIKE = 0.8
_STRICT_BOOLEANS = ('managed', 'live_migratable', 'one_time_use', 'remote_managed')


class PciDeviceInvalidDeviceName(errors.Invalid):
    """A device_spec has a devname and also an address."""

    msg_fmt = 'Invalid PCI Whitelist: The PCI whitelist can specify devname or address, but not both'


class PciDeviceInvalidPFRemoteManaged(errors.Invalid):
    """A device_spec with remote_managed names a physical function."""

    msg_fmt = 'Invalid PCI Whitelist: PFs must not have the "remote_managed" tag, device address: %(address)s'


class PciDeviceRemoteManagedNotPresent(errors.NotFound):
    """A device_spec with remote_managed names a device that is not on this host."""

    msg_fmt = (
        'Invalid PCI Whitelist: A device specified as "remote_managed" is not supported by this host '
        'or is not present: %(device)s'
    )


class PlacementPciException(errors.KilonovaError):
    """The configured devices can't be reported to Placement."""

    msg_fmt = 'Failed to gather or report PCI resources to Placement: %(error)s'


@dataclass(frozen=True)
class DeviceSpec:
    """One entry of device_spec.

    If ``address`` is None, any address matches. ``tags`` are all keys except resource_class, traits, and the keys that
    devices must match.
    """

    vendor_id: str
    product_id: str
    address: AddressMatch | None
    tags: Mapping[str, str | None]
    resource_class: str | None = None
    traits: frozenset[str] = frozenset()
    grouping: Grouping | None = None

    @property
    def remote_managed(self) -> bool:
        """True if the spec has remote_managed=true."""
        return self.tags.get('remote_managed') == 'true'

    def match(self, device: Mapping[str, Any]) -> bool:
        """Return whether the spec matches the device.

        Raises PciDeviceInvalidPFRemoteManaged if a remote managed spec matches a physical function. A device without
        the required serial number (``lacks_serial``) matches as well; ``DeviceSpecs.match`` excludes it.
        """
        if self.vendor_id not in (ANY, device['vendor_id'].lower()):
            return False
        if self.product_id not in (ANY, device['product_id'].lower()):
            return False
        parent = device.get('parent_addr') if device.get('dev_type') in CHILD_TYPES else None
        if self.address is not None and not self.address.match(device['address'], parent):
            return False
        if self.remote_managed and device.get('dev_type') == PF:
            raise PciDeviceInvalidPFRemoteManaged(address=device['address'])
        return True

    def lacks_serial(self, device: Mapping[str, Any]) -> bool:
        """Return whether the device is remote managed but has no serial number that identifies its card."""
        vpd = (device.get('capabilities') or {}).get('vpd') or {}
        return self.remote_managed and not vpd.get('card_serial_number')


class DeviceSpecs:
    """All specs of a host, in the order of the configuration."""

    def __init__(self, specs: Iterable[DeviceSpec]) -> None:
        self.specs = tuple(specs)
        self._told: list[str] = []
        self._ignored: set[str] = set()

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> DeviceSpecs:
        """Return the specs of ``[pci]device_spec``. ``[pci]report_in_placement`` decides which keys are allowed."""
        return cls.parse(conf.pci.device_spec, report_in_placement=conf.pci.report_in_placement)

    @classmethod
    def parse(
        cls, values: Iterable[str], *, report_in_placement: bool = False, sysfs_root: str = sysfs.ROOT
    ) -> DeviceSpecs:
        """Return the specs from the option's texts, each one JSON object or a list of them.

        Raises:
            PciConfigInvalidSpec: An entry is wrong.
            PciDeviceWrongAddressFormat: An address is not valid.
            PciDeviceInvalidDeviceName: An entry has devname and address.
            PciDeviceInvalidPFRemoteManaged: A remote managed entry names a physical function.
            PciDeviceRemoteManagedNotPresent: A remote managed entry names an interface that is not on this host.
            PlacementPciException: An entry has devname although devices are reported to Placement.
        """
        entries = [entry for value in values for entry in _entries(value)]
        specs = [_parse_entry(entry, report_in_placement, sysfs_root) for entry in entries]
        check_same(spec.grouping for spec in specs)
        return cls(specs)

    def match(self, device: Mapping[str, Any]) -> DeviceSpec | None:
        """Return the first spec that matches the discovered device, or None.

        Return None also for devices that are never offered. These are devices in a PCI domain above FFFF, and remote
        managed devices on a card without a serial number.
        """
        if int(parse(device['address']).domain, 16) > MAX_DOMAIN:
            LOG.debug('Skipping PCI device %s: its domain does not fit into 16 bits', device['address'])
            return None
        found = next((spec for spec in self.specs if spec.match(device)), None)
        if found is None or not found.lacks_serial(device):
            return found
        if device['address'] not in self._ignored:
            self._ignored.add(device['address'])
            LOG.warning(
                'Device %s is configured as remote_managed but has no card serial number in its VPD: it is not offered',
                device['address'],
            )
        return None

    def tell(self, found: Iterable[tuple[Mapping[str, Any], DeviceSpec]]) -> None:
        """Log which devices of a host each spec matched, if that has changed since the last call."""
        matched: dict[int, Counter[str]] = defaultdict(Counter)
        for device, spec in found:
            matched[self.specs.index(spec)][f'{device["vendor_id"]}:{device["product_id"]}'] += 1
        lines = [
            ', '.join(f'{count} × {ids}' for ids, count in sorted(matched[number].items()))
            for number in range(len(self.specs))
        ]
        if lines != self._told:
            self._told = lines
            for number, line in enumerate(lines, start=1):
                LOG.info('[pci]device_spec entry %d matches %s', number, line or 'no device of this host')

    def __len__(self) -> int:
        return len(self.specs)


def _entries(value: str) -> list[dict[str, Any]]:
    try:
        loaded = json.loads(value)
    except ValueError:
        raise PciConfigInvalidSpec(reason=f"Invalid entry: '{value}'") from None
    if isinstance(loaded, dict):
        return [loaded]
    if not isinstance(loaded, list):
        raise PciConfigInvalidSpec(reason=f"Invalid entry: '{value}'; Expecting list or dict")
    if not all(isinstance(entry, dict) for entry in loaded):
        raise PciConfigInvalidSpec(reason=f"Invalid entry: '{value}'; Expecting dict")
    return loaded


def _parse_entry(entry: dict[str, Any], report_in_placement: bool, sysfs_root: str) -> DeviceSpec:
    grouping = Grouping.parse(entry)
    tags = {name: value for name, value in entry.items() if name not in ('group_by', 'group_size')}
    vendor = _id('vendor_id', tags.pop('vendor_id', ANY))
    product = _id('product_id', tags.pop('product_id', ANY))
    address_value, devname = tags.pop('address', None), tags.pop('devname', None)
    if address_value is not None and devname is not None:
        raise PciDeviceInvalidDeviceName
    if devname is not None and report_in_placement:
        raise PlacementPciException(
            error='devname based [pci]device_spec entries are not supported while '
            f'[pci]report_in_placement is enabled: devname {devname}'
        )
    wanted_class, wanted_traits = tags.pop('resource_class', None), tags.pop('traits', None)
    _check_names(tags)
    texts = {name: _tag(name, value) for name, value in tags.items()}
    if texts.get('one_time_use') == 'true' and not report_in_placement:
        raise PciConfigInvalidSpec(reason='one_time_use=true requires [pci]report_in_placement to be enabled')
    address = _address(address_value, devname, sysfs_root)
    if texts.get('remote_managed') == 'true':
        _check_remote_managed(address, devname, sysfs_root)
    return DeviceSpec(
        vendor,
        product,
        address,
        texts,
        None if wanted_class is None else resource_class(_text('resource_class', wanted_class)),
        frozenset() if wanted_traits is None else traits(_text('traits', wanted_traits)),
        grouping,
    )


def _check_names(names: Iterable[str]) -> None:
    """Raise PciConfigInvalidSpec if an unknown key is similar to a known one.

    A mistyped product_id would otherwise count as a tag, and the spec would match far more devices than meant.
    """
    for name in names:
        meant = difflib.get_close_matches(name.lower(), KEYS, n=1, cutoff=LIKE)
        if name not in KEYS and meant:
            raise PciConfigInvalidSpec(
                reason=f"'{name}' is not a known key. Did you mean '{meant[0]}'? If it is a tag "
                'of your own, choose a less similar name'
            )


def _id(name: str, value: Any) -> str:
    return hex_value(name, value.strip() if isinstance(value, str) else value, 0xFFFF, 4)


def _address(value: object, devname: object, sysfs_root: str) -> AddressMatch | None:
    if devname is not None:
        found = sysfs.address_of_netdev(str(devname), sysfs_root)
        return _Nothing(str(devname)) if found is None else GlobAddress(found)
    if value is None:
        return None
    if isinstance(value, str):
        return GlobAddress(value)
    if isinstance(value, dict):
        return RegexAddress(value)
    raise PciDeviceWrongAddressFormat(address=value)


@dataclass(frozen=True)
class _Nothing:
    """An address pattern that matches no device. It is used for a ``devname`` that is no interface of this host."""

    devname: str

    def match(self, address: str, parent: str | None = None) -> bool:
        return False


def _check_remote_managed(address: AddressMatch | None, devname: object, sysfs_root: str) -> None:
    if isinstance(address, _Nothing):
        raise PciDeviceRemoteManagedNotPresent(device=devname)
    # Refuse a remote_managed spec whose ``devname`` is the network interface of a physical function.
    # Accept a spec with the address of a physical function, because this address also matches its virtual functions.
    full = address.full if devname is not None and isinstance(address, GlobAddress) else None
    if full is not None and sysfs.is_physical_function(full, sysfs_root):
        raise PciDeviceInvalidPFRemoteManaged(address=full)


def _tag(name: str, value: object) -> str | None:
    if name in _STRICT_BOOLEANS:
        try:
            return 'true' if strutils.bool_from_string(value, strict=True) else 'false'
        except ValueError as error:
            raise PciConfigInvalidSpec(reason=f"Cannot parse tag '{name}': {error}") from None
    if isinstance(value, bool):
        return 'true' if value else 'false'
    if isinstance(value, (int, float)):
        return str(value)
    return None if value is None else _text(name, value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise PciConfigInvalidSpec(reason=f"Cannot parse tag '{name}': a string is required, not {value!r}")
    return value


def resource_class(name: str) -> str:
    """Return the resource class that a name in the configuration stands for.

    The name is changed to upper case, and characters that are not valid become ``_``. It gets the prefix CUSTOM_,
    unless it is a standard class.
    """
    return _normal(name, os_resource_classes.STANDARDS, 'resource class')


def traits(names: str) -> frozenset[str]:
    """Return the traits that an operator's comma-separated list names.

    Each name is changed to upper case, and characters that are not valid become ``_``. It gets the prefix CUSTOM_,
    unless it is a standard trait.
    """
    return frozenset(_normal(name, _standard_traits(), 'trait') for name in names.split(',') if name.strip())


@functools.cache
def _standard_traits() -> frozenset[str]:
    return frozenset(os_traits.get_traits())


def _normal(name: str, standards: Container[str], kind: str) -> str:
    word = re.sub(r'[^A-Z0-9_]+', '_', name.strip().upper())
    if word not in standards and not word.startswith('CUSTOM_'):
        word = f'CUSTOM_{word}'
    if len(word) > MAX_NAME:
        raise PciConfigInvalidSpec(reason=f'{kind} {word} is longer than {MAX_NAME} characters')
    return word


def group_class(name: str) -> str:
    """Return CUSTOM_PCI_GROUP_<name>: the resource class of a device group whose spec or alias names no class."""
    return _normal(f'PCI_GROUP_{name}', (), 'resource class')


def default_resource_class(vendor_id: str, product_id: str) -> str:
    """Return CUSTOM_PCI_<vendor>_<product>: the resource class of devices whose spec or alias names no class."""
    return f'CUSTOM_PCI_{vendor_id}_{product_id}'.upper()

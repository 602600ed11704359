"""PCI addresses, and the patterns with which ``[pci]device_spec`` names addresses.

    parse('0000:81:00.0')                                   # Address('0000', '81', '00', '0')
    GlobAddress('*:81:*.*').match('0000:81:02.0')           # True
    RegexAddress({'bus': '8[12]'}).match('0000:82:02.0')    # True

``spec`` uses this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from kilonova import errors

ANY = '*'
MAX_DOMAIN = 0xFFFF
# A dict from each field of a PCI address to (the field's largest value, its number of hex digits).
LIMITS = {'domain': (MAX_DOMAIN, 4), 'bus': (0xFF, 2), 'slot': (0x1F, 2), 'function': (0x7, 1)}
_FULL = re.compile(r'^([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])$', re.IGNORECASE)


class PciConfigInvalidSpec(errors.Invalid):
    """An entry of device_spec is wrong."""

    msg_fmt = 'Invalid [pci]device_spec config: %(reason)s'


class PciDeviceWrongAddressFormat(errors.Invalid):
    """A text or dict is not a PCI address, or not a pattern of addresses."""

    msg_fmt = 'The PCI address %(address)s has an incorrect format.'


class Address(NamedTuple):
    """The four fields of a full PCI address as lower-case hex. The domain has 4 to 8 digits, usually 4."""

    domain: str
    bus: str
    slot: str
    function: str

    def __str__(self) -> str:
        return f'{self.domain}:{self.bus}:{self.slot}.{self.function}'


def parse(text: str) -> Address:
    """Return the fields of a full PCI address. Raises PciDeviceWrongAddressFormat if the text isn't a full address."""
    found = _FULL.match(text)
    if found is None:
        raise PciDeviceWrongAddressFormat(address=text)
    return Address(*(part.lower() for part in found.groups()))


def hex_value(name: str, text: str, maximum: int, digits: int) -> str:
    """Return ``text`` as lower-case hex with ``digits`` digits. The text ``*`` is returned unchanged.

    Raises PciConfigInvalidSpec, which names the property ``name``, if the text is not a hex number from 0 to
    ``maximum``.
    """
    if text == ANY:
        return ANY
    try:
        number = int(text, 16)
    except (TypeError, ValueError):
        raise PciConfigInvalidSpec(reason=f"property {name} ('{text}') does not parse as a hex number.") from None
    if not 0 <= number <= maximum:
        raise PciConfigInvalidSpec(
            reason=f'property {name} ({text}) is greater than the maximum allowable value ({maximum:X}).'
        )
    return f'{number:0{digits}x}'


class AddressMatch(Protocol):
    """A pattern with which a device_spec names PCI addresses."""

    def match(self, address: str, parent: str | None = None) -> bool:
        """Return whether the pattern matches the device at ``address``.

        ``parent`` is the address of the device's physical function, or None if the device is not a virtual function. A
        pattern may match a virtual function by the address of its physical function.
        """


@dataclass(frozen=True)
class GlobAddress:
    """A pattern ``[[[[domain]:]bus]:][slot][.[func]]``. Missing and empty fields and ``*`` match anything."""

    text: str
    fields: Address

    def __init__(self, text: str) -> None:
        object.__setattr__(self, 'text', text)
        object.__setattr__(self, 'fields', _glob_fields(text))

    @property
    def full(self) -> str | None:
        """The address if the pattern matches only one address, otherwise None."""
        return None if ANY in self.fields else str(self.fields)

    def match(self, address: str, parent: str | None = None) -> bool:
        """Return whether the pattern matches the device at ``address``.

        A pattern that is a full address also matches the virtual functions of the device with this address.
        """
        if parent is not None and parent.lower() == self.full:
            return True
        return all(want in (ANY, have) for want, have in zip(self.fields, parse(address), strict=True))


def _glob_fields(text: str) -> Address:
    left, _, function = text.partition('.')
    parts = left.split(':')
    if len(parts) > 3 or '.' in function:
        raise PciDeviceWrongAddressFormat(address=text)
    parts = [ANY] * (3 - len(parts)) + parts
    fields = zip(LIMITS, [*parts, function], strict=True)
    return Address(*(hex_value(name, part.strip() or ANY, *LIMITS[name]) for name, part in fields))


@dataclass(frozen=True)
class RegexAddress:
    """A pattern with one regular expression for each field of an address, each matched from the start of its field.

    Missing fields match anything.
    """

    patterns: Mapping[str, re.Pattern[str]]

    def __init__(self, fields: Mapping[str, Any]) -> None:
        unknown = set(fields) - set(LIMITS)
        if unknown:
            raise PciDeviceWrongAddressFormat(address=dict(fields))
        try:
            patterns = {name: re.compile(fields.get(name, '.*')) for name in LIMITS}
        except (re.error, TypeError):
            raise PciDeviceWrongAddressFormat(address=dict(fields)) from None
        object.__setattr__(self, 'patterns', patterns)

    def match(self, address: str, parent: str | None = None) -> bool:
        """Return whether the pattern matches the device's own address. The parent is ignored."""
        return all(pattern.match(value) for pattern, value in zip(self.patterns.values(), parse(address), strict=True))

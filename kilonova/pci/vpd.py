"""Read a card's serial number from the vital product data (VPD) of one of its PCI functions.

    serial_number(sysfs.vpd('0000:81:00.0'))       # 'MT2113X00000', or None

VPD consists of resources, each with a tag and a length. The read-only resource has fields, each with a keyword and a
length. Field SN is the serial number. Field RV is the last field and has a checksum byte. The sum of all bytes up to
and including this byte must be 0 modulo 256 (PCI Local Bus Specification 3.0, appendix I).
"""

from __future__ import annotations

# Maximum size of VPD in bytes. PCI addresses the bytes of VPD with 15 bits.
MOST = 1 << 15
_READ_ONLY, _END = 0x90, 0x78
# Size in bytes of a field's keyword and length.
_HEAD = 3


def serial_number(data: bytes) -> str | None:
    """Return the card's serial number, or None if the data has none or is damaged."""
    start, end = _read_only(data)
    serial = None
    while start + _HEAD <= end:
        keyword, length = data[start : start + 2], data[start + 2]
        value = data[start + _HEAD : start + _HEAD + length]
        if start + _HEAD + length > end:
            return None
        if keyword == b'RV':
            return serial if value and sum(data[: start + _HEAD + 1]) % 256 == 0 else None
        if keyword == b'SN':
            serial = _text(value)
        start += _HEAD + length
    return None


def _read_only(data: bytes) -> tuple[int, int]:
    """Return the start and end of the fields in the read-only resource.

    Return (0, 0) if there is no such resource, or if the data is cut off.
    """
    start = 0
    while start < len(data) and data[start] != _END:
        # A VPD resource begins with a tag byte. If the tag is 0x80 or higher, two bytes with the length follow it.
        # If the tag is lower than 0x80, its lowest three bits are the length of the VPD resource.
        is_large = data[start] >= 0x80
        head = 3 if is_large else 1
        length = int.from_bytes(data[start + 1 : start + 3], 'little') if is_large else data[start] & 7
        if start + head + length > len(data):
            break
        if data[start] == _READ_ONLY:
            return start + head, start + head + length
        start += head + length
    return 0, 0


def _text(value: bytes) -> str | None:
    """Return the value as text without padding, or None if the text is empty or not printable ASCII."""
    text = value.decode('ascii', 'replace').strip(' \0')
    return text if text.isascii() and text.isprintable() and text else None

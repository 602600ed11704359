"""The serial number in a card's vital product data."""

from __future__ import annotations

import random

import pytest

from kilonova.pci import sysfs
from kilonova.pci.vpd import MOST, serial_number
from tests.fixtures.vpd import made, summed

NAME = b'\x82\x03\x00NIC'


@pytest.mark.parametrize(
    ('data', 'serial'),
    [
        (made(SN=b'MT2113X00000'), 'MT2113X00000'),
        (made(PN=b'MBF2H332A', SN=b'MT1', V0=b'x'), 'MT1'),
        (made(SN=b'MT1  \0'), 'MT1'),
        (made(SN=b'S' * 255), 'S' * 255),
        (made(SN=b'MT1')[len(NAME) :], None),
        # Neither the end nor what can be written matters.
        (made(SN=b'MT1')[:-1], 'MT1'),
        (made(SN=b'MT1')[:-1] + b'\x91\x20\x00V1', 'MT1'),
        # The first byte counts in the sum; a small resource before.
        (summed(b'\x32ab' + NAME, SN=b'MT1'), 'MT1'),
        (summed(b'', SN=b'MT1'), 'MT1'),
        # What RV says is reserved.
        (made(SN=b'MT1', rest=b'\0' * 40), 'MT1'),
        (b'', None),
        (made(PN=b'MBF2H332A'), None),
        (made(SN=b''), None),
        (made(SN=b'\xffMT1'), None),
        (made(SN=b'MT\n1'), None),
        (made(SN=b'MT1', off=1), None),
        (NAME + b'\x78' + made(SN=b'MT1'), None),
        # RV lacks its byte, or is itself lacking.
        (NAME + b'\x90\x09\x00SN\x03MT1RV\x00\x78', None),
        (NAME + b'\x90\x06\x00SN\x03MT1\x78', None),
        # A field or resource that is longer than what is around it.
        (NAME + b'\x90\x06\x00SN\x09MT1\x78' + b'x' * 9, None),
        (NAME + b'\x90\x00\x80SN\x03MT1', None),
        (NAME + b'\x90', None),
        (NAME + b'\x90\x01', None),
        (b'\0' * MOST, None),
        (b'\xff' * MOST, None),
    ],
)
def test_what_is_read(data, serial):
    assert serial_number(data) == serial


def test_nothing_of_a_card_breaks_it():
    """Each byte lacking behind, each byte another: no serial number, or the one that is there."""
    data, chance = made(PN=b'MBF2H332A', SN=b'MT2113X00000'), random.Random(1)
    for end in range(len(data)):
        assert serial_number(data[:end]) in (None, 'MT2113X00000')
    for place in range(len(data) - 1):
        changed = bytearray(data)
        changed[place] ^= chance.randrange(1, 256)
        assert serial_number(bytes(changed)) is None


@pytest.mark.parametrize('length', [0, 2, 255])
def test_a_sum_that_is_right_in_a_field_of_another_length(length):
    """It has no byte for it, or goes on behind its resource."""
    data = bytearray(made(SN=b'MT1'))
    assert data[-3] == 1
    data[-3], data[-2] = length, (data[-2] + 1 - length) % 256
    assert serial_number(bytes(data)) is None


def test_what_the_kernel_has(tmp_path):
    card = tmp_path / 'bus/pci/devices/0000:81:00.0'
    card.mkdir(parents=True)
    assert sysfs.vpd('0000:81:00.0', str(tmp_path)) == b''
    (card / 'vpd').write_bytes(made(SN=b'MT1') + b'x' * 2 * MOST)
    assert len(sysfs.vpd('0000:81:00.0', str(tmp_path))) == MOST
    (card / 'vpd').unlink()
    (card / 'vpd').mkdir()
    assert sysfs.vpd('0000:81:00.0', str(tmp_path)) == b''

from __future__ import annotations

import pytest

from kilonova.pci import address


@pytest.mark.parametrize(
    ('pattern', 'yes', 'no'),
    [
        ('*:*:*.*', '0000:81:00.0', None),
        ('0000:81:00.0', '0000:81:00.0', '0000:81:00.1'),
        ('0000:81:00.*', '0000:81:00.7', '0000:81:01.0'),
        ('81:*.*', '0000:81:1f.3', '0000:82:00.0'),
        ('81:', '0000:81:1f.3', '0000:82:00.0'),
        ('0a.1', '0000:01:0a.1', '0000:01:0a.2'),
        ('.1', '0000:01:0a.1', '0000:01:0a.0'),
        ('*:0A:00.*', '0000:0a:00.1', '0000:0b:00.1'),
        ('a:1', '0000:0a:01.1', '0000:01:0a.1'),
    ],
)
def test_glob(pattern, yes, no):
    glob = address.GlobAddress(pattern)
    assert glob.match(yes)
    assert no is None or not glob.match(no)


@pytest.mark.parametrize(
    ('pattern', 'name', 'maximum'),
    [
        ('10000:00:00.0', 'domain', 'FFFF'),
        ('0000:100:00.0', 'bus', 'FF'),
        ('0000:00:20.0', 'slot', '1F'),
        ('0000:00:00.8', 'function', '7'),
    ],
)
def test_glob_field_too_big(pattern, name, maximum):
    with pytest.raises(address.PciConfigInvalidSpec, match=rf'property {name} .* allowable value \({maximum}\)'):
        address.GlobAddress(pattern)


def test_glob_field_not_hex():
    with pytest.raises(address.PciConfigInvalidSpec, match=r"property bus \('xy'\) does not parse as a hex number"):
        address.GlobAddress('0000:xy:00.0')


@pytest.mark.parametrize('pattern', ['1:0000:81:00.0', '0000:81:00.0.1'])
def test_glob_of_another_form(pattern):
    with pytest.raises(address.PciDeviceWrongAddressFormat, match=f'The PCI address {pattern} has an incorrect'):
        address.GlobAddress(pattern)


def test_full_address_means_the_functions_below():
    glob = address.GlobAddress('0000:81:00.0')
    assert glob.full == '0000:81:00.0'
    assert glob.match('0000:81:10.3', parent='0000:81:00.0')
    assert not glob.match('0000:81:10.3', parent='0000:82:00.0')
    assert not address.GlobAddress('0000:81:00.*').match('0000:81:10.3', parent='0000:81:00.0')


def test_regex_matches_from_the_start():
    regex = address.RegexAddress({'bus': '8[12]', 'function': '[0-3]'})
    assert regex.match('0000:81:00.3')
    assert not regex.match('0000:83:00.3')
    assert not regex.match('0000:82:00.4')
    assert address.RegexAddress({'bus': '8'}).match('0000:83:00.0')


@pytest.mark.parametrize('fields', [{'bus': '['}, {'bus': 1}, {'func': '.*'}])
def test_bad_regex(fields):
    with pytest.raises(address.PciDeviceWrongAddressFormat):
        address.RegexAddress(fields)


def test_parse_takes_long_domains_and_refuses_the_rest():
    assert str(address.parse('0001E240:0A:00.0')) == '0001e240:0a:00.0'
    with pytest.raises(address.PciDeviceWrongAddressFormat):
        address.parse('81:00.0')

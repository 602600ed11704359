"""Ports of serial consoles, and where a domain's consoles listen."""

from __future__ import annotations

import socket
from xml.etree import ElementTree

import pytest

from kilonova.virt.libvirt.consoles import Listening, NoSerialPorts, SerialPorts, find
from kilonova.virt.parts.host import DriverMisconfigured

DOMAIN = """<domain><devices>
  <serial type='tcp'><source mode='bind' host='127.0.0.1' service='10002'/><target port='0'/></serial>
  <serial type='tcp'><source mode='bind' host='127.0.0.1' service='10003'/><target port='1'/></serial>
  <graphics type='vnc' port='5901' autoport='yes'/><graphics type='spice' port='{port}' tlsPort='{tls}'/>
</devices></domain>"""


def free_range(count: int) -> tuple[int, str]:
    """``count`` ports in a row that are free now."""
    for first in range(20000, 60000, count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for number, each in enumerate(sockets):
                each.bind(('127.0.0.1', first + number))
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
        return first, f'{first}:{first + count}'
    raise AssertionError('no ports')


def test_each_guest_keeps_its_ports_until_they_are_freed() -> None:
    first, text = free_range(4)
    ports = SerialPorts(text, '127.0.0.1', lambda: {'old': (first,)})
    mine = ports.take('a', 2)
    assert len(set(mine)) == 2 and first not in mine
    assert ports.take('a', 2) == mine and ports.take('a', 1) == mine[:1]
    again = ports.take('a', 2)
    assert again[0] == mine[0] and ports.take('b', 1)[0] not in {first, *again}
    with pytest.raises(NoSerialPorts, match=text):
        ports.take('c', 1)
    ports.free('old')
    assert ports.take('c', 1) == (first,)


def test_ports_of_other_programs_are_left_alone() -> None:
    first, text = free_range(2)
    with socket.create_server(('127.0.0.1', first)):
        assert SerialPorts(text, '127.0.0.1', dict).take('a', 1) == (first + 1,)


@pytest.mark.parametrize('text', ['10000:10000', '10001:10000', '70000:70001', '0:5'])
def test_a_range_without_ports(text: str) -> None:
    with pytest.raises(DriverMisconfigured, match=text):
        SerialPorts(text, '127.0.0.1', dict)


def test_where_consoles_listen() -> None:
    domain = ElementTree.fromstring(DOMAIN.format(port=5902, tls=5903))
    assert find(domain, 'serial') == Listening(10002)
    assert find(domain, 'vnc') == Listening(5901)
    assert find(domain, 'spice') == Listening(5902, 5903)
    assert find(ElementTree.fromstring(DOMAIN.format(port=-1, tls=-1)), 'spice') is None
    assert find(ElementTree.fromstring(DOMAIN.format(port=-1, tls=5903)), 'spice') == Listening(0, 5903)
    assert [
        find(ElementTree.fromstring('<domain><devices/></domain>'), protocol) for protocol in ('vnc', 'spice', 'serial')
    ] == [None] * 3

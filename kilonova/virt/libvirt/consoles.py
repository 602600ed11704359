"""TCP ports of the guests' consoles: assign ports to serial ports, and read the console ports of a running domain.

    ports = SerialPorts('10000:20000', '127.0.0.1', read=lambda: {uuid: (10000,)})
    ports.take(uuid, 2)                 # (10001, 10002); later calls for this server return the same ports
    ports.free(uuid)
    find(ElementTree.fromstring(xml), 'vnc')       # Listening(port=5900)

``SerialPorts`` keeps the assignments in memory. Before the first assignment, it reads the ports of existing domains.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
from xml.etree import ElementTree

from kilonova import errors
from kilonova.virt.parts.host import DriverMisconfigured

MOST_PORT = 65536


class NoSerialPorts(errors.KilonovaError):
    """All TCP ports for serial ports are in use."""

    msg_fmt = 'No port of [serial_console]port_range %(range)s is free for the serial ports of a guest'


class Listening(NamedTuple):
    """The TCP ports of a console. ``tls_port`` is SPICE's port with TLS, or None."""

    port: int
    tls_port: int | None = None


class SerialPorts:
    """The assignment of TCP ports of this host to the serial ports of guests."""

    def __init__(self, port_range: str, address: str, read: Callable[[], Mapping[str, tuple[int, ...]]]) -> None:
        """Create the assignment of ports in ``port_range``, a text 'first:last' without the port ``last`` itself.

        ``address`` is the host's address at which the serial ports will listen. ``read()`` must return the ports of the
        existing domains as {server uuid: ports}. It is called once. Raises DriverMisconfigured if the range is empty.
        """
        first, _, last = port_range.partition(':')
        self._range, self._address, self._read = range(int(first), min(int(last), MOST_PORT)), address, read
        if not self._range or self._range.start < 1:
            raise DriverMisconfigured(reason=f'[serial_console]port_range {port_range} has no ports')
        self._lock = threading.Lock()
        self._held: dict[str, tuple[int, ...]] | None = None
        self._next = self._range.start

    def take(self, uuid: str, count: int) -> tuple[int, ...]:
        """Return ``count`` TCP ports for the serial ports of a server's guest.

        Ports that the guest already has are kept. Raises NoSerialPorts if too few ports are free.
        """
        with self._lock:
            held = self._load()
            mine = held.get(uuid, ())[:count]
            if len(mine) < count:
                others = {port for ports in held.values() for port in ports}
                free = self._free(others)
                found = [port for _number, port in zip(range(count - len(mine)), free, strict=False)]
                mine += tuple(found)
                if len(mine) < count:
                    raise NoSerialPorts(range=f'{self._range.start}:{self._range.stop}')
            held[uuid] = mine
            return mine

    def free(self, uuid: str) -> None:
        """Release the ports of a guest that no longer exists."""
        with self._lock:
            if self._held is not None:
                self._held.pop(uuid, None)

    def _load(self) -> dict[str, tuple[int, ...]]:
        if self._held is None:
            self._held = dict(self._read())
        return self._held

    def _free(self, others: set[int]) -> Iterator[int]:
        """Yield the free TCP ports of the configured range, beginning after the port that was assigned last.

        ``others`` are ports that servers of this host already have, so they are skipped. After the end of the range the
        search continues at its beginning. So a released port is reused as late as possible.
        """
        ports = self._range
        begin = self._next - ports.start
        for step in range(len(ports)):
            port = ports[(begin + step) % len(ports)]
            if port not in others and self._can_listen(port):
                self._next = ports[(begin + step + 1) % len(ports)]
                yield port

    def _can_listen(self, port: int) -> bool:
        family = socket.AF_INET6 if ':' in self._address else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._address, port))
            except OSError:
                return False
        return True


def find(domain: ElementTree.Element, protocol: str) -> Listening | None:
    """Return the TCP ports of a domain's console for a protocol: vnc, spice or serial.

    Return None if the domain has no console for this protocol.
    """
    if protocol == 'serial':
        ports = serial_ports(domain)
        return Listening(ports[0]) if ports else None
    graphics = domain.find(f"devices/graphics[@type='{protocol}']")
    if graphics is None:
        return None
    port, tls_port = _port(graphics.get('port')), _port(graphics.get('tlsPort'))
    return Listening(port or 0, tls_port) if port or tls_port else None


def serial_ports(domain: ElementTree.Element) -> tuple[int, ...]:
    """Return the TCP ports of a domain's serial ports, in their order."""
    return tuple(
        port
        for source in domain.findall("devices/serial[@type='tcp']/source[@mode='bind']")
        if (port := _port(source.get('service')))
    )


def _port(text: str | None) -> int | None:
    """Return the port number, or None if it is missing or -1 (libvirt has not assigned one yet)."""
    return int(text) if text and text.isdigit() and int(text) else None

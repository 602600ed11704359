"""Free ports, chosen once and kept.

ports = choose({'keystone': 21001}, ['keystone', 'api'], ours=set(), start=21000)
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tools.cloud.layout import CloudError, write_private

NAMES = (
    'epmd',
    'rabbitmq-dist',
    'rabbitmq',
    'keystone',
    'glance',
    'placement',
    'api',
    'novncproxy',
    'serialproxy',
    'cyborg',
    'neutron',
    'cinder',
    'ovn-sb',
    'metadata',
)
# The daemons that answer /health, beside a compute for each host.
WATCHED = ('api', 'conductor', 'scheduler')
# Below the kernel's range for outgoing connections (32768 and up), so that none of those takes a port of
# ours while the cloud is down.
FIRST, LAST = 20000, 29999
# How far apart two clouds begin.
WIDTH = 20
# By directory: where a cloud begins, and the socket by which other processes know that it does.
_held: dict[Path, tuple[int, socket.socket]] = {}


def names_for(hosts: Iterable[str]) -> tuple[str, ...]:
    """Return the names of all ports of a cloud of these hosts: the services', and ``health-SERVICE`` of each daemon."""
    return (*NAMES, *(f'health-{name}' for name in (*WATCHED, *(f'compute-{host}' for host in hosts))))


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback address now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(('127.0.0.1', port))
            probe.listen(1)
        except OSError:
            return False
    return True


def start_for(var: Path) -> int:
    """Return the port to search from. It differs by directory, so that two clouds on a machine seldom meet."""
    spread = int.from_bytes(hashlib.sha256(str(var).encode()).digest()[:4], 'big')
    return FIRST + spread % ((LAST - FIRST) // WIDTH) * WIDTH


def claim(var: Path) -> int:
    """Return a port to search from that no other process begins at as long as this one lives.

    Two processes that choose at once would find the same ports free.
    """
    if var not in _held:
        begin = start_for(var)
        for step in range(0, LAST - FIRST + 1, WIDTH):
            start = FIRST + (begin - FIRST + step) % (LAST - FIRST + 1)
            # A name without a file, gone with the process.
            holder = socket.socket(socket.AF_UNIX)
            try:
                holder.bind(f'\0kilonova-ports-{start}')
            except OSError:
                holder.close()
                continue
            _held[var] = start, holder
            break
        else:
            raise CloudError(f'no room for another cloud between ports {FIRST} and {LAST}')
    return _held[var][0]


def choose(
    kept: Mapping[str, int], names: Iterable[str], *, ours: set[str], start: int, free: Callable[[int], bool] = is_free
) -> dict[str, int]:
    """Return a port for each name: the kept one, or the next free one from ``start`` on.

    A kept port stays if it is ``ours`` (in use by our own service) or free.
    """
    chosen: dict[str, int] = {}
    wanted = list(names)
    for name in wanted:
        port = kept.get(name)
        if port is not None and (name in ours or free(port)):
            chosen[name] = port
    taken = set(chosen.values())
    candidates = (FIRST + (start - FIRST + step) % (LAST - FIRST + 1) for step in range(LAST - FIRST + 1))
    for name in wanted:
        if name in chosen:
            continue
        port = next((port for port in candidates if port not in taken and free(port)), None)
        if port is None:
            raise CloudError(f'no free port between {FIRST} and {LAST} for {name}')
        chosen[name] = port
        taken.add(port)
    return {name: chosen[name] for name in wanted}


def load(path: Path) -> dict[str, int]:
    """Return the ports that an earlier run kept, an empty dict at the first."""
    return json.loads(path.read_text()) if path.exists() else {}


def settle(path: Path, var: Path, hosts: Iterable[str], *, ours: set[str]) -> dict[str, int]:
    """Choose the ports of a cloud of these hosts and keep them in ``path``.

    ``ours`` are names of ports that services of this cloud hold already.
    """
    kept = load(path)
    chosen = choose(kept, names_for(hosts), ours=ours, start=claim(var))
    if chosen != kept:
        write_private(path, json.dumps(chosen, indent=1) + '\n')
    return chosen

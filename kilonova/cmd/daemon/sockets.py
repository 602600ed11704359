"""Create listening sockets, or use the sockets that a worker process inherited from its parent.

    listener = sockets.listen('api', ('127.0.0.1', 8774))

Workers share one socket. A worker that is free accepts the next connection, and no connection is lost if a worker dies.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

Address = tuple[str, int]

# Environment variable with the name and the file descriptor of each socket of the parent, such as 'api:5 health:6'.
INHERITED = 'KILONOVA_LISTENERS'
BACKLOG = 4096


def listen(name: str, address: Address) -> socket.socket:
    """Return the listening socket ``name`` that the parent process has passed on, or a new one at ``address``.

    Raises OSError if the port is in use.
    """
    family = socket.AF_INET6 if ':' in address[0] else socket.AF_INET
    inherited = parse(os.environ.get(INHERITED, ''))
    if name in inherited:
        return socket.socket(family, socket.SOCK_STREAM, fileno=inherited[name])
    return socket.create_server(address, family=family, backlog=BACKLOG)


def parse(text: str) -> dict[str, int]:
    """Return a dict from socket name to file descriptor, read from the text of the environment variable INHERITED."""
    return {name: int(number) for name, _, number in (word.partition(':') for word in text.split())}


def told(listeners: Mapping[str, socket.socket]) -> str:
    """Return the names and file descriptors of sockets for the variable INHERITED, such as 'api:5 health:6'."""
    return ' '.join(f'{name}:{listener.fileno()}' for name, listener in listeners.items())

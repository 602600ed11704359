"""Listening sockets: made here, or inherited from the parent whose worker this process is.

    listener = sockets.listen('api', ('127.0.0.1', 8774))

Workers share one socket, so that whoever is free takes the next connection, and none is lost with a worker that died.
"""
from __future__ import annotations

import os
import socket
from collections.abc import Mapping

Address = tuple[str, int]

# 'api:5 health:6': descriptors of the parent's sockets by their names.
INHERITED = 'KILONOVA_LISTENERS'
BACKLOG = 4096


def listen(name: str, address: Address) -> socket.socket:
    """The socket of this name: the parent's, else a new one. A port that is taken is an OSError."""
    family = socket.AF_INET6 if ':' in address[0] else socket.AF_INET
    inherited = parse(os.environ.get(INHERITED, ''))
    if name in inherited:
        return socket.socket(family, socket.SOCK_STREAM, fileno=inherited[name])
    return socket.create_server(address, family=family, backlog=BACKLOG)


def parse(text: str) -> dict[str, int]:
    """{name: descriptor} of the environment variable's text."""
    return {name: int(number) for name, _, number in (word.partition(':') for word in text.split())}


def told(listeners: Mapping[str, socket.socket]) -> str:
    """The environment variable's text for these sockets."""
    return ' '.join(f'{name}:{listener.fileno()}' for name, listener in listeners.items())

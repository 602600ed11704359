"""Report the state of this process to the service manager (systemd, Type=notify): READY=1, STOPPING=1.

Nothing is sent if the environment has no NOTIFY_SOCKET (sd_notify(3)).
"""

from __future__ import annotations

import contextlib
import os
import socket

VARIABLE = 'NOTIFY_SOCKET'


def tell(state: str) -> None:
    """Send one line to the service manager. Do nothing if the manager does not listen."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    # In NOTIFY_SOCKET, a leading @ stands for the null byte of an abstract socket address.
    address = '\0' + path[1:] if path.startswith('@') else path
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), address)

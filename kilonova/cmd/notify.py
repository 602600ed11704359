"""Tell the service manager (systemd, Type=notify) how far this process is: READY=1, STOPPING=1.

Without NOTIFY_SOCKET in the environment nothing is sent (sd_notify(3)).
"""
from __future__ import annotations

import contextlib
import os
import socket

VARIABLE = 'NOTIFY_SOCKET'


def tell(state: str) -> None:
    """Send one line; a manager that doesn't listen is no error."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    # A leading @ stands for the null byte of an abstract address.
    address = '\0' + path[1:] if path.startswith('@') else path
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), address)

"""What each release speaks: service versions, and the RPC versions that they stand for.

    cap('compute', 79)      # '6.12': the newest messages that services of version 79 understand

A service writes SERVICE_VERSION into its row of ``services`` when it starts. Whoever sends to services of a kind looks
at the lowest version among them ([upgrade_levels], 'auto') and sends nothing newer. The history has the releases that
work beside this one; what is older is upgraded in more than one step.
"""
from __future__ import annotations

# A new version of an interface below needs a new number, and a new line of HISTORY.
SERVICE_VERSION = 80
# Older services than this can't work beside those of this release: the release before.
OLDEST_SUPPORTED = 79

# Service version → the newest version of each interface that such a service serves, from the oldest supported on.
HISTORY: dict[int, dict[str, str]] = {
    79: {'compute': '6.12', 'conductor': '3.4', 'compute_task': '1.29', 'scheduler': '4.7'},
    80: {'compute': '6.13', 'conductor': '3.5', 'compute_task': '1.30', 'scheduler': '4.7'},
}

# Which services serve an interface.
BINARIES = {'compute': 'nova-compute', 'conductor': 'nova-conductor', 'compute_task': 'nova-conductor',
            'scheduler': 'nova-scheduler'}


def accepted(interface: str) -> list[str]:
    """The versions to which messages may be pinned, oldest first: those of the releases that work beside this one."""
    return list(dict.fromkeys(line[interface] for number, line in sorted(HISTORY.items())))


def cap(interface: str, minimum: int) -> str | None:
    """The newest version of ``interface`` that services from ``minimum`` on understand; None: ours, whatever it is, and
    so it is without any such service (0). Services that are older than what is supported get what the oldest gets."""
    if not minimum or minimum >= SERVICE_VERSION:
        return None
    return HISTORY[max(minimum, OLDEST_SUPPORTED)][interface]

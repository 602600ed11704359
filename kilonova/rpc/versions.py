"""What each release speaks: service versions, and the RPC versions that they stand for.

    cap('compute', 73)      # '6.6': the newest messages that services of version 73 understand

A service writes SERVICE_VERSION into its row of ``services`` when it starts. Whoever sends to services of a kind looks
at the lowest version among them ([upgrade_levels], 'auto') and sends nothing newer. The numbers go on from the field's
(rpc-objects-db.md §1 'Version negotiation').
"""
from __future__ import annotations

# A new version of an interface below needs a new number, and a new line of HISTORY.
SERVICE_VERSION = 77
# Older services than this can't work beside those of this release: the release before.
OLDEST_SUPPORTED = 75

# Service version → the newest version of each interface that such a service serves.
HISTORY: dict[int, dict[str, str]] = {
    73: {'compute': '6.6', 'conductor': '3.1', 'compute_task': '1.27', 'scheduler': '4.6'},
    74: {'compute': '6.7', 'conductor': '3.1', 'compute_task': '1.27', 'scheduler': '4.6'},
    75: {'compute': '6.8', 'conductor': '3.2', 'compute_task': '1.27', 'scheduler': '4.7'},
    76: {'compute': '6.9', 'conductor': '3.2', 'compute_task': '1.27', 'scheduler': '4.7'},
    77: {'compute': '6.10', 'conductor': '3.2', 'compute_task': '1.27', 'scheduler': '4.7'},
}

# Which services serve an interface.
BINARIES = {'compute': 'nova-compute', 'conductor': 'nova-conductor', 'compute_task': 'nova-conductor',
            'scheduler': 'nova-scheduler'}

# [upgrade_levels]compute may name a release of the field instead of a version.
RELEASES = {
    'queens': '5.0', 'rocky': '5.0', 'stein': '5.1', 'train': '5.3', 'ussuri': '5.11', 'victoria': '5.12',
    'wallaby': '6.0', 'xena': '6.0', 'yoga': '6.0', 'zed': '6.1', 'antelope': '6.2', 'bobcat': '6.2',
    'caracal': '6.3', 'dalmatian': '6.3', 'epoxy': '6.4', 'flamingo': '6.4', 'gazpacho': '6.5',
}


def cap(interface: str, minimum: int) -> str | None:
    """The newest version of ``interface`` that services from ``minimum`` on understand; None: ours, whatever it is, and
    so it is without any such service (0).

    Versions between two lines of the history are those of the earlier one, older ones those of the oldest.
    """
    if not minimum or minimum >= SERVICE_VERSION:
        return None
    known = [number for number in HISTORY if number <= minimum]
    return HISTORY[max(known, default=min(HISTORY))][interface]

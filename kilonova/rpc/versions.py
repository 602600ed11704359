"""Service versions of the releases, and the RPC versions that belong to them.

    cap('compute', 79)      # '6.12': the newest messages that services of version 79 understand

A service writes SERVICE_VERSION into its row of ``services`` when it starts. A sender uses the lowest version among the
services of a kind ([upgrade_levels], 'auto'), and sends no newer messages. HISTORY has the releases that can run
together with this one. Older releases are upgraded in more than one step.
"""

from __future__ import annotations

# A new version of an interface in HISTORY needs a new service version and a new line of HISTORY.
SERVICE_VERSION = 80
# The oldest service version that can run together with this release. It is that of the previous release.
OLDEST_SUPPORTED = 79

# By service version: the newest version of each interface that such a service serves, beginning with the oldest
# supported service version.
HISTORY: dict[int, dict[str, str]] = {
    79: {'compute': '6.12', 'conductor': '3.4', 'compute_task': '1.29', 'scheduler': '4.7'},
    80: {'compute': '6.13', 'conductor': '3.5', 'compute_task': '1.30', 'scheduler': '4.7'},
}

# By interface: the service that serves it.
BINARIES = {
    'compute': 'nova-compute',
    'conductor': 'nova-conductor',
    'compute_task': 'nova-conductor',
    'scheduler': 'nova-scheduler',
}


def accepted(interface: str) -> list[str]:
    """Return the versions to which messages may be limited, oldest first.

    They are the versions of the releases that can run together.
    """
    return list(dict.fromkeys(line[interface] for number, line in sorted(HISTORY.items())))


def cap(interface: str, minimum: int) -> str | None:
    """Return the newest version of ``interface`` that all services understand if the oldest has version ``minimum``.

    None means that the version is not limited. That is the case if all services are of this release, or if there are
    none (``minimum`` 0). Services older than OLDEST_SUPPORTED count as OLDEST_SUPPORTED.
    """
    if not minimum or minimum >= SERVICE_VERSION:
        return None
    return HISTORY[max(minimum, OLDEST_SUPPORTED)][interface]

"""The service version of each release, and the RPC versions that services of this version understand.

    cap('compute', 79)      # '6.12': the newest version of messages that services of version 79 understand

Each release has a service version, a number. A service writes its number, SERVICE_VERSION, into its row of ``services``
when it starts. With the option [upgrade_levels] 'auto', a sender finds the lowest number among the receiving services,
and sends only messages that a service with this number understands. HISTORY has the releases that can run together with
this one. A cloud of an older release is upgraded in several steps.
"""

from __future__ import annotations

# The service version of this release. It is raised, with a new line of HISTORY, whenever an RPC version is raised.
SERVICE_VERSION = 80
# The oldest service version that can run together with this release. It is the version of the previous release.
OLDEST_SUPPORTED = 79

# {service version: {RPC interface: newest version that services of this service version support}}, oldest first.
HISTORY: dict[int, dict[str, str]] = {
    79: {'compute': '6.12', 'conductor': '3.4', 'compute_task': '1.29', 'scheduler': '4.7'},
    80: {'compute': '6.13', 'conductor': '3.5', 'compute_task': '1.30', 'scheduler': '4.7'},
}

# {RPC interface: service that answers its messages}
BINARIES = {
    'compute': 'nova-compute',
    'conductor': 'nova-conductor',
    'compute_task': 'nova-conductor',
    'scheduler': 'nova-scheduler',
}


def accepted(interface: str) -> list[str]:
    """Return the versions of an RPC interface in the releases that can run together with this one, oldest first.

    These are the versions to which the option [upgrade_levels] can limit messages.
    """
    return list(dict.fromkeys(line[interface] for number, line in sorted(HISTORY.items())))


def cap(interface: str, minimum: int) -> str | None:
    """Return the newest version of an RPC interface that services with the service version ``minimum`` understand.

    ``minimum`` is the lowest service version among the receiving services, or 0 if there are none. Returns None, which
    means no limit, if all services have this release or there are none. Services older than OLDEST_SUPPORTED count as
    OLDEST_SUPPORTED.
    """
    if not minimum or minimum >= SERVICE_VERSION:
        return None
    return HISTORY[max(minimum, OLDEST_SUPPORTED)][interface]

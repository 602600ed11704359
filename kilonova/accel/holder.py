"""The uuid to which Cyborg has bound a server's accelerator requests, stored in the server's system metadata.

    holder.of(instance.uuid, instance.system_metadata)           # uuid of the requests that the guest has now
    holder.before(instance.uuid, instance.system_metadata)       # uuid of the requests at an unconfirmed move's source

Cyborg binds a request to a uuid only once. A server that moves has two sets of requests until the move is confirmed.
The set at the source keeps its uuid, and the set at the destination is bound to the uuid of the migration permanently.
If the metadata has no entry, the requests are bound to the server's own uuid.
"""

from __future__ import annotations

from collections.abc import Mapping

BOUND_TO, BEFORE = 'accelerators_bound_to', 'accelerators_bound_before'


def for_ports(uuid: str) -> dict[str, str]:
    """Return the system metadata of a new server with ports that are accelerators.

    The metadata record that the server has accelerator requests, even if its ports are removed later.
    """
    return {BOUND_TO: uuid}


def has_ports(uuid: str, metadata: Mapping[str, str]) -> bool:
    """Return whether the server was created with ports that are accelerators. Such a server never moves."""
    return metadata.get(BOUND_TO) == uuid


def of(uuid: str, metadata: Mapping[str, str]) -> str:
    """Return the uuid to which the accelerator requests of the present guest are bound."""
    return metadata.get(BOUND_TO) or uuid


def before(uuid: str, metadata: Mapping[str, str]) -> str:
    """Return the uuid to which the server's requests were bound before its unconfirmed move."""
    return metadata.get(BEFORE) or uuid


def moved(metadata: Mapping[str, str], migration_uuid: str) -> dict[str, str | None]:
    """Return the metadata changes for a move that has reached its destination and must be confirmed or reverted."""
    return {BOUND_TO: migration_uuid, BEFORE: metadata.get(BOUND_TO)}


def came(migration_uuid: str) -> dict[str, str | None]:
    """Return the metadata changes for a move without a confirmation: a live migration or an evacuation."""
    return {BOUND_TO: migration_uuid, BEFORE: None}


def its_own(metadata: Mapping[str, str]) -> dict[str, str | None]:
    """Return the metadata changes for a server without accelerator requests that got some without a move."""
    return {BOUND_TO: None} if BOUND_TO in metadata else {}


def confirmed() -> dict[str, str | None]:
    """Return the metadata changes for a move that is confirmed."""
    return {BEFORE: None}


def reverted(metadata: Mapping[str, str]) -> dict[str, str | None]:
    """Return the metadata changes for a move that is reverted."""
    return {BOUND_TO: metadata.get(BEFORE), BEFORE: None}

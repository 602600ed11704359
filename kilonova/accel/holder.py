"""The uuid to which Cyborg has bound a server's accelerator requests, stored in the server's system metadata.

    holder.of(instance.uuid, instance.system_metadata)           # uuid of the requests that the guest has now
    holder.before(instance.uuid, instance.system_metadata)       # uuid of those at the source of an unconfirmed move

Cyborg binds a request to a uuid once. A server that moves has two sets of requests until the move is confirmed. The set
at the source keeps its uuid, and the set at the destination is bound to the uuid of the migration permanently. Without
an entry in the metadata the requests are bound to the server's own uuid.
"""

from __future__ import annotations

from collections.abc import Mapping

BOUND_TO, BEFORE = 'accelerators_bound_to', 'accelerators_bound_before'


def for_ports(uuid: str) -> dict[str, str]:
    """Return the metadata of a new server whose ports are accelerators.

    They record that the server has requests, whatever happens to its ports later.
    """
    return {BOUND_TO: uuid}


def has_ports(uuid: str, metadata: Mapping[str, str]) -> bool:
    """Return whether the server was created with ports that are accelerators. Such a server never moves."""
    return metadata.get(BOUND_TO) == uuid


def of(uuid: str, metadata: Mapping[str, str]) -> str:
    """Return the uuid of the requests that the guest has now."""
    return metadata.get(BOUND_TO) or uuid


def before(uuid: str, metadata: Mapping[str, str]) -> str:
    """Return the uuid of the requests that the server had before a move that is not confirmed or reverted yet."""
    return metadata.get(BEFORE) or uuid


def moved(metadata: Mapping[str, str], migration_uuid: str) -> dict[str, str | None]:
    """Return the changes of the metadata for a move that has arrived and must be confirmed or reverted."""
    return {BOUND_TO: migration_uuid, BEFORE: metadata.get(BOUND_TO)}


def came(migration_uuid: str) -> dict[str, str | None]:
    """Return the changes of the metadata for a move that needs no confirm: a live migration or an evacuation."""
    return {BOUND_TO: migration_uuid, BEFORE: None}


def its_own(metadata: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes of the metadata for a server that got requests without a move, and had none before."""
    return {BOUND_TO: None} if BOUND_TO in metadata else {}


def confirmed() -> dict[str, str | None]:
    """Return the changes of the metadata for a move that is confirmed."""
    return {BEFORE: None}


def reverted(metadata: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes of the metadata for a move that is reverted."""
    return {BOUND_TO: metadata.get(BEFORE), BEFORE: None}

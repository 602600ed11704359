"""Key pairs of users: list, get, create, import and delete, and the key pair that a new server gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kilonova.api.services import key_material, quota
from kilonova.api.services.backend import Backend
from kilonova.api.services.key_material import SSH
from kilonova.context import RequestContext
from kilonova.db.queries import keypairs
from kilonova.errors import Conflict, Forbidden, Invalid, NotFound, UnknownMarker
from kilonova.objects import KeyPair


class KeypairNotFound(NotFound):
    """Error 404: the user has no key pair of this name."""

    msg_fmt = 'Keypair %(name)s not found for user %(user_id)s'


class KeypairExists(Conflict):
    """Error 409: the user already has a key pair of this name."""

    msg_fmt = "Key pair '%(name)s' already exists."


class KeypairLimitExceeded(Forbidden):
    """Error 403: the quota allows no more key pairs."""

    msg_fmt = 'Quota exceeded, too many key pairs.'


@dataclass(frozen=True)
class NewKeypair:
    """The row of a new key pair, and the private key if this service generated it.

    The private key is neither stored nor logged.
    """

    row: dict[str, Any]
    private_key: str | None = field(default=None, repr=False)


def list_keypairs(
    backend: Backend, user_id: str, limit: int | None = None, marker: str | None = None
) -> list[dict[str, Any]]:
    """Return at most ``limit`` key pairs of a user, ordered by name, starting after ``marker``.

    Raises UnknownMarker (400) if the user has no key pair named ``marker``.
    """
    with backend.api_db.read() as conn:
        if marker is not None and keypairs.get(conn, user_id, marker) is None:
            raise UnknownMarker(marker=marker)
        return keypairs.page(conn, user_id, limit, marker)


def get(backend: Backend, user_id: str, name: str) -> dict[str, Any]:
    """Return the row of a user's key pair.

    Raises KeypairNotFound if the user has no key pair of this name.
    """
    with backend.api_db.read() as conn:
        row = keypairs.get(conn, user_id, name)
    if row is None:
        raise KeypairNotFound(name=name, user_id=user_id)
    return row


def create(
    backend: Backend, ctxt: RequestContext, user_id: str, name: str, kind: str = SSH, public_key: str | None = None
) -> NewKeypair:
    """Import a user's public key, or generate a key pair if ``public_key`` is None. ``kind`` is 'ssh' or 'x509'.

    Raises:
        InvalidKeypair: The public key can't be read (error 400).
        KeypairLimitExceeded: The user has as many key pairs as the caller's project allows (error 403).
        KeypairExists: The user has a key pair of this name (error 409).
    """
    made = None
    if public_key is None:
        made = key_material.generate(kind, user_id)
        public_key = made.public_key
    fingerprint = key_material.fingerprint(kind, public_key)
    limit = quota.limits(backend, ctxt.project_id, user_id)['key_pairs']
    _check_count(backend, user_id, limit, added=1)
    values = {'user_id': user_id, 'name': name, 'type': kind, 'public_key': public_key, 'fingerprint': fingerprint}
    verb = 'keypair.import' if made is None else 'keypair.create'
    backend.notify.emit(ctxt, f'{verb}.start', keypair=values)
    row = keypairs.create(backend.api_db, values)
    if row is None:
        raise KeypairExists(name=name)
    if backend.options.recheck_quota:
        try:
            _check_count(backend, user_id, limit)
        except KeypairLimitExceeded:
            # Concurrent requests have also added key pairs, so the limit is exceeded now. Delete the new key pair.
            keypairs.delete(backend.api_db, user_id, name)
            raise
    backend.notify.emit(ctxt, f'{verb}.end', keypair=row)
    return NewKeypair(row, made.private_key if made is not None else None)


def _check_count(backend: Backend, user_id: str, limit: int, added: int = 0) -> None:
    if limit < 0:
        return
    with backend.api_db.read() as conn:
        if keypairs.count(conn, user_id) + added > limit:
            raise KeypairLimitExceeded


def delete(backend: Backend, ctxt: RequestContext, user_id: str, name: str) -> None:
    """Delete a user's key pair. Servers that use the key pair keep their copy.

    Raises KeypairNotFound if the user has no key pair of this name.
    """
    told = get(backend, user_id, name) if backend.notify.enabled else None
    backend.notify.emit(ctxt, 'keypair.delete.start', keypair=told)
    if not keypairs.delete(backend.api_db, user_id, name):
        raise KeypairNotFound(name=name, user_id=user_id)
    backend.notify.emit(ctxt, 'keypair.delete.end', keypair=told)


def for_server(backend: Backend, ctxt: RequestContext, name: str | None) -> KeyPair | None:
    """Return the caller's key pair of this name as a KeyPair, for a server, or None if ``name`` is None.

    Raises Invalid (400) if the caller has no such key pair.
    """
    if name is None:
        return None
    with backend.api_db.read() as conn:
        row = keypairs.get(conn, ctxt.user_id, name)
    if row is None:
        raise Invalid('Invalid key_name provided.')
    return KeyPair(ctxt, **{key: row[key] for key in ('id', 'name', 'user_id', 'fingerprint', 'public_key', 'type')})

"""The client of Cinder: volumes made and deleted, and attachments, by which a server's host reaches a volume.

    client = VolumeClient(adapter)                              # adapter: session.adapter(conf, 'cinder', …)
    volume = client.volume(ctxt, volume_id)                     # as the user: what this user may see
    made = client.create_attachment(volume.id, server, connector)
    client.attachment(made.id).connection                       # how the host of the connector reaches it
    client.complete_attachment(made.id)                         # the volume is in-use
    client.reimage_volume(volume.id, image)                     # one that is reserved: another content
    client.delete_attachment(made.id)                           # may be repeated

Calls with a context that carries a token are the user's; with None, and where there is no context, they are the
service's own, which needs the roles admin and service (Cinder's default policy). Both carry a service token of that
account: Cinder takes attachments away for a compute service only. Cinder of 2022 (3.67) or newer: its URLs here name no
project. Routes: https://docs.openstack.org/api-ref/block-storage/v3/.
"""
from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import urlencode

import requests
from keystoneauth1.adapter import Adapter
from keystoneauth1.service_token import ServiceTokenAuthWrapper
from keystoneauth1.token_endpoint import Token
from oslo_utils import uuidutils

from kilonova import errors
from kilonova.clients import session
from kilonova.context import RequestContext

WHO = 'The volume service'
# The first one in which an attachment can be completed, and in which a volume can be written anew.
MICROVERSION, REIMAGE_SINCE = '3.44', '3.68'


# Status of an attachment that is to no host.
RESERVED = 'reserved'
# Metadata of a volume that was made for a server: its id; of a snapshot that was made for an image the same.
MADE_FOR, MADE_FOR_IMAGE = 'kilonova_server', 'kilonova_image'


# -- errors ------------------------------------------------------------------------------------------------------------
class VolumeNotFound(errors.NotFound):
    msg_fmt = 'Volume %(volume_id)s could not be found.'


class SnapshotNotFound(errors.NotFound):
    msg_fmt = 'Snapshot %(snapshot_id)s could not be found.'


class VolumeTypeNotFound(errors.NotFound):
    msg_fmt = 'Volume type %(volume_type)s could not be found.'


class AttachmentNotFound(errors.NotFound):
    msg_fmt = 'Volume attachment %(attachment_id)s could not be found.'


class VolumeInvalid(errors.Invalid):
    """Cinder doesn't understand the request, or the volume isn't in a state for it: in Cinder's words."""

    msg_fmt = '%(detail)s'


class VolumeConflict(errors.Conflict):
    msg_fmt = '%(detail)s'


class VolumeQuotaFull(errors.Forbidden):
    """In Cinder's words, which name the quota."""

    msg_fmt = '%(detail)s'


class VolumeForbidden(errors.Forbidden):
    """Cinder's policy is against it for this user."""

    msg_fmt = 'The volume service refuses the request: %(detail)s'


class VolumeAccountRefused(errors.Unavailable):
    """The account of [cinder] lacks a role: admin and service are needed."""

    msg_fmt = 'The volume service refuses the account of [cinder]: %(detail)s'


class VolumeBackendFailed(errors.Unavailable):
    """Cinder answers, and what stores the volume does not do it: another try may do."""

    msg_fmt = 'The volume service could not do it: %(detail)s'


# -- what Cinder has ---------------------------------------------------------------------------------------------------
class AttachedTo(NamedTuple):
    """One of a volume's attachments that are complete. ``host`` is shown to the service only."""

    server_id: str
    attachment_id: str
    host: str | None
    device: str | None


@dataclass(frozen=True)
class Volume:
    """``size`` in GiB."""

    id: str
    name: str
    project_id: str
    # creating, downloading, available, reserved, attaching, in-use, detaching, error …
    status: str
    size: int
    bootable: bool
    multiattach: bool
    encrypted: bool
    volume_type: str | None = None
    availability_zone: str | None = None
    # Properties of the image that it was made from.
    image_metadata: Mapping[str, str] = field(default_factory=dict)
    snapshot_id: str | None = None
    # Of one on its way to another back end: starting, migrating, completing …, and 'target:' with its id of the volume
    # to which that goes; success, error: it was once. Only the service sees it.
    migration: str | None = None
    attachments: tuple[AttachedTo, ...] = ()
    description: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    # As Cinder writes times: without a zone, UTC.
    created_at: str | None = None

    @property
    def migrating(self) -> bool:
        """Whether it is on its way to another back end, or the place to which one is."""
        return self.migration not in (None, 'success', 'error')

    def is_target_of(self, volume_id: str) -> bool:
        """Whether that one is on its way to this one, which goes when it is there."""
        return self.migration == f'target:{volume_id}'

    @property
    def is_written(self) -> bool:
        """Whether an image is being written to it: whoever attaches it, or takes its last attachment away, spoils the
        end of that."""
        return self.status == 'downloading'

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Volume:
        return cls(
            id=body['id'], name=body.get('name') or '', project_id=body.get('os-vol-tenant-attr:tenant_id') or '',
            status=body['status'], size=body['size'], bootable=body['bootable'] == 'true',
            multiattach=body['multiattach'], encrypted=body['encrypted'], volume_type=body.get('volume_type'),
            availability_zone=body.get('availability_zone'),
            image_metadata=body.get('volume_image_metadata') or {}, snapshot_id=body.get('snapshot_id'),
            migration=body.get('os-vol-mig-status-attr:migstat'),
            attachments=tuple(AttachedTo(one['server_id'], one['attachment_id'], one.get('host_name'),
                                         one.get('device')) for one in body['attachments']),
            description=body.get('description'), metadata=body.get('metadata') or {},
            created_at=body.get('created_at'))


@dataclass(frozen=True)
class Snapshot:
    """``size`` in GiB: what a volume of it has at least."""

    id: str
    name: str
    volume_id: str
    status: str
    size: int
    description: str | None = None
    created_at: str | None = None

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Snapshot:
        return cls(body['id'], body.get('name') or '', body['volume_id'], body['status'], body['size'],
                   body.get('description'), body.get('created_at'))


@dataclass(frozen=True)
class Attachment:
    """A volume's place at a server: reserved, attaching (a host has what it connects with), attached …"""

    id: str
    volume_id: str
    server_id: str | None
    status: str
    # driver_volume_type and the keys of that kind; empty until a host's connector is known. It may hold passwords.
    connection: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Attachment:
        return cls(body['id'], body['volume_id'], body['instance'] or None, body['status'],
                   body.get('connection_info') or {})


# -- the client --------------------------------------------------------------------------------------------------------
class _Requests:
    """How Cinder is asked, as a user or as the service."""

    def __init__(self, adapter: Adapter) -> None:
        self._service = adapter.session.auth
        if self._service is not None:
            adapter.session.auth = ServiceTokenAuthWrapper(user_auth=self._service, service_auth=self._service)
        self._adapter = adapter

    def _send(self, method: str, path: str, *, ctxt: RequestContext | None = None, microversion: str = MICROVERSION,
              **kwargs: Any) -> requests.Response:
        root, token = _root(session.endpoint(self._adapter, WHO)), getattr(ctxt, 'auth_token', None)
        if token and self._service is not None:
            kwargs['auth'] = ServiceTokenAuthWrapper(user_auth=Token(root, token), service_auth=self._service)
        attempts = session.READ_ATTEMPTS if method == 'GET' else 1
        return session.send(self._adapter, WHO, method, path, attempts=attempts, endpoint_override=root,
                            headers={'OpenStack-API-Version': f'volume {microversion}'}, **kwargs)


class _Attachments(_Requests):
    def attachments(self, server_id: str) -> list[Attachment]:
        """Those of a server of any project."""
        return self._attachments([('instance_id', server_id)])

    def attachments_of_servers(self) -> list[Attachment]:
        """All that a server has, of all projects."""
        found: list[Attachment] = []
        # Cinder lists as many at once as it likes, and doesn't say whether there are more.
        while page := self._attachments([('marker', found[-1].id)] if found else []):
            found += page
        return [attachment for attachment in found if attachment.server_id]

    def attachment(self, attachment_id: str) -> Attachment:
        """AttachmentNotFound."""
        missing = AttachmentNotFound(attachment_id=attachment_id)
        response = self._send('GET', _path('attachments', attachment_id, missing))
        return Attachment.from_body(_answer(response, None, missing)['attachment'])

    def create_attachment(self, volume_id: str, server_id: str, connector: Mapping[str, Any] | None) -> Attachment:
        """Reserve a volume for a server, and connect it to the host of a connector where one is given: then
        ``connection`` is there. The answer calls it reserved either way.

        A server may have several of one volume: where it is, and where it will be. One with a connector makes the
        volume attaching, and nobody gets another one of it, until that is complete or deleted. After silence, and after
        VolumeBackendFailed, it may be there nevertheless: ``attachments(server_id)`` says so. VolumeNotFound;
        VolumeInvalid: another server has it, or its status is not one to reserve it in.
        """
        body = {'volume_uuid': volume_id, 'instance_uuid': server_id, 'connector': connector}
        response = self._send('POST', '/attachments', json={'attachment': body}, refusals=(500,))
        return Attachment.from_body(_answer(response, None, VolumeNotFound(volume_id=volume_id))['attachment'])

    def complete_attachment(self, attachment_id: str) -> None:
        """The host has connected it: the volume is in-use. May be repeated. AttachmentNotFound."""
        missing = AttachmentNotFound(attachment_id=attachment_id)
        path = _path('attachments', attachment_id, missing)
        _answer(self._send('POST', f'{path}/action', json={'os-complete': None}), None, missing)

    def delete_attachment(self, attachment_id: str) -> None:
        """Without any the volume is available again. One that is gone doesn't matter. VolumeBackendFailed: it stays."""
        missing = AttachmentNotFound(attachment_id=attachment_id)
        try:
            _answer(self._send('DELETE', _path('attachments', attachment_id, missing), refusals=(500,)), None, missing)
        except AttachmentNotFound:
            return

    def _attachments(self, query: Sequence[tuple[str, str]]) -> list[Attachment]:
        asked = urlencode([('all_tenants', '1'), *query])
        answer = _answer(self._send('GET', f'/attachments/detail?{asked}'), None)
        return [Attachment.from_body(body) for body in answer['attachments']]


class VolumeClient(_Attachments):
    """One per process; threads may share it. Each call may raise Unanswered, VolumeForbidden (of a user) or
    VolumeAccountRefused (of the service)."""

    def volume(self, ctxt: RequestContext | None, volume_id: str) -> Volume:
        """VolumeNotFound: none that this user may see."""
        missing = VolumeNotFound(volume_id=volume_id)
        response = self._send('GET', _path('volumes', volume_id, missing), ctxt=ctxt)
        return Volume.from_body(_answer(response, ctxt, missing)['volume'])

    def encryption(self, volume_id: str) -> dict[str, Any]:
        """How an encrypted volume is encrypted, without the key itself: encryption_key_id, provider (luks …),
        control_location, cipher, key_size. Empty: it isn't. VolumeNotFound."""
        missing = VolumeNotFound(volume_id=volume_id)
        found: dict[str, Any] = _answer(
            self._send('GET', f"{_path('volumes', volume_id, missing)}/encryption"), None, missing)
        return found

    def snapshot(self, ctxt: RequestContext | None, snapshot_id: str) -> Snapshot:
        """SnapshotNotFound: none that this user may see."""
        missing = SnapshotNotFound(snapshot_id=snapshot_id)
        response = self._send('GET', _path('snapshots', snapshot_id, missing), ctxt=ctxt)
        return Snapshot.from_body(_answer(response, ctxt, missing)['snapshot'])

    def volumes(self, ctxt: RequestContext, limit: int, offset: int = 0) -> list[Volume]:
        """A page of those of a user's project, the newest first."""
        return [Volume.from_body(body) for body in self._page('volumes', ctxt, limit, offset)]

    def snapshots(self, ctxt: RequestContext, limit: int, offset: int = 0) -> list[Snapshot]:
        """The same of snapshots."""
        return [Snapshot.from_body(body) for body in self._page('snapshots', ctxt, limit, offset)]

    def _page(self, collection: str, ctxt: RequestContext, limit: int, offset: int) -> Sequence[Mapping[str, Any]]:
        if not limit:
            return ()
        asked = urlencode([('limit', limit), ('offset', offset)])
        found: list[Mapping[str, Any]] = _answer(
            self._send('GET', f'/{collection}/detail?{asked}', ctxt=ctxt), ctxt)[collection]
        return found[:limit]

    def create_snapshot(self, ctxt: RequestContext, volume_id: str, *, name: str, description: str | None = None,
                        force: bool = True, metadata: Mapping[str, str] | None = None) -> Snapshot:
        """A user's snapshot of a volume, which with ``force`` may be in use; it is being made when this returns. With
        {MADE_FOR_IMAGE: image} in its ``metadata`` it is found again (``snapshots_for``). VolumeNotFound,
        VolumeQuotaFull, VolumeInvalid."""
        body = {'volume_id': volume_id, 'name': name, 'description': description, 'force': force,
                'metadata': dict(metadata or {})}
        response = self._send('POST', '/snapshots', ctxt=ctxt, json={'snapshot': body})
        return Snapshot.from_body(_answer(response, ctxt, VolumeNotFound(volume_id=volume_id))['snapshot'])

    def snapshots_for(self, image_id: str) -> list[str]:
        """Ids of the snapshots that were made for an image, of any project."""
        wanted = {MADE_FOR_IMAGE: image_id}
        asked = urlencode([('all_tenants', '1'), ('metadata', repr(wanted))])
        answer = _answer(self._send('GET', f'/snapshots/detail?{asked}'), None)
        return [body['id'] for body in answer['snapshots'] if wanted.items() <= body['metadata'].items()]

    def delete_snapshot(self, snapshot_id: str) -> None:
        """It is being deleted when this returns; may be repeated. VolumeInvalid: it is being made."""
        with contextlib.suppress(SnapshotNotFound):
            self.remove_snapshot(None, snapshot_id)

    def remove_snapshot(self, ctxt: RequestContext | None, snapshot_id: str) -> None:
        """Delete one that is there. SnapshotNotFound; VolumeInvalid: it is being made."""
        missing = SnapshotNotFound(snapshot_id=snapshot_id)
        _answer(self._send('DELETE', _path('snapshots', snapshot_id, missing), ctxt=ctxt), ctxt, missing)

    def tell_snapshot(self, snapshot_id: str, status: str, progress: str | None = None) -> None:
        """How it is with a snapshot that Cinder has a compute service take: creating or error; or delete: deleting or
        error_deleting; Cinder goes on at a progress of 90%. SnapshotNotFound; VolumeInvalid: it is past that."""
        missing = SnapshotNotFound(snapshot_id=snapshot_id)
        told = {'status': status, **({'progress': progress} if progress is not None else {})}
        _answer(self._send('POST', f"{_path('snapshots', snapshot_id, missing)}/action",
                           json={'os-update_snapshot_status': told}), None, missing)

    def create_volume(self, ctxt: RequestContext, *, size: int, name: str, image_id: str | None = None,
                      snapshot_id: str | None = None, volume_type: str | None = None,
                      availability_zone: str | None = None, metadata: Mapping[str, str] | None = None,
                      description: str | None = None) -> Volume:
        """A user's volume, of an image, of a snapshot or blank; it is being made when this returns: look at its status
        until it is available. With {MADE_FOR: server} in its ``metadata`` it is found again (``made_for``), also where
        this got no answer. SnapshotNotFound, VolumeTypeNotFound, VolumeQuotaFull, VolumeInvalid."""
        body = {'size': size, 'name': name, 'description': description, 'imageRef': image_id,
                'snapshot_id': snapshot_id,
                'volume_type': volume_type, 'availability_zone': availability_zone, 'metadata': metadata}
        response = self._send('POST', '/volumes', ctxt=ctxt,
                              json={'volume': {key: value for key, value in body.items() if value is not None}})
        missing: list[errors.NotFound] = [SnapshotNotFound(snapshot_id=snapshot_id)] if snapshot_id else []
        missing += [VolumeTypeNotFound(volume_type=volume_type)] if volume_type else []
        made = _answer(response, ctxt, *missing)['volume']
        # This answer doesn't say whose it is.
        return replace(Volume.from_body(made), project_id=ctxt.project_id or '')

    def made_for(self, server_id: str) -> list[str]:
        """Ids of the volumes that were made for a server, of any project."""
        wanted = {MADE_FOR: server_id}
        asked = urlencode([('all_tenants', '1'), ('metadata', repr(wanted))])
        answer = _answer(self._send('GET', f'/volumes/detail?{asked}'), None)
        # What is deleted is looked at here, too: a service may read a query otherwise.
        return [body['id'] for body in answer['volumes'] if wanted.items() <= body['metadata'].items()]

    def delete_volume(self, volume_id: str) -> None:
        """It is being deleted when this returns; may be repeated. VolumeInvalid: it is in use, or has snapshots."""
        try:
            self.remove_volume(None, volume_id)
        except VolumeNotFound:
            return
        except VolumeInvalid:
            if not self._is_going(volume_id):
                raise

    def remove_volume(self, ctxt: RequestContext | None, volume_id: str) -> None:
        """Delete one that is there. VolumeNotFound; VolumeInvalid: it is in use, or has snapshots."""
        missing = VolumeNotFound(volume_id=volume_id)
        _answer(self._send('DELETE', _path('volumes', volume_id, missing), ctxt=ctxt), ctxt, missing)

    def _is_going(self, volume_id: str) -> bool:
        try:
            return self.volume(None, volume_id).status == 'deleting'
        except VolumeNotFound:
            return True

    def reimage_volume(self, volume_id: str, image_id: str) -> None:
        """Write an image to a volume that is reserved for one server, in place of what is on it. It is being written
        when this returns, and then as before, or in error. VolumeNotFound, ImageNotFound; VolumeConflict: it has other
        attachments; VolumeInvalid: the image doesn't fit, or its status isn't one to do it in."""
        self._act(volume_id, 'os-reimage', {'image_id': image_id, 'reimage_reserved': True}, REIMAGE_SINCE,
                  errors.ImageNotFound(image_id=image_id))

    def call_reserved(self, volume_id: str) -> None:
        """A volume in error that a server has is reserved for it again: so it can be written anew. VolumeNotFound."""
        self._act(volume_id, 'os-reset_status', {'status': 'reserved'})

    def call_available(self, volume_id: str) -> None:
        """A volume that nobody has is available, whatever it was called. VolumeNotFound."""
        self._act(volume_id, 'os-reset_status', {'status': 'available'})

    def complete_migration(self, volume_id: str, target_id: str, *, failed: bool) -> None:
        """A server's guest has moved from a volume to the one to which that is on its way: from now on the first id
        has what the second had, attachments too, and the second goes. ``failed``: it hasn't, and only the second goes.
        A volume may have no attachment then, but of those that the target has. VolumeNotFound: one of both is gone;
        VolumeInvalid: the one isn't on its way to the other."""
        self._act(volume_id, 'os-migrate_volume_completion', {'new_volume': target_id, 'error': failed}, MICROVERSION,
                  VolumeNotFound(volume_id=target_id))

    def _act(self, volume_id: str, action: str, body: Mapping[str, Any], microversion: str = MICROVERSION,
             *missing: errors.NotFound) -> None:
        gone = VolumeNotFound(volume_id=volume_id)
        response = self._send('POST', f"{_path('volumes', volume_id, gone)}/action", microversion=microversion,
                              json={action: body})
        _answer(response, None, gone, *missing)


def _root(endpoint: str) -> str:
    """Version 3 of an endpoint, without the project that catalogs often name in it: users have others.

    >>> _root('http://127.0.0.1:8776/v3/4f6d2e'), _root('http://cloud/volume/v3/')
    ('http://127.0.0.1:8776/v3', 'http://cloud/volume/v3')
    """
    return re.sub(r'/v3(/[^/]*)?$', '', endpoint.rstrip('/')) + '/v3'


def _path(collection: str, identifier: str, missing: errors.NotFound) -> str:
    """The path of one; ``missing``, without a request, where this isn't a UUID: such as '..' leads elsewhere."""
    if not uuidutils.is_uuid_like(identifier):
        raise missing
    return f'/{collection}/{identifier}'


def _answer(response: requests.Response, ctxt: RequestContext | None, *missing: errors.NotFound) -> Any:
    """The body of an answer, or the error that it is; ``missing``: the errors that 404 may mean, each of which names
    what was asked for. A 404 that doesn't name it is no word of Cinder's on it: Unanswered."""
    if response.status_code < 400:
        return response.json() if response.content else None
    is_cinder_s, text = _error(response)
    detail, status = errors.shortened(text, 300), response.status_code
    if status == 404:
        for error in missing:
            if is_cinder_s and all(_one_line(name) in text for name in error.fields.values()):
                raise error
    if status == 404 or (status >= 500 and not is_cinder_s):
        raise errors.Unanswered(who=WHO, reason=f'HTTP {status}: {detail}')
    if status == 403 and not getattr(ctxt, 'auth_token', None):
        raise VolumeAccountRefused(detail=detail)
    raise _LEAVES.get(status, VolumeInvalid)(detail=detail)


_LEAVES: dict[int, type[errors.KilonovaError]] = {
    403: VolumeForbidden, 409: VolumeConflict, 413: VolumeQuotaFull, 500: VolumeBackendFailed}


def _error(response: requests.Response) -> tuple[bool, str]:
    """Whether it is one of Cinder's, and its text in one line; not so, for example, that of a proxy before it."""
    try:
        (body,) = response.json().values()
        text, is_cinder_s = str(body['message']), True
    except (ValueError, LookupError, TypeError, AttributeError):
        text, is_cinder_s = response.text, False
    return is_cinder_s, _one_line(text) or f'{response.status_code} {response.reason}'


def _one_line(text: object) -> str:
    return ' '.join(str(text).split())

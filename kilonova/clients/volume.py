"""The client of Cinder.

It creates and deletes volumes, and the attachments through which a server's host uses a volume.

    client = VolumeClient(adapter)                              # adapter: session.adapter(conf, 'cinder', …)
    volume = client.volume(ctxt, volume_id)                     # as the user: only volumes that this user can see
    made = client.create_attachment(volume.id, server, connector)
    client.attachment(made.id).connection                       # how the host of the connector reaches the volume
    client.complete_attachment(made.id)                         # the volume is in-use
    client.reimage_volume(volume.id, image)                     # replaces the content of a reserved volume by an image
    client.delete_attachment(made.id)                           # may be repeated

Calls with a context that has a token are made as the user. Calls with None, and calls without a context, are made as
the service, whose account needs the roles admin and service (Cinder's default policy). All calls have a service token
of that account, because Cinder deletes attachments only for a compute service. Cinder must be of 2022 (3.67) or newer,
because the URLs that this client uses contain no project. Routes: https://docs.openstack.org/api-ref/block-storage/v3/.
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
# MICROVERSION: the first microversion in which an attachment can be completed.
# REIMAGE_SINCE: the first microversion in which a volume's content can be replaced by an image.
MICROVERSION, REIMAGE_SINCE = '3.44', '3.68'


# Status of an attachment that is connected to no host.
RESERVED = 'reserved'
# MADE_FOR: the metadata key of a new volume with the id of the server for which the volume is created.
# MADE_FOR_IMAGE: the metadata key of a new snapshot with the id of the image for which the snapshot is created.
MADE_FOR, MADE_FOR_IMAGE = 'kilonova_server', 'kilonova_image'


# -- errors ------------------------------------------------------------------------------------------------------------
class VolumeNotFound(errors.NotFound):
    """No such volume exists, or the user can't see it."""

    msg_fmt = 'Volume %(volume_id)s could not be found.'


class SnapshotNotFound(errors.NotFound):
    """No such snapshot exists, or the user can't see it."""

    msg_fmt = 'Snapshot %(snapshot_id)s could not be found.'


class VolumeTypeNotFound(errors.NotFound):
    """No such volume type exists, or the user can't see it."""

    msg_fmt = 'Volume type %(volume_type)s could not be found.'


class AttachmentNotFound(errors.NotFound):
    """No such attachment exists."""

    msg_fmt = 'Volume attachment %(attachment_id)s could not be found.'


class VolumeInvalid(errors.Invalid):
    """Cinder does not understand the request, or the volume's state does not allow it. The error has Cinder's text."""

    msg_fmt = '%(detail)s'


class VolumeConflict(errors.Conflict):
    """Cinder refuses the request because of the current state of an object. The error has Cinder's text."""

    msg_fmt = '%(detail)s'


class VolumeQuotaFull(errors.Forbidden):
    """A quota is used up. The error has Cinder's text, which names the quota."""

    msg_fmt = '%(detail)s'


class VolumeForbidden(errors.Forbidden):
    """Cinder's policy does not allow this user's request."""

    msg_fmt = 'The volume service refuses the request: %(detail)s'


class VolumeAccountRefused(errors.Unavailable):
    """The account of [cinder] lacks a role. The account needs the roles admin and service."""

    msg_fmt = 'The volume service refuses the account that is configured in [cinder]: %(detail)s'


class VolumeBackendFailed(errors.Unavailable):
    """Cinder answers, but the storage back end of the volume failed. Another attempt may succeed."""

    msg_fmt = 'The volume service could not carry out the request: %(detail)s'


# -- the objects of Cinder ---------------------------------------------------------------------------------------------
class AttachedTo(NamedTuple):
    """One entry in the list of attachments that Cinder returns with a volume (``Volume.attachments``).

    The list has only attachments by which the volume was connected to a host. ``host`` is None if the volume was read
    with a user's token.
    """

    server_id: str
    attachment_id: str
    host: str | None
    device: str | None


@dataclass(frozen=True)
class Volume:
    """A volume. ``size`` is in GiB."""

    id: str
    name: str
    project_id: str
    # The volume's status, such as creating, downloading, available, reserved, attaching, in-use, detaching or error.
    status: str
    size: int
    bootable: bool
    multiattach: bool
    encrypted: bool
    volume_type: str | None = None
    availability_zone: str | None = None
    # Properties of the image from which the volume was created.
    image_metadata: Mapping[str, str] = field(default_factory=dict)
    snapshot_id: str | None = None
    # State of the volume's migration to another back end: starting, migrating, completing, success, error and others.
    # For the volume to which the data is copied, ``migration`` is 'target:' followed by the id of the migrating volume.
    # Cinder shows ``migration`` only to administrators. After a migration its value is success or error.
    migration: str | None = None
    attachments: tuple[AttachedTo, ...] = ()
    description: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    # Time of creation in Cinder's form: UTC, without a time zone.
    created_at: str | None = None

    @property
    def migrating(self) -> bool:
        """Whether the volume is being migrated to another back end, or is the target of such a migration."""
        return self.migration not in (None, 'success', 'error')

    def is_target_of(self, volume_id: str) -> bool:
        """Return whether this volume is the target of a migration of the volume with this id.

        Cinder deletes the target volume when the migration has ended.
        """
        return self.migration == f'target:{volume_id}'

    @property
    def is_written(self) -> bool:
        """Whether Cinder is writing an image to the volume.

        While this is true, the volume must not be attached, and its last attachment must not be deleted. Otherwise the
        volume would get a wrong status after the image is written.
        """
        return self.status == 'downloading'

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Volume:
        """Create a Volume from ``body``, the JSON object of a volume in a response of Cinder."""
        return cls(
            id=body['id'],
            name=body.get('name') or '',
            project_id=body.get('os-vol-tenant-attr:tenant_id') or '',
            status=body['status'],
            size=body['size'],
            bootable=body['bootable'] == 'true',
            multiattach=body['multiattach'],
            encrypted=body['encrypted'],
            volume_type=body.get('volume_type'),
            availability_zone=body.get('availability_zone'),
            image_metadata=body.get('volume_image_metadata') or {},
            snapshot_id=body.get('snapshot_id'),
            migration=body.get('os-vol-mig-status-attr:migstat'),
            attachments=tuple(
                AttachedTo(one['server_id'], one['attachment_id'], one.get('host_name'), one.get('device'))
                for one in body['attachments']
            ),
            description=body.get('description'),
            metadata=body.get('metadata') or {},
            created_at=body.get('created_at'),
        )


@dataclass(frozen=True)
class VolumeSnapshot:
    """A snapshot of a volume. ``size`` is in GiB. A volume that is created from the snapshot has at least this size."""

    id: str
    name: str
    volume_id: str
    status: str
    size: int
    description: str | None = None
    created_at: str | None = None

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> VolumeSnapshot:
        """Create a VolumeSnapshot from ``body``, the JSON object of a snapshot in a response of Cinder."""
        return cls(
            body['id'],
            body.get('name') or '',
            body['volume_id'],
            body['status'],
            body['size'],
            body.get('description'),
            body.get('created_at'),
        )


@dataclass(frozen=True)
class Attachment:
    """The attachment of a volume to a server, as Cinder's API for attachments returns it.

    ``status`` is for example 'reserved', 'attaching' (a host knows how to connect to the volume) or 'attached'.
    """

    id: str
    volume_id: str
    server_id: str | None
    status: str
    # How the host connects to the volume: driver_volume_type and further keys that depend on this type.
    # ``connection`` may contain passwords. It is empty until Cinder knows the connector of the host.
    connection: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Attachment:
        """Create an Attachment from ``body``, the JSON object of an attachment in a response of Cinder."""
        return cls(
            body['id'], body['volume_id'], body['instance'] or None, body['status'], body.get('connection_info') or {}
        )


# -- the client --------------------------------------------------------------------------------------------------------
class _Requests(session.RestClient):
    """Sends requests to Cinder, as a user or as the service."""

    def __init__(self, adapter: Adapter) -> None:
        self._service = adapter.session.auth
        super().__init__(adapter, WHO)

    def _send(
        self,
        method: str,
        path: str,
        *,
        ctxt: RequestContext | None = None,
        microversion: str = MICROVERSION,
        **kwargs: Any,
    ) -> requests.Response:
        root, token = _root(session.endpoint(self._adapter, WHO)), getattr(ctxt, 'auth_token', None)
        if token and self._service is not None:
            # Send a service token in addition to the user's token.
            kwargs['auth'] = ServiceTokenAuthWrapper(user_auth=Token(root, token), service_auth=self._service)
        headers = {'OpenStack-API-Version': f'volume {microversion}'}
        return super()._send(method, path, endpoint_override=root, headers=headers, **kwargs)


class _Attachments(_Requests):
    def attachments(self, server_id: str) -> list[Attachment]:
        """Return the attachments of a server of any project."""
        return self._attachments([('instance_id', server_id)])

    def attachments_of_servers(self) -> list[Attachment]:
        """Return the attachments of all servers of all projects.

        Raises Unanswered if Cinder returns the same page again instead of the next page.
        """
        found: dict[str, Attachment] = {}
        # Read pages until one is empty, because Cinder's response does not say whether there is a next page.
        while page := self._attachments([('marker', next(reversed(found)))] if found else []):
            if all(attachment.id in found for attachment in page):
                raise errors.Unanswered(f'{WHO} returned the same page of attachments again')
            found |= {attachment.id: attachment for attachment in page}
        return [attachment for attachment in found.values() if attachment.server_id]

    def attachment(self, attachment_id: str) -> Attachment:
        """Return an attachment. Raises AttachmentNotFound if no such attachment exists."""
        missing = AttachmentNotFound(attachment_id=attachment_id)
        response = self._send('GET', _path('attachments', attachment_id, missing))
        return Attachment.from_body(_answer(response, None, missing)['attachment'])

    def create_attachment(self, volume_id: str, server_id: str, connector: Mapping[str, Any] | None) -> Attachment:
        """Reserve a volume for a server. If a host's connector is given, also connect the volume to the host.

        A server may have several attachments of one volume: one for its present host and one for its next host.

        If a connector is given, the returned attachment has ``connection``, and the volume gets the status 'attaching'.
        Cinder refuses further attachments of the volume until the new one is completed or deleted. The ``status`` of
        the returned attachment is 'reserved' even then: it is not the volume's status.

        If Cinder does not answer or VolumeBackendFailed is raised, the attachment may exist nevertheless. In this case
        ``attachments(server_id)`` returns it.

        Raises VolumeNotFound if no such volume exists. Raises VolumeInvalid if another server has the volume, or if the
        volume's status does not allow a reservation.
        """
        body = {'volume_uuid': volume_id, 'instance_uuid': server_id, 'connector': connector}
        response = self._send('POST', '/attachments', json={'attachment': body}, refusals=(500,))
        return Attachment.from_body(_answer(response, None, VolumeNotFound(volume_id=volume_id))['attachment'])

    def complete_attachment(self, attachment_id: str) -> None:
        """Report that the host has connected the volume. The volume's status is then in-use. The call may be repeated.

        Raises AttachmentNotFound if no such attachment exists.
        """
        missing = AttachmentNotFound(attachment_id=attachment_id)
        path = _path('attachments', attachment_id, missing)
        _answer(self._send('POST', f'{path}/action', json={'os-complete': None}), None, missing)

    def delete_attachment(self, attachment_id: str) -> None:
        """Delete an attachment. Nothing happens if the attachment is deleted already.

        After its last attachment is deleted, a volume is available again. Raises VolumeBackendFailed if the attachment
        could not be deleted.
        """
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
    """The client of Cinder. A process has one, and threads may share it.

    Each call may raise Unanswered. A request as a user may raise VolumeForbidden. A request as the service may
    raise VolumeAccountRefused.
    """

    def volume(self, ctxt: RequestContext | None, volume_id: str) -> Volume:
        """Return a volume. Raises VolumeNotFound if it does not exist or this user can't see it."""
        missing = VolumeNotFound(volume_id=volume_id)
        response = self._send('GET', _path('volumes', volume_id, missing), ctxt=ctxt)
        return Volume.from_body(_answer(response, ctxt, missing)['volume'])

    def encryption(self, volume_id: str) -> dict[str, Any]:
        """Return how a volume is encrypted, without the key itself, or an empty dict if it is not encrypted.

        The keys are encryption_key_id, provider (luks …), control_location, cipher and key_size. Raises VolumeNotFound
        if no such volume exists.
        """
        missing = VolumeNotFound(volume_id=volume_id)
        found: dict[str, Any] = _answer(
            self._send('GET', f'{_path("volumes", volume_id, missing)}/encryption'), None, missing
        )
        return found

    def snapshot(self, ctxt: RequestContext | None, snapshot_id: str) -> VolumeSnapshot:
        """Return a snapshot. Raises SnapshotNotFound if it does not exist or this user can't see it."""
        missing = SnapshotNotFound(snapshot_id=snapshot_id)
        response = self._send('GET', _path('snapshots', snapshot_id, missing), ctxt=ctxt)
        return VolumeSnapshot.from_body(_answer(response, ctxt, missing)['snapshot'])

    def volumes(self, ctxt: RequestContext, limit: int, offset: int = 0) -> list[Volume]:
        """Return a page of the volumes of a user's project, newest first."""
        return [Volume.from_body(body) for body in self._page('volumes', ctxt, limit, offset)]

    def snapshots(self, ctxt: RequestContext, limit: int, offset: int = 0) -> list[VolumeSnapshot]:
        """Return a page of the snapshots of a user's project, newest first."""
        return [VolumeSnapshot.from_body(body) for body in self._page('snapshots', ctxt, limit, offset)]

    def _page(self, collection: str, ctxt: RequestContext, limit: int, offset: int) -> Sequence[Mapping[str, Any]]:
        if not limit:
            return ()
        asked = urlencode([('limit', limit), ('offset', offset)])
        found: list[Mapping[str, Any]] = _answer(self._send('GET', f'/{collection}/detail?{asked}', ctxt=ctxt), ctxt)[
            collection
        ]
        return found[:limit]

    def create_snapshot(
        self,
        ctxt: RequestContext,
        volume_id: str,
        *,
        name: str,
        description: str | None = None,
        force: bool = True,
        metadata: Mapping[str, str] | None = None,
    ) -> VolumeSnapshot:
        """Create a user's snapshot of a volume. If ``force`` is True, the volume may be in use.

        Cinder is still creating the snapshot when this method returns. If ``metadata`` contains {MADE_FOR_IMAGE: image
        id}, ``snapshots_for`` finds the snapshot.

        Raises:
            VolumeNotFound: No such volume exists.
            VolumeQuotaFull: A quota is used up.
            VolumeInvalid: The volume's state does not allow a snapshot.
        """
        body = {
            'volume_id': volume_id,
            'name': name,
            'description': description,
            'force': force,
            'metadata': dict(metadata or {}),
        }
        response = self._send('POST', '/snapshots', ctxt=ctxt, json={'snapshot': body})
        return VolumeSnapshot.from_body(_answer(response, ctxt, VolumeNotFound(volume_id=volume_id))['snapshot'])

    def snapshots_for(self, image_id: str) -> list[str]:
        """Return the ids of the snapshots of any project that were created for an image."""
        wanted = {MADE_FOR_IMAGE: image_id}
        asked = urlencode([('all_tenants', '1'), ('metadata', repr(wanted))])
        answer = _answer(self._send('GET', f'/snapshots/detail?{asked}'), None)
        return [body['id'] for body in answer['snapshots'] if wanted.items() <= body['metadata'].items()]

    def delete_snapshot(self, snapshot_id: str) -> None:
        """Delete a snapshot. Nothing happens if the snapshot is deleted already.

        Cinder is still deleting the snapshot when this method returns. Raises VolumeInvalid if the snapshot is still
        being created.
        """
        with contextlib.suppress(SnapshotNotFound):
            self.remove_snapshot(None, snapshot_id)

    def remove_snapshot(self, ctxt: RequestContext | None, snapshot_id: str) -> None:
        """Delete an existing snapshot.

        Raises SnapshotNotFound if no such snapshot exists, and VolumeInvalid if the snapshot is still being created.
        """
        missing = SnapshotNotFound(snapshot_id=snapshot_id)
        _answer(self._send('DELETE', _path('snapshots', snapshot_id, missing), ctxt=ctxt), ctxt, missing)

    def tell_snapshot(self, snapshot_id: str, status: str, progress: str | None = None) -> None:
        """Report to Cinder the state of a snapshot that a compute service creates or deletes on behalf of Cinder.

        ``status`` is 'creating' or 'error' for a create, and 'deleting' or 'error_deleting' for a delete. The
        ``progress`` '90%' means that the compute service has done its part. Cinder then does the rest of the create or
        delete. Raises SnapshotNotFound if no such snapshot exists, and VolumeInvalid if the snapshot is no longer being
        created or deleted.
        """
        missing = SnapshotNotFound(snapshot_id=snapshot_id)
        told = {'status': status, **({'progress': progress} if progress is not None else {})}
        _answer(
            self._send(
                'POST', f'{_path("snapshots", snapshot_id, missing)}/action', json={'os-update_snapshot_status': told}
            ),
            None,
            missing,
        )

    def create_volume(
        self,
        ctxt: RequestContext,
        *,
        size: int,
        name: str,
        image_id: str | None = None,
        snapshot_id: str | None = None,
        volume_type: str | None = None,
        availability_zone: str | None = None,
        metadata: Mapping[str, str] | None = None,
        description: str | None = None,
    ) -> Volume:
        """Create a user's volume from an image, from a snapshot, or blank. ``size`` is in GiB.

        Cinder is still creating the volume when this method returns; the caller reads the volume's status until it is
        available. If ``metadata`` contains {MADE_FOR: server id}, ``made_for`` finds the volume, even if this call got
        no response.

        Raises:
            SnapshotNotFound: No such snapshot exists.
            VolumeTypeNotFound: No such volume type exists.
            VolumeQuotaFull: A quota is used up.
            VolumeInvalid: Cinder does not accept the arguments.
        """
        body = {
            'size': size,
            'name': name,
            'description': description,
            'imageRef': image_id,
            'snapshot_id': snapshot_id,
            'volume_type': volume_type,
            'availability_zone': availability_zone,
            'metadata': metadata,
        }
        response = self._send(
            'POST',
            '/volumes',
            ctxt=ctxt,
            json={'volume': {key: value for key, value in body.items() if value is not None}},
        )
        missing: list[errors.NotFound] = [SnapshotNotFound(snapshot_id=snapshot_id)] if snapshot_id else []
        missing += [VolumeTypeNotFound(volume_type=volume_type)] if volume_type else []
        made = _answer(response, ctxt, *missing)['volume']
        # The project is set here, because Cinder's response to a creation does not contain it.
        return replace(Volume.from_body(made), project_id=ctxt.project_id or '')

    def made_for(self, server_id: str) -> list[str]:
        """Return the ids of the volumes of any project that were created for a server."""
        wanted = {MADE_FOR: server_id}
        asked = urlencode([('all_tenants', '1'), ('metadata', repr(wanted))])
        answer = _answer(self._send('GET', f'/volumes/detail?{asked}'), None)
        # The caller deletes these volumes, so check their metadata here again.
        # Cinder may have ignored the filter of the query and returned other volumes.
        return [body['id'] for body in answer['volumes'] if wanted.items() <= body['metadata'].items()]

    def delete_volume(self, volume_id: str) -> None:
        """Delete a volume. Nothing happens if the volume is deleted already.

        Cinder is still deleting the volume when this method returns. Raises VolumeInvalid if the volume is in use or
        has snapshots.
        """
        try:
            self.remove_volume(None, volume_id)
        except VolumeNotFound:
            return
        except VolumeInvalid:
            if not self._is_going(volume_id):
                raise

    def remove_volume(self, ctxt: RequestContext | None, volume_id: str) -> None:
        """Delete an existing volume.

        Raises VolumeNotFound if no such volume exists, and VolumeInvalid if the volume is in use or has snapshots.
        """
        missing = VolumeNotFound(volume_id=volume_id)
        _answer(self._send('DELETE', _path('volumes', volume_id, missing), ctxt=ctxt), ctxt, missing)

    def _is_going(self, volume_id: str) -> bool:
        try:
            return self.volume(None, volume_id).status == 'deleting'
        except VolumeNotFound:
            return True

    def reimage_volume(self, volume_id: str, image_id: str) -> None:
        """Replace the content of a volume that is reserved for one server by an image.

        Cinder is still writing the image when this method returns. After that the volume has its previous status, or
        'error'.

        Raises:
            VolumeNotFound: No such volume exists.
            ImageNotFound: No such image exists.
            VolumeConflict: The volume has other attachments.
            VolumeInvalid: The image does not fit, or the volume's status does not allow the replacement.
        """
        self._act(
            volume_id,
            'os-reimage',
            {'image_id': image_id, 'reimage_reserved': True},
            REIMAGE_SINCE,
            errors.ImageNotFound(image_id=image_id),
        )

    def call_reserved(self, volume_id: str) -> None:
        """Set the status of a server's volume from error to reserved again, so that its content can be replaced.

        Raises VolumeNotFound if no such volume exists.
        """
        self._act(volume_id, 'os-reset_status', {'status': 'reserved'})

    def call_available(self, volume_id: str) -> None:
        """Set the status of a volume to available. Any previous status is allowed. The volume must belong to no server.

        Raises VolumeNotFound if no such volume exists.
        """
        self._act(volume_id, 'os-reset_status', {'status': 'available'})

    def complete_migration(self, volume_id: str, target_id: str, *, failed: bool) -> None:
        """End the migration of a volume, after a server's guest has switched to the migration's target volume.

        The volume keeps its id and gets the data and the attachments of the target volume. Cinder then deletes the
        target volume. If ``failed`` is True, the guest has not switched, and Cinder only deletes the target volume.
        Delete first the attachments of the volume that the guest does not use.

        Raises VolumeNotFound if one of the volumes does not exist, and VolumeInvalid if the target does not belong to
        this volume's migration.
        """
        self._act(
            volume_id,
            'os-migrate_volume_completion',
            {'new_volume': target_id, 'error': failed},
            MICROVERSION,
            VolumeNotFound(volume_id=target_id),
        )

    def _act(
        self,
        volume_id: str,
        action: str,
        body: Mapping[str, Any],
        microversion: str = MICROVERSION,
        *missing: errors.NotFound,
    ) -> None:
        gone = VolumeNotFound(volume_id=volume_id)
        response = self._send(
            'POST', f'{_path("volumes", volume_id, gone)}/action', microversion=microversion, json={action: body}
        )
        _answer(response, None, gone, *missing)


def _root(endpoint: str) -> str:
    """Return an endpoint's URL of API version 3, without the project that many catalogs put into it.

    The project is removed, because the users of this client belong to other projects.

    >>> _root('http://127.0.0.1:8776/v3/4f6d2e'), _root('http://cloud/volume/v3/')
    ('http://127.0.0.1:8776/v3', 'http://cloud/volume/v3')
    """
    return re.sub(r'/v3(/[^/]*)?$', '', endpoint.rstrip('/')) + '/v3'


def _path(collection: str, identifier: str, missing: errors.NotFound) -> str:
    """Return the path of one object.

    Raises ``missing``, without a request, if the identifier is not a UUID, because an identifier such as '..' would
    lead to another path.
    """
    if not uuidutils.is_uuid_like(identifier):
        raise missing
    return f'/{collection}/{identifier}'


def _answer(response: requests.Response, ctxt: RequestContext | None, *missing: errors.NotFound) -> Any:
    """Return the body of a response, or raise the error that the response means.

    ``missing`` has an error for each object that the request names. If Cinder answers 404 and its text names one of
    these objects, the error of this object is raised. Any other 404 raises Unanswered, because it does not mean that an
    object is missing: it may come from a proxy or from a wrong endpoint URL.
    """
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
    403: VolumeForbidden,
    409: VolumeConflict,
    413: VolumeQuotaFull,
    500: VolumeBackendFailed,
}


def _error(response: requests.Response) -> tuple[bool, str]:
    """Return whether Cinder sent this error response, and the error's text in one line.

    The first value is False for an error page of a proxy, for example.
    """
    try:
        (body,) = response.json().values()
        text, is_cinder_s = str(body['message']), True
    except (ValueError, LookupError, TypeError, AttributeError):
        text, is_cinder_s = response.text, False
    return is_cinder_s, _one_line(text) or f'{response.status_code} {response.reason}'


def _one_line(text: object) -> str:
    return ' '.join(str(text).split())

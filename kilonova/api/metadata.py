"""The metadata service: a WSGI application that answers guests' requests to 169.254.169.254.

    app = MetadataService(conf, databases=databases, cells=cells, vendor=Vendordata(conf))

Guests get the metadata in the formats of OpenStack and of EC2.

Requests come through the network service's metadata proxy. The proxy names the server and its project in headers
(X-Instance-ID, X-Tenant-ID), and signs the server's uuid (X-Instance-ID-Signature: HMAC-SHA256 with
[neutron]metadata_proxy_shared_secret). Guests can't reach this service in another way, and a request without a valid
signature gets no data.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import webob
from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import uuidutils

from kilonova import errors
from kilonova.api.services.scatter_gather import is_silence
from kilonova.clients.vendordata import Vendordata
from kilonova.context import get_admin_context
from kilonova.db import engine
from kilonova.db.queries import instances, metadata, servers
from kilonova.db.queries.cells import CellDatabases
from kilonova.objects import Instance
from kilonova.states import VmState
from kilonova.virt import guest_metadata, guest_password
from kilonova.virt.guest_metadata import EC2, EC2_VERSIONS, LATEST, VENDOR_DATA, VERSIONS, GuestFacts

LOG = logging.getLogger(__name__)

OPENSTACK, PASSWORD = 'openstack', 'password'
# The maximum number of cached servers. Each server is cached for [api]metadata_cache_expiration seconds.
MOST_KNOWN = 500
TEXT, JSON = 'text/plain', 'application/json'


class Misconfigured(errors.Invalid):
    """Error at the start: an option of the metadata service is invalid or unsafe, so kilonova-api does not start."""

    msg_fmt = 'The metadata service is enabled ([DEFAULT]enabled_apis), but %(reason)s.'


class MetadataError(Exception):
    """An error response of the metadata service, with an HTTP status and a text."""

    def __init__(self, status: HTTPStatus, text: str = '') -> None:
        super().__init__(text)
        self.status, self.text = status, text or status.phrase


@dataclass
class Known:
    """A cached server. ``since`` is the time (monotonic clock) at which it was read.

    ``vendors`` is a dict from file name to the vendor data that was fetched for the server.
    """

    about: GuestFacts
    project_id: str
    cell: engine.Database
    since: float
    vendors: dict[str, bytes] = field(default_factory=dict)


class MetadataService:
    """The WSGI application of the metadata service.

    The constructor raises Misconfigured if [neutron]service_metadata_proxy is not set, or if the shared secret is
    empty. With an empty secret anybody could sign requests.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        *,
        databases: engine.Databases,
        cells: CellDatabases,
        vendor: Vendordata,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not conf.neutron.service_metadata_proxy:
            raise Misconfigured(
                reason='[neutron]service_metadata_proxy is not set: only requests of the proxy are supported'
            )
        if not conf.neutron.metadata_proxy_shared_secret:
            raise Misconfigured(reason='[neutron]metadata_proxy_shared_secret is empty: anybody could sign requests')
        self._secret = conf.neutron.metadata_proxy_shared_secret.encode()
        self._domain, self._keep = conf.api.dhcp_domain, conf.api.metadata_cache_expiration
        self._zone = conf.default_availability_zone
        self._databases, self._cells, self._vendor, self._clock = databases, cells, vendor, clock
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Serve a WSGI request."""
        request = webob.Request(environ)
        try:
            body, kind = self._answer(request)
            response = webob.Response(body=body, content_type=kind, charset='UTF-8')
        except MetadataError as refused:
            response = webob.Response(text=refused.text, status=int(refused.status), content_type=TEXT)
        except Exception as error:
            silent, uuid = is_silence(error), request.headers.get('X-Instance-ID')
            if silent:
                LOG.warning('Metadata request of server %s failed: %s', uuid, error, instance_uuid=uuid)
            else:
                LOG.exception('Metadata request of server %s failed', uuid, instance_uuid=uuid)
            response = webob.Response(
                text='An unknown error has occurred. Please try your request again.',
                status=503 if silent else 500,
                content_type=TEXT,
            )
        response.headers['Cache-Control'] = 'no-store'
        path = quote(environ.get('PATH_INFO', '').encode('latin-1', 'replace'))
        LOG.info(
            '%s "%s %s" status: %s len: %s',
            request.headers.get('X-Instance-ID', '-')[:64],
            request.method,
            path,
            response.status_int,
            response.content_length,
        )
        answer: Iterable[bytes] = response(environ, start_response)
        return answer

    def _answer(self, request: webob.Request) -> tuple[bytes, str]:
        path = [part for part in request.environ.get('PATH_INFO', '').split('/') if part]
        writes = request.method == 'POST' and len(path) == 3 and path[0] == OPENSTACK and path[2] == PASSWORD
        if request.method not in ('GET', 'HEAD') and not writes:
            raise MetadataError(HTTPStatus.METHOD_NOT_ALLOWED)
        # Return nothing, not even the list of versions, before the signature of the proxy is checked.
        known = self._server(request)
        if not path:
            return _lines([*EC2_VERSIONS, LATEST])
        if path[0] == OPENSTACK:
            return self._openstack(known, path[1:], request)
        return _ec2(known.about, path)

    # -- identification ----------------------------------------------------------------------------------------------
    def _server(self, request: webob.Request) -> Known:
        uuid, project = (_header(request, name) for name in ('X-Instance-ID', 'X-Tenant-ID'))
        expected = hmac.new(self._secret, uuid.encode('latin-1', 'replace'), hashlib.sha256).hexdigest()
        signature = request.headers.get('X-Instance-ID-Signature', '')
        if not hmac.compare_digest(expected.encode(), signature.encode('latin-1', 'replace')):
            LOG.warning(
                'X-Instance-ID-Signature does not match X-Instance-ID %r: the secret of the proxy differs from '
                '[neutron]metadata_proxy_shared_secret, or the request does not come from the proxy',
                uuid,
            )
            raise MetadataError(HTTPStatus.FORBIDDEN, 'Invalid proxy request signature.')
        known = self._remembered(uuid) or self._read(uuid)
        # The project is checked in addition to the signature, because the signature covers only the server's uuid.
        if known is None or known.project_id != project:
            raise MetadataError(HTTPStatus.NOT_FOUND)
        return known

    def _remembered(self, uuid: str) -> Known | None:
        with self._lock:
            known = self._known.get(uuid)
        return known if known is not None and self._clock() - known.since < self._keep else None

    def _read(self, uuid: str) -> Known | None:
        """Read a server from the databases and cache it.

        Return None if the server does not exist or is in no cell yet. Reads from two databases.
        """
        since = self._clock()
        if not uuidutils.is_uuid_like(uuid):
            return None
        with self._databases.api().read() as conn:
            place = servers.find(conn, uuid)
        if place is None or place['cell_id'] is None:
            return None
        cell = self._cells.by_id(place['cell_id'])
        with cell.read() as conn:
            row = instances.get(conn, uuid)
            if row is None:
                return None
            kept, pairs = instances.get_system_metadata(conn, uuid), metadata.get(conn, uuid)
        values, extra = instances.split(row)
        about = GuestFacts.of(
            Instance.from_row(get_admin_context(), values, extra, system_metadata=kept, metadata=pairs),
            self._domain,
            self._zone,
        )
        known = Known(about, row['project_id'], cell, since)
        with self._lock:
            self._known.pop(uuid, None)
            self._known[uuid] = known
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        return known

    # -- OpenStack's format ------------------------------------------------------------------------------------------
    def _openstack(self, known: Known, path: list[str], request: webob.Request) -> tuple[bytes, str]:
        if not path:
            return _lines([*VERSIONS, LATEST])
        version, *rest = path
        if version not in (*VERSIONS, LATEST) or len(rest) > 1:
            raise MetadataError(HTTPStatus.NOT_FOUND)
        names = guest_metadata.vendor_files(version)
        if not rest:
            own = guest_metadata.openstack(known.about, version)
            return _lines([*own, *([PASSWORD] if version >= VENDOR_DATA else []), *names])
        (name,) = rest
        if name == PASSWORD and version >= VENDOR_DATA:
            return self._password(known, request)
        if name in names:
            return self._of_vendors(known, name), JSON
        found = guest_metadata.openstack(known.about, version).get(name)
        if found is None:
            raise MetadataError(HTTPStatus.NOT_FOUND)
        return found, JSON if name.endswith('.json') else 'application/octet-stream'

    def _of_vendors(self, known: Known, name: str) -> bytes:
        if name not in known.vendors:
            asked = guest_metadata.question(known.about)
            found = self._vendor.static() if name == 'vendor_data.json' else self._vendor.all(asked)
            known.vendors[name] = json.dumps(found).encode()
        return known.vendors[name]

    def _password(self, known: Known, request: webob.Request) -> tuple[bytes, str]:
        """Return the server's encrypted password, or store the password that the guest sends with POST.

        The guest encrypts its password with the public key of the server's key pair, so only the owner can read it
        (``nova get-password``). A POST is refused (409) if a password is stored already. The owner can delete the
        stored password (``nova clear-password``), and then the guest can send a new one.
        """
        if request.method != 'POST':
            with known.cell.read() as conn:
                kept = instances.get_system_metadata(conn, known.about.uuid)
            return guest_password.joined(kept).encode(), TEXT
        if (request.content_length or 0) > guest_password.LIMIT:
            raise MetadataError(HTTPStatus.BAD_REQUEST, 'Request is too large.')
        try:
            text = request.body.decode('ascii')
        except UnicodeDecodeError:
            raise MetadataError(HTTPStatus.BAD_REQUEST, 'The password is not encoded in ASCII.') from None
        if len(text) > guest_password.LIMIT:
            raise MetadataError(HTTPStatus.BAD_REQUEST, 'Request is too large.')
        if not _set_password(known.cell, known.about.uuid, text):
            raise MetadataError(HTTPStatus.CONFLICT)
        return b'', TEXT


@engine.retried
def _set_password(cell: engine.Database, uuid: str, text: str) -> bool:
    """Store the guest's encrypted password. Return False if the server already has a password."""
    parts = guest_password.in_parts(text)
    with cell.write() as conn:
        # ``hold`` locks the server's row: a concurrent request waits until this transaction has ended.
        try:
            instances.hold(conn, uuid, list(VmState), 'set_password')
        except errors.InstanceNotFound:
            raise MetadataError(HTTPStatus.NOT_FOUND) from None
        kept = instances.get_system_metadata(conn, uuid)
        if guest_password.joined(kept):
            return engine.repeated() and all(kept.get(key) == part for key, part in parts.items())
        instances.set_system_metadata(conn, uuid, parts)
    return True


def _header(request: webob.Request, name: str) -> str:
    value = request.headers.get(name)
    if not value:
        raise MetadataError(HTTPStatus.BAD_REQUEST, f'{name} header is missing from request.')
    if ',' in value:
        raise MetadataError(HTTPStatus.BAD_REQUEST, f'Multiple {name} headers found within request.')
    return str(value)


# --- EC2's format
def _ec2(about: GuestFacts, path: list[str]) -> tuple[bytes, str]:
    version, *rest = path
    if version not in (*EC2_VERSIONS, LATEST):
        raise MetadataError(HTTPStatus.NOT_FOUND)
    if rest == ['user-data'] and about.user_data:
        return about.user_data, 'application/octet-stream'
    if not rest:
        return _lines(['meta-data/', *(['user-data'] if about.user_data else [])])
    found: EC2 | str | None = guest_metadata.ec2(about)
    if rest[0] != 'meta-data':
        raise MetadataError(HTTPStatus.NOT_FOUND)
    for part in rest[1:]:
        # The list of public keys (public-keys/) has entries such as '0=<name>'.
        # A guest requests the key by the number only, as public-keys/0/.
        found = (
            next((value for name, value in found.items() if name == part or name.startswith(f'{part}=')), None)
            if isinstance(found, dict)
            else None
        )
    if found is None:
        raise MetadataError(HTTPStatus.NOT_FOUND)
    if isinstance(found, str):
        return found.encode(), TEXT
    return _lines(
        [f'{name}/' if isinstance(value, dict) and '=' not in name else name for name, value in sorted(found.items())]
    )


def _lines(names: list[str]) -> tuple[bytes, str]:
    return '\n'.join(names).encode(), TEXT

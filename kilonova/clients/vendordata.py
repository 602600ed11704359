"""Vendordata of guests: the operator's JSON file for all guests, and the data that the operator's services return.

Example::

    vendor = Vendordata(conf)
    vendor.static()                     # vendor_data.json
    vendor.all(about)                   # vendor_data2.json: {'static': {…}, 'name of a service': {…}}
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import loading as ks_loading
from keystoneauth1.session import Session
from oslo_config import cfg
from oslo_log import log as logging

from kilonova import errors

LOG = logging.getLogger(__name__)

STATIC, DYNAMIC = 'StaticJSON', 'DynamicJSON'
AUTH = 'vendordata_dynamic_auth'
# The maximum number of bytes of the JSON file, and of the response of each service.
MOST = 256 << 10
_BLOCK = 16 << 10

Json: TypeAlias = 'dict[str, Any] | list[Any] | str | int | float | bool | None'


class VendordataFailed(errors.KilonovaError):
    """A service of [api]vendordata_dynamic_targets failed, and vendordata_dynamic_failure_fatal is set."""

    msg_fmt = 'Vendordata of %(name)s could not be fetched: %(reason)s'


class Vendordata:
    """The vendordata of a process. The options are [api]vendordata_* and [vendordata_dynamic_auth]."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf, self._options = conf, conf.api
        self._session: Session | None = None

    def static(self) -> Json:
        """Return the content of the JSON file, or {} if there is no file or it can't be used.

        The file is read at each call.
        """
        path = self._options.vendordata_jsonfile_path
        if STATIC not in self._options.vendordata_providers or not path:
            return {}
        try:
            with open(path, 'rb') as stream:
                text = stream.read(MOST + 1)
            if len(text) > MOST:
                raise ValueError(f'the file has more than {MOST} bytes')
            found: Json = json.loads(text)
            return found
        except (OSError, ValueError) as error:
            LOG.error(
                '[api]vendordata_jsonfile_path %s cannot be used; guests get no static vendordata: %s', path, error
            )
            return {}

    def all(self, about: Mapping[str, Any]) -> dict[str, Json]:
        """Return the vendordata of a server as a dict.

        The value of the key 'static' is the content of the operator's JSON file. Each other key is the name of a
        service, and its value is the service's reply. ``about`` describes the server and is sent to the services.
        Raises VendordataFailed if a service fails and vendordata_dynamic_failure_fatal is set.
        """
        found: dict[str, Json] = {}
        if STATIC in self._options.vendordata_providers:
            found['static'] = self.static()
        if DYNAMIC in self._options.vendordata_providers:
            for name, url in self._targets():
                if name in found:
                    LOG.error('Vendordata: the name %s is configured twice; ignoring the second one', name)
                else:
                    found[name] = self._ask(name, url, about)
        return found

    def _targets(self) -> Iterator[tuple[str, str]]:
        for target in self._options.vendordata_dynamic_targets:
            name, at, url = target.partition('@')
            if at and name and url.startswith(('http://', 'https://')):
                yield name, url
            else:
                LOG.error('[api]vendordata_dynamic_targets: %s does not have the form NAME@URL; ignoring it', name)

    def _ask(self, name: str, url: str, about: Mapping[str, Any]) -> Json:
        try:
            return self._fetched(url, about)
        except (ks_exceptions.ClientException, requests.RequestException, ValueError) as error:
            if self._options.vendordata_dynamic_failure_fatal:
                raise VendordataFailed(name=name, reason=f'{type(error).__name__}: {error}') from error
            LOG.warning('Vendordata of %s could not be fetched; the guest gets no data from it: %s', name, error)
            return {}

    def _fetched(self, url: str, about: Mapping[str, Any]) -> Json:
        session = self._connected()
        times = (
            self._options.vendordata_dynamic_connect_timeout,
            max(self._options.vendordata_dynamic_read_timeout, 1),
        )
        # The request contains a user's data and the response may contain secrets, so neither is logged.
        answer = session.request(
            url,
            'POST',
            json=dict(about),
            timeout=times,
            stream=True,
            log=False,
            redirect=False,
            authenticated=session.auth is not None,
            raise_exc=False,
            headers={'Accept': 'application/json'},
        )
        with answer:
            if answer.status_code not in (200, 201):
                raise ValueError(f'the service answered with HTTP status {answer.status_code}')
            # Limit the total time. The timeout applies to each single read, so it does not stop a very slow response.
            end, text = time.monotonic() + sum(times), b''
            for block in answer.iter_content(_BLOCK):
                text += block
                if len(text) > MOST:
                    raise ValueError(f'the response of the service has more than {MOST} bytes')
                if time.monotonic() > end:
                    raise ValueError('the service did not send its whole response in time')
        found: Json = json.loads(text)
        return found

    def _connected(self) -> Session:
        if self._session is None:
            session = ks_loading.load_session_from_conf_options(self._conf, AUTH)
            session.auth = ks_loading.load_auth_from_conf_options(self._conf, AUTH)
            if self._options.vendordata_dynamic_ssl_certfile:
                session.verify = self._options.vendordata_dynamic_ssl_certfile
            self._session = session
        return self._session

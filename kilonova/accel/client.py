"""The client of Cyborg. It reads device profiles, and creates, binds, reads and deletes accelerator requests.

    client = AcceleratorClient(adapter)                       # adapter: session.adapter(conf, 'cyborg', …)
    profile = client.profile('fpga', ctxt)                    # with the user's token
    made = client.create('fpga')                              # with Kilonova's own token, like all following calls
    client.bind({made[0].uuid: provider}, instance_uuid=uuid, hostname='gpu1', project_id=project)
    client.resolved(uuid)                                     # None while a device is being programmed
    client.delete_of_instance(uuid)                           # may be repeated

Most calls to Cyborg use the token of Kilonova's own account, because a user's token may expire before an operation
ends. The client also sends a service token of this account, which shows Cyborg that the caller is a service. Routes:
https://docs.openstack.org/api-ref/accelerator/.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1.adapter import Adapter

from kilonova import errors
from kilonova.accel import profile as device_profile
from kilonova.accel.request import INITIAL, AcceleratorRequest
from kilonova.clients.query import listed
from kilonova.clients.session import RestClient
from kilonova.context import RequestContext

WHO = 'The accelerator service'
# The first microversion of Cyborg in which the PATCH that binds requests accepts the server's project_id.
MICROVERSION = '2.1'
_REQUESTS = '/accelerator_requests'


class NoAccelerators(errors.Invalid):
    """Raised if a request needs an accelerator, but the cloud has no accelerator service (Cyborg)."""

    msg_fmt = 'There is no accelerator service: the service catalog has no endpoint that matches the [cyborg] options.'


class AcceleratorRequestOpFailed(errors.Invalid):
    """Raised if Cyborg did not create, return or delete accelerator requests."""

    msg_fmt = 'Failed to %(op)s accelerator requests: %(msg)s'


class AcceleratorRequestBindingFailed(errors.Invalid):
    """Raised if Cyborg did not bind accelerator requests to a server."""

    msg_fmt = 'Failed to bind accelerator requests for instance %(instance_uuid)s: %(msg)s'


class AcceleratorClient(RestClient):
    """The client of Cyborg. A process has one, and threads may share it. Each call may raise Unanswered."""

    def __init__(self, adapter: Adapter) -> None:
        super().__init__(adapter, WHO)

    def profile(self, name: str, ctxt: RequestContext | None = None) -> device_profile.Profile:
        """Return the device profile with this name.

        If ``ctxt`` is given, the request has the token of its user, otherwise the token of Kilonova's own account.
        Raises DeviceProfileError if the profile does not exist or can't be used, and NoAccelerators if the cloud has no
        accelerator service.
        """
        return self.profiles([name], ctxt)[name]

    def profiles(self, names: Iterable[str], ctxt: RequestContext | None = None) -> dict[str, device_profile.Profile]:
        """Return a dict from name to device profile.

        Sends one request, or more if the names are too long for one URL. Raises DeviceProfileError for the first
        profile that does not exist or can't be used, and NoAccelerators if the cloud has no accelerator service.
        """
        wanted = list(dict.fromkeys(names))
        for name in wanted:
            device_profile.check_name(name)
        if not wanted:
            return {}
        self._check_there()
        found: list[Any] = []
        for asked in listed('name', wanted):
            response = self._send('GET', f'/device_profiles?{asked}', ctxt=ctxt)
            if response.status_code != 200:
                raise device_profile.DeviceProfileError(name=', '.join(wanted), msg=_reason(response))
            found += response.json()['device_profiles']
        return {name: device_profile.only(name, [one for one in found if one.get('name') == name]) for name in wanted}

    def create(self, profile: str) -> list[AcceleratorRequest]:
        """Create one request for each accelerator of a device profile, and return the requests.

        Raises AcceleratorRequestOpFailed if Cyborg refuses.
        """
        response = self._send('POST', _REQUESTS, json={'device_profile_name': profile})
        if response.status_code != 201:
            raise AcceleratorRequestOpFailed(op=f'create (device profile {profile})', msg=_reason(response))
        return _requests(response)

    def bind(self, providers: Mapping[str, str], *, instance_uuid: str, hostname: str, project_id: str) -> None:
        """Bind existing requests to a server on a node.

        ``providers`` is a dict from request uuid to the uuid of the resource provider of its device. ``hostname`` is
        the name of the node. This call returns before Cyborg has bound the requests. Later, the states of the requests
        show whether the binding succeeded. Raises AcceleratorRequestBindingFailed if Cyborg refuses the call.
        """
        fields = {'hostname': hostname, 'instance_uuid': instance_uuid, 'project_id': project_id}
        response = self._send(
            'PATCH',
            _REQUESTS,
            json={
                uuid: [
                    {'op': 'add', 'path': f'/{name}', 'value': value}
                    for name, value in {**fields, 'device_rp_uuid': provider}.items()
                ]
                for uuid, provider in providers.items()
            },
        )
        if response.status_code != 202:
            raise AcceleratorRequestBindingFailed(instance_uuid=instance_uuid, msg=_reason(response))

    def of_instance(self, instance_uuid: str) -> list[AcceleratorRequest]:
        """Return a server's accelerator requests. Their bindings may be pending, complete or failed.

        Raises AcceleratorRequestOpFailed if Cyborg refuses.
        """
        response = self._send('GET', f'{_REQUESTS}?{urlencode({"instance": instance_uuid})}')
        if response.status_code != 200:
            raise AcceleratorRequestOpFailed(op='get', msg=_reason(response))
        return _requests(response)

    def every(self) -> list[AcceleratorRequest]:
        """Return all accelerator requests of the cloud.

        Raises NoAccelerators if the cloud has no accelerator service, and AcceleratorRequestOpFailed if Cyborg refuses.
        """
        self._check_there()
        response = self._send('GET', _REQUESTS)
        if response.status_code != 200:
            raise AcceleratorRequestOpFailed(op='get', msg=_reason(response))
        return _requests(response)

    def abandoned(self, age: datetime.timedelta) -> list[AcceleratorRequest]:
        """Return the requests that Kilonova's own account created longer than ``age`` ago and that were never bound.

        Raises NoAccelerators if the cloud has no accelerator service, and AcceleratorRequestOpFailed if Cyborg refuses.
        """
        ours, before = self._adapter.get_project_id(), datetime.datetime.now(datetime.UTC) - age
        return [
            one
            for one in self.every()
            if one.state == INITIAL
            and one.instance_uuid is None
            and one.project_id == ours is not None
            and one.created_at is not None
            and one.created_at < before
        ]

    def resolved(self, instance_uuid: str) -> list[AcceleratorRequest] | None:
        """Return the requests of a server, or None while the binding of at least one request is still pending.

        Raises AcceleratorRequestOpFailed if Cyborg refuses.
        """
        query = urlencode({'instance': instance_uuid, 'bind_state': 'resolved'})
        response = self._send('GET', f'{_REQUESTS}?{query}')
        if response.status_code == requests.codes.locked:
            return None
        if response.status_code != 200:
            raise AcceleratorRequestOpFailed(op='get', msg=_reason(response))
        return _requests(response)

    def delete(self, uuids: Iterable[str]) -> None:
        """Delete accelerator requests by uuid. Requests that are deleted already are ignored.

        Raises AcceleratorRequestOpFailed if Cyborg refuses.
        """
        for uuid in uuids:
            response = self._send('DELETE', f'{_REQUESTS}?{urlencode({"arqs": uuid})}')
            if response.status_code not in (204, 404):
                raise AcceleratorRequestOpFailed(op='delete', msg=_reason(response))

    def delete_of_instance(self, instance_uuid: str) -> None:
        """Delete the requests that were bound to a server, which frees its accelerators. The server may have none.

        Raises AcceleratorRequestOpFailed if Cyborg refuses.
        """
        response = self._send('DELETE', f'{_REQUESTS}?{urlencode({"instance": instance_uuid})}')
        if response.status_code != 204:
            raise AcceleratorRequestOpFailed(op='delete', msg=_reason(response))

    def _check_there(self) -> None:
        try:
            if self._adapter.get_endpoint():
                return
        except (ks_exceptions.MissingAuthPlugin, ks_exceptions.EndpointNotFound):
            # NoAccelerators is raised below: [cyborg] has no credentials, or the service catalog has no Cyborg.
            pass
        except ks_exceptions.ClientException as error:
            raise errors.Unanswered(who=WHO, reason=str(error) or type(error).__name__) from error
        raise NoAccelerators

    def _send(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        headers = {'OpenStack-API-Version': f'accelerator {MICROVERSION}'}
        return super()._send(method, path, headers=headers, **kwargs)


def _requests(response: requests.Response) -> list[AcceleratorRequest]:
    return [AcceleratorRequest.from_body(body) for body in response.json()['arqs']]


def _reason(response: requests.Response) -> str:
    """Return Cyborg's error text in one line, without the traceback that Cyborg's conductor adds to it."""
    text: Any = response.text
    # Decode twice, because the field ``faultstring`` of Cyborg's error body may itself contain a JSON text.
    for _ in range(2):
        try:
            body = json.loads(text)
            text = body.get('error_message') or body.get('faultstring') or text
        except (ValueError, AttributeError, TypeError):
            break
    first = str(text).strip().partition('\n')[0]
    return errors.shortened(first, 300) or f'{response.status_code} {response.reason}'

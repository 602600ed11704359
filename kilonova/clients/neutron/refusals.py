"""The errors for Neutron's error responses, and functions that read responses.

``body_of`` returns the body of a response, or raises the error that corresponds to it.
"""

from __future__ import annotations

from typing import Any

import requests

from kilonova import errors
from kilonova.context import RequestContext

WHO = 'The network service'


class NetworkNotFound(errors.NotFound):
    """No such network exists, or the user can't see it."""

    msg_fmt = 'Network %(network_id)s could not be found.'


class PortNotFound(errors.NotFound):
    """No such port exists, or the user can't see it."""

    msg_fmt = 'Port id %(port_id)s could not be found.'


class SecurityGroupNotFound(errors.NotFound):
    """No such security group exists, or the user can't see it."""

    msg_fmt = "Unable to find security_group with name or id '%(name)s'"


class SecurityGroupRuleNotFound(errors.NotFound):
    """No such security group rule exists, or the user can't see it."""

    msg_fmt = 'Security group rule %(name)s could not be found.'


class FloatingIpNotFound(errors.NotFound):
    """No such floating IP exists, or the user can't see it."""

    msg_fmt = 'Floating IP not found for %(name)s.'


class SecurityGroupNotUnique(errors.Conflict):
    """Several security groups of the project have the requested name."""

    msg_fmt = "Multiple security_group matches found for name '%(name)s', use an ID to be more specific."


class SecurityGroupNotApplicable(errors.Invalid):
    """The port or its network can't have security groups."""

    msg_fmt = 'Network requires port_security_enabled and subnet associated in order to apply security groups.'


class PortInUse(errors.Conflict):
    """The port is already used by a server or another device."""

    msg_fmt = 'Port %(port_id)s is still in use.'


class PortChanged(errors.Conflict):
    """The port was changed since it was read."""

    msg_fmt = 'Port %(port_id)s was changed since it was read.'


class PortBindingRefused(errors.Conflict):
    """No agent of the host can bind the port."""

    msg_fmt = 'Binding failed for port %(port_id)s: no network agent on the host can bind it.'


class FixedIpInUse(errors.Invalid):
    """Another port has the requested fixed IP address."""

    msg_fmt = 'Fixed IP address %(address)s is already in use.'


class FixedIpNotOfNetwork(errors.Invalid):
    """The requested fixed IP address is not in the network."""

    msg_fmt = 'Invalid input received: Fixed IP %(address)s is not a valid ip address for network %(network_id)s.'


class NoMoreFixedIps(errors.Conflict):
    """The network has no free address."""

    msg_fmt = 'No fixed IP addresses available for network: %(network_id)s'


class PortQuotaFull(errors.Forbidden):
    """The project's quota of ports is used up."""

    msg_fmt = 'Maximum number of ports exceeded'


class NetworkQuotaFull(errors.Forbidden):
    """A quota other than the quota of ports is used up. The error has Neutron's text, which names the quota."""

    msg_fmt = '%(detail)s'


class NetworkInvalid(errors.Invalid):
    """Neutron does not understand the request, or an object that the request names does not exist."""

    msg_fmt = 'The network service refuses the request: %(detail)s'


class NetworkConflict(errors.Conflict):
    """Neutron refuses the request because of the current state of an object."""

    msg_fmt = 'The network service refuses the request: %(detail)s'


class NetworkForbidden(errors.Forbidden):
    """Neutron's policy does not allow this user's request."""

    msg_fmt = 'The network service refuses the request: %(detail)s'


class NetworkAccountRefused(errors.Unavailable):
    """The account of [neutron] lacks a role. The account needs the roles admin and service."""

    msg_fmt = 'The network service refuses the account that is configured in [neutron]: %(detail)s'


# A dict from the type of a NeutronError (an error response of Neutron) to the error class to raise.
_LEAVES: dict[str, type[errors.KilonovaError]] = {
    'ExternalIpAddressExhausted': NoMoreFixedIps,
    'InvalidIpForNetwork': FixedIpNotOfNetwork,
    'InvalidIpForSubnet': FixedIpNotOfNetwork,
    'IpAddressAlreadyAllocated': FixedIpInUse,
    'IpAddressGenerationFailure': NoMoreFixedIps,
    'IpAddressInUse': FixedIpInUse,
    'NetworkNotFound': NetworkNotFound,
    'OverQuota': PortQuotaFull,
    'PortBindingError': PortBindingRefused,
    'PortInUse': PortInUse,
    'PortNotFound': PortNotFound,
    'PortSecurityAndIPRequiredForSecurityGroups': SecurityGroupNotApplicable,
    'SecurityGroupNotFound': SecurityGroupNotFound,
}


def body_of(response: requests.Response, ctxt: RequestContext | None, **fields: str) -> Any:
    """Return the body of a response, or raise the error that the response means.

    ``fields`` are values for the error's text, such as ``port_id``.
    """
    if response.status_code < 400:
        return response.json()
    kind, detail = kind_and_text(response)
    if response.status_code == 412:
        raise PortChanged(port_id=fields.get('port_id', ''))
    if kind == 'OverQuota' and "'port'" not in detail:
        raise NetworkQuotaFull(detail=detail)
    if kind in _LEAVES:
        raise _LEAVES[kind](**{'port_id': '', 'network_id': '', 'address': '', 'name': detail, **fields})
    if response.status_code >= 500:
        raise errors.Unanswered(who=WHO, reason=detail)
    if response.status_code == 403:
        raise (
            NetworkForbidden(detail=detail)
            if getattr(ctxt, 'auth_token', None)
            else NetworkAccountRefused(detail=detail)
        )
    raise (NetworkConflict if response.status_code == 409 else NetworkInvalid)(detail=detail)


def kind_and_text(response: requests.Response) -> tuple[str, str]:
    """Return the type and the text of an error response of Neutron. The text is converted to one line.

    The type is '' if Neutron did not send the response. For example, it may be an error page of a proxy.
    """
    try:
        body = response.json()['NeutronError']
        kind, text = str(body['type']), str(body['message'])
    except (ValueError, LookupError, TypeError):
        kind, text = '', response.text
    return kind, errors.shortened(' '.join(text.split()), 300) or f'{response.status_code} {response.reason}'

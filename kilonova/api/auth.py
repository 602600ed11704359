"""Who asks: a request context from keystonemiddleware's headers, or from a token that is believed (noauth2).

Both put it into ``environ['kilonova.context']`` for the dispatcher.
"""
from __future__ import annotations

import json
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from keystonemiddleware import auth_token
from oslo_config import cfg
from oslo_middleware import request_id

from kilonova.api import faults
from kilonova.api.policies import Policy
from kilonova.context import RequestContext

ENVIRON_KEY = 'kilonova.context'
# Seconds that Keystone may take to validate a token, and how often it is asked again, unless the file says otherwise.
# keystonemiddleware itself waits for ever: a Keystone that hangs would hold all requests.
KEYSTONE_DEFAULTS = {'http_connect_timeout': 10, 'http_request_max_retries': 1}
_UNAUTHORIZED = 'The request you have made requires authentication.'


class KeystoneContext:
    """Behind keystonemiddleware: the identity that it found."""

    def __init__(self, application: WSGIApplication, policy: Policy) -> None:
        self._application, self._policy = application, policy

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        if not environ.get('HTTP_X_USER_ID'):
            return faults.fault(401, _UNAUTHORIZED)(environ, start_response)
        try:
            catalog = json.loads(environ.get('HTTP_X_SERVICE_CATALOG') or '[]')
        except ValueError:
            return faults.fault(500, 'Invalid service catalog json.')(environ, start_response)
        ctxt = RequestContext.from_environ(environ, remote_address=environ.get('REMOTE_ADDR'),
                                           service_catalog=catalog)
        # policy.yaml may say otherwise than the role's name.
        ctxt.is_admin = self._policy.allows(ctxt, 'context_is_admin')
        environ[ENVIRON_KEY] = ctxt
        return self._application(environ, start_response)


class BelievedContext:
    """noauth2: the token ``user:project`` is the identity; the user ``admin`` is an administrator."""

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        token = environ.get('HTTP_X_AUTH_TOKEN')
        if not token:
            return faults.fault(401, _UNAUTHORIZED)(environ, start_response)
        user, _, project = token.partition(':')
        roles = ['member', 'reader']
        if user == 'admin':
            roles = ['admin', 'manager', *roles]
        environ[ENVIRON_KEY] = RequestContext(
            user_id=user, project_id=project or user, user_name=user, project_name=project or user, roles=roles,
            is_admin=user == 'admin', auth_token=token, remote_address=environ.get('REMOTE_ADDR'),
            request_id=environ.get(request_id.ENV_REQUEST_ID), global_request_id=environ.get(request_id.GLOBAL_REQ_ID))
        return self._application(environ, start_response)


def authenticated(application: WSGIApplication, conf: cfg.ConfigOpts, policy: Policy) -> WSGIApplication:
    """The application behind what ``[api]auth_strategy`` says."""
    if conf.api.auth_strategy == 'noauth2':
        return BelievedContext(application)
    for group, options in auth_token.list_opts():
        conf.register_opts(options, group=group)
    for name, value in KEYSTONE_DEFAULTS.items():
        conf.set_default(name, value, group='keystone_authtoken')
    found: WSGIApplication = auth_token.AuthProtocol(KeystoneContext(application, policy), {'oslo_config_config': conf})
    return found

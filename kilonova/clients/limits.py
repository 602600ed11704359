"""Unified limits of projects, which are stored in Keystone and read through oslo.limit.

    client = LimitsClient(conf)                        # section [oslo_limit]
    registered, own = client.limits(project_id)        # {'servers': 10, 'class:VCPU': 20, …}, {'class:VGPU': 4}

Each call sends two requests to Keystone. Nothing is cached, so a changed limit applies from the next request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from keystoneauth1 import exceptions as ks_exceptions
from openstack import exceptions as sdk_exceptions
from oslo_config import cfg
from oslo_limit import exception as limit_exceptions
from oslo_limit import limit as oslo_limit
from oslo_log import log as logging

from kilonova import errors
from kilonova.clients import session

LOG = logging.getLogger(__name__)

_SILENCE = (ks_exceptions.ClientException, sdk_exceptions.SDKException, limit_exceptions.SessionInitError)


class LimitsClient:
    """The client of unified limits. A process has one, because oslo.limit keeps one connection.

    The first request to Keystone is sent when limits are first read.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        # Set the configuration of oslo.limit for the whole process.
        # The functions of oslo.limit read the module variable CONF, and have no parameter for a configuration.
        oslo_limit.CONF = conf
        self._enforcer: Any = None

    def limits(self, project_id: str | None) -> tuple[dict[str, int], dict[str, int]]:
        """Return two dicts from resource to limit.

        The first dict has the registered limits, which apply to all projects. The second dict has the limits that were
        set for this project only. A limit of -1 means no limit.

        Raises Unanswered if Keystone does not answer, refuses this service's account, or does not know the endpoint of
        [oslo_limit].
        """
        try:
            enforcer = self._made()
            registered = dict(enforcer.get_registered_limits(None))
            own = dict(enforcer.get_project_limits(project_id, None)) if project_id else {}
        except _SILENCE as error:
            raise errors.Unanswered(who='Keystone', reason=str(error)) from error
        except (ValueError, cfg.Error) as error:
            # These errors mean that [oslo_limit] is wrong. Only operators can correct this, so log the error.
            LOG.error('Unified limits cannot be read: %s', error)
            raise errors.Unanswered(who='Keystone', reason=f'[oslo_limit]: {error}') from error
        return registered, own

    def _made(self) -> Any:
        if self._enforcer is None:
            # No lock is used here, because the constructor sends a request to Keystone and may take long.
            # Several threads may create enforcers at the same time. Each uses its own, and the last one is stored.
            enforcer = oslo_limit.Enforcer(_no_usage, cache=False)
            session.bound(enforcer.connection.session)
            self._enforcer = enforcer
        return self._enforcer


def _no_usage(project_id: str | None, names: Iterable[str]) -> dict[str, int]:
    """Return an empty dict. oslo.limit requires a function that returns the usage, but Kilonova only reads limits."""
    return {}

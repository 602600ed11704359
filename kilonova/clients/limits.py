"""Unified limits: what Keystone says projects may have, through oslo.limit.

    client = LimitsClient(conf)                        # section [oslo_limit]
    registered, own = client.limits(project_id)        # {'servers': 10, 'class:VCPU': 20, …}, {'class:VGPU': 4}

Two requests to Keystone a call; nothing is kept, so a changed limit holds from the next request on.
"""
from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from keystoneauth1 import exceptions as ks_exceptions
from openstack import exceptions as sdk_exceptions
from oslo_config import cfg
from oslo_limit import exception as limit_exceptions
from oslo_limit import limit as oslo_limit

from kilonova import errors
from kilonova.clients import session

LOG = logging.getLogger(__name__)

_SILENCE = (ks_exceptions.ClientException, sdk_exceptions.SDKException, limit_exceptions.SessionInitError)


class LimitsClient:
    """One a process, as oslo.limit keeps one connection. Keystone is first asked when limits are."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        # The library reads a configuration of its own module and has no argument for another.
        oslo_limit.CONF = conf
        self._enforcer: Any = None

    def limits(self, project_id: str | None) -> tuple[dict[str, int], dict[str, int]]:
        """Registered limits, which are everybody's, and those of the project alone; -1 is no limit.

        Unanswered: Keystone doesn't answer, doesn't know us, or doesn't know the endpoint of [oslo_limit].
        """
        try:
            enforcer = self._made()
            registered = dict(enforcer.get_registered_limits(None))
            own = dict(enforcer.get_project_limits(project_id, None)) if project_id else {}
        except _SILENCE as error:
            raise errors.Unanswered(who='Keystone', reason=str(error)) from error
        except (ValueError, cfg.Error) as error:
            # What the library says of a section that is wrong; users can't mend it.
            LOG.error('Unified limits cannot be read: %s', error)
            raise errors.Unanswered(who='Keystone', reason=f'[oslo_limit]: {error}') from error
        return registered, own

    def _made(self) -> Any:
        if self._enforcer is None:
            # It asks Keystone. Without a lock: behind one that hangs everybody would wait for all before him. Of those
            # that are made at once one is kept.
            enforcer = oslo_limit.Enforcer(_no_usage, cache=False)
            session.bound(enforcer.connection.session)
            self._enforcer = enforcer
        return self._enforcer


def _no_usage(project_id: str | None, names: Iterable[str]) -> dict[str, int]:
    """Usage is counted by whoever asks for limits."""
    return {}

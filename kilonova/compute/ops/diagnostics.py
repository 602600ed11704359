"""What the hypervisor measures of a guest that runs. Nothing is changed, so nobody is waited for."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kilonova import errors, objects
from kilonova.compute.dispatch import answer
from kilonova.compute.host import Host
from kilonova.rpc.compute import Compute
from kilonova.states import POWER_WORDS, PowerState


@answer(Compute.get_diagnostics)
def flat(host: Host, ctxt: Any, instance: objects.Instance) -> dict[str, Any]:
    """The driver's own names. InstanceInvalidState (409) for a guest that doesn't run."""
    return _of_running(host, instance, host.driver.get_diagnostics)


@answer(Compute.get_instance_diagnostics)
def standard(host: Host, ctxt: Any, instance: objects.Instance) -> objects.Diagnostics:
    """The same keys of every driver. InstanceInvalidState (409) for a guest that doesn't run."""
    return _of_running(host, instance, host.driver.get_instance_diagnostics)


def _of_running(host: Host, instance: objects.Instance, read: Callable[[objects.Instance], Any]) -> Any:
    _check(host, instance)
    try:
        return read(instance)
    except errors.KilonovaError:
        # It may have gone meanwhile: that is no failure.
        _check(host, instance)
        raise


def _check(host: Host, instance: objects.Instance) -> None:
    state = host.driver.get_info(instance)
    if state != PowerState.RUNNING:
        raise errors.InstanceInvalidState(method='get_diagnostics', instance_uuid=instance.uuid, attr='power_state',
                                          state=POWER_WORDS[PowerState(state)])

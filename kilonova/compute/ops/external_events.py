"""Events that the network, volume and accelerator services tell of servers here.

No step of ours waits for one yet: a server has no ports, volumes or accelerators of those services.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oslo_log import log as logging

from kilonova import objects
from kilonova.compute.dispatch import answer
from kilonova.compute.host import Host
from kilonova.rpc.compute import Compute

LOG = logging.getLogger(__name__)


@answer(Compute.external_instance_event)
def handle(host: Host, ctxt: Any, instances: Iterable[objects.Instance],
           events: Iterable[objects.InstanceExternalEvent]) -> None:
    """Say that they came."""
    known = {instance.uuid: instance for instance in instances}
    for event in events:
        instance = known.get(event.instance_uuid)
        if instance is not None:
            LOG.warning('Received unexpected event %s (%s) for instance with vm_state %s and task_state %s: nobody '
                        'waits for it', event.key, event.status, instance.vm_state, instance.task_state,
                        instance_uuid=instance.uuid)

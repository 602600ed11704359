"""What a host writes upward: one transaction to take a place, one to tell what a step came to.

``take`` and ``tell`` keep ledger and database in step: the ledger plans, the conductor writes, the ledger commits. Both
send versioned objects (``objects.claim``).
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute.events import readable, trace_of
from kilonova.compute.host import Host
from kilonova.compute.keys import Work
from kilonova.compute.tracker import RUN, Plan, Usage
from kilonova.compute.upcalls import Stopping

LOG = logging.getLogger(__name__)


def take(host: Host, work: Work, ctxt: Any, instance_uuid: str, side: str, flavor: objects.Flavor,
         requests: objects.InstancePCIRequests | None, wanted: objects.InstanceNUMATopology | None = None,
         **fields: Any) -> list[objects.PciDevice]:
    """Claim CPU, memory, disk and devices for a server; the devices it got.

    ``wanted``: the NUMA cells that it asks for; where it got them ``tracker.topology(instance_uuid, side)`` tells.
    ``fields``: transition, expect, values, extra, migration, group; a callable ``extra`` gets the devices.
    HostRejected: an alternate may take it. KeyGone, Conflict: the operation or the server moved on. Nothing stays
    claimed then.
    """
    usage = Usage.of(flavor)
    LOG.info('Attempting claim: memory %d MB, disk %d GB, vcpus %d CPU', usage.memory_mb, usage.local_gb, usage.vcpus,
             instance_uuid=instance_uuid)
    try:
        devices = _take(host, work, ctxt, instance_uuid, side, flavor, requests, wanted, fields)
    except errors.KilonovaError as error:
        LOG.info('Failed to claim: %s', error, instance_uuid=instance_uuid)
        raise
    LOG.info('Claim successful on node %s', host.tracker.nodename, instance_uuid=instance_uuid)
    return devices


def group_of(host: Host, request_spec: objects.RequestSpec | None) -> dict[str, str] | None:
    """What a claim says of the server's group, so that its policy is looked at once more when the claim is written."""
    group = (request_spec.instance_group if request_spec is not None and 'instance_group' in request_spec else None)
    if group is None or 'uuid' not in group or host.conf.workarounds.disable_group_policy_check_upcall:
        return None
    return {'uuid': group.uuid, 'host': host.name}


def _take(host: Host, work: Work, ctxt: Any, instance_uuid: str, side: str, flavor: objects.Flavor,
          requests: objects.InstancePCIRequests | None, wanted: objects.InstanceNUMATopology | None,
          fields: dict[str, Any]) -> list[objects.PciDevice]:
    tracker = host.tracker
    extra, limits = fields.pop('extra', None), fields.pop('limits', None)
    with tracker.writing(ctxt):
        plan = tracker.plan(instance_uuid, side, flavor, requests, wanted, limits)
        usage = tracker.usage(plan)
        try:
            host.upcalls.claim(ctxt, objects.Claim(
                key=work.key, request_id=ctxt.request_id, instance_uuid=instance_uuid,
                extra=_extra(extra, plan, side), devices=plan.changes, usage=tracker.numbered(usage), host=host.name,
                **fields))
        except errors.ClaimConflict as error:
            # Somebody else wrote rows of this node: what we know of them is no longer true.
            tracker.abort(plan)
            tracker.distrust()
            raise errors.HostRejected(reason='Claim pci failed') from error
        except Stopping:
            raise
        except Exception as error:
            tracker.abort(plan)
            if isinstance(error, errors.KeyGone):
                # Perhaps an asking before this one was written, and only its answer was lost.
                tracker.distrust()
            raise
        tracker.commit(plan)
        tracker.published = usage
    return plan.devices


def _extra(extra: Any, plan: Plan, side: str) -> dict[str, str | None] | None:
    """A claim's columns of instance_extra: a server at home keeps its place there, one that arrives in its context."""
    made = extra(plan.devices) if callable(extra) else extra
    if side == RUN and plan.topology is not None:
        made = {**(made or {}), 'numa_topology': plan.topology.to_json()}
    return made


def tell(host: Host, work: Work, ctxt: Any, instance_uuid: str, plan: Plan | None = None, **fields: Any) -> None:
    """Save what a step came to. With a ``plan`` the caller holds ``tracker.writing()``.

    ``fields``: transition, expect, values, extra, migration, system_metadata, event, fault, message, end, undo, undone,
    usage.
    Raises KeyGone, ClaimConflict, Conflict: nothing was written then, and the plan is off.
    """
    tracker = host.tracker
    save = objects.Save(key=work.key, request_id=ctxt.request_id, instance_uuid=instance_uuid, **fields)
    if plan is not None:
        save.devices = plan.changes
        if plan.dropped or plan.freed:
            fields['usage'] = tracker.usage(plan)
    usage = fields.get('usage')
    if usage is not None:
        save.usage = tracker.numbered(usage)
    try:
        if plan is not None and tracker.leaving is not None:
            tracker.leaving(plan.freed)
        host.upcalls.save(ctxt, save)
    except Stopping:
        raise
    except Exception as error:
        if plan is not None:
            tracker.abort(plan)
            if isinstance(error, errors.ClaimConflict):
                tracker.distrust()
        raise
    if plan is not None:
        tracker.commit(plan)
    tracker.published = usage or tracker.published


def give_back(host: Host, work: Work, ctxt: Any, instance_uuid: str, leaving: Callable[[str], bool] = lambda side: True,
              *, unsided: bool = True, **fields: Any) -> None:
    """Free what a server holds here (see ``Tracker.plan_free``) and save that, with whatever else ``fields`` say."""
    tracker = host.tracker
    with tracker.writing(ctxt):
        plan = tracker.plan_free(instance_uuid, leaving, unsided=unsided)
        tell(host, work, ctxt, instance_uuid, plan, **fields)


def why(error: BaseException | None) -> str:
    """Why a host took back what it did under a key, for whoever asks for it again."""
    return readable(error) if error is not None else 'it was undone here'


def fault(host: Host, error: BaseException) -> dict[str, Any]:
    """A fault row's columns; users read the message, administrators the details."""
    return {'code': getattr(error, 'code', 500), 'message': readable(error), 'details': trace_of(error),
            'host': host.name}

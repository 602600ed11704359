"""Ports that a server has no more: made ones are deleted, those of its user are unbound.

A network service that is silent holds no unwinding and no delete up: what is left becomes a pending release.
"""
from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from kilonova.conductor.flows import beside, guarantees
from kilonova.conductor.work import Work
from kilonova.objects.port_resources import PortResources
from kilonova.objects.vif import Vif


def drop(work: Work[Any], own: Sequence[str], keep: Collection[str] = ()) -> None:
    """The server has no ports any more but those to ``keep``, which its info cache has; ``own``: ids of those that are
    their user's. Later, while the network service is silent or refuses."""
    beside.now_or_later(work, 'Ports', lambda: beside.give_back_ports(work, own, keep), lambda: release(work, own))


def drop_one(work: Work[Any], vif: Vif) -> None:
    """The server has this port no more: it is deleted, or unbound where its user made it. May be repeated; later, as
    above, when the info cache lacks it."""
    client = work.env.networks

    def give_back() -> None:
        for port in client.ports(ids=[vif.id]):
            if port.device_id == work.instance_uuid:
                if vif.preserve_on_delete:
                    client.unbind(port)
                else:
                    client.delete_port(port.id)
    beside.now_or_later(work, 'Ports', give_back,
                        lambda: release(work, [vif.id] if vif.preserve_on_delete else []))


def drop_guarantees(work: Work[Any], port_id: str, wanted: PortResources | None) -> None:
    """The server holds nothing in Placement for this port any more, which is gone or goes; later, while Placement or
    the network service are silent."""
    if wanted is None:
        return
    beside.now_or_later(
        work, 'Guarantees of ports',
        lambda: guarantees.settle(work.env, work.instance_uuid, wanted.classes, work.compare_now, but=port_id),
        lambda: give_back_later(work, port_id, wanted))


def give_back_later(work: Work[Any], port_id: str, wanted: PortResources | None) -> None:
    """A pending release of what the server holds in Placement for this port."""
    if wanted is not None:
        beside.add_release(work, {beside.RESOURCES_OF: port_id, beside.CLASSES: sorted(wanted.classes)},
                           (beside.RESOURCES_OF,))


def release(work: Work[Any], own: Sequence[str], delay: float = 0) -> None:
    """A pending release of the server's ports, not before ``delay`` seconds; ``own`` as ``drop`` has it."""
    beside.add_release(work, {beside.PORTS_OF: work.instance_uuid, beside.PORTS_GIVEN: list(own)},
                       (beside.PORTS_OF, beside.PORTS_GIVEN), delay=delay)

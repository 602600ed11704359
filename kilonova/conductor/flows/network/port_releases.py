"""Release the ports of servers: delete ports that Kilonova created, and unbind ports that the user created.

If the network service does not answer, an operation row is added (a pending release), and a conductor releases the
ports later. So an undo or a delete does not wait for the network service.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from kilonova.conductor.flows import releases
from kilonova.conductor.flows.network import guarantees
from kilonova.conductor.work import Work
from kilonova.db.arguments.releases import PortResourcesRelease, PortsRelease
from kilonova.objects.port_resources import PortResources
from kilonova.objects.vif import Vif


def drop(work: Work[Any], own: Sequence[str], keep: Collection[str] = ()) -> None:
    """Release all ports of the server, except the ports in ``keep``.

    ``own`` are the ids of the ports that the user created, which are unbound; other ports are deleted. ``keep`` are the
    ids of the ports that the server keeps, which are in its info cache. If the network service does not answer or
    refuses, an operation row is added (a pending release), and a conductor releases the ports later.
    """
    releases.now_or_later(
        work, 'Releasing ports', lambda: releases.give_back_ports(work, own, keep), lambda: release(work, own)
    )


def drop_one(work: Work[Any], vif: Vif) -> None:
    """Release one port of the server: delete it, or unbind it if the user created it.

    Repeated calls are safe. If the network service does not answer or refuses, an operation row is added (a pending
    release). A conductor releases the port later, when the port is not in the server's info cache any more.
    """
    client = work.env.networks

    def give_back() -> None:
        for port in client.ports(ids=[vif.id]):
            if port.device_id == work.instance_uuid:
                if vif.preserve_on_delete:
                    client.unbind(port)
                else:
                    client.delete_port(port.id)

    releases.now_or_later(
        work, 'Releasing a port', give_back, lambda: release(work, [vif.id] if vif.preserve_on_delete else [])
    )


def drop_guarantees(work: Work[Any], port_id: str, wanted: PortResources | None) -> None:
    """Release the resources that the server holds in Placement for a port that is deleted or being detached.

    ``wanted`` is the port's QoS resource request, or None. If Placement or the network service does not answer
    or refuses, an operation row is added (a pending release), and a conductor releases the resources later.
    """
    if wanted is None:
        return
    releases.now_or_later(
        work,
        'Releasing the resources of a port',
        lambda: guarantees.settle(work.env, work.instance_uuid, wanted.classes, work.compare_now, but=port_id),
        lambda: give_back_later(work, port_id, wanted),
    )


def give_back_later(work: Work[Any], port_id: str, wanted: PortResources | None) -> None:
    """Add a pending release of the resources that the server holds in Placement for a port.

    ``wanted`` is the port's QoS resource request. If it is None, nothing is done.
    """
    if wanted is not None:
        releases.add_release(work, PortResourcesRelease(resources_of=port_id, classes=sorted(wanted.classes)))


def release(work: Work[Any], own: Sequence[str], delay: float = 0) -> None:
    """Add a pending release of the server's ports, which conductors start after ``delay`` seconds or later.

    ``own`` are the ids of the ports that the user created, which are unbound and not deleted.
    """
    releases.add_release(work, PortsRelease(ports_of=work.instance_uuid, ports_given=list(own)), delay=delay)

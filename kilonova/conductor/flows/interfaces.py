"""A server that is there gets an interface, or gives one up.

Attach: port · plug. The port is made, or its user's own is bound, then the guest is plugged in; what fails leaves
neither. Detach: unplug · free_port. A guest that keeps its card ends it, and all is as it was; once the card is out, it
goes to its end: the port is deleted, or unbound where its user made it. Neither has a task state; both end with what
the info cache says from then on.
"""
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import beside, ports
from kilonova.conductor.row import Outputs, OutputsT
from kilonova.conductor.work import Step, Work
from kilonova.db import engine
from kilonova.db.queries import info_caches, instances
from kilonova.errors import Unanswered
from kilonova.objects.vif import Vif

# Interfaces as the info cache has them.
Vifs = list[dict[str, Any]]


def _end(work: Work[Any], event: str, change: Callable[[Vifs], Vifs]) -> None:
    """The operation is over: the info cache, the event and the action, together. Unanswered: somebody else has just
    written the cache."""
    row = work.instance_row(fresh=True)
    seen = row['extra_network_info']
    vifs = change(json.loads(seen or '[]'))

    def end(conn: engine.Connection) -> None:
        uuid = work.instance_uuid
        if not info_caches.replace(conn, uuid, seen, vifs):
            raise Unanswered(who=f'server {uuid}', reason='its ports were changed meanwhile')
        instances.add_events(conn, uuid, work.request_id, [work.event(event, host=row['host'])])
        instances.finish_action(conn, uuid, work.request_id, 'Error' if work.failed else None)
    work.end(end)


class _Interfaces(Flow[OutputsT]):
    """``event``: of the action. A failure leaves the server as it was, with the reason in the event."""

    event: str

    def ended_badly(self, work: Work[OutputsT]) -> None:
        host = work.instance_row()['host']

        def end(conn: engine.Connection) -> None:
            instances.add_events(conn, work.instance_uuid, work.request_id, [work.event(self.event, 'Error', host)])
            instances.finish_action(conn, work.instance_uuid, work.request_id, 'Error')
        work.end(end)


# --- attach ----------------------------------------------------------------------------------------------------------
@dataclass
class AttachOutputs(Outputs):
    """``vif``: the new interface in the form of the info cache; None: it has no port yet."""

    vif: dict[str, Any] | None = None


def port(work: Work[AttachOutputs]) -> None:
    """A port is made, or the user's own is bound to the server and its host."""
    work.outputs.vif = ports.bind_one(work, ports.Wish(**work.args['wish'])).stored()


def undo_port(work: Work[AttachOutputs]) -> None:
    """The server has the ports of its info cache, and no others."""
    given = work.args['wish']['port_id']
    ports.drop(work, [given] if given else [], [vif.id for vif in work.instance(fresh=True).vifs])


def plug(work: Work[AttachOutputs]) -> None:
    """The host plugs the guest in; then the server has the interface."""
    vif = work.outputs.vif or {}
    work.ask(work.instance_row()['host'], 'attach_interface', instance=work.instance(), vif=vif)
    _end(work, Attach.event, lambda vifs: [*vifs, vif])


def undo_plug(work: Work[AttachOutputs]) -> None:
    """The guest isn't plugged in; its host does that later if it is down."""
    if work.outputs.vif is not None:
        beside.ask_to_undo(work, work.instance_row()['host'], 'undo_attach_interface', instance=work.instance(),
                           vif=work.outputs.vif)


class Attach(_Interfaces[AttachOutputs]):
    name, outputs, event = 'attach_interface', AttachOutputs, 'compute_attach_interface'
    steps = (Step('port', port, undo_port), Step('plug', plug, undo_plug))


# --- detach ----------------------------------------------------------------------------------------------------------
def unplug(work: Work[Outputs]) -> None:
    """The guest lets the interface go."""
    work.ask(work.instance_row()['host'], 'detach_interface', instance=work.instance(), vif=work.args['vif'])


def undo_unplug(work: Work[Outputs]) -> None:
    """The guest has it again; its host does that later if it is down."""
    if not _is_out(work):
        beside.ask_to_undo(work, work.instance_row()['host'], 'undo_detach_interface', instance=work.instance(),
                           vif=work.args['vif'])


def _is_out(work: Work[Outputs]) -> bool:
    """Whether the guest has let it go: from then on there is no way back."""
    return work.position > Detach().index('unplug')


def free_port(work: Work[Outputs]) -> None:
    """The port is deleted, or its user's again; then the server has one interface less."""
    vif = Vif.read(work.args['vif'])
    ports.drop_one(work, vif)
    _end(work, Detach.event, lambda vifs: [one for one in vifs if one['id'] != vif.id])


class Detach(_Interfaces[Outputs]):
    name, outputs, event = 'detach_interface', Outputs, 'compute_detach_interface'
    steps = (Step('unplug', unplug, undo_unplug), Step('free_port', free_port))

    def ended_badly(self, work: Work[Outputs]) -> None:
        """Cancelled behind that point it goes to its end."""
        if _is_out(work):
            free_port(work)
        else:
            super().ended_badly(work)


FLOWS = (Attach(), Detach())

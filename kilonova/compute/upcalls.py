"""The three calls that a working host makes upward, each asked again until it is answered.

    upcalls = Upcalls(Client(Conductor, transport), stopping)
    upcalls.check_key(ctxt, key)             # KeyGone: the operation doesn't stand here (any more)
    upcalls.claim(ctxt, claim)               # objects.Claim, objects.Save
    upcalls.save(ctxt, save)

Silence means ask, never undo (operations.md, rules 12–14): a claim or save that isn't answered is sent again with the
same key, with growing pauses. The conductor recognises what it wrote under that key.
"""
from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from kilonova import errors
from kilonova.objects import Claim, Save

LOG = logging.getLogger(__name__)

# Seconds between askings; the last one repeats.
PAUSES = (1.0, 2.0, 4.0, 8.0, 10.0)


class Stopping(errors.Unanswered):
    """This process ends while nobody answers: nothing is undone, the next process is asked again."""


class ConductorClient(Protocol):
    """What is used of ``rpc.interface.Client(rpc.conductor.Conductor, …)``."""

    def check_key(self, ctxt: Any, *, key: str, undo: bool, host: str) -> Any: ...

    def claim_instance(self, ctxt: Any, *, claim: Claim) -> Any: ...

    def save_instance(self, ctxt: Any, *, save: Save) -> Any: ...


class Upcalls:
    """``stopping`` ends the asking when the process ends; ``pauses`` are the seconds between two askings."""

    def __init__(self, client: ConductorClient, stopping: threading.Event,
                 pauses: tuple[float, ...] = PAUSES) -> None:
        self._client, self._stopping, self._pauses = client, stopping, pauses
        # What was written last of each guest, since the last order for it began.
        self.power_states: dict[str, int] = {}

    def check_key(self, ctxt: Any, key: str, host: str, undo: bool = False) -> Any:
        """Whether the operation stands at this key, or is being undone there: KeyGone if not. HostRejected: this
        ``host`` did it before and undid it. ReleasePending: it has something of the server to give back first."""
        return self._ask(f'check of {key}', lambda: self._client.check_key(ctxt, key=key, undo=undo, host=host))

    def claim(self, ctxt: Any, claim: Claim) -> Any:
        """Write a claim in one transaction. KeyGone, ClaimConflict or Conflict: nothing was written."""
        return self._ask(f'claim for {claim.instance_uuid}',
                         lambda: self._client.claim_instance(ctxt, claim=claim))

    def save(self, ctxt: Any, save: Save) -> Any:
        """Write the result of a step in one transaction. KeyGone, ClaimConflict or Conflict: nothing was written."""
        answer = self._ask(f'save for {save.instance_uuid}',
                           lambda: self._client.save_instance(ctxt, save=save))
        power_state = (save.values or {}).get('power_state')
        if power_state is not None:
            self.power_states[save.instance_uuid] = power_state
        return answer

    def _ask(self, what: str, send: Callable[[], Any]) -> Any:
        asked = 0
        while True:
            try:
                return send()
            except errors.Unanswered as error:
                pause = self._pauses[min(asked, len(self._pauses) - 1)]
                asked += 1
                LOG.warning('The %s was not answered (%s); asking again in %s s', what, error, pause)
                if self._stopping.wait(pause):
                    raise Stopping(who='conductor', reason=f'this host stops; {what} is open') from error

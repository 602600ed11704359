"""What must end soon: creates and deletes that nothing disturbs, whatever else is wrong.

    prompt = Prompt(cloud, story, troubles.spans, checks, wrong)
    prompt.accepted('force_delete', uuid)       # looked at again LIMITS['force_delete'] seconds later

A dead host holds up no other, a guest that takes minutes to be made only its own server, a lost cast is made good by
the next sweep, cell0 concerns no server of a cell, and clocks may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.cloud import Cloud
from tests.simulation.parts import Trouble
from tests.simulation.story import Story

# Virtual seconds in which a request must have ended.
LIMITS = {'create': 50.0, 'force_delete': 110.0}
# Seconds for which a trouble is felt after its end, and until a dead host is known to be dead.
AFTER, KNOWN = 60.0, 220.0
# Troubles that hold up nobody (the first) or at least no delete.
NEVER = frozenset(('clock', 'echo', 'refuse', 'forget', 'calm'))


class Prompt:
    """One a run. ``spans``: (trouble, begin, end) of what goes wrong."""

    def __init__(
        self,
        cloud: Cloud,
        story: Story,
        spans: list[tuple[Trouble, float, float]],
        checks: Any,
        wrong: Callable[[str], None],
    ) -> None:
        self._cloud, self._spans, self._checks, self._wrong = cloud, spans, checks, wrong
        self._off = bool(story.slow)
        self.over = False

    def accepted(self, kind: str, uuid: str) -> None:
        """A request was accepted."""
        limit = LIMITS.get(kind)
        if limit is not None and not self._off:
            begun = self._cloud.timeline.now
            self._cloud.timeline.after(limit, lambda: self._look(kind, uuid, begun))

    def _look(self, kind: str, uuid: str, begun: float) -> None:
        if self.over or any(self._holds_up(kind, begun, *span) for span in self._spans):
            return
        if any(uuid in machine.at_work for machine in self._cloud.machines.values()):
            return
        if kind == 'create' and self._cloud.neutron is not None and self._cloud.neutron.dropped:
            # A guest waits for its ports, as long as it waits for any, also where one is deleted.
            return
        if kind == 'create' and not any(self._is_dead(begun, *span) for span in self._spans):
            # How long a create takes depends on how many there are.
            return
        rows = self._checks.running(uuid)
        if rows and (kind != 'create' or rows == ['boot']):
            self._wrong(
                f'{kind} of {uuid} has not ended after {LIMITS[kind]:.0f} s, and nothing that it needs is '
                f'disturbed: {", ".join(rows)}'
            )

    def _holds_up(self, kind: str, begun: float, trouble: Trouble, start: float, end: float) -> bool:
        now = self._cloud.timeline.now
        if trouble.kind in NEVER or start > now:
            return False
        if kind == 'create' and trouble.kind == 'long':
            # Until all that waited for such a call are through.
            return True
        if end + AFTER < begun:
            return False
        if trouble.kind == 'kill' and trouble.target in self._cloud.machines:
            return not self._is_dead(begun, trouble, start, end)
        if kind == 'force_delete':
            return not (trouble.kind in ('long', 'casts') or (trouble.kind, trouble.target) == ('database', 'cell0'))
        return True

    def _is_dead(self, begun: float, trouble: Trouble, start: float, end: float) -> bool:
        """A host that was known to be dead all the time."""
        return (
            trouble.kind == 'kill'
            and trouble.target in self._cloud.machines
            and start <= begun - KNOWN
            and end >= self._cloud.timeline.now
        )

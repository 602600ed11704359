"""The power is cut: everything goes at once, and comes back in any order, each part 1 s, 1 min or 10 min later.

    story = make('17', SHAPES['kinds'])         # servers are made, the power is cut, some users ask for something
    cut = PowerCut(cloud, query, wrong)
    cut.begin(trouble)                          # in the hub; it looks by itself, LOOK and in the end SOON

A minute after the last part is back every server that was at rest is as it was before, unless its user asked for
something since; and whatever waits meanwhile says why.
"""

from __future__ import annotations

import datetime
import json
import random
import sqlite3
from collections.abc import Callable

from kilonova.db.queries.resumes import KIND
from kilonova.states import PowerState
from tests.simulation import clock
from tests.simulation.cloud import Cloud, Shape
from tests.simulation.links import REFUSE
from tests.simulation.parts import Act, Trouble

NAME = 'power_cut'
# How late a part may come; seconds after the last one until all is as before; and between two looks.
LATE, SOON, LOOK = (1.0, 60.0, 600.0), 60.0, 20.0
# The clouds that it suits: those in which servers have most.
SUITS = ('gpus', 'kinds', 'ports', 'volumes', 'wires', 'mixed')
LIBVIRTD, STORAGE = 'libvirtd', 'storage'
Query = Callable[[str, str], list[sqlite3.Row]]


def parts(shape: Shape, processes: list[str]) -> list[str]:
    """Return what comes back by itself, by name: daemons, services, each host's libvirtd and storage."""
    services = [
        'api',
        'cell0',
        'cell1',
        'broker',
        'placement',
        *(['cyborg'] if shape.profiles else []),
        *(['neutron'] if shape.has_network else []),
        *(['cinder'] if shape.has_volumes else []),
    ]
    return [*processes, *services, *(f'{what} {host}' for host in shape.devices for what in (LIBVIRTD, STORAGE))]


def make(seed: str, shape: Shape, processes: list[str]) -> tuple[list[Act], list[Trouble]]:
    """Return what users of this seed's story ask for, and its power cut."""
    chance = random.Random(f'{seed}/{NAME}')
    apis, flavors = [f'api{number + 1}' for number in range(shape.apis)], [name for name, _, _ in shape.flavors]
    follows = ['stop', 'resize', 'hard_reboot', 'migrate', *(['suspend', 'rescue', 'shelve'] if shape.lives else [])]
    acts = []
    for server in range(chance.randint(3, 6)):
        moment = 10.0 * chance.random()
        acts.append(Act(moment, server, 'create', chance.choice(flavors), chance.choice(apis)))
        if chance.random() < 0.5:
            kind = chance.choice(follows)
            acts.append(
                Act(
                    moment + 20.0,
                    server,
                    kind,
                    chance.choice(flavors) if kind == 'resize' else '',
                    chance.choice(apis),
                    patient=True,
                )
            )
    cut = 90.0 + 10.0 * chance.random()
    late = {part: chance.choice(LATE) for part in parts(shape, processes)}
    if chance.random() < 0.4:
        # Few are late: all the others have to do without them.
        tardy = chance.sample(sorted(late), 2)
        late = {part: chance.choice(LATE[1:]) if part in tardy else LATE[0] for part in late}
    last = max(late.values())
    for _ in range(chance.choice((0, 1, 1, 2))):
        # One is in the middle of something when the power goes.
        acts.append(
            Act(
                cut - chance.choice((0.05, 0.5, 3.0)) * chance.random(),
                chance.choice(acts).server,
                chance.choice(('stop', 'hard_reboot', 'resize', 'delete')),
                chance.choice(flavors),
                chance.choice(apis),
            )
        )
    for _ in range(chance.choice((0, 0, 1, 2))):
        acts.append(
            Act(
                cut + 2.0 + (last + 20.0) * chance.random(),
                chance.choice(acts).server,
                chance.choice(('stop', 'start', 'hard_reboot', 'force_delete')),
                '',
                chance.choice(apis),
            )
        )
    return sorted(acts, key=lambda act: act.time), [
        Trouble(cut, 'power_cut', 'all', last, late),
        Trouble(cut + last + SOON + 1.0, 'calm', 'nobody', 0.0),
    ]


class PowerCut:
    """One a run. ``wrong(text)`` is called with what doesn't hold, ``query(database, statement)`` reads rows."""

    def __init__(self, cloud: Cloud, query: Query, wrong: Callable[[str], None]) -> None:
        self._cloud, self._query, self._wrong = cloud, query, wrong
        self._before: dict[str, tuple[str, int, str, int]] = {}
        self._at = ''

    def begin(self, trouble: Trouble) -> None:
        """Cut the power, in the hub."""
        cloud, timeline = self._cloud, self._cloud.timeline
        timeline.tell('the power is cut', 'all')
        self._before, self._at = self._at_rest(), self._now()
        late: dict[str, float] = trouble.argument
        for name in cloud.processes:
            cloud.kill(name)
        for machine in cloud.machines.values():
            machine.reboot()
        for part, seconds in late.items():
            what, _, host = part.partition(' ')
            if host:
                setattr(cloud.machines[host], f'has_{what}', False)
            elif part not in cloud.processes:
                cloud.links.disturb(part, REFUSE)
            timeline.after(seconds, lambda part=part: self._back(part))
        looks = int((trouble.lasts + SOON) / LOOK)
        for number in range(1, looks + 1):
            timeline.after(number * LOOK, self._reasons)
        timeline.after(trouble.lasts + SOON, self.check)

    def _back(self, part: str) -> None:
        what, _, host = part.partition(' ')
        self._cloud.timeline.tell('is back', part)
        if host:
            setattr(self._cloud.machines[host], f'has_{what}', True)
        elif part in self._cloud.processes:
            self._cloud.start(part)
        else:
            self._cloud.links.calm(part, REFUSE)

    def _now(self) -> str:
        moment = datetime.datetime.fromtimestamp(clock.EPOCH + self._cloud.timeline.now, datetime.UTC)
        return moment.strftime('%Y-%m-%d %H:%M:%S.%f')

    def _states(self) -> dict[str, tuple[str, int, str, int]]:
        """Return {server: (vm state, power state, host, the state of its guest there)} of those at rest."""
        found = {}
        for row in self._query(
            'cell1', 'SELECT uuid, vm_state, power_state, host FROM instances WHERE deleted = 0 AND task_state IS NULL'
        ):
            domain = self._cloud.machines[row['host']].domains.get(row['uuid']) if row['host'] else None
            found[row['uuid']] = (
                row['vm_state'],
                row['power_state'],
                row['host'] or '',
                int(domain.state if domain is not None else PowerState.SHUTDOWN),
            )
        return found

    def _at_rest(self) -> dict[str, tuple[str, int, str, int]]:
        busy = {row['instance_uuid'] for row in self._query('cell1', 'SELECT instance_uuid FROM operations')}
        return {uuid: state for uuid, state in self._states().items() if uuid not in busy}

    def _reasons(self) -> None:
        """Each server that waits says why, to operators and to its user."""
        for row in self._query('cell1', f"SELECT instance_uuid, outputs FROM operations WHERE kind = '{KIND}'"):
            if not json.loads(row['outputs']).get('reason'):
                self._wrong(f"{row['instance_uuid']} waits, and its operation doesn't say why: {row['outputs']}")
        for row in self._query(
            'cell1',
            'SELECT a.instance_uuid, e.details FROM instance_actions a LEFT JOIN '
            'instance_actions_events e ON e.action_id = a.id WHERE '
            f"a.action = '{KIND}'",
        ):
            if not row['details']:
                self._wrong(f"{row['instance_uuid']} waits, and its action doesn't say why")

    def check(self) -> None:
        """All servers are as before, in the hub; but those of which somebody wanted something since."""
        self._reasons()
        asked = {
            row['instance_uuid']
            for row in self._query(
                'cell1',
                f"SELECT instance_uuid FROM instance_actions WHERE action != '{KIND}' AND start_time > '{self._at}'",
            )
        }
        after = self._states()
        waiting = {
            row['instance_uuid']: row['outputs']
            for row in self._query('cell1', f"SELECT instance_uuid, outputs FROM operations WHERE kind = '{KIND}'")
        }
        for uuid, before in self._before.items():
            if uuid in asked:
                continue
            if after.get(uuid) != before:
                self._wrong(
                    f'a minute after all is back {uuid} is {after.get(uuid)}, and was {before} before the '
                    f'power was cut: {waiting.get(uuid, "nothing waits")}'
                )
            elif uuid in waiting:
                self._wrong(f'a minute after all is back {uuid} still waits: {waiting[uuid]}')
        self._cloud.timeline.tell(f'{len(self._before) - len(asked & set(self._before))} servers are as before the cut')

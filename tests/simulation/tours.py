"""Tours of servers: a server gets ports and volumes, gives them up, and goes through one operation after the other with
what it has by then; some of it is deleted at its own service while an operation runs.

    acts, troubles = made('17', shape, acts)        # besides what the story has
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from tests.simulation.belongings import FIRST, PORTS, VOLUMES
from tests.simulation.cloud import Shape
from tests.simulation.parts import Act, Trouble

# What a server goes through, and what brings it back.
_OPERATIONS = (
    *(('shelve', ('unshelve',)),) * 4,
    *(('resize', ('confirm', 'revert')),) * 3,
    *(('migrate', ('confirm', 'revert')),) * 2,
    *(('live', ()),) * 3,
    *(('evacuate', ()),) * 3,
    ('stop', ('start',)),
    ('suspend', ('resume',)),
    ('rescue', ('unrescue',)),
    ('rebuild', ()),
    ('hard_reboot', ()),
)
# How many seconds after an operation something is deleted, or asked by the volume service.
_AMID = (0.02, 0.3, 1.5, 4.0)


def made(seed: str, shape: Shape, acts: Sequence[Act]) -> tuple[list[Act], list[Trouble]]:
    """With random numbers of their own."""
    chance = random.Random(f'{seed}/tours')
    found: list[Act] = []
    troubles: list[Trouble] = []
    server = max(act.server for act in acts) + 1
    for number in range(chance.choice((1, 2, 3))):
        tour = _Tour(chance, shape, chance.choice(acts).time, server + number)
        tour.go()
        found += tour.acts
        troubles += tour.troubles
    return [_with_belongings(chance, act) for act in acts] + found, troubles


def _with_belongings(chance: random.Random, act: Act) -> Act:
    if act.kind in ('attach', 'detach'):
        return replace(act, argument=chance.choice((*PORTS, *VOLUMES)))
    return act


class _Tour:
    def __init__(self, chance: random.Random, shape: Shape, moment: float, server: int) -> None:
        self._chance, self._shape, self._moment, self._server = chance, shape, moment, server
        self._apis = [f'api{number + 1}' for number in range(shape.apis)]
        self._has: list[str] = []
        # From a volume of its user's: see ``Cloud.wishes``.
        self._boots = server % 4 == 1
        self.acts: list[Act] = []
        self.troubles: list[Trouble] = []

    def _ask(self, kind: str, argument: str = '', *, after: float | None = None, patient: bool = True) -> None:
        moment = self._moment if after is None else self._moment + after * self._chance.expovariate(1.0)
        self.acts.append(Act(moment, self._server, kind, argument, self._chance.choice(self._apis), patient))

    def go(self) -> None:
        chance, shape = self._chance, self._shape
        flavors = [name for name, _, _ in shape.flavors]
        self._ask('create', chance.choice(flavors), patient=False)
        for _ in range(chance.randint(2, 5)):
            self._exchange()
            kind, ends = chance.choice(_OPERATIONS)
            self._moment += 4.0 * chance.expovariate(1.0)
            self._break()
            if kind == 'evacuate':
                self.troubles.append(
                    Trouble(self._moment, 'lose', chance.choice(list(shape.devices)), 40.0 + 40.0 * chance.random())
                )
                self._moment += 6.0
            self._ask(kind, chance.choice(flavors) if kind == 'resize' else '', patient=kind != 'evacuate')
            self._amid()
            if kind == 'shelve' and chance.random() < 0.4:
                self._exchange()
            if kind == 'shelve' and 'volume' in self._has and chance.random() < 0.5:
                # What no guest has can be deleted by force.
                self._ask('drop', 'volume')
            if ends and chance.random() < 0.9:
                self._moment += 4.0 * chance.expovariate(1.0)
                self._ask(chance.choice(ends))
                self._amid()

    def _exchange(self) -> None:
        """Ports and volumes come and go."""
        chance = self._chance
        for _ in range(chance.choice((0, 1, 1, 2))):
            self._moment += 2.0 * chance.expovariate(1.0)
            if self._has and chance.random() < 0.45:
                self._ask('detach', self._has.pop(chance.randrange(len(self._has))))
            else:
                self._has.append(chance.choice((*PORTS, *VOLUMES, *VOLUMES)))
                self._ask('attach', self._has[-1])
        while (self._boots or 'volume' in self._has) and chance.random() < 0.6:
            self._moment += 2.0 * chance.expovariate(1.0)
            self._break()
            self._snapshot()

    def _break(self) -> None:
        """Now and then something goes wrong right then."""
        chance, shape = self._chance, self._shape
        if chance.random() < 0.85:
            return
        daemon = chance.choice(
            [*(f'conductor{number + 1}' for number in range(shape.conductors)), *shape.devices, *shape.devices]
        )
        self.troubles.append(
            Trouble(
                self._moment,
                chance.choice(('kill', 'stop')),
                daemon,
                chance.choice((5.0, 30.0, 100.0)) * chance.random(),
                int(chance.expovariate(0.06)),
            )
        )

    def _snapshot(self, after: float = 0.0, *, patient: bool = True) -> None:
        """Of a volume that it has, or the deletion of one."""
        chance = self._chance
        self._ask(
            chance.choice(('snapshot', 'snapshot', 'merge')),
            'boot' if self._boots and ('volume' not in self._has or chance.random() < 0.5) else 'volume',
            after=after,
            patient=patient,
        )

    def _amid(self) -> None:
        """While the last operation runs, or when it has ended."""
        chance = self._chance
        if chance.random() < 0.3:
            first = FIRST if self._boots else FIRST[:1]
            self._ask(
                'drop',
                chance.choice((*self._has, *self._has, *first)),
                after=chance.choice(_AMID),
                patient=chance.random() < 0.3,
            )
        while chance.random() < 0.35:
            self._moment += chance.expovariate(1.0)
            self._snapshot(chance.choice(_AMID), patient=chance.random() < 0.6)

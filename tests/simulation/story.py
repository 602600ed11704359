"""What users do and what goes wrong: data, made from the seed beforehand.

    story = make('17', shape)
    story.acts[0]             # Act(time=3.1, server=0, kind='create', argument='one', api='api1')
    story.troubles[0]         # Trouble(time=9.2, kind='kill', target='conductor1', lasts=30.0, argument=4)
    Story.load(story.dump())  # as JSON

Times are seconds after the cloud stood. Leaving an act or a trouble out gives a story that can be run as well.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from tests.simulation import plots, power_cut, tours
from tests.simulation.cloud import Shape
from tests.simulation.parts import Act, Trouble

DATABASES = ('api', 'cell1', 'cell0')


@dataclass(frozen=True)
class Story:
    """``slow``, ``slow_time``, ``pace``: see ``timeline.Timeline``. ``plots``: the names of those that it has."""

    seed: str
    shape: str
    slow: float
    slow_time: float
    pace: float
    acts: list[Act] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    plots: list[str] = field(default_factory=list)

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Story:
        """From JSON."""
        values = json.loads(text)
        return cls(
            **{
                **values,
                'acts': [Act(**one) for one in values['acts']],
                'troubles': [Trouble(**one) for one in values['troubles']],
            }
        )

    def with_only(self, acts: list[Act], troubles: list[Trouble]) -> Story:
        """The same with fewer parts."""
        return replace(self, acts=acts, troubles=troubles)

    def __str__(self) -> str:
        lines = sorted([*self.acts, *self.troubles], key=lambda one: one.time)
        return '\n'.join(str(line) for line in lines)


# What users do next: (kind, weight).
_NEXT = (
    ('resize', 9),
    ('migrate', 4),
    ('confirm', 8),
    ('revert', 8),
    ('stop', 4),
    ('start', 4),
    ('reboot', 2),
    ('hard_reboot', 2),
    ('delete', 6),
    ('restore', 2),
    ('force_delete', 2),
)
# What usually follows, so that most requests find the server in a state for them.
_FOLLOWS = {
    'create': ('resize', 'resize', 'stop', 'migrate', 'delete', 'reboot'),
    'resize': ('confirm', 'revert'),
    'migrate': ('confirm', 'revert'),
    'confirm': ('resize', 'stop', 'delete', 'migrate'),
    'revert': ('resize', 'stop', 'delete', 'migrate'),
    'stop': ('start', 'resize', 'delete'),
    'start': ('resize', 'stop', 'delete'),
    'reboot': ('resize', 'delete'),
    'hard_reboot': ('resize', 'stop'),
    'delete': ('restore', 'force_delete', 'delete'),
    'restore': ('resize', 'delete'),
    'force_delete': ('delete',),
}
# Usual seconds between two requests for one server.
_GAPS = (0.02, 0.4, 2.0, 5.0)


def plan(seed: str, named: Sequence[str] = ()) -> tuple[list[str], str]:
    """(the plots of this seed's story, the shape of its cloud). ``named``: plots that it has; else the seed chooses."""
    chance = random.Random(f'{seed}/plan')
    names = list(named)
    if power_cut.NAME in names:
        return [power_cut.NAME], chance.choice(power_cut.SUITS)
    if not names and chance.random() < 0.85:
        names = chance.sample(sorted(plots.PLOTS), chance.choice((1, 1, 2)))
    suits = plots.SUITS.get(names[0]) if names else None
    if suits is not None and chance.random() < 0.6:
        return names, chance.choice(suits)
    return names, chance.choice(('gpus', 'tight', 'tight', 'soft', 'narrow'))


def make(seed: str, shape: Shape, length: int = 20, named: Sequence[str] = ()) -> Story:
    """The story of this seed, of about ``length`` acts. ``named``: see ``plan``."""
    if power_cut.NAME in named:
        return _cut(seed, shape)
    chance = random.Random(f'{seed}/story')
    apis = [f'api{number + 1}' for number in range(shape.apis)]
    flavors = [name for name, _, _ in shape.flavors]
    acts: list[Act] = []
    if shape.has_all:
        # Servers on tours are the rest of it.
        length //= 2
    span = 10.0 + length * 1.5
    server = 0
    plotted: list[Trouble] = []
    names, _ = plan(seed, named)
    for name in names:
        plot = plots.PLOTS[name](plots.Stage(chance, shape, chance.random() * 5, server))
        acts += plot.acts
        plotted += plot.troubles
        server = plot.server
    # Most plots have the cloud for themselves at first.
    quiet = 30.0 if plotted and chance.random() < 0.7 else 0.0
    while len(acts) < length:
        moment = quiet + chance.random() * span
        last = 'create'
        acts.append(Act(moment, server, 'create', chance.choice(flavors), chance.choice(apis)))
        for _ in range(chance.randint(1, 7)):
            moment += chance.choice(_GAPS) * chance.expovariate(1.0)
            usual = chance.random() < 0.88
            kind = (
                chance.choice(_FOLLOWS[last])
                if usual
                else chance.choices([name for name, _ in _NEXT], [weight for _, weight in _NEXT])[0]
            )
            acts.append(
                Act(
                    moment,
                    server,
                    kind,
                    chance.choice(flavors) if kind == 'resize' else '',
                    chance.choice(apis),
                    usual and chance.random() < 0.93,
                )
            )
            if usual:
                last = kind
        server += 1
    acts.sort(key=lambda act: act.time)
    if shape.lives:
        # In place of half of these.
        acts = [
            replace(act, kind='live') if act.kind in ('migrate', 'confirm', 'stop') and chance.random() < 0.5 else act
            for act in acts
        ]
        acts = _widened(chance, acts)
        more, lost = _evacuation(chance, shape, acts)
        acts, plotted = sorted(acts + more, key=lambda act: act.time), plotted + lost
    slow = chance.choice((0.0, 0.0, 0.003, 0.02)) if not plotted else 0.0
    others = _troubles(chance, shape, acts, span) if not plotted or chance.random() < 0.3 else []
    if shape.profiles and not shape.has_all:
        acts = _accelerated(chance, acts, names) if names else acts
        acts = sorted(acts + _walk(chance, shape, acts), key=lambda act: act.time)
    if shape.profiles:
        others += _of_service(chance, acts, 'cyborg')
    if shape.has_network:
        others += _of_service(chance, acts, 'neutron')
    if shape.has_volumes or shape.has_functions:
        acts = [
            replace(act, kind=chance.choice(('attach', 'detach')))
            if act.kind in ('reboot', 'hard_reboot') and chance.random() < 0.6
            else act
            for act in acts
        ]
    if shape.has_volumes:
        others += _of_service(chance, acts, 'cinder')
    if shape.has_all:
        acts, lost = tours.made(seed, shape, acts)
        acts.sort(key=lambda act: act.time)
        others += lost
    return Story(
        seed,
        shape.name,
        slow,
        chance.choice((2.0, 20.0, 90.0)),
        chance.choice((0.0002, 0.001, 0.004)),
        acts,
        sorted(plotted + others, key=lambda each: each.time),
        names,
    )


def _cut(seed: str, shape: Shape) -> Story:
    """Return the story of a power cut, in which nothing else goes wrong."""
    chance = random.Random(f'{seed}/pace')
    acts, troubles = power_cut.make(seed, shape, shape.processes)
    return Story(seed, shape.name, 0.0, 2.0, chance.choice((0.0002, 0.001, 0.004)), acts, troubles, [power_cut.NAME])


# In place of a stop and a reboot, and what brings the server back.
_BESIDES = {
    'stop': (('suspend', 'resume'), ('rescue', 'unrescue'), ('shelve', 'unshelve')),
    'reboot': (('rebuild', ''),),
    'hard_reboot': (('rebuild', ''),),
}
# Flavors in place of those that plots know.
_ACCELERATED = {'one': 'accel', 'two': 'accels'}


def _widened(chance: random.Random, acts: list[Act]) -> list[Act]:
    """In place of two stops and reboots in three other requests, each with the one that brings the server back."""
    made: list[Act] = []
    back: dict[int, str] = {}
    for act in acts:
        if act.kind in _BESIDES and chance.random() < 0.67:
            kind, back[act.server] = chance.choice(_BESIDES[act.kind])
            made.append(replace(act, kind=kind))
        elif back.get(act.server) and chance.random() < 0.9:
            kind = back.pop(act.server)
            made.append(replace(act, kind=kind, patient=True))
            if act.kind != 'start':
                made.append(act)
        else:
            made.append(act)
    return made


def _evacuation(chance: random.Random, shape: Shape, acts: list[Act]) -> tuple[list[Act], list[Trouble]]:
    """Now and then a host is lost, and servers are evacuated."""
    if chance.random() >= 0.2:
        return [], []
    moment = chance.choice(acts).time + 10.0 * chance.random()
    there = dict.fromkeys(act.server for act in acts if act.kind == 'create' and act.time < moment)
    return (
        [
            Act(
                moment + 6.0 + 10.0 * chance.random(),
                server,
                'evacuate',
                '',
                chance.choice([f'api{number + 1}' for number in range(shape.apis)]),
            )
            for server in there
            for _ in range(2)
        ],
        [Trouble(moment, 'lose', chance.choice(list(shape.devices)), 30.0 + 40.0 * chance.random())],
    )


def _accelerated(chance: random.Random, acts: list[Act], names: Sequence[str]) -> list[Act]:
    """A third of the stories with plots are about accelerators of Cyborg; those of a dead host above all."""
    if chance.random() >= (0.8 if 'dead_host' in names else 0.33):
        return acts
    # The servers that are deleted while their host is dead.
    early = {act.server for act in acts if 'dead_host' in names and act.kind == 'create' and act.time < 40.0}
    return [
        replace(
            act,
            argument='accel'
            if act.server in early and act.argument == 'none'
            else _ACCELERATED.get(act.argument, act.argument),
        )
        for act in acts
    ]


# What a user does with a running server, and what ends that.
_STEPS = (
    ('resize', ('confirm', 'revert')),
    ('resize', ('confirm', 'revert')),
    ('migrate', ('confirm', 'revert')),
    ('stop', ('start',)),
    ('suspend', ('resume',)),
    ('rescue', ('unrescue',)),
    ('shelve', ('unshelve',)),
    ('rebuild', ()),
    ('hard_reboot', ()),
    ('reboot', ()),
)


def _walk(chance: random.Random, shape: Shape, acts: list[Act]) -> list[Act]:
    """One server with accelerators, and requests that each find it in a state for them, if nothing goes wrong."""
    flavors = [name for name, _, extra in shape.flavors if 'accel:device_profile' in extra]
    moment, server = chance.choice(acts).time, max(act.server for act in acts) + 1
    apis = [f'api{number + 1}' for number in range(shape.apis)]
    made = [Act(moment, server, 'create', chance.choice(flavors), chance.choice(apis))]
    for _ in range(chance.randint(2, 4)):
        kind, ends = chance.choice(_STEPS)
        for one in (kind, *([chance.choice(ends)] if ends and chance.random() < 0.9 else [])):
            moment += 4.0 * chance.expovariate(1.0)
            to = chance.choice([*flavors, 'none', 'both']) if one == 'resize' else ''
            made.append(Act(moment, server, one, to, chance.choice(apis), patient=chance.random() < 0.95))
    return made


def _of_service(chance: random.Random, acts: list[Act], service: str) -> list[Trouble]:
    """Cyborg or Neutron is silent, or its answers are lost."""
    if chance.random() >= 0.35:
        return []
    moment = max(0.0, chance.choice(acts).time + chance.expovariate(0.4) - 0.5)
    if chance.random() < 0.5:
        return [Trouble(moment, 'answers', service, 10.0 + 40.0 * chance.random(), chance.choice((0.1, 0.4)))]
    return [
        Trouble(
            moment,
            'service',
            service,
            chance.choice((5.0, 30.0, 90.0)) * (0.5 + chance.random()),
            chance.choice(('hang', 'refuse')),
        )
    ]


def _troubles(chance: random.Random, shape: Shape, acts: list[Act], span: float) -> list[Trouble]:
    conductors = [f'conductor{number + 1}' for number in range(shape.conductors)]
    schedulers = [f'scheduler{number + 1}' for number in range(shape.schedulers)]
    apis = [f'api{number + 1}' for number in range(shape.apis)]
    hosts = list(shape.devices)
    daemons = conductors * 3 + schedulers + apis + hosts * 2

    def one() -> Trouble:
        kind = chance.choices(
            (
                'kill',
                'stop',
                'reboot',
                'cut',
                'database',
                'placement',
                'broker',
                'weather',
                'commits',
                'answers',
                'disk',
                'clock',
                'slow',
                'forget',
            ),
            (12, 10, 3, 7, 4, 4, 1, 6, 3, 3, 2, 3, 3, 4),
        )[0]
        moment = max(0.0, chance.choice(acts).time + chance.expovariate(0.4) - 0.5)
        short, middle, long = 5 * chance.expovariate(1.0), 10 + 30 * chance.random(), 50 + 80 * chance.random()
        lasts = chance.choice((short, middle, long))
        if kind in ('kill', 'stop'):
            return Trouble(moment, kind, chance.choice(daemons), lasts, int(chance.expovariate(0.06)))
        if kind in ('reboot', 'disk', 'forget'):
            return Trouble(moment, kind, chance.choice(hosts), lasts)
        if kind == 'cut':
            target = chance.choice(daemons)
            parties = ['broker'] if target.startswith('api') or target in hosts else ['broker', *DATABASES, 'placement']
            if target in hosts:
                parties.append('placement')
            if shape.profiles:
                parties.append('cyborg')
            if shape.has_network:
                parties.append('neutron')
            if shape.has_volumes:
                parties.append('cinder')
            return Trouble(moment, kind, target, lasts, chance.choice(parties))
        if kind == 'database':
            return Trouble(moment, kind, chance.choice(DATABASES), lasts, chance.choice(('hang', 'refuse')))
        if kind == 'placement':
            return Trouble(moment, kind, 'placement', lasts, chance.choice(('hang', 'refuse')))
        if kind == 'weather':
            return Trouble(
                moment,
                kind,
                'broker',
                middle,
                {
                    'lost': chance.choice((0.0, 0.05, 0.3)),
                    'doubled': chance.choice((0.0, 0.1)),
                    'late': chance.choice((0.0, 0.1, 0.3)),
                    'late_by': chance.choice((1.0, 20.0, 80.0)),
                },
            )
        if kind in ('commits', 'answers'):
            return Trouble(
                moment, kind, 'databases' if kind == 'commits' else 'placement', long, chance.choice((0.03, 0.2))
            )
        if kind == 'clock':
            return Trouble(
                0.0,
                kind,
                chance.choice([*daemons, *DATABASES]),
                span,
                chance.choice((-1, 1)) * chance.choice((2.0, 40.0, 400.0)),
            )
        if kind == 'slow':
            return Trouble(moment, kind, chance.choice(daemons), long, chance.choice((5.0, 50.0)))
        return Trouble(moment, kind, 'broker', lasts)

    return sorted((one() for _ in range(chance.choice((0, 1, 2, 3, 4, 6)))), key=lambda each: each.time)

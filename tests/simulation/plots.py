"""Plots: a few requests and the troubles that belong together, each after the history of some fault.

    stage = PLOTS['echo'](Stage(chance, shape, start=3.0, server=0))
    stage.acts, stage.troubles, stage.server        # server: the next number

A trouble with ``at`` strikes when a line of the trace is told, so it meets the moment that it is made for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.cloud import Shape
from tests.simulation.parts import Act, Trouble

# Seconds after which an owner's lease has run out and a sweep found its rows, and how much longer it may last.
LEASE, LONGER = 80.0, 60.0
# Messages of which a late copy may do harm.
ORDERS = (
    'prep_resize',
    'prep_resize',
    'prep_resize',
    'build_and_run_instance',
    'resize_instance',
    'finish_resize',
    'undo_build',
    'undo_prep_resize',
    'claim_instance',
    'save_instance',
    'terminate_instance',
    'confirm_resize',
    'revert_resize',
    'finish_revert_resize',
    'stop_instance',
    'start_instance',
    'select_destinations',
    'run_operation',
)
# Calls to hosts in whose midst a conductor may stand still, and what the user asks for.
CALLS = (
    ('build_and_run_instance', ()),
    ('build_and_run_instance', ()),
    ('prep_resize', ('resize',)),
    ('resize_instance', ('resize',)),
    ('finish_resize', ('resize',)),
    ('terminate_instance', ('force_delete',)),
    ('revert_resize', ('resize', 'revert')),
    ('confirm_resize', ('resize', 'confirm')),
    ('stop_instance', ('stop',)),
    ('undo_build', ()),
    ('undo_prep_resize', ('resize',)),
    ('undo_prep_resize', ('resize',)),
    ('undo_prep_resize', ('migrate',)),
    ('undo_resize_instance', ('resize',)),
    ('undo_finish_resize', ('resize',)),
)
# Calls of hypervisors that must be refused, or usually are, for such a call to come.
REFUSED = {
    'build_and_run_instance': 'spawn',
    'prep_resize': 'prepare_move',
    'finish_resize': 'finish_migration',
    'resize_instance': 'migrate_disk_and_power_off',
}


class Stage:
    """What a plot writes."""

    def __init__(self, chance: random.Random, shape: Shape, start: float, server: int) -> None:
        self.chance, self.shape, self.start, self.server = chance, shape, start, server
        self.acts: list[Act] = []
        self.troubles: list[Trouble] = []
        self.apis = [f'api{number + 1}' for number in range(shape.apis)]
        self.hosts = list(shape.devices)
        self.flavors = [name for name, _, _ in shape.flavors]
        # The flavor of each server as far as the plot goes.
        self.sizes: dict[int, str] = {}
        self.few_slots = 'conductor__flow_slots' in shape.options

    def flavor(self) -> str:
        """Most have devices."""
        return self.chance.choice(('one', 'one', 'two', 'none'))

    def create(self, after: float = 0.0, flavor: str | None = None) -> int:
        """A new server."""
        self.sizes[self.server] = flavor or self.flavor()
        self.acts.append(
            Act(self.start + after, self.server, 'create', self.sizes[self.server], self.chance.choice(self.apis))
        )
        self.server += 1
        return self.server - 1

    def ask(
        self, server: int, kinds: Sequence[str], after: float = 0.01, gap: float = 0.01, patient: bool = True
    ) -> None:
        """Requests for a server, one after the other."""
        for number, kind in enumerate(kinds):
            argument = ''
            if kind == 'resize':
                argument = self.sizes[server] = self.chance.choice(
                    [name for name in ('one', 'two', 'none') if name != self.sizes[server]]
                )
            self.acts.append(
                Act(self.start + after + number * gap, server, kind, argument, self.chance.choice(self.apis), patient)
            )

    def trouble(
        self,
        kind: str,
        target: str,
        lasts: float,
        argument: Any = None,
        *,
        after: float = 0.0,
        at: str | None = None,
        wait: float = 0.0,
    ) -> None:
        """``after``: seconds after the start."""
        self.troubles.append(Trouble(self.start + after, kind, target, lasts, argument, at, wait))

    def until(self, after: float) -> None:
        """The troubles don't end before."""
        self.trouble('calm', 'nobody', 0.0, after=after)

    def moment(self) -> float:
        """Somewhere within a call of a few seconds."""
        return self.chance.choice((0.0, 0.005, 0.05, 0.2, 1.0)) * self.chance.random()

    def beyond_lease(self) -> float:
        """As long as a conductor must stand still to lose what it holds."""
        return LEASE + LONGER * self.chance.random()


def echo(stage: Stage) -> Stage:
    """An order comes again minutes later, at a host that forgot that it did it."""
    chance, method = stage.chance, stage.chance.choice(ORDERS)
    for _ in range(chance.choice((1, 2))):
        flavor = chance.choice(('one', 'two'))
        one = stage.create(flavor=flavor)
        stage.ask(
            one,
            chance.choice(
                (
                    ('resize',),
                    ('resize', 'confirm'),
                    ('resize', 'revert', 'resize'),
                    ('migrate',),
                    ('resize', 'confirm', 'stop', 'start'),
                    ('resize', 'confirm', 'resize'),
                )
            ),
        )
    delay = chance.choice((4.0, 15.0, 40.0, 90.0)) * (0.5 + chance.random())
    stage.trouble('echo', 'broker', delay, method)
    stage.ask(stage.server - 1, (chance.choice(('stop', 'start', 'reboot', 'resize')),), delay + 30.0)
    for host in stage.hosts:
        stage.trouble('forget', host, 1.0, at=f'compute.{method}', wait=max(0.1, delay - 1.0))
        stage.trouble('forget', host, 1.0, after=chance.random() * delay)
    return stage


def stale_owner(stage: Stage) -> Stage:
    """A conductor stands still for longer than its lease while a host answers, often with a refusal."""
    chance = stage.chance
    method, kinds = chance.choice(CALLS)
    one = stage.create(flavor=chance.choice(('none', 'one')))
    stage.ask(one, kinds)
    undoes, done = method.startswith('undo_'), method.removeprefix('undo_')
    refused = REFUSED.get('build_and_run_instance' if done == 'build' else done)
    if refused is not None and (undoes or chance.random() < 0.8):
        stage.trouble('refuse', 'any', 1.0, refused)
    if undoes:
        # With its answer on the way; for so long that whoever takes the row over comes far.
        wait, lasts = chance.choice((0.0, 0.0, 0.002, 0.02)) * chance.random(), 150.0 + 60.0 * chance.random()
    else:
        wait, lasts = stage.moment(), stage.beyond_lease()
    stage.trouble('stop', 'teller', lasts, 0, at=f'long compute.{method}', wait=wait)
    if chance.random() < 0.4:
        stage.ask(
            one,
            (chance.choice(('delete', 'stop', 'resize', 'reboot')),),
            100.0 + 80.0 * chance.random(),
            patient=chance.random() < 0.7,
        )
    stage.until(220.0 if undoes else 170.0)
    return stage


def stale_scheduler(stage: Stage) -> Stage:
    """A scheduler stands still, or waits for Placement, for longer than anybody waits for its answer."""
    chance = stage.chance
    one = stage.create()
    lasts = chance.choice((61.0, 65.0, 80.0, 130.0)) + 10 * chance.random()
    if chance.random() < 0.4:
        stage.trouble('stop', 'teller', lasts, 0, at='takes scheduler.select_destinations', wait=0.03 * chance.random())
    else:
        # Before it has the answer, or soon after.
        stage.trouble(
            'stop',
            'teller',
            lasts,
            0,
            at='Placement: PUT /allocations',
            wait=chance.choice((0.0, 0.0, 0.005 * chance.random())),
        )
    stage.ask(one, (chance.choice(('delete', 'stop', 'resize')),), 10.0 + 100.0 * chance.random())
    return stage


def undone(stage: Stage) -> Stage:
    """A host undoes what it was told to do, and is started anew before it answered."""
    chance = stage.chance
    one = stage.create(flavor=chance.choice(('none', 'one')))
    method = chance.choice(('spawn', 'spawn', 'finish_migration', 'prepare_move'))
    if method != 'spawn':
        stage.ask(one, ('resize',))
    stage.trouble('refuse', 'any', 1.0, method)
    told = {'spawn': 'destroy', 'finish_migration': 'destroy'}.get(method, method)
    # Within the few steps until it has answered.
    stage.trouble('kill', 'teller', 2.0 + 20.0 * chance.random(), chance.randrange(8), at=told)
    return stage


def dead_host(stage: Stage) -> Stage:
    """A host is dead for long; its servers are deleted, and others are built elsewhere."""
    chance, host = stage.chance, stage.chance.choice(stage.hosts)
    # Where there are few slots, so many that their deletes could take all of them.
    several = chance.randint(10, 14) if stage.few_slots else chance.randint(3, 5)
    servers = [stage.create(chance.random() * 3, 'none') for _ in range(several)]
    stage.trouble('kill', host, 410.0, 0, after=40.0)
    for one in servers:
        stage.ask(one, ('force_delete',), 280.0 + 2 * chance.random(), patient=False)
    for number in range(2):
        stage.create(283.0 + number, 'none')
    stage.until(350.0)
    return stage


def long_calls(stage: Stage) -> Stage:
    """Guests take minutes to be made, more are asked for than a host takes at once, and some are deleted."""
    chance = stage.chance
    old = [stage.create(0.0, 'none') for _ in range(2)]
    for host in stage.hosts:
        stage.trouble('long', host, 20.0, 200.0 + 60 * chance.random(), after=15.0)
    if chance.random() < 0.6:
        stage.trouble('casts', 'broker', 12.0, chance.choice((0.3, 0.6)), after=22.0)
    several = chance.randint(6, 10) if stage.few_slots else chance.randint(4, 6)
    new = [stage.create(16.0 + 3 * chance.random(), 'none') for _ in range(several)]
    for one in [*old, *chance.sample(new, 4)]:
        stage.ask(one, ('force_delete',), 24.0 + 6 * chance.random(), patient=False)
    stage.until(145.0)
    return stage


def lost_casts(stage: Stage) -> Stage:
    """Casts are lost; perhaps clocks differ, or cell0 hangs meanwhile. One server is deleted by nobody."""
    chance = stage.chance
    servers = [stage.create(6 * chance.random()) for _ in range(4)]
    stage.create(6 * chance.random(), 'none')
    what = chance.choice(('clock', 'clock', 'cell0', 'cell0', 'none'))
    if what == 'clock':
        stage.trouble(
            'clock',
            chance.choice(('conductor1', 'scheduler1', 'scheduler1', 'api1')),
            200.0,
            chance.choice((-1, 1)) * chance.choice((70.0, 400.0)),
            after=-stage.start,
        )
    elif what == 'cell0':
        stage.trouble('database', 'cell0', 220.0, 'hang', after=15.0)
    stage.trouble('casts', 'broker', 20.0, chance.choice((0.3, 0.6, 1.0)), after=chance.choice((0.0, 20.0)))
    for one in servers:
        stage.ask(one, (chance.choice(('delete', 'force_delete', 'resize', 'stop')),), 24.0 + 10 * chance.random())
        stage.ask(one, ('force_delete',), 25.0 + 10 * chance.random(), patient=False)
    stage.until(150.0)
    return stage


PLOTS: dict[str, Callable[[Stage], Stage]] = {
    'echo': echo,
    'stale_owner': stale_owner,
    'stale_scheduler': stale_scheduler,
    'undone': undone,
    'dead_host': dead_host,
    'long_calls': long_calls,
    'lost_casts': lost_casts,
}
# The clouds in which a plot does most harm: with few slots, with one scheduler or two, with two hosts to go to.
SUITS: dict[str, tuple[str, ...]] = {
    'dead_host': ('narrow',),
    'long_calls': ('narrow',),
    'stale_owner': ('gpus', 'soft'),
    'stale_scheduler': ('gpus', 'soft'),
    'lost_casts': ('tight', 'narrow'),
}

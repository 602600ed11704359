"""Three brokers in a cluster, killed and cut off in turn under load, while conductors, schedulers and computes are
killed, too: everything accepted comes to an end, and nothing is left over.

``make test-cluster MINUTES=5`` is the long form; SEED=… repeats its choices. Partitions are real: the nodes' links to
each other and to their clients go silent (``tools/cloud/links.py``), and nobody's connection is closed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration import broker_cluster, unrest
from tests.integration.broker_cluster import NODES, Brokers
from tests.integration.site import Site
from tests.integration.unrest import Larger, Story, Users

MINUTES = float(os.environ.get('KILONOVA_CLUSTER_MINUTES') or 0)
SEED = int(os.environ.get('KILONOVA_CLUSTER_SEED') or random.randrange(1_000_000))
SETTINGS = """[DEFAULT]
transport_url = {url}
[oslo_messaging_rabbit]
rabbit_quorum_queue = true
rabbit_transient_quorum_queue = true
heartbeat_timeout_threshold = 10
kombu_reconnect_delay = 0.5
rabbit_interval_max = 4
kombu_missing_consumer_retry_timeout = 10
[api_database]
connection = sqlite:///{directory}/api.sqlite
[database]
connection = sqlite:///{directory}/cell.sqlite
[conductor]
lease_time = 10
sweep_interval = 5
"""


class Unrest:
    """What is done to the cloud, in the order that the seed gives."""

    def __init__(self, cloud: Larger, brokers: Brokers, chance: random.Random, story: Story) -> None:
        self.cloud, self.brokers, self.chance, self.story = cloud, brokers, chance, story
        self._next: list[str] = []
        self._down: list[str] = []

    def strike_broker(self, kind: str, node: int, during: Callable[[], None]) -> None:
        """One of the three is away while ``during`` goes on; returns when the cluster is whole again."""
        brokers, story = self.brokers, self.story
        if kind == 'kill':
            brokers.kill(node)
            story(f'broker {node} killed')
        else:
            brokers.cut_off(node, clients=kind == 'isolate')
            story(f'broker {node} cut off from ' + ('everybody' if kind == 'isolate' else 'the other two'))
            others = [other for other in NODES if other != node]
            # Itself, too: linked again before it has noticed, it would stay apart from them (a partition of Mnesia that
            # pause_minority doesn't see), until somebody restarts it.
            unrest.until(
                lambda: all(len(brokers.running(other)) == 2 for other in others) and len(brokers.running(node)) < 2,
                f'broker {node} is missed, and pauses',
            )
            story(f'the other two count broker {node} as gone, and it has paused')
        during()
        if kind == 'kill':
            brokers.start(node)
            story(f'broker {node} started')
        else:
            brokers.heal()
            story(f'broker {node} linked again')
        brokers.await_whole()
        story('the cluster is whole')

    def strike_daemon(self) -> None:
        """The next daemon is killed, and what was killed before comes back."""
        if not self._next:
            self._next = self._order()
        name = self._next.pop(0)
        self.revive()
        self.cloud.kill(name)
        self.story(f'{name} killed')
        self._down.append(name)

    def _order(self) -> list[str]:
        """All daemons, one of each kind first."""
        names = self.chance.sample(self.cloud.names, len(self.cloud.names))
        first = list({name.split('-')[0]: name for name in names}.values())
        return first + [name for name in names if name not in first]

    def revive(self) -> None:
        while self._down:
            name = self._down.pop()
            self.cloud.start(name)
            self.story(f'{name} started')


def test_brokers_and_daemons_end_in_turn(
    running_site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Short: each kind of strike once. Long: again and again for so many minutes."""
    chance = random.Random(SEED)
    with capsys.disabled(), broker_cluster.cluster(tmp_path / 'brokers') as brokers:
        story = Story()
        story(f'seed {SEED}; {MINUTES:g} minutes')
        with unrest.larger(running_site, tmp_path, SETTINGS.format(url=brokers.url, directory=tmp_path)) as cloud:
            story('three brokers, four hosts, two conductors, two schedulers are up')
            acting = Unrest(cloud, brokers, chance, story)

            def during() -> None:
                for _ in range(2 if MINUTES else 1):
                    acting.strike_daemon()
                    unrest.linger(chance.uniform(1, 4))

            with Users(running_site) as users:
                end = story.seconds + MINUTES * 60
                while True:
                    for kind, node in zip(
                        chance.sample(['kill', 'part', 'isolate'], 3), chance.sample(NODES, 3), strict=True
                    ):
                        acting.strike_broker(kind, node, during)
                    if story.seconds >= end:
                        break
                acting.revive()
            story(f'users are gone: {users.told()}')
            cloud.await_all()
            story('all daemons are up')
            unrest.calm(running_site, story)

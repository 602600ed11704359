"""A conductor or a compute stands still (SIGSTOP) for longer than others wait for it, in the middle of boots and
resizes, and then goes on as if nothing had been: no guest and no device is there twice, and everything ends.

That is what a machine does that is frozen, migrated live or out of memory: whoever took its work over is at work when
it wakes up. SEED=… repeats the choices: ``KILONOVA_STILL_SEED``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from kilonova.db import engine
from tests.integration import database_servers, unrest
from tests.integration.site import Site
from tests.integration.test_kill import EARLY, LATE, await_task
from tests.integration.unrest import Larger, Story

SEED = int(os.environ.get('KILONOVA_STILL_SEED') or random.randrange(1_000_000))
# Seconds after which a conductor's operations are others', and after which a host counts as down.
LEASE, DOWN = 6, 10
SETTINGS = f"""[DEFAULT]
rpc_response_timeout = 3
service_down_time = {DOWN}
[api_database]
connection = {{api}}
[database]
connection = {{cell}}
[conductor]
lease_time = {LEASE}
sweep_interval = 2
[oslo_messaging_rabbit]
heartbeat_timeout_threshold = 6
"""
RAN_OUT = ' expired; other conductors take over its operations'


@pytest.fixture(scope='module')
def cloud(running_site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Larger]:
    """On MariaDB: a process that stands still inside a transaction holds up SQLite as a whole."""
    with database_servers.mariadb() as server:
        for name in ('still_api', 'still', 'still_cell0'):
            server.create(name)
        settings = SETTINGS.format(api=server.url('still_api'), cell=server.url('still'))
        with unrest.larger(running_site, tmp_path_factory.mktemp('still'), settings) as made:
            yield made


@pytest.mark.database
@pytest.mark.parametrize('dialect', ['mariadb', 'postgresql'])
def test_a_transaction_that_rests_is_ended(dialect: str) -> None:
    """Or the operations of a conductor that stands still in the middle of one would be nobody's for ever."""
    with getattr(database_servers, dialect)() as server:
        server.create('still')
        still, awake = (
            engine.Database(server.url('still'), 'main', engine.PoolOptions(statement_timeout=1)) for _ in range(2)
        )
        with still.write() as connection:
            connection.execute(sa.text('CREATE TABLE rows_of_one (taken INTEGER)'))
            connection.execute(sa.text('INSERT INTO rows_of_one VALUES (0)'))
        take = sa.text('UPDATE rows_of_one SET taken = taken + 1')

        def taken_over() -> bool:
            try:
                with awake.write() as other:
                    other.execute(take)
            except sa.exc.DBAPIError as error:
                if engine.is_unreachable(error):
                    return False
                raise
            return True

        def stand_still() -> None:
            with still.write() as connection:
                connection.execute(take)
                unrest.until(taken_over, 'the row is free')
                connection.execute(take)

        with pytest.raises(sa.exc.DBAPIError) as caught:
            stand_still()
        assert engine.is_unreachable(caught.value)
        with awake.read() as connection:
            assert connection.execute(sa.text('SELECT taken FROM rows_of_one')).scalar() == 1


def under_way(site: Site) -> None:
    """Four resizes and eight boots, just accepted."""
    gpu, plain = site.flavor('still-gpu', gpus=1), site.flavor('still-plain')
    larger = {gpu: site.flavor('still-gpus', gpus=2, vcpus=2), plain: site.flavor('still-large', vcpus=2)}
    movers = {server: larger[flavor] for flavor in (gpu, plain) for server in site.boot(2, flavor, user='admin')}
    site.at_once(lambda item: site.act(item[0], 'resize', {'flavorRef': item[1]}), movers.items())
    site.at_once(lambda flavor: site.create('still', flavor, user='admin'), [*[gpu] * 5, *[plain] * 3])


@pytest.mark.parametrize('until_the_end', [False, True], ids=['in the middle', 'when all has ended'])
@pytest.mark.parametrize('kind', ['conductor', 'compute'])
def test_it_wakes_up(cloud: Larger, kind: str, until_the_end: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """In the middle of what others do instead of it, or when they have done it all."""
    site, chance = cloud.site, random.Random(f'{SEED} {kind} {until_the_end}')
    name = chance.choice([name for name in cloud.names if name.startswith(kind)])
    with capsys.disabled():
        story = Story()
        story(f'seed {SEED}')
        size = site.log_size(name)
        under_way(site)
        await_task(site, list(site.servers()), chance.choice((EARLY, LATE)))
        unrest.linger(chance.uniform(0, 1))
        cloud.pause(name)
        story(f'{name} stands still')
        try:
            unrest.linger((LEASE if kind == 'conductor' else DOWN) + chance.uniform(1, 5))
            if until_the_end:
                unrest.await_rest(site, lost=name.removeprefix('compute-'))
        finally:
            cloud.resume(name)
        story(f'{name} wakes up')
        if kind == 'conductor':
            unrest.until(lambda: RAN_OUT in site.log_after(name, size), f'{name} notices')
            story(f'{name} says that its lease ran out')
        cloud.await_all()
        unrest.calm(site, story)

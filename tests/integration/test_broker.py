"""RabbitMQ goes away for twenty seconds in the middle of boots."""
from __future__ import annotations

import time
from collections import Counter

from tests.integration.site import Site

AWAY = 20.0


def test_the_broker_is_away_in_the_middle_of_twenty_boots(site: Site) -> None:
    """Every boot comes to an end, nothing is left over, and no daemon had to be restarted."""
    gpu, plain = site.flavor('broker-gpu', gpus=1), site.flavor('broker-plain')
    before = site.pids()
    servers = site.at_once(lambda number: site.create(f'broker-{number}', gpu if number % 3 == 0 else plain), range(20))
    # Some of them are with the hosts by now, most still before.
    time.sleep(1.0)
    site.stop('rabbitmq')
    gone = Counter(row['OS-EXT-STS:task_state'] or row['status'] for row in site.servers().values())
    time.sleep(AWAY)
    site.start('rabbitmq')
    began = time.monotonic()
    shown = site.settle(servers, within=180)
    print(f'BROKER away while {dict(gone)}; all ended {time.monotonic() - began:.1f} s after its return as '
          f'{dict(Counter(row["status"] for row in shown.values()))}')
    for row in shown.values():
        assert row['status'] in ('ACTIVE', 'ERROR')
        if row['status'] == 'ERROR':
            print('  ', row['fault']['message'])
            assert len(row['fault']['message']) > 10 and 'Traceback' not in row['fault']['message']
    assert site.pids() == before
    site.audit()
    # And everything goes on working.
    site.boot(1, plain)
    site.clean()
    site.assert_nothing_held()

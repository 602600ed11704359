"""RabbitMQ goes away for twenty seconds in the middle of boots."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.integration.site import Site

AWAY = 20.0


def test_the_broker_is_away_in_the_middle_of_twenty_boots(site: Site) -> None:
    """Every boot comes to a good end, as hosts are there that could not report for a while; nothing is left over, and
    no daemon had to be restarted."""
    gpu, plain = site.flavor('broker-gpu', gpus=1), site.flavor('broker-plain')
    before = site.pids()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(site.create, f'broker-{number}', plain if number % 3 else gpu) for number in range(20)]
        while not any(row['status'] == 'ACTIVE' for row in site.servers().values()):
            time.sleep(0.02)
        # Some of them are with the hosts by now, most still before; others are yet to be accepted.
        site.stop('rabbitmq')
        servers = [one.result() for one in asked]
        gone = Counter(row['OS-EXT-STS:task_state'] or row['status'] for row in site.servers().values())
        time.sleep(AWAY)
        site.start('rabbitmq')
    began = time.monotonic()
    shown = site.settle(servers, within=180)
    print(
        f'BROKER away while {dict(gone)}; all ended {time.monotonic() - began:.1f} s after its return as '
        f'{dict(Counter(row["status"] for row in shown.values()))}'
    )
    assert gone['ACTIVE'] < 20
    assert {row['status'] for row in shown.values()} == {'ACTIVE'}, site.tell(shown)
    assert site.pids() == before
    site.audit()
    # And everything goes on working.
    site.boot(1, plain)
    site.clean()
    site.assert_nothing_held()

"""kill -9 of each daemon in the middle of boots and of resizes; it is started again and everything comes to an end."""
from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from tests.integration.site import Site

# When to strike: the task state to wait for, and the seconds at most that pass after it was seen.
BOOT_MOMENTS = (('scheduling', 0.3), ('spawning', 0.8))
RESIZE_MOMENTS = (('resize_prep', 0.2), ('resize_migrating', 1.0))
ENDS = ('ACTIVE', 'ERROR', 'VERIFY_RESIZE')


def strike(site: Site, daemon: str, servers: list[str], moment: tuple[str, float]) -> dict[str, dict[str, Any]]:
    """Kill a daemon at the moment, start it again at once, and wait until all has ended; how it ended."""
    seen = site.await_task(servers, moment[0])
    time.sleep(random.uniform(0, moment[1]))
    at_strike = Counter(row['OS-EXT-STS:task_state'] or row['status'] for name, row in site.servers().items()
                        if name in servers)
    site.kill(daemon)
    began = time.monotonic()
    site.start(daemon)
    back = time.monotonic()
    shown = site.settle(servers)
    print(f'kill {daemon} at {moment[0]} ({"seen" if seen else "missed"}; {dict(at_strike)}): back after '
          f'{back - began:.1f} s, all ended after {time.monotonic() - began:.1f} s as '
          f'{dict(Counter(row["status"] for row in shown.values()))}')
    for row in shown.values():
        if 'fault' in row:
            print(f'  {row["status"]}: {row["fault"]["message"]}')
    return shown


def assert_readable(shown: Iterable[dict[str, Any]]) -> None:
    """An end state, and where it is ERROR a fault in words."""
    for row in shown:
        assert row['status'] in ENDS
        if row['status'] == 'ERROR':
            message = row['fault']['message']
            assert len(message) > 10 and ' ' in message and 'Traceback' not in message, message


@pytest.mark.parametrize('daemon', ['conductor', 'scheduler', 'api', 'compute-gpu1'])
def test_a_daemon_is_killed_in_the_middle_of_boots(site: Site, daemon: str) -> None:
    """Six boots with a GPU each, two without, struck twice while they go on."""
    with_gpu, plain = site.flavor('kill-gpu', gpus=1), site.flavor('kill-plain')
    for moment in BOOT_MOMENTS:
        servers = site.at_once(lambda number: site.create(f'kill-{number}', plain if number % 4 == 3 else with_gpu),
                               range(8))
        assert_readable(strike(site, daemon, servers, moment).values())
        site.audit()
        site.clean()
    site.assert_nothing_held()


@pytest.mark.parametrize('daemon', ['conductor', 'scheduler', 'api', 'compute-gpu1', 'compute-gpu2'])
def test_a_daemon_is_killed_in_the_middle_of_resizes(site: Site, daemon: str) -> None:
    """Servers of gpu1 resize, so gpu2 is their destination; struck at one moment, confirmed or reverted afterwards."""
    before, after = site.flavor('kill-one', gpus=1), site.flavor('kill-two', gpus=2, vcpus=2, ram=1024)
    small, large = site.flavor('kill-plain'), site.flavor('kill-large', vcpus=2, ram=1024)
    targets = {}
    for flavor, target, count in ((before, after, 2), (small, large, 2)):
        targets |= dict.fromkeys(site.boot(count, flavor, user='admin', host='gpu1'), target)
    for moment in RESIZE_MOMENTS:
        site.at_once(lambda item: site.act(item[0], 'resize', {'flavorRef': item[1]}), targets.items())
        shown = strike(site, daemon, list(targets), moment)
        assert_readable(shown.values())
        for name, row in shown.items():
            if row['status'] == 'ACTIVE':
                assert_failed_action(site, name)
        site.audit()
        moved = [name for name, row in shown.items() if row['status'] == 'VERIFY_RESIZE']
        for name in moved:
            site.act(name, 'revertResize')
        reverted = site.settle(moved)
        assert {row['status'] for row in reverted.values()} <= {'ACTIVE'}, site.tell(reverted)
        assert {row['OS-EXT-SRV-ATTR:host'] for row in reverted.values()} <= {'gpu1'}
        targets = {name: target for name, target in targets.items() if shown[name]['status'] != 'ERROR'}
    site.audit()
    site.clean()
    site.assert_nothing_held()


def assert_failed_action(site: Site, server: str) -> None:
    """A server that stayed as it was: its newest action is a resize that says that it failed, and why."""
    newest = site.call('GET', f'/servers/{server}/os-instance-actions', user='admin')['instanceActions'][0]
    assert (newest['action'], newest['message']) == ('resize', 'Error')
    story = site.call('GET', f'/servers/{server}/os-instance-actions/{newest["request_id"]}', user='admin')
    events = story['instanceAction']['events']
    assert any(event['result'] == 'Error' and event.get('details') for event in events), events

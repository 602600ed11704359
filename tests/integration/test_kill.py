"""kill -9 of each daemon in the middle of boots and resizes; it is started again and everything comes to an end."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from tests.integration.site import Site, under_way

ENDS = ('ACTIVE', 'ERROR', 'VERIFY_RESIZE')
# Task states of which one must have been seen before the strike: any, or one in which a host is at work.
EARLY = ('scheduling', 'resize_prep')
LATE = ('block_device_mapping', 'spawning', 'resize_migrated', 'resize_finish')


def await_task(site: Site, servers: list[str], moment: tuple[str, ...]) -> None:
    """Return when a server has one of the task states, or when all have ended before that was seen."""
    while True:
        rows = [row for name, row in site.servers().items() if name in servers]
        if any(row['OS-EXT-STS:task_state'] in moment for row in rows) or not any(map(under_way, rows)):
            return


def strike(site: Site, daemon: str, servers: list[str], moment: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Kill a daemon while the servers are under way, start it again at once, wait until all has ended; how it did."""
    await_task(site, servers, moment)
    time.sleep(random.uniform(0, 0.4))
    rows = {name: row for name, row in site.servers().items() if name in servers}
    site.kill(daemon)
    began = time.monotonic()
    site.start(daemon)
    back = time.monotonic()
    shown = site.settle(servers)
    doing = Counter(row['OS-EXT-STS:task_state'] for row in rows.values() if under_way(row))
    print(
        f'KILLED {daemon} while {dict(doing)}: back after {back - began:.1f} s, all ended after '
        f'{time.monotonic() - began:.1f} s as {dict(Counter(row["status"] for row in shown.values()))}'
    )
    for row in shown.values():
        if 'fault' in row:
            print(f'  {row["status"]}: {row["fault"]["message"]}')
    return shown


def assert_readable(rows: Iterable[dict[str, Any]]) -> None:
    """An end state, and where it is ERROR a fault in words."""
    for row in rows:
        assert row['status'] in ENDS
        if row['status'] == 'ERROR':
            message = row['fault']['message']
            assert len(message) > 10 and ' ' in message and 'Traceback' not in message, message


def assert_says_why(site: Site, server: str) -> None:
    """A server that stayed as it was: its newest action is a resize that says that it failed, and why."""
    newest = site.call('GET', f'/servers/{server}/os-instance-actions', user='admin')['instanceActions'][0]
    assert (newest['action'], newest['message'][:5]) == ('resize', 'Error')
    story = site.call('GET', f'/servers/{server}/os-instance-actions/{newest["request_id"]}', user='admin')
    events = story['instanceAction']['events']
    assert any(event['result'] == 'Error' and event.get('details') for event in events), events


def round_of(site: Site, daemon: str, movers: dict[str, str], moment: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Five boots and the resizes of ``movers`` (server → flavor) at once, struck; the movers as they ended."""
    gpu, plain = site.flavor('kill-gpu', gpus=1), site.flavor('kill-plain')
    site.at_once(lambda item: site.act(item[0], 'resize', {'flavorRef': item[1]}), movers.items())
    boots = site.at_once(lambda flavor: site.create('kill-boot', flavor), [gpu, gpu, gpu, plain, plain])
    shown = strike(site, daemon, [*movers, *boots], moment)
    assert_readable(shown.values())
    site.audit()
    moved = {name: row for name, row in shown.items() if name in movers}
    for name, row in moved.items():
        if row['status'] == 'ACTIVE':
            assert_says_why(site, name)
    site.at_once(lambda name: site.send('DELETE', f'/servers/{name}', user='admin'), boots)
    return moved


@pytest.mark.parametrize('daemon', ['conductor', 'scheduler', 'api', 'compute-gpu1', 'compute-gpu2'])
def test_a_daemon_is_killed_in_the_middle_of_boots_and_resizes(site: Site, daemon: str) -> None:
    """Each daemon is killed in turn while servers boot and resize, and each starts again by itself. The resized
    servers are on gpu1, so gpu2 is their destination. The moves are reverted, then repeated and confirmed. A
    conductor that starts again reports that it does not wait for the lease of its predecessor."""
    gpu, plain = site.flavor('kill-gpu', gpus=1), site.flavor('kill-plain')
    larger_gpu = site.flavor('kill-gpu-large', gpus=1, vcpus=2, ram=1024)
    larger = site.flavor('kill-large', vcpus=2, ram=1024)
    movers = {}
    for flavor, target in ((gpu, larger_gpu), (plain, larger)):
        movers |= dict.fromkeys(site.boot(2, flavor, user='admin', host='gpu1'), target)

    moved = round_of(site, daemon, movers, EARLY)
    resized = [name for name, row in moved.items() if row['status'] == 'VERIFY_RESIZE']
    site.at_once(lambda name: site.act(name, 'revertResize'), resized)
    back = site.await_status(resized, 'ACTIVE')
    assert {row['OS-EXT-SRV-ATTR:host'] for row in back.values()} <= {'gpu1'}
    movers = {name: target for name, target in movers.items() if moved[name]['status'] != 'ERROR'}
    if movers:
        moved = round_of(site, daemon, movers, LATE)
        resized = [name for name, row in moved.items() if row['status'] == 'VERIFY_RESIZE']
        site.at_once(lambda name: site.act(name, 'confirmResize'), resized)
        site.await_status(resized, 'ACTIVE')
        site.audit()
    if daemon == 'conductor':
        assert ' is dead; other conductors take over its operations in ' in site.layout.log('conductor').read_text()
    site.clean()
    site.assert_nothing_held()

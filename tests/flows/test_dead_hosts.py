"""A host dies for good in the middle of a flow, and comes back much later.

Another host takes a boot; a resize is undone; what only goes forward leaves a pending release or waits for the host.
"""
from __future__ import annotations

import threading

import pytest

from kilonova.errors import Unanswered
from tests.fixtures.cloud import Crash
from tests.flows.cases import CASES, MOMENTS, bring_back, check, clear, lose_host

# What still waits then: the server of a revert can only be where it was.
WAITING = ('release', 'revert')


@pytest.mark.parametrize(('name', 'moment'), MOMENTS)
def test_a_host_dies_for_good_at_each_upcall_in_turn(ground, name, moment):
    """Before each thing that it tells the conductor, or right after each third: what is before the next is like it."""
    case, number, gone = CASES[name], 0, ['yes']
    while gone:
        server, seen, gone, hosts = case.before(ground), [], [], {}

        def on_message(kind, topic, host, method, args, deliver, number=number, seen=seen, gone=gone, hosts=hosts):
            # Of this thread alone: heartbeats of the same host come from another one.
            worker = threading.get_ident()
            if topic == 'compute' and kind != 'cast':
                hosts[worker] = host
                try:
                    return deliver()
                except Crash:
                    gone.append(host)
                    lose_host(ground, host)
                    raise Unanswered(who=host, reason='crashed') from None
                finally:
                    hosts.pop(worker, None)
            if topic == 'conductor' and worker in hosts and not gone:
                seen.append(method)
                if len(seen) - 1 == number:
                    if moment == 'after':
                        deliver()
                    raise Crash
            return deliver()
        ground.on_message = on_message
        server = case.act(ground, server)
        ground.settle(kinds_left=WAITING)
        ground.on_message = None
        if gone:
            assert {row['kind'] for row in ground.rows()} <= set(WAITING)
            if case.kind == 'boot':
                assert ground.status(server) == case.good
                # Right after the save that ended it the server is at home there.
                assert ground.host_of(server) not in gone or moment == 'after'
            bring_back(ground, gone[0])
        check(ground, case, server, *case.ends)
        clear(ground)
        number += 3 if moment == 'after' else case.stride
    assert number > 1, f'{name} has no upcall'

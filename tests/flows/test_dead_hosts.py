"""A host dies for good in the middle of a flow, and comes back much later.

Another host takes a boot; a resize is undone; what only goes forward leaves a pending release or waits for the host.
"""

from __future__ import annotations

import pytest

from tests.flows.cases import CASES, MOMENTS, WAITING, bring_back, check, clear, dies_at


@pytest.mark.parametrize(('name', 'moment'), MOMENTS)
def test_a_host_dies_for_good_at_each_upcall_in_turn(ground, name, moment):
    """Before each thing that it tells the conductor, or right after each third: what is before the next is like it."""
    case, number, gone = CASES[name], 0, True
    while gone:
        server = case.before(ground)
        death = dies_at(ground, number, moment)
        server = case.act(ground, server)
        ground.settle(kinds_left=WAITING)
        ground.on_message = None
        gone = death.gone is not None
        if death.gone is not None:
            assert {row['kind'] for row in ground.rows()} <= set(WAITING)
            if case.kind == 'boot':
                assert ground.status(server) == case.good
                # Right after the save that ended it the server is at home there.
                assert ground.host_of(server) != death.gone or moment == 'after'
            bring_back(ground, death.gone)
        check(ground, case, server, *case.ends)
        clear(ground)
        number += 3 if moment == 'after' else case.stride
    assert number > 1, f'{name} has no upcall'

"""No request costs more than a bound, whatever is in it; no random one is answered with 5xx."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from kilonova.api.routes import ROUTES
from kilonova.api.schemas.base import at
from tests.api import counts, examples, hostile, mutants, table

# Bytes that Python may hold more while a request is worked on: a body of 110 kB becomes some millions as values, and
# what is said about it.
MEMORY = 32 * 2**20
WITH_BODY = [route for route in ROUTES if route.body is not None and not table.is_gone(route)]
COUNT = 2000


def distinct():
    """(route, place): each place of each schema once, and the whole body of each route."""
    done = set()
    for route in WITH_BODY:
        yield route, None
        for place in mutants.places(at(route.body, route.until)):
            known = json.dumps(place.schema, sort_keys=True)
            if known not in done:
                done.add(known)
                yield route, place


PLACES = list(distinct())


def _plain(world, asked):
    return hostile.spend(world, asked), 0


def _traced(world, asked):
    """With the most bytes that were held more meanwhile; that multiplies the time."""
    tracemalloc.start()
    try:
        spent = hostile.spend(world, asked)
        return spent, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize('shape', hostile.SHAPES)
def test_what_a_shape_costs(world, shape):
    """Hostile values in any property or body cost little CPU time and memory and never give a 5xx other than 501.

    Each value of hostile.SHAPES is sent to a sixth of the places: a property of a schema, or the body of a route. The
    limit is in CPU-seconds of the process, not in elapsed time.
    """
    text = hostile.SHAPES[shape]()
    hole = json.dumps('HOLE')
    sent, slow = 0, []
    turn = list(hostile.SHAPES).index(shape)
    for number, (route, place) in enumerate(PLACES):
        # Some of the places for each shape: together all are looked at, and it stays cheap.
        if (number + turn) % 6:
            continue
        example = examples.of(route)
        body = world.fill(example.body_at(route, route.until))
        if place is None:
            raw = text
        elif isinstance(body, dict):
            raw = json.dumps(mutants.put(body, place.path, 'HOLE')).replace(hole, text)
        else:
            continue
        path = examples.path_of(world, route, example, route.until)
        asked = hostile.Asked(route.method, path, raw.encode(), route.until, 'admin')
        spent, peak = (_traced if (number + turn) % 24 == 0 else _plain)(world, asked)
        sent += 1
        if spent.status in (500, *range(502, 600)) or spent.seconds > 2 * hostile.MOST or peak > MEMORY:
            slow.append((table.key(route), place and place.path, spent, f'{peak / 2**20:.0f} MB'))
    counts.REQUESTS['hostile'] += sent
    assert sent > 20
    assert slow == []


@pytest.mark.parametrize(('floors', 'status'), [(60, 202), (65, 400), (400, 400), (5000, 400)])
def test_how_deep_a_body_may_be(world, floors, status):
    """Who gets it next reads it with less room on its stack."""
    body = {
        'server': {'name': 's', 'flavorRef': '1', 'imageRef': world.names['image'], 'networks': 'none'},
        'os:scheduler_hints': {'mine': 'HOLE'},
    }
    raw = json.dumps(body).replace('"HOLE"', '[' * (floors - 2) + ']' * (floors - 2))
    assert world.request('POST', '/servers', raw=raw.encode(), role='member').status_int == status


def test_what_is_over_the_bound_is_not_looked_at(world):
    """A body of a megabyte is refused by its length, on each route."""
    raw = b'{"a": "' + b'x' * 2**20 + b'"}'
    for route in WITH_BODY:
        path = examples.path_of(world, route, examples.of(route), route.until)
        spent = hostile.spend(world, hostile.Asked(route.method, path, raw, route.until))
        assert (spent.status, spent.seconds < 0.1) == (413, True), table.key(route)


def test_random_requests(world):
    """The same on each run; ``make fuzz N=20000 SEED=7`` sends more."""
    told, wrong = hostile.fuzz(world, COUNT, 1)
    counts.REQUESTS['hostile'] += COUNT
    assert wrong == []
    assert sum(told.values()) == COUNT
    # Near enough to the truth that many are taken.
    assert sum(number for status, number in told.items() if status < 300) > COUNT / 10

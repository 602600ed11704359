"""Every route at every version where something of it changes, against the samples in docs/reference/api-samples.

``KILONOVA_WRITE_SAMPLES=1`` writes them; what a change did to the API is then to be read in the difference.
"""

from __future__ import annotations

import os

import pytest

from kilonova.api.routes import ROUTES
from kilonova.api.wsgi import Route
from tests.api import counts, examples, samples, table

WRITE = os.environ.get('KILONOVA_WRITE_SAMPLES') == '1'
WALKED = [route for route in ROUTES if not table.is_gone(route) and table.twin(route.path) == route.path]
# Rows that follow one another in time share their samples' name.
GROUPS: dict[str, list[Route]] = {}
for _route in WALKED:
    GROUPS.setdefault(table.sample_name(_route), []).append(_route)


def walk(world, route):
    """{version: sample} of a route."""
    found, example = {}, examples.of(route)
    for version in table.versions_of(route):
        response = examples.ask(world, route, version)
        counts.REQUESTS['walk'] += 1
        wanted = example.status_at(route, version)
        assert response.status_int == wanted, f'{table.key(route)} at 2.{version}: {response.status} {response.text}'
        path = examples.path_of(world, route, example, version)
        body = world.fill(example.body_at(route, version))
        found[version] = samples.of_answer(path, route.method, body, response)
        world.restore()
    return found


@pytest.mark.parametrize('name', GROUPS)
def test_answers_are_those_of_the_samples(world, name):
    answers = {}
    for route in GROUPS[name]:
        if examples.of(route) is None:
            pytest.fail(f'{table.key(route)} has no example')
        answers.update(walk(world, route))
    if WRITE:
        samples.write(name, answers)
    kept, wanted = samples.read(name), samples.grouped(answers)
    assert sorted(kept) == sorted(wanted), f'{name}: versions with samples, and versions whose answers are new'
    for version, sample in wanted.items():
        assert samples.text(kept[version]) == samples.text(sample), f'{name}-2.{version}.json'


def test_routes_that_share_samples_answer_alike(world):
    """The old name of a path answers as the new one does."""
    rows = {table.key(route): route for route in WALKED}
    for route in ROUTES:
        new = table.twin(route.path)
        if new == route.path or table.is_gone(route):
            continue
        other = rows[table.key(route).replace(route.path, new)]
        answers = []
        for each in (route, other):
            response = examples.ask(world, each, route.until)
            counts.REQUESTS['walk'] += 1
            answers.append(samples.plain([response.status_int, response.json if response.body else None]))
            world.restore()
        assert answers[0] == answers[1], table.key(route)


def test_every_sample_belongs_to_a_route():
    wanted = {path for route in WALKED for path in samples.files(table.sample_name(route)).values()}
    assert {path for path in samples.ROOT.rglob('*') if path.is_file()} == wanted


@pytest.mark.parametrize('route', [route for route in ROUTES if (route.since, route.until) != (1, 104)], ids=table.key)
def test_outside_their_versions_routes_do_not_exist(world, route):
    rows = [row for row in ROUTES if (row.method, row.path, row.action) == (route.method, route.path, route.action)]
    for version in (route.since - 1, route.until + 1):
        if not 1 <= version <= 104 or any(row.since <= version <= row.until for row in rows):
            continue
        body = {route.action: None} if route.action else {} if route.method in ('POST', 'PUT') else None
        path = examples.path_of(world, route, examples.of(route), version).partition('?')[0]
        assert world.fault(route.method, path, body, version=version) == (404, 'The resource could not be found.')
        counts.REQUESTS['walk'] += 1


def test_versions_of_a_route_are_read_from_its_tables():
    by_name = {table.key(route): route for route in ROUTES}
    show, put = by_name['GET /servers/{server_id}'], by_name['PUT /flavors/{flavor_id}']
    assert {1, 2, 3, 8, 9, 46, 47, 97, 98, 104} <= set(table.versions_of(show))
    assert min(table.versions_of(put)) == 55

"""Bad input, made from the schemas: the expected code in the field's form, the culprit named, and nothing written."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

import pytest

from kilonova.api import faults
from kilonova.api.routes import ROUTES
from kilonova.api.schemas.base import at
from tests.api import counts, examples, mutants, table
from tests.api.world import UNKNOWN

LIVE = [route for route in ROUTES if not table.is_gone(route) and table.twin(route.path) == route.path]
WITH_BODY = [route for route in LIVE if route.body is not None]
WITH_PATH = [route for route in LIVE if '{' in route.path]


def refuse(world, codes, route, path, body=None, *, what, named=(), **kwargs):
    """Ask, and see that it is refused as it should be."""
    response = world.request(route.method, path, body, **kwargs)
    counts.REQUESTS['bad input'] += 1
    told = f'{table.key(route)} {what}: {response.status} {response.text[:500]}'
    assert response.status_int in codes, told
    code = response.status_int
    assert response.content_type == 'application/json', told
    assert list(response.json) == [faults.name(code)], told
    fault = response.json[faults.name(code)]
    assert set(fault) == {'code', 'message'} and fault['code'] == code and fault['message'], told
    assert not named or any(word in fault['message'] for word in named), f'{told}: names none of {named}'
    changed = world.changed()
    assert not changed, f'{told}: wrote to {changed}: {world.difference()}'
    return fault['message']


def good(world, route, version):
    """(path, body, schema) of a route's example."""
    example = examples.of(route)
    path = examples.path_of(world, route, example, version).partition('?')[0]
    return path, world.fill(example.body_at(route, version)), at(route.body, version) if route.body else None


def edges(route):
    """Versions where the body is another than before."""
    found = {version for version in table._edges(route.body) if route.since < version <= route.until}
    return sorted(found)


# --- bodies ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('route', WITH_BODY, ids=table.key)
def test_properties_that_are_wrong(world, route):
    examples.ready(world, examples.of(route))
    world.mark()
    done: set[str] = set()
    for version in sorted({route.since, *edges(route), route.until}, reverse=True):
        path, body, schema = good(world, route, version)
        for place in mutants.places(schema):
            known = json.dumps([place.path, place.schema], sort_keys=True)
            if known in done and version != route.since:
                continue
            done.add(known)
            for mutant in mutants.of_place(body, schema, place, short=version == route.since != route.until):
                raw = json.dumps(mutant.body).encode()
                refuse(
                    world,
                    (413,) if len(raw) > 114688 else (400,),
                    route,
                    path,
                    raw=raw,
                    version=version,
                    what=f'2.{version} {mutant.what}',
                    named=() if len(raw) > 114688 else mutant.named,
                )
        for mutant in mutants.of_objects(body, schema) if version in (route.since, route.until) else ():
            named = () if route.action and 'without' in mutant.what else mutant.named
            refuse(
                world, (400,), route, path, mutant.body, version=version, what=f'2.{version} {mutant.what}', named=named
            )


@pytest.mark.parametrize('route', [route for route in WITH_BODY if edges(route)], ids=table.key)
def test_properties_outside_their_versions(world, route):
    """What a version brings is a stranger the version before, what it takes away is one from then on."""
    examples.ready(world, examples.of(route))
    world.mark()
    for edge in edges(route):
        for version, other in ((edge - 1, edge), (edge, edge - 1)):
            path, body, schema = good(world, route, version)
            mine = {place.path for place in mutants.places(schema)}
            for place in mutants.places(at(route.body, other)):
                if place.path in mine:
                    continue
                value = mutants._good(place.schema)
                mutant = mutants.put(body, place.path, value)
                if mutants.validator(schema).is_valid(mutant):
                    continue
                refuse(
                    world,
                    (400,),
                    route,
                    path,
                    mutant,
                    version=version,
                    what=f'2.{version} {place.path}',
                    named=(f"'{place.path[-1]}' was unexpected", str(place.path[-2:][0])),
                )


BROKEN = [
    b'{',
    b'[]',
    b'null',
    b'"x"',
    b'1',
    b'true',
    b'\xff\xfe',
    b'{"a": NaN}',
    b'{"a": Infinity}',
    b'{"a": 1e999}',
    b'{"a" 1}',
    b"{'a': 1}",
    b'{"a": "\xed\xa0\x80"}',
    b'{"a": "\x00"}',
    b'{"a": "\\u0000"}',
    b'{"a": "\\ud800"}',
    b'{"\\udfff": 1}',
    b'{"a": ' + b'9' * 5000 + b'}',
    b'{"a": ' + b'[' * 20000 + b']' * 20000 + b'}',
    b'{"a": ' + b'{"a": ' * 10000,
]


@pytest.mark.parametrize('route', WITH_BODY, ids=table.key)
def test_bodies_that_are_none(world, route):
    examples.ready(world, examples.of(route))
    world.mark()
    path, body, _ = good(world, route, route.until)
    version, whole = route.until, json.dumps(body).encode()
    for raw in BROKEN:
        if raw == b'null' and at(route.body, version) == {'type': 'null'}:
            continue
        refuse(world, (400,), route, path, raw=raw, version=version, what=raw[:40])
    if at(route.body, version) != {'type': 'null'}:
        refuse(world, (400,), route, path, raw=b'', version=version, what='empty')
    refuse(
        world,
        (413,),
        route,
        path,
        raw=b'{"a": "' + b'x' * 114688 + b'"}',
        version=version,
        what='huge',
        named=('Request is too large.',),
    )
    for kind in ('application/xml', 'text/html', 'multipart/form-data', 'application/x-www-form-urlencoded'):
        refuse(world, (415,), route, path, raw=whole, version=version, what=kind, headers={'Content-Type': kind})
    # A type that says nothing says that there is no body.
    for kind in ('text/plain', '') if at(route.body, version) != {'type': 'null'} else ():
        refuse(world, (400,), route, path, raw=whole, version=version, what=kind, headers={'Content-Type': kind})


@pytest.mark.parametrize('number', ['NaN', 'Infinity', '-Infinity', '1e999', '-1e999', '1' + '0' * 400 + '.0'])
def test_numbers_that_are_none(world, number):
    """Where anything may stand, too: what is no number can't be written as JSON again."""
    route = next(route for route in LIVE if (route.method, route.path) == ('POST', '/servers'))
    path, body, _ = good(world, route, route.until)
    body = {**body, 'os:scheduler_hints': {'mine': ['NUMBER']}}
    raw = json.dumps(body).replace('"NUMBER"', number).encode()
    refuse(world, (400,), route, path, raw=raw, what=number, named=('Malformed request body',))


def test_versions_that_are_none(world):
    route = LIVE[0]
    for text, code in (
        ('2.105', 406),
        ('3.1', 406),
        ('2.0', 406),
        ('1.1', 406),
        ('2.99999999999999999999', 406),
        ('2', 400),
        ('x', 400),
        ('2.01', 400),
        ('-2.1', 400),
        ('2.1.1', 400),
        ('٢.١', 400),
    ):
        header = {'OpenStack-API-Version': f'compute {text}'.encode().decode('latin-1')}
        refuse(world, (code,), route, '/servers', version=None, headers=header, what=text)


# --- queries ---------------------------------------------------------------------------------------------------------
BAD_TEXTS = [
    '',
    ' ',
    '-1',
    '1.5',
    'x',
    '9' * 30,
    'x' * 5000,
    'a,b',
    '💩',
    '2026-13-01T00:00:00Z',
    'yesterday',
    '[',
    '(?P<n',
    '0001-01-01T00:00:00-23:00',
    '\n',
    "';--",
    '%s',
    UNKNOWN,
]


# A list and its detailed form share their schema: one of them is enough.
ASKED = [
    route
    for number, route in enumerate(LIVE)
    if not route.query.props or all(route.query is not other.query for other in LIVE[:number])
]


@pytest.mark.parametrize('route', ASKED, ids=table.key)
def test_parameters_that_are_wrong(world, route):
    """A bad value is refused also where a good one stands beside it; what no version knows is refused from the
    version on that says so."""
    example = examples.of(route)
    examples.ready(world, example)
    world.mark()
    starts = {prop.since for prop in route.query.props} | {prop.until + 1 for prop in route.query.props}
    for version in sorted({route.since, route.until} | {each for each in starts if route.since < each <= route.until}):
        path, body, _ = good(world, route, version)
        for prop in route.query.props:
            if not prop.holds(version) or (version not in (prop.since, route.since, route.until)):
                continue
            judge = mutants.validator(at(prop.schema, version))
            bad = [text for text in BAD_TEXTS if not judge.is_valid(text)]
            for text in bad:
                refuse(
                    world,
                    (400,),
                    route,
                    f'{path}?{prop.name}={quote(text)}',
                    body,
                    version=version,
                    what=f'2.{version} {prop.name}={text[:40]!r}',
                    named=(prop.name,),
                )
            known = mutants._good(at(prop.schema, version))
            if bad and isinstance(known, str):
                pair = f'{prop.name}={quote(known)}&{prop.name}={quote(bad[-1])}'
                refuse(world, (400,), route, f'{path}?{pair}', body, version=version, what=pair, named=(prop.name,))
        if version >= route.query.strict_since:
            refuse(world, (400,), route, f'{path}?nosuch=1', body, version=version, what='nosuch', named=('nosuch',))
    for text in ('a=%ff', '%ff=1', 'a=%00', '%00=1'):
        refuse(world, (400,), route, f'{path}?{text}', body, version=version, what=text)


@pytest.mark.parametrize('route', [route for route in LIVE if route.method == 'GET'], ids=table.key)
def test_older_versions_pass_over_what_they_do_not_know(world, route):
    version = min(route.query.strict_since - 1, route.until)
    if version < route.since:
        return
    example = examples.of(route)
    plain = examples.ask(world, route, version, example=example)
    path, _, _ = good(world, route, version)
    response = world.request('GET', f'{path}?nosuch=1', version=version)
    counts.REQUESTS['bad input'] += 2
    assert response.status_int == plain.status_int, response.text


# --- ids -------------------------------------------------------------------------------------------------------------
# Variables that name anything one likes: an answer for them is no mistake.
FREE = {'tenant_id'}
MALFORMED = [
    '%ff',
    '%00',
    '%C3%28',
    'x' * 300,
    'x' * 5000,
    '..',
    '%20',
    'a%0Ab',
    "';--",
    '%F0%9F%92%A9',
    '-1',
    '0',
    '9' * 40,
    '1e9',
    'None',
    '%7B%7D',
    '*',
    '%25',
]


@pytest.mark.parametrize('route', WITH_PATH, ids=table.key)
def test_ids_of_nothing(world, route):
    """404 for what could be an id; what could be none may be told so."""
    example = examples.of(route)
    examples.ready(world, example)
    world.mark()
    for version in sorted({route.since, route.until}):
        _, body, _ = good(world, route, version)
        for variable in re.findall(r'\{(\w+)\}', route.path):
            if variable in FREE or variable in example.free:
                continue
            usual = examples.path_of(world, route, example, version).partition('?')[0]
            for text in (UNKNOWN, 'nosuch', '987654321', *(MALFORMED if version == route.until else ())):
                path = _with(world, route, example, version, variable, text)
                if path == usual:
                    continue
                codes = (404,) if variable not in example.loose and text in (UNKNOWN, '987654321') else (400, 404)
                if (text == UNKNOWN) != _by_uuid(variable, version):
                    codes = (400, 404)
                refuse(world, codes, route, path, body, version=version, what=f'2.{version} {variable}={text[:40]}')


def _by_uuid(variable, version):
    since, _ = examples.NUMBERS.get(variable, (1, ''))
    return version >= since and variable != 'aggregate_id'


def _with(world, route, example, version, variable, text):
    """The path with one variable of another value."""
    marker = 'QQQQ'
    names = {**example.names, variable: marker}
    path = route.path
    for name, (since, number) in examples.NUMBERS.items():
        if version < since and name not in names:
            path = path.replace(f'{{{name}}}', f'{{{number}}}')
    for name, value in names.items():
        path = path.replace(f'{{{name}}}', value)
    return world.fill(path).replace(marker, text)

"""Hostile requests: values that cost much to look at, and seeded random ones made from the route table and its schemas.

    raw = SHAPES['a deep list']()                      # JSON, smaller than a body may be
    for request in requests(random.Random(7), world, 100): spend(world, request).seconds

``python -m tests.api.hostile 20000 7`` (``make fuzz N=20000 SEED=7``) sends so many and prints what is answered with
5xx or costs more than a CPU-second, so that it can be sent again.
"""

from __future__ import annotations

import json
import pathlib
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from kilonova.api.routes import ROUTES
from kilonova.api.schemas.base import at
from kilonova.api.wsgi import Route
from tests.api import examples, mutants, table

# Bytes of the largest body; the shapes stay below it with all that is around them.
BOUND, FILL = 114688, 110000
# CPU-seconds that a request may cost.
MOST = 1.0


def _filled(item: Callable[[int], Any]) -> list[Any]:
    """As many items as there is room for."""
    found: list[Any] = []
    size = number = 0
    while size < FILL - 1000:
        found.append(item(number))
        size += len(json.dumps(found[-1])) + 2
        number += 1
    return found


def _nested(opening: str, closing: str, depth: int) -> Any:
    """Written as text: Python makes no such value."""
    return opening * depth + '0' + closing * depth


# What a value may be: JSON.
SHAPES: dict[str, Callable[[], str]] = {
    'a deep list': lambda: _nested('[', ']', FILL // 2 - 10),
    'a list of a few hundred floors': lambda: _nested('[', ']', 400),
    'objects of a few hundred floors': lambda: _nested('{"a":', '}', 400),
    'objects of sixty floors, many': lambda: json.dumps([_tower(60)] * (FILL // 450)),
    'mixed items': lambda: json.dumps(
        _filled(lambda number: (number, str(number), {'a': number}, [number], None)[number % 5])
    ),
    'equal objects': lambda: json.dumps(_filled(lambda number: {'a': 1, 'b': [2]})),
    'empty lists': lambda: json.dumps([[]] * (FILL // 4)),
    'zeros': lambda: json.dumps([0] * (FILL // 3)),
    'many keys': lambda: json.dumps({f'{number:x}': 0 for number in range(FILL // 11)}),
    'keys with a space': lambda: json.dumps({f' {number:x}': '' for number in range(FILL // 13)}),
    'letters': lambda: json.dumps('a' * FILL),
    'letters and a sign': lambda: json.dumps('a' * (FILL - 1) + '!'),
    'digits': lambda: json.dumps('1' * FILL),
    'a large number': lambda: '1' * 4000,
    'a number that is too large': lambda: '1' * FILL,
    'a small float': lambda: '0.' + '0' * 4000 + '1',
    'dots': lambda: json.dumps('a.' * (FILL // 2)),
    'colons': lambda: json.dumps(':' * FILL),
    'dashes': lambda: json.dumps('-' * FILL),
    'spaces': lambda: json.dumps(' ' * FILL),
    'commas': lambda: json.dumps('1-2,' * (FILL // 4)),
    'escapes': lambda: '"' + '\\u0000' * (FILL // 6) + '"',
    'lines': lambda: json.dumps('\n' * (FILL // 2)),
    'half characters': lambda: '"' + '\\ud800' * (FILL // 6) + '"',
    'wide characters': lambda: json.dumps('\U0001f4a9' * (FILL // 4), ensure_ascii=False),
    'a date': lambda: json.dumps('2026-01-01T' + '0' * (FILL - 20)),
}


def _tower(depth: int) -> Any:
    made: Any = 0
    for _ in range(depth):
        made = {'a': made}
    return made


@dataclass(frozen=True)
class Asked:
    """A request, as it can be sent again."""

    method: str
    path: str
    raw: bytes | None
    version: int
    role: str = 'member'


@dataclass(frozen=True)
class Spent:
    """What came of it: the status, and CPU-seconds of this thread."""

    status: int
    seconds: float


def spend(world: Any, asked: Asked) -> Spent:
    """Send it."""
    begun = time.thread_time()
    answer = world.request(asked.method, asked.path, raw=asked.raw, version=asked.version, role=asked.role)
    return Spent(answer.status_int, time.thread_time() - begun)


# --- random ones -----------------------------------------------------------------------------------------------------
_HOLE = '"\x7fHOLE\x7f"'
_WORDS = (
    '',
    ' ',
    'a',
    'a' * 64,
    'a' * 255,
    'a' * 256,
    'a\n',
    '\n',
    '-',
    '0',
    '-1',
    '1' * 25,
    '9' * 5000,
    '1e9',
    'NaN',
    'None',
    'null',
    '%00',
    '../..',
    "';--",
    '*',
    '(a+)+$',
    '^(a|aa)+$',
    '(',
    '[',
    '\\',
    '(.*a){25}',
    'a{1000}',
    '१',
    '💩',
    '\ud7ff',
    'İ',
    'true',
    'x:y:z',
    ':::',
    '0-99999999',
    '^0',
    '2026-01-01',
    '0001-01-01T00:00:00-23:59',
    '9999-12-31T23:59:59+14:00',
    '::1',
    '300.1.1.1',
    '0fffffff-ffff-4fff-8fff-ffffffffffff',
    'gpu:99999999999',
)
_NUMBERS = (0, -1, 1, 2**31 - 1, 2**31, 2**63, -(2**63) - 1, 10**300, 1.5, 1e308, -0.0, 1e-320)


def _value(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.randrange(9 if depth < 3 else 6)
    if kind < 3:
        return dice.choice(_WORDS)
    if kind < 5:
        return dice.choice(_NUMBERS)
    if kind == 5:
        return dice.choice((None, True, False))
    if kind == 6:
        return [_value(dice, depth + 1) for _ in range(dice.choice((0, 1, 2, 5, 60)))]
    if kind == 7:
        return {dice.choice(_WORDS): _value(dice, depth + 1) for _ in range(dice.choice((0, 1, 2, 5, 30)))}
    return [dice.choice(_WORDS)] * dice.choice((1, 2, 300))


def _raw(dice: random.Random, route: Route, version: int, body: Any) -> bytes:
    """A body that is nearly right: one or two of its places hold something else, or a shape."""
    kind = dice.randrange(20)
    if kind == 0:
        return json.dumps(_value(dice)).encode()
    if kind == 1:
        return dice.randbytes(dice.randrange(200))
    schema = at(route.body, version) if route.body is not None else {}
    places = list(mutants.places(schema)) if isinstance(schema, dict) else []
    if kind == 2:
        raw = json.dumps(body).encode()
        spot = dice.randrange(len(raw) or 1)
        return raw[:spot] + bytes([dice.randrange(256)]) + raw[spot + 1 :]
    for _ in range(dice.choice((1, 1, 2, 4))):
        if not places or not isinstance(body, dict):
            break
        place = dice.choice(places)
        good = dice.random() < 0.25
        value = (
            mutants._good(place.schema)
            if good
            else dice.choice(list(mutants.values(place.schema)))
            if dice.random() < 0.5
            else _value(dice)
        )
        body = mutants.put(body, place.path, value)
    text = json.dumps(body)
    if kind == 3 and places and isinstance(body, dict):
        text = json.dumps(mutants.put(body, dice.choice(places).path, json.loads(_HOLE)))
        text = text.replace(json.dumps(json.loads(_HOLE)), SHAPES[dice.choice(list(SHAPES))]())
    return text.encode('utf-8', 'surrogatepass')


def _query(dice: random.Random, route: Route) -> str:
    names = [prop.name for prop in route.query.props] + ['nosuch', 'all_tenants', 'limit']
    pairs = [(dice.choice(names), dice.choice(_WORDS)) for _ in range(dice.choice((0, 0, 1, 1, 2, 4, 30)))]
    return '&'.join(f'{quote(name)}={quote(value[:4000], errors="replace")}' for name, value in pairs)


def requests(dice: random.Random, world: Any, count: int) -> Iterator[Asked]:
    """So many of them; the same ones for the same dice."""
    routes = [route for route in ROUTES if not table.is_gone(route)]
    for _ in range(count):
        route = dice.choice(routes)
        versions = [route.since, route.until, dice.randint(route.since, route.until)]
        version = dice.choice(versions)
        example = examples.of(route)
        if dice.random() < 0.3:
            # What a preparation adds may be there already, of the same or of another request.
            if example.prepare:
                world.restore()
            examples.ready(world, example)
        path = examples.path_of(world, route, example, version).partition('?')[0]
        if dice.random() < 0.15:
            steps = path.split('/')
            steps[dice.randrange(1, len(steps))] = quote(dice.choice(_WORDS), safe='', errors='replace')
            path = '/'.join(steps)
        query = _query(dice, route)
        path = f'{path}?{query}' if query else path
        body = example.body_at(route, version) if route.method in ('POST', 'PUT') else None
        raw = _raw(dice, route, version, world.fill(body)) if route.method in ('POST', 'PUT') else None
        yield Asked(route.method, path, raw, version, dice.choice(('admin', 'member', 'member', 'reader', 'stranger')))


def fuzz(world: Any, count: int, seed: int) -> tuple[Counter[int], list[str]]:
    """How often each status was answered, and the requests that failed or cost too much."""
    told: Counter[int] = Counter()
    wrong: list[str] = []
    for number, asked in enumerate(requests(random.Random(seed), world, count)):
        try:
            spent = spend(world, asked)
        except Exception as error:  # noqa: BLE001 - whatever leaves the application is what is looked for
            wrong.append(f'{type(error).__name__}: {error}: {asked}'[:3000])
            continue
        told[spent.status] += 1
        # 501 is what a route answers that isn't there by design.
        if spent.status in (500, *range(502, 600)) or spent.seconds > MOST:
            wrong.append(f'{spent.status} {spent.seconds:.2f} CPU-s: {asked}'[:3000])
        if number % 50 == 49:
            world.restore()
    world.restore()
    return told, wrong


def main(count: int, seed: int) -> int:
    """A world of its own."""
    from tests.api.world import World
    from tests.unit.api.conftest import make_databases

    with tempfile.TemporaryDirectory(dir='/dev/shm' if pathlib.Path('/dev/shm').is_dir() else None) as directory:
        root = pathlib.Path(directory)
        (root / 'world').mkdir()
        (root / 'templates').mkdir()
        world = World(root / 'world', make_databases(root / 'templates'))
        begun = time.process_time()
        told, wrong = fuzz(world, count, seed)
        world.close()
    for line in wrong:
        print(re.sub(r'(.)\1{80,}', r'\1…\1', line))
    print(
        f'{count} requests of seed {seed}, {time.process_time() - begun:.0f} CPU-s: {len(wrong)} wrong; '
        + ', '.join(f'{status}: {number}' for status, number in sorted(told.items()))
    )
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main(*(int(word) for word in sys.argv[1:3])))

"""``python -m tests.bench.attacks``: requests that once stopped a cloud, sent to the daemons of a one-machine cloud.

For each attack of ``ATTACKS`` and each shape of ``tests.api.hostile``, under eventlet and then under native threads:
what was answered, CPU-seconds of the API for the dearest request, and by how much the resident memory of the daemon
that grew most grew (afterwards, and in between). Exit code 1 when an answer is another, or a bound is broken.

    make bench-attacks
    python -m tests.bench.attacks threading      # under these threads only
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.api import hostile
from tests.bench import meter
from tests.bench.__main__ import BenchSite, cloud
from tools.cloud import http

BACKENDS = ('eventlet', 'threading')
DAEMONS = ('api', 'conductor', 'scheduler', 'compute')
# CPU-seconds of the API for one request; MiB of a daemon afterwards, and while it works.
MOST_CPU, MOST_GROWN, MOST_PEAK = 0.1, 20.0, 64.0
# Each request is sent so often: the first of a kind also pays for what is made once.
TIMES = 3
# Seconds that somebody else's request may take while connections are held.
PATIENCE = 5.0
# The server gives a head 10 s and a body 30 s.
HEAD_ENDS, BODY_ENDS = 15.0, 40.0
REFUSED = r'4\d\d'


@dataclass(frozen=True)
class Shot:
    """``fire()`` sends ``count`` requests and says what was answered."""

    fire: Callable[[], str]
    count: int = 1


@dataclass(frozen=True)
class Attack:
    """A finding's number and name, its shots, and a pattern of the answer that is right."""

    name: str
    shots: Callable[[BenchSite], Iterator[Shot]]
    right: str = REFUSED


@dataclass(frozen=True)
class Row:
    """What came of an attack; MiB by which the daemon that grew most did, and its name."""

    name: str
    answers: Counter[str]
    right: str
    cpu: float
    grown: tuple[float, str]
    peak: tuple[float, str]

    @property
    def wrong(self) -> list[str]:
        """The bounds that it broke."""
        found = [f'answered {answer}' for answer in self.answers if not re.fullmatch(self.right, answer)]
        found += [f'{self.cpu:.2f} CPU-seconds'] * (self.cpu >= MOST_CPU)
        return found + [
            f'{name}: {grown:.0f} MiB {when}'
            for (grown, name), most, when in ((self.grown, MOST_GROWN, 'more'), (self.peak, MOST_PEAK, 'at its peak'))
            if grown > most
        ]

    def __str__(self) -> str:
        answers = ', '.join(f'{answer} ×{count}' if count > 1 else answer for answer, count in self.answers.items())
        return f'{self.name:<58}{answers:<38}{self.cpu:>7.3f}{self.grown[0]:>7.1f}{self.peak[0]:>7.1f}  ' + '; '.join(
            self.wrong
        )


# --- one request -----------------------------------------------------------------------------------------------------
def ask(
    site: BenchSite,
    method: str,
    path: str,
    raw: bytes | None = None,
    *,
    version: str = '2.90',
    token: str | None = None,
    user: str = 'demo',
) -> http.Reply:
    """Send bytes as they are."""
    headers = {
        'Content-Type': 'application/json',
        'OpenStack-API-Version': f'compute {version}',
        'X-Auth-Token': token or site.token(user),
    }
    return http.send(method, site.url('api') + path, data=raw, headers=headers, timeout=120)


def status(*args: Any, **more: Any) -> str:
    """The same; the status, or that nobody answered."""
    try:
        return str(ask(*args, **more).status)
    except OSError as error:
        return f'no answer: {error}'


def sent(site: BenchSite, method: str, path: str, body: Any, **more: Any) -> Iterator[Shot]:
    """One request, several times."""
    raw = None if body is None else json.dumps(body).encode()
    for _ in range(TIMES):
        yield Shot(functools.partial(status, site, method, path, raw, **more))


def created(site: BenchSite, **more: Any) -> dict[str, Any]:
    """The body of a create."""
    return {'server': {'name': 'attack', 'flavorRef': 'bench', 'imageRef': site.image, 'networks': 'none', **more}}


def own(site: BenchSite) -> str:
    """The id of the caller's server."""
    found: str = site.call('GET', '/servers')['servers'][0]['id']
    return found


# --- the findings ----------------------------------------------------------------------------------------------------
def many_cpus(site: BenchSite) -> Iterator[Shot]:
    """6.1: an owner's image."""
    url = site.url('glance') + '/v2/images'
    fields = {
        'name': 'attack',
        'disk_format': 'raw',
        'container_format': 'bare',
        'min_disk': 1,
        'hw_numa_nodes': '1',
        'hw_numa_cpus.0': '0-99999999',
        'hw_numa_mem.0': '512',
    }
    image = http.call('POST', url, fields, token=site.token('demo')).data['id']
    headers = {'X-Auth-Token': site.token('demo'), 'Content-Type': 'application/octet-stream'}
    assert http.send('PUT', f'{url}/{image}/file', data=b'x' * 512, headers=headers).status == 204
    yield from sent(site, 'POST', '/servers', created(site, imageRef=image))


def long_hostname(site: BenchSite) -> Iterator[Shot]:
    """6.2: a pattern that can be matched in many ways."""
    for name in ('a' * 3999 + '!', '-'.join('a' * 2000) + '!', 'a.' * 2000 + '!'):
        yield from sent(site, 'PUT', f'/servers/{own(site)}', {'server': {'hostname': name}})


def long_lists(site: BenchSite) -> Iterator[Shot]:
    """6.3: items of which each was compared with each."""
    items = json.loads(hostile.SHAPES['mixed items']())
    group = {'server_group': {'name': 'g', 'policies': items}}
    yield from sent(site, 'POST', '/os-server-groups', group, version='2.1')
    yield from sent(site, 'POST', '/servers', created(site, trusted_image_certificates=items))


def expressions(site: BenchSite) -> Iterator[Shot]:
    """6.4: the server that is there has a name that needs long by backtracking; the expression is a good one."""
    yield from sent(site, 'GET', '/servers?name=^(a%2B)%2B$', None)
    yield from sent(site, 'GET', '/servers/detail?name=^(a%7Caa)%2B$', None)


def no_project(site: BenchSite) -> Iterator[Shot]:
    """6.5: tokens without a project don't see a private flavor."""
    for scope, token in tokens_without_project(site).items():
        for path in ('/flavors', '/flavors/detail', '/flavors?is_public=none', '/flavors/bench-private'):

            def fire(path: str = path, token: str = token, scope: str = scope) -> str:
                reply = ask(site, 'GET', path, token=token)
                told = f'{scope} sees it' if b'bench-private"' in reply.body and reply.status == 200 else 'hidden'
                return f'{reply.status} {told}'

            yield Shot(fire)


def tokens_without_project(site: BenchSite) -> dict[str, str]:
    """Unscoped, of a domain and of the system, of the plain member."""
    url, admin = site.url('keystone'), site.token('admin')
    rows = {kind: http.call('GET', f'{url}/{kind}', token=admin).data[kind] for kind in ('users', 'roles')}
    user, role = (
        next(row['id'] for row in rows[kind] if row['name'] == name)
        for kind, name in (('users', 'demo'), ('roles', 'member'))
    )
    for path in ('domains/default', 'system'):
        http.call('PUT', f'{url}/{path}/users/{user}/roles/{role}', token=admin)
    identity = {
        'methods': ['password'],
        'password': {'user': {'name': 'demo', 'domain': {'name': 'Default'}, 'password': site.cloud.secrets['demo']}},
    }
    scopes: dict[str, Any] = {
        'unscoped': 'unscoped',
        'domain': {'domain': {'id': 'default'}},
        'system': {'system': {'all': True}},
    }
    return {
        name: http.call('POST', f'{url}/auth/tokens', {'auth': {'identity': identity, 'scope': scope}}).headers[
            'x-subject-token'
        ]
        for name, scope in scopes.items()
    }


def many_devices(site: BenchSite) -> Iterator[Shot]:
    """6.8: a count in a flavor."""
    yield from sent(
        site,
        'POST',
        '/flavors/bench/os-extra_specs',
        {'extra_specs': {'pci_passthrough:alias': 'QuadroM4000-video:99999999999'}},
        user='admin',
    )


def shape(name: str, site: BenchSite) -> Iterator[Shot]:
    """A shape as the body of a create, as its name, as its metadata, and as the hints beside it."""
    text = hostile.SHAPES[name]()
    whole = json.dumps({**created(site, name='HOLE')})
    metadata = json.dumps(created(site, metadata='HOLE'))
    hints = json.dumps({**created(site), 'os:scheduler_hints': {'group': 'HOLE'}})
    for raw in (text, *(body.replace('"HOLE"', text) for body in (whole, metadata, hints))):
        yield Shot(functools.partial(status, site, 'POST', '/servers', raw.encode('utf-8', 'surrogatepass')))


# --- connections that are held ---------------------------------------------------------------------------------------
@contextlib.contextmanager
def held(site: BenchSite, count: int, begun: bytes) -> Iterator[list[socket.socket]]:
    """Connections on which so much was sent."""
    connections: list[socket.socket] = []
    try:
        for _ in range(count):
            connections.append(socket.create_connection(('127.0.0.1', site.cloud.ports['api']), timeout=PATIENCE))
            connections[-1].sendall(begun)
        yield connections
    finally:
        for connection in connections:
            connection.close()


def others(site: BenchSite) -> str:
    """What somebody else is answered meanwhile."""
    try:
        headers = {'X-Auth-Token': site.token('demo')}
        return str(http.send('GET', site.url('api') + '/flavors', headers=headers, timeout=PATIENCE).status)
    except OSError as error:
        return f'no answer: {error}'


def hold(site: BenchSite, count: int, begun: bytes, ends: float) -> str:
    """Hold connections until the server ends them, sending a byte on each now and then, and ask beside them."""
    with held(site, count, begun) as connections:
        told = {others(site) for _ in range(5)}
        began, left = time.monotonic(), list(connections)
        while left and time.monotonic() - began < ends:
            time.sleep(1)
            left = [connection for connection in left if not ended(connection)]
        told |= {others(site)}
        return f'others {" ".join(sorted(told))}' + (f', {len(left)} not ended' if left else ', ended')


def ended(connection: socket.socket) -> bool:
    """Whether the server closed it; sends a byte more where it didn't."""
    try:
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            return connection.recv(4096) == b''
        connection.send(b'x')
    except OSError:
        return True
    return False


def half_heads(site: BenchSite) -> Iterator[Shot]:
    """6.6: without a token."""
    for count in (10, 100):
        yield Shot(functools.partial(hold, site, count, b'GET /servers HTTP/1.1\r\nHost: a\r\nX-A: ', HEAD_ENDS), count)


def slow_bodies(site: BenchSite) -> Iterator[Shot]:
    """6.7: with a token."""
    head = (
        f'POST /servers HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nX-Auth-Token: {site.token("demo")}'
        '\r\nContent-Length: 1000\r\n\r\n{'
    ).encode()
    yield Shot(functools.partial(hold, site, 100, head, BODY_ENDS), 100)


def open_connections(site: BenchSite) -> Iterator[Shot]:
    """6.7: nothing is sent on them."""

    def fire() -> str:
        with held(site, 1000, b''):
            return 'others ' + ' '.join(sorted({others(site) for _ in range(5)}))

    yield Shot(fire, 1000)


ATTACKS = (
    Attack('6.1 an image of a hundred million CPUs', many_cpus),
    Attack('6.2 host names of 4,000 characters', long_hostname),
    Attack('6.3 lists of thousands of mixed items', long_lists),
    # These are good requests: what counts is what they cost.
    Attack('6.4 expressions that backtrack', expressions, '200'),
    Attack('6.5 tokens without a project ask for private flavors', no_project, r'(200|403|404) hidden'),
    Attack('6.6 half heads', half_heads, 'others 200, ended'),
    Attack('6.7 slow bodies', slow_bodies, 'others 200, ended'),
    Attack('6.7 open connections', open_connections, 'others 200'),
    Attack('6.8 a flavor of 99999999999 devices', many_devices),
    *(Attack(f'shape: {name}', functools.partial(shape, name), REFUSED) for name in hostile.SHAPES),
)


# --- the whole -------------------------------------------------------------------------------------------------------
def worst(before: dict[str, float], after: dict[str, float]) -> tuple[float, str]:
    """By how many MiB the daemon that grew most did, and its name."""
    return max((mib - before.get(name, 0.0), name) for name, mib in after.items())


def attack(site: BenchSite, one: Attack) -> Row:
    """Fire all its shots."""
    var = site.layout.var
    shots = list(one.shots(site))
    before, answers, cpu = daemons(meter.resident_mib(var)), Counter[str](), 0.0
    meter.forget_peaks(var)
    for shot in shots:
        spent = site.meter(functools.partial(lambda fire: answers.update([fire()]), shot.fire))
        cpu = max(cpu, spent.cpu['api'] / shot.count)
    return Row(
        one.name,
        answers,
        one.right,
        cpu,
        worst(before, daemons(meter.resident_mib(var))),
        worst(before, daemons(meter.peak_mib(var))),
    )


def daemons(found: dict[str, float]) -> dict[str, float]:
    """Those of ours."""
    return {name: value for name, value in found.items() if name.partition('-')[0] in DAEMONS}


def prepare(site: BenchSite) -> None:
    """A server with a name that is bad to look at, a private flavor, and each daemon has done its work once."""
    site.flavor('bench')
    site.call(
        'POST',
        '/flavors',
        {
            'flavor': {
                'id': 'bench-private',
                'name': 'bench-private',
                'vcpus': 1,
                'ram': 512,
                'disk': 1,
                'os-flavor-access:is_public': False,
            }
        },
        user='admin',
    )
    # Another's: with nobody who may see it, a look without an owner would find nothing either.
    project = next(
        row['id']
        for row in http.call('GET', site.url('keystone') + '/projects', token=site.token('admin')).data['projects']
        if row['name'] == 'service'
    )
    site.call('POST', '/flavors/bench-private/action', {'addTenantAccess': {'tenant': project}}, user='admin')
    site.settle([site.create('a' * 200 + '!', 'bench')])
    for _ in range(20):
        site.call('GET', '/servers/detail')
        site.call('GET', '/flavors/detail')
        assert status(site, 'POST', '/servers', b'{}') == '400'


def run(site: BenchSite, wanted: Sequence[Attack] = ATTACKS) -> list[str]:
    """All attacks on a cloud; what was wrong."""
    prepare(site)
    before = daemons(meter.resident_mib(site.layout.var))
    wrong = []
    print(f'{"":<58}{"answers":<38}{"CPU s":>7}{"MiB +":>7}{"peak +":>7}')
    for one in wanted:
        row = attack(site, one)
        print(row, flush=True)
        wrong += [f'{row.name}: {what}' for what in row.wrong]
    after = daemons(meter.resident_mib(site.layout.var))
    print(
        '\nresident MiB before and after: '
        + ', '.join(f'{name} {before[name]:.0f} {mib:.0f}' for name, mib in sorted(after.items()))
    )
    grown, name = worst(before, after)
    return wrong + [f'all: {name} has {grown:.0f} MiB more than before'] * (grown > MOST_GROWN)


def main(backends: Sequence[str]) -> int:
    # The environment comes before the option.
    os.environ.pop('KILONOVA_CONCURRENCY', None)
    broken = []
    for backend in backends:
        print(f'\n{backend}')
        with cloud() as site:
            site.configure(f'[DEFAULT]\nconcurrency_backend = {backend}\n')
            site.up()
            broken += [f'{backend}: {what}' for what in run(site)]
    print(''.join(f'\n{what}' for what in broken) or '\nNo bound is broken.')
    return 1 if broken else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:] or BACKENDS))

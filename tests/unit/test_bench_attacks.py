"""The bounds that ``make bench-attacks`` holds."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.bench import attacks

GOOD = attacks.Row('x', Counter({'400': 3, '413': 1}), attacks.REFUSED, 0.03, (3.0, 'api'), (5.0, 'api'))


@pytest.mark.parametrize(
    ('change', 'wrong'),
    [
        ({}, []),
        ({'answers': Counter({'400': 2, '202': 1})}, ['answered 202']),
        ({'answers': Counter({'no answer: timed out': 1})}, ['answered no answer: timed out']),
        ({'answers': Counter({'others 200': 1}), 'right': 'others 200, ended'}, ['answered others 200']),
        ({'cpu': 0.1}, ['0.10 CPU-seconds']),
        ({'grown': (21.0, 'scheduler')}, ['scheduler: 21 MiB more']),
        ({'grown': (1.0, 'api'), 'peak': (900.0, 'api')}, ['api: 900 MiB at its peak']),
    ],
)
def test_what_breaks_a_bound(change: dict[str, object], wrong: list[str]) -> None:
    row = attacks.Row(**{**vars(GOOD), **change})  # type: ignore[arg-type]
    assert row.wrong == wrong


def test_the_daemon_that_grew_most_counts() -> None:
    assert attacks.worst({'api': 100.0, 'scheduler': 90.0}, {'api': 101.0, 'scheduler': 120.0}) == (30.0, 'scheduler')
    assert attacks.daemons({'api': 1.0, 'compute-big1': 2.0, 'keystone': 3.0, 'rabbitmq': 4.0}) == {
        'api': 1.0,
        'compute-big1': 2.0,
    }

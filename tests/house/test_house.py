"""``make house``: figures of the tree and of some operations, printed. pytest runs it for the sake of its clouds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.cloud import Cloud
from tests.house.trace import Found, Tracer
from tests.house.tree import Tree

ROOT = Path(__file__).parents[2]
# Frames of ours in one stack; see docs/contributor/house.md.
DEEPEST = 13


def test_the_tree() -> None:
    tree = Tree(ROOT)
    parameters, any_ = tree.parameters()
    print(
        f'\nproduction: {tree.lines("kilonova")} lines in {len(tree.files("kilonova"))} files; tests: '
        f'{tree.lines("tests")} lines in {len(tree.files("tests"))} files'
    )
    print(f'parameters: {parameters}, of them {any_} Any or without a type ({100 * any_ / parameters:.1f} %)')
    print(
        'classes with the most methods: '
        + ', '.join(f'{name} {methods} ({path})' for methods, path, name in tree.widest_classes(5))
    )
    writers = tree.writers_of_states()
    print(f'writers of vm and task state: {len(writers)} ({", ".join(writers)})')
    circles = tree.circles()
    print(f'circles of imports, lazy ones and those for types counted: {len(circles)}')
    for circle in circles:
        print(f'  {len(circle)} files: ' + ', '.join(circle))


def test_operations(tracer: Tracer, make_cloud: Callable[..., Cloud]) -> None:
    """Each is done once before it is traced: what a process does only once, or from time to time, doesn't count."""
    cloud = make_cloud(periodic_enable=False, report_interval=3600, service_down_time=36000)
    one, two = cloud.flavor(gpus=1), cloud.flavor(gpus=2)

    def resize(server: str, flavor: str = two) -> None:
        cloud.action(server, 'resize', {'flavorRef': flavor})

    acts: dict[str, Callable[[str], Any]] = {
        'boot': lambda _: cloud.boot(one),
        'show': cloud.show,
        'lock': lambda server: cloud.action(server, 'lock'),
        'unlock': lambda server: cloud.action(server, 'unlock'),
        'stop': lambda server: cloud.action(server, 'os-stop'),
        'start': lambda server: cloud.action(server, 'os-start'),
        'resize': resize,
        'confirm': lambda server: cloud.action(server, 'confirmResize'),
        'revert': lambda server: cloud.action(server, 'revertResize'),
    }
    first, second = cloud.boot(one), cloud.boot(one)
    print(f'\n{"":<10}{"files":>8}{"functions":>12}{"deepest":>10}')
    found: dict[str, Found] = {}
    for name, act in acts.items():
        if name == 'revert':
            resize(first, one)
            resize(second, one)
        act(first)
        with tracer.record() as found[name]:
            act(second)
        print(f'{name:<10}{len(found[name].files):>8}{len(found[name].functions):>12}{len(found[name].deepest):>10}')
    deepest = max(found.values(), key=lambda each: len(each.deepest)).deepest
    print('the deepest stack of ours: ' + ' > '.join(deepest))
    assert len(deepest) <= DEEPEST
    assert 'api/v2/servers/create.py' in found['boot'].files and 'compute/ops/build.py' in found['boot'].files


@pytest.fixture
def tracer() -> Any:
    with Tracer(ROOT / 'kilonova') as made:
        yield made

"""The simulator itself: healthy seeds, the same seed is the same run, and faults that are put back are found.

Each run of ``python -m tests.simulation`` is a process of its own: its clock and its hub can't be shared. Many
seeds are ``make simulate``'s business, not this file's.
"""
from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def simulate(path: pathlib.Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and the results of all seeds."""
    done = subprocess.run([sys.executable, '-W', 'ignore', '-m', 'tests.simulation', *arguments, '--jobs', '1',
                           '--json', str(path)], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert path.exists(), done.stdout + done.stderr
    return done.returncode, [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope='module')
def healthy(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Some seeds of the code as it is."""
    return simulate(tmp_path_factory.mktemp('healthy') / 'results', '--plot', 'long_calls', '--shape', 'narrow',
                    '--seeds', '1-3', '--keep-going')[1]


def test_nothing_is_wrong_with_the_code_as_it_is(healthy: list[dict[str, Any]]) -> None:
    """Three stories."""
    assert [(result['seed'], result['wrong']) for result in healthy if result['wrong']] == []
    assert len(healthy) == 3


def test_a_seed_is_the_same_run_each_time(healthy: list[dict[str, Any]], tmp_path: pathlib.Path) -> None:
    """Two commands agree in every line of the trace."""
    again = simulate(tmp_path / 'results', '--plot', 'long_calls', '--shape', 'narrow', '--seeds', '1-2')[1]
    before = {result['seed']: result['digest'] for result in healthy}
    assert [result['digest'] for result in again] == [before['1'], before['2']]
    assert before['1'] != before['2']


@pytest.mark.parametrize(('fault', 'plot', 'shape', 'seed', 'said'), [
    ('late_order', 'echo', 'gpus', '4', 'is in the running guest of'),
    ('dead_host', 'dead_host', 'narrow', '1', 'has not ended after'),
])
def test_a_fault_that_is_put_back_is_found(tmp_path: pathlib.Path, fault: str, plot: str, shape: str, seed: str,
                                           said: str) -> None:
    """With a seed that is known to find it."""
    status, results = simulate(tmp_path / 'results', '--fault', fault, '--plot', plot, '--shape', shape,
                               '--seeds', seed)
    assert status == 1
    assert said in results[-1]['wrong']

"""The simulator itself: the same seed is the same run, and faults that are put back are found.

Each test runs ``python -m tests.simulation`` as a process of its own: its clock and its hub can't be shared.
"""
from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]


def simulate(tmp_path: pathlib.Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and the results of all seeds."""
    path = tmp_path / 'results'
    done = subprocess.run([sys.executable, '-W', 'ignore', '-m', 'tests.simulation', *arguments, '--json', str(path)],
                          cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert path.exists(), done.stdout + done.stderr
    return done.returncode, [json.loads(line) for line in path.read_text().splitlines()]


def test_a_seed_is_the_same_run_each_time(tmp_path: pathlib.Path) -> None:
    """Two runs of each seed in one command, and two commands, agree in every line of the trace."""
    runs = [[(result['seed'], result['digest']) for result in sorted(
        simulate(tmp_path, '--seeds', '1-3', '--twice', '--keep-going')[1], key=lambda one: one['seed'])]
        for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 6
    assert len(set(runs[0])) == 3


def test_a_fault_that_is_put_back_is_found(tmp_path: pathlib.Path) -> None:
    """A delete that forgets its allocation leaves something in Placement."""
    status, results = simulate(tmp_path, '--fault', 'forgotten_allocation', '--shape', 'tight', '--seeds', '1-8')
    assert status == 1
    assert 'Placement' in [result['wrong'] for result in results if result['wrong']][-1]

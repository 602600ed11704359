"""Break each rule of operations in turn and see a test fail: ``make mutants RULES=1`` (``ONLY=word`` for some).

A mutant is a small replacement in a copy of the tree; the tests that ``rules`` names for it are run there and one of
them must fail. Before that all of them must pass in the tree as it is. A mutant whose text isn't found any more, that
no test notices, or that is noticed by nothing but the time that its tests take, makes the run fail.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterable

from tests.mutants.rules import MUTANTS, Mutant
from tests.mutants.trees import ROOT, copy

# Seconds for the tests of one mutant, and for all tests of the tree as it is.
LONGEST, LONGEST_UNBROKEN = 180, 900


def main() -> int:
    """0 when all die."""
    only = os.environ.get('ONLY', '')
    chosen = [mutant for mutant in MUTANTS if only in f'{mutant.rule} {mutant.name}']
    tests = list(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
    died = 0
    with copy(ROOT) as whole:
        verdict, why = run(whole, tests, LONGEST_UNBROKEN)
        print(f'{len(tests)} tests in the tree as it is: {verdict}: {why}', flush=True)
        for mutant in chosen if verdict == 'passed' else ():
            began = time.monotonic()
            verdict, why = judge(mutant, whole)
            died += verdict == 'died'
            print(f'{verdict:9} {mutant.rule:3} {mutant.name} ({time.monotonic() - began:.0f} s): {why}', flush=True)
    print(f'{died} of {len(chosen)} mutants died')
    return 0 if died == len(chosen) and chosen else 1


def judge(mutant: Mutant, whole: pathlib.Path) -> tuple[str, str]:
    """('died', which test failed and how), or 'SURVIVED', 'NOT FOUND' when its text isn't in the file exactly once,
    'HANGS' when no test had failed in time, 'ERROR' when the tests could not be run, and why."""
    with copy(whole) as tree:
        path = tree / mutant.path
        text = path.read_text()
        if text.count(mutant.old) != 1:
            return 'NOT FOUND', f'{text.count(mutant.old)} times in {mutant.path}'
        path.write_text(text.replace(mutant.old, mutant.new))
        verdict, why = run(tree, mutant.tests, LONGEST)
        return {'passed': 'SURVIVED', 'failed': 'died'}.get(verdict, verdict), why


def run(tree: pathlib.Path, tests: Iterable[str], longest: float) -> tuple[str, str]:
    """('passed' | 'failed' | 'HANGS' | 'ERROR', the line of its output that says why)."""
    command = [
        sys.executable,
        '-m',
        'pytest',
        '-x',
        '-p',
        'no:cacheprovider',
        '-p',
        'no:hypothesispytest',
        f'--basetemp={tree}/tmp',
        *tests,
    ]
    try:
        found = subprocess.run(
            command,
            check=False,
            cwd=tree,
            timeout=longest,
            capture_output=True,
            text=True,
            env={**os.environ, 'PYTHONPATH': str(tree), 'COLUMNS': '200'},
        )
    except subprocess.TimeoutExpired:
        return 'HANGS', f'no answer in {longest} s'
    lines = [line for line in (found.stdout + found.stderr).splitlines() if line.strip()]
    # 1: tests failed; anything else (no such test, a broken import) says nothing about the rule.
    if found.returncode == 1:
        failed = [line for line in lines if line.startswith('FAILED')]
        return ('failed', failed[0]) if failed else ('ERROR', '\n'.join(lines[-10:]))
    return ('passed', lines[-1]) if found.returncode == 0 else ('ERROR', '\n'.join(lines[-10:]))

"""Break each rule of operations in turn and see a test fail: ``make mutants`` (``ONLY=word`` for some).

A mutant is a small replacement in a copy of the tree; the tests that ``rules`` names for it are run there and one of
them must fail. A mutant whose text isn't found any more, or that no test notices, makes the run fail.
"""
from __future__ import annotations

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from tests.mutants.rules import MUTANTS, Mutant

ROOT = pathlib.Path(__file__).parents[2]
COPIED = ('kilonova', 'tests', 'etc', 'docs', 'tools', 'pyproject.toml', 'setup.cfg', 'README.md')
MEMORY = pathlib.Path('/dev/shm')
# Seconds for the tests of one mutant; a rule that is broken may make them wait.
LONGEST = 600


def main() -> int:
    """0 when all die."""
    only = os.environ.get('ONLY', '')
    chosen = [mutant for mutant in MUTANTS if only in f'{mutant.rule} {mutant.name}']
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        verdicts = list(pool.map(judge, chosen))
    for mutant, verdict in zip(chosen, verdicts, strict=True):
        print(f'{verdict:10} {mutant.rule:8} {mutant.name}')
    died = verdicts.count('died')
    print(f'{died} of {len(chosen)} mutants died')
    return 0 if died == len(chosen) and chosen else 1


def judge(mutant: Mutant) -> str:
    """'died', 'SURVIVED', or 'NOT FOUND' when its text isn't in the file exactly once."""
    with tempfile.TemporaryDirectory(prefix='mutant-', dir=MEMORY if MEMORY.is_dir() else None) as directory:
        tree = pathlib.Path(directory)
        for name in COPIED:
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tree / name)
        path = tree / mutant.path
        text = path.read_text()
        if text.count(mutant.old) != 1:
            return 'NOT FOUND'
        path.write_text(text.replace(mutant.old, mutant.new))
        command = [sys.executable, '-m', 'pytest', '-q', '-x', '-p', 'no:cacheprovider', '-p', 'no:hypothesispytest',
                   f'--basetemp={tree}/tmp', *mutant.tests]
        try:
            found = subprocess.run(command, check=False, cwd=tree, timeout=LONGEST,
                                   env={**os.environ, 'PYTHONPATH': directory},
                                   capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return 'died'
        # 1: tests failed; anything else (no tests, a broken import) says nothing about the rule.
        return {0: 'SURVIVED', 1: 'died'}.get(found.returncode, f'ERROR {found.returncode}')


if __name__ == '__main__':
    sys.exit(main())

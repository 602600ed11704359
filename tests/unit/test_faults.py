"""Faults that the simulator puts back: what each of them replaces is still there, with the same arguments."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

from tests.simulation import faults

# In a process of its own: the faults stay in it.
INSTALL = """
import importlib, sys
from tests.simulation.faults import Gone
for name in sys.argv[1:]:
    try:
        importlib.import_module(f'tests.simulation.faults.{name}').install()
    except Gone as error:
        print(f'{name}: {error}')
"""


def test_faults_can_be_put_back() -> None:
    names = sorted(module.name for module in pkgutil.iter_modules(faults.__path__))
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', INSTALL, *names],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ''), done.stderr
    assert names

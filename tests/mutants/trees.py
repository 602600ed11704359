"""Copies of the tree, to be broken."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[2]
COPIED = ('kilonova', 'tests', 'etc', 'docs', 'tools', 'pyproject.toml', 'setup.cfg', 'README.md')
MEMORY = pathlib.Path('/dev/shm')


@contextlib.contextmanager
def copy(source: pathlib.Path) -> Iterator[pathlib.Path]:
    """A copy of a tree that is gone afterwards; what Python compiled there comes along."""
    with tempfile.TemporaryDirectory(prefix='mutant-', dir=MEMORY if MEMORY.is_dir() else None) as directory:
        tree = pathlib.Path(directory)
        for name in COPIED:
            (shutil.copytree if (source / name).is_dir() else shutil.copy2)(source / name, tree / name)
        yield tree

"""Choose eventlet or native threads. A daemon does this first, before it imports anything else.

    early.setup(sys.argv[1:])

The module uses only the standard library. The environment variable KILONOVA_CONCURRENCY has priority over the option
``[DEFAULT]concurrency_backend``, which is read from the files that oslo.config will read later.
"""

from __future__ import annotations

import gc
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from kilonova import concurrency

PROJECT = 'kilonova'
_OPTION = re.compile(r'^concurrency_backend\s*[=:](.*)')
_SECTION = re.compile(r'^\[([^]]*)\]')


def setup(argv: Sequence[str], prog: str = PROJECT, native: bool = False) -> None:
    """Set up eventlet or native threads for this process. An invalid choice ends the process.

    ``native`` is True for a program that can't work with eventlet. The function also turns garbage collection off until
    the daemon runs, because most objects that are created until then belong to imported modules and are never freed.
    """
    gc.disable()
    # The oslo libraries import eventlet in any case, and each import warns that it is deprecated.
    warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')
    try:
        chosen = concurrency.choose(configured(config_files(argv, prog)))
        concurrency.setup('threading' if native else chosen)
    except ValueError as error:
        sys.exit(f'{prog}: {error}')


def configured(files: Sequence[Path]) -> str | None:
    """Return the value of ``concurrency_backend`` in these files, or None if no file has it. The last value counts."""
    found = None
    for path in files:
        section = ''
        try:
            lines = path.read_text(errors='replace').splitlines()
        except OSError:
            # Ignore the error here: oslo.config will report it when it reads the file.
            continue
        for line in lines:
            if header := _SECTION.match(line):
                section = header[1]
            elif section == 'DEFAULT' and (option := _OPTION.match(line)):
                found = option[1].strip().strip('\'"')
    return found


def config_files(argv: Sequence[str], prog: str = PROJECT, places: Sequence[Path] | None = None) -> list[Path]:
    """Return the configuration files that oslo.config reads for these arguments, in the order of reading.

    ``places`` are the directories to search if the arguments name no files. None means the default directories.
    """
    given, directories = list(_values(argv, '--config-file')), list(_values(argv, '--config-dir'))
    places = _places() if places is None else places
    names = (PROJECT,) if prog == PROJECT else (PROJECT, prog)
    files = [Path(name) for name in given]
    if not given:
        files = [found for name in names if (found := _first(places, f'{name}.conf'))]
    folders = [Path(name) for name in directories]
    if not directories:
        folders = [found for name in names if (found := _first(places, f'{name}.conf.d'))]
    return files + [path for folder in folders for path in sorted(folder.glob('*.conf'))]


def _places() -> list[Path]:
    etc = Path('/etc')
    return [Path.home() / f'.{PROJECT}', Path.home(), etc / PROJECT, etc]


def _first(places: Sequence[Path], name: str) -> Path | None:
    return next((place / name for place in places if (place / name).exists()), None)


def _values(argv: Sequence[str], option: str) -> Iterator[str]:
    for number, word in enumerate(argv):
        if word == option and number + 1 < len(argv):
            yield argv[number + 1]
        elif word.startswith(f'{option}='):
            yield word.partition('=')[2]

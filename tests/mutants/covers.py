"""Which tests run through which lines: made once for each file of tests, and kept in ``build/mutants``.

    covered = Map.of(tree, ROOT / KEPT)                 # runs what isn't known yet
    covered.tests('kilonova/pci/pools.py', (98, 97))    # [Test, …], none: no test runs through these lines

A file of tests is run again when it has changed itself. When the code has changed, what is known is carried over: a
line that stands as it was keeps its tests, a new line takes those of the lines that it replaced and of the line before
it. Tests that don't pass in the tree as it is are left out, and printed. As a plug-in of pytest (``-p``) this module
writes what one file of tests ran through to ``$KILONOVA_COVERS``.
"""

from __future__ import annotations

import concurrent.futures
import difflib
import functools
import hashlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.mutants.trees import MEMORY

# What is broken, and the tests that may notice.
PACKAGES = {name: f'kilonova/{name}' for name in ('states.py', 'pci', 'scheduler', 'compute', 'conductor')}
TESTS = (
    'tests/unit/test_states.py',
    'tests/unit/test_release_before.py',
    *(f'tests/unit/{name}' for name in ('pci', 'scheduler', 'compute', 'conductor', 'objects', 'rpc', 'db')),
    'tests/functional',
    'tests/flows',
)
KEPT = 'build/mutants'
# What runs at import is shown to so many tests besides those that have the file's name.
MOST_AT_IMPORT = 25
# Seconds for one file of tests, which takes about twice as long when its lines are noted.
LONGEST = 3000


@dataclass(frozen=True)
class Test:
    """``lines``: how many lines of the packages it runs through."""

    __test__ = False
    name: str
    seconds: float
    lines: int

    @property
    def file(self) -> str:
        return self.name.partition('::')[0]


@dataclass
class Map:
    """``lines``: {path: {line: tests}}; ``files``: {path: {test: the share of its lines that are of this path}};
    ``named``: {name of a file of tests: its tests}; ``imported``: {path: lines that ran outside of all tests of a
    file, and in none}; ``at_start``: (path, line) of all that ran outside of tests; ``count`` of tests."""

    lines: dict[str, dict[int, list[Test]]] = field(default_factory=dict)
    files: dict[str, dict[Test, float]] = field(default_factory=dict)
    named: dict[str, list[Test]] = field(default_factory=dict)
    imported: dict[str, set[int]] = field(default_factory=dict)
    at_start: set[tuple[str, int]] = field(default_factory=set)
    count: int = 0

    @classmethod
    def of(cls, root: pathlib.Path, kept: pathlib.Path) -> Map:
        """Of the tree at ``root``; what was found before lies in ``kept``."""
        found = cls()
        for report in _reports(root, kept):
            found.add(report)
        return found

    def add(self, report: dict[str, Any]) -> None:
        """What one file of tests ran through: {'tests': [[name, seconds, whether it passed], …], 'lines': {path:
        {line: [index of a test, or -1 for none, …]}}}."""
        widths: dict[int, int] = defaultdict(int)
        for index in (index for lines in report['lines'].values() for through in lines.values() for index in through):
            widths[index] += 1
        tests: dict[int, Test] = {}
        for index, (name, seconds, passed) in enumerate(report['tests']):
            if passed:
                tests[index] = Test(name, seconds, widths[index])
                self.named.setdefault(pathlib.PurePath(tests[index].file).name, []).append(tests[index])
            else:
                print(f'left out, as it does not pass in the tree as it is: {name}', flush=True)
        self.count += len(tests)
        for path, lines in report['lines'].items():
            here, whole = self.lines.setdefault(path, {}), Counter[int]()
            for line, through in lines.items():
                if -1 in through:
                    self.at_start.add((path, int(line)))
                here.setdefault(int(line), []).extend(tests[index] for index in through if index in tests)
                whole.update(index for index in through if index in tests)
                if through == [-1]:
                    self.imported.setdefault(path, set()).add(int(line))
            self.files.setdefault(path, {}).update(
                {tests[index]: count / tests[index].lines for index, count in whole.items()}
            )

    def every(self) -> Iterator[Test]:
        """Each test, as often as there are files of its name."""
        return itertools.chain.from_iterable(self.named.values())

    def tests(self, path: str, lines: Sequence[int]) -> list[Test]:
        """Those that run through the first of the lines that any runs through; of a line that only runs when its file
        is imported those that are about the file: by their name, or as most of what they run through is there."""
        for line in lines:
            if found := self.lines.get(path, {}).get(line):
                return found
            if line in self.imported.get(path, ()):
                named = self.named.get(f'test_{pathlib.PurePath(path).name}', [])
                shares = self.files.get(path, {})
                others = sorted(shares, key=lambda test: (-shares[test], test.name))[:MOST_AT_IMPORT]
                return list(dict.fromkeys([*named, *others]))
        return []


def select(tests: Iterable[Test], seconds: float, path: str) -> list[Test]:
    """Tests that take about so many seconds together: for half of the time those of the file that is named after
    ``path`` and the fastest; then of each file first those that run through the fewest lines, the fast files first. In
    the order to run them: the file that is named after ``path``, then the fast ones."""
    near = f'/test_{pathlib.PurePath(path).name}'
    by_file: dict[str, list[Test]] = defaultdict(list)
    fastest = sorted(tests, key=lambda test: (not test.file.endswith(near), test.seconds, test.name))
    half = sum(spent <= seconds / 2 for spent in itertools.accumulate(test.seconds for test in fastest))
    for test in fastest[half:]:
        by_file[test.file].append(test)
    ranked = [
        (rank, test.seconds, test)
        for group in by_file.values()
        for rank, test in enumerate(sorted(group, key=lambda each: (each.lines, each.seconds)))
    ]
    chosen = fastest[:half]
    left = seconds - sum(test.seconds for test in chosen)
    for _, cost, test in sorted(ranked, key=lambda each: (each[0], each[1], each[2].name)):
        if chosen and cost > left:
            continue
        chosen.append(test)
        left -= cost
    costs: dict[str, float] = defaultdict(float)
    for test in chosen:
        costs[test.file] += test.seconds
    return sorted(chosen, key=lambda test: (not test.file.endswith(near), costs[test.file], test.file, test.seconds))


# Making it.


def _reports(root: pathlib.Path, kept: pathlib.Path) -> Iterator[dict[str, Any]]:
    kept.mkdir(parents=True, exist_ok=True)
    files = [
        file
        for name in TESTS
        for file in ([root / name] if name.endswith('.py') else sorted((root / name).rglob('test_*.py')))
    ]
    reports = {file: kept / (hashlib.sha256(_content(file, root)).hexdigest()[:24] + '.json') for file in files}
    missing = [file for file in files if not reports[file].exists()]
    if missing:
        print(f'{len(missing)} of {len(files)} files of tests are run to see which lines they run through', flush=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, problem in zip(missing, pool.map(lambda file: _run(root, file, reports[file]), missing), strict=True):
            if problem:
                print(f'{file.relative_to(root)}: {problem}', flush=True)
    for old in set(kept.glob('*.json')) - set(reports.values()):
        old.unlink()
    for report in reports.values():
        if report.exists():
            found = json.loads(report.read_text())
            yield {
                **found,
                'lines': {
                    path: carried(found['texts'][path], (root / path).read_text(), lines)
                    for path, lines in found['lines'].items()
                    if (root / path).exists()
                },
            }


def carried(old: str, new: str, lines: dict[str, list[int]]) -> dict[str, list[int]]:
    """What ran through the lines of a text, for the text that it became."""
    if old == new:
        return lines
    return {
        str(line): sorted({index for source in sources for index in lines.get(str(source), ())})
        for line, sources in _origins(old, new).items()
    }


@functools.lru_cache(maxsize=256)
def _origins(old: str, new: str) -> dict[int, list[int]]:
    """{line of the new text: lines of the old one}, from 1 on."""
    found: dict[int, list[int]] = {}
    for what, before, until, start, end in difflib.SequenceMatcher(
        None, old.splitlines(), new.splitlines(), autojunk=False
    ).get_opcodes():
        for line in range(start, end):
            found[line + 1] = [before + 1 + line - start] if what == 'equal' else list(range(before, until + 1))
    return found


def _content(path: pathlib.Path, root: pathlib.Path) -> bytes:
    return str(path.relative_to(root)).encode() + b'\0' + path.read_bytes() + b'\0'


def _run(root: pathlib.Path, file: pathlib.Path, report: pathlib.Path) -> str:
    """Run a file of tests with this module as a plug-in; '' or what was the matter."""
    with tempfile.TemporaryDirectory(prefix='covers-', dir=MEMORY if MEMORY.is_dir() else None) as scratch:
        written = pathlib.Path(scratch) / 'report.json'
        command = [
            sys.executable,
            '-m',
            'pytest',
            '-p',
            'no:cacheprovider',
            '-p',
            'tests.mutants.covers',
            f'--basetemp={scratch}/tmp',
            str(file.relative_to(root)),
        ]
        try:
            done = subprocess.run(
                command,
                check=False,
                cwd=root,
                timeout=LONGEST,
                capture_output=True,
                text=True,
                env={**os.environ, 'PYTHONPATH': str(root), 'KILONOVA_COVERS': str(written)},
            )
        except subprocess.TimeoutExpired:
            return f'not done in {LONGEST} s'
        if not written.exists():
            return '\n'.join((done.stdout + done.stderr).splitlines()[-5:])
        found = json.loads(written.read_text())
        texts = {path: (root / path).read_text() for path in found['lines']}
        report.write_text(json.dumps({**found, 'texts': texts}))
        return ''


class _Noting:
    """The plug-in."""

    def __init__(self, target: str) -> None:
        import coverage

        self._target = target
        # Without a file: nothing is left beside the report. C tracer: several times faster than one in Python.
        self._coverage = coverage.Coverage(
            data_file=None,
            config_file=False,
            include=[f'*/{path}' if path.endswith('.py') else f'*/{path}/*' for path in PACKAGES.values()],
            messages=False,
        )
        self._coverage.start()
        self._tests: dict[str, tuple[float, bool]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._coverage.switch_context('')

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds, good = self._tests.get(report.nodeid, (0.0, True))
        self._tests[report.nodeid] = (seconds + report.duration, good and report.passed)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # that a file of tests runs through none of the lines is no fault
            data = self._coverage.get_data()
        numbers = {name: number for number, name in enumerate(self._tests)}
        lines = {
            path[path.rindex('/kilonova/') + 1 :]: {
                line: sorted(numbers.get(name, -1) for name in names)
                for line, names in data.contexts_by_lineno(path).items()
            }
            for path in data.measured_files()
        }
        tests = [[name, round(seconds, 3), good] for name, (seconds, good) in self._tests.items()]
        pathlib.Path(self._target).write_text(json.dumps({'tests': tests, 'lines': lines}))


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before conftest imports what is to be noted."""
    if target := os.environ.get('KILONOVA_COVERS'):
        early_config.pluginmanager.register(_Noting(target))

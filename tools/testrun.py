"""``make test`` and its parts: runs them and adds up what pytest counted.

    python3 -m tools.testrun                # everything
    python3 -m tools.testrun unit flows     # some parts
    python3 -m tools.testrun --whole flows  # all tests of runs that have a share of them otherwise

The last line is ``N passed, N failed`` (and ``, N skipped`` where some were). The exit code is 0 only if nothing
failed and every run found tests. Failed tests that ``SECOND_CHANCE`` covers run once more, alone, after the other
runs. Those that pass then are named above the last line.
Some runs have a share of their tests (``Run.share``). ``KILONOVA_TEST_SEED``, an integer, decides which tests are in a
share, and in which order all tests run. If it is not set, the seed is drawn by chance. It is printed first and at the
end.
A check that counts no tests (ruff, mypy …) adds 1 to the failed when it fails.
SIGTERM and SIGINT end all runs with what they started; the exit code is then 128 and the signal's number.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from xml.etree import ElementTree

from tools.cloud.layout import ROOT, Layout

RESULTS = ROOT / 'build' / 'test'
# If more tests of one run failed than this, none of them runs again: a busy machine is not the reason then.
FEW = 12
# Files whose failed tests may run once more, alone, each with the reason. Every other failed test has failed.
_SERVICE_ON_SQLITE = (
    'Keystone, Neutron, Cinder or Cyborg here is one process with SQLite: beside other runs an answer can take longer '
    'than the 60 s for which its clients wait'
)
_NO_KVM = 'QEMU emulates the CPUs: beside other runs a guest needs minutes to boot or to be copied'
_MANY_DAEMONS = 'ten and more daemons start at once: beside other runs some report only after a deadline of the test'
SECOND_CHANCE: Mapping[str, str] = {
    f'tests/integration/test_{name}.py': reason
    for reason, names in {
        _SERVICE_ON_SQLITE: ('cinder', 'clients', 'cyborg', 'neutron'),
        _NO_KVM: ('acceptance', 'guest_network', 'libvirtd', 'live_migration', 'real_guests', 'two_machines'),
        _MANY_DAEMONS: ('hung_services', 'kill', 'race', 'twenty_hosts', 'workers'),
    }.items()
    for name in names
}
# Bytes of memory that have to be free for tests to write there.
MEMORY = 4 << 30
# The priority of runs that have no deadlines, beside those of real daemons.
NICE = 10
# Seconds that an interrupted run has to end what its fixtures started.
GRACE = 15.0


@dataclass(frozen=True)
class Counts:
    """Tests by outcome; an error in a fixture is a failure."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f'{self.passed} passed, {self.failed} failed' + (f', {self.skipped} skipped' if self.skipped else '')


@dataclass(frozen=True)
class Run:
    """One command. With ``paths`` it is a pytest run over them, and has to find tests there."""

    name: str
    command: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    minutes: float = 80  # on a machine that is three times slower than most
    waits: bool = False  # for real daemons, most of its time
    # Of CPU, or of time where it ``waits``, as one machine of 2026 needed: the longest of those together starts first.
    seconds: float = 0
    covered: bool = False  # by coverage.py, which notes the lines of kilonova/ that run
    share: str = ''  # of the tests of each file, as tests/fixtures/shares.py has it; all of them by --whole


MORE_FLOWS = tuple(
    f'tests/flows/test_{name}.py'
    for name in ('second_attempt', 'undos', 'stale_owners', 'lost_commits', 'dead_hosts', 'silent_hosts')
)
# Each operation with each kind of device, with ports and with volumes. In each way: make test-cells.
DEVICE_FLOWS = ('tests/flows/test_devices.py', 'tests/flows/test_ports_and_volumes.py')
# Of these some disturb an operation at each place in turn: in make test at every other one (fixtures/places.py).
PLACES = tuple(
    f'tests/functional/test_{name}.py'
    for name in ('accelerated_ports', 'accelerators', 'interfaces', 'reimage', 'sriov_attach', 'swap', 'volumes')
)
# Real daemons that wait most of their time: three runs of about the same length. Two have the same cloud each, the
# third those with Neutron, Cinder and Cyborg.
APART = tuple(
    f'tests/integration/test_{name}.py'
    for name in ('databases', 'twenty_hosts', 'two_machines', 'libvirtd', 'hung_services', 'kill')
)
BESIDE = tuple(f'tests/integration/test_{name}.py' for name in ('cyborg', 'neutron', 'cinder', 'full_disk'))
# Guests of QEMU without KVM that move while they run: beside other tests they are too slow for any deadline.
LIVE = ('tests/integration/test_live_migration.py',)
# Campaigns of minutes with several of each daemon: make test-cluster.
CAMPAIGNS = ('tests/integration/test_broker_cluster.py', 'tests/integration/test_stand_still.py')
# QEMU guests with volumes or disks in a Ceph of their own: make test-ceph.
CEPH = ('tests/integration/test_ceph.py',)
# QEMU guests on two machines of namespaces. With each operation's daemons killed, in the same cloud: make test-qemu.
REAL_GUESTS = Run(
    'integration-qemu', paths=('tests/integration/test_real_guests.py',), waits=True, seconds=135, share='0/3'
)
REAL_KILLS = dataclasses.replace(
    REAL_GUESTS, paths=(*REAL_GUESTS.paths, 'tests/integration/test_real_kills.py'), share=''
)
# One scenario of the field's acceptance suite with such a guest; all of them: make tempest GUESTS=qemu.
SAMPLE = Run('tempest-sample', paths=('tests/integration/test_acceptance.py',), waits=True, seconds=400)
# Such guests on a network of the real Neutron, that move: make test-guests. Alone, as they migrate while they run.
NETWORKED = Run('guest-network', paths=('tests/integration/test_guest_network.py',), waits=True, seconds=400)
# The nested machine with real vfio-pci: make test-vfio. What guests list is shown as it comes.
PASSTHROUGH = Run('vfio', command=('-s',), paths=('tests/vfio',), waits=True, minutes=60, seconds=700)
# Clouds whose Placement is its model, which tests/simulation holds against the service; it takes a third less time.
MODELLED = {'KILONOVA_TEST_PLACEMENT': 'model'}
# Each about half of the unit tests.
# Phrases that docstrings, comments and texts do not have; one meaning for each class name: a part of the lint.
WORDS = ('tests/unit/test_words.py', 'tests/unit/test_tree.py')
UNIT_FIRST = ('tests/unit/api', 'tests/unit/scheduler')
SEED, SHARE = 'KILONOVA_TEST_SEED', 'KILONOVA_TEST_SHARE'
WHOLE = '--whole'


def functional(
    database: str, backend: str, share: str = '', files: str = '', *, seconds: float, model: bool = False
) -> Run:
    """Return a run of the functional tests, or of a share of them, on one kind of database and one runtime.

    ``share`` is that of the tests of each file, ``files`` that of the files (tests/functional/conftest.py). With
    ``model``, a model of Placement takes its place.
    """
    return Run(
        f'functional-{database}-{backend}',
        paths=('tests/functional',),
        seconds=seconds,
        share=share,
        env={
            'KILONOVA_CONCURRENCY': backend,
            'KILONOVA_TEST_DATABASE': database,
            'KILONOVA_TEST_FILES': files,
            **(MODELLED if model else {}),
        },
    )


PARTS: dict[str, tuple[Run, ...]] = {
    'lint': (
        Run('ruff', ('ruff', 'check', '.')),
        Run('format', ('ruff', 'format', '--check', '-q', '.')),
        Run('deadcode', ('python', '-m', 'tools.deadcode'), seconds=2),
        Run('import-linter', ('lint-imports', '--no-cache')),
        # References between pages and labels; ``make docs`` writes the pages.
        Run('docs', ('sphinx-build', '-W', '--keep-going', '-q', '-b', 'dummy', 'docs', 'build/docs-check'), seconds=6),
        Run('words', paths=WORDS, seconds=8),
    ),
    'type': (Run('mypy', ('mypy',), seconds=16),),
    'unit': (
        Run('unit-first', paths=UNIT_FIRST, env=MODELLED, seconds=80),
        Run('unit-rest', tuple(f'--ignore={path}' for path in (*UNIT_FIRST, *WORDS)), ('tests/unit',), seconds=200),
    ),
    # Eventlet and native threads can't share a process: flows and the simulator run on SQLite under native threads.
    # Half of the tests run on SQLite with Placement's model. Of these, a tenth runs once more: of half of the files on
    # MariaDB, of the others on PostgreSQL with the real Placement (make test-databases: all on both with the real one).
    # The statements themselves are tested on all three (tests/integration/test_databases.py).
    'functional': (
        functional('sqlite', 'eventlet', '0/2', seconds=225, model=True),
        functional('mariadb', 'eventlet', '0/20', '0/2', seconds=40, model=True),
        functional('postgresql', 'threading', '0/20', '1/2', seconds=55),
    ),
    # What an answer says doesn't depend on the runtime, what a hostile request costs does.
    'api': (
        Run('api-threading', paths=('tests/api',), env={'KILONOVA_CONCURRENCY': 'threading'}, seconds=56),
        Run(
            'api-eventlet',
            paths=('tests/api/test_attacks.py', 'tests/api/test_hostile.py'),
            env={'KILONOVA_CONCURRENCY': 'eventlet'},
            seconds=15,
        ),
    ),
    'flows': (
        Run(
            'flows',
            tuple(f'--ignore={path}' for path in (*MORE_FLOWS, *DEVICE_FLOWS)),
            ('tests/flows',),
            MODELLED,
            seconds=60,
            share='0/3',
        ),
        Run('flows-devices', paths=DEVICE_FLOWS, env=MODELLED, seconds=45, share='0/4'),
        Run('flows-more', paths=MORE_FLOWS, env=MODELLED, seconds=60, share='0/3'),
    ),
    # The simulator runs as processes of its own; the model of Placement is held against the real one.
    # The share is that of stories and faults (tests/simulation/test_simulation.py).
    'simulation': (Run('simulation', paths=('tests/simulation',), seconds=95, share='0/2'),),
    # Of each run one cloud, shared by the tests that need no other; beside it those that need one of another kind.
    'integration': (
        Run(
            'integration',
            tuple(
                f'--ignore={path}'
                for path in (
                    *APART,
                    *BESIDE,
                    *LIVE,
                    *CAMPAIGNS,
                    *CEPH,
                    *REAL_KILLS.paths,
                    *NETWORKED.paths,
                    *SAMPLE.paths,
                )
            ),
            ('tests/integration',),
            waits=True,
            seconds=270,
            share='0/3',
        ),
        Run('integration-apart', paths=APART, waits=True, seconds=275, share='0/3'),
        Run('integration-beside', paths=BESIDE, waits=True, seconds=150, share='0/3'),
        REAL_GUESTS,
        SAMPLE,
    ),
    # Behind all others; see BESIDE_LIVE.
    'live': (Run('live-migration', paths=LIVE, waits=True, share='0/2'),),
}
# Parts whose runs share no ports, files or processes.
TOGETHER = ('check', 'lint', 'type', 'unit', 'functional', 'api', 'flows', 'simulation', 'integration')
# The run that goes beside ``live``, where both are wanted: with a lower priority, and without daemons.
BESIDE_LIVE = 'unit-first'
# Parts that make test leaves out, as other parts run the same tests. ``check``: what needs no server of its own, in
# 200 s on two cores.
EXTRA: dict[str, tuple[Run, ...]] = {
    'check': (
        *PARTS['lint'],
        *PARTS['type'],
        PARTS['unit'][0],
        dataclasses.replace(PARTS['unit'][1], share='0/2', seconds=100),
        PARTS['api'][0],
        functional('sqlite', 'threading', '0/12', seconds=45, model=True),
    ),
    # For the floors of tools/coverage_floors.py, so the share and the order are the same each time. Native threads
    # alone: under eventlet coverage.py costs more.
    'covered': tuple(
        dataclasses.replace(run, name=f'{run.name}-covered', covered=True, env={**run.env, SEED: '0'})
        for run in (
            *PARTS['unit'],
            PARTS['api'][0],
            functional('sqlite', 'threading', '1/12', seconds=70, model=True),
        )
    ),
    'databases': (
        functional('mariadb', 'eventlet', seconds=450),
        functional('postgresql', 'threading', seconds=550),
        Run(
            'outages',
            paths=('tests/integration/test_database_outage.py',),
            env={'KILONOVA_ALL_OUTAGES': 'yes'},
            waits=True,
            seconds=140,
        ),
    ),
    'placement': (
        *(dataclasses.replace(run, name=f'{run.name}-placement', env={}, share='') for run in PARTS['flows']),
        Run('scheduler-placement', paths=UNIT_FIRST[1:]),
    ),
    'cells': (
        Run('cells', paths=DEVICE_FLOWS, env={**MODELLED, 'KILONOVA_FULL': 'yes'}),
        Run('places', paths=PLACES, env={**MODELLED, 'KILONOVA_FULL': 'yes'}),
    ),
    'qemu': (REAL_KILLS,),
    'guests': (NETWORKED,),
    'vfio': (PASSTHROUGH,),
    'ceph': (Run('ceph', paths=CEPH, waits=True),),
    'db-check': (Run('db-check', command=('-m', 'database'), paths=('tests/unit', 'tests/integration')),),
}


def counts(junit: str) -> Counts:
    """Return the counts of a junit report, all its suites together."""
    total = Counts()
    for suite in ElementTree.fromstring(junit).iter('testsuite'):
        tests, failures, errors, skipped = (
            int(suite.get(name, 0)) for name in ('tests', 'failures', 'errors', 'skipped')
        )
        total += Counts(tests - failures - errors - skipped, failures + errors, skipped)
    return total


def outcomes(junit: str) -> dict[str, bool]:
    """Return a dict from each test of a junit report to whether it was skipped."""
    return {
        f'{case.get("classname")}::{case.get("name")}': case.find('skipped') is not None
        for case in ElementTree.fromstring(junit).iter('testcase')
    }


def judge(code: int, report: str | None) -> Counts:
    """Return the counts of a pytest run that ended with ``code``.

    One failure more is counted if it found no test, or ended badly without a failed test to show for it.
    """
    found = counts(report) if report else Counts()
    nothing = found == Counts()
    if nothing or (code != 0 and not found.failed):
        found += Counts(failed=1)
    return found


def failed_tests(run: Run) -> list[str]:
    """Return the tests of a run that failed, or whose fixtures did, by pytest's names."""
    found = cache_of(run) / 'v' / 'cache' / 'lastfailed'
    return sorted(json.loads(found.read_text())) if found.exists() else []


def cache_of(run: Run) -> Path:
    """Return the directory where pytest writes which tests of a run failed.

    Each run has its own, as several go at once.
    """
    return RESULTS / f'{run.name}.cache'


def second(run: Run) -> Run | None:
    """Return a run of the failed tests alone, or None if they have no second chance.

    They have none if more than FEW tests failed, or if one of them is not covered by SECOND_CHANCE.
    """
    failed = failed_tests(run)
    if not run.paths or not 0 < len(failed) <= FEW:
        return None
    if not all(name.partition('::')[0] in SECOND_CHANCE for name in failed):
        return None
    return dataclasses.replace(run, name=f'{run.name}-again', command=(), paths=tuple(failed))


def with_second(first: Counts, again: Counts) -> Counts:
    """Return the counts of a run whose failed tests ran again."""
    return Counts(first.passed + again.passed, again.failed, first.skipped + again.skipped)


def command_of(run: Run, layout: Layout, report: Path) -> list[str]:
    """Return the command line of a run."""
    if not run.paths:
        return [layout.bin(run.command[0]), *run.command[1:]]
    # Only unit tests ask it; else each run loads it to say nothing.
    unasked = () if run.paths[0].startswith('tests/unit') else ('-p', 'no:hypothesispytest')
    return [
        layout.bin('python'),
        *(('-m', 'coverage', 'run') if run.covered else ()),
        '-m',
        'pytest',
        *unasked,
        *run.command,
        *run.paths,
        *((f'--randomly-seed={run.env[SEED]}',) if SEED in run.env else ()),
        f'--junit-xml={report}',
        '-o',
        f'cache_dir={cache_of(run)}',
    ]


def environment(run: Run) -> dict[str, str]:
    """Return the environment variables of a run's processes, which keep the bytecode of what they import.

    Each daemon is a process, so that hundreds import the same.
    """
    kept = {name: value for name, value in os.environ.items() if name != 'PYTHONDONTWRITEBYTECODE'}
    return kept | {SHARE: run.share} | dict(run.env)


@contextlib.contextmanager
def scratch(run: Run) -> Iterator[list[str]]:
    """Provide pytest's option for a directory where tests write, in memory if enough of it is free.

    Tests make and delete hundreds of small databases. Runs that wait for daemons have their files on disk, as in
    production.
    """
    memory = Path('/dev/shm')  # noqa: S108 - a directory of its own is made there
    if not run.paths or run.waits or not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < MEMORY:
        yield []
        return
    with tempfile.TemporaryDirectory(prefix='kilonova-test-', dir=memory, ignore_cleanup_errors=True) as directory:
        yield [f'--basetemp={directory}/{run.name}']


def wait(child: subprocess.Popen, seconds: float) -> tuple[int, float]:
    """Wait for a process; return its exit code and its CPU-seconds.

    The CPU-seconds include those of processes that it waited for, not those of daemons.
    """
    end = time.monotonic() + seconds
    while True:
        ended, status, used = os.wait4(child.pid, os.WNOHANG)
        if ended:
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode, used.ru_utime + used.ru_stime
        if time.monotonic() > end:
            raise subprocess.TimeoutExpired(child.args, seconds)
        time.sleep(0.2)


class Interrupted(SystemExit):
    """A signal ended the runs."""


class Running:
    """The processes of all runs under way, each the leader of a process group."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def start(self, argv: Sequence[str], **settings: Any) -> subprocess.Popen[bytes]:
        """Start a process. Raises Interrupted if ``end`` was called before."""
        with self._lock:
            if self._ended:
                raise Interrupted(1)
            child = subprocess.Popen(argv, start_new_session=True, **settings)
            self._children.add(child)
            return child

    def remove(self, child: subprocess.Popen[bytes]) -> None:
        """Kill what is left of a process group and forget it."""
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        with self._lock:
            self._children.discard(child)

    def end(self) -> None:
        """Interrupt all processes, so that their fixtures end what they started, and kill those left after GRACE."""
        with self._lock:
            self._ended = True
            children = set(self._children)
        for kind, seconds in ((signal.SIGINT, GRACE), (signal.SIGKILL, 5.0)):
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, kind)
            deadline = time.monotonic() + seconds
            while self._children & children and time.monotonic() < deadline:
                time.sleep(0.1)


RUNNING = Running()


def lower_session(pid: int) -> None:
    """Give a process that leads a session the priority NICE against other sessions.

    Where Linux groups processes by session (autogroup), ``nice`` has an effect within one session only.
    """
    with contextlib.suppress(OSError):
        Path(f'/proc/{pid}/autogroup').write_text(str(NICE))


def on_signal(number: int, frame: FrameType | None) -> None:
    """End all runs. Raises Interrupted."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    print(f'\n{signal.Signals(number).name}: ending all runs', flush=True)
    RUNNING.end()
    raise Interrupted(128 + number)


def execute(run: Run, layout: Layout, shown: bool = True, behind: bool = False) -> Counts:
    """Execute a run to its end, or until its time is over; return its counts.

    Its output is shown as it comes with ``shown``, otherwise at its end. With ``behind`` it has a lower priority than
    the daemons of other runs, which have deadlines.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    report, log = RESULTS / f'{run.name}.xml', RESULTS / f'{run.name}.log'
    report.unlink(missing_ok=True)
    shutil.rmtree(cache_of(run), ignore_errors=True)
    print(f'\n=== {run.name} starts', flush=True)
    began = time.monotonic()
    with log.open('w') as output, scratch(run) as more:
        # In a group of its own, so that a run that hangs ends together with what it started.
        first = ['nice', '-n', str(NICE)] if behind and not run.waits else []
        child = RUNNING.start(
            [*first, *command_of(run, layout, report), *more],
            cwd=ROOT,
            env=environment(run),
            stdin=subprocess.DEVNULL,
            stdout=None if shown else output,
            stderr=None if shown else subprocess.STDOUT,
        )
        if first:
            lower_session(child.pid)
        cpu = 0.0
        try:
            code, cpu = wait(child, run.minutes * 60)
        except subprocess.TimeoutExpired:
            output.write(f'{run.name}: not done after {run.minutes:g} minutes, ended\n')
            code = -1
        finally:
            RUNNING.remove(child)
    if run.paths:
        found = judge(code, report.read_text() if report.exists() else None)
    else:
        found = Counts(failed=int(code != 0))
    outcome = str(found) if run.paths else ('ok' if code == 0 else 'failed')
    print(
        f'{log.read_text()}=== {run.name}: {outcome} in {time.monotonic() - began:.0f} s, {cpu:.0f} s of CPU',
        flush=True,
    )
    return found


def execute_all(runs: Sequence[Run], layout: Layout) -> dict[str, Counts]:
    """Execute runs at the same time, and return their counts by name.

    Of those with real daemons as many as there are cores run together: with more of them their deadlines pass. Of the
    others, which have a low priority then, one more, as each waits a third of its time. The longest start first.
    """
    cores = os.cpu_count() or 1
    waiting = any(run.waits for run in runs)
    with (
        concurrent.futures.ThreadPoolExecutor(cores) as daemons,
        concurrent.futures.ThreadPoolExecutor(cores + 1) as others,
    ):
        futures = {
            run.name: (daemons if run.waits else others).submit(execute, run, layout, len(runs) == 1, waiting)
            for run in sorted(runs, key=lambda run: -run.seconds)
        }
        return {name: future.result() for name, future in futures.items()}


def uneven(reports: Mapping[str, Mapping[str, bool]]) -> str:
    """Return what is wrong with the runs of functional tests on database servers; '' if nothing is.

    A server skipped other tests than SQLite, or no server tried a file that SQLite ran. ``reports`` is a dict from a
    run's name to its ``outcomes``.
    """
    whole = {test: skipped for name, ran in reports.items() if '-sqlite-' in name for test, skipped in ran.items()}
    servers = {name: ran for name, ran in reports.items() if '-sqlite-' not in name}
    told = []
    if whole and servers:
        for name, ran in servers.items():
            if strange := sorted(test for test, skipped in ran.items() if whole.get(test) != skipped):
                told.append(f'{name}: {", ".join(strange)}')
        tried = {test.partition('::')[0] for ran in servers.values() for test in ran}
        if missing := sorted({test.partition('::')[0] for test in whole} - tried):
            told.append(f'on no server: {", ".join(missing)}')
    return f'the databases did not run the same tests: {"; ".join(told)}' if told else ''


def groups(chosen: Sequence[str], known: Mapping[str, tuple[Run, ...]]) -> list[list[Run]]:
    """Return the runs of these parts in groups; the runs of a group are executed side by side."""
    together = [run for name in chosen if name in TOGETHER for run in known[name]]
    late = [run for run in together if run.name == BESIDE_LIVE and len(together) > 1 and 'live' in chosen]
    apart = [[*known[name], *(late if name == 'live' else ())] for name in chosen if name not in TOGETHER]
    return [group for group in ([run for run in together if run not in late], *apart) if group]


def choose_seed() -> str:
    """Return the seed of KILONOVA_TEST_SEED, or one by chance.

    Raises ValueError if KILONOVA_TEST_SEED is not an integer from 0 on.
    """
    given = os.environ.get(SEED) or str(random.randrange(1_000_000))
    if not given.isdecimal():
        raise ValueError(f'{SEED} is {given!r}: it must be an integer from 0 on')
    return given


def seeded(parts: Mapping[str, tuple[Run, ...]], seed: str, *, whole: bool) -> dict[str, tuple[Run, ...]]:
    """Return the parts with the seed in the environment of each run that has none of its own.

    With ``whole``, no run has a share.
    """
    return {
        name: tuple(
            dataclasses.replace(run, env={SEED: seed, **run.env}, share='' if whole else run.share) for run in runs
        )
        for name, runs in parts.items()
    }


def main(names: Iterable[str]) -> int:
    """Run the named parts (all of ``make test`` when none is named); with WHOLE among the names, without shares."""
    given = list(names)
    chosen = [name for name in given if name != WHOLE] or list(PARTS)
    known = PARTS | EXTRA
    unknown = [name for name in chosen if name not in known]
    if unknown:
        print(f'error: no part {", ".join(unknown)}; there are: {", ".join(known)}', file=sys.stderr)
        return 2
    try:
        seed = choose_seed()
    except ValueError as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    known = seeded(known, seed, whole=WHOLE in given)
    print(f'seed {seed}: it chooses the shares and the order of tests', flush=True)
    layout = Layout.at()
    results: dict[str, Counts] = {}
    passed_alone: list[str] = []
    for group in groups(chosen, known):
        results |= execute_all(group, layout)
        for run in group:
            if results[run.name].failed and (alone := second(run)):
                again = execute(alone, layout)
                results[run.name] = with_second(results[run.name], again)
                passed_alone += sorted(set(alone.paths) - set(failed_tests(alone))) if again.passed else []
    print(f'\nseed {seed}: SEED={seed} runs the same tests in the same order again')
    if passed_alone:
        print(f'failed beside other runs, passed alone (a race, or a deadline too short): {", ".join(passed_alone)}')
    for name, found in results.items():
        if found.failed:
            print(f'failed: {name}')
    total = sum(results.values(), Counts())
    if different := uneven(
        {
            name: outcomes(report.read_text())
            for name in results
            if name.startswith('functional-') and (report := RESULTS / f'{name}.xml').exists()
        }
    ):
        print(f'failed: {different}')
        total += Counts(failed=1)
    print(total, flush=True)
    return 1 if total.failed else 0


if __name__ == '__main__':
    for handled in (signal.SIGTERM, signal.SIGINT):
        signal.signal(handled, on_signal)
    sys.exit(main(sys.argv[1:]))

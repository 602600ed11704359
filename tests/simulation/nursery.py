"""The process that builds a cloud once and forks a child for each seed, which so costs no setting up.

    python -m tests.simulation --seeds 1-100 --jobs 2
    python -m tests.simulation --seeds 1-20 --seeds kinds:1-10
    python -m tests.simulation --seeds 1-200 --having echo --fault late_order
    python -m tests.simulation --prove late_order=17 --prove dead_host=4

Green threads survive a fork; databases are files, which each child copies. The parent only collects results.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import pathlib
import resource
import shutil
import sys
import tempfile
import time as real
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# Seconds of CPU after which a child is ended.
CPU_LIMIT = 120
# Seeds between two looks whether the hours are over.
ROUND = 100
# Those of the standard library: eventlet's would let the parent's own green threads run.
_clock, _wait, _waitpid = real.perf_counter, os.wait, os.waitpid


def main(arguments: Sequence[str]) -> int:
    """0: all seeds are well."""
    parser = argparse.ArgumentParser(prog='python -m tests.simulation', description='The cloud under virtual time.')
    parser.add_argument('--seeds', action='append', metavar='[SHAPE:]SEEDS', help='17, or 1-200, or kinds:1-8')
    parser.add_argument('--shape', help='one of the clouds in cloud.SHAPES; else the seed chooses')
    parser.add_argument('--length', type=int, default=20, help='acts of users in a story')
    parser.add_argument('--jobs', type=int, default=os.cpu_count() or 1, help='seeds at once')
    parser.add_argument('--fault', action='append', default=[], help='put a fault of tests/simulation/faults back')
    parser.add_argument('--plot', action='append', default=[], help='a plot of plots.py in each story')
    parser.add_argument(
        '--having',
        action='append',
        default=[],
        metavar='PLOT',
        help='leave out seeds whose stories have none of these plots',
    )
    parser.add_argument(
        '--prove',
        action='append',
        default=[],
        metavar='FAULT=[SHAPE:]SEED',
        help='this seed must find the fault, and be well without it',
    )
    parser.add_argument('--twice', action='store_true', help='run each seed twice and compare')
    parser.add_argument('--shrink', action='store_true', help='make the first failing story small and tell it')
    parser.add_argument('--show', action='store_true', help='print the whole trace of each failing seed')
    parser.add_argument('--keep-going', action='store_true', help='do not stop at the first failing seed')
    parser.add_argument('--story', type=pathlib.Path, help='run the story in this file')
    parser.add_argument('--log', action='store_true', help="the daemons' logs on standard error")
    parser.add_argument('--hours', type=float, help='go on from the first seed for so long')
    parser.add_argument('--json', type=pathlib.Path, help='write the results there')
    options = parser.parse_args(arguments)
    if options.json:
        options.json = options.json.resolve()
        options.json.write_text('')
    seeds, nursery = options.seeds or ([] if options.prove else ['1-20']), _Nursery(options)
    if not nursery.has_faults():
        return 2
    if options.hours is None:
        return nursery.run(
            [seed for one in seeds for seed in _range(one)], [tuple(one.split('=')) for one in options.prove]
        )
    (number, *_), end = map(int, _range(seeds[0])), _clock() + options.hours * 3600
    while _clock() < end:
        if nursery.run([str(one) for one in range(number, number + ROUND)]):
            return 1
        number += ROUND
    return 0


def _range(text: str) -> list[str]:
    """'1-3': 1, 2, 3; 'kinds:1-3': kinds:1, kinds:2, kinds:3."""
    shape, colon, numbers = text.rpartition(':')
    first, _, last = numbers.partition('-')
    return [f'{shape}{colon}{number}' for number in range(int(first), int(last or first) + 1)]


@dataclass(frozen=True)
class _Run:
    """A story and the faults that are put back for it. ``proves``: the fault with which it must go wrong, and without
    it must not."""

    story: Any
    faults: tuple[str, ...]
    proves: str | None = None

    def is_bad(self, wrong: str | None) -> bool:
        """A proof fails when nothing is found."""
        return (wrong is None) if self.proves and self.faults else (wrong is not None)


class _Nursery:
    """One a command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._imported()
        self._faults = {
            name: importlib.import_module(f'tests.simulation.faults.{name}')
            for name in (*options.fault, *(one.partition('=')[0] for one in options.prove))
        }

    def _imported(self) -> None:
        from tests.simulation import clock

        clock.install()
        from kilonova import concurrency

        concurrency.setup('eventlet')
        concurrency.native = lambda func, *args, **kwargs: func(*args, **kwargs)  # type: ignore[assignment]
        import threading

        from eventlet import hubs

        from tests.simulation import timeline

        hubs.use_hub(timeline.Timeline)
        self.timeline: timeline.Timeline = hubs.get_hub()
        clock.source = self.timeline
        default = threading.excepthook
        threading.excepthook = lambda args: None if issubclass(args.exc_type, timeline.Crash) else default(args)
        from tests.simulation import cloud, run, shrink, story

        self.cloud, self.story, self.runner, self.shrinker = cloud, story, run, shrink

    def has_faults(self) -> bool:
        """Whether what the faults replace is still there; what isn't is told."""
        return all(self._fork(lambda fault=fault: fault.install() or 0) == 0 for fault in self._faults.values())

    def run(self, seeds: list[str], proofs: list[tuple[str, str]] | None = None) -> int:
        """Every seed in the cloud that it is about, and each (fault, seed) with the fault and without; one process a
        cloud."""
        if self._options.story:
            stories = [self.story.Story.load(self._options.story.read_text())]
        else:
            stories = [self._story(seed) for seed in seeds]
        having = set(self._options.having)
        return self._in_clouds(
            [
                *(
                    _Run(story, tuple(self._options.fault))
                    for story in stories
                    if not having or having.intersection(story.plots)
                ),
                *(_Run(self._story(seed), faults, fault) for fault, seed in proofs or () for faults in ((fault,), ())),
            ]
        )

    def _story(self, text: str) -> Any:
        named, _, seed = text.rpartition(':')
        shape = self.cloud.SHAPES[named or self._options.shape or self.story.plan(seed, self._options.plot)[1]]
        return self.story.make(seed, shape, self._options.length, self._options.plot)

    def _in_clouds(self, runs: list[_Run]) -> int:
        begun, bad = _clock(), 0
        for shape in dict.fromkeys(run.story.shape for run in runs):
            mine = [run for run in runs if run.story.shape == shape]
            bad += self._fork(lambda shape=shape, mine=mine: self._shape(shape, mine))
        print(f'{len(runs)} runs, {bad} bad, {_clock() - begun:.1f} s', flush=True)
        return 1 if bad else 0

    def _fork(self, act: Callable[[], int]) -> int:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 99
            try:
                status = min(98, act())
            except BaseException:  # noqa: BLE001 - the process ends here
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        return os.waitstatus_to_exitcode(_waitpid(child, 0)[1])

    # -- one cloud ----------------------------------------------------------------------------------------------------
    def _shape(self, name: str, runs: list[_Run]) -> int:
        directory = pathlib.Path(tempfile.mkdtemp(prefix='simulation-', dir='/dev/shm'))
        try:
            return self._with(directory, name, runs)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _with(self, directory: pathlib.Path, name: str, runs: list[_Run]) -> int:
        home = directory / 'home'
        home.mkdir()
        os.chdir(home)
        self.shape = self.cloud.SHAPES[name]
        self.made = self.cloud.Cloud(self.shape, self.timeline)
        self.timeline.reseed('build')
        self._log()
        self.timeline.complete(self.made.prepare)
        self.timeline.complete(self.made.start_all)
        self.timeline.complete(self.made.warm_up)
        self.timeline.complete(self._quiet)
        if self.timeline.failures:
            print('\n'.join(self.timeline.failures))
            return 1
        self.home = home
        gc.collect()
        gc.freeze()
        bad = 0
        digests: dict[tuple[str, tuple[str, ...]], str] = {}
        for run, result in self._all([run for run in runs for _ in range(2 if self._options.twice else 1)]):
            which = result['seed'], run.faults
            if trace := os.environ.get('SIMULATION_TRACE'):
                number = 1 + (which in digests)
                pathlib.Path('-'.join((trace, *run.faults, result['seed'], str(number)))).write_text(
                    '\n'.join(result['lines'])
                )
            other = digests.setdefault(which, result['digest'])
            if other != result['digest']:
                result['wrong'] = f'two runs differ: {other} and {result["digest"]}'
            bad += self._tell(run, result)
            if bad and not (self._options.keep_going or self._options.prove):
                break
        return bad

    def _quiet(self) -> None:
        """Until no connection is in use; then all are closed."""
        from kilonova.db import engine

        while any(database._engine.pool.checkedout() for database in engine._databases_of_process):
            self.timeline.sleep(0.001)
        for database in engine._databases_of_process:
            database.dispose()

    def _all(self, runs: list[_Run]) -> Iterator[tuple[_Run, dict[str, Any]]]:
        """Results as they come, ``jobs`` at once."""
        waiting, working = list(reversed(runs)), {}
        try:
            while waiting or working:
                while waiting and len(working) < self._options.jobs:
                    run = waiting.pop()
                    pid, path = self._begin(run)
                    working[pid] = run, path
                pid, status = _wait()
                if pid in working:
                    run, path = working.pop(pid)
                    yield run, self._result(run.story, path, status)
        finally:
            for pid in working:
                os.kill(pid, 9)
                _waitpid(pid, 0)

    def _begin(self, run: _Run) -> tuple[int, pathlib.Path]:
        path = pathlib.Path(tempfile.mkdtemp(prefix='seed-', dir=self.home.parent))
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid, path
        try:
            for fault in run.faults:
                self._faults[fault].install()
            self._child(run.story, path)
        except BaseException:  # noqa: BLE001 - the process ends here
            (path / 'error').write_text(traceback.format_exc())
        finally:
            sys.stderr.flush()
            os._exit(0)

    def _child(self, story: Any, path: pathlib.Path) -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT * max(1, len(story.acts) // 100), resource.RLIM_INFINITY))
        for database in self.home.glob('*.db'):
            shutil.copyfile(database, path / database.name)
        os.chdir(path)
        if len(story.acts) < 200:
            gc.disable()
        result = self.runner.run(self.made, story)
        result.cpu = sum(os.times()[:2])
        (path / 'result').write_text(json.dumps(result.dump()))

    def _result(self, story: Any, path: pathlib.Path, status: int) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((path / 'result').read_text())
        except OSError:
            error = path / 'error'
            text = error.read_text() if error.exists() else f'the child ended with status {status}'
            found = {**self.runner.Result(story.seed).dump(), 'wrong': f'the simulator broke: {text}'}
        shutil.rmtree(path, ignore_errors=True)
        return found

    def _tell(self, run: _Run, result: dict[str, Any]) -> int:
        story, bad = run.story, run.is_bad(result['wrong'])
        if self._options.json:
            with self._options.json.open('a') as file:
                file.write(
                    json.dumps(
                        {
                            **result,
                            'lines': None,
                            'shape': story.shape,
                            'faults': run.faults,
                            'proves': run.proves,
                            'story': story.dump(),
                        }
                    )
                    + '\n'
                )
        told = f'WRONG: {result["wrong"]}' if result['wrong'] is not None else 'NOT FOUND' if bad else ''
        print(
            f'seed {result["seed"]:>6} {self.shape.name:6} {result["digest"]} {len(story.acts):4} acts '
            f'{result["accepted"]:4} accepted {len(story.troubles):2} troubles {result["virtual"]:7.0f} s '
            f'{result["steps"]:7} steps '
            f'{result["statements"]:6} statements {result["messages"]:5} messages {result["cpu"]:6.2f} CPU-s '
            f'{" ".join([*run.faults, told])}',
            flush=True,
        )
        if result['wrong'] is None:
            return int(bad)
        if self._options.shrink:
            story, result = self._smaller(run, result)
        if self._options.show or self._options.shrink:
            print(f'\nThe story (python -m tests.simulation --story FILE runs it again):\n{story.dump()}\n\n{story}\n')
            print('\n'.join(result['lines']))
            print(f'\nWRONG: {result["wrong"]}')
        return int(bad)

    def _smaller(self, run: _Run, result: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        last = {'result': result}

        def try_out(candidate: Any) -> str | None:
            _, found = next(iter(self._all([_Run(candidate, run.faults)])))
            if found['wrong'] is not None and self.shrinker.kind_of(found['wrong']) == self.shrinker.kind_of(
                result['wrong']
            ):
                last['result'] = found
            return found['wrong']  # type: ignore[no-any-return]

        small = self.shrinker.shrink(run.story, try_out)
        return small, last['result']

    def _log(self) -> None:
        import logging

        if not self._options.log:
            logging.disable(logging.CRITICAL)
            return
        timeline = self.timeline

        class Lines(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                print(
                    f'{timeline.now:9.3f} {timeline.current().process.name:11} {record.levelname} '
                    f'{record.getMessage()}',
                    file=sys.stderr,
                )
                if record.exc_info and record.exc_info[0]:
                    traceback.print_exception(*record.exc_info)

        logging.getLogger().addHandler(Lines())
        logging.getLogger('kilonova').setLevel(logging.INFO)

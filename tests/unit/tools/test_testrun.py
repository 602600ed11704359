"""Adding up what pytest counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.fixtures import shares
from tools import testrun
from tools.testrun import Counts


def report(tests: int, failures: int = 0, errors: int = 0, skipped: int = 0) -> str:
    return (
        f'<testsuites><testsuite name="pytest" tests="{tests}" failures="{failures}" errors="{errors}" '
        f'skipped="{skipped}"></testsuite></testsuites>'
    )


def test_counts_of_a_report():
    assert testrun.counts(report(10, failures=1, errors=2, skipped=3)) == Counts(4, 3, 3)


def test_last_line():
    assert str(Counts(4, 0)) == '4 passed, 0 failed'
    assert str(Counts(4, 1, 2)) == '4 passed, 1 failed, 2 skipped'
    assert Counts(1, 2, 3) + Counts(10, 20, 30) == Counts(11, 22, 33)


def test_a_good_run_counts_as_it_is():
    assert testrun.judge(0, report(5, skipped=1)) == Counts(4, 0, 1)


def test_a_run_that_found_nothing_failed():
    assert testrun.judge(5, report(0)).failed == 1
    assert testrun.judge(5, None).failed == 1


def test_a_run_that_ended_badly_without_a_failed_test_failed():
    assert testrun.judge(3, report(5)) == Counts(5, 1, 0)
    assert testrun.judge(1, report(5, failures=2)) == Counts(3, 2, 0)


def test_functional_runs_under_both_backends_and_on_each_database():
    runs = [
        (run.env.get('KILONOVA_TEST_DATABASE', 'sqlite'), run.env['KILONOVA_CONCURRENCY'])
        for run in testrun.PARTS['functional']
    ]
    assert sorted(runs) == [('mariadb', 'eventlet'), ('postgresql', 'threading'), ('sqlite', 'eventlet')]


def test_databases_that_ran_different_tests_fail():
    whole = {
        'functional-sqlite-eventlet': {'a::1': False, 'a::2': True, 'b::1': False},
    }
    assert testrun.uneven(whole | {'functional-postgresql-threading': {'a::2': True, 'b::1': False}}) == ''
    assert testrun.uneven(whole) == testrun.uneven({}) == ''
    assert (
        testrun.uneven(
            whole | {'functional-postgresql-threading': {'a::1': False}, 'functional-mariadb-eventlet': {'b::1': False}}
        )
        == ''
    )
    server = 'functional-postgresql-threading'
    for other, told in (
        ({'a::1': False}, 'on no server: b'),
        ({'a::1': True, 'b::1': False}, f'{server}: a::1'),
        ({}, 'on no server: a, b'),
        ({'a::1': False, 'b::1': False, 'c::1': False}, f'{server}: c::1'),
    ):
        assert testrun.uneven(whole | {server: other}).endswith(f'same tests: {told}')


def test_what_a_report_says_of_each_test():
    assert testrun.outcomes(
        '<testsuites><testsuite><testcase classname="a" name="1"/>'
        '<testcase classname="a" name="2"><skipped/></testcase></testsuite></testsuites>'
    ) == {'a::1': False, 'a::2': True}


def test_functional_tests_run_on_sqlite_and_a_share_of_each_file_on_a_server():
    sqlite, *servers = testrun.PARTS['functional']
    assert {(run.paths, run.command) for run in (sqlite, *servers)} == {(('tests/functional',), ())}
    assert [run.env['KILONOVA_TEST_FILES'] for run in (sqlite, *servers)] == ['', '0/2', '1/2']

    def of(run: testrun.Run, names: list[str], seed: str) -> set[str]:
        return shares.share_of(names, *map(int, run.share.split('/')), seed)

    # What a server runs is among what SQLite runs, which ``uneven`` compares, whatever the seed and the file's length.
    for number in (1, 2, 5, 40, 120):
        names = [f'tests/functional/test_some.py::test_{one}' for one in range(number)]
        for seed in map(str, range(60)):
            assert all(set() < of(run, names, seed) <= of(sqlite, names, seed) for run in servers)


def test_each_test_with_the_model_of_placement_has_a_run_with_the_real_one():
    """Not all in make test, where they have its model."""
    *modelled, share = testrun.PARTS['functional']
    for run in (share, *testrun.EXTRA['databases'][:2]):
        assert 'KILONOVA_TEST_PLACEMENT' not in run.env and run.paths == ('tests/functional',), run.name
    assert share.share and [run.share for run in testrun.EXTRA['databases']] == [''] * 3
    for run in (*modelled, *testrun.PARTS['flows'], testrun.PARTS['unit'][0]):
        assert run.env['KILONOVA_TEST_PLACEMENT'] == 'model', run.name
    *flows, scheduler = testrun.EXTRA['placement']
    assert (scheduler.paths, scheduler.env) == (('tests/unit/scheduler',), {})
    for run, other in zip(testrun.PARTS['flows'], flows, strict=True):
        assert (run.paths, run.command, other.env) == (other.paths, other.command, {}) and run.name != other.name
        assert run.share and not other.share


def test_each_folder_whose_runs_have_a_share_keeps_to_it():
    """A run whose tests don't ask for its share would be whole without a word."""
    shared = {
        path.rpartition('/')[0] if path.endswith('.py') else path
        for runs in [*testrun.PARTS.values(), *testrun.EXTRA.values()]
        for run in runs
        for path in run.paths
        if run.share
    }
    folders = {'tests/functional', 'tests/flows', 'tests/simulation', 'tests/integration'}
    assert shared == folders | {'tests/unit'}
    for folder in folders | {'tests/unit'}:
        file = testrun.ROOT / folder / ('test_simulation.py' if folder == 'tests/simulation' else 'conftest.py')
        asked = 'shares.share(' if folder == 'tests/simulation' else 'shares.keep_share(config, items)'
        assert asked in file.read_text(), folder


def test_what_check_leaves_out_is_in_another_run():
    """All unit tests and half of the functional ones are in each make test, all of both with WHOLE=1."""
    found = {run.name: run.share for run in testrun.EXTRA['check'] if run.paths}
    assert found == {
        'words': '',
        'unit-first': '',
        'unit-rest': '0/2',
        'api-threading': '',
        'functional-sqlite-threading': '0/12',
    }
    assert [run.share for part in ('lint', 'type', 'unit', 'api') for run in testrun.PARTS[part]] == [''] * 11
    for part in testrun.seeded(testrun.PARTS | testrun.EXTRA, '7', whole=True).values():
        assert {run.share for run in part} == {''}


def test_each_file_of_integration_tests_is_in_one_run():
    """Or in none, where it is a campaign, or needs a Ceph or a network."""
    files = {f'tests/integration/{path.name}' for path in (testrun.ROOT / 'tests' / 'integration').glob('test_*.py')}
    rest, *others = (*testrun.PARTS['integration'], *testrun.PARTS['live'])
    ignored = [option.removeprefix('--ignore=') for option in rest.command]
    assert rest.paths == ('tests/integration',)
    assert sorted(ignored) == sorted(
        [
            *(path for run in others for path in run.paths),
            *testrun.CAMPAIGNS,
            *testrun.CEPH,
            *testrun.NETWORKED.paths,
            testrun.REAL_KILLS.paths[-1],
        ]
    )
    assert len(ignored) == len(set(ignored)) and set(ignored) < files


def test_as_many_runs_with_daemons_as_cores_go_together_and_one_more_of_the_others(monkeypatch):
    monkeypatch.setattr(testrun.os, 'cpu_count', lambda: 2)
    runs = [run for part in testrun.TOGETHER for run in testrun.PARTS.get(part, ())]
    lock, now, most, order = threading.Lock(), [0, 0], [0, 0], []
    full = {True: threading.Barrier(2), False: threading.Barrier(3)}

    def execute(run, layout, shown, behind):
        assert behind
        with lock:
            now[run.waits] += 1
            most[run.waits] = max(most[run.waits], now[run.waits])
            order.append(run)
            first = len([one for one in order if one.waits == run.waits]) <= full[run.waits].parties
        if first:
            full[run.waits].wait(10)
        time.sleep(0.01)
        with lock:
            now[run.waits] -= 1
        return Counts(1, 0)

    monkeypatch.setattr(testrun, 'execute', execute)
    assert testrun.execute_all(runs, None) == {run.name: Counts(1, 0) for run in runs}
    assert most == [3, 2]
    daemons = [run.seconds for run in order if run.waits]
    assert set(daemons[:2]) == set(sorted(daemons)[-2:])


def test_live_has_half_of_the_unit_tests_beside_it_and_nothing_else():
    first, last = testrun.groups(list(testrun.PARTS), testrun.PARTS)
    assert sorted(run.name for run in last) == ['live-migration', testrun.BESIDE_LIVE]
    assert {run.name for run in first + last} == {run.name for runs in testrun.PARTS.values() for run in runs}
    assert not any(run.waits for run in last if run.name == testrun.BESIDE_LIVE)
    assert testrun.groups(['live', 'lint'], testrun.PARTS) == [list(testrun.PARTS['lint']), list(testrun.PARTS['live'])]
    assert testrun.groups(['unit'], testrun.PARTS) == [list(testrun.PARTS['unit'])]


def test_bytecode_is_kept_whatever_the_caller_has_said(monkeypatch):
    monkeypatch.setenv('PYTHONDONTWRITEBYTECODE', '1')
    monkeypatch.setenv('KEPT', 'yes')
    found = testrun.environment(testrun.Run('some', env={'OWN': 'too'}))
    assert (found['KEPT'], found['OWN']) == ('yes', 'too') and 'PYTHONDONTWRITEBYTECODE' not in found


def test_a_run_has_its_own_share_whatever_the_caller_has_said(monkeypatch):
    monkeypatch.setenv(testrun.SHARE, '1/9')
    for share in ('', '0/3'):
        assert testrun.environment(testrun.Run('some', share=share))[testrun.SHARE] == share


def test_all_runs_have_the_same_seed_and_the_runs_with_a_fixed_one_keep_it(monkeypatch):
    monkeypatch.setenv(testrun.SEED, '7')
    run = testrun.Run('one', paths=('tests/unit',), env={'OWN': 'too'}, share='0/3')
    parts = {'some': (run, testrun.Run('two', ('ruff',)))}
    one, two = testrun.seeded(parts, testrun.choose_seed(), whole=False)['some']
    assert (one.env, two.env) == ({'OWN': 'too', testrun.SEED: '7'}, {testrun.SEED: '7'})
    (kept,) = testrun.seeded({'some': (one,)}, '8', whole=False)['some']
    assert kept.env[testrun.SEED] == '7' and kept.share == '0/3'
    # pytest-randomly's, so that the order of tests and what they draw are the same again, too.
    command = testrun.command_of(one, testrun.Layout.at(), Path('report'))
    assert '--randomly-seed=7' in command
    assert testrun.command_of(two, testrun.Layout.at(), Path('report'))[1:] == []


def test_a_seed_is_drawn_by_chance_where_none_is_given(monkeypatch):
    for given in ({}, {testrun.SEED: ''}):
        monkeypatch.delenv(testrun.SEED, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        assert len({testrun.choose_seed() for _ in range(20)}) > 1


@pytest.mark.parametrize('given', ['last', '-1', '0.5'])
def test_a_seed_that_is_no_integer_is_refused(monkeypatch, capsys, given):
    monkeypatch.setenv(testrun.SEED, given)
    assert testrun.main(['lint']) == 2
    assert given in capsys.readouterr().err


def test_an_unknown_part_is_refused(capsys):
    assert testrun.main(['nonsense']) == 2
    assert 'nonsense' in capsys.readouterr().err


@pytest.mark.parametrize(('failed', 'again'), [(0, False), (1, True), (testrun.FEW, True), (testrun.FEW + 1, False)])
def test_few_failed_tests_run_again_alone(tmp_path, monkeypatch, failed, again):
    monkeypatch.setattr(testrun, 'RESULTS', tmp_path)
    run = testrun.PARTS['integration'][0]
    written = testrun.cache_of(run) / 'v' / 'cache' / 'lastfailed'
    written.parent.mkdir(parents=True)
    names = [f'tests/integration/test_kill.py::test_{number:02}' for number in range(failed)]
    written.write_text(json.dumps(dict.fromkeys(names, True)))
    alone = testrun.second(run)
    assert (alone is not None) == again
    if alone is not None:
        assert alone.paths == tuple(names) and alone.command == () and alone.name != run.name and alone.env == run.env


@pytest.mark.parametrize(
    'failed',
    [
        ['tests/unit/test_faults.py::test_a'],
        ['tests/flows/test_undos.py::test_a'],
        ['tests/functional/test_boot_delete.py::test_a'],
        ['tests/integration/test_kill.py::test_a', 'tests/integration/test_broker.py::test_b'],
    ],
    ids=['of units', 'of flows', 'of functional tests', 'beside one of the list'],
)
def test_a_failed_test_of_a_file_without_a_reason_does_not_run_again(tmp_path, monkeypatch, failed):
    monkeypatch.setattr(testrun, 'RESULTS', tmp_path)
    run = testrun.PARTS['integration'][0]
    written = testrun.cache_of(run) / 'v' / 'cache' / 'lastfailed'
    written.parent.mkdir(parents=True)
    written.write_text(json.dumps(dict.fromkeys(failed, True)))
    assert testrun.second(run) is None


def test_each_file_with_a_second_chance_exists_and_is_run():
    every = [run for runs in [*testrun.PARTS.values(), *testrun.EXTRA.values()] for run in runs]
    for path in testrun.SECOND_CHANCE:
        assert (testrun.ROOT / path).exists()
        assert any(path == own or path.startswith(f'{own}/') for run in every for own in run.paths), path


def test_what_passes_alone_has_passed_and_the_rest_has_failed():
    assert testrun.with_second(Counts(10, 3, 1), Counts(2, 1)) == Counts(12, 1, 1)
    # A process that ended badly beside two failed tests has still failed when they pass alone: its run says so again.
    assert testrun.with_second(Counts(10, 2), testrun.judge(3, report(2))) == Counts(12, 1)


def test_a_run_whose_tests_fail_only_beside_others_passes_and_names_them(tmp_path, monkeypatch, capsys):
    """With the real pytest: one test fails the first time, another always."""
    tests = tmp_path / 'test_some.py'
    tests.write_text(
        'import pathlib\n\ndef test_busy():\n    seen = pathlib.Path(__file__).with_name("seen")\n'
        '    before, _ = seen.exists(), seen.touch()\n    assert before\n\n'
        'def test_good():\n    assert True\n'
    )
    monkeypatch.setattr(testrun, 'RESULTS', tmp_path / 'results')
    monkeypatch.setattr(testrun, 'ROOT', tmp_path)
    monkeypatch.setattr(testrun, 'TOGETHER', ('some',))
    monkeypatch.setitem(testrun.PARTS, 'some', (testrun.Run('some', paths=(tests.name,)),))
    monkeypatch.setitem(testrun.SECOND_CHANCE, tests.name, 'a reason')
    assert testrun.main(['some']) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == '2 passed, 0 failed' and 'passed alone' in said[-2] and 'test_busy' in said[-2]
    assert said[0].partition(':')[0] == said[-3].partition(':')[0] and said[-3].startswith('seed ')
    tests.write_text(tests.read_text() + '\ndef test_bad():\n    assert False\n')
    (tmp_path / 'seen').unlink()
    assert testrun.main(['some']) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == '2 passed, 1 failed' and 'test_busy' in said[-3] and 'test_bad' not in said[-3]


SHARED = """
import pytest
from tests.fixtures import shares

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    shares.keep_share(config, items)
"""


@pytest.mark.parametrize('seed', ['1', '2', '3', '4'])
def test_a_second_try_runs_each_failed_test_of_a_share_and_no_other(tmp_path, monkeypatch, capsys, seed):
    """With the real pytest and the real shares: of two files one has a single test, which is in each share."""
    (tmp_path / 'conftest.py').write_text(SHARED)
    (tmp_path / 'test_many.py').write_text(
        'import pytest\n\n@pytest.mark.parametrize("number", range(16))\ndef test_odd(number):\n    assert number % 2\n'
    )
    (tmp_path / 'test_one.py').write_text('def test_bad():\n    assert False\n')
    monkeypatch.setattr(testrun, 'RESULTS', tmp_path / 'results')
    monkeypatch.setattr(testrun, 'ROOT', tmp_path)
    monkeypatch.setattr(testrun, 'TOGETHER', ('some',))
    monkeypatch.delenv(testrun.SEED, raising=False)
    monkeypatch.setattr(testrun, 'choose_seed', lambda: seed)
    monkeypatch.setenv('PYTHONPATH', str(Path(__file__).parents[3]))
    run = testrun.Run('some', paths=('test_many.py', 'test_one.py'), share='1/3')
    monkeypatch.setitem(testrun.PARTS, 'some', (run,))
    for name in run.paths:
        monkeypatch.setitem(testrun.SECOND_CHANCE, name, 'a reason')
    assert testrun.main(['some']) == 1
    capsys.readouterr()
    first, again = (
        testrun.outcomes((tmp_path / 'results' / f'{name}.xml').read_text()).keys() for name in ('some', 'some-again')
    )
    chosen = shares.share_of((f'test_many.py::test_odd[{number}]' for number in range(16)), 1, 3, seed)
    assert first == {f'test_many::{name.partition("::")[2]}' for name in chosen} | {'test_one::test_bad'}
    even = {f'test_many::test_odd[{number}]' for number in range(0, 16, 2)}
    assert again == (first & even) | {'test_one::test_bad'} and again < first
    # And all of them when the whole is asked for: so many failed that none of them has a second try.
    monkeypatch.setattr(testrun, 'FEW', 8)
    assert testrun.main([testrun.WHOLE, 'some']) == 1
    assert capsys.readouterr().out.splitlines()[-1] == '8 passed, 9 failed'


TERMINATED = """
import signal, sys
from pathlib import Path
from tools import testrun
testrun.RESULTS = Path(sys.argv[1])
testrun.command_of = lambda run, layout, report: [sys.executable, "-c", sys.argv[2], sys.argv[1], run.name]
testrun.PARTS = {"unit": (testrun.Run("first"), testrun.Run("second"))}
signal.signal(signal.SIGTERM, testrun.on_signal)
sys.exit(testrun.main([]))
"""
# Starts a process of its own and ends it when it is interrupted, as the fixture of a cloud does.
PYTEST = """
import subprocess, sys, time
from pathlib import Path
daemon = subprocess.Popen(["sleep", "300"], start_new_session=True)
Path(sys.argv[1], sys.argv[2] + ".pid").write_text(str(daemon.pid))
try:
    time.sleep(300)
finally:
    daemon.kill()
    daemon.wait()
"""


def runs(pid):
    """Whether a process is there and is no zombie that init has not collected yet."""
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except FileNotFoundError:
        return False


def test_a_run_that_is_terminated_ends_what_its_tests_started(tmp_path):
    run = subprocess.Popen(
        [sys.executable, '-c', TERMINATED, str(tmp_path), PYTEST],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(testrun.__file__).parents[1],
    )
    pids = [tmp_path / 'first.pid', tmp_path / 'second.pid']
    deadline = time.monotonic() + 30
    while not all(path.exists() and path.read_text() for path in pids):
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    run.send_signal(signal.SIGTERM)
    said, _ = run.communicate(timeout=40)
    assert run.returncode == 128 + signal.SIGTERM and 'SIGTERM: ending all runs' in said
    assert [path.name for path in pids if runs(int(path.read_text()))] == []


@pytest.mark.skipif(not Path('/proc/self/autogroup').exists(), reason='this kernel does not group by session')
def test_a_run_without_deadlines_has_a_lower_priority_than_other_sessions(tmp_path, monkeypatch):
    """``nice`` alone has no effect between sessions: daemons waited for runs that have no deadlines."""
    monkeypatch.setattr(testrun, 'RESULTS', tmp_path)
    monkeypatch.setattr(
        testrun,
        'command_of',
        lambda run, layout, report: [
            sys.executable,
            '-c',
            ('import os, sys, time; time.sleep(0.5); print(os.nice(0), open("/proc/self/autogroup").read())'),
        ],
    )
    layout, own = testrun.Layout.at(), os.nice(0)
    lower = min(own + testrun.NICE, 19)
    for run, behind, nice, lowered in (
        (testrun.Run('cpu'), True, lower, True),
        (testrun.Run('cpu'), False, own, False),
        (testrun.Run('waits', waits=True), True, own, False),
    ):
        testrun.execute(run, layout, shown=False, behind=behind)
        said = (tmp_path / f'{run.name}.log').read_text().split()
        assert said[0] == str(nice) and (said[-1] == str(testrun.NICE)) is lowered

"""Adding up what pytest counted."""
from __future__ import annotations

from tools import testrun
from tools.testrun import Counts


def report(tests: int, failures: int = 0, errors: int = 0, skipped: int = 0) -> str:
    return (f'<testsuites><testsuite name="pytest" tests="{tests}" failures="{failures}" errors="{errors}" '
            f'skipped="{skipped}"></testsuite></testsuites>')


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
    runs = [(run.env.get('KILONOVA_TEST_DATABASE', 'sqlite'), run.env['KILONOVA_CONCURRENCY'])
            for run in testrun.PARTS['functional']]
    assert sorted(runs) == [('mariadb', 'eventlet'), ('postgresql', 'threading'), ('sqlite', 'eventlet')]


def test_databases_that_ran_different_tests_fail():
    ran = {'functional-sqlite-eventlet': Counts(9, 1, 1), 'functional-mariadb-eventlet': Counts(6, 0, 1),
           'unit': Counts(3)}
    assert testrun.uneven(ran | {'functional-postgresql-threading': Counts(4)}) == ''
    assert testrun.uneven({'unit': Counts(3)}) == ''
    for other in (Counts(3), Counts(4, 0, 1), Counts(5), Counts()):
        assert 'postgresql' in testrun.uneven(ran | {'functional-postgresql-threading': other})


def test_each_functional_test_runs_on_sqlite_and_on_one_server():
    whole, *halves = testrun.PARTS['functional']
    assert whole.paths == ('tests/functional',)
    assert sorted(path for run in halves for path in run.paths) == sorted(testrun.FUNCTIONAL) != []


def test_an_unknown_part_is_refused(capsys):
    assert testrun.main(['nonsense']) == 2
    assert 'nonsense' in capsys.readouterr().err

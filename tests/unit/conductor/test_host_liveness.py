"""Hosts that are down, and hosts that nobody could hear."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import exc

from kilonova import errors
from kilonova.conductor.host_liveness import HostLiveness
from kilonova.db import engine
from kilonova.db.queries import instances, services

DOWN_TIME = 60


class Site:
    """Two computes and a conductor that listens to them; ``now`` is everybody's clock."""

    def __init__(self, path: Any, migrated: Any) -> None:
        shutil.copy(migrated / 'cell.sqlite', path / 'cell.db')
        self.db = engine.Database(f'sqlite:///{path}/cell.db', 'cell')
        self.now = 1000.0
        self.liveness = HostLiveness(DOWN_TIME, lambda: self.now)
        self.seen: dict[str, float] = {}
        with self.db.write() as conn:
            self.ids = {
                host: services.create(conn, {'host': host, 'binary': 'nova-compute', 'topic': 'compute'})['id']
                for host in ('gpu1', 'gpu2')
            }
        self.report('gpu1', 'gpu2')

    def report(self, *hosts: str) -> None:
        self.seen.update(dict.fromkeys(hosts, self.now))

    def _write(self) -> None:
        moment = instances.utcnow()
        with self.db.write() as conn:
            for host, seen in self.seen.items():
                services.update(
                    conn,
                    self.ids[host],
                    {'last_seen_up': moment - instances.datetime.timedelta(seconds=self.now - seen)},
                )

    def sleep(self, seconds: float, *reporting: str) -> None:
        """Time passes: these hosts report each 10 s, the conductor looks as often."""
        for _ in range(int(seconds // 10)):
            self.now += 10
            self.report(*reporting)
            self._write()
            self.liveness.look(self.db)

    def down(self) -> set[str]:
        self._write()
        return {host for host in self.ids if self.liveness.is_down(self.db, host)}

    def unsure(self) -> set[str]:
        self._write()
        return set(self.liveness.unsure(self.db))


@pytest.fixture
def site(tmp_path, migrated) -> Iterator[Site]:
    made = Site(tmp_path, migrated)
    yield made
    made.db.dispose()


def test_a_host_that_stops_reporting_alone_is_down_after_service_down_time(site: Site) -> None:
    site.sleep(100, 'gpu1', 'gpu2')
    site.sleep(50, 'gpu1')
    assert (site.down(), site.unsure()) == (set(), set())
    site.sleep(20, 'gpu1')
    assert (site.down(), site.unsure()) == ({'gpu2'}, set())


def test_hosts_that_all_fall_silent_get_twice_the_time(site: Site) -> None:
    site.sleep(100, 'gpu1', 'gpu2')
    site.sleep(110)
    assert (site.down(), site.unsure()) == (set(), {'gpu1', 'gpu2'})
    site.sleep(20)
    assert (site.down(), site.unsure()) == ({'gpu1', 'gpu2'}, set())


def test_after_a_gap_each_host_gets_time_to_report(site: Site) -> None:
    """The one that is back first doesn't make the others down."""
    site.sleep(100, 'gpu1', 'gpu2')
    site.sleep(90)
    site.sleep(50, 'gpu1')
    assert (site.down(), site.unsure()) == (set(), {'gpu2'})
    site.sleep(30, 'gpu1')
    assert (site.down(), site.unsure()) == ({'gpu2'}, set())
    site.sleep(10, 'gpu1', 'gpu2')
    assert (site.down(), site.unsure()) == (set(), set())


def test_a_host_that_was_down_before_the_gap_stays_down(site: Site) -> None:
    site.sleep(100, 'gpu1', 'gpu2')
    site.sleep(80, 'gpu1')
    assert site.down() == {'gpu2'}
    site.sleep(90)
    assert (site.down(), site.unsure()) == ({'gpu2'}, {'gpu1'})
    site.sleep(10, 'gpu1')
    assert (site.down(), site.unsure()) == ({'gpu2'}, set())


def test_a_conductor_that_was_cut_off_itself_gives_nobody_up(site: Site) -> None:
    site.sleep(100, 'gpu1', 'gpu2')
    for _ in range(30):
        site.sleep(10)
        site.liveness.cut_off()
    assert site.down() == set()
    site.sleep(130)
    assert site.down() == {'gpu1', 'gpu2'}


def test_after_a_long_time_without_the_database_hosts_get_time_to_report(site: Site) -> None:
    """Their silence of more than twice service_down_time says nothing: nobody could write or read reports."""
    site.sleep(100, 'gpu1', 'gpu2')
    site.now += 200
    assert (site.down(), site.unsure()) == (set(), {'gpu1', 'gpu2'})
    site.sleep(110)
    assert (site.down(), site.unsure()) == (set(), {'gpu1', 'gpu2'})
    site.sleep(20)
    assert (site.down(), site.unsure()) == ({'gpu1', 'gpu2'}, set())


def test_a_conductor_that_starts_may_have_been_away_itself(site: Site) -> None:
    """Hosts had nobody to report to: they get time. Those that others outlived don't."""
    site.sleep(100, 'gpu1')
    site.now += 90
    site.liveness = HostLiveness(DOWN_TIME, lambda: site.now)
    assert (site.down(), site.unsure()) == ({'gpu2'}, {'gpu1'})
    site.sleep(20, 'gpu1')
    assert (site.down(), site.unsure()) == ({'gpu2'}, set())


def test_after_a_power_cut_hosts_get_time_to_start(site: Site) -> None:
    """The conductor may be up before any host is."""
    site.now += 3600
    assert site.down() == set()
    assert site.unsure() == {'gpu1', 'gpu2'}
    site.sleep(60, 'gpu1')
    assert site.down() == set()
    site.sleep(20, 'gpu1')
    assert site.down() == {'gpu2'}


def test_where_no_host_comes_back_after_a_power_cut_they_are_down(site: Site) -> None:
    site.now += 3600
    assert site.down() == set()
    site.sleep(110)
    assert site.down() == set()
    site.sleep(20)
    assert site.down() == {'gpu1', 'gpu2'}


def test_what_nobody_looked_at_may_have_been_a_gap(site: Site) -> None:
    site.sleep(100, 'gpu1', 'gpu2')
    site.now += 200
    site.report('gpu1')
    assert (site.down(), site.unsure()) == (set(), {'gpu2'})
    site.sleep(70, 'gpu1')
    assert site.down() == {'gpu2'}


def test_forced_down_and_deleted_hosts_are_down_at_once(site: Site) -> None:
    with site.db.write() as conn:
        services.update(conn, site.ids['gpu2'], {'forced_down': True})
    assert site.down() == {'gpu2'}
    assert site.liveness.is_down(site.db, 'gpu3') is True
    site.sleep(110)
    assert site.unsure() == {'gpu1'}


def test_disabled_hosts_are_not_waited_for(site: Site) -> None:
    with site.db.write() as conn:
        services.update(conn, site.ids['gpu2'], {'disabled': True})
    site.sleep(80)
    assert site.unsure() == {'gpu1'}


def test_a_doubt_that_ends_while_the_scheduler_is_asked_counts_once_more(site: Site) -> None:
    """The scheduler's answer may rest on it; one that was asked later doesn't."""
    site.sleep(60, 'gpu1', 'gpu2')
    site.sleep(80)
    assert site.unsure() == {'gpu1', 'gpu2'}
    site.now += 1
    asked = site.now
    site.sleep(10, 'gpu1', 'gpu2')
    site._write()
    assert site.liveness.unsure(site.db, asked) == ['hosts that report again now']
    assert site.liveness.unsure(site.db, asked) == ['hosts that report again now']
    site.sleep(10, 'gpu1', 'gpu2')
    assert site.liveness.unsure(site.db, site.now) == []


def test_a_doubt_that_ends_before_anybody_asked_for_it(site: Site) -> None:
    """The first answer of a scheduler after a long time without the message queue: its hosts counted as down, and
    report before its answer comes."""
    site.sleep(60, 'gpu1', 'gpu2')
    site.sleep(80)
    asked = site.now
    site.sleep(10, 'gpu1', 'gpu2')
    assert site.liveness.unsure(site.db, asked) == ['hosts that report again now']
    site.sleep(10, 'gpu1', 'gpu2')
    assert site.liveness.unsure(site.db, site.now) == []


# --- one question each -----------------------------------------------------------------------------------------------
def force_down(site: Site, host: str, forced: bool = True) -> None:
    with site.db.write() as conn:
        services.update(conn, site.ids[host], {'forced_down': forced})


def test_fenced_is_what_an_operator_said(site: Site) -> None:
    """A host that is silent only isn't."""
    site.sleep(300, 'gpu1')
    assert site.down() == {'gpu2'} and not site.liveness.is_fenced(site.db, 'gpu2')
    force_down(site, 'gpu2')
    assert site.liveness.is_fenced(site.db, 'gpu2') and not site.liveness.is_fenced(site.db, 'gpu1')
    assert site.liveness.is_fenced(site.db, 'of no service')


def test_a_database_that_does_not_answer_says_nothing_of_a_fence(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unanswered, so that the step is tried again. A swap or snapshot of a volume was undone by the raw error."""

    def read() -> Any:
        raise exc.OperationalError('SELECT', None, Exception('gone'), connection_invalidated=True)

    monkeypatch.setattr(site.db, 'read', read)
    with pytest.raises(errors.Unanswered, match='the database'):
        site.liveness.is_fenced(site.db, 'gpu2')


def test_what_the_last_look_found_costs_no_statement(site: Site, statements: list[Any]) -> None:
    site.sleep(100, 'gpu1', 'gpu2')
    site.sleep(70, 'gpu1')
    statements.clear()
    assert site.liveness.was_down(site.db, 'gpu2') and not site.liveness.was_down(site.db, 'gpu1')
    assert not site.liveness.known_down(site.db, 'gpu1') and statements == []
    # Whether it is still down is asked.
    assert site.liveness.known_down(site.db, 'gpu2') and statements
    site.report('gpu2')
    site._write()
    assert not site.liveness.known_down(site.db, 'gpu2')
    assert not site.liveness.was_down(site.db, 'gpu2')


@pytest.fixture
def statements() -> Iterator[list[Any]]:
    seen: list[Any] = []
    stop = engine.listen(lambda *event: seen.append(event))
    yield seen
    stop()


def test_each_question_is_remembered(site: Site) -> None:
    """Until the next look, or the next question."""
    site.sleep(100, 'gpu1', 'gpu2')
    force_down(site, 'gpu2')
    assert not site.liveness.was_down(site.db, 'gpu2')
    assert site.liveness.is_down(site.db, 'gpu2') and site.liveness.was_down(site.db, 'gpu2')
    force_down(site, 'gpu2', False)
    assert not site.liveness.is_down(site.db, 'gpu2') and not site.liveness.was_down(site.db, 'gpu2')
    assert site.liveness.is_down(site.db, 'gone') and site.liveness.was_down(site.db, 'gone')
    site.liveness.look(site.db)
    assert not site.liveness.was_down(site.db, 'gone')


def test_those_that_are_waited_for_are_not_known_to_be_down(site: Site) -> None:
    site.sleep(100, 'gpu1', 'gpu2')
    site.sleep(100)
    assert not site.liveness.was_down(site.db, 'gpu1') and site.unsure() == {'gpu1', 'gpu2'}
    site.sleep(30)
    assert site.liveness.was_down(site.db, 'gpu1')


def test_silence_is_of_all_hosts_of_a_cell(site: Site) -> None:
    assert not site.liveness.silence
    site.sleep(100, 'gpu1', 'gpu2')
    site.sleep(90, 'gpu1')
    assert not site.liveness.silence
    site.sleep(40)
    assert site.liveness.silence
    site.sleep(10, 'gpu2')
    assert not site.liveness.silence


def test_another_cell_is_heard_for_itself(site: Site, tmp_path: Any, migrated: Any) -> None:
    """One where all are silent is silence; hosts of the same name are others."""
    shutil.copy(migrated / 'cell.sqlite', tmp_path / 'other.db')
    other = engine.Database(f'sqlite:///{tmp_path}/other.db', 'other')
    with other.write() as conn:
        services.create(
            conn,
            {
                'host': 'gpu1',
                'binary': 'nova-compute',
                'topic': 'compute',
                'last_seen_up': instances.utcnow() - instances.datetime.timedelta(seconds=1000),
            },
        )
    site.sleep(100, 'gpu1', 'gpu2')
    site.liveness.look(other)
    assert site.liveness.silence and site.down() == set()
    assert site.liveness.unsure(other) == ['gpu1'] and site.unsure() == set()
    other.dispose()


def test_a_cell_without_computes(site: Site) -> None:
    """Nothing is silent there, and no host is waited for."""
    for number in site.ids.values():
        with site.db.write() as conn:
            services.destroy(conn, number)
    site.liveness.look(site.db)
    assert not site.liveness.silence and site.liveness.unsure(site.db) == []


def test_a_cell_that_was_never_looked_at(site: Site) -> None:
    """The first question does."""
    site.seen.clear()
    site.seen['gpu1'] = site.now - 1000
    site._write()
    assert site.liveness.unsure(site.db) == []
    site.seen['gpu2'] = site.now - 1000
    site._write()
    assert HostLiveness(DOWN_TIME, lambda: site.now).unsure(site.db) == ['gpu1', 'gpu2']


def test_a_host_that_was_forced_down_is_not_waited_for(site: Site) -> None:
    site.sleep(100, 'gpu1', 'gpu2')
    force_down(site, 'gpu2')
    site.sleep(80, 'gpu1')
    assert site.unsure() == set() and site.liveness.was_down(site.db, 'gpu2')


def test_its_clock(site: Site) -> None:
    assert site.liveness.now() == 1000.0 and site.liveness.period == 10

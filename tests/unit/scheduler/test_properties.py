"""What holds for any cloud, any requests, and schedulers that get in each other's way.

Random clouds (``random_clouds``) are filled by selects: alone, one inside another (between Placement's answer and the
claim, or right before the claim), and several threads at once; servers boot when their computes come to it, and some
are deleted. After each select: no resource class and no device is given twice, what was chosen may take the request,
a refusal leaves nothing behind, and each reason that it names is one: the reasons of a host are removed in any order,
none that was removed is named again, and the host passes when all are removed and not before.

KILONOVA_SEED=7 runs that one cloud alone.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kilonova import errors
from kilonova.scheduler.explain import reasons, what_if
from kilonova.scheduler.explain.decisions import Trace
from kilonova.scheduler.explain.reasons import RefusalReport
from kilonova.scheduler.manager import SchedulerManager
from tests.unit.scheduler.builders import uuid
from tests.unit.scheduler.random_clouds import CTXT, LICENSE, Cloud, Request
from tests.unit.scheduler.remedies import Remedies

SEEDS = range(1, 11)
BLOCK, CASES = 5, 15
# Servers of one count of what fits.
BOOTED = 8
REPLAYED = os.environ.get('KILONOVA_SEED')
BLOCKS = [[int(REPLAYED)]] if REPLAYED else [list(SEEDS[at : at + BLOCK]) for at in range(0, len(SEEDS), BLOCK)]
AT_THAT_MOMENT = 'claimed by other requests at the same time'


@dataclass
class Tally:
    cases: int = 0
    refusals: int = 0
    removed: Counter[str] = field(default_factory=Counter)
    late: Counter[str] = field(default_factory=Counter)
    counted: int = 0

    def __str__(self) -> str:
        def told(counts: Counter[str]) -> str:
            return ', '.join(f'{name} {count}' for name, count in counts.most_common()) or 'none'

        return (
            f'{self.cases} selects, {self.refusals} refused; {self.counted} servers booted as counted; reasons '
            f'removed: {told(self.removed)}; on the hosts: {told(self.late)}'
        )


class Reports(threading.local):
    """What the scheduler found out in this thread's last refusal."""

    last: RefusalReport | None = None


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    found, explain = Reports(), reasons.explain

    def noting(*args: Any, **how: Any) -> RefusalReport:
        found.last = explain(*args, **how)
        return found.last

    monkeypatch.setattr(reasons, 'explain', noting)
    return found


class Story:
    """One cloud from empty to full."""

    def __init__(self, cloud: Cloud, reports: Reports, tally: Tally) -> None:
        self.cloud, self.random, self.reports, self.tally = cloud, cloud.random, reports, tally
        self.taken: list[str] = []
        self.deletes = 0

    # -- one select ----------------------------------------------------------------------------------------------------
    def case(self, scheduler: SchedulerManager, request: Request | None = None) -> bool:
        """Whether it was served."""
        cloud = self.cloud
        request = request or cloud.request()
        servers = cloud.new_servers(request.number)
        cloud.join(request, servers)
        self.tally.cases += 1
        self.reports.last, before, deletes = None, len(self.taken), self.deletes
        try:
            found = scheduler.select_destinations(CTXT, request.spec(servers), servers)
        except errors.NoValidHost as error:
            if deletes == self.deletes:
                self.refused(scheduler, request, servers, error, self.taken[before:])
            else:
                self.refused_again(scheduler, request, servers)
            cloud.leave(servers)
            return False
        self.served(request, servers, found)
        return True

    def served(self, request: Request, servers: Sequence[str], found: Sequence[Sequence[Any]]) -> None:
        cloud = self.cloud
        self.taken.extend(servers)
        cloud.check()
        for choices in found:
            # Alternates are claimed when they are tried.
            assert cloud.hosts[choices[0].service_host].known
            for choice in choices:
                host = cloud.hosts[choice.service_host]
                assert host.fit_for_work, f'{host.name} is {host.service}'
                assert request.zone in (None, host.zone), f'{host.name} is in {host.zone}'
                assert request.architecture is None or request.architecture in host.supported
                assert request.host in (None, host.name)
        cloud.boot(request, servers, found)

    # -- one refusal ---------------------------------------------------------------------------------------------------
    def refused(
        self, scheduler: SchedulerManager, request: Request, servers: Sequence[str], error: Exception, others: list[str]
    ) -> None:
        """``others``: servers that were chosen for meanwhile."""
        cloud, report = self.cloud, self.reports.last
        self.tally.refusals += 1
        assert not set(servers) & set(cloud.placement.allocations())
        assert report is not None and report.text() in str(error), f'{error} without reasons'
        rows = report.hosts(len(cloud.hosts))
        assert sorted(row['host'] for row in rows) == sorted([request.host] if request.host else cloud.hosts)
        kinds: dict[tuple[str, ...], list[str]] = {}
        for row in rows:
            kinds.setdefault(tuple(row['turned_away_by']), []).append(row['host'])
        # Each kind of host is as likely to be looked at, however many there are of it.
        keys = self.random.choice(sorted(kinds))
        self.examine(scheduler, request, servers[0], self.random.choice(kinds[keys]), set(keys), others)

    def refused_again(self, scheduler: SchedulerManager, request: Request, servers: Sequence[str]) -> Any:
        """What is refused now counts, where something changed since the refusal; the plan if nothing is."""
        self.reports.last = None
        try:
            return scheduler.try_out(request.spec(servers), servers, Trace(0))
        except errors.NoValidHost as again:
            return self.refused(scheduler, request, servers, again, [])

    def examine(
        self, scheduler: SchedulerManager, request: Request, server: str, name: str, keys: set[str], others: list[str]
    ) -> None:
        """Removes the reasons of one host: all but one, and then one after the other."""
        removed: set[str] = set()
        with Remedies(self.cloud, self.cloud.hosts[name], request) as remedies:

            def remove(key: str) -> None:
                removed.update(remedies.remove(key))
                self.tally.removed[key] += 1

            if keys == {'claim'}:
                # It could take one server. Not all of several, or not after others took what it had.
                keys = set()
                if request.number == 1:
                    assert others, f'nothing turns {name} away, and nobody was faster: {request}'
                    remedies.release(others)
                    self.tally.removed['claim'] += 1
            for key in self.random.sample(sorted(keys), max(len(keys) - 1, 0)):
                remove(key)
            for key in keys - removed if len(keys) == 1 else ():
                remove(key)
            while (left := self.left(scheduler, request, server, name)) is not None:
                said = f'{name} at first {sorted(keys)}, without {sorted(removed)}: {sorted(left)}; {request}'
                assert left and 'claim' not in left, said
                assert not left & removed, f'what was removed is named: {said}'
                # What nobody looked for before.
                keys |= left
                remove(self.random.choice(sorted(left)))
            assert keys <= removed, f'{name} passes with {sorted(keys - removed)}; {request}'

    def left(self, scheduler: SchedulerManager, request: Request, server: str, name: str) -> set[str] | None:
        """Why the host, and it alone, doesn't take one server now; None: it does."""
        self.reports.last = None
        spec = request.spec([server], [host for host in self.cloud.hosts if host != name])
        try:
            plan = scheduler.try_out(spec, [server], Trace(0))
        except errors.NoValidHost:
            report: Any = self.reports.last
            return next(set(row['turned_away_by']) for row in report.hosts(99) if row['host'] == name)
        assert plan.choices[0].host.host == name
        return None

    # -- several at once -----------------------------------------------------------------------------------------------
    def inside(self) -> None:
        """One whole select inside another: just before its claim, or after Placement's answer to it."""
        outer, inner = self.random.sample(self.cloud.schedulers, 2)
        placement, times, request = self.cloud.placement, self.random.choice((1, 1, 2)), self.cloud.request()
        if self.random.random() < 0.3:
            # Our own view doesn't know such things: Placement is asked.
            request.extra_specs = {**request.extra_specs, f'resources:{LICENSE}': '1'}

        def then(method: str, start: str) -> Callable[[str, str], None]:
            def meet(sent: str, path: str) -> None:
                if sent == method and path.startswith(start):
                    placement.before = placement.after = None
                    for _ in range(times):
                        self.disturb(inner, request)

            return meet

        placement.before, placement.after = self.random.choice(
            ((then('PUT', '/allocations/'), None), (None, then('GET', '/allocation_candidates')))
        )
        try:
            self.case(outer, request)
        finally:
            placement.before = placement.after = None

    def disturb(self, scheduler: SchedulerManager, request: Request) -> None:
        """Somebody else wants the same, or something else, or nothing more."""
        if self.cloud.running and self.random.random() < 0.1:
            self.delete()
        else:
            self.case(scheduler, self.again(request))

    def again(self, request: Request) -> Request:
        return replace(request, dropped=set()) if self.random.random() < 0.6 else self.cloud.request()

    def burst(self) -> None:
        """Threads. Nothing is given back meanwhile, so what is refused would be refused at the end as well."""
        cloud = self.cloud
        outcome: dict[str, tuple[Any, Request, Any]] = {}
        asked, first = [], cloud.request()
        for server in cloud.new_servers(self.random.choice((3, 4))):
            request = replace(self.again(first), number=1)
            cloud.join(request, [server])
            asked.append((server, request, self.random.choice(cloud.schedulers)))

        def run(server: str, request: Request, scheduler: SchedulerManager) -> None:
            try:
                found: Any = scheduler.select_destinations(CTXT, request.spec([server]), [server])
            except Exception as error:  # noqa: BLE001 - told below
                found = error
            outcome[server] = found, request, scheduler

        threads = [threading.Thread(target=run, args=one) for one in asked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.tally.cases += len(asked)
        for server, (found, request, _) in outcome.items():
            if not isinstance(found, Exception):
                self.served(request, [server], found)
        for server, (found, request, scheduler) in outcome.items():
            if isinstance(found, Exception):
                assert isinstance(found, errors.NoValidHost), found
                plan = self.refused_again(scheduler, request, [server])
                # Who was first may have been refused elsewhere and given it back: that is what the words say.
                assert plan is None or AT_THAT_MOMENT in str(found), (
                    f'{found} and then {plan.choices[0].host} for {request}'
                )
                cloud.leave([server])

    # -- what else happens ---------------------------------------------------------------------------------------------
    def delete(self) -> None:
        self.deletes += 1
        self.cloud.delete(self.cloud.running[self.random.choice(sorted(self.cloud.running))])

    def step(self) -> None:
        cloud, what = self.cloud, self.random.random()
        if what < 0.35:
            self.inside()
        elif what < 0.45:
            self.burst()
        elif what < 0.6 and cloud.running:
            self.delete()
        else:
            self.case(self.random.choice(cloud.schedulers))
        cloud.settle(self.random.choice((0.3, 1.0)))
        cloud.check()

    def fill(self) -> None:
        """As many servers fit as ``kilonova-manage scheduler capacity`` counts, whichever scheduler puts them there one
        after the other: what another one sends there meanwhile counts for amounts, and not for limits that are filters'
        own, such as max_instances_per_host."""
        cloud, request = self.cloud, self.cloud.request(plain=True)
        cloud.settle()
        counting = cloud.scheduler()
        counted = what_if.capacity(cloud.conf, counting, request.spec([uuid('any')]), {})
        counting.stop()
        if counted.total > BOOTED:
            return
        here: Counter[str] = Counter()
        while self.case(self.random.choice(cloud.schedulers), request):
            here[cloud.waiting[-1].choices[0].service_host] += 1
            cloud.settle()
        assert +Counter(counted.hosts) == here, f'{request}'
        self.tally.counted += counted.total


def play(seed: int, path: Path, templates: Path, placement: Any, reports: Reports, tally: Tally) -> None:
    cloud = Cloud(seed, path, templates, placement)
    try:
        story, end = Story(cloud, reports, tally), tally.cases + CASES
        while tally.cases < end:
            story.step()
        story.fill()
        cloud.settle()
        cloud.check()
        cloud.check_books()
        tally.late.update(cloud.late)
    finally:
        cloud.close()


@pytest.mark.parametrize('seeds', BLOCKS, ids=lambda seeds: f'seeds {seeds[0]}-{seeds[-1]}')
def test_nothing_is_given_twice_and_every_refusal_says_why(
    seeds: list[int],
    tmp_path: Path,
    templates: Path,
    placement: Any,
    reports: Reports,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tally = Tally()
    for seed in seeds:
        try:
            play(seed, tmp_path / str(seed), templates, placement, reports, tally)
        except BaseException as error:
            error.add_note(f'To see it again: KILONOVA_SEED={seed}')
            raise
    with capsys.disabled():
        print(f'\nseeds {seeds[0]} to {seeds[-1]}: {tally}')
    assert tally.cases >= CASES * len(seeds)

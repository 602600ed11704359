"""Selects that come late: the scheduler stood still, Placement hung, or the message lay in its queue. What was claimed
for nobody is given back, and nothing that somebody else builds on (rules 6 and 9 of operations)."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from kilonova.conductor.flows import boot
from kilonova.db.queries import operations
from kilonova.errors import Cancelled, KilonovaError, Unanswered

GPUS = {'gpu1': ['0000:08:00.0', '0000:09:00.0'], 'gpu2': ['0000:85:00.0', '0000:86:00.0']}
WAIT = 60


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Rows that met silence are taken again at once."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.05)


@pytest.fixture
def cloud(make_cloud):
    return make_cloud(GPUS)


class Clocks:
    """The module ``time`` on a machine whose clock is wrong by ``ahead`` seconds, or where ``passed`` more go by."""

    def __init__(self, ahead=0):
        self.ahead, self.passed = ahead, 0

    def __getattr__(self, name):
        return getattr(time, name)

    def time(self):
        return time.time() + self.ahead + self.passed

    def monotonic(self):
        return time.monotonic() + self.passed


@pytest.fixture
def clocks(monkeypatch):
    """Those that a scheduler counts the time of a select by."""
    made = Clocks()
    monkeypatch.setattr('kilonova.scheduler.placement.claims.time', made)
    return made


class Late:
    """The first select of a cloud, which runs out of the conductor's sight and stops at its ``nth`` claim: ``before``
    Placement sees it, or ``after`` it was written. ``alone``: further selects aren't answered until it has ended."""

    def __init__(self, cloud, moment, nth=1, alone=False):
        self.cloud, self.alone = cloud, alone
        self.stopped, self.held, self.error = threading.Event(), threading.Event(), None
        self.claims, self.answer, self._nth, self._moment = 0, None, nth, moment
        self.thread = None
        cloud.on_message = self._on_message
        cloud.placement.before = lambda method, path: self._watch('before', method, path)
        cloud.placement.after = lambda method, path: self._watch('after', method, path)

    def _on_message(self, kind, topic, host, method, args, deliver):
        if method != 'select_destinations':
            return deliver()
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, args=(deliver,))
            self.thread.start()
            assert self.stopped.wait(WAIT)
        elif not self.alone or not self.thread.is_alive():
            return deliver()
        raise Unanswered(who='scheduler', reason='timed out')

    def _run(self, deliver):
        try:
            self.answer = deliver()
        except KilonovaError as error:
            self.answer = error

    def _watch(self, moment, method, path):
        mine = threading.current_thread() is self.thread and method == 'PUT' and path.startswith('/allocations/')
        if not mine or moment != self._moment:
            return
        self.claims += 1
        if self.claims == self._nth:
            self.stopped.set()
            assert self.held.wait(WAIT)
            if self.error is not None:
                raise self.error

    def go_on(self, error=None):
        """It wakes up; ``error``: what its request comes to. Returns what it would have answered."""
        self.error = error
        self.held.set()
        self.thread.join(WAIT)
        assert not self.thread.is_alive()
        return self.answer


def until(what):
    end = time.monotonic() + WAIT
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def deleted(cloud):
    """All servers are deleted, and their flows ended; the release that looks again a minute later isn't waited for."""
    servers = [row['id'] for row in cloud.ok('GET', '/servers')['servers']]
    for server in servers:
        assert cloud.request('DELETE', f'/servers/{server}').status_int == 204
    cloud.settle(kinds_left=('release',))
    assert {cloud.status(server) for server in servers} == {'GONE'}


def generation(cloud, server):
    return cloud.placement.client.get_allocations(server)['consumer_generation']


@pytest.mark.parametrize('ahead', [600, -600])
def test_clocks_of_machines_may_differ(cloud, monkeypatch, ahead):
    """A boot works if the scheduler's clock is ten minutes ahead of the conductor's, or ten minutes late."""
    asked = []

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'select_destinations':
            asked.append(args['time_left'])
        return deliver()

    cloud.on_message = on_message
    ours = [module for name, module in sys.modules.items() if name.startswith('kilonova.scheduler.')]
    assert {'kilonova.scheduler.manager', 'kilonova.scheduler.placement.claims'} <= {module.__name__ for module in ours}
    for module in ours:
        if getattr(module, 'time', None) is time:
            monkeypatch.setattr(module, 'time', Clocks(ahead))
    server = cloud.boot(cloud.flavor(gpus=1))
    assert cloud.status(server) == 'ACTIVE'
    assert asked == [boot.SELECT_DEADLINE]
    cloud.assert_clean()


def test_a_select_that_fails_late_leaves_what_the_next_one_answered(cloud):
    """A select that fails late leaves the allocations that the next select returned.

    One create makes two servers. The first select claims the first server and hangs in the claim of the second. The
    next select finds the first allocation and claims the second server. Then the first select's request times out.
    """
    late = Late(cloud, 'before', nth=2)
    cloud.create(cloud.flavor(gpus=1), min_count=2, max_count=2)
    until(lambda: [row['status'] for row in cloud.ok('GET', '/servers/detail')['servers']] == ['ACTIVE'] * 2)
    held = cloud.placement.allocations()
    assert len(held) == 2
    assert isinstance(late.go_on(cloud.placement.broken()), Unanswered)
    cloud.settle()
    assert cloud.placement.allocations() == held
    cloud.assert_clean()


def test_a_select_that_wakes_up_after_its_claim_does_not_take_it_from_the_next_one(cloud, clocks):
    """A select that froze after its claim does not remove the allocation after the next select took it up.

    The first select's time is over when it continues. Only the allocation's newer generation shows that somebody else
    wrote it.
    """
    late = Late(cloud, 'after')
    server = cloud.create(cloud.flavor(gpus=1))['server']['id']
    until(lambda: cloud.status(server) == 'ACTIVE')
    held = cloud.placement.allocations()
    clocks.passed = boot.SELECT_DEADLINE
    answer = late.go_on()
    assert isinstance(answer, Unanswered) and 'deadline' in str(answer)
    assert cloud.placement.allocations() == held and list(held) == [server]
    cloud.settle()
    cloud.assert_clean()


@pytest.mark.parametrize('moment', ['before', 'after'])
def test_a_claim_after_the_time_is_given_back(cloud, clocks, moment):
    """A claim of a select that is made after the deadline is removed; the boot waits and asks the scheduler again."""
    late = Late(cloud, moment, alone=True)
    server = cloud.create(cloud.flavor(gpus=1))['server']['id']
    assert late.stopped.wait(WAIT)
    clocks.passed = boot.SELECT_DEADLINE
    cloud.placement.requests.clear()
    answer = late.go_on()
    assert isinstance(answer, Unanswered) and 'deadline' in str(answer)
    assert ('PUT', f'/allocations/{server}') in cloud.placement.requests
    cloud.settle()
    assert cloud.status(server) == 'ACTIVE'
    # The claim of the second select: the first one's is gone.
    assert generation(cloud, server) == 1
    cloud.assert_clean()


@pytest.mark.parametrize('count', [1, 2])
@pytest.mark.parametrize('moment', ['before', 'after'])
def test_a_claim_after_the_flow_ended_is_given_back(cloud, moment, count):
    """A claim that arrives after its servers were deleted is removed, even if the select's time is not over."""
    late = Late(cloud, moment, nth=count, alone=True)
    cloud.create(cloud.flavor(gpus=1), min_count=count, max_count=count)
    assert late.stopped.wait(WAIT)
    deleted(cloud)
    answer = late.go_on()
    assert isinstance(answer, Cancelled)
    assert cloud.placement.allocations() == {}


def test_a_claim_of_a_flow_that_ended_is_given_back_when_the_next_one_meets_silence(cloud):
    """The first of two servers is claimed for nobody, at the second Placement no longer answers."""
    late = Late(cloud, 'before', nth=1, alone=True)
    cloud.create(cloud.flavor(gpus=1), min_count=2, max_count=2)
    assert late.stopped.wait(WAIT)
    deleted(cloud)
    watch, seen = cloud.placement.before, []

    def before(method, path):
        watch(method, path)
        if method == 'PUT':
            seen.append(path)
            if len(seen) == 1:
                raise cloud.placement.broken()

    cloud.placement.before = before
    answer = late.go_on()
    assert isinstance(answer, Unanswered) and 'Placement' in str(answer)
    assert cloud.placement.allocations() == {}


def queued(cloud):
    """The first select lies in the queue; [what delivers it]. Further ones are answered."""
    kept = []

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'select_destinations' and not kept:
            kept.append(deliver)
            raise Unanswered(who='scheduler', reason='timed out')
        return deliver()

    cloud.on_message = on_message
    return kept


def test_a_message_that_lay_in_the_queue_claims_for_nobody(cloud):
    """A select that lay in the queue until its servers were deleted claims nothing.

    The select's time begins when it arrives, so only the operation's row tells that nobody waits for it.
    """
    kept = queued(cloud)
    keep = cloud.on_message
    cloud.on_message = lambda *message: keep(*message[:-1], unanswered if kept else message[-1])
    cloud.create(cloud.flavor(gpus=1))
    until(lambda: kept)
    deleted(cloud)
    with pytest.raises(Cancelled):
        kept[0]()
    assert cloud.placement.allocations() == {}


def unanswered():
    raise Unanswered(who='scheduler', reason='timed out')


def test_a_message_that_lay_in_the_queue_writes_nothing_of_a_server_that_runs(cloud):
    """Its allocation is found, is that of this very request, and is left alone: nobody waits any more."""
    kept = queued(cloud)
    server = cloud.boot(cloud.flavor(gpus=1))
    assert cloud.status(server) == 'ACTIVE'
    held, before = cloud.placement.allocations(), generation(cloud, server)
    with pytest.raises(Cancelled):
        kept[0]()
    assert (cloud.placement.allocations(), generation(cloud, server)) == (held, before)
    cloud.assert_clean()


def test_what_placement_writes_when_its_server_is_gone_is_given_back(cloud, monkeypatch):
    """Rule 9: the claim of an unanswered select is still under way to Placement when the server is deleted; it is
    looked for once more after the deadline."""
    monkeypatch.setattr(boot, 'SELECT_DEADLINE', 3600.0)
    asked = threading.Event()

    def on_message(*message):
        if message[3] == 'select_destinations':
            asked.set()
            unanswered()
        return message[-1]()

    cloud.on_message = on_message
    server = cloud.create(cloud.flavor(gpus=1))['server']['id']
    assert asked.wait(WAIT)
    deleted(cloud)
    (provider, *_) = cloud.placement.client.list_providers(name='gpu1')
    cloud.placement.client.claim(server, {provider['uuid']: {'resources': {'VCPU': 1}}}, project_id='p', user_id='u')
    with cloud.databases.api().write() as conn:
        assert (
            conn.execute(
                operations.operations.update().where(operations.operations.c.not_before > 0).values(not_before=0)
            ).rowcount
            == 1
        )
    cloud.settle()
    cloud.assert_empty()


def test_silence_gives_nothing_back(cloud):
    """The first of two servers is claimed, Placement doesn't answer for the second: the next select takes up what
    the first one left."""
    late = Late(cloud, 'before', nth=2, alone=True)
    cloud.create(cloud.flavor(gpus=1), min_count=2, max_count=2)
    assert late.stopped.wait(WAIT)
    first = cloud.placement.allocations()
    assert len(first) == 1
    asked = late.cloud.on_message
    cloud.on_message = lambda *message: unanswered() if message[3] == 'select_destinations' else asked(*message)
    assert isinstance(late.go_on(cloud.placement.broken()), Unanswered)
    assert cloud.placement.allocations() == first
    cloud.on_message = None
    cloud.settle()
    assert [row['status'] for row in cloud.ok('GET', '/servers/detail')['servers']] == ['ACTIVE'] * 2
    assert first.items() <= cloud.placement.allocations().items()
    cloud.assert_clean()


def test_a_server_that_is_deleted_while_its_host_is_chosen_leaves_nothing_to_do_later(cloud):
    """The scheduler has answered that nothing is claimed: its flow unwinds at once, and no release looks again."""

    def after(method, path):
        if method == 'PUT' and path.startswith('/allocations/'):
            cloud.placement.after = None
            assert cloud.request('DELETE', f'/servers/{path.rpartition("/")[2]}').status_int == 204
            cloud.placement.requests.clear()

    cloud.placement.after = after
    server = cloud.create(cloud.flavor(gpus=1))['server']['id']
    cloud.settle()
    assert cloud.status(server) == 'GONE' and cloud.rows() == []
    assert len([message for message in cloud.messages if message[3] == 'select_destinations']) == 1
    cloud.assert_empty()


def test_one_of_several_is_deleted_while_hosts_are_chosen(cloud):
    """Its claim goes back; the others have their answer and needn't ask again."""
    chosen = []

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'select_destinations':
            chosen.append(args['operations'])
            cloud.placement.after = after
        return deliver()

    def after(method, path):
        if method == 'PUT' and path.startswith('/allocations/'):
            cloud.placement.after = None
            gone.append(path.rpartition('/')[2])
            assert cloud.request('DELETE', f'/servers/{gone[0]}').status_int == 204
            left.extend(cloud.rows())

    gone, left = [], []
    cloud.on_message = on_message
    cloud.create(cloud.flavor(gpus=1), min_count=3, max_count=3)
    cloud.settle()
    assert [row['cancelled'] for row in left].count(True) == 1
    shown = cloud.ok('GET', '/servers/detail')['servers']
    assert [row['status'] for row in shown] == ['ACTIVE'] * 2 and gone[0] not in {row['id'] for row in shown}
    assert [len(operations) for operations in chosen] == [3]
    assert cloud.placement.allocations().keys() == {row['id'] for row in shown}
    cloud.assert_clean()


def test_a_database_that_does_not_say_who_waits_is_silence(cloud, monkeypatch):
    """Nothing is given back, nothing answered: the next select takes it up."""
    from kilonova.scheduler.hosts.servers import Servers

    real, asked, seen = Servers.waiting, [], []

    def waiting(self, operations):
        asked.append(operations)
        if len(asked) <= 2:
            seen.append(cloud.placement.allocations())
            raise Unanswered(who='the database', reason='injected')
        return real(self, operations)

    monkeypatch.setattr(Servers, 'waiting', waiting)
    server = cloud.boot(cloud.flavor(gpus=1))
    assert cloud.status(server) == 'ACTIVE'
    # Asked in vain at the end of the first select, and whether what it left has a flow.
    assert seen[0].keys() == {server} and seen == [seen[0]] * 2
    assert cloud.placement.allocations() == seen[0]
    assert generation(cloud, server) == 2
    cloud.assert_clean()

"""What live migrations ask of libvirt by [libvirt]live_migration_…, and what is done with its answers."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import libvirt
import pytest

from kilonova import errors
from kilonova.states import PowerState
from kilonova.virt.libvirt.migration import migration_job, transfer
from kilonova.virt.libvirt.migration.migration_job import RESUME
from kilonova.virt.libvirt.migration.transfer import Downtimes, MigrationTarget, Transfers
from tests.unit.virt import builders

WAY = MigrationTarget(
    'gpu2', 'qemu+tcp://192.0.2.2/system', {'migrate_uri': 'tcp://192.0.2.2'}, libvirt.VIR_MIGRATE_LIVE
)
RUNS = libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED
HELD = libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER
SWITCHED = libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY
BROKEN = libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED
GONE = libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_MIGRATED
WAIT = 30.0
# What libvirt 9.0 and QEMU 7.2 say.
REFUSED = "internal error: unable to execute QEMU command 'migrate-set-capabilities': Postcopy is not supported"
TOO_EARLY = (
    "internal error: unable to execute QEMU command 'migrate-start-postcopy': Postcopy must be started after "
    'migration has been started'
)
WITHOUT = (
    'Requested operation is not valid: switching to post-copy requires migration to be started with '
    'VIR_MIGRATE_POSTCOPY flag'
)
NOT_ENABLED = (
    "internal error: unable to execute QEMU command 'migrate-start-postcopy': Enable postcopy with "
    'migrate_set_capability before the start of migration'
)

NO_NUMBERS = 'internal error: migration was active, but no RAM info was set'


class Error(libvirt.libvirtError):  # type: ignore[misc]
    """libvirt's, with a code."""

    def __init__(self, text: str, code: int = libvirt.VIR_ERR_OPERATION_INVALID) -> None:
        libvirt.virResetLastError()  # of an earlier test; it would be the text
        super().__init__(text)
        self.code = code

    def get_error_code(self) -> int:
        return self.code


class Going:
    """A guest that libvirt carries away. ``ends``: how each call that carries it ends, and the guest's state then;
    without any it goes on until it is switched, held or ended."""

    uuid = 'u'

    def __init__(
        self,
        *ends: tuple[str | None, tuple[int, int]],
        switch: tuple[str, ...] = (),
        code: int = libvirt.VIR_ERR_INTERNAL_ERROR,
    ) -> None:
        self.code = code
        self.calls: list[tuple[dict[str, Any], int]] = []
        self.asked: list[tuple[Any, ...]] = []
        self.found, self.running = RUNS, False
        self._ends, self._switch, self._over = list(ends), list(switch), threading.Event()
        self._ended: str | None = None
        # So many questions about its numbers fail from the first call that carries it on.
        self.blind = 0

    def end(self, error: str | None = None, found: tuple[int, int] = GONE) -> None:
        self.found, self._ended = found, error
        self._over.set()

    def call_once(self, name: str, uri: str, parameters: dict[str, Any], flags: int) -> None:
        assert (name, uri) == ('migrateToURI3', WAY.uri)
        self.calls.append((parameters, flags))
        self.running = True
        if self._ends:
            self._ended, self.found = self._ends.pop(0)
        else:
            assert self._over.wait(WAIT)
        self.running = False
        if self._ended is not None:
            raise Error(self._ended, self.code)

    def call(self, name: str, *args: Any) -> Any:
        if name == 'jobStats':
            if self.blind and self.calls:
                self.blind -= 1
                raise Error(NO_NUMBERS, libvirt.VIR_ERR_INTERNAL_ERROR)
            return {
                'type': libvirt.VIR_DOMAIN_JOB_UNBOUNDED if self.running else libvirt.VIR_DOMAIN_JOB_NONE,
                'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT,
            }
        if name == 'state':
            return self.found
        self.asked.append((name, *args))
        if name == 'migrateStartPostCopy':
            if self._switch:
                text = self._switch.pop(0)
                raise Error(text, *([libvirt.VIR_ERR_INTERNAL_ERROR] if 'QEMU' in text else []))
            self.end()
        if name == 'abortJob':
            self.end('operation aborted', RUNS)
        return None

    def power_state(self) -> PowerState:
        return PowerState.PAUSED if self.found[0] == libvirt.VIR_DOMAIN_PAUSED else PowerState.RUNNING

    def hold(self) -> None:
        self.asked.append(('suspend',))
        self.end()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, 'LOOK', 0.001)
    monkeypatch.setattr(transfer, 'LATER', 0.001)
    monkeypatch.setattr(transfer, 'MENDING', 0.1)
    monkeypatch.setattr(transfer, 'BLIND', 0.1)
    monkeypatch.setattr(migration_job, 'AGAIN', 0.001)


@pytest.fixture
def transfers(tmp_path: Path) -> Any:
    def make(**options: Any) -> Transfers:
        return Transfers(
            builders.new_conf(
                tmp_path, 'gpu1', libvirt={f'live_migration_{name}': value for name, value in options.items()}
            )
        )

    return make


def carry(made: Transfers, guest: Any, told: Any = lambda progress: None) -> None:
    made.carry(guest, WAY, told)


@pytest.mark.parametrize(
    ('options', 'flags', 'parameters'),
    [
        ({}, 0, {}),
        ({'bandwidth': 7}, 0, {'bandwidth': 7}),
        ({'with_native_tls': True}, libvirt.VIR_MIGRATE_TLS, {}),
        ({'permit_auto_converge': True}, libvirt.VIR_MIGRATE_AUTO_CONVERGE, {}),
        ({'permit_post_copy': True}, libvirt.VIR_MIGRATE_POSTCOPY, {}),
        # A guest that can be switched needn't be slowed down.
        ({'permit_post_copy': True, 'permit_auto_converge': True}, libvirt.VIR_MIGRATE_POSTCOPY, {}),
    ],
)
def test_what_libvirt_is_asked(transfers: Any, options: dict[str, Any], flags: int, parameters: dict[str, Any]) -> None:
    guest = Going((None, GONE))
    carry(transfers(**options), guest)
    assert guest.calls == [(WAY.parameters | parameters, WAY.flags | flags)]


def test_a_guest_with_devices_is_not_switched(transfers: Any) -> None:
    guest = Going((None, GONE))
    made = transfers(permit_post_copy=True, permit_auto_converge=True)
    made.carry(guest, replace(WAY, post_copy=False), lambda _: None)
    assert [flags for _, flags in guest.calls] == [WAY.flags | libvirt.VIR_MIGRATE_AUTO_CONVERGE]


def test_a_destination_without_post_copy_gets_the_guest_without(
    transfers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    guest = Going((REFUSED, RUNS), (None, GONE))
    carry(transfers(permit_post_copy=True, permit_auto_converge=True), guest)
    assert [flags for _parameters, flags in guest.calls] == [
        WAY.flags | libvirt.VIR_MIGRATE_POSTCOPY,
        WAY.flags | libvirt.VIR_MIGRATE_AUTO_CONVERGE,
    ]
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == 'WARNING']
    assert said.startswith('Host gpu2 does not support post-copy') and said.endswith(REFUSED)


@pytest.mark.parametrize('options', [{}, {'permit_post_copy': True}])
def test_other_errors_are_not_taken_for_it(transfers: Any, options: dict[str, Any]) -> None:
    guest = Going(('unable to connect to server', RUNS))
    with pytest.raises(errors.MigrationError, match='unable to connect to server'):
        carry(transfers(**options), guest)
    assert len(guest.calls) == 1


def test_without_tls_the_guest_does_not_go(transfers: Any) -> None:
    guest = Going(('unable to execute: no x509 certificates', RUNS))
    with pytest.raises(errors.MigrationError, match='no x509 certificates'):
        carry(transfers(with_native_tls=True, permit_post_copy=True), guest)
    assert [flags & libvirt.VIR_MIGRATE_TLS for _parameters, flags in guest.calls] == [libvirt.VIR_MIGRATE_TLS]


# -- time that runs out, and who forces it -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('options', 'asked', 'stays'),
    [
        ({}, ['abortJob'], True),
        ({'timeout_action': 'force_complete'}, ['suspend'], False),
        ({'timeout_action': 'force_complete', 'permit_post_copy': True}, ['migrateStartPostCopy'], False),
    ],
)
def test_what_happens_when_its_time_is_over(
    transfers: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], asked: list[str], stays: bool
) -> None:
    clock = iter(range(0, 10**9, 3))
    monkeypatch.setattr(transfer, 'time', SimpleNamespace(monotonic=lambda: next(clock), sleep=time.sleep))
    made, guest = transfers(completion_timeout=1, **options), Going()
    if stays:
        with pytest.raises(errors.MigrationError, match='live_migration_completion_timeout'):
            carry(made, guest)
    else:
        carry(made, guest)
    assert [each[0] for each in guest.asked if each[0] != 'migrateSetMaxDowntime'] == asked
    assert guest.found == (RUNS if stays else GONE)


def test_the_switch_waits_for_the_disks(transfers: Any) -> None:
    """Whoever forces it is answered at once; the watch tries again until QEMU is at the memory."""
    made, guest, begun = transfers(permit_post_copy=True), Going(switch=(TOO_EARLY, TOO_EARLY)), threading.Event()
    first = threading.Thread(target=carry, args=(made, guest, lambda progress: begun.set()))
    first.start()
    assert begun.wait(WAIT)
    made.hasten(guest)  # type: ignore[arg-type]
    first.join(WAIT)
    assert not first.is_alive() and guest.found == GONE
    assert [each for each in guest.asked if each[0] != 'migrateSetMaxDowntime'] == [('migrateStartPostCopy', 0)] * 3


@pytest.mark.parametrize(
    ('options', 'refusal'),
    [({}, None), ({'permit_post_copy': True}, WITHOUT), ({'permit_post_copy': True}, NOT_ENABLED)],
)
def test_a_guest_that_can_not_be_switched_stands_still(
    transfers: Any, options: dict[str, Any], refusal: str | None
) -> None:
    """One that was begun without post-copy, too, before the compute was restarted or as the destination refused."""
    guest = Going(switch=(refusal,) if refusal else ())
    assert transfers(**options).hasten(guest)
    assert ('suspend',) in guest.asked


def test_a_guest_that_stands_still_is_in_no_haste(transfers: Any) -> None:
    guest = Going()
    guest.found = HELD
    assert transfers(permit_post_copy=True).hasten(guest)
    assert not guest.asked


# -- a post-copy that breaks -------------------------------------------------------------------------------------------
def test_a_post_copy_that_broke_goes_on(transfers: Any, caplog: pytest.LogCaptureFixture) -> None:
    guest = Going(('connection lost', BROKEN), ('connection lost', BROKEN), (None, GONE))
    carry(transfers(permit_post_copy=True), guest)
    assert [flags & RESUME for _parameters, flags in guest.calls] == [0, RESUME, RESUME]
    assert all(flags & libvirt.VIR_MIGRATE_POSTCOPY for _parameters, flags in guest.calls)
    assert not [record for record in caplog.records if record.levelname == 'ERROR']


def test_one_that_stays_broken_is_lost_and_the_destination_has_it(
    transfers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It never runs here again: what it wrote since is there. The third try to go on hangs, as libvirt 9.0 may."""
    guest = Going(*[('connection lost', BROKEN)] * 3)
    carry(transfers(permit_post_copy=True), guest)
    assert [record.getMessage() for record in caplog.records if record.levelname == 'ERROR'] == [
        (
            'A part of the guest memory could not be transferred to gpu2; the running guest is lost, but can be '
            'started again from its disks'
        )
    ]
    assert ('suspend',) not in guest.asked


def test_one_whose_qemu_died_is_given_up_at_once(
    transfers: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, 'MENDING', WAIT)
    guest = Going(('connection lost', BROKEN), ('Domain not found', BROKEN), code=libvirt.VIR_ERR_NO_DOMAIN)
    carry(transfers(permit_post_copy=True), guest)
    assert len(guest.calls) == 2
    assert any(record.levelname == 'ERROR' for record in caplog.records)


def test_a_restarted_compute_mends_it(transfers: Any) -> None:
    guest = Going((None, GONE))
    guest.found = BROKEN
    carry(transfers(permit_post_copy=True), guest)
    assert [flags & RESUME for _parameters, flags in guest.calls] == [RESUME]


@pytest.mark.parametrize(
    ('found', 'switched', 'arrived', 'broken'),
    [
        (RUNS, False, True, False),
        (HELD, False, True, False),
        (SWITCHED, True, True, False),
        (BROKEN, True, True, True),
        ((libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY), False, True, False),
        ((libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY_FAILED), False, True, True),
        ((libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION), False, False, False),
    ],
)
def test_where_a_guest_is_by_its_state(found: tuple[int, int], switched: bool, arrived: bool, broken: bool) -> None:
    guest: Any = Going()
    guest.found = found
    assert (migration_job.has_switched(guest), migration_job.has_arrived(guest), migration_job.is_broken(guest)) == (
        switched,
        arrived,
        broken,
    )


def test_libvirt_keeps_the_job_of_a_post_copy_that_broke_and_none_runs() -> None:
    guest: Any = Going()
    guest.running, guest.found = True, SWITCHED
    assert migration_job.outgoing(guest) is not None
    guest.found = BROKEN
    assert migration_job.outgoing(guest) is None


def test_one_that_runs_here_while_its_memory_still_comes_has_arrived() -> None:
    guest: Any = Going()
    guest.call = lambda name, *args: (  # type: ignore[method-assign]
        {'type': 1, 'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_IN} if name == 'jobStats' else guest.found
    )
    assert not migration_job.has_arrived(guest)
    guest.found = libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY
    assert migration_job.has_arrived(guest)


# -- how long it may stand still ---------------------------------------------------------------------------------------
def test_it_may_stand_still_longer_and_longer() -> None:
    downtimes = Downtimes(500, 10, 75)
    assert [downtimes.at(took, 2) for took in (0, 149, 150, 300, 1499, 1500, 99999)] == [50, 50, 95, 140, 455, 500, 500]
    assert downtimes.at(300, 4) == 95


def test_libvirt_is_told_once_a_step(transfers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, *[seconds for seconds in (0.0, 6.0, 12.0, 18.0, 99.0) for _ in range(2)]])
    monkeypatch.setattr(transfer, 'time', SimpleNamespace(monotonic=lambda: next(clock, 99.0), sleep=time.sleep))
    guest = Going()
    looks = iter(range(12))
    carry(
        transfers(downtime=300, downtime_steps=3, downtime_delay=3),
        guest,
        lambda progress: guest.end() if next(looks, 0) == 11 else None,
    )
    assert guest.asked == [('migrateSetMaxDowntime', each, 0) for each in (100, 166, 233, 300)]


@pytest.mark.parametrize('blind', [1, 3, 40])
def test_a_migration_whose_numbers_cannot_be_read_goes_on(transfers: Any, blind: int) -> None:
    """LP 1982284: libvirt has no numbers of a migration for a moment, and says so by an error. The guest is on its way
    all the same: whoever took this for the end undid the destination of a guest that arrived there."""
    guest, seen = Going(), list[Any]()
    guest.blind = blind

    def told(progress: Any) -> None:
        seen.append(progress)
        guest.end()

    carry(transfers(), guest, told)
    assert len(guest.calls) == 1 and seen
    assert ('abortJob',) not in guest.asked


def test_a_migration_ends_without_numbers(transfers: Any) -> None:
    """The call says that it came to its end."""
    guest = Going((None, GONE))
    guest.blind = 10**6
    carry(transfers(), guest)
    assert len(guest.calls) == 1


def test_a_migration_without_numbers_for_long_is_aborted(transfers: Any) -> None:
    """It is raised when the guest is known to have stayed."""
    guest = Going()
    guest.blind = 10**6
    with pytest.raises(libvirt.libvirtError, match='no RAM info was set'):
        carry(transfers(), guest)
    assert ('abortJob',) in guest.asked and not guest.running

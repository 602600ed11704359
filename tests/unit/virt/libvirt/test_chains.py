"""What becomes of snapshots and merges of disks where libvirt refuses, loses the connection, or QEMU ends the job;
tests/integration/test_libvirtd.py has those that QEMU does."""

from __future__ import annotations

from typing import Any

import libvirt
import pytest

from kilonova import errors
from kilonova.virt.libvirt.devices import block_chain
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.volume_snapshots import Merge

QUIESCE = libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_QUIESCE


class Guest:
    """A domain whose disk vdb has these files. ``looks``: at so many looks a job is at work, from the start if it
    ``works``, and then it has come to the files ``ends_in``; ``fails``: calls, or calls with these flags, that are
    refused."""

    uuid = 'u1'

    def __init__(
        self,
        *files: str,
        ends_in: tuple[str, ...] = (),
        works: bool = False,
        looks: int = 2,
        fails: tuple[Any, ...] = (),
    ) -> None:
        self.files, self.ends_in, self.works, self.looks, self.fails = files, ends_in or files, works, looks, fails
        self.asked: list[tuple[Any, ...]] = []

    def bound_agent(self) -> None:
        pass

    def is_active(self) -> bool:
        return True

    def xml(self) -> str:
        text = ''
        for number, path in reversed(list(enumerate(self.files, 1))):
            tag = 'backingStore' if number > 1 else 'disk'
            text = f"<{tag} index='{number}'><source file='/s/{path}'/>{text}<target dev='vdb'/></{tag}>"
        return f"<domain><devices><disk><target dev='vda'/></disk>{text}</devices></domain>"

    def call(self, method: str, *args: Any) -> Any:
        if method == 'blockJobInfo':
            if self.works and not self.looks:
                self.works, self.files = False, self.ends_in
            self.looks -= self.works
            return {'cur': 1} if self.works else {}
        self.asked.append((method, *args))
        if method in self.fails or (method, args[-1]) in self.fails:
            # Else it says what this thread's last call of libvirt failed with, in whichever test.
            libvirt.virResetLastError()
            raise libvirt.libvirtError('no')
        if method == 'snapshotCreateXML':
            self.files = ('v.1', *self.files)
        self.works = method in ('blockCommit', 'blockRebase')
        return None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_chain, '_LOOK', 0.0)


def nothing() -> None:
    pass


FROZEN = ('snapshotCreateXML', block_chain._SWITCH | QUIESCE)


def test_the_guest_is_frozen_where_that_can_be() -> None:
    for guest, flags in ((Guest('v'), [QUIESCE]), (Guest('v', fails=(FROZEN,)), [QUIESCE, 0])):
        block_chain.switch(guest, 'vdb', '/s/v.1')  # type: ignore[arg-type]
        assert [args[2] for args in guest.asked] == [block_chain._SWITCH | flag for flag in flags]
        assert guest.files == ('v.1', 'v')
        (_, xml, _) = guest.asked[0]
        assert '<disk name="vda" snapshot="no" />' in xml and '<source file="/s/v.1" />' in xml
    guest = Guest('v', fails=(FROZEN,))
    with pytest.raises(GuestFailed, match='take a snapshot of disk vdb of guest u1: no'):
        block_chain.switch(guest, 'vdb', '/s/v.1', must_freeze=True)  # type: ignore[arg-type]
    assert len(guest.asked) == 1


def test_it_was_done_before_the_answer_was_lost() -> None:
    guest = Guest('v.1', 'v', fails=('snapshotCreateXML',))
    block_chain.switch(guest, 'vdb', '/s/v.1')  # type: ignore[arg-type]
    assert len(guest.asked) == 1


@pytest.mark.parametrize(
    ('merge', 'asked', 'left'),
    [
        (
            Merge('b', 'c'),
            ('blockCommit', 'vdb', 'vdb[3]', 'vdb[2]', 0, libvirt.VIR_DOMAIN_BLOCK_COMMIT_RELATIVE),
            ('a', 'c'),
        ),
        (Merge('c', None), ('blockRebase', 'vdb', 'vdb[3]', 0, libvirt.VIR_DOMAIN_BLOCK_REBASE_RELATIVE), ('a', 'c')),
        (Merge(None, None), ('blockRebase', 'vdb', None, 0, 0), ('a',)),
    ],
)
def test_merges(merge: Merge, asked: tuple[Any, ...], left: tuple[str, ...]) -> None:
    """One that is at work already is waited for, and what is done isn't begun."""
    for works, begun in ((False, [asked]), (True, [])):
        guest = Guest('a', 'b', 'c', ends_in=left, works=works)
        for _again in range(2):
            block_chain.merge(guest, 'vdb', merge, nothing)  # type: ignore[arg-type]
            assert guest.asked == begun and block_chain.names(guest.xml(), 'vdb') == list(left)


@pytest.mark.parametrize(
    ('guest', 'merge', 'said'),
    [
        (Guest('a', 'b', 'c'), Merge('b', 'c'), 'QEMU ended the block job, or the guest stopped'),
        (Guest('a', 'b', 'c', fails=('blockCommit',)), Merge('b', 'c'), 'of guest u1: no'),
        (Guest('a', 'b', 'c'), Merge('x', 'y'), 'the guest does not use the file x, only a, b, c'),
        (Guest('a', 'b', 'c'), Merge('a', 'b'), 'a cannot be merged into b: the guest uses a, b, c'),
        (Guest('a', 'b', 'c', 'd'), Merge('b', 'd'), 'b cannot be merged into d: the guest uses a, b, c, d'),
        (Guest('a', 'b'), Merge('a', None), 'a is the file that the guest writes to'),
    ],
)
def test_merges_that_fail(guest: Guest, merge: Merge, said: str) -> None:
    with pytest.raises(GuestFailed, match=said):
        block_chain.merge(guest, 'vdb', merge, nothing)  # type: ignore[arg-type]
    assert guest.files == guest.ends_in


def test_a_merge_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended then; what ``check`` raises lets it go on."""

    def cancelled() -> None:
        raise errors.Cancelled(key='k')

    guest = Guest('a', 'b', ends_in=('a',), looks=1 << 20)
    with pytest.raises(errors.Cancelled):
        block_chain.merge(guest, 'vdb', Merge(None, None), cancelled)  # type: ignore[arg-type]
    assert guest.works and len(guest.asked) == 1
    monkeypatch.setattr(block_chain, 'MOST', 0.0)
    with pytest.raises(GuestFailed, match='the block job did not end within 0 seconds'):
        block_chain.merge(guest, 'vdb', Merge(None, None), nothing)  # type: ignore[arg-type]
    assert not guest.works and guest.asked[1:] == [('blockJobAbort', 'vdb', 0)]

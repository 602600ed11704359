"""Test events of other services and the threads that wait for them."""

from __future__ import annotations

from kilonova.compute.waiting import Waiting


def test_an_event_wakes_all_that_wait_for_its_uuid_and_no_others() -> None:
    waiting = Waiting()
    assert not waiting.tell('a')
    with waiting.heard('a') as first, waiting.heard('a') as second, waiting.heard('b') as other:
        assert not first.is_set(), 'the event before it waited does not count'
        assert waiting.tell('a')
        assert (first.is_set(), second.is_set(), other.is_set()) == (True, True, False)
    assert not waiting.tell('a') and not waiting.tell('b')


def test_those_that_still_wait_hear_of_events_after_another_has_ended() -> None:
    waiting = Waiting()
    with waiting.heard('a') as first:
        with waiting.heard('a') as second:
            pass
        assert waiting.tell('a')
        assert (first.is_set(), second.is_set()) == (True, False)

"""The changes that an operation writes when it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.conductor import ending
from kilonova.conductor.ending import Ending
from kilonova.errors import InstanceNotFound
from tests.unit.conductor.site import Site


class Recorder:
    """The statements of one ending. ``allowed`` is whether the server's state allows the transition."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allowed: bool = True) -> None:
        self.written: list[Any] = []
        for module, names in (
            (ending.instances, ('update_extra', 'set_system_metadata', 'add_fault', 'add_event_once', 'add_events')),
            (ending.instances, ('finish_action',)),
            (ending.migrations, ('update',)),
            (ending.operations, ('insert',)),
        ):
            for name in names:
                monkeypatch.setattr(module, name, self.record(name))
        monkeypatch.setattr(ending.instances, 'transition', self.record('transition', allowed))
        monkeypatch.setattr(ending.instances, 'refuse', lambda *args: InstanceNotFound(instance_id='s'))
        self.work: Any = SimpleNamespace(
            instance_uuid='s',
            request_id='r',
            arguments=lambda cls: cls.read({'migration_uuid': 'm'}),
            fault=lambda: {'message': 'why'},
        )

    def record(self, name: str, answer: Any = None) -> Any:
        def written(*args: Any) -> Any:
            self.written.append(name)
            return answer

        return written


def ended(**more: Any) -> Ending:
    return Ending(event='resize.failed', fault=True, migration='error', events=[{'event': 'e'}], **more)


def test_an_ending_is_written_in_the_order_of_its_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    all_of_it = ended(
        before=recorder.record('before'), operations=[SimpleNamespace()], after=recorder.record('after'), failed=True
    )
    assert all_of_it.write(None, recorder.work) is True
    assert recorder.written == [
        'before',
        'transition',
        'add_fault',
        'update_extra',
        'set_system_metadata',
        'update',
        'insert',
        'add_events',
        'finish_action',
        'after',
    ]


def test_an_ending_whose_transition_is_not_allowed_writes_the_rest_without_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder(monkeypatch, allowed=False)
    assert ended(once=True).write(None, recorder.work) is False
    assert 'add_fault' not in recorder.written
    assert recorder.written[-2:] == ['add_event_once', 'finish_action']


def test_an_ending_whose_required_transition_is_not_allowed_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch, allowed=False)
    with pytest.raises(InstanceNotFound):
        ended(required=True).write(None, recorder.work)
    assert recorder.written == ['transition']


def test_an_ending_deletes_the_row_and_returns_whether_the_state_changed(site: Site) -> None:
    site.put('active', 'powering-off')
    site.accept('stop')
    assert Ending(event='stop.failed').end(site.work()) is True
    assert site.kept() is None and site.state() == ('active', None)

"""What a step of an operation writes on its host, and what it asks before."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from kilonova import errors, objects
from kilonova.compute.keys import RunningTask
from kilonova.compute.operation import HostTask, StepCheck
from tests.unit.compute import test_transcripts as orders
from tests.unit.compute.cell import OPERATIONS, database, new_context
from tests.unit.compute.cloud import GPUS, Cloud, build

KEY = 'o/1.attach_volume/1'


def task(manager: Any, server: objects.Instance, checks: StepCheck = StepCheck.STEP) -> HostTask:
    return HostTask(manager.host, RunningTask(KEY), new_context(), server, checks)


def tag(server: objects.Instance) -> None:
    """The driver has found a tagged device in the guest."""
    server.device_metadata = objects.InstanceDeviceMetadata(
        devices=[objects.DiskMetadata(bus=objects.PCIDeviceBus(address='0000:00:03.0'), tags=['data'])]
    )


def tags(cloud: Cloud, server: objects.Instance) -> list[str]:
    stored = cloud.cell.extras[server.uuid]['device_metadata']
    devices = json.loads(stored)['nova_object.data']['devices'] if stored else []
    return [name for device in devices for name in device['nova_object.data']['tags']]


# When the server may be on another host already: a step that says so, and each undo.
LATE = [(StepCheck.STEP, True), (StepCheck.UNDO, False), (StepCheck.UNDO, True)]


def test_tags_of_a_server_that_is_surely_here_are_saved_without_a_question(
    cloud: Cloud, manager: Any, server: objects.Instance
) -> None:
    tag(server)
    cloud.cell.object_calls.clear()
    task(manager, server).save_tags()
    assert tags(cloud, server) == ['data'] and cloud.cell.object_calls == []
    assert [save['undo'] for save in cloud.cell.saves] == [False]


@pytest.mark.parametrize(('checks', 'late'), LATE)
@pytest.mark.parametrize(('host', 'saved'), [('gpu1', ['data']), ('gpu2', []), (None, [])])
def test_tags_of_a_server_that_may_have_left_are_saved_if_it_is_still_here(
    cloud: Cloud,
    manager: Any,
    server: objects.Instance,
    checks: StepCheck,
    late: bool,
    host: str | None,
    saved: list[str],
) -> None:
    tag(server)
    cloud.cell.instances[server.uuid]['host'] = host
    task(manager, server, checks).save_tags(late)
    assert tags(cloud, server) == saved and len(cloud.cell.saves) == len(saved)
    assert all(save['undo'] for save in cloud.cell.saves)


@pytest.mark.parametrize(('checks', 'late'), [(StepCheck.STEP, False), *LATE])
def test_a_server_without_tags_costs_no_call(
    cloud: Cloud, manager: Any, server: objects.Instance, checks: StepCheck, late: bool
) -> None:
    cloud.cell.object_calls.clear()
    task(manager, server, checks).save_tags(late)
    assert cloud.cell.object_calls == [] and cloud.cell.saves == []


def test_devices_are_read_again_if_another_writer_changed_them(
    cloud: Cloud, manager: Any, server: objects.Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written, so the server still has them."""

    def conflict(ctxt: Any, save: Any) -> None:
        raise errors.ClaimConflict('other devices')

    tracker, read = manager.host.tracker, list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(manager.host.upcalls, 'save', conflict)
        with pytest.raises(errors.ClaimConflict):
            task(manager, server).give_back()
    assert len(tracker.devices(server.uuid)) == 1 and tracker.used.vcpus == 8
    monkeypatch.setattr(tracker, 'reload', lambda ctxt: read.append(1))
    for _ in range(2):
        with tracker.writing(new_context()):
            pass
    assert read == [1]


# {name of a step in the log: an order of this step that fails}
FAILING: dict[str, Callable[[Cloud], Any]] = {
    'build': lambda cloud: orders.build(cloud, failing='spawn'),
    'unshelve': lambda cloud: orders.unshelve(cloud, failing='spawn'),
    'rebuild': lambda cloud: orders.plain('rebuild', cloud, 'rebuild'),
    'prep_resize': lambda cloud: orders.resize(cloud, 'prep', failing='prepare_move'),
    'resize_instance': lambda cloud: orders.resize(cloud, 'prep', 'move', failing='migrate_disk_and_power_off'),
    'finish_resize': lambda cloud: orders.resize(cloud, *orders.RESIZED, failing='finish_migration'),
    'check_source': lambda cloud: orders.live(cloud, *orders.LIVE[:1], failing='describe'),
    'check_destination': lambda cloud: orders.live(cloud, *orders.LIVE[:2], failing='offer'),
    'prepare': lambda cloud: orders.live(cloud, *orders.LIVE[:3], failing='prepare'),
    'live_migration': lambda cloud: orders.live(cloud, *orders.LIVE[:4], failing='migrate'),
    'evacuate': lambda cloud: orders.evacuate(cloud, failing='spawn'),
}


@pytest.mark.parametrize('name', FAILING)
@pytest.mark.parametrize(
    ('error', 'said'),
    [(errors.Conflict('no undo is written'), 'failed'), (errors.KeyGone(key='x'), 'was not completed')],
)
def test_the_log_names_the_step_whose_undo_failed(
    cloud: Cloud,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    error: Exception,
    said: str,
) -> None:
    """Answer the order with the error of the step, not with the error of the undo."""
    save = HostTask.save

    def refuse(self: HostTask, *args: Any, **fields: Any) -> None:
        if fields.get('undo'):
            raise error
        save(self, *args, **fields)

    monkeypatch.setattr(HostTask, 'save', refuse)
    with caplog.at_level(logging.INFO):
        answer = FAILING[name](cloud).lines[-1]
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith('The undo of the step ')]
    assert {line.partition(' (function')[0] for line in told} == {f'The undo of the step {name} {said}'}
    assert 'it hangs' in answer and str(error) not in answer


def test_a_claim_whose_service_stops_before_the_answer_is_made_again_by_the_next_process(cloud: Cloud) -> None:
    """Undo nothing, because it is not known whether the claim was written."""
    manager = cloud.host('gpu1', GPUS)
    server = cloud.cell.new_instance(1)
    cloud.cell.unanswered['claim_instance'] = 1
    manager.stopping.set()
    with pytest.raises(errors.Unanswered):
        build(manager, server)
    assert manager.host.tracker.sides(server.uuid) == set()
    assert [save for save in cloud.cell.saves if save['instance_uuid']] == []
    build(cloud.host('gpu1'), cloud.cell.instance(server.uuid))
    assert list(cloud.cell.held(server.uuid).values()) == ['allocated']


def test_a_late_call_that_fails_writes_no_failed_event(cloud: Cloud, manager: Any, server: objects.Instance) -> None:
    """Its operation is at a later step, because the first message of the call has succeeded."""
    late = task(manager, server)
    late.begin('compute_attach_volume')
    late.save(event=late.event())
    with database().write() as conn:
        conn.execute(OPERATIONS.update().where(OPERATIONS.c.uuid == 'o').values(position=2))
    error = errors.HostRejected('no room')
    with pytest.raises(errors.KeyGone):
        late.save(undo=True, event=late.event(error), undone='no room')

"""What a step of an operation writes on its host, and what it asks before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kilonova import errors, objects
from kilonova.compute.keys import RunningTask
from kilonova.compute.operation import HostTask, StepCheck
from tests.unit.compute.cell import new_context
from tests.unit.compute.cloud import Cloud

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

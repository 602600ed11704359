"""Shelving on a host: a call that arrives late changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import errors, objects
from tests.unit.compute.cell import new_context
from tests.unit.compute.cloud import Cloud
from tests.unit.compute.test_unshelve import unshelve

OFFLOAD = 'shelve_offload_instance'


@pytest.mark.parametrize(('late', 'given'), [('shelve_instance', {'image_id': None}), (OFFLOAD, {})])
def test_a_late_call_leaves_a_server_alone_that_was_unshelved_to_the_same_host(
    cloud: Cloud, manager: Any, server: objects.Instance, late: str, given: dict[str, Any]
) -> None:
    """The call was sent twice. Its second message arrives when the operation has ended and the host was restarted."""
    key, row = f'{late}/0.{late}/1', cloud.cell.instances[server.uuid]
    getattr(manager.endpoint, late)(new_context(), instance=server, key=key, **given)
    if late != OFFLOAD:
        manager.endpoint.shelve_offload_instance(new_context(), instance=server, key=f'next/0.{OFFLOAD}/1')
    cloud.cell.end(late)
    row.update(host=None, node=None)
    unshelve(manager, cloud.cell.in_task(server.uuid, 'unshelving', 'shelved_offloaded'))
    cloud.cell.end('o')
    row.update(vm_state='active', task_state=None)
    driver = cloud.drivers['gpu1']
    domain = driver.domains[server.uuid]
    with pytest.raises(errors.KeyGone):
        getattr(cloud.host('gpu1').endpoint, late)(new_context(), instance=server, key=key, **given)
    assert driver.domains[server.uuid] is domain and domain.state == 1

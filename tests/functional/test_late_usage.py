"""What a host uses is told in numbered messages: one that comes late, and is older, changes nothing."""

from __future__ import annotations

import copy
from typing import Any

import sqlalchemy as sa

from kilonova import objects
from kilonova.context import get_admin_context
from kilonova.db.models import cell as models
from tests.fixtures.cloud import Cloud


def row(cloud: Cloud, host: str) -> dict[str, Any]:
    table = models.ComputeNode.__table__
    with cloud.cell.read() as conn:
        return dict(
            conn.execute(
                sa.select(table.c.id, table.c.pci_stats, table.c.vcpus_used, table.c.usage_serial, table.c.stats).where(
                    table.c.host == host
                )
            )
            .mappings()
            .one()
        )


def listen(cloud: Cloud) -> list[dict[str, Any]]:
    """The saves with a usage that hosts send from now on."""
    told: list[dict[str, Any]] = []

    def on_message(kind: str, topic: str, host: str, method: str, args: dict, deliver: Any) -> Any:
        if method == 'save_instance' and args['save'].usage:
            told.append(copy.deepcopy(args['save'].primitive_data()))
        return deliver()

    cloud.on_message = on_message
    return told


def test_a_usage_that_comes_late_is_not_written(cloud: Cloud) -> None:
    """Simulated story 11037: a conductor that stood still wrote an hour-old usage, and the host's pools stayed so until
    something changed there."""
    told = listen(cloud)
    flavor = cloud.flavor(gpus=1)
    server = cloud.boot(flavor)
    host = cloud.host_of(server)
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    cloud.on_message = None
    late = next(save for save in told if save['usage']['vcpus_used'])
    before = row(cloud, host)
    assert before['vcpus_used'] == 0
    cloud.conductor_clients[cloud.cell_of(host)].save_instance(
        get_admin_context(), save=objects.Save(instance_uuid=None, usage=late['usage'])
    )
    assert row(cloud, host) == before
    cloud.assert_clean()


def test_numbers_go_on_after_a_restart(cloud: Cloud) -> None:
    server = cloud.boot(cloud.flavor(gpus=1))
    host = cloud.host_of(server)
    before = row(cloud, host)['usage_serial']
    assert before
    cloud.crash_compute(host)
    cloud.start_compute(host)
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    after = row(cloud, host)
    assert after['usage_serial'] > before and after['vcpus_used'] == 0
    cloud.assert_empty()


def test_a_compute_of_the_release_before_numbers_nothing(cloud: Cloud) -> None:
    """Its usage is written as it comes, and the number stays: for want of one such a compute ended at its start."""
    told = listen(cloud)
    server = cloud.boot(cloud.flavor(gpus=1))
    host = cloud.host_of(server)
    cloud.on_message = None
    before = row(cloud, host)
    old = dict(told[-1]['usage'], vcpus_used=before['vcpus_used'] + 3)
    del old['usage_serial']
    cloud.conductor_clients[cloud.cell_of(host)].save_instance(
        get_admin_context(), save=objects.Save(instance_uuid=None, usage=old)
    )
    after = row(cloud, host)
    assert after['vcpus_used'] == before['vcpus_used'] + 3
    assert after['usage_serial'] == before['usage_serial']

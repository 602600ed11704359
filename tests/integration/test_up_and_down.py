"""``make up`` again, ``make down``, and up after ``var/`` was removed."""

from __future__ import annotations

import shutil

from tests.integration.site import Site
from tools.cloud import ports, process


def test_up_again_changes_nothing(site: Site) -> None:
    """Each daemon is a process of its own, and a second `up` leaves every process running."""
    before = {name: site.pid(name) for name in process.recorded(site.layout)}
    assert {
        'rabbitmq',
        'keystone',
        'glance',
        'placement',
        'api',
        'conductor',
        'scheduler',
        'compute-gpu1',
        'compute-gpu2',
    } <= set(before)
    assert len(set(before.values())) == len(before)
    site.up()
    assert {name: site.pid(name) for name in process.recorded(site.layout)} == before


def test_down_leaves_nothing_and_up_makes_it_anew(site: Site) -> None:
    """No process, no open port; after ``rm -rf var`` an empty cloud comes up and works."""
    (server,) = site.boot(1, site.flavor('anew-gpu', gpus=1))
    site.down()
    assert process.marked(site.layout.var) == {}
    assert [name for name, port in site.cloud.ports.items() if not ports.is_free(port)] == []
    shutil.rmtree(site.layout.var)
    site.forget()
    site.up()
    assert server not in site.servers()
    site.boot(1, site.flavor('anew-gpu', gpus=1))
    site.audit()

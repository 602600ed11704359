"""A real Nova 34 was recorded with its databases: Kilonova answers from the copied rows as that Nova did."""

from __future__ import annotations

import functools
import os
import pathlib
import random
from collections.abc import Iterator
from unittest import mock

import pytest
import webob

from kilonova.adopt import answers, check, cloud, copy, verify
from kilonova.api import app as api_app
from kilonova.cmd import options
from kilonova.db import engine
from tests.adopt.nova import RECORDED, recorded
from tests.unit.api.conftest import Site, make_databases

# The accounts of the recording: user, project, roles.
ACCOUNTS = {
    'admin': ('016a70f20f35489f92cff82c3654bc13', '6e22c984fb634983996fc8217dc73376', 'admin,manager,member,reader'),
    'member': ('47cbcab6312e42369356aa459622147b', '7c5ac1dd0199422388c217ffcfc5d3b8', 'member,reader'),
}
# Answers that come from the network service or from the share service, which this API does not have here.
ELSEWHERE = ('/os-interface', '/os-security-groups', '/shares')
# Members of answers that come from a network service.
NETWORK = 'security_groups'
# One of so many answers is compared; KILONOVA_WHOLE=1: all.
SHARE = 8


@pytest.fixture(scope='module')
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Kilonova's API on the rows that were copied from the recorded Nova, with the options of its nova.conf."""
    directory = tmp_path_factory.mktemp('site')
    with mock.patch.object(api_app.auth_token, 'AuthProtocol', lambda app, conf: app):
        made = Site(
            directory,
            make_databases(tmp_path_factory.mktemp('templates')),
            api__auth_strategy='keystone',
            service_down_time=10**9,
            quota__cores=-1,
            quota__ram=-1,
        )
    conf = recorded(directory / 'nova')
    with cloud.opened([conf], options.new) as nova:
        copy.run(nova, made.databases, made.cells)
    yield made
    made.databases.dispose()
    engine.install(None)


def ask(site: Site, answer: answers.Answer) -> tuple[int, object]:
    """Send the request of a recorded answer to Kilonova's API; return the status and the body."""
    user, project, roles = ACCOUNTS[answer.role]
    request = webob.Request.blank(f'/v2.1{answer.path}')
    request.headers.update(
        {
            'X-User-Id': user,
            'X-Project-Id': project,
            'X-Roles': roles,
            'X-Auth-Token': 'token',
            'X-Identity-Status': 'Confirmed',
            'OpenStack-API-Version': f'compute {answer.version}',
        }
    )
    response = request.get_response(site.app)
    return response.status_int, response.json if response.body else None


@functools.cache
def everything() -> list[answers.Answer]:
    found = answers.read(RECORDED / 'nova-34' / 'answers.json.gz')
    return [one for one in found if not one.path.partition('?')[0].endswith(ELSEWHERE)]


def test_kilonova_answers_as_nova_did(site):
    engine.install(site.databases)
    chosen = everything()
    if not os.environ.get('KILONOVA_WHOLE'):
        lists = [one for one in chosen if not one.path.startswith('/servers/') or '/detail' in one.path]
        chosen = lists + random.sample(chosen, len(chosen) // SHARE)
    mirror = verify.Mirror()
    for answer in chosen:
        mirror.add(answer, *ask(site, answer))
    unexpected = {
        kind: (mirror.numbers[kind], mirror.first[kind])
        for kind in mirror.kinds(expected=False)
        if not kind.endswith(NETWORK)
    }
    assert unexpected == {}
    assert mirror.compared == len(chosen) > 500


def test_what_was_recorded_can_be_adopted_but_for_what_is_named(tmp_path: pathlib.Path):
    with cloud.opened([recorded(tmp_path / 'nova')], options.new) as nova:
        report = check.run(nova, 20)
    assert {one.kind: one.number for one in report.obstacles.sorted()} == {
        'same-host-resize': 2,
        'evacuated': 1,
        'no-host': 1,
        'rescued': 3,
    }
    assert report.counts['cell1']['servers active'] == 61


def test_a_nova_with_operations_under_way_must_wait(tmp_path: pathlib.Path):
    with cloud.opened([recorded(tmp_path / 'nova', 'nova-34-in-flight')], options.new) as nova:
        report = check.run(nova, 1000)
    found: dict[str, list[str]] = {}
    for one in report.obstacles.sorted():
        found.setdefault(one.kind, []).extend(one.first)
    assert {kind: len(what) for kind, what in found.items()} == {
        'build-requests': 5,
        'task-state': 20,
        'move-under-way': 6,
        'same-host-resize': 2,
        'evacuated': 1,
        'unmapped-server': 1,
        'no-host': 1,
        'rescued': 3,
    }
    # A confirm of a resize is seen by its migration alone: the server has no task state.
    assert any('is confirming' in line for line in found['move-under-way'])

"""A controller does not start while a Nova may act on the same servers."""

from __future__ import annotations

import datetime
import logging
import pathlib
from typing import Any

import pytest
from oslo_config import cfg

from kilonova.cmd import options
from kilonova.cmd.daemon import takeover
from tests.adopt.nova import Nova, fill
from tests.adopt.ours import Target
from tests.unit.api.conftest import make_databases


@pytest.fixture(scope='module')
def templates(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return make_databases(tmp_path_factory.mktemp('kilonova'))


@pytest.fixture
def nova(tmp_path: pathlib.Path) -> Nova:
    found = Nova(tmp_path / 'nova')
    fill(found)
    return found


@pytest.fixture
def target(tmp_path: pathlib.Path, templates: pathlib.Path) -> Target:
    return Target(tmp_path / 'ours', templates)


def conf_of(*nova_config: Any) -> cfg.ConfigOpts:
    conf = options.new()
    conf([], project='kilonova', default_config_files=[])
    conf.set_override('nova_config', [str(path) for path in nova_config], 'adoption')
    return conf


def run_nova(nova: Nova, seconds_ago: float = 0) -> None:
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds_ago)
    nova.run(
        'cell1',
        "UPDATE services SET last_seen_up = ? WHERE binary = 'nova-conductor'",
        now.strftime('%Y-%m-%d %H:%M:%S.%f'),
    )


def test_a_cloud_that_never_was_novas_starts(target):
    takeover.refuse_two_clouds(conf_of(), target.cells)


def test_a_copied_cloud_starts_only_after_begin(nova, target):
    target.copy(nova)
    with pytest.raises(
        takeover.NovaActs, match=r"run 'kilonova-manage adopt copy --last' and 'kilonova-manage adopt beg"
    ):
        takeover.refuse_two_clouds(conf_of(), target.cells)
    target.begin(nova)
    takeover.refuse_two_clouds(conf_of(), target.cells)


def test_a_cloud_that_was_given_back_does_not_start(nova, target):
    target.copy(nova)
    target.begin(nova)
    target.back(nova)
    with pytest.raises(takeover.NovaActs, match='This cloud was given back to Nova'):
        takeover.refuse_two_clouds(conf_of(), target.cells)


def test_no_controller_starts_while_nova_reports(nova, target):
    target.copy(nova)
    target.begin(nova)
    run_nova(nova)
    with pytest.raises(takeover.NovaActs, match=r'still runs: nova-conductor on ctl reported [0-9] seconds ago'):
        takeover.refuse_two_clouds(conf_of(nova.conf), target.cells)
    run_nova(nova, seconds_ago=600)
    takeover.refuse_two_clouds(conf_of(nova.conf), target.cells)


def test_a_nova_that_runs_again_is_logged(nova, target, caplog):
    target.copy(nova)
    target.begin(nova)
    with caplog.at_level(logging.ERROR):
        takeover.log_running_nova(conf_of(nova.conf))
        assert caplog.messages == []
        run_nova(nova)
        takeover.log_running_nova(conf_of(nova.conf))
    (line,) = caplog.messages
    assert line.startswith('The Nova that was taken over runs again: nova-conductor on ctl reported')


def test_a_nova_whose_databases_are_gone_prevents_no_start(nova, target, caplog):
    target.copy(nova)
    target.begin(nova)
    for path in nova.directory.glob('*.db'):
        path.unlink()
    takeover.refuse_two_clouds(conf_of(nova.conf), target.cells)
    assert 'It could not be looked up whether the Nova that was taken over runs' in caplog.text

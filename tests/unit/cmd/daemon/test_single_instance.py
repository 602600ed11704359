"""A second compute for the same host refuses to start, as two of them would serve one queue."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kilonova.cmd import compute
from kilonova.cmd.daemon import program as daemon
from kilonova.cmd.daemon.single_instance import SoleUse
from kilonova.objects import base

HOLD = """
import sys
from kilonova.cmd.daemon.single_instance import SoleUse
sole = SoleUse(sys.argv[1], 'compute', 'kilonova-compute of host gpu1')
print('held', flush=True)
sys.stdin.read()
"""


def test_a_second_compute_says_who_is_there_and_refuses(
    parse: Any, monkeypatch: Any, write_conf: Any, caplog: Any
) -> None:
    monkeypatch.setattr(base, 'set_indirection', lambda client: None)
    conf = parse()
    first = compute.build(conf)
    with pytest.raises(daemon.StartRefused) as caught:
        compute.build(conf)
    assert str(caught.value) == (
        f'kilonova-compute of host ctl1 (pid {os.getpid()}) already uses {conf.state_path}. Each compute needs its '
        'own host, state_path and instances_path'
    )
    assert daemon.run('compute', compute.build, ['--config-file', write_conf()]) == 1
    (record,) = [record for record in caplog.records if record.levelname == 'ERROR']
    assert record.getMessage() == f'kilonova-compute does not start: {caught.value}'
    assert record.exc_info is None
    first.stop()
    compute.build(conf).stop()


def test_a_compute_that_was_killed_leaves_no_lock(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, '-W', 'ignore', '-c', HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b'held\n'
        with pytest.raises(daemon.StartRefused, match=rf'of host gpu1 \(pid {other.pid}\) already uses'):
            SoleUse(str(tmp_path), 'compute', 'mine')
        other.kill()
    SoleUse(str(tmp_path), 'compute', 'mine').end()


def test_the_lock_is_its_owners_alone(tmp_path: Path) -> None:
    sole = SoleUse(str(tmp_path), 'compute', 'somebody')
    assert (tmp_path / 'compute.lock').stat().st_mode & 0o777 == 0o600
    sole.end()


def test_other_directories_are_others(tmp_path: Path) -> None:
    one, other = (SoleUse(str(tmp_path / name), 'compute', 'mine') for name in 'ab')
    assert sorted(path.parent.name for path in tmp_path.glob('*/compute.lock')) == ['a', 'b']
    one.end()
    # What one let go of says nothing of the other.
    with pytest.raises(daemon.StartRefused):
        SoleUse(str(tmp_path / 'b'), 'compute', 'mine')
    other.end()

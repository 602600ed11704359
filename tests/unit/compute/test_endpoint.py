"""Test the log lines about failed calls of a host."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kilonova import errors
from tests.unit.compute.cell import new_context
from tests.unit.compute.cloud import Cloud


@pytest.mark.parametrize(
    ('error', 'level', 'said', 'traced'),
    [
        (errors.HostRejected('no room'), 'INFO', 'ended without a result: no room', False),
        (errors.KilonovaError('no disk'), 'ERROR', 'failed: no disk', False),
        (OSError('no disk'), 'ERROR', 'failed', True),
    ],
)
@pytest.mark.parametrize('is_step', [True, False])
def test_only_an_error_that_is_not_our_own_is_logged_with_its_traceback(
    cloud: Cloud,
    manager: Any,
    server: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_step: bool,
    error: Exception,
    level: str,
    said: str,
    traced: bool,
) -> None:
    def fail(*args: Any) -> None:
        # An error of its own for each test: it gets a cause.
        raise copy.copy(error)

    method = 'extend_volume' if is_step else 'get_console_output'
    given = {'volume_id': 'v', 'key': 'o/1.extend/1'} if is_step else {'tail_length': None}
    monkeypatch.setattr(cloud.drivers['gpu1'].guests, 'get_console_output', fail)
    monkeypatch.setattr('kilonova.compute.ops.volumes.volume_of', fail)
    with caplog.at_level('INFO', 'kilonova.compute.endpoint'), pytest.raises(errors.KilonovaError):
        getattr(manager.endpoint, method)(new_context(), instance=server, **given)
    what = f'{method} for step o/1.extend/1' if is_step else method
    text = f'The RPC call {what} to this host {said}' if level == 'INFO' else f'{what} {said}'
    found = [record for record in caplog.records if record.name == 'kilonova.compute.endpoint']
    assert [(one.levelname, one.getMessage(), bool(one.exc_info)) for one in found] == [(level, text, traced)]

"""What filters see of a host."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.scheduler.hosts.host_state import HostState
from tests.unit.scheduler.builders import CELL, node


@pytest.mark.parametrize('service', [{'disabled': False, 'up': True}, {}, None])
def test_the_service_of_a_host_is_what_its_row_says(service: dict[str, Any] | None) -> None:
    """A host whose service was deleted has none."""
    host = HostState({**node('gpu1'), 'service': service}, CELL)
    assert dict(host.service) == (service or {})
    with pytest.raises(TypeError):
        host.service['disabled'] = True  # type: ignore[index]


def test_a_host_may_be_in_no_aggregate() -> None:
    assert HostState(node('gpu1'), CELL).aggregates == []
